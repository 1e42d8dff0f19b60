//! safetensors files, and those of torch.save: memory-mapped reading by tensor name, whole or sharded, and streaming,
//! byte-deterministic writing.
//!
//! Reading is lazy: opening parses and validates headers only, so a damaged header, a cut file or
//! an unknown element type is an error at once, and no tensor is copied before it is asked for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::{Mmap, UncheckedAdvice};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::{Map, Value};
use xtrain_graphs::{DType, Shape};

use super::error::{Error, Mismatch, Result};
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

/// Reads a tensor's bytes when they are written, so that all of them need not be in memory.
pub trait Fetch {
    /// The bytes of the tensor of this name. Tensors are asked for once each, in the order of
    /// [`super::shards::written_order`].
    ///
    /// # Errors
    /// If they cannot be read, or are not worth writing.
    fn fetch(&self, name: &str) -> io::Result<Vec<u8>>;
}

/// Where the bytes of a tensor to write are.
#[derive(Clone, Copy)]
pub enum Bytes<'a> {
    Here(&'a [u8]),
    Fetched(&'a dyn Fetch),
}

impl std::fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bytes::Here(bytes) => write!(f, "{} bytes", bytes.len()),
            Bytes::Fetched(_) => f.write_str("bytes to be fetched"),
        }
    }
}

/// A tensor to write: dense, row-major, little-endian.
#[derive(Clone, Debug)]
pub struct TensorRef<'a> {
    pub name: Cow<'a, str>,
    /// The name that it gets in a file, if that is another one.
    pub saved_name: Option<String>,
    pub shape: Shape,
    pub bytes: Bytes<'a>,
}

impl<'a> TensorRef<'a> {
    pub fn new(name: impl Into<Cow<'a, str>>, shape: Shape, bytes: &'a [u8]) -> Self {
        TensorRef {
            name: name.into(),
            saved_name: None,
            shape,
            bytes: Bytes::Here(bytes),
        }
    }

    /// A tensor that is read when it is written.
    pub fn fetched(name: impl Into<Cow<'a, str>>, shape: Shape, from: &'a dyn Fetch) -> Self {
        TensorRef {
            name: name.into(),
            saved_name: None,
            shape,
            bytes: Bytes::Fetched(from),
        }
    }

    /// The same with another name in files.
    pub fn saved_as(self, name: String) -> Self {
        TensorRef {
            saved_name: Some(name),
            ..self
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let fetched;
        let bytes = match self.bytes {
            Bytes::Here(bytes) => bytes,
            Bytes::Fetched(from) => {
                fetched = from.fetch(&self.name)?;
                &fetched
            }
        };
        if bytes.len() != self.shape.bytes() {
            let (name, shape, found) = (&self.name, &self.shape, bytes.len());
            let problem = format!("tensor {name} is {shape} but has {found} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        out.write_all(bytes)
    }
}

/// The order in which a file holds tensors: wide types first, then by name.
pub(super) fn file_order<'t, 'a>(tensors: &'t [TensorRef<'a>]) -> Vec<&'t TensorRef<'a>> {
    let mut sorted: Vec<&TensorRef<'_>> = tensors.iter().collect();
    sorted.sort_by(|a, b| {
        b.shape
            .dtype
            .size()
            .cmp(&a.shape.dtype.size())
            .then_with(|| a.name.cmp(&b.name))
    });
    sorted
}

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

/// Our element types with the format's, and the names that it has for them.
const DTYPES: [(DType, Dtype, &str); 11] = [
    (DType::Pred, Dtype::BOOL, "BOOL"),
    (DType::S8, Dtype::I8, "I8"),
    (DType::S32, Dtype::I32, "I32"),
    (DType::S64, Dtype::I64, "I64"),
    (DType::U8, Dtype::U8, "U8"),
    (DType::U32, Dtype::U32, "U32"),
    (DType::U64, Dtype::U64, "U64"),
    (DType::F16, Dtype::F16, "F16"),
    (DType::BF16, Dtype::BF16, "BF16"),
    (DType::F32, Dtype::F32, "F32"),
    (DType::F64, Dtype::F64, "F64"),
];

fn from_safetensors(dtype: Dtype) -> Option<DType> {
    let known = DTYPES.iter().find(|(_, theirs, _)| *theirs == dtype);
    known.map(|(ours, ..)| *ours)
}

fn safetensors_name(dtype: DType) -> &'static str {
    let known = DTYPES.iter().find(|(ours, ..)| *ours == dtype);
    known.expect("the table lists every DType").2
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

/// Writes tensors as a safetensors file: widest element type first so that each stays aligned, then
/// by name. The same tensors give the same bytes, in whatever order they come. `metadata` is
/// `format: pt`, without which transformers refuses the file.
pub fn write_safetensors(out: &mut impl Write, tensors: &[TensorRef<'_>]) -> io::Result<()> {
    let sorted = file_order(tensors);
    let mut header = Map::new();
    header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut offset = 0;
    for tensor in &sorted {
        let end = offset + tensor.shape.bytes();
        let dtype = safetensors_name(tensor.shape.dtype);
        let info = serde_json::json!({"dtype": dtype, "shape": tensor.shape.dims, "data_offsets": [offset, end]});
        let name = tensor.saved_name.as_deref().unwrap_or(&tensor.name);
        if header.insert(name.to_string(), info).is_some() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("tensor {} is given twice", tensor.name),
            ));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    sorted.iter().try_for_each(|tensor| tensor.write(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn file(tensors: &[TensorRef<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        write_safetensors(&mut out, tensors).unwrap();
        out
    }

    fn f32s(dims: &[usize]) -> Shape {
        Shape::new(DType::F32, dims)
    }

    /// A look at a mapped page that is gone would be SIGBUS.
    #[test]
    fn a_file_that_is_cut_short_after_it_was_opened_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(WEIGHTS_FILE);
        let values = bytes(&vec![1.0; 10_000]);
        fs::write(
            &path,
            file(&[TensorRef::new("w", f32s(&[10_000]), &values)]),
        )
        .unwrap();
        let weights = Weights::open(&path).unwrap();
        assert_eq!(weights.read_f32("w").unwrap().1, vec![1.0; 10_000]);
        let cut = File::options().write(true).open(&path).unwrap();
        cut.set_len(100).unwrap();
        let message = weights.read_f32("w").unwrap_err().to_string();
        assert!(message.contains("is cut short"), "{message}");
    }

    #[test]
    fn new_rows_are_the_mean_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let values: Vec<u8> = [1f32, 2.0, 3.0, 6.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let tensors = [
            TensorRef::new("table", Shape::new(DType::F32, [2, 2]), &values),
            TensorRef::new("bias", Shape::new(DType::F32, [2]), &values[..8]),
            TensorRef::new("other", Shape::new(DType::F32, [2]), &values[8..]),
        ];
        let mut file = std::fs::File::create(&path).unwrap();
        write_safetensors(&mut file, &tensors).unwrap();
        let weights = Weights::open(&path).unwrap();
        let names = ["table", "bias"].map(str::to_string);
        let longer = weights.lengthened(&names, 4);
        let table = vec![1.0, 2.0, 3.0, 6.0, 2.0, 4.0, 2.0, 4.0];
        assert_eq!(longer.read_f32("table").unwrap(), (vec![4, 2], table));
        assert_eq!(
            longer.read_f32("bias").unwrap(),
            (vec![4], vec![1.0, 2.0, 1.5, 1.5])
        );
        assert_eq!(longer.read_f32("other").unwrap(), (vec![2], vec![3.0, 6.0]));
        assert_eq!(
            weights.lengthened(&names, 1).read_f32("bias").unwrap().0,
            [2]
        );
    }

    #[test]
    fn writes_what_it_reads_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, flags) = (
            bytes(&[1.0, -0.0, f32::NAN, 4.0]),
            bytes(&[5.0]),
            [1u8, 0, 1],
        );
        let mut tensors = vec![
            TensorRef::new("z.flags", Shape::new(DType::Pred, [3]), &flags),
            TensorRef::new("h.0.weight", f32s(&[2, 2]), &a),
            TensorRef::new("bias", f32s(&[]), &b),
            TensorRef::new("empty", f32s(&[0, 3]), &[]),
        ];
        let one = file(&tensors);
        tensors.reverse();
        assert_eq!(one, file(&tensors));

        fs::write(dir.path().join(WEIGHTS_FILE), &one).unwrap();
        let weights = Weights::open(dir.path()).unwrap();
        let names: Vec<_> = weights.iter().map(|t| t.name.to_string()).collect();
        assert_eq!(names, ["bias", "empty", "h.0.weight", "z.flags"]);
        assert_eq!(weights.get("h.0.weight").unwrap().bytes, a);
        assert_eq!(
            weights.get("z.flags").unwrap().shape,
            Shape::new(DType::Pred, [3])
        );
        // The reference implementation agrees, metadata included.
        let (_, metadata) = SafeTensors::read_metadata(&one).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    }

    #[test]
    fn floats_convert_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let half: Vec<u8> = [1.5f32, -2.0]
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect();
        let brain: Vec<u8> = [1.5f32, -2.0]
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect();
        let double: Vec<u8> = [1.5f64, -2.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let tensors = [
            TensorRef::new("half", Shape::new(DType::F16, [2]), &half),
            TensorRef::new("brain", Shape::new(DType::BF16, [2]), &brain),
            TensorRef::new("double", Shape::new(DType::F64, [2]), &double),
            TensorRef::new("int", Shape::new(DType::S32, [2]), &double[..8]),
        ];
        fs::write(&path, file(&tensors)).unwrap();
        let weights = Weights::open(&path).unwrap();
        for name in ["half", "brain", "double"] {
            assert_eq!(
                weights.read_f32(name).unwrap(),
                (vec![2], vec![1.5, -2.0]),
                "{name}"
            );
        }
        let error = weights.read("int", &f32s(&[2])).unwrap_err().to_string();
        assert!(
            error.contains("tensor int is s32[2]") && error.contains("f32[2]"),
            "{error}"
        );
        assert!(weights.read("half", &f32s(&[1, 2])).is_err());
        assert!(
            weights
                .read("none", &f32s(&[2]))
                .unwrap_err()
                .to_string()
                .contains("none")
        );
    }

    #[test]
    fn every_difference_is_listed_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(WEIGHTS_FILE);
        let data = bytes(&[0.0; 6]);
        let tensors =
            ["a", "b", "c", "attn.bias"].map(|name| TensorRef::new(name, f32s(&[2, 3]), &data));
        fs::write(&path, file(&tensors)).unwrap();
        let weights = Weights::open(&path).unwrap();
        let (good, turned, other) = (f32s(&[2, 3]), f32s(&[3, 2]), f32s(&[1]));
        let wanted = [("a", &good), ("b", &turned), ("wte.weight", &other)];
        let error = weights
            .check(wanted, |name| name.ends_with("attn.bias"))
            .unwrap_err()
            .to_string();
        for part in [
            "model.safetensors",
            "missing (1):\n    wte.weight",
            "unexpected (1):\n    c",
            "b: the model wants f32[3,2], the file has f32[2,3]",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(!error.contains("attn.bias"));
        let many: Vec<_> = (0..40).map(|i| format!("h.{i:02}")).collect();
        let error = weights
            .check(many.iter().map(|n| (n.as_str(), &good)), |_| true)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("missing (40)") && error.contains("and 24 more"),
            "{error}"
        );
    }

    #[test]
    fn any_cut_is_an_error_that_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(WEIGHTS_FILE);
        let data = bytes(&[1.0; 6]);
        let whole = file(&[TensorRef::new("a", f32s(&[2, 3]), &data)]);
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = Weights::open(&path).unwrap_err();
            assert!(
                matches!(error, Error::Truncated { .. }),
                "cut at {cut}: {error}"
            );
        }
        let mut long = whole.clone();
        long.push(0);
        fs::write(&path, long).unwrap();
        assert!(
            Weights::open(&path)
                .unwrap_err()
                .to_string()
                .contains("1 bytes follow")
        );
        fs::write(&path, "<html>404 this is not a tensor file at all</html>").unwrap();
        assert!(matches!(
            Weights::open(&path).unwrap_err(),
            Error::NotSafetensors { .. }
        ));
    }

    #[test]
    fn random_damage_never_panics() {
        use rand_chacha::rand_core::{Rng, SeedableRng};
        let data = bytes(&[1.0; 6]);
        let whole = file(&[
            TensorRef::new("a", f32s(&[2, 3]), &data),
            TensorRef::new("b", f32s(&[6]), &data),
        ]);
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        for _ in 0..2000 {
            let mut copy = whole.clone();
            let at = rng.next_u32() as usize % copy.len();
            copy[at] = rng.next_u32() as u8;
            let mut tensors = BTreeMap::new();
            if read_header(Path::new("x"), &copy, 0, &mut tensors).is_ok() {
                assert!(tensors.values().all(|entry| entry.end <= copy.len()));
            }
        }
    }

    #[test]
    fn shards_are_found_through_their_index() {
        let dir = tempfile::tempdir().unwrap();
        let data = bytes(&[1.0; 2]);
        for (shard, tensor) in [
            ("model-00001-of-00002.safetensors", "a"),
            ("model-00002-of-00002.safetensors", "b"),
        ] {
            fs::write(
                dir.path().join(shard),
                file(&[TensorRef::new(tensor, f32s(&[2]), &data)]),
            )
            .unwrap();
        }
        let index = |map: Value| {
            let json = serde_json::json!({"metadata": {"total_size": 16}, "weight_map": map});
            fs::write(dir.path().join(WEIGHTS_INDEX_FILE), json.to_string()).unwrap();
            Weights::open(dir.path())
        };
        let (one, two) = (
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        );
        assert_eq!(
            index(serde_json::json!({"a": one, "b": two}))
                .unwrap()
                .len(),
            2
        );
        let error = index(serde_json::json!({"a": two, "b": two}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no tensor a") && error.contains(two),
            "{error}"
        );
        let error = index(serde_json::json!({"a": "model-00003-of-00002.safetensors"}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("names model-00003-of-00002.safetensors, which is not beside it"),
            "{error}"
        );
        assert!(
            index(serde_json::json!({"a": "../x"}))
                .unwrap_err()
                .to_string()
                .contains("plain file name")
        );
    }

    #[test]
    fn pointers_of_git_lfs_are_no_weights() {
        let dir = tempfile::tempdir().unwrap();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        for name in ["pytorch_model.bin", "model.safetensors"] {
            fs::write(dir.path().join(name), pointer).unwrap();
            let error = Weights::open(dir.path()).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("git lfs pull"),
                "{error}"
            );
        }
    }

    #[test]
    fn other_formats_are_refused_with_the_way_to_convert() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Weights::open(dir.path())
                .unwrap_err()
                .to_string()
                .starts_with("no model.safetensors in")
        );
        fs::write(dir.path().join("tf_model.h5"), "x").unwrap();
        let error = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("tf_model.h5") && error.contains("save_pretrained()"),
            "{error}"
        );
        fs::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
        let error = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("pytorch_model.bin") && error.contains("safe_serialization=True"),
            "{error}"
        );
        assert!(
            Weights::open(&dir.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("none")
        );
    }
}
