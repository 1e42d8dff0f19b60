//! Whether a text that a server sent, or that becomes a path or a part of an address, is what it is
//! meant to be. Everything that fails here is refused before it names a file.

use ureq::http::HeaderMap;

/// Bytes of a file's path in a repository, and of one part of it.
const LONGEST_PATH: usize = 1024;
const LONGEST_NAME: usize = 255;

/// Of a server's text in a message.
const LONGEST_SHOWN: usize = 120;

/// Names of a list in a message, and characters of each.
const MOST_LISTED: usize = 20;

/// Whether this can be a name on the Hub: one or two parts of letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(part)
}

/// Whether a commit is one: it becomes a directory's name.
pub(super) fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether this is the path of a file within a repository, and stays within.
pub(super) fn is_file(path: &str) -> bool {
    let part = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= LONGEST_NAME;
    path.len() <= LONGEST_PATH
        && path.split('/').all(part)
        && !path.contains(|c: char| c == '\\' || c.is_control())
}

/// Whether this can be a branch, tag or commit, by git's rules for references: it becomes a path.
pub(super) fn is_revision(text: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    text.len() <= LONGEST_NAME
        && text.split('/').all(part)
        && !text.contains("..")
        && !text.ends_with('.')
        && !text.contains(|c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c))
}

/// The name of a file's content, from an ETag: without quotes and the mark of a weak one. `None` of
/// anything that is no plain name, since it becomes a file's.
pub(super) fn etag(text: &str) -> Option<&str> {
    let name = text.strip_prefix("W/").unwrap_or(text);
    let name = name
        .strip_prefix('"')
        .map_or(Some(name), |name| name.strip_suffix('"'))?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    ((1..=128).contains(&name.len()) && name.bytes().all(is_plain)).then_some(name)
}

/// A number of bytes: digits alone.
pub(super) fn size(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// First byte, last byte and size of a `Content-Range`; the size may be left open.
pub(super) fn range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (bytes, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = bytes.split_once('-')?;
    let total = match total {
        "*" => None,
        total => Some(size(total)?),
    };
    Some((size(first)?, size(last)?, total))
}

/// The value of a header. An error of one that is there twice with different values, or that is no
/// text.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|other| other != first) {
        return Err(format!("its header {name} has several values"));
    }
    let text = first
        .to_str()
        .map_err(|_| format!("its header {name} is no text"))?;
    Ok(Some(text.trim()))
}

/// A server's text for a message: one line, in quotes, of bounded length.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Names for a message, as many as can be read.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(MOST_LISTED);
    let short = |name: &str| name.chars().take(LONGEST_SHOWN).collect::<String>();
    let first: Vec<String> = names.take(MOST_LISTED).map(short).collect();
    let first = first.join(", ");
    match more {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_contents_become_names_of_files() {
        let sha = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        assert_eq!(etag(&format!("\"{sha}\"")), Some(sha));
        assert_eq!(etag(&format!("W/\"{sha}\"")), Some(sha));
        assert_eq!(etag("5f3c-1a2b"), Some("5f3c-1a2b"));
        for text in [
            "",
            "\"\"",
            "\"/etc/passwd\"",
            "..",
            "\"..\"",
            ".",
            "a/b",
            "a\\b",
            "a b",
            "a.part",
            "\"a",
            "a\"b",
            "\u{e9}",
            "W/",
            &"a".repeat(129),
        ] {
            assert_eq!(etag(text), None, "{text}");
        }
    }

    #[test]
    fn paths_stay_within_their_repository() {
        for path in [
            "config.json",
            "data/train 1.csv",
            ".gitattributes",
            "a..b/c",
        ] {
            assert!(is_file(path), "{path}");
        }
        let long = "a/".repeat(600) + "a";
        for path in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            "./a",
            "a/./b",
            "..\\x",
            "a\nb",
            "a\0",
            "\u{1b}[2J",
            &"a".repeat(256),
            &long,
        ] {
            assert!(!is_file(path), "{path:?}");
        }
        for revision in ["main", "refs/pr/1", "refs/convert/parquet", "v1.0-rc.1"] {
            assert!(is_revision(revision), "{revision}");
        }
        for revision in [
            "", "/x", "../x", "a/../b", "a/", ".x", "x.lock", "a b", "a?b", "a\nb", "a:b", "x.",
        ] {
            assert!(!is_revision(revision), "{revision:?}");
        }
        assert!(is_commit("0123456789abcdef0123456789abcdef01234567"));
        for commit in ["", "abc", "/victim", "../../victim", "0123456789abcdef.."] {
            assert!(!is_commit(commit), "{commit}");
        }
    }

    #[test]
    fn numbers_are_digits() {
        assert_eq!(size("608"), Some(608));
        for text in ["", "+5", "-1", "0x10", "1e3", "18446744073709551616", " 5"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(range("bytes 5-9/10"), Some((5, 9, Some(10))));
        assert_eq!(range("bytes 5-9/*"), Some((5, 9, None)));
        for text in ["", "bytes */10", "items 5-9/10", "bytes 5-/10", "bytes 5-9"] {
            assert_eq!(range(text), None, "{text}");
        }
    }

    #[test]
    fn a_header_has_one_value() {
        let mut headers = HeaderMap::new();
        let mut add = |value: &[u8]| {
            let value = ureq::http::HeaderValue::from_bytes(value).unwrap();
            headers.append("etag", value);
            header(&headers, "ETag").map(|value| value.map(str::to_string))
        };
        assert_eq!(add(b"a"), Ok(Some("a".to_string())));
        assert_eq!(add(b"a"), Ok(Some("a".to_string())));
        assert!(add(b"b").unwrap_err().contains("ETag has several values"));
        headers.clear();
        headers.append(
            "etag",
            ureq::http::HeaderValue::from_bytes(b"\xff").unwrap(),
        );
        assert!(header(&headers, "etag").unwrap_err().contains("no text"));
        assert_eq!(header(&headers, "location"), Ok(None));
    }

    #[test]
    fn messages_stay_short() {
        assert_eq!(shown("a\u{1b}b\n"), "\"a\\u{1b}b\\n\"");
        assert!(shown(&"\u{1F600}".repeat(10_000)).chars().count() < 130);
        let names: Vec<String> = (0..1000).map(|i| format!("name{i}")).collect();
        let text = listed(names.iter().map(String::as_str));
        assert!(text.ends_with("name19 and 980 more"), "{text}");
        assert_eq!(listed(["a", "b"].into_iter()), "a, b");
    }
}
