//! Text that holds what others wrote (a flag's value, a line of a file), made fit for a terminal.

use std::borrow::Cow;

/// Characters of one line that are shown: more is no message but a dump.
const LONGEST: usize = 1000;

/// The text with control characters escaped, line breaks aside, and the middle of very long lines
/// left out.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n';
    if text.len() <= LONGEST && !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let lines = text.split('\n').map(|line| {
        let line: String = line.chars().flat_map(escaped).collect();
        let characters = line.chars().count();
        if characters <= LONGEST {
            return line;
        }
        let half = LONGEST / 2;
        let at = |character| line.char_indices().nth(character).map_or(0, |(at, _)| at);
        format!(
            "{} [{} more characters] {}",
            &line[..at(half)],
            characters - 2 * half,
            &line[at(characters - half)..]
        )
    });
    Cow::Owned(lines.collect::<Vec<_>>().join("\n"))
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    let (plain, code) = if c.is_control() {
        (None, Some(c.escape_default()))
    } else {
        (Some(c), None)
    };
    plain.into_iter().chain(code.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_and_a_dump_is_cut() {
        let message = "error in caf\u{e9}:\nhere";
        assert!(matches!(printable(message), Cow::Borrowed(same) if same == message));
        assert_eq!(printable("a\u{1b}[2Jb\u{7}"), "a\\u{1b}[2Jb\\u{7}");
        let long = format!("found {}, then\nnext", "\u{1F600}".repeat(5000));
        let cut = printable(&long);
        assert!(cut.chars().count() < 1100, "{}", cut.len());
        assert!(
            cut.starts_with("found ") && cut.ends_with(", then\nnext"),
            "{cut}"
        );
        assert!(cut.contains(" [4012 more characters] "), "{cut}");
        let long = format!("it has {}", "\0".repeat(800));
        assert!(printable(&long).chars().count() < 1100);
    }
}
