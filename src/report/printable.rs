//! Text that holds what others wrote (a flag's value, a line of a file, a server's answer), made fit
//! for a terminal and for Markdown.
//!
//! Everything that the crate prints passes through [`visible`] (`output`); [`one_line`] and
//! [`markdown`] are for places where a line break would end a row.

use std::borrow::Cow;
use std::fmt::Write;

/// Characters of one line that are shown: more is no message but a dump.
const LONGEST: usize = 1000;

/// Whether a terminal obeys the character or shows it elsewhere than it stands: control characters,
/// separators of lines, the overrides of writing direction, and what Unicode keeps free for programs'
/// own use, which marks colours here (`terminal`).
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{fdd0}'..='\u{fdef}')
}

/// The text with the characters in the place of which `is_replaced` asks for it written as a program
/// would write them. JSON reads the form too, so that a printed document stays the same one.
fn replaced(text: &str, is_replaced: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if !is_replaced(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            _ => {
                let _ = write!(shown, "\\u{:04x}", u32::from(c));
            }
        }
    }
    Cow::Owned(shown)
}

/// The text with what a terminal would obey escaped, line breaks and tabs aside.
pub fn visible(text: &str) -> Cow<'_, str> {
    replaced(text, |c| is_obeyed(c) && c != '\n' && c != '\t')
}

/// The text on one line: line breaks and tabs are escaped, too.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replaced(text, is_obeyed)
}

/// A message: control characters escaped, line breaks aside, and the middle of very long lines left
/// out.
pub fn printable(text: &str) -> Cow<'_, str> {
    let shown = replaced(text, |c| is_obeyed(c) && c != '\n');
    if shown.len() <= LONGEST {
        return shown;
    }
    let lines = shown.split('\n').map(|line| {
        let characters = line.chars().count();
        if characters <= LONGEST {
            return line.to_string();
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

/// What others wrote as one line of a message, the middle of a very long one left out.
pub fn quotable(text: &str) -> String {
    printable(&one_line(text)).into_owned()
}

/// The text as a cell or a line of Markdown, where it means nothing but itself.
pub fn markdown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '&' => shown.push_str("&amp;"),
            '\\' | '|' | '`' | '*' | '[' | ']' => shown.extend(['\\', c]),
            _ => shown.push(c),
        }
    }
    shown
}

/// An error and its causes in one line, each once: some errors print their cause themselves.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_and_a_dump_is_cut() {
        let message = "error in caf\u{e9}:\nhere";
        assert!(matches!(printable(message), Cow::Borrowed(same) if same == message));
        assert_eq!(printable("a\u{1b}[2Jb\u{7}"), "a\\u001b[2Jb\\u0007");
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

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let plain = "Gr\u{f6}\u{df}e \u{1F468}\u{200d}\u{1F469} \u{5d0}\ta\n";
        assert!(matches!(visible(plain), Cow::Borrowed(same) if same == plain));
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        let shown = visible(&all);
        assert!(!shown.chars().any(|c| is_obeyed(c) && !"\n\t".contains(c)));
        assert_eq!(visible("a\rb\u{9b}31m\u{202e}c"), "a\\rb\\u009b31m\\u202ec");
        assert_eq!(one_line("a\nb\tc"), "a\\nb\\tc");
        // A document of JSON stays what it says.
        let value = serde_json::json!({"\u{9b}a": "\u{1b}\u{7f}\u{2028}\n\u{202e}"});
        let printed = serde_json::to_string_pretty(&value).unwrap();
        let read: serde_json::Value = serde_json::from_str(&visible(&printed)).unwrap();
        assert_eq!(read, value);
        assert_eq!(quotable(&"x\n".repeat(10_000)).lines().count(), 1);
    }

    #[test]
    fn markdown_means_nothing_else() {
        assert_eq!(
            markdown("a|b`c`<script>\n[x](y) *z* \\ & \u{1b}[31m"),
            "a\\|b\\`c\\`&lt;script&gt;\\\\n\\[x\\](y) \\*z\\* \\\\ &amp; \\\\u001b\\[31m"
        );
        assert_eq!(markdown("lr_1e-3 # 2"), "lr_1e-3 # 2");
    }
}
