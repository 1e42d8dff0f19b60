//! What a classifier's labels are: names in the order of their ids or, of a regression, any number.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::label::Label;
use super::whitespace;

/// Label names; the place of a name is its id. At least one name, none twice.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelMap {
    names: Vec<String>,
    /// Rows may give a label by its number.
    numbered: bool,
    /// Labels are numbers to be estimated; the one name is that of the model's output.
    regression: bool,
}

impl LabelMap {
    /// Those of a regression.
    pub fn numbers() -> LabelMap {
        // The name that transformers gives an output that nobody named.
        LabelMap {
            names: vec!["LABEL_0".to_string()],
            numbered: false,
            regression: true,
        }
    }

    /// Whether labels are numbers to be estimated, not classes.
    pub fn are_numbers(&self) -> bool {
        self.regression
    }

    /// What tells these labels from others, for keys of sets that are kept.
    pub fn key(&self) -> Value {
        if self.regression {
            "numbers".into()
        } else {
            self.names.clone().into()
        }
    }

    /// The label that a row calls by this name; with `by_number`, a class may also be given by its
    /// number.
    pub fn label(&self, name: &str, by_number: bool) -> Option<Label> {
        if self.regression {
            return Label::number(whitespace::strip(name).parse().ok()?);
        }
        let id = if by_number {
            self.id_or_number(name)
        } else {
            self.id(name)
        };
        id.map(|id| Label::class(id as u32))
    }

    /// Names in the order of their ids.
    pub fn new(names: Vec<String>) -> Result<LabelMap> {
        let mut seen = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(Error::Labels {
                reason: format!("{name:?} is in the list twice"),
            });
        }
        if names.is_empty() {
            Err(Error::Labels {
                reason: "there is no label".to_string(),
            })
        } else {
            Ok(LabelMap {
                names,
                numbered: false,
                regression: false,
            })
        }
    }

    /// Labels as they occur in a data set: each once, sorted as run_glue does (whole numbers by
    /// value, anything else by character).
    pub fn of_data<'a>(labels: impl IntoIterator<Item = &'a str>) -> Result<LabelMap> {
        let distinct: BTreeSet<&str> = labels.into_iter().collect();
        let numbers: Option<BTreeSet<(i64, &str)>> = distinct
            .iter()
            .map(|label| label.parse().ok().map(|number| (number, *label)))
            .collect();
        let names = match numbers {
            Some(numbers) => numbers
                .into_iter()
                .map(|(_, label)| label.to_string())
                .collect(),
            None => distinct.into_iter().map(str::to_string).collect(),
        };
        LabelMap::new(names)
    }

    /// Labels that a file declares: its rows hold their numbers.
    pub fn declared(names: Vec<String>) -> Result<LabelMap> {
        Ok(LabelMap {
            numbered: true,
            ..LabelMap::new(names)?
        })
    }

    /// `id2label` (or, without it, `label2id`) of a model's config.json; `None` where it has
    /// neither. A model with one output is a regression, as in transformers.
    pub fn from_config(config: &Map<String, Value>) -> Result<Option<LabelMap>> {
        let pairs: Vec<(Option<usize>, Option<String>)> =
            if let Some(map) = config.get("id2label").and_then(Value::as_object) {
                map.iter()
                    .map(|(id, name)| (id.parse().ok(), label_name(name)))
                    .collect()
            } else if let Some(map) = config.get("label2id").and_then(Value::as_object) {
                map.iter()
                    .map(|(name, id)| (id.as_u64().map(|id| id as usize), Some(name.clone())))
                    .collect()
            } else {
                return Ok(None);
            };
        let mut names = vec![None; pairs.len()];
        for (id, name) in pairs {
            match id.and_then(|id| names.get_mut(id)) {
                Some(place @ None) if name.is_some() => *place = name,
                _ => {
                    let reason = "id2label of the model's config.json does not give ids 0, 1, 2, ... one name each".to_string();
                    return Err(Error::Labels { reason });
                }
            }
        }
        let map = LabelMap::new(names.into_iter().flatten().collect())?;
        Ok(Some(LabelMap {
            regression: map.len() == 1,
            ..map
        }))
    }

    /// The names of a classifier whose config.json has none, as transformers' own default: it writes
    /// names only where they are others.
    pub fn of_nobody(config: &Map<String, Value>) -> LabelMap {
        let count = config.get("num_labels").and_then(Value::as_u64);
        let count = count
            .filter(|count| (1..=100_000).contains(count))
            .unwrap_or(2);
        LabelMap {
            names: (0..count).map(|id| format!("LABEL_{id}")).collect(),
            numbered: false,
            regression: count == 1,
        }
    }

    /// Whether these are the names that transformers gives where nobody named anything: `LABEL_0`,
    /// `LABEL_1` and so on.
    pub fn is_placeholder(&self) -> bool {
        self.names
            .iter()
            .enumerate()
            .all(|(id, name)| *name == format!("LABEL_{id}"))
    }

    /// The id of a label. Names that a file declares and placeholders also go by their number.
    pub fn id(&self, label: &str) -> Option<usize> {
        let known = self.names.iter().position(|name| name == label);
        let known = known.or_else(|| self.id_in_any_case(label));
        let numbered = self.numbered || self.is_placeholder();
        known.or_else(|| {
            label
                .parse()
                .ok()
                .filter(|id| numbered && *id < self.names.len())
        })
    }

    /// The one name that differs in capitals alone: run_glue compares a model's names with the data's
    /// in lower case.
    fn id_in_any_case(&self, label: &str) -> Option<usize> {
        let label = label.to_lowercase();
        let mut alike = (0..self.names.len()).filter(|id| self.names[*id].to_lowercase() == label);
        let first = alike.next()?;
        alike.next().is_none().then_some(first)
    }

    /// The id of a label that may also be given by its number, as data sets do whose labels a
    /// model's config names. Not where numbers are names.
    pub fn id_or_number(&self, label: &str) -> Option<usize> {
        let numbers = self.names.iter().any(|name| name.parse::<i64>().is_ok());
        self.id(label).or_else(|| {
            label
                .parse()
                .ok()
                .filter(|id| !numbers && *id < self.names.len())
        })
    }

    pub fn name(&self, id: usize) -> Option<&str> {
        self.names.get(id).map(String::as_str)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// For config.json.
    pub fn id2label(&self) -> Map<String, Value> {
        self.names
            .iter()
            .enumerate()
            .map(|(id, name)| (id.to_string(), name.as_str().into()))
            .collect()
    }

    /// For config.json.
    pub fn label2id(&self) -> Map<String, Value> {
        self.names
            .iter()
            .enumerate()
            .map(|(id, name)| (name.clone(), id.into()))
            .collect()
    }
}

/// A name as config.json has it: run_glue saves the labels of a table of numbers as numbers.
fn label_name(name: &Value) -> Option<String> {
    match name {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) if number.is_i64() => Some(number.to_string()),
        _ => None,
    }
}

/// As in messages.
impl std::fmt::Display for LabelMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&if self.regression {
            "numbers".to_string()
        } else {
            self.names.join(", ")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_classifier_without_names_has_the_defaults_and_case_does_not_count() {
        let of = |config: Value| LabelMap::of_nobody(config.as_object().unwrap());
        assert_eq!(of(json!({})).names(), ["LABEL_0", "LABEL_1"]);
        assert_eq!(of(json!({"num_labels": 3})).len(), 3);
        assert!(of(json!({"num_labels": 1})).are_numbers());
        let named = LabelMap::new(vec!["NEGATIVE".into(), "Positive".into()]).unwrap();
        assert_eq!(
            (named.id("negative"), named.id("POSITIVE")),
            (Some(0), Some(1))
        );
        let both = LabelMap::new(vec!["a".into(), "A".into(), "b".into()]).unwrap();
        assert_eq!((both.id("A"), both.id("B")), (Some(1), Some(2)));
        let alike = LabelMap::new(vec!["ab".into(), "AB".into()]).unwrap();
        assert_eq!(alike.id("Ab"), None);
    }

    fn config(value: Value) -> Result<Option<LabelMap>> {
        LabelMap::from_config(value.as_object().unwrap())
    }

    #[test]
    fn data_labels_are_sorted_as_run_glue_does() {
        assert_eq!(
            LabelMap::of_data(["b", "a", "b", "C"]).unwrap().names(),
            ["C", "a", "b"]
        );
        assert_eq!(
            LabelMap::of_data(["10", "9", "-1", "9"]).unwrap().names(),
            ["-1", "9", "10"]
        );
        assert_eq!(
            LabelMap::of_data(["10", "9", "x"]).unwrap().names(),
            ["10", "9", "x"]
        );
        assert!(
            LabelMap::of_data([])
                .unwrap_err()
                .to_string()
                .contains("no label")
        );
    }

    #[test]
    fn a_config_gives_back_what_was_saved() {
        let map = LabelMap::new(vec!["no".into(), "yes".into()]).unwrap();
        assert_eq!(
            config(json!({"id2label": map.id2label()})).unwrap(),
            Some(map.clone())
        );
        assert_eq!(
            config(json!({"label2id": map.label2id()})).unwrap(),
            Some(map.clone())
        );
        assert_eq!(
            config(json!({"label2id": {"yes": 1, "no": 0}})).unwrap(),
            Some(map.clone())
        );
        assert_eq!(
            (map.id("yes"), map.id("1"), map.name(0), map.name(2)),
            (Some(1), None, Some("no"), None)
        );
        let numbers = config(json!({"id2label": {"0": 0, "1": 1}})).unwrap();
        assert_eq!(numbers.unwrap().names(), ["0", "1"]);
        assert_eq!(config(json!({})).unwrap(), None);
        for bad in [
            json!({"0": "a", "2": "b"}),
            json!({"x": "a"}),
            json!({"0": 1.5}),
            json!({"0": null}),
            json!({"0": "a", "00": "b"}),
        ] {
            assert!(
                config(json!({"id2label": bad}))
                    .unwrap_err()
                    .to_string()
                    .contains("id2label")
            );
        }
        assert!(
            config(json!({"id2label": {"0": "a", "1": "a"}}))
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
    }

    #[test]
    fn placeholder_names_go_by_number() {
        let map = config(json!({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}))
            .unwrap()
            .unwrap();
        assert!(map.is_placeholder());
        let named = LabelMap::new(vec!["no".into(), "yes".into()]).unwrap();
        assert_eq!(
            (
                named.id_or_number("1"),
                named.id_or_number("2"),
                named.id_or_number("no")
            ),
            (Some(1), None, Some(0))
        );
        assert_eq!(
            LabelMap::new(vec!["5".into(), "x".into()])
                .unwrap()
                .id_or_number("1"),
            None
        );
        assert_eq!(
            (map.id("1"), map.id("LABEL_0"), map.id("2"), map.id("x")),
            (Some(1), Some(0), None, None)
        );
    }
}
