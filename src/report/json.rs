//! JSON of others: the standard's, and the three numbers that Python's json module writes besides
//! it; within a bound of memory.

use serde::de::{DeserializeOwned, Error as _};

/// Values that any text may have, and bytes of text for each further one. A parsed value takes some
/// 80 bytes, whatever it is.
const VALUES: usize = 2 << 20;
const BYTES: usize = 20;

/// Reads JSON. `NaN`, `Infinity` and `-Infinity`, as Python writes a loss after an overflow, are
/// null: JSON has no word for them.
///
/// # Errors
/// The text is no JSON of this type, or has far more values than text.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    check_count(text).map_err(serde_json::Error::custom)?;
    serde_json::from_slice(text).or_else(|error| match without_constants(text) {
        Some(text) => serde_json::from_slice(&text),
        None => Err(error),
    })
}

/// Refuses JSON of far more values than text, whoever reads it.
///
/// # Errors
/// The text has too many values.
pub fn check_count(text: &[u8]) -> Result<(), String> {
    let values = text.iter().filter(|byte| b",[{".contains(byte)).count();
    if values > VALUES + text.len() / BYTES {
        return Err(format!("it has {values} values in {} bytes", text.len()));
    }
    Ok(())
}

/// Reads the object that a line of a log holds; `None` of anything else.
pub fn of_line<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let begins = line.trim_ascii_start().first() == Some(&b'{');
    begins.then(|| from_slice(line).ok()).flatten()
}

/// The text with Python's constants as null; `None` if it has none.
fn without_constants(text: &[u8]) -> Option<Vec<u8>> {
    const CONSTANTS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    if !text.iter().any(|byte| b"NI".contains(byte)) {
        return None;
    }
    let (mut found, mut at, mut quoted) = (Vec::with_capacity(text.len()), 0, false);
    let mut has_any = false;
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        let constant = CONSTANTS.iter().find(|constant| rest.starts_with(constant));
        match (byte, constant) {
            (_, Some(constant)) if !quoted => {
                // Of the same length where that goes, so that places in messages stay right.
                found.extend(b"null");
                found.resize(found.len() + constant.len().saturating_sub(4), b' ');
                at += constant.len();
                has_any = true;
                continue;
            }
            (b'"', _) => quoted = !quoted,
            (b'\\', _) => {
                found.push(b'\\');
                at += 1;
            }
            _ => {}
        }
        found.extend(text.get(at));
        at += 1;
    }
    has_any.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn numbers_that_only_python_writes_are_null() {
        let text = br#"{"loss": NaN, "b": [Infinity,-Infinity, 1], "c": "NaN \" Infinity", "d\\": -Infinity}"#;
        let expected =
            json!({"loss": null, "b": [null, null, 1], "c": "NaN \" Infinity", "d\\": null});
        assert_eq!(from_slice::<Value>(text).unwrap(), expected);
        for text in [
            "NaNa",
            "nan",
            "--Infinity",
            "\"NaN",
            "[NaN",
            "NaN NaN",
            "\\",
            "",
        ] {
            assert!(from_slice::<Value>(text.as_bytes()).is_err(), "{text}");
        }
        let error = from_slice::<Value>(b"{\"a\": -Infinity, \"b\": x}").unwrap_err();
        assert_eq!(error.column(), 23);
    }

    #[test]
    fn values_take_no_more_memory_than_their_text_lets_expect() {
        let many = format!("[{}0]", "0,".repeat(5 << 20));
        let error = from_slice::<Value>(many.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("values in"), "{error}");
        let texts = format!("[{}\"\"]", "\"some text of a file\",".repeat(1 << 18));
        assert!(from_slice::<Value>(texts.as_bytes()).is_ok());
    }
}
