//! Layers as a loop (`--scan_layers`): what a prepared graph computes alike for each layer becomes
//! the body of a loop over them, so that a compiler sees one layer instead of many.
//!
//! The forward pass becomes one loop, the backward pass another, each where its layers are alike;
//! the rest stays as it is. Three steps:
//! - `layers`: which nodes layers hand on to the next one, by the model paths of the nodes;
//! - `alike`: walks back from what all layers hand on, in all of them at once, as long as they do
//!   the same: that is the body. Where they read something else (a parameter, what another loop
//!   kept), the loop reads the n-th of a stack;
//! - `write`: the graph with its loops.
//!
//! What the backward pass reads of the forward pass is kept in stacks, one row an iteration. As a
//! compiler would that sees all of it, a loop computes again what is cheap: dropout masks come from
//! the generator once more.
//!
//! Before: primitives. After: the same values, and loops where layers are alike.

mod alike;
mod layers;
mod write;

use crate::error::{Error, Result};
use crate::graph::{Graph, InputRole};
use crate::op::Op;
use crate::passes::stages::is_value;
use alike::Plan;

/// The graph with its layers as loops.
///
/// # Errors
/// If layers that follow each other are not alike, so that there is no loop where one was asked
/// for.
pub(super) fn scan(graph: &Graph) -> Result<Graph> {
    let origins = origins(graph);
    let mut plan = Plan::new(graph, &origins);
    for family in layers::families(graph) {
        let is_loop = family
            .candidates(graph, &origins)
            .any(|groups| plan.add(&groups));
        // Of two layers that share their parameters only one adds to what the other made: nothing
        // is left to repeat.
        if !is_loop && family.len() > 2 {
            return Err(Error::Unlike {
                layers: family.name(),
            });
        }
    }
    if plan.loops.is_empty() {
        Ok(graph.clone())
    } else {
        write::write(&plan)
    }
}

/// What a node's value depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Origin {
    state: bool,
    feed: bool,
}

impl Origin {
    /// Of constants and feeds alone: masks, random words.
    fn is_free(self) -> bool {
        !self.state
    }

    fn is_activation(self) -> bool {
        self.state && self.feed
    }
}

/// Of each node. What comes from another stage of a pipeline is an activation.
fn origins(graph: &Graph) -> Vec<Origin> {
    let mut origins: Vec<Origin> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        origins.push(match node.op {
            Op::Input(index) => {
                let input = &graph.inputs[index as usize];
                let is_feed = input.role == InputRole::Feed;
                Origin {
                    state: !is_feed || is_value(&input.name),
                    feed: is_feed,
                }
            }
            _ => node
                .operands
                .iter()
                .map(|&operand| origins[operand as usize])
                .fold(Origin::default(), |all, one| Origin {
                    state: all.state || one.state,
                    feed: all.feed || one.feed,
                }),
        });
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Target, Tensor, Trace, backward, passes};

    /// A product, so many layers, each another product and what `between` makes of it, and all
    /// gradients.
    fn step(layers: usize, between: impl Fn(usize, &Tensor) -> Tensor) -> Graph {
        let trace = Trace::new();
        trace.scan_layers(true);
        let matrix = |name: String| {
            trace.input(
                name,
                Shape::new(crate::DType::F32, [4, 4]),
                InputRole::State,
            )
        };
        let weights: Vec<Tensor> = (0..=layers).map(|i| matrix(format!("w{i}"))).collect();
        let mut x = trace
            .input("x", Shape::new(crate::DType::F32, [3, 4]), InputRole::Feed)
            .matmul(&weights[layers])
            .unwrap();
        for (i, weight) in weights[..layers].iter().enumerate() {
            let _layer = trace.layer(&format!("h.{i}"));
            x = x.add(&between(i, &x.matmul(weight).unwrap())).unwrap();
        }
        let gradients = backward(&x.mul(&x).unwrap().sum_all().unwrap(), &weights).unwrap();
        for (i, gradient) in gradients.iter().enumerate() {
            trace.output(format!("g{i}"), gradient);
        }
        trace.cut("step").unwrap()
    }

    fn loops(graph: &Graph) -> Vec<(u32, usize)> {
        let prepared = passes::prepare(graph, Target::Cpu).unwrap();
        prepared.check().unwrap();
        let of = |op: &Op| match op {
            Op::Loop { body, trips } => Some((
                *trips,
                body.nodes
                    .iter()
                    .filter(|node| matches!(node.op, Op::Dot { .. }))
                    .count(),
            )),
            _ => None,
        };
        prepared
            .nodes
            .iter()
            .filter_map(|node| of(&node.op))
            .collect()
    }

    #[test]
    fn the_forward_pass_and_the_backward_pass_are_loops() {
        // One product forward; two backward, of the weight and of the layer's input.
        assert_eq!(loops(&step(5, |_, x| x.tanh().unwrap())), [(5, 1), (5, 2)]);
        assert_eq!(loops(&step(1, |_, x| x.tanh().unwrap())), []);
    }

    #[test]
    fn layers_that_alternate_are_taken_in_pairs() {
        let between = |i: usize, x: &Tensor| {
            if i.is_multiple_of(2) {
                x.tanh().unwrap()
            } else {
                x.exp().unwrap()
            }
        };
        assert_eq!(loops(&step(6, between)), [(3, 2), (3, 4)]);
    }

    #[test]
    fn layers_that_are_not_alike_are_an_error_by_name() {
        let between = |i: usize, x: &Tensor| match i {
            0 => x.tanh().unwrap(),
            1 => x.exp().unwrap(),
            _ => x.log().unwrap(),
        };
        let message = passes::prepare(&step(3, between), Target::Cpu)
            .unwrap_err()
            .to_string();
        assert!(message.contains("layers h.* cannot be a loop"), "{message}");
        let graph = Graph {
            scan_layers: false,
            ..step(3, between)
        };
        assert!(passes::prepare(&graph, Target::Cpu).is_ok());
    }
}
