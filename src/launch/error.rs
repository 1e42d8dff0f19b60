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
    #[error("cannot wait for rank {rank}: {source}")]
    Wait { rank: usize, source: std::io::Error },
    #[error(
        "rank {rank} (process {process}) was killed a minute ago and has not ended: it waits in the kernel, for a file system or a \
         device that does not answer"
    )]
    Unkillable { rank: usize, process: u32 },
    #[error(
        "--nproc_per_node {processes}: the {free} of free memory hold {most} processes at most ({each} each)"
    )]
    TooMany {
        processes: usize,
        most: u64,
        free: String,
        each: String,
    },
    #[error(transparent)]
    Distributed(#[from] xtrain_distributed::Error),
}
