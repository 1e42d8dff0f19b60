//! Experiment trackers of a run, as its plan names them.

use super::error::Error;
use xtrain_config::RunPlan;
use xtrain_models::Model;
use xtrain_report::trackers::{Destination, RunDescription, TrackerKind, Trackers};

/// Begins them for a run of `total_steps` that starts at `step`.
///
/// # Errors
/// One cannot be reached or written: the user can fix that before the first step.
pub fn trackers(
    plan: &RunPlan,
    model: &dyn Model,
    step: u64,
    total_steps: u64,
) -> Result<Trackers, Error> {
    let settings = plan.settings.iter();
    let run = RunDescription {
        settings: settings
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect(),
        model: model.config().values().clone(),
        step,
        total_steps,
    };
    let to = Destination {
        output_dir: &plan.train.output_dir,
        logging_dir: plan.trackers.logging_dir.as_deref(),
        run_name: &plan.trackers.run_name,
    };
    let start = |kind: &&TrackerKind| {
        (kind.start)(&to, &run).map_err(|error| {
            Error::failed(format!("--report_to {}: {error}", kind.name))
                .with_hint("fix it, or remove it from --report_to")
        })
    };
    let started = plan
        .trackers
        .kinds
        .iter()
        .map(start)
        .collect::<Result<_, _>>()?;
    Ok(Trackers::new(started))
}
