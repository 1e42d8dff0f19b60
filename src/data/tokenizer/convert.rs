//! Tokenizer files of the time before `tokenizer.json`, as the definition that transformers makes
//! of them: GPT-2's and RoBERTa's `vocab.json` with `merges.txt`, BERT's `vocab.txt`, ALBERT's
//! `spiece.model`.

use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::encoding::{self, DecodeContext};
use prost::{DecodeError, Message};
use serde_json::{Map, Value, json};

use super::bounds::MOST_TOKENS;
use super::bpe;
use crate::data::error::{Error, Result};
use crate::report;

/// A definition, the file it was made of, and the transformers class that makes the same.
pub(super) struct Converted {
    pub definition: Value,
    pub file: &'static str,
    pub class: &'static str,
}

/// A directory's tokenizer files, by name.
pub(super) struct Files<'a> {
    pub dir: &'a Path,
    pub files: &'a [(String, Vec<u8>)],
}

impl Files<'_> {
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, bytes)| bytes.as_slice())
    }

    fn bad(&self, name: &str, reason: impl ToString) -> Error {
        Error::BadTokenizer {
            path: self.dir.join(name),
            reason: reason.to_string(),
        }
    }

    /// Refuses a file of more tokens than any vocabulary has, before they are taken.
    fn check_count(&self, name: &str, tokens: usize) -> Result<()> {
        if tokens <= MOST_TOKENS {
            return Ok(());
        }
        let reason = format!("it has {tokens} tokens; no tokenizer has more than {MOST_TOKENS}");
        Err(self.bad(name, reason))
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        self.get(name)
            .map(|bytes| std::str::from_utf8(bytes).map_err(|error| self.bad(name, error)))
            .transpose()
    }

    fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        self.get(name)
            .map(|bytes| report::json::from_slice(bytes).map_err(|error| self.bad(name, error)))
            .transpose()
    }

    /// A switch of tokenizer_config.json.
    fn switch(&self, key: &str, usual: bool) -> Result<bool> {
        let config = self.object("tokenizer_config.json")?.unwrap_or_default();
        match config.get(key) {
            None | Some(Value::Null) => Ok(usual),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.bad(
                "tokenizer_config.json",
                format!("{key} is {other}, not true or false"),
            )),
        }
    }
}

/// The definition of a directory without `tokenizer.json`, or an error that says what is missing.
pub(super) fn convert(files: &Files<'_>) -> Result<Converted> {
    if let (Some(vocab), Some(merges)) = (files.object("vocab.json")?, files.text("merges.txt")?) {
        files.check_count("vocab.json", vocab.len())?;
        files.check_count("merges.txt", merges.lines().count())?;
        return byte_bpe(files, vocab, merges);
    }
    if let Some(vocab) = files.text("vocab.txt")? {
        files.check_count("vocab.txt", vocab.lines().count())?;
        return wordpiece(files, vocab);
    }
    if let Some(model) = files.get("spiece.model") {
        return unigram(files, model);
    }
    Err(missing(files.dir, |name| files.get(name).is_some()))
}

/// Looks in a directory without `tokenizer.json` for what can become one.
///
/// # Errors
/// There is nothing.
pub(super) fn check(dir: &Path) -> Result<()> {
    let has = |name: &str| dir.join(name).exists();
    let forms: [&[&str]; 3] = [
        &["vocab.json", "merges.txt"],
        &["vocab.txt"],
        &["spiece.model"],
    ];
    let is_there = forms.iter().any(|files| files.iter().all(|name| has(name)));
    if is_there {
        Ok(())
    } else {
        Err(missing(dir, has))
    }
}

fn missing(dir: &Path, has: impl Fn(&str) -> bool) -> Error {
    let hint = if has("vocab.json") {
        "; there is a vocab.json but no merges.txt"
    } else if has("tokenizer.model") {
        "; there is a SentencePiece tokenizer.model. Convert it once with Python: from transformers import AutoTokenizer as T; \
         T.from_pretrained(DIR).save_pretrained(DIR)"
    } else {
        ""
    };
    Error::NoTokenizer {
        dir: dir.to_path_buf(),
        hint: hint.to_string(),
    }
}

/// The two files of GPT-2, or of RoBERTa if the vocabulary has its special tokens.
fn byte_bpe(files: &Files<'_>, vocab: Map<String, Value>, merges: &str) -> Result<Converted> {
    // The first line tells the version; a merge of "#version:" itself cannot be, as no GPT-2 token
    // holds a space.
    let lines = merges.split('\n').map(|line| line.trim_end_matches('\r'));
    let merges: Vec<String> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("#version"))
        .map(str::to_string)
        .collect();
    let id = |token: &str| vocab.get(token).and_then(Value::as_u64);
    let roberta: Option<Vec<(&str, u64)>> = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        .into_iter()
        .map(|token| Some((token, id(token)?)))
        .collect();
    let mut special: Vec<(String, u64)> = match &roberta {
        Some(special) => special
            .iter()
            .map(|(token, id)| (token.to_string(), *id))
            .collect(),
        None => id(bpe::END_OF_TEXT)
            .map(|id| (bpe::END_OF_TEXT.to_string(), id))
            .into_iter()
            .collect(),
    };
    for (token, id) in files.object("added_tokens.json")?.unwrap_or_default() {
        let id = id.as_u64().ok_or_else(|| {
            files.bad(
                "added_tokens.json",
                format!("the id of {token:?} is not a number"),
            )
        })?;
        special.push((token, id));
    }
    special.sort_by_key(|(_, id)| *id);
    special.dedup();
    let special: Vec<_> = special
        .iter()
        .map(|(token, id)| (token.as_str(), *id))
        .collect();
    let mut definition = bpe::definition(vocab, merges, &special);
    let Some(roberta) = roberta else {
        return Ok(Converted {
            definition,
            file: "vocab.json",
            class: "GPT2Tokenizer",
        });
    };
    for token in definition["added_tokens"]
        .as_array_mut()
        .expect("bpe::definition lists them")
    {
        // The mask takes the space before it, so that " <mask>" is one token.
        token["lstrip"] = (token["content"] == "<mask>").into();
    }
    definition["post_processor"] = json!({
        "type": "RobertaProcessing",
        "sep": ["</s>", roberta[2].1],
        "cls": ["<s>", roberta[0].1],
        "trim_offsets": true,
        "add_prefix_space": files.switch("add_prefix_space", false)?,
    });
    definition["pre_tokenizer"]["add_prefix_space"] =
        definition["post_processor"]["add_prefix_space"].clone();
    Ok(Converted {
        definition,
        file: "vocab.json",
        class: "RobertaTokenizer",
    })
}

/// BERT's list of word pieces, one a line.
fn wordpiece(files: &Files<'_>, vocab: &str) -> Result<Converted> {
    let tokens = vocab
        .strip_suffix('\n')
        .unwrap_or(vocab)
        .split('\n')
        .map(|token| token.trim_end_matches('\r'));
    let vocab: Map<String, Value> = tokens
        .zip(0u64..)
        .map(|(token, id)| (token.to_string(), id.into()))
        .collect();
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let mut ids = Vec::new();
    for token in special {
        let id = vocab.get(token).and_then(Value::as_u64);
        ids.push((
            token,
            id.ok_or_else(|| {
                files.bad(
                    "vocab.txt",
                    format!("it has no {token}, as BERT's vocabularies have"),
                )
            })?,
        ));
    }
    ids.sort_by_key(|(_, id)| *id);
    let strip_accents = match files
        .object("tokenizer_config.json")?
        .and_then(|config| config.get("strip_accents").cloned())
    {
        None => Value::Null,
        Some(value) => value,
    };
    let definition = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": ids.iter().map(|(token, id)| added(token, *id, true)).collect::<Vec<_>>(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": files.switch("tokenize_chinese_chars", true)?,
            "strip_accents": strip_accents,
            "lowercase": files.switch("do_lower_case", true)?,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around("[CLS]", vocab["[CLS]"].clone(), "[SEP]", vocab["[SEP]"].clone()),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    Ok(Converted {
        definition,
        file: "vocab.txt",
        class: "BertTokenizer",
    })
}

/// A sentencepiece model (sentencepiece_model.proto), only what a tokenizer is made of.
#[derive(Clone, PartialEq, Message)]
struct SentencePieceModel {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    /// 1 unigram, 2 BPE, 3 word, 4 char.
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
}

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNKNOWN: i32 = 2;

/// ALBERT's unigram model, as transformers' AlbertTokenizer takes it. Other models with such a file
/// surround texts otherwise.
fn unigram(files: &Files<'_>, bytes: &[u8]) -> Result<Converted> {
    const FILE: &str = "spiece.model";
    let convert = "Convert it once with Python: from transformers import AutoTokenizer as T; \
                   T.from_pretrained(DIR).save_pretrained(DIR)";
    let no_model = |error| files.bad(FILE, format!("no sentencepiece model: {error}"));
    files.check_count(FILE, count_pieces(bytes).map_err(no_model)?)?;
    let model = SentencePieceModel::decode(bytes).map_err(no_model)?;
    let trainer = model.trainer.clone().unwrap_or_default();
    if trainer.model_type.unwrap_or(1) != 1 || trainer.byte_fallback() {
        return Err(files.bad(
            FILE,
            format!("only unigram models without byte fallback are read. {convert}"),
        ));
    }
    let id = |token: &str| model.pieces.iter().position(|piece| piece.piece() == token);
    let (Some(cls), Some(sep), Some(_)) = (id("[CLS]"), id("[SEP]"), id("[MASK]")) else {
        return Err(files.bad(
            FILE,
            format!(
                "it lacks ALBERT's [CLS], [SEP] or [MASK], so it is another model's. {convert}"
            ),
        ));
    };
    let unknown = model
        .pieces
        .iter()
        .position(|piece| piece.kind() == UNKNOWN);
    let mut normalizers = vec![replace("``", "\""), replace("''", "\"")];
    if !files.switch("keep_accents", false)? {
        normalizers.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
    }
    if files.switch("do_lower_case", true)? {
        normalizers.push(json!({"type": "Lowercase"}));
    }
    let charsmap = model
        .normalizer
        .unwrap_or_default()
        .precompiled_charsmap
        .unwrap_or_default();
    if !charsmap.is_empty() {
        normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(charsmap)}));
    }
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let named = |kinds: &[i32]| {
        let pieces = model
            .pieces
            .iter()
            .zip(0u64..)
            .filter(|(piece, _)| kinds.contains(&piece.kind()));
        pieces
            .map(|(piece, id)| added(piece.piece(), id, piece.kind() != USER_DEFINED))
            .collect::<Vec<_>>()
    };
    let definition = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": named(&[UNKNOWN, CONTROL, USER_DEFINED]),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": around("[CLS]", cls.into(), "[SEP]", sep.into()),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": model.pieces.iter().map(|piece| json!([piece.piece(), piece.score()])).collect::<Vec<_>>(),
            "byte_fallback": false,
        },
    });
    Ok(Converted {
        definition,
        file: FILE,
        class: "AlbertTokenizer",
    })
}

/// The pieces of a sentencepiece model, which may take far more memory than their bytes.
fn count_pieces(bytes: &[u8]) -> std::result::Result<usize, DecodeError> {
    let (mut rest, mut pieces) = (bytes, 0);
    while !rest.is_empty() {
        let (tag, kind) = encoding::decode_key(&mut rest)?;
        encoding::skip_field(kind, tag, &mut rest, DecodeContext::default())?;
        pieces += usize::from(tag == 1);
    }
    Ok(pieces)
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn added(content: &str, id: u64, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": special})
}

/// `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, the second text and its end in segment 1.
fn around(cls: &str, cls_id: Value, sep: &str, sep_id: Value) -> Value {
    let token = |id: &str, segment: u32| json!({"SpecialToken": {"id": id, "type_id": segment}});
    let text = |id: &str, segment: u32| json!({"Sequence": {"id": id, "type_id": segment}});
    json!({
        "type": "TemplateProcessing",
        "single": [token(cls, 0), text("A", 0), token(sep, 0)],
        "pair": [token(cls, 0), text("A", 0), token(sep, 0), text("B", 1), token(sep, 1)],
        "special_tokens": {
            cls: {"id": cls, "ids": [cls_id], "tokens": [cls]},
            sep: {"id": sep, "ids": [sep_id], "tokens": [sep]},
        },
    })
}
