//! Llama (Touvron et al. 2023) and its relatives as transformers computes them: one decoder, RMSNorm
//! before each block, rotary positions, grouped queries and a gated MLP, with the switches of each
//! family.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H query heads, K key/value heads, D values of
//! a head, V vocabulary, F intermediate size. Activations stay `[N, C]` between attention blocks.
//! Linear weights are `[out, in]`.

mod families;

pub(crate) use families::{
    GEMMA, GEMMA2, GEMMA3, GRANITE, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, SMOLLM3,
};

use crate::activation::Activation;
use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::error::Result;
use crate::head::HeadKind;
use crate::layers::{self, AttentionKind, rms_norm, split_heads};
use crate::linear::Linear;
use crate::model::{Model, ModelInfo, Pooling};
use crate::rotary::{ROTARY, Rotary, RotaryKeys, RotaryTable};
use crate::weights::Weights;
use serde_json::Value;
use xtrain_graphs::op::Gelu;
use xtrain_graphs::{DropoutRng, Tensor};

/// What a family fixes, whatever a configuration says.
struct Switches {
    biases: Biases,
    /// Those of [`SOME_KEYS`] that are settings of the family; transformers overlooks the others.
    keys: &'static [&'static str],
    /// The key of the activation.
    activation: &'static str,
    /// Queries and keys are normalized head by head.
    norms_heads: bool,
    /// Norms' weights start at zero and are added to one, and embeddings are multiplied by the root
    /// of the hidden size (Gemma).
    is_gemma: bool,
    /// What attention and MLP give is normalized as well.
    norms_outputs: bool,
    /// Queries, keys and values are one matrix, gate and up another.
    is_fused: bool,
    windows: Windows,
    /// Layers with a window rotate otherwise.
    has_local_rotary: bool,
}

/// Settings of some families only.
const SOME_KEYS: [&str; 11] = [
    "mlp_bias",
    "use_sliding_window",
    "no_rope_layers",
    "no_rope_layer_interval",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
];

/// Which projections of attention have biases.
enum Biases {
    None,
    /// All or none, as `attention_bias` says.
    OfKey,
    /// All but the output's.
    QueriesKeysValues,
}

/// Which layers see the last `sliding_window` tokens only, where `layer_types` does not say so.
enum Windows {
    /// None; there is no such setting.
    None,
    /// Every one; `layer_types` is no setting.
    All,
    /// Those that this says of a layer's number.
    Of(fn(&Config, usize) -> Result<bool>),
}

/// Whether a layer of SmolLM3 rotates queries and keys.
fn rotates(config: &Config, layer: usize) -> Result<bool> {
    let Some(list) = config.get("no_rope_layers") else {
        let Some(interval) = config.optional_size("no_rope_layer_interval")? else {
            return Ok(true);
        };
        return Ok(!(layer + 1).is_multiple_of(interval));
    };
    match list.get(layer).and_then(Value::as_u64) {
        Some(flag @ 0..=1) => Ok(flag == 1),
        _ => Err(config.unsupported(
            "no_rope_layers",
            format!("needs a 0 or 1 for each layer; layer {layer} has none"),
        )),
    }
}

/// What differs between layers.
struct Layer {
    /// The tokens that it sees; `None` for all.
    window: Option<u32>,
    /// The index of its table of angles; `None`: it does not rotate.
    rotary: Option<usize>,
}

/// Reads which layers have windows, and of how many tokens.
fn windows(switches: &Switches, config: &Config, layers: usize) -> Result<Vec<Option<u32>>> {
    let window = match switches.windows {
        Windows::None => None,
        _ if !config.flag_or("use_sliding_window", true)? => None,
        _ => config.optional_size("sliding_window")?,
    };
    // Sizes are below 2^31.
    let window = window.map(|tokens| tokens as u32);
    let of = match &switches.windows {
        Windows::None => return Ok(vec![None; layers]),
        Windows::All => return Ok(vec![window; layers]),
        Windows::Of(of) => of,
    };
    let Some(types) = config.get("layer_types") else {
        let layer = |number| Ok(if of(config, number)? { window } else { None });
        return (0..layers).map(layer).collect();
    };
    let wrong = |reason: String| config.unsupported("layer_types", reason);
    let types = types.as_array().map(Vec::as_slice).unwrap_or_default();
    if types.len() != layers {
        return Err(wrong(format!(
            "must be a list with a type for each of the {layers} layers"
        )));
    }
    let layer = |kind: &Value| match (kind.as_str(), window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
        (Some("sliding_attention"), None) => Err(wrong(
            "has sliding_attention, but sliding_window is not set or use_sliding_window is false"
                .into(),
        )),
        _ => Err(wrong(
            "knows full_attention and sliding_attention only".into(),
        )),
    };
    types.iter().map(layer).collect()
}

/// A model of these families with a language-model head (`XForCausalLM`), a classifier on each
/// sequence's last token or one on each token.
struct Llama {
    info: ModelInfo,
    switches: &'static Switches,
    hidden_size: usize,
    intermediate_size: usize,
    activation: Activation,
    eps: f64,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    /// The token whose embedding gets no gradient from lookups.
    padding_idx: Option<usize>,
    tied_head: bool,
    layers: Vec<Layer>,
    rotaries: Vec<Rotary>,
    score_scale: f64,
    score_cap: Option<f64>,
    logit_cap: Option<f64>,
    embedding_factor: f64,
    residual_factor: f64,
    logit_divisor: f64,
    attention_dropout: f64,
    residual_dropout: f64,
    classifier_dropout: f64,
}

impl Llama {
    fn build(
        switches: &'static Switches,
        config: Config,
        mut read: Config,
        head: HeadKind,
    ) -> Result<Box<dyn Model>> {
        for key in SOME_KEYS {
            if !switches.keys.contains(&key) {
                read.remove(key);
            }
        }
        read.refuse_unbuilt()?;
        read.only(
            "use_bidirectional_attention",
            false,
            "attention to later tokens is not implemented for decoders",
        )?;
        let info = ModelInfo {
            pooling: Pooling::last_token(&read)?,
            ..ModelInfo::read(config, &read, head)?
        };
        let count = read.layers()?;
        let windows = windows(switches, &read, count)?;
        let mut keys = vec![RotaryKeys {
            may_be_partial: switches.is_fused,
            is_default_or_long: switches.is_fused,
            ..ROTARY
        }];
        if switches.has_local_rotary {
            keys[0].layer_type = Some("full_attention");
            keys.push(RotaryKeys {
                layer_type: Some("sliding_attention"),
                theta: "rope_local_base_freq",
                is_scaled: false,
                ..ROTARY
            });
        }
        let rotaries = keys
            .iter()
            .map(|keys| Rotary::read(&read, info.head_dim, keys))
            .collect::<Result<_>>()?;
        let layer = |(number, window): (usize, Option<u32>)| {
            let is_local = switches.has_local_rotary && window.is_some();
            Ok(Layer {
                window,
                rotary: rotates(&read, number)?.then_some(usize::from(is_local)),
            })
        };
        let layers = windows
            .into_iter()
            .enumerate()
            .map(layer)
            .collect::<Result<_>>()?;
        let attention_bias = || read.flag_or("attention_bias", false);
        let (qkv_bias, output_bias) = match switches.biases {
            Biases::None => (false, false),
            Biases::OfKey => (attention_bias()?, attention_bias()?),
            Biases::QueriesKeysValues => (true, false),
        };
        let key = switches.activation;
        let activation = match read.text_or(key, "silu")?.as_str() {
            // As transformers reads the first Gemma's releases, which mean the approximation.
            "gelu" if switches.is_gemma && key == "hidden_act" => Activation::Gelu(Gelu::Tanh),
            _ => Activation::from_config(&read, key, "silu")?,
        };
        let hidden_size = read.size("hidden_size")?;
        let cap = |key: &str| match read.get(key) {
            Some(_) if read.float(key)? > 0.0 => Ok(Some(read.float(key)?)),
            Some(_) => Err(read.unsupported(key, "must be positive, or null for none")),
            None => Ok(None),
        };
        let score_width = read.float_or("query_pre_attn_scalar", info.head_dim as f64)?;
        if score_width <= 0.0 {
            return Err(read.unsupported("query_pre_attn_scalar", "must be positive"));
        }
        let logit_divisor = read.float_or("logits_scaling", 1.0)?;
        if logit_divisor == 0.0 {
            return Err(read.unsupported("logits_scaling", "logits cannot be divided by zero"));
        }
        let gemma_factor = if switches.is_gemma {
            (hidden_size as f64).sqrt()
        } else {
            1.0
        };
        Ok(Box::new(Llama {
            switches,
            hidden_size,
            intermediate_size: read.size("intermediate_size")?,
            activation,
            eps: read.float("rms_norm_eps")?,
            qkv_bias,
            output_bias,
            mlp_bias: read.flag_or("mlp_bias", false)?,
            padding_idx: read.padding_idx()?,
            tied_head: read.flag_or("tie_word_embeddings", false)?,
            layers,
            rotaries,
            score_scale: read.float_or("attention_multiplier", 1.0 / score_width.sqrt())?,
            score_cap: cap("attn_logit_softcapping")?,
            logit_cap: cap("final_logit_softcapping")?,
            embedding_factor: read.float_or("embedding_multiplier", gemma_factor)?,
            residual_factor: read.float_or("residual_multiplier", 1.0)?,
            logit_divisor,
            attention_dropout: read.rate_or("attention_dropout", 0.0)?,
            residual_dropout: if switches.is_fused {
                read.rate_or("resid_pdrop", 0.0)?
            } else {
                0.0
            },
            classifier_dropout: read
                .rate_or("classifier_dropout", read.rate_or("hidden_dropout", 0.1)?)?,
            info,
        }))
    }

    fn norm(&self, weights: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
        let from_zero = self.switches.is_gemma;
        rms_norm(weights, name, x, Axis::Embed, self.eps, from_zero)
    }

    /// What a block adds to the residual stream, `[N, C]` of its output.
    fn added(&self, output: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        let output = rng.dropout(output, self.residual_dropout)?;
        Ok(match self.residual_factor {
            1.0 => output,
            factor => output.mul_scalar(factor)?,
        })
    }

    fn layer(
        &self,
        layer: &Layer,
        tables: &[RotaryTable],
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        weights.registers_first(&["self_attn", "mlp"]);
        let normed = self.norm(weights, "input_layernorm", x)?;
        let mut attended = {
            let (weights, _scope) = weights.enter("self_attn");
            let table = layer.rotary.map(|index| &tables[index]);
            self.attention(layer.window, table, &weights, &normed, batch, rng)?
        };
        let before_mlp = if self.switches.norms_outputs {
            attended = self.norm(weights, "post_attention_layernorm", &attended)?;
            "pre_feedforward_layernorm"
        } else {
            "post_attention_layernorm"
        };
        let x = x.add(&self.added(&attended, rng)?)?;
        let normed = self.norm(weights, before_mlp, &x)?;
        let mut output = {
            let (weights, _scope) = weights.enter("mlp");
            self.mlp(&weights, &normed)?
        };
        if self.switches.norms_outputs {
            output = self.norm(weights, "post_feedforward_layernorm", &output)?;
        }
        Ok(x.add(&self.added(&output, rng)?)?)
    }

    /// Queries `[B, T, H, D]`, keys and values `[B, T, K, D]` of `x` `[N, C]`.
    fn qkv(&self, weights: &Weights, x: &Tensor, batch: &TokenBatch) -> Result<[Tensor; 3]> {
        let ModelInfo {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.info;
        let (width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        if self.switches.is_fused {
            let axis = Axis::Qkv {
                group: heads / kv_heads,
            };
            let to = (axis, width + 2 * kv_width);
            let qkv = weights.linear(
                "qkv_proj",
                x,
                Linear::new(Axis::Embed, to).with_bias_if(self.qkv_bias),
            )?;
            let part = |start, size, heads| {
                split_heads(&qkv.slice_dim(1, start, start + size)?, batch, heads)
            };
            return Ok([
                part(0, width, heads)?,
                part(width, kv_width, kv_heads)?,
                part(width + kv_width, kv_width, kv_heads)?,
            ]);
        }
        let project = |name, axis, heads: usize| {
            let to = (axis, heads * head_dim);
            let projected = weights.linear(
                name,
                x,
                Linear::new(Axis::Embed, to).with_bias_if(self.qkv_bias),
            )?;
            split_heads(&projected, batch, heads)
        };
        Ok([
            project("q_proj", Axis::Heads, heads)?,
            project("k_proj", Axis::KvHeads, kv_heads)?,
            project("v_proj", Axis::KvHeads, kv_heads)?,
        ])
    }

    fn attention(
        &self,
        window: Option<u32>,
        table: Option<&RotaryTable>,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        weights.registers_first(&["q_proj", "k_proj", "v_proj", "o_proj"]);
        let [mut q, mut k, v] = self.qkv(weights, x, batch)?;
        if self.switches.norms_heads {
            let from_zero = self.switches.is_gemma;
            let norm =
                |name, x: &Tensor| rms_norm(weights, name, x, Axis::Head, self.eps, from_zero);
            (q, k) = (norm("q_norm", &q)?, norm("k_norm", &k)?);
        }
        if let Some(table) = table {
            (q, k) = (table.turn_halves(&q)?, table.turn_halves(&k)?);
        }
        let kind = AttentionKind {
            scale: self.score_scale,
            causal: true,
            window,
            soft_cap: self.score_cap,
            dropout: self.attention_dropout,
        };
        let out = layers::attention(&q, &k, &v, batch, rng, kind)?; // [N, H * D]
        let to = (Axis::Embed, self.hidden_size);
        weights.linear(
            "o_proj",
            &out,
            Linear::new(Axis::Heads, to).with_bias_if(self.output_bias),
        )
    }

    /// The gated MLP (Shazeer 2020): `down(act(gate(x)) * up(x))`, `[N, C]` of `x` `[N, C]`.
    fn mlp(&self, weights: &Weights, x: &Tensor) -> Result<Tensor> {
        let f = self.intermediate_size;
        let inner = |name, to| {
            weights.linear(
                name,
                x,
                Linear::new(Axis::Embed, to).with_bias_if(self.mlp_bias),
            )
        };
        let (gate, up) = if self.switches.is_fused {
            let both = inner("gate_up_proj", (Axis::GateUp, 2 * f))?;
            (both.slice_dim(1, 0, f)?, both.slice_dim(1, f, 2 * f)?)
        } else {
            (
                inner("gate_proj", (Axis::Mlp, f))?,
                inner("up_proj", (Axis::Mlp, f))?,
            )
        };
        let gated = self.activation.gated(&gate, &up)?; // [N, F]
        let to = (Axis::Embed, self.hidden_size);
        weights.linear(
            "down_proj",
            &gated,
            Linear::new(Axis::Mlp, to).with_bias_if(self.mlp_bias),
        )
    }
}

impl Model for Llama {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let tables = self
            .rotaries
            .iter()
            .map(|rotary| rotary.table(batch))
            .collect::<Result<Vec<_>>>()?;
        let (weights, _scope) = weights.enter("model");
        let dims = [
            (Axis::Vocab, self.info.vocab_size),
            (Axis::Embed, self.hidden_size),
        ];
        let x = weights.embedding("embed_tokens", &batch.input_ids, dims, self.padding_idx)?;
        let mut x = rng.add_embedding_noise(&x, batch.size()[1])?;
        if self.embedding_factor != 1.0 {
            x = x.mul_scalar(self.embedding_factor)?;
        }
        for (number, layer) in self.layers.iter().enumerate() {
            let (weights, _scope) = weights.enter_layer(&format!("layers.{number}"), &x);
            x = self.layer(layer, &tables, &weights, &x, batch, rng)?;
        }
        self.norm(&weights, "norm", &x)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        let logits = match self.info.head {
            HeadKind::SequenceClassification { labels } => {
                let to = (Axis::Labels, labels);
                return weights.linear(
                    "score",
                    hidden,
                    Linear::new(Axis::Embed, to).without_bias(),
                );
            }
            HeadKind::TokenClassification { labels } => {
                let dropped = rng.dropout(hidden, self.classifier_dropout)?;
                let to = (Axis::Labels, labels);
                return weights.linear("score", &dropped, Linear::new(Axis::Embed, to));
            }
            HeadKind::CausalLm | HeadKind::MaskedLm => {
                let to = (Axis::Vocab, self.info.vocab_size);
                let head = Linear::new(Axis::Embed, to)
                    .without_bias()
                    .tied_if(self.tied_head, "model.embed_tokens.weight");
                weights.linear("lm_head", hidden, head)?
            }
        };
        let logits = match self.logit_divisor {
            1.0 => logits,
            divisor => logits.mul_scalar(1.0 / divisor)?,
        };
        match self.logit_cap {
            Some(cap) => Ok(logits.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap)?),
            None => Ok(logits),
        }
    }
}
