//! A Hugging Face tokenizer directory: loading it, text to ids and back, and saving it again byte
//! for byte.
//!
//! All files are read at once and kept, so that saving gives what was used even if the directory
//! has changed since.

mod assemble;
mod bounds;
mod bpe;
mod class;
mod convert;
mod normalizer;
pub(crate) mod pieces;
mod read;
mod rules;
mod sentencepiece;
mod settings;
mod text_stream;
mod vocabulary;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use serde_json::{Map, Value};
use tokenizers::PostProcessor;

use crate::error::{Error, Result};
use class::Class;
pub use read::{CHAT_TEMPLATE, TEMPLATES, TOKENIZER_FILES};
use read::{CONFIG, DEFINITION, Read, SPECIAL_TOKENS, model_config, read_files};
pub use text_stream::TextStream;
use xtrain_checkpoint::{atomic, files, hf};
use xtrain_report::{json, panics};

/// `model_max_length` above this is transformers' way to say that there is no limit.
const NO_LIMIT: f64 = 1e15;

/// A loaded tokenizer. Cheap to clone, shared between threads.
#[derive(Clone)]
pub struct Tokenizer {
    pub(super) inner: Arc<tokenizers::Tokenizer>,
    files: Arc<Vec<(String, Vec<u8>)>>,
    fingerprint: String,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    mask: Option<u32>,
    /// Special tokens with a name that every tokenizer knows.
    special: Arc<Vec<(String, String)>>,
    /// The largest id that it puts around texts.
    largest_around: Option<u32>,
    pads_left: bool,
    pub truncates_left: bool,
    segments: bool,
    model_max_length: Option<usize>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Tokenizer({} tokens, {})",
            self.vocab_size(),
            &self.fingerprint[..12]
        )
    }
}

impl Tokenizer {
    /// Looks for a tokenizer's files in a directory, without reading them.
    ///
    /// # Errors
    /// There are none.
    pub fn check_files(dir: &Path) -> Result<()> {
        if dir.join(DEFINITION).exists() {
            return Ok(());
        }
        convert::check(dir)
    }

    /// Loads from a directory (`tokenizer.json`, else what earlier versions wrote) or from a
    /// `tokenizer.json` by its path.
    pub fn load(path: &Path) -> Result<Tokenizer> {
        Tokenizer::load_with(path, None)
    }

    /// The same, with texts turned into lower case or not (`do_lower_case`), whatever the files
    /// say; those that are saved say it, too. `None`: as the files say.
    pub fn load_with(path: &Path, lower_case: Option<bool>) -> Result<Tokenizer> {
        let is_dir = path.is_dir();
        let dir = if is_dir {
            path
        } else {
            path.parent().unwrap_or(Path::new(""))
        };
        let files = if is_dir || path.file_name().is_some_and(|name| name == DEFINITION) {
            if !is_dir {
                files::read(path).map_err(Error::io("read", path))?;
            }
            read_files(dir)?
        } else {
            let definition = files::read(path).map_err(Error::io("read", path))?;
            return match lower_case {
                None => Tokenizer::of_definition(path, definition),
                Some(lower) => Tokenizer::of_definition(path, definition)?.in_lower_case(
                    path,
                    &Map::new(),
                    lower,
                ),
            };
        };
        let model = model_config(dir);
        let tokenizer = Tokenizer::build(&dir.join(DEFINITION), files, &model)?;
        match lower_case {
            None => Ok(tokenizer),
            Some(lower) => tokenizer.in_lower_case(&dir.join(DEFINITION), &model, lower),
        }
    }

    /// Of a `tokenizer.json` alone.
    fn of_definition(path: &Path, definition: Vec<u8>) -> Result<Tokenizer> {
        let files = vec![(DEFINITION.to_string(), definition)];
        Tokenizer::build(path, files, &Map::new())
    }

    /// Built again from a definition and a config that both have the switch set.
    fn in_lower_case(
        &self,
        path: &Path,
        model: &Map<String, Value>,
        lower: bool,
    ) -> Result<Tokenizer> {
        let refused = |normalizer: String| Error::NoLowerCase {
            path: path.to_path_buf(),
            normalizer,
        };
        let mut files = self.files.to_vec();
        for (name, bytes) in &mut files {
            match name.as_str() {
                DEFINITION => {
                    *bytes = normalizer::set_lower_case(std::mem::take(bytes), lower)
                        .map_err(refused)?;
                }
                CONFIG => {
                    let mut config = self.config();
                    config.insert("do_lower_case".into(), lower.into());
                    *bytes = hf::to_json_text(&config, 2);
                }
                _ => {}
            }
        }
        Tokenizer::build(path, files, model)
    }

    /// `path` is the definition's, for messages, and `model` a config.json. What is saved is
    /// `files`, with a config that names the class and, as transformers saves it, a definition beside
    /// older forms.
    fn build(
        path: &Path,
        mut files: Vec<(String, Vec<u8>)>,
        model: &Map<String, Value>,
    ) -> Result<Tokenizer> {
        let Read {
            inner,
            fingerprint,
            settings,
            class,
            is_named,
            padding,
            made,
        } = Read::of(path, &files, model)?;
        let bad = |reason: String| Error::BadTokenizer {
            path: path.to_path_buf(),
            reason,
        };
        let largest_around = largest_around(&inner).map_err(bad)?;
        let token = |key: &str, usual: &[&str]| -> Option<u32> {
            match settings.token(key) {
                Some(token) => inner.token_to_id(token),
                // A null says that there is none.
                None if settings.has_none(key) => None,
                None => usual.iter().find_map(|token| inner.token_to_id(token)),
            }
        };
        let bos = token("bos_token", &[bpe::END_OF_TEXT, "<s>"]);
        let eos = token("eos_token", &[bpe::END_OF_TEXT, "</s>"]);
        let padded = padding.as_ref().map(|it| it["pad_token"].as_str());
        let padded = padded.flatten().filter(|_| class == Class::Plain);
        let pad = token("pad_token", &[padded.unwrap_or("<pad>"), "<pad>", "[PAD]"]);
        let mask = token("mask_token", &["<mask>", "[MASK]"]);
        let side = |key: &str| settings.value(key).and_then(Value::as_str);
        let direction = padding.as_ref().map(|it| it["direction"] == "Left");
        let pads_left = match side("padding_side") {
            Some(side) => side == "left",
            None => direction.unwrap_or(class.pads_left()),
        };
        let segments = match settings
            .value("model_input_names")
            .and_then(Value::as_array)
        {
            Some(names) => names.iter().any(|name| name == "token_type_ids"),
            None if is_named => class.has_segments(),
            None => tells_segments(&inner),
        };
        let limit = ["model_max_length", "max_len"]
            .iter()
            .find_map(|key| settings.value(key))
            .and_then(Value::as_f64)
            .filter(|limit| *limit >= 1.0 && *limit < NO_LIMIT);
        let truncates_left = side("truncation_side") == Some("left");
        let special = settings.named.iter().filter_map(|(name, token)| {
            let token = token.as_ref()?.content().to_string();
            settings::NAMES
                .contains(&name.as_str())
                .then(|| (name.clone(), token))
        });
        let mut special: Vec<(String, String)> = special.collect();
        let named = [
            ("bos_token", bos),
            ("eos_token", eos),
            ("pad_token", pad),
            ("mask_token", mask),
        ];
        let named = named.map(|(key, id)| (key, id.and_then(|id| inner.id_to_token(id))));
        // The saved configuration will name them where there is none.
        let is_unnamed = !files.iter().any(|(name, _)| name == CONFIG);
        if is_unnamed && class == Class::Plain {
            for (key, token) in &named {
                if let Some(token) = token
                    && special.iter().all(|(name, _)| name != key)
                {
                    special.push((key.to_string(), token.clone()));
                }
            }
        }
        name_class(&mut files, class, named, segments);
        files.extend(made.map(|definition| (DEFINITION.to_string(), definition)));
        files.sort();
        Ok(Tokenizer {
            inner: Arc::new(inner),
            files: Arc::new(files),
            fingerprint,
            bos,
            eos,
            pad,
            mask,
            special: Arc::new(special),
            largest_around,
            pads_left,
            truncates_left,
            segments,
            model_max_length: limit.map(|limit| limit as usize),
        })
    }

    /// Number of tokens, added ones included (`len(tokenizer)` in Python).
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// One more than the largest id: the rows that an embedding needs. What surrounds a text may
    /// have ids that are in no vocabulary.
    pub fn id_bound(&self) -> usize {
        let vocabulary = self.inner.get_vocab(true).into_values();
        let largest = vocabulary.chain(self.largest_around).max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// Refuses a tokenizer whose ids go past the model's vocabulary. A model may have more rows
    /// than there are tokens.
    pub fn check_vocab(&self, model: usize) -> Result<()> {
        let tokenizer = self.id_bound();
        if tokenizer > model {
            Err(Error::VocabMismatch { tokenizer, model })
        } else {
            Ok(())
        }
    }

    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    pub fn pad_id(&self) -> Option<u32> {
        self.pad
    }

    pub fn mask_id(&self) -> Option<u32> {
        self.mask
    }

    /// Whether padding goes before the text (`padding_side`).
    pub fn pads_left(&self) -> bool {
        self.pads_left
    }

    /// Whether the tokenizer's model takes which text of a pair a token belongs to
    /// (`token_type_ids`).
    pub fn has_segments(&self) -> bool {
        self.segments
    }

    /// Special tokens that are added around a text, or around and between two.
    pub fn special_tokens(&self, pair: bool) -> usize {
        self.inner
            .get_post_processor()
            .map_or(0, |processor| processor.added_tokens(pair))
    }

    /// The ids of all special tokens.
    pub fn special_ids(&self) -> BTreeSet<u32> {
        let added = self.inner.get_added_tokens_decoder().into_iter();
        let special = added.filter(|(_, token)| token.special);
        special.map(|(id, _)| id).collect()
    }

    /// Special tokens by name (`bos_token`), as transformers' attribute of this name has them.
    pub fn special_tokens_map(&self) -> &[(String, String)] {
        &self.special
    }

    /// The token that an id stands for.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The same tokenizer with one of its tokens for padding, which saved files say too.
    pub fn with_pad_token(&self, token: &str) -> Result<Tokenizer> {
        let Some(id) = self.inner.token_to_id(token) else {
            return Err(Error::PadTokenUnknown {
                token: token.to_string(),
            });
        };
        let mut files = self.files.to_vec();
        // special_tokens_map.json wins where both name one.
        for (name, bytes) in &mut files {
            let is_map = name == SPECIAL_TOKENS;
            if !is_map && name != CONFIG {
                continue;
            }
            let mut named: Map<String, Value> =
                json::from_slice(bytes).expect("build() has parsed it");
            if !is_map || named.contains_key("pad_token") {
                named.insert("pad_token".into(), token.into());
                *bytes = hf::to_json_text(&named, 2);
            }
        }
        let mut special = self.special.to_vec();
        special.retain(|(name, _)| name != "pad_token");
        special.push(("pad_token".to_string(), token.to_string()));
        Ok(Tokenizer {
            pad: Some(id),
            special: Arc::new(special),
            files: Arc::new(files),
            ..self.clone()
        })
    }

    /// The longest text that the tokenizer's own config allows, in tokens; `None` where it sets no
    /// limit.
    pub fn model_max_length(&self) -> Option<usize> {
        self.model_max_length
    }

    /// Digest of what decides the ids of a text.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Ids of a text as it stands, nothing added before or after.
    ///
    /// # Errors
    /// The tokenizer gives up, for example because its regular expression backtracks for ever.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encode = |piece: &str| {
            let encoded = encoding(piece, |piece| self.inner.encode_fast(piece, false))?;
            Ok(encoded.get_ids().to_vec())
        };
        let pieces = pieces::pieces(text, encode)?;
        let ids: Vec<_> = pieces
            .par_iter()
            .map(|piece| encode(piece))
            .collect::<Result<_>>()?;
        Ok(ids.concat())
    }

    /// As [`Tokenizer::encode`], and for each id the bytes that its text has.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let encode = |piece: &str| encoding(piece, |piece| self.inner.encode(piece, false));
        let ids = |piece: &str| Ok(encode(piece)?.get_ids().to_vec());
        let (mut all, mut offsets, mut at) = (Vec::new(), Vec::new(), 0);
        for piece in pieces::pieces(text, ids)? {
            let encoded = encode(piece)?;
            all.extend_from_slice(encoded.get_ids());
            let found = encoded.get_offsets().iter();
            offsets.extend(found.map(|(start, end)| at + start..at + end));
            at += piece.len();
        }
        Ok((all, offsets))
    }

    /// Ids of a text with the special tokens that belong around one, as a prompt has them.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_special_tokens(&self, text: &str) -> Result<Vec<u32>> {
        let around = |text: &str| {
            let encoded = encoding(text, |text| self.inner.encode_fast(text, true))?;
            Ok::<_, Error>(encoded.get_ids().to_vec())
        };
        if text.len() <= pieces::PIECE {
            return around(text);
        }
        // What stands around any text stands around a letter.
        let (letter, alone) = (around("a")?, self.encode("a")?);
        let before = letter
            .windows(alone.len().max(1))
            .position(|ids| ids == alone)
            .unwrap_or(0);
        let mut ids = letter[..before].to_vec();
        ids.extend(self.encode(text)?);
        ids.extend(letter.iter().skip(before + alone.len()));
        Ok(ids)
    }

    /// Text of ids, special tokens left out if asked.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        panics::guarded(|| self.inner.decode(ids, skip_special_tokens))
            .unwrap_or_else(|panic| Err(panic.into()))
            .map_err(|error| Error::Tokenize {
                place: format!("{} ids back to text", ids.len()),
                reason: error.to_string(),
            })
    }

    /// The files that make up this tokenizer, to be saved beside a model: those it was loaded from,
    /// byte for byte, and a `tokenizer_config.json` and a `tokenizer.json` where there was none.
    pub fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }

    /// One of its files.
    pub(crate) fn file(&self, name: &str) -> Option<&[u8]> {
        let mut files = self.files.iter();
        files
            .find(|(found, _)| found == name)
            .map(|(_, bytes)| bytes.as_slice())
    }

    /// What its tokenizer_config.json says.
    pub(crate) fn config(&self) -> Map<String, Value> {
        let bytes = self
            .file(CONFIG)
            .expect("build() adds a config where there is none");
        json::from_slice(bytes).expect("build() has parsed it")
    }

    /// Writes [`Tokenizer::files`] into a directory.
    pub fn save(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        for (name, bytes) in self.files() {
            let path = dir.join(name);
            let above = path.parent().unwrap_or(dir);
            fs::create_dir_all(above).map_err(Error::io("create", above))?;
            atomic::write_bytes(&path, bytes)?;
        }
        Ok(())
    }
}

/// Calls the `tokenizers` crate, which panics where a regular expression of a tokenizer fails.
///
/// # Errors
/// The call fails or panics; the message shows how `text` begins.
pub(crate) fn encoding<T>(
    text: &str,
    encode: impl FnOnce(&str) -> tokenizers::Result<T>,
) -> Result<T> {
    let failed = |reason: String| Error::Tokenize {
        place: format!("{:?}", text.chars().take(60).collect::<String>()),
        reason,
    };
    match panics::guarded(|| encode(text)) {
        Ok(Ok(encoding)) => Ok(encoding),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(message) => Err(failed(format!(
            "the tokenizer's own rules cannot handle this text ({message})"
        ))),
    }
}

/// Whether the tokenizer was made for a model with segments, as BERT's and ALBERT's are: it
/// surrounds texts with special tokens and numbers the texts of a pair 0 and 1. (RoBERTa's numbers
/// them 0 and 0, GPT's surrounds nothing.)
fn tells_segments(inner: &tokenizers::Tokenizer) -> bool {
    let Ok(Ok(pair)) = panics::guarded(|| inner.encode_fast(("a", "b"), true)) else {
        return false;
    };
    pair.get_special_tokens_mask().contains(&1) && pair.get_type_ids().contains(&1)
}

/// Trains a GPT-2 style byte-level BPE with `<|endoftext|>` as id 0. The same texts give the same
/// tokenizer, whatever the number of threads. It has fewer than `vocab_size` tokens if the texts
/// have too few repeated pairs.
pub fn train_byte_bpe(texts: &[impl AsRef<str> + Sync], vocab_size: usize) -> Result<Tokenizer> {
    let definition = hf::to_json_text(&bpe::train(texts, vocab_size)?, 2);
    Tokenizer::of_definition(Path::new("(trained here)"), definition)
}

/// The largest id that it puts around a text, and around and between two.
fn largest_around(inner: &tokenizers::Tokenizer) -> std::result::Result<Option<u32>, String> {
    let mut largest = None;
    for pair in [false, true] {
        let around = encoding("", |_| {
            let empty = || tokenizers::Encoding::default();
            inner.post_process(empty(), pair.then(empty), true)
        });
        let around = around.map_err(|error| format!("its post_processor: {error}"))?;
        largest = largest.max(around.get_ids().iter().copied().max());
    }
    Ok(largest)
}

/// Saved files name the class that read them: beside another model's config.json transformers would
/// choose that model's.
fn name_class(
    files: &mut Vec<(String, Vec<u8>)>,
    class: Class,
    named: [(&str, Option<String>); 4],
    segments: bool,
) {
    let found = files.iter_mut().find(|(name, _)| name == CONFIG);
    let mut config: Map<String, Value> = found
        .as_ref()
        .and_then(|(_, bytes)| json::from_slice(bytes).ok())
        .unwrap_or_default();
    if config.get("tokenizer_class").is_some_and(Value::is_string) {
        return;
    }
    let has_names = found.is_some();
    config.insert("tokenizer_class".into(), class.name().into());
    // Another class has them by itself.
    if !has_names && class == Class::Plain {
        for (key, token) in named {
            if let Some(token) = token {
                config.insert(key.into(), token.into());
            }
        }
    }
    if segments != class.has_segments() && !config.contains_key("model_input_names") {
        let names = ["input_ids", "token_type_ids", "attention_mask"];
        let names = names
            .into_iter()
            .filter(|name| segments || *name != "token_type_ids");
        config.insert("model_input_names".into(), names.collect());
    }
    let bytes = hf::to_json_text(&config, 2);
    match files.iter_mut().find(|(name, _)| name == CONFIG) {
        Some((_, file)) => *file = bytes,
        None => files.push((CONFIG.to_string(), bytes)),
    }
}

#[cfg(test)]
mod tests;
