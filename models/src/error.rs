//! What can be wrong with a model's configuration or weights.

/// What building or recording a model can fail with.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// A configuration lacks a key that has no default.
    #[error("{source_name}: `{key}` is missing")]
    MissingKey { source_name: String, key: String },
    /// A value of another type than the key's.
    #[error("{source_name}: `{key}` must be {expected}, got {found}")]
    WrongType {
        source_name: String,
        key: String,
        expected: &'static str,
        found: String,
    },
    /// A value that no model here implements.
    #[error("{source_name}: `{key}` = {found}: {reason}")]
    Unsupported {
        source_name: String,
        key: String,
        found: String,
        reason: String,
    },
    /// An override of a key that does not exist, or with a value of another type.
    #[error("config_overrides: {key}={found}: {reason}")]
    Override {
        key: String,
        found: String,
        reason: String,
    },
    /// A step lacks a weight that the forward pass asks for.
    #[error("the model has no weight `{name}`")]
    NoSuchWeight { name: String },
    /// The forward pass asks for a weight in another shape than it has.
    #[error("weight `{name}`: the forward pass asks for {wanted:?}, the model has {found:?}")]
    WeightShape {
        name: String,
        wanted: Vec<usize>,
        found: Vec<usize>,
    },
    /// A tensor-parallel degree that does not divide heads and intermediate sizes.
    #[error(
        "{degree} devices cannot divide layers of {heads} heads between them; degrees that can: {legal}"
    )]
    TensorDegree {
        degree: usize,
        heads: usize,
        legal: String,
    },
    /// A matrix in blocks of 4 bits that go on from row to row.
    #[error(
        "`{name}` {dims:?} in 4 bits: devices of a tensor axis cannot hold parts of a matrix whose rows are no whole blocks of 64 values;          use --load_in_8bit, or --shard_parallel or --data_parallel in place of --tensor_parallel"
    )]
    QuantizedRows { name: String, dims: Vec<usize> },
    /// An objective asks for something that the batch is not fed.
    #[error("the batch is not fed `{name}`; it has {}", known.join(", "))]
    NoSuchFeed {
        name: String,
        known: Vec<&'static str>,
    },
    /// Nothing is left to train.
    #[error("all {parameters} parameters of the model are frozen: there is nothing to train")]
    AllFrozen { parameters: usize },
    /// The choice of what is trained was made before.
    #[error("what is trained of a model is chosen once, before anything reads its parameters")]
    FrozenTwice,
    /// An adapter that is added to nothing.
    #[error("target_modules means no layer of the model; these end in {}", known.join(", "))]
    NothingToAdapt { known: Vec<String> },
    /// A module to save that there is not.
    #[error("modules_to_save: the model has no module `{name}`; its modules end in {}", known.join(", "))]
    NoModule { name: String, known: Vec<String> },
    /// A bias of B where the layer has none, in which it could be merged.
    #[error("lora_bias: `{module}` has no bias, so that PEFT adds none to B either")]
    NoBias { module: String },
    /// A module to save whose weights are another one's.
    #[error(
        "modules_to_save: `{module}` is tied to `{other}`, which would keep the matrix as it was: that is not implemented; name {other} as well, or alone"
    )]
    TiedToSave { module: String, other: String },
    /// A token to train that there is not.
    #[error(
        "trainable_token_indices: the model has no token {token}; its vocabulary is {vocabulary}"
    )]
    NoToken { token: usize, vocabulary: usize },
    /// DoRA of a table of tokens.
    #[error("use_dora: magnitudes of the embeddings `{module}` are not implemented")]
    NoMagnitudes { module: String },
    /// A classifier without labels.
    #[error("a classifier needs at least one label")]
    NoLabels,
    /// Texts that may grow over the length at which `longrope` changes.
    #[error(
        "longrope: with room for {tokens} tokens a text can pass the {original} of `original_max_position_embeddings`, where kept keys would \
         need other frequencies, which is not implemented; shorten the prompt or lower --max_new_tokens"
    )]
    LongGeneration { tokens: usize, original: usize },
    /// Rows of several examples over the length at which `longrope` changes.
    #[error(
        "longrope: rows of {tokens} tokens are longer than the {original} of `original_max_position_embeddings`, and an example in them would \
         get the frequencies of its row's length, not of its own; set --max_length {original} or less, or train without --packing"
    )]
    LongPacking { tokens: usize, original: usize },
    /// Packed examples with an attention mask.
    #[error(
        "a batch of packed examples (`position_ids`) has an attention mask besides: leave it out, padding is an example of one token"
    )]
    MaskedPacking,
    /// A cache for other models.
    #[error("the cache has {layers} layers, and the model has more: a defect of xtrain")]
    CacheLayers { layers: usize },
    /// Recording an operation failed.
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
}

/// What functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
