//! `xtrain eval`: loss and metrics of a model on a task's data.

use super::{Error, Outcome};
use crate::checkpoint::hf::save_metrics;
use crate::config::EvalPlan;
use crate::distributed::ProcessGroup;
use crate::engine::device::create_output_dir;
use crate::engine::{evaluate, failed};
use serde_json::Value;

pub fn run(plan: EvalPlan) -> Result<Outcome, Error> {
    let record = evaluate(&plan)?;
    if plan.json {
        println!("{}", Value::Object(record.results()));
    } else {
        println!("{}", record.printed());
    }
    if let Some(dir) = plan
        .output_dir
        .as_ref()
        .filter(|_| ProcessGroup::this_writes())
    {
        create_output_dir(dir)?;
        save_metrics(dir, "eval", &record.results()).map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}
