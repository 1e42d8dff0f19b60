//! Everything that can go wrong between xtrain and a device, each variant saying what happened,
//! where, and what to do.

use std::fmt;
use std::path::PathBuf;
use xtrain_graphs::{DType, Shape};

/// The result of this module's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between xtrain and a device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    // Finding and opening libraries.
    #[error(
        "the XLA library libxtrain_xla.so was not found; looked in:{}\nrun bin/bootstrap to build it, or set XTRAIN_XLA_LIBRARY to its path",
        list(.tried)
    )]
    LibraryNotFound { tried: Vec<PathBuf> },

    #[error("no plugin for {device} was found; looked at:{}\n{install}", list(.tried))]
    PluginNotFound {
        device: &'static str,
        variable: &'static str,
        install: &'static str,
        tried: Vec<PathBuf>,
    },

    #[error(
        "{} belongs to libneuronxla {found}, which compiles through Python inside the process; xtrain needs 3.0 or newer, which runs \
         neuronx-cc instead: install that one from AWS's package index",
        .path.display()
    )]
    NeuronVersion { path: PathBuf, found: String },

    #[error(
        "XLA's compiler for NVIDIA cards needs ptxas and libdevice.10.bc of CUDA {major}; looked at:{tried}\n{install}, or set CUDA_HOME \
         to a CUDA {major} toolkit"
    )]
    CudaTools {
        tried: String,
        install: String,
        major: i64,
    },

    #[error(
        "the device reports that its {name} is `{found}`, not {wanted}; the plugin is broken or of another version"
    )]
    DeviceAttribute {
        name: &'static str,
        found: String,
        wanted: &'static str,
    },

    #[error("{variable}={value} {problem}; {fix}")]
    Contradiction {
        variable: &'static str,
        value: String,
        problem: String,
        fix: String,
    },

    #[error("cannot open the library {}: {reason}; check that the file is complete and that the libraries it needs are beside it", .path.display())]
    LibraryOpen { path: PathBuf, reason: String },

    #[error("{} has no function {symbol} ({reason}); it is not {wanted}", .path.display())]
    SymbolMissing {
        path: PathBuf,
        symbol: &'static str,
        reason: String,
        wanted: &'static str,
    },

    #[error("{} speaks version {found} of xtrain's library interface, this program speaks {wanted}; run bin/bootstrap to rebuild both", .path.display())]
    LibraryAbi {
        path: PathBuf,
        found: u32,
        wanted: u32,
    },

    #[error("cannot lower the graph to HLO: {message}")]
    Lower { message: String },

    #[error("cannot record a profile: {message}")]
    Profile { message: String },

    // Talking to a plugin.
    #[error("the plugin {} is unusable: {reason}", .path.display())]
    PluginTable { path: PathBuf, reason: String },

    #[error(
        "the plugin {} implements PJRT C API {}.{}, xtrain needs {}.{} or newer with the same major number; install another version of the plugin",
        .path.display(), .found.0, .found.1, .wanted.0, .wanted.1
    )]
    PluginVersion {
        path: PathBuf,
        found: (i32, i32),
        wanted: (i32, i32),
    },

    #[error(
        "the plugin {} (PJRT C API {}.{}) does not have the call {call}; a newer version of the plugin may",
        .path.display(), .version.0, .version.1
    )]
    CallMissing {
        call: &'static str,
        path: PathBuf,
        version: (i32, i32),
    },

    #[error("{call} failed in {}: {code}: {message}{}", .path.display(), hint(*.code, .message))]
    Call {
        call: &'static str,
        code: Code,
        message: String,
        path: PathBuf,
    },

    #[error("{doing}: {source}")]
    During { doing: String, source: Box<Error> },

    #[error("{call} in {} reported success but {reason}; the plugin is broken or of another version", .path.display())]
    PluginAnswer {
        call: &'static str,
        reason: String,
        path: PathBuf,
    },

    // What callers get wrong.
    #[error(
        "no device {device}: this process can address {available} {platform} device(s), numbered from 0"
    )]
    NoSuchDevice {
        device: usize,
        available: usize,
        platform: String,
    },

    #[error("{len} bytes cannot fill {shape}, which takes {}", byte_count(.shape))]
    ByteCount { len: usize, shape: Shape },

    #[error("cannot read {shape} as {wanted}: its elements are {} in Rust, or u8 for plain bytes", rust_name(.shape.dtype))]
    ElementType { shape: Shape, wanted: &'static str },

    #[error("{what} count: the executable takes {expected}, {got} given")]
    Count {
        what: &'static str,
        expected: usize,
        got: usize,
    },

    #[error(
        "argument {index} of device {device} is {got}, the executable was compiled for {expected}"
    )]
    ArgumentShape {
        device: usize,
        index: usize,
        expected: Shape,
        got: Shape,
    },

    #[error(
        "argument {index} of device {device} is on device {got}, the executable runs on device {expected}; upload it there"
    )]
    ArgumentDevice {
        device: usize,
        index: usize,
        expected: usize,
        got: usize,
    },

    #[error(
        "argument {index} of device {device} belongs to another client; buffers cannot cross clients, download and upload it"
    )]
    ArgumentClient { device: usize, index: usize },

    #[error(
        "argument {index} of device {device} ({shape}) was deleted or donated to an earlier execution; use the output that took its place"
    )]
    ArgumentDeleted {
        device: usize,
        index: usize,
        shape: Shape,
    },

    #[error(
        "the buffer {shape} was deleted or donated to an execution; use the output that took its place"
    )]
    BufferDeleted { shape: Shape },

    #[error(
        "the executable runs on {devices} devices; use execute_replicated with one argument list for each"
    )]
    NotSingleDevice { devices: usize },

    #[error(
        "{side} {index} is {module} in the module but {signature} in the signature that it is compiled with"
    )]
    SignatureShape {
        side: &'static str,
        index: usize,
        module: String,
        signature: Shape,
    },

    #[error(
        "the module has {module} {side}s, the signature that it is compiled with has {signature}"
    )]
    SignatureCount {
        side: &'static str,
        module: usize,
        signature: usize,
    },

    #[error("the bytes are not a serialized HloModuleProto: {reason}")]
    ModuleBytes { reason: String },

    #[error("invalid compile options: {reason}")]
    Options { reason: String },
}

impl Error {
    /// The same error with a line in front that says what was being done.
    pub fn during(self, doing: impl Into<String>) -> Self {
        Error::During {
            doing: doing.into(),
            source: Box::new(self),
        }
    }

    /// The plugin's error code, if the plugin is where it came from.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Call { code, .. } => Some(*code),
            Error::During { source, .. } => source.code(),
            _ => None,
        }
    }

    /// Whether the plugin lacks the call altogether, so that a caller may do without the answer.
    pub fn is_unimplemented(&self) -> bool {
        match self {
            Error::CallMissing { .. } => true,
            Error::During { source, .. } => source.is_unimplemented(),
            _ => self.code() == Some(Code::Unimplemented),
        }
    }
}

/// Codes in the order of their numbers, from 1, each with its name.
macro_rules! codes {
    ($($code:ident $name:literal),* $(,)?) => {
        /// PJRT's error codes, which are absl's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($code),*
        }

        const CODES: &[(Code, &str)] = &[$((Code::$code, $name)),*];
    };
}

codes! {
    Cancelled "CANCELLED",
    Unknown "UNKNOWN",
    InvalidArgument "INVALID_ARGUMENT",
    DeadlineExceeded "DEADLINE_EXCEEDED",
    NotFound "NOT_FOUND",
    AlreadyExists "ALREADY_EXISTS",
    PermissionDenied "PERMISSION_DENIED",
    ResourceExhausted "RESOURCE_EXHAUSTED",
    FailedPrecondition "FAILED_PRECONDITION",
    Aborted "ABORTED",
    OutOfRange "OUT_OF_RANGE",
    Unimplemented "UNIMPLEMENTED",
    Internal "INTERNAL",
    Unavailable "UNAVAILABLE",
    DataLoss "DATA_LOSS",
    Unauthenticated "UNAUTHENTICATED",
}

impl Code {
    pub(super) fn from_raw(raw: u32) -> Self {
        let known = CODES.get((raw as usize).wrapping_sub(1));
        known.map_or(Code::Unknown, |(code, _)| *code)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CODES[*self as usize].1)
    }
}

/// The Rust type that holds one element, for messages.
fn rust_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Pred => "bool or u8",
        DType::S8 => "i8",
        DType::S32 => "i32",
        DType::S64 => "i64",
        DType::U8 => "u8",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F16 => "half::f16",
        DType::BF16 => "half::bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
    }
}

/// For messages about shapes that may be absurd; `Shape::bytes` would overflow.
fn byte_count(shape: &Shape) -> u128 {
    shape.dims.iter().fold(shape.dtype.size() as u128, |n, &d| {
        n.saturating_mul(d as u128)
    })
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| format!("\n  {}", path.display()))
        .collect()
}

fn hint(code: Code, message: &str) -> String {
    if let Some(meaning) = super::neuron::status::explain(message) {
        return format!(" ({meaning})");
    }
    let hint = match code {
        Code::ResourceExhausted => {
            " (the device is out of memory: lower the batch or block size, or use more devices)"
        }
        Code::InvalidArgument if message.contains("size: expected") => {
            " (the plugin was built for a different version of the PJRT C API: install the version that xtrain's documentation names)"
        }
        _ => CUDA_HINTS
            .iter()
            .find(|(sign, _)| message.contains(sign))
            .map_or("", |(_, hint)| hint),
    };
    hint.to_string()
}

/// What XLA:GPU says, by a part of it, and what to do about it.
const CUDA_HINTS: [(&str, &str); 5] = [
    (
        "No visible GPU devices",
        " (no NVIDIA GPU can be used here: nvidia-smi must list one, and CUDA_VISIBLE_DEVICES and --visible_devices must not hide it; \
         without a GPU, `xtrain compile --device cuda --target h200` compiles for one)",
    ),
    (
        "driver version is insufficient",
        " (the driver is too old for the plugin's CUDA: CUDA 13 needs driver 580 or newer, CUDA 12 driver 525; update the driver, or install \
         jax-cuda12-plugin)",
    ),
    (
        "No PTX compilation provider",
        " (ptxas was not found: install nvidia-cuda-nvcc beside the plugin, or set CUDA_HOME)",
    ),
    (
        "libdevice",
        " (libdevice.10.bc was not found: install nvidia-nvvm beside the plugin, or set CUDA_HOME)",
    ),
    (
        "cuDNN",
        " (cuDNN did not take an operation or is missing: see `xtrain doctor --device cuda`; --attn_implementation eager does without)",
    ),
];
