//! What the Hub answers to the calls of a push, by type: nothing else of an answer is kept in
//! memory, however large it is.

use std::collections::BTreeMap;
use std::fmt::Formatter;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Parts of a large file, as S3 has them at most.
const MOST_PARTS: usize = 10_000;

/// Why the Hub refuses.
#[derive(Default, Deserialize)]
pub(super) struct Refusal {
    pub error: Option<String>,
    pub message: Option<String>,
}

/// A repository that was made, or is there.
#[derive(Deserialize)]
pub(super) struct Made {
    pub url: String,
}

#[derive(Deserialize)]
pub(super) struct Modes {
    pub files: Vec<Mode>,
}

/// How a file is stored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mode {
    pub path: String,
    pub upload_mode: String,
    pub should_ignore: Option<bool>,
    /// Of what the branch has under this path.
    pub oid: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Objects {
    pub objects: Vec<Object>,
}

/// Where a large file goes; without actions the Hub has it.
#[derive(Deserialize)]
pub(super) struct Object {
    pub oid: String,
    pub error: Option<Refusal>,
    pub actions: Option<Actions>,
}

#[derive(Deserialize)]
pub(super) struct Actions {
    pub upload: Option<Action>,
    pub verify: Option<Action>,
}

#[derive(Deserialize)]
pub(super) struct Action {
    pub href: String,
    #[serde(default)]
    pub header: Option<Parts>,
}

/// How a file is sent in parts, if it is.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Parts {
    pub size: Option<u64>,
    /// Addresses by number.
    pub addresses: BTreeMap<u64, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Committed {
    pub commit_oid: String,
}

/// A text, or a number as one.
struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        struct AsText;
        impl Visitor<'_> for AsText {
            type Value = Word;
            fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
                f.write_str("a text or a number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(AsText)
    }
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parts, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = Parts;
            fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
                f.write_str("a header with addresses of parts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts, A::Error> {
                let mut parts = Parts::default();
                while let Some((key, Word(word))) = map.next_entry::<String, Word>()? {
                    let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
                    if key == "chunk_size" {
                        parts.size = Some(word.parse().map_err(A::Error::custom)?);
                    } else if let Some(number) = is_number.then(|| key.parse().ok()).flatten() {
                        parts.addresses.insert(number, word);
                    }
                    if parts.addresses.len() > MOST_PARTS {
                        return Err(A::Error::custom("too many parts"));
                    }
                }
                Ok(parts)
            }
        }
        deserializer.deserialize_map(Header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_numbered_addresses_and_a_size() {
        let of = |text: &str| serde_json::from_str::<Parts>(text);
        let addresses = |pairs: &[(u64, &str)]| {
            let pairs = pairs.iter();
            pairs.map(|(n, url)| (*n, url.to_string())).collect()
        };
        let parts = of(r#"{"chunk_size": "5", "00001": "a", "2": "b", "x": "y"}"#);
        let wanted = Parts {
            size: Some(5),
            addresses: addresses(&[(1, "a"), (2, "b")]),
        };
        assert_eq!(parts.unwrap(), wanted);
        assert_eq!(of(r#"{"chunk_size": 7}"#).unwrap().size, Some(7));
        assert_eq!(of("{}").unwrap(), Parts::default());
        for text in [
            "[]",
            r#"{"chunk_size": "x"}"#,
            r#"{"chunk_size": -1}"#,
            r#"{"1": [[]]}"#,
        ] {
            assert!(of(text).is_err(), "{text}");
        }
        let many: Vec<String> = (0..20_000).map(|n| format!("\"{n}\": \"a\"")).collect();
        let error = of(&format!("{{{}}}", many.join(","))).unwrap_err();
        assert!(error.to_string().contains("too many parts"));
    }
}
