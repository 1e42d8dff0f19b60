//! Passes: functions from graph to graph, applied in this order by [`prepare`] before a graph is emitted.

mod expand;
mod precision;
mod products;

pub use precision::Precision;

use crate::error::Result;
use crate::graph::Graph;
use crate::target::Target;

/// Turns a cut graph into one of primitives only, in the element types that `precision` asks for and in the form that the target
/// compiles best.
pub fn prepare(graph: &Graph, target: Target, precision: Precision) -> Result<Graph> {
    let mixed = match precision.low() {
        Some(low) => &precision::mix(graph, low)?,
        None => graph,
    };
    products::rewrite(&expand::expand(mixed, target)?, target)
}
