//! The model that was asked for, with its weights.

use super::error::{Error, failed};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use xtrain_cache::Origin;
use xtrain_checkpoint::hf::{ADAPTER_CONFIG_FILE, Form};
use xtrain_checkpoint::{Checkpoint, Weights, files, hash, hf};
use xtrain_config::ModelSource;
use xtrain_data::tokenizer::Tokenizer;
use xtrain_distributed::ProcessGroup;
use xtrain_graphs::DType;
use xtrain_models::{
    Axis, Config, HeadKind, LoraConfig, Model, Modules, ParameterSpec, StoredName, adapt,
    has_usual_targets, stored_name,
};
use xtrain_report::memory;
use xtrain_report::progress::say;
use xtrain_report::units::{bytes, count};
use xtrain_trainer as trainer;
use xtrain_trainer::parameters::{self, Head};
use xtrain_trainer::session::Session;
use xtrain_trainer::trained::{Trained, TrainedError};

/// A model's configuration, before it is decided what the model is built for.
pub struct ModelConfig {
    /// The settings of `config.json`, or of the chosen preset.
    pub config: Config,
    /// Where its weights are, unless they are new.
    directory: Option<PathBuf>,
    /// Where the adapter is that is added to it.
    adapter: Option<PathBuf>,
    /// `generation_config.json` of a directory that has one, as it stands.
    generation: Option<Vec<u8>>,
    /// The directory's files that a saved model keeps, though nothing here reads them.
    companions: Vec<(String, Vec<u8>)>,
    /// The rows that the saved tables of tokens have, where the model's are to have more.
    saved_rows: Option<usize>,
}

impl ModelConfig {
    /// Makes the vocabulary of a saved model as large as a tokenizer's, as run_clm and run_mlm do.
    pub fn fit_vocabulary(&mut self, tokens: usize) {
        let saved = self.config.size("vocab_size").unwrap_or(tokens);
        if self.directory.is_none() || saved >= tokens {
            return;
        }
        self.config.set("vocab_size", tokens);
        self.saved_rows = Some(saved);
    }

    /// Reads the configuration that a plan names. A vocabulary that nobody chose follows the
    /// tokenizer, when there is one.
    ///
    /// # Errors
    /// If a file cannot be read, or a setting is none of the model's.
    pub fn read(source: &ModelSource, tokenizer: Option<&Tokenizer>) -> Result<Self, Error> {
        let config = source.config(tokenizer)?;
        let ModelSource::Pretrained {
            directory, adapter, ..
        } = source
        else {
            return Ok(ModelConfig {
                config,
                directory: None,
                adapter: None,
                generation: None,
                companions: Vec::new(),
                saved_rows: None,
            });
        };
        let path = directory.join(hf::GENERATION_CONFIG_FILE);
        let generation = if path.exists() {
            // Named here if it is no such file.
            hf::read_object(&path).map_err(failed("reading the model's configuration"))?;
            Some(files::read(&path).map_err(failed("reading the model's configuration"))?)
        } else {
            None
        };
        Ok(ModelConfig {
            config,
            directory: Some(directory.clone()),
            adapter: adapter.clone(),
            generation,
            companions: companions(directory),
            saved_rows: None,
        })
    }

    /// The model for a task, with its weights opened and compared with what it wants.
    ///
    /// # Errors
    /// If the configuration describes no model, or the weights are not its.
    pub fn build(self, task: HeadKind, head: Head) -> Result<LoadedModel, Error> {
        let model =
            xtrain_models::build(self.config, task).map_err(failed("building the model"))?;
        let parameters = parameter_count(&*model);
        if parameters > MOST_PARAMETERS {
            let message = format!(
                "{} describes a model of {} parameters",
                model.config().source(),
                count(parameters as f64)
            );
            return Err(Error::usage(
                message,
                "check its sizes: no machine holds that",
            ));
        }
        let Some(directory) = self.directory else {
            return Ok(LoadedModel {
                model,
                trained: Trained::All,
                weights: None,
                adapter: None,
                new: Vec::new(),
                generation: None,
                companions: Vec::new(),
            });
        };
        let mut weights =
            Weights::open(&directory).map_err(failed("opening the model's weights"))?;
        if let Some(rows) = self.saved_rows {
            let tables = tables(&*model, &weights, rows);
            if tables.is_empty() {
                let tokenizer = model.vocab_size();
                let mismatch = xtrain_data::Error::VocabMismatch {
                    tokenizer,
                    model: rows,
                };
                return Err(failed("matching tokenizer and model")(mismatch));
            }
            say(&format!(
                "note: the tokenizer has {} tokens, the model's vocabulary {rows}: it gets a row for each of the others, the mean of those that it has",
                model.vocab_size()
            ));
            weights = weights.lengthened(&tables, model.vocab_size());
        }
        // What a model lacks of its head its adapter may have.
        let head = match (&self.adapter, head) {
            (Some(_), Head::Saved) => Head::NewIfMissing,
            (_, head) => head,
        };
        // Now, not when they are placed: between the two may lie hours of tokenizing.
        let fit = parameters::fit(&*model, &weights, head);
        let fit = fit.map_err(failed("opening the model's weights")).map_err(|error| match (head, task) {
            (Head::NewIfMissing, HeadKind::SequenceClassification { .. } | HeadKind::TokenClassification { .. }) => {
                error.with_hint("where only the classifier's shape differs, --ignore_mismatched_sizes starts it anew")
            }
            _ => error,
        })?;
        if !fit.new.is_empty() && self.adapter.is_none() {
            let names = fit
                .new
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ");
            let dir = directory.display();
            if fit.replaces_a_head() {
                say(&format!(
                    "note: the head of {dir} has another shape (--ignore_mismatched_sizes): {names} start at random"
                ));
            } else {
                say(&format!(
                    "note: {dir} has no head for {task}: {names} start at random"
                ));
            }
        }
        if !fit.unused.is_empty() {
            say(&format!(
                "note: of {} these are not used: {}",
                directory.display(),
                fit.unused.join(", ")
            ));
        }
        let loaded = LoadedModel {
            model,
            trained: Trained::All,
            weights: Some((weights, head)),
            adapter: None,
            new: fit.new,
            generation: self.generation,
            companions: self.companions,
        };
        match &self.adapter {
            Some(adapter) => loaded.with_saved_adapter(adapter),
            None => Ok(loaded),
        }
    }
}

/// The saved tensors with a row for each token.
fn tables(model: &dyn Model, weights: &Weights, rows: usize) -> Vec<String> {
    let parameters = model.parameters();
    let has_tokens = |name: &str| {
        let mut found = parameters.iter().filter(|parameter| parameter.name == name);
        found.any(|parameter| parameter.axes.first() == Some(&Axis::Vocab))
    };
    weights
        .iter()
        .filter(|view| view.shape.dims.first() == Some(&rows))
        .filter(|view| match stored_name(model, view.name) {
            StoredName::Parameter(name) => has_tokens(&name),
            // A head that is tied may be stored, too.
            StoredName::NotNeeded | StoredName::OtherHead => true,
            StoredName::Unknown => false,
        })
        .map(|view| view.name.to_string())
        .collect()
}

/// A model and, if it does not start from scratch, its weights.
pub struct LoadedModel {
    /// Its forward pass and the list of its parameters.
    pub model: Box<dyn Model>,
    /// Which of them training changes.
    pub trained: Trained,
    weights: Option<(Weights, Head)>,
    /// What is added to it, where that was saved.
    adapter: Option<Weights>,
    /// Parameters of its head that start at random.
    new: Vec<String>,
    generation: Option<Vec<u8>>,
    companions: Vec<(String, Vec<u8>)>,
}

impl LoadedModel {
    /// The same with the adapter of a directory.
    fn with_saved_adapter(self, dir: &Path) -> Result<LoadedModel, Error> {
        let path = dir.join(ADAPTER_CONFIG_FILE);
        let values = hf::read_object(&path).map_err(failed("opening the adapter"))?;
        let source = path.display().to_string();
        let config = LoraConfig::from_json(&values, &source).map_err(not_this_model(dir))?;
        let weights = Weights::open_adapter(dir).map_err(failed("opening the adapter"))?;
        let model = adapt(self.model, config).map_err(not_this_model(dir))?;
        parameters::check_adapter(&*model, &weights).map_err(|error| {
            failed("opening the adapter")(error)
                .with_hint("it is an adapter of another model, or of another task")
        })?;
        let lacks = |name: &&String| {
            let parameters = model.parameters();
            !parameters
                .iter()
                .any(|parameter| parameter.name == **name && parameter.trained)
        };
        if let Some(name) = self.new.iter().find(lacks) {
            let problem = format!(
                "neither the model nor the adapter {} has {name}, which the task needs",
                dir.display()
            );
            return Err(Error::usage(
                problem,
                "use the adapter for the task that it was trained for, with the model that it was trained on",
            ));
        }
        Ok(LoadedModel {
            model,
            adapter: Some(weights),
            ..self
        })
    }

    /// The same with a new adapter. What starts at random is saved with it, as nothing else has it.
    ///
    /// # Errors
    /// If it would be added to no layer of the model.
    pub fn with_new_adapter(self, mut config: LoraConfig) -> Result<LoadedModel, Error> {
        let usual = config.clone().for_head(self.model.head_kind());
        for name in &self.new {
            let module = name.rsplit_once('.').map_or(&**name, |(module, _)| module);
            if usual.saved_above(module).is_none() && config.saved_above(module).is_none() {
                config.save_whole(module);
                say(&format!(
                    "note: {module} starts at random, and so it is trained whole and saved with the adapter, as --lora_modules_to_save {module}"
                ));
            }
        }
        let model_type = self.model.config().text("model_type").unwrap_or_default();
        if config.targets == Modules::Usual && !has_usual_targets(&model_type) {
            say(&format!(
                "note: PEFT names no layers to adapt in {model_type}; all linear layers but the head are, as --lora_target_modules all-linear"
            ));
        }
        let model = adapt(self.model, config).map_err(|error| no_adapter(&error))?;
        for name in model
            .adapter()
            .iter()
            .flat_map(|adapter| adapter.unmatched())
        {
            say(&format!(
                "note: --lora_target_modules {name}: no linear layer of the model has such a name"
            ));
        }
        Ok(LoadedModel { model, ..self })
    }

    /// Chooses what is trained, once; without it everything is.
    ///
    /// # Errors
    /// If it is no choice, the model lacks what is named, or nothing is left to train.
    pub fn train(&mut self, trained: Result<Trained, TrainedError>) -> Result<(), Error> {
        let chosen = trained.and_then(|trained| {
            trained.choose(&*self.model)?;
            Ok(trained)
        });
        self.trained = chosen.map_err(|error| Error::usage(error.to_string(), error.hint()))?;
        Ok(())
    }

    /// Refuses a model whose weights alone, in f32 or few bits and shared by all processes, are more than this
    /// machine's memory, before anything is compiled or allocated for it.
    ///
    /// # Errors
    /// If they are.
    pub fn check_memory(&self) -> Result<(), Error> {
        let Some(memory) = memory::machine() else {
            return Ok(());
        };
        let parameters = parameter_count(&*self.model);
        let processes = ProcessGroup::joined().map_or(1, |group| group.rank_info().world);
        let arrays = self.model.parameters().into_iter();
        let arrays = arrays.flat_map(|parameter| parameter.arrays(DType::F32));
        let all: u64 = arrays.map(|array| array.shape.bytes() as u64).sum();
        let needed = all / processes as u64;
        if needed <= memory {
            return Ok(());
        }
        let message = format!(
            "the weights of {} parameters take {} in each process; this machine has {} of memory",
            count(parameters as f64),
            bytes(needed),
            bytes(memory)
        );
        Err(Error::usage(
            message,
            "check the configuration's sizes, or share the model among more machines",
        ))
    }

    /// The type of the weights' floats as they were loaded, where all of them have one of those that
    /// are trained in.
    pub fn weights_dtype(&self) -> Option<DType> {
        let (weights, _) = self.weights.as_ref()?;
        let mut types = weights
            .iter()
            .map(|tensor| tensor.shape.dtype)
            .filter(|dtype| dtype.is_float());
        let first = types.next()?;
        let is_usual = matches!(first, DType::F32 | DType::BF16 | DType::F16);
        (is_usual && types.all(|dtype| dtype == first)).then_some(first)
    }

    /// Puts the weights on the device: the directory's, or new ones from the seed.
    ///
    /// # Errors
    /// If the machine's memory cannot hold them, or they cannot be read.
    pub fn place(&self, session: &mut Session, seed: u64) -> Result<(), Error> {
        let model = &*self.model;
        self.check_memory()?;
        match &self.weights {
            Some((weights, head)) => {
                parameters::load_with_head(session, model, weights, *head, seed)
                    .map_err(failed("loading the weights"))
            }
            None => parameters::initialize(session, &model.parameters(), seed)
                .map_err(failed("initializing the weights")),
        }?;
        match &self.adapter {
            Some(adapter) => parameters::load_adapter(session, model, adapter)
                .map_err(failed("loading the adapter")),
            None => Ok(()),
        }
    }

    /// Identifies the weights that [`LoadedModel::place`] puts on the device, with what is computed by
    /// them: its configuration, and each tensor's content or, of new weights, the seed.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn digest(&self, seed: u64) -> Result<String, Error> {
        let config = json!(self.model.config().values()).to_string();
        let mut hasher = hash::HashingWriter::new(std::io::sink());
        let mut add = |bytes: &[u8]| hasher.write_all(bytes).expect("a sink takes everything");
        add(config.as_bytes());
        if let Some(quantization) = self.model.config().quantization() {
            add(format!("{quantization}\n").as_bytes());
        }
        match &self.weights {
            Some((weights, _)) => {
                let mut tensors: Vec<_> = weights.iter().collect();
                tensors.sort_by(|a, b| a.name.cmp(b.name));
                for tensor in tensors {
                    add(format!("{} {}\n", tensor.name, tensor.shape).as_bytes());
                    add(tensor.bytes);
                }
            }
            None => add(format!("seed {seed}").as_bytes()),
        }
        // One that is new changes nothing yet.
        if let Some(adapter) = &self.adapter {
            add(format!("adapter {:?}\n", self.model.adapter()).as_bytes());
            for tensor in adapter.iter() {
                add(format!("{} {}\n", tensor.name, tensor.shape).as_bytes());
                add(tensor.bytes);
            }
        }
        let (_, _, digest) = hasher.finish();
        Ok(hash::hex(&digest))
    }

    /// Puts what a checkpoint has on the device: the whole model, or an adapter on top of its model.
    ///
    /// # Errors
    /// As [`LoadedModel::place`], or if the checkpoint is of the other kind.
    pub fn restore(
        &self,
        session: &mut Session,
        saved: &Checkpoint,
        seed: u64,
    ) -> Result<(), Error> {
        let model = &*self.model;
        if model.adapter().is_some() {
            self.place(session, seed)?;
        }
        load_saved(session, model, saved).map_err(failed("loading the weights"))
    }

    /// The settings of the `generation_config.json` that came with it; none if none did.
    pub fn generation_config(&self) -> Map<String, Value> {
        let file = self.generation.as_deref();
        file.and_then(|file| serde_json::from_slice(file).ok())
            .unwrap_or_default()
    }

    /// Files of the directory that a saved model keeps.
    pub fn companions(&self) -> &[(String, Vec<u8>)] {
        &self.companions
    }

    /// `generation_config.json` to save with a causal language model: the one that came with it, byte
    /// for byte, or what follows from its configuration.
    pub fn generation_file(&self) -> Option<(String, Vec<u8>)> {
        if self.model.head_kind() != HeadKind::CausalLm {
            return None;
        }
        let name = hf::GENERATION_CONFIG_FILE.to_string();
        if let Some(file) = &self.generation {
            return Some((name, file.clone()));
        }
        let mut generation = Map::new();
        generation.insert("_from_model_config".into(), json!(true));
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            if let Some(value) = self.model.config().get(key) {
                generation.insert(key.into(), value.clone());
            }
        }
        Some((name, hf::to_json_text(&generation, 2)))
    }
}

/// Puts the weights of a checkpoint of this run in the place of those that are there.
///
/// # Errors
/// If they do not fit, or cannot be read.
pub fn load_saved(
    session: &mut Session,
    model: &dyn Model,
    saved: &Checkpoint,
) -> trainer::Result<()> {
    match saved.form {
        Form::Model => parameters::load(session, model, &saved.weights),
        Form::Adapter => parameters::load_adapter(session, model, &saved.weights),
    }
}

/// A mistake in what an adapter is asked to be.
fn no_adapter(error: &xtrain_models::Error) -> Error {
    Error::usage(
        error.to_string(),
        "change --lora_target_modules or --lora_modules_to_save, or leave them out",
    )
}

/// What is wrong with a saved adapter.
fn not_this_model(dir: &Path) -> impl Fn(xtrain_models::Error) -> Error {
    let dir = dir.display().to_string();
    move |error| {
        Error::usage(
            format!("the adapter {dir}: {error}"),
            "use it with the model that it was trained on, or train another one",
        )
    }
}

/// Bytes of a file that a saved model keeps.
const LONGEST_COMPANION: u64 = 1 << 20;

/// Files of a directory that others read beside the model: the code that `auto_map` names, how images
/// are prepared. They are copied, never run.
fn companions(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let is_kept = |name: &str| {
        let settings = ["preprocessor_config.json", "processor_config.json"];
        name.ends_with(".py") || settings.contains(&name)
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_kept(name))
        .collect();
    names.sort();
    let mut kept = Vec::new();
    for name in names {
        let path = directory.join(&name);
        let size = std::fs::metadata(&path).map_or(0, |file| file.len());
        match files::read(&path) {
            Ok(bytes) if size <= LONGEST_COMPANION => kept.push((name, bytes)),
            _ => say(&format!(
                "note: {} does not go along with the saved model: no file of at most 1 MiB that can be read",
                path.display()
            )),
        }
    }
    kept
}

/// More than every model known, by a factor of ten; less than what overflows the sizes of a graph.
const MOST_PARAMETERS: u64 = 1 << 44;

/// The numbers in all of a model's weights.
pub fn parameter_count(model: &dyn Model) -> u64 {
    count_where(model, |_| true)
}

/// Those that training changes.
pub fn trained_count(model: &dyn Model) -> u64 {
    count_where(model, |parameter| parameter.trained)
}

fn count_where(model: &dyn Model, is_counted: fn(&ParameterSpec) -> bool) -> u64 {
    let parameters = model.parameters().into_iter().filter(is_counted);
    let counts = parameters.map(|parameter| {
        let dims = parameter.dims.iter().map(|&dim| dim as u64);
        dims.fold(1, u64::saturating_mul)
    });
    counts.fold(0, u64::saturating_add)
}

/// Where the graphs of a command come from, with the settings that shape them besides the model's
/// configuration.
pub fn origin(command: &str, model: &dyn Model, settings: &[(&str, String)]) -> Origin {
    // Ids of tokens and the like are in every configuration and in no graph.
    let shapes = |name: &str| {
        !name.starts_with('_') && !name.ends_with("_token_id") && !name.ends_with("_version")
    };
    let scalar = |value: &Value| match value {
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let values = model.config().values();
    let from_config = values
        .iter()
        .filter(|(name, _)| shapes(name))
        .filter_map(|(name, v)| Some((name.clone(), scalar(v)?)));
    let from_command = settings
        .iter()
        .map(|(name, value)| (name.to_string(), value.clone()));
    Origin {
        command: command.to_string(),
        model_type: values
            .get("model_type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_string(),
        parameters: parameter_count(model),
        config_digest: hash::sha256(Value::Object(values.clone()).to_string().as_bytes())[..16]
            .to_string(),
        settings: from_config.chain(from_command).collect(),
        ..Origin::default()
    }
}
