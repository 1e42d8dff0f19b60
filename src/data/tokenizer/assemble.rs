//! A tokenizer as its class in transformers makes it of a directory's files: `tokenizer.json` as it
//! stands, or its vocabulary with the class's own rules, then the tokens that the other files add.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use tokenizers::{AddedToken, PostProcessorWrapper};

use super::bounds;
use super::class::Class;
use super::rules;
use super::settings::Settings;
use super::vocabulary::Vocabulary;
use xtrain_checkpoint::hash;
use xtrain_report::panics;

/// What a tokenizer is made of.
pub(super) struct Parts<'a> {
    pub class: Class,
    pub settings: &'a Settings,
    /// tokenizer.json, if there is one.
    pub definition: Option<&'a [u8]>,
    /// Read of it, or of the files of earlier versions; `None` where the definition stands.
    pub vocabulary: Option<Vocabulary>,
}

/// A tokenizer, and a digest of all that decides the ids of a text.
pub(super) struct Assembled {
    pub inner: tokenizers::Tokenizer,
    pub fingerprint: String,
    /// The definition, where it was made of earlier files.
    pub made: Option<Vec<u8>>,
}

/// Makes the tokenizer. `Err` says what does not fit.
pub(super) fn assemble(parts: Parts<'_>) -> Result<Assembled, String> {
    let Parts {
        class,
        settings,
        definition,
        vocabulary,
    } = parts;
    let (mut inner, was) = match (vocabulary, definition) {
        (None, Some(definition)) => {
            let inner = load(definition)?;
            let was = outline(&inner, added(&inner))?;
            (inner, Some(was))
        }
        (None, None) => return Err("it has no vocabulary".to_string()),
        (Some(vocabulary), _) => {
            let Vocabulary {
                model,
                charsmap,
                frame,
                ..
            } = vocabulary;
            let mut rules = rules::of_class(class, settings, model, charsmap)?;
            if class == Class::XlmRoberta && frame.is_none() {
                name_pieces(&mut rules, settings);
            }
            rules.insert("version".into(), "1.0".into());
            let rules = serde_json::to_vec(&rules).unwrap_or_default();
            if frame.is_none() {
                bounds::check(&rules)?;
            }
            let mut inner = load(&rules)?;
            let mut was = None;
            if let Some(mut frame) = frame {
                let mut defined = tokens_of(&frame["added_tokens"]);
                defined.sort_by_key(|(id, _)| *id);
                frame["added_tokens"] = json!([]);
                let standing = load(&serde_json::to_vec(&frame).unwrap_or_default())?;
                was = Some(outline(&standing, defined)?);
                if let Some(around) = standing.get_post_processor() {
                    inner.with_post_processor(Some(around.clone()));
                }
            }
            (inner, was)
        }
    };
    let surrounds = settings.tells_ends() || inner.get_post_processor().is_none();
    add_tokens(&mut inner, settings)?;
    if surrounds || class == Class::GptNeoX {
        surround_by_settings(&mut inner, settings)?;
    }
    finish(&mut inner, class, settings)?;
    if settings.switch("split_special_tokens", false)? {
        inner.set_encode_special_tokens(true);
    }
    let made = match definition {
        Some(_) => None,
        None => {
            let text = inner.to_string(true).map_err(|error| error.to_string())?;
            Some(text.into_bytes())
        }
    };
    let fingerprint = match (definition, &made) {
        (Some(definition), _) => fingerprint(&inner, definition, was)?,
        (None, made) => hash::sha256(made.as_deref().unwrap_or_default()),
    };
    Ok(Assembled {
        inner,
        fingerprint,
        made,
    })
}

/// The library panics on some of what a damaged file may say.
fn load(definition: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    panics::guarded(|| tokenizers::Tokenizer::from_bytes(definition))
        .unwrap_or_else(|panic| Err(panic.into()))
        .map_err(|error| error.to_string())
}

/// XLM-RoBERTa's special tokens have their names in the vocabulary itself where that is made of a
/// sentencepiece model.
fn name_pieces(rules: &mut Map<String, Value>, settings: &Settings) {
    let vocab = rules
        .get_mut("model")
        .and_then(|model| model["vocab"].as_array_mut());
    let Some(vocab) = vocab else { return };
    let last = vocab.len().saturating_sub(1);
    let named = [
        (0, "bos_token"),
        (1, "pad_token"),
        (2, "eos_token"),
        (3, "unk_token"),
        (last, "mask_token"),
    ];
    for (place, key) in named {
        if let (Some(piece), Some(token)) = (vocab.get_mut(place), settings.token(key)) {
            piece[0] = token.into();
        }
    }
}

/// Adds what the vocabulary lacks or matches otherwise: added tokens by their ids, then special
/// ones by their names.
fn add_tokens(inner: &mut tokenizers::Tokenizer, settings: &Settings) -> Result<(), String> {
    let there = inner.get_added_tokens_decoder();
    let there: HashMap<&str, &AddedToken> = there
        .values()
        .map(|token| (token.content.as_str(), token))
        .collect();
    let is_there = |token: &AddedToken| there.get(token.content.as_str()) == Some(&token);
    let mut wanted: Vec<_> = settings
        .added
        .values()
        .filter(|token| !is_there(&token.added(false)))
        .collect();
    let known: HashSet<&str> = there
        .keys()
        .copied()
        .chain(wanted.iter().map(|token| token.content()))
        .collect();
    let named: Vec<_> = settings
        .named
        .iter()
        .filter_map(|(_, token)| token.as_ref())
        .collect();
    for token in named.iter().copied().chain(&settings.extra) {
        if !known.contains(&token.content()) && !wanted.contains(&token) {
            wanted.push(token);
        }
    }
    let is_named = |content: &str| named.iter().any(|token| token.content() == content);
    let wanted: Vec<AddedToken> = wanted
        .into_iter()
        .map(|token| token.added(is_named(token.content())))
        .collect();
    add(inner, wanted)
}

fn add(inner: &mut tokenizers::Tokenizer, tokens: Vec<AddedToken>) -> Result<(), String> {
    if tokens.is_empty() {
        return Ok(());
    }
    bounds::check_tokens(tokens.len())?;
    let lengths = tokens.iter().map(|token| token.content.len());
    bounds::check_length(lengths.max().unwrap_or(0))?;
    panics::guarded(|| inner.add_tokens(tokens))
        .unwrap_or_else(|panic| Err(panic.into()))
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// One of the special tokens around texts.
struct End {
    token: String,
    id: u32,
}

impl End {
    fn of(
        inner: &tokenizers::Tokenizer,
        settings: &Settings,
        key: &str,
    ) -> Result<Option<End>, String> {
        let Some(token) = settings.token(key) else {
            return Ok(None);
        };
        let unknown = || inner.token_to_id(settings.token("unk_token")?);
        let id = inner.token_to_id(token).or_else(unknown);
        let id = id.ok_or_else(|| format!("{key} {token:?} is not in its vocabulary"))?;
        Ok(Some(End {
            token: token.to_string(),
            id,
        }))
    }

    fn required(
        inner: &tokenizers::Tokenizer,
        settings: &Settings,
        key: &str,
    ) -> Result<End, String> {
        End::of(inner, settings, key)?
            .ok_or_else(|| format!("{key} is null, and texts of its class need one"))
    }

    fn piece(&self, segment: u32) -> Value {
        json!({"SpecialToken": {"id": self.token, "type_id": segment}})
    }
}

fn text(id: &str, segment: u32) -> Value {
    json!({"Sequence": {"id": id, "type_id": segment}})
}

fn template(single: &[Value], pair: &[Value], ends: &[&End]) -> Value {
    let special: Map<String, Value> = ends
        .iter()
        .map(|end| {
            let value = json!({"id": end.token, "ids": [end.id], "tokens": [end.token]});
            (end.token.clone(), value)
        })
        .collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}

fn set_around(inner: &mut tokenizers::Tokenizer, around: Value) -> Result<(), String> {
    let around: PostProcessorWrapper =
        serde_json::from_value(around).map_err(|error| error.to_string())?;
    inner.with_post_processor(Some(around));
    Ok(())
}

/// The tokens that `add_bos_token` and `add_eos_token` ask for.
fn surround_by_settings(
    inner: &mut tokenizers::Tokenizer,
    settings: &Settings,
) -> Result<(), String> {
    let end = |asked: &str, key: &str| {
        if settings.switch(asked, false)? {
            End::of(inner, settings, key)
        } else {
            Ok(None)
        }
    };
    let (bos, eos) = (
        end("add_bos_token", "bos_token")?,
        end("add_eos_token", "eos_token")?,
    );
    let around = |id: &str, segment: u32| {
        let before = bos.iter().map(|end| end.piece(segment));
        let after = eos.iter().map(|end| end.piece(segment));
        before
            .chain([text(id, segment)])
            .chain(after)
            .collect::<Vec<_>>()
    };
    let single = around("A", 0);
    let pair = [single.clone(), around("B", 1)].concat();
    let ends: Vec<&End> = bos.iter().chain(&eos).collect();
    set_around(inner, template(&single, &pair, &ends))
}

/// What a class does once all tokens are there.
fn finish(
    inner: &mut tokenizers::Tokenizer,
    class: Class,
    settings: &Settings,
) -> Result<(), String> {
    match class {
        Class::Roberta => {
            let cls = End::required(inner, settings, "cls_token")?;
            let sep = End::required(inner, settings, "sep_token")?;
            set_around(
                inner,
                json!({
                    "type": "RobertaProcessing",
                    "sep": [sep.token, sep.id],
                    "cls": [cls.token, cls.id],
                    "trim_offsets": settings.switch("trim_offsets", true)?,
                    "add_prefix_space": settings.switch("add_prefix_space", false)?,
                }),
            )
        }
        Class::Bert | Class::DistilBert => {
            let cls = End::required(inner, settings, "cls_token")?;
            let sep = End::required(inner, settings, "sep_token")?;
            let single = [cls.piece(0), text("A", 0), sep.piece(0)];
            let pair = [&single[..], &[text("B", 1), sep.piece(1)]].concat();
            set_around(inner, template(&single, &pair, &[&cls, &sep]))
        }
        Class::XlmRoberta => {
            let bos = End::required(inner, settings, "bos_token")?;
            let eos = End::required(inner, settings, "eos_token")?;
            let single = [bos.piece(0), text("A", 0), eos.piece(0)];
            let pair = [&single[..], &[eos.piece(0), text("B", 0), eos.piece(0)]].concat();
            set_around(inner, template(&single, &pair, &[&bos, &eos]))
        }
        // All of its special tokens are matched alike, whatever files say.
        Class::Qwen2 => {
            let named = settings
                .named
                .iter()
                .filter_map(|(_, token)| token.as_ref());
            let tokens = named
                .chain(&settings.extra)
                .map(|token| AddedToken::from(token.content(), true))
                .collect();
            add(inner, tokens)
        }
        _ => Ok(()),
    }
}

/// Of a tokenizer that is as `tokenizer.json` says, that file's; else with all that differs.
fn fingerprint(
    inner: &tokenizers::Tokenizer,
    definition: &[u8],
    was: Option<Value>,
) -> Result<String, String> {
    let is = outline(inner, added(inner))?;
    if Some(&is) == was.as_ref() {
        return Ok(hash::sha256(definition));
    }
    let mut bytes = definition.to_vec();
    bytes.extend(is.to_string().into_bytes());
    Ok(hash::sha256(&bytes))
}

/// All that decides ids but the vocabulary, which the definition's digest covers.
fn outline(
    tokenizer: &tokenizers::Tokenizer,
    added: Vec<(u64, AddedToken)>,
) -> Result<Value, String> {
    let model = match tokenizer.get_model() {
        tokenizers::ModelWrapper::BPE(model) => json!([
            model.unk_token,
            model
                .continuing_subword_prefix
                .as_deref()
                .unwrap_or_default(),
            model.end_of_word_suffix.as_deref().unwrap_or_default(),
            model.fuse_unk,
            model.byte_fallback,
            model.ignore_merges,
        ]),
        tokenizers::ModelWrapper::WordPiece(model) => json!([
            model.unk_token,
            model.continuing_subword_prefix,
            model.max_input_chars_per_word
        ]),
        tokenizers::ModelWrapper::Unigram(model) => {
            let mut model = serde_json::to_value(model).map_err(|error| error.to_string())?;
            model["vocab"] = Value::Null;
            model
        }
        tokenizers::ModelWrapper::WordLevel(model) => json!([model.unk_token]),
    };
    let pieces = (
        tokenizer.get_normalizer(),
        tokenizer.get_pre_tokenizer(),
        tokenizer.get_post_processor(),
        tokenizer.get_decoder(),
        tokenizer.get_encode_special_tokens(),
    );
    let pieces = serde_json::to_value(pieces).map_err(|error| error.to_string())?;
    Ok(json!([model, pieces, added]))
}

fn added(tokenizer: &tokenizers::Tokenizer) -> Vec<(u64, AddedToken)> {
    let decoder = tokenizer.get_added_tokens_decoder();
    let mut added: Vec<_> = decoder
        .into_iter()
        .map(|(id, token)| (u64::from(id), token))
        .collect();
    added.sort_by_key(|(id, _)| *id);
    added
}

/// Those of a definition.
fn tokens_of(list: &Value) -> Vec<(u64, AddedToken)> {
    let tokens = list.as_array().into_iter().flatten();
    tokens
        .filter_map(|token| {
            let id = token["id"].as_u64()?;
            Some((id, serde_json::from_value(token.clone()).ok()?))
        })
        .collect()
}
