//! Which element-wise nodes are one call.

use super::views::{self, is_widened};
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::graph::{Graph, GraphNode, NodeId};
use crate::op::{Binary, BlockCodes, Op, PassStep, PassView, Reduction, Unary};
use crate::passes::rebuild::Readers;
use crate::provenance::Phase;
use crate::target::CpuKernels;
use std::collections::BTreeMap;

/// Nodes that become one call.
pub(super) struct Group {
    kind: Kind,
    /// In their order.
    pub nodes: Vec<NodeId>,
    /// Those of `nodes` that others need as arrays.
    pub arrays: Vec<NodeId>,
    /// Those of `nodes` that are needed as parts of a concatenation only: which one, and where.
    pub parts: Vec<(NodeId, NodeId, PassView)>,
    /// The values that are summed, by the node that is the sum.
    pub sums: BTreeMap<NodeId, NodeId>,
    /// The nodes that make the sums.
    reductions: Vec<NodeId>,
}

/// Whose nodes a call computes; those of both are never one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of an update of parameters: values are what the operations give.
    Update,
    /// Of a model: what stays inside is not rounded.
    Layer,
}

impl Group {
    /// All nodes that the call stands for.
    pub fn all(&self) -> impl Iterator<Item = NodeId> {
        let joined = self.parts.iter().map(|&(_, joined, _)| joined);
        let inside = self.nodes.iter().chain(&self.reductions).copied();
        inside.chain(joined)
    }

    pub fn is_layers(&self) -> bool {
        self.kind == Kind::Layer
    }
}

/// All groups of a graph's candidates.
pub(super) struct Groups<'a> {
    graph: &'a Graph,
    readers: Readers,
    /// Of each node, if a call can compute it.
    kinds: Vec<Option<Kind>>,
    /// Of each candidate the first of its group.
    first: Vec<usize>,
}

impl<'a> Groups<'a> {
    pub fn of(graph: &'a Graph, kernels: CpuKernels) -> Self {
        let count = graph.nodes.len();
        let costs = CostModel::of(kernels);
        let mut kinds = Vec::with_capacity(count);
        for id in 0..count as NodeId {
            kinds.push(kind(graph, id, &kinds, &costs));
        }
        let mut groups = Groups {
            graph,
            readers: Readers::of(graph),
            kinds,
            first: (0..count).collect(),
        };
        groups.join_neighbours();
        groups
    }

    fn root(&mut self, mut id: usize) -> usize {
        while self.first[id] != id {
            self.first[id] = self.first[self.first[id]];
            id = self.first[id];
        }
        id
    }

    /// Makes two candidates one group, if they may be.
    fn join(&mut self, a: usize, b: usize, depths: &[u32]) {
        let dims = |id: usize| &self.graph.nodes[id].shape.dims;
        let are_alike = self.kinds[a] == self.kinds[b]
            && (self.kinds[a] == Some(Kind::Update) || dims(a) == dims(b));
        if are_alike && depths[a] == depths[b] {
            let (a, b) = (self.root(a), self.root(b));
            self.first[a.max(b)] = a.min(b);
        }
    }

    fn join_neighbours(&mut self) {
        let depths = self.depths();
        for id in 0..self.kinds.len() {
            if self.kinds[id].is_some() {
                for &operand in &self.graph.nodes[id].operands {
                    if self.kinds[operand as usize].is_some() {
                        self.join(operand as usize, id, &depths);
                    }
                }
                continue;
            }
            // Those that read one array, too: Lion's moment and its weight have no more in common.
            if scalar(self.graph, id as NodeId).is_some() {
                continue;
            }
            let inside = self.readers.all(id as NodeId).iter();
            let mut inside: Vec<usize> = inside
                .map(|&reader| reader as usize)
                .filter(|&reader| self.kinds[reader].is_some())
                .collect();
            inside.sort_by_key(|&reader| depths[reader]);
            for pair in inside.windows(2) {
                self.join(pair[0], pair[1], &depths);
            }
        }
    }

    /// How many times each value has left candidates and come back to others: what differs in this cannot
    /// be one call, which would wait for itself. As late as its readers allow, so that what is made of the
    /// state alone waits for what needs the norm of all gradients.
    fn depths(&self) -> Vec<u32> {
        let count = self.graph.nodes.len();
        let is_candidate = |id: usize| self.kinds[id].is_some();
        let mut depths = vec![0u32; count];
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let least = |&operand: &NodeId| {
                let operand = operand as usize;
                depths[operand] + u32::from(is_candidate(operand) && !is_candidate(id))
            };
            depths[id] = node.operands.iter().map(least).max().unwrap_or(0);
        }
        for id in (0..count).rev().filter(|&id| is_candidate(id)) {
            let most = |&reader: &NodeId| {
                let reader = reader as usize;
                depths[reader] - u32::from(!is_candidate(reader))
            };
            let readers = self.readers.all(id as NodeId).iter();
            depths[id] = readers.map(most).min().unwrap_or(depths[id]);
        }
        depths
    }

    /// Of each candidate whether others than its group and its sums read it.
    fn needed(&self, roots: &[usize]) -> Vec<bool> {
        let mut needed = vec![false; roots.len()];
        for id in (0..roots.len()).filter(|&id| self.kinds[id].is_some()) {
            let readers = self.readers.all(id as NodeId).iter().copied();
            let mut outside = readers.filter(|&reader| {
                let is_inside =
                    self.kinds[reader as usize].is_some() && roots[reader as usize] == roots[id];
                !is_inside && self.sum(id, reader).is_none()
            });
            let is_layers = |reader: NodeId| self.kinds[reader as usize] == Some(Kind::Layer);
            // Layers read bf16 in f32 where it was written.
            let is_read = if is_widened(self.graph, id as NodeId) {
                !outside.all(is_layers)
            } else {
                outside.next().is_some()
            };
            needed[id] |= is_read || self.readers.is_output(id as NodeId);
            if self.kinds[id] == Some(Kind::Layer) {
                for &operand in &self.graph.nodes[id].operands {
                    let (base, _) = views::find(self.graph, operand);
                    needed[base as usize] |=
                        roots[operand as usize] != roots[id] && self.kinds[base as usize].is_some();
                }
            }
        }
        needed
    }

    /// The reductions, the last of which is the sum of all elements of `id`, of an update, that `reader`
    /// reduces.
    fn sum(&self, id: usize, reader: NodeId) -> Option<Vec<NodeId>> {
        let summed = &self.graph.nodes[id];
        if self.kinds[id] != Some(Kind::Update)
            || summed.shape.dtype != DType::F32
            || is_scales(summed)
        {
            return None;
        }
        let mut chain = vec![reader];
        loop {
            let last = *chain.last()?;
            let node = &self.graph.nodes[last as usize];
            let Op::Reduce {
                kind: Reduction::Sum,
                ..
            } = node.op
            else {
                return None;
            };
            if node.shape.rank() == 0 {
                return Some(chain);
            }
            chain.push(self.readers.sole(last)?);
        }
    }

    /// The groups that gain.
    pub fn gaining(mut self) -> Vec<Group> {
        let count = self.kinds.len();
        let roots: Vec<usize> = (0..count).map(|id| self.root(id)).collect();
        let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
        let needed = self.needed(&roots);
        for id in 0..count {
            let Some(kind) = self.kinds[id] else {
                continue;
            };
            let group = groups.entry(roots[id]).or_insert_with(|| Group {
                kind,
                nodes: Vec::new(),
                arrays: Vec::new(),
                parts: Vec::new(),
                sums: BTreeMap::new(),
                reductions: Vec::new(),
            });
            group.nodes.push(id as NodeId);
            for &reader in self.readers.all(id as NodeId) {
                if let Some(chain) = self.sum(id, reader) {
                    group.sums.insert(chain[chain.len() - 1], id as NodeId);
                    group.reductions.extend(chain);
                }
            }
            if !needed[id] {
                continue;
            }
            match self.part(id as NodeId, &roots) {
                Some((joined, view)) => group.parts.push((id as NodeId, joined, view)),
                None => group.arrays.push(id as NodeId),
            }
        }
        let all = groups.into_values();
        all.filter(|group| self.gains(group)).collect()
    }

    /// The concatenation, all of one group's results, that is all that reads a node, and where it is in that.
    fn part(&self, id: NodeId, roots: &[usize]) -> Option<(NodeId, PassView)> {
        let joined = self.readers.sole(id)?;
        let node = &self.graph.nodes[joined as usize];
        let Op::Concat { dim } = node.op else {
            return None;
        };
        let of_group = |part: &NodeId| {
            let shape = &self.graph.nodes[*part as usize].shape;
            let is_own = roots[*part as usize] == roots[id as usize]
                && shape == &self.graph.nodes[id as usize].shape;
            is_own && self.kinds[*part as usize].is_some() && self.readers.sole(*part).is_some()
        };
        if self.kinds[id as usize] == Some(Kind::Update) || !node.operands.iter().all(of_group) {
            return None;
        }
        let strides = PassView::plain(&node.shape.dims).strides;
        let place = node.operands.iter().position(|part| *part == id)?;
        let offset = place * self.graph.nodes[id as usize].shape.dims[dim] * strides[dim];
        Some((joined, PassView { offset, strides }))
    }

    /// Of an update whether it has several results, a sum or codes. Of a layer whether XLA would compute a
    /// function several times, or write parts and then the whole; and that it would not compute what is
    /// read in the same loop.
    fn gains(&self, group: &Group) -> bool {
        let node = |id: NodeId| &self.graph.nodes[id as usize];
        let mut nodes = group.nodes.iter().map(|&id| node(id));
        if nodes.clone().any(|node| matches!(node.op, Op::PassStep(_))) {
            return true;
        }
        if !group.is_layers() {
            return group.arrays.len() > 1 || !group.sums.is_empty();
        }
        let is_costly = nodes.any(|node| node.op == Op::Unary(Unary::Logistic));
        let operands = group.nodes.iter().flat_map(|&id| &node(id).operands);
        let mut outside = operands.filter(|id| group.nodes.binary_search(id).is_err());
        let is_there = |&id: &NodeId| {
            if scalar(self.graph, id).is_some() {
                return true;
            }
            let (base, _) = views::find(self.graph, id);
            let is_array = matches!(
                node(base).op,
                Op::Input(_)
                    | Op::Call(_)
                    | Op::GetTupleElement { .. }
                    | Op::Dot { .. }
                    | Op::TakeRows
                    | Op::Barrier
                    | Op::AllGather { .. }
                    | Op::AllReduce(_)
                    | Op::Concat { .. }
            );
            is_array || self.kinds[base as usize].is_some()
        };
        (is_costly || !group.parts.is_empty()) && outside.all(is_there)
    }
}

/// Whether a call can compute a node: an element-wise operation of an update over arrays, or of a layer over
/// large ones.
fn kind(graph: &Graph, id: NodeId, known: &[Option<Kind>], costs: &CostModel) -> Option<Kind> {
    let node = &graph.nodes[id as usize];
    let kind = match node.provenance.phase {
        Phase::Update => Kind::Update,
        _ => Kind::Layer,
    };
    if let Op::PassStep(_) = node.op {
        return Some(kind);
    }
    let dtype = |id: NodeId| graph.nodes[id as usize].shape.dtype;
    let is_scale = |id: &NodeId| is_scales(&graph.nodes[*id as usize]);
    if node.shape.rank() == 0 || node.operands.iter().any(is_scale) {
        return None;
    }
    if kind == Kind::Layer && !costs.elements_pay(node.shape.elements()) {
        return None;
    }
    let is_taken =
        |dtype: DType| dtype == DType::F32 || (dtype == DType::BF16 && kind == Kind::Layer);
    let all_taken = is_taken(node.shape.dtype) && node.operands.iter().all(|&x| is_taken(dtype(x)));
    let is_step = match &node.op {
        Op::Unary(Unary::Logistic) => all_taken && kind == Kind::Layer,
        Op::Unary(Unary::Neg | Unary::Abs | Unary::Sign | Unary::Sqrt | Unary::Rsqrt) => all_taken,
        Op::Binary(
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min,
        ) => all_taken,
        Op::Select => scalar(graph, node.operands[0]).is_some() && is_taken(node.shape.dtype),
        // Each group reads bf16 for itself, but where it was computed.
        Op::Convert(DType::F32) if kind == Kind::Layer => {
            is_widened(graph, id) && known[node.operands[0] as usize].is_some()
        }
        Op::Convert(DType::F32) => dtype(node.operands[0]) == DType::BF16,
        Op::Convert(DType::BF16) => dtype(node.operands[0]) == DType::F32,
        _ => false,
    };
    is_step.then_some(kind)
}

/// Whether a node gives a number for each block of an array.
pub(super) fn is_scales(node: &GraphNode) -> bool {
    matches!(&node.op, Op::PassStep(step) if matches!(**step, PassStep::Codes(BlockCodes::Scales { .. })))
}

/// The scalar that a node broadcasts.
pub(super) fn scalar(graph: &Graph, node: NodeId) -> Option<NodeId> {
    let node = &graph.nodes[node as usize];
    let of = *node.operands.first()?;
    let is_scalar = graph.nodes[of as usize].shape.rank() == 0;
    (matches!(node.op, Op::Broadcast { .. }) && is_scalar).then_some(of)
}
