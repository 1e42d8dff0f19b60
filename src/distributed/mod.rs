//! The process group: how a process learns its rank ([`environment`]), and the rendezvous where the
//! processes of a job find each other ([`server`], [`process_group`]).
//!
//! The rendezvous carries bootstrap data only: addresses, ranks, heartbeats, failures. What
//! training exchanges goes between the devices, by the collectives of their platform.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod backoff;
mod channel;
pub mod environment;
mod error;
#[cfg(test)]
mod fuzz;
mod hostlist;
pub mod job;
pub mod process_group;
pub mod secret;
pub mod server;
mod strangers;
pub mod wire;

pub use environment::RankInfo;
pub use error::Error;
pub use job::Verdict;
pub use process_group::ProcessGroup;

/// A result of this layer.
pub type Result<T> = std::result::Result<T, Error>;
