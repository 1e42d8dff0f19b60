//! What can go wrong on the way from a graph to an executable. Trouble with stored entries is not
//! among it: that is a miss.

use std::path::PathBuf;

/// Why a compiled graph cannot be found, stored, exported or compiled.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
    #[error(transparent)]
    Runtime(#[from] xtrain_runtime::Error),
    #[error(
        "graph `{phase}` would be compiled again ({reason}), and --fail_on_recompile is set; `xtrain compile` compiles ahead"
    )]
    Recompile { phase: String, reason: String },
    #[error(
        "graph `{phase}` is in the cache neither compiled nor lowered for {target}, and what lowers it is not here: {missing}\nto bring it \
         lowered: `xtrain compile` with the flags of this run and --target (docs/cuda.md) where the library is, `xtrain cache export \
         --modules_only` there, `xtrain cache import` here"
    )]
    NotLowered {
        phase: String,
        target: String,
        missing: Box<xtrain_runtime::Error>,
    },
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Secret(#[from] xtrain_distributed::Error),
    #[error(transparent)]
    Remote(#[from] xtrain_objects::Error),
    /// The message is whole, so there is no source.
    #[error("{}", .0.naming("--cache_dir"))]
    Checkpoint(xtrain_checkpoint::Error),
}

impl From<xtrain_checkpoint::Error> for Error {
    fn from(error: xtrain_checkpoint::Error) -> Self {
        Error::Checkpoint(error)
    }
}

impl Error {
    /// For `map_err`.
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }
}
