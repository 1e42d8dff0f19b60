//! A Hugging Face `config.json` with typed access. Keys that a model does not know are kept and
//! written back unchanged.

use crate::error::{Error, Result};
use crate::quantization::Quantization;
use serde_json::{Map, Value};

/// transformers' `attribute_map`: settings that a family's configuration calls otherwise than most
/// do, as (usual name, the family's name).
pub(crate) type AttributeMap = &'static [(&'static str, &'static str)];

/// The sizes that transformers' own `attribute_map`s rename; the other names of an [`AttributeMap`] are ours.
const MAPPED: [&str; 4] = [
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
];

/// The keys of a `config.json` in their order, and where they came from (for messages).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    values: Map<String, Value>,
    source: String,
    names: AttributeMap,
    /// How the model's matrices are to be held, which no file says.
    quantization: Option<Quantization>,
}

impl Config {
    /// `source` names the file or preset in messages.
    pub fn new(values: Map<String, Value>, source: impl Into<String>) -> Self {
        Config {
            values,
            source: source.into(),
            names: &[],
            quantization: None,
        }
    }

    /// The same for a model whose matrices are held in few bits, if this says how.
    pub fn quantized(self, quantization: Option<Quantization>) -> Self {
        Config {
            quantization,
            ..self
        }
    }

    /// How the model's matrices are held; `None`: as all other parameters.
    pub fn quantization(&self) -> Option<Quantization> {
        self.quantization
    }

    /// The same, to be read by the usual names.
    pub(crate) fn named(self, names: AttributeMap) -> Self {
        Config { names, ..self }
    }

    /// What this configuration calls a setting.
    fn key<'k>(&self, usual: &'k str) -> &'k str {
        let own = self.names.iter().find(|(name, _)| *name == usual);
        own.map_or(usual, |(_, own)| own)
    }

    /// A configuration written in the program.
    pub(crate) fn literal(table: Value, source: impl Into<String>) -> Self {
        match table {
            Value::Object(values) => Config::new(values, source),
            other => unreachable!("configurations are tables, not {other}"),
        }
    }

    /// A preset: this default configuration with other values for some keys.
    pub(crate) fn preset(mut self, name: &str, changes: Value) -> Self {
        let changes = Config::literal(changes, "");
        self.values.extend(changes.values);
        Config {
            source: format!("preset {name}"),
            ..self
        }
    }

    /// Every key with its value, in order.
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The file or preset that it came from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Sets a key, which need not exist.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_string(), value.into());
    }

    /// Without keys that a family does not have: transformers does not look at them either.
    pub(crate) fn without(&self, keys: &[&str]) -> Config {
        let mut config = self.clone();
        keys.iter().for_each(|key| config.remove(key));
        config
    }

    /// Takes a key out, if it is there.
    pub(crate) fn remove(&mut self, key: &str) {
        self.values.remove(key);
    }

    /// This configuration with the keys that it lacks taken from `defaults`, for reading; a null
    /// here stays null.
    pub(crate) fn over(&self, defaults: Config) -> Config {
        let mut values = defaults.values;
        values.extend(
            self.values
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        Config {
            values,
            source: self.source.clone(),
            names: &[],
            quantization: self.quantization,
        }
    }

    /// This configuration by the usual names, with what it lacks taken from a family's `defaults`. As
    /// transformers has it, a size may also be called by its usual name where the family has another.
    pub(crate) fn of_family(&self, defaults: Config, names: AttributeMap) -> Config {
        let mut read = self.over(defaults).named(names);
        for usual in MAPPED {
            let own = read.key(usual);
            if own != usual
                && !self.values.contains_key(own)
                && let Some(value) = self.values.get(usual)
            {
                read.set(own, value.clone());
            }
        }
        read
    }

    /// The value of a key that is present and not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(self.key(key)).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let wrong = |v: &Value| Error::WrongType {
            source_name: self.source.clone(),
            key: self.key(key).to_string(),
            expected,
            found: v.to_string(),
        };
        self.get(key)
            .map(|v| read(v).ok_or_else(|| wrong(v)))
            .transpose()
    }

    pub(crate) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::MissingKey {
            source_name: self.source.clone(),
            key: self.key(key).to_string(),
        })
    }

    /// A positive integer, `None` if the key is missing or null. Two of them can be multiplied
    /// without overflow.
    ///
    /// # Errors
    /// If it is anything else, as every typed value here.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        self.at_most(key, i32::MAX as u64, "a positive integer below 2147483648")
    }

    fn at_most(&self, key: &str, most: u64, limit: &'static str) -> Result<Option<usize>> {
        let integer = |v: &Value| v.as_u64().filter(|&n| n > 0);
        if self.typed(key, "a positive integer", integer)?.is_none() {
            return Ok(None);
        }
        let bounded = |v: &Value| v.as_u64().filter(|&n| n <= most);
        Ok(self.typed(key, limit, bounded)?.map(|n| n as usize))
    }

    /// `num_hidden_layers`: no more than one graph takes, in which every layer is written out.
    ///
    /// # Errors
    /// If it is missing, anything else or larger.
    pub fn layers(&self) -> Result<usize> {
        let key = "num_hidden_layers";
        let layers = self.at_most(key, 4096, "at most 4096, the layers that one graph takes")?;
        self.required(key, layers)
    }

    /// A positive integer.
    ///
    /// # Errors
    /// If it is missing or anything else.
    pub fn size(&self, key: &str) -> Result<usize> {
        let value = self.optional_size(key)?;
        self.required(key, value)
    }

    /// A positive integer, `default` if the key is missing or null.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// An integer that may be 0.
    ///
    /// # Errors
    /// If it is missing or anything else.
    pub fn count(&self, key: &str) -> Result<usize> {
        let value = self.typed(key, "an integer of at least 0", Value::as_u64)?;
        Ok(self.required(key, value)? as usize)
    }

    /// A string.
    ///
    /// # Errors
    /// If it is missing or anything else.
    pub fn text(&self, key: &str) -> Result<String> {
        let value = self.typed(key, "a string", |v| v.as_str().map(str::to_string))?;
        self.required(key, value)
    }

    /// A string, `default` if the key is missing or null.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn text_or(&self, key: &str, default: &str) -> Result<String> {
        Ok(self
            .typed(key, "a string", |v| v.as_str().map(str::to_string))?
            .unwrap_or_else(|| default.to_string()))
    }

    /// A token id; null or a number below zero means that there is none, a missing key means `default`.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn token_id_or(&self, key: &str, default: Option<usize>) -> Result<Option<usize>> {
        if self.values.contains_key(self.key(key)) {
            let id = self.typed(key, "a token id", Value::as_i64)?;
            Ok(id.and_then(|id| usize::try_from(id).ok()))
        } else {
            Ok(default)
        }
    }

    /// The id of the padding token, whose embedding gets no gradient from lookups, if there is one.
    ///
    /// # Errors
    /// If the vocabulary has no such token.
    pub(crate) fn padding_idx(&self) -> Result<Option<usize>> {
        let vocab_size = self.size("vocab_size")?;
        // PyTorch counts ids below zero from the table's end.
        let id = self.typed("pad_token_id", "a token id", Value::as_i64)?;
        let padding_idx = match id {
            Some(id) if id < 0 => vocab_size.checked_add_signed(id as isize),
            _ => self.token_id_or("pad_token_id", None)?,
        };
        if padding_idx.is_some_and(|id| id >= vocab_size) {
            let reason = format!("must be below vocab_size ({vocab_size})");
            return Err(self.unsupported("pad_token_id", reason));
        }
        Ok(padding_idx)
    }

    /// True or false, `default` if the key is missing or null.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self
            .typed(key, "true or false", Value::as_bool)?
            .unwrap_or(default))
    }

    /// A number, `default` if the key is missing or null.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn float_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self
            .typed(key, "a number", Value::as_f64)?
            .unwrap_or(default))
    }

    /// A number.
    ///
    /// # Errors
    /// If it is missing or anything else.
    pub fn float(&self, key: &str) -> Result<f64> {
        let value = self.typed(key, "a number", Value::as_f64)?;
        self.required(key, value)
    }

    /// A number from 0 to 1, as dropout rates are, `default` if the key is missing or null.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn rate_or(&self, key: &str, default: f64) -> Result<f64> {
        let rate = self.float_or(key, default)?;
        if (0.0..=1.0).contains(&rate) {
            Ok(rate)
        } else {
            Err(self.unsupported(key, "a rate must be between 0 and 1"))
        }
    }

    /// Refuses any value of a key but `built`; the key may be missing or null.
    pub(crate) fn only(&self, key: &str, built: impl Into<Value>, reason: &str) -> Result<()> {
        match self.get(key) {
            Some(value) if *value != built.into() => Err(self.unsupported(key, reason)),
            _ => Ok(()),
        }
    }

    /// Refuses what no model here implements.
    pub(crate) fn refuse_unbuilt(&self) -> Result<()> {
        self.only(
            "add_cross_attention",
            false,
            "cross-attention is not implemented",
        )?;
        if self.get("quantization_config").is_some() {
            return Err(self.unsupported(
                "quantization_config",
                "a model that was saved quantized is not read; name the one that it was quantized from, with --load_in_4bit or --load_in_8bit",
            ));
        }
        match self.get("pruned_heads").and_then(Value::as_object) {
            Some(heads) if !heads.is_empty() => {
                Err(self.unsupported("pruned_heads", "pruned heads are not implemented"))
            }
            _ => Ok(()),
        }
    }

    /// The hidden size divided by the number of attention heads.
    pub(crate) fn head_dim(&self) -> Result<usize> {
        let (hidden_size, heads) = (self.size("hidden_size")?, self.size("num_attention_heads")?);
        if hidden_size.is_multiple_of(heads) {
            return Ok(hidden_size / heads);
        }
        let heads_key = self.key("num_attention_heads");
        let reason = format!("must be a multiple of {heads_key} ({heads})");
        Err(self.unsupported("hidden_size", reason))
    }

    /// An error about the value of one key.
    pub fn unsupported(&self, key: &str, reason: impl Into<String>) -> Error {
        Error::Unsupported {
            source_name: self.source.clone(),
            key: self.key(key).to_string(),
            found: self
                .values
                .get(self.key(key))
                .map_or_else(|| "(default)".into(), Value::to_string),
            reason: reason.into(),
        }
    }

    /// Applies `config_overrides` as run_clm does: only keys that exist, values of the type that
    /// they have.
    ///
    /// # Errors
    /// If a key does not exist or a value is of another type.
    pub fn apply_overrides(&mut self, overrides: &[(String, Value)]) -> Result<()> {
        for (key, new) in overrides {
            let fail = |reason: String| Error::Override {
                key: key.clone(),
                found: new.to_string(),
                reason,
            };
            let old = self
                .values
                .get(key)
                .ok_or_else(|| fail(format!("{} has no such key", self.source)))?;
            let new = match (old, new) {
                // A key whose default is null takes any value.
                (Value::Null, new) | (_, new @ Value::Null) => new.clone(),
                (Value::Bool(_), Value::Bool(_)) | (Value::String(_), Value::String(_)) => {
                    new.clone()
                }
                (Value::Bool(_), _) => return Err(fail("expected true or false".into())),
                (Value::Number(old), Value::Number(n)) => match (old.is_f64(), n.as_f64()) {
                    (true, Some(number)) => Value::from(number),
                    _ if n.is_f64() => return Err(fail("expected an integer".into())),
                    _ => new.clone(),
                },
                (Value::Number(_), _) => return Err(fail("expected a number".into())),
                (Value::String(_), other) => Value::from(other.to_string()),
                (Value::Array(_) | Value::Object(_), _) => {
                    return Err(fail("a list or table cannot be overridden here".into()));
                }
            };
            self.values.insert(key.clone(), new);
        }
        Ok(())
    }
}
