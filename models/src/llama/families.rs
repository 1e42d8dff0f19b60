//! The families that are this decoder: their switches, configurations and released sizes.

use super::{Biases, Llama, Switches, Windows, rotates};
use crate::family::{Family, Kind};
use crate::names::StoredNames;
use serde_json::{Value, json};

const LLAMA_SWITCHES: Switches = Switches {
    biases: Biases::OfKey,
    keys: &["mlp_bias"],
    activation: "hidden_act",
    norms_heads: false,
    is_gemma: false,
    norms_outputs: false,
    is_fused: false,
    windows: Windows::None,
    has_local_rotary: false,
};

const MISTRAL_SWITCHES: Switches = Switches {
    biases: Biases::None,
    keys: &[],
    windows: Windows::All,
    ..LLAMA_SWITCHES
};

const QWEN2_SWITCHES: Switches = Switches {
    biases: Biases::QueriesKeysValues,
    keys: &["use_sliding_window"],
    windows: Windows::Of(|config, layer| Ok(layer >= config.count("max_window_layers")?)),
    ..LLAMA_SWITCHES
};

const QWEN3_SWITCHES: Switches = Switches {
    biases: Biases::OfKey,
    norms_heads: true,
    ..QWEN2_SWITCHES
};

const SMOLLM3_SWITCHES: Switches = Switches {
    keys: &[
        "mlp_bias",
        "use_sliding_window",
        "no_rope_layers",
        "no_rope_layer_interval",
    ],
    // Layers with a window are those that do not rotate.
    windows: Windows::Of(|config, layer| Ok(!rotates(config, layer)?)),
    ..LLAMA_SWITCHES
};

const GRANITE_SWITCHES: Switches = Switches {
    keys: &[
        "mlp_bias",
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
    ],
    ..LLAMA_SWITCHES
};

const PHI3_SWITCHES: Switches = Switches {
    is_fused: true,
    ..MISTRAL_SWITCHES
};

const GEMMA_SWITCHES: Switches = Switches {
    keys: &[],
    is_gemma: true,
    ..LLAMA_SWITCHES
};

const GEMMA2_SWITCHES: Switches = Switches {
    activation: "hidden_activation",
    norms_outputs: true,
    keys: &[
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    windows: Windows::Of(|_, layer| Ok(layer.is_multiple_of(2))),
    ..GEMMA_SWITCHES
};

const GEMMA3_SWITCHES: Switches = Switches {
    norms_heads: true,
    // transformers has `attn_logit_softcapping` too, but does not apply it here.
    keys: &["query_pre_attn_scalar", "final_logit_softcapping"],
    windows: Windows::Of(|config, layer| {
        Ok(!(layer + 1).is_multiple_of(config.size("sliding_window_pattern")?))
    }),
    has_local_rotary: true,
    ..GEMMA2_SWITCHES
};

/// Families by their switches.
const fn family(
    name: &'static str,
    model_type: &'static str,
    organization: &'static str,
    class_prefix: &'static str,
) -> Family {
    Family {
        name,
        model_type,
        organization,
        class_prefix,
        kind: Kind::Decoder {
            causal_lm: "ForCausalLM",
            sequence: Some("ForSequenceClassification"),
            token: Some("ForTokenClassification"),
        },
        lora_targets: Some(&["q_proj", "v_proj"]),
        is_adapted_by_vllm: true,
        defaults: &[],
        presets: Vec::new,
        names: &[],
        build: |_, _, _| unreachable!("every family has its own"),
        stored_names: StoredNames {
            base: "model",
            buffers: &[".rotary_emb.inv_freq"],
            not_needed: &[],
            heads: &["lm_head.", "score."],
        },
    }
}

// The configurations of the families are transformers' defaults, without what follows from others.

/// What most of them share.
const COMMON: &str = r#"{
  "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
  "initializer_range": 0.02, "rms_norm_eps": 1e-06, "use_cache": true, "pad_token_id": null,
  "bos_token_id": 1, "tie_word_embeddings": false, "attention_dropout": 0.0,
  "rope_theta": 10000.0, "torch_dtype": "float32"
}"#;

pub(crate) const LLAMA: Family = Family {
    defaults: &[
        r#"{
          "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000,
          "intermediate_size": 11008, "num_key_value_heads": null, "head_dim": null,
          "hidden_act": "silu", "max_position_embeddings": 2048, "eos_token_id": 2,
          "attention_bias": false, "mlp_bias": false
        }"#,
        COMMON,
    ],
    presets: llama_presets,
    build: |config, read, head| Llama::build(&LLAMA_SWITCHES, config, read, head),
    ..family("Llama", "llama", "meta-llama", "Llama")
};

pub(crate) const MISTRAL: Family = Family {
    defaults: &[
        r#"{
          "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000,
          "intermediate_size": 14336, "num_key_value_heads": 8, "head_dim": null,
          "hidden_act": "silu", "max_position_embeddings": 131072, "eos_token_id": 2,
          "sliding_window": 4096
        }"#,
        COMMON,
    ],
    presets: mistral_presets,
    build: |config, read, head| Llama::build(&MISTRAL_SWITCHES, config, read, head),
    ..family("Mistral", "mistral", "mistralai", "Mistral")
};

pub(crate) const QWEN2: Family = Family {
    defaults: &[
        r#"{
          "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
          "intermediate_size": 22016, "num_key_value_heads": 32, "hidden_act": "silu",
          "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
          "max_window_layers": 28, "bos_token_id": null, "eos_token_id": null
        }"#,
        COMMON,
    ],
    presets: qwen2_presets,
    build: |config, read, head| Llama::build(&QWEN2_SWITCHES, config, read, head),
    ..family("Qwen2", "qwen2", "Qwen", "Qwen2")
};

pub(crate) const QWEN3: Family = Family {
    defaults: &[
        r#"{
          "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
          "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
          "hidden_act": "silu", "max_position_embeddings": 32768, "attention_bias": false,
          "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
          "bos_token_id": null, "eos_token_id": null
        }"#,
        COMMON,
    ],
    presets: qwen3_presets,
    build: |config, read, head| Llama::build(&QWEN3_SWITCHES, config, read, head),
    ..family("Qwen3", "qwen3", "Qwen", "Qwen3")
};

pub(crate) const SMOLLM3: Family = Family {
    lora_targets: None,
    defaults: &[
        r#"{
          "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
          "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
          "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
          "hidden_act": "silu", "max_position_embeddings": 32768, "pad_token_id": 128004,
          "bos_token_id": 128000, "eos_token_id": 128001, "use_sliding_window": false,
          "sliding_window": null, "no_rope_layer_interval": 4, "attention_bias": false,
          "mlp_bias": false, "tie_word_embeddings": true, "rope_theta": 2000000.0
        }"#,
        COMMON,
    ],
    presets: smollm3_presets,
    build: |config, read, head| Llama::build(&SMOLLM3_SWITCHES, config, read, head),
    ..family("SmolLM3", "smollm3", "HuggingFaceTB", "SmolLM3")
};

pub(crate) const GRANITE: Family = Family {
    lora_targets: None,
    // transformers has no classifiers of it.
    kind: Kind::Decoder {
        causal_lm: "ForCausalLM",
        sequence: None,
        token: None,
    },
    defaults: &[
        r#"{
          "architectures": ["GraniteForCausalLM"], "model_type": "granite", "vocab_size": 32000,
          "intermediate_size": 11008, "num_key_value_heads": null, "hidden_act": "silu",
          "max_position_embeddings": 2048, "eos_token_id": 2, "attention_bias": false,
          "mlp_bias": false, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
          "residual_multiplier": 1.0, "attention_multiplier": 1.0
        }"#,
        COMMON,
    ],
    build: |config, read, head| Llama::build(&GRANITE_SWITCHES, config, read, head),
    ..family("Granite", "granite", "ibm-granite", "Granite")
};

pub(crate) const GEMMA: Family = Family {
    defaults: &[
        r#"{
          "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "vocab_size": 256000,
          "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
          "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
          "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "pad_token_id": 0,
          "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": true,
          "attention_bias": false, "use_bidirectional_attention": null
        }"#,
        COMMON,
    ],
    presets: gemma_presets,
    build: |config, read, head| Llama::build(&GEMMA_SWITCHES, config, read, head),
    ..family("Gemma", "gemma", "google", "Gemma")
};

pub(crate) const GEMMA2: Family = Family {
    defaults: &[
        r#"{
          "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 256000,
          "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
          "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
          "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": true,
          "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
          "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
          "use_bidirectional_attention": null
        }"#,
        COMMON,
    ],
    presets: gemma2_presets,
    build: |config, read, head| Llama::build(&GEMMA2_SWITCHES, config, read, head),
    ..family("Gemma 2", "gemma2", "google", "Gemma2")
};

pub(crate) const GEMMA3: Family = Family {
    kind: Kind::Decoder {
        causal_lm: "ForCausalLM",
        sequence: Some("TextForSequenceClassification"),
        token: None,
    },
    defaults: &[
        r#"{
          "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
          "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
          "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
          "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
          "max_position_embeddings": 131072, "pad_token_id": 0, "eos_token_id": 1,
          "bos_token_id": 2, "tie_word_embeddings": true, "attention_bias": false,
          "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": null,
          "attn_logit_softcapping": null, "use_bidirectional_attention": false,
          "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6
        }"#,
        COMMON,
    ],
    presets: gemma3_presets,
    build: |config, read, head| Llama::build(&GEMMA3_SWITCHES, config, read, head),
    ..family("Gemma 3", "gemma3_text", "google", "Gemma3")
};

pub(crate) const PHI3: Family = Family {
    lora_targets: None,
    defaults: &[
        r#"{
          "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 32064,
          "hidden_size": 3072, "intermediate_size": 8192, "num_key_value_heads": null,
          "hidden_act": "silu", "max_position_embeddings": 4096,
          "original_max_position_embeddings": 4096, "resid_pdrop": 0.0,
          "embd_pdrop": 0.0, "rms_norm_eps": 1e-05, "eos_token_id": 32000,
          "pad_token_id": 32000, "sliding_window": null
        }"#,
        COMMON,
    ],
    presets: phi3_presets,
    build: |config, read, head| Llama::build(&PHI3_SWITCHES, config, read, head),
    ..family("Phi-3", "phi3", "microsoft", "Phi3")
};

/// A released size: hidden size, layers, query and key/value heads, intermediate size; `more` are
/// further keys.
fn sizes([hidden, layers, heads, kv_heads, intermediate]: [usize; 5], more: Value) -> Value {
    let mut sizes = json!({
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
    });
    if let (Value::Object(sizes), Value::Object(more)) = (&mut sizes, more) {
        sizes.extend(more);
    }
    sizes
}

fn llama_presets() -> Vec<(&'static str, Value)> {
    let llama3 = |five, head_dim: usize, factor: f64, tied: bool| {
        let more = json!({
            "vocab_size": 128_256,
            "head_dim": head_dim,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192},
            "tie_word_embeddings": tied,
            "bos_token_id": 128_000,
            "eos_token_id": 128_001,
        });
        sizes(five, more)
    };
    let smollm2 = |five, theta: f64, initializer_range: f64| {
        let more = json!({
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": theta,
            "initializer_range": initializer_range,
            "tie_word_embeddings": true,
            "bos_token_id": 0,
            "eos_token_id": 0,
        });
        sizes(five, more)
    };
    vec![
        (
            "Llama-3.2-1B",
            llama3([2048, 16, 32, 8, 8192], 64, 32.0, true),
        ),
        (
            "Llama-3.2-3B",
            llama3([3072, 28, 24, 8, 8192], 128, 32.0, true),
        ),
        (
            "Llama-3.1-8B",
            llama3([4096, 32, 32, 8, 14336], 128, 8.0, false),
        ),
        (
            "SmolLM2-135M",
            smollm2([576, 30, 9, 3, 1536], 1e5, 1.0 / 24.0),
        ),
        ("SmolLM2-360M", smollm2([960, 32, 15, 5, 2560], 1e5, 0.02)),
        (
            "SmolLM2-1.7B",
            smollm2([2048, 24, 32, 32, 8192], 1.3e5, 0.02),
        ),
    ]
}

fn mistral_presets() -> Vec<(&'static str, Value)> {
    let changes = json!({
        "vocab_size": 32768,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": null,
    });
    vec![("Mistral-7B-v0.3", changes)]
}

fn qwen2_presets() -> Vec<(&'static str, Value)> {
    let qwen = |five: [usize; 5], vocab_size: usize, length: usize, tied: bool| {
        let more = json!({
            "vocab_size": vocab_size,
            "max_position_embeddings": length,
            "rope_theta": 1e6,
            "tie_word_embeddings": tied,
            "sliding_window": length,
            "max_window_layers": five[1],
            "bos_token_id": 151_643,
            "eos_token_id": 151_643,
        });
        sizes(five, more)
    };
    vec![
        (
            "Qwen2.5-0.5B",
            qwen([896, 24, 14, 2, 4864], 151_936, 32768, true),
        ),
        (
            "Qwen2.5-1.5B",
            qwen([1536, 28, 12, 2, 8960], 151_936, 131_072, true),
        ),
        (
            "Qwen2.5-3B",
            qwen([2048, 36, 16, 2, 11008], 151_936, 32768, true),
        ),
        (
            "Qwen2.5-7B",
            qwen([3584, 28, 28, 4, 18944], 152_064, 131_072, false),
        ),
    ]
}

fn qwen3_presets() -> Vec<(&'static str, Value)> {
    let qwen = |five: [usize; 5], tied: bool| {
        let more = json!({
            "max_position_embeddings": 40960,
            "rope_theta": 1e6,
            "tie_word_embeddings": tied,
            "sliding_window": null,
            "max_window_layers": five[1],
            "bos_token_id": 151_643,
            "eos_token_id": 151_645,
        });
        sizes(five, more)
    };
    vec![
        ("Qwen3-0.6B", qwen([1024, 28, 16, 8, 3072], true)),
        ("Qwen3-1.7B", qwen([2048, 28, 16, 8, 6144], true)),
        ("Qwen3-4B", qwen([2560, 36, 32, 8, 9728], true)),
        ("Qwen3-8B", qwen([4096, 36, 32, 8, 12288], false)),
    ]
}

fn smollm3_presets() -> Vec<(&'static str, Value)> {
    let changes = json!({
        "rope_theta": 5e6,
        "max_position_embeddings": 65536,
        // The end of a turn: the base model's is 128001.
        "eos_token_id": 128_012,
    });
    vec![("SmolLM3-3B", changes)]
}

fn gemma_presets() -> Vec<(&'static str, Value)> {
    let changes = json!({
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_attention_heads": 8,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
    });
    vec![("gemma-2b", changes), ("gemma-7b", json!({}))]
}

fn gemma2_presets() -> Vec<(&'static str, Value)> {
    vec![("gemma-2-2b", json!({}))]
}

fn gemma3_presets() -> Vec<(&'static str, Value)> {
    let gemma = |five| {
        let more =
            json!({"vocab_size": 262_144, "sliding_window": 512, "max_position_embeddings": 32768});
        sizes(five, more)
    };
    vec![
        ("gemma-3-270m", gemma([640, 18, 4, 1, 2048])),
        ("gemma-3-1b-pt", gemma([1152, 26, 4, 1, 6912])),
    ]
}

fn phi3_presets() -> Vec<(&'static str, Value)> {
    vec![("Phi-3-mini-4k-instruct", json!({"sliding_window": 2047}))]
}
