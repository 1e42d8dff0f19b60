//! `--report_to tensorboard`: event files as the Trainer's callback writes them. Each record is one
//! write, so that a killed process leaves at most one record that is not whole, at the end.

use super::event::{
    self, Event, HParams, HParamsEnd, HParamsStart, Parameter, ParameterKind, SESSION_START,
    SessionLog, Summary, Value, What,
};
use super::tracker::{RunDescription, RunEnd, Tracker, TrackerKind, cannot_write};
use crate::records::Record;
use crate::telemetry::{host, now};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub static KIND: TrackerKind = TrackerKind {
    name: "tensorboard",
    is_set_up: || true,
    start: |to, run| {
        let board = TensorBoard::start(to.output_dir, to.logging_dir, run)?;
        Ok(Box::new(board))
    },
};

/// How the names of event files begin.
const PREFIX: &str = "events.out.tfevents.";

/// An event file, open for appending.
pub struct TensorBoard(File);

impl TensorBoard {
    /// Begins an event file for a run of `output_dir`: in `logging_dir` or, as transformers has it,
    /// in `runs/<time>_<host>` of the output directory. A resumed run writes beside its last
    /// file, whose later steps are void from then on.
    ///
    /// # Errors
    /// If the directory or the file cannot be made.
    pub fn start(
        output_dir: &Path,
        logging_dir: Option<&Path>,
        run: &RunDescription,
    ) -> io::Result<TensorBoard> {
        let runs = output_dir.join("runs");
        let resumed = || {
            let (_, dir) = newest(&runs).filter(|_| run.step > 0)?;
            Some(dir)
        };
        let dir = match logging_dir {
            Some(dir) => dir.to_path_buf(),
            None => resumed().unwrap_or_else(|| runs.join(format!("{}_{}", local_time(), host()))),
        };
        fs::create_dir_all(&dir).map_err(cannot_write(&dir))?;
        // Readers take the files of a directory in the order of their names.
        let last = files(&dir).map(|(seconds, _)| seconds + 1).max();
        let seconds = last.unwrap_or(0).max(now() as u64);
        let name = format!("{PREFIX}{seconds:010}.{}.{}", host(), std::process::id());
        let file = create_numbered(&dir.join(name)).map_err(cannot_write(&dir))?;
        let mut board = TensorBoard(file);
        // A new run voids the events that an earlier one left in this directory.
        let first_step = if run.step > 0 { run.step + 1 } else { 0 };
        let (settings, model) = (run.values(), serde_json::to_string_pretty(&run.model)?);
        let hparams = settings.iter().map(|(name, value)| {
            let kind = match value {
                serde_json::Value::Bool(value) => ParameterKind::Bool(*value),
                serde_json::Value::Number(value) => {
                    ParameterKind::Number(value.as_f64().unwrap_or(f64::NAN))
                }
                other => ParameterKind::Text(other.as_str().unwrap_or_default().to_string()),
            };
            (name.clone(), Parameter { kind: Some(kind) })
        });
        let hparams = HParams {
            start: Some(HParamsStart {
                hparams: hparams.collect(),
                start_seconds: now(),
            }),
            end: None,
        };
        let values = vec![
            Value::text("args", serde_json::to_string_pretty(&settings)?),
            Value::text("model_config", model),
            Value::hparams("session_start_info", &hparams),
        ];
        board.write(&[
            (0, What::FileVersion("brain.Event:2".into())),
            (
                first_step,
                What::SessionLog(SessionLog {
                    status: SESSION_START,
                }),
            ),
            (run.step, What::Summary(Summary { value: values })),
        ])?;
        Ok(board)
    }

    /// In one write.
    fn write(&mut self, events: &[(u64, What)]) -> io::Result<()> {
        if self.0.metadata()?.nlink() == 0 {
            return Err(io::Error::other("its event file was removed"));
        }
        let wall_time = now();
        let mut bytes = Vec::new();
        for (step, what) in events {
            let event = Event {
                wall_time,
                step: *step as i64,
                what: Some(what.clone()),
            };
            event::append(&mut bytes, &event);
        }
        self.0.write_all(&bytes)
    }
}

impl Tracker for TensorBoard {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        let value = |(name, value): (String, f64)| Value::scalar(tag(&name), value);
        let value = record.scalars().into_iter().map(value).collect();
        self.write(&[(record.step(), What::Summary(Summary { value }))])
    }

    fn end(&mut self, end: RunEnd) -> io::Result<()> {
        let end = HParamsEnd {
            status: if end == RunEnd::Failed { 2 } else { 1 },
            end_seconds: now(),
        };
        let data = HParams {
            start: None,
            end: Some(end),
        };
        let value = vec![Value::hparams("session_end_info", &data)];
        self.write(&[(0, What::Summary(Summary { value }))])
    }
}

/// The tag of a record's key: `eval_loss` is `eval/loss`, everything else is of the training.
fn tag(key: &str) -> String {
    match key.strip_prefix("eval_") {
        Some(name) => format!("eval/{name}"),
        None => format!("train/{key}"),
    }
}

/// The event files of a directory, by the second in their names.
fn files(dir: &Path) -> impl Iterator<Item = (u64, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (seconds, _) = name.strip_prefix(PREFIX)?.split_once('.')?;
        Some((seconds.parse().ok()?, entry.path()))
    })
}

/// The directory below `runs` with the newest event file.
fn newest(runs: &Path) -> Option<(u64, PathBuf)> {
    let dirs = fs::read_dir(runs).into_iter().flatten().flatten();
    let dirs = dirs.map(|entry| entry.path());
    dirs.filter_map(|dir| Some((files(&dir).map(|(seconds, _)| seconds).max()?, dir)))
        .max()
}

/// A new file of this name and the first number that is free: in containers, processes of one host
/// name can have one number too.
fn create_numbered(name: &Path) -> io::Result<File> {
    let mut number = 0;
    loop {
        let mut path = name.as_os_str().to_owned();
        path.push(format!(".{number}"));
        match OpenOptions::new().create_new(true).append(true).open(path) {
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => number += 1,
            opened => return opened,
        }
    }
}

/// `Nov23_21-04-55`, as transformers names directories.
fn local_time() -> String {
    chrono::Local::now().format("%b%d_%H-%M-%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::TrainRecord;
    use std::collections::BTreeMap;

    fn run(step: u64) -> RunDescription {
        RunDescription {
            settings: BTreeMap::from([("learning_rate".to_string(), "5e-5".to_string())]),
            model: Default::default(),
            step,
            total_steps: 8,
        }
    }

    #[test]
    fn a_resumed_run_goes_on_beside_its_last_file() {
        let dir = tempfile::tempdir().unwrap();
        let record = |step| {
            Record::Train(TrainRecord {
                loss: step as f64,
                grad_norm: None,
                learning_rate: 0.5,
                scaling: None,
                measured: Vec::new(),
                epoch: 0.0,
                tokens_seen: None,
                step,
            })
        };
        let mut first = TensorBoard::start(dir.path(), None, &run(0)).unwrap();
        (1..=3).for_each(|step| first.record(&record(step)).unwrap());
        let mut second = TensorBoard::start(dir.path(), None, &run(2)).unwrap();
        second.record(&record(3)).unwrap();
        second.end(RunEnd::Finished).unwrap();
        let (_, runs) = newest(&dir.path().join("runs")).unwrap();
        let mut found: Vec<_> = files(&runs).collect();
        found.sort();
        assert_eq!(found.len(), 2);
        let events = event::read(&fs::read(&found[1].1).unwrap()).unwrap();
        assert_eq!(events[1].step, 3);
        assert!(matches!(events[1].what, Some(What::SessionLog(_))));
        assert_eq!(events[2].step, 2);
    }

    #[test]
    fn a_file_that_was_removed_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::start(dir.path(), None, &run(0)).unwrap();
        fs::remove_dir_all(dir.path().join("runs")).unwrap();
        let error = board.end(RunEnd::Finished).unwrap_err();
        assert!(error.to_string().contains("was removed"), "{error}");
    }

    #[test]
    fn writers_of_one_name_get_a_file_each() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["a", "b"] {
            let mut file = create_numbered(&dir.path().join("events.1.host.1")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        for (number, text) in ["a", "b"].iter().enumerate() {
            let path = dir.path().join(format!("events.1.host.1.{number}"));
            assert_eq!(fs::read_to_string(path).unwrap(), *text);
        }
    }

    #[test]
    fn tags_are_transformers() {
        assert_eq!(
            [tag("loss"), tag("eval_loss"), tag("train_runtime")],
            ["train/loss", "eval/loss", "train/train_runtime"]
        );
    }
}
