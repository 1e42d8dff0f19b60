//! `--dry_run --compare_meshes N`: every mesh of N devices, and which of them fit.

mod output;

use super::{Error, Outcome};
use xtrain_config::{MeshComparison, RunPlan};
use xtrain_engine::meshes::compare;
use xtrain_report::{out, outln};

pub(super) fn run(plan: RunPlan, wanted: MeshComparison) -> Result<Outcome, Error> {
    let comparison = compare(&plan, wanted)?;
    if *plan.train.flags.json {
        outln!("{}", output::json(&comparison));
    } else {
        out!("{}", output::text(&comparison));
        outln!(
            "\ndry run: nothing was trained or written to {}",
            plan.train.output_dir.display()
        );
    }
    Ok(Outcome::Done)
}
