//! What a user chooses of supervised fine-tuning.

use xtrain_data::packing::PackingStrategy;
use xtrain_data::settings::{PaddingSettings, SourceSettings};

/// Supervised fine-tuning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SftDataSettings {
    /// Files or Hub data set, and the column of texts or conversations.
    pub source: SourceSettings,
    /// Longer examples are cut at their end. `None`: the tokenizer's maximum length, at most 1024
    /// and at most the model's positions.
    pub max_seq_length: Option<usize>,
    /// To which length rows are padded, behind the text.
    pub padding: PaddingSettings,
    /// Of a prompt with its completion, the loss is the completion's alone.
    pub completion_only_loss: bool,
    /// Of a conversation, the loss is that of the assistant's turns alone.
    pub assistant_only_loss: bool,
    /// How examples are packed into rows; `None`: each is a row of its own.
    pub packing: Option<PackingStrategy>,
    /// The same of sets to evaluate on.
    pub eval_packing: Option<PackingStrategy>,
    /// The loss of each token is multiplied with its probability (see
    /// [`NextToken::weighs_by_probability`](xtrain_models::NextToken::weighs_by_probability)).
    pub weighs_by_probability: bool,
    /// Length, padding and packing follow from the examples; those above are not the user's.
    pub fits_data: bool,
}
