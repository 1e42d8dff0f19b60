//! What can go wrong between processes.

use std::path::PathBuf;

/// Why the processes of a run cannot join, or one of them fell out.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error("{variable} is `{value}`: {problem}")]
    Environment {
        variable: String,
        value: String,
        problem: String,
    },
    #[error(
        "{given} is set, which {source_name} sets for each of its processes, but {missing} is not; set it, or unset {given}"
    )]
    Incomplete {
        given: &'static str,
        missing: &'static str,
        source_name: &'static str,
    },
    #[error(
        "XTRAIN_RDZV_SECRET is not set, and the processes of {engine} share no home directory to keep a secret in; {how}"
    )]
    NoSecret {
        engine: &'static str,
        how: &'static str,
    },
    #[error("{}: {problem}", .path.display())]
    Engine { path: PathBuf, problem: String },
    #[error("cannot listen at {endpoint}: {source}{}", if .source.kind() == std::io::ErrorKind::AddrInUse {
        "; another job may run there: name another port"
    } else if .source.kind() == std::io::ErrorKind::AddrNotAvailable {
        "; the endpoint must be an address of the machine of node 0 (rank 0)"
    } else { "" })]
    Listen {
        endpoint: String,
        source: std::io::Error,
    },
    #[error(
        "the rendezvous at {endpoint} could not be reached within {seconds} s ({last}); is node 0 (rank 0) running, and is that its \
         address?"
    )]
    Unreachable {
        endpoint: String,
        seconds: u64,
        last: String,
    },
    #[error("the rendezvous at {endpoint} refuses this process: {reason}")]
    Refused { endpoint: String, reason: String },
    #[error(
        "the process at {endpoint} does not know the secret, so it is not the rendezvous of this job"
    )]
    Impostor { endpoint: String },
    #[error("rank {rank} is {by} already: each process of a job has a rank of its own")]
    Taken { rank: usize, by: String },
    #[error("the connection to the rendezvous at {endpoint} was lost: {reason}")]
    Lost { endpoint: String, reason: String },
    #[error(
        "the rendezvous at {endpoint} is not the one that this process joined: node 0 (rank 0) was started again; start all of the job \
         again"
    )]
    Replaced { endpoint: String },
    #[error("{what} did not arrive within {seconds} s: {}", match &.missing[..] {
        [] => "a process of the job has not reached this point".into(),
        missing => format!("{} did not join", super::job::listed("rank", missing)),
    })]
    Timeout {
        what: String,
        seconds: u64,
        /// Ranks that have not joined.
        missing: Vec<usize>,
    },
    #[error("{}: {problem}", .path.display())]
    Secret { path: PathBuf, problem: String },
    #[error("cannot start the heartbeat thread of rank {rank}: {source}")]
    Heartbeat { rank: usize, source: std::io::Error },
}

impl Error {
    /// Whether other processes are the reason: they, or the way to them, are gone.
    pub fn is_of_peers(&self) -> bool {
        matches!(
            self,
            Error::Unreachable { .. }
                | Error::Refused { .. }
                | Error::Lost { .. }
                | Error::Replaced { .. }
                | Error::Timeout { .. }
        )
    }
}
