//! The names that checkpoints use: a model's own and their variants.

use crate::parameter::{ParameterSpec, StoredName};

/// What the names in a family's checkpoints mean, besides those of a model's own parameters.
pub(crate) struct StoredNames {
    /// The prefix that a bare model's names lack (transformers' `base_model_prefix`).
    pub base: &'static str,
    /// Endings of buffers' names.
    pub buffers: &'static [&'static str],
    /// Beginnings, below the base or without one, of buffers and copies of tied tensors.
    pub not_needed: &'static [&'static str],
    /// Beginnings of heads, of whatever kind; those of the model's own head are among its
    /// parameters.
    pub heads: &'static [&'static str],
}

impl StoredNames {
    /// Of GPT-2 and its relatives, with the buffers that old checkpoints carry.
    pub const fn decoder(buffers: &'static [&'static str]) -> StoredNames {
        StoredNames {
            base: "transformer",
            buffers,
            not_needed: &[],
            heads: &["lm_head.", "score."],
        }
    }

    /// What a checkpoint's tensor is to a model with these parameters.
    pub fn find(&self, name: &str, parameters: &[ParameterSpec]) -> StoredName {
        // Checkpoints that came from TensorFlow call a LayerNorm's weight and bias gamma and beta.
        let modern = match (name.strip_suffix(".gamma"), name.strip_suffix(".beta")) {
            (Some(stem), _) => format!("{stem}.weight"),
            (_, Some(stem)) => format!("{stem}.bias"),
            _ => name.to_string(),
        };
        for candidate in [format!("{}.{modern}", self.base), modern] {
            if parameters.iter().any(|p| p.name == candidate) {
                return StoredName::Parameter(candidate);
            }
        }
        let below_base = name
            .strip_prefix(self.base)
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or(name);
        let begins = |starts: &[&str]| starts.iter().any(|start| below_base.starts_with(start));
        if self.buffers.iter().any(|end| name.ends_with(end)) || begins(self.not_needed) {
            StoredName::NotNeeded
        } else if begins(self.heads) {
            StoredName::OtherHead
        } else {
            StoredName::Unknown
        }
    }
}
