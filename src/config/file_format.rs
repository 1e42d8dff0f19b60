//! What a settings file says, its format forgotten: TOML, YAML or JSON, and the JSON in strings that SageMaker's
//! hyperparameters are.

use toml::de::{DeTable, DeValue};

/// One entry of a file, its format forgotten.
pub struct Entry {
    pub key: String,
    pub line: usize,
    pub value: Scalar,
}

/// A value as a file can write it.
pub enum Scalar {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Scalar>),
    /// What the file's format calls a table, with its values.
    Table(&'static str, serde_json::Value),
    /// A date: nothing that a setting can be.
    Other(&'static str),
}

impl Scalar {
    pub fn describe(&self) -> String {
        match self {
            Scalar::Null => "null".into(),
            Scalar::Bool(answer) => format!("`{answer}`"),
            Scalar::Number(digits) => format!("`{digits}`"),
            Scalar::Text(text) => format!("`{text}`"),
            Scalar::List(_) => "a list".into(),
            Scalar::Table(name, _) => format!("{name} (all keys stand at the top level)"),
            Scalar::Other(what) => (*what).into(),
        }
    }
}

/// Line (from 1) of a byte offset.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|b| *b == b'\n').count()
}

/// YAML as its values in JSON; a setting's line is the first that begins with its key.
pub fn read_yaml(text: &str) -> Result<Vec<Entry>, (usize, String)> {
    let value: serde_json::Value = serde_saphyr::from_str(text).map_err(|error| {
        let message = error.to_string();
        let message = message.lines().next().unwrap_or("no YAML");
        (1, format!("not valid YAML: {message}"))
    })?;
    let serde_json::Value::Object(settings) = value else {
        return Err((1, "not keys with values".into()));
    };
    let begins = |line: &str, key: &str| {
        let rest = line.trim_start_matches(['"', '\'']).strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start_matches(['"', '\'']).starts_with(':'))
    };
    let entry = |(key, value): (String, serde_json::Value)| Entry {
        line: 1 + text
            .lines()
            .position(|line| begins(line, &key))
            .unwrap_or(0),
        value: from_json(&value),
        key,
    };
    Ok(settings.into_iter().map(entry).collect())
}

pub fn read_toml(text: &str) -> Result<Vec<Entry>, (usize, String)> {
    let table = DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(1, |span| line_at(text, span.start));
        (line, format!("not valid TOML: {}", e.message()))
    })?;
    let mut entries: Vec<Entry> = Vec::new();
    for (key, value) in table.get_ref() {
        entries.push(Entry {
            key: key.get_ref().to_string(),
            line: line_at(text, key.span().start),
            value: from_toml(value.get_ref()),
        });
    }
    // In the order of the file, so that the first mistake in it is the one reported.
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn from_toml(value: &DeValue<'_>) -> Scalar {
    match value {
        DeValue::String(text) => Scalar::Text(text.to_string()),
        DeValue::Integer(n) => match i64::from_str_radix(&n.as_str().replace('_', ""), n.radix()) {
            Ok(n) => Scalar::Number(n.to_string()),
            Err(_) => Scalar::Other("a number beyond 64 bits"),
        },
        DeValue::Float(x) => Scalar::Number(x.as_str().into()),
        DeValue::Boolean(answer) => Scalar::Bool(*answer),
        DeValue::Array(items) => {
            Scalar::List(items.iter().map(|item| from_toml(item.get_ref())).collect())
        }
        DeValue::Table(_) => Scalar::Table("a table", toml_to_json(value)),
        DeValue::Datetime(_) => Scalar::Other("a date"),
    }
}

/// A value inside of a table; what JSON has no form for is a text.
fn toml_to_json(value: &DeValue<'_>) -> serde_json::Value {
    match value {
        DeValue::Integer(_) | DeValue::Float(_) => match from_toml(value) {
            Scalar::Number(digits) => serde_json::from_str(&digits).unwrap_or(digits.into()),
            other => other.describe().into(),
        },
        DeValue::Boolean(answer) => (*answer).into(),
        DeValue::String(text) => text.to_string().into(),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| toml_to_json(item.get_ref()));
            items.collect::<Vec<_>>().into()
        }
        DeValue::Table(table) => {
            let pairs = table
                .iter()
                .map(|(key, value)| (key.get_ref().to_string(), toml_to_json(value.get_ref())));
            serde_json::Value::Object(pairs.collect())
        }
        DeValue::Datetime(date) => date.to_string().into(),
    }
}

pub fn read_json(text: &str) -> Result<Vec<Entry>, (usize, String)> {
    let root: serde_json::Value = serde_json::from_str(text).map_err(|e| {
        // serde_json repeats the position in its message; the origin carries it already.
        let message = e.to_string();
        let message = message.split(" at line ").next().unwrap_or(&message);
        (e.line(), format!("not valid JSON: {message}"))
    })?;
    let serde_json::Value::Object(mut object) = root else {
        return Err((1, "not a JSON object".into()));
    };
    let mut entries = Vec::new();
    for (key, line) in json_key_lines(text) {
        match object.get_mut(&key) {
            // Taken out, so that a key that stands twice is seen as such below.
            Some(value) => entries.push(Entry {
                value: from_json(value),
                key,
                line,
            }),
            None => return Err((line, format!("the key `{key}` cannot be read"))),
        }
    }
    Ok(entries)
}

fn from_json(value: &serde_json::Value) -> Scalar {
    use serde_json::Value;
    match value {
        Value::Null => Scalar::Null,
        Value::Bool(answer) => Scalar::Bool(*answer),
        Value::Number(n) => Scalar::Number(n.to_string()),
        Value::String(text) => Scalar::Text(text.clone()),
        Value::Array(items) => Scalar::List(items.iter().map(from_json).collect()),
        Value::Object(_) => Scalar::Table("an object", value.clone()),
    }
}

/// Keys of the outermost object with their lines, duplicates included; serde_json keeps neither.
/// The text is known to be valid, so it is enough to follow strings and brackets.
fn json_key_lines(text: &str) -> Vec<(String, usize)> {
    let bytes = text.as_bytes();
    let (mut keys, mut depth, mut line, mut i) = (Vec::new(), 0, 1, 0);
    while i < bytes.len() {
        match bytes[i] {
            b'\n' => line += 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                let start = i;
                i += 1;
                while bytes[i] != b'"' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                let is_key = text[i + 1..].trim_start().starts_with(':');
                if depth == 1 && is_key {
                    let key = serde_json::from_str(&text[start..=i])
                        .expect("serde_json has read this string before");
                    keys.push((key, line));
                }
            }
            _ => {}
        }
        i += 1;
    }
    keys
}

/// A hyperparameter of SageMaker: its Python SDK writes each value as JSON, its API takes any text.
pub fn decoded(value: Scalar) -> Scalar {
    use serde_json::Value;
    let Scalar::Text(text) = value else {
        return value;
    };
    match serde_json::from_str(&text) {
        Ok(value @ (Value::String(_) | Value::Array(_) | Value::Object(_) | Value::Null)) => {
            from_json(&value)
        }
        // A number or a boolean is read as on the command line.
        _ => Scalar::Text(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the SDK writes, what the API takes, and what is read.
    #[test]
    fn hyperparameters_are_json_in_strings_or_plain_texts() {
        for (text, expected) in [
            ("\"clm\"", Scalar::Text("clm".into())),
            ("clm", Scalar::Text("clm".into())),
            ("5e-05", Scalar::Text("5e-05".into())),
            ("true", Scalar::Text("true".into())),
            ("null", Scalar::Null),
            ("[INST]", Scalar::Text("[INST]".into())),
        ] {
            let read = decoded(Scalar::Text(text.into()));
            assert_eq!(read.describe(), expected.describe(), "{text}");
        }
        assert!(matches!(
            decoded(Scalar::Text("[\"a\", \"b\"]".into())),
            Scalar::List(items) if items.len() == 2
        ));
        assert!(matches!(
            decoded(Scalar::Text("{\"num_cycles\": 2}".into())),
            Scalar::Table(..)
        ));
    }

    #[test]
    fn nested_json_keys_are_not_taken_for_settings() {
        let text =
            "{\n\"accelerator_config\": {\"seed\": 3},\n\"a \\\"b\\\"\": \"seed\\\\\", \"c\"\n: 1}";
        assert_eq!(
            json_key_lines(text),
            vec![
                ("accelerator_config".into(), 2),
                ("a \"b\"".into(), 3),
                ("c".into(), 3)
            ]
        );
    }
}
