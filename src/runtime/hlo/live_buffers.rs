//! Which temporaries a compiled module holds over its schedule, and at its peak, from the schedule that
//! the compiler left in it.
//!
//! One walk over the entry computation in scheduled order. A *buffer* is what one instruction
//! writes; instructions that only rename memory (tuples, bitcasts, barriers, loops, which work in
//! place) pass their operands' buffers on. Loops and calls add what their own computations hold
//! while they run. The peak of these lifetimes is found as that of a graph before a compile is
//! (`xtrain_graphs::liveness`); here nothing is predicted.

use super::launched::computations;
use super::{Computation, Instruction, Module, Shape, array_bytes, local_id, op_name, read};
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

/// What a computation holds over its schedule.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The instruction at each position, as [`LiveBuffer::op_name`].
    pub op_names: Vec<String>,
    /// Of results, whose memory is the caller's, without their bytes.
    buffers: Vec<(Lifetime, LiveBuffer)>,
    /// What the computations that an instruction runs hold at most, by its position.
    inner: HashMap<usize, Peak>,
}

impl Profile {
    /// Bytes that are held at each position.
    pub fn held(&self) -> Vec<u64> {
        let mut change = vec![0i128; self.op_names.len() + 1];
        for (Lifetime { alive, bytes }, _) in &self.buffers {
            change[alive.start] += i128::from(*bytes);
            change[alive.end] -= i128::from(*bytes);
        }
        let mut own = 0;
        let positions = change[..self.op_names.len()].iter().enumerate();
        positions
            .map(|(position, change)| {
                own += change;
                let inside = self.inner.get(&position).map_or(0, |peak| peak.bytes);
                u64::try_from(own).unwrap_or(0).saturating_add(inside)
            })
            .collect()
    }

    /// What is alive at a position.
    pub fn at(&self, position: usize) -> Peak {
        let inner = self.inner.get(&position);
        let own = self.buffers.iter();
        let own = own.filter(|(of, _)| of.bytes > 0 && of.alive.contains(&position));
        let mut buffers: Vec<LiveBuffer> = own
            .map(|(_, buffer)| buffer.clone())
            .chain(inner.iter().flat_map(|inner| inner.buffers.clone()))
            .collect();
        buffers.sort_by(|a, b| {
            b.bytes
                .cmp(&a.bytes)
                .then_with(|| a.op_name.cmp(&b.op_name))
        });
        let own = self.op_names.get(position).cloned();
        Peak {
            bytes: buffers.iter().map(|buffer| buffer.bytes).sum(),
            at: inner.map_or(own.unwrap_or_default(), |inner| inner.at.clone()),
            buffers,
        }
    }

    fn peak(&self) -> Peak {
        let lifetimes: Vec<Lifetime> = self.buffers.iter().map(|(of, _)| of.clone()).collect();
        let inside = self.inner.iter().map(|(at, peak)| (*at, peak.bytes));
        match liveness::peak(&lifetimes, &inside.collect()) {
            Some((position, _)) => self.at(position),
            None => Peak::default(),
        }
    }
}

/// The live buffers at the peak of a serialized, compiled HloModuleProto.
///
/// # Errors
/// The bytes are no module, or one without a schedule, which no compiler has seen.
pub fn peak(module: &[u8]) -> Result<Peak> {
    Ok(profile(module)?.peak())
}

/// What the entry computation of a serialized, compiled HloModuleProto holds over its schedule.
///
/// # Errors
/// As of [`peak`].
pub fn profile(module: &[u8]) -> Result<Profile> {
    let module = read(module)?;
    let mut walk = Walk {
        module: &module,
        computations: computations(&module),
        peaks: HashMap::new(),
    };
    let profile = walk.profile(module.entry_computation_id);
    profile.map_err(|reason| Error::ModuleBytes { reason })
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
    /// The peak of a computation, which is walked once.
    fn peak(&mut self, id: i64) -> Walked<Peak> {
        if let Some(known) = self.peaks.get(&id) {
            return Ok(known.clone());
        }
        // Where a damaged module calls a computation from itself.
        self.peaks.insert(id, Peak::default());
        let peak = self.profile(id)?.peak();
        self.peaks.insert(id, peak.clone());
        Ok(peak)
    }

    fn profile(&mut self, id: i64) -> Walked<Profile> {
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
                    .get(&local_id(id))
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

        let mut profile = Profile::default();
        for (buffer, (position, instruction)) in written.iter().enumerate() {
            let is_result = results.contains(&buffer);
            let lifetime = Lifetime {
                alive: *position..last_read[buffer] + 1,
                bytes: if is_result { 0 } else { sizes[buffer].0 },
            };
            profile
                .buffers
                .push((lifetime, describe(instruction, &sizes[buffer])));
        }
        for (position, instruction) in order.iter().enumerate() {
            profile.op_names.push(op_name(instruction));
            let peak = self.inner(instruction)?;
            if peak.bytes > 0 {
                profile.inner.insert(position, peak);
            }
        }
        Ok(profile)
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
            let peak = self.peak(id)?;
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

fn describe(instruction: &Instruction, (bytes, shape): &(u64, String)) -> LiveBuffer {
    LiveBuffer {
        bytes: *bytes,
        shape: shape.clone(),
        op_name: op_name(instruction),
        opcode: instruction.opcode.clone(),
    }
}
