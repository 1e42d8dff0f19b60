//! `xtrain fit`: the largest batch that fits into memory.

use super::target::describe;
use super::{Error, Outcome};
use crate::config::FitPlan;
use crate::engine::fit::{budget, search, split};
use crate::engine::run::Prepared;
use crate::engine::target::{self, AbsentGpu};
use crate::report::table::Table;
use crate::report::units::{bytes, exact};
use crate::trainer::gpu::Gpu;
use serde_json::json;

pub fn run(
    FitPlan {
        train: mut plan,
        scale_from,
        json,
    }: FitPlan,
) -> Result<Outcome, Error> {
    let recorder = plan.target.map(|_| target::recorder(&plan));
    let mut prepared = Prepared::new(recorder.as_ref().unwrap_or(&plan), false)?;
    let mut absent = AbsentGpu::of(&plan, &prepared)?;
    let budget = budget(&plan, &prepared)?;
    let found = search(&plan, &mut prepared, absent.as_mut(), budget)?;
    plan.train.per_device_train_batch_size = found.batch;
    let split = split(&plan, &mut prepared, absent.as_mut(), &found)?;
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
        println!("{results}");
        return Ok(Outcome::Done);
    }
    let mut table = Table::pairs();
    let card = plan
        .target
        .map_or(String::new(), |gpu| format!(" of {}", gpu.name()));
    table.heading(format!("the largest batch within {}{card}", bytes(budget)));
    table.row([
        "per_device_train_batch_size".to_string(),
        exact(found.batch as u64),
    ]);
    table.row(["examples per step".to_string(), exact(examples)]);
    if let Some((rate, at, scaled)) = scaled {
        table.row([
            "learning_rate".to_string(),
            format!("{scaled:e} ({rate:e} at {at} examples, in proportion)"),
        ]);
    }
    table.heading(format!(
        "{} at the peak, in `{}`",
        bytes(found.peak),
        found.graph
    ));
    for (name, n) in split.rows() {
        table.row([name.to_string(), bytes(n)]);
    }
    print!("{}", table.render());
    match &absent {
        Some(absent) => describe(absent),
        None => eprintln!("{}", prepared.session.cache().stats()),
    }
    Ok(Outcome::Done)
}
