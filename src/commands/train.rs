//! `xtrain train`: trains a model on a task's data.

use super::{Error, Outcome, dry_run, meshes, predict, preview, report};
use serde_json::Map;
use std::path::Path;
use xtrain_checkpoint::hf::save_metrics;
use xtrain_config::RunPlan;
use xtrain_distributed::ProcessGroup;
use xtrain_distributed::environment::sagemaker::Container;
use xtrain_engine::device::create_output_dir;
use xtrain_engine::push::Push;
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
    let push = plan.push.as_ref().filter(|_| trains && is_first);
    let push = push.map(Push::begin).transpose()?;
    let pipeline_tag = plan.task.pipeline_tag();
    let result = prepared(plan, interrupt.as_ref(), push.as_ref());
    let Some(dir) = dir.filter(|_| ProcessGroup::this_writes()) else {
        return result;
    };
    let outcome = match &result {
        Ok(Outcome::Done) => "done",
        Ok(Outcome::Interrupted { .. } | Outcome::Quit) => "interrupted",
        Err(_) => "failed",
    };
    close_account(&dir, outcome, reports && result.is_ok());
    let Some(push) = push else {
        return result.and_then(|outcome| hand_over(outcome, &dir));
    };
    let result = match result {
        Ok(Outcome::Done) => push.finish(&dir, pipeline_tag).map(|()| Outcome::Done),
        other => {
            push.end();
            other
        }
    };
    close_account(&dir, outcome, false);
    result.and_then(|outcome| hand_over(outcome, &dir))
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
    push: Option<&Push>,
) -> Result<Outcome, Error> {
    if *plan.train.flags.dry_run {
        return dry_run::run(plan);
    }
    let mut run = Run::prepare(plan)?;
    run.resolve_auto_batch(None)?;
    let outcome = train_and_evaluate(&mut run, interrupt, push)?;
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
    push: Option<&Push>,
) -> Result<Outcome, Error> {
    if !run.plan.do_train {
        if ProcessGroup::this_writes() {
            create_output_dir(&run.plan.train.output_dir)?;
        }
        return after_training(run, None);
    }
    let hooks = push.map(|push| {
        let files = run.files_beside_tensors().into_iter();
        let names = files.map(|(name, _)| name).collect();
        let settings = &run.plan.train;
        Box::new(push.hook(settings.save, &settings.output_dir, names)) as _
    });
    let outcome = run.train(interrupt, hooks.into_iter().collect())?;
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
