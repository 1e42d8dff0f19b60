//! Models and tokenizers by name: which files of a repository make one up.

use std::collections::BTreeSet;
use std::fmt::Formatter;
use std::path::PathBuf;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::checks::{listed, shown};
use super::error::{Error, Result};
use super::fetch::{Hub, Kind, Snapshot};
use xtrain_checkpoint::hf::ADAPTER_CONFIG_FILE;
use xtrain_checkpoint::weights::{ADAPTER_TORCH_FILE, ADAPTER_WEIGHTS_FILE};
use xtrain_data::tokenizer::{TEMPLATES, TOKENIZER_FILES};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TORCH_WEIGHTS: &str = "pytorch_model.bin";
const TORCH_INDEX: &str = "pytorch_model.bin.index.json";

/// Bytes of an index: ten times those of the largest models.
const LONGEST_INDEX: u64 = 128 << 20;

impl Hub {
    /// A directory with a model's `config.json`, its weights and, where the repository has them,
    /// tokenizer and generation config; of an adapter's repository as [`Hub::adapter`].
    pub fn model(&self, name: &str, revision: Option<&str>) -> Result<PathBuf> {
        let snapshot = self.snapshot(Kind::Model, name, revision)?;
        if snapshot.has(ADAPTER_CONFIG_FILE) {
            return fetch_adapter(&snapshot);
        }
        snapshot.fetch("config.json")?;
        // Asked for first: a model whose weights cannot be used should not cost its other files.
        let forms = [(WEIGHTS, INDEX), (TORCH_WEIGHTS, TORCH_INDEX)];
        let is_there = |(whole, index): &&(&str, &str)| snapshot.has(whole) || snapshot.has(index);
        if let Some((whole, index)) = forms.iter().find(is_there) {
            if snapshot.has(whole) {
                snapshot.fetch(whole)?;
            } else {
                fetch_shards(&snapshot, index)?;
            }
        } else {
            let weights = |file: &&String| {
                [".bin", ".h5", ".msgpack", ".safetensors", ".gguf"]
                    .iter()
                    .any(|end| file.ends_with(end))
            };
            let found: Vec<&String> = snapshot.files().iter().filter(weights).collect();
            let found = match found.len() {
                0 => "no weights at all".to_string(),
                _ => listed(found.into_iter().map(String::as_str)),
            };
            return Err(Error::NoSafetensors {
                name: name.to_string(),
                found,
            });
        }
        fetch_present(&snapshot, &["generation_config.json"])?;
        fetch_tokenizer(&snapshot)?;
        Ok(snapshot.dir().to_path_buf())
    }

    /// A directory with an adapter, and the tokenizer that may lie beside it.
    ///
    /// # Errors
    /// If it cannot be fetched, or there is none of that name.
    pub fn adapter(&self, name: &str, revision: Option<&str>) -> Result<PathBuf> {
        fetch_adapter(&self.snapshot(Kind::Model, name, revision)?)
    }

    /// A directory with a model's `config.json` alone, for training one like it from scratch.
    pub fn config(&self, name: &str, revision: Option<&str>) -> Result<PathBuf> {
        self.snapshot(Kind::Model, name, revision)?
            .fetch("config.json")
    }

    /// A directory with a tokenizer's files.
    pub fn tokenizer(&self, name: &str, revision: Option<&str>) -> Result<PathBuf> {
        let snapshot = self.snapshot(Kind::Model, name, revision)?;
        // The model's type decides the tokenizer's class where its own files name none.
        fetch_present(&snapshot, &["config.json"])?;
        if fetch_tokenizer(&snapshot)? == 0 {
            return Err(Error::NoTokenizer {
                name: name.to_string(),
            });
        }
        Ok(snapshot.dir().to_path_buf())
    }
}

/// Fetches an adapter's files, and those of a tokenizer beside it.
fn fetch_adapter(snapshot: &Snapshot<'_>) -> Result<PathBuf> {
    snapshot.fetch(ADAPTER_CONFIG_FILE)?;
    if fetch_present(snapshot, &[ADAPTER_WEIGHTS_FILE])? == 0 {
        snapshot.fetch(ADAPTER_TORCH_FILE)?;
    }
    // The settings of a classifier's model, for its labels.
    fetch_present(snapshot, &["config.json"])?;
    fetch_tokenizer(snapshot)?;
    Ok(snapshot.dir().to_path_buf())
}

/// Fetches a tokenizer's files, its further templates among them; gives their number.
fn fetch_tokenizer(snapshot: &Snapshot<'_>) -> Result<usize> {
    let templates = snapshot.files().iter().filter(|file| {
        let name = file
            .strip_prefix(TEMPLATES)
            .and_then(|name| name.strip_prefix('/'));
        name.is_some_and(|name| name.ends_with(".jinja") && !name.contains('/'))
    });
    let files: Vec<&str> = templates
        .map(String::as_str)
        .chain(TOKENIZER_FILES)
        .collect();
    fetch_present(snapshot, &files)
}

/// Fetches those of these files that there are; gives their number.
fn fetch_present(snapshot: &Snapshot<'_>, files: &[&str]) -> Result<usize> {
    let present: Vec<&&str> = files.iter().filter(|file| snapshot.has(file)).collect();
    present
        .iter()
        .try_for_each(|file| snapshot.fetch(file).map(|_| ()))?;
    Ok(present.len())
}

/// Fetches the shards that an index names.
fn fetch_shards(snapshot: &Snapshot<'_>, index: &str) -> Result<()> {
    let path = snapshot.fetch(index)?;
    let broken = |reason: String| Error::BadIndex {
        name: snapshot.name.clone(),
        file: index.to_string(),
        reason,
    };
    let size = path.metadata().map_err(Error::io("read", &path))?.len();
    if size > LONGEST_INDEX {
        return Err(broken(format!("it has {size} bytes")));
    }
    let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
    let index: Index =
        serde_json::from_slice(&bytes).map_err(|error| broken(shown(&error.to_string())))?;
    // The name comes from a file: it must not lead anywhere else.
    index
        .weight_map
        .0
        .iter()
        .filter(|shard| snapshot.has(shard))
        .try_for_each(|shard| snapshot.fetch(shard).map(|_| ()))
}

/// Which file has which tensor, as transformers writes it.
#[derive(Deserialize)]
struct Index {
    weight_map: Shards,
}

/// The files of such a map, each once: there may be millions of tensors.
struct Shards(BTreeSet<String>);

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shards, D::Error> {
        struct Files;
        impl<'de> Visitor<'de> for Files {
            type Value = Shards;
            fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
                f.write_str("names of tensors, each with a file")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shards, A::Error> {
                let mut files = BTreeSet::new();
                while let Some((_, file)) = map.next_entry::<IgnoredAny, String>()? {
                    files.insert(file);
                }
                Ok(Shards(files))
            }
        }
        deserializer.deserialize_map(Files)
    }
}
