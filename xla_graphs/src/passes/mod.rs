//! Passes: functions from graph to graph. This is the whole list, in order; each pass runs on the
//! result of the one before it.
//!
//! | by | pass | before | after |
//! |---|---|---|---|
//! | [`specialize`] | `autocast` | as recorded: f32, composites and all | matmuls, and what lies between them, in the run's precision |
//! | | `partition` | over whole arrays | over each replica's shards, with collectives |
//! | | `stages` | one graph | one for each stage and direction of a pipeline |
//! | [`lower`] | `offload` | what goes to the host goes there when it is wanted | it goes as soon as it is made |
//! | | `logit_blocks` | the logits of a large vocabulary whole | in blocks of rows |
//! | | `decompose` | composites | primitives only, in the target's form; equal nodes are one |
//! | | `joined_gradients` | gradients of queries, keys and values are padded and added up | an attention of the CPU plugin's writes them as one array |
//! | | `gemv` | primitives | products of a few rows with a weight are calls of the CPU plugin's |
//! | | `cpu_kernels` | primitives | large matmuls are calls of the CPU plugin's own kernels |
//! | | `bias_sums` | primitives | a bias's gradient is a result of the call that gives its weight's |
//! | | `norm_sums` | primitives | a normalization of the CPU plugin's adds up what it reads, and to its gradient what else belongs there |
//! | | `one_pass` | primitives | element-wise operations of an update, or between a layer's matmuls, are one call of the CPU plugin's, and so is a barrier |
//! | | `dot_layout` | primitives | matmuls as the target computes them best |
//!
//! A run is made of the graphs that `specialize` gives: they are fingerprinted, cached and
//! explained. What `lower` gives goes to the emitter (`native/src/emit`) and nowhere else but to
//! those who count what is computed, exchanged and held. Every pass keeps inputs, outputs and the
//! provenance of nodes, but for what `partition` and `stages` say of theirs.

mod autocast;
mod bias_sums;
mod cpu_kernels;
mod decompose;
mod dot_layout;
mod gemv;
mod joined_gradients;
mod logit_blocks;
mod norm_sums;
mod offload;
mod one_pass;
pub mod partition;
mod rebuild;
pub mod stages;

pub use autocast::Precision;
pub use logit_blocks::rows_of_block;

use crate::error::Result;
use crate::graph::Graph;
use crate::target::Target;
use partition::Partition;
use stages::{Pipeline, StageGraph};

/// How a run executes what is recorded.
#[derive(Clone, Copy, Default)]
pub struct Execution<'a> {
    /// The element type of matmuls (`autocast.rs`).
    pub precision: Precision,
    /// Tensor parallelism.
    pub partition: Option<&'a Partition>,
    /// Pipeline parallelism: `None` runs the whole step on every device.
    pub pipeline: Option<Pipeline<'a>>,
}

/// The graphs that a run executes in place of a recorded one: one, or those of a pipeline's stages,
/// each before those that use its values.
///
/// # Errors
/// As [`partition::partition`] and [`stages::split`].
pub fn specialize(recorded: &Graph, execution: &Execution) -> Result<Vec<StageGraph>> {
    let mut graph = match execution.precision.low() {
        Some(low) => autocast::autocast(recorded, low)?,
        None => recorded.clone(),
    };
    if let Some(partition) = execution.partition {
        graph = partition::partition(&graph, partition)?;
    }
    match execution.pipeline {
        Some(pipeline) => stages::split(&graph, pipeline),
        None => Ok(vec![StageGraph { graph, level: 0 }]),
    }
}

/// The graph in primitives, in the form that the target's compiler makes the most of.
///
/// # Errors
/// If an operation refuses its operands, as none of a checked graph does.
pub fn lower(graph: &Graph, target: Target) -> Result<Graph> {
    let graph = offload::early(graph, target)?;
    let graph = logit_blocks::rewrite(&graph, target)?;
    let graph = decompose::decompose(&graph, target)?;
    let graph = joined_gradients::rewrite(&graph)?;
    let graph = gemv::rewrite(&graph, target)?;
    let graph = cpu_kernels::rewrite(&graph, target)?;
    let graph = bias_sums::rewrite(&graph, target)?;
    let graph = norm_sums::rewrite(&graph)?;
    let graph = one_pass::rewrite(&graph, target)?;
    dot_layout::rewrite(&graph, target)
}
