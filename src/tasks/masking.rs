//! Masked LM: which tokens a model must predict, and what it sees in their place.
//!
//! As transformers' `DataCollatorForLanguageModeling`: each token that is not special is chosen
//! with a probability of its own; of the chosen, 80% become the mask token, 10% a random id out of
//! the whole vocabulary, 10% stay. With whole words, a word is chosen by one draw and all its
//! tokens with it. The draws are a function of (seed, epoch, row) alone, so that neither resuming
//! nor the number of workers changes a batch.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xtrain_models::IGNORED_LABEL;

use xtrain_data::rows::flag;
use xtrain_data::sampler::below;

/// Of the chosen tokens, how many of ten become the mask token; one more of ten a random one.
const MASKED_OF_TEN: u64 = 8;

/// Which tokens of a row a model has to predict, and what it sees in their place: BERT's 80, 10 and
/// 10 % (Devlin et al. 2018, section 3.1).
#[derive(Clone, Debug, PartialEq)]
pub struct Masking {
    /// Share of the tokens (or words) that are chosen.
    pub probability: f64,
    /// All pieces of a word are chosen together.
    pub whole_words: bool,
    /// The id of the mask token.
    pub mask_id: u32,
    /// Random tokens are ids below this.
    pub vocab_size: usize,
    /// Of the draws, which depend on it, the epoch and the row.
    pub seed: u64,
}

impl Masking {
    /// Masks one row in place and writes its labels: the original ids where something is to be
    /// predicted, -100 elsewhere. Gives the number of labels. `ids`, `labels` and `flags` have the
    /// row's length, padding not included.
    pub fn apply(
        &self,
        epoch: u64,
        row: u32,
        flags: &[u8],
        ids: &mut [i32],
        labels: &mut [i32],
    ) -> usize {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&epoch.to_le_bytes());
        key[16..20].copy_from_slice(&row.to_le_bytes());
        key[20..].copy_from_slice(b"xtrain masks");
        let mut rng = ChaCha8Rng::from_seed(key);
        // A probability of 1 is above every draw.
        let threshold = (self.probability * (1u64 << 53) as f64).round() as u64;
        let mut chosen = false;
        let mut count = 0;
        for ((id, label), flags) in ids.iter_mut().zip(labels).zip(flags) {
            *label = IGNORED_LABEL as i32;
            if flags & flag::SPECIAL != 0 {
                chosen = false;
                continue;
            }
            let draws_for_itself = !self.whole_words || flags & flag::CONTINUES == 0;
            if draws_for_itself {
                chosen = rng.next_u64() >> 11 < threshold;
            }
            if chosen {
                *label = *id;
                count += 1;
                match below(&mut rng, 10) {
                    n if n < MASKED_OF_TEN => *id = self.mask_id as i32,
                    n if n == MASKED_OF_TEN => *id = below(&mut rng, self.vocab_size as u64) as i32,
                    _ => {}
                }
            }
        }
        count
    }
}
