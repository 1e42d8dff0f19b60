//! A set looked at without keeping it: its first rows, and what all of them count.

use std::sync::Arc;

use super::error::Result;
use super::padding::Padding;
use super::prepare::Job;
use super::rows::{Row, Totals};
use super::sampler::{Order, Position};
use super::samples::Recipe;
use super::set::Set;

/// What a set's rows count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Samples of the files.
    pub examples: u64,
    /// Tokens of the samples, before cutting.
    pub tokens: u64,
    /// Rows that they become.
    pub rows: u64,
    /// Tokens in the rows.
    pub kept: u64,
    /// Tokens that count in the loss; of tasks whose rows have a label, the labels.
    pub trained: u64,
    /// Samples that were longer than a row.
    pub truncated: u64,
    /// Samples that became no row.
    pub dropped: u64,
    /// Bad rows of the files that were left out.
    pub skipped: u64,
    /// Tokens of an epoch's batches, padding too.
    pub padded: u64,
    /// The shares of mixed files, in a user's words.
    pub mixture: Option<String>,
}

/// The first rows of a set and the counts of all.
pub struct Survey {
    pub first: Set,
    pub counts: Counts,
}

impl Job<'_> {
    /// Looks at the set: its first examples, up to `most` of them are kept, and all are counted, in batches of
    /// `batch` examples.
    ///
    /// # Errors
    /// A file cannot be read or has a bad row.
    pub fn survey(&self, recipe: Arc<dyn Recipe>, most: usize, batch: usize) -> Result<Survey> {
        let each = recipe.kept_rows();
        let (mut counts, mut first) = (Counts::default(), Vec::<Row>::new());
        let mut lengths: Vec<usize> = Vec::new();
        let (skipped, shares) = self.each_group(&*recipe, |read, group| {
            counts.examples += read;
            counts.tokens += group.tokens;
            counts.truncated += group.truncated;
            counts.dropped += group.dropped + group.unlearned.len() as u64;
            let room = (most * each).saturating_sub(first.len());
            first.extend(group.rows.iter().take(room).cloned());
            let set = Set::in_memory(&group.rows, recipe.clone())?;
            let numbers: Vec<u32> = (0..set.len() as u32).collect();
            for part in numbers.chunks(batch.max(1)) {
                counts.trained += set.batch(part, part.len(), Position::default())?.targets as u64;
            }
            for example in 0..set.len() {
                lengths.push(set.length(example));
            }
            counts.rows += group.rows.len() as u64;
            counts.kept += group
                .rows
                .iter()
                .map(|row| row.ids.len() as u64)
                .sum::<u64>();
            Ok(Totals {
                lines: counts.examples,
                tokens: counts.tokens,
            })
        })?;
        counts.skipped = skipped;
        let seed = self.source.seed;
        counts.padded = padded(&lengths, recipe.padding(), batch, seed) * each as u64;
        counts.mixture = self.mixture.map(|_| shares.line(self.files));
        Ok(Survey {
            first: Set::in_memory(&first, recipe)?,
            counts,
        })
    }
}

/// Tokens of the batches of an epoch, padding too, of examples of these lengths.
fn padded(lengths: &[usize], padding: Option<&Padding>, batch: usize, seed: u64) -> u64 {
    let order = Order::Shuffled { seed }.epoch(lengths.len(), 0);
    let of_batch = |numbers: &[u32]| {
        let longest = numbers.iter().map(|number| lengths[*number as usize]).max();
        let longest = longest.unwrap_or(0);
        numbers.len() * padding.map_or(longest, |padding| padding.fitting(longest))
    };
    order.chunks(batch.max(1)).map(of_batch).sum::<usize>() as u64
}
