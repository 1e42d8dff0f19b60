//! The templates that come with a tokenizer, as transformers merges its files.

use crate::error::{Error, Result};
use crate::tokenizer::{CHAT_TEMPLATE, TEMPLATES, Tokenizer};
use serde_json::{Map, Value, json};

/// Bytes of the longest template. Published ones have less than 50,000.
const LONGEST: usize = 1 << 20;

/// Where templates stand that have no file of their own, for messages.
pub(super) const CONFIG_PLACE: &str = "chat_template of tokenizer_config.json";

/// A template as it was read: not parsed yet.
pub(super) struct Source {
    /// What its tokenizer calls it.
    pub name: String,
    pub text: String,
    /// Where it was found, for messages.
    pub place: String,
    /// Special tokens by name (`bos_token`).
    pub tokens: Map<String, Value>,
}

impl Source {
    /// All templates of a tokenizer: files win over its configuration.
    pub fn all(tokenizer: &Tokenizer) -> Result<Vec<Source>> {
        let tokens = tokenizer.special_tokens_map();
        let tokens: Map<String, Value> = tokens
            .iter()
            .map(|(name, token)| (name.clone(), token.as_str().into()))
            .collect();
        let mut found = Vec::new();
        for (file, bytes) in tokenizer.files() {
            let name = match file.strip_prefix(TEMPLATES) {
                None if file == CHAT_TEMPLATE => "default",
                None => continue,
                Some(name) => name.trim_start_matches('/').trim_end_matches(".jinja"),
            };
            let text = std::str::from_utf8(bytes).map_err(|_| Error::ChatTemplate {
                place: file.clone(),
                reason: "it is not UTF-8".to_string(),
            })?;
            found.push(Source::new(name, text, file, &tokens)?);
        }
        if !found.is_empty() {
            return Ok(found);
        }
        let bad = || Error::ChatTemplate {
            place: CONFIG_PLACE.to_string(),
            reason: "it is neither a text nor a list of templates with names".to_string(),
        };
        let config = tokenizer.config();
        match config.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                found.push(Source::new("default", text, CONFIG_PLACE, &tokens)?);
            }
            Some(Value::Array(list)) => {
                for entry in list {
                    let name = entry["name"].as_str().ok_or_else(bad)?;
                    let text = entry["template"].as_str().ok_or_else(bad)?;
                    found.push(Source::new(name, text, CONFIG_PLACE, &tokens)?);
                }
            }
            Some(Value::Object(entries)) => {
                for (name, text) in entries {
                    let text = text.as_str().ok_or_else(bad)?;
                    found.push(Source::new(name, text, CONFIG_PLACE, &tokens)?);
                }
            }
            Some(_) => return Err(bad()),
        }
        Ok(found)
    }

    pub fn new(name: &str, text: &str, place: &str, tokens: &Map<String, Value>) -> Result<Source> {
        if text.len() > LONGEST {
            return Err(Error::ChatTemplate {
                place: place.to_string(),
                reason: format!("it has {} bytes, more than {LONGEST}", text.len()),
            });
        }
        Ok(Source {
            name: name.to_string(),
            text: text.to_string(),
            place: place.to_string(),
            tokens: tokens.clone(),
        })
    }

    pub fn key(&self) -> Value {
        json!([self.name, self.text, self.tokens])
    }

    /// Whether its text has `{% generation %}`.
    pub fn has_generation_tags(&self) -> bool {
        self.text.split("{%").skip(1).any(|tag| {
            let tag = tag.trim_start_matches(['-', '+']).trim_start();
            let rest = tag.strip_prefix("generation");
            rest.is_some_and(|rest| {
                rest.trim_start()
                    .trim_start_matches(['-', '+'])
                    .starts_with("%}")
            })
        })
    }
}
