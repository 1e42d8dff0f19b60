//! Rotary position embedding (Su et al. 2021): values of a head turn in pairs by an angle that grows
//! with the position; each pair has a frequency of its own, which long-context models scale.
//!
//! Letters: B batch, T tokens, H heads, D values of a head, R rotated values of a head.

use crate::batch::TokenBatch;
use crate::config::Config;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::f64::consts::PI;
use xtrain_graphs::{DType, Tensor};

/// The frequencies of one kind of layer, as transformers' `modeling_rope_utils.py` computes them:
/// rounded to f32 after each operation.
pub(crate) struct Rotary {
    /// R / 2 of them.
    frequencies: Vec<f32>,
    /// Factor on sine and cosine (`yarn`, `longrope`).
    factor: f64,
    /// What takes their place in longer rows (`longrope`).
    long: Option<LongRotary>,
}

/// The frequencies of rows with more tokens than the model was pretrained with.
struct LongRotary {
    original: usize,
    frequencies: Vec<f32>,
}

/// Where a configuration says how the layers of a kind rotate.
pub(crate) struct RotaryKeys {
    /// The kind's name in `rope_parameters`, where these differ between layers.
    pub layer_type: Option<&'static str>,
    /// The key of the base in configurations of transformers 4.
    pub theta: &'static str,
    /// Whether `rope_scaling` of transformers 4 applies to the kind.
    pub is_scaled: bool,
    /// Whether part of a head may be rotated: transformers' other models cannot.
    pub may_be_partial: bool,
    /// Whether `longrope` is the only kind besides `default`, as in Phi-3, whose older configurations
    /// call it `su` and `yarn`.
    pub is_default_or_long: bool,
}

/// Most models': all layers alike.
pub(crate) const ROTARY: RotaryKeys = RotaryKeys {
    layer_type: None,
    theta: "rope_theta",
    is_scaled: true,
    may_be_partial: false,
    is_default_or_long: false,
};

impl RotaryKeys {
    /// The settings of the kind in one table: what transformers 4 writes (`rope_theta`,
    /// `rope_scaling`) and what 5 writes (`rope_parameters`, by layer type in some families).
    fn settings(&self, config: &Config) -> Result<Config> {
        let table = |key: &str| match config.get(key) {
            Some(Value::Object(table)) => Ok(table.clone()),
            Some(_) => Err(config.unsupported(key, "must be a table")),
            None => Ok(Default::default()),
        };
        let scaling = if self.is_scaled {
            table("rope_scaling")?
        } else {
            Default::default()
        };
        let (mut values, name) = match self.layer_type {
            _ if self.layer_type.is_none() && !scaling.is_empty() => {
                (scaling.clone(), "rope_scaling".to_string())
            }
            None => (table("rope_parameters")?, "rope_parameters".to_string()),
            Some(layer_type) => {
                let name = format!("rope_parameters.{layer_type}");
                let mut values = match table("rope_parameters")?.get(layer_type) {
                    Some(Value::Object(values)) => values.clone(),
                    // With a kind of its own, before which `type`, the older word, does not count.
                    Some(Value::Null) | None => {
                        Map::from_iter([("rope_type".into(), "default".into())])
                    }
                    Some(_) => {
                        return Err(
                            config.unsupported("rope_parameters", "must be a table of tables")
                        );
                    }
                };
                values.extend(scaling.clone());
                // transformers looks for it outside the layer types only.
                values.remove("truncate");
                if let Some(truncate) = table("rope_parameters")?.get("truncate") {
                    values.insert("truncate".into(), truncate.clone());
                }
                (values, name)
            }
        };
        for (key, of_config) in [
            ("rope_theta", self.theta),
            ("partial_rotary_factor", "partial_rotary_factor"),
        ] {
            if let (None, Some(value)) = (values.get(key), config.get(of_config)) {
                values.insert(key.into(), value.clone());
            }
        }
        // Outside, as Phi-3 has it, it counts more than inside.
        let original = "original_max_position_embeddings";
        if let Some(value) = config.get(original).filter(|_| self.layer_type.is_none()) {
            values.insert(original.into(), value.clone());
        }
        if values.get(original).is_none_or(Value::is_null) {
            let longest = config.size("max_position_embeddings")?;
            values.insert(original.into(), longest.into());
        }
        Ok(Config::new(values, format!("{}, {name}", config.source())))
    }
}

impl Rotary {
    /// Reads how the layers of a kind rotate heads of this size.
    ///
    /// # Errors
    /// If the configuration asks for a kind of scaling that is not implemented, or a number is
    /// missing.
    pub fn read(config: &Config, head_dim: usize, keys: &RotaryKeys) -> Result<Self> {
        let settings = keys.settings(config)?;
        let positive = |key: &str| match settings.float(key)? {
            number if number > 0.0 => Ok(number),
            _ => Err(settings.unsupported(key, "must be positive")),
        };
        let share = settings.rate_or("partial_rotary_factor", 1.0)?;
        if share != 1.0 && !keys.may_be_partial {
            let reason = "models of this type rotate whole heads";
            return Err(settings.unsupported("partial_rotary_factor", reason));
        }
        let rotated = (head_dim as f64 * share) as usize;
        // Of an odd number transformers rotates one more: values turn in pairs.
        if rotated == 0 || rotated.next_multiple_of(2) > head_dim {
            let reason = format!(
                "{rotated} of a head's {head_dim} values would be rotated; they turn in pairs"
            );
            return Err(match share {
                1.0 => config.unsupported("head_dim", reason),
                _ => settings.unsupported("partial_rotary_factor", reason),
            });
        }
        let plain = Rotary::new(positive("rope_theta")?, rotated);
        let kind_key = match settings.get("rope_type") {
            Some(_) => "rope_type",
            None => "type",
        };
        let kind = settings.text_or(kind_key, "default")?;
        let kind = match (keys.is_default_or_long, kind.as_str()) {
            (true, "su" | "yarn") => "longrope",
            (true, "default" | "longrope") | (false, _) => kind.as_str(),
            (true, _) => {
                let reason = "models of this type know default and longrope";
                return Err(settings.unsupported(kind_key, reason));
            }
        };
        match kind {
            "default" => Ok(plain),
            // It scales rows beyond max_position_embeddings, which no row is.
            "dynamic" => positive("factor").map(|_| plain),
            "longrope" => {
                let original = settings.size("original_max_position_embeddings")?;
                let factor = match settings.get("factor") {
                    Some(_) => positive("factor")?,
                    None => config.size("max_position_embeddings")? as f64 / original as f64,
                };
                Rotary::long(&settings, rotated, factor, original)
            }
            "linear" => {
                let factor = positive("factor")? as f32;
                Ok(plain.each(|_, frequency| frequency / factor))
            }
            "llama3" => {
                let [factor, low, high, length] = [
                    "factor",
                    "low_freq_factor",
                    "high_freq_factor",
                    "original_max_position_embeddings",
                ]
                .map(positive);
                let (low, high, length) = (low?, high?, length?);
                let factor = factor? as f32;
                if high <= low {
                    let reason = format!("must be above low_freq_factor ({low})");
                    return Err(settings.unsupported("high_freq_factor", reason));
                }
                Ok(plain.each(|_, frequency| {
                    let wavelength = (2.0 * PI) as f32 / frequency;
                    if f64::from(wavelength) > length / low {
                        return frequency / factor;
                    }
                    if f64::from(wavelength) < length / high {
                        return frequency;
                    }
                    let smooth = (length as f32 / wavelength - low as f32) / (high - low) as f32;
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }))
            }
            "yarn" if !rotated.is_multiple_of(2) => {
                let reason = format!("yarn rotates an even number of values, not {rotated}");
                Err(settings.unsupported("partial_rotary_factor", reason))
            }
            "yarn" => {
                let length = positive("original_max_position_embeddings")?;
                let factor = match settings.get("factor") {
                    Some(_) => positive("factor")?,
                    None => config.size("max_position_embeddings")? as f64 / length,
                };
                plain.yarn(&settings, factor, length)
            }
            _ => Err(settings.unsupported(
                kind_key,
                "this scaling is not implemented; known: default, linear, dynamic, llama3, yarn, longrope",
            )),
        }
    }

    /// `base^(-2i / rotated)` for each pair i. Of an odd number of values one more is rotated.
    pub fn new(base: f64, rotated: usize) -> Self {
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / rotated as f32;
            1.0 / base.powf(f64::from(exponent)) as f32
        };
        Rotary {
            frequencies: (0..rotated.div_ceil(2)).map(frequency).collect(),
            factor: 1.0,
            long: None,
        }
    }

    /// Ding et al. 2024, "LongRoPE": each pair has a factor for rows within the `original` length of
    /// pretraining, and another for longer ones; `factor` is how much longer rows may be.
    fn long(settings: &Config, rotated: usize, factor: f64, original: usize) -> Result<Self> {
        let base = settings.float("rope_theta")?;
        let pairs = rotated.div_ceil(2);
        let frequencies = |key: &str| {
            let numbers = settings.required(key, settings.get(key))?.as_array();
            let factors: Option<Vec<f32>> = numbers.and_then(|numbers| {
                let positive = |x: &Value| x.as_f64().filter(|x| *x > 0.0).map(|x| x as f32);
                numbers.iter().map(positive).collect()
            });
            let Some(factors) = factors.filter(|factors| factors.len() == pairs) else {
                let reason =
                    format!("must be a list of {pairs} positive numbers, one for each pair");
                return Err(settings.unsupported(key, reason));
            };
            let of = |(i, factor): (usize, f32)| {
                let exponent = (2 * i) as f32 / rotated as f32;
                1.0 / (factor * base.powf(f64::from(exponent)) as f32)
            };
            Ok(factors.into_iter().enumerate().map(of).collect())
        };
        let usual = match factor {
            ..=1.0 => 1.0,
            _ => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        Ok(Rotary {
            frequencies: frequencies("short_factor")?,
            factor: settings.float_or("attention_factor", usual)?,
            long: Some(LongRotary {
                original,
                frequencies: frequencies("long_factor")?,
            }),
        })
    }

    /// The frequencies of a batch's rows, by their length with padding, as in transformers.
    ///
    /// # Errors
    /// If keys of shorter rows may have been kept with other frequencies when a text grows longer.
    fn of(&self, batch: &TokenBatch) -> Result<&[f32]> {
        let Some(long) = &self.long else {
            return Ok(&self.frequencies);
        };
        match &batch.cache {
            Some(cache) if cache.columns() > long.original => Err(Error::LongGeneration {
                tokens: cache.columns(),
                original: long.original,
            }),
            None if batch.size()[1] > long.original => match &batch.position_ids {
                Some(_) => Err(Error::LongPacking {
                    tokens: batch.size()[1],
                    original: long.original,
                }),
                None => Ok(&long.frequencies),
            },
            _ => Ok(&self.frequencies),
        }
    }

    /// R
    pub fn rotated(&self) -> usize {
        2 * self.frequencies.len()
    }

    fn each(self, scaled: impl Fn(usize, f32) -> f32) -> Self {
        let frequencies = self.frequencies.into_iter().enumerate();
        Rotary {
            frequencies: frequencies.map(|(i, f)| scaled(i, f)).collect(),
            ..self
        }
    }

    /// Peng et al. 2023, "YaRN": pairs that turn often keep their frequency, those that turn rarely
    /// within the `length` of pretraining have it divided by `factor`, those between are mixed.
    fn yarn(self, settings: &Config, factor: f64, length: f64) -> Result<Self> {
        let scale = |mscale: f64| match factor {
            ..=1.0 => 1.0,
            _ => 0.1 * mscale * factor.ln() + 1.0,
        };
        let [mscale, over] = [
            settings.float_or("mscale", 0.0)?,
            settings.float_or("mscale_all_dim", 0.0)?,
        ];
        let usual = if mscale != 0.0 && over != 0.0 {
            scale(mscale) / scale(over)
        } else {
            scale(1.0)
        };
        let attention_factor = settings.float_or("attention_factor", usual)?;
        let base = settings.float("rope_theta")?;
        let rotated = self.rotated() as f64;
        // The pair that turns this often within the length.
        let pair = |turns: f64| rotated * (length / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let nonzero = |key: &str, usual: f64| match settings.float_or(key, usual) {
            Ok(0.0) => Ok(usual),
            other => other,
        };
        let (mut low, mut high) = (
            pair(nonzero("beta_fast", 32.0)?),
            pair(nonzero("beta_slow", 1.0)?),
        );
        if settings.flag_or("truncate", true)? {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(rotated - 1.0));
        if low == high {
            high += 0.001;
        }
        let factor = factor as f32;
        let scaled = self.each(|i, frequency| {
            let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            1.0 / (factor * (1.0 / frequency)) * (1.0 - kept) + frequency * kept
        });
        Ok(Rotary {
            factor: attention_factor,
            ..scaled
        })
    }

    /// Sines and cosines for the positions of a batch. Angles are f32 products of position and
    /// frequency, as torch has them.
    pub fn table(&self, batch: &TokenBatch) -> Result<RotaryTable> {
        let trace = batch.input_ids.trace();
        let _scope = trace.scope("rotary");
        let frequencies = self
            .of(batch)?
            .iter()
            .map(|&frequency| {
                trace
                    .constant(f64::from(frequency), DType::F32)?
                    .reshape(&[1])
            })
            .collect::<xtrain_graphs::Result<Vec<_>>>()?;
        let frequencies = Tensor::concat(&frequencies.iter().collect::<Vec<_>>(), 0)?;
        let ([b, t], pairs) = (batch.size(), self.frequencies.len());
        let positions = match batch.positions()? {
            None => trace.iota(DType::F32, &[t, pairs], 0)?,
            Some(positions) => positions
                .convert(DType::F32)?
                .broadcast_in(&[b, t, pairs], &[0, 1])?,
        };
        let last = positions.rank() - 1;
        let angles = positions.mul(&frequencies.broadcast_in(positions.dims(), &[last])?)?;
        let scaled = |x: Tensor| match self.factor {
            1.0 => Ok(x),
            factor => x.mul_scalar(factor),
        };
        Ok(RotaryTable {
            // Computed once: XLA would fuse them into every layer, for each head anew.
            sin: scaled(angles.sin()?)?.barrier()?,
            cos: scaled(angles.cos()?)?.barrier()?,
        })
    }
}

/// Sines and cosines of angles: `[T, R / 2]`, the same for every sequence, or `[B, T, R / 2]`.
pub(crate) struct RotaryTable {
    sin: Tensor,
    cos: Tensor,
}

impl RotaryTable {
    /// R / 2
    fn pairs(&self) -> usize {
        self.sin.dims()[self.sin.rank() - 1]
    }

    /// Turns the first R values of each head of `x` `[B, T, H, D]`: value i with value i + R / 2
    /// (Llama).
    pub fn turn_halves(&self, x: &Tensor) -> Result<Tensor> {
        let half = self.pairs();
        let [first, second] = [0, half].map(|start| x.slice_dim(3, start, start + half));
        let [first, second] = self.turn(&first?, &second?)?;
        self.with_rest(&[&first, &second], x)
    }

    /// Turns the first R values of each head of `x` `[B, T, H, D]`: value 2i with value 2i + 1
    /// (GPT-J).
    pub fn turn_neighbours(&self, x: &Tensor) -> Result<Tensor> {
        let [b, t, h] = [x.dims()[0], x.dims()[1], x.dims()[2]];
        let half = self.pairs();
        let pairs = x.slice_dim(3, 0, 2 * half)?.reshape(&[b, t, h, half, 2])?;
        let [first, second] = [0, 1].map(|which| pairs.slice_dim(4, which, which + 1));
        let [first, second] = self.turn(&first?, &second?)?;
        let turned = Tensor::concat(&[&first, &second], 4)?.reshape(&[b, t, h, 2 * half])?;
        self.with_rest(&[&turned], x)
    }

    /// The pairs that two tensors hold, `[B, T, H, R / 2, ..]`, turned.
    fn turn(&self, first: &Tensor, second: &Tensor) -> Result<[Tensor; 2]> {
        let map: &[usize] = if self.sin.rank() == 2 {
            &[1, 3]
        } else {
            &[0, 1, 3]
        };
        let spread = |table: &Tensor| {
            table
                .convert(first.dtype())?
                .broadcast_in(first.dims(), map)
        };
        let (sin, cos) = (spread(&self.sin)?, spread(&self.cos)?);
        Ok([
            first.mul(&cos)?.sub(&second.mul(&sin)?)?,
            second.mul(&cos)?.add(&first.mul(&sin)?)?,
        ])
    }

    /// The turned values with those of `x` that do not turn.
    fn with_rest(&self, turned: &[&Tensor], x: &Tensor) -> Result<Tensor> {
        let (rotated, head_dim) = (2 * self.pairs(), x.dims()[3]);
        if let ([turned], true) = (turned, rotated == head_dim) {
            return Ok((*turned).clone());
        }
        let mut parts = turned.to_vec();
        let rest;
        if rotated < head_dim {
            rest = x.slice_dim(3, rotated, head_dim)?;
            parts.push(&rest);
        }
        Ok(Tensor::concat(&parts, 3)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rotary(config: Value, keys: &RotaryKeys) -> Result<Rotary> {
        let mut config = Config::literal(config, "a test");
        config.set("max_position_embeddings", 64);
        Rotary::read(&config, 8, keys)
    }

    #[test]
    fn both_spellings_say_the_same() {
        let four = json!({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}});
        let five =
            json!({"rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}});
        let plain = json!({"rope_theta": 500.0, "rope_parameters": {"rope_type": "default"}});
        let [four, five, plain] =
            [four, five, plain].map(|config| rotary(config, &ROTARY).unwrap());
        assert_eq!(four.frequencies, five.frequencies);
        let halved: Vec<f32> = plain.frequencies.iter().map(|f| f / 2.0).collect();
        assert_eq!(four.frequencies, halved);
        assert_eq!(
            plain.frequencies[..2],
            [1.0, 1.0 / 500f64.powf(0.25) as f32]
        );
    }

    #[test]
    fn kinds_of_layers_have_settings_of_their_own() {
        let local = RotaryKeys {
            layer_type: Some("sliding_attention"),
            theta: "rope_local_base_freq",
            is_scaled: false,
            ..ROTARY
        };
        let scaled = json!({"rope_type": "linear", "factor": 8.0});
        let four =
            json!({"rope_theta": 1e6, "rope_local_base_freq": 100.0, "rope_scaling": scaled});
        let five = json!({"rope_theta": 1e6, "rope_parameters": {"sliding_attention": {"rope_theta": 100.0}, "full_attention": scaled}});
        for config in [four, five] {
            let frequencies = rotary(config, &local).unwrap().frequencies;
            assert_eq!(frequencies, Rotary::new(100.0, 8).frequencies);
        }
    }

    #[test]
    fn the_older_word_counts_where_no_kind_is_named() {
        let full = RotaryKeys {
            layer_type: Some("full_attention"),
            ..ROTARY
        };
        let older = json!({"type": "linear", "factor": 2.0});
        let both = json!({"type": "yarn", "rope_type": "linear", "factor": 2.0});
        let of = |scaling: &Value, parameters: Value, keys| {
            rotary(
                json!({"rope_theta": 100.0, "rope_scaling": scaling, "rope_parameters": parameters}),
                keys,
            )
        };
        let plain = Rotary::new(100.0, 8).frequencies;
        let halved: Vec<f32> = plain.iter().map(|f| f / 2.0).collect();
        for (scaling, parameters, keys, expected) in [
            (&older, json!(null), &ROTARY, &halved),
            (&both, json!(null), &ROTARY, &halved),
            (&both, json!(null), &full, &halved),
            // Kinds of layers are `default` before the older spelling is read.
            (&older, json!(null), &full, &plain),
            (&older, json!({"full_attention": {}}), &full, &halved),
            (
                &json!(null),
                json!({"full_attention": older}),
                &full,
                &halved,
            ),
        ] {
            let found = of(scaling, parameters.clone(), keys).unwrap().frequencies;
            assert_eq!(&found, expected, "{scaling} {parameters}");
        }
    }

    #[test]
    fn of_an_odd_number_of_values_one_more_turns() {
        let keys = RotaryKeys {
            may_be_partial: true,
            ..ROTARY
        };
        let of = |share: f64, kind: &str| {
            let parameters = json!({"rope_theta": 100.0, "partial_rotary_factor": share,
                "rope_type": kind, "factor": 2.0});
            rotary(json!({ "rope_parameters": parameters }), &keys)
        };
        let third = of(0.4, "default").unwrap(); // 3 of 8
        assert_eq!(
            third.frequencies,
            [1.0, 1.0 / 100f64.powf(f64::from(2.0f32 / 3.0)) as f32]
        );
        assert_eq!(third.rotated(), 4);
        for (share, kind) in [(0.1, "default"), (0.4, "yarn")] {
            let message = of(share, kind).err().unwrap().to_string();
            assert!(message.contains("partial_rotary_factor"), "{message}");
        }
    }

    #[test]
    fn longer_rows_have_frequencies_of_their_own() {
        let long = json!({"rope_theta": 100.0, "original_max_position_embeddings": 16, "rope_scaling": {
            "type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4.5]}});
        let keys = RotaryKeys {
            is_default_or_long: true,
            ..ROTARY
        };
        let of = |length: usize| {
            let trace = xtrain_graphs::Trace::new();
            let ids = trace.iota(DType::S32, &[2, length], 1).unwrap();
            let rotary = rotary(long.clone(), &keys).unwrap();
            rotary.of(&TokenBatch::new(ids)).unwrap().to_vec()
        };
        let plain = Rotary::new(100.0, 8).frequencies;
        assert_eq!(of(16), plain);
        let ratio = plain[3] / of(17)[3];
        assert!((ratio - 4.5).abs() < 1e-5, "{ratio}");
        let factor = rotary(long, &keys).unwrap().factor;
        // 64 positions are 4 times 16.
        assert!((factor - 1.5f64.sqrt()).abs() < 1e-12, "{factor}");
        let other = json!({"rope_theta": 1.0, "rope_scaling": {"type": "linear", "factor": 2.0}});
        let message = rotary(other, &keys).err().unwrap().to_string();
        assert!(message.contains("default and longrope"), "{message}");
    }

    #[test]
    fn yarn_keeps_what_turns_often() {
        let yarn = json!({"rope_parameters": {"rope_theta": 100.0, "rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64}});
        let yarn = rotary(yarn, &ROTARY).unwrap();
        let plain = Rotary::new(100.0, 8);
        assert_eq!(yarn.frequencies[0], plain.frequencies[0]);
        let ratio = plain.frequencies[3] / yarn.frequencies[3];
        assert!((ratio - 4.0).abs() < 1e-5, "{ratio}");
        assert!((yarn.factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        let of = |parameters: Value| json!({"rope_theta": 1e4, "rope_parameters": parameters});
        for (config, words) in [
            (
                of(json!({"rope_type": "proportional"})),
                ["rope_type", "llama3, yarn"],
            ),
            (
                of(json!({"rope_type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.0]})),
                ["long_factor", "missing"],
            ),
            (
                of(json!({"rope_type": "longrope", "short_factor": [1.0, 1.0]})),
                ["short_factor", "list of 4 positive numbers"],
            ),
            (
                of(json!({"rope_type": "linear"})),
                ["rope_parameters", "factor"],
            ),
            (
                of(json!({"partial_rotary_factor": 0.5})),
                ["partial_rotary_factor", "whole heads"],
            ),
            (of(json!({"rope_theta": -1.0})), ["rope_theta", "positive"]),
            (of(json!("yes")), ["rope_parameters", "table"]),
            (json!({}), ["rope_theta", "a test"]),
        ] {
            let message = rotary(config, &ROTARY).err().unwrap().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
