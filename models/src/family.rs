//! What the list of families needs to know of each: its names, its released sizes, how to build it.

use crate::config::{AttributeMap, Config};
use crate::error::Result;
use crate::head::HeadKind;
use crate::model::Model;
use crate::names::StoredNames;
use serde_json::{Map, Value};

/// One architecture. Each model file has one as `FAMILY`.
pub(crate) struct Family {
    /// As its authors write it.
    pub name: &'static str,
    /// The name in `config.json`.
    pub model_type: &'static str,
    /// Who released its models: the first half of their names on the Hub.
    pub organization: &'static str,
    /// What the names of transformers' classes begin with.
    pub class_prefix: &'static str,
    pub kind: Kind,
    /// The linear layers that PEFT adapts where none are named, by the ends of their names; `None`: it
    /// has no choice of its own for the family.
    pub lora_targets: Option<&'static [&'static str]>,
    /// Whether vLLM adds adapters to such models (vLLM 0.11, its list of supported models).
    pub is_adapted_by_vllm: bool,
    /// What a new model starts from, mostly transformers' defaults: a `config.json`, in parts that each
    /// add what those before them lack.
    pub defaults: &'static [&'static str],
    /// Released sizes by their names without the organization, as changes to the default
    /// configuration.
    pub presets: fn() -> Vec<(&'static str, Value)>,
    /// What its configuration calls settings.
    pub names: AttributeMap,
    /// Makes a model that will be saved with a configuration, given that with the keys that it lacks
    /// filled in. What would change numbers and is not implemented is refused by name.
    pub build: fn(Config, Config, HeadKind) -> Result<Box<dyn Model>>,
    pub stored_names: StoredNames,
}

/// Which way a family looks at text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At all of it.
    Encoder,
    /// At what came before.
    Decoder {
        /// What the language model's class is called after the prefix.
        causal_lm: &'static str,
        /// What the sequence classifier's is called, if there is one.
        sequence: Option<&'static str>,
        /// What the token classifier's is called, if there is one.
        token: Option<&'static str>,
    },
}

impl Kind {
    /// A decoder with the usual classes.
    pub const DECODER: Kind = Kind::Decoder {
        causal_lm: "ForCausalLM",
        sequence: Some("ForSequenceClassification"),
        token: None,
    };
}

impl Family {
    /// The configuration of [`Family::defaults`].
    pub fn defaults(&self) -> Config {
        let mut values = Map::new();
        for part in self.defaults {
            let part: Map<String, Value> = serde_json::from_str(part)
                .expect("the program's own configurations are JSON objects");
            for (key, value) in part {
                values.entry(key).or_insert(value);
            }
        }
        Config::new(values, format!("{}'s default configuration", self.name))
    }

    /// The head of a configuration that names no class.
    pub fn usual_head(&self) -> HeadKind {
        match self.kind {
            Kind::Encoder => HeadKind::MaskedLm,
            Kind::Decoder { .. } => HeadKind::CausalLm,
        }
    }

    /// transformers' class with this head, `None` if xtrain does not support it.
    pub fn class(&self, head: HeadKind) -> Option<String> {
        let suffix = match (self.kind, head) {
            (Kind::Decoder { causal_lm, .. }, HeadKind::CausalLm) => Some(causal_lm),
            (Kind::Decoder { sequence, .. }, HeadKind::SequenceClassification { .. }) => sequence,
            (Kind::Decoder { token, .. }, HeadKind::TokenClassification { .. }) => token,
            (Kind::Encoder, HeadKind::MaskedLm) => Some("ForMaskedLM"),
            (Kind::Encoder, HeadKind::SequenceClassification { .. }) => {
                Some("ForSequenceClassification")
            }
            (Kind::Encoder, HeadKind::TokenClassification { .. }) => Some("ForTokenClassification"),
            (Kind::Encoder, HeadKind::CausalLm) | (Kind::Decoder { .. }, HeadKind::MaskedLm) => {
                None
            }
        }?;
        Some(format!("{}{suffix}", self.class_prefix))
    }

    /// The configuration of a preset, `None` if there is no such preset.
    pub fn preset(&self, name: &str) -> Option<Config> {
        let mut presets = (self.presets)().into_iter();
        let (_, changes) = presets.find(|(known, _)| *known == name)?;
        Some(self.defaults().preset(name, changes))
    }
}
