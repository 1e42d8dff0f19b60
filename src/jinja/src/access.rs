//! Attributes and items of values, as Jinja's immutable sandbox lets templates have them.

use crate::error::{Result, not_built};
use crate::meter;
use crate::ops;
use crate::value::{Object, Value, ViewKind};

/// An attribute that Python has.
enum Member {
    Value(Value),
    /// A method of this engine's.
    Method(&'static str),
    /// What would change the value.
    Unsafe,
    NotBuilt,
}

const STR: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// Attributes that every object of Python's has, which the sandbox keeps from templates.
const OF_ALL: [&str; 12] = [
    "__class__",
    "__dir__",
    "__doc__",
    "__eq__",
    "__format__",
    "__hash__",
    "__init__",
    "__len__",
    "__ne__",
    "__new__",
    "__repr__",
    "__str__",
];

/// Names of a type's methods, of those that would change it, and of those that are not built.
type Names = (
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

fn names(value: &Value) -> Names {
    match value {
        Value::Str(_) => (&STR, &[], &["encode", "maketrans", "translate"]),
        Value::Markup(_) => (
            &STR,
            &[],
            &[
                "striptags",
                "unescape",
                "escape",
                "encode",
                "maketrans",
                "translate",
            ],
        ),
        Value::List(_) => (
            &["copy", "count", "index"],
            &[
                "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
            ],
            &[],
        ),
        Value::Tuple(_) => (&["count", "index"], &[], &[]),
        Value::Dict(_) => (
            &["copy", "fromkeys", "get", "items", "keys", "values"],
            &["clear", "pop", "popitem", "setdefault", "update"],
            &[],
        ),
        Value::Int(_) | Value::Bool(_) => (
            &["bit_count", "bit_length", "conjugate"],
            &[],
            &["as_integer_ratio", "from_bytes", "to_bytes"],
        ),
        Value::Float(_) => (
            &["conjugate", "is_integer"],
            &[],
            &["as_integer_ratio", "fromhex", "hex"],
        ),
        Value::Range(_) => (&["count", "index"], &[], &[]),
        Value::View(ViewKind::Values, _) => (&[], &[], &["mapping"]),
        Value::View(..) => (&[], &[], &["isdisjoint", "mapping"]),
        Value::Iter(_) => (
            &[],
            &["gi_code", "gi_frame"],
            &[
                "close",
                "gi_running",
                "gi_suspended",
                "gi_yieldfrom",
                "send",
                "throw",
            ],
        ),
        Value::Object(object) => match &**object {
            Object::Function("dict") => (&["fromkeys"], &[], &[]),
            Object::Loop(_) => (&["changed", "cycle"], &[], &[]),
            Object::Cycler { .. } => (&["next", "reset"], &[], &[]),
            Object::Macro(_) => (
                &[],
                &[],
                &["catch_kwargs", "catch_varargs", "explicit_caller"],
            ),
            _ => (&[], &[], &[]),
        },
        Value::Undefined(_) | Value::None | Value::Namespace(_) => (&[], &[], &[]),
    }
}

fn member(value: &Value, name: &str) -> Result<Option<Member>> {
    if let Some(found) = property(value, name)? {
        return Ok(Some(Member::Value(found)));
    }
    let (methods, unsafe_ones, not_built) = names(value);
    Ok(match methods.iter().find(|it| **it == name) {
        Some(method) => Some(Member::Method(method)),
        None if unsafe_ones.contains(&name) => Some(Member::Unsafe),
        None if OF_ALL.contains(&name) => Some(Member::Unsafe),
        None if name.starts_with("__") && name.ends_with("__") => Some(Member::NotBuilt),
        None if not_built.contains(&name) => Some(Member::NotBuilt),
        None => None,
    })
}

/// An attribute that is no method.
fn property(value: &Value, name: &str) -> Result<Option<Value>> {
    Ok(match value {
        Value::Namespace(names) => names.borrow().get(name).cloned(),
        Value::Tuple(seq) if seq.is_group => match name {
            "grouper" => Some(seq.items[0].clone()),
            "list" => Some(seq.items[1].clone()),
            _ => None,
        },
        Value::Range(range) => match name {
            "start" => Some(Value::Int(range.start)),
            "stop" => Some(Value::Int(range.stop)),
            "step" => Some(Value::Int(range.step)),
            _ => None,
        },
        Value::Int(_) | Value::Bool(_) => {
            let number = value.as_int().unwrap_or_default();
            match name {
                "real" | "numerator" => Some(Value::Int(number)),
                "imag" => Some(Value::Int(0)),
                "denominator" => Some(Value::Int(1)),
                _ => None,
            }
        }
        Value::Float(_) => match name {
            "real" => Some(value.clone()),
            "imag" => Some(Value::Float(0.0)),
            _ => None,
        },
        Value::Object(object) => match &**object {
            Object::Loop(state) => state.borrow().attribute(name)?,
            Object::Macro(it) => match name {
                "name" => Some(it.def.name.clone().map_or(Value::None, Value::Str)),
                "arguments" => {
                    let names = it.def.parameters.iter().cloned().map(Value::Str);
                    Some(Value::tuple(names.collect())?)
                }
                "caller" => Some(Value::Bool(it.def.uses_caller)),
                _ => None,
            },
            Object::Cycler { items, at } => match name {
                "current" => Some(items[at.get()].clone()),
                "pos" => Some(Value::Int(at.get() as i128)),
                "items" => Some(Value::tuple(items.clone())?),
                _ => None,
            },
            Object::Joiner { separator, is_used } => match name {
                "sep" => Some(separator.clone()),
                "used" => Some(Value::Bool(is_used.get())),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// What a member is to a template.
fn given(value: &Value, name: &str, member: Member) -> Result<Value> {
    let kind = value.type_name();
    match member {
        Member::Value(value) => Ok(value),
        Member::Method(method) => Ok(Value::Object(std::rc::Rc::new(Object::Method(
            value.clone(),
            method,
        )))),
        Member::Unsafe => Ok(Value::undefined(format!(
            "access to attribute '{name}' of '{kind}' object is unsafe."
        ))),
        Member::NotBuilt => not_built(format!("{name} of a {kind}")),
    }
}

/// `value.name`: an attribute, or else an item.
pub(crate) fn attribute(value: &Value, name: &str) -> Result<Value> {
    if !OF_ALL.contains(&name) {
        value.defined()?;
    }
    if let Some(member) = member(value, name)? {
        return given(value, name, member);
    }
    if let Value::Dict(dict) = value
        && let Some(found) = dict.get_str(name)
    {
        return Ok(found.clone());
    }
    let kind = described(value);
    Ok(Value::undefined(format!(
        "'{kind}' has no attribute '{name}'"
    )))
}

/// Whether `value` has this attribute, items aside.
pub(crate) fn has_attribute(value: &Value, name: &str) -> Result<bool> {
    value.defined()?;
    Ok(member(value, name)?.is_some())
}

fn described(value: &Value) -> String {
    match value {
        Value::None => "None".to_string(),
        Value::Markup(_) => "markupsafe.Markup object".to_string(),
        other => format!("{} object", other.type_name()),
    }
}

/// `value[key]`: an item, or else an attribute.
pub(crate) fn item(value: &Value, key: &Value) -> Result<Value> {
    value.defined()?;
    let place = |length: usize| key.as_int().and_then(|index| ops::place(index, length));
    let found = match value {
        Value::Dict(dict) => match key {
            // These are no keys.
            Value::List(_) | Value::Dict(_) | Value::View(..) => None,
            key => match dict.get(key) {
                Ok(found) => found.cloned(),
                Err(crate::error::Error::Steps) => return Err(crate::error::Error::Steps),
                // A tuple with a list in it is none either.
                Err(_) => None,
            },
        },
        Value::List(seq) | Value::Tuple(seq) => {
            place(seq.items.len()).map(|index| seq.items[index].clone())
        }
        Value::Range(range) => place(range.len() as usize).map(|index| range.at(index as i128)),
        Value::Str(text) | Value::Markup(text) => {
            meter::spend_bytes(text.len())?;
            let letter = place(text.chars().count()).and_then(|index| text.chars().nth(index));
            letter.map(|letter| match value {
                Value::Markup(_) => Value::Markup(letter.to_string().into()),
                _ => Value::str(letter.to_string()),
            })
        }
        _ => None,
    };
    if let Some(found) = found {
        return Ok(found);
    }
    if let Some(name) = key.as_str() {
        if let Some(member) = member(value, name)? {
            return given(value, name, member);
        }
        let kind = described(value);
        return Ok(Value::undefined(format!(
            "'{kind}' has no attribute '{name}'"
        )));
    }
    let (kind, key) = (described(value), key.repr().unwrap_or_default());
    Ok(Value::undefined(format!("{kind} has no element {key}")))
}
