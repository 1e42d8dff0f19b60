//! Passes: functions from graph to graph. [`mix`] comes first and gives the graph that a run is
//! made of and the cache knows; [`prepare`] applies the others, in this order, before a graph is
//! emitted.

mod expand;
mod offload;
pub mod partition;
mod precision;
mod products;
pub mod stages;

pub use precision::Precision;

use crate::error::Result;
use crate::graph::Graph;
use crate::target::Target;

/// Puts the matrix products of a recorded graph, and the activations between them, in the type that
/// `precision` asks for.
pub fn mix(graph: &Graph, precision: Precision) -> Result<Graph> {
    match precision.low() {
        Some(low) => precision::mix(graph, low),
        None => Ok(graph.clone()),
    }
}

/// Turns a cut graph into one of primitives only, in the form that the target compiles best.
pub fn prepare(graph: &Graph, target: Target) -> Result<Graph> {
    let early = if target.has_host_memory() {
        offload::early(graph)?
    } else {
        None
    };
    products::rewrite(
        &expand::expand(early.as_ref().unwrap_or(graph), target)?,
        target,
    )
}
