//! Several processes: how a process learns which one it is ([`environment`]), the rendezvous where
//! they find each other ([`server`], [`group`]), and the launcher that starts them, watches over
//! them and starts them again ([`node`]).
//!
//! The rendezvous carries bootstrap data only: addresses, ranks, heartbeats, who failed. What
//! training exchanges goes between the devices, by the engine of their platform.

pub mod environment;
mod error;
pub mod group;
mod hostlist;
mod job;
pub mod node;
mod ranks;
pub mod secret;
mod server;
mod wire;

pub use environment::Member;
pub use error::Error;
pub use group::Group;
pub use job::Verdict;
pub use node::{LaunchSettings, launch};

/// A result of this layer.
pub type Result<T> = std::result::Result<T, Error>;
