//! How a run is spread over devices: the mesh of replicas, and what they exchange. Decides data;
//! the graph's passes and the trainer act on it.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod buckets;
pub mod mesh;
pub mod placement;
pub mod schedule;
pub mod stages;

pub use mesh::{Axis, Mesh};
pub use placement::{AxisSharding, Placements, ZeroSharding};
pub use schedule::PipelineSchedule;
pub use stages::Stages;
