//! Loops: a graph that is run several times, each time on what it gave the last time (HLO's `while`
//! with a counted condition).

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Graph;
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::{Tensor, Trace};

/// A loop stands for its counter.
pub(super) fn infer(
    body: &Graph,
    trips: u32,
    operands: &[&Shape],
) -> std::result::Result<Shape, String> {
    let is_counted = operands
        .first()
        .is_some_and(|counter| **counter == Shape::scalar(DType::S32));
    if !is_counted || trips > i32::MAX as u32 {
        return Err(format!(
            "{trips} iterations need a counter s32[] as the first operand"
        ));
    }
    if operands.len() != body.inputs.len() || operands.len() != body.outputs.len() {
        let (inputs, outputs) = (body.inputs.len(), body.outputs.len());
        return Err(format!(
            "takes {} operands for a body of {inputs} inputs and {outputs} outputs",
            operands.len()
        ));
    }
    for (index, operand) in operands.iter().enumerate() {
        let (input, output) = (&body.inputs[index].shape, body.output_shape(index));
        if *operand != input || *operand != output {
            return Err(format!(
                "operand {index} is {operand}, the body takes {input} and gives {output}"
            ));
        }
    }
    Ok(Shape::scalar(DType::S32))
}

impl Trace {
    /// Runs `body` so many times, on `operands` first; all its last outputs. The first operand is
    /// the counter, 0.
    pub(crate) fn repeat(
        &self,
        body: Graph,
        trips: u32,
        operands: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let shapes: Vec<Shape> = body
            .inputs
            .iter()
            .map(|input| input.shape.clone())
            .collect();
        let all = self.record(
            Op::Loop {
                body: Box::new(body),
                trips,
            },
            operands,
        )?;
        let part = |(index, shape): (usize, Shape)| self.record(Op::Part { index, shape }, &[&all]);
        shapes.into_iter().enumerate().map(part).collect()
    }
}
