//! `xtrain train`: trains a model on a task's data.

use super::{Error, Outcome, dry_run, meshes, predict};
use crate::checkpoint::clean_output_dir;
use crate::checkpoint::hf::save_metrics;
use crate::config::TrainPlan;
use crate::distributed::ProcessGroup;
use crate::engine::device::create_output_dir;
use crate::engine::predict::label;
use crate::engine::run::Prepared;
use crate::engine::train::train;
use crate::engine::{failed, fit};
use crate::trainer::evaluate::evaluate;
use crate::trainer::interrupt::Interrupt;

pub fn run(mut plan: TrainPlan) -> Result<Outcome, Error> {
    if let Some(comparison) = plan.compare {
        return meshes::run(plan, comparison);
    }
    let mut prepared = Prepared::new(&plan, true)?;
    fit::resolve_auto(&mut plan, &mut prepared)?;
    if plan.dry_run {
        match plan.json {
            true => dry_run::print_json(&plan, &mut prepared)?,
            false => dry_run::print(&plan, &mut prepared)?,
        }
        return Ok(Outcome::Done);
    }
    if ProcessGroup::this_writes() {
        create_output_dir(&plan.train.output_dir)?;
        clean_output_dir(&plan.train.output_dir)
            .map_err(failed("cleaning up after a killed run"))?;
    }
    let outcome = train_and_evaluate(&plan, &mut prepared)?;
    eprintln!("{}", prepared.session.cache().stats());
    Ok(outcome)
}

fn train_and_evaluate(plan: &TrainPlan, prepared: &mut Prepared) -> Result<Outcome, Error> {
    if !plan.do_train {
        prepared
            .loaded
            .place(&mut prepared.session, plan.train.seed)?;
        return after_training(plan, prepared, None);
    }
    // The signals stay taken over during the last evaluation, so that has to look at them too.
    let interrupt = Interrupt::install().map_err(failed("taking over SIGINT and SIGTERM"))?;
    let outcome = train(plan, prepared, &interrupt)?;
    match outcome {
        // Several processes evaluate to the end together; a second signal ends them.
        Outcome::Done => after_training(
            plan,
            prepared,
            Some(&interrupt).filter(|_| ProcessGroup::joined().is_none()),
        ),
        interrupted => Ok(interrupted),
    }
}

/// What is done with the finished model.
fn after_training(
    plan: &TrainPlan,
    prepared: &mut Prepared,
    interrupt: Option<&Interrupt>,
) -> Result<Outcome, Error> {
    if plan.do_eval {
        match evaluate_at_end(plan, prepared, interrupt)? {
            Outcome::Done => {}
            interrupted => return Ok(interrupted),
        }
    }
    if plan.do_predict {
        predict_at_end(plan, prepared)?;
    }
    Ok(Outcome::Done)
}

/// Evaluates the weights on the device and writes the results, unless a signal asks for the end:
/// half a set's loss is no result.
fn evaluate_at_end(
    plan: &TrainPlan,
    prepared: &mut Prepared,
    interrupt: Option<&Interrupt>,
) -> Result<Outcome, Error> {
    let (form, workers) = (prepared.form(), prepared.task.workers());
    let validation = prepared
        .validation
        .clone()
        .expect("a run that evaluates has validation data");
    let model = &*prepared.loaded.model;
    let session = &mut prepared.session;
    let batches = form
        .one_pass(
            session.client(),
            &validation,
            plan.train.per_device_eval_batch_size,
            workers,
        )
        .map_err(failed("preparing the validation batches"))?;
    let received = || interrupt.and_then(Interrupt::received);
    let mut batches = batches.take_while(|_| received().is_none());
    let evaluation = evaluate(session, model, &model.parameters(), &mut batches)
        .map_err(failed("evaluating"))?;
    if let Some(signal) = received() {
        let dir = plan.train.output_dir.display();
        eprintln!("stopped during the last evaluation; the trained model is in {dir}");
        eprintln!(
            "to evaluate it, run xtrain eval {} --model_name_or_path {dir}",
            plan.task.word()
        );
        return Ok(Outcome::Interrupted { signal });
    }
    let record = evaluation.record(&prepared.task.label_names(), None);
    println!("{}", record.printed());
    if ProcessGroup::this_writes() {
        save_metrics(&plan.train.output_dir, "eval", &record.results())
            .map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}

/// Labels the test set with the weights on the device.
fn predict_at_end(plan: &TrainPlan, prepared: &mut Prepared) -> Result<(), Error> {
    let form = prepared.form();
    let test = prepared
        .test
        .clone()
        .expect("a run that predicts has test data");
    let path = plan.train.output_dir.join("predictions.csv");
    let size = plan.train.per_device_eval_batch_size;
    let predictions = label(
        &mut prepared.session,
        &*prepared.loaded.model,
        (&form, &test),
        size,
        &prepared.task,
    )?;
    if !ProcessGroup::this_writes() {
        return Ok(());
    }
    predict::save(&predictions, &prepared.task, false, Some(&path))
}
