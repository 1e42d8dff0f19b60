//! `xtrain merge`: an adapter becomes part of its model.

use super::{Error, Outcome};
use xtrain_config::MergePlan;
use xtrain_engine::{Merged, merge};
use xtrain_report::outln;

pub fn run(plan: MergePlan) -> Result<Outcome, Error> {
    let Merged {
        changed,
        tensors,
        difference,
        effect,
    } = merge(&plan)?;
    outln!("merged: {changed} of {tensors} tensors changed");
    if let (Some(difference), Some(effect)) = (difference, effect) {
        outln!(
            "checked: logits of a sample differ from the adapter's by {difference:.1e}, where it changes them by {effect:.1e}"
        );
    }
    outln!("saved the model in {}", plan.output_dir.display());
    Ok(Outcome::Done)
}
