//! Masked LM, as run_mlm prepares it.

use super::clm::BlockSize;
use super::collator::Collator;
use super::error::Result;
use super::examples::Examples;
use super::settings::MlmDataSettings;
use super::tokenizer::Tokenizer;

/// run_mlm's rule. Asked for: that, but at most the tokenizer's own limit. Not asked for: the tokenizer's limit, at most 1024. In
/// both cases at most the model's positions, which an explicit length may not exceed.
pub fn max_seq_length(requested: Option<usize>, tokenizer_limit: Option<usize>, positions: usize) -> Result<BlockSize> {
    todo!("{requested:?} {tokenizer_limit:?} {positions}")
}

/// The examples to train on: all of `train_files`, less the share that validates when there is no validation file.
pub fn train_examples(settings: &MlmDataSettings, tokenizer: &Tokenizer, max_seq_length: usize, quiet: bool) -> Result<Examples> {
    todo!("{settings:?} {tokenizer:?} {max_seq_length} {quiet}")
}

/// The examples to validate on: `validation_files`, or the first lines of `train_files`.
pub fn validation_examples(
    settings: &MlmDataSettings,
    tokenizer: &Tokenizer,
    max_seq_length: usize,
    quiet: bool,
) -> Result<Examples> {
    todo!("{settings:?} {tokenizer:?} {max_seq_length} {quiet}")
}

/// Batches of examples. Refuses a tokenizer without a mask token, or without a pad token where one is needed.
pub fn collator(
    settings: &MlmDataSettings,
    tokenizer: &Tokenizer,
    max_seq_length: usize,
    examples: Examples,
) -> Result<Collator> {
    todo!("{settings:?} {tokenizer:?} {max_seq_length} {examples:?}")
}
