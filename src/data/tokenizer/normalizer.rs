//! What is done to a text before it is cut into tokens, where `--do_lower_case` overrules the
//! definition.

use serde_json::{Value, json};
use xtrain_checkpoint::hf;

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
