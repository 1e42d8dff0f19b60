//! Operators.

use crate::ast::BinaryOp;
use crate::error::{Result, refuse};
use crate::escape::escaped;
use crate::meter;
use crate::printf;
use crate::value::{Number, Range, Value, ViewKind};
use std::rc::Rc;

/// `a op b`.
pub(crate) fn binary(op: BinaryOp, a: &Value, b: &Value) -> Result<Value> {
    if let Some(numbers) = Number::pair(a, b) {
        return match numbers {
            Number::Ints(a, b) => ints(op, a, b),
            Number::Floats(a, b) => floats(op, a, b),
        };
    }
    a.defined()?;
    if op == BinaryOp::Mod
        && let Some(text) = a.as_str()
    {
        if matches!(a, Value::Markup(_)) {
            return crate::error::not_built("% of escaped text");
        }
        return Value::text(printf::format(text, b)?);
    }
    b.defined()?;
    match (op, a, b) {
        (BinaryOp::Add, Value::Str(x), Value::Str(y)) => Value::text(format!("{x}{y}")),
        (BinaryOp::Add, Value::Markup(_) | Value::Str(_), Value::Markup(_) | Value::Str(_)) => {
            let part = |value: &Value| match value {
                Value::Markup(text) => text.to_string(),
                other => escaped(other.as_str().map_or("", |text| text)),
            };
            let text = part(a) + &part(b);
            meter::spend_bytes(text.len())?;
            Ok(Value::Markup(text.into()))
        }
        (BinaryOp::Add, Value::List(x), Value::List(y)) => {
            Value::list([&x.items[..], &y.items[..]].concat())
        }
        (BinaryOp::Add, Value::Tuple(x), Value::Tuple(y)) => {
            Value::tuple([&x.items[..], &y.items[..]].concat())
        }
        (BinaryOp::Mul, value, count) if count.as_int().is_some() => {
            repeated(value, count.as_int().unwrap_or(0), a, b)
        }
        (BinaryOp::Mul, count, value) if count.as_int().is_some() => {
            repeated(value, count.as_int().unwrap_or(0), a, b)
        }
        _ => unsupported(op, a, b),
    }
}

fn unsupported<T>(op: BinaryOp, a: &Value, b: &Value) -> Result<T> {
    let symbol = match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Mod => "%",
        BinaryOp::Pow => "** or pow()",
    };
    let (a, b) = (a.type_name(), b.type_name());
    refuse(format!(
        "unsupported operand type(s) for {symbol}: '{a}' and '{b}'"
    ))
}

fn copies(items: &[Value], count: usize) -> Vec<Value> {
    std::iter::repeat_n(items, count)
        .flatten()
        .cloned()
        .collect()
}

/// A text or list several times.
fn repeated(value: &Value, count: i128, a: &Value, b: &Value) -> Result<Value> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let check = |length: usize| meter::spend_items(length.saturating_mul(count));
    match value {
        Value::Str(text) | Value::Markup(text) => {
            meter::spend_bytes(text.len().saturating_mul(count))?;
            let text = text.repeat(if text.is_empty() { 0 } else { count });
            Ok(match value {
                Value::Markup(_) => Value::Markup(text.into()),
                _ => Value::str(text),
            })
        }
        Value::List(seq) => {
            check(seq.items.len())?;
            let count = if seq.items.is_empty() { 0 } else { count };
            Value::list(copies(&seq.items, count))
        }
        Value::Tuple(seq) => {
            check(seq.items.len())?;
            let count = if seq.items.is_empty() { 0 } else { count };
            Value::tuple(copies(&seq.items, count))
        }
        _ => unsupported(BinaryOp::Mul, a, b),
    }
}

fn ints(op: BinaryOp, a: i128, b: i128) -> Result<Value> {
    let found = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div if b == 0 => return refuse("division by zero"),
        BinaryOp::Div => {
            if a.unsigned_abs().max(b.unsigned_abs()) > 1 << 53 {
                return refuse("/ of integers of more than 53 bits is not implemented");
            }
            return Ok(Value::Float(a as f64 / b as f64));
        }
        BinaryOp::FloorDiv | BinaryOp::Mod if b == 0 => {
            return refuse("integer division or modulo by zero");
        }
        BinaryOp::FloorDiv => {
            let down = a % b != 0 && (a < 0) != (b < 0);
            a.checked_div(b).map(|quotient| quotient - i128::from(down))
        }
        BinaryOp::Mod => a.checked_rem(b).map(|rest| {
            let is_other_sign = rest != 0 && (rest < 0) != (b < 0);
            if is_other_sign { rest + b } else { rest }
        }),
        BinaryOp::Pow if b < 0 => return floats(op, a as f64, b as f64),
        BinaryOp::Pow => match (a, u32::try_from(b)) {
            (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
            (_, Ok(exponent)) => a.checked_pow(exponent),
            _ => None,
        },
    };
    match found {
        Some(value) => Ok(Value::Int(value)),
        None => refuse("integers of more than 127 bits are not implemented"),
    }
}

fn floats(op: BinaryOp, a: f64, b: f64) -> Result<Value> {
    Ok(Value::Float(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div if b == 0.0 => return refuse("float division by zero"),
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv | BinaryOp::Mod if b == 0.0 => {
            return refuse("float floor division or modulo by zero");
        }
        BinaryOp::FloorDiv => divided(a, b).0,
        BinaryOp::Mod => divided(a, b).1,
        BinaryOp::Pow if a == 0.0 && b < 0.0 => {
            return refuse("0.0 cannot be raised to a negative power");
        }
        BinaryOp::Pow if a < 0.0 && b.is_finite() && b.fract() != 0.0 => {
            return refuse("complex numbers are not implemented");
        }
        BinaryOp::Pow => {
            let power = a.powf(b);
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return refuse("Numerical result out of range");
            }
            power
        }
    }))
}

/// Python's `divmod`.
fn divided(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 {
        if (b < 0.0) != (rest < 0.0) {
            rest += b;
            quotient -= 1.0;
        }
    } else {
        rest = 0.0_f64.copysign(b);
    }
    let floor = if quotient != 0.0 {
        let floor = quotient.floor();
        if quotient - floor > 0.5 {
            floor + 1.0
        } else {
            floor
        }
    } else {
        0.0_f64.copysign(a / b)
    };
    (floor, rest)
}

/// `-value` and `+value`.
pub(crate) fn signed(is_minus: bool, value: &Value) -> Result<Value> {
    value.defined()?;
    Ok(match value {
        Value::Float(value) if is_minus => Value::Float(-value),
        Value::Float(value) => Value::Float(*value),
        other => match other.as_int() {
            Some(value) if is_minus => match value.checked_neg() {
                Some(value) => Value::Int(value),
                None => return refuse("integers of more than 127 bits are not implemented"),
            },
            Some(value) => Value::Int(value),
            None => {
                let sign = if is_minus { '-' } else { '+' };
                let kind = other.type_name();
                return refuse(format!("bad operand type for unary {sign}: '{kind}'"));
            }
        },
    })
}

/// `item in container`.
pub(crate) fn contains(container: &Value, item: &Value) -> Result<bool> {
    let any = |items: &[Value]| -> Result<bool> {
        for other in items {
            if item.equals(other)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    match container {
        Value::Str(text) | Value::Markup(text) => match item.as_str() {
            Some(part) => {
                meter::spend_bytes(text.len())?;
                Ok(text.contains(&**part))
            }
            None => refuse(format!(
                "'in <string>' requires string as left operand, not {}",
                item.type_name()
            )),
        },
        Value::List(seq) | Value::Tuple(seq) => any(&seq.items),
        Value::Dict(dict) | Value::View(ViewKind::Keys, dict) => Ok(dict.get(item)?.is_some()),
        Value::Undefined(_) => Ok(false),
        Value::View(..) | Value::Range(_) => any(&container.items()?),
        Value::Iter(items) => {
            // What was passed over is gone.
            while let Some(other) = { items.borrow_mut().next()? } {
                if item.equals(&other)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => refuse(format!(
            "argument of type '{}' is not iterable",
            other.type_name()
        )),
    }
}

/// Where in a sequence an index is; negative ones count from its end.
pub(crate) fn place(index: i128, length: usize) -> Option<usize> {
    let index = if index < 0 {
        index + length as i128
    } else {
        index
    };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// The indices that a slice takes.
pub(crate) fn slice_indices(
    [start, stop, step]: [&Value; 3],
    length: usize,
) -> Result<(i128, i128, i128)> {
    let number = |value: &Value| match value {
        Value::None => Ok(None),
        other => match other.as_int() {
            Some(value) => Ok(Some(value)),
            None => refuse("slice indices must be integers or None or have an __index__ method"),
        },
    };
    let step = number(step)?.unwrap_or(1);
    if step == 0 {
        return refuse("slice step cannot be zero");
    }
    let length = length as i128;
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |value: Option<i128>, usual: i128| match value {
        None => usual,
        Some(value) if value < 0 => (value + length).max(low),
        Some(value) => value.min(high),
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let start = bound(number(start)?, first);
    let stop = bound(number(stop)?, last);
    Ok((start, stop, step))
}

/// `value[start:stop:step]`.
pub(crate) fn slice(value: &Value, parts: [&Value; 3]) -> Result<Value> {
    let picked = |length: usize| -> Result<Vec<usize>> {
        let (start, stop, step) = slice_indices(parts, length)?;
        let count = Range { start, stop, step }.len();
        meter::spend_items(count as usize)?;
        Ok((0..count).map(|at| (start + at * step) as usize).collect())
    };
    Ok(match value.defined()? {
        Value::Str(text) | Value::Markup(text) => {
            let letters: Vec<char> = text.chars().collect();
            meter::spend_bytes(text.len())?;
            let indices = picked(letters.len())?.into_iter();
            let part: String = indices.map(|index| letters[index]).collect();
            match value {
                Value::Markup(_) => Value::Markup(part.into()),
                _ => Value::text(part)?,
            }
        }
        Value::List(seq) => {
            let indices = picked(seq.items.len())?.into_iter();
            Value::list(indices.map(|index| seq.items[index].clone()).collect())?
        }
        Value::Tuple(seq) => {
            let indices = picked(seq.items.len())?.into_iter();
            Value::tuple(indices.map(|index| seq.items[index].clone()).collect())?
        }
        Value::Range(range) => {
            let (start, stop, step) = slice_indices(parts, range.len() as usize)?;
            Value::Range(Rc::new(Range {
                start: range.start + start * range.step,
                stop: range.start + stop * range.step,
                step: step * range.step,
            }))
        }
        other => {
            let kind = other.type_name();
            return refuse(format!("'{kind}' object is not subscriptable by slices"));
        }
    })
}
