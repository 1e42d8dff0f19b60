//! Finds out what a path is, and reads it.

use super::checkpoints::newest_checkpoint;
use super::{Run, directory, log};
use crate::files;
use crate::records::LOG_FILE;
use crate::telemetry::TELEMETRY_FILE;
use std::path::{Path, PathBuf};

/// The name of transformers' file.
const TRAINER_STATE: &str = "trainer_state.json";

/// Why a path is no run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{path} holds no run: neither {LOG_FILE} and {TELEMETRY_FILE} of xtrain nor {TRAINER_STATE} of transformers"
    )]
    NoRun { path: PathBuf },
    #[error("{path}: {problem}")]
    State { path: PathBuf, problem: String },
    #[error("{path} holds no record of a Trainer, such as {{'loss': 3.2, 'epoch': 0.1}}")]
    NoRecord { path: PathBuf },
}

/// What a path stands for: a directory that is no run itself and holds some, such as a sweep's,
/// stands for these, sorted by name.
pub fn runs_in(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() || is_run(path) {
        return vec![path.into()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut runs: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && is_run(path))
        .collect();
    runs.sort();
    if runs.is_empty() {
        // Reading it says what it lacks.
        runs.push(path.into());
    }
    runs
}

/// Whether a directory is the output of a run.
fn is_run(dir: &Path) -> bool {
    let own = [LOG_FILE, TELEMETRY_FILE, TRAINER_STATE];
    own.iter().any(|name| dir.join(name).is_file()) || newest_with_state(dir).is_some()
}

/// Reads runs, and gives each a name of its own.
///
/// # Errors
/// A path that is no run. What is damaged or incomplete is read as far as it goes.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Run>, Error> {
    let mut runs = paths
        .iter()
        .map(|path| one(path))
        .collect::<Result<Vec<_>, _>>()?;
    let short: Vec<String> = paths.iter().map(|path| short_name(path)).collect();
    for (index, run) in runs.iter_mut().enumerate() {
        let is_unique = short.iter().filter(|name| **name == short[index]).count() == 1;
        let before = paths[..index].iter().filter(|path| **path == paths[index]);
        run.name = match (is_unique, before.count()) {
            (true, _) => short[index].clone(),
            (false, 0) => paths[index].display().to_string(),
            (false, times) => format!("{} ({})", paths[index].display(), times + 1),
        };
    }
    Ok(runs)
}

fn short_name(path: &Path) -> String {
    let file = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let name = match file(path) {
        Some(name) if name == TRAINER_STATE || name == LOG_FILE => path.parent().and_then(file),
        name => name,
    };
    name.unwrap_or_else(|| path.display().to_string())
}

fn one(path: &Path) -> Result<Run, Error> {
    if path.is_dir() {
        return in_directory(path);
    }
    if path.file_name().is_some_and(|name| name == LOG_FILE)
        && path.is_file()
        && let Some(dir) = path.parent()
    {
        return Ok(directory::read(dir));
    }
    let text = text(path)?;
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return state(path, &text);
    }
    let run = log::plain(path, &String::from_utf8_lossy(&text));
    if run.records == 0 {
        return Err(Error::NoRecord { path: path.into() });
    }
    Ok(run)
}

fn in_directory(dir: &Path) -> Result<Run, Error> {
    if dir.join(LOG_FILE).is_file() || dir.join(TELEMETRY_FILE).is_file() {
        return Ok(directory::read(dir));
    }
    let own = dir.join(TRAINER_STATE);
    // The Trainer saves it with each checkpoint, and beside them only if asked to.
    let found = if own.is_file() {
        Some(own)
    } else {
        newest_with_state(dir).map(|checkpoint| checkpoint.join(TRAINER_STATE))
    };
    let path = found.ok_or_else(|| Error::NoRun { path: dir.into() })?;
    let mut run = state(&path, &text(&path)?)?;
    run.path = dir.into();
    Ok(run)
}

/// The `checkpoint-N` with the largest N that has a state.
fn newest_with_state(dir: &Path) -> Option<PathBuf> {
    newest_checkpoint(dir, |path| path.join(TRAINER_STATE).is_file())
}

fn state(path: &Path, text: &[u8]) -> Result<Run, Error> {
    log::trainer_state(path, text).map_err(|problem| Error::State {
        path: path.into(),
        problem,
    })
}

fn text(path: &Path) -> Result<Vec<u8>, Error> {
    files::read_piped(path, files::MOST).map_err(|source| Error::Io {
        path: path.into(),
        source,
    })
}
