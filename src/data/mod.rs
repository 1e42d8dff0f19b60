//! Text to tokens to device batches.

pub mod settings;
