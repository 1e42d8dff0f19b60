//! The rules of transformers' tokenizer classes: of each how a text is normalized, cut and decoded
//! and the settings of its model, around the vocabulary that a file gives.

use serde_json::{Map, Value, json};

use super::class::Class;
use super::settings::Settings;
use super::vocabulary::Model;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A definition without added tokens. `Err` says what a file lacks.
pub(super) fn of_class(
    class: Class,
    settings: &Settings,
    model: Model,
    charsmap: Option<Value>,
) -> Result<Map<String, Value>, String> {
    let rules = match class {
        Class::Plain => plain(model, charsmap)?,
        Class::Gpt2 | Class::CodeGen | Class::Roberta | Class::GptNeoX | Class::Qwen2 => {
            byte_level(class, settings, bpe(class, model)?)?
        }
        Class::Gemma => gemma(settings, bpe(class, model)?),
        Class::Llama => llama(settings, bpe(class, model)?)?,
        Class::Bert | Class::DistilBert => wordpiece(settings, class, model)?,
        Class::Albert => albert(settings, class, model, charsmap)?,
        Class::XlmRoberta => xlm_roberta(settings, class, model, charsmap)?,
    };
    match rules {
        Value::Object(rules) => Ok(rules),
        _ => Ok(Map::new()),
    }
}

/// Vocabulary and merges of a class whose model is a BPE.
fn bpe(class: Class, model: Model) -> Result<(Value, Value), String> {
    match model {
        Model::Bpe { vocab, merges } => Ok((vocab, merges)),
        other => Err(misfit(class, "a BPE", &other)),
    }
}

fn unigram(class: Class, model: Model) -> Result<Value, String> {
    match model {
        Model::Unigram { vocab, .. } => Ok(vocab),
        other => Err(misfit(class, "a unigram model", &other)),
    }
}

fn misfit(class: Class, wanted: &str, model: &Model) -> String {
    format!(
        "its class {} wants {wanted}, and its model is {}; name PreTrainedTokenizerFast as tokenizer_class in tokenizer_config.json to take the file as it stands",
        class.name(),
        model.kind()
    )
}

fn byte_level_step(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

fn byte_level(
    class: Class,
    settings: &Settings,
    (vocab, merges): (Value, Value),
) -> Result<Value, String> {
    let prefix = settings.switch("add_prefix_space", false)?;
    let pre_tokenizer = match class {
        Class::Qwen2 => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false},
            byte_level_step(prefix, false),
        ]}),
        _ => byte_level_step(prefix, true),
    };
    let post_processor = match class {
        Class::CodeGen => {
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})
        }
        _ => Value::Null,
    };
    let normalizer = match class {
        Class::Qwen2 | Class::GptNeoX => json!({"type": "NFC"}),
        _ => Value::Null,
    };
    Ok(json!({
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": byte_level_step(true, true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges,
        },
    }))
}

/// The decoder of models whose words begin with ▁ and whose unknown characters are bytes.
fn from_words_and_bytes(strips: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strips {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

fn byte_fallback_model(unk: Option<&str>, (vocab, merges): (Value, Value)) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges,
    })
}

fn gemma(settings: &Settings, vocabulary: (Value, Value)) -> Value {
    json!({
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
        "decoder": from_words_and_bytes(false),
        "model": byte_fallback_model(settings.token("unk_token"), vocabulary),
    })
}

fn llama(settings: &Settings, vocabulary: (Value, Value)) -> Result<Value, String> {
    let prefix = settings.switch("add_prefix_space", true)?;
    let scheme = match (prefix, settings.switch("legacy", false)?) {
        (false, _) => "never",
        (true, false) => "first",
        (true, true) => "always",
    };
    Ok(json!({
        "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false},
        "decoder": from_words_and_bytes(prefix),
        "model": byte_fallback_model(None, vocabulary),
    }))
}

fn wordpiece(settings: &Settings, class: Class, model: Model) -> Result<Value, String> {
    let Model::WordPiece { vocab } = model else {
        return Err(misfit(class, "a WordPiece model", &model));
    };
    let strip_accents = match settings.value("strip_accents") {
        None => Value::Null,
        Some(_) => settings.switch("strip_accents", false)?.into(),
    };
    Ok(json!({
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": settings.switch("tokenize_chinese_chars", true)?,
            "strip_accents": strip_accents,
            "lowercase": settings.switch("do_lower_case", true)?,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": settings.token("unk_token").unwrap_or("[UNK]"), "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    }))
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn words(settings: &Settings) -> Result<(Value, Value), String> {
    let scheme = if settings.switch("add_prefix_space", true)? {
        "always"
    } else {
        "never"
    };
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let pre_tokenizer =
        json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]});
    Ok((pre_tokenizer, metaspace))
}

fn albert(
    settings: &Settings,
    class: Class,
    model: Model,
    charsmap: Option<Value>,
) -> Result<Value, String> {
    let vocab = unigram(class, model)?;
    let mut steps = vec![replace("``", "\""), replace("''", "\"")];
    if !settings.switch("keep_accents", false)? {
        steps.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
    }
    if settings.switch("do_lower_case", true)? {
        steps.push(json!({"type": "Lowercase"}));
    }
    steps.extend(charsmap);
    let id = |key: &str, usual: &str| {
        let token = settings.token(key).unwrap_or(usual);
        let place = vocab.as_array().and_then(|list| {
            list.iter()
                .position(|piece| piece[0].as_str() == Some(token))
        });
        place.ok_or_else(|| format!("its vocabulary lacks the {key} {token:?}"))
    };
    let (cls, sep) = (id("cls_token", "[CLS]")?, id("sep_token", "[SEP]")?);
    let token = |id: &str, segment: u32| json!({"SpecialToken": {"id": id, "type_id": segment}});
    let text = |id: &str, segment: u32| json!({"Sequence": {"id": id, "type_id": segment}});
    let (pre_tokenizer, decoder) = words(settings)?;
    Ok(json!({
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [cls], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [sep], "tokens": ["[SEP]"]},
            },
        },
        "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": false},
    }))
}

fn xlm_roberta(
    settings: &Settings,
    class: Class,
    model: Model,
    charsmap: Option<Value>,
) -> Result<Value, String> {
    let vocab = unigram(class, model)?;
    let (pre_tokenizer, decoder) = words(settings)?;
    Ok(json!({
        "normalizer": charsmap,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false},
    }))
}

/// Of a sentencepiece model whose class has no rules of its own.
fn plain(model: Model, charsmap: Option<Value>) -> Result<Value, String> {
    let mut steps: Vec<Value> = charsmap.into_iter().collect();
    steps.push(replace(" ", "▁"));
    let (model, has_bytes) = match model {
        Model::Bpe { vocab, merges } => (byte_fallback_model(None, (vocab, merges)), true),
        Model::Pieces {
            vocab,
            merges,
            unk,
            byte_fallback,
        } => {
            let mut model = byte_fallback_model(Some(&unk), (vocab, merges));
            model["byte_fallback"] = byte_fallback.into();
            (model, byte_fallback)
        }
        Model::Unigram {
            vocab,
            unk,
            byte_fallback,
        } => (
            json!({"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": byte_fallback}),
            byte_fallback,
        ),
        other => return Err(format!("{} has no class that reads it", other.kind())),
    };
    let decoder = if has_bytes {
        from_words_and_bytes(false)
    } else {
        json!({"type": "Sequence", "decoders": [replace("▁", " ")]})
    };
    Ok(json!({
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "decoder": decoder,
        "model": model,
    }))
}
