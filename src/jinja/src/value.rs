//! Values as Python has them, of the types that a template can make or is given.

use crate::ast::{For, MacroDef, Name};
use crate::error::{Error, Result, refuse};
use crate::meter;
use indexmap::IndexMap;
use serde_json::{Map, Value as Json};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// Lists and dictionaries in one another. Python's own functions recurse no deeper.
const DEEPEST: u16 = 900;

#[derive(Clone)]
pub(crate) enum Value {
    /// Nothing, with what an error says of it.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    /// Text that is escaped already: what `escape` and `safe` give.
    Markup(Arc<str>),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    Range(Rc<Range>),
    /// Keys, values or items of a dictionary.
    View(ViewKind, Rc<Dict>),
    /// What gives each of its items once: a generator.
    Iter(Rc<RefCell<Iter>>),
    Namespace(Rc<RefCell<IndexMap<Arc<str>, Value>>>),
    Object(Rc<Object>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ViewKind {
    Keys,
    Values,
    Items,
}

/// A list or tuple.
pub(crate) struct Seq {
    pub items: Vec<Value>,
    depth: u16,
    /// Of `groupby`, whose tuples name their parts.
    pub is_group: bool,
}

/// A dictionary in the order of its insertions.
#[derive(Default)]
pub(crate) struct Dict {
    map: IndexMap<Key, (Value, Value)>,
    depth: u16,
}

/// The items of a generator that are left, and the error that comes behind them.
#[derive(Default)]
pub(crate) struct Iter {
    items: VecDeque<Value>,
    failure: Option<Error>,
}

impl Iter {
    /// The next item.
    pub fn next(&mut self) -> Result<Option<Value>> {
        match (self.items.pop_front(), self.failure.take()) {
            (Some(item), failure) => {
                self.failure = failure;
                Ok(Some(item))
            }
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(None),
        }
    }
}

pub(crate) struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
}

/// What is called, and other objects of Jinja's.
pub(crate) enum Object {
    Function(&'static str),
    /// A method of a value, by a name of the table of its type.
    Method(Value, &'static str),
    Macro(MacroValue),
    Loop(RefCell<LoopState>),
    Cycler {
        items: Vec<Value>,
        at: Cell<usize>,
    },
    Joiner {
        separator: Value,
        is_used: Cell<bool>,
    },
}

/// What decides where a value stands in a dictionary: 1, 1.0 and True are one key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    None,
    Undefined,
    Int(i128),
    Float(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
    /// By its address.
    Object(usize),
}

impl Seq {
    fn of(items: Vec<Value>, is_group: bool) -> Result<Rc<Seq>> {
        meter::spend_items(items.len())?;
        let depth = deeper(items.iter().map(Value::depth).max())?;
        Ok(Rc::new(Seq {
            items,
            depth,
            is_group,
        }))
    }
}

fn deeper(inside: Option<u16>) -> Result<u16> {
    match inside.unwrap_or(0) {
        DEEPEST.. => refuse("lists and dictionaries nest too deeply"),
        inside => Ok(inside + 1),
    }
}

impl Dict {
    /// Adds an entry, or replaces its value.
    pub fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        meter::spend(1)?;
        let inside = key.depth().max(value.depth());
        self.depth = self.depth.max(deeper(Some(inside))?);
        match self.map.entry(key.key()?) {
            indexmap::map::Entry::Occupied(mut found) => found.get_mut().1 = value,
            indexmap::map::Entry::Vacant(place) => {
                place.insert((key, value));
            }
        }
        Ok(())
    }

    pub fn get(&self, key: &Value) -> Result<Option<&Value>> {
        Ok(self.map.get(&key.key()?).map(|(_, value)| value))
    }

    pub fn get_str(&self, key: &str) -> Option<&Value> {
        let key = Key::Str(key.into());
        self.map.get(&key).map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &(Value, Value)> {
        self.map.values()
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.entries().map(|(key, _)| key)
    }

    pub fn copy(&self) -> Dict {
        Dict {
            map: self.map.clone(),
            depth: self.depth,
        }
    }
}

impl Range {
    pub fn len(&self) -> i128 {
        let (low, high, step) = if self.step > 0 {
            (self.start, self.stop, self.step)
        } else {
            (self.stop, self.start, -self.step)
        };
        if high > low {
            (high - low - 1) / step + 1
        } else {
            0
        }
    }

    pub fn at(&self, index: i128) -> Value {
        Value::Int(self.start + index * self.step)
    }
}

impl Value {
    pub fn str(text: impl Into<Arc<str>>) -> Value {
        Value::Str(text.into())
    }

    /// A new text, which costs its length.
    pub fn text(text: String) -> Result<Value> {
        meter::spend_bytes(text.len())?;
        Ok(Value::Str(text.into()))
    }

    pub fn list(items: Vec<Value>) -> Result<Value> {
        Seq::of(items, false).map(Value::List)
    }

    pub fn tuple(items: Vec<Value>) -> Result<Value> {
        Seq::of(items, false).map(Value::Tuple)
    }

    pub fn group(items: Vec<Value>) -> Result<Value> {
        Seq::of(items, true).map(Value::Tuple)
    }

    pub fn dict(entries: Dict) -> Value {
        Value::Dict(Rc::new(entries))
    }

    pub fn iter_of(items: Vec<Value>) -> Result<Value> {
        Value::failing_iter(items, None)
    }

    /// A generator that fails behind its items. Nobody may ask for more than these.
    pub fn failing_iter(items: Vec<Value>, failure: Option<Error>) -> Result<Value> {
        if failure == Some(Error::Steps) {
            return Err(Error::Steps);
        }
        meter::spend_items(items.len())?;
        let items = items.into();
        Ok(Value::Iter(Rc::new(RefCell::new(Iter { items, failure }))))
    }

    pub fn function(name: &'static str) -> Value {
        Value::Object(Rc::new(Object::Function(name)))
    }

    pub fn undefined(reason: impl Into<Rc<str>>) -> Value {
        Value::Undefined(reason.into())
    }

    /// A value of JSON, as `json.loads` gives it.
    pub fn of_json(json: &Json) -> Result<Value> {
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(value), _, _) => Value::Int(value.into()),
                (_, Some(value), _) => Value::Int(value.into()),
                (_, _, Some(value)) => Value::Float(value),
                _ => return refuse(format!("the number {number} is too large")),
            },
            Json::String(text) => Value::str(text.as_str()),
            Json::Array(items) => {
                let items: Result<Vec<Value>> = items.iter().map(Value::of_json).collect();
                Value::list(items?)?
            }
            Json::Object(map) => Value::of_map(map)?,
        })
    }

    pub fn of_map(map: &Map<String, Json>) -> Result<Value> {
        let mut dict = Dict::default();
        for (key, value) in map {
            dict.insert(Value::str(key.as_str()), Value::of_json(value)?)?;
        }
        Ok(Value::dict(dict))
    }

    fn depth(&self) -> u16 {
        match self {
            Value::List(seq) | Value::Tuple(seq) => seq.depth,
            Value::Dict(dict) | Value::View(_, dict) => dict.depth,
            Value::Object(object) => match &**object {
                Object::Method(value, _) => value.depth(),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Markup(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::View(ViewKind::Keys, _) => "dict_keys",
            Value::View(ViewKind::Values, _) => "dict_values",
            Value::View(ViewKind::Items, _) => "dict_items",
            Value::Iter(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Object(object) => match &**object {
                Object::Function(_) => "function",
                Object::Method(..) => "builtin_function_or_method",
                Object::Macro(_) => "Macro",
                Object::Loop(_) => "LoopContext",
                Object::Cycler { .. } => "Cycler",
                Object::Joiner { .. } => "Joiner",
            },
        }
    }

    /// The text of a `str`.
    pub fn as_str(&self) -> Option<&Arc<str>> {
        match self {
            Value::Str(text) | Value::Markup(text) => Some(text),
            _ => None,
        }
    }

    /// The number of an `int`, of which `bool` is one.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    /// Whether it counts as true.
    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) | Value::Markup(text) => !text.is_empty(),
            Value::List(seq) | Value::Tuple(seq) => !seq.items.is_empty(),
            Value::Dict(dict) | Value::View(_, dict) => dict.len() > 0,
            Value::Range(range) => range.len() > 0,
            Value::Iter(_) | Value::Namespace(_) | Value::Object(_) => true,
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Refuses nothing where something is needed, in Jinja's words.
    pub fn defined(&self) -> Result<&Value> {
        match self {
            Value::Undefined(reason) => refuse(&**reason),
            other => Ok(other),
        }
    }

    /// `len()`; `None`: it has none.
    pub fn len(&self) -> Option<usize> {
        Some(match self {
            Value::Undefined(_) => 0,
            Value::Str(text) | Value::Markup(text) => text.chars().count(),
            Value::List(seq) | Value::Tuple(seq) => seq.items.len(),
            Value::Dict(dict) | Value::View(_, dict) => dict.len(),
            Value::Range(range) => range.len() as usize,
            _ => return None,
        })
    }

    /// All of its items; a generator has none left afterwards.
    pub fn items(&self) -> Result<Vec<Value>> {
        let items: Vec<Value> = match self {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) | Value::Markup(text) => {
                let mut buffer = [0; 4];
                let letters = text.chars();
                letters
                    .map(|it| Value::str(&*it.encode_utf8(&mut buffer)))
                    .collect()
            }
            Value::List(seq) | Value::Tuple(seq) => seq.items.clone(),
            Value::Dict(dict) | Value::View(ViewKind::Keys, dict) => dict.keys().cloned().collect(),
            Value::View(ViewKind::Values, dict) => {
                dict.entries().map(|(_, value)| value.clone()).collect()
            }
            Value::View(ViewKind::Items, dict) => {
                let pair =
                    |(key, value): &(Value, Value)| Value::tuple(vec![key.clone(), value.clone()]);
                dict.entries().map(pair).collect::<Result<_>>()?
            }
            Value::Range(range) => (0..range.len()).map(|index| range.at(index)).collect(),
            Value::Iter(left) => {
                let Iter { items, failure } = left.take();
                if let Some(failure) = failure {
                    return Err(failure);
                }
                items.into()
            }
            other => return refuse(format!("'{}' object is not iterable", other.type_name())),
        };
        meter::spend_items(items.len())?;
        Ok(items)
    }

    /// Where it stands in a dictionary.
    pub fn key(&self) -> Result<Key> {
        meter::spend(1)?;
        Ok(match self {
            Value::Undefined(_) => Key::Undefined,
            Value::None => Key::None,
            Value::Bool(_) | Value::Int(_) => Key::Int(self.as_int().unwrap_or_default()),
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e38 => {
                Key::Int(*value as i128)
            }
            Value::Float(value) => Key::Float(value.to_bits()),
            Value::Str(text) | Value::Markup(text) => Key::Str(text.clone()),
            Value::Tuple(seq) => {
                Key::Tuple(seq.items.iter().map(Value::key).collect::<Result<_>>()?)
            }
            Value::List(_) | Value::Dict(_) | Value::View(..) => {
                return refuse(format!("unhashable type: '{}'", self.type_name()));
            }
            Value::Range(_) => return refuse("a range as a key is not implemented"),
            Value::Iter(items) => Key::Object(Rc::as_ptr(items).addr()),
            Value::Namespace(names) => Key::Object(Rc::as_ptr(names).addr()),
            Value::Object(object) => Key::Object(Rc::as_ptr(object).addr()),
        })
    }

    /// `==`.
    pub fn equals(&self, other: &Value) -> Result<bool> {
        meter::spend(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a) | Value::Markup(a), Value::Str(b) | Value::Markup(b)) => {
                meter::spend_bytes(a.len().min(b.len()))?;
                a == b
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (key, value) in a.entries() {
                    match b.get(key)? {
                        Some(other) if value.equals(other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Range(a), Value::Range(b)) => {
                let length = a.len();
                length == b.len()
                    && (length == 0 || a.start == b.start)
                    && (length < 2 || a.step == b.step)
            }
            (Value::View(..), Value::View(..)) => {
                return refuse("comparing the views of dictionaries is not implemented");
            }
            (Value::Iter(a), Value::Iter(b)) => Rc::ptr_eq(a, b),
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Object(a), Value::Object(b)) => match (&**a, &**b) {
                (Object::Method(a, name), Object::Method(b, other)) => {
                    name == other && a.is_same(b)?
                }
                (Object::Function(a), Object::Function(b)) => a == b,
                _ => Rc::ptr_eq(a, b),
            },
            (a, b) => match Number::pair(a, b) {
                Some(pair) => pair.order() == Some(std::cmp::Ordering::Equal),
                None => false,
            },
        })
    }

    /// `is`: whether both are one object.
    pub fn is_same(&self, other: &Value) -> Result<bool> {
        Ok(match (self, other) {
            (Value::None, Value::None) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                Rc::ptr_eq(a, b)
            }
            (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
            (Value::Iter(a), Value::Iter(b)) => Rc::ptr_eq(a, b),
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Object(a), Value::Object(b)) => Rc::ptr_eq(a, b),
            (a, b) => {
                let is_one_type = a.type_name() == b.type_name();
                if is_one_type && a.equals(b)? {
                    // Which of them Python keeps once is its own affair.
                    return refuse("sameas of equal texts or numbers is not implemented");
                }
                false
            }
        })
    }

    /// `<` and its like.
    pub fn order(&self, other: &Value, op: &str) -> Result<Option<std::cmp::Ordering>> {
        self.defined()?;
        other.defined()?;
        meter::spend(1)?;
        Ok(match (self, other) {
            (Value::Str(a) | Value::Markup(a), Value::Str(b) | Value::Markup(b)) => Some(a.cmp(b)),
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b)? {
                        return a.order(b, op);
                    }
                }
                Some(a.items.len().cmp(&b.items.len()))
            }
            (a, b) => match Number::pair(a, b) {
                Some(pair) => pair.order(),
                None => {
                    return refuse(format!(
                        "'{op}' not supported between instances of '{}' and '{}'",
                        a.type_name(),
                        b.type_name()
                    ));
                }
            },
        })
    }
}

/// Two numbers as their common type has them.
pub(crate) enum Number {
    Ints(i128, i128),
    Floats(f64, f64),
}

impl Number {
    pub fn pair(a: &Value, b: &Value) -> Option<Number> {
        let float = |value: &Value| match value {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        };
        match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => Some(Number::Ints(a, b)),
            _ => Some(Number::Floats(float(a)?, float(b)?)),
        }
    }

    fn order(&self) -> Option<std::cmp::Ordering> {
        match self {
            Number::Ints(a, b) => Some(a.cmp(b)),
            Number::Floats(a, b) => a.partial_cmp(b),
        }
    }
}

/// Names and their values, and the scope around them.
pub(crate) struct Scope {
    names: RefCell<HashMap<Name, Value>>,
    pub outer: Option<Rc<Scope>>,
}

impl Scope {
    pub fn new(outer: Option<&Rc<Scope>>) -> Rc<Scope> {
        Rc::new(Scope {
            names: RefCell::default(),
            outer: outer.cloned(),
        })
    }

    pub fn set(&self, name: Name, value: Value) {
        self.names.borrow_mut().insert(name, value);
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(found) = scope {
            if let Some(value) = found.names.borrow().get(name) {
                return Some(value.clone());
            }
            scope = found.outer.as_deref();
        }
        None
    }
}

/// A macro and the scope that it was made in.
pub(crate) struct MacroValue {
    pub def: Arc<MacroDef>,
    pub scope: Rc<Scope>,
}

/// What `loop` is.
pub(crate) struct LoopState {
    pub items: Vec<Value>,
    pub index: usize,
    pub depth: usize,
    pub last_changed: Option<Value>,
    /// Of a loop that calls itself.
    pub recursion: Option<(Arc<For>, Rc<Scope>)>,
}

impl LoopState {
    pub fn attribute(&self, name: &str) -> Result<Option<Value>> {
        let (index, length) = (self.index, self.items.len());
        let int = |value: usize| Value::Int(value as i128);
        Ok(Some(match name {
            "index" => int(index + 1),
            "index0" => int(index),
            "revindex" => int(length - index),
            "revindex0" => int(length - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => int(length),
            "depth" => int(self.depth + 1),
            "depth0" => int(self.depth),
            "previtem" => match index.checked_sub(1) {
                Some(previous) => self.items[previous].clone(),
                None => Value::undefined("there is no previous item"),
            },
            "nextitem" => match self.items.get(index + 1) {
                Some(next) => next.clone(),
                None => Value::undefined("there is no next item"),
            },
            _ => return Ok(None),
        }))
    }
}
