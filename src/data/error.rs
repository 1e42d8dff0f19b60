//! Every way that data can be wrong. Messages name the file and the line, and say what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },

    #[error("{} is empty; there is nothing to train or evaluate on", path.display())]
    EmptyFile { path: PathBuf },

    #[error(
        "{}:{line}: invalid UTF-8: byte 0x{byte:02x} at column {column} of the line (byte {offset} of the text); \
         save the file as UTF-8, for example with iconv -t UTF-8",
        path.display()
    )]
    InvalidUtf8 { path: PathBuf, line: u64, column: u64, offset: u64, byte: u8 },

    #[error("{}:{line}: the gzip data end too early or are damaged ({source}); download or compress the file again", path.display())]
    BadGzip { path: PathBuf, line: u64, source: io::Error },

    #[error("no tokenizer in {}: expected tokenizer.json, or vocab.json with merges.txt{hint}", dir.display())]
    NoTokenizer { dir: PathBuf, hint: String },

    #[error("{} is not a tokenizer that xtrain can load: {reason}", path.display())]
    BadTokenizer { path: PathBuf, reason: String },

    #[error("tokenizing {place} failed: {reason}")]
    Tokenize { place: String, reason: String },

    #[error("cannot train a byte-level BPE of {vocab_size} tokens: {reason}")]
    TrainTokenizer { vocab_size: usize, reason: String },

    #[error("no {what} file is given: set --{what}_file")]
    NoFile { what: &'static str },

    #[error(
        "{what} is too short: {tokens} tokens in {lines} lines do not fill one block of {block_size} \
         (the most in any 1000 lines, which are cut together, is {largest}); {advice}"
    )]
    TooShort { what: String, tokens: u64, lines: u64, block_size: usize, largest: u64, advice: String },

    #[error("--block_size {block_size} is more than the model's {positions} positions (n_positions)")]
    BlockTooLong { block_size: usize, positions: usize },

    #[error("--block_size must be at least 2: a block of {block_size} has no next token to predict")]
    BlockTooShort { block_size: usize },

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

    #[error("{rows} rows do not fill one batch of {batch_size}, and --dataloader_drop_last drops the rest: no batch is left")]
    NoBatch { rows: usize, batch_size: usize },

    #[error(transparent)]
    Cache(#[from] crate::checkpoint::Error),
}

impl Error {
    /// For `map_err`: what was being done (an infinitive: "read", "map"), and to what.
    pub fn io(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Io { doing, path, source }
    }
}
