//! `xtrain predict`: labels the samples of the test files, into a file.

use super::output_file::{announce, check_output};
use super::{Error, Outcome};
use std::path::Path;
use xtrain_checkpoint::named::write_named_bytes;
use xtrain_config::PredictPlan;
use xtrain_engine::{Run, failed};
use xtrain_report::output;
use xtrain_tasks::Split;

/// Predicts as the plan says, and writes the predictions.
///
/// # Errors
/// If something that the plan names cannot be read, a batch cannot be run, or the file cannot be
/// written.
pub fn run(plan: PredictPlan) -> Result<Outcome, Error> {
    if let Some(path) = &plan.output_file {
        check_output("--output_file", path)?;
    }
    let mut run = Run::prepare(plan.run)?;
    let predictions = run.predict(Split::Test)?;
    let files = run
        .task
        .predictions(Split::Test, &predictions, plan.include_text)?;
    if let Some((_, text)) = files.first() {
        save(text, predictions.len(), plan.output_file.as_deref())?;
    }
    Ok(Outcome::Done)
}

/// Writes the predictions of `rows` rows to a file or, without one, to standard output.
///
/// # Errors
/// If the file cannot be written.
pub fn save(text: &str, rows: usize, path: Option<&Path>) -> Result<(), Error> {
    match path {
        Some(path) => {
            write_named_bytes(path, text.as_bytes()).map_err(failed("saving the predictions"))?;
            announce(path, &format!("labelled {rows} rows: {}", path.display()));
        }
        None => output::write(text.as_bytes()),
    }
    Ok(())
}
