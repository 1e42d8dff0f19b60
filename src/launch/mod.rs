//! The launcher: starts the processes of one machine, watches over them, and starts the job again
//! after a failure ([`node`], `ranks`).

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod child;
mod error;
pub mod node;
mod ranks;

pub use child::{Sink, Supervised, own_process};
pub use error::Error;
pub use node::{LaunchSettings, launch};
pub use xtrain_distributed::Verdict;

/// A result of this layer.
pub type Result<T> = std::result::Result<T, Error>;
