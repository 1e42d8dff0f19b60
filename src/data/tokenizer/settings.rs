//! What a directory's JSON files say of a tokenizer besides `tokenizer.json`, merged in the order of
//! transformers' `from_pretrained`: later files win, and `added_tokens_decoder` in
//! `tokenizer_config.json` makes it ignore the files of earlier versions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::class::Class;

/// Settings that name special tokens, in the order in which new ones get their ids.
pub(super) const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// A token as a file names it: a text, or with how it is matched.
#[derive(Clone, Debug)]
pub(super) enum Token {
    Plain(String),
    Told {
        token: AddedToken,
        /// Without a word on it, special tokens alone are not normalized.
        is_normalized_told: bool,
    },
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        match (self, other) {
            (Token::Plain(a), Token::Plain(b)) => a == b,
            (Token::Told { token: a, .. }, Token::Told { token: b, .. }) => a == b,
            _ => false,
        }
    }
}

impl Token {
    /// Of a text or an object; `special` decides where it is given.
    fn read(value: &Value, special: Option<bool>) -> Option<Token> {
        let object = match value {
            Value::String(text) => return Some(Token::Plain(text.clone())),
            Value::Object(object) => object,
            _ => return None,
        };
        let flag = |key: &str| object.get(key).and_then(Value::as_bool);
        let special = special.or(flag("special")).unwrap_or(false);
        let token = AddedToken::from(object.get("content")?.as_str()?, special)
            .single_word(flag("single_word").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!special));
        Some(Token::Told {
            token,
            is_normalized_told: flag("normalized").is_some(),
        })
    }

    pub fn content(&self) -> &str {
        match self {
            Token::Plain(text) => text,
            Token::Told { token, .. } => &token.content,
        }
    }

    /// As it is added to a vocabulary; a text alone is a special token.
    pub fn added(&self, is_special: bool) -> AddedToken {
        match self {
            Token::Plain(text) => AddedToken::from(text.as_str(), true),
            Token::Told {
                token,
                is_normalized_told,
            } => {
                let special = token.special || is_special;
                let told = token.clone().special(special);
                let normalized = if *is_normalized_told {
                    token.normalized
                } else {
                    !special
                };
                told.normalized(normalized)
            }
        }
    }
}

/// The files that settings are read from.
#[derive(Default)]
pub(super) struct Sources<'a> {
    pub config: Map<String, Value>,
    pub special_tokens_map: Option<Map<String, Value>>,
    pub added_tokens: Option<Map<String, Value>>,
    /// `added_tokens` of tokenizer.json; `None` without the file.
    pub defined: Option<&'a [Value]>,
    /// Tokens of a sentencepiece model that are not pieces of text.
    pub pieces: Option<Vec<Value>>,
}

/// The merged settings.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: Map<String, Value>,
    /// Special tokens by name; `None` where a file says that there is none.
    pub named: Vec<(String, Option<Token>)>,
    /// Special tokens without a name.
    pub extra: Vec<Token>,
    /// Added tokens by id.
    pub added: BTreeMap<u64, Token>,
}

/// A file and what of it is no token.
type Bad = (&'static str, String);

fn bad(file: &'static str, what: &str) -> Bad {
    (file, format!("{what} is no token"))
}

/// Added tokens as they are read.
#[derive(Default)]
struct Added {
    by_id: BTreeMap<u64, Token>,
    by_content: BTreeMap<String, Token>,
}

impl Added {
    fn add(&mut self, id: u64, token: Token) {
        let content = token.content().to_string();
        self.by_content.insert(content, token.clone());
        self.by_id.insert(id, token);
    }

    fn read_decoder(&mut self, decoder: &Value) -> Result<(), Bad> {
        for (id, token) in decoder.as_object().into_iter().flatten() {
            let read = id.parse().ok().zip(Token::read(token, None));
            let what = || format!("{id} of added_tokens_decoder");
            let (id, token) = read.ok_or_else(|| bad("tokenizer_config.json", &what()))?;
            self.add(id, token);
        }
        Ok(())
    }

    /// Reads special_tokens_map.json, added_tokens.json and the added tokens of tokenizer.json.
    fn read_earlier_files(
        &mut self,
        values: &mut Map<String, Value>,
        own: &mut Map<String, Value>,
        sources: Sources<'_>,
    ) -> Result<(), Bad> {
        let special = sources.special_tokens_map.unwrap_or_default();
        let objects: Vec<String> = special
            .iter()
            .filter(|(_, value)| value.is_object())
            .map(|(key, _)| key.clone())
            .collect();
        merge_special_tokens_map(values, special);
        if let Some(Value::Object(names)) = values.get("extra_special_tokens").cloned() {
            values.remove("extra_special_tokens");
            own.extend(names);
        }
        let is_special = |text: &str| {
            let named = NAMES.iter().filter_map(|key| match values.get(*key)? {
                Value::Object(token) if objects.iter().any(|it| it == key) => {
                    token["content"].as_str()
                }
                other => other.as_str(),
            });
            let extra = values.get("extra_special_tokens").and_then(Value::as_array);
            let extra = extra.into_iter().flatten().filter_map(Value::as_str);
            named.chain(extra).any(|token| token == text)
        };
        for (text, id) in sources.added_tokens.unwrap_or_default() {
            let what = || format!("the id {id} of {text:?}");
            let number = id
                .as_u64()
                .ok_or_else(|| bad("added_tokens.json", &what()))?;
            let special = is_special(&text);
            let token = Token::Told {
                token: AddedToken::from(text, special),
                is_normalized_told: true,
            };
            self.add(number, token);
        }
        for token in sources.defined.unwrap_or_default() {
            let read = token["id"].as_u64().zip(Token::read(token, None));
            let what = || format!("{token} of added_tokens");
            let (id, token) = read.ok_or_else(|| bad("tokenizer.json", &what()))?;
            self.add(id, token);
        }
        Ok(())
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Bool(value)) => !value,
        Some(Value::Number(_)) => false,
    }
}

fn is_name(key: &str) -> bool {
    NAMES.contains(&key)
}

impl Settings {
    /// Merges the files of a directory. `Err` says what in which file is no token.
    pub fn merge(mut sources: Sources<'_>, class: Class) -> Result<Settings, Bad> {
        let mut values = std::mem::take(&mut sources.config);
        if sources.defined.is_some() {
            values.remove("add_bos_token");
            values.remove("add_eos_token");
        }
        if is_empty(values.get("extra_special_tokens"))
            && let Some(list) = values.remove("additional_special_tokens")
        {
            values.insert("extra_special_tokens".into(), list);
        }
        let mut own = take_own_names(&mut values);
        let mut found = Added::default();
        let pieces = sources.pieces.take();
        match values.remove("added_tokens_decoder") {
            Some(decoder) => found.read_decoder(&decoder)?,
            None => found.read_earlier_files(&mut values, &mut own, sources)?,
        }
        if let Some(pieces) = pieces {
            values.insert("additional_special_tokens".into(), pieces.into());
        }
        if !values.contains_key("extra_special_tokens")
            && let Some(list) = values.remove("additional_special_tokens")
        {
            values.insert("extra_special_tokens".into(), list);
        }
        let mut settings = Settings::default();
        settings.name_tokens(&values, &found.by_content, class);
        settings.name_own_tokens(&values, own);
        settings.added = found.by_id;
        let extra = values.get("extra_special_tokens").and_then(Value::as_array);
        for token in extra.into_iter().flatten() {
            let read = Token::read(token, None).ok_or_else(|| {
                let what = format!("{token} of extra_special_tokens");
                bad("tokenizer_config.json", &what)
            })?;
            settings.extra.push(read);
        }
        settings.values = values;
        Ok(settings)
    }

    /// The seven names: a token that is an added one too is matched as that is.
    fn name_tokens(
        &mut self,
        values: &Map<String, Value>,
        by_content: &BTreeMap<String, Token>,
        class: Class,
    ) {
        for key in NAMES {
            let usual = class.usual_tokens().iter().find(|(name, _)| *name == key);
            let token = match (values.get(key), usual) {
                (Some(value), _) => Token::read(value, None)
                    .map(|token| by_content.get(token.content()).cloned().unwrap_or(token)),
                (None, Some((_, token))) => Some(Token::Plain(token.to_string())),
                (None, None) => continue,
            };
            self.named.push((key.to_string(), token));
        }
    }

    /// Names that a model has besides, such as `image_token`.
    fn name_own_tokens(&mut self, values: &Map<String, Value>, own: Map<String, Value>) {
        let mut names = Map::new();
        for (key, value) in values {
            let is_told = value.is_string() || value.get("__type").is_some();
            if key.ends_with("_token") && !is_name(key) && is_told {
                names.insert(key.clone(), value.clone());
            }
        }
        names.extend(own);
        for (key, value) in names {
            if let Some(token) = Token::read(&value, None) {
                self.named.push((key, Some(token)));
            }
        }
    }

    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// A switch; `Err` says what stands in its place.
    pub fn switch(&self, key: &str, usual: bool) -> Result<bool, String> {
        match self.value(key) {
            None => Ok(usual),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(format!("{key} is {other}, not true or false")),
        }
    }

    /// The content of a named special token.
    pub fn token(&self, key: &str) -> Option<&str> {
        let (_, token) = self.named.iter().find(|(name, _)| name == key)?;
        token.as_ref().map(Token::content)
    }

    /// Whether a file says that there is no such token.
    pub fn has_none(&self, key: &str) -> bool {
        let found = self.named.iter().find(|(name, _)| name == key);
        found.is_some_and(|(_, token)| token.is_none())
    }

    /// Whether a file says what is put around texts.
    pub fn tells_ends(&self) -> bool {
        self.values.contains_key("add_bos_token") || self.values.contains_key("add_eos_token")
    }
}

/// Takes out the names of tokens that only this model has: `image_token`, or the entries of an
/// object of `extra_special_tokens`.
fn take_own_names(values: &mut Map<String, Value>) -> Map<String, Value> {
    let is_own =
        |key: &String, value: &Value| !is_name(key) && key.ends_with("_token") && value.is_string();
    let mut own = Map::new();
    for (key, value) in &*values {
        if is_own(key, value) {
            own.insert(key.clone(), value.clone());
        }
    }
    values.retain(|key, value| !is_own(key, value));
    if let Some(Value::Object(names)) = values.get("extra_special_tokens").cloned() {
        values.remove("extra_special_tokens");
        own.extend(names);
    }
    own
}

/// special_tokens_map.json replaces what tokenizer_config.json says of the same tokens.
fn merge_special_tokens_map(values: &mut Map<String, Value>, special: Map<String, Value>) {
    for (key, value) in special {
        let value = match value {
            Value::Object(mut token) if key != "extra_special_tokens" => {
                token.insert("special".into(), true.into());
                token.insert("__type".into(), "AddedToken".into());
                Value::Object(token)
            }
            Value::Array(list) if key == "extra_special_tokens" => {
                let mut all = match values.get(&key) {
                    Some(Value::Array(list)) => list.clone(),
                    _ => Vec::new(),
                };
                for token in list {
                    let token = match token {
                        Value::Object(mut token) => {
                            token.insert("special".into(), true.into());
                            token.insert("__type".into(), "AddedToken".into());
                            json!(token)
                        }
                        other => other,
                    };
                    if !all.contains(&token) {
                        all.push(token);
                    }
                }
                all.into()
            }
            other => other,
        };
        values.insert(key, value);
    }
}
