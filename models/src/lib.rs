//! Model definitions. They know no device, no precision and no sharding: they name their weights as
//! Hugging Face does and record tensor operations.
//!
//! Reading order: [`Model`] (what a trainer needs of a model), [`Weights`] (how a model reaches its
//! parameters), [`HeadKind`] (its head) and the losses, `gpt2`, then `bert`, whose
//! layers `roberta` and `albert` call.
//!
//! To add a model: a file in the order of `gpt2.rs` whose `FAMILY` goes into `FAMILIES`, and a
//! golden case.

mod activation;
pub mod albert;
pub mod bert;
mod config;
mod decoder;
mod encoder;
mod error;
pub mod gpt2;
pub mod gpt_neo;
pub mod gptj;
mod layers;
mod names;
pub mod roberta;
mod task;
mod tensor_parallel;
mod weights;

pub use activation::Activation;
pub use config::Config;
pub use error::{Error, Result};
pub use task::{
    HeadKind, IGNORED_LABEL, IGNORED_NUMBER, Labels, LossSum, Predictions, logits, loss,
};
pub use weights::{Init, ParameterSpec, StoredName, Weight, Weights};

use tensor_parallel::Cuts;
pub use tensor_parallel::tensor_cuts;
use xtrain_graphs::{Randomness, Tensor};

/// Token ids and what goes with them, on the device. Letters: B batch, T tokens.
#[derive(Clone)]
pub struct TokenBatch {
    /// `s32[B, T]`
    pub input_ids: Tensor,
    /// `pred[B, T]`, true = attended; `None` when every token is.
    pub attention_mask: Option<Tensor>,
    /// `s32[B, T]`, the segment of each token; `None` when all are in segment 0. Models without
    /// segments ignore it.
    pub token_type_ids: Option<Tensor>,
}

impl TokenBatch {
    /// `[B, T]`
    pub fn size(&self) -> [usize; 2] {
        [self.input_ids.dims()[0], self.input_ids.dims()[1]]
    }
}

/// What every model says of itself.
pub struct About {
    pub(crate) config: Config,
    pub(crate) task: HeadKind,
    pub(crate) vocab_size: usize,
    pub(crate) max_positions: usize,
    pub(crate) has_segments: bool,
    /// Of each attention.
    pub(crate) heads: usize,
}

/// A language model or classifier.
pub trait Model {
    fn about(&self) -> &About;

    /// The configuration as it will be saved: every key that was read, known to this model or not.
    fn config(&self) -> &Config {
        &self.about().config
    }

    /// What the model was built for.
    fn head_kind(&self) -> HeadKind {
        self.about().task
    }

    /// Number of token ids that the embedding has rows for.
    fn vocab_size(&self) -> usize {
        self.about().vocab_size
    }

    /// Longest sequence that the positions allow.
    fn max_positions(&self) -> usize {
        self.about().max_positions
    }

    /// Whether tokens belong to segments (`token_type_ids`) that its embeddings tell apart.
    fn has_segments(&self) -> bool {
        self.about().has_segments
    }

    /// Every trainable tensor, tied ones once, in the order in which Hugging Face registers them.
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// What a tensor of a checkpoint is to this model.
    fn stored_name(&self, name: &str) -> StoredName;

    /// Hidden states `[B * T, C]` that the head turns into logits.
    fn hidden(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor>;

    /// The hidden states `[B, C]`, one of each sequence, that a classifier's head reads.
    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor>;

    /// Logits of hidden states, row by row: `[N, V]` of a language model, `[B, labels]` of a
    /// classifier.
    fn head(&self, weights: &Weights, hidden: &Tensor, randomness: &Randomness) -> Result<Tensor>;

    /// Floating-point operations of one training step's matrix products: 6 per weight and token
    /// that takes part in one, and attention counted without its mask (the convention of nanoGPT
    /// and PaLM's appendix B).
    fn step_flops(&self, batch: usize, tokens: usize) -> f64;

    /// The part of [`Model::step_flops`] that is the head's, when it is computed for so many rows.
    /// A classifier's one row for each sequence counts for nothing.
    fn head_flops(&self, rows: usize) -> f64;
}

/// One architecture: what [`build`] and the presets need to know of it. Each model file has one as
/// `FAMILY`.
pub(crate) struct Family {
    /// The name in `config.json`.
    model_type: &'static str,
    classes: Classes,
    /// transformers' defaults.
    default_config: fn() -> Config,
    /// A released configuration, by its name without the organization.
    preset: fn(&str) -> Option<Config>,
    build: fn(Config, HeadKind) -> Result<Box<dyn Model>>,
    /// How tensor parallelism divides its layers.
    cuts: Cuts,
}

/// The classes that transformers has for the tasks that a family is built for here.
pub(crate) enum Classes {
    Encoder {
        masked_lm: &'static str,
        classification: &'static str,
        token_classification: &'static str,
    },
    Decoder {
        causal_lm: &'static str,
        classification: &'static str,
    },
}

impl Family {
    /// The task of a configuration that names no class.
    fn usual_task(&self) -> HeadKind {
        match self.classes {
            Classes::Encoder { .. } => HeadKind::MaskedLm,
            Classes::Decoder { .. } => HeadKind::CausalLm,
        }
    }

    fn class(&self, task: HeadKind) -> Option<&'static str> {
        match (&self.classes, task) {
            (
                Classes::Encoder {
                    masked_lm: class, ..
                },
                HeadKind::MaskedLm,
            )
            | (
                Classes::Decoder {
                    causal_lm: class, ..
                },
                HeadKind::CausalLm,
            )
            | (
                Classes::Encoder {
                    classification: class,
                    ..
                }
                | Classes::Decoder {
                    classification: class,
                    ..
                },
                HeadKind::SequenceClassification { .. },
            )
            | (
                Classes::Encoder {
                    token_classification: class,
                    ..
                },
                HeadKind::TokenClassification { .. },
            ) => Some(class),
            _ => None,
        }
    }
}

const FAMILIES: &[Family] = &[
    gpt2::FAMILY,
    gpt_neo::FAMILY,
    gptj::FAMILY,
    bert::FAMILY,
    roberta::FAMILY,
    albert::FAMILY,
];

/// The family that a configuration names.
fn family(config: &Config) -> Result<&'static Family> {
    let model_type = config.text("model_type")?;
    FAMILIES
        .iter()
        .find(|family| family.model_type == model_type)
        .ok_or_else(|| {
            let known: Vec<&str> = model_types().collect();
            config.unsupported(
                "model_type",
                format!(
                    "xtrain does not train this one; known: {}",
                    known.join(", ")
                ),
            )
        })
}

/// The architectures that [`build`] knows, by `model_type`.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type)
}

/// The model that a configuration describes, by its `model_type`, with the head that the task
/// wants.
pub fn build(mut config: Config, task: HeadKind) -> Result<Box<dyn Model>> {
    let family = family(&config)?;
    let Some(class) = family.class(task) else {
        let known: Vec<String> = HeadKind::ALL
            .into_iter()
            .filter(|head| family.class(*head).is_some())
            .map(|head| head.to_string())
            .collect();
        let reason = format!(
            "such a model is not for {task}, but for {}",
            known.join(", ")
        );
        return Err(config.unsupported("model_type", reason));
    };
    task::declare(&mut config, class, task)?;
    (family.build)(config, task)
}

/// The organizations that the presets' models are released by.
const ORGANIZATIONS: [&str; 5] = [
    "openai-community",
    "EleutherAI",
    "google-bert",
    "FacebookAI",
    "albert",
];

/// A preset's configuration (`gpt2`, `EleutherAI/gpt-neo-125m`, ...), or `None` if there is no such
/// preset.
pub fn preset(name: &str) -> Option<Config> {
    let name = match name.split_once('/') {
        Some((organization, name)) if ORGANIZATIONS.contains(&organization) => name,
        _ => name,
    };
    FAMILIES.iter().find_map(|family| (family.preset)(name))
}

/// The configuration that a new model of this type starts from, before overrides.
pub fn default_config(model_type: &str) -> Result<Config> {
    let mut named = Config::new(Default::default(), "the model type");
    named.set("model_type", model_type);
    Ok((family(&named)?.default_config)())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_consistent() {
        for model_type in model_types() {
            let config = default_config(model_type).unwrap();
            assert_eq!(config.text("model_type").unwrap(), model_type);
            let task = HeadKind::of(&config).unwrap();
            let model = build(config.clone(), task).unwrap();
            assert_eq!(
                (model.head_kind(), model.config().values()),
                (task, config.values()),
                "{model_type}: saved as it came"
            );
            let mut bare = config;
            bare.set("architectures", serde_json::Value::Null);
            assert_eq!(HeadKind::of(&bare).unwrap(), task, "{model_type}");
            let names: Vec<String> = model.parameters().into_iter().map(|p| p.name).collect();
            for name in &names {
                assert_eq!(
                    model.stored_name(name),
                    StoredName::Parameter(name.clone()),
                    "{model_type}"
                );
            }
            assert_eq!(
                names.iter().collect::<std::collections::HashSet<_>>().len(),
                names.len(),
                "{model_type}"
            );
        }
    }

    #[test]
    fn a_classifier_is_saved_with_its_labels() {
        for model_type in model_types() {
            let model = build(
                default_config(model_type).unwrap(),
                HeadKind::SequenceClassification { labels: 3 },
            )
            .unwrap();
            assert_eq!(
                HeadKind::of(model.config()).unwrap(),
                HeadKind::SequenceClassification { labels: 3 },
                "{model_type}"
            );
            assert_eq!(model.config().get("label2id").unwrap()["LABEL_2"], 2);
            let class = model.config().get("architectures").unwrap()[0]
                .as_str()
                .unwrap()
                .to_string();
            assert!(class.ends_with("ForSequenceClassification"), "{class}");
        }
        let mut config = default_config("bert").unwrap();
        config.set("id2label", serde_json::json!({"0": "good", "1": "bad"}));
        let model = build(config, HeadKind::SequenceClassification { labels: 2 }).unwrap();
        assert_eq!(model.config().get("id2label").unwrap()["1"], "bad");
    }

    #[test]
    fn one_label_is_a_regression() {
        for model_type in model_types() {
            let model = build(default_config(model_type).unwrap(), HeadKind::REGRESSION).unwrap();
            assert_eq!(
                HeadKind::of(model.config()).unwrap(),
                HeadKind::REGRESSION,
                "{model_type}"
            );
            assert_eq!(model.config().get("problem_type").unwrap(), "regression");
            assert_eq!(
                model
                    .config()
                    .get("id2label")
                    .unwrap()
                    .as_object()
                    .unwrap()
                    .len(),
                1
            );
        }
        let mut config = default_config("bert").unwrap();
        config.set("problem_type", "regression");
        let message = build(config, HeadKind::SequenceClassification { labels: 3 })
            .err()
            .unwrap()
            .to_string();
        assert!(
            message.contains("problem_type") && message.contains("regression with 3 labels"),
            "{message}"
        );
    }

    #[test]
    fn tasks_without_a_head_are_refused_by_name() {
        for (model_type, task, words) in [
            (
                "bert",
                HeadKind::CausalLm,
                [
                    "causal language modelling",
                    "for masked language modelling, sequence classification, token classification",
                ],
            ),
            (
                "gptj",
                HeadKind::MaskedLm,
                [
                    "masked language modelling",
                    "causal language modelling, sequence classification",
                ],
            ),
            (
                "gpt2",
                HeadKind::TokenClassification { labels: 5 },
                [
                    "not for token classification",
                    "causal language modelling, sequence classification",
                ],
            ),
            (
                "bert",
                HeadKind::SequenceClassification { labels: 0 },
                ["a label", "at least"],
            ),
        ] {
            let message = build(default_config(model_type).unwrap(), task)
                .err()
                .unwrap()
                .to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
        let message = default_config("t5").unwrap_err().to_string();
        assert!(
            message.contains("t5") && message.contains("gpt_neo"),
            "{message}"
        );
    }

    #[test]
    fn presets_go_by_their_names_on_the_hub_too() {
        assert_eq!(preset("EleutherAI/gpt-neo-125m"), preset("gpt-neo-125m"));
        assert!(
            preset("google-bert/bert-base-cased").is_some()
                && preset("nobody/bert-base-cased").is_none()
        );
    }
}
