//! Continuing a prompt.

use super::error::{Error, failed};
use super::execution::Execution;
use super::model::{ModelConfig, origin};
use crate::config::{GeneratePlan, ModelSource};
use crate::data::Tokenizer;
use crate::trainer::generate::generate as continue_tokens;
use crate::trainer::parameters::Head;
use xtrain_models::HeadKind;

/// The prompt and what a saved causal language model continues it with.
///
/// # Errors
/// If something that the plan names cannot be read, or the model cannot be run.
pub fn generate(plan: &GeneratePlan) -> Result<String, Error> {
    let tokenizer = Tokenizer::load(&plan.tokenizer).map_err(failed("loading the tokenizer"))?;
    let source = ModelSource::Pretrained {
        directory: plan.model.clone(),
    };
    let loaded = ModelConfig::read(&source, None)?.build(HeadKind::CausalLm, Head::Saved)?;
    tokenizer
        .check_vocab(loaded.model.vocab_size())
        .map_err(failed("matching tokenizer and model"))?;
    let prompt = tokenizer
        .encode(&plan.prompt)
        .map_err(failed("tokenizing the prompt"))?;
    let tokens = (prompt.len() + plan.sampling.max_new_tokens).min(loaded.model.max_positions());
    let settings = [("tokens of prompt and answer", tokens.to_string())];
    let origin = origin("generate", &*loaded.model, &settings);
    let execution = Execution::new(&plan.device, &plan.cache, &plan.train);
    let mut session = execution.session(&*loaded.model, origin)?;
    loaded.place(&mut session, plan.sampling.seed)?;
    let new = continue_tokens(
        &mut session,
        &*loaded.model,
        &prompt,
        tokenizer.eos_id(),
        plan.sampling,
    )
    .map_err(failed("generating"))?;
    let tokens: Vec<u32> = prompt.iter().copied().chain(new).collect();
    tokenizer.decode(&tokens, true).map_err(failed("decoding"))
}
