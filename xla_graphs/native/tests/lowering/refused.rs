//! Graphs that cannot be lowered are errors with a name and a place.

use super::prepared;
use super::support::{Rng, model::training_step};
use xtrain_graphs::op::{F64, Op, Scalar};
use xtrain_graphs::{DType, Graph, GraphNode, InputRole, Provenance, Shape, Trace};

#[test]
fn composites_are_refused_by_name_and_place() {
    let graph = training_step(1);
    let error = xtrain_xla::lower(&graph.to_bytes()).unwrap_err();
    assert!(
        error.contains("layer_norm in h.0") && error.contains("f32[2,4,8], f32[8], f32[8]"),
        "{error}"
    );
    assert!(error.contains("passes::lower"), "{error}");
}

/// A graph of one operation over inputs of the given shapes, recorded shape included, however
/// wrong.
fn single(op: Op, operands: &[Shape], result: Shape) -> Graph {
    let trace = Trace::new();
    let _scope = trace.scope("h.7.attn");
    for (i, shape) in operands.iter().enumerate() {
        trace.output(
            format!("out{i}"),
            &trace.input(format!("in{i}"), shape.clone(), InputRole::Feed),
        );
    }
    let mut graph = trace.finish("broken").unwrap();
    if graph.scopes.len() == 1 {
        graph.scopes.push("h.7.attn".into());
    }
    let operands = (0..operands.len() as u32).collect();
    graph.nodes.push(GraphNode {
        op,
        operands,
        shape: result,
        scope: 1,
        provenance: Provenance::default(),
    });
    graph
}

#[track_caller]
fn refused(graph: &Graph, parts: &[&str]) {
    let error = xtrain_xla::lower(&graph.to_bytes()).unwrap_err();
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}

#[test]
fn malformed_graphs_are_errors_before_they_reach_xla() {
    let f32s = |dims: &[usize]| Shape::new(DType::F32, dims);
    let scalar = |value, dtype| single(Op::Constant { value, dtype }, &[], Shape::scalar(dtype));
    refused(
        &single(Op::Reshape(vec![7]), &[f32s(&[2, 3])], f32s(&[7])),
        &["reshape in h.7.attn", "f32[2,3]", "6 elements"],
    );
    refused(
        &single(Op::Reshape(vec![3, 2]), &[f32s(&[2, 3])], f32s(&[6])),
        &["reshape", "f32[3,2]", "f32[6] is recorded"],
    );
    refused(
        &single(Op::Select, &[f32s(&[2])], f32s(&[2])),
        &["select", "takes 3 operands, got 1"],
    );
    refused(
        &scalar(Scalar::Int(-1), DType::U32),
        &["constant in h.7.attn", "-1 does not fit u32"],
    );
    refused(
        &scalar(Scalar::Bool(true), DType::F32),
        &["constant", "no value of f32"],
    );
    refused(
        &scalar(Scalar::Float(F64::new(1.0)), DType::S32),
        &["constant", "no value of s32"],
    );
    let huge = Shape::new(DType::F32, [1 << 40, 1 << 40]);
    refused(
        &single(
            Op::Iota {
                dims: huge.dims.clone(),
                dim: 0,
                dtype: DType::F32,
            },
            &[],
            huge.clone(),
        ),
        &["iota", "too large"],
    );
    refused(
        &single(Op::Barrier, std::slice::from_ref(&huge), huge.clone()),
        &["input", "too large"],
    );
    let ids = Shape::new(DType::S32, [2]);
    refused(
        &single(Op::TakeRows, &[f32s(&[0, 3]), ids], f32s(&[2, 3])),
        &["take_rows", "the table has no rows", "f32[0,3], s32[2]"],
    );
    // What only XLA checks still comes back as an error with the place.
    let dims = xtrain_graphs::op::DotDims {
        lhs_contracting: vec![0, 0],
        rhs_contracting: vec![0, 0],
        ..Default::default()
    };
    let dot = Op::Dot {
        dims,
        dtype: DType::F32,
        exact: false,
    };
    refused(
        &single(dot, &[f32s(&[2]), f32s(&[2])], f32s(&[])),
        &["dot in h.7.attn", "XLA says"],
    );

    let good = || single(Op::Barrier, &[f32s(&[2]), f32s(&[2])], f32s(&[2]));
    let broken = |change: fn(&mut Graph)| {
        let mut graph = good();
        graph.nodes[2].operands.truncate(1);
        change(&mut graph);
        graph
    };
    assert!(xtrain_xla::lower(&broken(|_| ()).to_bytes()).is_ok());
    refused(
        &broken(|g| g.nodes[2].operands[0] = 2),
        &["node 2 reads node 2, which does not precede it"],
    );
    refused(
        &broken(|g| g.nodes[2].operands[0] = u32::MAX),
        &["does not precede it"],
    );
    refused(&broken(|g| g.nodes[2].scope = 9), &["model path 9 of 2"]);
    refused(
        &broken(|g| g.nodes[1].op = Op::Input(0)),
        &["input 0 is declared twice"],
    );
    refused(
        &broken(|g| g.nodes[1].op = Op::Input(5)),
        &["there is no input 5"],
    );
    refused(
        &broken(|g| g.inputs[1].shape.dims[0] = 3),
        &["input", "f32[3]"],
    );
    refused(
        &broken(|g| g.inputs[1].name = "in0".into()),
        &["two inputs are named `in0`"],
    );
    refused(
        &broken(|g| g.outputs[1].name = "out0".into()),
        &["two outputs are named `out0`"],
    );
    refused(
        &broken(|g| g.outputs[1].node = 40),
        &["output `out1` is node 40"],
    );
    refused(
        &broken(|g| g.inputs[1].name = "a\0b".into()),
        &["zero byte"],
    );
    refused(&broken(|g| g.name = "a\0b".into()), &["zero byte"]);
    refused(&broken(|g| g.format = 99), &["format 99"]);
}

/// Random damage to valid bytes either lowers or is an error: no panic, no abort of the process.
#[test]
fn damaged_bytes_never_abort() {
    let bytes = prepared(1).to_bytes();
    let mut rng = Rng(9);
    let (mut accepted, rounds) = (0, 1500);
    for round in 0..rounds {
        let mut damaged = bytes.clone();
        for _ in 0..rng.int(1, 3) {
            let at = rng.int(0, damaged.len() - 1);
            damaged[at] = match round % 3 {
                0 => damaged[at] ^ (1 << rng.int(0, 7)),
                1 => rng.next() as u8,
                _ => 0xFF,
            };
        }
        if round % 10 == 0 {
            damaged.truncate(rng.int(0, damaged.len()));
        }
        accepted += usize::from(xtrain_xla::lower(&damaged).is_ok());
    }
    println!("{accepted} of {rounds} damaged graphs still lower");
    assert!(accepted < rounds);
}
