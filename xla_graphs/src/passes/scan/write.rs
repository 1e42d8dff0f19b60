//! The graph with its loops, in an order in which it can run.

use super::alike::{Loop, Plan, Stack, Value, ValueId};
use super::layers::of_all_layers;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, InputRole};
use crate::liveness::is_loop;
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::{NodeId, Tensor, Trace};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) fn write(plan: &Plan) -> Result<Graph> {
    let graph = plan.graph;
    let mut writer = Writer {
        plan,
        demand: Demand::of(plan),
        trace: Trace::deduplicating(),
        nodes: HashMap::new(),
        stacks: BTreeMap::new(),
        results: HashMap::new(),
    };
    let inputs = graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| matches!(node.op, Op::Input(_)));
    let mut all: Vec<Item> = inputs.map(|(id, _)| Item::Node(id as NodeId)).collect();
    all.extend(graph.outputs.iter().map(|output| writer.item(output.node)));
    for item in writer.in_order(&all)? {
        match item {
            Item::Node(id) => writer.write_node(id)?,
            Item::Loop(number) => writer.write_loop(number)?,
        }
    }
    for output in &graph.outputs {
        let tensor = writer.node(output.node)?;
        writer.trace.output(output.name.clone(), &tensor);
    }
    Ok(Graph {
        stage: graph.stage,
        scan_layers: graph.scan_layers,
        ..writer.trace.cut(&graph.name)?
    })
}

/// What loops have to compute, and which of it has to be kept.
struct Demand<'p, 'g> {
    plan: &'p Plan<'g>,
    nodes: BTreeSet<NodeId>,
    values: BTreeSet<(usize, ValueId)>,
    kept: BTreeSet<(usize, ValueId)>,
}

enum Wanted {
    Node(NodeId),
    Value(usize, ValueId),
}

impl<'p, 'g> Demand<'p, 'g> {
    fn of(plan: &'p Plan<'g>) -> Self {
        let mut demand = Demand {
            plan,
            nodes: BTreeSet::new(),
            values: BTreeSet::new(),
            kept: BTreeSet::new(),
        };
        let mut open: Vec<Wanted> = plan
            .graph
            .outputs
            .iter()
            .map(|output| Wanted::Node(output.node))
            .collect();
        while let Some(wanted) = open.pop() {
            match wanted {
                Wanted::Node(id) if demand.nodes.insert(id) => match plan.computed_by(id) {
                    Some((of, value, iteration)) => {
                        if plan.loops[of].last_result(value, iteration).is_none() {
                            demand.kept.insert((of, value));
                        }
                        open.push(Wanted::Value(of, value));
                    }
                    None => open.extend(
                        plan.graph.nodes[id as usize]
                            .operands
                            .iter()
                            .map(|&operand| Wanted::Node(operand)),
                    ),
                },
                Wanted::Value(of, value) => demand.value(of, value, &mut open),
                Wanted::Node(_) => {}
            }
        }
        demand
    }

    fn value(&mut self, of: usize, value: ValueId, open: &mut Vec<Wanted>) {
        if !self.values.insert((of, value)) {
            return;
        }
        open.extend(
            self.plan.loops[of]
                .carried
                .iter()
                .map(|carried| Wanted::Value(of, carried.value)),
        );
        match &self.plan.loops[of].values[value] {
            Value::Carried(number) => {
                open.extend(self.plan.loops[of].carried[*number].first.map(Wanted::Node))
            }
            Value::Same(node) => open.push(Wanted::Node(*node)),
            Value::Row {
                of: Stack::Nodes(nodes),
                ..
            } => open.extend(nodes.iter().map(|&node| Wanted::Node(node))),
            Value::Row {
                of: Stack::Kept(other, value),
                ..
            } => {
                self.kept.insert((*other, *value));
                open.push(Wanted::Value(*other, *value));
            }
            Value::Computed { operands, .. } => {
                open.extend(operands.iter().map(|&operand| Wanted::Value(of, operand)))
            }
        }
    }

    /// The values of a loop that the body has to have, in order.
    fn values(&self, of: usize) -> impl Iterator<Item = ValueId> {
        self.values
            .range((of, 0)..(of + 1, 0))
            .map(|(_, value)| *value)
    }

    /// Those of which each iteration's is kept.
    fn kept(&self, of: usize) -> impl Iterator<Item = ValueId> {
        self.kept
            .range((of, 0)..(of + 1, 0))
            .map(|(_, value)| *value)
    }
}

impl Loop {
    /// The number of what is handed on, if this is what the last iteration hands on.
    fn last_result(&self, value: ValueId, iteration: usize) -> Option<usize> {
        let is_last = iteration + 1 == self.iterations;
        self.carried
            .iter()
            .position(|carried| is_last && carried.value == value)
    }
}

/// What stands in the new graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Item {
    Node(NodeId),
    Loop(usize),
}

struct Writer<'p, 'g> {
    plan: &'p Plan<'g>,
    demand: Demand<'p, 'g>,
    trace: Trace,
    nodes: HashMap<NodeId, Tensor>,
    stacks: BTreeMap<Stack, Tensor>,
    /// What a loop handed on last.
    results: HashMap<(usize, usize), Tensor>,
}

impl Writer<'_, '_> {
    fn item(&self, node: NodeId) -> Item {
        self.plan
            .computed_by(node)
            .map_or(Item::Node(node), |(of, _, _)| Item::Loop(of))
    }

    fn reads(&self, item: Item) -> Vec<Item> {
        match item {
            Item::Node(id) => self.plan.graph.nodes[id as usize]
                .operands
                .iter()
                .map(|&operand| self.item(operand))
                .collect(),
            Item::Loop(of) => {
                let read = |value: ValueId| match &self.plan.loops[of].values[value] {
                    Value::Carried(number) => self.plan.loops[of].carried[*number]
                        .first
                        .map(|node| self.item(node))
                        .into_iter()
                        .collect(),
                    Value::Same(node) => vec![self.item(*node)],
                    Value::Row {
                        of: Stack::Nodes(nodes),
                        ..
                    } => nodes.iter().map(|&node| self.item(node)).collect(),
                    Value::Row {
                        of: Stack::Kept(other, _),
                        ..
                    } => vec![Item::Loop(*other)],
                    Value::Computed { .. } => Vec::new(),
                };
                self.demand.values(of).flat_map(read).collect()
            }
        }
    }

    /// Everything that these items need, operands first.
    fn in_order(&self, items: &[Item]) -> Result<Vec<Item>> {
        let mut order = Vec::new();
        let mut is_done: HashMap<Item, bool> = HashMap::new();
        let mut open: Vec<(Item, bool)> = items.iter().rev().map(|&item| (item, false)).collect();
        while let Some((item, is_left)) = open.pop() {
            match is_done.get(&item) {
                _ if is_left => {
                    is_done.insert(item, true);
                    order.push(item);
                }
                Some(true) => {}
                Some(false) => return Err(self.turns_back(item)),
                None => {
                    is_done.insert(item, false);
                    open.push((item, true));
                    let unread = |read: &Item| is_done.get(read) != Some(&true);
                    let mut reads: Vec<Item> =
                        self.reads(item).into_iter().filter(unread).collect();
                    reads.dedup();
                    if let Some(again) = reads.iter().find(|read| is_done.contains_key(read)) {
                        return Err(self.turns_back(*again));
                    }
                    // Those that are met again before their turn are done by then.
                    open.extend(reads.into_iter().rev().map(|read| (read, false)));
                }
            }
        }
        Ok(order)
    }

    fn turns_back(&self, item: Item) -> Error {
        let layers = match item {
            Item::Loop(number) => self.plan.loops[number].path.clone(),
            Item::Node(id) => {
                self.plan.graph.scopes[self.plan.graph.nodes[id as usize].scope as usize].clone()
            }
        };
        Error::Unlike { layers }
    }

    fn write_node(&mut self, id: NodeId) -> Result<()> {
        let node = &self.plan.graph.nodes[id as usize];
        let _scope = self
            .trace
            .absolute_scope(&self.plan.graph.scopes[node.scope as usize]);
        let tensor = match node.op {
            Op::Input(index) => {
                let input = &self.plan.graph.inputs[index as usize];
                self.trace
                    .input(input.name.clone(), input.shape.clone(), input.role)
            }
            _ => {
                let operands = node
                    .operands
                    .iter()
                    .map(|&operand| self.node(operand))
                    .collect::<Result<Vec<_>>>()?;
                self.trace
                    .record(node.op.clone(), &operands.iter().collect::<Vec<_>>())?
            }
        };
        self.nodes.insert(id, tensor);
        Ok(())
    }

    /// A node's value outside of loops.
    fn node(&mut self, id: NodeId) -> Result<Tensor> {
        if let Some(known) = self.nodes.get(&id) {
            return Ok(known.clone());
        }
        let (of, value, iteration) = self
            .plan
            .computed_by(id)
            .expect("whatever is read is written before, or by a loop");
        let tensor = match self.plan.loops[of].last_result(value, iteration) {
            Some(number) => self.results[&(of, number)].clone(),
            None => {
                let node = &self.plan.graph.nodes[id as usize];
                let _scope = self
                    .trace
                    .absolute_scope(&self.plan.graph.scopes[node.scope as usize]);
                let stack = &self.stacks[&Stack::Kept(of, value)];
                // As a number that the compiler does not know: kernels that read other rows are the
                // same kernel then, compiled once.
                let place = self
                    .trace
                    .constant(iteration as f64, DType::S32)?
                    .opaque()?;
                stack
                    .dynamic_slice(&place, 0, 1)?
                    .reshape(&node.shape.dims)?
            }
        };
        self.nodes.insert(id, tensor.clone());
        Ok(tensor)
    }

    fn stack(&mut self, stack: &Stack) -> Result<Tensor> {
        if let Some(known) = self.stacks.get(stack) {
            return Ok(known.clone());
        }
        let Stack::Nodes(nodes) = stack else {
            unreachable!("a loop's stacks are there when it is written")
        };
        let rows = nodes
            .iter()
            .map(|&node| row(&self.node(node)?))
            .collect::<Result<Vec<_>>>()?;
        let tensor = Tensor::concat(&rows.iter().collect::<Vec<_>>(), 0)?;
        self.stacks.insert(stack.clone(), tensor.clone());
        Ok(tensor)
    }

    fn write_loop(&mut self, number: usize) -> Result<()> {
        let planned = &self.plan.loops[number];
        let trace = self.trace.clone();
        let _scope = trace.absolute_scope(&planned.path);
        let mut body = Body::new(self, number)?;
        let values: Vec<ValueId> = body.writer.demand.values(number).collect();
        for value in values {
            body.write(value)?;
        }
        let kept: Vec<ValueId> = body.writer.demand.kept(number).collect();
        let carried: Vec<usize> = body.carried.iter().map(|(_, place)| *place).collect();
        let kept_at = kept
            .iter()
            .map(|&value| body.keep(value))
            .collect::<Result<Vec<usize>>>()?;
        let (graph, operands) = body.finish()?;
        let results = self.trace.repeat(
            graph,
            planned.iterations as u32,
            &operands.iter().collect::<Vec<_>>(),
        )?;
        for (which, place) in carried.into_iter().enumerate() {
            self.results.insert((number, which), results[place].clone());
        }
        for (value, place) in kept.into_iter().zip(kept_at) {
            self.stacks
                .insert(Stack::Kept(number, value), results[place].clone());
        }
        Ok(())
    }
}

/// A loop's body while it is written.
struct Body<'w, 'p, 'g> {
    writer: &'w mut Writer<'p, 'g>,
    number: usize,
    trace: Trace,
    counter: Tensor,
    /// What the loop begins with, in the outer graph; what the body sees of it; what it gives for
    /// the next iteration.
    operands: Vec<Tensor>,
    inputs: Vec<Tensor>,
    next: Vec<Tensor>,
    values: HashMap<ValueId, Tensor>,
    /// What is handed on, with its place among the inputs.
    carried: Vec<(Tensor, usize)>,
    same: HashMap<NodeId, Tensor>,
    stacks: BTreeMap<Stack, Tensor>,
}

impl<'w, 'p, 'g> Body<'w, 'p, 'g> {
    fn new(writer: &'w mut Writer<'p, 'g>, number: usize) -> Result<Self> {
        let trace = Trace::deduplicating();
        let counter = trace.input("counter", Shape::scalar(DType::S32), InputRole::Feed);
        let next = counter.add_scalar(1.0)?;
        let start = writer.trace.constant(0.0, DType::S32)?;
        let mut body = Body {
            writer,
            number,
            trace,
            operands: vec![start],
            inputs: vec![counter.clone()],
            next: vec![next],
            counter,
            values: HashMap::new(),
            carried: Vec::new(),
            same: HashMap::new(),
            stacks: BTreeMap::new(),
        };
        let planned = &body.writer.plan.loops[number];
        for (which, carried) in planned.carried.iter().enumerate() {
            let outer = match carried.first {
                Some(node) => body.writer.node(node)?,
                // Nobody reads what the iteration before handed on.
                None => body.writer.trace.full(
                    0.0,
                    &body.writer.plan.graph.nodes[carried.nodes[0] as usize].shape,
                )?,
            };
            let input = body.input(&format!("carried.{which}"), &outer);
            body.carried.push((input, body.inputs.len() - 1));
        }
        Ok(body)
    }

    /// One more input, which stays what it is until [`Body::next`] is told otherwise.
    fn input(&mut self, name: &str, outer: &Tensor) -> Tensor {
        let input = self
            .trace
            .input(name, outer.shape().clone(), InputRole::Feed);
        self.operands.push(outer.clone());
        self.inputs.push(input.clone());
        self.next.push(input.clone());
        input
    }

    fn write(&mut self, value: ValueId) -> Result<()> {
        let plan = self.writer.plan;
        let tensor = match &plan.loops[self.number].values[value] {
            Value::Carried(which) => self.carried[*which].0.clone(),
            Value::Same(node) => self.same(*node)?,
            Value::Row { of, from, step } => {
                let stack = match self.stacks.get(of) {
                    Some(known) => known.clone(),
                    None => {
                        let outer = self.writer.stack(of)?;
                        let input = self.input(&format!("stack.{}", self.stacks.len()), &outer);
                        self.stacks.insert(of.clone(), input.clone());
                        input
                    }
                };
                let place = match (from, step) {
                    (0, 1) => self.counter.clone(),
                    _ => self
                        .counter
                        .mul_scalar(*step as f64)?
                        .add_scalar(*from as f64)?,
                };
                stack
                    .dynamic_slice(&place, 0, 1)?
                    .reshape(&stack.dims()[1..])?
            }
            Value::Computed { like, operands } => {
                let node = &plan.graph.nodes[*like as usize];
                let _scope = self
                    .trace
                    .absolute_scope(&of_all_layers(&plan.graph.scopes[node.scope as usize]));
                let operands: Vec<&Tensor> = operands
                    .iter()
                    .map(|operand| &self.values[operand])
                    .collect();
                self.trace.record(node.op.clone(), &operands)?
            }
        };
        self.values.insert(value, tensor);
        Ok(())
    }

    /// A node that is the same for all iterations. What is made of constants and feeds by simple
    /// operations is made again in each, as it is for each layer where there is no loop: a mask is
    /// never written down.
    fn same(&mut self, id: NodeId) -> Result<Tensor> {
        if let Some(known) = self.same.get(&id) {
            return Ok(known.clone());
        }
        let plan = self.writer.plan;
        let node = &plan.graph.nodes[id as usize];
        let is_simple =
            matches!(node.op, Op::Constant { .. } | Op::Reshape(_)) || is_loop(&node.op);
        let tensor = if is_simple && plan.origins[id as usize].is_free() {
            let operands = node
                .operands
                .iter()
                .map(|&operand| self.same(operand))
                .collect::<Result<Vec<_>>>()?;
            let _scope = self
                .trace
                .absolute_scope(&of_all_layers(&plan.graph.scopes[node.scope as usize]));
            self.trace
                .record(node.op.clone(), &operands.iter().collect::<Vec<_>>())?
        } else {
            let outer = self.writer.node(id)?;
            self.input(&format!("same.{}", self.same.len()), &outer)
        };
        self.same.insert(id, tensor.clone());
        Ok(tensor)
    }

    /// Keeps a value of each iteration; the place of the stack among the inputs.
    fn keep(&mut self, value: ValueId) -> Result<usize> {
        let row = row(&self.values[&value])?;
        let mut dims = row.dims().to_vec();
        dims[0] = self.writer.plan.loops[self.number].iterations;
        let empty = self
            .writer
            .trace
            .full(0.0, &Shape::new(row.dtype(), dims))?;
        let stack = self.input(&format!("kept.{value}"), &empty);
        let place = self.inputs.len() - 1;
        self.next[place] = stack.dynamic_update_slice(&row, &self.counter, 0)?;
        Ok(place)
    }

    /// The body, and what the loop begins with.
    fn finish(mut self) -> Result<(Graph, Vec<Tensor>)> {
        let planned = &self.writer.plan.loops[self.number];
        for (carried, (_, place)) in planned.carried.iter().zip(&self.carried) {
            self.next[*place] = self.values[&carried.value].clone();
        }
        for (index, next) in self.next.iter().enumerate() {
            self.trace.output(format!("next.{index}"), next);
        }
        Ok((self.trace.cut(&self.writer.plan.graph.name)?, self.operands))
    }
}

/// A value as the row of a stack.
fn row(x: &Tensor) -> Result<Tensor> {
    let dims: Vec<usize> = [1].into_iter().chain(x.dims().iter().copied()).collect();
    x.reshape(&dims)
}
