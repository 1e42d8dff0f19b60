//! Layers as a loop: the same step, written out and with loops.

use crate::support::model::training_step;
use crate::support::{Rng, Value, compile};
use xtrain_graphs::op::Op;
use xtrain_graphs::{Graph, Target, passes};

fn loops(graph: &Graph) -> Vec<u32> {
    let prepared = passes::prepare(graph, Target::Cpu).unwrap();
    let trips = |op: &Op| {
        if let Op::Loop { trips, .. } = op {
            Some(*trips)
        } else {
            None
        }
    };
    prepared
        .nodes
        .iter()
        .filter_map(|node| trips(&node.op))
        .collect()
}

/// Layers in pairs, since every second one has another GELU.
#[test]
fn a_step_with_its_layers_as_loops_is_the_step() {
    let written_out = training_step(6);
    let looped = Graph {
        scan_layers: true,
        ..training_step(6)
    };
    assert_ne!(written_out.fingerprint(), looped.fingerprint());
    assert_eq!((loops(&written_out), loops(&looped)), (vec![], vec![3, 3]));
    let mut rng = Rng(11);
    let arguments: Vec<Value> = written_out
        .inputs
        .iter()
        .map(|input| {
            let (dtype, dims, count) =
                (input.shape.dtype, &input.shape.dims, input.shape.elements());
            let numbers: Vec<f64> = match input.name.as_str() {
                "tokens" | "labels" => (0..count).map(|i| ((i * 7 + 3) % 11) as f64).collect(),
                "key_mask" => vec![1.0; count],
                "random" => vec![5.0, 9.0],
                "optimizer" => vec![0.01, 0.1, 0.001],
                name if name.ends_with("exp_avg_sq") => rng.floats(count, 0.1, 1.0),
                _ => rng.floats(count, -1.0, 1.0),
            };
            Value::new(dtype, dims, &numbers)
        })
        .collect();
    let [expected, found] = [&written_out, &looped].map(|graph| compile(graph).run(&arguments));
    for ((expected, found), output) in expected.iter().zip(&found).zip(&written_out.outputs) {
        for (a, b) in expected.numbers().iter().zip(found.numbers()) {
            assert!(
                (a - b).abs() <= 1e-5 * a.abs().max(1.0),
                "{}: {a} and {b}",
                output.name
            );
        }
    }
}
