//! Causal LM, as run_clm prepares it: lines to ids, 1000 lines at a time joined and cut into rows
//! of `block_size`.
//!
//! What is left over after cutting is dropped once per 1000 lines, so no row crosses such a group
//! and rows do not depend on how many threads tokenize.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ndarray::s;
use serde_json::{Value, json};
use xtrain_models::{HeadKind, IGNORED_LABEL};

use super::language::{GROUP, TokenAccuracy, texts, too_short};
use super::{Context, Length, Task};
use crate::data::rows::Totals;
use crate::data::settings::{PaddingSettings, SourceSettings};
use crate::data::share::Share;
use crate::data::texts::TextFile;
use crate::data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, LabelMap, Recipe, Result, Row, Sample,
    SampleFile, Tokenizer,
};
use crate::trainer::evaluate::Metrics;

/// Causal language modelling.
#[derive(Clone, Debug, PartialEq)]
pub struct ClmDataSettings {
    pub source: SourceSettings,
    /// `None`: the tokenizer's maximum length or, if that exceeds the model's positions, min(1024,
    /// positions).
    pub block_size: Option<usize>,
}

impl Task for ClmDataSettings {
    fn name(&self) -> &'static str {
        "clm"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn length_flag(&self) -> &'static str {
        "block_size"
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        block_size(self.block_size, tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        None
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::CausalLm
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        Ok(Arc::new(Blocks {
            source: self.source.clone(),
            tokenizer: context.tokenizer.clone(),
            block_size: context.length,
        }))
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        json!({"block_size": context.length, "group": GROUP})
    }

    fn stream_key(&self, _context: &Context) -> String {
        self.name().to_string()
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::<TokenAccuracy>::default()
    }

    fn graph_settings(&self, context: &Context, _lengths: &[usize]) -> Vec<(&'static str, String)> {
        vec![(self.length_flag(), context.length.to_string())]
    }
}

/// run_clm's rule. Asked for: that, but at most the tokenizer's own limit. Not asked for: the
/// tokenizer's limit or, where that exceeds the model's positions, min(1024, positions).
///
/// # Errors
/// The block size is below 2, or more than the model's positions.
pub fn block_size(
    requested: Option<usize>,
    tokenizer_limit: Option<usize>,
    positions: usize,
) -> Result<Length> {
    const FLAG: &str = "block_size";
    let length = match (
        requested,
        tokenizer_limit.filter(|limit| *limit <= positions),
    ) {
        (Some(size), _) => {
            Length::check(FLAG, size, positions)?;
            Length::asked(FLAG, size, tokenizer_limit)
        }
        (None, Some(size)) => Length { size, note: None },
        (None, None) => {
            let size = positions.min(1024);
            let note =
                format!("{FLAG} is not set; using {size} of the model's {positions} positions");
            Length {
                size,
                note: Some(note),
            }
        }
    };
    if length.size < 2 {
        return Err(Error::BlockTooShort {
            block_size: length.size,
        });
    }
    Ok(length)
}

/// Packed rows: labels equal ids, nothing is masked.
#[derive(Debug)]
struct Blocks {
    source: SourceSettings,
    tokenizer: Tokenizer,
    block_size: usize,
}

impl Recipe for Blocks {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        Ok(Box::new(TextFile::open(
            path,
            &self.source.table,
            true,
            count,
        )?))
    }

    fn group(&self) -> usize {
        GROUP
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let mut ids = Vec::new();
        for line in texts(samples) {
            ids.extend(self.tokenizer.encode(line)?);
        }
        Ok(EncodedGroup {
            rows: ids.chunks_exact(self.block_size).map(Row::of_ids).collect(),
            tokens: ids.len() as u64,
            truncated: 0,
        })
    }

    fn length(&self) -> usize {
        self.block_size
    }

    fn packed(&self) -> bool {
        true
    }

    fn label(&self, _rows: &BatchRows<'_>, batch: &mut Batch) {
        let mut labels = batch.input_ids.clone();
        labels
            .slice_mut(s![batch.examples.., ..])
            .fill(IGNORED_LABEL as i32);
        batch.labels = HostLabels::Tokens(labels);
        batch.targets = batch.examples * (self.block_size - 1);
    }

    fn empty(&self, what: String, share: Share, totals: Totals, largest: u64) -> Error {
        too_short(what, share, totals, self.block_size, largest, "block_size")
    }
}

#[cfg(test)]
#[path = "clm_tests.rs"]
mod tests;
