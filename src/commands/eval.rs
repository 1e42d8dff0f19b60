//! `xtrain eval clm`: loss and perplexity of a model on text files.

use super::model::{LoadedModel, eval_batches, failed, open_device, origin};
use super::{Error, Outcome};
use crate::checkpoint::hf::save_metrics;
use crate::config::EvalPlan;
use crate::data::{Tokenizer, clm};
use crate::trainer::evaluate::evaluate;
use serde_json::Value;

pub fn run(plan: EvalPlan) -> Result<Outcome, Error> {
    let tokenizer = Tokenizer::load(&plan.tokenizer).map_err(failed("loading the tokenizer"))?;
    let loaded = LoadedModel::open(&plan.model, Some(&tokenizer))?;
    let model = &*loaded.model;
    tokenizer.check_vocab(model.vocab_size()).map_err(failed("matching tokenizer and model"))?;
    let block = clm::block_size(plan.data.block_size, tokenizer.model_max_length(), model.max_positions())
        .map_err(failed("choosing the block size"))?;
    if let Some(note) = &block.note {
        eprintln!("note: {note}");
    }
    let data = clm::validation_dataset(&plan.data, &tokenizer, block.size, plan.disable_tqdm)
        .map_err(failed("preparing the validation text"))?;
    let mut session = open_device(plan.device, &plan.cache)?;
    let shapes =
        [("block_size", block.size.to_string()), ("per_device_eval_batch_size", plan.per_device_eval_batch_size.to_string())];
    session.cache_mut().set_origin(origin("eval clm", model, &shapes));
    loaded.place(&mut session, plan.seed)?;
    let workers = plan.data.dataloader_num_workers;
    let mut batches = eval_batches(session.client(), &data, plan.per_device_eval_batch_size, workers)
        .map_err(failed("preparing the validation batches"))?;
    let evaluation = evaluate(&mut session, model, &model.parameters(), &mut *batches).map_err(failed("evaluating"))?;
    let record = evaluation.record(None);
    match plan.json {
        true => println!("{}", Value::Object(record.results())),
        false => println!("{}", record.printed()),
    }
    if let Some(dir) = &plan.output_dir {
        std::fs::create_dir_all(dir).map_err(failed("creating --output_dir"))?;
        save_metrics(dir, "eval", &record.results()).map_err(failed("saving the results"))?;
    }
    Ok(Outcome::Done)
}
