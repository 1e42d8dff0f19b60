//! `xtrain bench`: times training steps on random tokens, beside the device's peak FLOP/s.

use super::{Error, Outcome};
use crate::config::BenchPlan;
use crate::engine::{bench, profile};

pub fn run(plan: BenchPlan) -> Result<Outcome, Error> {
    let results = bench(&plan)?;
    if plan.json {
        println!("{results}");
    } else {
        let results = results.as_object().expect("results have names");
        for (key, value) in results.iter().filter(|(key, _)| *key != "profile") {
            println!("{key:20} {value}");
        }
        if let Some(profile) = results.get("profile") {
            print!("{}", profile::table(profile));
        }
    }
    Ok(Outcome::Done)
}
