//! Values to codes and back, on the host.

use super::{BLOCK, NESTED_BLOCK, NESTED_START, QuantizedMatrix};
use half::f16;
use rayon::prelude::*;

impl QuantizedMatrix {
    /// What the arrays hold of a matrix of these values and dimensions, in their order, little-endian. Equal
    /// to bitsandbytes' `quantize_4bit` with blocks of 64 and, for nested factors, `quantize_blockwise` with
    /// blocks of 256; of 8 bits to `int8_vectorwise_quant` of the values in float16.
    pub fn quantize(self, values: &[f32], dims: &[usize]) -> Vec<Vec<u8>> {
        let rows = self.rows(values, dims);
        let [_, inputs] = self.sizes(dims);
        let Some(book) = self.of.book.values() else {
            let (codes, factors) = int8(&rows, inputs);
            return vec![codes, bytes_of(&factors)];
        };
        let (codes, factors) = in_blocks(&rows, &Nearest::of(&book));
        if !self.of.is_nested {
            return vec![codes, bytes_of(&factors)];
        }
        let (own, nested) = nested(&factors);
        vec![codes, own, bytes_of(&nested)]
    }

    /// The values that arrays of [`QuantizedMatrix::quantize`] stand for, in the matrix's order, before they
    /// are rounded to another type than f32.
    pub fn dequantize(self, arrays: &[Vec<u8>], dims: &[usize]) -> Vec<f32> {
        let [outputs, inputs] = self.sizes(dims);
        let mut rows = match self.of.book.values() {
            None => {
                let factors = floats_of(&arrays[1]);
                let factor = |place: usize| factors[place / inputs.max(1)];
                let codes = arrays[0].iter().enumerate();
                codes
                    .map(|(place, code)| f32::from(*code as i8) * factor(place))
                    .collect()
            }
            Some(book) => {
                let factors = if self.of.is_nested {
                    unnested(&arrays[1], &floats_of(&arrays[2]))
                } else {
                    floats_of(&arrays[1])
                };
                let halves = arrays[0].chunks(BLOCK / 2).zip(&factors);
                let mut values: Vec<f32> = Vec::with_capacity(2 * arrays[0].len());
                for (codes, factor) in halves {
                    let lower = codes.iter().map(|code| code & 15);
                    let both = lower.chain(codes.iter().map(|code| code >> 4));
                    values.extend(both.map(|code| book[usize::from(code)] * factor));
                }
                values
            }
        };
        rows.truncate(outputs * inputs);
        if self.is_conv1d {
            transposed(&rows, outputs, inputs)
        } else {
            rows
        }
    }

    /// A row for each output.
    fn rows(self, values: &[f32], dims: &[usize]) -> Vec<f32> {
        if self.is_conv1d {
            transposed(values, dims[0], dims[1])
        } else {
            values.to_vec()
        }
    }
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let value = |place: usize| values[place % rows * columns + place / rows];
    (0..rows * columns).into_par_iter().map(value).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

pub(super) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks();
    values
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

/// Finds the code whose value is nearest; of two the one with the lower value.
struct Nearest {
    /// Between values in rising order.
    bounds: Vec<f32>,
    /// The code of each.
    codes: Vec<u8>,
}

impl Nearest {
    fn of(values: &[f32]) -> Nearest {
        let mut codes: Vec<u8> = (0..values.len() as u32).map(|code| code as u8).collect();
        codes.sort_by(|a, b| values[usize::from(*a)].total_cmp(&values[usize::from(*b)]));
        let value = |code: u8| values[usize::from(code)];
        let bounds = codes
            .windows(2)
            .map(|pair| (value(pair[0]) + value(pair[1])) / 2.0);
        Nearest {
            bounds: bounds.collect(),
            codes,
        }
    }

    fn code(&self, value: f32) -> u8 {
        let below = if self.bounds.len() < 16 {
            // Without a branch for each, which would take several times as long.
            self.bounds.iter().filter(|bound| **bound < value).count()
        } else {
            self.bounds.partition_point(|bound| *bound < value)
        };
        self.codes[below]
    }
}

/// The largest absolute value.
fn absmax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// A value's share of the largest, by which a whole block is multiplied and the rest at the end divided.
fn share(value: f32, most: f32, is_whole: bool) -> f32 {
    let most = most.max(1e-38);
    let share = if is_whole {
        value * (1.0 / most)
    } else {
        value / most
    };
    share.clamp(-1.0, 1.0)
}

/// The codes of blocks of 4 bits, the first half of a block in the lower halves of bytes, and each block's
/// factor.
fn in_blocks(values: &[f32], nearest: &Nearest) -> (Vec<u8>, Vec<f32>) {
    let block = |block: &[f32]| {
        let most = absmax(block);
        let mut codes = [nearest.code(0.0); BLOCK];
        for (code, value) in codes.iter_mut().zip(block) {
            *code = nearest.code(share(*value, most, block.len() == BLOCK));
        }
        let (lower, upper) = codes.split_at(BLOCK / 2);
        let bytes: Vec<u8> = lower
            .iter()
            .zip(upper)
            .map(|(lower, upper)| lower | upper << 4)
            .collect();
        (bytes, most)
    };
    let blocks: Vec<(Vec<u8>, f32)> = values.par_chunks(BLOCK).map(block).collect();
    let factors = blocks.iter().map(|(_, most)| *most).collect();
    let codes = blocks.into_iter().flat_map(|(bytes, _)| bytes).collect();
    (codes, factors)
}

/// Rows in 8 bits, and what their codes are multiplied by.
fn int8(rows: &[f32], inputs: usize) -> (Vec<u8>, Vec<f32>) {
    let row = |row: &[f32]| {
        let values: Vec<f32> = row
            .iter()
            .map(|value| f16::from_f32(*value).to_f32())
            .collect();
        let most = absmax(&values);
        // A row of zeros has no scale.
        let scale = if most > 0.0 { 127.0 / most } else { 0.0 };
        let codes = values.iter().map(|value| (value * scale).round_ties_even());
        let codes: Vec<u8> = codes.map(|code| code as i8 as u8).collect();
        (codes, most * (1.0 / 127.0))
    };
    let rows: Vec<(Vec<u8>, f32)> = rows.par_chunks(inputs.max(1)).map(row).collect();
    let factors = rows.iter().map(|(_, factor)| *factor).collect();
    (
        rows.into_iter().flat_map(|(codes, _)| codes).collect(),
        factors,
    )
}

/// The values of 8 bits with an exponent of as many as a value needs (Dettmers 2015, "8-Bit Approximations
/// for Parallelism in Deep Learning"), in rising order. Those of 8-bit moments ([`xtrain_graphs::op::DynamicMap`]) to a last bit:
/// here codes have to be bitsandbytes', whose values torch rounds on the way; there the CPU computes them.
pub(super) fn dynamic() -> [f32; 256] {
    let mut values = vec![0.0, 1.0];
    for exponent in 0..7i32 {
        let parts = 1usize << exponent;
        let step = f64::from((1.0f32 - 0.1) / parts as f32);
        // As torch's linspace has it: from the nearer end, rounded once.
        let bound = |place: usize| {
            if place < parts.div_ceil(2) {
                (f64::from(0.1f32) + step * place as f64) as f32
            } else {
                (1.0 - step * (parts - place) as f64) as f32
            }
        };
        let scale = 10f64.powi(exponent - 6) as f32;
        for place in 0..parts {
            let value = scale * ((bound(place) + bound(place + 1)) / 2.0);
            values.extend([value, -value]);
        }
    }
    values.sort_by(f32::total_cmp);
    std::array::from_fn(|code| values[code])
}

/// Factors in 8 bits, and the array beside them.
fn nested(factors: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let sum: f64 = factors.iter().map(|factor| f64::from(*factor)).sum();
    let mean = (sum / factors.len().max(1) as f64) as f32;
    let table = dynamic();
    let nearest = Nearest::of(&table);
    let rest: Vec<f32> = factors.iter().map(|factor| factor - mean).collect();
    let mut beside = vec![mean];
    beside.extend(table);
    let mut codes = Vec::with_capacity(rest.len());
    for block in rest.chunks(NESTED_BLOCK) {
        let most = absmax(block);
        let shares = block.iter().map(|value| share(*value, most, true));
        codes.extend(shares.map(|share| nearest.code(share)));
        beside.push(most);
    }
    (codes, beside)
}

/// Factors from their codes and the array beside them.
fn unnested(codes: &[u8], beside: &[f32]) -> Vec<f32> {
    let (mean, table) = (beside[0], &beside[1..NESTED_START]);
    let factor = |place: usize| beside[NESTED_START + place / NESTED_BLOCK];
    let codes = codes.iter().enumerate();
    codes
        .map(|(place, code)| table[usize::from(*code)] * factor(place) + mean)
        .collect()
}
