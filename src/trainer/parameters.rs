//! A model's parameters on their way to the device and back: seeded initialization, Hugging Face weights, downloads.

use super::error::{Error, Result};
use super::session::Session;
use crate::checkpoint::{Error as CheckpointError, Mismatch, Weights};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use xtrain_graphs::{DType, Shape};
use xtrain_models::{Init, Model, ParameterSpec, StoredName};

/// Elements that one random stream fills: small enough to share a large embedding between cores.
const STREAM_ELEMENTS: usize = 1 << 16;

/// The shape that a parameter has on the device: master weights are f32.
pub fn parameter_shape(parameter: &ParameterSpec) -> Shape {
    Shape::new(DType::F32, parameter.dims.clone())
}

/// Fills every parameter anew, as the model wants it. Each value depends on the seed, the parameter's name and its place only.
pub fn initialize(session: &mut Session, parameters: &[ParameterSpec], seed: u64) -> Result<()> {
    for parameter in parameters {
        let values = initial_values(parameter, seed);
        session.set_state(&parameter.name, bytemuck::cast_slice(&values), &parameter_shape(parameter))?;
    }
    Ok(())
}

fn initial_values(parameter: &ParameterSpec, seed: u64) -> Vec<f32> {
    let count = parameter.dims.iter().product();
    let (std, zero_row) = match parameter.init {
        Init::Zeros => return vec![0.0; count],
        Init::Ones => return vec![1.0; count],
        Init::Normal { std } => (std as f32, None),
        Init::NormalWithZeroRow { std, row } => (std as f32, Some(row)),
    };
    let key: [u8; 32] = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(parameter.name.as_bytes()).finalize().into();
    let mut values = vec![0.0f32; count];
    values.par_chunks_mut(STREAM_ELEMENTS).enumerate().for_each(|(stream, chunk)| {
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(stream as u64);
        for value in chunk {
            let normal: f32 = StandardNormal.sample(&mut rng);
            *value = normal * std;
        }
    });
    if let Some(row) = zero_row {
        let width = count / parameter.dims[0];
        values[row * width..(row + 1) * width].fill(0.0);
    }
    values
}

/// Which stored tensor each parameter comes from.
struct Matched {
    /// Parameter name to stored name.
    stored: BTreeMap<String, String>,
    mismatch: Mismatch,
}

fn match_names(model: &dyn Model, parameters: &[ParameterSpec], weights: &Weights) -> Matched {
    let mut stored = BTreeMap::new();
    let mut mismatch =
        Mismatch { path: weights.path().to_path_buf(), missing: Vec::new(), unexpected: Vec::new(), misshaped: Vec::new() };
    for view in weights.iter() {
        match model.stored_name(view.name) {
            StoredName::Parameter(name) => {
                stored.insert(name, view.name.to_string());
            }
            StoredName::NotNeeded => {}
            StoredName::Unknown => mismatch.unexpected.push(view.name.to_string()),
        }
    }
    for parameter in parameters {
        let Some(view) = stored.get(&parameter.name).and_then(|name| weights.get(name)) else {
            mismatch.missing.push(parameter.name.clone());
            continue;
        };
        let wanted = parameter_shape(parameter);
        if view.shape.dims != wanted.dims || !view.shape.dtype.is_float() {
            mismatch.misshaped.push((view.name.to_string(), wanted, view.shape));
        }
    }
    Matched { stored, mismatch }
}

/// Refuses weights that the model cannot take: every parameter must be there in its shape (any float type), and tensors that the
/// model does not have are an error too, all listed. Reads names and shapes only.
pub fn check(model: &dyn Model, parameters: &[ParameterSpec], weights: &Weights) -> Result<()> {
    let mismatch = match_names(model, parameters, weights).mismatch;
    if mismatch.is_empty() { Ok(()) } else { Err(CheckpointError::Mismatch(Box::new(mismatch)).into()) }
}

/// Uploads a checkpoint's weights, which must pass [`check`] and be finite: a model with a NaN in it only ever gives NaNs.
pub fn load(session: &mut Session, model: &dyn Model, parameters: &[ParameterSpec], weights: &Weights) -> Result<()> {
    let matched = match_names(model, parameters, weights);
    if !matched.mismatch.is_empty() {
        return Err(CheckpointError::Mismatch(Box::new(matched.mismatch)).into());
    }
    for parameter in parameters {
        let shape = parameter_shape(parameter);
        let bytes = weights.read(&matched.stored[&parameter.name], &shape)?;
        if !is_finite(&shape, &bytes) {
            return Err(Error::BrokenWeights { path: weights.path().to_path_buf(), tensor: parameter.name.clone() });
        }
        session.set_state(&parameter.name, &bytes, &shape)?;
    }
    Ok(())
}

/// State of a run besides the parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtraState {
    pub name: String,
    /// Always f32.
    pub shape: Shape,
    /// What every element is at the start of a run.
    pub initial: f32,
    /// Whether a checkpoint holds it; what it does not hold has its initial value between steps.
    pub saved: bool,
}

/// Uploads other named state: what `saved` has of it, the initial value elsewhere.
pub fn set_extra_state(session: &mut Session, state: &[ExtraState], saved: Option<&Weights>) -> Result<()> {
    for ExtraState { name, shape, initial, .. } in state {
        match saved.filter(|saved| saved.get(name).is_some()) {
            Some(saved) => session.set_state(name, &saved.read(name, shape)?, shape)?,
            None => session.set_state(name, bytemuck::cast_slice(&vec![*initial; shape.elements()]), shape)?,
        }
    }
    Ok(())
}

/// A value read back from the device.
pub struct HostTensor {
    pub name: String,
    pub shape: Shape,
    pub bytes: Vec<u8>,
}

/// Whether every element is a finite number. State is f32; of other types nothing is said.
pub fn is_finite(shape: &Shape, bytes: &[u8]) -> bool {
    let finite = |block: &[u8]| block.chunks_exact(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite());
    shape.dtype != DType::F32 || bytes.par_chunks(1 << 20).all(finite)
}

/// Reads named state back; waits for the device.
pub fn download<'a>(session: &Session, names: impl IntoIterator<Item = &'a str>) -> Result<Vec<HostTensor>> {
    names
        .into_iter()
        .map(|name| {
            let buffer = session.state(name).ok_or_else(|| Error::NoState { name: name.to_string() })?;
            Ok(HostTensor { name: name.to_string(), shape: buffer.shape().clone(), bytes: buffer.download()? })
        })
        .collect()
}
