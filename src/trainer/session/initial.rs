//! The values that parameters start with.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal, StandardUniform};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use xtrain_models::{Init, ParameterSpec};

/// Elements that one random stream fills: small enough to share a large embedding between cores.
const STREAM_ELEMENTS: usize = 1 << 16;

/// A parameter's values, f32, which depend on the seed, its name and their places alone: ones where they depend
/// on those of another parameter.
pub(super) fn initial_values(parameter: &ParameterSpec, seed: u64) -> Vec<f32> {
    let count = parameter.dims.iter().product();
    let (scale, zero_row) = match parameter.init {
        Init::Zeros => return vec![0.0; count],
        // Norms and copies depend on values that are not known here.
        Init::Ones | Init::RowNorms { .. } | Init::CopyOf { .. } | Init::RowsOf { .. } => {
            return vec![1.0; count];
        }
        Init::Sinusoids => return sinusoids(parameter.dims[1], count),
        Init::Normal { std } => (std as f32, None),
        Init::NormalWithZeroRow { std, row } => (std as f32, Some(row)),
        Init::Uniform { bound } => (bound as f32, None),
    };
    let is_uniform = matches!(parameter.init, Init::Uniform { .. });
    let key: [u8; 32] = Sha256::new()
        .chain_update(seed.to_le_bytes())
        .chain_update(parameter.name.as_bytes())
        .finalize()
        .into();
    let mut values = vec![0.0f32; count];
    values
        .par_chunks_mut(STREAM_ELEMENTS)
        .enumerate()
        .for_each(|(stream, chunk)| {
            let mut rng = ChaCha8Rng::from_seed(key);
            rng.set_stream(stream as u64);
            for value in chunk {
                let drawn: f32 = if is_uniform {
                    let share: f32 = StandardUniform.sample(&mut rng);
                    2.0 * share - 1.0
                } else {
                    StandardNormal.sample(&mut rng)
                };
                *value = drawn * scale;
            }
        });
    if let Some(row) = zero_row {
        let width = count / parameter.dims[0];
        values[row * width..(row + 1) * width].fill(0.0);
    }
    values
}

/// The norms of a matrix over its dimension `inputs`.
pub(super) fn norms(matrix: &[f32], dims: &[usize], inputs: usize) -> Vec<f32> {
    let columns = dims[1];
    let mut squares = vec![0f64; dims[1 - inputs]];
    for (place, value) in matrix.iter().enumerate() {
        let at = [place / columns, place % columns][1 - inputs];
        squares[at] += f64::from(*value) * f64::from(*value);
    }
    squares.iter().map(|sum| sum.sqrt() as f32).collect()
}

/// These rows of a table, one after the other.
pub(super) fn chosen_rows(table: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    let rows = rows.iter();
    rows.flat_map(|row| table[row * width..(row + 1) * width].iter().copied())
        .collect()
}

/// Rows of sines and cosines of their numbers, as DistilBERT's positions start.
fn sinusoids(width: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| {
        let (row, column) = (i / width, i % width);
        let power = (2 * (column / 2)) as f64 / width as f64;
        let angle = row as f64 / 10_000f64.powf(power);
        let value = if column.is_multiple_of(2) {
            angle.sin()
        } else {
            angle.cos()
        };
        value as f32
    };
    (0..count).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinusoids_are_those_of_transformers() {
        let values = sinusoids(4, 8);
        let wanted = [
            0.0,
            1.0,
            0.0,
            1.0,
            1f64.sin(),
            1f64.cos(),
            0.01f64.sin(),
            0.01f64.cos(),
        ];
        assert!(
            values.iter().zip(wanted).all(|(a, b)| *a == b as f32),
            "{values:?}"
        );
    }
}
