//! Passes: functions from graph to graph, applied in this order by [`prepare`] before a graph is emitted.

mod expand;

use crate::error::Result;
use crate::graph::Graph;
use crate::target::Target;

/// Turns a cut graph into one of primitives only, in the form that the target compiles best.
pub fn prepare(graph: &Graph, target: Target) -> Result<Graph> {
    expand::expand(graph, target)
}
