//! What the data pipelines need to know, fully resolved by `config`.

use std::path::PathBuf;

use super::features::Features;

/// Bytes of the longest line or table cell. Longer ones are an error rather than memory: they come
/// from a wrong delimiter, an open quote or a decompression bomb.
pub const MAX_FIELD: usize = 64 << 20;

/// Columns that a table has at most. Each costs some memory, whatever is in it.
pub const MAX_COLUMNS: usize = 1 << 16;

/// When a mixture ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stopping {
    /// With the last sample of the file that ends first.
    #[default]
    FirstExhausted,
    /// When each sample of each file has been there; files that ended begin anew.
    AllExhausted,
}

/// How the training files are mixed.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// The probability of each file, in their order. All are more than 0 and their sum is 1.
    pub weights: Vec<f64>,
    pub stopping: Stopping,
}

/// Where examples come from and how they are prepared; the same for every task. The default has no
/// files and changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceSettings {
    /// Files in order, each read by its extension: `.csv`, `.tsv`, `.json`, `.jsonl`, `.parquet`,
    /// anything else as text; all but parquet may end in `.gz` too.
    pub train_files: Vec<PathBuf>,
    /// How the training files are mixed; `None`: one after the other.
    pub mixture: Option<Mixture>,
    pub validation_files: Vec<PathBuf>,
    /// MNLI's second set to validate on, whose texts are of other kinds than the training's.
    pub validation_mismatched_files: Vec<PathBuf>,
    /// Rows to predict; only classification reads them.
    pub test_files: Vec<PathBuf>,
    /// MNLI's second set to predict.
    pub test_mismatched_files: Vec<PathBuf>,
    /// Share of the training examples that validates when no validation file is given. Language
    /// models set the first lines aside (run_clm: 5 percent), classification a seeded random choice
    /// of the rows.
    pub validation_split_percentage: f64,
    pub max_train_samples: Option<usize>,
    pub max_eval_samples: Option<usize>,
    pub max_predict_samples: Option<usize>,
    pub table: TableSettings,
    /// Threads that tokenize; `None` means one per core.
    pub preprocessing_num_workers: Option<usize>,
    /// Threads that prepare and upload batches ahead of the step; 0 prepares them in the step's own
    /// thread.
    pub dataloader_num_workers: usize,
    /// Ignore the tokenized files on disk and make them anew.
    pub overwrite_cache: bool,
    /// Where tokenized files are kept.
    pub cache_dir: PathBuf,
    /// Of the order of the rows, the validation split and the masking.
    pub seed: u64,
    /// Training rows are read as the run goes on instead of being prepared before it; each is drawn
    /// from a buffer of this many.
    pub streaming: Option<usize>,
}

/// How tables (CSV, TSV, JSON, parquet) are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSettings {
    /// The column with the text. `None`: `text`, `sentence`, `sentence1`, or the only column that
    /// can be meant.
    pub text_column: Option<String>,
    /// `None`: standard quoting in CSV; in TSV none, and a field may not begin with a quote.
    pub quoting: Option<Quoting>,
    /// What the card of a data set notes of its columns.
    pub features: Features,
    pub on_bad_row: OnBadRow,
}

/// What quotes mean in a CSV or TSV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// A quote is a character like any other, as in GLUE's TSV files.
    None,
    /// A field may stand in double quotes; `""` in it is one quote (RFC 4180).
    Standard,
    /// As `Standard`, and a backslash takes the next character as it is (`escapechar='\\'` in
    /// Python).
    Backslash,
}

/// What to do about a row that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRow {
    /// Stop with an error that says where it is.
    #[default]
    Error,
    /// Leave it out, and say at the end how many there were.
    Skip,
}

/// To which length the rows of a batch are padded. A graph has one shape, so each length in use is
/// one compilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PaddingSettings {
    /// Always the maximum length.
    pub pad_to_max_length: bool,
    /// The smallest of these lengths that fits the batch's longest row (the maximum length is
    /// always one of them). Empty without `pad_to_max_length`: powers of two from 16.
    pub pad_to_bucket: Vec<usize>,
}
