//! A Hugging Face tokenizer directory: loading it, text to ids and back, and saving it again byte
//! for byte.
//!
//! All files are read at once and kept, so that saving gives what was used even if the directory
//! has changed since.

mod bounds;
mod bpe;
mod convert;
mod normalizer;
pub(in crate::data) mod pieces;
mod text_stream;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use serde_json::{Map, Value};
use tokenizers::PostProcessor;

use crate::checkpoint::{atomic, files, hash, hf};
use crate::data::error::{Error, Result};
use crate::report::{json, panics};
use convert::{Converted, Files, convert};
pub use text_stream::TextStream;

const DEFINITION: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// The chat template of models that transformers 5 saved.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Files that make up a tokenizer in one form or another; those found go along with a saved model.
pub const TOKENIZER_FILES: [&str; 10] = [
    DEFINITION,
    CONFIG,
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "spiece.model",
    "tokenizer.model",
    CHAT_TEMPLATE,
];

/// The transformers class that takes a `tokenizer.json` as it is.
const FROM_DEFINITION: &str = "PreTrainedTokenizerFast";

/// transformers' classes of no model, whose `model_input_names` have no segments.
const GENERAL_CLASSES: [&str; 3] = [FROM_DEFINITION, "TokenizersBackend", "PreTrainedTokenizer"];

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

    /// Loads from a directory (`tokenizer.json`, else what `convert` can make one of) or from a
    /// `tokenizer.json` by its path.
    pub fn load(path: &Path) -> Result<Tokenizer> {
        Tokenizer::load_with(path, None)
    }

    /// The same, with texts turned into lower case or not (`do_lower_case`), whatever the files
    /// say; those that are saved say it, too. `None`: as the files say.
    pub fn load_with(path: &Path, lower_case: Option<bool>) -> Result<Tokenizer> {
        let (definition, files, file, class) = if path.is_dir() {
            let files = read_files(path)?;
            let found = Files {
                dir: path,
                files: &files,
            };
            match found.get(DEFINITION) {
                Some(definition) => (
                    definition.to_vec(),
                    files,
                    path.join(DEFINITION),
                    FROM_DEFINITION,
                ),
                None => {
                    let Converted {
                        definition,
                        file,
                        class,
                    } = convert(&found)?;
                    (
                        hf::to_json_text(&definition, 2),
                        files,
                        path.join(file),
                        class,
                    )
                }
            }
        } else {
            let definition = files::read(path).map_err(Error::io("read", path))?;
            let files = match path.file_name() {
                Some(name) if name == DEFINITION => {
                    read_files(path.parent().unwrap_or(Path::new("")))?
                }
                _ => vec![(DEFINITION.to_string(), definition.clone())],
            };
            (definition, files, path.to_path_buf(), FROM_DEFINITION)
        };
        match lower_case {
            None => Tokenizer::build(&file, definition, files, class),
            Some(lower) => Tokenizer::build_lower_case(&file, definition, files, class, lower),
        }
    }

    /// Builds from a definition and a config that both have the switch set.
    fn build_lower_case(
        path: &Path,
        definition: Vec<u8>,
        files: Vec<(String, Vec<u8>)>,
        class: &str,
        lower: bool,
    ) -> Result<Tokenizer> {
        // Of files without a config the first build makes one, which then has the switch, too.
        let mut files = Tokenizer::build(path, definition.clone(), files, class)?
            .files
            .to_vec();
        let definition = normalizer::set_lower_case(definition, lower).map_err(|normalizer| {
            Error::NoLowerCase {
                path: path.to_path_buf(),
                normalizer,
            }
        })?;
        for (name, bytes) in &mut files {
            match name.as_str() {
                DEFINITION => *bytes = definition.clone(),
                CONFIG => {
                    let mut config: Map<String, Value> =
                        serde_json::from_slice(bytes).expect("it has just been built from");
                    config.insert("do_lower_case".into(), lower.into());
                    *bytes = hf::to_json_text(&config, 2);
                }
                _ => {}
            }
        }
        Tokenizer::build(path, definition, files, class)
    }

    /// `definition` is what is loaded; `files` is what is saved; `class` reads them in
    /// transformers.
    fn build(
        path: &Path,
        definition: Vec<u8>,
        mut files: Vec<(String, Vec<u8>)>,
        class: &str,
    ) -> Result<Tokenizer> {
        let bad = |reason: String| Error::BadTokenizer {
            path: path.to_path_buf(),
            reason,
        };
        let object = |name: &str| -> Result<Map<String, Value>> {
            let Some((_, bytes)) = files.iter().find(|(found, _)| found == name) else {
                return Ok(Map::new());
            };
            let path = path.with_file_name(name);
            json::from_slice(bytes).map_err(|error| Error::BadTokenizer {
                path,
                reason: error.to_string(),
            })
        };
        bounds::check(&definition).map_err(bad)?;
        let (config, special) = (object(CONFIG)?, object("special_tokens_map.json")?);
        let definition = if normalizer::is_bert(&config) {
            normalizer::obey_bert_config(definition, &config)
                .map_err(|error| bad(error.to_string()))?
        } else {
            definition
        };
        // The library panics on some of what a damaged file may say.
        let mut inner = panics::guarded(|| tokenizers::Tokenizer::from_bytes(&definition))
            .unwrap_or_else(|panic| Err(panic.into()))
            .map_err(|error| bad(error.to_string()))?;
        if let tokenizers::ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            let reason = "its model drops merges at random, so that one text has many ids; set \"dropout\" of its \"model\" to null";
            return Err(bad(reason.to_string()));
        }
        // A file may carry the padding and truncation of its last use; transformers resets both,
        // and a corpus must not be cut.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| bad(error.to_string()))?;
        // What it puts around a text, and around and between two.
        let around = |pair: bool| {
            encoding("", |_| {
                let empty = || tokenizers::Encoding::default();
                inner.post_process(empty(), pair.then(empty), true)
            })
        };
        let mut largest_around = None;
        for pair in [false, true] {
            let around =
                around(pair).map_err(|error| bad(format!("its post_processor: {error}")))?;
            largest_around = largest_around.max(around.get_ids().iter().copied().max());
        }
        let token = |key: &str, usual: &[&str]| -> Option<u32> {
            // A token is a string, or an object with its content. An explicit null means that there
            // is none.
            let named = config.get(key).or_else(|| special.get(key));
            match named {
                Some(value) => value
                    .as_str()
                    .or_else(|| value["content"].as_str())
                    .and_then(|token| inner.token_to_id(token)),
                None => usual.iter().find_map(|token| inner.token_to_id(token)),
            }
        };
        let bos = token("bos_token", &[bpe::END_OF_TEXT, "<s>"]);
        let eos = token("eos_token", &[bpe::END_OF_TEXT, "</s>"]);
        let pad = token("pad_token", &["<pad>", "[PAD]"]);
        let mask = token("mask_token", &["<mask>", "[MASK]"]);
        let on_the_left = |key: &str| config.get(key).and_then(Value::as_str) == Some("left");
        let (pads_left, truncates_left) =
            (on_the_left("padding_side"), on_the_left("truncation_side"));
        let named_class = config.get("tokenizer_class").and_then(Value::as_str);
        let segments = match config.get("model_input_names").and_then(Value::as_array) {
            Some(names) => names.iter().any(|name| name == "token_type_ids"),
            None if named_class.is_some_and(|class| GENERAL_CLASSES.contains(&class)) => false,
            None => tells_segments(&inner),
        };
        let limit = config
            .get("model_max_length")
            .and_then(Value::as_f64)
            .filter(|limit| *limit >= 1.0 && *limit < NO_LIMIT);
        if !files.iter().any(|(name, _)| name == CONFIG) {
            // Without it, AutoTokenizer guesses a class from the model's config, whose own rules
            // may differ from the file's.
            let mut config = Map::new();
            config.insert("tokenizer_class".into(), class.into());
            if segments && GENERAL_CLASSES.contains(&class) {
                let names = ["input_ids", "token_type_ids", "attention_mask"];
                config.insert("model_input_names".into(), names.to_vec().into());
            }
            for (key, id) in [
                ("bos_token", bos),
                ("eos_token", eos),
                ("pad_token", pad),
                ("mask_token", mask),
            ] {
                if let Some(token) = id.and_then(|id| inner.id_to_token(id)) {
                    config.insert(key.into(), token.into());
                }
            }
            files.push((CONFIG.to_string(), hf::to_json_text(&config, 2)));
        }
        if !files.iter().any(|(name, _)| name == DEFINITION) {
            // As transformers saves it, beside the older form.
            files.push((DEFINITION.to_string(), definition.clone()));
        }
        files.sort();
        let fingerprint = hash::sha256(&definition);
        let model_max_length = limit.map(|limit| limit as usize);
        Ok(Tokenizer {
            inner: Arc::new(inner),
            files: Arc::new(files),
            fingerprint,
            bos,
            eos,
            pad,
            mask,
            largest_around,
            pads_left,
            truncates_left,
            segments,
            model_max_length,
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
        let (_, bytes) = files
            .iter_mut()
            .find(|(name, _)| name == CONFIG)
            .expect("build() adds a config where there is none");
        let mut config: Map<String, Value> =
            serde_json::from_slice(bytes).expect("build() has parsed it");
        config.insert("pad_token".into(), token.into());
        *bytes = hf::to_json_text(&config, 2);
        Ok(Tokenizer {
            pad: Some(id),
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

    /// As [`Tokenizer::encode`], and for each id the byte that its text begins at.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_starts(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let encode = |piece: &str| encoding(piece, |piece| self.inner.encode(piece, false));
        let ids = |piece: &str| Ok(encode(piece)?.get_ids().to_vec());
        let (mut all, mut starts, mut at) = (Vec::new(), Vec::new(), 0);
        for piece in pieces::pieces(text, ids)? {
            let encoded = encode(piece)?;
            all.extend_from_slice(encoded.get_ids());
            let offsets = encoded.get_offsets().iter();
            starts.extend(offsets.map(|(start, _)| at + start));
            at += piece.len();
        }
        Ok((all, starts))
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
    pub(in crate::data) fn file(&self, name: &str) -> Option<&[u8]> {
        let mut files = self.files.iter();
        files
            .find(|(found, _)| found == name)
            .map(|(_, bytes)| bytes.as_slice())
    }

    /// What its tokenizer_config.json says.
    pub(in crate::data) fn config(&self) -> Map<String, Value> {
        let bytes = self
            .file(CONFIG)
            .expect("build() adds a config where there is none");
        serde_json::from_slice(bytes).expect("build() has parsed it")
    }

    /// Writes [`Tokenizer::files`] into a directory.
    pub fn save(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        for (name, bytes) in self.files() {
            atomic::write_bytes(&dir.join(name), bytes)?;
        }
        Ok(())
    }
}

/// Calls the `tokenizers` crate, which panics where a regular expression of a tokenizer fails.
///
/// # Errors
/// The call fails or panics; the message shows how `text` begins.
pub(in crate::data) fn encoding<T>(
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
    let files = vec![(DEFINITION.to_string(), definition.clone())];
    Tokenizer::build(
        Path::new("(trained here)"),
        definition,
        files,
        FROM_DEFINITION,
    )
}

fn read_files(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in TOKENIZER_FILES {
        let path: PathBuf = dir.join(name);
        match files::read(&path) {
            Ok(bytes) => files.push((name.to_string(), bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &path)(error)),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> Vec<String> {
        let words = [
            "the",
            "cat",
            "sat",
            "on",
            "mat",
            "and",
            "déjà",
            "vu",
            "ab",
            "abc",
            "bc",
            "1234",
            "🙂",
            "training",
            "trainer",
            "language",
            "models",
            "modelling",
            "graphs",
            "compile",
            "compiler",
            "tokens",
            "tokenize",
            "gradient",
            "gradually",
            "accumulate",
        ];
        (0..400)
            .map(|i| {
                (0..12)
                    .map(|j| words[(i * 7 + j * j * 3 + i * j) % words.len()])
                    .collect::<Vec<_>>()
                    .join(" ")
                    + "\n"
            })
            .collect()
    }

    #[test]
    fn training_is_the_same_on_any_number_of_threads_and_round_trips() {
        let texts = corpus();
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| train_byte_bpe(&texts, 300)).unwrap()
        };
        let one = train(1);
        for threads in [2, 5] {
            assert_eq!(train(threads).files(), one.files());
        }
        let mut backwards = texts.clone();
        backwards.reverse();
        assert_eq!(
            train_byte_bpe(&backwards, 300).unwrap().files(),
            one.files()
        );
        assert_eq!(
            (one.vocab_size(), one.id_bound(), one.eos_id(), one.bos_id()),
            (300, 300, Some(0), Some(0))
        );
        for text in texts.iter().map(String::as_str).chain([
            "",
            " \u{0} ünseen 漢字\r\n",
            "x<|endoftext|>y",
        ]) {
            let ids = one.encode(text).unwrap();
            assert_eq!(one.decode(&ids, false).unwrap(), text);
        }
        assert!(one.encode("a<|endoftext|>").unwrap().contains(&0));
        assert!(one.encode(&texts[0]).unwrap().len() < texts[0].len() / 2);
    }

    #[test]
    fn training_agrees_with_the_tokenizers_crate() {
        use tokenizers::models::bpe::{BPE, BpeTrainer};
        use tokenizers::pre_tokenizers::byte_level::ByteLevel;
        let texts = corpus();
        let mut theirs = tokenizers::Tokenizer::new(BPE::default());
        theirs.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
        let trainer = BpeTrainer::builder()
            .vocab_size(330)
            .min_frequency(2)
            .show_progress(false)
            .special_tokens(vec![tokenizers::AddedToken::from(bpe::END_OF_TEXT, true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect());
        let mut trainer: tokenizers::models::TrainerWrapper = trainer.build().into();
        theirs.train(&mut trainer, texts.iter()).unwrap();
        let ours = train_byte_bpe(&texts, 330).unwrap();
        let sorted = |tokenizer: &tokenizers::Tokenizer| {
            let mut vocab: Vec<_> = tokenizer.get_vocab(true).into_iter().collect();
            vocab.sort();
            vocab
        };
        assert_eq!(sorted(&ours.inner), sorted(&theirs));
    }

    #[test]
    fn too_small_a_vocabulary_is_refused_and_too_large_a_one_is_not_filled() {
        assert!(
            train_byte_bpe(&["abc"], 256)
                .unwrap_err()
                .to_string()
                .contains("alone take 257")
        );
        assert_eq!(
            train_byte_bpe(&["abab abab"], 5000).unwrap().vocab_size(),
            257 + 2
        );
    }

    #[test]
    fn saved_files_are_the_loaded_ones_and_a_config_is_added() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let trained = train_byte_bpe(&corpus(), 280).unwrap();
        let (_, definition) = trained
            .files()
            .iter()
            .find(|(name, _)| name == DEFINITION)
            .unwrap();
        fs::write(from.path().join(DEFINITION), definition).unwrap();
        fs::write(from.path().join("merges.txt"), "left as it is\r\n").unwrap();
        let loaded = Tokenizer::load(from.path()).unwrap();
        assert_eq!(loaded.fingerprint(), trained.fingerprint());
        loaded.save(to.path()).unwrap();
        for name in [DEFINITION, "merges.txt"] {
            assert_eq!(
                fs::read(from.path().join(name)).unwrap(),
                fs::read(to.path().join(name)).unwrap()
            );
        }
        let config = hf::read_object(&to.path().join(CONFIG)).unwrap();
        assert_eq!(
            (&config["tokenizer_class"], &config["eos_token"]),
            (&"PreTrainedTokenizerFast".into(), &bpe::END_OF_TEXT.into())
        );
        // Loading what was saved gives the same again, from the directory or from the file.
        for path in [to.path().to_path_buf(), to.path().join(DEFINITION)] {
            assert_eq!(Tokenizer::load(&path).unwrap().files(), loaded.files());
        }
    }

    #[test]
    fn an_older_form_is_saved_with_a_tokenizer_json_of_the_same_ids() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        for (family, names) in [
            ("albert", &["spiece.model"][..]),
            ("bert-uncased", &["vocab.txt"]),
            ("gpt2", &["vocab.json", "merges.txt"]),
        ] {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            for name in names {
                fs::copy(data.join(family).join(name), from.path().join(name)).unwrap();
            }
            let loaded = Tokenizer::load(from.path()).unwrap();
            loaded.save(to.path()).unwrap();
            for name in names {
                fs::remove_file(to.path().join(name)).unwrap();
            }
            let saved = Tokenizer::load(to.path()).unwrap();
            assert_eq!(saved.fingerprint(), loaded.fingerprint(), "{family}");
            let text = "A caf\u{e9}, not two.";
            assert_eq!(saved.encode(text).unwrap(), loaded.encode(text).unwrap());
            assert_eq!(saved.pad_id(), loaded.pad_id());
        }
    }

    #[test]
    fn the_config_decides_special_tokens_and_length() {
        let dir = tempfile::tempdir().unwrap();
        train_byte_bpe(&corpus(), 280)
            .unwrap()
            .save(dir.path())
            .unwrap();
        let load = |config: &str| {
            fs::write(dir.path().join(CONFIG), config).unwrap();
            Tokenizer::load(dir.path())
        };
        let tokenizer =
            load(r#"{"model_max_length": 1024, "eos_token": {"content": "A"}, "bos_token": null, "pad_token": "B"}"#).unwrap();
        assert_eq!(tokenizer.model_max_length(), Some(1024));
        assert_eq!(
            (
                tokenizer.eos_id().is_some_and(|id| id != 0),
                tokenizer.bos_id(),
                tokenizer.pad_id().is_some()
            ),
            (true, None, true)
        );
        for unlimited in [
            "{}",
            r#"{"model_max_length": 1000000000000000019884624838656}"#,
            r#"{"model_max_length": null}"#,
        ] {
            assert_eq!(load(unlimited).unwrap().model_max_length(), None);
        }
        assert!(
            load("{")
                .unwrap_err()
                .to_string()
                .contains("tokenizer_config.json")
        );
    }

    /// As transformers 5 gives token_type_ids: by the class, unless the file names the inputs.
    #[test]
    fn segments_are_those_of_the_tokenizers_class() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let definition = root.join("tests/data/bert-uncased/tokenizer.json");
        let dir = tempfile::tempdir().unwrap();
        fs::copy(definition, dir.path().join(DEFINITION)).unwrap();
        let load = |config: &str| {
            fs::write(dir.path().join(CONFIG), config).unwrap();
            Tokenizer::load(dir.path()).unwrap()
        };
        for (config, segments) in [
            (r#"{"tokenizer_class": "BertTokenizer"}"#, true),
            (r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#, false),
            (r#"{"tokenizer_class": "TokenizersBackend"}"#, false),
            (
                r#"{"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]}"#,
                true,
            ),
            (
                r#"{"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}"#,
                false,
            ),
        ] {
            assert_eq!(load(config).has_segments(), segments, "{config}");
        }
        // What is saved of a definition alone says of itself what it was used as.
        fs::remove_file(dir.path().join(CONFIG)).unwrap();
        let alone = Tokenizer::load(dir.path()).unwrap();
        let saved = tempfile::tempdir().unwrap();
        alone.save(saved.path()).unwrap();
        let again = Tokenizer::load(saved.path()).unwrap();
        assert_eq!((alone.has_segments(), again.has_segments()), (true, true));
    }

    #[test]
    fn what_cannot_be_loaded_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = |what: &str| {
            (
                what.to_string(),
                Tokenizer::load(dir.path()).unwrap_err().to_string(),
            )
        };
        assert!(error("empty").1.contains("expected tokenizer.json"));
        fs::write(dir.path().join("spiece.model"), "x").unwrap();
        assert!(error("sentencepiece").1.contains("no sentencepiece model"));
        fs::write(dir.path().join(DEFINITION), "{\"model\": 3}").unwrap();
        assert!(
            error("garbage")
                .1
                .contains("tokenizer.json is not a tokenizer")
        );
        assert!(
            Tokenizer::load(&dir.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("none")
        );
        let tokenizer = train_byte_bpe(&corpus(), 280).unwrap();
        tokenizer.check_vocab(280).unwrap();
        assert!(
            tokenizer
                .check_vocab(279)
                .unwrap_err()
                .to_string()
                .contains("280 tokens but the model's vocabulary has 279")
        );
    }
}
