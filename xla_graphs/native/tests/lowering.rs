//! The emitter's product as a whole: what the module says, that it is the same bytes every time,
//! and that nothing malformed reaches XLA's C++.

#[path = "lowering/refused.rs"]
mod refused;
mod support;

use prost::Message;
use std::collections::BTreeSet;
use std::time::Instant;
use support::{Rng, Value, model::training_step};
use xtrain_graphs::op::{Attention, F64, KeyMask, Op};
use xtrain_graphs::{CudaTarget, DType, Graph, InputRole, Shape, Target, Trace, backward, passes};
use xtrain_xla::proto::xla::{HloComputationProto, HloModuleProto};

fn prepared(layers: usize) -> Graph {
    passes::lower(&training_step(layers), Target::CPU).unwrap()
}

fn module(graph: &Graph) -> HloModuleProto {
    let bytes = xtrain_xla::lower(&graph.to_bytes()).unwrap_or_else(|e| panic!("{e}"));
    HloModuleProto::decode(&bytes[..]).unwrap()
}

fn entry(module: &HloModuleProto) -> &HloComputationProto {
    module
        .computations
        .iter()
        .find(|c| c.id == module.entry_computation_id)
        .unwrap()
}

#[test]
fn the_module_names_parameters_outputs_aliases_and_model_paths() {
    let graph = prepared(2);
    let module = module(&graph);
    assert_eq!(module.name.split('.').next(), Some("train"));
    let entry = entry(&module);
    let mut parameters: Vec<_> = entry
        .instructions
        .iter()
        .filter(|i| i.opcode == "parameter")
        .collect();
    parameters.sort_by_key(|i| i.parameter_number);
    assert_eq!(parameters.len(), graph.inputs.len());
    for (parameter, input) in parameters.iter().zip(&graph.inputs) {
        assert!(
            parameter.name.starts_with(&input.name),
            "{} for {}",
            parameter.name,
            input.name
        );
        let shape = parameter.shape.as_ref().unwrap();
        assert_eq!(
            shape.dimensions,
            input
                .shape
                .dims
                .iter()
                .map(|&d| d as i64)
                .collect::<Vec<_>>()
        );
    }
    let root = entry
        .instructions
        .iter()
        .find(|i| i.id == entry.root_id)
        .unwrap();
    assert_eq!(
        (root.opcode.as_str(), root.operand_ids.len()),
        ("tuple", graph.outputs.len())
    );
    let aliases: BTreeSet<(i64, i64)> = module
        .input_output_alias
        .as_ref()
        .unwrap()
        .entries
        .iter()
        .map(|e| (e.parameter_number, e.output_shape_index[0]))
        .collect();
    assert_eq!(
        aliases,
        graph
            .aliases()
            .map(|(_, i, o)| (i as i64, o as i64))
            .collect()
    );
    assert!(aliases.len() > 20, "state is donated");
    // No marker is left.
    assert!(
        entry
            .instructions
            .iter()
            .all(|i| i.opcode != "custom-call" && i.custom_call_target.is_empty())
    );
    let barriers = graph.nodes.iter().filter(|n| n.op == Op::Barrier).count();
    assert!(barriers >= 2);
    assert_eq!(
        entry
            .instructions
            .iter()
            .filter(|i| i.opcode == "opt-barrier")
            .count(),
        barriers
    );
    // Each instruction says where it comes from.
    let names: BTreeSet<&str> = entry
        .instructions
        .iter()
        .map(|i| i.metadata.as_ref().unwrap().op_name.as_str())
        .collect();
    for name in [
        "train/h.0.attn/dot",
        "train/h.1.mlp/tanh",
        "train/wte.weight",
        "train/outputs",
        "train/h.0/reduce_sum",
    ] {
        assert!(names.contains(name), "{name} in {names:?}");
    }
    let op = |opcode: &'static str| {
        entry
            .instructions
            .iter()
            .filter(move |i| i.opcode == opcode)
    };
    for i in op("dot") {
        assert!(
            i.metadata.as_ref().unwrap().op_name.ends_with("/dot"),
            "{} is {}",
            i.name,
            i.metadata.as_ref().unwrap().op_name
        );
    }
    let dots = graph
        .nodes
        .iter()
        .filter(|n| matches!(n.op, Op::Dot { .. }))
        .count();
    assert_eq!(op("dot").count(), dots);
}

/// Names, operands, results and layouts as XLA:GPU reads them (`tests/target.rs` lets its compiler
/// and cuDNN read them).
#[test]
fn attention_for_cudnn_is_one_call_each_way() {
    let trace = Trace::new();
    let shape = Shape::new(DType::BF16, [2, 3, 8, 64]);
    let [q, k, v] = ["q", "k", "v"].map(|name| trace.input(name, shape.clone(), InputRole::State));
    let mask = trace.input("mask", Shape::new(DType::Pred, [2, 8]), InputRole::Feed);
    let of = Attention {
        scale: F64::new(0.125),
        causal: true,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    let out = q.attention(&k, &v, Some(&mask), None, of).unwrap();
    let loss = out.convert(DType::F32).unwrap().sum_all().unwrap();
    let [dq, dk, dv]: [_; 3] = backward(&loss, &[q, k, v])
        .unwrap()
        .try_into()
        .ok()
        .unwrap();
    for (name, grad) in [("dq", dq), ("dk", dk), ("dv", dv)] {
        trace.output(name, &grad);
    }
    let target = Target::Cuda(CudaTarget {
        capability: 90,
        fused_attention: true,
        ..CudaTarget::default()
    });
    let graph = passes::lower(&trace.finish("attend").unwrap(), target).unwrap();
    let module = module(&graph);
    let entry = entry(&module);
    let calls: Vec<_> = entry
        .instructions
        .iter()
        .filter(|i| i.opcode == "custom-call")
        .collect();
    let names: Vec<&str> = calls
        .iter()
        .map(|i| i.custom_call_target.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "__cudnn$fmhaScaleBiasSoftmax",
            "__cudnn$fmhaScaleBiasSoftmaxBackward"
        ]
    );
    for (call, operands, results) in [(calls[0], 4, 3), (calls[1], 7, 4)] {
        assert_eq!(
            (
                call.operand_ids.len(),
                call.operand_shapes_with_layout.len()
            ),
            (operands, operands)
        );
        let tuple = &call.shape.as_ref().unwrap().tuple_shapes;
        assert_eq!(tuple.len(), results);
        assert_eq!(tuple[0].dimensions, [2, 3, 8, 64]);
        assert_eq!(
            tuple[0].layout.as_ref().unwrap().minor_to_major,
            [3, 1, 2, 0]
        );
        assert_eq!(
            tuple[results - 1].dimensions,
            [0],
            "the workspace is the compiler's"
        );
        assert!(call.constrain_layout);
        let first = &call.operand_shapes_with_layout[0];
        assert_eq!(
            (
                &first.dimensions[..],
                &first.layout.as_ref().unwrap().minor_to_major[..]
            ),
            (&[2, 8, 3, 64][..], &[3, 2, 1, 0][..])
        );
        let config = String::from_utf8(call.backend_config.clone()).unwrap();
        for part in [
            r#""fmha_scale":0.125"#,
            r#""mask_type":"CAUSAL""#,
            r#""dimensions":["2","3","8","8"]"#,
            r#""element_type":"BF16""#,
        ] {
            assert!(config.contains(part), "{part} in {config}");
        }
        assert!(
            call.metadata
                .as_ref()
                .unwrap()
                .op_name
                .starts_with("attend/")
        );
    }
    let parts = entry
        .instructions
        .iter()
        .filter(|i| i.opcode == "get-tuple-element");
    let parts: Vec<_> = parts.map(|i| (i.operand_ids[0], i.tuple_index)).collect();
    // Operands are named by the lower half of an id; the upper half is the computation's.
    let [forward, backward] = [calls[0].id, calls[1].id].map(|id| id & i64::from(u32::MAX));
    // The gradient of each operand, and of the forward call its statistics and its output, which
    // the backward call reads.
    assert_eq!(
        BTreeSet::from_iter(parts),
        BTreeSet::from([
            (forward, 0),
            (forward, 1),
            (backward, 0),
            (backward, 1),
            (backward, 2)
        ])
    );
    assert!(
        entry
            .instructions
            .iter()
            .all(|i| !i.custom_call_target.starts_with("xt."))
    );
}

/// On a card products of f32 are as exact as everywhere unless TF32 is asked for. XLA rounds by
/// default.
#[test]
fn products_of_f32_are_exact_unless_tf32_is_asked_for() {
    let precisions = |tf32: bool| -> BTreeSet<Vec<i32>> {
        let target = Target::Cuda(CudaTarget {
            capability: 90,
            tf32,
            ..CudaTarget::default()
        });
        let module = module(&passes::lower(&training_step(1), target).unwrap());
        let dots = entry(&module)
            .instructions
            .iter()
            .filter(|i| i.opcode == "dot");
        dots.map(|dot| {
            dot.precision_config
                .as_ref()
                .map(|config| config.operand_precision.clone())
                .unwrap_or_default()
        })
        .collect()
    };
    let highest = xtrain_xla::proto::xla::precision_config::Precision::Highest as i32;
    assert_eq!(precisions(false), BTreeSet::from([vec![highest; 2]]));
    assert!(
        !precisions(true).is_empty()
            && precisions(true)
                .iter()
                .flatten()
                .all(|&precision| precision == 0)
    );
}

/// The call's name, rate and seed when cuDNN draws the masks.
#[test]
fn dropout_inside_of_attention_is_said_to_both_calls() {
    let trace = Trace::new();
    let shape = Shape::new(DType::BF16, [2, 3, 8, 64]);
    let [q, k, v] = ["q", "k", "v"].map(|name| trace.input(name, shape.clone(), InputRole::State));
    let key = trace.input("key", Shape::new(DType::U32, [2]), InputRole::Feed);
    let rng = xtrain_graphs::DropoutRng::keyed(key);
    let rate = 0.25;
    let of = Attention {
        scale: F64::new(0.125),
        causal: true,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    let mut x = q;
    for _ in 0..2 {
        let (dropout, key) = rng.of_attention(rate).unzip();
        let of = Attention { dropout, ..of };
        x = x.attention(&k, &v, None, key.as_ref(), of).unwrap();
    }
    let loss = x.convert(DType::F32).unwrap().sum_all().unwrap();
    for (name, grad) in ["dk", "dv"].iter().zip(backward(&loss, &[k, v]).unwrap()) {
        trace.output(*name, &grad);
    }
    let card = CudaTarget {
        capability: 90,
        fused_attention: true,
        fused_dropout: true,
        tf32: false,
    };
    let module =
        module(&passes::lower(&trace.finish("attend").unwrap(), Target::Cuda(card)).unwrap());
    let calls: Vec<_> = entry(&module)
        .instructions
        .iter()
        .filter(|i| i.opcode == "custom-call")
        .collect();
    assert_eq!(calls.len(), 4);
    let mut seeds = std::collections::BTreeMap::<String, Vec<String>>::new();
    for call in calls {
        let config = String::from_utf8(call.backend_config.clone()).unwrap();
        assert!(config.contains(r#""dropout_rate":0.25"#), "{config}");
        let seed = config
            .split(r#""seed":""#)
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_string();
        seeds
            .entry(seed)
            .or_default()
            .push(call.custom_call_target.clone());
    }
    let both = [
        "__cudnn$fmhaSoftmaxDropout",
        "__cudnn$fmhaSoftmaxDropoutBackward",
    ];
    assert_eq!(
        seeds.len(),
        2,
        "each attention has masks of its own: {seeds:?}"
    );
    assert!(seeds.values().all(|calls| *calls == both), "{seeds:?}");
}

#[test]
fn xla_accepts_and_runs_the_step() {
    let graph = training_step(2);
    let program = support::compile(&graph);
    let mut rng = Rng(1);
    let arguments: Vec<Value> = graph
        .inputs
        .iter()
        .map(|input| {
            let draw = |rng: &mut Rng| match (input.name.as_str(), input.shape.dtype) {
                ("optimizer", _) => 0.01,
                (_, DType::F32) if input.name.ends_with("exp_avg_sq") => 0.0,
                (_, DType::F32) => rng.float(-0.5, 0.5),
                _ => rng.int(0, 1) as f64,
            };
            let numbers: Vec<f64> = (0..input.shape.elements())
                .map(|_| draw(&mut rng))
                .collect();
            Value::new(input.shape.dtype, &input.shape.dims, &numbers)
        })
        .collect();
    let first = program.run(&arguments);
    assert!(
        first
            .iter()
            .all(|v| v.numbers().iter().all(|x| x.is_finite()))
    );
    // The same key draws the same masks.
    assert_eq!(first, program.run(&arguments));
}

/// Prints what the parent compares; does nothing in an ordinary run.
#[test]
fn child_process_prints_its_module() {
    if std::env::var_os("XTRAIN_TEST_CHILD").is_some() {
        let graph = prepared(3);
        println!(
            "CHILD {} {}",
            graph.fingerprint(),
            hash(&xtrain_xla::lower(&graph.to_bytes()).unwrap())
        );
    }
}

/// FNV-1a: enough to see a difference.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn lowering_gives_the_same_bytes_in_every_process() {
    let graph = prepared(3);
    let bytes = xtrain_xla::lower(&graph.to_bytes()).unwrap();
    // Other graphs in between: nothing global may count up into the module.
    let other = xtrain_xla::lower(&prepared(1).to_bytes()).unwrap();
    assert_ne!(bytes, other);
    assert_eq!(bytes, xtrain_xla::lower(&prepared(3).to_bytes()).unwrap());
    let expected = format!("CHILD {} {}", graph.fingerprint(), hash(&bytes));
    for _ in 0..2 {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process_prints_its_module", "--nocapture"])
            .env("XTRAIN_TEST_CHILD", "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(output.contains(&expected), "{output} lacks {expected}");
    }
}

#[test]
fn a_large_graph_lowers_quickly() {
    let graph = prepared(14);
    let bytes = graph.to_bytes();
    let started = Instant::now();
    let module = xtrain_xla::lower(&bytes).unwrap();
    let first = started.elapsed();
    let best = (0..3)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(xtrain_xla::lower(&bytes).unwrap(), module);
            started.elapsed()
        })
        .min()
        .unwrap();
    println!(
        "{} nodes, {} kB of HLO: first {first:?}, best {best:?}",
        graph.nodes.len(),
        module.len() / 1000
    );
    assert!(graph.nodes.len() > 5000);
    // The goal is 200 ms on a free core in a release build; the bound leaves room for busy machines
    // and debug builds.
    assert!(best.as_millis() < 2000, "{best:?}");
}

/// Collectives side by side in one bucket are one instruction; what used each of them still finds
/// it.
#[test]
fn the_collectives_of_a_bucket_are_one_instruction() {
    let trace = Trace::new();
    let input = |name: &str, dims: &[usize]| {
        trace.input(name, Shape::new(DType::F32, dims), InputRole::Feed)
    };
    let (a, b, c) = (input("a", &[2, 3]), input("b", &[5]), input("c", &[]));
    let groups = [vec![0, 1], vec![2, 3]];
    let sums: Vec<_> = [(&a, 0), (&b, 0), (&c, 1)]
        .map(|(x, bucket)| x.all_reduce(&groups, bucket).unwrap())
        .into();
    for (name, sum) in ["a", "b", "c"].iter().zip(&sums) {
        trace.output(format!("sum of {name}"), &sum.neg().unwrap());
    }
    let module = module(&passes::lower(&trace.finish("train").unwrap(), Target::CPU).unwrap());
    let entry = entry(&module);
    let all: Vec<_> = entry
        .instructions
        .iter()
        .filter(|i| i.opcode == "all-reduce")
        .collect();
    assert_eq!(
        all.iter().map(|i| i.operand_ids.len()).collect::<Vec<_>>(),
        [2, 1]
    );
    for instruction in &all {
        #[expect(deprecated, reason = "what the emitter writes")]
        let groups: Vec<&[i64]> = instruction
            .replica_groups
            .iter()
            .map(|g| &g.replica_ids[..])
            .collect();
        assert_eq!(groups, [[0, 1], [2, 3]]);
        assert_eq!(
            instruction.called_computation_ids, all[0].called_computation_ids,
            "one sum does for both"
        );
    }
    assert_eq!(
        entry
            .instructions
            .iter()
            .filter(|i| i.opcode == "get-tuple-element")
            .count(),
        2
    );
    // XLA's own verdict on the module.
    let text = xtrain_xla::hlo_text(&module.encode_to_vec()).unwrap();
    assert!(
        text.contains("(f32[2,3]{1,0}, f32[5]{0}) all-reduce("),
        "{text}"
    );
}
