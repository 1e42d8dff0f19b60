//! What can go wrong in the launcher.

/// Why the launcher gave up.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error("{endpoint} is not of the form HOST:PORT")]
    Endpoint { endpoint: String },
    #[error(
        "several nodes need one secret: put the same one into XTRAIN_RDZV_SECRET, or into a file for --rdzv_secret_file, on each"
    )]
    NoSecret,
    #[error("cannot watch for signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot start rank {rank}: {source}")]
    Start { rank: usize, source: std::io::Error },
    #[error(transparent)]
    Distributed(#[from] crate::distributed::Error),
}
