//! Damaged HLO modules.

use crate::Signature;
use crate::hlo::{self, kernels, live_buffers, stats};
use prost::Message;
use xtrain_fuzz::Target;

const TARGETS: &[Target] = &[
    Target {
        name: "hlo",
        file: "module.pb",
        seeds: modules,
        words: &[
            "add",
            "parameter",
            "fusion",
            "while",
            "\u{8}\u{1}",
            "\0",
            "\u{7f}",
        ],
        read: |_, bytes| {
            let _ = hlo::read(bytes);
            let _ = stats::of(bytes);
            let _ = kernels::of(bytes);
            let _ = live_buffers::peak(bytes);
            let _ = hlo::with_required_aliases(bytes);
        },
    },
    Target {
        name: "pjrt",
        file: "program.pb",
        seeds: modules,
        words: &["\u{8}\u{1}", "\0", "\u{7f}", "hlo"],
        read: |_, bytes| {
            let _ = Signature::of_module(bytes);
        },
    },
];

/// `f(x) = (x, while(x))`, with a computation for each body.
fn modules() -> Vec<Vec<u8>> {
    let shape = || hlo::Shape {
        element_type: hlo::PrimitiveType::F32.into(),
        dimensions: vec![4, 8],
        ..Default::default()
    };
    let instruction = |id: i64, opcode: &str, operands: &[i64], called: &[i64]| hlo::Instruction {
        id,
        name: format!("{opcode}.{id}"),
        opcode: opcode.into(),
        shape: Some(shape()),
        operand_ids: operands.to_vec(),
        called_computation_ids: called.to_vec(),
        ..Default::default()
    };
    let computation = |id: i64, instructions: Vec<hlo::Instruction>| hlo::Computation {
        id,
        name: format!("computation.{id}"),
        root_id: instructions.last().map_or(0, |last| last.id),
        instructions,
        ..Default::default()
    };
    let module = hlo::Module {
        name: "f".into(),
        entry_computation_id: 3,
        computations: vec![
            computation(
                1,
                vec![
                    instruction(1, "parameter", &[], &[]),
                    instruction(2, "add", &[1, 1], &[]),
                ],
            ),
            computation(2, vec![instruction(1, "parameter", &[], &[])]),
            computation(
                3,
                vec![
                    instruction(1, "parameter", &[], &[]),
                    instruction(2, "fusion", &[1], &[1]),
                    instruction(3, "while", &[2], &[1, 2]),
                    instruction(4, "all-reduce", &[3], &[1]),
                    instruction(5, "dot", &[4, 1], &[]),
                ],
            ),
        ],
        host_program_shape: Some(hlo::ProgramShape {
            parameters: vec![shape()],
            result: Some(shape()),
            ..Default::default()
        }),
        ..Default::default()
    };
    vec![module.encode_to_vec()]
}

xtrain_fuzz::tests!(TARGETS);
