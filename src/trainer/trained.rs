//! Which of a model's parameters a run trains, chosen by patterns of their names.

use regex::Regex;
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use xtrain_checkpoint::hash;
use xtrain_models::{Model, ParameterSpec, freeze};

/// A regular expression that is looked for anywhere in a name.
#[derive(Clone, Debug)]
pub struct NamePattern(Regex);

impl NamePattern {
    fn all_of(flag: &'static str, texts: &[String]) -> Result<Vec<NamePattern>, TrainedError> {
        let compiled = |text: &String| {
            Regex::new(text).map(NamePattern).map_err(|error| {
                let message = error.to_string();
                let last = message.lines().last().unwrap_or_default();
                TrainedError::NoPattern {
                    flag,
                    text: text.clone(),
                    reason: last.trim_start_matches("error: ").to_string(),
                }
            })
        };
        texts.iter().map(compiled).collect()
    }

    fn is_of(&self, parameter: &ParameterSpec) -> bool {
        parameter.names().any(|name| self.0.is_match(name))
    }
}

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// What a run trains.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Trained {
    /// Every parameter.
    #[default]
    All,
    /// All but those that one of these is in the name of.
    Without(Vec<NamePattern>),
    /// Those alone that one of these is in the name of.
    Only(Vec<NamePattern>),
}

/// Why a choice is none of this model's.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum TrainedError {
    #[error("--{flag}: `{text}` is no regular expression: {reason}")]
    NoPattern {
        flag: &'static str,
        text: String,
        reason: String,
    },
    #[error("--{flag} {pattern}: no parameter of the model has such a name")]
    NoName {
        flag: &'static str,
        pattern: String,
        /// Names of parameters, the most similar first.
        nearest: Vec<String>,
    },
    #[error("{choice} leaves none of the model's {parameters} parameters to train")]
    Nothing { choice: String, parameters: usize },
    #[error(transparent)]
    Model(#[from] xtrain_models::Error),
}

impl TrainedError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            TrainedError::NoPattern { .. } => {
                r"a dot and a parenthesis are written `\.` and `\(`; there is no look-around".into()
            }
            TrainedError::NoName { nearest, .. } => {
                format!("the nearest names are {}", nearest.join(", "))
            }
            TrainedError::Nothing { .. } => {
                "freeze fewer, or evaluate the model as it is with --do_eval".into()
            }
            TrainedError::Model(_) => "report it: a defect of xtrain".into(),
        }
    }
}

/// As one would type it; [`Trained::All`] says that neither flag was given.
impl Display for Trained {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (Some(flag), patterns) = (self.flag(), self.patterns()) else {
            return f.write_str("neither --freeze nor --train_only");
        };
        write!(f, "--{flag}")?;
        patterns
            .iter()
            .try_for_each(|pattern| write!(f, " {}", pattern.0.as_str()))
    }
}

impl Trained {
    /// What the texts of `--freeze` choose, or else those of `--train_only`.
    ///
    /// # Errors
    /// If one is no regular expression.
    pub fn new(freeze: &[String], train_only: &[String]) -> Result<Trained, TrainedError> {
        Ok(match (freeze, train_only) {
            ([], []) => Trained::All,
            ([], only) => Trained::Only(NamePattern::all_of("train_only", only)?),
            (without, _) => Trained::Without(NamePattern::all_of("freeze", without)?),
        })
    }

    fn flag(&self) -> Option<&'static str> {
        match self {
            Trained::All => None,
            Trained::Without(_) => Some("freeze"),
            Trained::Only(_) => Some("train_only"),
        }
    }

    fn patterns(&self) -> &[NamePattern] {
        match self {
            Trained::All => &[],
            Trained::Without(patterns) | Trained::Only(patterns) => patterns,
        }
    }

    fn trains(&self, parameter: &ParameterSpec) -> bool {
        let is_named = self
            .patterns()
            .iter()
            .any(|pattern| pattern.is_of(parameter));
        match self {
            Trained::All => true,
            Trained::Without(_) => !is_named,
            Trained::Only(_) => is_named,
        }
    }

    /// Makes the choice in a model of which nothing has been chosen.
    ///
    /// # Errors
    /// If a pattern is in no name, or nothing is left to train.
    pub fn choose(&self, model: &dyn Model) -> Result<(), TrainedError> {
        let Some(flag) = self.flag() else {
            return Ok(());
        };
        let parameters = model.parameters();
        for pattern in self.patterns() {
            if !parameters.iter().any(|parameter| pattern.is_of(parameter)) {
                return Err(TrainedError::NoName {
                    flag,
                    pattern: pattern.0.to_string(),
                    nearest: nearest(pattern.0.as_str(), &parameters),
                });
            }
        }
        if !parameters.iter().any(|parameter| self.trains(parameter)) {
            return Err(TrainedError::Nothing {
                choice: self.to_string(),
                parameters: parameters.len(),
            });
        }
        Ok(freeze(model, |parameter| !self.trains(parameter))?)
    }
}

/// Tells two choices apart by what they freeze of a model, however they are written; `None` where
/// all is trained.
pub fn frozen_digest(model: &dyn Model) -> Option<String> {
    let parameters = model.parameters().into_iter();
    let frozen = parameters.filter(|parameter| !parameter.trained);
    let names: Vec<String> = frozen.map(|parameter| parameter.name).collect();
    let digest = hash::sha256(names.join("\n").as_bytes());
    (!names.is_empty()).then(|| digest[..16].to_string())
}

/// Names of parameters, the three most similar to a pattern first; of layers that differ in their
/// number alone one.
fn nearest(pattern: &str, parameters: &[ParameterSpec]) -> Vec<String> {
    // What is left is the text that the names would have.
    let text: Vec<char> = pattern
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
        .collect();
    let mut seen = BTreeSet::new();
    let mut names: Vec<(usize, &str)> = parameters
        .iter()
        .flat_map(ParameterSpec::names)
        .filter(|name| seen.insert(name.replace(|c: char| c.is_ascii_digit(), "")))
        .map(|name| (edits(&text, name), name))
        .collect();
    names.sort_by_key(|(edits, _)| *edits);
    let first = names.into_iter().take(3);
    first.map(|(_, name)| name.to_string()).collect()
}

/// The least edits that make a text a part of a name (Sellers 1980).
fn edits(text: &[char], name: &str) -> usize {
    let mut column: Vec<usize> = (0..=text.len()).collect();
    let mut least = text.len();
    for letter in name.chars() {
        let mut diagonal = 0;
        for (row, wanted) in text.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *wanted);
            diagonal = column[row + 1];
            column[row + 1] = replaced.min(diagonal + 1).min(column[row] + 1);
        }
        least = least.min(column[text.len()]);
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_models::{HeadKind, build, default_config};

    fn gpt2() -> Box<dyn Model> {
        build(default_config("gpt2").unwrap(), HeadKind::CausalLm).unwrap()
    }

    fn without(texts: &[&str]) -> Trained {
        let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
        Trained::new(&texts, &[]).unwrap()
    }

    fn trained(choice: &Trained) -> Vec<String> {
        let model = gpt2();
        choice.choose(&*model).unwrap();
        let parameters = model.parameters().into_iter();
        let trained = parameters.filter(|parameter| parameter.trained);
        trained.map(|parameter| parameter.name).collect()
    }

    #[test]
    fn patterns_are_looked_for_anywhere_in_a_name() {
        let only = [r"h\.1\..*c_fc", "^transformer.ln_f.bias$"].map(str::to_string);
        let only = Trained::new(&[], &only).unwrap();
        let names = [
            "transformer.h.1.mlp.c_fc.weight",
            "transformer.h.1.mlp.c_fc.bias",
            "transformer.ln_f.bias",
        ];
        assert_eq!(trained(&only), names);
        let without = without(&["transformer.h"]);
        assert_eq!(
            trained(&without),
            [
                "transformer.wte.weight",
                "transformer.wpe.weight",
                "transformer.ln_f.weight",
                "transformer.ln_f.bias"
            ]
        );
        assert_eq!(trained(&Trained::All).len(), 148);
    }

    #[test]
    fn a_tied_weight_is_frozen_by_either_name() {
        for name in ["wte", "lm_head"] {
            let names = trained(&without(&[name]));
            assert!(!names.contains(&"transformer.wte.weight".to_string()));
            assert_eq!(names.len(), 147);
        }
    }

    #[test]
    fn a_pattern_without_a_name_is_refused_with_the_nearest() {
        let choice = without(&["ln_f", r"h\.\d+\.attn\.c_atn"]);
        let error = choice.choose(&*gpt2()).unwrap_err();
        assert_eq!(
            error.to_string(),
            r"--freeze h\.\d+\.attn\.c_atn: no parameter of the model has such a name"
        );
        let hint = error.hint();
        assert!(
            hint.contains("transformer.h.0.attn.c_attn.weight"),
            "{hint}"
        );
        assert!(!hint.contains("h.1.") && !hint.contains("ln_f"), "{hint}");
    }

    #[test]
    fn nothing_to_train_is_refused() {
        let error = without(&["e", "lm_head", "."]);
        let error = error.choose(&*gpt2()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--freeze e lm_head . leaves none of the model's 148 parameters to train"
        );
    }

    #[test]
    fn choices_are_told_apart_by_what_they_freeze() {
        let digest = |choice: &Trained| {
            let model = gpt2();
            choice.choose(&*model).unwrap();
            frozen_digest(&*model)
        };
        assert_eq!(digest(&Trained::All), None);
        let tied = ["wte", "lm_head"].map(|name| digest(&without(&[name])));
        assert!(tied[0].is_some() && tied[0] == tied[1]);
        assert_ne!(digest(&without(&["wpe"])), tied[0]);
    }

    #[test]
    fn what_is_no_expression_is_refused_in_a_line() {
        for text in ["h.(0", "(?!wte)", "*"] {
            let error = Trained::new(&["wte".into(), text.into()], &[]).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with("--freeze: `") && message.contains(text));
            assert!(
                !message.contains('\n') && !message.ends_with(": "),
                "{message}"
            );
        }
    }
}
