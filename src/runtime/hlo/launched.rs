//! What a compiled module launches, in the order of its schedule: the instructions of the entry
//! computation, and of the loops, calls and asynchronous computations in it, that a kernel, a library
//! call or a collective stands for. What lies inside a fusion is one kernel.

use super::{Computation, Instruction, Module, config};
use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// More kernels than any module has; only a damaged one calls its computations in circles.
const MOST: usize = 1 << 20;
const DEEPEST: usize = 64;

/// One launch.
pub(super) struct Launched<'m> {
    pub instruction: &'m Instruction,
    /// The computation that it belongs to.
    pub around: &'m Computation,
    /// How often it runs in one execution, as far as the compiler knows the loops around it.
    pub times: f64,
    /// Of what is started and awaited later: the launches by then, itself among them.
    pub awaited_at: Option<usize>,
}

/// The launches of a module whose ids are local ([`super::read`]).
///
/// # Errors
/// Its computations call each other in circles.
pub(super) fn launched(module: &Module) -> Result<Vec<Launched<'_>>> {
    let mut walk = Walk {
        module,
        computations: computations(module),
        launched: Vec::new(),
    };
    walk.computation(module.entry_computation_id, 1.0, 0)?;
    Ok(walk.launched)
}

/// By their ids.
pub(super) fn computations(module: &Module) -> HashMap<i64, &Computation> {
    module.computations.iter().map(|c| (c.id, c)).collect()
}

struct Walk<'m> {
    module: &'m Module,
    computations: HashMap<i64, &'m Computation>,
    launched: Vec<Launched<'m>>,
}

impl<'m> Walk<'m> {
    fn computation(&mut self, id: i64, times: f64, depth: usize) -> Result<()> {
        let Some(computation) = self.computations.get(&id).copied() else {
            return Ok(());
        };
        if depth > DEEPEST || self.launched.len() > MOST {
            return Err(Error::ModuleBytes {
                reason: format!("computation {id} is called in circles"),
            });
        }
        // What an asynchronous instruction has launched.
        let mut started: HashMap<i64, Range<usize>> = HashMap::new();
        for instruction in self.order(computation) {
            let begin = self.launched.len();
            match instruction.opcode.as_str() {
                "while" | "call" | "conditional" | "async-start" => {
                    let times = times * trip_count(instruction);
                    for &called in &instruction.called_computation_ids {
                        self.computation(called, times, depth + 1)?;
                    }
                }
                opcode if opcode.ends_with("-done") => {
                    let first = instruction.operand_ids.first();
                    let range = first.and_then(|id| started.get(id)).cloned();
                    for launch in &mut self.launched[range.unwrap_or_default()] {
                        launch.awaited_at = Some(begin);
                    }
                }
                opcode if is_name_only(opcode) => {}
                _ => self.launched.push(Launched {
                    instruction,
                    around: computation,
                    times,
                    awaited_at: None,
                }),
            }
            if instruction.opcode.ends_with("-start") {
                started.insert(instruction.id, begin..self.launched.len());
            }
        }
        Ok(())
    }

    /// A computation's instructions as they are scheduled, or as they stand where there is no
    /// schedule.
    fn order(&self, computation: &'m Computation) -> Vec<&'m Instruction> {
        let sequences = self.module.schedule.as_ref().map(|it| &it.sequences);
        let Some(sequence) = sequences.and_then(|all| all.get(&computation.id)) else {
            return computation.instructions.iter().collect();
        };
        let by_id: HashMap<i64, &Instruction> =
            computation.instructions.iter().map(|i| (i.id, i)).collect();
        let mut seen = HashSet::new();
        let ids = sequence.instruction_ids.iter().map(super::local_id);
        ids.filter(|id| seen.insert(*id))
            .filter_map(|id| by_id.get(&id).copied())
            .collect()
    }
}

/// How often a loop runs, if the compiler found that out; anything else runs once.
fn trip_count(instruction: &Instruction) -> f64 {
    let found = &config(instruction)["known_trip_count"]["n"];
    found.as_str().and_then(|n| n.parse().ok()).unwrap_or(1.0)
}

/// Instructions that no kernel stands for.
pub(super) fn is_name_only(opcode: &str) -> bool {
    matches!(
        opcode,
        "parameter"
            | "constant"
            | "tuple"
            | "get-tuple-element"
            | "bitcast"
            | "after-all"
            | "opt-barrier"
            | "add-dependency"
            | "partition-id"
            | "replica-id"
    ) || opcode.ends_with("-done")
}
