//! Which temporaries a compiled module holds at its peak, from the schedule that the compiler left
//! in it.
//!
//! One walk over the entry computation in scheduled order. A *buffer* is what one instruction
//! writes; instructions that only rename memory (tuples, bitcasts, barriers, loops, which work in
//! place) pass their operands' buffers on. Loops and calls add what their own computations hold
//! while they run. The peak of these lifetimes is found as that of a graph before a compile is
//! (`xtrain_graphs::liveness`); here nothing is predicted.

use super::{Computation, Instruction, Module, Shape, array_bytes, decode};
use crate::error::{Error, Result};
use std::collections::{BTreeSet, HashMap};
use xtrain_graphs::liveness::{self, Lifetime};

/// A temporary that is alive at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBuffer {
    pub bytes: u64,
    /// As HLO writes it, without the layout: `f32[8,256,3072]`.
    pub shape: String,
    /// `train/h.3.mlp/gelu`, of the instruction that writes it; empty where the compiler made it
    /// up.
    pub op_name: String,
    /// The HLO opcode.
    pub opcode: String,
}

/// The temporaries of a module where they are most. Arguments and results that are donated into
/// each other are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Sum over `buffers`. The compiler's own figure is a little off it: it lets some operations
    /// write over their operands, and its allocations have gaps.
    pub bytes: u64,
    /// The instruction that runs then, as [`LiveBuffer::op_name`].
    pub at: String,
    /// Largest first.
    pub buffers: Vec<LiveBuffer>,
}

/// The live buffers at the peak of a serialized, compiled HloModuleProto.
///
/// # Errors
/// The bytes are no module, or one without a schedule, which no compiler has seen.
pub fn peak(module: &[u8]) -> Result<Peak> {
    let module = decode(module)?;
    let computations = module.computations.iter().map(|c| (c.id, c)).collect();
    let walk = Walk {
        module: &module,
        computations,
        peaks: HashMap::new(),
    };
    walk.entry().map_err(|reason| Error::ModuleBytes { reason })
}

/// A result of the walk: what is wrong with the module.
type Walked<T> = std::result::Result<T, String>;

struct Walk<'m> {
    module: &'m Module,
    computations: HashMap<i64, &'m Computation>,
    /// Of the computations that were walked already.
    peaks: HashMap<i64, Peak>,
}

/// The buffers behind a value: one list for each leaf of its shape, since a tuple's element may be
/// any of several.
type Leaves = Vec<BTreeSet<usize>>;

impl<'m> Walk<'m> {
    fn entry(mut self) -> Walked<Peak> {
        let entry = self.module.entry_computation_id;
        self.computation(entry)
    }

    fn computation(&mut self, id: i64) -> Walked<Peak> {
        if let Some(known) = self.peaks.get(&id) {
            return Ok(known.clone());
        }
        let computation = *self
            .computations
            .get(&id)
            .ok_or_else(|| format!("there is no computation {id}"))?;
        let schedule = self
            .module
            .schedule
            .as_ref()
            .and_then(|schedule| schedule.sequences.get(&id));
        let order = schedule.ok_or("the module has no schedule: it is not a compiled one")?;
        let instructions: HashMap<i64, &Instruction> =
            computation.instructions.iter().map(|i| (i.id, i)).collect();
        let order: Vec<&Instruction> = order
            .instruction_ids
            .iter()
            .map(|id| {
                instructions
                    .get(id)
                    .copied()
                    .ok_or_else(|| "the schedule names no instruction".to_string())
            })
            .collect::<Walked<_>>()?;

        // Who writes what, and who reads it last.
        let mut written: Vec<(usize, &Instruction)> = Vec::new(); // (place, instruction), by buffer
        let mut sizes: Vec<(u64, String)> = Vec::new();
        let mut last_read: Vec<usize> = Vec::new();
        let mut values: HashMap<i64, Leaves> = HashMap::new();
        for (place, instruction) in order.iter().enumerate() {
            let operands: Vec<&Leaves> = instruction
                .operand_ids
                .iter()
                .filter_map(|id| values.get(id))
                .collect();
            for buffer in operands.iter().flat_map(|leaves| leaves.iter()).flatten() {
                last_read[*buffer] = place;
            }
            let leaves = match renamed(instruction, &operands) {
                Some(leaves) => leaves,
                None => leaf_shapes(instruction)
                    .iter()
                    .map(|shape| {
                        written.push((place, instruction));
                        sizes.push((array_bytes(shape), shape_text(shape)));
                        last_read.push(place);
                        BTreeSet::from([written.len() - 1])
                    })
                    .collect(),
            };
            values.insert(instruction.id, leaves);
        }
        // Results of the entry go to the caller; those of another computation into its caller's
        // buffer.
        let results: BTreeSet<usize> = values
            .get(&computation.root_id)
            .map(|leaves| leaves.iter().flatten().copied().collect())
            .unwrap_or_default();

        let lifetimes: Vec<Lifetime> = (0..written.len())
            .map(|buffer| Lifetime {
                alive: written[buffer].0..last_read[buffer] + 1,
                bytes: if results.contains(&buffer) {
                    0
                } else {
                    sizes[buffer].0
                },
            })
            .collect();
        let mut inner: HashMap<usize, Peak> = HashMap::new();
        for (place, instruction) in order.iter().enumerate() {
            let peak = self.inner(instruction)?;
            if peak.bytes > 0 {
                inner.insert(place, peak);
            }
        }
        let inside = inner.iter().map(|(place, peak)| (*place, peak.bytes));
        let mut best = Peak::default();
        if let Some((place, bytes)) = liveness::peak(&lifetimes, &inside.collect()) {
            let is_alive = |buffer: &usize| {
                lifetimes[*buffer].bytes > 0 && lifetimes[*buffer].alive.contains(&place)
            };
            let own = (0..written.len()).filter(is_alive);
            let own = own.map(|buffer| describe(written[buffer].1, &sizes[buffer]));
            let inner = inner.remove(&place);
            best = Peak {
                bytes,
                at: match &inner {
                    Some(inner) => inner.at.clone(),
                    None => op_name(order[place]),
                },
                buffers: own
                    .chain(inner.into_iter().flat_map(|inner| inner.buffers))
                    .collect(),
            };
        }
        best.buffers.sort_by(|a, b| {
            b.bytes
                .cmp(&a.bytes)
                .then_with(|| a.op_name.cmp(&b.op_name))
        });
        self.peaks.insert(id, best.clone());
        Ok(best)
    }

    /// What the computations that an instruction runs hold at most. Those of fusions and reductions
    /// live in registers.
    fn inner(&mut self, instruction: &Instruction) -> Walked<Peak> {
        if !matches!(
            instruction.opcode.as_str(),
            "while" | "call" | "conditional"
        ) {
            return Ok(Peak::default());
        }
        let mut most = Peak::default();
        for &id in &instruction.called_computation_ids {
            let peak = self.computation(id)?;
            if peak.bytes > most.bytes {
                most = peak;
            }
        }
        Ok(most)
    }
}

/// The buffers of an instruction that writes none of its own; `None` for one that does.
fn renamed(instruction: &Instruction, operands: &[&Leaves]) -> Option<Leaves> {
    let first = || {
        operands
            .first()
            .map(|leaves| (*leaves).clone())
            .unwrap_or_default()
    };
    match instruction.opcode.as_str() {
        "parameter" | "constant" | "after-all" | "partition-id" | "replica-id" => {
            Some(vec![BTreeSet::new(); leaf_shapes(instruction).len()])
        }
        "bitcast" | "opt-barrier" | "while" | "add-dependency" | "copy-done"
        | "all-reduce-done" | "all-gather-done" => Some(first()),
        "tuple" => Some(
            operands
                .iter()
                .flat_map(|leaves| leaves.iter().cloned())
                .collect(),
        ),
        "get-tuple-element" => {
            let element = first()
                .get(usize::try_from(instruction.tuple_index).ok()?)
                .cloned();
            Some(vec![element.unwrap_or_default()])
        }
        _ => None,
    }
}

/// The arrays of an instruction's shape. Tuples of tuples do not occur in our modules; their inner
/// arrays stand in a row.
fn leaf_shapes(instruction: &Instruction) -> Vec<&Shape> {
    fn collect<'s>(shape: &'s Shape, into: &mut Vec<&'s Shape>) {
        if shape.tuple_shapes.is_empty() {
            into.push(shape)
        } else {
            shape
                .tuple_shapes
                .iter()
                .for_each(|element| collect(element, into))
        }
    }
    let mut shapes = Vec::new();
    if let Some(shape) = &instruction.shape {
        collect(shape, &mut shapes);
    }
    shapes
}

fn shape_text(shape: &Shape) -> String {
    let dims: Vec<String> = shape.dimensions.iter().map(i64::to_string).collect();
    format!(
        "{}[{}]",
        shape.element_type().as_str_name().to_lowercase(),
        dims.join(",")
    )
}

fn op_name(instruction: &Instruction) -> String {
    instruction
        .metadata
        .as_ref()
        .map(|metadata| metadata.op_name.clone())
        .unwrap_or_default()
}

fn describe(instruction: &Instruction, (bytes, shape): &(u64, String)) -> LiveBuffer {
    LiveBuffer {
        bytes: *bytes,
        shape: shape.clone(),
        op_name: op_name(instruction),
        opcode: instruction.opcode.clone(),
    }
}
