//! LoRA: a model whose linear layers have matrices of low rank added to them, while its own weights
//! stay as they are (Hu et al. 2021, arXiv:2106.09685), as PEFT has it.
//!
//! An adapter is a value of a model: [`adapt`](crate::adapt) gives the same model with one, and everything else (the list of
//! parameters, what is trained, sharding, stages) follows from its declaration. Where it acts is
//! [`Weights::linear`](crate::Weights::linear).

mod config;
mod targets;

pub use config::{AdapterBias, LoraConfig, Modules};

use crate::declaration::{AdaptableModule, Declaration};
use crate::error::{Error, Result};
use crate::head::HeadKind;
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
    /// Its own matrix is `[in, out]`.
    pub is_conv1d: bool,
    /// It is a table of tokens, whose A has a column for each.
    pub is_embedding: bool,
}

/// What a configuration means for a model: which layers are adapted, and what else is trained.
#[derive(Clone, Debug)]
pub struct Adapter {
    config: LoraConfig,
    /// By the names of modules.
    layers: BTreeMap<String, LoraLayer>,
    /// The tables of tokens whose matrices other layers have the other way round, by the names of these.
    tied: BTreeMap<String, String>,
    /// Modules that are trained whole.
    saved: BTreeSet<String>,
    /// The table of tokens some of whose rows are trained.
    token_table: Option<String>,
    /// Names among the configuration's targets that no layer has.
    unmatched: Vec<String>,
    /// See [`LoraConfig::to_json`].
    targets: Vec<String>,
    task: &'static str,
}

/// The matrices of a layer's product, below the module's name.
pub(crate) const A: &str = "lora_A.weight";
pub(crate) const B: &str = "lora_B.weight";
pub(crate) const B_BIAS: &str = "lora_B.bias";
/// The same of a table of tokens.
pub(crate) const EMBEDDING_A: &str = "lora_embedding_A";
pub(crate) const EMBEDDING_B: &str = "lora_embedding_B";
/// The magnitudes of a layer's rows.
pub(crate) const MAGNITUDE: &str = "lora_magnitude_vector";
/// Rows of a table of tokens that are trained in the place of its own.
pub(crate) const TOKENS: &str = "token_adapter.trainable_tokens_delta";

/// What PEFT puts before the names of a model's parameters.
const SAVED_PREFIX: &str = "base_model.model.";

impl Adapter {
    /// What a configuration means for a model; `usual`: the layers that are adapted where it names none,
    /// by the ends of their names, else all linear layers but the head.
    ///
    /// # Errors
    /// If it means no layer of it, or a module to save is none of it.
    pub(crate) fn of(
        config: LoraConfig,
        declaration: &Declaration,
        head: HeadKind,
        usual: Option<&[&str]>,
    ) -> Result<Adapter> {
        let config = config.for_head(head);
        let mut found = config.targets_of(&declaration.linears, usual);
        let tied = if config.ties {
            with_tied(&mut found, declaration)
        } else {
            BTreeMap::new()
        };
        if found.is_empty() {
            return Err(Error::NothingToAdapt {
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
        check_tied(&saved, &declaration.parameters, config.ties)?;
        if config.dora
            && let Some(table) = found.iter().find(|linear| linear.is_embedding)
        {
            return Err(Error::NoMagnitudes {
                module: table.name.clone(),
            });
        }
        if let Some(linear) = found
            .iter()
            .find(|linear| config.lora_bias && !linear.has_bias)
        {
            return Err(Error::NoBias {
                module: linear.name.clone(),
            });
        }
        let layer = |linear: &&AdaptableModule| {
            let (rank, scale) = config.rank_and_scale(&linear.name);
            // Its scale is its own, as PEFT has it.
            let rank = tied
                .get(&linear.name)
                .map_or(rank, |table| config.rank_and_scale(table).0);
            let layer = LoraLayer {
                rank,
                scale,
                dropout: config.dropout,
                has_magnitude: config.dora,
                has_bias: config.lora_bias,
                is_conv1d: linear.is_conv1d,
                is_embedding: linear.is_embedding,
            };
            (linear.name.clone(), layer)
        };
        Ok(Adapter {
            layers: found.iter().map(layer).collect(),
            tied: tied.clone(),
            targets: target_names(&found, &declaration.linears),
            token_table: token_table(&config, declaration)?,
            unmatched: config.unmatched(&declaration.linears),
            saved,
            config,
            task: match head {
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

    /// The table of tokens whose matrices this layer's are, the other way round: A is the transpose of the
    /// table's B, and B that of its A.
    pub fn tied_table(&self, module: &str) -> Option<&str> {
        self.tied.get(module).map(String::as_str)
    }

    /// Every adapted layer by its module's name.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (&str, &LoraLayer)> {
        self.layers
            .iter()
            .map(|(name, layer)| (name.as_str(), layer))
    }

    /// Modules that are trained whole.
    pub fn saved_modules(&self) -> impl ExactSizeIterator<Item = &str> {
        self.saved.iter().map(String::as_str)
    }

    /// Names among the targets that none of the model's linear layers has.
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    /// Of a table of tokens those whose rows are trained, in the order of these rows.
    pub fn tokens(&self, module: &str) -> &[usize] {
        if self.token_table.as_deref() == Some(module) {
            &self.config.tokens
        } else {
            &[]
        }
    }

    /// Whether a module is trained whole.
    pub fn saves(&self, module: &str) -> bool {
        let mut saved = self.saved.iter();
        saved.any(|above| {
            let rest = module.strip_prefix(above.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Whether a model with it switched off is the model that it was added to.
    pub fn off_is_the_base(&self) -> bool {
        // PEFT switches the rows of tokens off, too; but for what is trained whole there is no original.
        self.saved.is_empty() && self.config.bias == AdapterBias::None
    }

    /// Notes of a parameter of the model with it which set it belongs to and whether it is trained.
    pub(crate) fn mark(&self, parameter: &mut ParameterSpec) {
        let is_own = |name: &str| {
            [A, B, B_BIAS, EMBEDDING_A, EMBEDDING_B, MAGNITUDE]
                .iter()
                .any(|part| {
                    let module = name
                        .strip_suffix(part)
                        .and_then(|above| above.strip_suffix('.'));
                    module.is_some_and(|module| self.layers.contains_key(module))
                })
                || name
                    .strip_suffix(TOKENS)
                    .and_then(|above| above.strip_suffix('.'))
                    .is_some_and(|table| !self.tokens(table).is_empty())
        };
        let is_saved = |name: &str| {
            name.rsplit_once('.')
                .is_some_and(|(module, _)| self.saves(module))
        };
        let name = parameter.name.as_str();
        parameter.trained = is_own(name) || is_saved(name) || self.is_trained_bias(name);
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
        let is_conv1d = self.layers.values().any(|layer| layer.is_conv1d);
        self.config.to_json(&self.targets, is_conv1d, self.task)
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

/// The table of tokens, if single tokens are trained.
fn token_table(config: &LoraConfig, declaration: &Declaration) -> Result<Option<String>> {
    let Some(most) = config.tokens.iter().max() else {
        return Ok(None);
    };
    let mut layers = declaration.linears.iter();
    let table = layers.find(|layer| layer.is_embedding);
    let matrix = table.map(|table| format!("{}.weight", table.name));
    let mut parameters = declaration.parameters.iter();
    let matrix = parameters.find(|parameter| Some(&parameter.name) == matrix.as_ref());
    let vocabulary = matrix.map_or(0, |matrix| matrix.dims[0]);
    if *most >= vocabulary || table.is_none() {
        return Err(Error::NoToken {
            token: *most,
            vocabulary,
        });
    }
    Ok(table.map(|table| table.name.clone()))
}

/// Adds to the layers that are adapted those whose matrices are tied to one of them. Gives of each that is no
/// table of tokens the table.
fn with_tied<'d>(
    found: &mut Vec<&'d AdaptableModule>,
    declaration: &'d Declaration,
) -> BTreeMap<String, String> {
    let mut tied = BTreeMap::new();
    for parameter in &declaration.parameters {
        let has = |module: &AdaptableModule| {
            let mut names = parameter.names();
            names.any(|name| name.strip_suffix(".weight") == Some(module.name.as_str()))
        };
        let modules = declaration.linears.iter().filter(|module| has(module));
        let modules: Vec<&AdaptableModule> = modules.collect();
        let is_found = |module: &AdaptableModule| found.iter().any(|it| it.name == module.name);
        let Some(table) = modules.iter().find(|module| module.is_embedding) else {
            continue;
        };
        if !modules.iter().any(|module| is_found(module)) {
            continue;
        }
        let new = modules.iter().filter(|module| !is_found(module));
        let new: Vec<&AdaptableModule> = new.copied().collect();
        found.extend(new);
        let others = modules.iter().filter(|module| !module.is_embedding);
        tied.extend(others.map(|module| (module.name.clone(), table.name.clone())));
    }
    tied
}

/// A matrix that is tied to another module's is saved by itself only where the other module has one of its
/// own: PEFT trains a copy, and the other module keeps the original, unless `ties` asks for one copy of both.
fn check_tied(saved: &BTreeSet<String>, parameters: &[ParameterSpec], ties: bool) -> Result<()> {
    let module = |name: &str| {
        name.rsplit_once('.')
            .map_or(name, |(module, _)| module)
            .to_string()
    };
    let is_in = |name: &str| {
        let module = module(name);
        saved
            .iter()
            .any(|above| module == *above || module.starts_with(&format!("{above}.")))
    };
    for parameter in parameters {
        let mut others = parameter.aliases.iter();
        let is_apart = is_in(&parameter.name) && !others.clone().all(|alias| is_in(alias));
        if is_apart || ties && others.any(|alias| is_in(alias)) {
            return Err(Error::TiedToSave {
                module: module(&parameter.name),
                other: module(&parameter.aliases[0]),
            });
        }
    }
    Ok(())
}

/// The last parts of modules' names, each once, in the model's order.
fn last_parts(linears: &[AdaptableModule]) -> Vec<String> {
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
fn target_names(found: &[&AdaptableModule], linears: &[AdaptableModule]) -> Vec<String> {
    let is_found = |linear: &AdaptableModule| found.iter().any(|target| target.name == linear.name);
    let name = |target: &&AdaptableModule| {
        let last = last_part(&target.name);
        let mut alike = linears
            .iter()
            .filter(|linear| last_part(&linear.name) == last);
        let is_enough = alike.all(is_found);
        if is_enough {
            last
        } else {
            target.name.as_str()
        }
        .to_string()
    };
    let names: BTreeSet<String> = found.iter().map(name).collect();
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of the two that are tied is enough, and the head has no matrices of its own.
    #[test]
    fn a_tied_head_and_its_table_have_one_pair_of_matrices() {
        for target in ["wte", "lm_head"] {
            let config = crate::preset("gpt2").unwrap();
            let base = crate::build(config, HeadKind::CausalLm).unwrap();
            let config = LoraConfig {
                targets: Modules::Names(vec![target.into()]),
                ties: true,
                ..LoraConfig::default()
            };
            let model = crate::adapt(base, config).unwrap();
            let trained = model.parameters().into_iter().filter(|p| p.trained);
            let names: Vec<String> = trained.map(|parameter| parameter.name).collect();
            let expected = [EMBEDDING_A, EMBEDDING_B].map(|part| format!("transformer.wte.{part}"));
            assert_eq!(names, expected, "{target}");
            let adapter = model.adapter().unwrap();
            assert_eq!(adapter.tied_table("lm_head"), Some("transformer.wte"));
            assert_eq!(adapter.config_file()["ensure_weight_tying"], true);
        }
    }
}
