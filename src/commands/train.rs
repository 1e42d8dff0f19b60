//! `xtrain train`: trains a model on a task's data.

use super::{Error, Outcome, dry_run, meshes, predict};
use crate::checkpoint::hf::save_metrics;
use crate::config::RunPlan;
use crate::distributed::ProcessGroup;
use crate::engine::device::create_output_dir;
use crate::engine::{Run, failed};
use crate::trainer::interrupt::Interrupt;

pub fn run(plan: RunPlan) -> Result<Outcome, Error> {
    if let Some(comparison) = plan.compare {
        return meshes::run(plan, comparison);
    }
    // The signals stay taken over during the last evaluation, so that has to look at them too.
    let trains = plan.do_train && !plan.dry_run;
    let interrupt = trains.then(Interrupt::install).transpose();
    let interrupt = interrupt.map_err(failed("taking over SIGINT and SIGTERM"))?;
    let mut run = Run::prepare(plan)?;
    run.resolve_auto_batch(None)?;
    if run.plan.dry_run {
        if run.plan.json {
            dry_run::print_json(&mut run)?;
        } else {
            dry_run::print(&mut run)?;
        }
        return Ok(Outcome::Done);
    }
    let outcome = train_and_evaluate(&mut run, interrupt.as_ref())?;
    eprintln!("{}", run.session.cache().stats());
    Ok(outcome)
}

fn train_and_evaluate(run: &mut Run, interrupt: Option<&Interrupt>) -> Result<Outcome, Error> {
    if !run.plan.do_train {
        if ProcessGroup::this_writes() {
            create_output_dir(&run.plan.train.output_dir)?;
        }
        return after_training(run, None);
    }
    let outcome = run.train(interrupt, Vec::new())?;
    if outcome != Outcome::Done {
        return Ok(outcome);
    }
    // Several processes evaluate to the end together; a second signal ends them.
    after_training(run, interrupt.filter(|_| ProcessGroup::joined().is_none()))
}

/// What is done with the finished model.
fn after_training(run: &mut Run, interrupt: Option<&Interrupt>) -> Result<Outcome, Error> {
    if run.plan.do_eval {
        let outcome = evaluate(run, interrupt)?;
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
    }
    if run.plan.do_predict {
        let predictions = run.predict()?;
        if ProcessGroup::this_writes() {
            let (name, text) = run.task.predictions(&predictions, false)?;
            let path = run.plan.train.output_dir.join(name);
            predict::save(&text, predictions.len(), Some(&path))?;
        }
    }
    Ok(Outcome::Done)
}

/// Evaluates the weights on the device and writes the results, unless a signal asks for the end:
/// half a set's loss is no result.
fn evaluate(run: &mut Run, interrupt: Option<&Interrupt>) -> Result<Outcome, Error> {
    let received = || interrupt.and_then(Interrupt::received);
    let evaluation = run.evaluate_until(&|| received().is_some())?;
    let dir = &run.plan.train.output_dir;
    if let Some(signal) = received() {
        let dir = dir.display();
        eprintln!("stopped during the last evaluation; the trained model is in {dir}");
        eprintln!(
            "to evaluate it, run xtrain eval {} --model_name_or_path {dir}",
            run.plan.task.name()
        );
        return Ok(Outcome::Interrupted { signal });
    }
    let record = evaluation.record(None);
    println!("{}", record.printed());
    if ProcessGroup::this_writes() {
        save_metrics(dir, "eval", &record.results()).map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}
