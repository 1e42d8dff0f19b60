//! Files that torch.save wrote: where each tensor of a state dict lies in them.
//!
//! Such a file holds a pickle, which is read as data (`pickle.rs`).
//!
//! Since torch 1.6 a file is a zip archive, whose entries are not compressed: `NAME/data.pkl` and a
//! file for each storage, `NAME/data/KEY`. Before, it was five pickles one after the other (a magic
//! number, a version, the machine, the state dict, the storages' keys), then each storage with its
//! length before it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::pickle::{Machine, Result, TensorValue, Value, op};
use xtrain_graphs::DType;

/// Why a file gives no tensors.
#[derive(Debug)]
pub(super) enum Problem {
    /// What is wrong with it.
    Reason(String),
    /// Its tensors lie one level deeper, under this name, beside a run's other state.
    Nested(String),
}

impl From<String> for Problem {
    fn from(reason: String) -> Problem {
        Problem::Reason(reason)
    }
}

impl From<&str> for Problem {
    fn from(reason: &str) -> Problem {
        Problem::Reason(reason.into())
    }
}

/// The tensors of a state dict, by name.
type Tensors = std::result::Result<BTreeMap<String, Tensor>, Problem>;

/// Where a tensor lies.
#[derive(Debug, PartialEq)]
pub(super) struct Tensor {
    pub dtype: DType,
    pub dims: Vec<usize>,
    /// From its first element to its last.
    pub bytes: Range<usize>,
    /// Of each dimension, in elements, where they do not lie one after the other.
    pub strides: Option<Vec<usize>>,
}

impl Tensor {
    /// The elements in the order of their places, of a tensor with strides.
    pub fn dense(&self, file: &[u8]) -> Vec<u8> {
        let from = &file[self.bytes.clone()];
        let size = self.dtype.size();
        let count: usize = self.dims.iter().product();
        let mut dense = Vec::with_capacity(count * size);
        let strides = self.strides.as_deref().unwrap_or_default();
        let (mut place, mut at) = (vec![0; self.dims.len()], 0);
        for _ in 0..count {
            dense.extend_from_slice(&from[at * size..][..size]);
            // The last dimension runs fastest.
            for i in (0..place.len()).rev() {
                place[i] += 1;
                at += strides[i];
                if place[i] < self.dims[i] {
                    break;
                }
                at -= strides[i] * self.dims[i];
                place[i] = 0;
            }
        }
        dense
    }
}

/// The tensors of a state dict, by name.
pub(super) fn tensors(file: &[u8]) -> Tensors {
    if file.starts_with(b"PK\x03\x04") {
        return from_zip(file);
    }
    if file.first() == Some(&op::PROTO) {
        return from_pickles(file);
    }
    Err("it is not a file of torch.save".into())
}

fn from_zip(file: &[u8]) -> Tensors {
    let entries = zip_entries(file)?;
    let (pickle, range) = entries
        .iter()
        .find(|(name, _)| name.ends_with("/data.pkl"))
        .ok_or("the archive has no data.pkl: it is not a state dict of torch.save")?;
    let prefix = pickle.strip_suffix("data.pkl").unwrap_or_default();
    if let Some(order) = entries.get(&format!("{prefix}byteorder"))
        && &file[order.clone()] != b"little"
    {
        return Err("it was written on a big-endian machine".into());
    }
    let mut machine = Machine::new(&file[range.clone()]);
    let dict = machine.run()?;
    state_dict(dict, &|key| {
        entries.get(&format!("{prefix}data/{key}")).cloned()
    })
}

fn from_pickles(file: &[u8]) -> Tensors {
    let mut machine = Machine::new(file);
    // A magic number, the version, the machine.
    let [_, version, machine_info] = [machine.run()?, machine.run()?, machine.run()?];
    if version.int() != Some(1001) {
        return Err("it is a pickle, but not one of torch.save".into());
    }
    if let Value::Dict(info) = machine_info
        && info.entries.iter().any(|(key, value)| {
            key.text() == Some("little_endian") && matches!(value, Value::Bool(false))
        })
    {
        return Err("it was written on a big-endian machine".into());
    }
    let dict = machine.run()?;
    let Value::List(keys) = machine.run()? else {
        return Err("the list of its storages is missing".into());
    };
    let mut sizes = HashMap::new();
    storage_sizes(&dict, &mut sizes);
    let mut storages = HashMap::new();
    let mut at = machine.at;
    for key in &keys.entries {
        let key = key.text().ok_or("a storage's key is no text")?;
        let length = file.get(at..at + 8).ok_or("it is cut short")?;
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let size = *sizes.get(key).ok_or("a storage belongs to no tensor")?;
        let length = usize::try_from(length).ok();
        let end = length.and_then(|length| length.checked_mul(size)?.checked_add(at + 8));
        let end = end
            .filter(|end| *end <= file.len())
            .ok_or("it is cut short")?;
        storages.insert(key.to_string(), at + 8..end);
        at = end;
    }
    state_dict(dict, &|key| storages.get(key).cloned())
}

/// Bytes of an element of each storage that a dict, or one in it, has tensors of.
fn storage_sizes(value: &Value, sizes: &mut HashMap<String, usize>) {
    let Value::Dict(dict) = value else { return };
    for (_, value) in &dict.entries {
        match value {
            Value::Tensor(tensor) => {
                sizes.insert(tensor.storage.key.clone(), tensor.storage.dtype.size());
            }
            // Not deeper than values may lie in each other.
            inside => storage_sizes(inside, sizes),
        }
    }
}

/// The tensors of a dict, given where each storage lies.
fn state_dict(dict: Value, storage: &dyn Fn(&str) -> Option<Range<usize>>) -> Tensors {
    let Value::Dict(dict) = dict else {
        return Err("it holds no state dict (names with their tensors)".into());
    };
    // What training scripts write around one.
    let inside = dict.entries.iter().find_map(|(key, value)| match value {
        Value::Dict(inside) if key.text() == Some("state_dict") => Some(inside.clone()),
        _ => None,
    });
    let nested = |(name, value): &(Value, Value)| {
        let Value::Dict(inner) = value else {
            return None;
        };
        let is_tensor = |(_, value): &(Value, Value)| matches!(value, Value::Tensor(_));
        let has_tensors = inner.entries.iter().any(is_tensor);
        name.text().filter(|_| has_tensors).map(str::to_string)
    };
    let dict = match inside {
        Some(inside) => inside,
        None => match dict.entries.iter().find_map(nested) {
            Some(name) => return Err(Problem::Nested(name)),
            None => dict,
        },
    };
    let mut tensors = BTreeMap::new();
    for (name, value) in &dict.entries {
        let name = name
            .text()
            .ok_or("a name of its state dict is no text")?
            .to_string();
        let Value::Tensor(tensor) = value else {
            let reason = format!("{name} is not a tensor; only a model's state dict is read");
            return Err(reason.into());
        };
        let TensorValue {
            storage: of,
            offset,
            dims,
            strides,
        } = &**tensor;
        let whole = storage(&of.key).ok_or_else(|| format!("the data of {name} are missing"))?;
        let range = || {
            let size = of.dtype.size();
            let count = dims.iter().try_fold(1usize, |a, b| a.checked_mul(*b))?;
            let start = whole.start.checked_add(offset.checked_mul(size)?)?;
            let reach = match strides {
                None => count,
                Some(_) if count == 0 => 0,
                Some(strides) => dims
                    .iter()
                    .zip(strides)
                    .try_fold(1usize, |reach, (dim, stride)| {
                        reach.checked_add((dim - 1).checked_mul(*stride)?)
                    })?,
            };
            let end = start.checked_add(reach.checked_mul(size)?)?;
            (end <= whole.end && count <= reach).then_some(start..end)
        };
        let bytes = range().ok_or_else(|| format!("{name} reaches beyond its data"))?;
        let found = Tensor {
            dtype: of.dtype,
            dims: dims.clone(),
            bytes,
            strides: strides.clone(),
        };
        if tensors.insert(name.clone(), found).is_some() {
            return Err(format!("{name} is there twice").into());
        }
    }
    Ok(tensors)
}

/// Entries of a zip archive by name, with where their bytes are: the directory at the file's end,
/// whose numbers are of 64 bits where 32 are too few.
fn zip_entries(file: &[u8]) -> Result<BTreeMap<String, Range<usize>>> {
    const CUT: &str = "the archive is cut short";
    let u16_at = |at: usize| {
        let bytes = file.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let u32_at = |at: usize| {
        let bytes = file.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let u64_at = |at: usize| {
        let bytes = file.get(at..at.checked_add(8)?)?;
        usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    // A comment of at most 65535 bytes may follow it.
    let last = file.len().checked_sub(22).ok_or(CUT)?;
    let end = (last.saturating_sub(65_535)..=last)
        .rev()
        .find(|at| file[*at..].starts_with(b"PK\x05\x06"))
        .ok_or(CUT)?;
    let mut count = u16_at(end + 10).ok_or(CUT)?;
    let mut at = u32_at(end + 16).ok_or(CUT)?;
    if let Some(locator) = end.checked_sub(20)
        && file[locator..].starts_with(b"PK\x06\x07")
    {
        let wide = u64_at(locator + 8).ok_or(CUT)?;
        count = u64_at(wide.saturating_add(32)).ok_or(CUT)?;
        at = u64_at(wide.saturating_add(48)).ok_or(CUT)?;
    }
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let mut read = || {
            let header = file.get(at..)?.get(..46)?;
            if !header.starts_with(b"PK\x01\x02") {
                return None;
            }
            let [method, name, extra, comment] =
                [10, 28, 30, 32].map(|field| u16_at(at + field).unwrap_or(0));
            let [mut packed, mut size, mut local] =
                [20, 24, 42].map(|field| u32_at(at + field).unwrap_or(0));
            let text = file.get(at + 46..at + 46 + name)?;
            // Numbers that are too large for their fields stand here, in this order.
            let (mut field, fields) = (at + 46 + name, at + 46 + name + extra);
            while field + 4 <= fields {
                let (id, length) = (u16_at(field)?, u16_at(field + 2)?);
                let mut wide = field + 4;
                for value in [&mut size, &mut packed, &mut local] {
                    if id == 1 && *value == u32::MAX as usize {
                        *value = u64_at(wide)?;
                        wide += 8;
                    }
                }
                field += 4 + length;
            }
            at = fields + comment;
            let start = local
                .checked_add(30)?
                .checked_add(u16_at(local.checked_add(26)?)?)?
                .checked_add(u16_at(local.checked_add(28)?)?)?;
            let end = start.checked_add(size)?;
            let is_there = file.get(local..)?.starts_with(b"PK\x03\x04") && end <= file.len();
            let text = String::from_utf8_lossy(text).into_owned();
            is_there.then_some((text, method, start..end))
        };
        let (name, method, range) = read().ok_or("the archive is damaged")?;
        if method != 0 {
            return Err(format!(
                "{name} in the archive is compressed, as torch.save never does"
            ));
        }
        entries.insert(name, range);
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "torch_tests.rs"]
mod tests;
