//! Graphs of thousands of layers: no pass calls itself along the depth of a graph, so a small stack
//! is enough.

use std::collections::HashMap;
use std::thread;
use xtrain_graphs::passes::partition::{Partition, shard};
use xtrain_graphs::passes::{self, Execution};
use xtrain_graphs::{
    Checkpointing, CpuKernels, DType, Graph, InputRole, Precision, Shape, Target, Trace,
    backward_with, liveness,
};

const LAYERS: usize = 3_000;
/// Less than a hundred bytes for each layer, too few for a call.
const STACK: usize = 256 << 10;

/// A step of many equal layers with their gradient, as it is recorded.
fn step(checkpointing: Checkpointing) -> Graph {
    let trace = Trace::new();
    let weight = trace.input("w", Shape::new(DType::F32, [4, 4]), InputRole::State);
    let mut x = trace.input("x", Shape::new(DType::F32, [2, 4]), InputRole::Feed);
    for layer in 0..LAYERS {
        let _layer = trace.layer(&format!("h.{layer}"));
        x = x.matmul(&weight).unwrap().tanh().unwrap().add(&x).unwrap();
    }
    let loss = x.sum_all().unwrap();
    let parameters = [weight.clone()];
    let gradients = backward_with(&loss, &parameters, checkpointing).unwrap();
    let updated = weight.sub(&gradients[0].mul_scalar(0.1).unwrap()).unwrap();
    trace.output("w", &updated);
    trace.output("loss", &loss);
    trace.finish("step").unwrap()
}

#[test]
fn a_deep_graph_needs_no_deep_stack() {
    let partition = Partition {
        groups: vec![vec![0, 1]],
        inputs: HashMap::from([("w".to_string(), shard(1))]),
        tokens: None,
    };
    let work = move || {
        for checkpointing in [Checkpointing::Off, Checkpointing::Full] {
            let graph = step(checkpointing);
            assert!(graph.nodes.len() > 8 * LAYERS, "{}", graph.nodes.len());
            let graph = Graph::from_bytes(&graph.to_bytes()).unwrap();
            let execution = Execution {
                precision: Precision::Bf16,
                partition: Some(&partition),
                pipeline: None,
            };
            for staged in passes::specialize(&graph, &execution).unwrap() {
                staged.graph.check().unwrap();
                assert!(liveness::temporaries(&staged.graph) > 0);
                let target = Target::Cpu(CpuKernels::best(|_| true));
                let lowered = passes::lower(&staged.graph, target).unwrap();
                lowered.check_primitives().unwrap();
            }
        }
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(work);
    thread.unwrap().join().unwrap();
}
