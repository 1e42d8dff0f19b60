//! Every way that reading or writing a checkpoint can fail. A message always names the file, and
//! says what to do where that is not obvious; tensors are named, not counted.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use xtrain_graphs::Shape;

/// The result of this module's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a directory of weights, a configuration or a training state cannot be read or written.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error("cannot {doing} {}: {source}{}", path.display(), io_hint(source))]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    /// Of a file that the user named.
    #[error("cannot write {}: {source}{}", path.display(), named_hint(path, source))]
    Named { path: PathBuf, source: io::Error },

    #[error("{}:{line}:{column}: not valid JSON: {message}", path.display())]
    Json {
        path: PathBuf,
        line: usize,
        column: usize,
        message: String,
    },

    #[error("{}: {reason}", path.display())]
    BadContent { path: PathBuf, reason: String },

    #[error("no adapter_model.safetensors in {}, beside its adapter_config.json", dir.display())]
    NoAdapterWeights { dir: PathBuf },
    #[error("no model.safetensors in {}{hint}", dir.display())]
    NoWeights { dir: PathBuf, hint: String },

    #[error("{} is cut short: its header promises {expected} bytes, the file has {found}; copy or save it again", path.display())]
    Truncated {
        path: PathBuf,
        expected: u64,
        found: u64,
    },

    #[error("{} is not a safetensors file: {reason}", path.display())]
    NotSafetensors { path: PathBuf, reason: String },

    #[error(
        "{} cannot be read: {reason}. Convert it with Python, if you trust its author: \
         from transformers import AutoModelForCausalLM as M; M.from_pretrained(DIR).save_pretrained(DIR, safe_serialization=True)",
        path.display()
    )]
    NotTorch { path: PathBuf, reason: String },

    #[error(
        "{} holds a run's state, with the model's weights under {key:?}. Take them out with Python: import torch; \
         torch.save(torch.load(FILE, weights_only=True)[{key:?}], \"pytorch_model.bin\")",
        path.display()
    )]
    NestedStateDict { path: PathBuf, key: String },

    #[error("{}: tensor {tensor} has element type {dtype}, which xtrain does not read", path.display())]
    UnsupportedDtype {
        path: PathBuf,
        tensor: String,
        dtype: String,
    },

    #[error("{}: there is no tensor {tensor}", path.display())]
    NoTensor { path: PathBuf, tensor: String },

    #[error("{}: tensor {tensor} is {found} and cannot be read as {wanted}", path.display())]
    NotConvertible {
        path: PathBuf,
        tensor: String,
        found: Shape,
        wanted: Shape,
    },

    #[error("{0}")]
    Mismatch(Box<Mismatch>),

    #[error("checkpoint file {} is damaged: {reason}; resume from another one with --resume_from_checkpoint PATH", path.display())]
    Damaged { path: PathBuf, reason: String },

    #[error(
        "{} holds no training state (no training_state.json), so it cannot be resumed; to start from its weights, give it as --model_name_or_path",
        dir.display()
    )]
    NotACheckpoint { dir: PathBuf },

    #[error("rank {rank} could not write its part of the checkpoint: {error}")]
    Part {
        rank: usize,
        error: String,
        /// The same would happen again.
        is_lasting: bool,
    },

    #[error("{}: written in checkpoint format {found}, this xtrain reads {supported}; use the version that wrote it", path.display())]
    Version {
        path: PathBuf,
        found: u64,
        supported: u64,
    },
}

impl Error {
    /// For `map_err`: what was being done (an infinitive: "read", "rename"), and to what.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Io {
            doing,
            path,
            source,
        }
    }

    /// For `map_err`: a file that the user named cannot be written.
    pub fn named(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Named { path, source }
    }

    /// Its text where another flag than `--output_dir` names the directory.
    pub fn naming(&self, flag: &str) -> String {
        self.to_string().replace("--output_dir", flag)
    }

    /// Whether the same would happen again however often it is tried: files are damaged or do not
    /// fit, or there is no room. Other trouble with a file system may pass.
    pub fn is_lasting(&self) -> bool {
        match self {
            Error::Io { source, .. } => is_full(source) || is_refused(source),
            Error::Part { is_lasting, .. } => *is_lasting,
            _ => true,
        }
    }

    /// Whether the disk or a quota was full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::Io { source, .. } | Error::Named { source, .. } if is_full(source))
    }
}

/// Whether an error says that the disk, a quota or a limit of files is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

fn is_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

fn io_hint(error: &io::Error) -> &'static str {
    if is_full(error) {
        " (what was there before is untouched; free some space or choose another --output_dir)"
    } else {
        ""
    }
}

fn named_hint(path: &Path, error: &io::Error) -> String {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    match dir.filter(|dir| error.kind() == io::ErrorKind::NotFound && !dir.exists()) {
        Some(dir) => format!("; there is no directory {}", dir.display()),
        None => String::new(),
    }
}

/// How a file's tensors differ from what a model wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    pub path: PathBuf,
    /// Wanted, not in the file.
    pub missing: Vec<String>,
    /// In the file, not wanted.
    pub unexpected: Vec<String>,
    /// Name, wanted, found.
    pub misshaped: Vec<(String, Shape, Shape)>,
}

impl Mismatch {
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshaped.is_empty()
    }
}

/// Names listed per kind before "and N more": enough for any one layer, short enough for a
/// terminal.
const LISTED: usize = 16;

fn list(
    f: &mut std::fmt::Formatter<'_>,
    title: &str,
    items: impl ExactSizeIterator<Item = String>,
) -> std::fmt::Result {
    let count = items.len();
    if count == 0 {
        return Ok(());
    }
    let mut text = String::new();
    for item in items.take(LISTED) {
        write!(text, "\n    {item}")?;
    }
    if count > LISTED {
        write!(text, "\n    and {} more", count - LISTED)?;
    }
    write!(f, "\n  {title} ({count}):{text}")
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} does not fit the model's configuration:",
            self.path.display()
        )?;
        list(f, "missing", self.missing.iter().cloned())?;
        list(f, "unexpected", self.unexpected.iter().cloned())?;
        let shaped = |(name, wanted, found): &(String, Shape, Shape)| {
            format!("{name}: the model wants {wanted}, the file has {found}")
        };
        list(f, "mis-shaped", self.misshaped.iter().map(shaped))
    }
}
