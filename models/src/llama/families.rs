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
        defaults: "",
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

pub(crate) const LLAMA: Family = Family {
    defaults: include_str!("../configs/llama.json"),
    presets: llama_presets,
    build: |config, read, head| Llama::build(&LLAMA_SWITCHES, config, read, head),
    ..family("Llama", "llama", "meta-llama", "Llama")
};

pub(crate) const MISTRAL: Family = Family {
    defaults: include_str!("../configs/mistral.json"),
    presets: mistral_presets,
    build: |config, read, head| Llama::build(&MISTRAL_SWITCHES, config, read, head),
    ..family("Mistral", "mistral", "mistralai", "Mistral")
};

pub(crate) const QWEN2: Family = Family {
    defaults: include_str!("../configs/qwen2.json"),
    presets: qwen2_presets,
    build: |config, read, head| Llama::build(&QWEN2_SWITCHES, config, read, head),
    ..family("Qwen2", "qwen2", "Qwen", "Qwen2")
};

pub(crate) const QWEN3: Family = Family {
    defaults: include_str!("../configs/qwen3.json"),
    presets: qwen3_presets,
    build: |config, read, head| Llama::build(&QWEN3_SWITCHES, config, read, head),
    ..family("Qwen3", "qwen3", "Qwen", "Qwen3")
};

pub(crate) const SMOLLM3: Family = Family {
    defaults: include_str!("../configs/smollm3.json"),
    presets: smollm3_presets,
    build: |config, read, head| Llama::build(&SMOLLM3_SWITCHES, config, read, head),
    ..family("SmolLM3", "smollm3", "HuggingFaceTB", "SmolLM3")
};

pub(crate) const GRANITE: Family = Family {
    // transformers has no classifiers of it.
    kind: Kind::Decoder {
        causal_lm: "ForCausalLM",
        sequence: None,
        token: None,
    },
    defaults: include_str!("../configs/granite.json"),
    build: |config, read, head| Llama::build(&GRANITE_SWITCHES, config, read, head),
    ..family("Granite", "granite", "ibm-granite", "Granite")
};

pub(crate) const GEMMA: Family = Family {
    defaults: include_str!("../configs/gemma.json"),
    presets: gemma_presets,
    build: |config, read, head| Llama::build(&GEMMA_SWITCHES, config, read, head),
    ..family("Gemma", "gemma", "google", "Gemma")
};

pub(crate) const GEMMA2: Family = Family {
    defaults: include_str!("../configs/gemma2.json"),
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
    defaults: include_str!("../configs/gemma3_text.json"),
    presets: gemma3_presets,
    build: |config, read, head| Llama::build(&GEMMA3_SWITCHES, config, read, head),
    ..family("Gemma 3", "gemma3_text", "google", "Gemma3")
};

pub(crate) const PHI3: Family = Family {
    defaults: include_str!("../configs/phi3.json"),
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
