//! What `xtrain top` shows: one run's state, gathered from its output directory, and the machine's
//! devices beside it.
//!
//! `snapshot` reads the run, `devices` the hardware (Neuron's files, neuron-monitor, nvidia-smi),
//! `view` draws both.

pub mod devices;
mod monitor;
mod snapshot;
mod view;

pub use snapshot::{Snapshot, State};
pub use view::draw;
