//! Methods of `str`.

use crate::arguments::{Args, int, optional_int, optional_text, text as text_of};
use crate::error::{Result, not_built, refuse};
use crate::format;
use crate::meter;
use crate::ops;
use crate::text::{self, is_space};
use crate::value::Value;
use std::sync::Arc;

/// `text.name(*args)`.
pub(crate) fn call(it: &str, name: &str, args: &Args) -> Result<Value> {
    meter::spend_bytes(it.len())?;
    match name {
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => split(it, name, args),
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => padded(it, name, args),
        "count" | "find" | "rfind" | "index" | "rindex" | "startswith" | "endswith" => {
            found(it, name, args)
        }
        "strip" | "lstrip" | "rstrip" => {
            let [letters] = args.bind(name, [""], 0)?;
            let letters = optional_text(letters.as_ref(), "strip arg")?;
            Value::text(stripped(it, name, letters.as_deref()).to_string())
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(name, [""], 1)?;
            let affix = text_of(&affix.unwrap_or(Value::None), "removeprefix() argument")?;
            let rest = match name {
                "removeprefix" => it.strip_prefix(&*affix),
                _ => it.strip_suffix(&*affix),
            };
            Value::text(rest.unwrap_or(it).to_string())
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["", "", ""], 2)?;
            let part =
                |value: Option<Value>| text_of(&value.unwrap_or(Value::None), "replace() argument");
            let count = optional_int(count.as_ref(), "count")?.unwrap_or(-1);
            replaced(it, &part(old)?, &part(new)?, count)
        }
        "join" => {
            let [items] = args.bind(name, [""], 1)?;
            let mut parts = Vec::new();
            for item in items.unwrap_or(Value::None).items()? {
                parts.push(text_of(&item, "sequence item")?);
            }
            let bytes: usize = parts.iter().map(|part| part.len() + it.len()).sum();
            meter::spend_bytes(bytes)?;
            Value::text(parts.join(it))
        }
        "format" => Value::text(format::format(it, args)?),
        "format_map" => {
            let [map] = args.bind(name, [""], 1)?;
            let Some(Value::Dict(map)) = map else {
                return not_built("format_map of what is no dict");
            };
            let named = map.entries().filter_map(|(key, value)| {
                let key = key.as_str()?.clone();
                Some((key, value.clone()))
            });
            let named = Args {
                positional: Vec::new(),
                named: named.collect(),
            };
            Value::text(format::format(it, &named)?)
        }
        _ => {
            args.none(name)?;
            plain(it, name)
        }
    }
}

/// Methods without arguments.
fn plain(it: &str, name: &str) -> Result<Value> {
    Ok(match name {
        "upper" => Value::text(it.to_uppercase())?,
        "lower" => Value::text(it.to_lowercase())?,
        "capitalize" => Value::text(text::capitalized(it))?,
        "casefold" => Value::text(it.to_lowercase().replace('ß', "ss").replace('ς', "σ"))?,
        "swapcase" => {
            let swapped = it.chars().map(|letter| {
                if letter.is_uppercase() {
                    letter.to_lowercase().to_string()
                } else {
                    letter.to_uppercase().to_string()
                }
            });
            Value::text(swapped.collect())?
        }
        "title" => {
            let mut out = String::with_capacity(it.len());
            let mut is_inside = false;
            for letter in it.chars() {
                if is_inside {
                    out.extend(letter.to_lowercase());
                } else {
                    out.push_str(&text::title_case(letter));
                }
                is_inside = letter.is_lowercase() || letter.is_uppercase();
            }
            Value::text(out)?
        }
        _ => Value::Bool(is_kind(it, name)?),
    })
}

/// `is...` methods.
pub(crate) fn is_kind(it: &str, name: &str) -> Result<bool> {
    let all = |is: fn(char) -> bool| !it.is_empty() && it.chars().all(is);
    let is_cased = |letter: char| letter.is_lowercase() || letter.is_uppercase();
    Ok(match name {
        "isspace" => all(is_space),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => it.is_ascii(),
        "isdigit" | "isdecimal" | "isnumeric" => {
            if it.is_ascii() || !it.chars().any(char::is_numeric) {
                all(|letter| letter.is_ascii_digit())
            } else {
                return not_built(format!("{name} of digits beyond ASCII"));
            }
        }
        "isidentifier" => {
            let is_first = |letter: char| letter == '_' || letter.is_alphabetic();
            it.starts_with(is_first) && it.chars().all(|it| it == '_' || it.is_alphanumeric())
        }
        "isprintable" => it.chars().all(crate::print::is_printable),
        "islower" => it.chars().any(is_cased) && !it.chars().any(char::is_uppercase),
        "isupper" => it.chars().any(is_cased) && !it.chars().any(char::is_lowercase),
        "istitle" => {
            let (mut is_inside, mut has_words) = (false, false);
            for letter in it.chars() {
                match (letter.is_uppercase(), letter.is_lowercase()) {
                    (true, _) if is_inside => return Ok(false),
                    (false, true) if !is_inside => return Ok(false),
                    (upper, lower) => is_inside = upper || lower,
                }
                has_words |= is_inside;
            }
            has_words
        }
        other => return not_built(format!("{other} of a str")),
    })
}

pub(crate) fn stripped<'a>(it: &'a str, name: &str, letters: Option<&str>) -> &'a str {
    let is_taken = |letter: char| match letters {
        Some(letters) => letters.contains(letter),
        None => is_space(letter),
    };
    match name {
        "lstrip" => it.trim_start_matches(is_taken),
        "rstrip" => it.trim_end_matches(is_taken),
        _ => it.trim_matches(is_taken),
    }
}

pub(crate) fn replaced(it: &str, old: &str, new: &str, count: i128) -> Result<Value> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = if old.is_empty() {
        it.chars().count() + 1
    } else {
        it.matches(old).count()
    };
    meter::spend_bytes(found.min(count).saturating_mul(new.len()))?;
    Value::text(it.replacen(old, new, count))
}

fn split(it: &str, name: &str, args: &Args) -> Result<Value> {
    let list = |parts: Vec<&str>| Value::list(parts.into_iter().map(Value::str).collect());
    match name {
        "splitlines" => {
            let [keeps] = args.bind(name, ["keepends"], 0)?;
            list(text::lines(it, keeps.is_some_and(|keeps| keeps.is_true())))
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(name, [""], 1)?;
            let separator = text_of(&separator.unwrap_or(Value::None), "separator")?;
            if separator.is_empty() {
                return refuse("empty separator");
            }
            let parts = match name {
                "partition" => it.split_once(&*separator),
                _ => it.rsplit_once(&*separator),
            };
            let parts = match (parts, name) {
                (Some((before, after)), _) => [before, &*separator, after],
                (None, "partition") => [it, "", ""],
                (None, _) => ["", "", it],
            };
            Value::tuple(parts.map(Value::str).into())
        }
        _ => {
            let [separator, most] = args.bind(name, ["sep", "maxsplit"], 0)?;
            let separator = optional_text(separator.as_ref(), "separator")?;
            let most = most
                .as_ref()
                .map(|most| int(most, "maxsplit"))
                .transpose()?;
            let most = usize::try_from(most.unwrap_or(-1)).ok();
            let limit = most.unwrap_or(usize::MAX).saturating_add(1);
            list(match (separator.as_deref(), name) {
                (Some(""), _) => return refuse("empty separator"),
                (Some(separator), "split") => it.splitn(limit, separator).collect(),
                (Some(separator), _) => {
                    let mut parts: Vec<&str> = it.rsplitn(limit, separator).collect();
                    parts.reverse();
                    parts
                }
                (None, "split") => text::split_words(it, most),
                (None, _) => text::split_words_from_the_end(it, most),
            })
        }
    }
}

/// What a text lacks of a width.
fn room(it: &str, width: &Value) -> Result<usize> {
    let width = int(width, "width")?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let room = width.saturating_sub(it.chars().count());
    meter::spend_bytes(room)?;
    Ok(room)
}

fn padded(it: &str, name: &str, args: &Args) -> Result<Value> {
    if name == "expandtabs" {
        let [size] = args.bind(name, ["tabsize"], 0)?;
        let size = optional_int(size.as_ref(), "tabsize")?.unwrap_or(8).max(0);
        return expanded(it, size);
    }
    if name == "zfill" {
        let [width] = args.bind(name, [""], 1)?;
        let room = room(it, &width.unwrap_or(Value::None))?;
        let sign = usize::from(it.starts_with(['-', '+']));
        let zeros = "0".repeat(room);
        return Value::text(format!("{}{zeros}{}", &it[..sign], &it[sign..]));
    }
    let [width, fill] = args.bind(name, ["", ""], 1)?;
    let width = width.unwrap_or(Value::None);
    let fill = optional_text(fill.as_ref(), "fill")?.unwrap_or(Arc::from(" "));
    if fill.chars().count() != 1 {
        return refuse("The fill character must be exactly one character long");
    }
    let room = room(it, &width)?;
    Value::text(centered(it, name, room, int(&width, "width")?, &fill))
}

/// A text with `room` fill letters before and behind it.
pub(crate) fn centered(it: &str, name: &str, room: usize, width: i128, fill: &str) -> String {
    let left = match name {
        "ljust" => 0,
        "rjust" => room,
        // CPython's rounding.
        _ => room / 2 + (room & (width & 1) as usize & 1),
    };
    format!("{}{it}{}", fill.repeat(left), fill.repeat(room - left))
}

fn expanded(it: &str, size: i128) -> Result<Value> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let (mut out, mut column) = (String::with_capacity(it.len()), 0);
    for letter in it.chars() {
        match letter {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                meter::spend_bytes(spaces)?;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(letter);
                column = 0;
            }
            other => {
                out.push(other);
                column += 1;
            }
        }
    }
    Value::text(out)
}

/// Methods that look for a text between two places.
fn found(it: &str, name: &str, args: &Args) -> Result<Value> {
    let [what, start, end] = args.bind(name, ["", "", ""], 1)?;
    let what = what.unwrap_or(Value::None);
    let letters = it.chars().count();
    let bound = |value: Option<&Value>| value.cloned().unwrap_or(Value::None);
    let (start, end) = (bound(start.as_ref()), bound(end.as_ref()));
    let is_past_end = start.as_int().is_some_and(|start| start > letters as i128);
    let (start, end, _) = ops::slice_indices([&start, &end, &Value::None], letters)?;
    let is_empty = start > end || is_past_end;
    let byte = |letter: i128| {
        let mut places = it.char_indices().map(|(at, _)| at);
        places.nth(letter as usize).unwrap_or(it.len())
    };
    let part = if is_empty {
        ""
    } else {
        &it[byte(start)..byte(end)]
    };
    if matches!(name, "startswith" | "endswith") {
        let affixes = match &what {
            Value::Tuple(seq) => seq.items.clone(),
            single => vec![single.clone()],
        };
        for affix in affixes {
            let affix = text_of(&affix, &format!("{name} first arg"))?;
            let is_there = match name {
                "startswith" => part.starts_with(&*affix),
                _ => part.ends_with(&*affix),
            };
            if is_there && !is_empty {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let what = text_of(&what, "argument")?;
    if name == "count" {
        let count = if is_empty {
            0
        } else if what.is_empty() {
            part.chars().count() + 1
        } else {
            part.matches(&*what).count()
        };
        return Ok(Value::Int(count as i128));
    }
    let at = match name {
        _ if is_empty => None,
        "find" | "index" => part.find(&*what),
        _ => part.rfind(&*what),
    };
    match at {
        Some(at) => Ok(Value::Int(start + part[..at].chars().count() as i128)),
        None if matches!(name, "find" | "rfind") => Ok(Value::Int(-1)),
        None => refuse("substring not found"),
    }
}
