//! safetensors files, and those of torch.save: memory-mapped reading by tensor name, whole or sharded.
//!
//! Reading is lazy: opening parses and validates headers only, so a damaged header, a cut file or
//! an unknown element type is an error at once, and no tensor is copied before it is asked for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::{Mmap, UncheckedAdvice};
use safetensors::{SafeTensorError, SafeTensors};
use serde_json::{Map, Value};
use xtrain_graphs::{DType, Shape};

use super::error::{Error, Mismatch, Result};
use super::tensors::from_safetensors;
use super::{files, torch};

pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The weights of an adapter of PEFT.
pub const ADAPTER_WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// Where older directories have them.
pub const ADAPTER_TORCH_FILE: &str = "adapter_model.bin";
pub const WEIGHTS_INDEX_FILE: &str = "model.safetensors.index.json";
/// Where older directories have them.
pub const TORCH_FILE: &str = "pytorch_model.bin";
pub const TORCH_INDEX_FILE: &str = "pytorch_model.bin.index.json";

/// The files of a directory's own model; it has one of them.
pub const MODEL_FILES: [&str; 3] = [WEIGHTS_FILE, WEIGHTS_INDEX_FILE, ADAPTER_WEIGHTS_FILE];

/// A tensor in a file: dense, row-major, little-endian, not necessarily aligned.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub shape: Shape,
    pub bytes: &'a [u8],
}

/// The tensors of one or more safetensors files. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Weights {
    path: PathBuf,
    files: Arc<Vec<(PathBuf, Arc<Content>)>>,
    tensors: Arc<BTreeMap<String, Entry>>,
}

/// A file's bytes, or those of its tensors that were copied into dense order.
#[derive(Debug)]
enum Content {
    /// With the file, which is kept open.
    Mapped(Mmap, File),
    Copied(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Mapped(map, _) => map,
            Content::Copied(bytes) => bytes,
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    shape: Shape,
    file: usize,
    start: usize,
    end: usize,
}

impl Weights {
    /// Opens a Hugging Face directory (`model.safetensors`, shards with
    /// `model.safetensors.index.json`, else the same of `pytorch_model.bin`) or a single file.
    pub fn open(path: &Path) -> Result<Weights> {
        if !path.is_dir() {
            return Weights::open_files(path, &[path.to_path_buf()]);
        }
        let forms = [
            (WEIGHTS_FILE, WEIGHTS_INDEX_FILE),
            (TORCH_FILE, TORCH_INDEX_FILE),
        ];
        for (whole, index) in forms {
            let (whole, index) = (path.join(whole), path.join(index));
            if whole.exists() {
                return Weights::open_files(&whole, std::slice::from_ref(&whole));
            }
            if index.exists() {
                return Weights::open_sharded(path, &index);
            }
        }
        // As scripts with `xm.save` call it.
        let saved = path.join("checkpoint.pt");
        if saved.exists() {
            return Weights::open_files(&saved, std::slice::from_ref(&saved));
        }
        Err(Error::NoWeights {
            dir: path.to_path_buf(),
            hint: other_formats_hint(path),
        })
    }

    /// Opens the weights of an adapter's directory.
    ///
    /// # Errors
    /// If it has none, or they cannot be read.
    pub fn open_adapter(dir: &Path) -> Result<Weights> {
        let files = [ADAPTER_WEIGHTS_FILE, ADAPTER_TORCH_FILE].map(|name| dir.join(name));
        match files.iter().find(|file| file.exists()) {
            Some(file) => Weights::open_files(file, std::slice::from_ref(file)),
            None => Err(Error::NoAdapterWeights {
                dir: dir.to_path_buf(),
            }),
        }
    }

    /// Opens several files by the index that names them.
    pub(super) fn open_sharded(dir: &Path, index: &Path) -> Result<Weights> {
        let json = super::json::read_object(index)?;
        let bad = |reason: &str| Error::BadContent {
            path: index.to_path_buf(),
            reason: reason.to_string(),
        };
        let map = json
            .get("weight_map")
            .and_then(Value::as_object)
            .ok_or_else(|| bad("no \"weight_map\" object"))?;
        let mut shards = BTreeMap::new();
        for (tensor, shard) in map {
            let shard = shard
                .as_str()
                .ok_or_else(|| bad("\"weight_map\" must map tensor names to file names"))?;
            // A name with a directory in it could reach outside of the model.
            if Path::new(shard).file_name() != Some(shard.as_ref()) {
                return Err(bad(&format!("{shard:?} is not a plain file name")));
            }
            if !dir.join(shard).exists() {
                return Err(bad(&format!(
                    "it names {shard}, which is not beside it; a model needs all of its files"
                )));
            }
            shards
                .entry(dir.join(shard))
                .or_insert_with(Vec::new)
                .push(tensor);
        }
        let weights = Weights::open_files(index, &shards.keys().cloned().collect::<Vec<_>>())?;
        for (shard, tensors) in shards {
            for tensor in tensors {
                let here = weights
                    .tensors
                    .get(tensor)
                    .is_some_and(|entry| weights.files[entry.file].0 == shard);
                if !here {
                    return Err(Error::NoTensor {
                        path: shard,
                        tensor: tensor.clone(),
                    });
                }
            }
        }
        Ok(weights)
    }

    fn open_files(path: &Path, paths: &[PathBuf]) -> Result<Weights> {
        let mut files = Vec::new();
        let mut tensors = BTreeMap::new();
        for path in paths {
            let file = files::open(path).map_err(Error::io("read", path))?;
            // SAFETY: the mapping is read only. We replace such files by rename and never write
            // into them, so the mapped inode keeps its bytes; another program that truncates it in
            // place would be at fault, as with any mapped file.
            let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
            if map.starts_with(b"version https://git-lfs") {
                return Err(Error::BadContent {
                    path: path.clone(),
                    reason:
                        "it only points to weights that Git LFS holds; `git lfs pull` fetches them"
                            .into(),
                });
            }
            let is_torch = path
                .extension()
                .is_some_and(|extension| ["bin", "pt", "pth"].iter().any(|it| extension == *it));
            let copied = if is_torch {
                read_torch(path, &map, files.len(), &mut tensors)?
            } else {
                read_header(path, &map, files.len(), &mut tensors)?;
                Vec::new()
            };
            files.push((path.clone(), Arc::new(Content::Mapped(map, file))));
            if !copied.is_empty() {
                files.push((path.clone(), Arc::new(Content::Copied(copied))));
            }
        }
        Ok(Weights {
            path: path.to_path_buf(),
            files: Arc::new(files),
            tensors: Arc::new(tensors),
        })
    }

    /// The same with as many rows in tensors of these names as are wanted; each new one is the mean of
    /// the others, as transformers resizes embeddings.
    pub fn lengthened(&self, names: &[String], rows: usize) -> Weights {
        let mut files = (*self.files).clone();
        let mut tensors = (*self.tensors).clone();
        let mut copied: Vec<u8> = Vec::new();
        for name in names {
            let Some(view) = self.get(name) else { continue };
            let dtype = view.shape.dtype;
            let first = view.shape.dims.first().copied().unwrap_or(0);
            let values = convert_floats(view.bytes, dtype, DType::F32);
            let Some(values) = values.filter(|_| (1..rows).contains(&first)) else {
                continue;
            };
            let width: usize = view.shape.dims[1..].iter().product();
            let mut sums = vec![0f64; width];
            for (i, value) in values.chunks_exact(4).enumerate() {
                let value = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                sums[i % width] += f64::from(value);
            }
            let mean: Vec<u8> = sums
                .iter()
                .flat_map(|sum| ((sum / first as f64) as f32).to_le_bytes())
                .collect();
            let Some(mean) = convert_floats(&mean, DType::F32, dtype) else {
                continue;
            };
            let start = copied.len();
            copied.extend_from_slice(view.bytes);
            for _ in first..rows {
                copied.extend_from_slice(&mean);
            }
            let mut dims = view.shape.dims.clone();
            dims[0] = rows;
            let entry = Entry {
                shape: Shape::new(dtype, dims),
                file: files.len(),
                start,
                end: copied.len(),
            };
            tensors.insert(name.clone(), entry);
        }
        files.push((self.path.clone(), Arc::new(Content::Copied(copied))));
        Weights {
            path: self.path.clone(),
            files: Arc::new(files),
            tensors: Arc::new(tensors),
        }
    }

    /// The file (or the index of the shards) that this was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files with the names of their tensors, sorted.
    pub fn files(&self) -> Vec<(PathBuf, Vec<String>)> {
        let mut files: Vec<(PathBuf, Vec<String>)> = Vec::new();
        for (path, _) in self.files.iter() {
            if files.last().is_none_or(|(last, _)| last != path) {
                files.push((path.clone(), Vec::new()));
            }
        }
        for (name, entry) in self.tensors.iter() {
            let path = &self.files[entry.file].0;
            let file = files.iter_mut().find(|(known, _)| known == path);
            file.expect("every file is listed").1.push(name.clone());
        }
        files
    }

    /// All tensors, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors
            .iter()
            .map(|(name, entry)| self.view(name, entry))
    }

    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors
            .get_key_value(name)
            .map(|(name, entry)| self.view(name, entry))
    }

    fn view<'a>(&'a self, name: &'a str, entry: &Entry) -> TensorView<'a> {
        TensorView {
            name,
            shape: entry.shape.clone(),
            bytes: &self.files[entry.file].1.bytes()[entry.start..entry.end],
        }
    }

    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Compares with what a model wants: every difference, by name. Float types may differ, since
    /// reading converts them; names for which `ignore` holds may be there without being wanted
    /// (buffers that old checkpoints carry).
    pub fn compare<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        ignore: impl Fn(&str) -> bool,
    ) -> Mismatch {
        let mut mismatch = Mismatch {
            path: self.path.clone(),
            missing: Vec::new(),
            unexpected: Vec::new(),
            misshaped: Vec::new(),
        };
        let mut known = std::collections::BTreeSet::new();
        for (name, shape) in wanted {
            known.insert(name);
            match self.tensors.get(name) {
                None => mismatch.missing.push(name.to_string()),
                Some(entry) => {
                    let found = &entry.shape;
                    let convertible = found.dtype == shape.dtype
                        || found.dtype.is_float() && shape.dtype.is_float();
                    if found.dims != shape.dims || !convertible {
                        mismatch
                            .misshaped
                            .push((name.to_string(), shape.clone(), found.clone()));
                    }
                }
            }
        }
        mismatch.unexpected = self
            .tensors
            .keys()
            .filter(|name| !known.contains(name.as_str()) && !ignore(name))
            .cloned()
            .collect();
        mismatch
    }

    /// [`Weights::compare`], with any difference an error that lists them all.
    pub fn check<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        ignore: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let mismatch = self.compare(wanted, ignore);
        if mismatch.is_empty() {
            Ok(())
        } else {
            Err(Error::Mismatch(Box::new(mismatch)))
        }
    }

    /// A tensor's bytes in the wanted shape and element type: borrowed where the file holds just
    /// that, converted between float types otherwise.
    pub fn read(&self, name: &str, wanted: &Shape) -> Result<Cow<'_, [u8]>> {
        let Some(view) = self.get(name) else {
            return Err(Error::NoTensor {
                path: self.path.clone(),
                tensor: name.to_string(),
            });
        };
        self.check_size(name)?;
        if view.shape == *wanted {
            return Ok(Cow::Borrowed(view.bytes));
        }
        if view.shape.dims == wanted.dims
            && let Some(bytes) = convert_floats(view.bytes, view.shape.dtype, wanted.dtype)
        {
            return Ok(Cow::Owned(bytes));
        }
        let tensor = name.to_string();
        Err(Error::NotConvertible {
            path: self.path.clone(),
            tensor,
            found: view.shape,
            wanted: wanted.clone(),
        })
    }

    /// Gives back the memory that holds a tensor's part of its file, which a model that is on the device
    /// needs no more; another look reads the file again.
    pub fn release(&self, name: &str) {
        let Some(entry) = self.tensors.get(name) else {
            return;
        };
        if let Content::Mapped(map, _) = &*self.files[entry.file].1 {
            let length = entry.end - entry.start;
            // SAFETY: the mapping is shared and read only, so that its pages come back with the file's
            // bytes. A refusal changes nothing.
            let _ = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, entry.start, length)
            };
        }
    }

    /// Between opening a model and reading it hours may pass; of a file that was cut short meanwhile,
    /// a look at what is gone would end the process.
    fn check_size(&self, name: &str) -> Result<()> {
        let Some(entry) = self.tensors.get(name) else {
            return Ok(());
        };
        let (path, content) = &self.files[entry.file];
        let Content::Mapped(map, file) = &**content else {
            return Ok(());
        };
        let found = file.metadata().map_err(Error::io("read", path))?.len();
        if found >= entry.end as u64 {
            return Ok(());
        }
        Err(Error::Truncated {
            path: path.clone(),
            expected: map.len() as u64,
            found,
        })
    }

    /// A float tensor's values as f32, whatever float type the file has.
    pub fn read_f32(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let Some(view) = self.get(name) else {
            return Err(Error::NoTensor {
                path: self.path.clone(),
                tensor: name.to_string(),
            });
        };
        let bytes = self.read(name, &view.shape.with_dtype(DType::F32))?;
        Ok((
            view.shape.dims,
            bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
        ))
    }
}

/// What to say when a directory has weights, but not in a form or by a name that is read here.
pub fn other_formats_hint(dir: &Path) -> String {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let find = |is: &dyn Fn(&str) -> bool| names.iter().find(|name| is(name));
    if let Some(name) = find(&|name| ["tf_model.h5", "flax_model.msgpack"].contains(&name)) {
        format!(
            "; there is a {name}, which is not read: load it in transformers and save_pretrained() it again"
        )
    } else if let Some(name) = find(&|name| name.starts_with("adapter_")) {
        format!(
            "; {name} is of an adapter, not of a model, and adapter_config.json is missing, which says of which"
        )
    } else if let Some(name) = find(&|name| is_weights(name) && !is_state(name)) {
        let usual = usual_name(name);
        format!("; if {name} has the model's weights, rename it to {usual}")
    } else if let Some(name) = find(&|name| is_weights(name)) {
        format!("; {name} is the state of a run, not a model's weights")
    } else {
        String::new()
    }
}

/// Whether a file's name is that of a state dict, of a model or of something else.
pub fn is_weights(name: &str) -> bool {
    let endings = [".safetensors", ".bin", ".pt", ".pth", ".ckpt"];
    endings.iter().any(|ending| name.ends_with(ending))
}

/// Whether a state dict is one that trainers write beside a model.
fn is_state(name: &str) -> bool {
    let others = ["optimizer", "scheduler", "scaler", "rng_state", "training_"];
    others.iter().any(|other| name.starts_with(other))
}

/// By which name the weights of a file would be read.
pub fn usual_name(name: &str) -> &'static str {
    if name.ends_with(".safetensors") {
        WEIGHTS_FILE
    } else {
        TORCH_FILE
    }
}

/// How many times the bytes of a file of torch.save its tensors may take once they are copied; tied
/// ones share their elements.
const MOST_COPIES: usize = 4;

/// Where the tensors of a file of torch.save are; those whose elements do not lie one after the other
/// are in the bytes that are given back, the next file's.
fn read_torch(
    path: &Path,
    map: &[u8],
    file: usize,
    tensors: &mut BTreeMap<String, Entry>,
) -> Result<Vec<u8>> {
    let bad = |reason: String| Error::NotTorch {
        path: path.to_path_buf(),
        reason,
    };
    let found = torch::tensors(map).map_err(|problem| match problem {
        torch::Problem::Reason(reason) => bad(reason),
        torch::Problem::Nested(key) => Error::NestedStateDict {
            path: path.to_path_buf(),
            key,
        },
    })?;
    let mut copied = Vec::new();
    for (name, tensor) in found {
        let (file, range) = match tensor.strides {
            None => (file, tensor.bytes.clone()),
            Some(_) => {
                let start = copied.len();
                if start + tensor.bytes.len() > MOST_COPIES * map.len() {
                    let reason = "many of its tensors with strides share their elements; save them with .contiguous()";
                    return Err(bad(reason.into()));
                }
                copied.extend(tensor.dense(map));
                (file + 1, start..copied.len())
            }
        };
        let entry = Entry {
            shape: Shape::new(tensor.dtype, tensor.dims),
            file,
            start: range.start,
            end: range.end,
        };
        if tensors.insert(name.clone(), entry).is_some() {
            return Err(bad(format!("tensor {name} is in two of its shards")));
        }
    }
    Ok(copied)
}

fn read_header(
    path: &Path,
    map: &[u8],
    file: usize,
    tensors: &mut BTreeMap<String, Entry>,
) -> Result<()> {
    let (header, metadata) =
        SafeTensors::read_metadata(map).map_err(|error| header_error(path, map, error))?;
    for (name, info) in metadata.tensors() {
        let dtype = from_safetensors(info.dtype).ok_or_else(|| Error::UnsupportedDtype {
            path: path.to_path_buf(),
            tensor: name.clone(),
            dtype: format!("{:?}", info.dtype),
        })?;
        let (start, end) = (
            8 + header + info.data_offsets.0,
            8 + header + info.data_offsets.1,
        );
        let entry = Entry {
            shape: Shape::new(dtype, info.shape.clone()),
            file,
            start,
            end,
        };
        if tensors.insert(name.clone(), entry).is_some() {
            let reason = format!("tensor {name} is in two of its shards");
            return Err(Error::NotSafetensors {
                path: path.to_path_buf(),
                reason,
            });
        }
    }
    Ok(())
}

/// Tells a file that was cut short, by far the usual damage, from one that is something else.
fn header_error(path: &Path, map: &[u8], error: SafeTensorError) -> Error {
    let path = path.to_path_buf();
    let found = map.len() as u64;
    let Some(length) = map
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes))
    else {
        return Error::Truncated {
            path,
            expected: 8,
            found,
        };
    };
    let looks_like_header = map.get(8).is_some_and(|byte| *byte == b'{');
    match error {
        SafeTensorError::InvalidHeaderLength if looks_like_header || map.len() == 8 => {
            Error::Truncated {
                path,
                expected: length.saturating_add(8),
                found,
            }
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            let data = map
                .get(8..8 + length as usize)
                .and_then(|header| serde_json::from_slice::<Map<String, Value>>(header).ok());
            let ends = data
                .iter()
                .flat_map(|map| map.values())
                .filter_map(|info| info["data_offsets"][1].as_u64());
            let expected = 8 + length + ends.max().unwrap_or(0);
            if found < expected {
                Error::Truncated {
                    path,
                    expected,
                    found,
                }
            } else {
                Error::NotSafetensors {
                    path,
                    reason: format!("{} bytes follow the last tensor", found - expected),
                }
            }
        }
        SafeTensorError::HeaderTooLarge
        | SafeTensorError::HeaderTooSmall
        | SafeTensorError::InvalidHeaderLength => Error::NotSafetensors {
            path,
            reason: "it does not begin with a header's length and a header".to_string(),
        },
        other => Error::NotSafetensors {
            path,
            reason: format!("its header is damaged ({other})"),
        },
    }
}

/// Between float types, through f64: exact when widening, rounded to nearest even when narrowing
/// (from f64 to bf16 twice).
/// `None` of what is no float.
pub fn convert_floats(bytes: &[u8], from: DType, to: DType) -> Option<Vec<u8>> {
    if !from.is_float() || !to.is_float() {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len() / from.size() * to.size());
    for element in bytes.chunks_exact(from.size()) {
        let value = match *element {
            [a, b] if from == DType::F16 => f16::from_le_bytes([a, b]).to_f64(),
            [a, b] => bf16::from_le_bytes([a, b]).to_f64(),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]) as f64,
            _ => f64::from_le_bytes(
                element
                    .try_into()
                    .expect("the only other float has 8 bytes"),
            ),
        };
        match to {
            DType::F16 => out.extend(f16::from_f64(value).to_le_bytes()),
            // From f64, `half` drops bits that decide how a tie is rounded.
            DType::BF16 => out.extend(bf16::from_f32(value as f32).to_le_bytes()),
            DType::F32 => out.extend((value as f32).to_le_bytes()),
            _ => out.extend(value.to_le_bytes()),
        }
    }
    Some(out)
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
