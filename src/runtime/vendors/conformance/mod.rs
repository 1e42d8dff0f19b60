//! What a device's compiler is known to take, and a check of emitted modules against it: the
//! substitute for hardware that nobody has here. A module that passes uses nothing but operations,
//! types and patterns that AWS documents or that went through its compiler before; of one that does
//! not, each instruction is named with its layer, the rule that it breaks and the rule's source.
//!
//! The check reads the module as it leaves the emitter, so whatever a pass or the emitter adds is
//! seen. `table` has the operations, `rules` everything else, `ranges` what indices can be.
//!
//! Not looked for, because a module does not show it: how many instructions the compiler makes of
//! it (codes EBVF030), whether it fits into the device (codes EOOM001), and shapes that contradict
//! each other (codes EVRF064), which XLA's own verifier finds when the module is converted.

mod ranges;
mod rules;
mod table;

pub use rules::{RULES, Rule};

use crate::error::Result;
use crate::hlo::{self, Instruction, Shape};
use rules::Checked;
use std::collections::HashMap;
use table::element;
use xtrain_graphs::Target;

/// AWS's chips, as the rules tell them apart.
pub use xtrain_graphs::NeuronChip as Chip;

/// Something that the target's compiler refuses, or is not known to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The opcode with its result's shape.
    pub operation: String,
    /// The model path, or `the step`.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// The rule that it breaks, by [`Rule::name`].
    pub rule: &'static str,
    pub source: &'static str,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} in {}: {} (rule: {}; {})",
            self.operation, self.place, self.problem, self.rule, self.source
        )
    }
}

/// What was found in a module.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub instructions: usize,
    pub violations: Vec<Violation>,
}

/// Everything in a serialized HloModuleProto that the target's compiler is not known to take, in
/// the module's order. XLA's own CPU takes all that the emitter makes.
pub fn check(module: &[u8], target: Target) -> Result<Report> {
    let module = hlo::read(module)?;
    let mut report = Report::default();
    for computation in &module.computations {
        let instructions: HashMap<i64, &Instruction> =
            computation.instructions.iter().map(|i| (i.id, i)).collect();
        let ranges = ranges::of(computation);
        for this in &computation.instructions {
            report.instructions += 1;
            let broken = match target {
                Target::Cpu(_) => None,
                Target::Cuda(card) => cuda(this, &instructions, card.capability),
                Target::Neuron(chip) => {
                    let checked = Checked {
                        module: &module,
                        chip,
                        instructions: &instructions,
                        ranges: &ranges,
                        this,
                    };
                    RULES
                        .iter()
                        .find_map(|rule| Some(((rule.broken)(&checked)?, rule.name, rule.source)))
                }
            };
            report
                .violations
                .extend(broken.map(|(problem, rule, source)| Violation {
                    operation: format!(
                        "{} {}",
                        this.opcode,
                        this.shape.as_ref().map_or_else(String::new, describe)
                    ),
                    place: place(this),
                    problem,
                    rule,
                    source,
                }));
        }
    }
    Ok(report)
}

/// The opcodes of the table.
pub fn operations() -> impl Iterator<Item = &'static str> {
    table::NEURON.iter().flat_map(|row| row.opcodes).copied()
}

type Broken = Option<(String, &'static str, &'static str)>;

fn cuda(this: &Instruction, instructions: &HashMap<i64, &Instruction>, capability: u16) -> Broken {
    let first = instructions
        .get(this.operand_ids.first()?)?
        .shape
        .as_ref()?;
    (this.opcode == "dot" && first.element_type == element::BF16 && capability < 80).then(|| {
        let (major, minor) = (capability / 10, capability % 10);
        let problem = format!("products of bf16 need compute capability 8.0, this card has {major}.{minor}; use --fp16");
        (problem, "the card multiplies bf16", "CUDA programming guide, compute capabilities")
    })
}

/// The model path out of `graph/model.path/operation`.
fn place(instruction: &Instruction) -> String {
    let name = instruction
        .metadata
        .as_ref()
        .map_or("", |metadata| metadata.op_name.as_str());
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [_, ref path @ .., _] if !path.is_empty() => path.join("/"),
        _ => "the step".into(),
    }
}

fn describe(shape: &Shape) -> String {
    match shape.element_type {
        element::TUPLE => format!(
            "({})",
            shape
                .tuple_shapes
                .iter()
                .map(describe)
                .collect::<Vec<_>>()
                .join(", ")
        ),
        other => {
            let dims: Vec<String> = shape.dimensions.iter().map(i64::to_string).collect();
            format!("{}[{}]", element::name(other), dims.join(","))
        }
    }
}

#[cfg(test)]
mod tests;
