//! Dropout from a counter-based generator: each random word is a pure function of (seed, step,
//! stream, element), so masks need no storage, no order of execution and no state
//! beyond the step number.
//!
//! The function is Threefry-2x32 with 13 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011; 13 rounds are the fewest that pass BigCrush there). Only
//! adds, rotations and xors: XLA fuses it into its consumer.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Comparison, Composite, Op};
use crate::ops::rule::{Inferred, expect};
use crate::shape::Shape;
use crate::trace::{Tensor, Trace};

/// Rotation distances of Threefry-2x32, used in turn.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
const ROUNDS: usize = 13;
/// The key schedule's parity constant (Skein's, 32 bit).
const PARITY: u32 = 0x1BD1_1BDA;

pub(crate) fn infer_bits(key: &Shape, dims: &[usize]) -> Inferred {
    expect(
        "the key",
        key,
        DType::U32,
        &[if key.elements() == 3 { 3 } else { 2 }],
    )?;
    Ok(Shape::new(DType::U32, dims))
}

/// Elements of one mask: from there on [`linear_index`] would repeat.
pub(crate) const MOST_ELEMENTS: usize = 1 << 32;

pub(crate) fn expand_bits(
    trace: &Trace,
    key: &Tensor,
    dims: &[usize],
    stream: u32,
) -> Result<Tensor> {
    let (k0, k1) = (word(key, 0)?, word(key, 1)?);
    let k2 = k0
        .xor(&k1)?
        .xor(&trace.constant(f64::from(PARITY), DType::U32)?)?;
    let keys = [k0, k1, k2];
    // Counter: the element's linear index (modulo 2^32) and the stream.
    let mut x0 = linear_index(trace, key, dims)?.add(&keys[0])?;
    let mut x1 = keys[1]
        .add(&trace.constant(f64::from(stream), DType::U32)?)?
        .broadcast_to(dims)?;
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

/// Bits for targets without rotations: key, stream and index through an integer hash of xor-shifts
/// and products (Wellons, "Prospecting for hash functions", 2018: `lowbias32`). Not Threefry, so
/// masks differ from other devices'; each is as much a pure function of the same four numbers.
pub(crate) fn expand_mixed_bits(
    trace: &Trace,
    key: &Tensor,
    dims: &[usize],
    stream: u32,
) -> Result<Tensor> {
    let stream = trace.constant(f64::from(stream), DType::U32)?;
    let hashed = mix(&mix(&mix(&word(key, 0)?)?.xor(&word(key, 1)?)?)?.xor(&stream)?)?;
    mix(&linear_index(trace, key, dims)?.xor(&hashed)?)
}

fn mix(x: &Tensor) -> Result<Tensor> {
    let folded = |x: &Tensor, bits: u32| {
        x.xor(&x.shift_right_logical(&x.trace().full(f64::from(bits), x.shape())?)?)
    };
    let x = folded(x, 16)?.mul_scalar(f64::from(0x7feb_352d_u32))?;
    let x = folded(&x, 15)?.mul_scalar(f64::from(0x846c_a68b_u32))?;
    folded(&x, 16)
}

fn word(key: &Tensor, i: usize) -> Result<Tensor> {
    key.slice(&[i], &[i + 1])?.reshape(&[])
}

/// Each element's index in row-major order, modulo 2^32: in the whole array, of which this is the
/// shard that the key's third word names, along dimension 0. So replicas that share a batch
/// draw together what one device would draw for all of it.
fn linear_index(trace: &Trace, key: &Tensor, dims: &[usize]) -> Result<Tensor> {
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
    if key.dims() == [3] {
        index = index.add(&word(key, 2)?.mul_scalar(f64::from(stride))?)?;
    }
    Ok(index)
}

fn rotate_left(x: &Tensor, bits: u32) -> Result<Tensor> {
    let amount = |n: u32| x.trace().full(f64::from(n), x.shape());
    x.shift_left(&amount(bits)?)?
        .or(&x.shift_right_logical(&amount(32 - bits)?)?)
}

/// The least word that keeps its element at this rate of dropout.
pub(crate) fn threshold(rate: f64) -> u32 {
    (rate * 2f64.powi(32)) as u32
}

/// Words `u32[dims]`; each call has a stream of its own.
#[track_caller]
fn random_bits(key: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let stream = key.trace().next_stream();
    let bits = Composite::RandomBits {
        dims: dims.to_vec(),
        stream,
    };
    key.apply(Op::Composite(bits), &[])
}

/// The random stream of one step: a key `u32[2]` of (seed, step), or `u32[3]` with the number of
/// the batch's shard. `None` means that nothing is dropped.
#[derive(Clone)]
pub struct DropoutRng {
    key: Option<Tensor>,
    /// NEFTune's alpha; 0: no noise.
    embedding_noise: f64,
}

impl DropoutRng {
    /// Dropout as configured, keyed by `key` (`u32[2]`: seed, step; or `u32[3]`: the shard of the
    /// batch besides).
    pub fn keyed(key: Tensor) -> Self {
        DropoutRng {
            key: Some(key),
            embedding_noise: 0.0,
        }
    }

    /// Evaluation: dropout is the identity.
    pub fn off() -> Self {
        DropoutRng {
            key: None,
            embedding_noise: 0.0,
        }
    }

    /// The same, with noise on token embeddings (NEFTune, arXiv 2310.05914).
    pub fn with_embedding_noise(self, alpha: f64) -> Self {
        DropoutRng {
            embedding_noise: alpha,
            ..self
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
        let uniform = random_bits(key, x.dims())?
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
        let Some(key) = self.key.as_ref().filter(|_| rate > 0.0) else {
            return Ok(None);
        };
        let bits = random_bits(key, dims)?;
        bits.compare_scalar(Comparison::Ge, f64::from(threshold(rate)))
            .map(Some)
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
