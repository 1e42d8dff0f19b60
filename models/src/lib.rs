//! Model definitions. They know no device, no precision and no sharding: they name their weights as
//! Hugging Face does and record tensor operations.
//!
//! Reading order: [`Model`] (what a trainer needs of a model), [`Weights`] (how a model declares and
//! reaches its parameters), [`HeadKind`] (its head), [`Objective`] (what it is trained for), `gpt2`, then `bert`, whose
//! layers `roberta` and `albert` call.
//!
//! To add a model: a file in the order of `gpt2.rs` whose `FAMILY` goes into `FAMILIES`, and a
//! golden case.

#![warn(missing_docs)]

mod activation;
mod adapted;
mod albert;
mod answers;
mod axis;
mod batch;
mod bert;
mod config;
mod declaration;
mod declare;
mod decoder;
mod distilbert;
mod encoder;
mod error;
mod family;
mod freeze;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gptj;
mod head;
mod kto;
mod kv_cache;
mod labels;
mod layers;
mod linear;
mod llama;
mod lora;
mod loss;
mod model;
mod modernbert;
mod names;
mod objective;
mod parameter;
mod preference;
mod quantization;
mod reward;
mod roberta;
mod rotary;
mod tensor_parallel;
mod weights;
mod xlm_roberta;

pub use activation::Activation;
pub use answers::PAIR;
pub use axis::Axis;
pub use batch::TokenBatch;
pub use config::Config;
pub use declaration::LayerDeclaration;
pub use declare::declare;
pub use error::{Error, Result};
pub use freeze::freeze;
pub use head::HeadKind;
pub use kto::{DESIRABLE, Kto};
pub use kv_cache::KvCache;
pub use labels::HostLabels;
pub use linear::Linear;
pub use lora::{Adapter, AdapterBias, LoraConfig, LoraLayer, Modules};
pub use loss::{IGNORED_LABEL, IGNORED_NUMBER, LossSum, Predictions, logits};
pub use model::{Model, ModelInfo, Pooling};
pub use objective::{
    ATTENTION_MASK, Class, Feed, Forward, INPUT_IDS, Inputs, LABELS, LabelledShare, MaskedToken,
    NextToken, Objective, Outcome, POSITION_IDS, POSITIONS, Regression, TOKEN_TYPE_IDS, TokenLabel,
};
pub use parameter::{Init, ParameterSet, ParameterSpec, StoredName};
pub use preference::{AnswerLogProbs, Divergence, OddsRatio, PairLoss, Preference, REFERENCE};
pub use quantization::{HeldArray, Quantization, QuantizedMatrix};
pub use reward::Reward;
pub use tensor_parallel::tensor_shard_specs;
pub use weights::{Weight, Weights};

use family::{Family, Kind};
use serde_json::Value;

/// The families, in the order in which messages list them.
const FAMILIES: &[Family] = &[
    gpt2::FAMILY,
    gpt_neo::FAMILY,
    gptj::FAMILY,
    gpt_neox::FAMILY,
    bert::FAMILY,
    roberta::FAMILY,
    xlm_roberta::FAMILY,
    albert::FAMILY,
    distilbert::FAMILY,
    modernbert::FAMILY,
    llama::LLAMA,
    llama::MISTRAL,
    llama::QWEN2,
    llama::QWEN3,
    llama::SMOLLM3,
    llama::GRANITE,
    llama::GEMMA,
    llama::GEMMA2,
    llama::GEMMA3,
    llama::PHI3,
];

/// The family that a configuration names.
fn family(config: &Config) -> Result<&'static Family> {
    let model_type = config.text("model_type")?;
    FAMILIES
        .iter()
        .find(|family| family.model_type == model_type)
        .ok_or_else(|| {
            let reason = format!(
                "xtrain does not train this one; known: {}",
                MODEL_TYPES.join(", ")
            );
            config.unsupported("model_type", reason)
        })
}

/// The architectures that [`build`] knows, by `model_type`.
pub const MODEL_TYPES: [&str; FAMILIES.len()] = {
    let mut names = [""; FAMILIES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FAMILIES[i].model_type;
        i += 1;
    }
    names
};

/// The model that a configuration describes, by its `model_type`, with this head.
///
/// # Errors
/// If the configuration asks for something unsupported, or the family has no such head.
pub fn build(mut config: Config, head: HeadKind) -> Result<Box<dyn Model>> {
    let family = family(&config)?;
    let Some(class) = family.class(head) else {
        let known: Vec<String> = HeadKind::ALL
            .into_iter()
            .filter(|head| family.class(*head).is_some())
            .map(|head| head.to_string())
            .collect();
        let reason = format!(
            "such a model is not for {head}, but for {}",
            known.join(", ")
        );
        return Err(config.unsupported("model_type", reason));
    };
    head::write_head(&mut config, &class, head)?;
    let read = config.of_family(family.defaults(), family.names);
    let model = (family.build)(config, read, head)?;
    declare(&*model)?;
    Ok(model)
}

impl HeadKind {
    /// The head that a configuration was saved with, by the class that it names; without one, the
    /// language model's of its family.
    ///
    /// # Errors
    /// If the configuration names neither a class nor a known `model_type`.
    pub fn of(config: &Config) -> Result<Self> {
        let class = config
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(Value::as_str)
            .unwrap_or_default();
        if class.ends_with("ForSequenceClassification") {
            return Ok(HeadKind::SequenceClassification {
                labels: head::saved_labels(config)?,
            });
        }
        if class.ends_with("ForTokenClassification") {
            return Ok(HeadKind::TokenClassification {
                labels: head::saved_labels(config)?,
            });
        }
        if class.ends_with("ForMaskedLM") || class.ends_with("ForPreTraining") {
            return Ok(HeadKind::MaskedLm);
        }
        if class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel") {
            return Ok(HeadKind::CausalLm);
        }
        Ok(family(config)?.usual_head())
    }
}

/// What a tensor of a checkpoint is to a model.
pub fn stored_name(model: &dyn Model, name: &str) -> StoredName {
    let parameters = &model.info().declaration().parameters;
    match family(model.config()) {
        Ok(family) => family.stored_names.find(name, parameters),
        Err(_) if parameters.iter().any(|p| p.name == name) => {
            StoredName::Parameter(name.to_string())
        }
        Err(_) => StoredName::Unknown,
    }
}

/// A preset's name without the organization.
fn without_organization(name: &str) -> &str {
    match name.split_once('/') {
        Some((organization, name))
            if FAMILIES
                .iter()
                .any(|family| family.organization == organization) =>
        {
            name
        }
        _ => name,
    }
}

/// The preset where any small model will do: quickstart, checks of a device.
pub const EXAMPLE_PRESET: &str = "gpt2";

/// The names of all presets, without organizations, family by family.
pub fn presets() -> impl Iterator<Item = &'static str> {
    let names = |family: &Family| (family.presets)().into_iter().map(|(name, _)| name);
    FAMILIES.iter().flat_map(names)
}

/// A preset's name as [`presets`] has it, with or without the organization that released it;
/// `None` if there is no such preset.
pub fn preset_name(name: &str) -> Option<&'static str> {
    let name = without_organization(name);
    presets().find(|known| *known == name)
}

/// A preset's configuration (`gpt2`, `EleutherAI/gpt-neo-125m`, ...), or `None` if there is no such
/// preset.
pub fn preset(name: &str) -> Option<Config> {
    let name = without_organization(name);
    FAMILIES.iter().find_map(|family| family.preset(name))
}

/// The configuration that a new model of this type starts from, before overrides.
///
/// # Errors
/// If there is no such type.
pub fn default_config(model_type: &str) -> Result<Config> {
    let mut named = Config::new(Default::default(), "the model type");
    named.set("model_type", model_type);
    Ok(family(&named)?.defaults())
}

/// Whether a model type or preset is an encoder's, which sees the whole text, rather than a
/// decoder's, which sees what came before; `None` if there is no such type or preset.
pub fn is_encoder(name: &str) -> Option<bool> {
    Some(named(name)?.kind == Kind::Encoder)
}

/// Whether the family of a model type or preset has this head; `None` if there is no such type or
/// preset.
pub fn has_head(name: &str, head: HeadKind) -> Option<bool> {
    Some(named(name)?.class(head).is_some())
}

/// The same model with an adapter, of which nothing else is trained.
///
/// # Errors
/// If the configuration means no layer of the model, or the forward pass cannot be recorded.
pub fn adapt(base: Box<dyn Model>, config: LoraConfig) -> Result<Box<dyn Model>> {
    let usual = family(base.config())?.lora_targets;
    adapted::adapt(base, config, usual)
}

/// Whether PEFT has a choice of its own of the layers that are adapted in a family.
pub fn has_usual_targets(model_type: &str) -> bool {
    named(model_type).is_some_and(|family| family.lora_targets.is_some())
}

/// Whether vLLM adds adapters to models of a type.
pub fn is_adapted_by_vllm(model_type: &str) -> bool {
    named(model_type).is_some_and(|family| family.is_adapted_by_vllm)
}

/// The family of a model type or preset.
fn named(name: &str) -> Option<&'static Family> {
    let short = without_organization(name);
    FAMILIES
        .iter()
        .find(|family| family.model_type == name || family.preset(short).is_some())
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Elements of all parameters of a preset.
    pub fn elements(name: &str, head: HeadKind) -> usize {
        let model = build(preset(name).unwrap(), head).unwrap();
        let sizes = model.parameters();
        sizes.iter().map(|p| p.dims.iter().product::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        for (name, head, count) in [
            ("gpt2", HeadKind::CausalLm, 124_439_808),
            ("gpt2-medium", HeadKind::CausalLm, 354_823_168),
            ("gpt2-large", HeadKind::CausalLm, 774_030_080),
            ("gpt2-xl", HeadKind::CausalLm, 1_557_611_200),
            ("gpt-neo-125m", HeadKind::CausalLm, 125_198_592),
            ("gpt-neo-1.3B", HeadKind::CausalLm, 1_315_575_808),
            ("gpt-neo-2.7B", HeadKind::CausalLm, 2_651_307_520),
            ("gpt-j-6b", HeadKind::CausalLm, 6_050_882_784),
            ("gpt-neox-20b", HeadKind::CausalLm, 20_554_567_680),
            ("pythia-14m", HeadKind::CausalLm, 14_067_712),
            ("pythia-70m", HeadKind::CausalLm, 70_426_624),
            ("pythia-160m", HeadKind::CausalLm, 162_322_944),
            ("pythia-410m", HeadKind::CausalLm, 405_334_016),
            ("pythia-1b", HeadKind::CausalLm, 1_011_781_632),
            ("pythia-1.4b", HeadKind::CausalLm, 1_414_647_808),
            ("pythia-2.8b", HeadKind::CausalLm, 2_775_208_960),
            ("pythia-6.9b", HeadKind::CausalLm, 6_857_302_016),
            ("pythia-12b", HeadKind::CausalLm, 11_846_072_320),
            ("bert-base-uncased", HeadKind::MaskedLm, 109_514_298),
            ("bert-large-uncased", HeadKind::MaskedLm, 335_174_458),
            ("distilroberta-base", HeadKind::MaskedLm, 82_170_201),
            ("roberta-base", HeadKind::MaskedLm, 124_697_433),
            ("ModernBERT-base", HeadKind::MaskedLm, 149_655_232),
            ("ModernBERT-large", HeadKind::MaskedLm, 395_881_664),
            ("Llama-3.2-1B", HeadKind::CausalLm, 1_235_814_400),
            ("Llama-3.2-3B", HeadKind::CausalLm, 3_212_749_824),
            ("Llama-3.1-8B", HeadKind::CausalLm, 8_030_261_248),
            ("SmolLM2-135M", HeadKind::CausalLm, 134_515_008),
            ("SmolLM2-360M", HeadKind::CausalLm, 361_821_120),
            ("SmolLM2-1.7B", HeadKind::CausalLm, 1_711_376_384),
            ("Mistral-7B-v0.3", HeadKind::CausalLm, 7_248_023_552),
            ("Qwen2.5-0.5B", HeadKind::CausalLm, 494_032_768),
            ("Qwen2.5-1.5B", HeadKind::CausalLm, 1_543_714_304),
            ("Qwen2.5-3B", HeadKind::CausalLm, 3_085_938_688),
            ("Qwen2.5-7B", HeadKind::CausalLm, 7_615_616_512),
            ("Qwen3-0.6B", HeadKind::CausalLm, 596_049_920),
            ("Qwen3-1.7B", HeadKind::CausalLm, 1_720_574_976),
            ("Qwen3-4B", HeadKind::CausalLm, 4_022_468_096),
            ("Qwen3-8B", HeadKind::CausalLm, 8_190_735_360),
            ("SmolLM3-3B", HeadKind::CausalLm, 3_075_098_624),
            ("gemma-2b", HeadKind::CausalLm, 2_506_172_416),
            ("gemma-7b", HeadKind::CausalLm, 8_537_680_896),
            ("gemma-2-2b", HeadKind::CausalLm, 2_614_341_888),
            ("gemma-3-270m", HeadKind::CausalLm, 268_098_176),
            ("gemma-3-1b-pt", HeadKind::CausalLm, 999_885_952),
            ("Phi-3-mini-4k-instruct", HeadKind::CausalLm, 3_821_079_552),
        ] {
            assert_eq!(testing::elements(name, head), count, "{name}");
        }
    }

    /// As transformers reads them: sizes by their usual names too, and not what a family does not have.
    #[test]
    fn settings_count_where_transformers_reads_them() {
        let small = |model_type: &str, settings: serde_json::Value| {
            let mut values = serde_json::Map::new();
            values.insert("model_type".into(), model_type.into());
            values.extend(settings.as_object().unwrap().clone());
            let config = Config::new(values, "small");
            let head = HeadKind::of(&config).unwrap();
            build(config, head).unwrap()
        };
        for (model_type, own) in [
            (
                "gpt2",
                json!({"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}),
            ),
            (
                "gptj",
                json!({"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}),
            ),
            (
                "distilbert",
                json!({"dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}),
            ),
        ] {
            let usual = json!({"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
                "rotary_dim": 4});
            let of = |model: &dyn Model| {
                let info = model.info();
                let sizes = [info.heads, info.kv_heads, info.head_dim, info.max_positions];
                (sizes, model.parameters())
            };
            let model = small(model_type, own.clone());
            assert_eq!(of(&*model).0, [4, 4, 12, 64], "{model_type}");
            assert_eq!(of(&*small(model_type, usual)), of(&*model), "{model_type}");
            let mut foreign = own;
            foreign["type_vocab_size"] = 2.into();
            if model_type != "distilbert" {
                foreign["head_dim"] = 64.into();
                foreign["num_key_value_heads"] = 2.into();
            }
            assert_eq!(
                of(&*small(model_type, foreign)),
                of(&*model),
                "{model_type}"
            );
        }
    }

    /// Types with a sequence classifier: all but Granite.
    fn classifiers() -> impl Iterator<Item = &'static str> {
        MODEL_TYPES.into_iter().filter(|name| *name != "granite")
    }

    #[test]
    fn every_family_is_consistent() {
        for model_type in MODEL_TYPES {
            let config = default_config(model_type).unwrap();
            assert_eq!(config.text("model_type").unwrap(), model_type);
            let task = HeadKind::of(&config).unwrap();
            let model = build(config.clone(), task).unwrap();
            assert_eq!(
                (model.head_kind(), model.config().values()),
                (task, config.values()),
                "{model_type}: saved as it came"
            );
            let mut bare = config;
            bare.set("architectures", serde_json::Value::Null);
            assert_eq!(HeadKind::of(&bare).unwrap(), task, "{model_type}");
            let names: Vec<String> = model.parameters().into_iter().map(|p| p.name).collect();
            for name in &names {
                assert_eq!(
                    stored_name(&*model, name),
                    StoredName::Parameter(name.clone()),
                    "{model_type}"
                );
            }
            assert_eq!(
                names.iter().collect::<std::collections::HashSet<_>>().len(),
                names.len(),
                "{model_type}"
            );
        }
    }

    #[test]
    fn a_classifier_is_saved_with_its_labels() {
        for model_type in classifiers() {
            let model = build(
                default_config(model_type).unwrap(),
                HeadKind::SequenceClassification { labels: 3 },
            )
            .unwrap();
            assert_eq!(
                HeadKind::of(model.config()).unwrap(),
                HeadKind::SequenceClassification { labels: 3 },
                "{model_type}"
            );
            assert_eq!(model.config().get("label2id").unwrap()["LABEL_2"], 2);
            let class = model.config().get("architectures").unwrap()[0]
                .as_str()
                .unwrap()
                .to_string();
            assert!(class.ends_with("ForSequenceClassification"), "{class}");
        }
        let mut config = default_config("bert").unwrap();
        config.set("id2label", serde_json::json!({"0": "good", "1": "bad"}));
        let model = build(config, HeadKind::SequenceClassification { labels: 2 }).unwrap();
        assert_eq!(model.config().get("id2label").unwrap()["1"], "bad");
    }

    #[test]
    fn one_label_is_a_regression() {
        for model_type in classifiers() {
            let model = build(default_config(model_type).unwrap(), HeadKind::REGRESSION).unwrap();
            assert_eq!(
                HeadKind::of(model.config()).unwrap(),
                HeadKind::REGRESSION,
                "{model_type}"
            );
            assert_eq!(model.config().get("problem_type").unwrap(), "regression");
            assert_eq!(
                model
                    .config()
                    .get("id2label")
                    .unwrap()
                    .as_object()
                    .unwrap()
                    .len(),
                1
            );
        }
        let mut config = default_config("bert").unwrap();
        config.set("problem_type", "regression");
        let message = build(config, HeadKind::SequenceClassification { labels: 3 })
            .err()
            .unwrap()
            .to_string();
        assert!(
            message.contains("problem_type") && message.contains("regression with 3 labels"),
            "{message}"
        );
    }

    #[test]
    fn tasks_without_a_head_are_refused_by_name() {
        for (model_type, task, words) in [
            (
                "bert",
                HeadKind::CausalLm,
                [
                    "causal language modelling",
                    "for masked language modelling, sequence classification, token classification",
                ],
            ),
            (
                "gptj",
                HeadKind::MaskedLm,
                [
                    "masked language modelling",
                    "causal language modelling, sequence classification",
                ],
            ),
            (
                "gpt2",
                HeadKind::TokenClassification { labels: 5 },
                [
                    "not for token classification",
                    "causal language modelling, sequence classification",
                ],
            ),
            (
                "bert",
                HeadKind::SequenceClassification { labels: 0 },
                ["at least", "one label"],
            ),
        ] {
            let message = build(default_config(model_type).unwrap(), task)
                .err()
                .unwrap()
                .to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
        let message = default_config("t5").unwrap_err().to_string();
        assert!(
            message.contains("t5") && message.contains("gpt_neo"),
            "{message}"
        );
    }

    #[test]
    fn classifiers_find_the_last_token_by_their_familys_padding_where_none_is_said() {
        let labels = HeadKind::SequenceClassification { labels: 2 };
        let pooling = |mut more: serde_json::Value| {
            let sizes = serde_json::json!({"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 8, "vocab_size": 16});
            let more = more.as_object_mut().unwrap();
            more.extend(sizes.as_object().unwrap().clone());
            build(Config::new(more.clone(), "a test"), labels)
                .unwrap()
                .info()
                .pooling
        };
        for (config, padding) in [
            (serde_json::json!({"model_type": "gemma"}), Some(0)),
            (
                serde_json::json!({"model_type": "gemma", "pad_token_id": 3}),
                Some(3),
            ),
            (
                serde_json::json!({"model_type": "gemma", "pad_token_id": null}),
                None,
            ),
            (serde_json::json!({"model_type": "llama"}), None),
        ] {
            assert_eq!(
                pooling(config.clone()),
                Pooling::LastToken { padding },
                "{config}"
            );
        }
    }

    #[test]
    fn presets_go_by_their_names_on_the_hub_too() {
        assert_eq!(preset("EleutherAI/gpt-neo-125m"), preset("gpt-neo-125m"));
        assert!(
            preset(EXAMPLE_PRESET).is_some()
                && preset("google-bert/bert-base-cased").is_some()
                && preset("nobody/bert-base-cased").is_none()
        );
    }
}
