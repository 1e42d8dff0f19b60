//! A planted violation of each rule and of each refused operation, in layer `h.7.attn`.

use super::table::{NEURON, REFUSED, element::*};
use super::{Chip, RULES, Report, check};
use crate::hlo::*;
use prost::Message;
use std::collections::BTreeSet;
use xtrain_graphs::Target;

/// A module under construction: parameters and operations are numbered from 1.
struct Plant(Module);

impl Plant {
    fn new() -> Plant {
        let entry = Computation {
            id: 1,
            ..Default::default()
        };
        Plant(Module {
            name: "planted".into(),
            entry_computation_id: 1,
            computations: vec![entry],
            ..Default::default()
        })
    }

    fn shape(element_type: i32, dimensions: &[i64]) -> Shape {
        Shape {
            element_type,
            dimensions: dimensions.to_vec(),
            ..Default::default()
        }
    }

    fn add(
        mut self,
        opcode: &str,
        shape: Shape,
        operands: &[i64],
        change: impl Fn(&mut Instruction),
    ) -> Plant {
        let instructions = &mut self.0.computations[0].instructions;
        // As XLA writes them: the computation's id in the upper half of an instruction's, but not
        // of its operands'.
        let mut instruction = Instruction {
            opcode: opcode.into(),
            shape: Some(shape),
            metadata: Some(OpMetadata {
                op_name: format!("train/h.7.attn/{opcode}"),
                ..Default::default()
            }),
            id: (1 << 32) + instructions.len() as i64 + 1,
            operand_ids: operands.to_vec(),
            ..Default::default()
        };
        change(&mut instruction);
        instructions.push(instruction);
        self
    }

    fn plain(self, opcode: &str, element: i32, dims: &[i64], operands: &[i64]) -> Plant {
        self.add(opcode, Plant::shape(element, dims), operands, |_| ())
    }

    fn parameter(self, element: i32, dims: &[i64]) -> Plant {
        self.plain("parameter", element, dims, &[])
    }

    fn integer(self, element: i32, value: i64) -> Plant {
        self.add("constant", Plant::shape(element, &[]), &[], |i| {
            i.literal = Some(match element {
                S32 => Literal {
                    s32s: vec![value as i32],
                    ..Default::default()
                },
                _ => Literal {
                    u64s: vec![value as u64],
                    ..Default::default()
                },
            });
        })
    }

    /// A reduction's computation of two scalars, with id 2.
    fn folding_with(mut self, opcode: &str) -> Plant {
        let root = Instruction {
            opcode: opcode.into(),
            shape: Some(Plant::shape(F32, &[])),
            id: 9,
            ..Default::default()
        };
        self.0.computations.push(Computation {
            id: 2,
            root_id: 9,
            instructions: vec![root],
            ..Default::default()
        });
        self
    }

    fn donating(mut self) -> Plant {
        let alias = Alias {
            output_shape_index: vec![0],
            kind: AliasKind::MayAlias.into(),
            ..Default::default()
        };
        self.0.input_output_alias = Some(Aliases {
            entries: vec![alias],
        });
        self
    }

    fn check(&self, target: Target) -> Report {
        check(&self.0.encode_to_vec(), target).unwrap()
    }
}

/// Rows of a table `f32[9,2]` (instruction 1) by the indices of the last instruction.
fn gather(plant: Plant, change: impl Fn(&mut Instruction)) -> Plant {
    let ids = plant.0.computations[0].instructions.len() as i64;
    plant.add("gather", Plant::shape(F32, &[4, 2]), &[1, ids], |i| {
        i.gather_dimension_numbers = Some(GatherDimensionNumbers {
            offset_dims: vec![1],
            start_index_map: vec![0],
            ..Default::default()
        });
        i.gather_slice_sizes = vec![1, 2];
        change(i);
    })
}

fn group_list(groups: &[&[i64]]) -> Option<ReplicaGroupList> {
    let replica_groups = groups
        .iter()
        .map(|ids| ReplicaGroup {
            replica_ids: ids.to_vec(),
        })
        .collect();
    let list = CollectiveDeviceList {
        replica_groups,
        ..Default::default()
    };
    Some(ReplicaGroupList::CollectiveDeviceList(list))
}

fn collective(opcode: &str, element: i32, groups: &[&[i64]]) -> Plant {
    Plant::new()
        .parameter(element, &[4])
        .add(opcode, Plant::shape(element, &[4]), &[1], |i| {
            i.replica_group_list = group_list(groups);
        })
}

/// A plant with the rule that it breaks and a part of the message.
type Case = (Plant, &'static str, &'static str);

fn floats(dims: &[i64]) -> Plant {
    Plant::new().parameter(F32, dims)
}

fn unary(opcode: &str, element: i32) -> Plant {
    Plant::new()
        .parameter(element, &[4])
        .plain(opcode, element, &[4], &[1])
}

fn table() -> Plant {
    floats(&[9, 2])
}

/// A window that is dilated at its base and in itself.
fn window(base: i64, window: i64) -> Window {
    Window {
        dimensions: vec![WindowDimension {
            base_dilation: base,
            window_dilation: window,
            ..Default::default()
        }],
    }
}

fn reduce(start: Plant, folds: &str) -> Plant {
    start
        .add("reduce", Plant::shape(F32, &[]), &[1, 2], |i| {
            i.called_computation_ids = vec![2]
        })
        .folding_with(folds)
}

/// One violation or more of every rule.
fn planted() -> Vec<Case> {
    let refused = REFUSED.iter().map(|(opcode, _, source)| {
        (
            floats(&[4]).plain(opcode, F32, &[4], &[1]),
            "no operation that is known to be refused",
            *source,
        )
    });
    let groups = [
        of_types(),
        of_reductions(),
        of_rows(),
        of_replicas(),
        of_unknown_operations(),
        refused.collect(),
    ];
    groups.into_iter().flatten().collect()
}

/// Shapes, element types and constants.
fn of_types() -> Vec<Case> {
    vec![
        (
            Plant::new().add("parameter", Plant::shape(F32, &[4]), &[], |i| {
                i.shape.as_mut().unwrap().is_dynamic_dimension = vec![true]
            }),
            "shapes are static",
            "only at run time",
        ),
        (unary("negate", C64), "no complex numbers", "c64"),
        (unary("tanh", F64), "no 64-bit floats", "f64"),
        (
            unary("convert", F8E4M3FN),
            "narrow floats are those of the chip",
            "f8e4m3fn does not exist on trn1",
        ),
        (
            Plant::new().integer(U64, 1 << 33),
            "constants stay below 2^32",
            "8589934592",
        ),
        (
            unary("negate", S64),
            "no 64-bit integers",
            "32 bits on trn1",
        ),
    ]
}

/// Reductions, windows, products, random bits and calls.
fn of_reductions() -> Vec<Case> {
    vec![
        (
            floats(&[4]).parameter(F32, &[4]).parameter(F32, &[]).plain(
                "reduce",
                F32,
                &[],
                &[1, 2, 3, 3],
            ),
            "reductions have one operand",
            "2 operands",
        ),
        (
            reduce(floats(&[4]).parameter(F32, &[]), "add"),
            "reductions start at a constant and add, multiply or compare",
            "not start at a constant",
        ),
        (
            reduce(floats(&[4]).plain("constant", F32, &[], &[]), "subtract"),
            "reductions start at a constant and add, multiply or compare",
            "with subtract",
        ),
        (
            Plant::new().parameter(U32, &[2]).add(
                "rng-bit-generator",
                Plant::shape(U32, &[4]),
                &[1],
                |i| i.rng_algorithm = 2,
            ),
            "random bits come from the default generator",
            "rng_philox",
        ),
        (
            floats(&[1, 1, 1, 1, 4])
                .parameter(F32, &[4])
                .plain("dot", F32, &[1, 1, 1, 1], &[1, 2]),
            "products have at most rank 4",
            "rank 5",
        ),
        (
            floats(&[4]).add("reduce-window", Plant::shape(F32, &[2]), &[1], |i| {
                i.window = Some(window(1, 2))
            }),
            "windows are not dilated at both ends",
            "dilated window",
        ),
        (
            floats(&[4]).add("convolution", Plant::shape(F32, &[2]), &[1, 1], |i| {
                i.window = Some(window(2, 2))
            }),
            "windows are not dilated at both ends",
            "its input and its window",
        ),
        (
            floats(&[4]).add("custom-call", Plant::shape(F32, &[4]), &[1], |i| {
                i.custom_call_target = "__cudnn$fmha".into()
            }),
            "custom calls are those that the compiler knows",
            "__cudnn$fmha",
        ),
    ]
}

/// What takes or changes rows of an array.
fn of_rows() -> Vec<Case> {
    vec![
        (
            floats(&[4]).parameter(F32, &[1]).parameter(S32, &[]).plain(
                "dynamic-update-slice",
                F32,
                &[4],
                &[1, 2, 3],
            ),
            "updates of a slice are at a constant place",
            "computed",
        ),
        (
            gather(
                table()
                    .plain("iota", S32, &[4], &[])
                    .tap(|i| i.dimensions = vec![0]),
                |i| {
                    i.gather_dimension_numbers = Some(GatherDimensionNumbers {
                        offset_dims: vec![0],
                        start_index_map: vec![0],
                        ..Default::default()
                    });
                },
            ),
            "gathered dimensions are not indexed ones",
            "offset dimensions",
        ),
        (
            gather(table().parameter(S32, &[4]), |_| ()),
            "indices lie inside of the table",
            "clamp indices to 0 to 8",
        ),
        (
            gather(
                table()
                    .plain("iota", S32, &[12], &[])
                    .tap(|i| i.dimensions = vec![0]),
                |_| (),
            ),
            "indices lie inside of the table",
            "go from 0 to 11, the table from 0 to 8",
        ),
        (
            table().parameter(S32, &[4]).parameter(F32, &[4, 2]).add(
                "scatter",
                Plant::shape(F32, &[9, 2]),
                &[1, 2, 3],
                |i| {
                    i.scatter_dimension_numbers = Some(ScatterDimensionNumbers {
                        scatter_dims_to_operand_dims: vec![0],
                        ..Default::default()
                    });
                },
            ),
            "indices lie inside of the table",
            "clamp indices to 0 to 8",
        ),
    ]
}

/// What replicas exchange, and state that is donated.
fn of_replicas() -> Vec<Case> {
    vec![
        (
            floats(&[4])
                .plain("opt-barrier", F32, &[4], &[1])
                .donating(),
            "no barrier where state is donated",
            "read after write",
        ),
        (
            collective("all-reduce", F32, &[&[0, 1], &[2]]),
            "collectives have equal groups of neighbours",
            "groups of 2 and of 1",
        ),
        (
            collective("reduce-scatter", F32, &[&[0, 1, 3]]),
            "collectives have equal groups of neighbours",
            "evenly spaced",
        ),
        (
            floats(&[4]).add("collective-permute", Plant::shape(F32, &[4]), &[1], |i| {
                i.source_target_pairs = vec![SourceTarget {
                    source: 0,
                    target: 1,
                }];
            }),
            "a permutation is a ring",
            "holes",
        ),
        (
            (0..13).fold(floats(&[4]), |plant, n| {
                plant.add("all-gather", Plant::shape(F32, &[8]), &[1], |i| {
                    i.replica_group_list = group_list(&[&[n, n + 1]]);
                })
            }),
            "at most 12 sets of groups",
            "13 sets",
        ),
    ]
}

/// Operations that are not known to compile.
fn of_unknown_operations() -> Vec<Case> {
    vec![
        (
            unary("erf", F32),
            "operations and element types are known",
            "erf is not among",
        ),
        (
            unary("is-finite", F32),
            "operations and element types are known",
            "is-finite is not among",
        ),
        (
            unary("log-plus-one", F32),
            "operations and element types are known",
            "log-plus-one is not among",
        ),
        (
            unary("shift-left", U32),
            "operations and element types are known",
            "shift-left is not among",
        ),
        (
            unary("tanh", S32),
            "operations and element types are known",
            "tanh is not known to take s32",
        ),
        (
            unary("shift-right-arithmetic", U8),
            "operations and element types are known",
            "EVRF022",
        ),
        (
            Plant::new()
                .parameter(S32, &[4])
                .parameter(S32, &[4])
                .plain("dot", S32, &[], &[1, 2]),
            "operations and element types are known",
            "EVRF035",
        ),
        (
            gather(Plant::new().parameter(S32, &[9, 2]).integer(S32, 3), |i| {
                i.opcode = "scatter".into();
                i.operand_ids.push(1);
            }),
            "operations and element types are known",
            "EVRF060",
        ),
        (
            collective("all-reduce", S32, &[&[0, 1]]),
            "operations and element types are known",
            "EVRF061",
        ),
        (
            collective("reduce-scatter", U32, &[&[0, 1]]),
            "operations and element types are known",
            "EVRF063",
        ),
    ]
}

impl Plant {
    /// Changes the last instruction.
    fn tap(mut self, change: impl Fn(&mut Instruction)) -> Plant {
        change(self.0.computations[0].instructions.last_mut().unwrap());
        self
    }
}

#[test]
fn a_planted_violation_of_each_rule_is_found_with_its_layer() {
    let mut seen = BTreeSet::new();
    for (plant, rule, part) in planted() {
        let messages: Vec<String> = plant
            .check(Target::Neuron(Chip::Trn1))
            .violations
            .iter()
            .map(|v| v.to_string())
            .collect();
        let found = messages.iter().any(|messages| {
            messages.contains(part)
                && messages.contains(rule)
                && messages.contains(" in h.7.attn: ")
        });
        assert!(found, "{rule}: `{part}` is missing in {messages:?}");
        assert!(
            plant.check(Target::CPU).violations.is_empty(),
            "the CPU takes everything"
        );
        seen.insert(rule);
    }
    let all: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(seen, all, "each rule has a case, each case a rule");
}

#[test]
fn chips_differ_where_aws_says_so() {
    let narrow = |element| {
        Plant::new()
            .parameter(element, &[4, 4])
            .plain("dot", F32, &[4, 4], &[1, 1])
    };
    let messages = |plant: &Plant, chip| {
        plant
            .check(Target::Neuron(chip))
            .violations
            .iter()
            .map(|v| v.to_string())
            .collect::<Vec<_>>()
    };
    assert!(messages(&narrow(F8E5M2), Chip::Trn1)[0].contains("does not exist on trn1"));
    assert!(messages(&narrow(F8E5M2), Chip::Trn2).is_empty());
    assert!(messages(&narrow(F8E4M3FN), Chip::Trn2)[0].contains("does not exist on trn2"));
    assert!(messages(&narrow(F8E4M3), Chip::Trn3)[0].contains("does not exist on trn3"));
    let wide = Plant::new().parameter(S64, &[4]);
    assert!(messages(&wide, Chip::Trn1)[0].contains("cut down to 32 bits on trn1"));
    assert!(messages(&wide, Chip::Trn2)[0].contains("--native-int64"));
}

#[test]
fn indices_that_are_kept_inside_of_the_table_pass() {
    let neuron = Target::Neuron(Chip::Trn1);
    let ids = || {
        Plant::new()
            .parameter(F32, &[9, 2])
            .parameter(S32, &[4])
            .integer(S32, 0)
            .integer(S32, 8)
    };
    // Both orders of the clamp, through moves, and the operation of that name.
    let max_min = ids()
        .plain("maximum", S32, &[4], &[2, 3])
        .plain("minimum", S32, &[4], &[5, 4]);
    let min_max = ids()
        .plain("minimum", S32, &[4], &[2, 4])
        .plain("maximum", S32, &[4], &[5, 3])
        .plain("reshape", S32, &[4, 1], &[6]);
    let clamp = ids().plain("clamp", S32, &[4], &[3, 2, 4]);
    for plant in [max_min, min_max, clamp] {
        let report = gather(plant, |_| ()).check(neuron);
        assert!(report.violations.is_empty(), "{}", report.violations[0]);
    }
    // Half a clamp is none, and neither is one to another table's size.
    for plant in [
        ids().plain("maximum", S32, &[4], &[2, 3]),
        ids().plain("minimum", S32, &[4], &[2, 4]),
    ] {
        assert_eq!(gather(plant, |_| ()).check(neuron).violations.len(), 1);
    }
    let beyond = ids().integer(S32, 9).plain("clamp", S32, &[4], &[3, 2, 5]);
    assert!(
        gather(beyond, |_| ()).check(neuron).violations[0]
            .to_string()
            .contains("from 0 to 9, the table from 0 to 8")
    );
    // What wraps can be anything again.
    let wraps = ids()
        .plain("clamp", S32, &[4], &[3, 2, 4])
        .integer(S32, i32::MAX.into())
        .plain("add", S32, &[4], &[5, 6]);
    assert_eq!(gather(wraps, |_| ()).check(neuron).violations.len(), 1);
}

#[test]
fn the_table_says_each_thing_once() {
    let rows: BTreeSet<&str> = NEURON.iter().flat_map(|row| row.opcodes).copied().collect();
    let all: usize = NEURON.iter().map(|row| row.opcodes.len()).sum();
    assert_eq!(rows.len(), all);
    assert!(REFUSED.iter().all(|(opcode, ..)| !rows.contains(opcode)));
    assert!(check(b"no module", Target::CPU).is_err());
    let lost = Plant::new()
        .plain("negate", F32, &[4], &[7])
        .0
        .encode_to_vec();
    assert!(
        check(&lost, Target::CPU)
            .unwrap_err()
            .to_string()
            .contains("an operand, 7, is no instruction")
    );
}

#[test]
fn cards_without_bf16_are_messages_so() {
    let card = |capability| {
        Target::Cuda(xtrain_graphs::CudaTarget {
            capability,
            ..Default::default()
        })
    };
    let product = Plant::new()
        .parameter(BF16, &[4])
        .plain("dot", F32, &[], &[1, 1]);
    assert!(product.check(card(90)).violations.is_empty());
    let found = product.check(card(75)).violations;
    assert!(
        found[0]
            .to_string()
            .contains("compute capability 8.0, this card has 7.5"),
        "{}",
        found[0]
    );
}
