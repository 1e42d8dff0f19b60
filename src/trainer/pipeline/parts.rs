//! What a recorded graph runs as: one graph, or the pieces that the stages of a pipeline run.

use crate::mesh_devices::Buffers;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use xtrain_cache::CompiledGraph;
use xtrain_graphs::passes::stages::{StageGraph, is_value};
use xtrain_graphs::{Graph, Shape};
use xtrain_parallel::schedule::PieceShape;

/// What an input of a recorded graph is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    State,
    Feed,
    /// Declared for compiling only.
    Abstract,
}

/// A recorded graph, and what its inputs are given.
pub struct Recorded {
    pub parts: Parts,
    pub sources: HashMap<String, Source>,
}

/// A recorded graph with its data.
pub struct Microbatch {
    pub recorded: Arc<Recorded>,
    pub feeds: HashMap<String, Buffers>,
}

/// Values that pieces of a microbatch hand on, by name and the stage they are at, with the number
/// of pieces that still take each.
pub(super) type Values = HashMap<(String, usize), (Buffers, usize)>;

/// A graph that one stage runs.
pub struct Part {
    pub graph: Graph,
    pub(super) shape: PieceShape,
    /// In the order of the graph's outputs.
    pub(super) handed: Vec<Handed>,
    pub(super) compiled: OnceLock<Arc<CompiledGraph>>,
}

/// A value that a piece hands to others.
pub(super) struct Handed {
    pub name: String,
    pub shape: Shape,
    /// The pieces that take it, by their stage.
    pub takers: BTreeMap<usize, usize>,
}

pub type Parts = Arc<[Part]>;

/// How the names of those pieces of a recorded graph begin that only hand on values: the forward
/// pass of a microbatch is the same whether it ends a step or not.
pub fn forward_name(graph: &str) -> String {
    let (what, variant) = graph.split_once('.').unwrap_or((graph, ""));
    match what {
        "accumulate" | "update" | "train" if variant.is_empty() => "forward".into(),
        "accumulate" | "update" | "train" => format!("forward.{variant}"),
        _ => graph.into(),
    }
}

/// What [`xtrain_graphs::passes::specialize`] gives, with who hands what to whom.
pub fn connect(pieces: Vec<StageGraph>) -> Vec<Part> {
    let (mut givers, mut takers) = (
        HashMap::new(),
        HashMap::<String, BTreeMap<usize, usize>>::new(),
    );
    for (index, piece) in pieces.iter().enumerate() {
        let given = piece
            .graph
            .outputs
            .iter()
            .filter(|output| is_value(&output.name));
        givers.extend(given.map(|output| (output.name.clone(), index)));
        for input in piece
            .graph
            .inputs
            .iter()
            .filter(|input| is_value(&input.name))
        {
            *takers
                .entry(input.name.clone())
                .or_default()
                .entry(piece.graph.stage as usize)
                .or_default() += 1;
        }
    }
    let part = |piece: StageGraph| {
        let mut after: Vec<usize> = piece
            .graph
            .inputs
            .iter()
            .filter_map(|input| givers.get(&input.name).copied())
            .collect();
        after.sort_unstable();
        after.dedup();
        let outputs = piece
            .graph
            .outputs
            .iter()
            .enumerate()
            .filter(|(_, output)| is_value(&output.name));
        let handed = |(index, output): (usize, &xtrain_graphs::OutputSpec)| Handed {
            name: output.name.clone(),
            shape: piece.graph.output_shape(index).clone(),
            takers: takers.get(&output.name).cloned().unwrap_or_default(),
        };
        let handed = outputs.map(handed).collect();
        let shape = PieceShape {
            stage: piece.graph.stage as usize,
            level: piece.level,
            after,
        };
        Part {
            graph: piece.graph,
            shape,
            handed,
            compiled: OnceLock::new(),
        }
    };
    pieces.into_iter().map(part).collect()
}

/// Bytes that the graphs of one step hand to other stages, from each replica of a stage to its like
/// in another.
pub fn sent(graphs: &[Graph]) -> u64 {
    let mut seen = HashSet::new();
    let stage_of = |name: &str| {
        let gives = |graph: &&Graph| graph.outputs.iter().any(|output| output.name == name);
        graphs.iter().find(gives).map(|graph| graph.stage)
    };
    let taken = graphs
        .iter()
        .flat_map(|graph| graph.inputs.iter().map(move |input| (graph.stage, input)));
    let from_others = taken
        .filter(|(stage, input)| is_value(&input.name) && stage_of(&input.name) != Some(*stage));
    let mut bytes = 0;
    for (stage, input) in from_others {
        if seen.insert((stage, &input.name)) {
            bytes += input.shape.bytes() as u64;
        }
    }
    bytes
}
