//! Files that must survive: Hugging Face directories, exact training state, and the care that both
//! are written with.
//!
//! Reading order: `atomic` (aside, synced, renamed), `named` (files that the user names), `lock` (one process at a time), `weights` (what is read: safetensors;
//! `torch` with `pickle`: pytorch_model.bin), `tensors` (what is written, in several files: `shards`), `hf` (the JSON files transformers writes), `optimizer` (in one file or several),
//! `state` (`checkpoint-N/`), `pace` (beside training, not against it), `keep` (how many of them stay). Nothing here knows a model, a device
//! or a tokenizer.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod atomic;
mod error;
#[cfg(test)]
mod fuzz;
pub mod hash;
pub mod hf;
mod json;
pub mod keep;
pub mod lock;
pub mod named;
pub mod optimizer;
pub mod pace;
mod pickle;
pub mod shards;
pub mod state;
mod tensors;
mod torch;
pub mod weights;

pub use error::{Error, Mismatch, Result, is_full};
pub use keep::prune;
pub use pace::Pace;
pub use shards::written_order;
pub use state::{
    Checkpoint, CheckpointParts, TrainingState, clean_output_dir, list_checkpoints,
    load_checkpoint, read_state, save_checkpoint,
};
pub use tensors::{Fetch, TensorRef, write_safetensors};
pub use weights::{TensorView, Weights};
pub use xtrain_report::files;
