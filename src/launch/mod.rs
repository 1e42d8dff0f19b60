//! The launcher: starts the processes of one machine, watches over them, and starts the job again
//! after a failure ([`node`], `ranks`).

mod child;
mod error;
pub mod node;
mod ranks;

pub use crate::distributed::Verdict;
pub use child::{Sink, Supervised, own_process};
pub use error::Error;
pub use node::{LaunchSettings, launch};

/// A result of this layer.
pub type Result<T> = std::result::Result<T, Error>;
