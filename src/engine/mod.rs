//! A run put together from a plan: tokenizer, model, task, data, session and step, and what can be
//! done with it: train, evaluate, predict, compile ahead, find the largest batch, compare meshes.

pub mod batches;
pub mod device;
mod error;
pub mod exchanged;
pub mod fit;
pub mod meshes;
pub mod model;
pub mod predict;
pub mod resume;
pub mod run;
pub mod target;
pub mod task;
pub mod train;

pub use error::{Error, Outcome, failed};
