//! Every way that data can be wrong. Messages name the file and the line, and say what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Where in a file something is.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    path: PathBuf,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Line(u64),
    Row { group: usize, row: u64 },
}

impl Place {
    /// A line of a text file, from 1.
    pub fn line(path: &Path, line: u64) -> Place {
        Place {
            path: path.to_path_buf(),
            at: At::Line(line),
        }
    }

    /// A row of a row group of a parquet file, both from 0.
    pub fn row(path: &Path, group: usize, row: u64) -> Place {
        Place {
            path: path.to_path_buf(),
            at: At::Row { group, row },
        }
    }
}

impl Place {
    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The place without its file's name.
    pub fn within_file(&self) -> String {
        match self.at {
            At::Line(line) => format!("line {line}"),
            At::Row { group, row } => format!("row {row} of row group {group}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.at {
            At::Line(line) => write!(f, "{path}:{line}"),
            At::Row { .. } => write!(f, "{path}: {}", self.within_file()),
        }
    }
}

/// A column that a table should have.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingColumn {
    /// Names another one.
    pub flag: &'static str,
    /// The name that was given in quotes, or the usual ones.
    pub wanted: String,
}

impl fmt::Display for MissingColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has no column {}", self.wanted)?;
        match self.flag {
            // No flag names another.
            "" => Ok(()),
            flag => write!(f, " (--{flag} names another)"),
        }
    }
}

/// What rows with these columns are, where no task reads them, and what to do with them.
pub fn other_rows(columns: &[String]) -> Option<&'static str> {
    let has = |name: &str| columns.iter().any(|column| column == name);
    (has("chosen") && has("rejected")).then_some(
        "these are preference pairs: `xtrain train dpo` and `xtrain train reward` learn from them; to learn the chosen answers \
         alone, rename chosen to completion (beside prompt) or to messages, and use sft",
    )
}

/// The result of this module's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with data files, tokenizers and labels.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error("cannot {doing} {}: {source}{}", path.display(), room(source))]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    #[error("{} cannot be read: {reason}", url.display())]
    BadUrl { url: PathBuf, reason: String },

    #[error("{} stands for no files: {reason}", pattern.display())]
    BadPattern { pattern: PathBuf, reason: String },

    #[error("{} was not found: the server answered 404. Check the address", url.display())]
    NoObject { url: PathBuf },

    #[error("{} may not be read: {hint}", url.display())]
    ObjectForbidden { url: PathBuf, hint: &'static str },

    #[error(
        "{} changed while it was read: it has another ETag or size now. Give the data an address of their own that stays as it is",
        url.display()
    )]
    ObjectChanged { url: PathBuf },

    #[error("{} cannot be read in pieces: its server ignores ranges. Download it, or serve it from another server", url.display())]
    NoRanges { url: PathBuf },

    #[error(
        "{} cannot be read: {reason}. Check the connection; a run that saved a checkpoint resumes with --resume_from_checkpoint",
        url.display()
    )]
    Unreachable { url: PathBuf, reason: String },

    #[error(
        "{} is not the file that the checkpoint was saved with ({was} then, {now} now); put that one back, or start anew with the \
         weights: --model_name_or_path CHECKPOINT",
        path.display()
    )]
    OtherFile {
        path: PathBuf,
        was: String,
        now: String,
    },

    #[error(
        "the tokenized text {} was changed by another program while this run reads it; start the run again, with \
         --resume_from_checkpoint if it has saved a checkpoint",
        path.display()
    )]
    RowsChanged { path: PathBuf },

    #[error("the position in the data of {} cannot be used: {reason}", path.display())]
    BadPosition { path: PathBuf, reason: String },

    #[error("{} is empty; there is nothing to train or evaluate on", path.display())]
    EmptyFile { path: PathBuf },

    #[error(
        "{}:{line}: invalid UTF-8: byte 0x{byte:02x} at column {column} of the line (byte {offset} of the text); \
         save the file as UTF-8, for example with iconv -t UTF-8",
        path.display()
    )]
    InvalidUtf8 {
        path: PathBuf,
        line: u64,
        column: u64,
        offset: u64,
        byte: u8,
    },

    #[error("{}:{line}: the gzip data end too early or are damaged ({source}); download or compress the file again", path.display())]
    BadGzip {
        path: PathBuf,
        line: u64,
        source: io::Error,
    },

    #[error(
        "{}:{line}: this gzip file is not text: {reason}. If it really is, decompress it first",
        path.display()
    )]
    GzipBomb {
        path: PathBuf,
        line: u64,
        reason: String,
    },

    #[error("{place}: {reason}; --on_bad_row skip leaves such rows out")]
    BadRow { place: Place, reason: String },

    #[error(
        "{place}: a line or field of more than {} MB; look for an open quote or a wrong delimiter before it",
        super::settings::MAX_FIELD >> 20
    )]
    HugeField { place: Place },

    #[error(
        "{place}: a row of more than {} columns; look for a wrong delimiter, or write fewer columns",
        super::settings::MAX_COLUMNS
    )]
    ManyColumns { place: Place },

    #[error(
        "{place}: the quote that opens here is never closed; close it, or set --quoting (none: quotes are plain characters, \
         backslash: \\\" is a quote within quotes)"
    )]
    OpenQuote { place: Place },

    #[error(
        "{place}: a field begins with a quote, which GLUE's files mean as a character and datasets as quoting; say which with \
         --quoting none or --quoting standard"
    )]
    EitherQuote { place: Place },

    #[error("{} cannot be read: {reason}", path.display())]
    BadTable { path: PathBuf, reason: String },

    #[error("{place}{}: damaged ({reason}); download or write the file again", match &column[..] {
        "" => String::new(),
        column => format!(", column {column:?}"),
    })]
    DamagedColumn {
        place: Place,
        column: String,
        reason: String,
    },

    #[error(
        "{} {}; it has {}{}",
        path.display(),
        missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        found.join(", "),
        other_rows(found).map(|advice| format!(": {advice}")).unwrap_or_default()
    )]
    NoColumn {
        path: PathBuf,
        missing: Vec<MissingColumn>,
        found: Vec<String>,
    },

    #[error("{} is not a table, whose name ends in .csv, .tsv, .json, .jsonl (each also .gz) or .parquet", path.display())]
    NotATable { path: PathBuf },

    #[error("no tokenizer in {}: expected tokenizer.json, vocab.json with merges.txt, vocab.txt or spiece.model{hint}", dir.display())]
    NoTokenizer { dir: PathBuf, hint: String },

    #[error("{place}: the chat template fails: {reason}")]
    ChatTemplate { place: String, reason: String },

    #[error(
        "{place}: the chat template {reason}: it is damaged or hostile. Take the one of the original model"
    )]
    EndlessTemplate { place: String, reason: String },

    #[error("{} is not a tokenizer that xtrain can load: {reason}", path.display())]
    BadTokenizer { path: PathBuf, reason: String },

    #[error(
        "do_lower_case: the tokenizer of {} has no switch for lower case (its normalizer is {normalizer}; BERT's and ALBERT's have one). \
         Leave the flag out, or turn the texts themselves into lower case", path.display()
    )]
    NoLowerCase { path: PathBuf, normalizer: String },

    #[error("tokenizing {place} failed: {reason}")]
    Tokenize { place: String, reason: String },

    #[error("cannot train a byte-level BPE of {vocab_size} tokens: {reason}")]
    TrainTokenizer { vocab_size: usize, reason: String },

    #[error("no {what} file is given: set --{what}_file")]
    NoFile { what: &'static str },

    #[error(
        "{what} is too short: {tokens} tokens in {lines} lines do not fill one block of {length} \
         (the most in any 1000 lines, which are cut together, is {largest}); {advice}"
    )]
    TooShort {
        what: String,
        tokens: u64,
        lines: u64,
        length: usize,
        largest: u64,
        advice: String,
    },

    #[error("{what} has no text: every line is blank")]
    NoText { what: String },

    #[error("{what} has no rows to use")]
    NoRows { what: String },

    #[error(
        "no example of the training set teaches the model to stop: the loss counts no {end} or other special token at the end of an example \
         ({rows}). Where --max_seq_length cuts the ends off, set more, or --packing --packing_strategy bfd_split; where the chat template \
         writes none after the assistant's turns, use one that does; texts without an end are for `xtrain train clm`"
    )]
    EndNotLearned { end: String, rows: String },

    #[error("--{flag} {length} is more than the model's {positions} positions")]
    TooLong {
        flag: &'static str,
        length: usize,
        positions: usize,
    },

    #[error(
        "--max_seq_length {length} leaves no room for text: the tokenizer adds {special} special tokens to each sequence"
    )]
    NoRoom { length: usize, special: usize },

    #[error(
        "the tokenizer has no pad token, but sequences of different length share a batch; set pad_token in its \
         tokenizer_config.json to one of its tokens, for GPT models usually <|endoftext|>"
    )]
    NoPadToken,

    #[error("the tokenizer has no token {token:?} to pad with; name one of its own tokens")]
    PadTokenUnknown { token: String },

    #[error(
        "the tokenizer has no mask token, which masked language modelling needs; use the tokenizer of a masked language model \
         (BERT, RoBERTa, ALBERT), or train a causal model with `train clm`"
    )]
    NoMaskToken,

    #[error("--mlm_probability {0} is not above 0 and at most 1")]
    MaskingShare(f64),

    #[error(
        "--block_size must be at least 2: a block of {block_size} has no next token to predict"
    )]
    BlockTooShort { block_size: usize },

    #[error(
        "--stride {stride} would leave tokens out between windows of --block_size {block_size}; lower it"
    )]
    StrideTooLong { stride: usize, block_size: usize },

    #[error(
        "the tokenizer has {tokenizer} tokens but the model's vocabulary has {model}: ids from {model} up have no embedding; use the model's own tokenizer or, for a model with random weights, --config_overrides vocab_size={tokenizer}"
    )]
    VocabMismatch { tokenizer: usize, model: usize },

    #[error("the labels cannot be used: {reason}")]
    Labels { reason: String },

    #[error(
        "--pad_to_bucket {bucket} is not between 1 and the maximum length of {max_length}; leave it out, or change --max_seq_length"
    )]
    Bucket { bucket: usize, max_length: usize },

    #[error("--{what} must be at least 1")]
    Zero { what: &'static str },

    #[error(
        "{rows} rows do not fill one batch of {batch_size}, and --dataloader_drop_last drops the rest: no batch is left"
    )]
    NoBatch { rows: usize, batch_size: usize },

    /// Of the tokenized text's directory. The message is whole, so there is no source.
    #[error("{}", .0.naming("--cache_dir"))]
    Cache(xtrain_checkpoint::Error),
}

impl From<xtrain_checkpoint::Error> for Error {
    fn from(error: xtrain_checkpoint::Error) -> Self {
        Error::Cache(error)
    }
}

/// What to do where the tokenized text has no room.
fn room(error: &io::Error) -> &'static str {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) {
        " (free some space or choose another --cache_dir)"
    } else {
        ""
    }
}

impl Error {
    /// Whether only one row is wrong, so that `--on_bad_row skip` can leave it out.
    pub fn is_bad_row(&self) -> bool {
        matches!(self, Error::BadRow { .. } | Error::InvalidUtf8 { .. })
    }

    /// For `map_err`: what was being done (an infinitive: "read", "map"), and to what.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io {
            doing,
            path: path.to_path_buf(),
            source,
        }
    }
}
