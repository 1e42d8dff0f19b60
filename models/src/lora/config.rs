//! What an adapter is asked to be: PEFT's `LoraConfig` and its file, `adapter_config.json`.

use crate::error::{Error, Result};
use regex::Regex;
use serde_json::{Map, Value, json};

/// Which modules are meant.
#[derive(Clone, Debug, PartialEq)]
pub enum Modules {
    /// PEFT's choice for the family or, where it has none, as [`Modules::AllLinear`].
    Usual,
    /// Every linear layer but the head's.
    AllLinear,
    /// Those of these names, and those whose names end in a dot and one of these.
    Names(Vec<String>),
    /// Those whose whole name a regular expression matches.
    Pattern(String),
}

/// Which biases are trained with an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterBias {
    /// None.
    #[default]
    None,
    /// Those of the layers that it is added to.
    LoraOnly,
    /// Every bias of the model.
    All,
}

impl AdapterBias {
    /// All, by PEFT's names.
    pub const ALL: [(&'static str, AdapterBias); 3] = [
        ("none", AdapterBias::None),
        ("all", AdapterBias::All),
        ("lora_only", AdapterBias::LoraOnly),
    ];

    /// The one that PEFT calls so.
    pub fn named(name: &str) -> Option<AdapterBias> {
        let found = AdapterBias::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, bias)| *bias)
    }

    /// What PEFT calls it.
    pub fn name(self) -> &'static str {
        let named = AdapterBias::ALL.iter().find(|(_, bias)| *bias == self);
        named.expect("all are listed").0
    }
}

/// The settings of a LoRA adapter (Hu et al. 2021) under PEFT's names.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// `base_model_name_or_path`: the model that it is added to.
    pub base: Option<String>,
    /// `r`
    pub rank: usize,
    /// `lora_alpha`
    pub alpha: f64,
    /// `lora_dropout`: share of a layer's input that is dropped before A.
    pub dropout: f64,
    /// `target_modules`
    pub targets: Modules,
    /// `exclude_modules`
    pub exclude: Option<Modules>,
    /// `modules_to_save`: trained whole and saved with the adapter.
    pub saved: Vec<String>,
    /// `use_rslora`: the product is scaled by alpha / sqrt(r) (Kalajdzievski 2023), not alpha / r.
    pub rank_stabilized: bool,
    /// `use_dora`: rows of the sum have magnitudes of their own (Liu et al. 2024).
    pub dora: bool,
    /// `bias`
    pub bias: AdapterBias,
    /// `lora_bias`: B has a bias.
    pub lora_bias: bool,
    /// `rank_pattern`: ranks of modules by the end of their names, a regular expression; the first
    /// that matches counts.
    pub rank_pattern: Vec<(String, usize)>,
    /// `alpha_pattern`, likewise.
    pub alpha_pattern: Vec<(String, f64)>,
    /// `layers_to_transform`; empty: all.
    pub layers: Vec<usize>,
    /// `trainable_token_indices`: tokens whose rows of the embeddings are trained.
    pub tokens: Vec<usize>,
    /// `layers_pattern`: what the list of layers is called; empty: any name.
    pub layers_pattern: Vec<String>,
    /// `ensure_weight_tying`: what is added to a head and to the token embeddings that it is tied to is one.
    pub ties: bool,
}

impl Default for LoraConfig {
    /// PEFT's defaults.
    fn default() -> Self {
        LoraConfig {
            base: None,
            rank: 8,
            alpha: 8.0,
            dropout: 0.0,
            targets: Modules::Usual,
            exclude: None,
            saved: Vec::new(),
            rank_stabilized: false,
            dora: false,
            bias: AdapterBias::None,
            lora_bias: false,
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            layers: Vec::new(),
            tokens: Vec::new(),
            layers_pattern: Vec::new(),
            ties: false,
        }
    }
}

/// Tokens that a graph may train by themselves: each has nodes of its own.
const MOST_TOKENS: usize = 512;

/// Settings of `adapter_config.json` under which an adapter is another function than what is
/// implemented, unless they have one of the values that say "off".
const REFUSED: [(&str, &str); 13] = [
    ("alora_invocation_tokens", "aLoRA is not implemented"),
    ("arrow_config", "Arrow is not implemented"),
    ("kasa_config", "KaSA is not implemented"),
    ("layer_replication", "repeated layers are not implemented"),
    ("lora_ga_config", "LoRA-GA is not implemented"),
    ("megatron_config", "Megatron's layers are not implemented"),
    ("monteclora_config", "MonteCLoRA is not implemented"),
    (
        "target_parameters",
        "no family here has fused expert weights",
    ),
    ("use_bdlora", "block-diagonal LoRA is not implemented"),
    ("use_qalora", "QALoRA is not implemented"),
    ("velora_config", "VeLoRA is not implemented"),
    ("corda_config", "CorDA is not implemented"),
    ("eva_config", "EVA is not implemented"),
];

impl LoraConfig {
    /// Reads the content of an `adapter_config.json`; `source` names it in messages.
    ///
    /// # Errors
    /// If it is no LoRA adapter's, lacks what it needs, or asks for what is not implemented.
    pub fn from_json(values: &Map<String, Value>, source: &str) -> Result<Self> {
        let file = File { values, source };
        let kind = file.text("peft_type")?;
        if !kind.eq_ignore_ascii_case("LORA") {
            return Err(file.refused("peft_type", "only LoRA adapters are implemented"));
        }
        for (key, reason) in REFUSED {
            if file.get(key).is_some_and(is_set) {
                return Err(file.refused(key, reason));
            }
        }
        // These change the model's own weights when they start, also where an adapter is loaded.
        let start = file.get("init_lora_weights").and_then(Value::as_str);
        if start.is_some_and(|start| !["gaussian", "orthogonal", "eva"].contains(&start)) {
            let reason = "an adapter that starts from the model's own weights is not implemented";
            return Err(file.refused("init_lora_weights", reason));
        }
        let usual = LoraConfig::default();
        let config = LoraConfig {
            base: file.optional_text("base_model_name_or_path")?,
            rank: file.count("r", usual.rank)?,
            alpha: file.number("lora_alpha", usual.alpha)?,
            dropout: file.number("lora_dropout", usual.dropout)?,
            targets: file.modules("target_modules")?.unwrap_or(Modules::Usual),
            exclude: file.modules("exclude_modules")?,
            saved: file.texts("modules_to_save")?,
            rank_stabilized: file.flag("use_rslora")?,
            dora: file.flag("use_dora")?,
            bias: file.bias()?,
            lora_bias: file.flag("lora_bias")?,
            rank_pattern: file.pattern("rank_pattern", |value| {
                value.as_u64().map(|rank| rank as usize)
            })?,
            alpha_pattern: file.pattern("alpha_pattern", Value::as_f64)?,
            layers: file.counts("layers_to_transform")?,
            tokens: file.tokens()?,
            layers_pattern: file.texts("layers_pattern")?,
            ties: file.flag("ensure_weight_tying")?,
        };
        config.check(source)?;
        Ok(config)
    }

    /// Refuses numbers that make no adapter, and patterns that are none.
    ///
    /// # Errors
    /// The first of them.
    pub fn check(&self, source: &str) -> Result<()> {
        let wrong = |key: &str, found: String, reason: &str| {
            Err(Error::Unsupported {
                source_name: source.to_string(),
                key: key.to_string(),
                found,
                reason: reason.to_string(),
            })
        };
        let ranks = self.rank_pattern.iter().map(|(_, rank)| *rank);
        if let Some(rank) = std::iter::once(self.rank).chain(ranks).find(|r| *r == 0) {
            return wrong("r", rank.to_string(), "a rank is at least 1");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let found = self.dropout.to_string();
            return wrong("lora_dropout", found, "a rate must be from 0 to below 1");
        }
        let alphas = self.alpha_pattern.iter().map(|(_, alpha)| *alpha);
        if let Some(alpha) = std::iter::once(self.alpha)
            .chain(alphas)
            .find(|alpha| !alpha.is_finite() || *alpha == 0.0)
        {
            let reason = "a factor of 0 or no number adds nothing";
            return wrong("lora_alpha", alpha.to_string(), reason);
        }
        if self.tokens.len() > MOST_TOKENS {
            let reason = format!(
                "at most {MOST_TOKENS} tokens are trained by themselves; modules_to_save trains the whole table"
            );
            return wrong(
                "trainable_token_indices",
                self.tokens.len().to_string(),
                &reason,
            );
        }
        if self.dora && self.lora_bias {
            let reason = "PEFT has no bias of B with DoRA";
            return wrong("lora_bias", "true".to_string(), reason);
        }
        if !self.layers_pattern.is_empty() && self.layers.is_empty() {
            let found = format!("{:?}", self.layers_pattern);
            return wrong("layers_pattern", found, "it needs layers_to_transform");
        }
        if !self.layers.is_empty() && !matches!(self.targets, Modules::Names(_) | Modules::Usual) {
            let reason = "PEFT takes layers with a list of target_modules only, not with a pattern or all-linear";
            return wrong("layers_to_transform", format!("{:?}", self.layers), reason);
        }
        let patterns = self
            .patterns()
            .map(|(key, text)| (key, text, Regex::new(text)));
        for (key, text, read) in patterns {
            if let Err(error) = read {
                let message = error.to_string();
                let reason = message.lines().last().unwrap_or_default();
                let reason = format!(
                    "no regular expression (there is no look-around): {}",
                    reason.trim_start_matches("error: ")
                );
                return wrong(key, text.to_string(), &reason);
            }
        }
        Ok(())
    }

    /// Every regular expression, by the key that it is of.
    fn patterns(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let modules = [
            ("target_modules", Some(&self.targets)),
            ("exclude_modules", self.exclude.as_ref()),
        ];
        let modules = modules.into_iter().filter_map(|(key, modules)| {
            let Some(Modules::Pattern(text)) = modules else {
                return None;
            };
            Some((key, text.as_str()))
        });
        let ranks = self.rank_pattern.iter();
        let alphas = self.alpha_pattern.iter();
        let layers = self.layers_pattern.iter();
        modules
            .chain(ranks.map(|(text, _)| ("rank_pattern", text.as_str())))
            .chain(alphas.map(|(text, _)| ("alpha_pattern", text.as_str())))
            .chain(layers.map(|text| ("layers_pattern", text.as_str())))
    }

    /// The content of `adapter_config.json` for an adapter whose targets were found in a model: `targets`
    /// names them, `is_conv1d` says whether their matrices are `[in, out]`, `task` is PEFT's name
    /// of what the model is for.
    pub fn to_json(&self, targets: &[String], is_conv1d: bool, task: &str) -> Map<String, Value> {
        let list = |texts: &[String]| match texts {
            [] => Value::Null,
            texts => json!(texts),
        };
        let modules = |modules: &Modules| match modules {
            Modules::Pattern(text) => json!(text),
            Modules::Names(names) => json!(names),
            Modules::Usual | Modules::AllLinear => json!(targets),
        };
        let ranks: Map<String, Value> = self
            .rank_pattern
            .iter()
            .map(|(text, rank)| (text.clone(), json!(rank)))
            .collect();
        let alphas: Map<String, Value> = self
            .alpha_pattern
            .iter()
            .map(|(text, alpha)| (text.clone(), number(*alpha)))
            .collect();
        let layers = match &self.layers[..] {
            [] => Value::Null,
            layers => json!(layers),
        };
        let own = [
            ("alpha_pattern", Value::Object(alphas)),
            ("base_model_name_or_path", json!(self.base)),
            ("bias", json!(self.bias.name())),
            ("ensure_weight_tying", json!(self.ties)),
            (
                "exclude_modules",
                self.exclude.as_ref().map_or(Value::Null, modules),
            ),
            ("fan_in_fan_out", json!(is_conv1d)),
            ("inference_mode", json!(true)),
            ("init_lora_weights", json!(true)),
            ("layers_pattern", list(&self.layers_pattern)),
            ("layers_to_transform", layers),
            ("lora_alpha", number(self.alpha)),
            ("lora_bias", json!(self.lora_bias)),
            ("lora_dropout", json!(self.dropout)),
            ("modules_to_save", list(&self.saved)),
            ("peft_type", json!("LORA")),
            ("r", json!(self.rank)),
            ("rank_pattern", Value::Object(ranks)),
            ("revision", Value::Null),
            ("target_modules", modules(&self.targets)),
            ("task_type", json!(task)),
            (
                "trainable_token_indices",
                match &self.tokens[..] {
                    [] => Value::Null,
                    tokens => json!(tokens),
                },
            ),
            ("use_dora", json!(self.dora)),
            ("use_rslora", json!(self.rank_stabilized)),
        ];
        own.map(|(key, value)| (key.to_string(), value))
            .into_iter()
            .collect()
    }
}

/// A whole number as one, as PEFT writes `lora_alpha`.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

/// Whether a value asks for something.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// The values of an `adapter_config.json`, by their types.
struct File<'f> {
    values: &'f Map<String, Value>,
    source: &'f str,
}

impl File<'_> {
    /// What is present and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn refused(&self, key: &str, reason: &str) -> Error {
        Error::Unsupported {
            source_name: self.source.to_string(),
            key: key.to_string(),
            found: self
                .values
                .get(key)
                .cloned()
                .unwrap_or_default()
                .to_string(),
            reason: reason.to_string(),
        }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || Error::WrongType {
            source_name: self.source.to_string(),
            key: key.to_string(),
            expected,
            found: value.to_string(),
        };
        read(value).ok_or_else(wrong).map(Some)
    }

    fn optional_text(&self, key: &str) -> Result<Option<String>> {
        self.typed(key, "a string", |value| value.as_str().map(str::to_string))
    }

    fn text(&self, key: &str) -> Result<String> {
        self.optional_text(key)?.ok_or_else(|| Error::MissingKey {
            source_name: self.source.to_string(),
            key: key.to_string(),
        })
    }

    fn flag(&self, key: &str) -> Result<bool> {
        Ok(self
            .typed(key, "true or false", Value::as_bool)?
            .unwrap_or(false))
    }

    fn count(&self, key: &str, usual: usize) -> Result<usize> {
        let read = |value: &Value| value.as_u64().map(|count| count as usize);
        Ok(self.typed(key, "a whole number", read)?.unwrap_or(usual))
    }

    fn number(&self, key: &str, usual: f64) -> Result<f64> {
        Ok(self.typed(key, "a number", Value::as_f64)?.unwrap_or(usual))
    }

    /// A list of texts, or one of them by itself.
    fn texts(&self, key: &str) -> Result<Vec<String>> {
        let texts = |value: &Value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => list
                .iter()
                .map(|text| Some(text.as_str()?.into()))
                .collect(),
            _ => None,
        };
        Ok(self
            .typed(key, "a list of strings", texts)?
            .unwrap_or_default())
    }

    /// A list of whole numbers, or one of them by itself.
    fn counts(&self, key: &str) -> Result<Vec<usize>> {
        let count = |value: &Value| value.as_u64().map(|count| count as usize);
        let counts = |value: &Value| match value {
            Value::Array(list) => list.iter().map(count).collect(),
            value => count(value).map(|count| vec![count]),
        };
        Ok(self
            .typed(key, "a list of whole numbers", counts)?
            .unwrap_or_default())
    }

    /// `trainable_token_indices`: a list, or that of the one table that a table names.
    fn tokens(&self) -> Result<Vec<usize>> {
        let key = "trainable_token_indices";
        let Some(Value::Object(tables)) = self.get(key) else {
            return self.counts(key);
        };
        match tables.iter().next() {
            Some((name, tokens)) if tables.len() == 1 => {
                let values = Map::from_iter([(name.clone(), tokens.clone())]);
                let (values, source) = (&values, self.source);
                File { values, source }.counts(name)
            }
            _ => Err(self.refused(key, "tokens of several tables are not implemented")),
        }
    }

    /// A list of names, or a text: `all-linear` or a regular expression.
    fn modules(&self, key: &str) -> Result<Option<Modules>> {
        Ok(match self.get(key) {
            None => None,
            Some(Value::String(text)) => Some(Modules::of_text(text)),
            Some(_) => Some(Modules::Names(self.texts(key)?)),
        })
    }

    fn bias(&self) -> Result<AdapterBias> {
        let Some(text) = self.optional_text("bias")? else {
            return Ok(AdapterBias::None);
        };
        let known = AdapterBias::ALL.map(|(name, _)| name).join(", ");
        let unknown = || self.refused("bias", &format!("it is one of {known}"));
        AdapterBias::named(&text).ok_or_else(unknown)
    }

    fn pattern<T>(
        &self,
        key: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<(String, T)>> {
        let pairs = |value: &Value| {
            let pairs = value.as_object()?.iter();
            pairs
                .map(|(text, value)| Some((text.clone(), read(value)?)))
                .collect()
        };
        Ok(self
            .typed(key, "a table of numbers by names", pairs)?
            .unwrap_or_default())
    }
}

impl Modules {
    /// What a single text means: PEFT takes a text for a pattern, a list for names.
    pub fn of_text(text: &str) -> Modules {
        if text.eq_ignore_ascii_case("all-linear") {
            Modules::AllLinear
        } else {
            Modules::Pattern(text.to_string())
        }
    }
}
