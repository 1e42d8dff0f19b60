//! `xtrain eval`: loss and metrics of a model on a task's data.

use super::{Error, Outcome};
use serde_json::{Map, Value};
use std::io::IsTerminal;
use xtrain_checkpoint::hf::save_metrics;
use xtrain_config::RunPlan;
use xtrain_distributed::ProcessGroup;
use xtrain_engine::device::create_output_dir;
use xtrain_engine::{Run, failed};
use xtrain_report::{out, outln};
use xtrain_tasks::Split;

pub fn run(plan: RunPlan) -> Result<Outcome, Error> {
    let mut run = Run::prepare(plan)?;
    let mut results = Map::new();
    for split in run.halves(Split::Validation) {
        let record = run.evaluate_until(split, &|| false)?.record(None, None);
        results.extend(record.results());
        if *run.plan.train.flags.json {
            continue;
        }
        if std::io::stdout().is_terminal() {
            out!("{}", record.table());
        } else {
            outln!("{}", record.printed());
        }
    }
    if *run.plan.train.flags.json {
        outln!("{}", Value::Object(results.clone()));
    }
    let dir = &run.plan.train.output_dir;
    // Without a directory, results are only printed.
    if !dir.as_os_str().is_empty() && ProcessGroup::this_writes() {
        create_output_dir(dir)?;
        save_metrics(dir, "eval", &results).map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}
