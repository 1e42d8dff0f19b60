//! Classification of single texts or pairs, as run_glue prepares it.

use super::collator::Collator;
use super::error::Result;
use super::examples::Examples;
use super::labels::LabelMap;
use super::settings::ClsDataSettings;
use super::tokenizer::Tokenizer;

/// Which examples of a classification task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    /// `validation_files` or, without them, the share of the training rows that was set aside.
    Validation,
    /// `test_files`; their rows need no label.
    Test,
}

/// The labels: those of the settings or, without them, those that occur in the training files. A parquet file that names its
/// classes (`datasets`' ClassLabel) decides their order.
pub fn labels(settings: &ClsDataSettings) -> Result<LabelMap> {
    todo!("{settings:?}")
}

/// The tokenized examples of one split, with their classes. `max_length` is `settings.max_seq_length` or less.
pub fn examples(
    settings: &ClsDataSettings,
    split: Split,
    tokenizer: &Tokenizer,
    labels: &LabelMap,
    max_length: usize,
    quiet: bool,
) -> Result<Examples> {
    todo!("{settings:?} {split:?} {tokenizer:?} {labels:?} {max_length} {quiet}")
}

/// Batches of examples. Refuses a tokenizer without a pad token if any row must be padded.
pub fn collator(settings: &ClsDataSettings, tokenizer: &Tokenizer, max_length: usize, examples: Examples) -> Result<Collator> {
    todo!("{settings:?} {tokenizer:?} {max_length} {examples:?}")
}
