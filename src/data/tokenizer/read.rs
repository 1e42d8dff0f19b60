//! Reading a tokenizer's directory: which files there are, which class reads them, and what it makes of
//! them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::assemble::{Assembled, Parts, assemble};
use super::bounds;
use super::class::{Class, Named};
use super::convert::{self, Files};
use super::settings::{Settings, Sources};
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};
use xtrain_checkpoint::{files, hf};
use xtrain_report::json;

pub(super) const DEFINITION: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// The chat template of models that transformers 5 saved.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Files that make up a tokenizer in one form or another; those found go along with a saved model.
pub const TOKENIZER_FILES: [&str; 11] = [
    DEFINITION,
    CONFIG,
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    CHAT_TEMPLATE,
];

pub(super) const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// Templates with names of their own.
pub const TEMPLATES: &str = "additional_chat_templates";

pub(super) fn read_files(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in TOKENIZER_FILES {
        let path: PathBuf = dir.join(name);
        match files::read(&path) {
            Ok(bytes) => files.push((name.to_string(), bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &path)(error)),
        }
    }
    let templates = dir.join(TEMPLATES);
    for entry in fs::read_dir(&templates).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".jinja") {
            let bytes = files::read(&entry.path()).map_err(Error::io("read", &entry.path()))?;
            files.push((format!("{TEMPLATES}/{name}"), bytes));
        }
    }
    Ok(files)
}

/// The config.json beside a tokenizer, which may name the class; one that cannot be read is the
/// model's own to complain about.
pub(super) fn model_config(dir: &Path) -> Map<String, Value> {
    files::read(&dir.join(hf::CONFIG_FILE))
        .ok()
        .and_then(|bytes| json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// A tokenizer as its files are read, before what they say of padding and lengths.
pub(super) struct Read {
    pub inner: tokenizers::Tokenizer,
    pub fingerprint: String,
    pub settings: Settings,
    pub class: Class,
    /// Whether the files name the class.
    pub is_named: bool,
    /// Padding as `tokenizer.json` has it of its last use.
    pub padding: Option<Value>,
    /// The definition that was made of earlier files.
    pub made: Option<Vec<u8>>,
}

impl Read {
    pub fn of(
        path: &Path,
        files: &[(String, Vec<u8>)],
        model: &Map<String, Value>,
    ) -> Result<Read> {
        let found = Files {
            dir: path.parent().unwrap_or(Path::new("")),
            files,
        };
        let config = found.object(CONFIG)?.unwrap_or_default();
        let definition = found.get(DEFINITION);
        if let Some(definition) = definition {
            bounds::check(definition).map_err(|reason| Error::BadTokenizer {
                path: path.to_path_buf(),
                reason,
            })?;
        }
        let named = Named {
            config: &config,
            model,
            definition,
        };
        let class = named.class().map_err(|name| found.bad(CONFIG, format!(
            "its class {name} has rules that are not built; with PreTrainedTokenizerFast as tokenizer_class tokenizer.json counts as it stands"
        )))?;
        let is_named = class.is_some();
        let (class, vocabulary, file) = vocabulary_of(&found, class)?;
        let path = match definition {
            Some(_) => path.to_path_buf(),
            None => found.dir.join(file),
        };
        let bad = |reason: String| Error::BadTokenizer {
            path: path.clone(),
            reason,
        };
        let frame: Frame = match definition {
            Some(definition) => {
                serde_json::from_slice(definition).map_err(|error| bad(error.to_string()))?
            }
            None => Frame::default(),
        };
        let mut sources = Sources {
            config,
            special_tokens_map: found.object(SPECIAL_TOKENS)?,
            added_tokens: found.object("added_tokens.json")?,
            defined: definition.map(|_| frame.added_tokens.as_slice()),
            pieces: None,
        };
        if let Some(vocabulary) = &vocabulary {
            sources.pieces = vocabulary.pieces.clone();
            for (key, token) in &vocabulary.named {
                let entry = sources.config.entry(*key);
                entry.or_insert_with(|| token.as_str().into());
            }
        }
        let settings =
            Settings::merge(sources, class).map_err(|(file, reason)| found.bad(file, reason))?;
        refuse_patches(&settings, model).map_err(|reason| found.bad(CONFIG, reason))?;
        let Assembled {
            mut inner,
            fingerprint,
            made,
        } = assemble(Parts {
            class,
            settings: &settings,
            definition,
            vocabulary,
        })
        .map_err(bad)?;
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
        Ok(Read {
            inner,
            fingerprint,
            settings,
            class,
            is_named,
            padding: frame.padding,
            made,
        })
    }
}

/// The class that reads a directory, its vocabulary unless `tokenizer.json` stands as it is, and the file
/// that this is of.
fn vocabulary_of(
    found: &Files<'_>,
    class: Option<Class>,
) -> Result<(Class, Option<Vocabulary>, &'static str)> {
    let Some(definition) = found.get(DEFINITION) else {
        let (class, vocabulary, file) = convert::earlier(found, class)?;
        return Ok((class, Some(vocabulary), file));
    };
    let class = class.unwrap_or(Class::Plain);
    let read = match class {
        Class::Plain => None,
        _ => {
            let read = convert::defined(definition);
            Some(read.map_err(|reason| found.bad(DEFINITION, reason))?)
        }
    };
    Ok((class, read, DEFINITION))
}

/// What of `tokenizer.json` counts for every class.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Frame {
    added_tokens: Vec<Value>,
    padding: Option<Value>,
}

/// transformers has a setting that cuts texts otherwise than Mistral's files of earlier versions say.
fn refuse_patches(
    settings: &Settings,
    model: &Map<String, Value>,
) -> std::result::Result<(), String> {
    let text = |key: &str| model.get(key).and_then(Value::as_str).unwrap_or_default();
    // Mistral's families and Ministral's.
    let is_patched = settings.switch("fix_mistral_regex", false)?
        && text("model_type").contains("istral")
        && !text("transformers_version").starts_with('5');
    if is_patched {
        return Err(
            "fix_mistral_regex is not built; save the tokenizer with transformers once".into(),
        );
    }
    Ok(())
}
