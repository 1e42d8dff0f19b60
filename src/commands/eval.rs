//! `xtrain eval`: loss and metrics of a model on a task's data.

use super::{Error, Outcome};
use crate::checkpoint::hf::save_metrics;
use crate::config::EvalPlan;
use crate::distributed::ProcessGroup;
use crate::engine::device::{create_output_dir, open_device};
use crate::engine::failed;
use crate::engine::model::origin;
use crate::engine::task::{Purpose, load_task};
use crate::trainer::evaluate::evaluate;
use crate::trainer::parameters::Head;
use crate::trainer::settings::OptimizerKind;
use crate::trainer::step::placements;
use serde_json::Value;

pub fn run(plan: EvalPlan) -> Result<Outcome, Error> {
    let (loaded, task, _) = load_task(
        &plan.task,
        &plan.model,
        &plan.tokenizer,
        Purpose::Use,
        Head::Saved,
        plan.disable_tqdm,
    )?;
    let model = &*loaded.model;
    let mut session = open_device(&plan.device, plan.mesh, &plan.cache)?;
    let mut settings = task.settings();
    settings.push((
        "per_device_eval_batch_size",
        plan.per_device_eval_batch_size.to_string(),
    ));
    session.set_eval_precision(plan.precision);
    let placements = placements(model, OptimizerKind::Sgd, plan.mesh, false);
    session.set_placements(placements.map_err(failed("laying out the model"))?);
    session.cache_mut().set_origin(origin(
        &format!("eval {}", plan.task.word()),
        model,
        &settings,
    ));
    let set = task.validation()?;
    loaded.place(&mut session, plan.seed)?;
    let mut batches = task
        .form(&[&set])
        .sharded(plan.mesh)
        .one_pass(
            session.client(),
            &set,
            plan.per_device_eval_batch_size,
            task.workers(),
        )
        .map_err(failed("preparing the validation batches"))?;
    let evaluation = evaluate(&mut session, model, &model.parameters(), &mut *batches)
        .map_err(failed("evaluating"))?;
    let record = evaluation.record(&task.label_names(), None);
    match plan.json {
        true => println!("{}", Value::Object(record.results())),
        false => println!("{}", record.printed()),
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
