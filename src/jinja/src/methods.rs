//! Methods of values other than `str`, and functions that templates find.

use crate::arguments::{Args, int, optional_int};
use crate::error::{Error, Result, not_built, refuse};
use crate::escape::escaped;
use crate::ops;
use crate::strings;
use crate::time;
use crate::value::{Dict, Object, Range, Value, ViewKind};
use indexmap::IndexMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Items of the longest range.
const LONGEST_RANGE: i128 = 100_000;

/// Names that are there without being given.
pub(crate) const GLOBALS: [&str; 8] = [
    "range",
    "dict",
    "lipsum",
    "cycler",
    "joiner",
    "namespace",
    "raise_exception",
    "strftime_now",
];

/// `value.name(*args)`.
pub(crate) fn call(value: &Value, name: &str, args: &Args) -> Result<Value> {
    match value {
        Value::Str(text) => strings::call(text, name, args),
        Value::Markup(text) => markup_call(text, name, args),
        Value::List(seq) | Value::Tuple(seq) => {
            if name == "copy" {
                args.none(name)?;
                return Value::list(seq.items.clone());
            }
            search(&seq.items, name, args)
        }
        Value::Range(_) => search(&value.items()?, name, args),
        Value::Dict(dict) => dict_call(dict, name, args),
        Value::Object(object) => object_call(object, name, args),
        Value::Float(number) => {
            args.none(name)?;
            match name {
                "is_integer" => Ok(Value::Bool(number.is_finite() && number.fract() == 0.0)),
                _ => Ok(value.clone()),
            }
        }
        other => {
            args.none(name)?;
            let number = other.as_int().unwrap_or_default();
            let magnitude = number.unsigned_abs();
            Ok(Value::Int(match name {
                "bit_length" => i128::from(u128::BITS - magnitude.leading_zeros()),
                "bit_count" => i128::from(magnitude.count_ones()),
                _ => number,
            }))
        }
    }
}

/// A method of escaped text, whose result is escaped text, too.
fn markup_call(text: &str, name: &str, args: &Args) -> Result<Value> {
    let is_plain = |value: &Value| value.as_str().is_none_or(|it| escaped(it) == **it);
    if name.starts_with("format") || name == "join" || !args.positional.iter().all(is_plain) {
        return not_built(format!("{name} of escaped text"));
    }
    let marked = |value: &Value| match value {
        Value::Str(text) => Value::Markup(text.clone()),
        other => other.clone(),
    };
    Ok(match strings::call(text, name, args)? {
        Value::List(seq) => Value::list(seq.items.iter().map(marked).collect())?,
        Value::Tuple(seq) => Value::tuple(seq.items.iter().map(marked).collect())?,
        other => marked(&other),
    })
}

/// `index` and `count`.
fn search(items: &[Value], name: &str, args: &Args) -> Result<Value> {
    if name == "count" {
        let [what] = args.bind(name, [""], 1)?;
        let what = what.unwrap_or(Value::None);
        let mut count = 0;
        for item in items {
            count += i128::from(item.equals(&what)?);
        }
        return Ok(Value::Int(count));
    }
    let [what, start, end] = args.bind(name, ["", "", ""], 1)?;
    let what = what.unwrap_or(Value::None);
    let bound = |value: Option<Value>| value.unwrap_or(Value::None);
    let bounds = [&bound(start), &bound(end), &Value::None];
    let (start, end, _) = ops::slice_indices(bounds, items.len())?;
    for index in start..end {
        if items[index as usize].equals(&what)? {
            return Ok(Value::Int(index));
        }
    }
    refuse(format!(
        "{} is not in list",
        what.repr().unwrap_or_default()
    ))
}

fn dict_call(dict: &Rc<Dict>, name: &str, args: &Args) -> Result<Value> {
    match name {
        "get" => {
            let [key, usual] = args.bind(name, ["", ""], 1)?;
            let found = dict.get(&key.unwrap_or(Value::None))?;
            Ok(found.cloned().or(usual).unwrap_or(Value::None))
        }
        "fromkeys" => from_keys(args),
        _ => {
            args.none(name)?;
            Ok(match name {
                "items" => Value::View(ViewKind::Items, dict.clone()),
                "keys" => Value::View(ViewKind::Keys, dict.clone()),
                "values" => Value::View(ViewKind::Values, dict.clone()),
                _ => Value::dict(dict.copy()),
            })
        }
    }
}

fn from_keys(args: &Args) -> Result<Value> {
    let [keys, value] = args.bind("fromkeys", ["", ""], 1)?;
    let value = value.unwrap_or(Value::None);
    let mut dict = Dict::default();
    for key in keys.unwrap_or(Value::None).items()? {
        dict.insert(key, value.clone())?;
    }
    Ok(Value::dict(dict))
}

fn object_call(object: &Object, name: &str, args: &Args) -> Result<Value> {
    match object {
        Object::Loop(state) if name == "cycle" => {
            let index = state.borrow().index;
            let values = &args.positional;
            if values.is_empty() || !args.named.is_empty() {
                return refuse("no items for cycling given");
            }
            Ok(values[index % values.len()].clone())
        }
        Object::Loop(state) => {
            let value = Value::tuple(args.positional.clone())?;
            let last = state.borrow_mut().last_changed.replace(value.clone());
            let is_same = match last {
                Some(last) => last.equals(&value)?,
                None => false,
            };
            Ok(Value::Bool(!is_same))
        }
        Object::Cycler { items, at } => {
            args.none(name)?;
            let current = items[at.get()].clone();
            if name == "reset" {
                at.set(0);
                return Ok(Value::None);
            }
            at.set((at.get() + 1) % items.len());
            Ok(current)
        }
        // Of `dict`.
        _ => from_keys(args),
    }
}

/// A function that templates find by its name.
pub(crate) fn function(name: &str, args: &Args) -> Result<Value> {
    match name {
        "range" => range(args),
        "dict" => Ok(Value::dict(dict(args)?)),
        "namespace" => {
            let mut names = IndexMap::new();
            for (key, value) in dict(args)?.entries() {
                let Some(key) = key.as_str() else {
                    return not_built("a namespace with names that are no texts");
                };
                names.insert(checked_name(key)?, value.clone());
            }
            Ok(Value::Namespace(Rc::new(RefCell::new(names))))
        }
        "cycler" => {
            let items = args.positional.clone();
            if items.is_empty() || !args.named.is_empty() {
                return refuse("at least one item has to be provided");
            }
            let at = Cell::new(0);
            Ok(Value::Object(Rc::new(Object::Cycler { items, at })))
        }
        "joiner" => {
            let [separator] = args.bind(name, ["sep"], 0)?;
            let separator = separator.unwrap_or_else(|| Value::str(", "));
            let is_used = Cell::new(false);
            Ok(Value::Object(Rc::new(Object::Joiner {
                separator,
                is_used,
            })))
        }
        "raise_exception" => {
            let [message] = args.bind(name, ["message"], 1)?;
            Err(Error::Raised(message.unwrap_or(Value::None).to_text()?))
        }
        "strftime_now" => {
            let [format] = args.bind(name, ["format"], 1)?;
            let format = format.unwrap_or(Value::None);
            let format = crate::arguments::text(&format, "strftime() argument 1")?;
            Value::text(time::now(&format)?)
        }
        other => not_built(other),
    }
}

/// A name that a namespace may have.
pub(crate) fn checked_name(name: &Arc<str>) -> Result<Arc<str>> {
    if name.starts_with('_') {
        return refuse(format!(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{name}'"
        ));
    }
    Ok(name.clone())
}

fn range(args: &Args) -> Result<Value> {
    let [first, second, step] = args.bind("range", ["", "", ""], 1)?;
    let number = |value: &Option<Value>| match value {
        None => Ok(None),
        Some(value) => int(value, "range").map(Some),
    };
    let (first, second) = (number(&first)?.unwrap_or(0), number(&second)?);
    let step = optional_int(step.as_ref(), "range")?.unwrap_or(1);
    let (start, stop) = match second {
        Some(stop) => (first, stop),
        None => (0, first),
    };
    if step == 0 {
        return refuse("range() arg 3 must not be zero");
    }
    let largest = u128::from(i64::MAX.unsigned_abs());
    if [start, stop, step]
        .iter()
        .any(|it| it.unsigned_abs() > largest)
    {
        return refuse("Range too big");
    }
    let range = Range { start, stop, step };
    if range.len() > LONGEST_RANGE {
        return refuse(format!(
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({LONGEST_RANGE})."
        ));
    }
    Ok(Value::Range(Rc::new(range)))
}

/// `dict(*args, **named)`.
fn dict(args: &Args) -> Result<Dict> {
    let mut dict = Dict::default();
    match &args.positional[..] {
        [] => {}
        [Value::Dict(other)] => dict = other.copy(),
        [pairs] => {
            for pair in pairs.items()? {
                let [key, value]: [Value; 2] = match pair.items()?.try_into() {
                    Ok(pair) => pair,
                    Err(_) => {
                        return refuse("dictionary update sequence element must have length 2");
                    }
                };
                dict.insert(key, value)?;
            }
        }
        _ => return refuse("dict expected at most 1 argument"),
    }
    for (name, value) in &args.named {
        dict.insert(Value::Str(name.clone()), value.clone())?;
    }
    Ok(dict)
}
