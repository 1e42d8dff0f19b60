//! Experiment trackers of a run, as its plan names them.

use super::error::Error;
use crate::config::{RunPlan, TrackerName};
use crate::report::trackers::{Mlflow, RunDescription, TensorBoard, Tracker, Trackers};
use xtrain_models::Model;

/// Begins them for a run that starts at `step`.
///
/// # Errors
/// One cannot be reached or written: the user can fix that before the first step.
pub fn trackers(plan: &RunPlan, model: &dyn Model, step: u64) -> Result<Trackers, Error> {
    let settings = plan.settings.iter();
    let run = RunDescription {
        settings: settings
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect(),
        model: model.config().values().clone(),
        step,
    };
    let (dir, plan) = (&plan.train.output_dir, &plan.trackers);
    let start = |name: &TrackerName| -> Result<Box<dyn Tracker>, Error> {
        let started: std::io::Result<Box<dyn Tracker>> = match name {
            TrackerName::TensorBoard => TensorBoard::start(dir, plan.logging_dir.as_deref(), &run)
                .map(|tracker| Box::new(tracker) as _),
            TrackerName::Mlflow => {
                Mlflow::start(dir, &plan.run_name, &run).map(|tracker| Box::new(tracker) as _)
            }
        };
        started.map_err(|error| {
            Error::failed(format!("--report_to {name}: {error}"))
                .with_hint("fix it, or remove it from --report_to")
        })
    };
    let started = plan.names.iter().map(start).collect::<Result<_, _>>()?;
    Ok(Trackers::new(started))
}
