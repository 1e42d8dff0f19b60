//! The screen of `xtrain top`: one run's state, gathered from its output directory, and the machine's
//! devices beside it.
//!
//! `snapshot` reads the run, `processes` the use of this machine by its ranks, `devices` the hardware (Neuron's files, neuron-monitor, nvidia-smi),
//! `view` draws both.

pub mod devices;
mod monitor;
pub mod processes;
mod snapshot;
mod view;

pub use snapshot::{Rank, Snapshot, State};
pub use view::draw;
