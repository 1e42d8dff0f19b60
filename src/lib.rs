//! xtrain: trains language models as whole compiled XLA graphs.
//!
//! The modules below are in reading order, and imports point downwards only: a module may use those listed after it, never one
//! listed before it (`tests/layers.rs` fails on a back edge). Lower layers define the settings that they need; `config`
//! resolves what the user typed into them.

pub mod cache;
pub mod checkpoint;
pub mod commands;
pub mod config;
pub mod data;
pub mod launch;
pub mod parallel;
pub mod report;
pub mod runtime;
pub mod trainer;
