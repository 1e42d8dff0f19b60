//! The logits of a model for a short sample of tokens, to compare two forms of it by.

use super::error::Result;
use super::session::Session;
use super::step::parameter_tensors;
use xtrain_graphs::{DType, DropoutRng, Shape};
use xtrain_models::{Model, TokenBatch, Weights};

/// Tokens of the sample. It is one row, so that no padding token is needed to find its end.
const TOKENS: usize = 32;

/// The logits of tokens that are spread over the vocabulary; with `is_off` those without the adapter.
///
/// # Errors
/// If the graph cannot be recorded, compiled or run.
pub fn sample_logits(session: &mut Session, model: &dyn Model, is_off: bool) -> Result<Vec<f32>> {
    let tokens = TOKENS.min(model.max_positions());
    let id = |place: usize| ((1 + place * 7919) % model.vocab_size()) as i32;
    let ids: Vec<i32> = (0..tokens).map(id).collect();
    let shape = Shape::new(DType::S32, [1, tokens]);
    let mut recording = session.begin();
    let ids = recording.feed_host("input_ids", bytemuck::cast_slice(&ids), &shape)?;
    let weights = parameter_tensors(&mut recording, &model.parameters())?;
    let trace = recording.trace().clone();
    let mut weights = Weights::new(&trace, &weights);
    if is_off {
        weights = weights.without_adapter();
    }
    let batch = TokenBatch::new(ids);
    let logits = xtrain_models::logits(model, &weights, &batch, &DropoutRng::off())?;
    recording.fetch("logits", &logits);
    let marked = recording.mark_step("sample")?;
    Ok(marked.fetched("logits").download_to()?)
}
