//! Length, padding and packing by what the examples are, where the user chose none of them.

use super::settings::SftDataSettings;
use crate::{Context, Task};
use xtrain_data::packing::{self, PackingStrategy};
use xtrain_data::settings::PaddingSettings;
use xtrain_data::{Result, Samples};

/// Examples that are looked at.
const MOST: usize = 2_000;

/// Rows of a batch, about: as many are padded together.
const BATCH: usize = 8;

/// The shortest length that batches are padded to.
const SHORTEST: usize = 16;

/// Padding of one length for all, as a share of the tokens of a batch, up to which there is one.
const LITTLE: f64 = 0.1;

/// Padding of lengths by powers of two from which examples are packed, if enough rows are left to be
/// an epoch of some steps.
const MUCH: f64 = 0.25;
const ROWS: usize = 256;

/// The settings by the tokens of each of the first examples, and the note on them; `all`: there are no
/// further ones. `cap` is the length if nothing else decides it.
fn by_lengths(
    settings: &SftDataSettings,
    lengths: &[usize],
    all: bool,
    cap: usize,
) -> (SftDataSettings, String) {
    let longest = lengths.iter().copied().max().unwrap_or(cap);
    // Of further ones nobody knows how long they are.
    let length = if all {
        longest.next_power_of_two().max(SHORTEST).min(cap)
    } else {
        cap
    };
    let kept: Vec<usize> = lengths.iter().map(|tokens| length.min(*tokens)).collect();
    let tokens: usize = kept.iter().sum();
    let padding = |padded: usize| 1.0 - tokens as f64 / padded.max(1) as f64;
    let bucket = |tokens: usize| tokens.next_power_of_two().max(SHORTEST).min(length);
    let of_batch =
        |batch: &[usize]| batch.len() * batch.iter().copied().map(bucket).max().unwrap_or(0);
    let one_length = padding(kept.len() * length);
    let by_powers = padding(kept.chunks(BATCH).map(of_batch).sum());
    let rows = packing::layout(&kept, length, PackingStrategy::Bfd).len();
    let packs = by_powers > MUCH && rows >= ROWS;
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let is_one = !packs && one_length <= LITTLE;
    let how = if packs {
        format!(
            "packing bfd, as padding would be {} of the tokens",
            percent(by_powers)
        )
    } else if is_one {
        format!(
            "padding to one length ({} of the tokens)",
            percent(one_length)
        )
    } else {
        format!(
            "padding to powers of two ({} of the tokens), no packing",
            percent(by_powers)
        )
    };
    let count = lengths.len();
    let which = if all { "all" } else { "the first" };
    let note = format!(
        "chosen by the data: max_seq_length {length} ({which} {count} examples have up to {longest} tokens), {how}; --max_seq_length, --packing and \
         --pad_to_bucket choose otherwise"
    );
    let fitted = SftDataSettings {
        max_seq_length: Some(length),
        packing: packs.then_some(PackingStrategy::Bfd),
        eval_packing: packs.then_some(PackingStrategy::Bfd),
        padding: PaddingSettings {
            pad_to_max_length: is_one,
            ..settings.padding.clone()
        },
        fits_data: false,
        ..settings.clone()
    };
    (fitted, note)
}

/// The settings that suit the first examples of the training files, and the note on them.
///
/// # Errors
/// An example cannot be read or encoded.
pub(super) fn fitted(
    settings: &SftDataSettings,
    context: &Context,
) -> Result<(SftDataSettings, String)> {
    let recipe = settings.recipe(context, true)?;
    let source = &settings.source;
    let samples = Samples::new(&source.train_files, &*recipe, source.table.on_bad_row);
    let samples: Vec<_> = samples.take(MOST).collect::<Result<_>>()?;
    let mut lengths = Vec::with_capacity(samples.len());
    for group in samples.chunks(recipe.group()) {
        lengths.extend(recipe.encode(group)?.lengths);
    }
    let lengths: Vec<usize> = lengths.into_iter().map(|tokens| tokens as usize).collect();
    let all = samples.len() < MOST;
    Ok(by_lengths(settings, &lengths, all, context.length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_examples_decide() {
        let settings = SftDataSettings::default();
        let chosen = |lengths: &[usize], all: bool| {
            let (fitted, note) = by_lengths(&settings, lengths, all, 1024);
            let length = fitted.max_seq_length.unwrap();
            let one = fitted.padding.pad_to_max_length;
            (length, fitted.packing.is_some(), one, note)
        };
        // Few examples stay rows of their own.
        let (length, packs, one, note) = chosen(&[20, 600, 30], true);
        assert_eq!((length, packs, one), (1024, false, false));
        assert!(
            note.contains("all 3 examples have up to 600 tokens"),
            "{note}"
        );
        // Of many, most of which are short, several make a row.
        let many: Vec<usize> = (0..1999)
            .map(|at| if at % 8 == 0 { 250 } else { 40 })
            .collect();
        let (length, packs, ..) = chosen(&many, true);
        assert_eq!((length, packs), (256, true));
        // Where there may be longer ones, rows are as long as they may be.
        let (length, packs, ..) = chosen(&many, false);
        assert_eq!((length, packs), (1024, false));
        // Examples of one length need one graph.
        let (length, packs, one, _) = chosen(&[63; 500], true);
        assert_eq!((length, packs, one), (64, false, true));
        assert_eq!(chosen(&[5000], true).0, 1024);
    }
}
