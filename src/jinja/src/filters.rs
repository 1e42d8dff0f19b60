//! Jinja's filters. `tojson` is transformers'.

use crate::access;
use crate::arguments::{Args, int, optional_int, optional_text, text as text_of};
use crate::error::{Result, not_built, refuse};
use crate::escape::{escaped, url_quoted};
use crate::json::Layout;
use crate::meter;
use crate::numbers;
use crate::printf;
use crate::sort;
use crate::strings;
use crate::text;
use crate::value::{Dict, Value, ViewKind};
use std::sync::Arc;

mod items;

/// `value | name(args)`.
pub(crate) fn apply(name: &str, value: &Value, args: &Args) -> Result<Value> {
    meter::spend(1)?;
    match name {
        "upper" | "lower" | "capitalize" | "title" | "string" | "trim" | "center" | "indent"
        | "replace" | "truncate" | "wordcount" | "format" => of_text(name, value, args),
        "escape" | "e" | "forceescape" | "safe" | "urlencode" | "xmlattr" => {
            escapes(name, value, args)
        }
        "int" | "float" | "abs" | "round" | "filesizeformat" => numbers::apply(name, value, args),
        "default" | "d" => {
            let [usual, takes_false] = args.bind(name, ["default_value", "boolean"], 0)?;
            let takes_false = takes_false.is_some_and(|it| it.is_true());
            if value.is_undefined() || (takes_false && !value.is_true()) {
                return Ok(usual.unwrap_or_else(|| Value::str("")));
            }
            Ok(value.clone())
        }
        "length" | "count" => {
            args.none(name)?;
            match value.len() {
                Some(length) => Ok(Value::Int(length as i128)),
                None => items::length(value),
            }
        }
        "attr" => {
            let [attribute] = args.bind(name, ["name"], 1)?;
            let attribute = text_of(&attribute.unwrap_or(Value::None), "attribute name")?;
            if access::has_attribute(value, &attribute)? {
                return access::attribute(value, &attribute);
            }
            let kind = value.type_name();
            Ok(Value::undefined(format!(
                "'{kind} object' has no attribute '{attribute}'"
            )))
        }
        "tojson" => to_json(value, args),
        "pprint" => {
            args.none(name)?;
            let text = sorted(value)?.repr()?;
            // Longer ones are laid out over lines.
            if text.chars().count() > 80 {
                return not_built("pprint of what does not fit a line");
            }
            Value::text(text)
        }
        _ => items::apply(name, value, args, apply),
    }
}

/// A value with the dictionaries in it sorted.
fn sorted(value: &Value) -> Result<Value> {
    let all = |items: &[Value]| items.iter().map(sorted).collect::<Result<Vec<_>>>();
    match value {
        Value::List(seq) => Value::list(all(&seq.items)?),
        Value::Tuple(seq) => Value::tuple(all(&seq.items)?),
        Value::Dict(dict) => {
            let keyed = dict.keys().map(|key| (key.clone(), key.clone())).collect();
            let mut copy = Dict::default();
            for key in sort::sorted(keyed, false)? {
                if let Some(value) = dict.get(&key)? {
                    copy.insert(key, sorted(value)?)?;
                }
            }
            Ok(Value::dict(copy))
        }
        other => Ok(other.clone()),
    }
}

/// A filter's result with the type of what it was given.
fn like(value: &Value, text: String) -> Result<Value> {
    meter::spend_bytes(text.len())?;
    Ok(match value {
        Value::Markup(_) => Value::Markup(text.into()),
        _ => Value::str(text),
    })
}

fn of_text(name: &str, value: &Value, args: &Args) -> Result<Value> {
    let is_markup = matches!(value, Value::Markup(_));
    if is_markup && matches!(name, "indent" | "format" | "truncate") {
        return not_built(format!("{name} of escaped text"));
    }
    match name {
        "truncate" => return truncated(value, args),
        "indent" => return indented(value, args),
        "format" => {
            let it = value.to_text()?;
            let given = match (&args.positional[..], &args.named[..]) {
                (_, []) => Value::tuple(args.positional.clone())?,
                ([], named) => {
                    let mut dict = Dict::default();
                    for (name, value) in named {
                        dict.insert(Value::Str(name.clone()), value.clone())?;
                    }
                    Value::dict(dict)
                }
                _ => {
                    return refuse(
                        "can't handle positional and keyword arguments at the same time",
                    );
                }
            };
            return Value::text(printf::format(&it, &given)?);
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let part = |value: Option<Value>| value.unwrap_or(Value::None).to_text();
            let count = optional_int(count.as_ref(), "count")?.unwrap_or(-1);
            let (old, new) = (part(old)?, part(new)?);
            return strings::replaced(&value.to_text()?, &old, &new, count);
        }
        "center" => {
            let [width] = args.bind(name, ["width"], 0)?;
            let width = int(&width.unwrap_or(Value::Int(80)), "width")?;
            let it = value.to_text()?;
            let room = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            let room = room.saturating_sub(it.chars().count());
            meter::spend_bytes(room)?;
            return like(value, strings::centered(&it, name, room, width, " "));
        }
        "trim" => {
            let [letters] = args.bind(name, ["chars"], 0)?;
            let letters = optional_text(letters.as_ref(), "strip arg")?;
            let it = value.to_text()?;
            return like(
                value,
                strings::stripped(&it, "strip", letters.as_deref()).to_string(),
            );
        }
        _ => args.none(name)?,
    }
    let it = value.to_text()?;
    match name {
        "upper" => like(value, it.to_uppercase()),
        "lower" => like(value, it.to_lowercase()),
        "capitalize" => like(value, text::capitalized(&it)),
        "title" => Value::text(titled(&it)),
        "wordcount" => {
            let is_part = |letter: char| letter == '_' || letter.is_alphanumeric();
            let words = it.split(|letter| !is_part(letter));
            let count = words.filter(|word| !word.is_empty()).count();
            Ok(Value::Int(count as i128))
        }
        _ => like(value, it),
    }
}

/// Words in title case: they begin behind spaces, hyphens and opening brackets.
fn titled(it: &str) -> String {
    let is_border = |letter: char| text::is_space(letter) || "-({[<".contains(letter);
    let mut out = String::with_capacity(it.len());
    let mut begins = true;
    for letter in it.chars() {
        if is_border(letter) {
            out.push(letter);
            begins = true;
        } else if begins {
            out.extend(letter.to_uppercase());
            begins = false;
        } else {
            out.extend(letter.to_lowercase());
        }
    }
    out
}

fn truncated(value: &Value, args: &Args) -> Result<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kills, end, leeway] = args.bind("truncate", names, 0)?;
    let number = |value: &Option<Value>| optional_int(value.as_ref(), "length");
    let length = number(&length)?.unwrap_or(255);
    let leeway = number(&leeway)?.unwrap_or(5);
    let end = match end {
        Some(end) => text_of(&end, "end")?,
        None => Arc::from("..."),
    };
    let end_length = end.chars().count() as i128;
    if length < end_length || leeway < 0 {
        return refuse(format!("expected length >= {end_length}, got {length}"));
    }
    match value.len() {
        Some(found) if found as i128 <= length + leeway => return Ok(value.clone()),
        Some(_) => {}
        None => {
            return refuse(format!(
                "object of type '{}' has no len()",
                value.type_name()
            ));
        }
    }
    let it = text_of(value, "the text to truncate")?;
    let kept: String = it.chars().take((length - end_length) as usize).collect();
    let kept = if kills.is_some_and(|kills| kills.is_true()) {
        &kept
    } else {
        kept.rsplit_once(' ')
            .map_or(kept.as_str(), |(before, _)| before)
    };
    Value::text(format!("{kept}{end}"))
}

fn indented(value: &Value, args: &Args) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
    let it = match value.defined()?.as_str() {
        Some(it) => format!("{it}\n"),
        None => return refuse(format!("indent: {} is no str", value.type_name())),
    };
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = match width {
        Some(Value::Str(text)) => text.to_string(),
        other => {
            let width = optional_int(other.as_ref(), "width")?.unwrap_or(4);
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            meter::spend_bytes(width)?;
            " ".repeat(width)
        }
    };
    let lines = text::lines(&it, false);
    meter::spend_bytes(lines.len().saturating_mul(indent.len()))?;
    let takes_blank = is_set(blank);
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if takes_blank || !line.is_empty() {
                out.push_str(&indent);
            }
        }
        out.push_str(line);
    }
    if is_set(first) {
        out.insert_str(0, &indent);
    }
    Value::text(out)
}

fn escapes(name: &str, value: &Value, args: &Args) -> Result<Value> {
    match name {
        "safe" => {
            args.none(name)?;
            Ok(Value::Markup(value.to_text()?.into()))
        }
        "escape" | "e" | "forceescape" => {
            args.none(name)?;
            if matches!(value, Value::Markup(_)) && name != "forceescape" {
                return Ok(value.clone());
            }
            let text = escaped(&value.to_text()?);
            meter::spend_bytes(text.len())?;
            Ok(Value::Markup(text.into()))
        }
        "urlencode" => {
            args.none(name)?;
            let pairs = match value {
                Value::Dict(dict) => Value::View(ViewKind::Items, dict.clone()).items()?,
                Value::List(_)
                | Value::Tuple(_)
                | Value::Iter(_)
                | Value::View(..)
                | Value::Range(_)
                | Value::Undefined(_) => value.items()?,
                other => return Value::text(url_quoted(&other.to_text()?, false)),
            };
            let mut parts = Vec::new();
            for pair in pairs {
                let [key, value]: [Value; 2] = match pair.items()?.try_into() {
                    Ok(pair) => pair,
                    Err(_) => return refuse("urlencode: not a pair"),
                };
                let (key, value) = (key.to_text()?, value.to_text()?);
                parts.push(format!(
                    "{}={}",
                    url_quoted(&key, true),
                    url_quoted(&value, true)
                ));
            }
            Value::text(parts.join("&"))
        }
        _ => {
            let [space] = args.bind(name, ["autospace"], 0)?;
            let Value::Dict(dict) = value.defined()? else {
                return refuse(format!(
                    "'{}' object has no attribute 'items'",
                    value.type_name()
                ));
            };
            let mut parts = Vec::new();
            for (key, value) in dict.entries() {
                if matches!(value, Value::None | Value::Undefined(_)) {
                    continue;
                }
                let key = text_of(key, "attribute name")?;
                let is_bad =
                    |letter: char| letter.is_ascii_whitespace() || "\u{b}/>=".contains(letter);
                if key.contains(is_bad) {
                    return refuse(format!("Invalid character in attribute name: '{key}'"));
                }
                let text = match value {
                    Value::Markup(text) => text.to_string(),
                    other => escaped(&other.to_text()?),
                };
                parts.push(format!("{}=\"{text}\"", escaped(&key)));
            }
            let text = parts.join(" ");
            let leads = space.is_none_or(|space| space.is_true()) && !text.is_empty();
            Value::text(if leads { format!(" {text}") } else { text })
        }
    }
}

/// transformers' `tojson`.
fn to_json(value: &Value, args: &Args) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [is_ascii, indent, separators, is_sorted] = args.bind("tojson", names, 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.to_string()),
        Some(width) => {
            let width = int(&width, "indent")?;
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            meter::spend_bytes(width)?;
            Some(" ".repeat(width))
        }
    };
    let (between_items, behind_keys) = match separators {
        None | Some(Value::None) if indent.is_some() => (",".to_string(), ": ".to_string()),
        None | Some(Value::None) => (", ".to_string(), ": ".to_string()),
        Some(pair) => match &pair.items()?[..] {
            [item, key] => (
                text_of(item, "separator")?.to_string(),
                text_of(key, "separator")?.to_string(),
            ),
            _ => return refuse("separators must be two texts"),
        },
    };
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let layout = Layout {
        indent,
        between_items,
        behind_keys,
        is_sorted: is_set(is_sorted),
        is_ascii: is_set(is_ascii),
    };
    Value::text(layout.dumps(value)?)
}
