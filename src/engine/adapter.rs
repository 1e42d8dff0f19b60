//! Checks of a trained adapter, and whether vLLM loads it.

use super::error::{Error, failed};
use xtrain_checkpoint::hash;
use xtrain_models::{Adapter, AdapterBias, Model, ParameterSet, is_adapted_by_vllm};
use xtrain_trainer::parameters;
use xtrain_trainer::session::Session;

/// The ranks that vLLM makes room for; another one takes the next.
const RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];

/// The rank that it makes room for where nobody says another one.
const USUAL_RANK: usize = 16;

/// Tells an adapter's values from others; `None` of a model without one. All processes call it
/// together.
///
/// # Errors
/// If it has no values, or they cannot be read back.
pub fn digest(session: &mut Session, model: &dyn Model) -> Result<Option<String>, Error> {
    if model.adapter().is_none() {
        return Ok(None);
    }
    let parameters = model.parameters().into_iter();
    let own = parameters.filter(|parameter| parameter.set == ParameterSet::Adapter);
    let names: Vec<String> = own.map(|parameter| parameter.name).collect();
    let tensors = parameters::download(session, &names).map_err(failed("reading the adapter"))?;
    if let Some(empty) = tensors.iter().find(|tensor| tensor.bytes.is_empty()) {
        return Err(Error::failed(format!(
            "{} of the adapter has no values",
            empty.name
        )));
    }
    let digests = tensors.iter().map(|tensor| hash::sha256(&tensor.bytes));
    Ok(Some(hash::sha256(
        digests.collect::<Vec<_>>().concat().as_bytes(),
    )))
}

/// Refuses an adapter that training has not changed.
///
/// # Errors
/// If it is what it was.
pub fn check_changed(
    start: Option<&String>,
    end: Option<&String>,
    steps: u64,
) -> Result<(), Error> {
    if steps == 0 || start.is_none() || start != end {
        return Ok(());
    }
    Err(Error::failed(format!(
        "after {steps} steps the adapter is what it was when they began: nothing was learned, and it is not saved"
    ))
    .with_hint(
        "check that --learning_rate is above 0 in these steps (warm-up begins at 0) and that labels are not all masked",
    ))
}

/// Whether vLLM adds an adapter to its model, as a sentence.
pub fn served(adapter: &Adapter, model: &dyn Model) -> String {
    let config = adapter.config();
    let model_type = model.config().text("model_type").unwrap_or_default();
    let saved: Vec<&str> = adapter.saved_modules().collect();
    let mut reasons = Vec::new();
    if !is_adapted_by_vllm(&model_type) {
        reasons.push(format!("it adds none to models of {model_type}"));
    }
    if !saved.is_empty() {
        reasons.push(format!(
            "it takes no modules_to_save ({})",
            saved.join(", ")
        ));
    }
    if config.dora {
        reasons.push("it has no DoRA".to_string());
    }
    if config.bias != AdapterBias::None || config.lora_bias {
        reasons.push("it takes no biases".to_string());
    }
    if adapter
        .layers()
        .any(|(name, _)| adapter.tied_table(name).is_some())
    {
        reasons.push("it does not tie the head's part to that of the embeddings".to_string());
    }
    if !config.tokens.is_empty() {
        reasons.push("it takes no trained tokens".to_string());
    }
    if !config.rank_pattern.is_empty() || !config.alpha_pattern.is_empty() {
        reasons.push("it scales all layers alike, whatever the patterns say".to_string());
    }
    let largest = adapter.layers().map(|(_, layer)| layer.rank).max();
    let largest = largest.unwrap_or_default();
    let room = RANKS.into_iter().find(|room| *room >= largest);
    if room.is_none() {
        let most = RANKS[RANKS.len() - 1];
        reasons.push(format!("rank {largest} is more than {most}"));
    }
    match (room, &reasons[..]) {
        (Some(room), []) if room <= USUAL_RANK => {
            "vLLM loads it: --enable-lora --lora-modules NAME=DIR".to_string()
        }
        (Some(room), []) => {
            format!("vLLM loads it: --enable-lora --max-lora-rank {room} --lora-modules NAME=DIR")
        }
        (_, reasons) => format!(
            "vLLM does not load it: {}; `xtrain merge` makes a model that needs no adapter",
            reasons.join("; ")
        ),
    }
}
