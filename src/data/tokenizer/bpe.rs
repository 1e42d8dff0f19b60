//! Training a byte-level BPE, GPT-2 style.
//!
//! Splitting, byte mapping and encoding are the `tokenizers` crate's. The merge loop is ours,
//! because the crate's walks hash maps whose order differs from run to run, and two ways to spell
//! one token can then change which merges are learnt; here ties are broken by token ids and nothing
//! depends on hash order, threads or the order of the texts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use rayon::prelude::*;
use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use crate::error::{Error, Result};

/// GPT-2's one special token; id 0 in tokenizers trained here.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// A pair seen once in the whole corpus is noise, not a token (the usual `min_frequency` of 2).
const MIN_COUNT: i64 = 2;

type Pair = (u32, u32);

/// A `tokenizer.json` for a byte-level BPE of at most `vocab_size` tokens (fewer when no pair
/// repeats any more).
pub fn train(texts: &[impl AsRef<str> + Sync], vocab_size: usize) -> Result<Value> {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    if vocab_size <= alphabet.len() {
        let reason = format!(
            "the {} bytes and {END_OF_TEXT} alone take {}",
            alphabet.len(),
            alphabet.len() + 1
        );
        return Err(Error::TrainTokenizer { vocab_size, reason });
    }
    let mut tokens = vec![END_OF_TEXT.to_string()];
    tokens.extend(alphabet.iter().map(char::to_string));
    let words =
        count_words(texts).map_err(|reason| Error::TrainTokenizer { vocab_size, reason })?;
    let merges = Merger::new(&words, &tokens).learn(&mut tokens, vocab_size);
    let merges: Vec<String> = merges
        .iter()
        .map(|(a, b)| format!("{} {}", tokens[*a as usize], tokens[*b as usize]))
        .collect();
    Ok(definition(
        tokens
            .into_iter()
            .zip(0u64..)
            .map(|(token, id)| (token, id.into()))
            .collect(),
        merges,
        &[(END_OF_TEXT, 0)],
    ))
}

/// `tokenizer.json` of a GPT-2 style tokenizer with the given tokens, merges (`"a b"`, which every
/// version reads) and special tokens.
pub fn definition(
    vocab: Map<String, Value>,
    merges: Vec<String>,
    special: &[(&str, u64)],
) -> Value {
    let added = special.iter().map(|(content, id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
               "special": true})
    });
    let byte_level = |trim_offsets: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim_offsets, "use_regex": true});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level(true),
        "post_processor": byte_level(false),
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocab,
            "merges": merges,
        },
    })
}

/// How often each pre-token occurs, sorted by its text.
fn count_words(texts: &[impl AsRef<str> + Sync]) -> Result<Vec<(String, i64)>, String> {
    let splitter = ByteLevel::default().add_prefix_space(false);
    let count = |mut counts: HashMap<String, i64>, text: &str| {
        let mut split = PreTokenizedString::from(text);
        splitter
            .pre_tokenize(&mut split)
            .map_err(|error| error.to_string())?;
        for (word, _, _) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match counts.get_mut(word) {
                Some(count) => *count += 1,
                None => drop(counts.insert(word.to_string(), 1)),
            }
        }
        Ok::<_, String>(counts)
    };
    let add = |mut a: HashMap<String, i64>, b: HashMap<String, i64>| {
        b.into_iter()
            .for_each(|(word, n)| *a.entry(word).or_default() += n);
        Ok(a)
    };
    let counts = texts
        .par_iter()
        .try_fold(HashMap::new, |counts, text| count(counts, text.as_ref()))
        .try_reduce(HashMap::new, add)?;
    let mut words: Vec<_> = counts.into_iter().collect();
    words.sort_unstable();
    Ok(words)
}

/// Words as token ids, with what is needed to find and count pairs without going through all words
/// again.
struct Merger {
    words: Vec<(Vec<u32>, i64)>,
    counts: HashMap<Pair, i64>,
    /// Words in which a pair occurs, or did once.
    places: HashMap<Pair, HashSet<usize>>,
    /// Most frequent first, then smallest ids. An entry whose count is out of date is skipped when
    /// it surfaces.
    queue: BinaryHeap<(i64, Reverse<Pair>)>,
}

impl Merger {
    fn new(words: &[(String, i64)], tokens: &[String]) -> Merger {
        let ids: HashMap<&str, u32> = tokens.iter().map(String::as_str).zip(0..).collect();
        let mut merger = Merger {
            words: Vec::with_capacity(words.len()),
            counts: HashMap::new(),
            places: HashMap::new(),
            queue: BinaryHeap::new(),
        };
        for (index, (word, count)) in words.iter().enumerate() {
            let mut buffer = [0; 4];
            let symbols: Vec<u32> = word
                .chars()
                .map(|c| ids[&*c.encode_utf8(&mut buffer)])
                .collect();
            for pair in symbols.windows(2) {
                *merger.counts.entry((pair[0], pair[1])).or_default() += count;
                merger
                    .places
                    .entry((pair[0], pair[1]))
                    .or_default()
                    .insert(index);
            }
            merger.words.push((symbols, *count));
        }
        merger.queue = merger
            .counts
            .iter()
            .map(|(pair, count)| (*count, Reverse(*pair)))
            .collect();
        merger
    }

    /// Merges the most frequent pair until `tokens` is full or no pair repeats; new tokens are
    /// appended to it.
    fn learn(mut self, tokens: &mut Vec<String>, vocab_size: usize) -> Vec<Pair> {
        let mut ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
        let mut merges = Vec::new();
        let mut known = HashSet::new();
        while tokens.len() < vocab_size {
            let Some((count, Reverse(pair))) = self.queue.pop() else {
                break;
            };
            if count < MIN_COUNT {
                break;
            }
            if self.counts[&pair] != count {
                continue;
            }
            let merged = format!("{}{}", tokens[pair.0 as usize], tokens[pair.1 as usize]);
            // Two pairs can spell one token ("ab" + "c", "a" + "bc"); both are merges, the token
            // exists once.
            let id = *ids.entry(merged).or_insert_with_key(|merged| {
                tokens.push(merged.clone());
                tokens.len() as u32 - 1
            });
            if known.insert(pair) {
                merges.push(pair);
            }
            self.merge(pair, id);
        }
        merges
    }

    /// Replaces `pair` by `id` in all words, left to right, and updates the counts of the pairs
    /// around it.
    fn merge(&mut self, pair: Pair, id: u32) {
        let mut changed = HashSet::new();
        for index in self.places.remove(&pair).unwrap_or_default() {
            let (symbols, count) = &mut self.words[index];
            let mut merged = Vec::with_capacity(symbols.len());
            let mut i = 0;
            while i < symbols.len() {
                let here = i + 1 < symbols.len() && (symbols[i], symbols[i + 1]) == pair;
                merged.push(if here { id } else { symbols[i] });
                i += if here { 2 } else { 1 };
            }
            if merged.len() == symbols.len() {
                continue;
            }
            // Whole-word bookkeeping: words are short, and it cannot miss an overlap.
            for old in symbols.windows(2) {
                *self.counts.entry((old[0], old[1])).or_default() -= *count;
                changed.insert((old[0], old[1]));
            }
            for new in merged.windows(2) {
                *self.counts.entry((new[0], new[1])).or_default() += *count;
                changed.insert((new[0], new[1]));
                self.places
                    .entry((new[0], new[1]))
                    .or_default()
                    .insert(index);
            }
            *symbols = merged;
        }
        for pair in changed {
            self.queue.push((self.counts[&pair], Reverse(pair)));
        }
    }
}
