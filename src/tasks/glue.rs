//! What GLUE says of a task besides its rows: how it is measured, and what its classes are called.

use super::metrics::argmax;
use crate::data::LabelMap;

/// One of GLUE's tasks, as `evaluate` and `datasets` have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glue {
    pub name: &'static str,
    /// Where they are several, `combined_score` is their mean.
    pub metrics: &'static [&'static str],
    /// In the order of their numbers; none: a regression.
    pub classes: &'static [&'static str],
}

impl Glue {
    /// The task's classes where these are what its rows say: the names themselves, or their numbers.
    pub fn classes_of(self, found: &LabelMap) -> Option<LabelMap> {
        let map = self.map()?;
        let is_class = |name: &String| map.id(name).is_some();
        (!found.are_numbers() && found.names().iter().all(is_class)).then_some(map)
    }

    /// The labels of a model that was saved with `saved`: the task's own where nobody named them.
    pub fn labels_of_model(self, saved: LabelMap) -> LabelMap {
        let unnamed = saved.len() == self.classes.len() && saved.is_placeholder();
        self.map().filter(|_| unnamed).unwrap_or(saved)
    }

    /// The class's number among the labels of a model that calls its classes otherwise, as run_glue
    /// has it.
    pub fn id_in(self, map: &LabelMap, name: &str) -> Option<usize> {
        let number = self.classes.iter().position(|class| *class == name)?;
        (self.calls_otherwise(map) && number < map.len()).then_some(number)
    }

    /// Whether a model's names are not those of the task, in whatever case.
    pub fn calls_otherwise(self, map: &LabelMap) -> bool {
        let mut names: Vec<String> = map.names().iter().map(|name| name.to_lowercase()).collect();
        names.sort();
        let mut classes = self.classes.to_vec();
        classes.sort_unstable();
        !map.are_numbers() && !classes.is_empty() && names != classes
    }

    fn map(self) -> Option<LabelMap> {
        let names = self.classes.iter().map(|name| name.to_string()).collect();
        LabelMap::declared(names).ok()
    }

    /// The table that run_glue writes of a test set: `index` and `prediction`, between tabs.
    pub fn predictions(self, map: &LabelMap, outputs: &[Vec<f32>]) -> String {
        let mut table = "index\tprediction\n".to_string();
        for (index, logits) in outputs.iter().enumerate() {
            let prediction = if map.are_numbers() {
                format!("{:.3}", logits[0])
            } else {
                self.name_of(map, argmax(logits)).to_string()
            };
            table.push_str(&format!("{index}\t{prediction}\n"));
        }
        table
    }

    /// The task's name of a class of the model.
    fn name_of(self, map: &LabelMap, id: usize) -> &str {
        let own = map.name(id).unwrap_or_default();
        let same = |class: &&&str| class.eq_ignore_ascii_case(own);
        let named = self.classes.iter().find(same);
        let by_number = || self.classes.get(id);
        named.or_else(by_number).copied().unwrap_or_default()
    }
}
