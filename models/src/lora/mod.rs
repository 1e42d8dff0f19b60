//! LoRA: a model whose linear layers have matrices of low rank added to them, while its own weights
//! stay as they are (Hu et al. 2021, arXiv:2106.09685), as PEFT has it.
//!
//! An adapter is a value of a model: [`adapt`] gives the same model with one, and everything else (the list of
//! parameters, what is trained, sharding, stages) follows from its declaration. Where it acts is
//! [`Weights::linear`](crate::Weights::linear).

mod adapted;
mod config;
mod targets;

pub use adapted::adapt;
pub use config::{AdapterBias, LoraConfig, Modules};
pub use targets::has_usual_targets;

use crate::declaration::LinearModule;
use crate::error::{Error, Result};
use crate::head::HeadKind;
use crate::model::Model;
use crate::parameter::{ParameterSet, ParameterSpec};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// What is added to one linear layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraLayer {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// The factor of the product.
    pub scale: f64,
    /// Share of the input that is dropped before A.
    pub dropout: f64,
    /// Each row of the sum has a magnitude of its own.
    pub has_magnitude: bool,
    /// B has a bias.
    pub has_bias: bool,
}

/// What a model's configuration came to for it: which layers are adapted, and what else is trained.
#[derive(Clone, Debug)]
pub struct Adapter {
    config: LoraConfig,
    /// By the names of modules.
    layers: BTreeMap<String, LoraLayer>,
    /// Modules that are trained whole.
    saved: BTreeSet<String>,
    /// Names among the configuration's targets that no layer has.
    unmatched: Vec<String>,
    /// See [`LoraConfig::to_json`].
    targets: Vec<String>,
    is_conv1d: bool,
    task: &'static str,
}

/// The matrices of a layer's product, below the module's name.
pub(crate) const A: &str = "lora_A.weight";
pub(crate) const B: &str = "lora_B.weight";
pub(crate) const B_BIAS: &str = "lora_B.bias";
/// The magnitudes of a layer's rows.
pub(crate) const MAGNITUDE: &str = "lora_magnitude_vector";

/// What PEFT puts before the names of a model's parameters.
const SAVED_PREFIX: &str = "base_model.model.";

impl Adapter {
    /// What a configuration comes to for a model.
    ///
    /// # Errors
    /// If it means no layer of it, or a module to save is none of it.
    fn of(config: LoraConfig, model: &dyn Model) -> Result<Adapter> {
        let info = model.info();
        let declaration = info.declaration();
        let config = config.for_head(info.head);
        let model_type = info.config.text("model_type")?;
        let found = config.targets_of(&declaration.linears, &model_type);
        if found.is_empty() {
            return Err(Error::NoTargets {
                known: last_parts(&declaration.linears),
            });
        }
        let parameters = || declaration.parameters.iter();
        let mut saved = BTreeSet::new();
        for name in parameters().flat_map(ParameterSpec::names) {
            let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
            saved.extend(config.saved_above(module).map(str::to_string));
        }
        check_saved(&config, &saved, parameters().map(|p| p.name.as_str()))?;
        if let Some(tied) = declaration
            .linears
            .iter()
            .find(|linear| linear.is_tied && saved.contains(&linear.name))
        {
            return Err(Error::TiedToSave {
                module: tied.name.clone(),
            });
        }
        if let Some(linear) = found.iter().find(|linear| config.lora_bias && !linear.has_bias) {
            return Err(Error::NoBias {
                module: linear.name.clone(),
            });
        }
        let layer = |linear: &&LinearModule| {
            let (rank, scale) = config.rank_and_scale(&linear.name);
            let layer = LoraLayer {
                rank,
                scale,
                dropout: config.dropout,
                has_magnitude: config.dora,
                has_bias: config.lora_bias,
            };
            (linear.name.clone(), layer)
        };
        Ok(Adapter {
            layers: found.iter().map(layer).collect(),
            targets: target_names(&found, &declaration.linears),
            is_conv1d: found.iter().any(|linear| linear.is_conv1d),
            unmatched: config.unmatched(&declaration.linears),
            saved,
            config,
            task: match info.head {
                HeadKind::CausalLm => "CAUSAL_LM",
                // PEFT has no name for masked language models.
                HeadKind::MaskedLm => "FEATURE_EXTRACTION",
                HeadKind::SequenceClassification { .. } => "SEQ_CLS",
                HeadKind::TokenClassification { .. } => "TOKEN_CLS",
            },
        })
    }

    /// What it was asked to be, with the modules that PEFT's classes for the task save.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// What is added to the linear layer of this name.
    pub fn layer(&self, module: &str) -> Option<&LoraLayer> {
        self.layers.get(module)
    }

    /// Every adapted layer by its module's name.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (&str, &LoraLayer)> {
        self.layers.iter().map(|(name, layer)| (name.as_str(), layer))
    }

    /// Whether the matrices of the adapted layers are `[in, out]`.
    pub fn is_conv1d(&self) -> bool {
        self.is_conv1d
    }

    /// Modules that are trained whole.
    pub fn saved_modules(&self) -> impl ExactSizeIterator<Item = &str> {
        self.saved.iter().map(String::as_str)
    }

    /// Names among the targets that none of the model's linear layers has.
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    /// Whether a model with it switched off is the model that it was added to.
    pub fn off_is_the_base(&self) -> bool {
        self.saved.is_empty() && self.config.bias == AdapterBias::None
    }

    /// Notes of a parameter of the model with it which set it belongs to and whether it is trained.
    pub(crate) fn mark(&self, parameter: &mut ParameterSpec) {
        let is_own = |name: &str| {
            [A, B, B_BIAS, MAGNITUDE].iter().any(|part| {
                let module = name.strip_suffix(part).and_then(|above| above.strip_suffix('.'));
                module.is_some_and(|module| self.layers.contains_key(module))
            })
        };
        let is_saved = |name: &str| {
            let mut modules = self.saved.iter();
            modules.any(|module| name.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with('.')))
        };
        let name = parameter.name.as_str();
        parameter.trained =
            is_own(name) || parameter.names().any(is_saved) || self.is_trained_bias(name);
        if parameter.trained {
            parameter.set = ParameterSet::Adapter;
        }
        // By its name it is no bias and no norm's, which is what transformers' Trainer looks at.
        parameter.decay |= is_own(name) && name.ends_with(MAGNITUDE);
    }

    /// Whether a name is of a bias of the model's own that is trained.
    fn is_trained_bias(&self, name: &str) -> bool {
        let is_bias = name.rsplit('.').next() == Some("bias");
        match self.config.bias {
            AdapterBias::None => false,
            AdapterBias::All => is_bias,
            AdapterBias::LoraOnly => is_bias && self.is_of_layer(name).is_some(),
        }
    }

    /// The adapted layer whose own bias this is, by its name.
    fn is_of_layer<'n>(&self, name: &'n str) -> Option<&'n str> {
        let module = name.strip_suffix(".bias")?;
        self.layers.contains_key(module).then_some(module)
    }

    /// What PEFT calls one of its parameters in `adapter_model.safetensors`.
    pub fn saved_name(&self, parameter: &str) -> String {
        match self.is_of_layer(parameter) {
            Some(module) => format!("{SAVED_PREFIX}{module}.base_layer.bias"),
            None => format!("{SAVED_PREFIX}{parameter}"),
        }
    }

    /// The content of its `adapter_config.json`.
    pub fn config_file(&self) -> Map<String, Value> {
        self.config.to_json(&self.targets, self.is_conv1d, self.task)
    }
}

/// What tells it from others in a sentence.
impl std::fmt::Display for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = &self.config;
        let (rank, alpha) = (config.rank, config.alpha);
        write!(f, "an adapter (r {rank}, lora_alpha {alpha}")?;
        for (name, is_on) in [
            ("use_rslora", config.rank_stabilized),
            ("use_dora", config.dora),
            ("lora_bias", config.lora_bias),
        ] {
            if is_on {
                write!(f, ", {name}")?;
            }
        }
        if config.bias != AdapterBias::None {
            write!(f, ", bias {}", config.bias.name())?;
        }
        write!(f, ") on {}", self.targets.join(", "))?;
        if !self.saved.is_empty() {
            let saved: Vec<&str> = self.saved_modules().collect();
            write!(f, ", with {}", saved.join(", "))?;
        }
        Ok(())
    }
}

/// Each module to save is one of the model's, but for those that PEFT names for every classifier.
fn check_saved<'n>(
    config: &LoraConfig,
    saved: &BTreeSet<String>,
    names: impl Iterator<Item = &'n str>,
) -> Result<()> {
    let is_found = |name: &&String| saved.iter().any(|module| module.ends_with(name.as_str()));
    let usual = ["classifier", "score"];
    let mut missing = config.saved.iter().filter(|name| !is_found(name));
    match missing.find(|name| !usual.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::NoModule {
            name: name.clone(),
            known: modules_of(names),
        }),
    }
}

/// The last parts of modules' names, each once, in the model's order.
fn last_parts(linears: &[LinearModule]) -> Vec<String> {
    let names = linears.iter().map(|linear| linear.name.as_str());
    distinct(names.map(last_part))
}

fn modules_of<'n>(parameters: impl Iterator<Item = &'n str>) -> Vec<String> {
    let module = |name: &'n str| name.rsplit_once('.').map_or(name, |(module, _)| module);
    distinct(parameters.map(|name| last_part(module(name))))
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn distinct<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let first = names.filter(|name| seen.insert(*name));
    first.map(str::to_string).collect()
}

/// Names that mean these layers and no others: the last part of a name where that is enough.
fn target_names(found: &[&LinearModule], linears: &[LinearModule]) -> Vec<String> {
    let is_found = |linear: &LinearModule| found.iter().any(|target| target.name == linear.name);
    let name = |target: &&LinearModule| {
        let last = last_part(&target.name);
        let mut alike = linears.iter().filter(|linear| last_part(&linear.name) == last);
        let is_enough = alike.all(is_found);
        if is_enough { last } else { target.name.as_str() }.to_string()
    };
    let names: BTreeSet<String> = found.iter().map(name).collect();
    names.into_iter().collect()
}
