//! Dropout from a counter-based generator: each random word is a pure function of (seed, step,
//! stream, element), so masks need no storage, no order of execution and no state
//! beyond the step number.
//!
//! The function is Threefry-2x32 with 13 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011; 13 rounds are the fewest that pass BigCrush there). Only
//! adds, rotations and xors: XLA fuses it into its consumer.
//!
//! Its two key words come from the seed and the step ([`step_key`]), and the stream is added to the
//! second. Its two counter words are the element's: the row, counted through all shards of the
//! batch, and the place in the row. A row is what follows the first dimension, of a mask whose rows
//! would have more than 2^32 elements what follows the first dimensions ([`row_dims`]): no mask
//! repeats, however large it is and however many shards it has.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{AttentionDropout, Comparison, Composite, F64, Op, keep_threshold};
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::{Tensor, Trace};

/// Rotation distances of Threefry-2x32, used in turn.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
const ROUNDS: usize = 13;
/// Rounds of the one word pair from which all others of a step follow.
const KEY_ROUNDS: usize = 20;
/// The factors of [`mix`].
const MIX: [u32; 2] = [0x7feb_352d, 0x846c_a68b];
/// The key schedule's parity constant (Skein's, 32 bit).
const PARITY: u32 = 0x1BD1_1BDA;

/// Threefry-2x32 on the host: the counter `x` through the rounds under a key.
fn threefry([k0, k1]: [u32; 2], [x0, x1]: [u32; 2], rounds: usize) -> [u32; 2] {
    let keys = [k0, k1, k0 ^ k1 ^ PARITY];
    let (mut x0, mut x1) = (x0.wrapping_add(k0), x1.wrapping_add(k1));
    for round in 0..rounds {
        x0 = x0.wrapping_add(x1);
        x1 = x1.rotate_left(ROTATIONS[round % 8]) ^ x0;
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            x0 = x0.wrapping_add(keys[injection % 3]);
            x1 = (x1.wrapping_add(keys[(injection + 1) % 3])).wrapping_add(injection as u32);
        }
    }
    [x0, x1]
}

/// The key of a step: a bijection of the step for each seed, so that all 64 bits of both count.
/// Threefry-2x32 with its usual 20 rounds, the seed as key and the step as counter.
pub fn step_key(seed: u64, step: u64) -> [u32; 2] {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    threefry(halves(seed), halves(step), KEY_ROUNDS)
}

/// How many of a mask's first dimensions number its rows: as few as leave a row at most 2^32
/// elements, but one. Not of the first dimension's size, which shards of the batch divide.
fn row_dims(dims: &[usize]) -> usize {
    let fits = |behind: &[usize]| {
        let product = behind.iter().try_fold(1u64, |product, &size| {
            product.checked_mul(u64::try_from(size).ok()?)
        });
        product.is_some_and(|product| product <= 1 << 32)
    };
    (1..dims.len())
        .find(|&count| fits(&dims[count..]))
        .unwrap_or(dims.len())
}

/// Words `u32[dims]` of a stream in primitives.
pub(crate) fn expand_bits(
    key: &Tensor,
    dims: &[usize],
    stream: u32,
    target: Target,
) -> Result<Tensor> {
    if target.has_threefry() {
        threefry_bits(key.trace(), key, dims, stream)
    } else {
        mixed_bits(key.trace(), key, dims, stream)
    }
}

fn threefry_bits(trace: &Trace, key: &Tensor, dims: &[usize], stream: u32) -> Result<Tensor> {
    let k0 = word(key, 0)?;
    let k1 = word(key, 1)?.add(&trace.constant(f64::from(stream), DType::U32)?)?;
    let k2 = k0
        .xor(&k1)?
        .xor(&trace.constant(f64::from(PARITY), DType::U32)?)?;
    let keys = [k0, k1, k2];
    let (rows, places) = counters(trace, key, dims)?;
    let mut x0 = by_place(&places.add(&keys[0])?, dims)?;
    let mut x1 = by_row(&rows.add(&keys[1])?, dims)?;
    for round in 0..ROUNDS {
        x0 = x0.add(&x1)?;
        x1 = rotate_left(&x1, ROTATIONS[round % 8])?.xor(&x0)?;
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            x0 = x0.add(&keys[injection % 3])?;
            x1 = x1
                .add(&keys[(injection + 1) % 3])?
                .add_scalar(injection as f64)?;
        }
    }
    Ok(x0)
}

/// What [`random_words`] gives of rows of a stream, computed on the host: to compare a device with.
pub fn words_of(target: Target, key: [u32; 2], stream: u32, [rows, places]: [u32; 2]) -> Vec<u32> {
    let all = (0..rows).flat_map(|row| (0..places).map(move |place| (row, place)));
    let word = |(row, place): (u32, u32)| {
        if target.has_threefry() {
            let key = [key[0], key[1].wrapping_add(stream)];
            return threefry(key, [place, row], ROUNDS)[0];
        }
        let hashed = mix_word(mix_word(mix_word(key[0]) ^ key[1]) ^ stream);
        let summand = mix_word(row ^ hashed);
        let factor = mix_word(summand.wrapping_add(hashed));
        mix_word((place ^ summand).wrapping_mul(factor | 1))
    };
    all.map(word).collect()
}

/// [`mix`] on the host.
fn mix_word(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(MIX[0]);
    let x = (x ^ (x >> 15)).wrapping_mul(MIX[1]);
    x ^ (x >> 16)
}

/// Bits for targets without rotations: key, stream, row and place through an integer hash of
/// xor-shifts and products (Wellons, "Prospecting for hash functions", 2018: `lowbias32`). Not
/// Threefry, so masks differ from other devices'; each is as much a pure function of the same numbers.
/// A row has two words of its own, a summand and a factor: with one, rows whose words are close
/// would be permutations of each other.
fn mixed_bits(trace: &Trace, key: &Tensor, dims: &[usize], stream: u32) -> Result<Tensor> {
    let stream = trace.constant(f64::from(stream), DType::U32)?;
    let hashed = mix(&mix(&mix(&word(key, 0)?)?.xor(&word(key, 1)?)?)?.xor(&stream)?)?;
    let (rows, places) = counters(trace, key, dims)?;
    let summand = mix(&rows.xor(&hashed)?)?;
    let factor = mix(&summand.add(&hashed)?)?;
    let odd = factor.or(&trace.full(1.0, factor.shape())?)?;
    let mixed = by_place(&places, dims)?
        .xor(&by_row(&summand, dims)?)?
        .mul(&by_row(&odd, dims)?)?;
    mix(&mixed)
}

fn mix(x: &Tensor) -> Result<Tensor> {
    let folded = |x: &Tensor, bits: u32| {
        x.xor(&x.shift_right_logical(&x.trace().full(f64::from(bits), x.shape())?)?)
    };
    let x = folded(x, 16)?.mul_scalar(f64::from(MIX[0]))?;
    let x = folded(&x, 15)?.mul_scalar(f64::from(MIX[1]))?;
    folded(&x, 16)
}

fn word(key: &Tensor, i: usize) -> Result<Tensor> {
    key.slice(&[i], &[i + 1])?.reshape(&[])
}

/// The number of each row, over the dimensions that number them, and of each place in a row, over
/// the others. Rows are counted through the whole array, of which this is the shard that the key's
/// third word names, along dimension 0: so replicas that share a batch draw together what one
/// device would draw for all of it.
fn counters(trace: &Trace, key: &Tensor, dims: &[usize]) -> Result<(Tensor, Tensor)> {
    let (before, behind) = dims.split_at(row_dims(dims));
    let (mut rows, count) = linear_index(trace, before)?;
    if key.dims() == [3] {
        rows = rows.add(&word(key, 2)?.mul_scalar(f64::from(count))?)?;
    }
    Ok((rows, linear_index(trace, behind)?.0))
}

/// Each element's index in row-major order, and how many there are, modulo 2^32.
fn linear_index(trace: &Trace, dims: &[usize]) -> Result<(Tensor, u32)> {
    let mut index = trace.full(0.0, &Shape::new(DType::U32, dims))?;
    let mut stride = 1u32;
    for dim in (0..dims.len()).rev() {
        index = index.add(
            &trace
                .iota(DType::U32, dims, dim)?
                .mul_scalar(f64::from(stride))?,
        )?;
        stride = stride.wrapping_mul(dims[dim] as u32);
    }
    Ok((index, stride))
}

/// A value of each row for all of its elements.
fn by_row(rows: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let map: Vec<usize> = (0..rows.rank()).collect();
    rows.broadcast_in(dims, &map)
}

/// A value of each place for all rows.
fn by_place(places: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let map: Vec<usize> = (dims.len() - places.rank()..dims.len()).collect();
    places.broadcast_in(dims, &map)
}

fn rotate_left(x: &Tensor, bits: u32) -> Result<Tensor> {
    let amount = |n: u32| x.trace().full(f64::from(n), x.shape());
    x.shift_left(&amount(bits)?)?
        .or(&x.shift_right_logical(&amount(32 - bits)?)?)
}

/// The words that masks are made of, `u32[rows, places]` of a stream.
///
/// # Errors
/// If the key is no `u32[2]` or `u32[3]`.
#[track_caller]
pub fn random_words(key: &Tensor, dims: [u32; 2], stream: u32) -> Result<Tensor> {
    random_bits(key, &dims.map(|size| size as usize), stream)
}

/// Words `u32[dims]` of a stream.
#[track_caller]
fn random_bits(key: &Tensor, dims: &[usize], stream: u32) -> Result<Tensor> {
    let dims = dims.to_vec();
    key.apply(Op::Composite(Composite::RandomBits { dims, stream }), &[])
}

/// True where a word keeps its element at this rate of dropout.
fn keeps(bits: &Tensor, rate: f64) -> Result<Tensor> {
    bits.compare_scalar(Comparison::Ge, f64::from(keep_threshold(rate)))
}

/// The mask of an attention's dropout, `pred[dims]`, that its key draws.
pub(crate) fn attention_mask(
    key: &Tensor,
    dims: &[usize],
    dropout: AttentionDropout,
) -> Result<Tensor> {
    keeps(&random_bits(key, dims, dropout.stream)?, dropout.rate.get())
}

/// The same in primitives.
pub(crate) fn expand_attention_mask(
    key: &Tensor,
    dims: &[usize],
    dropout: AttentionDropout,
    target: Target,
) -> Result<Tensor> {
    let bits = expand_bits(key, dims, dropout.stream, target)?;
    keeps(&bits, dropout.rate.get())
}

/// The random streams of one step: a key `u32[2]`, its [`step_key`], or `u32[3]` with the number of
/// the batch's shard behind it. `None` means that nothing is dropped.
#[derive(Clone)]
pub struct DropoutRng {
    key: Option<Tensor>,
    /// NEFTune's alpha; 0: no noise.
    embedding_noise: f64,
    /// Whether dropout is the identity, whatever its rate.
    keeps_all: bool,
}

impl DropoutRng {
    /// Dropout as configured, keyed by `key` (`u32[2]`: the [`step_key`]; or `u32[3]`: the shard of the
    /// batch besides).
    pub fn keyed(key: Tensor) -> Self {
        DropoutRng {
            key: Some(key),
            embedding_noise: 0.0,
            keeps_all: false,
        }
    }

    /// Evaluation: dropout is the identity.
    pub fn off() -> Self {
        DropoutRng {
            key: None,
            embedding_noise: 0.0,
            keeps_all: false,
        }
    }

    /// The same, with noise on token embeddings (NEFTune, arXiv 2310.05914).
    pub fn with_embedding_noise(self, alpha: f64) -> Self {
        DropoutRng {
            embedding_noise: alpha,
            ..self
        }
    }

    /// The same noise, but dropout is the identity.
    pub fn without_dropout(&self) -> Self {
        DropoutRng {
            keeps_all: true,
            ..self.clone()
        }
    }

    /// Token embeddings `x` `[N, C]` of sequences of `tokens` tokens with noise between -m and m,
    /// where m is alpha / sqrt(tokens C); unchanged where there is none. Each call draws anew.
    ///
    /// # Errors
    /// As [`DropoutRng::keep_mask`].
    #[track_caller]
    pub fn add_embedding_noise(&self, x: &Tensor, tokens: usize) -> Result<Tensor> {
        let Some(key) = self.key.as_ref().filter(|_| self.embedding_noise > 0.0) else {
            return Ok(x.clone());
        };
        let hidden_size = x.dims()[x.rank() - 1];
        let most = self.embedding_noise / ((tokens * hidden_size) as f64).sqrt();
        let uniform = random_bits(key, x.dims(), key.trace().next_stream())?
            .convert(DType::F32)?
            .mul_scalar(2.0 * most / 2f64.powi(32))?
            .add_scalar(-most)?;
        x.add(&uniform.convert(x.dtype())?)
    }

    /// A mask that is true with probability `1 - rate`; `None` when nothing is to be dropped. Each
    /// call draws anew.
    ///
    /// # Errors
    /// If the key is no `u32[2]` or `u32[3]`.
    #[track_caller]
    pub fn keep_mask(&self, dims: &[usize], rate: f64) -> Result<Option<Tensor>> {
        let Some(key) = self.dropping(rate) else {
            return Ok(None);
        };
        let bits = random_bits(key, dims, key.trace().next_stream())?;
        keeps(&bits, rate).map(Some)
    }

    /// The key, if there is something to drop.
    fn dropping(&self, rate: f64) -> Option<&Tensor> {
        self.key.as_ref().filter(|_| rate > 0.0 && !self.keeps_all)
    }

    /// What an attention drops of its probabilities, and the operand by which it draws their mask; `None`
    /// when nothing is to be dropped. Each call draws anew.
    pub fn of_attention(&self, rate: f64) -> Option<(AttentionDropout, Tensor)> {
        let key = self.dropping(rate)?;
        let dropout = AttentionDropout {
            rate: F64::new(rate),
            stream: key.trace().next_stream(),
            is_drawn: true,
        };
        Some((dropout, key.clone()))
    }

    /// `x` with a share `rate` of its elements zeroed and the others divided by `1 - rate`.
    ///
    /// # Errors
    /// As [`DropoutRng::keep_mask`], or if `x` is `pred`.
    #[track_caller]
    pub fn dropout(&self, x: &Tensor, rate: f64) -> Result<Tensor> {
        let Some(keep) = self.keep_mask(x.dims(), rate)? else {
            return Ok(x.clone());
        };
        // Everything dropped: the scale would be infinite.
        let scale = if rate < 1.0 { 1.0 / (1.0 - rate) } else { 0.0 };
        keep.select(&x.mul_scalar(scale)?, &x.trace().full(0.0, x.shape())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows have at most 2^32 elements, and how they are cut is the same for every number of shards.
    #[test]
    fn no_row_has_more_elements_than_a_word_counts() {
        let t = 1 << 16;
        for (dims, want) in [
            (&[][..], 0),
            (&[9], 1),
            (&[32 * 1024, 768], 1),
            (&[32, 12, 1024, 1024], 1),
            (&[1 << 20, 1 << 16, t], 1),
            (&[4, 2, t, t / 2], 1),
            (&[4, 2, t, t], 2),
            (&[4, 1, t, t + 1], 3),
            (&[1 << 40, 1 << 40, 1 << 40, 2], 3),
        ] {
            assert_eq!(row_dims(dims), want, "{dims:?}");
        }
    }

    /// Seeds whose halves were once folded into one another, and steps beyond 2^32, have keys of their
    /// own.
    #[test]
    fn all_bits_of_the_seed_and_of_the_step_are_in_the_key() {
        let bits = (0..64).map(|bit| 1u64 << bit).chain([0, (1 << 32) + 1]);
        let all: Vec<u64> = bits.collect();
        let keys: std::collections::HashSet<[u32; 2]> = (all.iter())
            .flat_map(|&seed| all.iter().map(move |&step| step_key(seed, step)))
            .collect();
        assert_eq!(keys.len(), all.len() * all.len());
        // Random123's published answer for 20 rounds.
        assert_eq!(step_key(0, 0), [0x6b20_0159, 0x99ba_4efe]);
    }
}
