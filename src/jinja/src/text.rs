//! White space and lines as Python's `str` has them.

/// `str.isspace` of one character.
pub(crate) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

/// `str.strip()`.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip()`.
pub(crate) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// `str.splitlines(keepends)`.
pub(crate) fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_break = |letter: char| {
        matches!(
            letter,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(is_break) {
        let mut end = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        if rest[at..].starts_with("\r\n") {
            end = at + 2;
        }
        lines.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `str.split(None, most)`.
pub(crate) fn split_words(text: &str, most: Option<usize>) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let space = rest.find(is_space);
        match space.filter(|_| most.is_none_or(|most| parts.len() < most)) {
            Some(at) => {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
            None => {
                // What is left of the last part keeps the spaces behind it.
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

/// `str.rsplit(None, most)`.
pub(crate) fn split_words_from_the_end(text: &str, most: Option<usize>) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = trim_end(text);
    while !rest.is_empty() {
        let space = rest.rfind(is_space);
        match space.filter(|_| most.is_none_or(|most| parts.len() < most)) {
            Some(at) => {
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + width..]);
                rest = trim_end(&rest[..at]);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts.reverse();
    parts
}

/// The first letter's title case and the others' lower case.
pub(crate) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let Some(first) = letters.next() else {
        return String::new();
    };
    let mut all = title_case(first);
    all.push_str(&letters.as_str().to_lowercase());
    all
}

/// A letter as a word begins with it.
pub(crate) fn title_case(letter: char) -> String {
    let mut upper = letter.to_uppercase();
    let mut text: String = upper.next().into_iter().collect();
    text.extend(upper.flat_map(char::to_lowercase));
    text
}
