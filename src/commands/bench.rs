//! `xtrain bench`: times training steps on random tokens, beside the device's peak FLOP/s.

use super::{Error, Outcome};
use crate::config::BenchPlan;
use crate::engine::bench;

pub fn run(plan: BenchPlan) -> Result<Outcome, Error> {
    let results = bench(&plan)?;
    if plan.json {
        println!("{results}");
    } else {
        for (key, value) in results.as_object().expect("results have names") {
            println!("{key:20} {value}");
        }
    }
    Ok(Outcome::Done)
}
