//! `xtrain fit`: the largest batch that fits into memory.

use super::target::describe;
use super::{Error, Outcome};
use serde_json::json;
use xtrain_config::FitPlan;
use xtrain_engine::Run;
use xtrain_engine::target::AotTarget;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, exact};
use xtrain_report::{errln, out, outln};
use xtrain_trainer::gpu::Gpu;

pub fn run(
    FitPlan {
        train: plan,
        scale_from,
        json,
    }: FitPlan,
) -> Result<Outcome, Error> {
    let mut run = if plan.target.is_some() {
        Run::for_recording(plan)?
    } else {
        Run::without_data(plan)?
    };
    let mut target = AotTarget::of(&run)?;
    let budget = run.memory_budget()?;
    let found = run.largest_batch(target.as_mut(), budget)?;
    run.plan.train.per_device_train_batch_size = found.batch;
    let split = run.break_down(target.as_mut(), &found)?;
    let plan = &run.plan;
    let examples = plan.train.examples_per_step() as u64;
    let scaled = scale_from.map(|(rate, at)| (rate, at, rate * examples as f64 / at as f64));
    if json {
        let results = json!({
            "per_device_train_batch_size": found.batch,
            "examples_per_step": examples,
            "memory_bytes": budget,
            "peak_bytes": found.peak,
            "peak_graph": found.graph,
            "weights_bytes": split.weights,
            "moments_bytes": split.moments,
            "accumulated_gradients_bytes": split.accumulated,
            "batch_bytes": split.data,
            "activations_bytes": split.activations,
            "temporaries_bytes": split.temporaries,
            "learning_rate": scaled.map(|(.., rate)| rate),
            "target": plan.target.map(Gpu::name),
        });
        outln!("{results}");
        return Ok(Outcome::Done);
    }
    let mut table = Table::pairs();
    let card = plan
        .target
        .map_or(String::new(), |gpu| format!(" of {}", gpu.name()));
    table.heading(format!("the largest batch within {}{card}", bytes(budget)));
    table.pair("per_device_train_batch_size", exact(found.batch as u64));
    table.pair("examples per step", exact(examples));
    if let Some((rate, at, scaled)) = scaled {
        table.pair(
            "learning_rate",
            format!("{scaled:e} ({rate:e} at {at} examples, in proportion)"),
        );
    }
    table.heading(format!(
        "{} at the peak, in `{}`",
        bytes(found.peak),
        found.graph
    ));
    for (name, n) in split.rows() {
        table.pair(name, bytes(n));
    }
    out!("{}", table.render());
    match &target {
        Some(target) => describe(target),
        None => errln!("{}", run.session.cache().stats()),
    }
    Ok(Outcome::Done)
}
