//! `xtrain generate`: continues a prompt.

use super::{Error, Outcome};
use crate::config::{GeneratePlan, ModelSource, Sampling as Chosen};
use crate::data::Tokenizer;
use crate::engine::device::open_device;
use crate::engine::failed;
use crate::engine::model::{LoadedModel, origin};
use crate::parallel::Mesh;
use crate::trainer::generate::{Sampling, generate};

pub fn run(plan: GeneratePlan) -> Result<Outcome, Error> {
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
    let mut session = open_device(&plan.device, Mesh::single(), &plan.cache)?;
    let tokens = (prompt.len() + plan.max_new_tokens).min(loaded.model.max_positions());
    session.cache_mut().set_origin(origin(
        "generate",
        &*loaded.model,
        &[("tokens of prompt and answer", tokens.to_string())],
    ));
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
    let new = generate(
        &mut session,
        &*loaded.model,
        &parameters,
        &prompt,
        tokenizer.eos_id(),
        sampling,
    )
    .map_err(failed("generating"))?;
    let tokens: Vec<u32> = prompt.iter().copied().chain(new).collect();
    println!(
        "{}",
        tokenizer
            .decode(&tokens, true)
            .map_err(failed("decoding"))?
    );
    Ok(Outcome::Done)
}
