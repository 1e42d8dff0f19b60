//! What chat templates use of Python that minijinja's own `pycompat` lacks: further methods of texts,
//! lists and dictionaries, `json.dumps`, and tests of values where they differ.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value as Jinja};
use minijinja_contrib::pycompat;
use serde_json::Value;

/// The widest `indent` of `tojson`. A template is another's: it cannot ask for gigabytes of spaces.
const WIDEST_INDENT: usize = 1000;

type Result<T> = std::result::Result<T, Error>;

/// Gives an environment these methods, the filter and the tests.
pub(super) fn extend(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", to_json);
    // Python iterates over undefined values, but not over None.
    environment.add_test("iterable", |value: &Jinja| {
        !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
    });
    environment.add_test("sequence", |value: &Jinja| {
        let kinds = [
            ValueKind::String,
            ValueKind::Seq,
            ValueKind::Map,
            ValueKind::Undefined,
        ];
        kinds.contains(&value.kind())
    });
}

/// A method of a value that minijinja does not know.
fn method(state: &mut State, value: &Jinja, name: &str, args: &[Jinja]) -> Result<Jinja> {
    match (value.kind(), name) {
        (ValueKind::String, "split") => {
            let (separator, most) = split_arguments(args)?;
            let most = most.map_or(-1, |most| most as i64);
            let args = [Jinja::from(separator), Jinja::from(most)];
            pycompat::unknown_method_callback(state, value, name, &args)
        }
        (ValueKind::String, _) => {
            let text = value.as_str().unwrap_or_default();
            match text_method(text, name, args)? {
                Some(result) => Ok(result),
                None => pycompat::unknown_method_callback(state, value, name, args),
            }
        }
        (ValueKind::Seq | ValueKind::Map, "copy") => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        (ValueKind::Seq, "index") => {
            let (what,): (&Jinja,) = from_args(args)?;
            let place = value.try_iter()?.position(|item| item == *what);
            let missing = || Error::new(ErrorKind::InvalidOperation, "the list has no such value");
            Ok(Jinja::from(place.ok_or_else(missing)?))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// The separator and the number of splits of `split` and `rsplit`, by place or by name.
fn split_arguments(args: &[Jinja]) -> Result<(Option<String>, Option<usize>)> {
    let (separator, most, named): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(named.get("sep")?);
    let most = most.or(named.get("maxsplit")?);
    named.assert_all_used()?;
    if separator.as_deref() == Some("") {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok((separator, most.and_then(|most| usize::try_from(most).ok())))
}

/// A method of Python's `str`; `None` if it is not one of these.
fn text_method(text: &str, name: &str, args: &[Jinja]) -> Result<Option<Jinja>> {
    let not_found = || Error::new(ErrorKind::InvalidOperation, "substring not found");
    Ok(Some(match name {
        "rsplit" => {
            let (separator, most) = split_arguments(args)?;
            let most = most.unwrap_or(usize::MAX);
            let mut parts: Vec<&str> = match &separator {
                Some(separator) => text
                    .rsplitn(most.saturating_add(1), separator.as_str())
                    .collect(),
                None => split_words_from_the_end(text, most),
            };
            parts.reverse();
            list(&parts)
        }
        "removeprefix" => {
            let (affix,): (&str,) = from_args(args)?;
            Jinja::from(text.strip_prefix(affix).unwrap_or(text))
        }
        "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            Jinja::from(text.strip_suffix(affix).unwrap_or(text))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            match text.split_once(separator) {
                Some((before, after)) => list(&[before, separator, after]),
                None => list(&[text, "", ""]),
            }
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            match text.rsplit_once(separator) {
                Some((before, after)) => list(&[before, separator, after]),
                None => list(&["", "", text]),
            }
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let is_last = name == "rindex";
            let byte = if is_last {
                text.rfind(what)
            } else {
                text.find(what)
            };
            let byte = byte.ok_or_else(not_found)?;
            Jinja::from(text[..byte].chars().count())
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let sign = usize::from(text.starts_with(['-', '+']));
            let zeros = "0".repeat(room(text, width)?);
            Jinja::from(format!("{}{zeros}{}", &text[..sign], &text[sign..]))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let (room, fill) = (room(text, width)?, fill.unwrap_or(' '));
            let left = match name {
                "ljust" => 0,
                "rjust" => room,
                // CPython's rounding.
                _ => room / 2 + (room & width & 1),
            };
            let of = |count: usize| fill.to_string().repeat(count);
            Jinja::from(format!("{}{text}{}", of(left), of(room - left)))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swapped = text.chars().map(|letter| {
                if letter.is_uppercase() {
                    letter.to_lowercase().to_string()
                } else {
                    letter.to_uppercase().to_string()
                }
            });
            Jinja::from(swapped.collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Jinja::from(text.to_lowercase().replace('ß', "ss"))
        }
        _ => return Ok(None),
    }))
}

/// A list of texts.
fn list(texts: &[&str]) -> Jinja {
    texts.iter().copied().map(Jinja::from).collect()
}

/// What a text lacks of a width. A template is another's: it cannot ask for gigabytes.
fn room(text: &str, width: usize) -> Result<usize> {
    match width {
        ..=1_000_000 => Ok(width.saturating_sub(text.chars().count())),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "width is too large",
        )),
    }
}

/// `text.rsplit(None, most)`, the last part first.
fn split_words_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let space = rest.rfind(char::is_whitespace);
        let Some(byte) = space.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        let width = rest[byte..].chars().next().map_or(1, char::len_utf8);
        parts.push(&rest[byte + width..]);
        rest = rest[..byte].trim_end();
    }
    parts
}

/// transformers' `tojson`: `json.dumps` with its options.
fn to_json(state: &State, value: Jinja, options: Kwargs) -> Result<String> {
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let indent: Option<usize> = options.get("indent")?;
    if indent.is_some_and(|indent| indent > WIDEST_INDENT) {
        let reason = format!("indent is more than {WIDEST_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    let separators: Option<(String, String)> = match options.get("separators")? {
        None => None,
        Some::<Vec<String>>(pair) => match <[String; 2]>::try_from(pair) {
            Ok([item, key]) => Some((item, key)),
            Err(_) => {
                let reason = "separators must be two texts";
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        },
    };
    let between = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (between.to_string(), ": ".to_string()));
    let layout = Layout {
        indent,
        item,
        key,
        is_sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        is_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
    };
    options.assert_all_used()?;
    let value = serde_json::to_value(&value).map_err(failed)?;
    let json = layout.of(&value, 0);
    // Each of its letters costs more than one that is copied.
    state.consume_fuel(json.len() as u64 / 8)?;
    Ok(json)
}

/// How Python's `json.dumps` lays values out.
struct Layout {
    indent: Option<usize>,
    /// Between items.
    item: String,
    /// Between a key and its value.
    key: String,
    is_sorted: bool,
    /// Whether letters beyond ASCII are escaped.
    is_ascii: bool,
}

impl Layout {
    /// A value at a depth.
    fn of(&self, value: &Value, depth: usize) -> String {
        let (open, items, close) = match value {
            Value::Array(list) if !list.is_empty() => {
                let items = list.iter().map(|item| self.of(item, depth + 1));
                ("[", items.collect::<Vec<_>>(), "]")
            }
            Value::Object(map) if !map.is_empty() => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.is_sorted {
                    entries.sort_by_key(|(key, _)| *key);
                }
                let item = |(key, value): (&String, &Value)| {
                    let key = self.of(&Value::from(key.as_str()), depth);
                    format!("{key}{}{}", self.key, self.of(value, depth + 1))
                };
                ("{", entries.into_iter().map(item).collect(), "}")
            }
            Value::String(_) if self.is_ascii => return escaped(&value.to_string()),
            other => return other.to_string(),
        };
        match self.indent {
            None => format!("{open}{}{close}", items.join(&self.item)),
            Some(indent) => {
                let line = |depth: usize| format!("\n{}", " ".repeat(indent * depth));
                let between = format!("{}{}", self.item, line(depth + 1));
                format!(
                    "{open}{}{}{}{close}",
                    line(depth + 1),
                    items.join(&between),
                    line(depth)
                )
            }
        }
    }
}

/// JSON in ASCII: other letters as UTF-16.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_ascii() {
            text.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}
