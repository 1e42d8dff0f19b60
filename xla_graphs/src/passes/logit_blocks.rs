//! The logits of a large vocabulary in blocks of rows, so that they never exist whole.
//!
//! The logits of 2,048 tokens over 150,000 words are 1.2 GB in f32, and so is their gradient. The loss
//! of a row needs no other row, so each block of rows goes from its hidden states to its losses, to the
//! gradient of its logits and to what is made of that, before the next block's logits are made:
//! Liger's fused linear cross-entropy (Hsu et al. 2024, "Liger Kernel"), with all that a model does
//! between matmul and loss as it was recorded. Nothing is computed twice.
//!
//! Before: any graph. After: the same, but sums over all rows (the gradients of the head's weight and
//! bias) are added up in f32 from those of the blocks, in their order. A graph stays as it is where
//! its logits are small, where they are read otherwise, or where their gradient needs all losses.

use super::rebuild::{Replaced, record, together};
use crate::cost_model::{CostModel, logit_block};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphNode, NodeId};
use crate::op::{Composite, Op, Reduction};
use crate::target::{CpuKernels, Target};
use crate::trace::{ScopeGuard, Tensor, Trace};
use std::collections::BTreeMap;
use std::ops::Range;

/// The rows of the blocks that logits of `rows` rows are worth dividing into, whatever the target; `rows` where
/// they are small.
pub fn rows_of_block(rows: usize, vocabulary: usize) -> usize {
    let costs = CostModel::of(CpuKernels::default());
    costs.cpu_logit_block(rows, vocabulary).unwrap_or(rows)
}

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    let logits = |node: &GraphNode| match node.op {
        Op::Composite(Composite::CrossEntropy { .. } | Composite::CrossEntropyGrad { .. }) => {
            Some(node.operands[0])
        }
        _ => None,
    };
    // A step has one loss.
    let logits = graph.nodes.iter().find_map(logits);
    match logits {
        Some(logits) => match Region::of(graph, logits, target) {
            Some(region) => region.rewrite(graph),
            None => Ok(graph.clone()),
        },
        None => Ok(graph.clone()),
    }
}

/// What a block makes of a node of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// `[N, V]`, of which a block has its rows; read in the region only.
    Logits,
    /// A block's term of a sum over all rows, before it is transposed; read in the region only.
    Term,
    /// Read outside: its first dimension is that of the rows.
    Rows,
    /// Read outside: a sum over all rows.
    Sum,
}

/// A node of the region.
struct Part {
    role: Role,
    /// Of each operand the dimension of which a block takes its rows; `None`: it takes the operand
    /// whole, or as it is in the region.
    row_dims: Vec<Option<usize>>,
}

/// The nodes from a head's matmul to what is made of its logits and of their gradient.
struct Region {
    /// Of the logits: N and V.
    dims: [usize; 2],
    /// Rows of a block; the last one may have fewer.
    block: usize,
    parts: BTreeMap<NodeId, Part>,
    /// All nodes, in an order in which those of the region stand together.
    order: Vec<NodeId>,
}

impl Region {
    /// The region around these logits, if they are large and nothing else needs them.
    fn of(graph: &Graph, logits: NodeId, target: Target) -> Option<Region> {
        let [rows, vocabulary] = graph.nodes[logits as usize].shape.dims[..] else {
            return None;
        };
        let mut region = Region {
            dims: [rows, vocabulary],
            // Until it is known what the blocks add up.
            block: rows,
            parts: BTreeMap::new(),
            order: Vec::new(),
        };
        region.insert_up_to_matmul(graph, logits)?;
        for (id, node) in graph.nodes.iter().enumerate() {
            let is_known = region.parts.contains_key(&(id as NodeId));
            if !is_known && node.operands.iter().any(|id| region.is_logits(id)) {
                let part = region.part(graph, node)?;
                region.parts.insert(id as NodeId, part);
            }
            // Sums are added up as they are wanted, so that a matmul's kernel can add to them.
            if let (Op::Transpose(_), [operand]) = (&node.op, &node.operands[..])
                && let Some(sum) = region.parts.get_mut(operand)
                && sum.role == Role::Sum
                && sole_reader(graph, *operand) == Some(id as NodeId)
            {
                sum.role = Role::Term;
                let (role, row_dims) = (Role::Sum, vec![None]);
                region.parts.insert(id as NodeId, Part { role, row_dims });
            }
        }
        if graph.outputs.iter().any(|out| region.is_logits(&out.node)) {
            return None;
        }
        let trains = region.parts.values().any(|part| part.role == Role::Sum);
        region.block = logit_block(target, rows, vocabulary, trains)?;
        let group_of: Vec<Option<usize>> = (0..graph.nodes.len() as NodeId)
            .map(|id| region.parts.contains_key(&id).then_some(0))
            .collect();
        region.order = together(graph, &group_of);
        // There are fewer if the region needs what is made of it.
        (region.order.len() == graph.nodes.len()).then_some(region)
    }

    fn is_logits(&self, id: &NodeId) -> bool {
        let part = self.parts.get(id);
        part.is_some_and(|part| part.role == Role::Logits)
    }

    /// Whether each element of `[N, V]` needs only those in its place.
    fn is_element_wise(&self, node: &GraphNode) -> bool {
        let is_known = matches!(
            node.op,
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Convert(_)
        );
        is_known && node.shape.dims == self.dims
    }

    /// Whether a block can make its rows of the node anew, of nothing that depends on the region.
    fn is_repeated(&self, graph: &Graph, id: NodeId) -> bool {
        let node = &graph.nodes[id as usize];
        match &node.op {
            Op::Broadcast { dims, .. } => *dims == self.dims,
            Op::Iota { dims, dim, .. } => *dims == self.dims && *dim == 1,
            _ if self.is_element_wise(node) => {
                let mut operands = node.operands.iter();
                operands.all(|&operand| self.is_repeated(graph, operand))
            }
            _ => false,
        }
    }

    /// The element-wise nodes between the head's matmul and this node, and the matmul.
    fn insert_up_to_matmul(&mut self, graph: &Graph, id: NodeId) -> Option<()> {
        let node = &graph.nodes[id as usize];
        let row_dims = match &node.op {
            _ if self.parts.contains_key(&id) => return Some(()),
            Op::Dot { dims, .. } => {
                let x = &graph.nodes[node.operands[0] as usize].shape;
                let is_head = dims.lhs_batch.is_empty() && dims.lhs_contracting == [1];
                if !is_head || x.rank() != 2 || node.shape.dims != self.dims {
                    return None;
                }
                vec![Some(0), None]
            }
            _ if self.is_element_wise(node) => {
                for &operand in &node.operands {
                    if !self.is_repeated(graph, operand) {
                        self.insert_up_to_matmul(graph, operand)?;
                    }
                }
                vec![None; node.operands.len()]
            }
            _ => return None,
        };
        let role = Role::Logits;
        self.parts.insert(id, Part { role, row_dims });
        Some(())
    }

    /// A node that reads logits.
    fn part(&self, graph: &Graph, node: &GraphNode) -> Option<Part> {
        let is_logits = |place: usize| self.is_logits(&node.operands[place]);
        let mut row_dims = vec![None; node.operands.len()];
        let role = match &node.op {
            Op::Composite(Composite::CrossEntropy { .. }) => {
                row_dims[1] = Some(0);
                Role::Rows
            }
            Op::Composite(Composite::CrossEntropyGrad { .. }) => {
                row_dims[1..].fill(Some(0));
                Role::Logits
            }
            Op::Reduce { dims, .. } if *dims == [1] => Role::Rows,
            Op::Reduce { kind, dims }
                if *kind == Reduction::Sum && dims[0] == 0 && node.shape.dtype.is_float() =>
            {
                Role::Sum
            }
            Op::Dot { dims, .. } if dims.lhs_batch.is_empty() => {
                let contracting = [&dims.lhs_contracting[..], &dims.rhs_contracting[..]];
                let (of_logits, of_other) = match [0, 1].map(is_logits) {
                    [true, false] => (0, 1),
                    [false, true] => (1, 0),
                    _ => return None,
                };
                match (contracting[of_logits], contracting[of_other]) {
                    ([1], _) if of_logits == 0 => Role::Rows,
                    ([0], [dim]) => {
                        row_dims[of_other] = Some(*dim);
                        Role::Sum
                    }
                    _ => return None,
                }
            }
            _ if self.is_element_wise(node) => {
                let mut operands = node.operands.iter();
                let is_there = |id: &NodeId| self.is_logits(id) || self.is_repeated(graph, *id);
                operands.all(is_there).then_some(Role::Logits)?
            }
            _ => return None,
        };
        Some(Part { role, row_dims })
    }

    fn rewrite(&self, graph: &Graph) -> Result<Graph> {
        let mut made: BTreeMap<NodeId, Tensor> = BTreeMap::new();
        graph.rebuild_in(&self.order, |trace, id, replaced| {
            if !self.parts.contains_key(&id) {
                let node = &graph.nodes[id as usize];
                let operands = node.operands.iter().map(|&operand| replaced.get(operand));
                let x: Vec<Tensor> = operands.collect();
                return record(trace, &node.op, &x);
            }
            if made.is_empty() {
                made = self.in_blocks(graph, trace, replaced)?;
            }
            // Nobody reads what is no result.
            let results = || made.values().next().expect("a region has one");
            Ok(made.get(&id).unwrap_or_else(results).clone())
        })
    }

    /// What is read outside, by its nodes.
    fn in_blocks(
        &self,
        graph: &Graph,
        trace: &Trace,
        replaced: &Replaced,
    ) -> Result<BTreeMap<NodeId, Tensor>> {
        let mut sums: BTreeMap<NodeId, Tensor> = BTreeMap::new();
        let mut rows: BTreeMap<NodeId, Vec<Tensor>> = BTreeMap::new();
        let mut before: Vec<Tensor> = Vec::new();
        for start in (0..self.dims[0]).step_by(self.block) {
            let mut block = Block {
                region: self,
                graph,
                replaced,
                rows: start..self.dims[0].min(start + self.block),
                before: std::mem::take(&mut before),
                values: BTreeMap::new(),
            };
            for (&id, part) in &self.parts {
                let value = block.record(trace, id)?;
                match part.role {
                    Role::Logits | Role::Term => continue,
                    Role::Rows => {
                        before.push(value.clone());
                        rows.entry(id).or_default().push(value);
                    }
                    Role::Sum => {
                        let _context = resume(graph, trace, id);
                        let value = value.convert(DType::F32)?;
                        let sum = match sums.remove(&id) {
                            Some(sum) => sum.add(&value)?,
                            None => value,
                        };
                        sums.insert(id, sum.clone());
                        before.push(sum);
                    }
                }
            }
        }
        let mut made = BTreeMap::new();
        for (id, blocks) in rows {
            let _context = resume(graph, trace, id);
            let blocks: Vec<&Tensor> = blocks.iter().collect();
            made.insert(id, Tensor::concat(&blocks, 0)?);
        }
        for (id, sum) in sums {
            let _context = resume(graph, trace, id);
            let dtype = graph.nodes[id as usize].shape.dtype;
            // It is not rounded on the way to where it is wanted in f32.
            let reader = sole_reader(graph, id).map(|reader| &graph.nodes[reader as usize].op);
            let is_f32 = matches!(reader, Some(Op::Convert(DType::F32)));
            made.insert(id, if is_f32 { sum } else { sum.convert(dtype)? });
        }
        Ok(made)
    }
}

/// Some rows of the region, as they are recorded.
struct Block<'a> {
    region: &'a Region,
    graph: &'a Graph,
    /// The nodes outside that the region reads.
    replaced: &'a Replaced,
    rows: Range<usize>,
    /// What was made of the block before: a compiler may not make all logits first.
    before: Vec<Tensor>,
    values: BTreeMap<NodeId, Tensor>,
}

impl Block<'_> {
    fn record(&mut self, trace: &Trace, id: NodeId) -> Result<Tensor> {
        let node = &self.graph.nodes[id as usize];
        let part = self.region.parts.get(&id);
        let _context = resume(self.graph, trace, id);
        let mut x = Vec::with_capacity(node.operands.len());
        for (place, &operand) in node.operands.iter().enumerate() {
            let is_repeated = || self.region.is_repeated(self.graph, operand);
            let row_dim = match (&node.op, part) {
                (_, Some(part)) => part.row_dims[place],
                (Op::Broadcast { map, .. }, None) => map.iter().position(|&dim| dim == 0),
                _ => None,
            };
            x.push(match (self.values.get(&operand), row_dim) {
                (Some(value), _) => value.clone(),
                (None, Some(dim)) => {
                    let whole = self.replaced.get(operand);
                    let rows = whole.slice_dim(dim, self.rows.start, self.rows.end)?;
                    self.before.iter().try_fold(rows, |x, y| x.after(y))?
                }
                (None, None) if is_repeated() => self.record(trace, operand)?,
                (None, None) => self.replaced.get(operand),
            });
        }
        let mut op = node.op.clone();
        match &mut op {
            Op::Broadcast { dims, .. } | Op::Iota { dims, .. } => dims[0] = self.rows.len(),
            Op::Dot { dtype, .. }
                if part.is_some_and(|part| matches!(part.role, Role::Term | Role::Sum)) =>
            {
                *dtype = DType::F32;
            }
            _ => {}
        }
        let value = record(trace, &op, &x)?;
        self.values.insert(id, value.clone());
        Ok(value)
    }
}

fn resume(graph: &Graph, trace: &Trace, id: NodeId) -> ScopeGuard {
    let node = &graph.nodes[id as usize];
    trace.resume(&graph.scopes[node.scope as usize], node.provenance)
}

/// Who reads a node, if it is one node and no output.
fn sole_reader(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let is_output = graph.outputs.iter().any(|output| output.node == id);
    let mut readers = (0..graph.nodes.len() as NodeId)
        .filter(|&reader| graph.nodes[reader as usize].operands.contains(&id));
    let first = readers.next().filter(|_| !is_output)?;
    readers.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{CudaTarget, NeuronChip};
    use crate::{InputRole, Precision, Shape, backward, passes};

    /// A head over GPT-2's words with its loss and gradients in bf16, as a target gets it.
    fn step(rows: usize, target: Target) -> Graph {
        let trace = Trace::new();
        let input = |name: &str, dims: &[usize], dtype| {
            trace.input(name, Shape::new(dtype, dims), InputRole::State)
        };
        let hidden = input("hidden", &[rows, 8], DType::F32);
        let words = input("words", &[50_257, 8], DType::F32);
        let labels = input("labels", &[rows], DType::S32);
        let logits = hidden.matmul(&words.transpose(&[1, 0]).unwrap()).unwrap();
        let losses = logits.cross_entropy(&labels, -100).unwrap();
        let loss = losses.sum_all().unwrap();
        trace.output("loss", &loss);
        let gradients = backward(&loss, &[hidden, words]).unwrap();
        for (name, gradient) in ["hidden", "words"].iter().zip(gradients) {
            trace.output(*name, &gradient);
        }
        let execution = passes::Execution {
            precision: Precision::Bf16,
            ..passes::Execution::default()
        };
        let recorded = trace.finish("train").unwrap();
        let graphs = passes::specialize(&recorded, &execution).unwrap();
        let lowered = passes::lower(&graphs[0].graph, target).unwrap();
        lowered.check().unwrap();
        lowered
    }

    /// The numbers are those of the CPU's blocks (`native/tests/numerics/kernels.rs`).
    #[test]
    fn accelerators_hold_no_logits_of_all_rows() {
        let holds = |rows, target| {
            let graph = step(rows, target);
            let mut nodes = graph.nodes.iter();
            nodes.any(|node| node.shape.dims == [rows, 50_257])
        };
        let card = Target::Cuda(CudaTarget {
            capability: 90,
            ..CudaTarget::default()
        });
        let chip = Target::Neuron(NeuronChip::Trn1);
        assert!(!holds(24_000, card) && !holds(8_000, chip));
        assert!(holds(8_000, card) && holds(2_000, chip));
    }
}
