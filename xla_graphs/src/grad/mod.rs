//! Reverse-mode differentiation of a trace (Griewank and Walther, "Evaluating Derivatives", ch. 3).
//!
//! *Adjoint*: the gradient of the loss with respect to a node. The sweep walks from the loss to the
//! first parameter in reverse recording order; at each node the gradient rule (`ops::vjp`) turns
//! the adjoint of its result into those of its operands, which add up over all uses. The rules
//! record ordinary nodes, so gradients are part of the same graph.

pub(crate) mod remat;

use crate::error::{Error, Result};
use crate::graph::NodeId;
use crate::op::{Composite, Op};
use crate::ops::{self, rule::Vjp};
use crate::provenance::{Phase, Provenance};
use crate::trace::Tensor;
use remat::{Checkpointing, Regions};

/// Stands in front of the model path of what the sweep records: `backward/h.3.attn`.
pub const BACKWARD: &str = "backward";

/// [`backward_with`] everything kept.
///
/// # Errors
/// As [`backward_with`].
pub fn backward(loss: &Tensor, parameters: &[Tensor]) -> Result<Vec<Tensor>> {
    backward_with(loss, parameters, Checkpointing::Off)
}

/// The gradients of a scalar `loss` with respect to `parameters`, in their order; zeros for one
/// that the loss does not use.
///
/// Each is the result of an `MasterGradient`, by which passes know it: autocast does not round
/// the product that it comes from.
///
/// # Errors
/// If the loss is no scalar of a float type, or an operation on the way to a parameter has no
/// gradient.
pub fn backward_with(
    loss: &Tensor,
    parameters: &[Tensor],
    checkpointing: Checkpointing,
) -> Result<Vec<Tensor>> {
    if loss.rank() != 0 || !loss.dtype().is_float() {
        return Err(Error::Loss {
            shape: loss.shape().to_string(),
        });
    }
    let trace = loss.trace();
    let end = loss.id() as usize + 1;
    let leads_to_parameter = mark_dependants(loss, parameters, end);
    let mut regions = Regions::of(trace, checkpointing, end);
    let mut adjoints: Vec<Option<Tensor>> = vec![None; end];
    adjoints[loss.id() as usize] = Some(trace.constant(1.0, loss.dtype())?);
    let mut is_parameter = vec![false; end];
    for parameter in parameters.iter().filter(|p| (p.id() as usize) < end) {
        is_parameter[parameter.id() as usize] = true;
    }
    for id in (0..end).rev().filter(|&id| leads_to_parameter[id]) {
        // A parameter's adjoint is a result; everything else's is used up here.
        let Some(dy) = (if is_parameter[id] {
            adjoints[id].clone()
        } else {
            adjoints[id].take()
        }) else {
            continue;
        };
        let (node_id, node) = (id as NodeId, trace.inner().nodes[id].clone());
        if node.operands.is_empty() {
            continue;
        }
        let kept = |id: NodeId, regions: &mut Regions| regions.replacement(trace, node_id, id, &dy);
        let operands = node
            .operands
            .iter()
            .map(|&o| kept(o, &mut regions))
            .collect::<Result<Vec<Tensor>>>()?;
        let output = kept(node_id, &mut regions)?;
        let wanted: Vec<bool> = node
            .operands
            .iter()
            .map(|&o| leads_to_parameter[o as usize])
            .collect();
        let (scope, location) = {
            let inner = trace.inner();
            (
                inner.scopes[node.scope as usize].clone(),
                node.location.to_string(),
            )
        };
        let provenance = Provenance {
            phase: Phase::Backward,
            ..node.provenance
        };
        let _context = trace.resume(&format!("{BACKWARD}/{scope}"), provenance);
        let rule = Vjp {
            op: &node.op,
            operands: &operands,
            output: &output,
            dy: &dy,
            wanted: &wanted,
        };
        let grads = ops::vjp(&rule)?.ok_or_else(|| Error::NoGradient {
            op: node.op.name(),
            scope: scope.clone(),
            location,
        })?;
        for (((operand, &operand_id), grad), wanted) in
            operands.iter().zip(&node.operands).zip(grads).zip(wanted)
        {
            let Some(grad) = grad.filter(|_| wanted) else {
                continue;
            };
            if grad.shape() != operand.shape() {
                let (expected, found) = (operand.shape().to_string(), grad.shape().to_string());
                return Err(Error::GradientShape {
                    op: node.op.name(),
                    scope,
                    expected,
                    found,
                });
            }
            let slot = &mut adjoints[operand_id as usize];
            *slot = Some(match slot.take() {
                Some(earlier) => earlier.add(&grad)?,
                None => grad,
            });
        }
    }
    let zeros = |p: &Tensor| trace.full(0.0, p.shape());
    parameters
        .iter()
        .map(|p| match adjoints.get(p.id() as usize).cloned().flatten() {
            Some(adjoint) => adjoint.apply(Op::Composite(Composite::MasterGradient), &[]),
            None => zeros(p),
        })
        .collect()
}

/// For each node up to the loss: whether a float path leads from a parameter to it.
fn mark_dependants(loss: &Tensor, parameters: &[Tensor], end: usize) -> Vec<bool> {
    let mut marks = vec![false; end];
    for parameter in parameters.iter().filter(|p| (p.id() as usize) < end) {
        marks[parameter.id() as usize] = true;
    }
    let inner = loss.trace().inner();
    for id in 0..end {
        let node = &inner.nodes[id];
        marks[id] |=
            node.shape.dtype.is_float() && node.operands.iter().any(|&o| marks[o as usize]);
    }
    marks
}
