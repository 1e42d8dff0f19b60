//! Pickles, read as data. In Python a pickle is a program: here only what a state dict of tensors
//! consists of is known ([`GLOBALS`]), and nothing is ever run. Whatever else it names is refused by its
//! name.

use std::collections::HashMap;
use std::rc::Rc;

use xtrain_graphs::DType;

/// What of a pickle is not as it should be.
pub(super) type Result<T> = std::result::Result<T, String>;

/// A pickle's instructions, those that state dicts have.
pub(super) mod op {
    pub const PROTO: u8 = 0x80;
    pub const STOP: u8 = b'.';
    pub const MARK: u8 = b'(';
    pub const POP: u8 = b'0';
    pub const NONE: u8 = b'N';
    pub const TRUE: u8 = 0x88;
    pub const FALSE: u8 = 0x89;
    pub const INT: u8 = b'J';
    pub const INT1: u8 = b'K';
    pub const INT2: u8 = b'M';
    pub const LONG1: u8 = 0x8a;
    pub const FLOAT: u8 = b'G';
    pub const UNICODE: u8 = b'X';
    pub const SHORT_UNICODE: u8 = 0x8c;
    pub const EMPTY_TUPLE: u8 = b')';
    pub const TUPLE: u8 = b't';
    pub const TUPLE1: u8 = 0x85;
    pub const TUPLE2: u8 = 0x86;
    pub const TUPLE3: u8 = 0x87;
    pub const EMPTY_LIST: u8 = b']';
    pub const APPEND: u8 = b'a';
    pub const APPENDS: u8 = b'e';
    pub const EMPTY_DICT: u8 = b'}';
    pub const SET_ITEM: u8 = b's';
    pub const SET_ITEMS: u8 = b'u';
    pub const PUT: u8 = b'q';
    pub const LONG_PUT: u8 = b'r';
    pub const MEMOIZE: u8 = 0x94;
    pub const GET: u8 = b'h';
    pub const LONG_GET: u8 = b'j';
    pub const FRAME: u8 = 0x95;
    pub const GLOBAL: u8 = b'c';
    pub const STACK_GLOBAL: u8 = 0x93;
    pub const PERSISTENT: u8 = b'Q';
    pub const REDUCE: u8 = b'R';
    pub const BUILD: u8 = b'b';
}

/// What a pickle of a state dict may name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    OrderedDict,
    /// A tensor of a storage, an offset, sizes and strides.
    RebuildTensor,
    /// A parameter of a tensor.
    RebuildParameter,
    /// A type of storage.
    Storage(DType),
}

const GLOBALS: [(&str, Global); 13] = [
    ("collections.OrderedDict", Global::OrderedDict),
    ("torch._utils._rebuild_tensor_v2", Global::RebuildTensor),
    ("torch._utils._rebuild_parameter", Global::RebuildParameter),
    ("torch.FloatStorage", Global::Storage(DType::F32)),
    ("torch.HalfStorage", Global::Storage(DType::F16)),
    ("torch.BFloat16Storage", Global::Storage(DType::BF16)),
    ("torch.DoubleStorage", Global::Storage(DType::F64)),
    ("torch.LongStorage", Global::Storage(DType::S64)),
    ("torch.IntStorage", Global::Storage(DType::S32)),
    ("torch.CharStorage", Global::Storage(DType::S8)),
    ("torch.ByteStorage", Global::Storage(DType::U8)),
    ("torch.BoolStorage", Global::Storage(DType::Pred)),
    ("torch.UInt32Storage", Global::Storage(DType::U32)),
];

/// A state dict takes some 45 instructions for each tensor. Each may make a value, and a value takes
/// far more memory than the byte of an instruction.
pub(super) const MOST_INSTRUCTIONS: usize = 4 << 20;

/// Values in values go no deeper, so that giving them up cannot exhaust the stack.
const DEEPEST: usize = 32;

#[derive(Clone, Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(Rc<str>),
    Tuple(Rc<Nested<Value>>),
    List(Rc<Nested<Value>>),
    Dict(Rc<Nested<(Value, Value)>>),
    Global(Global),
    Storage(Rc<StorageValue>),
    Tensor(Rc<TensorValue>),
}

#[derive(Clone, Debug)]
pub(super) struct Nested<T> {
    pub(super) entries: Vec<T>,
    depth: usize,
}

#[derive(Debug)]
pub(super) struct StorageValue {
    pub(super) key: String,
    pub(super) dtype: DType,
}

#[derive(Debug)]
pub(super) struct TensorValue {
    pub(super) storage: Rc<StorageValue>,
    pub(super) offset: usize,
    pub(super) dims: Vec<usize>,
    pub(super) strides: Option<Vec<usize>>,
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }

    fn tuple(&self) -> Option<&[Value]> {
        match self {
            Value::Tuple(tuple) => Some(&tuple.entries),
            _ => None,
        }
    }

    /// A tuple of sizes.
    fn sizes(&self) -> Option<Vec<usize>> {
        let size = |value: &Value| usize::try_from(value.int()?).ok();
        self.tuple()?.iter().map(size).collect()
    }

    fn depth(&self) -> usize {
        match self {
            Value::Tuple(nested) | Value::List(nested) => nested.depth,
            Value::Dict(nested) => nested.depth,
            _ => 0,
        }
    }
}

/// The depth of what holds a value.
fn around(value: &Value) -> Result<usize> {
    let depth = value.depth() + 1;
    if depth <= DEEPEST {
        Ok(depth)
    } else {
        Err(format!(
            "its values lie more than {DEEPEST} deep in each other"
        ))
    }
}

/// Reads pickles.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    /// So far, in all pickles.
    instructions: usize,
    /// What was put aside; `None` for a list or dict, which may have changed since.
    memo: HashMap<usize, Option<Value>>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Machine<'a> {
        Machine {
            bytes,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            instructions: 0,
            memo: HashMap::new(),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        self.at += count.min(self.bytes.len());
        taken.ok_or_else(|| "its pickle is cut short".to_string())
    }

    /// A whole number without a sign.
    fn number(&mut self, bytes: usize) -> Result<usize> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|error| error.to_string())
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n');
        let line = self.take(length.unwrap_or(rest.len()) + 1)?;
        std::str::from_utf8(&line[..line.len() - 1]).map_err(|error| error.to_string())
    }

    fn pop(&mut self) -> Result<Value> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() > bottom {
            Ok(self.stack.pop().expect("there is one above the mark"))
        } else {
            Err("its pickle is damaged: a value is missing".into())
        }
    }

    /// What was put down since the last mark.
    fn pop_marked(&mut self) -> Result<Vec<Value>> {
        let mark = self
            .marks
            .pop()
            .ok_or("its pickle is damaged: a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn push_tuple(&mut self, entries: Vec<Value>) -> Result<()> {
        let mut depth = 1;
        for entry in &entries {
            depth = depth.max(around(entry)?);
        }
        self.stack
            .push(Value::Tuple(Rc::new(Nested { entries, depth })));
        Ok(())
    }

    fn push_last(&mut self, count: usize) -> Result<()> {
        let mut entries = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        entries.reverse();
        self.push_tuple(entries)
    }

    fn append(&mut self, values: Vec<Value>) -> Result<()> {
        let Some(Value::List(list)) = self.stack.last_mut() else {
            return Err("its pickle is damaged: no list to add to".into());
        };
        let list = Rc::make_mut(list);
        for value in values {
            list.depth = list.depth.max(around(&value)?);
            list.entries.push(value);
        }
        Ok(())
    }

    fn set_items(&mut self, values: Vec<Value>) -> Result<()> {
        let Some(Value::Dict(dict)) = self.stack.last_mut() else {
            return Err("its pickle is damaged: no dict to add to".into());
        };
        let dict = Rc::make_mut(dict);
        let mut values = values.into_iter();
        while let Some(key) = values.next() {
            let value = values
                .next()
                .ok_or("its pickle is damaged: a key without a value")?;
            dict.depth = dict.depth.max(around(&key)?).max(around(&value)?);
            dict.entries.push((key, value));
        }
        Ok(())
    }

    /// A copy of what was put aside.
    fn get(&mut self, index: usize) -> Result<()> {
        let value = self.memo.get(&index);
        let value = value.ok_or("its pickle is damaged: it uses what it has not made")?;
        let value = value
            .as_ref()
            .ok_or("it uses one list or dict in two places")?;
        self.stack.push(value.clone());
        Ok(())
    }

    fn put(&mut self, index: usize) -> Result<()> {
        let value = self
            .stack
            .last()
            .ok_or("its pickle is damaged: a value is missing")?;
        let is_fixed = !matches!(value, Value::List(_) | Value::Dict(_));
        self.memo.insert(index, is_fixed.then(|| value.clone()));
        Ok(())
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<()> {
        let full = format!("{module}.{name}");
        let known = GLOBALS.iter().find(|(known, _)| *known == full);
        let (_, global) = known.ok_or_else(|| {
            format!("its pickle asks for {full:?}, which no state dict of tensors needs; nothing of it was run")
        })?;
        self.stack.push(Value::Global(*global));
        Ok(())
    }

    /// Pushes the value that an instruction writes out; whether it is one that does.
    fn push_literal(&mut self, code: u8) -> Result<bool> {
        match code {
            op::NONE => self.stack.push(Value::None),
            op::TRUE => self.stack.push(Value::Bool(true)),
            op::FALSE => self.stack.push(Value::Bool(false)),
            op::INT => {
                let number = self.number(4)? as u32 as i32;
                self.stack.push(Value::Int(number.into()));
            }
            op::INT1 | op::INT2 => {
                let number = self.number(if code == op::INT1 { 1 } else { 2 })?;
                self.stack.push(Value::Int(number as i64));
            }
            op::LONG1 => {
                let length = self.number(1)?;
                let bytes = self.take(length)?;
                // The magic number has more bytes, and is not looked at.
                let mut wide = [bytes
                    .last()
                    .map_or(0, |last| if *last > 127 { 255 } else { 0 });
                    8];
                let kept = length.min(8);
                wide[..kept].copy_from_slice(&bytes[..kept]);
                self.stack.push(Value::Int(i64::from_le_bytes(wide)));
            }
            op::FLOAT => {
                self.take(8)?;
                self.stack.push(Value::Float);
            }
            op::UNICODE | op::SHORT_UNICODE => {
                let length = self.number(if code == op::UNICODE { 4 } else { 1 })?;
                let text = std::str::from_utf8(self.take(length)?);
                let text = text.map_err(|error| error.to_string())?;
                self.stack.push(Value::Text(text.into()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The value of the next pickle.
    pub(super) fn run(&mut self) -> Result<Value> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            let code = self.take(1)?[0];
            self.instructions += 1;
            if self.instructions > MOST_INSTRUCTIONS {
                return Err(format!(
                    "its pickle has more than {MOST_INSTRUCTIONS} instructions, which no state dict needs"
                ));
            }
            if self.push_literal(code)? {
                continue;
            }
            match code {
                op::PROTO => {
                    self.take(1)?;
                }
                op::FRAME => {
                    self.take(8)?;
                }
                op::STOP => return self.pop(),
                op::MARK => self.marks.push(self.stack.len()),
                op::POP => {
                    self.pop()?;
                }
                op::EMPTY_TUPLE => self.push_tuple(Vec::new())?,
                op::TUPLE => {
                    let entries = self.pop_marked()?;
                    self.push_tuple(entries)?;
                }
                op::TUPLE1 => self.push_last(1)?,
                op::TUPLE2 => self.push_last(2)?,
                op::TUPLE3 => self.push_last(3)?,
                op::EMPTY_LIST => self.stack.push(Value::List(Rc::new(Nested {
                    entries: Vec::new(),
                    depth: 1,
                }))),
                op::APPEND => {
                    let value = self.pop()?;
                    self.append(vec![value])?;
                }
                op::APPENDS => {
                    let values = self.pop_marked()?;
                    self.append(values)?;
                }
                op::EMPTY_DICT => self.stack.push(empty_dict()),
                op::SET_ITEM => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set_items(vec![key, value])?;
                }
                op::SET_ITEMS => {
                    let values = self.pop_marked()?;
                    self.set_items(values)?;
                }
                op::PUT | op::LONG_PUT => {
                    let index = self.number(if code == op::PUT { 1 } else { 4 })?;
                    self.put(index)?;
                }
                op::MEMOIZE => self.put(self.memo.len())?,
                op::GET | op::LONG_GET => {
                    let index = self.number(if code == op::GET { 1 } else { 4 })?;
                    self.get(index)?;
                }
                op::GLOBAL => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push_global(module, name)?;
                }
                op::STACK_GLOBAL => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Some(module), Some(name)) = (module.text(), name.text()) else {
                        return Err("its pickle is damaged: a name is no text".into());
                    };
                    let (module, name) = (module.to_string(), name.to_string());
                    self.push_global(&module, &name)?;
                }
                op::PERSISTENT => {
                    let id = self.pop()?;
                    let storage = storage(&id).ok_or("its pickle has another kind of storage")?;
                    self.stack.push(Value::Storage(Rc::new(storage)));
                }
                op::REDUCE => {
                    let (arguments, of) = (self.pop()?, self.pop()?);
                    let made = make(&of, arguments.tuple().unwrap_or_default())?;
                    self.stack.push(made);
                }
                // What a state dict has besides its tensors: versions of modules.
                op::BUILD => {
                    self.pop()?;
                    match self.stack.last() {
                        Some(Value::Dict(_)) => {}
                        _ => return Err("its pickle sets attributes of what is no dict".into()),
                    }
                }
                other => {
                    return Err(format!(
                        "its pickle has the instruction {other:#04x}, which no state dict of tensors needs"
                    ));
                }
            }
        }
    }
}

fn empty_dict() -> Value {
    Value::Dict(Rc::new(Nested {
        entries: Vec::new(),
        depth: 1,
    }))
}

/// A storage: `("storage", type, key, device, length)`, and before torch 1.6 whether it is a part of
/// another.
fn storage(id: &Value) -> Option<StorageValue> {
    let id = id.tuple()?;
    let (Value::Global(Global::Storage(dtype)), Some("storage")) = (id.get(1)?, id[0].text())
    else {
        return None;
    };
    if !matches!(id.get(5), None | Some(Value::None)) {
        return None;
    }
    Some(StorageValue {
        key: id.get(2)?.text()?.to_string(),
        dtype: *dtype,
    })
}

/// What one of [`GLOBALS`] makes of its arguments.
fn make(of: &Value, arguments: &[Value]) -> Result<Value> {
    let bad = || "its pickle makes a tensor in a way that is not known".to_string();
    match (of, arguments) {
        (Value::Global(Global::OrderedDict), []) => Ok(empty_dict()),
        (Value::Global(Global::RebuildParameter), [tensor @ Value::Tensor(_), ..]) => {
            Ok(tensor.clone())
        }
        (
            Value::Global(Global::RebuildTensor),
            [
                Value::Storage(storage),
                Value::Int(offset),
                sizes,
                strides,
                ..,
            ],
        ) => {
            let (dims, mut strides) = (
                sizes.sizes().ok_or_else(bad)?,
                strides.sizes().ok_or_else(bad)?,
            );
            if strides.len() != dims.len() {
                return Err(bad());
            }
            let mut dense = 1usize;
            let mut is_dense = true;
            for (dim, stride) in dims.iter().zip(&strides).rev() {
                if *dim > 1 && *stride == 0 {
                    return Err(format!(
                        "a tensor of sizes {dims:?} has strides {strides:?}: it repeats elements; save it with .contiguous()"
                    ));
                }
                is_dense &= *dim <= 1 || *stride == dense;
                dense = dense.saturating_mul(*dim);
            }
            // Nobody steps along these, whatever their strides.
            for (_, stride) in dims.iter().zip(&mut strides).filter(|(dim, _)| **dim <= 1) {
                *stride = 0;
            }
            Ok(Value::Tensor(Rc::new(TensorValue {
                storage: storage.clone(),
                offset: usize::try_from(*offset).map_err(|_| bad())?,
                dims,
                strides: (!is_dense).then_some(strides),
            })))
        }
        _ => Err(bad()),
    }
}
