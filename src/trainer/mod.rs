//! The step, the loop and everything that hangs on it.

pub mod settings;
