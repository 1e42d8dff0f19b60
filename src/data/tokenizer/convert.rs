//! The vocabulary of a directory: of its `tokenizer.json`, or of the files of the time before it:
//! `vocab.json` with `merges.txt`, `vocab.txt`, and sentencepiece models under several names.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::bounds;
use super::class::Class;
use super::sentencepiece;
use super::vocabulary::{Model, Vocabulary};
use crate::error::{Error, Result};
use xtrain_report as report;

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

    pub fn bad(&self, name: &str, reason: impl ToString) -> Error {
        Error::BadTokenizer {
            path: self.dir.join(name),
            reason: reason.to_string(),
        }
    }

    fn check_count(&self, name: &str, tokens: usize) -> Result<()> {
        bounds::check_tokens(tokens).map_err(|reason| self.bad(name, reason))
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        self.get(name)
            .map(|bytes| std::str::from_utf8(bytes).map_err(|error| self.bad(name, error)))
            .transpose()
    }

    pub fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        self.get(name)
            .map(|bytes| report::json::from_slice(bytes).map_err(|error| self.bad(name, error)))
            .transpose()
    }
}

const PAIRS: [&str; 2] = ["vocab.json", "merges.txt"];
const WORDS: &str = "vocab.txt";
const ALBERT: &str = "spiece.model";
const XLM_ROBERTA: &str = "sentencepiece.bpe.model";
const LLAMA: &str = "tokenizer.model";

/// Files of earlier versions and the class that reads them where nothing names one.
fn forms() -> [(&'static [&'static str], Class); 5] {
    [
        (&PAIRS, Class::Gpt2),
        (&[WORDS], Class::Bert),
        (&[ALBERT], Class::Albert),
        (&[XLM_ROBERTA], Class::XlmRoberta),
        (&[LLAMA], Class::Llama),
    ]
}

/// The files that a class reads where there is no `tokenizer.json`.
fn form_of(class: Class) -> &'static [&'static str] {
    match class {
        Class::Gpt2 | Class::CodeGen | Class::Roberta | Class::Qwen2 | Class::GptNeoX => &PAIRS,
        Class::Bert | Class::DistilBert => &[WORDS],
        Class::Albert => &[ALBERT],
        Class::XlmRoberta => &[XLM_ROBERTA],
        Class::Gemma | Class::Llama | Class::Plain => &[LLAMA],
    }
}

/// The class, vocabulary and first file of a directory without `tokenizer.json`; `class` is the one
/// that its files name.
///
/// # Errors
/// What is missing or damaged.
pub(super) fn earlier(
    files: &Files<'_>,
    class: Option<Class>,
) -> Result<(Class, Vocabulary, &'static str)> {
    let is_there = |form: &&[&str]| form.iter().all(|name| files.get(name).is_some());
    let named = class.map(|class| (form_of(class), class));
    // Where a sentencepiece model stands under the common name, transformers takes it.
    let common: (&[&str], Class) = (&[LLAMA], class.unwrap_or(Class::Llama));
    let takes_model =
        class.is_none_or(|class| form_of(class).len() == 1 && form_of(class) != [WORDS]);
    let found = named
        .filter(|(form, _)| is_there(form))
        .or_else(|| {
            Some(common).filter(|(form, _)| class.is_some() && takes_model && is_there(form))
        })
        .or_else(|| {
            // transformers reads nothing by a class without such files.
            let is_open = class.is_none_or(|class| class == Class::Plain);
            forms()
                .into_iter()
                .find(|(form, _)| is_open && is_there(form))
        });
    let Some((form, class)) = found else {
        return Err(missing(files.dir, |name| files.get(name).is_some()));
    };
    match form {
        [VOCAB, MERGES] => {
            let (vocab, merges) = (files.object(VOCAB)?, files.text(MERGES)?);
            let (vocab, merges) = (vocab.unwrap_or_default(), merges.unwrap_or_default());
            files.check_count(VOCAB, vocab.len())?;
            files.check_count(MERGES, merges.lines().count())?;
            let is_robertas = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
                .iter()
                .all(|token| vocab.contains_key(*token));
            let class = match (named, is_robertas) {
                (None | Some((_, Class::Plain)), true) => Class::Roberta,
                _ => class,
            };
            Ok((class, byte_bpe(vocab, merges), VOCAB))
        }
        [WORDS] => {
            let vocab = files.text(WORDS)?.unwrap_or_default();
            files.check_count(WORDS, vocab.lines().count())?;
            Ok((class, wordpiece(vocab), WORDS))
        }
        [file] => {
            let bytes = files.get(file).unwrap_or_default();
            let vocabulary =
                sentencepiece::read(bytes, class).map_err(|reason| files.bad(file, reason))?;
            Ok((class, vocabulary, file))
        }
        _ => Err(missing(files.dir, |name| files.get(name).is_some())),
    }
}

const VOCAB: &str = PAIRS[0];
const MERGES: &str = PAIRS[1];

/// Looks in a directory without `tokenizer.json` for what can become one.
///
/// # Errors
/// There is nothing.
pub(super) fn check(dir: &Path) -> Result<()> {
    let has = |name: &str| dir.join(name).exists();
    let is_there = forms()
        .iter()
        .any(|(files, _)| files.iter().all(|name| has(name)));
    if is_there {
        Ok(())
    } else {
        Err(missing(dir, has))
    }
}

fn missing(dir: &Path, has: impl Fn(&str) -> bool) -> Error {
    let hint = if has(VOCAB) && !has(MERGES) {
        "; there is a vocab.json but no merges.txt"
    } else if has("tekken.json") {
        "; there is a tekken.json, which only Mistral's own library reads"
    } else {
        ""
    };
    Error::NoTokenizer {
        dir: dir.to_path_buf(),
        hint: hint.to_string(),
    }
}

/// What `tokenizer.json` holds for a class that builds the rest itself. `Err` says what is wrong
/// with it.
pub(super) fn defined(definition: &[u8]) -> std::result::Result<Vocabulary, String> {
    let mut frame: Value = serde_json::from_slice(definition).map_err(|error| error.to_string())?;
    let model = frame
        .get_mut("model")
        .and_then(Value::as_object_mut)
        .ok_or("it has no model")?;
    let kind = model
        .get("type")
        .and_then(Value::as_str)
        .map(str::to_string);
    let vocab = model.get_mut("vocab").map(Value::take).unwrap_or_default();
    let merges = model.get_mut("merges").map(Value::take);
    let kind = kind.as_deref().unwrap_or(match (&vocab, &merges) {
        (Value::Array(_), _) => "Unigram",
        (_, Some(_)) => "BPE",
        _ => "WordPiece",
    });
    let kind = kind.to_string();
    let mut empty = json!({});
    let parsed = match kind.as_str() {
        "BPE" => {
            model.insert("merges".into(), json!([]));
            let merges = merges.unwrap_or_else(|| json!([]));
            Model::Bpe { vocab, merges }
        }
        "WordPiece" => Model::WordPiece { vocab },
        "Unigram" => {
            // It may not be empty, nor may the token for what it does not know lie outside.
            empty = vocab.clone();
            let unk = model.get("unk_id").and_then(Value::as_u64).unwrap_or(0) as usize;
            let byte_fallback = model.get("byte_fallback") == Some(&Value::Bool(true));
            Model::Unigram {
                vocab,
                unk,
                byte_fallback,
            }
        }
        _ => {
            empty = vocab;
            Model::Words
        }
    };
    model.insert("type".into(), kind.into());
    model.insert("vocab".into(), empty);
    let charsmap = match &frame["normalizer"] {
        Value::Object(sequence) if sequence.get("type") == Some(&"Sequence".into()) => {
            let steps = sequence.get("normalizers").and_then(Value::as_array);
            let is_charsmap = |step: &&Value| step["type"] == "Precompiled";
            steps
                .and_then(|steps| steps.iter().find(is_charsmap))
                .cloned()
        }
        step if step["type"] == "Precompiled" => Some(step.clone()),
        _ => None,
    };
    Ok(Vocabulary {
        model: parsed,
        charsmap,
        pieces: None,
        named: Vec::new(),
        frame: Some(frame),
    })
}

/// The two files of GPT-2 and its relatives.
fn byte_bpe(vocab: Map<String, Value>, merges: &str) -> Vocabulary {
    // The first line tells the version; a merge of "#version:" itself cannot be, as no GPT-2 token
    // holds a space.
    let lines = merges.split('\n').map(|line| line.trim_end_matches('\r'));
    let merges: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("#version"))
        .collect();
    Vocabulary::of(Model::Bpe {
        vocab: vocab.into(),
        merges: merges.into(),
    })
}

/// BERT's list of word pieces, one a line.
fn wordpiece(text: &str) -> Vocabulary {
    let tokens = text.strip_suffix('\n').unwrap_or(text).split('\n');
    let vocab: Map<String, Value> = tokens
        .zip(0u64..)
        .map(|(token, id)| (token.trim_end().to_string(), id.into()))
        .collect();
    Vocabulary::of(Model::WordPiece {
        vocab: vocab.into(),
    })
}
