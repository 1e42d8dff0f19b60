//! Text generation: one fixed-shape graph gives the logits after the last token; sampling is on the
//! host.

use super::error::{Error, Result};
use super::session::Session;
use super::step::parameter_tensors;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xtrain_graphs::{DType, DropoutRng, Shape};
use xtrain_models::{Model, TokenBatch, Weights};

/// The graph's name in plans, logs and the cache.
pub const GRAPH_NAME: &str = "generate";

/// Widths of the graph are multiples of this.
const WIDTH_STEP: usize = 64;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    pub max_new_tokens: usize,
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Only the k likeliest tokens are candidates; 0 means all.
    pub top_k: usize,
    pub seed: u64,
}

/// Continues `prompt` (at least one token) until `max_new_tokens` or `stop`. Each step sees the
/// last tokens that the model has positions for. Returns the new tokens only.
pub fn generate(
    session: &mut Session,
    model: &dyn Model,
    prompt: &[u32],
    stop: Option<u32>,
    sampling: Sampling,
) -> Result<Vec<u32>> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    // As wide as this request can get, so that it is compiled once, and rounded up, so that the
    // next prompt finds it too.
    let width = (prompt.len() + sampling.max_new_tokens)
        .next_multiple_of(WIDTH_STEP)
        .min(model.max_positions());
    let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
    let mut tokens = prompt.to_vec();
    for _ in 0..sampling.max_new_tokens {
        let visible = &tokens[tokens.len().saturating_sub(width)..];
        let logits = next_logits(session, model, visible, width)?;
        let next = choose(&logits, sampling, &mut rng);
        if Some(next) == stop {
            break;
        }
        tokens.push(next);
    }
    Ok(tokens.split_off(prompt.len()))
}

/// Logits `[V]` of the token after `visible`, which is padded on the right; causal attention never
/// looks there.
fn next_logits(
    session: &mut Session,
    model: &dyn Model,
    visible: &[u32],
    width: usize,
) -> Result<Vec<f32>> {
    let mut ids = vec![0i32; width];
    for (id, &token) in ids.iter_mut().zip(visible) {
        *id = token as i32;
    }
    let mut recording = session.begin();
    let ids = recording.feed_host(
        "input_ids",
        bytemuck::cast_slice(&ids),
        &Shape::new(DType::S32, [1, width]),
    )?;
    let last = [visible.len() as i32 - 1];
    let last = recording.feed_host(
        "last",
        bytemuck::cast_slice(&last),
        &Shape::new(DType::S32, [1]),
    )?;
    let weights = parameter_tensors(&mut recording, &model.parameters())?;
    let trace = recording.trace().clone();
    let weights = Weights::new(&trace, &weights);
    let batch = TokenBatch {
        input_ids: ids,
        attention_mask: None,
        token_type_ids: None,
    };
    let hidden = model
        .hidden(&weights, &batch, &DropoutRng::off())?
        .take_rows(&last)?;
    recording.fetch(
        "logits",
        &model.head(&weights, &hidden, &DropoutRng::off())?,
    );
    Ok(recording
        .mark_step(GRAPH_NAME)?
        .fetched("logits")
        .download_to()?)
}

fn choose(logits: &[f32], sampling: Sampling, rng: &mut ChaCha8Rng) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    // Likeliest first; equal logits by id, so that the choice is the same everywhere.
    order.sort_by(|&a, &b| {
        logits[b as usize]
            .total_cmp(&logits[a as usize])
            .then(a.cmp(&b))
    });
    if sampling.temperature <= 0.0 {
        return order[0];
    }
    let candidates = match sampling.top_k {
        0 => &order[..],
        k => &order[..k.min(order.len())],
    };
    let best = f64::from(logits[candidates[0] as usize]);
    let weights: Vec<f64> = candidates
        .iter()
        .map(|&t| ((f64::from(logits[t as usize]) - best) / sampling.temperature).exp())
        .collect();
    let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
    for (&token, weight) in candidates.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return token;
        }
    }
    candidates[candidates.len() - 1]
}
