//! What several commands start with: the device, the model that was asked for, its weights, batches on the device.

use super::Error;
use crate::cache::{CacheSettings, Origin};
use crate::checkpoint::{Weights, hash, hf};
use crate::config::{ConfigSource, Device, ModelSource, nearest};
use crate::data::batch::{Batch, Labels};
use crate::data::clm;
use crate::data::collator::Collator;
use crate::data::loader::{LoadSpec, Loader};
use crate::data::sampler::{BatchPlan, Order};
use crate::data::settings::ClmDataSettings;
use crate::data::tokenizer::Tokenizer;
use crate::runtime::Client;
use crate::trainer::error_in_batch;
use crate::trainer::session::Session;
use crate::trainer::step::DeviceBatch;
use crate::trainer::{self, device, parameters};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::{Arc, Once};
use xtrain_graphs::{DType, Shape};
use xtrain_models::{Config, Model, Task};

/// Opens the device that was asked for, with the cache of compiled graphs, whose place is told once in a process.
pub fn open_device(device: Device, cache: &CacheSettings) -> Result<Session, Error> {
    static TOLD: Once = Once::new();
    if let Some(dir) = &cache.dir {
        TOLD.call_once(|| eprintln!("compiled-graph cache: {}", dir.display()));
    }
    match device {
        Device::Cpu => device::open_cpu(1, cache.clone()).map_err(failed("opening the CPU device")),
        Device::Cuda => device::open_cuda(cache.clone()).map_err(failed("opening the CUDA device")),
        Device::Neuron => device::open_neuron(cache.clone()).map_err(failed("opening the Neuron device")),
    }
}

/// A model and, if it does not start from scratch, its weights.
pub struct LoadedModel {
    pub model: Box<dyn Model>,
    pub weights: Option<Weights>,
    /// `generation_config.json` of a directory that has one.
    generation_config: Option<Map<String, Value>>,
}

impl LoadedModel {
    /// Builds the model that a plan names. A vocabulary that nobody chose follows the tokenizer, when there is one.
    pub fn open(source: &ModelSource, tokenizer: Option<&Tokenizer>) -> Result<Self, Error> {
        match source {
            ModelSource::Pretrained { directory } => Self::pretrained(directory),
            ModelSource::Scratch { model_type, config, overrides } => {
                Self::scratch(model_type.as_deref(), config, overrides, tokenizer)
            }
        }
    }

    pub fn pretrained(directory: &Path) -> Result<Self, Error> {
        let file = directory.join(hf::CONFIG_FILE);
        let read = |file: &Path| hf::read_object(file).map_err(failed("reading the model's configuration"));
        let config = Config::new(read(&file)?, file.display().to_string());
        let model = xtrain_models::build(config, Task::CausalLm).map_err(failed("building the model"))?;
        let weights = Weights::open(directory).map_err(failed("opening the model's weights"))?;
        // Now, not when they are placed: between the two may lie hours of tokenizing.
        parameters::check(&*model, &model.parameters(), &weights).map_err(failed("opening the model's weights"))?;
        let generation = directory.join(hf::GENERATION_CONFIG_FILE);
        let generation_config = generation.exists().then(|| read(&generation)).transpose()?;
        Ok(LoadedModel { model, weights: Some(weights), generation_config })
    }

    fn scratch(
        model_type: Option<&str>,
        source: &ConfigSource,
        overrides: &[(String, Value)],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Self, Error> {
        let mut config = match source {
            ConfigSource::Preset(name) => {
                xtrain_models::preset(name).ok_or_else(|| Error::failed(format!("there is no preset {name}")))?
            }
            ConfigSource::File(file) => {
                let values = hf::read_object(file).map_err(failed("reading --config_name"))?;
                Config::new(values, file.display().to_string())
            }
        };
        if let Some(model_type) = model_type {
            let found = config.text("model_type").map_err(failed("reading the configuration"))?;
            if found != model_type {
                let problem = format!("--model_type is {model_type}, but {} says {found}", config.source());
                return Err(Error::usage(problem, "leave --model_type out"));
            }
        }
        apply_overrides(&mut config, overrides)?;
        if let (Some(tokenizer), ConfigSource::Preset(_)) = (tokenizer, source) {
            fit_to_tokenizer(&mut config, overrides, tokenizer);
        }
        let model = xtrain_models::build(config, Task::CausalLm).map_err(failed("building the model"))?;
        Ok(LoadedModel { model, weights: None, generation_config: None })
    }

    /// Puts the weights on the device: the directory's, or new ones from the seed.
    pub fn place(&self, session: &mut Session, seed: u64) -> Result<(), Error> {
        let specs = self.model.parameters();
        match &self.weights {
            Some(weights) => parameters::load(session, &*self.model, &specs, weights).map_err(failed("loading the weights")),
            None => parameters::initialize(session, &specs, seed).map_err(failed("initializing the weights")),
        }
    }

    /// `generation_config.json` to save: the one that came with the model, or what follows from its configuration.
    pub fn generation_config(&self) -> Map<String, Value> {
        if let Some(given) = &self.generation_config {
            return given.clone();
        }
        let mut generation = Map::new();
        generation.insert("_from_model_config".into(), json!(true));
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            if let Some(value) = self.model.config().get(key) {
                generation.insert(key.into(), value.clone());
            }
        }
        generation
    }
}

/// A mistake in `--config_overrides` is the command line's.
fn apply_overrides(config: &mut Config, overrides: &[(String, Value)]) -> Result<(), Error> {
    config.apply_overrides(overrides).map_err(|error| {
        let key = match &error {
            xtrain_models::Error::Override { key, .. } => key.as_str(),
            _ => "",
        };
        let fix = match nearest(key, config.values().keys().map(String::as_str)) {
            Some(meant) if meant != key => format!("did you mean `{meant}`?"),
            _ => "the names and types are those of the model's config.json".to_string(),
        };
        Error::usage(format!("--{error}"), fix)
    })
}

/// Where the graphs of a command come from, with the settings that shape them besides the model's configuration.
pub fn origin(command: &str, model: &dyn Model, settings: &[(&str, String)]) -> Origin {
    // Ids of tokens and the like are in every configuration and in no graph.
    let shapes = |name: &str| !name.starts_with('_') && !name.ends_with("_token_id") && !name.ends_with("_version");
    let scalar = |value: &Value| match value {
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let values = model.config().values();
    let from_config = values.iter().filter(|(name, _)| shapes(name)).filter_map(|(name, v)| Some((name.clone(), scalar(v)?)));
    let from_command = settings.iter().map(|(name, value)| (name.to_string(), value.clone()));
    Origin {
        command: command.to_string(),
        model_type: values.get("model_type").and_then(Value::as_str).unwrap_or_default().to_string(),
        parameters: model.parameters().iter().map(|p| p.dims.iter().product::<usize>() as u64).sum(),
        config_digest: hash::sha256(Value::Object(values.clone()).to_string().as_bytes())[..16].to_string(),
        settings: from_config.chain(from_command).collect(),
    }
}

/// A preset's vocabulary belongs to the released tokenizer; with another one, what nobody chose follows that.
fn fit_to_tokenizer(config: &mut Config, overrides: &[(String, Value)], tokenizer: &Tokenizer) {
    let chosen = |key: &str| overrides.iter().any(|(name, _)| name == key);
    if chosen("vocab_size") {
        return;
    }
    config.set("vocab_size", tokenizer.id_bound());
    for (key, id) in [("bos_token_id", tokenizer.bos_id()), ("eos_token_id", tokenizer.eos_id())] {
        if let (Some(id), false) = (id, chosen(key)) {
            config.set(key, id);
        }
    }
}

/// The block size to use, with what should be said about it said.
pub fn block_size(data: &ClmDataSettings, tokenizer: &Tokenizer, model: &dyn Model) -> Result<usize, Error> {
    use crate::data::Error as DataError;
    let block = clm::block_size(data.block_size, tokenizer.model_max_length(), model.max_positions());
    let block = block.map_err(|error| match &error {
        DataError::TooLong { positions, .. } => Error::usage(error.to_string(), format!("set --block_size {positions} or less")),
        _ => Error::usage(error.to_string(), "raise --block_size"),
    })?;
    if let Some(note) = &block.note {
        eprintln!("note: {note}");
    }
    Ok(block.size)
}

/// Makes the output directory and those above it.
pub fn create_output_dir(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir)
        .map_err(|error| Error::because(format!("--output_dir: cannot create {}", dir.display()), error))
        .map_err(|error| error.with_hint("name a directory that you may write to"))
}

/// Turns a lower layer's error into this layer's, under one phrase of context.
pub fn failed<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::because(doing, error)
}

/// Uploads a host batch; runs in the loader's threads, ahead of the step.
fn upload(client: &Client, batch: Batch) -> trainer::Result<DeviceBatch> {
    fn put<T: bytemuck::NoUninit, D: ndarray::Dimension>(
        client: &Client,
        dtype: DType,
        array: &ndarray::Array<T, D>,
    ) -> trainer::Result<Arc<crate::runtime::Buffer>> {
        let values = array.as_slice().expect("batches are contiguous");
        let shape = Shape::new(dtype, array.shape().to_vec());
        Ok(Arc::new(client.upload(bytemuck::cast_slice(values), &shape, 0)?))
    }
    Ok(DeviceBatch {
        input_ids: put(client, DType::S32, &batch.input_ids)?,
        labels: match &batch.labels {
            Labels::Tokens(labels) => put(client, DType::S32, labels)?,
            Labels::Classes(classes) => put(client, DType::S32, classes)?,
        },
        attention_mask: batch.attention_mask.as_ref().map(|mask| put(client, DType::Pred, mask)).transpose()?,
        token_type_ids: batch.token_type_ids.as_ref().map(|types| put(client, DType::S32, types)).transpose()?,
        examples: batch.examples,
        epoch: batch.epoch,
        batch_in_epoch: batch.index_in_epoch as u64,
    })
}

/// Batches on the device, prepared by `workers` threads ahead of the step.
pub fn device_batches(
    client: &Client,
    spec: LoadSpec,
    workers: usize,
) -> trainer::Result<impl Iterator<Item = trainer::Result<DeviceBatch>> + use<>> {
    let client = client.clone();
    let loader = Loader::new(spec, workers, move |batch| upload(&client, batch)).map_err(error_in_batch)?;
    Ok(loader.map(|item| item.map_err(error_in_batch)))
}

/// One pass over a set, in order, the last batch padded.
pub fn eval_batches(
    client: &Client,
    collator: &Collator,
    batch_size: usize,
    workers: usize,
) -> trainer::Result<Box<dyn Iterator<Item = trainer::Result<DeviceBatch>>>> {
    let plan = BatchPlan::new(collator.len(), batch_size, false, Order::Sequential).map_err(error_in_batch)?;
    Ok(Box::new(device_batches(client, LoadSpec::one_pass(collator.clone(), plan), workers)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MODEL_TYPES, PRESETS};

    #[test]
    fn what_the_command_line_offers_exists_and_is_causal() {
        for name in PRESETS {
            let config = xtrain_models::preset(name).unwrap();
            assert_eq!(Task::of(&config).unwrap(), Task::CausalLm, "{name}");
        }
        for (model_type, preset) in MODEL_TYPES {
            assert!(PRESETS.contains(&preset));
            assert_eq!(xtrain_models::preset(preset).unwrap().text("model_type").unwrap(), model_type);
        }
    }
}
