//! Continuing a prompt.

use super::error::{Error, failed};
use super::execution::Execution;
use super::model::{LoadedModel, origin};
use crate::config::{GeneratePlan, ModelSource, Sampling as Chosen};
use crate::data::Tokenizer;
use crate::trainer::generate::{Sampling, generate as continue_tokens};

/// The prompt and what a saved causal language model continues it with.
///
/// # Errors
/// If something that the plan names cannot be read, or the model cannot be run.
pub fn generate(plan: &GeneratePlan) -> Result<String, Error> {
    let tokenizer = Tokenizer::load(&plan.tokenizer).map_err(failed("loading the tokenizer"))?;
    let loaded = LoadedModel::causal(
        &ModelSource::Pretrained {
            directory: plan.model.clone(),
        },
        None,
    )?;
    tokenizer
        .check_vocab(loaded.model.vocab_size())
        .map_err(failed("matching tokenizer and model"))?;
    let prompt = tokenizer
        .encode(&plan.prompt)
        .map_err(failed("tokenizing the prompt"))?;
    let tokens = (prompt.len() + plan.max_new_tokens).min(loaded.model.max_positions());
    let settings = [("tokens of prompt and answer", tokens.to_string())];
    let origin = origin("generate", &*loaded.model, &settings);
    let mut session =
        Execution::inference(&plan.device, &plan.cache).session(&*loaded.model, origin)?;
    loaded.place(&mut session, plan.seed)?;
    let (temperature, top_k) = match plan.sampling {
        Chosen::Greedy => (0.0, 0),
        Chosen::Random { temperature, top_k } => (temperature, top_k.unwrap_or(0)),
    };
    let sampling = Sampling {
        max_new_tokens: plan.max_new_tokens,
        temperature,
        top_k,
        seed: plan.seed,
    };
    let parameters = loaded.model.parameters();
    let new = continue_tokens(
        &mut session,
        &*loaded.model,
        &parameters,
        &prompt,
        tokenizer.eos_id(),
        sampling,
    )
    .map_err(failed("generating"))?;
    let tokens: Vec<u32> = prompt.iter().copied().chain(new).collect();
    tokenizer.decode(&tokens, true).map_err(failed("decoding"))
}
