//! An adapter merged into the model that it is of: tensor by tensor, in the files and types of the
//! original, then compared with the adapter on a sample.

use super::error::{Error, failed};
use super::execution::Execution;
use super::model::{LoadedModel, ModelConfig, origin};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use xtrain_checkpoint::hf::{self, CONFIG_FILE, Form};
use xtrain_checkpoint::weights::{WEIGHTS_FILE, WEIGHTS_INDEX_FILE, convert_floats};
use xtrain_checkpoint::{Fetch, TensorRef, Weights, atomic, files, write_safetensors};
use xtrain_config::{MergePlan, ModelSource};
use xtrain_data::tokenizer::TOKENIZER_FILES;
use xtrain_graphs::{DType, Shape};
use xtrain_models::{
    Adapter, Config, HeadKind, Init, LoraLayer, Model, ParameterSet, StoredName, stored_name,
};
use xtrain_report::progress::say;
use xtrain_trainer::parameters::Head;
use xtrain_trainer::sample_logits;

/// What a merge did.
pub struct Merged {
    /// Tensors with other values than the original's.
    pub changed: usize,
    /// All tensors.
    pub tensors: usize,
    /// The largest difference between the logits of the merged model and of the adapter; `None` where the
    /// machine has no memory for both.
    pub difference: Option<f32>,
    /// The largest difference between the logits of the adapter and of its model.
    pub effect: Option<f32>,
}

/// The head of the model that an adapter is of.
fn head_of(config: &Config, adapter: &Path) -> Result<HeadKind, Error> {
    let path = adapter.join(Form::Adapter.config_file());
    let values = hf::read_object(&path).map_err(failed("reading the adapter"))?;
    let labels = || {
        let map = config.get("id2label").and_then(Value::as_object);
        map.map_or(2, Map::len)
    };
    Ok(match values.get("task_type").and_then(Value::as_str) {
        Some("SEQ_CLS") => HeadKind::SequenceClassification { labels: labels() },
        Some("TOKEN_CLS") => HeadKind::TokenClassification { labels: labels() },
        Some("CAUSAL_LM") => HeadKind::CausalLm,
        _ => HeadKind::of(config).map_err(failed("reading the model's configuration"))?,
    })
}

/// Merges what a plan names.
///
/// # Errors
/// If something cannot be read or written, the adapter changes nothing, or the merged model is another
/// function than the adapter.
pub fn merge(plan: &MergePlan) -> Result<Merged, Error> {
    let ModelSource::Pretrained {
        directory,
        adapter: Some(adapter_dir),
        ..
    } = &plan.model
    else {
        return Err(Error::failed("a merge needs a model and an adapter"));
    };
    let read = ModelConfig::read(&plan.model, None)?;
    let head = head_of(&read.config, adapter_dir)?;
    let loaded = read.build(head, Head::Saved)?;
    let adapter = loaded.model.adapter().expect("it was loaded");
    let base = Weights::open(directory).map_err(failed("opening the model's weights"))?;
    let own = Weights::open_adapter(adapter_dir).map_err(failed("opening the adapter"))?;
    let merger = Merger::new(&*loaded.model, adapter, &base, &own);
    fs::create_dir_all(&plan.output_dir).map_err(failed("making the output directory"))?;
    let tensors = merger.write(&plan.output_dir)?;
    let changed = merger.changed.borrow().len();
    if changed == 0 {
        return Err(Error::failed(
            "the adapter changes no tensor of the model, in the type that its weights have: nothing was merged",
        )
        .with_hint("an adapter whose B is zero was not trained; one that is very small needs weights of float32"));
    }
    let mut config = loaded.model.config().values().clone();
    if merger.unties() {
        config.insert("tie_word_embeddings".into(), json!(false));
        say(
            "note: the head was tied to the token embeddings, which the adapter changes by themselves: the merged model has both (tie_word_embeddings is false)",
        );
    }
    copy_others(&plan.output_dir, directory, adapter_dir, &config, &loaded)?;
    check(
        plan,
        loaded,
        head,
        Merged {
            changed,
            tensors,
            difference: None,
            effect: None,
        },
    )
}

/// Reads a tensor of the merged model.
struct Merger<'m> {
    model: &'m dyn Model,
    adapter: &'m Adapter,
    base: &'m Weights,
    own: &'m Weights,
    changed: RefCell<Vec<String>>,
}

impl<'m> Merger<'m> {
    fn new(
        model: &'m dyn Model,
        adapter: &'m Adapter,
        base: &'m Weights,
        own: &'m Weights,
    ) -> Merger<'m> {
        Merger {
            model,
            adapter,
            base,
            own,
            changed: RefCell::default(),
        }
    }

    /// Whether the adapter changes a tied matrix in one of its two places.
    fn unties(&self) -> bool {
        let parameters = self.model.parameters();
        let mut starts = parameters.iter().map(|parameter| &parameter.init);
        starts.any(|init| matches!(init, Init::CopyOf { .. }))
            || self.added().iter().any(|(_, tied)| tied.is_some())
    }

    /// Tensors that the merged model has and the original lacks, by their names, each with the
    /// parameter that it is a copy of.
    fn added(&self) -> Vec<(String, Option<String>)> {
        let parameters = self.model.parameters();
        let stored: Vec<String> = self
            .base
            .iter()
            .filter_map(|view| match stored_name(self.model, view.name) {
                StoredName::Parameter(name) => Some(name),
                StoredName::NotNeeded | StoredName::OtherHead | StoredName::Unknown => None,
            })
            .collect();
        let new = parameters.iter().filter(|parameter| {
            let is_lora = self.is_adapters(&parameter.name);
            parameter.set == ParameterSet::Adapter && !is_lora && !stored.contains(&parameter.name)
        });
        let new = new.map(|parameter| (parameter.name.clone(), None));
        let tied = parameters.iter().flat_map(|parameter| {
            let names = parameter.aliases.iter();
            let touched = |name: &String| {
                let module = name.strip_suffix(".weight");
                module.is_some_and(|module| self.adapter.layer(module).is_some())
            };
            let is_touched = parameter.names().any(|name| touched(&name.to_string()));
            names
                .filter(move |_| is_touched)
                .map(|alias| (alias.clone(), Some(parameter.name.clone())))
        });
        let tied = tied.filter(|(alias, _)| alias.ends_with(".weight"));
        new.chain(tied.collect::<Vec<_>>()).collect()
    }

    fn is_adapters(&self, name: &str) -> bool {
        name.contains(".lora_") || name.contains(".token_adapter.")
    }

    /// Writes the weights in the files of the original; gives their number.
    fn write(&self, output: &Path) -> Result<usize, Error> {
        let writing = || failed("writing the merged model");
        let mut files = self.base.files();
        let added = self.added();
        // What was a copy of a tied matrix is one of its own now.
        for (_, names) in &mut files {
            names.retain(|name| !added.iter().any(|(alias, _)| alias == name));
        }
        let last = files.last_mut().expect("a model has a file");
        last.1.extend(added.iter().map(|(name, _)| name.clone()));
        let is_one = files.len() == 1;
        let mut map = BTreeMap::new();
        let (mut count, mut bytes) = (0, 0);
        for (path, names) in &files {
            let file = match path.file_name().and_then(|name| name.to_str()) {
                Some(name) if !is_one && name.ends_with(".safetensors") => name.to_string(),
                Some(name) if !is_one => format!("{name}.safetensors"),
                _ => WEIGHTS_FILE.to_string(),
            };
            let tensors: Vec<TensorRef> = names
                .iter()
                .map(|name| TensorRef::fetched(name.as_str(), self.shape(name, &added), self))
                .collect();
            count += tensors.len();
            bytes += tensors
                .iter()
                .map(|tensor| tensor.shape.bytes())
                .sum::<usize>();
            map.extend(names.iter().map(|name| (name.clone(), json!(file))));
            let target = output.join(&file);
            atomic::write_file(&target, |out| write_safetensors(out, &tensors))
                .map_err(writing())?;
        }
        if !is_one {
            let map: Map<String, Value> = map.into_iter().collect();
            let index = json!({"metadata": {"total_size": bytes}, "weight_map": map});
            hf::write_json(&output.join(WEIGHTS_INDEX_FILE), &index).map_err(writing())?;
        }
        Ok(count)
    }

    /// Of a tensor that the original lacks: as what it copies, or as the adapter's file has it, in the type
    /// of the original's weights.
    fn shape(&self, name: &str, added: &[(String, Option<String>)]) -> Shape {
        if let Some(view) = self.base.get(name) {
            return view.shape;
        }
        let copied = added.iter().find(|(alias, _)| alias == name);
        let copied = copied.and_then(|(_, of)| self.stored_as(of.as_ref()?));
        if let Some(view) = copied.and_then(|stored| self.base.get(&stored)) {
            return view.shape;
        }
        let saved = self.own.get(&self.adapter.saved_name(name));
        let shape = saved.expect("what is added is in the adapter").shape;
        let mut types = self.base.iter().map(|view| view.shape.dtype);
        let dtype = types.find(|dtype| dtype.is_float());
        shape.with_dtype(dtype.unwrap_or(DType::F32))
    }

    /// The name under which the original has a parameter.
    fn stored_as(&self, parameter: &str) -> Option<String> {
        let is_it = |name: &str| {
            stored_name(self.model, name) == StoredName::Parameter(parameter.to_string())
        };
        let mut names = self.base.iter().map(|view| view.name);
        names.find(|name| is_it(name)).map(str::to_string)
    }

    /// The values of a tensor, in the type of the original's.
    fn values(&self, name: &str) -> Result<Vec<u8>, String> {
        let problem = |error: &dyn std::fmt::Display| error.to_string();
        let added = self.added();
        let copied = added.iter().find(|(alias, _)| alias == name);
        let copied = copied.and_then(|(_, of)| self.stored_as(of.as_ref()?));
        let shape = self.shape(name, &added);
        let parameter = match (stored_name(self.model, name), &copied) {
            // Under its own name an untied matrix is another module's.
            (_, Some(_)) => name.to_string(),
            (StoredName::Parameter(parameter), None) => parameter,
            (StoredName::NotNeeded | StoredName::OtherHead | StoredName::Unknown, None) => {
                let view = self.base.get(name).ok_or("the model lacks it")?;
                return Ok(view.bytes.to_vec());
            }
        };
        let saved = self.adapter.saved_name(&parameter);
        let is_whole = self.own.get(&saved).is_some();
        let source = copied.as_deref().unwrap_or(name);
        let values = if is_whole {
            self.own
                .read_f32(&saved)
                .map_err(|error| problem(&error))?
                .1
        } else {
            let module = parameter.rsplit_once('.').map_or("", |(module, _)| module);
            if !self.adapter.tokens(module).is_empty() && copied.is_none() {
                return self.with_tokens(name, &shape, module);
            }
            let Some(layer) = self.adapter.layer(module) else {
                return Ok(self
                    .base
                    .get(source)
                    .ok_or("the model lacks it")?
                    .bytes
                    .to_vec());
            };
            let values = self
                .base
                .read_f32(source)
                .map_err(|error| problem(&error))?
                .1;
            if parameter.ends_with(".weight") {
                self.with_product(values, &shape, module, layer)?
            } else {
                self.with_bias(values, module, layer)?
            }
        };
        let bytes = bytemuck::cast_slice(&values[..]);
        let converted =
            convert_floats(bytes, DType::F32, shape.dtype).ok_or("its type is none of floats")?;
        let before = self.base.get(source).map(|view| view.bytes);
        if before != Some(&converted[..]) || copied.is_some() {
            self.changed.borrow_mut().push(name.to_string());
        }
        Ok(converted)
    }

    /// A table of tokens with the rows of those that were trained by themselves.
    fn with_tokens(&self, name: &str, shape: &Shape, module: &str) -> Result<Vec<u8>, String> {
        let own = self.read(module, "token_adapter.trainable_tokens_delta")?;
        let view = self.base.get(name).ok_or("the model lacks it")?;
        let converted = convert_floats(bytemuck::cast_slice(&own), DType::F32, shape.dtype);
        let converted = converted.ok_or("its type is none of floats")?;
        let mut bytes = view.bytes.to_vec();
        let width = shape.dims[1] * shape.dtype.size();
        for (token, row) in self
            .adapter
            .tokens(module)
            .iter()
            .zip(converted.chunks(width))
        {
            bytes[token * width..(token + 1) * width].copy_from_slice(row);
        }
        self.changed.borrow_mut().push(name.to_string());
        Ok(bytes)
    }

    fn read(&self, module: &str, part: &str) -> Result<Vec<f32>, String> {
        let name = self.adapter.saved_name(&format!("{module}.{part}"));
        let read = self
            .own
            .read_f32(&name)
            .map_err(|error| error.to_string())?;
        Ok(read.1)
    }

    /// W + scale B A, its rows brought to their magnitudes where they have such.
    fn with_product(
        &self,
        values: Vec<f32>,
        shape: &Shape,
        module: &str,
        layer: &LoraLayer,
    ) -> Result<Vec<f32>, String> {
        let rank = layer.rank;
        let (a, b) = match self.adapter.tied_table(module) {
            Some(table) => (
                transposed(&self.read(table, "lora_embedding_B")?, rank),
                transposed(&self.read(table, "lora_embedding_A")?, shape.dims[0]),
            ),
            None if layer.is_embedding => (
                self.read(module, "lora_embedding_A")?,
                self.read(module, "lora_embedding_B")?,
            ),
            None => (
                self.read(module, "lora_A.weight")?,
                self.read(module, "lora_B.weight")?,
            ),
        };
        let (outputs, inputs) = (b.len() / rank, a.len() / rank);
        // A Conv1D's matrix and a table of tokens are the other way round.
        let is_transposed = layer.is_embedding || layer.is_conv1d;
        debug_assert_eq!(shape.elements(), outputs * inputs);
        let at = |row: usize, column: usize| {
            let (output, input) = if is_transposed {
                (column, row)
            } else {
                (row, column)
            };
            let products = (0..rank)
                .map(|k| f64::from(b[output * rank + k]) * f64::from(a[k * inputs + input]));
            layer.scale * products.sum::<f64>()
        };
        let width = shape.dims[1];
        let mut merged: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        merged
            .par_chunks_mut(width)
            .enumerate()
            .for_each(|(row, chunk)| {
                for (column, value) in chunk.iter_mut().enumerate() {
                    *value += at(row, column);
                }
            });
        if layer.has_magnitude {
            let magnitudes = self.read(module, "lora_magnitude_vector")?;
            let mut squares = vec![0f64; outputs];
            let output = |place: usize| [place / width, place % width][usize::from(is_transposed)];
            for (place, value) in merged.iter().enumerate() {
                squares[output(place)] += value * value;
            }
            for (place, value) in merged.iter_mut().enumerate() {
                let output = output(place);
                *value *= f64::from(magnitudes[output]) / squares[output].sqrt();
            }
        }
        Ok(merged.into_iter().map(|value| value as f32).collect())
    }

    /// The bias with that of B.
    fn with_bias(
        &self,
        mut values: Vec<f32>,
        module: &str,
        layer: &LoraLayer,
    ) -> Result<Vec<f32>, String> {
        if layer.has_bias {
            let own = self.read(module, "lora_B.bias")?;
            for (value, own) in values.iter_mut().zip(own) {
                *value = (f64::from(*value) + layer.scale * f64::from(own)) as f32;
            }
        }
        Ok(values)
    }
}

/// A matrix of so many columns, transposed.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| matrix.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

impl Fetch for Merger<'_> {
    fn fetch(&self, name: &str) -> io::Result<Vec<u8>> {
        let described = |reason: String| io::Error::other(format!("{name}: {reason}"));
        self.values(name).map_err(described)
    }
}

/// The settings of the merged model, and the other files of both directories: the tokenizer of the adapter,
/// where it has one.
fn copy_others(
    output: &Path,
    base: &Path,
    adapter: &Path,
    config: &Map<String, Value>,
    loaded: &LoadedModel,
) -> Result<(), Error> {
    let writing = || failed("writing the merged model");
    hf::write_json(&output.join(CONFIG_FILE), config).map_err(writing())?;
    let own = loaded.generation_file().into_iter();
    for (name, bytes) in own.chain(loaded.companions().iter().cloned()) {
        atomic::write_bytes(&output.join(name), &bytes).map_err(writing())?;
    }
    let has = |dir: &Path| TOKENIZER_FILES.iter().any(|name| dir.join(name).is_file());
    let tokenizer = if has(adapter) { adapter } else { base };
    for name in TOKENIZER_FILES {
        let path: PathBuf = tokenizer.join(name);
        if path.is_file() {
            let bytes = files::read(&path).map_err(failed("reading the tokenizer"))?;
            atomic::write_bytes(&output.join(name), &bytes).map_err(writing())?;
        }
    }
    Ok(())
}

/// How far logits of a merged model may be off, as a share of the largest: what rounding to its type does.
fn allowed(dtype: Option<DType>) -> f32 {
    match dtype {
        Some(DType::BF16) => 5e-2,
        Some(DType::F16) => 1e-2,
        _ => 1e-4,
    }
}

/// Compares the logits of the merged model with those of the adapter.
fn check(
    plan: &MergePlan,
    loaded: LoadedModel,
    head: HeadKind,
    merged: Merged,
) -> Result<Merged, Error> {
    if let Err(error) = loaded.check_memory() {
        say(&format!(
            "note: the merged model's logits were not compared with the adapter's: {error}"
        ));
        return Ok(merged);
    }
    let source = ModelSource::Pretrained {
        directory: plan.output_dir.clone(),
        adapter: None,
        model_type: None,
        quantization: None,
    };
    let logits = |loaded: &LoadedModel, is_off: bool| -> Result<Vec<f32>, Error> {
        let origin = origin("merge", &*loaded.model, &[]);
        let execution = Execution::new(&plan.device, &plan.cache, &plan.train);
        let mut session = execution.session(&*loaded.model, origin)?;
        loaded.place(&mut session, 0)?;
        sample_logits::sample_logits(&mut session, &*loaded.model, is_off)
            .map_err(failed("computing the logits of a sample"))
    };
    let with_adapter = logits(&loaded, false)?;
    let without = logits(&loaded, true)?;
    let dtype = loaded.weights_dtype();
    drop(loaded);
    let written = ModelConfig::read(&source, None)?.build(head, Head::Saved)?;
    let found = logits(&written, false)?;
    let largest = |a: &[f32], b: &[f32]| {
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        differences.fold(0f32, f32::max)
    };
    let size = with_adapter.iter().fold(1f32, |most, x| most.max(x.abs()));
    let difference = largest(&found, &with_adapter);
    let effect = largest(&without, &with_adapter);
    if difference.is_nan() || difference > allowed(dtype) * size {
        return Err(Error::failed(format!(
            "the merged model in {} is another function than the adapter: logits of a sample differ by {difference:.1e}, of {size:.1e} at most",
            plan.output_dir.display()
        ))
        .with_hint("use the model with its adapter, and report it: a defect of xtrain"));
    }
    Ok(Merged {
        difference: Some(difference),
        effect: Some(effect),
        ..merged
    })
}
