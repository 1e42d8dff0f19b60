//! The abstract trace: a model's forward pass recorded once, without values.

use crate::batch::TokenBatch;
use crate::declaration::{Declaration, Recorder};
use crate::error::Result;
use crate::head::HeadKind;
use crate::model::Model;
use crate::weights::Weights;
use xtrain_graphs::{DType, InputRole, Randomness, Shape, Trace};

/// Tokens of the abstract trace's one sequence, by which layers are compared.
const TOKENS: usize = 128;

/// Records the model's forward pass in an abstract trace and keeps in its [`ModelInfo`](crate::ModelInfo) what it
/// asks for. [`build`](crate::build) does so; a model of one's own needs it before anything reads
/// its parameters.
///
/// # Errors
/// If the forward pass cannot be recorded or asks for one weight in two shapes.
pub fn declare(model: &dyn Model) -> Result<()> {
    let declaration = record(model)?;
    // A second declaration of the same model would be the same.
    let _ = model.info().declaration.set(declaration);
    Ok(())
}

fn record(model: &dyn Model) -> Result<Declaration> {
    let info = model.info();
    let trace = Trace::new();
    let tokens = TOKENS.min(info.max_positions);
    let ids = Shape::new(DType::S32, [1, tokens]);
    let batch = TokenBatch {
        input_ids: trace.input("input_ids", ids, InputRole::Feed),
        attention_mask: None,
        token_type_ids: None,
    };
    let recorder = Recorder::new(info.initializer_range);
    let weights = Weights::declaring(&trace, &recorder);
    let off = Randomness::off();
    let mut rows = model.hidden(&weights, &batch, &off)?;
    let body_end = trace.node_count();
    let is_pooled = matches!(info.head, HeadKind::SequenceClassification { .. });
    if is_pooled {
        rows = model.pool(&rows, &batch)?;
    }
    recorder.begin_head();
    model.head(&weights, &rows, &off)?;
    Ok(recorder.finish(&trace, tokens, body_end, is_pooled))
}
