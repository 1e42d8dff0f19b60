//! Pipeline parallelism: a recorded graph is split into *pieces*, each of which runs on the devices
//! of one stage (Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream").
//!
//! A node belongs to the stage of its provenance ([`Stage`]); without one, to the one stage that
//! all its operands belong to. What depends on several stages and has none of its own (the norm of
//! all gradients) is computed by every stage that needs it. Within a stage a node's
//! *level* is the number of times that values change stage on the longest way to it: a stage's
//! forward pass, its backward pass and its update are three levels, found and not declared. A piece
//! is what lies at one level of one stage.
//!
//! What depends on feeds alone, or on a stage's state alone, is computed again in each piece that
//! uses it: that is cheaper than keeping it or sending it.

use crate::error::{Error, Result};
use crate::graph::{Graph, GraphNode, InputRole, InputSpec, NodeId, OutputSpec};
use crate::op::Op;
use crate::provenance::Stage;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a piece hands to others is an output, and theirs an input, of a name that begins so; the
/// rest tells values of one graph apart.
const VALUE: &str = "value.";

/// Whether a piece's input or output is a value that pieces of the same graph hand on.
pub fn is_value(name: &str) -> bool {
    name.starts_with(VALUE)
}

/// A part of a graph.
#[derive(Clone, Debug)]
pub struct StageGraph {
    /// With its stage. Inputs and outputs that are not [`is_value`] are the whole graph's.
    pub graph: Graph,
    /// How often values change stage on their way here.
    pub level: usize,
}

/// How a graph is split.
#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    /// Number of stages.
    pub stages: usize,
    /// The stage that holds a state of this name, `None` if all do.
    pub home: &'a dyn Fn(&str) -> Option<usize>,
    /// How the names of pieces begin that only hand on values: such pieces of different graphs may
    /// be the same.
    pub forward: &'a str,
}

/// Splits a graph. A result that belongs to no single stage is computed by every one. Pieces come
/// in an order in which each precedes those that use its values.
///
/// # Errors
/// If a stage would assign another's state, or state that a later piece still reads.
pub fn split(graph: &Graph, pipeline: Pipeline) -> Result<Vec<StageGraph>> {
    let mut splitter = Splitter::of(graph, pipeline);
    splitter.find_levels();
    splitter.demand()?;
    splitter.pieces()
}

/// Where a node is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Home {
    /// In each piece that uses it: it depends on feeds and on state that every stage holds.
    Free,
    /// In each piece of this stage that uses it: it depends on the stage's state alone.
    Cheap(usize),
    /// Once, in this stage.
    At(usize),
    /// Once in each stage that uses it.
    Each,
}

/// A node in one stage.
type Instance = (NodeId, usize);

/// What a piece is made of.
struct Members {
    level: usize,
    stage: usize,
    /// Everything that it computes, what others compute too among it.
    inside: BTreeSet<NodeId>,
    /// What it takes from other pieces.
    taken: BTreeMap<NodeId, Instance>,
}

struct Splitter<'g> {
    graph: &'g Graph,
    stages: usize,
    home: &'g dyn Fn(&str) -> Option<usize>,
    forward: &'g str,
    homes: Vec<Home>,
    /// Of each node in each stage, the least level at which it can be computed there.
    levels: Vec<Vec<usize>>,
    /// The level of the piece that computes an instance.
    placed: BTreeMap<Instance, usize>,
    /// What each piece gives, by stage and level: number of the output and node.
    outputs: BTreeMap<(usize, usize), Vec<(usize, NodeId)>>,
    /// What is read in another piece than its own.
    handed: BTreeSet<Instance>,
}

impl<'g> Splitter<'g> {
    fn of(graph: &'g Graph, pipeline: Pipeline<'g>) -> Self {
        let Pipeline {
            stages,
            home,
            forward,
        } = pipeline;
        let mut splitter = Splitter {
            graph,
            stages,
            home,
            forward,
            homes: Vec::with_capacity(graph.nodes.len()),
            levels: vec![vec![0; stages]; graph.nodes.len()],
            placed: BTreeMap::new(),
            outputs: BTreeMap::new(),
            handed: BTreeSet::new(),
        };
        let mut reads_feed = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let is_feed = matches!(node.op, Op::Input(index) if graph.inputs[index as usize].role == InputRole::Feed);
            reads_feed.push(
                is_feed
                    || node
                        .operands
                        .iter()
                        .any(|&operand| reads_feed[operand as usize]),
            );
            let home = splitter.home_of(node, *reads_feed.last().expect("just pushed"));
            splitter.homes.push(home);
        }
        splitter
    }

    fn home_of(&self, node: &GraphNode, reads_feed: bool) -> Home {
        if let Op::Input(index) = node.op {
            let input = &self.graph.inputs[index as usize];
            let home = if input.role == InputRole::State {
                (self.home)(&input.name)
            } else {
                None
            };
            return home.map_or(Home::Free, Home::Cheap);
        }
        let operands = || {
            node.operands
                .iter()
                .map(|&operand| self.homes[operand as usize])
        };
        if operands().all(|home| home == Home::Free) {
            return Home::Free;
        }
        let mut of_operands: Vec<usize> = operands()
            .filter_map(|home| match home {
                Home::Cheap(stage) | Home::At(stage) => Some(stage),
                Home::Free | Home::Each => None,
            })
            .collect();
        of_operands.sort_unstable();
        of_operands.dedup();
        let is_each = operands().any(|home| home == Home::Each);
        let is_cheap =
            !reads_feed && operands().all(|home| matches!(home, Home::Free | Home::Cheap(_)));
        match (node.provenance.stage, of_operands.first()) {
            (Some(Stage::Every), _) => Home::Each,
            (_, Some(&stage)) if is_cheap && of_operands.len() == 1 => Home::Cheap(stage),
            (Some(Stage::One(own)), _) => Home::At(own as usize),
            (None, Some(&stage)) if of_operands.len() == 1 && !is_each => Home::At(stage),
            _ => Home::Each,
        }
    }

    /// The stage that computes what `stage` reads of a node; `None`: `stage` itself, in the piece
    /// that reads it.
    fn source(&self, node: NodeId, stage: usize) -> Option<usize> {
        match self.homes[node as usize] {
            Home::Free => None,
            Home::Cheap(home) => (home != stage).then_some(home),
            Home::At(home) => Some(home),
            Home::Each => Some(stage),
        }
    }

    /// Levels in the order of nodes.
    fn find_levels(&mut self) {
        for (id, node) in self.graph.nodes.iter().enumerate() {
            for stage in 0..self.stages {
                let level = |&operand: &NodeId| match self.source(operand, stage) {
                    None => self.levels[operand as usize][stage],
                    Some(source) => {
                        self.levels[operand as usize][source] + usize::from(source != stage)
                    }
                };
                let is_here =
                    !matches!(self.homes[id], Home::At(home) | Home::Cheap(home) if home != stage);
                // Nothing is worth a piece of its own before the forward pass arrives.
                let level = node
                    .operands
                    .iter()
                    .map(level)
                    .max()
                    .unwrap_or(0)
                    .max(stage);
                self.levels[id][stage] = if is_here { level } else { 0 };
            }
        }
    }

    /// Finds what every stage has to compute, and puts each node as late as its first reader in its
    /// stage: what only the backward pass reads of the forward pass moves there.
    fn demand(&mut self) -> Result<()> {
        let mut outputs_of: HashMap<Instance, Vec<usize>> = HashMap::new();
        let mut late: Vec<(usize, NodeId, usize)> = Vec::new();
        for (index, output) in self.graph.outputs.iter().enumerate() {
            let is_state = self
                .graph
                .inputs
                .iter()
                .any(|i| i.role == InputRole::State && i.name == output.name);
            let home = if is_state {
                (self.home)(&output.name)
            } else {
                None
            };
            let stages: Vec<usize> = match (home, self.homes[output.node as usize]) {
                (Some(home), Home::At(stage) | Home::Cheap(stage)) if stage != home => {
                    return Err(self.refuse(
                        output,
                        format!("stage {stage} would assign state of stage {home}"),
                    ));
                }
                (Some(home), _) => vec![home],
                (None, Home::At(stage) | Home::Cheap(stage)) if is_state => {
                    return Err(self.refuse(
                        output,
                        format!("stage {stage} alone would assign state of every stage"),
                    ));
                }
                (None, Home::At(stage) | Home::Cheap(stage)) => vec![stage],
                (None, _) => (0..self.stages).collect(),
            };
            for stage in stages {
                match self.source(output.node, stage) {
                    Some(_) => outputs_of
                        .entry((output.node, stage))
                        .or_default()
                        .push(index),
                    None => late.push((index, output.node, stage)),
                }
            }
        }
        // Readers of each instance so far: the least level in its own stage, and whether another
        // piece reads it.
        let mut least: BTreeMap<Instance, usize> = BTreeMap::new();
        let mut sent: BTreeSet<Instance> = BTreeSet::new();
        for id in (0..self.graph.nodes.len() as NodeId).rev() {
            for stage in 0..self.stages {
                let instance = (id, stage);
                let gives = outputs_of.remove(&instance).unwrap_or_default();
                let is_sent = sent.contains(&instance);
                let earliest = self.levels[id as usize][stage];
                let level = match least.get(&instance) {
                    _ if is_sent || !gives.is_empty() => earliest,
                    Some(level) => *level,
                    None => continue,
                };
                self.placed.insert(instance, level);
                for index in gives {
                    self.outputs
                        .entry((stage, level))
                        .or_default()
                        .push((index, id));
                }
                self.read(id, stage, level, &mut least, &mut sent);
            }
        }
        for (index, node, stage) in late {
            // After everything that reads the old value.
            let last = self
                .placed
                .iter()
                .filter(|((_, at), _)| *at == stage)
                .map(|(_, level)| *level)
                .max()
                .unwrap_or(0);
            self.outputs
                .entry((stage, last))
                .or_default()
                .push((index, node));
        }
        Ok(())
    }

    /// Notes what the piece reads to compute a node.
    fn read(
        &self,
        id: NodeId,
        stage: usize,
        level: usize,
        least: &mut BTreeMap<Instance, usize>,
        sent: &mut BTreeSet<Instance>,
    ) {
        for &operand in &self.graph.nodes[id as usize].operands {
            match self.source(operand, stage) {
                // Nothing that is placed goes into what is computed where it is used.
                None => {}
                Some(source) if source == stage => {
                    least
                        .entry((operand, stage))
                        .and_modify(|known| *known = level.min(*known))
                        .or_insert(level);
                }
                Some(source) => {
                    sent.insert((operand, source));
                }
            }
        }
    }

    fn pieces(mut self) -> Result<Vec<StageGraph>> {
        let mut members: BTreeMap<(usize, usize), Vec<NodeId>> = BTreeMap::new();
        for (&(id, stage), &level) in &self.placed {
            members.entry((level, stage)).or_default().push(id);
        }
        for &(stage, level) in self.outputs.keys() {
            members.entry((level, stage)).or_default();
        }
        let mut all = Vec::new();
        for (&(level, stage), ids) in &members {
            let mut inside: BTreeSet<NodeId> = BTreeSet::new();
            let mut taken: BTreeMap<NodeId, Instance> = BTreeMap::new();
            let given = self
                .outputs
                .get(&(stage, level))
                .into_iter()
                .flatten()
                .map(|(_, id)| *id);
            let mut open: Vec<NodeId> = ids.iter().copied().chain(given).collect();
            while let Some(id) = open.pop() {
                if !inside.insert(id) {
                    continue;
                }
                for &operand in &self.graph.nodes[id as usize].operands {
                    match self.source(operand, stage) {
                        None => open.push(operand),
                        Some(source)
                            if source == stage
                                && self.placed.get(&(operand, stage)) == Some(&level) => {}
                        Some(source) => {
                            taken.insert(operand, (operand, source));
                        }
                    }
                }
            }
            self.handed.extend(taken.values());
            all.push(Members {
                level,
                stage,
                inside,
                taken,
            });
        }
        let numbers: HashMap<Instance, usize> = self
            .handed
            .iter()
            .enumerate()
            .map(|(number, instance)| (*instance, number))
            .collect();
        self.check_order(&all)?;
        Ok(all
            .iter()
            .map(|members| self.piece(members, &numbers))
            .collect())
    }

    /// No piece may read state that an earlier one of its stage has assigned.
    fn check_order(&self, all: &[Members]) -> Result<()> {
        for (&(stage, level), given) in &self.outputs {
            for (index, _) in given {
                let output = &self.graph.outputs[*index];
                let reads = |id: &NodeId| {
                    let Op::Input(input) = self.graph.nodes[*id as usize].op else {
                        return false;
                    };
                    let input = &self.graph.inputs[input as usize];
                    input.role == InputRole::State && input.name == output.name
                };
                let mut later = all
                    .iter()
                    .filter(|members| members.stage == stage && members.level > level);
                if later.any(|members| members.inside.iter().any(reads)) {
                    return Err(self.refuse(
                        output,
                        format!("stage {stage} assigns it before its last reader has run"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn piece(
        &self,
        Members {
            level,
            stage,
            inside,
            taken,
        }: &Members,
        numbers: &HashMap<Instance, usize>,
    ) -> StageGraph {
        let (mut nodes, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut scopes, mut scope_of) = (vec![String::new()], HashMap::from([(0, 0)]));
        let mut renumbered: HashMap<NodeId, NodeId> = HashMap::new();
        let all: BTreeSet<NodeId> = inside.iter().chain(taken.keys()).copied().collect();
        for id in all {
            let node = &self.graph.nodes[id as usize];
            let scope = *scope_of.entry(node.scope).or_insert_with(|| {
                scopes.push(self.graph.scopes[node.scope as usize].clone());
                scopes.len() as u32 - 1
            });
            let input = match (taken.get(&id), &node.op) {
                (Some(instance), _) => Some(InputSpec {
                    name: format!("{VALUE}{}", numbers[instance]),
                    role: InputRole::Feed,
                    shape: node.shape.clone(),
                }),
                (None, Op::Input(index)) => Some(self.graph.inputs[*index as usize].clone()),
                (None, _) => None,
            };
            let (op, operands) = match &input {
                Some(_) => (Op::Input(inputs.len() as u32), Vec::new()),
                None => (
                    node.op.clone(),
                    node.operands
                        .iter()
                        .map(|operand| renumbered[operand])
                        .collect(),
                ),
            };
            inputs.extend(input);
            renumbered.insert(id, nodes.len() as NodeId);
            nodes.push(GraphNode {
                op,
                operands,
                shape: node.shape.clone(),
                scope,
                provenance: node.provenance,
            });
        }
        let mut given = self
            .outputs
            .get(&(*stage, *level))
            .cloned()
            .unwrap_or_default();
        given.sort_unstable();
        for (index, id) in &given {
            outputs.push(OutputSpec {
                name: self.graph.outputs[*index].name.clone(),
                node: renumbered[id],
            });
        }
        let hands = |id: &NodeId| {
            self.handed.contains(&(*id, *stage)) && self.placed.get(&(*id, *stage)) == Some(level)
        };
        for id in inside.iter().filter(|id| hands(id)) {
            outputs.push(OutputSpec {
                name: format!("{VALUE}{}", numbers[&(*id, *stage)]),
                node: renumbered[id],
            });
        }
        let name = self.name(*stage, *level, given.is_empty());
        let graph = Graph {
            format: self.graph.format,
            name,
            stage: *stage as u32,
            inputs,
            outputs,
            nodes,
            scopes,
        };
        StageGraph {
            graph,
            level: *level,
        }
    }

    fn name(&self, stage: usize, level: usize, only_hands_on: bool) -> String {
        match (only_hands_on, level <= stage) {
            (true, true) => format!("{}.stage{stage}", self.forward),
            (true, false) => format!("{}.stage{stage}.{level}", self.forward),
            (false, true) => format!("{}.stage{stage}", self.graph.name),
            (false, false) => format!("{}.stage{stage}.{level}", self.graph.name),
        }
    }

    fn refuse(&self, output: &OutputSpec, message: String) -> Error {
        let node = &self.graph.nodes[output.node as usize];
        self.graph
            .invalid(node, format!("`{}`: {message}", output.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::{Execution, Precision, specialize};
    use crate::{DType, Shape, Tensor, Trace, backward};

    /// Two layers `x W_i + x`, a tied matrix at both ends as copies, squared error against a feed,
    /// and SGD with a clipped step.
    fn training(stages: bool) -> Graph {
        let trace = Trace::new();
        let matrix =
            |name: &str| trace.input(name, Shape::new(DType::F32, [4, 4]), InputRole::State);
        let (first, w0, w1, last) = (matrix("e"), matrix("w0"), matrix("w1"), matrix("e@stage.1"));
        let x = trace.input("x", Shape::new(DType::F32, [3, 4]), InputRole::Feed);
        let loss = {
            let _stages = stages.then(|| trace.stages_by_layer(&[0, 1]));
            let mut h = x.matmul(&first).unwrap();
            for (name, w) in [("h.0", &w0), ("h.1", &w1)] {
                let _layer = trace.layer(name);
                h = h.add(&h.matmul(w).unwrap().tanh().unwrap()).unwrap();
            }
            let y = h.matmul(&last).unwrap();
            y.mul(&y).unwrap().sum_all().unwrap()
        };
        let leaves = [&first, &w0, &w1, &last].map(Tensor::clone);
        let mut grads = backward(&loss, &leaves).unwrap();
        let tied = grads[0].add(&grads[3]).unwrap();
        (grads[0], grads[3]) = (tied.clone(), tied);
        let square = |g: &Tensor| g.mul(g).unwrap().sum_all().unwrap();
        let near = square(&grads[0]).add(&square(&grads[1])).unwrap();
        let norm = near.add(&square(&grads[2])).unwrap().sqrt().unwrap();
        let factor = trace.constant(0.1, DType::F32).unwrap().div(&norm).unwrap();
        for (leaf, (grad, name)) in
            leaves
                .iter()
                .zip(grads.iter().zip(["e", "w0", "w1", "e@stage.1"]))
        {
            let step = grad.mul(&factor.broadcast_to(&[4, 4]).unwrap()).unwrap();
            trace.output(name, &leaf.sub(&step).unwrap());
        }
        trace.output("metrics", &loss.div(&norm).unwrap());
        trace.finish("train").unwrap()
    }

    fn home(name: &str) -> Option<usize> {
        match name {
            "e" | "w0" => Some(0),
            "w1" | "e@stage.1" => Some(1),
            _ => None,
        }
    }

    /// Two stages.
    fn two(forward: &str) -> Pipeline<'_> {
        Pipeline {
            stages: 2,
            home: &home,
            forward,
        }
    }

    #[test]
    fn training_splits_into_forward_backward_and_update() {
        let pieces = split(&training(true), two("forward")).unwrap();
        let found: Vec<(&str, u32, usize)> = pieces
            .iter()
            .map(|piece| (piece.graph.name.as_str(), piece.graph.stage, piece.level))
            .collect();
        // When the gradient arrives at stage 0 it can update at once; stage 1 has to wait for what
        // that adds to the norm.
        let expected = [
            ("forward.stage0", 0, 0),
            ("forward.stage1", 1, 1),
            ("train.stage0.2", 0, 2),
            ("train.stage1.3", 1, 3),
        ];
        assert_eq!(found, expected);
        assert!(pieces.iter().all(|piece| piece.graph.check().is_ok()));
        let given = |name: &str| -> Vec<u32> {
            let gives =
                |piece: &&StageGraph| piece.graph.outputs.iter().any(|output| output.name == name);
            pieces
                .iter()
                .filter(gives)
                .map(|piece| piece.graph.stage)
                .collect()
        };
        assert_eq!(
            (given("e"), given("w0"), given("w1"), given("e@stage.1")),
            (vec![0], vec![0], vec![1], vec![1])
        );
        assert_eq!(given("metrics"), [0, 1], "of no single stage");
    }

    #[test]
    fn every_value_comes_from_one_earlier_piece() {
        let pieces = split(&training(true), two("forward")).unwrap();
        for (index, piece) in pieces.iter().enumerate() {
            for input in piece
                .graph
                .inputs
                .iter()
                .filter(|input| is_value(&input.name))
            {
                let givers: Vec<usize> = (0..pieces.len())
                    .filter(|&other| {
                        pieces[other]
                            .graph
                            .outputs
                            .iter()
                            .any(|output| output.name == input.name)
                    })
                    .collect();
                assert!(
                    matches!(givers[..], [giver] if giver < index),
                    "{} of {}",
                    input.name,
                    piece.graph.name
                );
            }
        }
    }

    #[test]
    fn what_is_free_is_not_sent() {
        let trace = Trace::new();
        let w = trace.input("w1", Shape::new(DType::F32, [4, 4]), InputRole::State);
        let x = trace.input("x", Shape::new(DType::F32, [4, 4]), InputRole::Feed);
        let mask = {
            let _first = trace.at_stage(0);
            x.tanh().unwrap()
        };
        let _second = trace.at_stage(1);
        trace.output("y", &w.mul(&mask).unwrap());
        let pieces = split(&trace.finish("eval").unwrap(), two("eval")).unwrap();
        assert_eq!(pieces.len(), 1);
        assert_eq!(
            pieces[0]
                .graph
                .inputs
                .iter()
                .map(|input| input.name.as_str())
                .collect::<Vec<_>>(),
            ["w1", "x"]
        );
    }

    #[test]
    fn state_of_another_stage_is_not_assigned() {
        let trace = Trace::new();
        let w0 = trace.input("w0", Shape::new(DType::F32, [4]), InputRole::State);
        let w1 = trace.input("w1", Shape::new(DType::F32, [4]), InputRole::State);
        let _ = &w1;
        trace.output("w1", &w0.tanh().unwrap());
        let message = split(&trace.finish("train").unwrap(), two("forward"))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("stage 0 would assign state of stage 1"),
            "{message}"
        );
    }

    #[test]
    fn passes_keep_the_stages() {
        let execution = Execution {
            precision: Precision::Bf16,
            partition: None,
            pipeline: Some(two("forward")),
        };
        let stages: Vec<u32> = specialize(&training(true), &execution)
            .unwrap()
            .iter()
            .map(|piece| piece.graph.stage)
            .collect();
        let recorded: Vec<u32> = split(&training(true), two("forward"))
            .unwrap()
            .iter()
            .map(|piece| piece.graph.stage)
            .collect();
        assert_eq!(stages, recorded);
    }
}
