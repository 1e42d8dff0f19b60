//! Refuses definitions of tokenizers that cost far more than they look: the `tokenizers` crate builds
//! whatever they say.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use xtrain_report::json;

/// Bytes of a token, a regular expression or a replacement, at most.
pub(super) const LONGEST: usize = 4096;

/// Tokens of a vocabulary, at most; the largest have a quarter of a million.
pub(super) const MOST_TOKENS: usize = 2 << 20;

/// Strings of a definition, at most: tokens, and two for each merge.
const MOST_STRINGS: usize = 3 * MOST_TOKENS;

/// Nodes of a unigram model's tree, at most. Each takes some 350 bytes.
const MOST_NODES: usize = 5 << 19;

/// Bytes that one of a text may become before it is cut into tokens.
const MOST_GROWTH: usize = 64;

/// The key of ALBERT's rules for characters: a tree and texts, as base64.
const CHARSMAP: &str = "precompiled_charsmap";

/// What is looked at of a `tokenizer.json`.
#[derive(Deserialize)]
struct Definition {
    normalizer: Option<Value>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
}

/// Refuses more tokens than any vocabulary has, before they are taken.
///
/// # Errors
/// There are too many.
pub(super) fn check_tokens(tokens: usize) -> Result<(), String> {
    if tokens <= MOST_TOKENS {
        return Ok(());
    }
    Err(format!(
        "it has {tokens} tokens; no tokenizer has more than {MOST_TOKENS}"
    ))
}

/// Looks at a definition. What is no definition at all is left to those who read it.
///
/// # Errors
/// What of it is too large.
pub(super) fn check(definition: &[u8]) -> Result<(), String> {
    json::check_count(definition)?;
    let Ok(strings) = serde_json::from_slice::<Strings>(definition) else {
        return Ok(());
    };
    check_length(strings.longest)?;
    if strings.count > MOST_STRINGS {
        return Err(format!(
            "it has {} tokens and merges; no tokenizer has more than {MOST_STRINGS}",
            strings.count
        ));
    }
    let Ok(definition) = serde_json::from_slice::<Definition>(definition) else {
        return Ok(());
    };
    let growth = definition
        .normalizer
        .map_or(Ok(1), |rules| growth(&rules))?;
    if growth > MOST_GROWTH {
        return Err(format!(
            "its normalizer makes texts {growth} times as long; no rules of a language do"
        ));
    }
    let pieces = definition.model.map(|model| model.vocab.pieces);
    let nodes = nodes(pieces.unwrap_or_default());
    if nodes > MOST_NODES {
        return Err(format!(
            "its pieces have {nodes} different beginnings; no model has more than {MOST_NODES}"
        ));
    }
    Ok(())
}

/// Refuses a token or a rule that is longer than any.
///
/// # Errors
/// It is too long.
pub(super) fn check_length(bytes: usize) -> Result<(), String> {
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(format!(
        "a token or a rule in it has {bytes} bytes; none has more than {LONGEST}"
    ))
}

/// Different beginnings of the pieces: the nodes of the tree that finds them.
fn nodes(mut pieces: Vec<String>) -> usize {
    pieces.sort_unstable();
    let mut before: &[u8] = &[];
    let mut count = 0;
    for piece in &pieces {
        let common = before.iter().zip(piece.as_bytes());
        count += piece.len() - common.take_while(|(a, b)| a == b).count();
        before = piece.as_bytes();
    }
    count
}

/// How much longer normalizers make a text, at most.
fn growth(rules: &Value) -> Result<usize, String> {
    let text = |value: &Value| value.as_str().map_or(0, str::len);
    match rules["type"].as_str() {
        Some("Sequence") => {
            let all = rules["normalizers"].as_array().into_iter().flatten();
            all.map(growth)
                .try_fold(1, |all: usize, one| Ok(all.saturating_mul(one?)))
        }
        Some("Replace") => {
            let replaced = text(&rules["pattern"]["String"]).max(1);
            Ok(text(&rules["content"]).div_ceil(replaced).max(1))
        }
        Some("Precompiled") => {
            // What is no base64 is left to those who read it.
            let bytes = BASE64_STANDARD.decode(rules[CHARSMAP].as_str().unwrap_or_default());
            bytes.map_or(Ok(1), |bytes| check_charsmap(&bytes).map(|()| 1))
        }
        _ => Ok(1),
    }
}

/// Rules for characters: the size of a tree, the tree, and the texts that its leaves point at, each
/// with a zero at its end.
fn check_charsmap(bytes: &[u8]) -> Result<(), String> {
    let (size, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| format!("its {CHARSMAP} is cut short"))?;
    let size = u32::from_le_bytes(*size) as usize;
    let texts = rest.get(size..).filter(|_| size.is_multiple_of(4));
    let texts = texts.ok_or_else(|| {
        let has = rest.len();
        format!("its {CHARSMAP} claims a tree of {size} bytes and has {has}")
    })?;
    let longest = texts.split(|byte| *byte == 0).map(<[u8]>::len).max();
    match longest {
        Some(longest) if longest > MOST_GROWTH => Err(format!(
            "its {CHARSMAP} turns a character into {longest} bytes; no rules of a language do"
        )),
        _ => Ok(()),
    }
}

/// The strings of any JSON, keys included, but for a charsmap.
#[derive(Default)]
struct Strings {
    longest: usize,
    count: usize,
}

impl Strings {
    fn of(text: &str) -> Strings {
        Strings {
            longest: text.len(),
            count: 1,
        }
    }

    fn add(&mut self, other: Strings) {
        self.longest = self.longest.max(other.longest);
        self.count += other.count;
    }
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Strings, D::Error> {
        from.deserialize_any(StringsVisitor)
    }
}

struct StringsVisitor;

impl<'de> Visitor<'de> for StringsVisitor {
    type Value = Strings;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Strings, E> {
        Ok(Strings::of(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Strings, A::Error> {
        let mut all = Strings::default();
        while let Some(value) = values.next_element::<Strings>()? {
            all.add(value);
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Strings, A::Error> {
        let mut all = Strings::default();
        while let Some(key) = entries.next_key::<String>()? {
            if key == CHARSMAP {
                entries.next_value::<IgnoredAny>()?;
            } else {
                all.add(Strings::of(&key));
                all.add(entries.next_value()?);
            }
        }
        Ok(all)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Strings, E> {
        Ok(Strings::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Strings, E> {
        Ok(Strings::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Strings, E> {
        Ok(Strings::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Strings, E> {
        Ok(Strings::default())
    }

    fn visit_unit<E>(self) -> Result<Strings, E> {
        Ok(Strings::default())
    }
}

/// The pieces of a unigram model, which lists them with their scores; of other models none.
#[derive(Default)]
struct Vocabulary {
    pieces: Vec<String>,
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Vocabulary, D::Error> {
        from.deserialize_any(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vocabulary, A::Error> {
        let mut pieces = Vec::new();
        while let Some((piece, _)) = entries.next_element::<(String, IgnoredAny)>()? {
            pieces.push(piece);
        }
        Ok(Vocabulary { pieces })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Vocabulary, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Vocabulary::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(definition: &Value) -> String {
        check(definition.to_string().as_bytes()).unwrap_err()
    }

    fn charsmap(tree: u32, rest: &[u8]) -> Value {
        let bytes = [&tree.to_le_bytes(), rest].concat();
        let rules =
            json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(bytes)});
        json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, rules]}})
    }

    #[test]
    fn what_costs_more_than_it_looks_is_refused() {
        let long = "x".repeat(1 << 20);
        let replace = |times: usize, content: &str| {
            let rule = json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
            json!({"normalizer": {"type": "Sequence", "normalizers": vec![rule; times]}})
        };
        for (definition, words) in [
            (json!({"model": {"vocab": [[long, -1.0]]}}), "1048576 bytes"),
            (
                json!({"model": {"vocab": {long.clone(): 1}}}),
                "1048576 bytes",
            ),
            (
                json!({"added_tokens": [{"content": long}]}),
                "1048576 bytes",
            ),
            (
                json!({"pre_tokenizer": {"pattern": {"Regex": long}}}),
                "1048576 bytes",
            ),
            (replace(1, &long[..4000]), "4000 times"),
            (replace(40, "aa"), "times as long"),
            (
                charsmap(u32::MAX - 3, b"abc"),
                "claims a tree of 4294967292 bytes",
            ),
            (charsmap(6, b"abcdefg"), "claims a tree"),
            (
                charsmap(0, long.as_bytes()),
                "turns a character into 1048576 bytes",
            ),
        ] {
            let message = refused(&definition);
            assert!(message.contains(words), "{message}");
        }
        for fine in [
            replace(3, "abc"),
            charsmap(4, b"abcdx\0yz\0"),
            json!([1, null]),
        ] {
            check(fine.to_string().as_bytes()).unwrap();
        }
        check(b"no JSON").unwrap();
    }

    #[test]
    fn trees_have_a_bound() {
        let of = |pieces: &[&str]| nodes(pieces.iter().map(ToString::to_string).collect());
        assert_eq!(of(&["abc", "ab", "abd", "x", ""]), 5);
        let pieces =
            (0..MOST_NODES / LONGEST + 1).map(|i| format!("{i:04}{}", "x".repeat(LONGEST - 4)));
        let vocab: Vec<Value> = pieces.map(|piece| json!([piece, 0.0])).collect();
        let message = refused(&json!({"model": {"type": "Unigram", "vocab": vocab}}));
        assert!(message.contains("different beginnings"), "{message}");
    }
}
