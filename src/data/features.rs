//! What `datasets` notes of columns beside their values: names of classes, text that is JSON, types to
//! which values are cast. The notes are the same in a parquet file's key `huggingface`, in
//! dataset_info.json and in a card's `dataset_info`, in several forms.

use serde_json::{Map, Value};

/// What a column's values are, as far as it changes how they are read.
#[derive(Clone, Debug, PartialEq)]
pub enum Feature {
    /// Numbers of classes with these names.
    Classes(Vec<String>),
    /// Text that `datasets` decodes: JSON.
    Json,
    /// Text, whatever the file makes of it.
    Text,
    /// Floating point numbers, also where the file has whole ones.
    Float,
    /// Of each element of a list.
    List(Box<Feature>),
    /// Of the fields of a structure.
    Fields(Vec<(String, Feature)>),
}

/// Features by column; columns without any have no entry.
pub type Features = Vec<(String, Feature)>;

/// Classes of a feature that only counts them, at most.
const MOST_COUNTED: u64 = 10_000;

/// Lists and structures in one another, at most.
const DEEPEST: usize = 32;

/// The features of a whole set: an object by column, or a card's list of entries with `name`.
pub fn features_of(value: &Value) -> Features {
    fields(value, 0)
}

/// Those of a parquet file's key `huggingface`, whose features are within `info` or stand alone.
pub fn features_of_file(notes: &str) -> Features {
    let Ok(notes) = serde_json::from_str::<Value>(notes) else {
        return Features::new();
    };
    [&notes["info"]["features"], &notes["features"]]
        .into_iter()
        .find(|features| !features.is_null())
        .map(features_of)
        .unwrap_or_default()
}

fn fields(value: &Value, depth: usize) -> Features {
    let named: Vec<(&str, &Value)> = match value {
        Value::Object(columns) => columns
            .iter()
            .map(|(name, feature)| (name.as_str(), feature))
            .collect(),
        Value::Array(columns) => columns
            .iter()
            .filter_map(|column| Some((column["name"].as_str()?, column)))
            .collect(),
        _ => Vec::new(),
    };
    named
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_string(), feature(value, depth)?)))
        .collect()
}

/// One column's feature: JSON of `datasets` (`_type`), a card's entry (`dtype`, `list`, `sequence`,
/// `struct`), a list of one, or an object of fields.
fn feature(value: &Value, depth: usize) -> Option<Feature> {
    if depth == DEEPEST {
        return None;
    }
    let list = |inside: &Value| Some(Feature::List(Box::new(feature(inside, depth + 1)?)));
    let structure = |value: &Value| {
        let fields = fields(value, depth + 1);
        (!fields.is_empty()).then_some(Feature::Fields(fields))
    };
    if let Value::Array(inside) = value {
        return list(inside.first()?);
    }
    let entry = value.as_object()?;
    match entry.get("_type").and_then(Value::as_str) {
        Some("ClassLabel") => return classes(entry),
        Some("Json") => return Some(Feature::Json),
        Some("Value") => return value_type(entry.get("dtype")?.as_str()?),
        // A list of structures is a structure of lists in the values of older versions, too.
        Some("Sequence" | "List" | "LargeList") => return list(entry.get("feature")?),
        Some(_) => return None,
        None => {}
    }
    if let Some(dtype) = entry.get("dtype") {
        return match dtype {
            Value::String(name) => value_type(name),
            Value::Object(dtype) => match dtype.get("class_label").and_then(Value::as_object) {
                Some(label) => classes(label),
                None => feature(&Value::Object(dtype.clone()), depth + 1),
            },
            _ => None,
        };
    }
    if let Some(inside) = entry.get("class_label").and_then(Value::as_object) {
        return classes(inside);
    }
    if let Some(inside) = entry.get("json") {
        return inside.is_null().then_some(Feature::Json);
    }
    for key in ["list", "large_list", "sequence"] {
        match entry.get(key) {
            // `list: string`, or an entry without a name.
            Some(inside @ Value::Object(_)) => return list(inside),
            Some(inside @ Value::Array(_)) => {
                return Some(Feature::List(Box::new(structure(inside)?)));
            }
            Some(Value::String(name)) => {
                return Some(Feature::List(Box::new(value_type(name)?)));
            }
            Some(_) => return None,
            None => {}
        }
    }
    if let Some(inside) = entry.get("struct") {
        return structure(inside);
    }
    structure(value)
}

/// The types of values to which others are cast.
fn value_type(dtype: &str) -> Option<Feature> {
    match dtype {
        "json" => Some(Feature::Json),
        "string" | "large_string" => Some(Feature::Text),
        "float16" | "float32" | "float64" => Some(Feature::Float),
        _ => None,
    }
}

/// Names of classes: a list, or a card's object by number; classes that are only counted are called
/// by their numbers.
fn classes(label: &Map<String, Value>) -> Option<Feature> {
    let names = match label.get("names") {
        Some(Value::Array(names)) => names.iter().map(class_name).collect::<Option<Vec<_>>>(),
        Some(Value::Object(names)) => {
            let mut numbered: Vec<(u64, String)> = names
                .iter()
                .map(|(number, name)| Some((number.parse().ok()?, class_name(name)?)))
                .collect::<Option<Vec<_>>>()?;
            numbered.sort();
            let is_whole = numbered.iter().enumerate().all(|(i, it)| it.0 == i as u64);
            is_whole.then(|| numbered.into_iter().map(|(_, name)| name).collect())
        }
        _ => {
            let count = label.get("num_classes").and_then(Value::as_u64)?;
            let counted = (1..=MOST_COUNTED).contains(&count);
            counted.then(|| (0..count).map(|class| class.to_string()).collect())
        }
    }?;
    Some(Feature::Classes(names))
}

/// YAML has `'0': no` as a truth value and `'1': 5` as a number, unless the name is quoted.
fn class_name(name: &Value) -> Option<String> {
    match name {
        Value::String(name) => Some(name.clone()),
        Value::Number(_) | Value::Bool(_) => Some(name.to_string()),
        _ => None,
    }
}

impl Feature {
    /// The names of a column's classes or, of a list, of its elements'.
    pub fn class_names(&self) -> Option<&[String]> {
        match self {
            Feature::Classes(names) => Some(names),
            Feature::List(inside) => inside.class_names(),
            Feature::Json | Feature::Text | Feature::Float | Feature::Fields(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn class_names_are_found_in_every_form_of_a_feature() {
        let class = json!({"names": ["a", "b"], "_type": "ClassLabel"});
        let of = |value: Value| feature(&value, 0)?.class_names().map(<[String]>::to_vec);
        let named = Some(vec!["a".to_string(), "b".to_string()]);
        for kind in ["Sequence", "List", "LargeList"] {
            assert_eq!(of(json!({"feature": class, "_type": kind})), named);
        }
        assert_eq!(of(json!([class])), named);
        assert_eq!(of(class.clone()), named);
        let counted = json!({"num_classes": 2, "names": null, "_type": "ClassLabel"});
        assert_eq!(of(counted), Some(vec!["0".to_string(), "1".to_string()]));
        assert_eq!(of(json!({"dtype": "int64", "_type": "Value"})), None);
        // A card's forms.
        let card = json!({"class_label": {"names": {"0": "a", "1": "b"}}});
        assert_eq!(of(json!({"name": "label", "dtype": card})), named);
        assert_eq!(of(json!({"name": "label", "sequence": card})), named);
        assert_eq!(of(json!({"name": "x", "list": {"dtype": card}})), named);
        let listed = json!({"dtype": {"class_label": {"names": ["a", "b"]}}});
        assert_eq!(of(listed), named);
        let gap = json!({"dtype": {"class_label": {"names": {"0": "a", "2": "b"}}}});
        assert_eq!(of(gap), None);
        assert_eq!(of(json!({"name": "x", "dtype": "int64"})), None);
        assert_eq!(feature(&json!({"dtype": "string"}), 0), Some(Feature::Text));
    }

    #[test]
    fn features_of_a_file_stand_within_info_or_alone() {
        for notes in [
            r#"{"info": {"features": {"y": {"names": ["a"], "_type": "ClassLabel"}}}}"#,
            r#"{"features": {"y": {"names": ["a"], "_type": "ClassLabel"}, "x": {"dtype": "string", "_type": "Value"}}}"#,
        ] {
            let found = features_of_file(notes);
            let y = ("y".to_string(), Feature::Classes(vec!["a".to_string()]));
            assert_eq!(found[0], y);
        }
        assert!(features_of_file("no JSON").is_empty());
    }
}
