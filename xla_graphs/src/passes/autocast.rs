//! Mixed precision: matmuls, and the activations between them, in a 16-bit float; all else
//! in f32. Models do not see it.
//!
//! What runs in which type follows torch's autocast (PyTorch documentation, "Automatic Mixed
//! Precision package", CUDA op lists): matmuls and attention in the low type; layer norms,
//! softmax, losses, exponentials, logarithms, powers and sums in f32; element-wise operations in
//! the low type if nothing but parameters and constants meets low operands, else in f32, so that
//! the residual stream stays f32. Beyond autocast: sums inside matmuls and statistics inside
//! attention are f32, an element-wise operation computes in f32 and rounds its result once, and the
//! gradients of master weights come out of their matmuls in f32 without ever being rounded.
//!
//! What a model records in [`Trace::in_f32`](crate::Trace::in_f32) stays f32 whatever it is.
//!
//! Before: a recorded graph, composites and all, in f32. After: the same inputs and outputs in the
//! same types.

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphNode};
use crate::op::{Composite, Op, Unary};
use crate::trace::Tensor;
use serde::{Deserialize, Serialize};

/// The element type of a graph's matmuls (TrainingArguments' `bf16` and `fp16`). Gradients of
/// weights and the optimizer's step are f32 in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Precision {
    /// No 16-bit matmuls.
    #[default]
    F32,
    /// Matmuls of bf16, accumulated in f32.
    Bf16,
    /// Matmuls of f16, accumulated in f32; wants a loss scale
    /// ([`LossScale`](crate::optim::LossScale)).
    Fp16,
}

impl Precision {
    /// The 16-bit type, if there is one.
    pub fn low(self) -> Option<DType> {
        match self {
            Precision::F32 => None,
            Precision::Bf16 => Some(DType::BF16),
            Precision::Fp16 => Some(DType::F16),
        }
    }

    /// Whether small gradients would vanish unless the loss is scaled up: fp16 has no number
    /// between 0 and 6e-8.
    pub fn needs_loss_scale(self) -> bool {
        self == Precision::Fp16
    }
}

/// As in TrainingArguments and in the cache's key.
impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
        })
    }
}

/// What a value that was recorded in f32 becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Parameters, constants and what is made of them alone: f32, but follows the values that it
    /// meets.
    Plain,
    /// An activation in the low type.
    Low,
    /// Stays f32, and so does what it meets.
    Wide,
}

pub(super) fn autocast(graph: &Graph, low: DType) -> Result<Graph> {
    let classes = classes(graph);
    graph.rebuild(|trace, id, x| {
        let node = &graph.nodes[id as usize];
        let wide = || {
            x.iter()
                .zip(&node.operands)
                .map(
                    |(t, &operand)| match graph.nodes[operand as usize].shape.dtype {
                        DType::F32 => in_type(t, low, DType::F32),
                        _ => Ok(t.clone()),
                    },
                )
                .collect::<Result<Vec<_>>>()
        };
        let lowered = || {
            x.iter()
                .map(|t| in_type(t, DType::F32, low))
                .collect::<Result<Vec<_>>>()
        };
        let record = |op: &Op, operands: Vec<Tensor>| {
            trace.record(op.clone(), &operands.iter().collect::<Vec<_>>())
        };
        let is_low = classes[id as usize] == Class::Low;
        match &node.op {
            op if node.provenance.in_f32 && multiplies(op) => record(op, wide()?),
            // What it waits for may be of any type.
            Op::BarrierAfter if is_low => record(
                &Op::BarrierAfter,
                vec![in_type(&x[0], DType::F32, low)?, x[1].clone()],
            ),
            Op::BarrierAfter => record(
                &Op::BarrierAfter,
                vec![in_type(&x[0], low, DType::F32)?, x[1].clone()],
            ),
            Op::Dot {
                dims,
                dtype: DType::F32,
                exact,
            } => {
                let dtype = if is_low { low } else { DType::F32 };
                record(
                    &Op::Dot {
                        dims: dims.clone(),
                        dtype,
                        exact: *exact,
                    },
                    lowered()?,
                )
            }
            op if multiplies(op) => record(op, lowered()?),
            op if is_low && (moves(op) || *op == Op::TakeRows) => record(op, lowered()?),
            op if is_low => record(op, wide()?)?.convert(low),
            op => record(op, wide()?),
        }
    })
}

/// `x` as `to` if it is a `from`; other types are not ours to change.
fn in_type(x: &Tensor, from: DType, to: DType) -> Result<Tensor> {
    let node = x.node();
    match node.op {
        _ if x.dtype() != from => Ok(x.clone()),
        // What is held in 16 bits is there.
        Op::Convert(_)
            if from == DType::F32 && x.trace().tensor(node.operands[0]).dtype() == to =>
        {
            Ok(x.trace().tensor(node.operands[0]))
        }
        // What is wanted in 16 bits travels in 16 bits.
        Op::AllGather { .. } if from == DType::F32 => x
            .trace()
            .tensor(node.operands[0])
            .convert(to)?
            .apply(node.op, &[]),
        _ => x.convert(to),
    }
}

/// The class of each node; that of nodes of other types than f32 means nothing.
fn classes(graph: &Graph) -> Vec<Class> {
    let gradients = only_for_master_gradients(graph);
    let mut classes: Vec<Class> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter().enumerate() {
        let values = if node.op == Op::BarrierAfter {
            &node.operands[..1]
        } else {
            &node.operands[..]
        };
        let floats = values
            .iter()
            .filter(|&&o| graph.nodes[o as usize].shape.dtype == DType::F32);
        let met = floats
            .map(|&o| classes[o as usize])
            .max()
            .unwrap_or(Class::Plain);
        classes.push(class(node, met, gradients[id]));
    }
    classes
}

/// `met`: the highest class among the float operands.
fn class(node: &GraphNode, met: Class, is_master_gradient: bool) -> Class {
    if node.shape.dtype != DType::F32 {
        return Class::Plain;
    }
    match &node.op {
        op if node.provenance.in_f32 && (met > Class::Plain || multiplies(op)) => Class::Wide,
        Op::Dot { .. } if is_master_gradient => Class::Wide,
        op if multiplies(op) => Class::Low,
        Op::TakeRows if met == Class::Low => Class::Low,
        Op::TakeRows
        | Op::ScatterAddRows
        | Op::Composite(
            Composite::Norm(_)
            | Composite::NormGrad { .. }
            | Composite::CrossEntropy { .. }
            | Composite::CrossEntropyGrad { .. },
        ) => Class::Wide,
        // autocast's f32 list; the functions that it leaves alone (tanh, logistic, absolute value,
        // ...) follow their operand.
        Op::Unary(
            Unary::Exp | Unary::Log | Unary::Log1p | Unary::Sqrt | Unary::Rsqrt | Unary::Erf,
        )
        | Op::Binary(crate::op::Binary::Pow)
        | Op::Reduce { .. }
            if met == Class::Low =>
        {
            Class::Wide
        }
        // Ask for f32 by their names.
        Op::Convert(_) | Op::Composite(Composite::MasterGradient) if met == Class::Low => {
            Class::Wide
        }
        _ => met,
    }
}

/// Operations that take 16-bit operands: matmuls and what is made of them.
fn multiplies(op: &Op) -> bool {
    matches!(
        op,
        Op::Dot { .. } | Op::Composite(Composite::Attention(_) | Composite::AttentionGrad { .. })
    )
}

/// Operations that change no number.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_)
            | Op::Broadcast { .. }
            | Op::Transpose(_)
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Pad { .. }
            | Op::Barrier
            | Op::ToHost
            | Op::ToDevice
            | Op::AllGather { .. }
            | Op::Composite(Composite::StopGradient)
    )
}

/// For each node: whether everything that is made of it, by moving and adding alone, is a
/// parameter's gradient, a conversion to f32 or an output of the graph.
fn only_for_master_gradients(graph: &Graph) -> Vec<bool> {
    let mut used = vec![false; graph.nodes.len()];
    let mut otherwise = vec![false; graph.nodes.len()];
    for output in &graph.outputs {
        used[output.node as usize] = true;
    }
    for (id, node) in graph.nodes.iter().enumerate().rev() {
        let fine = match &node.op {
            Op::Composite(Composite::MasterGradient) | Op::Convert(DType::F32) => true,
            Op::Binary(crate::op::Binary::Add) | Op::ScatterAddRows | Op::ReduceScatter { .. } => {
                used[id] && !otherwise[id]
            }
            op if moves(op) => used[id] && !otherwise[id],
            _ => false,
        };
        for &operand in &node.operands {
            used[operand as usize] = true;
            otherwise[operand as usize] |= !fine;
        }
    }
    used.iter()
        .zip(otherwise)
        .map(|(&used, otherwise)| used && !otherwise)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InputRole, Phase, Shape, Trace, backward};

    /// An RMS norm and a matmul between two matmuls, with the gradients of all matrices.
    fn step(in_f32: bool) -> Graph {
        let trace = Trace::new();
        let matrix = |name: &str, role| trace.input(name, Shape::new(DType::F32, [4, 4]), role);
        let weights = ["a", "b", "c"].map(|name| matrix(name, InputRole::State));
        let x = matrix("x", InputRole::Feed).matmul(&weights[0]).unwrap();
        let y = {
            let _wide = in_f32.then(|| trace.in_f32());
            let mean = x.mul(&x).unwrap().mean_last_keep().unwrap();
            let scale = mean.add_scalar(1e-6).unwrap().rsqrt().unwrap();
            x.mul(&scale).unwrap().matmul(&weights[1]).unwrap()
        };
        let loss = y.matmul(&weights[2]).unwrap().sum_all().unwrap();
        trace.output("loss", &loss);
        for (name, gradient) in ["da", "db", "dc"]
            .iter()
            .zip(backward(&loss, &weights).unwrap())
        {
            trace.output(*name, &gradient);
        }
        autocast(&trace.finish("step").unwrap(), DType::BF16).unwrap()
    }

    #[test]
    fn a_model_can_ask_for_f32() {
        // The operand types of all nodes of a kind, forward and backward.
        let types = |graph: &Graph, phase: Phase, wanted: fn(&Op) -> bool| -> Vec<Vec<DType>> {
            let of = |id: &u32| graph.nodes[*id as usize].shape.dtype;
            let nodes = graph.nodes.iter();
            nodes
                .filter(|node| wanted(&node.op) && node.provenance.phase == phase)
                .map(|node| node.operands.iter().map(of).collect())
                .collect()
        };
        let (low, wide) = (vec![DType::BF16; 2], vec![DType::F32; 2]);
        let dot = |op: &Op| matches!(op, Op::Dot { .. });
        let asked = step(true);
        assert_eq!(
            types(&asked, Phase::Forward, dot),
            [low.clone(), wide.clone(), low.clone()]
        );
        // By the order of the sweep: dc and dy, db and the norm's, da.
        assert_eq!(
            types(&asked, Phase::Backward, dot),
            [&low, &low, &wide, &wide, &low].map(Vec::clone)
        );
        let squares = |graph: &Graph| {
            let square = |node: &&GraphNode| {
                matches!(node.op, Op::Binary(crate::op::Binary::Mul))
                    && node.operands[0] == node.operands[1]
            };
            let found = graph.nodes.iter().find(square).expect("x is squared");
            let shape = &graph.nodes[found.operands[0] as usize].shape;
            (shape.dtype, rounds(graph, found))
        };
        assert_eq!(squares(&asked), (DType::F32, false));
        assert_eq!(squares(&step(false)), (DType::F32, true));
        assert!(
            types(&step(false), Phase::Forward, dot)
                .iter()
                .all(|types| *types == low)
        );
    }

    /// Whether a node's result is rounded to 16 bits.
    fn rounds(graph: &Graph, node: &GraphNode) -> bool {
        graph.nodes.iter().any(|reader| {
            reader.op == Op::Convert(DType::BF16)
                && reader
                    .operands
                    .iter()
                    .any(|&operand| std::ptr::eq(&graph.nodes[operand as usize], node))
        })
    }
}
