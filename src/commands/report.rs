//! `xtrain report`: runs beside each other, as a page and as numbers.

use super::output_file::check_output;
use super::{Error, Outcome};
use std::path::{Path, PathBuf};
use xtrain_checkpoint::named::{is_device, write_named_bytes};
use xtrain_config::{Alignment, Flags, ReportFormat};
use xtrain_engine::failed;
use xtrain_report::output;
use xtrain_report::page::{self, Report};
use xtrain_report::runs::{Axis, losses, read};
use xtrain_report::{err, errln, out, outln};

/// The page that a training run writes.
pub const REPORT_FILE: &str = "report.html";

pub fn run(flags: &Flags) -> Result<Outcome, Error> {
    let formats = flags.format.iter();
    for format in formats.filter(|_| !*flags.compare_losses) {
        if let Some(path) = path(flags, *format) {
            check_output("--output", &path)?;
        }
    }
    let runs = read(&flags.reported()).map_err(|error| {
        Error::failed(error.to_string())
            .with_hint("name output directories, trainer_state.json files or logs of a Trainer")
    })?;
    if *flags.compare_losses {
        return compare_losses([&runs[0], &runs[1]], flags);
    }
    for run in &runs {
        for problem in &run.problems {
            errln!("note: {}: {problem}", run.name);
        }
    }
    let report = Report::new(
        runs,
        flags.baseline_place().unwrap_or(0),
        *flags.price_per_hour,
    );
    for format in flags.format.iter() {
        let text = match format {
            ReportFormat::Html => page::html(&report).into_bytes(),
            ReportFormat::Markdown => page::markdown(&report).into_bytes(),
            ReportFormat::Json => {
                let json = serde_json::to_string_pretty(&page::json(&report));
                (json.map_err(failed("writing JSON"))? + "\n").into_bytes()
            }
        };
        match path(flags, *format) {
            Some(path) => {
                let written = write(&path, &text);
                written.map_err(|error| error.with_hint("--output FILE writes it elsewhere"))?;
                errln!("written: {}", path.display());
            }
            None => output::write(&text),
        }
    }
    Ok(Outcome::Done)
}

/// The file of a format; `None`: standard output.
fn path(flags: &Flags, format: ReportFormat) -> Option<PathBuf> {
    let ending = match format {
        ReportFormat::Html => "html",
        ReportFormat::Markdown => "md",
        ReportFormat::Json => "json",
    };
    let is_ending = |path: &Path| {
        let own = path.extension();
        own.is_some_and(|own| ["html", "md", "json"].iter().any(|known| own == *known))
    };
    match (&*flags.report_file, &flags.format[..]) {
        // As it was named. A point that no ending follows is part of a name (`lr=0.1`).
        (Some(path), _) if is_device(path) => Some(path.clone()),
        (Some(path), [_]) if path.extension().is_some() => Some(path.clone()),
        (Some(path), _) if !is_ending(path) => {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{ending}"));
            Some(name.into())
        }
        (Some(path), _) => Some(path.with_extension(ending)),
        (None, [ReportFormat::Markdown | ReportFormat::Json]) => None,
        (None, _) => Some(Path::new(REPORT_FILE).with_extension(ending)),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_named_bytes(path, bytes).map_err(failed("writing the report"))
}

/// Writes the report of one run into its directory, and prints the run in a few lines.
///
/// # Errors
/// If the page cannot be written.
pub fn of_run(dir: &Path) -> Result<(), Error> {
    let runs = read(&[dir.to_path_buf()]).map_err(failed("reading the run for its report"))?;
    let report = Report::new(runs, 0, None);
    let path = dir.join(REPORT_FILE);
    write(&path, page::html(&report).as_bytes())?;
    err!("{}", page::summary(&report));
    errln!("{:<12} {}", "report", path.display());
    Ok(())
}

fn compare_losses(runs: [&xtrain_report::runs::Run; 2], flags: &Flags) -> Result<Outcome, Error> {
    let axis = match *flags.align {
        Alignment::Auto => None,
        Alignment::Step => Some(Axis::Step),
        Alignment::Tokens => Some(Axis::Tokens),
        Alignment::Epoch => Some(Axis::Epoch),
        Alignment::Time => Some(Axis::Seconds),
    };
    let found = losses::compare(runs, axis, *flags.window)
        .map_err(|(problem, fix)| Error::failed(problem).with_hint(fix))?;
    if *flags.json {
        outln!("{}", found.json())
    } else {
        out!("{}", found.text())
    }
    let bounds = [
        ("largest", *flags.largest, found.largest),
        ("mean", *flags.mean, found.mean),
        ("smoothed", *flags.smoothed, found.smoothed),
    ];
    let beyond: Vec<String> = bounds
        .into_iter()
        .filter_map(|(name, bound, value)| {
            // NaN is beyond every bound.
            let bound = bound.filter(|bound| value.is_nan() || value > *bound)?;
            Some(format!("--{name} {bound} is exceeded: {value:.5}"))
        })
        .collect();
    if beyond.is_empty() {
        return Ok(Outcome::Done);
    }
    Err(Error::failed(beyond.join("; ")))
}
