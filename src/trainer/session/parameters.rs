//! A model's parameters on their way to the device and back: seeded initialization, Hugging Face
//! weights, downloads.

use super::Session;
use super::initial::{chosen_rows, initial_values, norms};
use crate::error::{Error, Result};
use crate::settings::WeightStorage;
use half::bf16;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use xtrain_checkpoint::weights::convert_floats;
use xtrain_checkpoint::{Error as CheckpointError, Mismatch, Weights};
use xtrain_graphs::optim::MASTER_WEIGHT;
use xtrain_graphs::{DType, Shape};
use xtrain_models::{HeadKind, Init, Model, ParameterSet, ParameterSpec, StoredName, stored_name};

/// The shape that a parameter has on the device, where it is held in this type.
pub fn parameter_shape(parameter: &ParameterSpec, dtype: DType) -> Shape {
    Shape::new(dtype, parameter.dims.clone())
}

/// Fills every parameter anew, as the model wants it. Each value depends on the seed, the
/// parameter's name and its place only.
///
/// # Errors
/// If the devices' memory is full.
pub fn initialize(session: &mut Session, parameters: &[ParameterSpec], seed: u64) -> Result<()> {
    for parameter in parameters {
        let of = |name: &str| {
            let found = parameters.iter().find(|parameter| parameter.name == name);
            found.expect("what a parameter starts from is the model's, too")
        };
        let values = match &parameter.init {
            Init::RowNorms { inputs } => {
                let matrix = of(&matrix_beside(parameter));
                let values = as_held(session, matrix, initial_values(matrix, seed));
                norms(&values, &matrix.dims, *inputs)
            }
            Init::CopyOf { parameter } => initial_values(of(parameter), seed),
            Init::RowsOf { parameter, rows } => {
                let table = of(parameter);
                chosen_rows(&initial_values(table, seed), table.dims[1], rows)
            }
            _ => initial_values(parameter, seed),
        };
        let shape = parameter_shape(parameter, DType::F32);
        set_weight(session, parameter, bytemuck::cast_slice(&values), &shape)?;
    }
    Ok(())
}

/// Uploads a parameter in the type that the session holds weights in, or in few bits, and, where it is
/// trained and there are master copies, its copy.
fn set_weight(
    session: &mut Session,
    parameter: &ParameterSpec,
    bytes: &[u8],
    shape: &Shape,
) -> Result<()> {
    let (name, storage) = (&parameter.name, session.storage);
    if storage == WeightStorage::Bf16WithMasters && parameter.trained {
        // The optimizer updates every parameter's copy, whatever its own type.
        let wide = parameter_shape(parameter, DType::F32);
        let master = format!("{MASTER_WEIGHT}.{name}");
        session.set_state(&master, &in_type(bytes, shape, &wide), &wide)?;
    }
    let held = parameter_shape(parameter, storage.of(parameter));
    let bytes = in_type(bytes, shape, &held);
    let Some(quantized) = parameter.quantized else {
        return session.set_state(name, &bytes, &held);
    };
    let parts = quantized.quantize(&floats(&bytes, &held), &parameter.dims);
    for (array, bytes) in parameter.arrays(held.dtype).iter().zip(parts) {
        session.set_state(&array.name, &bytes, &array.shape)?;
    }
    Ok(())
}

/// Floats of this shape.
fn floats(bytes: &[u8], shape: &Shape) -> Vec<f32> {
    let wide = in_type(bytes, shape, &shape.with_dtype(DType::F32));
    let (values, _) = wide.as_chunks();
    values.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// The values of a parameter as layers get them from what is held of it.
fn as_held(session: &Session, parameter: &ParameterSpec, values: Vec<f32>) -> Vec<f32> {
    let Some(quantized) = parameter.quantized else {
        return values;
    };
    let wide = parameter_shape(parameter, DType::F32);
    let held = wide.with_dtype(session.storage.of(parameter));
    let round = |values: &[f32]| -> Vec<f32> {
        floats(&in_type(bytemuck::cast_slice(values), &wide, &held), &held)
    };
    let arrays = quantized.quantize(&round(&values), &parameter.dims);
    round(&quantized.dequantize(&arrays, &parameter.dims))
}

/// Floats of the shape `from` in the type of `to`.
fn in_type<'b>(bytes: &'b [u8], from: &Shape, to: &Shape) -> Cow<'b, [u8]> {
    if from == to {
        return Cow::Borrowed(bytes);
    }
    let converted = convert_floats(bytes, from.dtype, to.dtype);
    Cow::Owned(converted.expect("weights are floats"))
}

/// The name of the matrix whose rows' norms a parameter starts with.
fn matrix_beside(parameter: &ParameterSpec) -> String {
    let (module, _) = parameter.name.rsplit_once('.').unwrap_or_default();
    format!("{module}.weight")
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
///
/// # Errors
/// If a parameter is missing or has another shape, or a tensor is none of the family's.
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
    let mut copies = Vec::new();
    for view in weights.iter() {
        match stored_name(model, view.name) {
            StoredName::Parameter(name) => {
                fit.stored.insert(name, view.name.to_string());
            }
            StoredName::NotNeeded => copies.push(view),
            StoredName::OtherHead => {
                fit.unused.push(view.name.to_string());
                copies.push(view);
            }
            StoredName::Unknown => mismatch.unexpected.push(view.name.to_string()),
        }
    }
    for parameter in model.parameters() {
        let wanted = parameter_shape(&parameter, DType::F32);
        // A head may be stored alone in place of the embeddings that it is tied to.
        if !fit.stored.contains_key(&parameter.name)
            && model.head_kind().is_language_model()
            && parameter.dims.first() == Some(&model.vocab_size())
        {
            let mut alike = copies
                .iter()
                .filter(|view| view.shape.dims == wanted.dims && view.shape.dtype.is_float());
            if let (Some(only), None) = (alike.next(), alike.next()) {
                fit.stored
                    .insert(parameter.name.clone(), only.name.to_string());
                fit.unused.retain(|name| name != only.name);
            }
        }
        match fit
            .stored
            .get(&parameter.name)
            .and_then(|name| weights.get(name))
        {
            None if parameter.set == ParameterSet::Adapter
                || parameter.head && head != Head::Saved =>
            {
                fit.new.push(parameter.name.clone())
            }
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
///
/// # Errors
/// As [`load_with_head`].
pub fn load(session: &mut Session, model: &dyn Model, weights: &Weights) -> Result<()> {
    load_with_head(session, model, weights, Head::Saved, 0)
}

/// Uploads a checkpoint's weights, which must [`fit`] and be finite: a model with a NaN in it only
/// ever gives NaNs. What starts anew does so from the seed, as in [`initialize`].
///
/// # Errors
/// If they do not fit, a value is not finite, a file cannot be read, or the devices' memory is
/// full.
pub fn load_with_head(
    session: &mut Session,
    model: &dyn Model,
    weights: &Weights,
    head: Head,
    seed: u64,
) -> Result<()> {
    let fit = fit(model, weights, head)?;
    check_copies(model, weights, &fit)?;
    let parameters = model.parameters();
    for parameter in &parameters {
        let derived = match &parameter.init {
            Init::RowNorms { inputs } => {
                let matrix = matrix_beside(parameter);
                let (dims, values) = weights.read_f32(&fit.stored[&matrix])?;
                let matrix = parameters.iter().find(|other| other.name == matrix);
                let values = as_held(session, matrix.expect("it is beside it"), values);
                Some(norms(&values, &dims, *inputs))
            }
            Init::RowsOf {
                parameter: of,
                rows,
            } => {
                let (dims, values) = weights.read_f32(&fit.stored[of])?;
                Some(chosen_rows(&values, dims[1], rows))
            }
            Init::CopyOf { parameter: of } if fit.new.contains(&parameter.name) => {
                Some(weights.read_f32(&fit.stored[of])?.1)
            }
            _ => None,
        };
        if let Some(values) = derived {
            let shape = parameter_shape(parameter, DType::F32);
            set_weight(session, parameter, bytemuck::cast_slice(&values), &shape)?;
            continue;
        }
        if fit.new.contains(&parameter.name) {
            initialize(session, std::slice::from_ref(parameter), seed)?;
            continue;
        }
        let dtype = match session.storage {
            WeightStorage::Bf16 => DType::BF16,
            // The copies have all digits.
            WeightStorage::F32 | WeightStorage::Bf16WithMasters => DType::F32,
        };
        let shape = parameter_shape(parameter, dtype);
        let bytes = weights.read(&fit.stored[&parameter.name], &shape)?;
        if !is_finite(&shape, &bytes) {
            return Err(Error::BrokenWeights {
                path: weights.path().to_path_buf(),
                tensor: parameter.name.clone(),
            });
        }
        set_weight(session, parameter, &bytes, &shape)?;
        weights.release(&fit.stored[&parameter.name]);
    }
    Ok(())
}

/// Whether an adapter's file has what the model's adapter is made of, and nothing else. PEFT saves the
/// matrix of an adapted table of tokens too, which is the model's own.
///
/// # Errors
/// What lacks, is too much or has another shape.
pub fn check_adapter(model: &dyn Model, weights: &Weights) -> Result<()> {
    let wanted: Vec<(String, Shape)> = adapter_parameters(model)
        .map(|(parameter, name)| (name, parameter_shape(&parameter, DType::F32)))
        .collect();
    let wanted = wanted.iter().map(|(name, shape)| (name.as_str(), shape));
    let checked = weights.check(wanted, |name| name.ends_with(".base_layer.weight"));
    Ok(checked?)
}

/// The parameters that an adapter's file holds, with their names there.
fn adapter_parameters(model: &dyn Model) -> impl Iterator<Item = (ParameterSpec, String)> {
    let parameters = model.parameters().into_iter();
    let own = parameters.filter(|parameter| parameter.set == ParameterSet::Adapter);
    own.filter_map(|parameter| {
        let name = model.adapter()?.saved_name(&parameter.name);
        Some((parameter, name))
    })
}

/// Uploads what an adapter's file holds, in the place of what was there.
///
/// # Errors
/// As [`check_adapter`], or if a value is not finite, the file cannot be read, or the devices' memory
/// is full.
pub fn load_adapter(session: &mut Session, model: &dyn Model, weights: &Weights) -> Result<()> {
    check_adapter(model, weights)?;
    for (parameter, name) in adapter_parameters(model) {
        let shape = parameter_shape(&parameter, DType::F32);
        let bytes = weights.read(&name, &shape)?;
        if !is_finite(&shape, &bytes) {
            return Err(Error::BrokenWeights {
                path: weights.path().to_path_buf(),
                tensor: name,
            });
        }
        set_weight(session, &parameter, &bytes, &shape)?;
    }
    Ok(())
}

/// A language model's file may hold its head besides what the head is tied to. That is a copy: of another
/// tensor transformers 5 makes a head that is not tied, whatever the configuration says.
fn check_copies(model: &dyn Model, weights: &Weights, fit: &Fit) -> Result<()> {
    if !matches!(model.head_kind(), HeadKind::CausalLm | HeadKind::MaskedLm) {
        return Ok(());
    }
    let parameters = model.parameters();
    for view in weights.iter() {
        let is_used = fit.stored.values().any(|name| name == view.name);
        let of_vocabulary = view.shape.dims.first() == Some(&model.vocab_size());
        if is_used || !of_vocabulary || !view.shape.dtype.is_float() {
            continue;
        }
        let tied = parameters.iter().find(|p| p.dims == view.shape.dims);
        let Some((parameter, stored)) = tied.and_then(|p| Some((p, fit.stored.get(&p.name)?)))
        else {
            continue;
        };
        let shape = parameter_shape(parameter, DType::F32);
        if weights.read(view.name, &shape)? != weights.read(stored, &shape)? {
            return Err(Error::NotTied {
                path: weights.path().to_path_buf(),
                tensor: view.name.to_string(),
                parameter: stored.clone(),
            });
        }
    }
    Ok(())
}

/// State of a run besides the parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtraState {
    /// Its name in the session and in checkpoints.
    pub name: String,
    /// Dimensions and element type of the whole.
    pub shape: Shape,
    /// What every element is at the start of a run; `None`: master copies, which are placed with
    /// the weights.
    pub initial: Option<f32>,
    /// Whether a checkpoint holds it; what it does not hold has its initial value between steps.
    pub saved: bool,
}

/// Uploads other named state: what `saved` has of it, the initial value elsewhere.
///
/// # Errors
/// If what is saved has another shape or cannot be read, or the devices' memory is full.
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
        if let Some(saved) = saved.filter(|saved| saved.get(name).is_some()) {
            session.set_state(name, &saved.read(name, shape)?, shape)?;
        } else if let Some(initial) = initial {
            session.set_state(name, &constant(*initial, shape), shape)?;
        }
    }
    Ok(())
}

/// The bytes of an array that has this value everywhere; integers are 0 at the beginning.
pub(crate) fn constant(value: f32, shape: &Shape) -> Vec<u8> {
    if !shape.dtype.is_float() {
        assert!(value == 0.0, "state of integers begins with zeros");
        return vec![0; shape.bytes()];
    }
    let values = vec![value; shape.elements()];
    let wide = shape.with_dtype(DType::F32);
    in_type(bytemuck::cast_slice(&values), &wide, shape).into_owned()
}

/// A value read back from the device.
pub struct HostTensor {
    /// The state's name.
    pub name: String,
    /// Dimensions and element type of the whole.
    pub shape: Shape,
    /// Dense and row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// Whether every element is a finite number. State is f32 or bf16; other types are not looked at.
pub fn is_finite(shape: &Shape, bytes: &[u8]) -> bool {
    // Without a branch for each value, which would take several times as long.
    fn all_finite<const N: usize>(block: &[u8], is_finite: impl Fn([u8; N]) -> bool) -> bool {
        let (values, _) = block.as_chunks();
        values
            .iter()
            .fold(true, |all, bytes| all & is_finite(*bytes))
    }
    let finite = |block: &[u8]| match shape.dtype {
        DType::F32 => all_finite(block, |x| f32::from_le_bytes(x).is_finite()),
        DType::BF16 => all_finite(block, |x| bf16::from_le_bytes(x).is_finite()),
        _ => true,
    };
    bytes.chunks(1 << 16).all(finite)
}

/// Bytes of values that are gathered on the devices at a time, where their parts are in other
/// processes.
const GATHERED_BYTES: usize = 256 << 20;

/// Bytes of values that are on their way to the host at a time.
const BYTES_AHEAD: usize = 256 << 20;

/// Reads named state back; waits for the devices. Where parts are in other processes, all processes
/// have to ask for the same names, but for this function or for [`take_part_in_download`].
///
/// # Errors
/// If there is no state of a name, or the step that computes it failed.
pub fn download(session: &mut Session, names: &[String]) -> Result<Vec<HostTensor>> {
    download_groups(session, &read_together(session, names))
}

/// As [`download`], of what [`read_together`] has grouped.
///
/// # Errors
/// As [`download`].
pub fn download_groups(session: &mut Session, groups: &[Vec<String>]) -> Result<Vec<HostTensor>> {
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
    for together in groups {
        let together: Vec<&str> = together.iter().map(String::as_str).collect();
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
///
/// # Errors
/// As [`download`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_checkpoint::{TensorRef, write_safetensors};

    /// As `lm_head.weight` alone in a file, which transformers ties to the embeddings.
    #[test]
    fn a_head_stored_alone_serves_the_embeddings_that_it_is_tied_to() {
        let mut config = xtrain_models::default_config("gpt2").unwrap();
        for (key, value) in [
            ("vocab_size", 50),
            ("n_embd", 8),
            ("n_layer", 1),
            ("n_head", 2),
            ("n_positions", 8),
        ] {
            config.set(key, value);
        }
        let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
        let parameters = model.parameters();
        let bytes: Vec<Vec<u8>> = parameters
            .iter()
            .map(|parameter| vec![0; parameter.dims.iter().product::<usize>() * 4])
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let stored = |embeddings: &str| {
            let tensors: Vec<TensorRef<'_>> = parameters
                .iter()
                .zip(&bytes)
                .map(|(parameter, bytes)| {
                    let name = if parameter.name.ends_with("wte.weight") {
                        embeddings.to_string()
                    } else {
                        parameter.name.clone()
                    };
                    TensorRef::new(name, parameter_shape(parameter, DType::F32), bytes)
                })
                .collect();
            let mut file = std::fs::File::create(&path).unwrap();
            write_safetensors(&mut file, &tensors).unwrap();
            let weights = Weights::open(&path).unwrap();
            fit(&*model, &weights, Head::Saved).map(|fit| fit.stored)
        };
        let of_tokens = |parameter: &&ParameterSpec| parameter.name.ends_with("wte.weight");
        let embeddings = parameters.iter().find(of_tokens).unwrap().name.clone();
        assert_eq!(stored(&embeddings).unwrap()[&embeddings], embeddings);
        assert_eq!(
            stored("lm_head.weight").unwrap()[&embeddings],
            "lm_head.weight"
        );
        assert!(stored("nothing.weight").is_err());
    }
}
