//! xtrain: trains language models as whole compiled XLA graphs.
//!
//! The modules below are in reading order, and imports point downwards only: a module may use those
//! listed after it, never one listed before it (`tests/layers.rs` fails on a back edge). Lower
//! layers define the settings that they need; `config` resolves what the user typed into them.

/// What each command prints of what the engine does.
pub mod commands;

/// A run put together from a plan, and what can be done with it.
pub mod engine;

/// What was typed, resolved into plans; every illegal combination is refused here.
pub mod config;

/// Names on the Hugging Face Hub to local files.
pub mod hub;

/// Text to tokens to device batches.
pub mod data;

/// The step, the loop, and what hangs on it.
pub mod trainer;

/// The mesh of replicas and what they exchange.
pub mod parallel;

/// Compiled graphs.
pub mod cache;

/// The PJRT C API: clients, buffers, executables.
pub mod runtime;

/// Hugging Face directories and exact training state.
pub mod checkpoint;

/// The launcher: starts the ranks of a job, watches them, restarts them.
pub mod launch;

/// The process group: rank, rendezvous, heartbeats.
pub mod distributed;

/// Step line, records, tables.
pub mod report;
