//! What GLUE says of a task besides its rows: how it is measured, and what its classes are called.

use super::metrics::argmax;
use xtrain_data::LabelMap;

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
    /// The task's classes where these are what its rows say: the names themselves, or their numbers. A
    /// row that says -1 has none, and is refused by that where it needs one.
    pub fn classes_of(self, found: &LabelMap) -> Option<LabelMap> {
        let map = self.map()?;
        let is_class = |name: &String| name == "-1" || map.id(name).is_some();
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

    /// The mean of the task's metrics where it has several, as run_glue adds it.
    pub fn combined(self, values: &[(String, f64)]) -> Option<(String, f64)> {
        if self.metrics.len() < 2 {
            return None;
        }
        let value = |name: &&str| values.iter().find(|(found, _)| found == name);
        let found: Option<Vec<f64>> = (self.metrics.iter())
            .map(|name| value(name).map(|(_, value)| *value))
            .collect();
        let found = found?;
        let mean = found.iter().sum::<f64>() / found.len() as f64;
        Some(("combined_score".to_string(), mean))
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

#[cfg(test)]
mod tests {
    use super::*;

    const MRPC: Glue = Glue {
        name: "mrpc",
        metrics: &["accuracy", "f1"],
        classes: &["not_equivalent", "equivalent"],
    };

    fn labels(names: &[&str]) -> LabelMap {
        LabelMap::new(names.iter().map(|name| name.to_string()).collect()).unwrap()
    }

    #[test]
    fn rows_may_say_names_or_numbers() {
        for found in [
            &["equivalent", "not_equivalent"][..],
            &["0", "1"],
            &["1"],
            &["-1", "0"],
        ] {
            let map = MRPC.classes_of(&labels(found)).unwrap();
            assert_eq!((map.id("equivalent"), map.id("0")), (Some(1), Some(0)));
            assert_eq!(map.id("-1"), None);
        }
        assert_eq!(MRPC.classes_of(&labels(&["no", "yes"])), None);
        assert_eq!(MRPC.classes_of(&labels(&["0", "1", "2"])), None);
        assert_eq!(MRPC.classes_of(&LabelMap::numbers()), None);
    }

    #[test]
    fn names_of_a_model_are_its_own_or_the_tasks() {
        let unnamed = MRPC.labels_of_model(labels(&["LABEL_0", "LABEL_1"]));
        assert_eq!(unnamed.names(), MRPC.classes);
        let turned = labels(&["EQUIVALENT", "NOT_EQUIVALENT"]);
        assert!(!MRPC.calls_otherwise(&turned));
        assert_eq!(MRPC.id_in(&turned, "equivalent"), None);
        assert_eq!(MRPC.name_of(&turned, 0), "equivalent");
        let other = MRPC.labels_of_model(labels(&["no", "yes"]));
        assert_eq!(MRPC.id_in(&other, "equivalent"), Some(1));
        assert_eq!(MRPC.name_of(&other, 1), "equivalent");
        let table = MRPC.predictions(&other, &[vec![1.0, 0.5], vec![0.0, 2.0]]);
        assert_eq!(
            table,
            "index\tprediction\n0\tnot_equivalent\n1\tequivalent\n"
        );
        let numbers = MRPC.predictions(&LabelMap::numbers(), &[vec![-2.0056]]);
        assert!(numbers.ends_with("0\t-2.006\n"));
    }
}
