//! GPT-2 (Radford et al. 2019) as transformers' `modeling_gpt2.py` computes it.
//!
//! Letters: B batch, T tokens, N = B * T, C width, H heads, D = C / H, V vocabulary, F inner width. Activations stay `[N, C]`
//! between attention blocks. Linear weights have the Conv1D layout `[in, out]`.

use crate::activation::Activation;
use crate::config::Config;
use crate::error::Result;
use crate::names::stored_name;
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{Family, Model, Task, TokenBatch, layers};
use serde_json::{Value, json};
use xtrain_graphs::op::{Attention, F64};
use xtrain_graphs::{Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "gpt2",
    usual_task: Task::CausalLm,
    class: |task| match task {
        Task::CausalLm => Some("GPT2LMHeadModel"),
        Task::Classification { .. } => Some("GPT2ForSequenceClassification"),
        Task::MaskedLm => None,
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Gpt2::new(config, task)?)),
};

/// A GPT-2 with a language-model head (`GPT2LMHeadModel`) or a classifier on each sequence's last token.
pub struct Gpt2 {
    config: Config,
    task: Task,
    vocab: usize,
    positions: usize,
    width: usize,
    layers: usize,
    heads: usize,
    inner: usize,
    activation: Activation,
    embd_pdrop: f64,
    attn_pdrop: f64,
    resid_pdrop: f64,
    layer_norm_epsilon: f64,
    initializer_range: f64,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
    tied_head: bool,
}

/// `GPT2Config`'s defaults: the small model.
pub fn default_config() -> Config {
    let Value::Object(values) = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": null,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "add_cross_attention": false,
        "tie_word_embeddings": true,
        "use_cache": true,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "torch_dtype": "float32",
    }) else {
        unreachable!("the literal above is a table")
    };
    Config::new(values, "GPT-2's default configuration")
}

/// The released sizes.
pub fn preset(name: &str) -> Option<Config> {
    let (width, layers, heads) = match name {
        "gpt2" => (768, 12, 12),
        "gpt2-medium" => (1024, 24, 16),
        "gpt2-large" => (1280, 36, 20),
        "gpt2-xl" => (1600, 48, 25),
        _ => return None,
    };
    let mut config = Config::new(default_config().values().clone(), format!("preset {name}"));
    config.set("n_embd", width);
    config.set("n_layer", layers);
    config.set("n_head", heads);
    Some(config)
}

impl Gpt2 {
    /// Reads the configuration; what would change numbers and is not implemented is refused by name.
    pub fn new(config: Config, task: Task) -> Result<Self> {
        // Old checkpoints say n_ctx where new ones say n_positions.
        let positions = match config.optional_size("n_positions")? {
            Some(n) => n,
            None => config.size_or("n_ctx", 1024)?,
        };
        let (width, heads) = (config.size_or("n_embd", 768)?, config.size_or("n_head", 12)?);
        if !width.is_multiple_of(heads) {
            return Err(config.unsupported("n_embd", format!("must be a multiple of n_head ({heads})")));
        }
        if config.flag_or("add_cross_attention", false)? {
            return Err(config.unsupported("add_cross_attention", "cross-attention is not implemented"));
        }
        if config.get("quantization_config").is_some() {
            return Err(config.unsupported("quantization_config", "quantized checkpoints cannot be trained"));
        }
        // reorder_and_upcast_attn only changes where half-precision attention is computed in f32; softmax statistics are
        // f32 here either way, so both values give these numbers.
        config.flag_or("reorder_and_upcast_attn", false)?;
        Ok(Gpt2 {
            vocab: config.size_or("vocab_size", 50257)?,
            positions,
            width,
            layers: config.size_or("n_layer", 12)?,
            heads,
            inner: config.size_or("n_inner", 4 * width)?,
            activation: Activation::from_config(&config, "activation_function", "gelu_new")?,
            embd_pdrop: config.rate_or("embd_pdrop", 0.1)?,
            attn_pdrop: config.rate_or("attn_pdrop", 0.1)?,
            resid_pdrop: config.rate_or("resid_pdrop", 0.1)?,
            layer_norm_epsilon: config.float_or("layer_norm_epsilon", 1e-5)?,
            initializer_range: config.float_or("initializer_range", 0.02)?,
            scale_attn_weights: config.flag_or("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: config.flag_or("scale_attn_by_inverse_layer_idx", false)?,
            tied_head: config.flag_or("tie_word_embeddings", true)?,
            task,
            config,
        })
    }

    fn block(&self, layer: usize, weights: &Weights, x: &Tensor, batch: &TokenBatch, randomness: &Randomness) -> Result<Tensor> {
        let normed = self.layer_norm(weights, "ln_1", x)?;
        let attended = self.attention(layer, weights, &normed, batch, randomness)?;
        let x = x.add(&attended)?;
        let normed = self.layer_norm(weights, "ln_2", &x)?;
        let (mlp, _scope) = weights.enter("mlp");
        let inner = self.activation.apply(&conv1d(&mlp, "c_fc", &normed)?)?; // [N, F]
        let projected = conv1d(&mlp, "c_proj", &inner)?; // [N, C]
        Ok(x.add(&randomness.dropout(&projected, self.resid_pdrop)?)?)
    }

    fn attention(
        &self,
        layer: usize,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("attn");
        let [b, t] = [batch.input_ids.dims()[0], batch.input_ids.dims()[1]];
        let (h, d) = (self.heads, self.width / self.heads);
        let qkv = conv1d(&weights, "c_attn", x)?; // [N, 3C]
        let part = |i: usize| {
            let slice = qkv.slice_dim(1, i * self.width, (i + 1) * self.width)?;
            slice.reshape(&[b, t, h, d])?.transpose(&[0, 2, 1, 3]) // [B, H, T, D]
        };
        let mut scale = if self.scale_attn_weights { 1.0 / (d as f64).sqrt() } else { 1.0 };
        if self.scale_attn_by_inverse_layer_idx {
            scale /= (layer + 1) as f64;
        }
        let keep = randomness.keep_mask(&[b, h, t, t], self.attn_pdrop)?;
        let attributes = Attention {
            scale: F64::new(scale),
            causal: true,
            window: None,
            key_mask: false,
            dropout: keep.as_ref().map(|_| F64::new(self.attn_pdrop)),
        };
        let out = part(0)?.attention(&part(1)?, &part(2)?, batch.attention_mask.as_ref(), keep.as_ref(), attributes)?;
        let merged = out.transpose(&[0, 2, 1, 3])?.reshape(&[b * t, self.width])?;
        Ok(randomness.dropout(&conv1d(&weights, "c_proj", &merged)?, self.resid_pdrop)?)
    }

    fn layer_norm(&self, weights: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
        let (weights, _scope) = weights.enter(name);
        Ok(x.layer_norm(weights.get("weight")?, weights.get("bias")?, self.layer_norm_epsilon)?)
    }
}

/// `x [N, in] W [in, out] + b`
fn conv1d(weights: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weights, _scope) = weights.enter(name);
    Ok(x.matmul(weights.get("weight")?)?.add(weights.get("bias")?)?)
}

impl Model for Gpt2 {
    fn config(&self) -> &Config {
        &self.config
    }

    fn task(&self) -> Task {
        self.task
    }

    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn max_positions(&self) -> usize {
        self.positions
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let (c, f) = (self.width, self.inner);
        let normal = Init::Normal { std: self.initializer_range };
        // GPT-2 scales the weights that write to the residual stream by the number of writes.
        let residual = Init::Normal { std: self.initializer_range / ((2 * self.layers) as f64).sqrt() };
        let mut specs = Vec::new();
        let mut add = |name: String, dims: &[usize], init: Init| {
            // Matrices decay; biases and LayerNorm weights, the only vectors, do not.
            specs.push(ParameterSpec { name, dims: dims.to_vec(), init, decay: dims.len() > 1 });
        };
        add("transformer.wte.weight".into(), &[self.vocab, c], normal);
        add("transformer.wpe.weight".into(), &[self.positions, c], normal);
        for layer in 0..self.layers {
            let name = |rest: &str| format!("transformer.h.{layer}.{rest}");
            add(name("ln_1.weight"), &[c], Init::Ones);
            add(name("ln_1.bias"), &[c], Init::Zeros);
            add(name("attn.c_attn.weight"), &[c, 3 * c], normal);
            add(name("attn.c_attn.bias"), &[3 * c], Init::Zeros);
            add(name("attn.c_proj.weight"), &[c, c], residual);
            add(name("attn.c_proj.bias"), &[c], Init::Zeros);
            add(name("ln_2.weight"), &[c], Init::Ones);
            add(name("ln_2.bias"), &[c], Init::Zeros);
            add(name("mlp.c_fc.weight"), &[c, f], normal);
            add(name("mlp.c_fc.bias"), &[f], Init::Zeros);
            add(name("mlp.c_proj.weight"), &[f, c], residual);
            add(name("mlp.c_proj.bias"), &[c], Init::Zeros);
        }
        add("transformer.ln_f.weight".into(), &[c], Init::Ones);
        add("transformer.ln_f.bias".into(), &[c], Init::Zeros);
        match self.task {
            Task::Classification { labels } => add("score.weight".into(), &[labels, c], normal),
            _ if self.tied_head => {}
            _ => add("lm_head.weight".into(), &[self.vocab, c], normal),
        }
        specs
    }

    fn stored_name(&self, name: &str) -> StoredName {
        // The causal-mask buffers that old checkpoints carry.
        if name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") {
            return StoredName::NotNeeded;
        }
        stored_name(name, "transformer", &self.parameters(), &["lm_head.", "score."])
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, randomness: &Randomness) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("transformer");
        let ids = &batch.input_ids;
        let (b, t) = (ids.dims()[0], ids.dims()[1]);
        let tokens = weights.get("wte.weight")?.take_rows(&ids.reshape(&[b * t])?)?; // [N, C]
        let positions = weights.get("wpe.weight")?.slice_dim(0, 0, t)?; // [T, C]
        let positions = positions.broadcast_in(&[b, t, self.width], &[1, 2])?.reshape(&[b * t, self.width])?;
        let mut x = randomness.dropout(&tokens.add(&positions)?, self.embd_pdrop)?;
        for layer in 0..self.layers {
            let (block, _scope) = weights.enter(&format!("h.{layer}"));
            x = self.block(layer, &block, &x, batch, randomness)?;
        }
        self.layer_norm(&weights, "ln_f", &x)
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::last_rows(hidden, batch, &self.config)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, _randomness: &Randomness) -> Result<Tensor> {
        if let Task::Classification { .. } = self.task {
            return layers::linear_without_bias(weights, "score", hidden);
        }
        let _scope = weights.trace().scope("lm_head");
        let name = if self.tied_head { "transformer.wte.weight" } else { "lm_head.weight" };
        Ok(hidden.matmul_transposed(weights.get(name)?)?)
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        let (c, f) = (self.width as f64, self.inner as f64);
        let weights = self.layers as f64 * (4.0 * c * c + 2.0 * c * f) + self.vocab as f64 * c;
        let attention = 12.0 * self.layers as f64 * c * tokens as f64;
        (batch * tokens) as f64 * (6.0 * weights + attention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        for (name, count) in
            [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)]
        {
            let model = Gpt2::new(preset(name).unwrap(), Task::CausalLm).unwrap();
            let total: usize = model.parameters().iter().map(|p| p.dims.iter().product::<usize>()).sum();
            assert_eq!(total, count, "{name}");
        }
    }

    #[test]
    fn what_changes_numbers_is_honoured_or_refused() {
        let set = |key: &str, value: Value| [(key.to_string(), value)];
        let refuse = |key: &str, value: Value, word: &str| {
            let mut config = default_config();
            config.apply_overrides(&set(key, value)).unwrap();
            let message = Gpt2::new(config, Task::CausalLm).err().unwrap().to_string();
            assert!(message.contains(word), "{message}");
        };
        refuse("add_cross_attention", true.into(), "cross-attention");
        refuse("activation_function", "mish".into(), "gelu_new");
        refuse("n_head", 7.into(), "n_head");
        refuse("resid_pdrop", 1.5.into(), "between 0 and 1");
        assert!(default_config().apply_overrides(&set("no_such", 1.into())).is_err());
        assert!(default_config().apply_overrides(&set("n_layer", "four".into())).is_err());
        assert!(default_config().apply_overrides(&set("n_layer", 1.5.into())).is_err());
    }
}
