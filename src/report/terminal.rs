//! What a terminal can show: its width, and colours where they are wanted (`--color`, NO_COLOR).

use super::printable::visible;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU8, Ordering};

/// When output has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colors {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

/// What a word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Tone {
    /// An error, a failed check.
    Bad,
    /// A warning or a note.
    Warning,
    /// What to do about it.
    Hint,
    Good,
    Heading,
}

static COLORS: AtomicU8 = AtomicU8::new(Colors::Auto as u8);

/// For the rest of the process.
pub fn set_colors(colors: Colors) {
    COLORS.store(colors as u8, Ordering::Relaxed);
}

/// Takes `--color` from a command line that is not parsed yet, so that its errors and its help have
/// the colours that it asks for. The words after `--` are another program's.
pub fn take_colors(words: impl Iterator<Item = String>) {
    let mut words = words.take_while(|word| word != "--");
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.next(),
            Some(rest) => rest.strip_prefix('=').map(str::to_string),
            None => None,
        };
        match value.as_deref() {
            Some("always") => set_colors(Colors::Always),
            Some("never") => set_colors(Colors::Never),
            _ => {}
        }
    }
}

/// Whether what goes to `stream` has colours.
pub fn has_colors(stream: &impl IsTerminal) -> bool {
    let colors = COLORS.load(Ordering::Relaxed);
    if colors != Colors::Auto as u8 {
        return colors == Colors::Always as u8;
    }
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// What begins each tone on a terminal, in the order of [`Tone`].
const CODES: [&str; 5] = ["\x1b[1;31m", "\x1b[33m", "\x1b[36m", "\x1b[32m", "\x1b[1m"];
const PLAIN: &str = "\x1b[0m";
/// Of the characters that Unicode keeps free for programs' own use, those that stand for the tones
/// until a text is printed, and the one that ends a tone. An escape sequence in a text is another's.
const MARKS: u32 = 0xfdd0;
const END: char = '\u{fddf}';

fn mark(tone: usize) -> char {
    char::from_u32(MARKS + tone as u32).expect("it is a character")
}

/// The text in its tone's colour, if what goes to `stream` has colours. It has them once it passes
/// through [`shown`], as everything does that is printed.
pub fn paint(stream: &impl IsTerminal, tone: Tone, text: &str) -> String {
    if !has_colors(stream) {
        return text.to_string();
    }
    format!("{}{text}{END}", mark(tone as usize))
}

/// The text as a terminal gets it: painted if it has `colors`, and nothing else in it that a terminal
/// would obey.
pub fn shown(text: &str, colors: bool) -> String {
    if !colors {
        return visible(text).into_owned();
    }
    let tone = |c: char| (0..CODES.len()).find(|tone| mark(*tone) == c);
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut is_painted = false;
        let mut rest = line.trim_end_matches('\n');
        while let Some(at) = rest.find(|c| c == END || tone(c).is_some()) {
            shown.push_str(&visible(&rest[..at]));
            let mark = rest[at..].chars().next().unwrap_or(END);
            shown.push_str(tone(mark).map_or(PLAIN, |tone| CODES[tone]));
            is_painted = mark != END;
            rest = &rest[at + mark.len_utf8()..];
        }
        shown.push_str(&visible(rest));
        // Marks in others' text reach no further than their line.
        if is_painted {
            shown.push_str(PLAIN);
        }
        if line.ends_with('\n') {
            shown.push('\n');
        }
    }
    shown
}

/// The text of another process of ours as a terminal gets it: of what it would obey, our colours stay
/// where `colors` are wanted.
pub fn forwarded(text: &str, colors: bool) -> String {
    let marks = CODES.iter().enumerate().fold(
        text.replace(PLAIN, &END.to_string()),
        |text, (tone, code)| text.replace(code, &mark(tone).to_string()),
    );
    shown(if colors { &marks } else { text }, colors)
}

/// Columns of the terminal that standard output is, or else standard error; `None` if neither is
/// one.
pub fn width() -> Option<usize> {
    let size = |stream: i32| {
        let mut size = libc::winsize {
            ws_row: 0,
            ws_col: 0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the request fills a `winsize`, which `size` is.
        let failed = unsafe { libc::ioctl(stream, libc::TIOCGWINSZ, &mut size) } != 0;
        (!failed && size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    size(libc::STDOUT_FILENO).or_else(|| size(libc::STDERR_FILENO))
}

/// The text for standard error, beginning at column `indent`: where a terminal would break a word,
/// a new line begins, at the same column.
pub fn folded(text: &str, indent: usize) -> String {
    match width().filter(|_| std::io::stderr().is_terminal()) {
        Some(width) => fold(text, indent, width),
        None => text.to_string(),
    }
}

fn fold(text: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent);
    let mut folded = String::with_capacity(text.len());
    let mut used = 0;
    for (place, word) in text.split(' ').enumerate() {
        let (first, last) = (word.split('\n').next(), word.rsplit('\n').next());
        let length = |line: Option<&str>| line.map_or(0, |line| line.chars().count());
        if place > 0 && used + 1 + length(first) > room {
            folded.push_str(&format!("\n{:indent$}", ""));
            used = 0;
        } else if place > 0 {
            folded.push(' ');
            used += 1;
        }
        folded.push_str(word);
        used = length(last) + if word.contains('\n') { 0 } else { used };
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(fold("one two three", 6, 80), "one two three");
        assert_eq!(fold("one two three", 6, 13), "one two\n      three");
        assert_eq!(fold("a unbreakable b", 2, 8), "a\n  unbreakable\n  b");
        assert_eq!(fold("one\ntwo three", 0, 9), "one\ntwo three");
    }

    #[test]
    fn only_our_colors_reach_a_terminal() {
        let painted = format!("a {}b{END}\n", mark(Tone::Good as usize));
        assert_eq!(shown(&painted, true), "a \x1b[32mb\x1b[0m\n");
        let foreign = "\x1b[31mred\x1b]0;title\x07\r";
        for colors in [false, true] {
            assert_eq!(
                shown(foreign, colors),
                "\\u001b[31mred\\u001b]0;title\\u0007\\r"
            );
        }
        // A mark in others' text.
        let foreign = format!("{}all\nthe rest", mark(0));
        assert_eq!(shown(&foreign, true), "\x1b[1;31mall\x1b[0m\nthe rest");
        assert_eq!(shown(&foreign, false), "\\ufdd0all\nthe rest");
        assert_eq!(
            forwarded("\x1b[36mhint:\x1b[0m \x1b[2J", true),
            "\x1b[36mhint:\x1b[0m \\u001b[2J"
        );
        assert!(!forwarded("\x1b[36mhint:\x1b[0m", false).contains('\x1b'));
    }

    /// One test, since the choice is the process's.
    #[test]
    fn colors_are_where_they_are_wanted() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(paint(&file, Tone::Bad, "x"), "x");
        let words = |text: &'static str| text.split(' ').map(str::to_string);
        take_colors(words("xtrain launch -- train --color always"));
        assert!(!has_colors(&file));
        take_colors(words("xtrain doctor --color always"));
        assert_eq!(
            shown(&paint(&file, Tone::Bad, "x"), has_colors(&file)),
            "\x1b[1;31mx\x1b[0m"
        );
        take_colors(words("xtrain doctor --color=never"));
        assert!(!has_colors(&file));
        set_colors(Colors::Auto);
    }
}
