//! Texts within HTML and addresses, which some filters write.

/// `markupsafe.escape`.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// `urllib.parse.quote`; in a query slashes are quoted, too, and spaces are plus signs.
pub(crate) fn url_quoted(text: &str, is_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(byte.into());
            }
            b'/' if !is_query => out.push('/'),
            b' ' if is_query => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
