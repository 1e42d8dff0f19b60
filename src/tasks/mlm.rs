//! Masked LM, as run_mlm prepares it: lines with their special tokens, 1000 lines at a time joined
//! and cut into rows of one length, or each line a sequence of its own. Masking comes later, in
//! `masking`, anew for every epoch.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::{Value, json};
use xtrain_models::{HeadKind, MaskedToken, Objective};

use super::language::{GROUP, TokenAccuracy, texts, too_short};
use super::masking::Masking;
use super::{Context, Length, Task};
use xtrain_data::padding::Padding;
use xtrain_data::rows::{Totals, flag};
use xtrain_data::sequences::{Sequence, SequenceEncoder};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::share::Share;
use xtrain_data::texts::TextFile;
use xtrain_data::whitespace;
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, LabelMap, Recipe, Result, Row, Sample,
    SampleFile,
};
use xtrain_trainer::evaluate::Metrics;

/// Masked language modelling.
#[derive(Clone, Debug, PartialEq)]
pub struct MlmDataSettings {
    /// Files or Hub data set, and the columns or keys of the text.
    pub source: SourceSettings,
    /// `None`: the tokenizer's maximum length, at most 1024 (run_mlm) and at most the model's
    /// positions.
    pub max_seq_length: Option<usize>,
    /// Each line is a sequence of its own, instead of joining lines and cutting them.
    pub line_by_line: bool,
    /// Share of the tokens to predict, 0.15 by default.
    pub mlm_probability: f64,
    /// Choose whole words rather than tokens.
    pub whole_word_mask: bool,
    /// Only for `line_by_line`; joined rows need no padding.
    pub padding: PaddingSettings,
}

impl Task for MlmDataSettings {
    fn name(&self) -> &'static str {
        "mlm"
    }

    fn pipeline_tag(&self) -> &'static str {
        "fill-mask"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn check_file(&self, path: &Path, _needs_labels: bool) -> Result<()> {
        TextFile::open(path, &self.source.table, false, Arc::default()).map(drop)
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        Length::of_rows(self.max_seq_length, 1024, tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        self.line_by_line.then_some(&self.padding)
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::MaskedLm
    }

    fn objective(&self, _labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(MaskedToken {
            smoothing,
            share: Some(self.mlm_probability),
        })
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        let (tokenizer, length) = (&context.tokenizer, context.length);
        let probability = self.mlm_probability;
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(Error::MaskingShare(probability));
        }
        let masking = Masking {
            probability,
            whole_words: self.whole_word_mask,
            mask_id: tokenizer.mask_id().ok_or(Error::NoMaskToken)?,
            vocab_size: tokenizer.vocab_size(),
            seed: self.source.seed,
        };
        let padding = self.padding();
        Ok(Arc::new(MaskedLines {
            source: self.source.clone(),
            encoder: SequenceEncoder::new(tokenizer, self.line_by_line.then_some(length))?,
            length,
            masking,
            padding: padding
                .map(|padding| Padding::of(padding, length, tokenizer))
                .transpose()?,
        }))
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        json!({
            "max_seq_length": context.length,
            "line_by_line": self.line_by_line,
            "group": GROUP,
            "left": context.tokenizer.truncates_left,
        })
    }

    fn stream_key(&self, _context: &Context) -> String {
        format!(
            "mlm {} {} {} {:?}",
            self.line_by_line, self.mlm_probability, self.whole_word_mask, self.padding
        )
    }

    fn batch_key(&self) -> Option<String> {
        Some(format!(
            "masked {} {} {}",
            self.mlm_probability, self.whole_word_mask, self.source.seed
        ))
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(TokenAccuracy::new(true))
    }

    fn graph_settings(&self, context: &Context, lengths: &[usize]) -> Vec<(&'static str, String)> {
        let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
        vec![
            (self.length_flag(), context.length.to_string()),
            ("pad_to_bucket", lengths.join(",")),
            ("mlm_probability", self.mlm_probability.to_string()),
        ]
    }
}

/// Lines that are masked anew in every epoch.
#[derive(Debug)]
struct MaskedLines {
    source: SourceSettings,
    encoder: SequenceEncoder,
    length: usize,
    masking: Masking,
    /// `None`: lines are joined and cut into rows of one length.
    padding: Option<Padding>,
}

impl MaskedLines {
    /// Each line that is not blank as a sequence.
    fn each<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Result<EncodedGroup> {
        let rows = lines
            .filter(|line| !whitespace::is_blank(line))
            .map(|line| Ok(self.encoder.encode(line, None)?.into_row(None)))
            .collect::<Result<Vec<_>>>()?;
        Ok(EncodedGroup {
            tokens: rows.iter().map(|row| row.ids.len() as u64).sum(),
            rows,
            truncated: 0,
            ..EncodedGroup::default()
        })
    }

    /// The lines joined and cut; what is left over is dropped.
    fn joined<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Result<EncodedGroup> {
        let mut all = Sequence::default();
        for line in lines {
            let line = self.encoder.encode(line, None)?;
            all.ids.extend(line.ids);
            all.flags.extend(line.flags);
        }
        let rows = all
            .ids
            .chunks_exact(self.length)
            .zip(all.flags.chunks_exact(self.length))
            .map(|(ids, flags)| {
                let mut flags = flags.to_vec();
                // The rest of a word that the row before began is a word of its own here.
                flags[0] &= !flag::CONTINUES;
                Row {
                    flags: flags.into(),
                    ..Row::of_ids(ids)
                }
            });
        Ok(EncodedGroup {
            rows: rows.collect(),
            tokens: all.ids.len() as u64,
            truncated: 0,
            ..EncodedGroup::default()
        })
    }
}

impl Recipe for MaskedLines {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        Ok(Box::new(TextFile::open(
            path,
            &self.source.table,
            false,
            count,
        )?))
    }

    fn group(&self) -> usize {
        GROUP
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        if self.padding.is_some() {
            self.each(texts(samples))
        } else {
            self.joined(texts(samples))
        }
    }

    fn length(&self) -> usize {
        self.length
    }

    fn padding(&self) -> Option<&Padding> {
        self.padding.as_ref()
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let length = batch.input_ids.ncols();
        let HostLabels::Tokens(labels) = &mut batch.labels else {
            unreachable!("a batch begins with a label for each token")
        };
        let arrays = batch
            .input_ids
            .outer_iter_mut()
            .zip(labels.outer_iter_mut());
        let numbered = rows.rows.iter().zip(&rows.examples);
        for ((row, example), (mut ids, mut labels)) in numbered.zip(arrays) {
            let columns = rows.columns(length, example.flags.len());
            let ids = &mut ids.as_slice_mut().expect("contiguous")[columns.clone()];
            let labels = &mut labels.as_slice_mut().expect("contiguous")[columns];
            batch.targets += self
                .masking
                .apply(batch.epoch, *row, &example.flags, ids, labels);
        }
    }

    fn empty(&self, what: String, share: Share, totals: Totals, largest: u64) -> Error {
        if self.padding.is_some() {
            Error::NoText { what }
        } else {
            too_short(what, share, totals, self.length, largest, "max_seq_length")
        }
    }
}

#[cfg(test)]
#[path = "mlm_tests.rs"]
mod tests;
