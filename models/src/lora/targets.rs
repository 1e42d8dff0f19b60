//! Which of a model's modules a LoRA configuration means, as PEFT finds them.

use super::config::{LoraConfig, Modules};
use crate::declaration::AdaptableModule;
use crate::head::HeadKind;
use regex::Regex;

/// The modules that PEFT trains whole in every classifier.
const CLASSIFIER_HEADS: [&str; 2] = ["classifier", "score"];

/// Whether a name is one of these, or ends in a dot and one of them.
fn is_named<S: AsRef<str>>(module: &str, names: &[S]) -> bool {
    names.iter().any(|name| {
        let above = module.strip_suffix(name.as_ref());
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    })
}

/// A pattern that has to match a whole name; [`LoraConfig::check`] has refused what is none.
fn whole(pattern: &str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("patterns are checked before they are used")
}

/// A name, and those of the modules that it is in.
fn with_above(module: &str) -> impl Iterator<Item = &str> {
    let ends = module.match_indices('.').map(|(at, _)| at);
    ends.chain([module.len()]).map(|end| &module[..end])
}

impl LoraConfig {
    /// The same with the head among the modules to save where PEFT's classes for a task put it there.
    pub fn for_head(mut self, head: HeadKind) -> LoraConfig {
        match head {
            HeadKind::SequenceClassification { .. } | HeadKind::TokenClassification { .. } => {
                for name in CLASSIFIER_HEADS {
                    self.save_whole(name);
                }
            }
            HeadKind::CausalLm | HeadKind::MaskedLm => {}
        }
        self
    }

    /// Adds a module to save.
    pub fn save_whole(&mut self, module: &str) {
        if !self.saved.iter().any(|saved| saved == module) {
            self.saved.push(module.to_string());
        }
    }

    /// The module to save that a module is, or is in: PEFT saves those whose names end so.
    pub fn saved_above<'m>(&self, module: &'m str) -> Option<&'m str> {
        with_above(module)
            .find(|above| self.saved.iter().any(|name| above.ends_with(name.as_str())))
    }

    /// Of a model's layers those that are adapted.
    pub(super) fn targets_of<'l>(
        &self,
        linears: &'l [AdaptableModule],
        usual: Option<&[&str]>,
    ) -> Vec<&'l AdaptableModule> {
        let excluded = |module: &str| match &self.exclude {
            Some(Modules::Names(names)) => is_named(module, names),
            Some(Modules::Pattern(pattern)) => whole(pattern).is_match(module),
            Some(Modules::Usual | Modules::AllLinear) | None => false,
        };
        let all = || {
            let linears = linears.iter();
            linears
                .filter(|linear| !linear.is_output && !linear.is_embedding)
                .collect()
        };
        let named = |names: &[&str]| {
            let is_meant = |module: &str| {
                names.contains(&module) || is_named(module, names) && self.is_in_layers(module)
            };
            let linears = linears.iter();
            linears.filter(|linear| is_meant(&linear.name)).collect()
        };
        let mut found: Vec<&AdaptableModule> = match &self.targets {
            Modules::AllLinear => all(),
            Modules::Usual => usual.map_or_else(all, named),
            Modules::Names(names) => named(&names.iter().map(String::as_str).collect::<Vec<_>>()),
            Modules::Pattern(pattern) => {
                let pattern = whole(pattern);
                let linears = linears.iter();
                linears
                    .filter(|linear| pattern.is_match(&linear.name))
                    .collect()
            }
        };
        found.retain(|linear| !excluded(&linear.name) && self.saved_above(&linear.name).is_none());
        found
    }

    /// The names among the targets that no module answers to.
    pub(super) fn unmatched(&self, linears: &[AdaptableModule]) -> Vec<String> {
        let Modules::Names(names) = &self.targets else {
            return Vec::new();
        };
        let is_there = |name: &&String| linears.iter().any(|it| is_named(&it.name, &[name]));
        let missing = names.iter().filter(|name| !is_there(name));
        missing.cloned().collect()
    }

    /// Whether a module is in one of the layers to transform: by the first number in its name that stands
    /// behind the name of a list of layers.
    fn is_in_layers(&self, module: &str) -> bool {
        if self.layers.is_empty() {
            return true;
        }
        let parts: Vec<&str> = module.split('.').collect();
        let is_list = |at: usize| match &self.layers_pattern[..] {
            [] => at > 0,
            patterns => {
                let mut patterns = patterns.iter();
                patterns.any(|pattern| whole(pattern).is_match(parts[at]))
            }
        };
        let number = (1..parts.len().saturating_sub(1)).find_map(|at| {
            let number = parts[at].parse::<usize>().ok()?;
            is_list(at - 1).then_some(number)
        });
        number.is_some_and(|number| self.layers.contains(&number))
    }

    /// Rank and scale of a module's product.
    pub(super) fn rank_and_scale(&self, module: &str) -> (usize, f64) {
        let matches = |pattern: &str| whole(&format!(r"(?:.*\.)?(?:{pattern})")).is_match(module);
        let rank = self
            .rank_pattern
            .iter()
            .find(|(pattern, _)| matches(pattern));
        let alpha = self
            .alpha_pattern
            .iter()
            .find(|(pattern, _)| matches(pattern));
        let rank = rank.map_or(self.rank, |(_, rank)| *rank);
        let alpha = alpha.map_or(self.alpha, |(_, alpha)| *alpha);
        let divisor = if self.rank_stabilized {
            (rank as f64).sqrt()
        } else {
            rank as f64
        };
        (rank, alpha / divisor)
    }
}
