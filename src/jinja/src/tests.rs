//! Jinja's tests.

use crate::arguments::{Args, text as text_of};
use crate::ast::BinaryOp;
use crate::error::{Result, refuse};
use crate::names;
use crate::ops;
use crate::strings;
use crate::value::{Object, Value};
use std::cmp::Ordering;

/// `value is name(args)`.
pub(crate) fn apply(name: &str, value: &Value, args: &Args) -> Result<bool> {
    match name {
        "divisibleby" => {
            let [number] = args.bind(name, ["num"], 1)?;
            is_rest(value, &number.unwrap_or(Value::None), 0)
        }
        "sameas" => {
            let [other] = args.bind(name, ["other"], 1)?;
            value.is_same(&other.unwrap_or(Value::None))
        }
        "in" => {
            let [container] = args.bind(name, ["seq"], 1)?;
            ops::contains(&container.unwrap_or(Value::None), value)
        }
        "==" | "eq" | "equalto" | "!=" | "ne" => {
            let [other] = args.bind(name, [""], 1)?;
            let is_equal = value.equals(&other.unwrap_or(Value::None))?;
            Ok(is_equal != matches!(name, "!=" | "ne"))
        }
        ">" | "gt" | "greaterthan" => ordered(value, args, ">", Ordering::is_gt),
        ">=" | "ge" => ordered(value, args, ">=", Ordering::is_ge),
        "<" | "lt" | "lessthan" => ordered(value, args, "<", Ordering::is_lt),
        "<=" | "le" => ordered(value, args, "<=", Ordering::is_le),
        _ => {
            args.none(name)?;
            plain(name, value)
        }
    }
}

fn ordered(value: &Value, args: &Args, op: &str, is: fn(Ordering) -> bool) -> Result<bool> {
    let [other] = args.bind(op, [""], 1)?;
    Ok(value
        .order(&other.unwrap_or(Value::None), op)?
        .is_some_and(is))
}

fn is_rest(value: &Value, by: &Value, rest: i128) -> Result<bool> {
    ops::binary(BinaryOp::Mod, value, by)?.equals(&Value::Int(rest))
}

/// Tests without arguments.
fn plain(name: &str, value: &Value) -> Result<bool> {
    Ok(match name {
        "odd" => is_rest(value, &Value::Int(2), 1)?,
        "even" => is_rest(value, &Value::Int(2), 0)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" | "test" => match value {
            Value::List(_) | Value::Dict(_) => {
                return refuse(format!("unhashable type: '{}'", value.type_name()));
            }
            _ => value.as_str().is_some_and(|it| match name {
                "filter" => names::is_filter(it),
                _ => names::is_test(it),
            }),
        },
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "lower" => strings::is_kind(&value.to_text()?, "islower")?,
        "upper" => strings::is_kind(&value.to_text()?, "isupper")?,
        "string" => value.as_str().is_some(),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::Markup(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        ),
        "iterable" => match value {
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => false,
            Value::Namespace(_) => false,
            Value::Object(object) => matches!(**object, Object::Loop(_)),
            _ => true,
        },
        "callable" => match value {
            Value::Undefined(_) => true,
            Value::Object(object) => !matches!(**object, Object::Cycler { .. }),
            _ => false,
        },
        _ => matches!(value, Value::Markup(_)),
    })
}

/// A test by its name, for filters that select.
pub(crate) fn passes(name: &Value, value: &Value, args: &Args) -> Result<bool> {
    let name = text_of(name, "test name")?;
    if !names::is_test(&name) {
        return refuse(format!("No test named '{name}'."));
    }
    apply(&name, value, args)
}
