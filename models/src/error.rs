//! What can be wrong with a model's configuration or weights.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{source_name}: `{key}` is missing")]
    MissingKey { source_name: String, key: String },
    #[error("{source_name}: `{key}` must be {expected}, got {found}")]
    WrongType {
        source_name: String,
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("{source_name}: `{key}` = {found}: {reason}")]
    Unsupported {
        source_name: String,
        key: String,
        found: String,
        reason: String,
    },
    #[error("config_overrides: {key}={found}: {reason}")]
    Override {
        key: String,
        found: String,
        reason: String,
    },
    #[error("the model has no weight `{name}`")]
    NoSuchWeight { name: String },
    #[error("weight `{name}`: the forward pass asks for {wanted:?}, the model has {found:?}")]
    WeightShape {
        name: String,
        wanted: Vec<usize>,
        found: Vec<usize>,
    },
    #[error(
        "{degree} devices cannot divide layers of {heads} heads between them; degrees that can: {legal}"
    )]
    TensorDegree {
        degree: usize,
        heads: usize,
        legal: String,
    },
    #[error("a classifier needs a label at least")]
    NoLabels,
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
