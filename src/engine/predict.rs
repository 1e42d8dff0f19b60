//! Labelling a set.

use super::batches::BatchForm;
use super::error::{Error, failed};
use super::task::TaskData;
use crate::data::Collator;
use crate::trainer::evaluate::{Scores, evaluate};
use crate::trainer::session::Session;
use xtrain_models::Model;

/// Logits of every row, one after the other; of a regression, its estimates.
pub fn label(
    session: &mut Session,
    model: &dyn Model,
    (form, set): (&BatchForm, &Collator),
    batch_size: usize,
    task: &TaskData,
) -> Result<Vec<f32>, Error> {
    let mut batches = form
        .one_pass(session.client(), set, batch_size, task.workers())
        .map_err(failed("preparing the test batches"))?;
    let evaluation = evaluate(session, model, &model.parameters(), &mut *batches)
        .map_err(failed("predicting"))?;
    match evaluation.scores {
        Scores::Classes { logits, .. } => Ok(logits),
        Scores::Numbers(estimates) => Ok(estimates.into_estimates()),
        Scores::Tokens { .. } => unreachable!("only classifiers predict, which `config` sees to"),
    }
}
