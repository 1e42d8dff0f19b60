//! Writing safetensors files: streaming and byte-deterministic.

use std::borrow::Cow;
use std::io::{self, Write};

use safetensors::Dtype;
use serde_json::Map;
use xtrain_graphs::{DType, Shape};

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

pub(super) fn from_safetensors(dtype: Dtype) -> Option<DType> {
    let known = DTYPES.iter().find(|(_, theirs, _)| *theirs == dtype);
    known.map(|(ours, ..)| *ours)
}

fn safetensors_name(dtype: DType) -> &'static str {
    let known = DTYPES.iter().find(|(ours, ..)| *ours == dtype);
    known.expect("the table lists every DType").2
}
