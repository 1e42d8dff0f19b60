//! `xtrain eval clm`: loss and perplexity of a model on text files.

use super::model::{LoadedModel, block_size, create_output_dir, eval_batches, failed, open_device, origin};
use super::{Error, Outcome};
use crate::checkpoint::hf::save_metrics;
use crate::config::EvalPlan;
use crate::data::{Collator, Tokenizer, clm};
use crate::trainer::evaluate::evaluate;
use serde_json::Value;

pub fn run(plan: EvalPlan) -> Result<Outcome, Error> {
    let tokenizer = Tokenizer::load(&plan.tokenizer).map_err(failed("loading the tokenizer"))?;
    let loaded = LoadedModel::open(&plan.model, Some(&tokenizer))?;
    let model = &*loaded.model;
    tokenizer.check_vocab(model.vocab_size()).map_err(failed("matching tokenizer and model"))?;
    let block_size = block_size(&plan.data, &tokenizer, model)?;
    let mut session = open_device(plan.device, &plan.cache)?;
    let shapes =
        [("block_size", block_size.to_string()), ("per_device_eval_batch_size", plan.per_device_eval_batch_size.to_string())];
    session.set_eval_precision(plan.precision);
    session.cache_mut().set_origin(origin("eval clm", model, &shapes));
    let data = clm::validation_dataset(&plan.data, &tokenizer, block_size, plan.disable_tqdm)
        .map_err(failed("preparing the validation text"))?;
    loaded.place(&mut session, plan.seed)?;
    let workers = plan.data.source.dataloader_num_workers;
    let mut batches = eval_batches(session.client(), &Collator::Causal(data), plan.per_device_eval_batch_size, workers)
        .map_err(failed("preparing the validation batches"))?;
    let evaluation = evaluate(&mut session, model, &model.parameters(), &mut *batches).map_err(failed("evaluating"))?;
    let record = evaluation.record(None);
    match plan.json {
        true => println!("{}", Value::Object(record.results())),
        false => println!("{}", record.printed()),
    }
    if let Some(dir) = &plan.output_dir {
        create_output_dir(dir)?;
        save_metrics(dir, "eval", &record.results()).map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}
