//! What the causal-LM data pipeline needs to know, fully resolved by `config`.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq)]
pub struct ClmDataSettings {
    /// Text files (plain or `.gz`), in order.
    pub train_files: Vec<PathBuf>,
    pub validation_files: Vec<PathBuf>,
    /// Share of the training lines that validates when no validation file is given (run_clm: the first 5 percent).
    pub validation_split_percentage: f64,
    /// `None`: the tokenizer's maximum length or, if that exceeds the model's positions, min(1024, positions).
    pub block_size: Option<usize>,
    pub max_train_samples: Option<usize>,
    pub max_eval_samples: Option<usize>,
    /// Threads that tokenize; `None` means one per core.
    pub preprocessing_num_workers: Option<usize>,
    /// Threads that prepare and upload batches ahead of the step; 0 prepares them in the step's own thread.
    pub dataloader_num_workers: usize,
    /// Ignore the tokenized files on disk and make them anew.
    pub overwrite_cache: bool,
    /// Where tokenized files are kept.
    pub cache_dir: PathBuf,
    pub seed: u64,
}
