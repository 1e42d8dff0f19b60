//! Filters of lists and other things with items.

use crate::access;
use crate::arguments::{Args, int, text as text_of};
use crate::ast::BinaryOp;
use crate::error::{Result, not_built, refuse};
use crate::meter;
use crate::names;
use crate::ops;
use crate::sort::sorted;
use crate::tests;
use crate::value::{Object, Value, ViewKind};
use indexmap::IndexSet;
use std::cmp::Ordering;

/// `len()` of what is no container.
pub(super) fn length(value: &Value) -> Result<Value> {
    if let Value::Object(object) = value
        && let Object::Loop(state) = &**object
    {
        return Ok(Value::Int(state.borrow().items.len() as i128));
    }
    refuse(format!(
        "object of type '{}' has no len()",
        value.type_name()
    ))
}

/// A filter by its name, which `map` calls.
type Filter = fn(&str, &Value, &Args) -> Result<Value>;

pub(super) fn apply(name: &str, value: &Value, args: &Args, filter: Filter) -> Result<Value> {
    match name {
        "map" => map(value, args, filter),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, value, args),
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, case, attribute] = args.bind(name, names, 0)?;
            let getter = Getter::of_many(attribute, case.as_ref())?;
            let mut keyed = Vec::new();
            for item in value.items()? {
                keyed.push((getter.all(&item)?, item));
            }
            Value::list(sorted(keyed, is_set(reverse))?)
        }
        "dictsort" => dict_sort(value, args),
        "unique" => {
            let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
            let getter = Getter::of_one(attribute, case.as_ref(), None)?;
            let (mut seen, mut kept) = (IndexSet::new(), Vec::new());
            for item in value.items()? {
                if seen.insert(getter.one(&item)?.key()?) {
                    kept.push(item);
                }
            }
            Value::iter_of(kept)
        }
        "min" | "max" => extreme(name, value, args),
        "sum" => {
            let [attribute, start] = args.bind(name, ["attribute", "start"], 0)?;
            let getter = Getter::of_one(attribute, Some(&Value::Bool(true)), None)?;
            let mut sum = start.unwrap_or(Value::Int(0));
            if sum.as_str().is_some() {
                return refuse("sum() can't sum strings [use ''.join(seq) instead]");
            }
            for item in value.items()? {
                sum = ops::binary(BinaryOp::Add, &sum, &getter.one(&item)?)?;
            }
            Ok(sum)
        }
        "groupby" => group(value, args),
        "join" => {
            let [separator, attribute] = args.bind(name, ["d", "attribute"], 0)?;
            let getter = Getter::of_one(attribute, Some(&Value::Bool(true)), None)?;
            let separator = separator.map_or(Ok(String::new()), |it| it.to_text())?;
            let mut parts = Vec::new();
            for item in value.items()? {
                meter::spend_bytes(separator.len())?;
                parts.push(getter.one(&item)?.to_text()?);
            }
            Value::text(parts.join(&separator))
        }
        "batch" => batch(value, args),
        "slice" => slices(value, args),
        _ => plain(name, value, args),
    }
}

fn is_set(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// Filters without arguments.
fn plain(name: &str, value: &Value, args: &Args) -> Result<Value> {
    if !matches!(name, "list" | "first" | "last" | "items" | "reverse") {
        return not_built(format!("the filter {name}"));
    }
    args.none(name)?;
    let empty = |which: &str| Value::undefined(format!("No {which} item, sequence was empty."));
    match name {
        "list" => Value::list(value.items()?),
        "first" => {
            let first = match value {
                Value::Iter(items) => items.borrow_mut().next()?,
                other => other.items()?.into_iter().next(),
            };
            Ok(first.unwrap_or_else(|| empty("first")))
        }
        "last" => match value {
            Value::Iter(_) => refuse(format!("'{}' object is not reversible", value.type_name())),
            other => Ok(other.items()?.pop().unwrap_or_else(|| empty("last"))),
        },
        "items" => match value {
            Value::Undefined(_) => Value::iter_of(Vec::new()),
            Value::Dict(dict) => {
                let pairs = Value::View(ViewKind::Items, dict.clone());
                Value::iter_of(pairs.items()?)
            }
            _ => refuse("Can only get item pairs from a mapping."),
        },
        _ => match value {
            Value::Str(text) => Value::text(text.chars().rev().collect()),
            Value::Markup(text) => {
                let text: String = text.chars().rev().collect();
                Ok(Value::Markup(text.into()))
            }
            Value::Iter(_) => {
                let mut items = value.items()?;
                items.reverse();
                Value::list(items)
            }
            other => {
                let mut items = other.items()?;
                items.reverse();
                Value::iter_of(items)
            }
        },
    }
}

/// What looks attributes up, by paths with points; each part is an item, or else an attribute.
struct Getter {
    paths: Vec<Vec<Value>>,
    is_case_sensitive: bool,
    usual: Option<Value>,
}

impl Getter {
    fn path(attribute: Option<&Value>) -> Result<Vec<Value>> {
        Ok(match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Str(path) | Value::Markup(path)) => {
                let part = |part: &str| match part.parse::<i128>() {
                    Ok(index) if part.bytes().all(|it| it.is_ascii_digit()) => Value::Int(index),
                    _ => Value::str(part),
                };
                path.split('.').map(part).collect()
            }
            Some(other) => vec![other.clone()],
        })
    }

    fn of_one(
        attribute: Option<Value>,
        case: Option<&Value>,
        usual: Option<Value>,
    ) -> Result<Getter> {
        Ok(Getter {
            paths: vec![Getter::path(attribute.as_ref())?],
            is_case_sensitive: case.is_some_and(Value::is_true),
            usual: usual.filter(|usual| !matches!(usual, Value::None)),
        })
    }

    /// By several attributes with commas between them.
    fn of_many(attribute: Option<Value>, case: Option<&Value>) -> Result<Getter> {
        let paths = match &attribute {
            Some(Value::Str(text)) => {
                let parts = text
                    .split(',')
                    .map(|part| Getter::path(Some(&Value::str(part))));
                parts.collect::<Result<_>>()?
            }
            other => vec![Getter::path(other.as_ref())?],
        };
        Ok(Getter {
            paths,
            is_case_sensitive: case.is_some_and(Value::is_true),
            usual: None,
        })
    }

    fn get(&self, path: &[Value], item: &Value) -> Result<Value> {
        let mut value = item.clone();
        for part in path {
            value = access::item(&value, part)?;
            if let (Value::Undefined(_), Some(usual)) = (&value, &self.usual) {
                value = usual.clone();
            }
        }
        Ok(value)
    }

    fn cased(&self, value: Value) -> Value {
        match &value {
            Value::Str(text) | Value::Markup(text) if !self.is_case_sensitive => {
                Value::str(text.to_lowercase())
            }
            _ => value,
        }
    }

    fn one(&self, item: &Value) -> Result<Value> {
        Ok(self.cased(self.get(&self.paths[0], item)?))
    }

    fn all(&self, item: &Value) -> Result<Value> {
        let values = self
            .paths
            .iter()
            .map(|path| Ok(self.cased(self.get(path, item)?)));
        Value::list(values.collect::<Result<_>>()?)
    }
}

fn map(value: &Value, args: &Args, filter: Filter) -> Result<Value> {
    if !value.is_true() {
        return Value::iter_of(Vec::new());
    }
    let by_attribute =
        args.positional.is_empty() && args.named.iter().any(|(name, _)| &**name == "attribute");
    if by_attribute {
        let [attribute, usual] = args.bind("map", ["attribute", "default"], 0)?;
        let getter = Getter::of_one(attribute, Some(&Value::Bool(true)), usual)?;
        return lazily(value, |item| getter.one(&item).map(Some));
    }
    let Some((name, rest)) = args.positional.split_first() else {
        return refuse("map requires a filter argument");
    };
    let name = text_of(name, "filter name")?;
    if !names::is_filter(&name) {
        return refuse(format!("No filter named '{name}'."));
    }
    let args = Args {
        positional: rest.to_vec(),
        named: args.named.clone(),
    };
    lazily(value, |item| filter(&name, &item, &args).map(Some))
}

/// A generator of what `make` gives for each item, whose error is met where it is asked for that item.
fn lazily(value: &Value, mut make: impl FnMut(Value) -> Result<Option<Value>>) -> Result<Value> {
    let mut made = Vec::new();
    let mut failure = None;
    match value.items() {
        Ok(items) => {
            for item in items {
                match make(item) {
                    Ok(item) => made.extend(item),
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
        }
        Err(error) => failure = Some(error),
    }
    Value::failing_iter(made, failure)
}

fn select(name: &str, value: &Value, args: &Args) -> Result<Value> {
    if !value.is_true() {
        return Value::iter_of(Vec::new());
    }
    let mut rest = &args.positional[..];
    let mut getter = None;
    if name.ends_with("attr") {
        let Some((attribute, after)) = rest.split_first() else {
            return refuse("Missing parameter for attribute name");
        };
        getter = Some(Getter::of_one(
            Some(attribute.clone()),
            Some(&Value::Bool(true)),
            None,
        )?);
        rest = after;
    }
    let (test, rest) = match rest.split_first() {
        Some((test, rest)) => (Some(test), rest),
        None => (None, rest),
    };
    let args = Args {
        positional: rest.to_vec(),
        named: args.named.clone(),
    };
    let wants = name.starts_with("select");
    lazily(value, |item| {
        let tested = match &getter {
            Some(getter) => getter.one(&item)?,
            None => item.clone(),
        };
        let passes = match test {
            Some(test) => tests::passes(test, &tested, &args)?,
            None => tested.is_true(),
        };
        Ok((passes == wants).then_some(item))
    })
}

fn dict_sort(value: &Value, args: &Args) -> Result<Value> {
    let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let place = match by.as_ref().and_then(Value::as_str).map(|by| &**by) {
        None if by.is_none() => 0,
        Some("key") => 0,
        Some("value") => 1,
        _ => return refuse("You can only sort by either \"key\" or \"value\""),
    };
    let Value::Dict(dict) = value.defined()? else {
        return refuse(format!(
            "'{}' object has no attribute 'items'",
            value.type_name()
        ));
    };
    let getter = Getter::of_one(Some(Value::Int(place)), case.as_ref(), None)?;
    let mut keyed = Vec::new();
    for pair in Value::View(ViewKind::Items, dict.clone()).items()? {
        keyed.push((getter.one(&pair)?, pair));
    }
    Value::list(sorted(keyed, is_set(reverse))?)
}

fn extreme(name: &str, value: &Value, args: &Args) -> Result<Value> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
    let getter = Getter::of_one(attribute, case.as_ref(), None)?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.items()? {
        let key = getter.one(&item)?;
        let is_better = match (&best, name) {
            (None, _) => true,
            (Some((found, _)), "min") => key.order(found, "<")? == Some(Ordering::Less),
            (Some((found, _)), _) => key.order(found, ">")? == Some(Ordering::Greater),
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(match best {
        Some((_, item)) => item,
        None => Value::undefined("No aggregated item, sequence was empty."),
    })
}

fn group(value: &Value, args: &Args) -> Result<Value> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, usual, case] = args.bind("groupby", names, 1)?;
    let getter = Getter::of_one(attribute.clone(), case.as_ref(), usual.clone())?;
    let exact = Getter::of_one(attribute, Some(&Value::Bool(true)), usual)?;
    let mut keyed = Vec::new();
    for item in value.items()? {
        keyed.push((getter.one(&item)?, item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in sorted(keyed, false)? {
        let key = getter.one(&item)?;
        match groups.last_mut() {
            Some((found, items)) if found.equals(&key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut tuples = Vec::new();
    for (_, items) in groups {
        let key = exact.one(&items[0])?;
        tuples.push(Value::group(vec![key, Value::list(items)?])?);
    }
    Value::list(tuples)
}

fn batch(value: &Value, args: &Args) -> Result<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"], 1)?;
    let count = int(&count.unwrap_or(Value::None), "linecount")?;
    let (mut batches, mut batch) = (Vec::new(), Vec::new());
    for item in value.items()? {
        if batch.len() as i128 == count {
            batches.push(Value::list(std::mem::take(&mut batch))?);
        }
        batch.push(item);
    }
    if !batch.is_empty() {
        if let Some(fill) = fill.filter(|fill| !matches!(fill, Value::None)) {
            let room = usize::try_from(count)
                .unwrap_or(0)
                .saturating_sub(batch.len());
            meter::spend_items(room)?;
            batch.resize(batch.len() + room, fill);
        }
        batches.push(Value::list(batch)?);
    }
    Value::iter_of(batches)
}

fn slices(value: &Value, args: &Args) -> Result<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"], 1)?;
    let count = int(&count.unwrap_or(Value::None), "slices")?;
    let items = value.items()?;
    let Ok(count) = usize::try_from(count) else {
        return Value::iter_of(Vec::new());
    };
    if count == 0 {
        return refuse("integer division or modulo by zero");
    }
    meter::spend_items(count)?;
    let (length, longer) = (items.len() / count, items.len() % count);
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let (mut slices, mut at) = (Vec::new(), 0);
    for number in 0..count {
        let end = at + length + usize::from(number < longer);
        let mut slice = items[at..end].to_vec();
        if number >= longer {
            slice.extend(fill.clone());
        }
        slices.push(Value::list(slice)?);
        at = end;
    }
    Value::iter_of(slices)
}
