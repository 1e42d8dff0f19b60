//! A template's source as tokens, by the rules of Jinja's lexer with `trim_blocks` and
//! `lstrip_blocks`.

use crate::error::{Error, Result};
use crate::text::{is_space, trim_end};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

/// Operators, longer ones before those that they begin with.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// Tokens with their lines.
pub(crate) fn tokenize(source: &str) -> Result<Vec<(Token, u32)>> {
    let source = normalized(source);
    let mut lexer = Lexer {
        source: &source,
        at: 0,
        line: 1,
        tokens: Vec::new(),
        is_line_start: true,
    };
    lexer.run()?;
    let line = lexer.line;
    lexer.tokens.push((Token::End, line));
    Ok(lexer.tokens)
}

/// Line breaks as `\n`, without one at the end.
fn normalized(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    tokens: Vec<(Token, u32)>,
    /// Whether what was read last ended a line.
    is_line_start: bool,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        let reason = reason.into();
        let line = self.line;
        Err(Error::At { line, reason })
    }

    /// Goes on behind the next bytes.
    fn advance(&mut self, bytes: usize) {
        let passed = &self.rest()[..bytes];
        self.line += passed.matches('\n').count() as u32;
        self.is_line_start = passed.ends_with('\n');
        self.at += bytes;
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn run(&mut self) -> Result<()> {
        while !self.rest().is_empty() {
            let Some((start, kind)) = next_tag(self.rest()) else {
                let text = self.rest().to_string();
                self.push(Token::Data(text));
                let all = self.rest().len();
                self.advance(all);
                return Ok(());
            };
            let sign = sign(&self.rest()[start + 2..]);
            let data = self.stripped(start, sign, kind == b'{');
            if !data.is_empty() {
                self.push(Token::Data(data));
            }
            let raw = (kind == b'%').then(|| raw_begin(&self.rest()[start..]));
            if let Some(length) = raw.flatten() {
                self.advance(start + length);
                self.raw()?;
                continue;
            }
            self.advance(start + 2 + usize::from(sign.is_some()));
            match kind {
                b'#' => self.comment()?,
                b'%' => self.tag(Token::BlockBegin, Token::BlockEnd)?,
                _ => self.tag(Token::VariableBegin, Token::VariableEnd)?,
            }
        }
        Ok(())
    }

    /// The text before a tag, without what the tag strips.
    fn stripped(&self, start: usize, sign: Option<char>, is_variable: bool) -> String {
        let text = &self.rest()[..start];
        match sign {
            Some('-') => return trim_end(text).to_string(),
            Some(_) => return text.to_string(),
            None => {}
        }
        if !is_variable {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            if (line > 0 || self.is_line_start) && text[line..].chars().all(is_space) {
                return text[..line].to_string();
            }
        }
        text.to_string()
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            // Nothing at all behind it is no mistake to Jinja.
            return match self.rest() {
                "" => Ok(()),
                _ => self.fail("Missing end of comment tag"),
            };
        };
        let sign = self.rest()[..end].chars().next_back();
        self.advance(end + 2);
        self.after_end(sign.filter(|sign| matches!(sign, '-' | '+')), true);
        Ok(())
    }

    /// Passes over what the end of a tag strips behind it.
    fn after_end(&mut self, sign: Option<char>, is_block: bool) {
        let rest = self.rest();
        let passed = match sign {
            Some('-') => rest.len() - rest.trim_start_matches(is_space).len(),
            None if is_block && rest.starts_with('\n') => 1,
            _ => return,
        };
        if passed > 0 {
            self.advance(passed);
        }
    }

    /// The text up to `{% endraw %}`.
    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest[from..].find("{%") {
            let start = from + found;
            let sign = sign(&rest[start + 2..]);
            let inside = &rest[start + 2 + usize::from(sign.is_some())..];
            let word = inside.trim_start_matches(is_space);
            let ends = word
                .strip_prefix("endraw")
                .map(|rest| rest.trim_start_matches(is_space));
            let close = ends.and_then(|rest| {
                let (end_sign, rest) = match rest.strip_prefix(['-', '+']) {
                    Some(after) => (rest.chars().next(), after),
                    None => (None, rest),
                };
                let rest = rest.strip_prefix("%}")?;
                Some((end_sign, rest.len()))
            });
            if let Some((end_sign, left)) = close {
                let data = self.stripped(start, sign, false);
                if !data.is_empty() {
                    self.push(Token::Data(data));
                }
                self.advance(rest.len() - left);
                self.after_end(end_sign, true);
                return Ok(());
            }
            from = start + 2;
        }
        match rest {
            "" => Ok(()),
            _ => self.fail("Missing end of raw directive"),
        }
    }

    /// The tokens of an expression or statement.
    fn tag(&mut self, begin: Token, end: Token) -> Result<()> {
        let is_block = begin == Token::BlockBegin;
        let close = if is_block { "%}" } else { "}}" };
        self.push(begin);
        let mut open: Vec<char> = Vec::new();
        loop {
            let rest = self.rest();
            if open.is_empty() {
                let signed = |sign: &str| rest.strip_prefix(sign)?.starts_with(close).then_some(());
                let sign = match () {
                    () if rest.starts_with(close) => Some(None),
                    () if signed("-").is_some() => Some(Some('-')),
                    () if is_block && signed("+").is_some() => Some(Some('+')),
                    () => None,
                };
                if let Some(sign) = sign {
                    self.push(end);
                    self.advance(2 + usize::from(sign.is_some()));
                    self.after_end(sign, is_block);
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else {
                // The parser says what is missing.
                return Ok(());
            };
            if is_space(first) {
                self.advance(first.len_utf8());
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                self.name()?;
            } else if first == '\'' || first == '"' {
                self.text(first)?;
            } else {
                self.operator(&mut open)?;
            }
        }
    }

    fn name(&mut self) -> Result<()> {
        let rest = self.rest();
        let is_part = |letter: char| letter == '_' || letter.is_alphanumeric();
        let length = rest.len() - rest.trim_start_matches(is_part).len();
        let name = rest[..length].to_string();
        if name.starts_with(|first: char| first.is_numeric()) {
            return self.fail("Invalid character in identifier");
        }
        self.push(Token::Name(name));
        self.advance(length);
        Ok(())
    }

    fn operator(&mut self, open: &mut Vec<char>) -> Result<()> {
        let rest = self.rest();
        let Some(operator) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
            let found = rest.chars().next().unwrap_or(' ');
            return self.fail(format!("unexpected char {found:?}"));
        };
        match *operator {
            "{" => open.push('}'),
            "(" => open.push(')'),
            "[" => open.push(']'),
            "}" | ")" | "]" => match open.pop() {
                None => return self.fail(format!("unexpected '{operator}'")),
                Some(wanted) if !operator.starts_with(wanted) => {
                    return self.fail(format!("unexpected '{operator}', expected '{wanted}'"));
                }
                Some(_) => {}
            },
            _ => {}
        }
        self.push(Token::Op(operator));
        self.advance(operator.len());
        Ok(())
    }

    /// A number. A point before it makes what follows an index.
    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let is_index = self.source[..self.at].ends_with('.');
        if !is_index && let Some(length) = float_length(rest) {
            let text = rest[..length].replace('_', "");
            let Ok(value) = text.parse() else {
                return self.fail(format!("{text} is no number"));
            };
            self.push(Token::Float(value));
            self.advance(length);
            return Ok(());
        }
        let lower = rest.get(..2).unwrap_or_default().to_ascii_lowercase();
        let (radix, prefix) = match lower.as_str() {
            "0b" => (2, 2),
            "0o" => (8, 2),
            "0x" => (16, 2),
            _ => (10, 0),
        };
        let mut length = digits(&rest[prefix..], radix, prefix > 0) + prefix;
        let (mut radix, mut prefix) = (radix, prefix);
        if length == prefix {
            // "0x" without digits is a zero and a name.
            (radix, prefix, length) = (10, 0, 1);
        } else if prefix == 0 && rest.starts_with('0') {
            // Zeros alone: what follows them is another number.
            let zeros = rest.trim_start_matches(['0', '_']);
            length = rest[..rest.len() - zeros.len()].trim_end_matches('_').len();
        }
        let text = rest[prefix..length].replace('_', "");
        let Ok(value) = i128::from_str_radix(&text, radix) else {
            return self.fail(format!("the integer {text} has more than 127 bits"));
        };
        self.push(Token::Int(value));
        self.advance(length);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let mut letters = rest.char_indices().skip(1);
        let mut end = None;
        while let Some((at, letter)) = letters.next() {
            if letter == '\\' {
                letters.next();
            } else if letter == quote {
                end = Some(at);
                break;
            }
        }
        let Some(end) = end else {
            return self.fail(format!("unexpected char {quote:?}"));
        };
        match unescaped(&rest[1..end]) {
            Ok(text) => self.push(Token::Text(text)),
            Err(reason) => return self.fail(reason),
        }
        self.advance(end + 1);
        Ok(())
    }
}

/// Where the next tag begins, and its second letter.
fn next_tag(text: &str) -> Option<(usize, u8)> {
    let bytes = text.as_bytes();
    let pairs = bytes.windows(2);
    let found = pairs
        .enumerate()
        .find(|(_, pair)| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'));
    found.map(|(at, pair)| (at, pair[1]))
}

fn sign(text: &str) -> Option<char> {
    text.chars().next().filter(|sign| matches!(sign, '-' | '+'))
}

/// Bytes of `{% raw %}`, if the text begins with it.
fn raw_begin(text: &str) -> Option<usize> {
    let inside = text.strip_prefix("{%")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside);
    let word = inside.trim_start_matches(is_space).strip_prefix("raw")?;
    let rest = word.trim_start_matches(is_space);
    let left = match rest.strip_prefix("-%}") {
        Some(rest) => rest.trim_start_matches(is_space),
        None => rest.strip_prefix("%}")?,
    };
    Some(text.len() - left.len())
}

/// Bytes of digits with single underscores between them, or before the first if `leads`.
fn digits(text: &str, radix: u32, leads: bool) -> usize {
    let (mut length, mut is_separated) = (0, !leads);
    for (at, letter) in text.char_indices() {
        if letter.is_digit(radix) {
            (length, is_separated) = (at + 1, false);
        } else if letter == '_' && !is_separated {
            is_separated = true;
        } else {
            break;
        }
    }
    length
}

/// Bytes of a number with a fraction or an exponent.
fn float_length(text: &str) -> Option<usize> {
    let whole = digits(text, 10, false);
    let mut length = whole;
    if let Some(rest) = text[length..].strip_prefix('.') {
        let fraction = digits(rest, 10, false);
        if fraction > 0 {
            length += 1 + fraction;
        }
    }
    if let Some(rest) = text[length..].strip_prefix(['e', 'E']) {
        let signed = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        let exponent = digits(signed, 10, false);
        if exponent > 0 {
            length += 1 + rest.len() - signed.len() + exponent;
        }
    }
    (length > whole).then_some(length)
}

/// A literal without its quotes: Jinja writes what is not ASCII as escapes of its own first, which
/// a backslash before it then takes apart.
fn unescaped(literal: &str) -> Result<String, String> {
    let mut ascii = String::with_capacity(literal.len());
    for letter in literal.chars() {
        match u32::from(letter) {
            0..=0x7f => ascii.push(letter),
            code @ 0x80..=0xff => ascii.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..=0xffff => ascii.push_str(&format!("\\u{code:04x}")),
            code => ascii.push_str(&format!("\\U{code:08x}")),
        }
    }
    let mut text = String::with_capacity(literal.len());
    let mut rest = ascii.as_str();
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let Some(kind) = escape.chars().next() else {
            return Err("\\ at end of string".to_string());
        };
        let mut used = 1;
        match kind {
            '\n' => {}
            '\\' | '\'' | '"' => text.push(kind),
            'a' => text.push('\u{7}'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'v' => text.push('\u{b}'),
            '0'..='7' => {
                let octal = escape
                    .bytes()
                    .take(3)
                    .take_while(|byte| (b'0'..=b'7').contains(byte));
                used = octal.count();
                let code = u32::from_str_radix(&escape[..used], 8).unwrap_or(0);
                text.extend(char::from_u32(code));
            }
            'x' | 'u' | 'U' => {
                let digits = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let hex = escape.get(1..=digits);
                let hex = hex.filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let hex = hex.ok_or_else(|| format!("truncated \\{kind} escape"))?;
                let code = u32::from_str_radix(hex, 16).map_err(|error| error.to_string())?;
                let letter = char::from_u32(code);
                text.push(letter.ok_or_else(|| format!("\\{kind}{hex} is no character"))?);
                used += digits;
            }
            'N' => return Err("\\N escapes are not implemented".to_string()),
            other => {
                text.push('\\');
                text.push(other);
            }
        }
        rest = &escape[used..];
    }
    text.push_str(rest);
    Ok(text)
}
