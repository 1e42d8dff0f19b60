//! The heads that a model can have.
//!
//! Letters: B batch, T tokens.

use crate::config::Config;
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// The head that a model is built with: what it is trained for. transformers' classes `XForCausalLM`
/// (or `XLMHeadModel`), `XForMaskedLM`, `XForSequenceClassification`, `XForTokenClassification`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// The logits at t predict token t + 1. Labels `s32[B, T]`.
    CausalLm,
    /// The logits at t predict the token that was at t. Labels `s32[B, T]`.
    MaskedLm,
    /// One row of logits for each sequence. Labels `s32[B]`; of a regression `f32[B]`.
    SequenceClassification {
        /// Logits of a row. With one, that is a number to be estimated: a regression, as
        /// transformers has it.
        labels: usize,
    },
    /// A row of logits for each token. Labels `s32[B, T]`.
    TokenClassification {
        /// Logits of a row.
        labels: usize,
    },
}

impl HeadKind {
    /// Every kind, for messages; classifiers with two labels.
    pub(crate) const ALL: [HeadKind; 4] = [
        HeadKind::CausalLm,
        HeadKind::MaskedLm,
        HeadKind::SequenceClassification { labels: 2 },
        HeadKind::TokenClassification { labels: 2 },
    ];

    /// Estimates a number for each sequence.
    pub const REGRESSION: HeadKind = HeadKind::SequenceClassification { labels: 1 };

    /// Whether its logits are over the vocabulary.
    pub fn is_language_model(self) -> bool {
        matches!(self, HeadKind::CausalLm | HeadKind::MaskedLm)
    }

    /// The `problem_type` that transformers knows it by; only sequence classifiers have one.
    pub fn problem_type(self) -> Option<&'static str> {
        match self {
            HeadKind::REGRESSION => Some("regression"),
            HeadKind::SequenceClassification { .. } => Some("single_label_classification"),
            HeadKind::CausalLm | HeadKind::MaskedLm | HeadKind::TokenClassification { .. } => None,
        }
    }
}

impl std::fmt::Display for HeadKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HeadKind::CausalLm => "causal language modelling",
            HeadKind::MaskedLm => "masked language modelling",
            HeadKind::SequenceClassification { labels: 1 } => "sequence regression",
            HeadKind::SequenceClassification { .. } => "sequence classification",
            HeadKind::TokenClassification { .. } => "token classification",
        })
    }
}

/// The number of labels that a configuration says, 2 if it does not, as transformers has it.
pub(crate) fn saved_labels(config: &Config) -> Result<usize> {
    match config.get("id2label").and_then(Value::as_object) {
        Some(map) => Ok(map.len()),
        None => config.size_or("num_labels", 2),
    }
}

/// Writes the head into the configuration that will be saved: the class and, for a new classifier,
/// its labels' names.
pub(crate) fn write_head(config: &mut Config, class: &str, head: HeadKind) -> Result<()> {
    config.set("architectures", vec![class]);
    let (HeadKind::SequenceClassification { labels } | HeadKind::TokenClassification { labels }) =
        head
    else {
        return Ok(());
    };
    if labels == 0 {
        return Err(Error::NoLabels);
    }
    if let Some(built) = head.problem_type() {
        let other = config.text_or("problem_type", built)?;
        if other != built {
            let reason = format!(
                "{other} with {labels} labels is not supported; one label per sequence and a single number are"
            );
            return Err(config.unsupported("problem_type", reason));
        }
        if head == HeadKind::REGRESSION {
            // transformers would find it out in its first forward pass, and saves what it found.
            config.set("problem_type", built);
        }
    }
    if config.get("id2label").is_none() || saved_labels(config)? != labels {
        let name = |i: usize| format!("LABEL_{i}");
        let id2label: Map<String, Value> = (0..labels)
            .map(|i| (i.to_string(), name(i).into()))
            .collect();
        let label2id: Map<String, Value> = (0..labels).map(|i| (name(i), i.into())).collect();
        config.set("id2label", id2label);
        config.set("label2id", label2id);
    }
    Ok(())
}
