//! What is done to a text before it is cut into tokens, where something overrules the definition:
//! `--do_lower_case`, and for BERT `tokenizer_config.json`.

use crate::checkpoint::hf;
use serde_json::{Map, Value, json};

/// A definition (`tokenizer.json`) that turns texts into lower case before they are cut, or leaves
/// capitals alone; one that does is given back byte for byte. With BERT's normalizer accents go
/// with the capitals, as in transformers, unless `strip_accents` is set. `Err` names a normalizer
/// that has no such switch.
pub(super) fn set_lower_case(text: Vec<u8>, lower: bool) -> Result<Vec<u8>, String> {
    let mut definition: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let before = definition["normalizer"].clone();
    let normalizer = &mut definition["normalizer"];
    let kind = normalizer["type"].as_str().unwrap_or("none");
    match (kind, normalizer["normalizers"].as_array()) {
        ("BertNormalizer", _) => normalizer["lowercase"] = lower.into(),
        // ALBERT's: what sentencepiece itself does to a text stays the last step.
        ("Sequence", Some(steps)) => {
            let mut steps: Vec<Value> = steps
                .iter()
                .filter(|step| step["type"] != "Lowercase")
                .cloned()
                .collect();
            if lower {
                let place = steps
                    .iter()
                    .position(|step| step["type"] == "Precompiled")
                    .unwrap_or(steps.len());
                steps.insert(place, json!({"type": "Lowercase"}));
            }
            normalizer["normalizers"] = steps.into();
        }
        _ => return Err(kind.to_string()),
    }
    Ok(if *normalizer == before {
        text
    } else {
        hf::to_json_text(&definition, 2)
    })
}

/// Whether transformers reads the files as BertTokenizer.
pub(super) fn is_bert(config: &Map<String, Value>) -> bool {
    matches!(
        config.get("tokenizer_class").and_then(Value::as_str),
        Some("BertTokenizer" | "BertTokenizerFast")
    )
}

/// transformers' BertTokenizer takes the vocabulary of a `tokenizer.json`, but how texts are
/// normalized of `tokenizer_config.json`, and in lower case where that says nothing. A definition
/// that agrees is given back byte for byte.
pub(super) fn obey_bert_config(
    text: Vec<u8>,
    config: &Map<String, Value>,
) -> serde_json::Result<Vec<u8>> {
    let mut definition: Value = serde_json::from_slice(&text)?;
    let told = |key: &str, usual: Value| {
        config
            .get(key)
            .filter(|value| !value.is_null())
            .cloned()
            .unwrap_or(usual)
    };
    let wanted = json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": told("tokenize_chinese_chars", true.into()),
        "strip_accents": told("strip_accents", Value::Null),
        "lowercase": told("do_lower_case", true.into()),
    });
    if definition["normalizer"] == wanted {
        return Ok(text);
    }
    definition["normalizer"] = wanted;
    Ok(hf::to_json_text(&definition, 2))
}
