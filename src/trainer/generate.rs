//! Text generation with a key/value cache: one graph takes the prompts in (prefill), another gives a
//! further token of each text (decode); a conversation's next turn is taken in by a third (extend),
//! which keeps what the cache holds. They have fixed shapes, of buckets of lengths, so that they are
//! compiled once and found by later requests.

pub use super::sampling::Sampling;

use super::error::{Error, Result};
use super::session::{Feeds, RecordedSteps, Recording, Session};
use super::step::parameter_tensors;
use std::rc::Rc;
use xtrain_graphs::{DType, DropoutRng, Shape, Tensor};
use xtrain_models::{KvCache, Model, TokenBatch, Weights};
use xtrain_report::memory;

/// The name, in plans, logs and the cache, of the graph that takes prompts in.
pub const PREFILL: &str = "prefill";

/// The same of the graph that gives one more token of each text.
pub const DECODE: &str = "decode";

/// The same of the graph that takes in how a text goes on.
pub const EXTEND: &str = "extend";

/// The shortest bucket.
const SHORTEST: usize = 16;

/// Texts that are continued side by side, at most: more take longer to list than to split.
const MOST_TEXTS: usize = 1 << 16;

/// From which length on buckets are finer.
const LONG: usize = 1024;

/// What is generated.
pub struct Request<'a> {
    /// The beginnings of texts that are continued side by side, each of a token at least.
    pub prompts: &'a [Vec<u32>],
    /// Most tokens that a text gets.
    pub max_new_tokens: usize,
    /// Tokens that end a text.
    pub eos: &'a [u32],
    pub sampling: Sampling,
    /// Whether keys and values are kept; else each token computes those of all before it once more.
    pub use_cache: bool,
}

/// What a session's cache holds of one text, such as a conversation, whose next request begins as the
/// one before. Valid as long as the session generates nothing else.
#[derive(Debug, Default)]
pub struct CachedText {
    /// Those whose keys and values are in the columns from `first` on.
    tokens: Vec<u32>,
    first: usize,
    /// Columns of the cache.
    capacity: usize,
    reused: usize,
}

impl CachedText {
    /// Tokens of the last request that were not computed anew.
    pub fn reused(&self) -> usize {
        self.reused
    }

    /// With how many tokens of a text the cached one begins as well, without the text's last, whose
    /// logits are wanted.
    fn common(&self, text: &[u32]) -> usize {
        let pairs = self.tokens.iter().zip(&text[..text.len() - 1]);
        pairs.take_while(|(held, token)| held == token).count()
    }
}

/// Refuses prompts that cannot be continued.
///
/// # Errors
/// If one is empty or leaves no position for a token.
pub fn check_prompts(model: &dyn Model, prompts: &[Vec<u32>]) -> Result<()> {
    let positions = model.max_positions();
    for prompt in prompts {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() >= positions {
            return Err(Error::LongPrompt {
                tokens: prompt.len(),
                positions,
            });
        }
    }
    Ok(())
}

/// Refuses more texts, side by side, than there is memory for what is kept of each. Their prompts
/// have between `shortest` and `longest` tokens.
///
/// # Errors
/// If they do not fit.
pub fn check_memory(
    session: &Session,
    model: &dyn Model,
    texts: usize,
    [shortest, longest]: [usize; 2],
    max_new_tokens: usize,
) -> Result<()> {
    if texts > MOST_TEXTS {
        return Err(Error::ManyTexts {
            texts,
            most: MOST_TEXTS,
        });
    }
    let room = model.max_positions().saturating_sub(shortest);
    let columns = longest.saturating_add(max_new_tokens.min(room));
    let needed = memory_of(model, columns).saturating_mul(texts as u64);
    let device = session.client().addressable_devices().next();
    let limit = device.and_then(|device| device.memory()?.bytes_limit);
    let available = limit
        .map(|limit| limit.max(0) as u64)
        .or_else(memory::available);
    match available {
        Some(available) if needed > available => Err(Error::TooManyTexts {
            texts,
            columns,
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

/// Bytes of the keys, values and logits of a text of `columns` tokens.
fn memory_of(model: &dyn Model, columns: usize) -> u64 {
    /// Beyond it nothing is a column.
    const MOST: usize = 1 << 40;
    let (info, layers) = (model.info(), model.layers().len());
    let padded = bucket(columns.min(MOST));
    let factors = [2, 4, layers, info.kv_heads, info.head_dim, padded].map(|n| n as u64);
    let kept = factors.into_iter().fold(1, u64::saturating_mul);
    kept.saturating_add(4 * model.vocab_size() as u64)
}

/// Continues texts until each is ended by one of [`Request::eos`], has
/// [`Request::max_new_tokens`], fills the model's positions, or `wants_more` of its number and its
/// new token is false. Returns the new tokens of each, without the one of `eos`. A single text may
/// extend a `cached` one: then only what is new is computed.
///
/// # Errors
/// If a prompt is empty or leaves no position for a token, logits overflow, or the device fails.
pub fn generate(
    session: &mut Session,
    model: &dyn Model,
    request: &Request,
    cached: Option<&mut CachedText>,
    wants_more: &mut dyn FnMut(usize, u32) -> bool,
) -> Result<Vec<Vec<u32>>> {
    check_prompts(model, request.prompts)?;
    let positions = model.max_positions();
    let mut cached = cached.filter(|_| request.use_cache && request.prompts.len() == 1);
    // If anything fails, the session's cache holds something else.
    let before = cached.as_deref_mut().map(std::mem::take);
    let mut texts = Texts::of(request);
    let mut forward = Forward::new(session, model, request, before.as_ref());
    let mut logits = forward.take_in(&texts.tokens)?;
    while texts.choose(&mut logits, request, positions, wants_more)? {
        logits = forward.next(&texts.tokens)?;
    }
    if let Some(cached) = cached {
        *cached = forward.cached_text(&texts.tokens[0]);
    }
    let starts = request.prompts.iter().map(Vec::len);
    Ok(texts
        .tokens
        .into_iter()
        .zip(starts)
        .map(|(mut tokens, start)| tokens.split_off(start))
        .collect())
}

/// Texts that grow.
struct Texts {
    tokens: Vec<Vec<u32>>,
    grows: Vec<bool>,
    rngs: Vec<rand_chacha::ChaCha8Rng>,
}

impl Texts {
    fn of(request: &Request) -> Texts {
        let count = request.prompts.len();
        Texts {
            tokens: request.prompts.to_vec(),
            grows: vec![true; count],
            rngs: (0..count).map(|text| request.sampling.rng(text)).collect(),
        }
    }

    /// Adds a token, given the logits `[B, V]`, to each text that still grows. Whether any does; an
    /// error if a text's logits give no probabilities.
    fn choose(
        &mut self,
        logits: &mut [f32],
        request: &Request,
        positions: usize,
        wants_more: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<bool> {
        let vocabulary = logits.len() / self.tokens.len();
        for (text, logits) in logits.chunks_mut(vocabulary).enumerate() {
            if !self.grows[text] {
                continue;
            }
            let tokens = &mut self.tokens[text];
            let sampling = &request.sampling;
            let chosen = sampling.choose(logits, tokens, &mut self.rngs[text]);
            let token = chosen.ok_or_else(|| Error::LogitsNotFinite {
                token: tokens.len() - request.prompts[text].len() + 1,
                text: text + 1,
                texts: request.prompts.len(),
            })?;
            if request.eos.contains(&token) {
                self.grows[text] = false;
                continue;
            }
            tokens.push(token);
            let new = tokens.len() - request.prompts[text].len();
            self.grows[text] =
                wants_more(text, token) && new < request.max_new_tokens && tokens.len() < positions;
        }
        Ok(self.grows.contains(&true))
    }
}

/// The smallest bucket that holds `length`: powers of two, and halfway between them or, where a
/// token's time is that of the cache's columns, by quarters.
fn bucket(length: usize) -> usize {
    let power = length.next_power_of_two();
    let step = if power > LONG { power / 8 } else { power / 4 };
    length.next_multiple_of(step.max(1)).max(SHORTEST)
}

/// What logits the model gives after texts, which end in one column and have padding before them.
struct Forward<'a> {
    session: &'a mut Session,
    model: &'a dyn Model,
    /// Columns of the cache; `None`: there is none.
    capacity: Option<usize>,
    /// Columns that are taken in first.
    width: usize,
    /// The column of each text's first token.
    first: Vec<i32>,
    /// Columns that are filled.
    filled: usize,
    /// Tokens of the text that the cache holds already.
    reused: usize,
    steps: RecordedSteps,
}

impl<'a> Forward<'a> {
    /// `before` is what the cache holds of an earlier request, if this one may extend it.
    fn new(
        session: &'a mut Session,
        model: &'a dyn Model,
        request: &Request,
        before: Option<&CachedText>,
    ) -> Self {
        let lengths = request.prompts.iter().map(Vec::len);
        let width = bucket(lengths.clone().max().unwrap_or(0));
        let positions = model.max_positions();
        let left = positions - lengths.clone().min().unwrap_or(0);
        let most = request.max_new_tokens.min(left);
        let room = match before {
            // The last token is not read.
            None => width + most - 1,
            // For turns to come, so that most of them find room.
            Some(_) => 2 * (width + most),
        };
        let mut forward = Forward {
            session,
            model,
            capacity: request
                .use_cache
                .then(|| bucket(room.min(width + positions))),
            width,
            first: lengths.map(|length| (width - length) as i32).collect(),
            filled: width,
            reused: 0,
            steps: RecordedSteps::default(),
        };
        if let (Some(before), [text]) = (before, request.prompts) {
            forward.go_on(before, text, most);
        }
        forward
    }

    /// Keeps what the cache holds of the text, if that is worth it and up to `most` further tokens
    /// fit in beside it. What is new is taken in with as many tokens before it as fill its bucket.
    fn go_on(&mut self, before: &CachedText, text: &[u32], most: usize) {
        let width = bucket(text.len() - before.common(text));
        let end = before.first + text.len();
        if width < text.len() && end + most - 1 <= before.capacity {
            self.capacity = Some(before.capacity);
            self.width = width;
            self.first = vec![before.first as i32];
            self.filled = end;
            self.reused = text.len() - width;
        }
    }

    /// What the cache holds of its only text.
    fn cached_text(&self, text: &[u32]) -> CachedText {
        let first = self.first[0] as usize;
        CachedText {
            tokens: text[..self.filled - first].to_vec(),
            first,
            capacity: self.capacity.unwrap_or(0),
            reused: self.reused,
        }
    }

    /// Logits `[B, V]` after the prompts.
    fn take_in(&mut self, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
        let Some(capacity) = self.capacity else {
            return self.without_cache(texts);
        };
        if self.reused > 0 {
            let ids: Vec<i32> = texts[0][self.reused..]
                .iter()
                .map(|&id| id as i32)
                .collect();
            return self.run(EXTEND, &ids, Some(self.filled - self.width));
        }
        let info = self.model.info();
        let dims = [texts.len() * info.kv_heads, capacity, info.head_dim];
        let shape = Shape::new(DType::F32, dims);
        let zeros = vec![0u8; shape.bytes()];
        for layer in 0..self.model.layers().len() {
            for name in cache_names(layer) {
                // What an earlier request left is masked until it is overwritten.
                if self.session.shape(&name) != Some(&shape) {
                    self.session.set_state(&name, &zeros, &shape)?;
                }
            }
        }
        let mut ids = vec![0i32; texts.len() * self.width];
        for ((row, text), &first) in ids.chunks_mut(self.width).zip(texts).zip(&self.first) {
            for (id, &token) in row[first as usize..].iter_mut().zip(text) {
                *id = token as i32;
            }
        }
        self.run(PREFILL, &ids, None)
    }

    /// Logits `[B, V]` after the last token of each text.
    fn next(&mut self, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
        if self.capacity.is_none() {
            return self.without_cache(texts);
        }
        // One that has ended goes along with whatever its last token was.
        let ids: Vec<i32> = texts
            .iter()
            .map(|text| text[text.len() - 1] as i32)
            .collect();
        let column = self.filled;
        self.filled += 1;
        self.run(DECODE, &ids, Some(column))
    }

    /// Runs the graph over `ids` `[B, T]`, whose first lie in column `start`; `None` of the texts'
    /// beginnings.
    fn run(&mut self, name: &str, ids: &[i32], start: Option<usize>) -> Result<Vec<f32>> {
        let rows = self.first.len();
        let dims = [rows, ids.len() / rows];
        let mut feeds = Feeds::begin();
        let mut feed = |name: &'static str, values: &[i32], dims: &[usize]| -> Result<Shape> {
            let shape = Shape::new(DType::S32, dims);
            let value = self.session.upload(bytemuck::cast_slice(values), &shape)?;
            feeds.add(name, value);
            Ok(shape)
        };
        let ids = feed("input_ids", ids, &dims)?;
        let first = feed("first_column", &self.first, &[rows])?;
        let start = start.map(|start| feed("column", &[start as i32], &[]));
        let start = start.transpose()?;
        let model = self.model;
        let record = |recording: &mut Recording| {
            recording.evaluates();
            let input_ids = recording.given("input_ids", &ids);
            let first = recording.given("first_column", &first);
            let start = start.as_ref().map(|start| recording.given("column", start));
            let mut layers = Vec::new();
            for layer in 0..model.layers().len() {
                let [key, value] = cache_names(layer);
                layers.push([recording.state(&key)?, recording.state(&value)?]);
            }
            let cache = Rc::new(KvCache::new(layers, first, start));
            let weights = parameter_tensors(recording, &model.parameters())?;
            let trace = recording.trace().clone();
            let weights = Weights::new(&trace, &weights);
            let batch = TokenBatch {
                cache: Some(cache.clone()),
                ..TokenBatch::new(input_ids)
            };
            let hidden = model.hidden(&weights, &batch, &DropoutRng::off())?;
            let hidden = last_of_each(&hidden, dims)?;
            for (layer, kv) in cache.take_extended().iter().enumerate() {
                for (name, tensor) in cache_names(layer).iter().zip(kv) {
                    recording.assign(name, tensor)?;
                }
            }
            let logits = model.head(&weights, &hidden, &DropoutRng::off())?;
            recording.fetch("logits", &logits.convert(DType::F32)?);
            Ok(())
        };
        let outputs = self
            .session
            .step(&mut self.steps, name, feeds, true, record)?;
        Ok(outputs.fetched("logits").download_to()?)
    }

    /// Logits `[B, V]` after texts of which nothing is kept. They are padded on the right, where
    /// causal attention never looks.
    fn without_cache(&mut self, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        let width = bucket(longest).min(self.model.max_positions());
        let mut ids = vec![0i32; texts.len() * width];
        let mut last = Vec::new();
        for (row, (padded, text)) in ids.chunks_mut(width).zip(texts).enumerate() {
            for (id, &token) in padded.iter_mut().zip(text) {
                *id = token as i32;
            }
            last.push((row * width + text.len()) as i32 - 1);
        }
        let mut recording = self.session.begin();
        recording.evaluates();
        let shape = Shape::new(DType::S32, [texts.len(), width]);
        let ids = recording.feed_host("input_ids", bytemuck::cast_slice(&ids), &shape)?;
        let shape = Shape::new(DType::S32, [texts.len()]);
        let last = recording.feed_host("last", bytemuck::cast_slice(&last), &shape)?;
        let weights = parameter_tensors(&mut recording, &self.model.parameters())?;
        let trace = recording.trace().clone();
        let weights = Weights::new(&trace, &weights);
        let batch = TokenBatch::new(ids);
        let hidden = self
            .model
            .hidden(&weights, &batch, &DropoutRng::off())?
            .take_rows(&last)?;
        let logits = self.model.head(&weights, &hidden, &DropoutRng::off())?;
        recording.fetch("logits", &logits.convert(DType::F32)?);
        Ok(recording
            .mark_step(PREFILL)?
            .fetched("logits")
            .download_to()?)
    }
}

/// The states that hold a layer's keys and values, `[B * K, S, D]`.
fn cache_names(layer: usize) -> [String; 2] {
    ["key", "value"].map(|what| format!("cache.{layer}.{what}"))
}

/// The last row of each sequence of hidden states `[B * T, C]`, `[B, C]`.
fn last_of_each(hidden: &Tensor, [b, t]: [usize; 2]) -> Result<Tensor> {
    let width = hidden.dims()[1];
    Ok(hidden
        .reshape(&[b, t, width])?
        .slice_dim(1, t - 1, t)?
        .reshape(&[b, width])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_take_the_memory_of_their_keys_and_values() {
        let config = xtrain_models::preset("gpt2").unwrap();
        let model = xtrain_models::build(config, xtrain_models::HeadKind::CausalLm).unwrap();
        let of = |columns| memory_of(&*model, columns);
        let logits = 4 * 50_257;
        assert_eq!(of(1000), 2 * 4 * 12 * 768 * 1024 + logits);
        assert_eq!(of(usize::MAX), of(1 << 40));
        assert!(of(usize::MAX) > 1 << 55);
    }

    #[test]
    fn buckets_hold_what_they_are_for() {
        let found: Vec<usize> = [1, 16, 17, 24, 25, 33, 48, 49, 64, 97, 1000, 2000, 2063]
            .into_iter()
            .map(bucket)
            .collect();
        let expected = [16, 16, 24, 24, 32, 48, 48, 64, 64, 128, 1024, 2048, 2560];
        assert_eq!(found, expected);
    }
}
