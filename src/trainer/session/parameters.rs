//! A model's parameters on their way to the device and back: seeded initialization, Hugging Face
//! weights, downloads.

use super::Session;
use crate::checkpoint::{Error as CheckpointError, Mismatch, Weights};
use crate::trainer::error::{Error, Result};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use xtrain_graphs::{DType, Shape};
use xtrain_models::{Init, Model, ParameterSpec, StoredName, stored_name};

/// Elements that one random stream fills: small enough to share a large embedding between cores.
const STREAM_ELEMENTS: usize = 1 << 16;

/// The shape that a parameter has on the device: master weights are f32.
pub fn parameter_shape(parameter: &ParameterSpec) -> Shape {
    Shape::new(DType::F32, parameter.dims.clone())
}

/// Fills every parameter anew, as the model wants it. Each value depends on the seed, the
/// parameter's name and its place only.
pub fn initialize(session: &mut Session, parameters: &[ParameterSpec], seed: u64) -> Result<()> {
    for parameter in parameters {
        let values = initial_values(parameter, seed);
        session.set_state(
            &parameter.name,
            bytemuck::cast_slice(&values),
            &parameter_shape(parameter),
        )?;
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

/// What may be missing of a checkpoint's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing: the model is used as it was saved.
    Saved,
    /// The task's head, which then starts anew.
    NewIfMissing,
    /// The same, also where its shape is another one.
    NewIfDifferent,
}

/// How a checkpoint's tensors serve a model.
pub struct Fit {
    /// Parameter name to stored name.
    stored: BTreeMap<String, String>,
    /// Parameters that start anew, in the model's order.
    pub new: Vec<String>,
    /// Stored tensors of other tasks' heads.
    pub unused: Vec<String>,
}

impl Fit {
    /// Whether one of those that start anew is stored in another shape.
    pub fn replaces_a_head(&self) -> bool {
        let is_stored = |name: &String| self.stored.contains_key(name);
        self.new.iter().any(is_stored)
    }
}

/// Finds the stored tensor of each parameter (any float type will do). But for what `head` allows,
/// every parameter must be there in its shape, and a tensor that no model of the family has is an
/// error too; all are listed. Reads names and shapes only.
pub fn fit(model: &dyn Model, weights: &Weights, head: Head) -> Result<Fit> {
    let mut fit = Fit {
        stored: BTreeMap::new(),
        new: Vec::new(),
        unused: Vec::new(),
    };
    let mut mismatch = Mismatch {
        path: weights.path().to_path_buf(),
        missing: Vec::new(),
        unexpected: Vec::new(),
        misshaped: Vec::new(),
    };
    for view in weights.iter() {
        match stored_name(model, view.name) {
            StoredName::Parameter(name) => {
                fit.stored.insert(name, view.name.to_string());
            }
            StoredName::NotNeeded => {}
            StoredName::OtherHead => fit.unused.push(view.name.to_string()),
            StoredName::Unknown => mismatch.unexpected.push(view.name.to_string()),
        }
    }
    for parameter in model.parameters() {
        let wanted = parameter_shape(&parameter);
        match fit
            .stored
            .get(&parameter.name)
            .and_then(|name| weights.get(name))
        {
            None if parameter.head && head != Head::Saved => fit.new.push(parameter.name.clone()),
            None => mismatch.missing.push(parameter.name.clone()),
            Some(view) if view.shape.dims == wanted.dims && view.shape.dtype.is_float() => {}
            Some(_) if parameter.head && head == Head::NewIfDifferent => {
                fit.new.push(parameter.name.clone())
            }
            Some(view) => mismatch
                .misshaped
                .push((view.name.to_string(), wanted, view.shape)),
        }
    }
    if mismatch.is_empty() {
        Ok(fit)
    } else {
        Err(CheckpointError::Mismatch(Box::new(mismatch)).into())
    }
}

/// Uploads a checkpoint's weights, all of them as they were saved.
pub fn load(session: &mut Session, model: &dyn Model, weights: &Weights) -> Result<()> {
    load_with_head(session, model, weights, (Head::Saved, 0))
}

/// Uploads a checkpoint's weights, which must [`fit`] and be finite: a model with a NaN in it only
/// ever gives NaNs. What starts anew does so from the seed, as in [`initialize`].
pub fn load_with_head(
    session: &mut Session,
    model: &dyn Model,
    weights: &Weights,
    (head, seed): (Head, u64),
) -> Result<()> {
    let fit = fit(model, weights, head)?;
    for parameter in &model.parameters() {
        if fit.new.contains(&parameter.name) {
            initialize(session, std::slice::from_ref(parameter), seed)?;
            continue;
        }
        let shape = parameter_shape(parameter);
        let bytes = weights.read(&fit.stored[&parameter.name], &shape)?;
        if !is_finite(&shape, &bytes) {
            return Err(Error::BrokenWeights {
                path: weights.path().to_path_buf(),
                tensor: parameter.name.clone(),
            });
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
pub fn set_extra_state(
    session: &mut Session,
    state: &[ExtraState],
    saved: Option<&Weights>,
) -> Result<()> {
    for ExtraState {
        name,
        shape,
        initial,
        ..
    } in state
    {
        match saved.filter(|saved| saved.get(name).is_some()) {
            Some(saved) => session.set_state(name, &saved.read(name, shape)?, shape)?,
            None => session.set_state(
                name,
                bytemuck::cast_slice(&vec![*initial; shape.elements()]),
                shape,
            )?,
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
    // Without a branch for each value, which would take several times as long.
    let finite = |block: &[u8]| {
        let (values, _) = block.as_chunks();
        let finite = values
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes).is_finite());
        finite.fold(true, |all, one| all & one)
    };
    shape.dtype != DType::F32 || bytes.chunks(1 << 16).all(finite)
}

/// Bytes of values that are gathered on the devices at a time, where their parts are in other
/// processes.
const GATHERED_BYTES: usize = 256 << 20;

/// Bytes of values that are on their way to the host at a time.
const BYTES_AHEAD: usize = 256 << 20;

/// Reads named state back; waits for the devices. Where parts are in other processes, all processes
/// have to ask for the same names, but for this function or for [`take_part_in_download`].
pub fn download(session: &mut Session, names: &[String]) -> Result<Vec<HostTensor>> {
    let mut tensors = Vec::new();
    let mut take = |name: &str, (bytes, shape): (Vec<u8>, Shape)| {
        tensors.push(HostTensor {
            name: name.to_string(),
            shape,
            bytes,
        });
    };
    // Copies to the host are made by threads of the device: the next ones begin before one is waited
    // for.
    let (mut ahead, mut bytes_ahead) = (VecDeque::new(), 0);
    for together in together(session, names) {
        let gathered = session.gather(&together)?;
        for name in together {
            let Some(whole) = gathered.as_ref().and_then(|marked| marked.gathered(name)) else {
                let download = session.start_download(name)?;
                bytes_ahead += download.bytes();
                ahead.push_back((name, download));
                while bytes_ahead > BYTES_AHEAD
                    && let Some((name, download)) = ahead.pop_front()
                {
                    bytes_ahead -= download.bytes();
                    take(name, download.wait(session)?);
                }
                continue;
            };
            // In the order of names.
            for (name, download) in ahead.drain(..) {
                take(name, download.wait(session)?);
            }
            bytes_ahead = 0;
            let placements = session.placements();
            take(
                name,
                placements.unpadded(name, whole.download()?, whole.shape()),
            );
        }
    }
    for (name, download) in ahead {
        take(name, download.wait(session)?);
    }
    Ok(tensors)
}

/// What a process does while another one calls [`download`].
pub fn take_part_in_download(session: &mut Session, names: &[String]) -> Result<()> {
    for together in together(session, names) {
        session.gather(&together)?;
    }
    Ok(())
}

/// Names by what is read at a time where values are not to be in memory together.
pub fn read_together(session: &Session, names: &[String]) -> Vec<Vec<String>> {
    let owned = |group: Vec<&str>| group.into_iter().map(str::to_string).collect();
    together(session, names).into_iter().map(owned).collect()
}

/// Names by what is gathered at a time; what is here is read by itself.
fn together<'a>(session: &Session, names: &'a [String]) -> Vec<Vec<&'a str>> {
    let mut groups: Vec<Vec<&str>> = Vec::new();
    let mut filled = 0;
    for name in names {
        let bytes = session
            .shape(name)
            .map_or(0, |held| session.placements().whole(name, held).bytes());
        let is_here = !session.is_elsewhere(name);
        match groups.last_mut() {
            Some(group) if !is_here && filled + bytes <= GATHERED_BYTES => {
                group.push(name);
                filled += bytes;
            }
            _ => {
                groups.push(vec![name]);
                filled = bytes;
            }
        }
    }
    groups
}
