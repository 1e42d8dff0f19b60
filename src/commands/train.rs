//! `xtrain train`: trains a model on a task's data.

use super::{Error, Outcome, dry_run, meshes, predict, preview, report};
use serde_json::Map;
use std::path::Path;
use xtrain_checkpoint::hf::save_metrics;
use xtrain_config::RunPlan;
use xtrain_distributed::ProcessGroup;
use xtrain_distributed::environment::sagemaker::Container;
use xtrain_engine::bucket::Bucket;
use xtrain_engine::device::create_output_dir;
use xtrain_engine::push::Push;
use xtrain_engine::uploads::Destination;
use xtrain_engine::{Run, failed};
use xtrain_report::accounting;
use xtrain_report::telemetry::{self, TELEMETRY_FILE};
use xtrain_report::terminal::folded;
use xtrain_report::{errln, outln};
use xtrain_tasks::Split;
use xtrain_trainer::interrupt::Interrupt;

pub fn run(plan: RunPlan) -> Result<Outcome, Error> {
    if let Some(examples) = *plan.train.flags.preview {
        return preview::run(plan, examples);
    }
    accounting::begin();
    if let Some(comparison) = plan.compare {
        return meshes::run(plan, comparison);
    }
    // The signals stay taken over during the last evaluation, so that has to look at them too.
    let trains = plan.do_train && !*plan.train.flags.dry_run;
    let interrupt = trains.then(Interrupt::install).transpose();
    let interrupt = interrupt.map_err(failed("taking over the signals that end a run"))?;
    let dir = trains.then(|| plan.train.output_dir.clone());
    let (reports, member) = (plan.report, &plan.device.settings.member);
    let is_first = member.as_ref().is_none_or(|member| member.rank == 0);
    let destinations = if trains && is_first {
        destinations(&plan)?
    } else {
        Vec::new()
    };
    let pipeline_tag = plan.task.pipeline_tag();
    let result = prepared(plan, interrupt.as_ref(), &destinations);
    let Some(dir) = dir.filter(|_| ProcessGroup::this_writes()) else {
        return result;
    };
    let outcome = match &result {
        Ok(Outcome::Done) => "done",
        Ok(Outcome::Interrupted { .. } | Outcome::Quit) => "interrupted",
        Err(_) => "failed",
    };
    close_account(&dir, outcome, reports && result.is_ok());
    if destinations.is_empty() {
        return result.and_then(|outcome| hand_over(outcome, &dir));
    }
    let mut uploaded = Ok(());
    for destination in destinations {
        match &result {
            Ok(Outcome::Done) => {
                // The first failure is reported, and the others get theirs.
                uploaded = uploaded.and(destination.finish(&dir, pipeline_tag));
            }
            _ => destination.end(&dir),
        }
    }
    close_account(&dir, outcome, false);
    let result = result.and_then(|outcome| uploaded.map(|()| outcome));
    result.and_then(|outcome| hand_over(outcome, &dir))
}

/// The destinations of a run. Each is tried once, so that one that takes nothing ends a run before it begins.
///
/// # Errors
/// If one refuses or does not answer.
fn destinations(plan: &RunPlan) -> Result<Vec<Box<dyn Destination>>, Error> {
    let mut all: Vec<Box<dyn Destination>> = Vec::new();
    if let Some(push) = &plan.push {
        all.push(Box::new(Push::begin(push)?));
    }
    // After the Hub's, whose model card it has.
    if let Some(url) = &plan.bucket {
        all.push(Box::new(Bucket::begin(url, plan)?));
    }
    Ok(all)
}

/// In SageMaker's container, puts the finished model where the job's model is taken from.
fn hand_over(outcome: Outcome, dir: &Path) -> Result<Outcome, Error> {
    if outcome == Outcome::Done
        && let Some(container) = Container::found()
        && let Some(model) = container
            .export(dir)
            .map_err(failed("copying the model for SageMaker"))?
    {
        outln!("copied the model to {}", model.display());
    }
    Ok(outcome)
}

/// Prepares the run and does what its plan says; its devices are closed again.
fn prepared(
    plan: RunPlan,
    interrupt: Option<&Interrupt>,
    destinations: &[Box<dyn Destination>],
) -> Result<Outcome, Error> {
    if *plan.train.flags.dry_run {
        return dry_run::run(plan);
    }
    let mut run = Run::prepare(plan)?;
    run.resolve_auto_batch(None)?;
    let outcome = train_and_evaluate(&mut run, interrupt, destinations)?;
    errln!("{}", folded(&run.session.cache().stats().to_string(), 0));
    Ok(outcome)
}

/// Writes where the time of the process went and, if asked, the report, in a run that has got as
/// far as its telemetry. A report that cannot be made is no failure of the run.
fn close_account(dir: &Path, outcome: &str, reports: bool) {
    if !dir.join(TELEMETRY_FILE).exists() {
        return;
    }
    telemetry::close(dir, outcome);
    if reports {
        if let Err(error) = report::of_run(dir) {
            errln!("warning: no report: {}", error.one_line());
        }
        // Again, with the time that the report took.
        telemetry::close(dir, outcome);
    }
}

fn train_and_evaluate(
    run: &mut Run,
    interrupt: Option<&Interrupt>,
    destinations: &[Box<dyn Destination>],
) -> Result<Outcome, Error> {
    if !run.plan.do_train {
        if ProcessGroup::this_writes() {
            create_output_dir(&run.plan.train.output_dir)?;
        }
        return after_training(run, None);
    }
    let hooks = destinations.iter();
    let hooks = hooks.map(|destination| destination.hook(run)).collect();
    let outcome = run.train(interrupt, hooks)?;
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
        for split in run.halves(Split::Test) {
            let predictions = run.predict(split)?;
            if !ProcessGroup::this_writes() {
                continue;
            }
            for (name, text) in run.task.predictions(split, &predictions, false)? {
                let path = run.plan.train.output_dir.join(name);
                predict::save(&text, predictions.len(), Some(&path))?;
            }
        }
    }
    Ok(Outcome::Done)
}

/// Evaluates the weights on the device and writes the results, unless a signal asks for the end:
/// half a set's loss is no result.
fn evaluate(run: &mut Run, interrupt: Option<&Interrupt>) -> Result<Outcome, Error> {
    let mut results = Map::new();
    for split in run.halves(Split::Validation) {
        if let Some(record) = run.last_evaluation().filter(|_| split == Split::Validation) {
            results.extend(record.results());
            continue;
        }
        let received = || interrupt.and_then(Interrupt::received);
        let evaluation = run.evaluate_until(split, &|| received().is_some())?;
        if let Some(signal) = received() {
            return Ok(stopped_evaluating(run, signal));
        }
        results.extend(run.log_evaluation(&evaluation)?.results());
    }
    if ProcessGroup::this_writes() {
        let dir = &run.plan.train.output_dir;
        save_metrics(dir, "eval", &results).map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}

/// Says what is whole where a signal ended the last evaluation.
fn stopped_evaluating(run: &Run, signal: i32) -> Outcome {
    let dir = run.plan.train.output_dir.display();
    errln!("stopped during the last evaluation; the trained model is in {dir}");
    errln!(
        "to evaluate it, run xtrain eval {} --model_name_or_path {dir}",
        run.plan.task.name()
    );
    Outcome::Interrupted { signal }
}
