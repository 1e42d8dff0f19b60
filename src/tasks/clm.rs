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
use xtrain_models::{HeadKind, IGNORED_LABEL, NextToken, Objective};

use super::language::{GROUP, TokenAccuracy, texts, too_short};
use super::{Context, Length, Task};
use xtrain_data::rows::{Totals, flag};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::share::Share;
use xtrain_data::texts::TextFile;
use xtrain_data::tokens::TokenFile;
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, LabelMap, Recipe, Result, Row, Sample,
    SampleFile, Tokenizer,
};
use xtrain_trainer::evaluate::Metrics;

/// Causal language modelling.
#[derive(Clone, Debug, PartialEq)]
pub struct ClmDataSettings {
    /// Files or Hub data set, and the columns or keys of the text.
    pub source: SourceSettings,
    /// `None`: the tokenizer's maximum length or, if that exceeds the model's positions, min(1024,
    /// positions).
    pub block_size: Option<usize>,
    /// Tokens from one window's beginning to the next one's, where an evaluation's windows overlap;
    /// `None`: there are blocks, which do not.
    pub stride: Option<usize>,
}

impl Task for ClmDataSettings {
    fn name(&self) -> &'static str {
        "clm"
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-generation"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn check_file(&self, path: &Path, _needs_labels: bool) -> Result<()> {
        // Whether its ids are in the vocabulary, its rows show.
        let (block, vocabulary) = (1, usize::MAX);
        open(path, &self.source, block, vocabulary, Arc::default()).map(drop)
    }

    fn length_flag(&self) -> &'static str {
        "block_size"
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        let length = block_size(self.block_size, tokenizer_limit, positions)?;
        match self.stride {
            Some(stride) if stride > length.size => Err(Error::StrideTooLong {
                stride,
                block_size: length.size,
            }),
            _ => Ok(length),
        }
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        None
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::CausalLm
    }

    fn objective(&self, _labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(NextToken {
            smoothing,
            ..NextToken::default()
        })
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        let blocks = Blocks {
            source: self.source.clone(),
            tokenizer: context.tokenizer.clone(),
            block_size: context.length,
            vocabulary: context.vocabulary,
        };
        Ok(match self.stride {
            None => Arc::new(blocks),
            Some(stride) => Arc::new(Windows { blocks, stride }),
        })
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        let mut key = json!({
            "block_size": context.length,
            "special_tokens": true,
            "vocabulary": context.vocabulary,
        });
        match self.stride {
            None => key["group"] = GROUP.into(),
            Some(stride) => key["stride"] = stride.into(),
        }
        key
    }

    fn stream_key(&self, _context: &Context) -> String {
        self.name().to_string()
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(TokenAccuracy::new(true))
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

/// Opens a file of texts or of ids.
fn open(
    path: &Path,
    source: &SourceSettings,
    block_size: usize,
    vocabulary: usize,
    count: Arc<AtomicU64>,
) -> Result<Box<dyn SampleFile>> {
    let table = &source.table;
    if let Some(ids) = TokenFile::open(path, table, block_size, vocabulary, count.clone())? {
        return Ok(Box::new(ids));
    }
    Ok(Box::new(TextFile::open(path, table, true, count)?))
}

/// Packed rows: labels equal ids, nothing is masked.
#[derive(Debug)]
struct Blocks {
    source: SourceSettings,
    tokenizer: Tokenizer,
    block_size: usize,
    /// Ids that the model has.
    vocabulary: usize,
}

impl Recipe for Blocks {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        open(path, &self.source, self.block_size, self.vocabulary, count)
    }

    fn group(&self) -> usize {
        GROUP
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let (mut ids, mut lengths) = (Vec::new(), Vec::with_capacity(samples.len()));
        // Lines repeat one another where a file has millions of empty ones.
        let mut last: Option<(&str, Vec<u32>)> = None;
        for sample in samples {
            if let Some(row) = &sample.row {
                ids.extend_from_slice(&row.ids);
                lengths.push(row.ids.len() as u64);
                continue;
            }
            let line = sample.texts[0].as_str();
            let encoded = match last.take() {
                Some((text, encoded)) if text == line => encoded,
                _ => self.tokenizer.encode_with_special_tokens(line)?,
            };
            ids.extend_from_slice(&encoded);
            lengths.push(encoded.len() as u64);
            last = Some((line, encoded));
        }
        Ok(EncodedGroup {
            rows: ids.chunks_exact(self.block_size).map(Row::of_ids).collect(),
            tokens: ids.len() as u64,
            lengths,
            ..EncodedGroup::default()
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

/// Windows over the whole text that overlap, as transformers' page on perplexity has them: the first
/// is counted but for its first token, of the others only what no earlier window holds. The last one
/// ends with the text; what its row has beyond that is not attended to.
#[derive(Debug)]
struct Windows {
    blocks: Blocks,
    stride: usize,
}

impl Recipe for Windows {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        self.blocks.open(path, count)
    }

    /// All lines: one text.
    fn group(&self) -> usize {
        usize::MAX
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let rows = samples.iter().filter_map(|sample| sample.row.as_ref());
        let made: Vec<u32> = rows.flat_map(|row| row.ids.iter().copied()).collect();
        let ids = if made.is_empty() {
            let text: String = texts(samples).collect();
            self.blocks.tokenizer.encode_with_special_tokens(&text)?
        } else {
            made
        };
        let length = self.blocks.block_size;
        let mut rows = Vec::new();
        let mut counted = 0;
        let mut start = 0;
        while counted < ids.len() {
            let end = (start + length).min(ids.len());
            let mut row = ids[start..end].to_vec();
            row.resize(length, 0);
            // The first of a window has nothing before it there.
            let counts = |at: usize| at > 0 && (counted..end).contains(&(start + at));
            let flag = |at| if counts(at) { flag::COUNTED } else { 0 };
            rows.push(Row {
                flags: (0..length).map(flag).collect(),
                ..Row::of_ids(&row)
            });
            counted = end;
            start += self.stride;
        }
        Ok(EncodedGroup {
            rows,
            tokens: ids.len() as u64,
            truncated: 0,
            ..EncodedGroup::default()
        })
    }

    fn length(&self) -> usize {
        self.blocks.block_size
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let mut labels = batch.input_ids.clone();
        labels.fill(IGNORED_LABEL as i32);
        for (position, example) in rows.examples.iter().enumerate() {
            for (column, flags) in example.flags.iter().enumerate() {
                if flags & flag::COUNTED != 0 {
                    labels[[position, column]] = batch.input_ids[[position, column]];
                    batch.targets += 1;
                }
            }
        }
        batch.labels = HostLabels::Tokens(labels);
    }

    fn empty(&self, what: String, share: Share, totals: Totals, largest: u64) -> Error {
        self.blocks.empty(what, share, totals, largest)
    }
}

#[cfg(test)]
#[path = "clm_tests.rs"]
mod tests;
