//! What neuronx-cc is known to take, as a table, and a check of prepared graphs against it: the substitute for hardware that is not
//! there. A graph that passes uses nothing but operations, types and patterns that AWS documents or that went through its compiler
//! before; one that does not pass is told which operation of which layer breaks which rule.
//!
//! Sources, by their short names: *list*: operators of the compiler's release notes (aws-neuron-sdk,
//! release-notes/components/compiler.rst); *census*: opcodes of 52 modules that torch-neuronx compiled; *nkipy*: what AWS's own emitter of
//! HLO uses; *codes*: pages of the compiler's error codes; *jax*: its list of known issues in JAX. They were read, not tried:
//! there was no such device.

use crate::dtype::DType;
use crate::graph::{Graph, GraphNode};
use crate::op::{Binary, Op, Scalar, Unary};
use crate::target::{NeuronChip, Target};

/// Something that the target's compiler refuses, or is not known to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The operation as HLO calls it, with its result's shape.
    pub operation: String,
    /// The model path, or `the step`.
    pub place: String,
    /// What is wrong.
    pub rule: String,
    /// Where the rule comes from.
    pub source: &'static str,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}: {} ({})", self.operation, self.place, self.rule, self.source)
    }
}

/// A row of the table: an operation with the element types of its operands.
struct Row {
    hlo: &'static str,
    types: &'static [DType],
    source: &'static str,
}

use DType::{BF16, F16, F32, Pred, S32, U8, U32};
const FLOATS: &[DType] = &[F32, BF16, F16];
const NUMBERS: &[DType] = &[F32, BF16, F16, S32, U32];
const INTEGERS: &[DType] = &[S32, U32];
const WORDS: &[DType] = &[Pred, S32, U32];
const WORDS_AND_F32: &[DType] = &[S32, U32, F32];
const ALL: &[DType] = &[F32, BF16, F16, S32, U32, U8, Pred];

const fn row(hlo: &'static str, types: &'static [DType], source: &'static str) -> Row {
    Row { hlo, types, source }
}

/// Operations by HLO name. What is not here is not known to compile.
const NEURON: &[Row] = &[
    row("parameter", ALL, "census"),
    row("constant", ALL, "list"),
    row("iota", &[S32, U32, F32], "list"),
    row("abs", NUMBERS, "list"),
    row("all-reduce", FLOATS, "census; integers are summed through f32: codes EVRF061"),
    row("add", NUMBERS, "list"),
    row("and", WORDS, "list"),
    row("bitcast-convert", WORDS_AND_F32, "list"),
    row("broadcast", ALL, "list"),
    row("compare", ALL, "list"),
    row("concatenate", ALL, "list"),
    row("convert", ALL, "list"),
    row("cosine", FLOATS, "list"),
    row("divide", FLOATS, "list"),
    row("dot", FLOATS, "list; integers only through f32: codes EVRF035"),
    row("exponential", FLOATS, "list"),
    row("floor", FLOATS, "list"),
    row("gather", ALL, "list"),
    row("log", FLOATS, "list"),
    row("logistic", FLOATS, "census"),
    row("maximum", NUMBERS, "list"),
    row("minimum", NUMBERS, "list"),
    row("multiply", NUMBERS, "list"),
    row("negate", NUMBERS, "list"),
    row("not", WORDS, "list"),
    row("opt-barrier", ALL, "census"),
    row("or", WORDS, "nkipy"),
    row("pad", ALL, "list"),
    row("power", FLOATS, "list"),
    row("reduce", NUMBERS, "list"),
    row("reshape", ALL, "list"),
    row("rsqrt", FLOATS, "list"),
    row("scatter", FLOATS, "list; integers only through f32: codes EVRF060"),
    row("select", ALL, "list"),
    row("shift-right-logical", INTEGERS, "list"),
    row("sign", NUMBERS, "list"),
    row("sine", FLOATS, "list"),
    row("slice", ALL, "list"),
    row("sqrt", FLOATS, "list"),
    row("subtract", NUMBERS, "list"),
    row("tanh", FLOATS, "list"),
    row("transpose", ALL, "list"),
    row("xor", WORDS, "nkipy"),
];

/// The largest rank of a product's operand in the census: two batch dimensions.
const DOT_RANK: usize = 4;

/// Everything in a prepared graph that the target is not known to take, in the graph's order. The CPU takes all that the emitter
/// makes.
pub fn check(graph: &Graph, target: Target) -> Vec<Violation> {
    match target {
        Target::Cpu => Vec::new(),
        Target::Cuda { capability, .. } => each(graph, |node| cuda_rule(graph, node, capability)),
        Target::Neuron(chip) => each(graph, |node| neuron_rule(graph, node, chip)),
    }
}

type Broken = Option<(String, &'static str)>;

fn each(graph: &Graph, rule: impl Fn(&GraphNode) -> Broken) -> Vec<Violation> {
    let violation = |node: &GraphNode| {
        let (rule, source) = rule(node)?;
        let place = match graph.scopes[node.scope as usize].as_str() {
            "" => "the step".to_string(),
            path => path.to_string(),
        };
        Some(Violation { operation: format!("{} {}", hlo_name(&node.op), node.shape), place, rule, source })
    };
    graph.nodes.iter().filter_map(violation).collect()
}

fn cuda_rule(graph: &Graph, node: &GraphNode, capability: u16) -> Broken {
    let is_bf16_product = matches!(node.op, Op::Dot { .. }) && operand(graph, node, 0).shape.dtype == BF16;
    (is_bf16_product && capability < 80).then(|| {
        let (major, minor) = (capability / 10, capability % 10);
        let rule = format!("products of bf16 need compute capability 8.0, this card has {major}.{minor}; use --fp16");
        (rule, "CUDA programming guide, compute capabilities")
    })
}

fn neuron_rule(graph: &Graph, node: &GraphNode, _chip: NeuronChip) -> Broken {
    let name = hlo_name(&node.op);
    let Some(row) = NEURON.iter().find(|row| row.hlo == name) else {
        return Some((format!("{name} is not among the operations that neuronx-cc is known to take"), "list, census, nkipy"));
    };
    let operands = node.operands.iter().map(|&o| graph.nodes[o as usize].shape.dtype);
    // The predicate of a select and the indices of a gather are of their own types.
    let skipped = match node.op {
        Op::Select => 0,
        Op::TakeRows | Op::ScatterAddRows => 1,
        _ => usize::MAX,
    };
    let own =
        matches!(node.op, Op::Input(_) | Op::Constant { .. } | Op::Iota { .. } | Op::Convert(_)).then_some(node.shape.dtype);
    let types = operands.enumerate().filter(|(i, _)| *i != skipped).map(|(_, dtype)| dtype).chain(own);
    if let Some(dtype) = types.into_iter().find(|dtype| !row.types.contains(dtype)) {
        return Some((format!("{name} is not known to take {dtype}"), row.source));
    }
    match &node.op {
        Op::Dot { .. } => {
            let rank = operand(graph, node, 0).shape.rank().max(operand(graph, node, 1).shape.rank());
            (rank > DOT_RANK).then(|| (format!("a product of rank {rank}; known are at most {DOT_RANK}"), "census"))
        }
        Op::Constant { value: Scalar::Int(value), .. } if *value > 1 << 32 => {
            Some((format!("the constant {value} is beyond 2^32"), "codes ESFH002"))
        }
        Op::TakeRows if !is_clamped(graph, operand(graph, node, 1)) => {
            Some(("an index outside of the table stops the run: clamp indices first".into(), "jax; nrt status 1006"))
        }
        Op::Barrier if graph.aliases().next().is_some() => Some((
            "a barrier in a graph that donates state ended in \"read after write on aliased buffer\"".into(),
            "optimum-neuron PR 754",
        )),
        _ => None,
    }
}

fn operand<'g>(graph: &'g Graph, node: &GraphNode, index: usize) -> &'g GraphNode {
    &graph.nodes[node.operands[index] as usize]
}

/// Whether indices are the minimum of a maximum, through moves; constants and iotas are in the hands of the one who wrote them.
fn is_clamped(graph: &Graph, ids: &GraphNode) -> bool {
    match ids.op {
        Op::Reshape(_) | Op::Broadcast { .. } | Op::Slice { .. } | Op::Transpose(_) | Op::Convert(_) => {
            is_clamped(graph, operand(graph, ids, 0))
        }
        Op::Binary(Binary::Min) => matches!(operand(graph, ids, 0).op, Op::Binary(Binary::Max)),
        _ => false,
    }
}

/// The name of the HLO operation that a primitive is emitted as; a composite's own.
fn hlo_name(op: &Op) -> String {
    let name = match op {
        Op::Input(_) => "parameter",
        Op::Unary(op) => match op {
            Unary::Neg => "negate",
            Unary::Exp => "exponential",
            Unary::Log1p => "log-plus-one",
            Unary::Sin => "sine",
            Unary::Cos => "cosine",
            Unary::IsFinite => "is-finite",
            other => return format!("{other:?}").to_lowercase(),
        },
        Op::Binary(op) => match op {
            Binary::Sub => "subtract",
            Binary::Mul => "multiply",
            Binary::Div => "divide",
            Binary::Max => "maximum",
            Binary::Min => "minimum",
            Binary::Pow => "power",
            Binary::Rem => "remainder",
            Binary::ShiftLeft => "shift-left",
            Binary::ShiftRightLogical => "shift-right-logical",
            other => return format!("{other:?}").to_lowercase(),
        },
        Op::AllReduce(_) => "all-reduce",
        Op::Compare(_) => "compare",
        Op::Bitcast(_) => "bitcast-convert",
        Op::Concat { .. } => "concatenate",
        Op::Reduce { .. } => "reduce",
        Op::FusedAttention(_) | Op::FusedAttentionGrad(_) => "custom-call",
        Op::Part { .. } => "get-tuple-element",
        Op::TakeRows => "gather",
        Op::ScatterAddRows => "scatter",
        Op::Barrier => "opt-barrier",
        other => return other.name(),
    };
    name.to_string()
}
