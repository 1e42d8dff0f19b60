//! Updates, losses and normalizations by the plugin's own loops: the whole way from a graph's operations to
//! the call. `kernels/harness.cc` has the loops alone.

use crate::kernels::{is_here, values};
use crate::support::{Rng, Value, assert_close, compile_for, trace};
use xtrain_graphs::op::{
    CallSet, DotDims, KernelCrossEntropy, KernelGemv, KernelNorm, KernelNormPart, OnePass, Op,
};
use xtrain_graphs::{CpuKernels, DType, Target, Tensor, backward, passes};

/// What an optimizer does: moments, a weight in f32 and its copy in bf16, a gradient in bf16 that is
/// clipped by its norm, and the norm of the change (LAMB's) in between.
#[test]
fn an_update_in_one_pass_is_the_update() {
    xtrain_xla::register_kernels();
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<OnePass>(),
        ..CpuKernels::default()
    });
    let mut rng = Rng(7);
    for dims in [vec![1], vec![511], vec![3, 512], vec![70, 1000]] {
        let mut arguments: Vec<Value> = (0..3)
            .map(|_| values(&mut rng, DType::F32, &dims))
            .collect();
        arguments.push(values(&mut rng, DType::BF16, &dims));
        arguments.push(Value::scalar(DType::F32, 1e-3));
        let graph = trace(&arguments, |trace, x| {
            let _update = trace.update_scope("optimizer");
            let [m, v, w, g, lr] = x else { unreachable!() };
            let g = g.convert(DType::F32)?;
            let norm = g.mul(&g)?.sum_all()?.sqrt()?;
            let g = g.div(&norm.add_scalar(1e-6)?)?;
            let m = m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?;
            let v = v.abs()?.mul_scalar(0.999)?.add(&g.mul(&g)?)?;
            let change = m.div(&v.sqrt()?.add_scalar(1e-8)?)?;
            let size = change.mul(&change)?.sum_all()?.sqrt()?;
            let w = w.sub(&change.mul(lr)?.div(&size)?)?;
            let low = w.convert(DType::BF16)?;
            Ok(vec![m, v, w, low, size])
        })
        .unwrap();
        let lowered = passes::lower(&graph, target).unwrap();
        lowered.check().unwrap();
        let passes = lowered
            .nodes
            .iter()
            .filter_map(|node| node.op.call::<OnePass>());
        // The norm; the moments and the change with its norm; the weights.
        assert_eq!(passes.count(), 3, "{dims:?}");
        let got = compile_for(&graph, target).run(&arguments);
        let again = compile_for(&graph, target).run(&arguments);
        let want = compile_for(&graph, Target::CPU).run(&arguments);
        for ((got, again), want) in got.iter().zip(&again).zip(&want) {
            assert_eq!(got.numbers(), again.numbers());
            let tolerance = if got.shape.dtype == DType::BF16 {
                8e-3
            } else {
                1e-5
            };
            assert_close(&got.numbers(), &want.numbers(), tolerance);
        }
    }
}

/// Losses and gradients by calls are those of the operations, with ignored rows; where a head's matmuls
/// are in bf16, the call writes the gradient of the logits in bf16.
#[test]
fn cross_entropy_by_calls_is_cross_entropy() {
    xtrain_xla::register_kernels();
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<KernelCrossEntropy>(),
        ..CpuKernels::default()
    });
    let mut rng = Rng(29);
    for [rows, vocabulary] in [[1, 70_000], [40, 3_001], [300, 250]] {
        let label = |row: usize| match row % 3 {
            2 => -100.0,
            _ => (row * 7 % vocabulary) as f64,
        };
        let labels: Vec<f64> = (0..rows).map(label).collect();
        for dtype in [DType::F32, DType::BF16] {
            let arguments = [
                values(&mut rng, dtype, &[rows, 24]),
                values(&mut rng, dtype, &[24, vocabulary]),
                Value::new(DType::S32, &[rows], &labels),
            ];
            let graph = trace(&arguments, |trace, x| {
                let logits = x[0].matmul(&x[1])?.convert(DType::F32)?;
                let losses = logits.cross_entropy(&x[2], -100)?;
                let weights = trace.iota(DType::F32, &[rows], 0)?.add_scalar(1.0)?;
                let total = losses
                    .mul(&weights)?
                    .sum_all()?
                    .mul_scalar(1.0 / rows as f64)?;
                let grads = backward(&total, &x[..2])?;
                Ok(vec![
                    losses,
                    grads[0].convert(DType::F32)?,
                    grads[1].convert(DType::F32)?,
                ])
            })
            .unwrap();
            let lowered = passes::lower(&graph, target).unwrap();
            lowered.check().unwrap();
            let calls = lowered.nodes.iter().filter_map(|node| node.op.call());
            let calls: Vec<&KernelCrossEntropy> = calls.collect();
            let gradient = KernelCrossEntropy::Gradient(dtype);
            assert_eq!(calls, [&KernelCrossEntropy::LogSumExp, &gradient]);
            let got = compile_for(&graph, target).run(&arguments);
            let want = compile_for(&graph, Target::CPU).run(&arguments);
            assert_close(&got[0].numbers(), &want[0].numbers(), 2e-6);
            let tolerance = if dtype == DType::BF16 { 1e-2 } else { 1e-5 };
            for (got, want) in got[1..].iter().zip(&want[1..]) {
                assert_close(&got.numbers(), &want.numbers(), tolerance);
            }
        }
    }
}

/// Normalizations and their gradients by calls are those of the operations, of rows that no vector
/// divides; where only matmuls in bf16 read the result, the call writes it in bf16.
#[test]
fn norms_by_calls_are_norms() {
    xtrain_xla::register_kernels();
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<KernelNorm>(),
        ..CpuKernels::default()
    });
    let mut rng = Rng(31);
    for (dims, is_layer) in [
        ([1, 300, 384], true),
        ([2, 333, 129], true),
        ([3, 1024, 16], false),
        ([1, 5, 5000], false),
    ] {
        let [rows, width] = [dims[0] * dims[1], dims[2]];
        for dtype in [DType::F32, DType::BF16] {
            let arguments = [
                values(&mut rng, DType::F32, &dims),
                values(&mut rng, DType::F32, &[width]),
                values(&mut rng, DType::F32, &[width]),
                values(&mut rng, dtype, &[width, 8]),
            ];
            let inputs = if is_layer { 3 } else { 2 };
            let graph = trace(&arguments, |_, x| {
                let normed = if is_layer {
                    x[0].layer_norm(&x[1], &x[2], 1e-5)?
                } else {
                    x[0].rms_norm(&x[1], 1e-6)?
                };
                let low = normed.convert(dtype)?.reshape(&[rows, width])?;
                let out = low.matmul(&x[3])?.convert(DType::F32)?;
                let mut results = backward(&out.mul(&out)?.sum_all()?, &x[..inputs])?;
                results.push(out);
                Ok(results)
            })
            .unwrap();
            let lowered = passes::lower(&graph, target).unwrap();
            lowered.check().unwrap();
            let parts: Vec<KernelNormPart> = (lowered.nodes.iter())
                .filter_map(|node| Some(node.op.call::<KernelNorm>()?.part))
                .collect();
            let forward = KernelNormPart::Forward(dtype);
            assert_eq!(parts, [forward, KernelNormPart::Backward]);
            let got = compile_for(&graph, target).run(&arguments);
            let want = compile_for(&graph, Target::CPU).run(&arguments);
            for (got, want) in got.iter().zip(&want) {
                let (got, want) = (got.numbers(), want.numbers());
                let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                // bf16 rounds what comes out of the matmul, and its gradient.
                let tolerance = if dtype == DType::BF16 { 2e-2 } else { 1e-5 };
                let tolerance = tolerance * largest;
                assert_close(&got, &want, tolerance);
            }
        }
    }
}

/// A normalized sum of matmuls' results is added up by the call, and so is the gradient that goes past the
/// layer; the bits are those of additions of their own.
#[test]
fn norms_add_up_what_stands_around_them() {
    xtrain_xla::register_kernels();
    let target = Target::Cpu(CpuKernels::best(is_here));
    let mut rng = Rng(41);
    let [rows, width] = [300, 160];
    for dtype in [DType::F32, DType::BF16] {
        for is_layer in [true, false] {
            let mut arguments = vec![values(&mut rng, dtype, &[rows, width])];
            arguments.extend((0..3).map(|_| values(&mut rng, dtype, &[width, width])));
            arguments.extend((0..2).map(|_| values(&mut rng, DType::F32, &[width])));
            let graph = trace(&arguments, |_, x| {
                let by = |x: &Tensor, w: &Tensor| x.matmul(w)?.convert(DType::F32);
                let norm = |sum: &Tensor| {
                    if is_layer {
                        sum.layer_norm(&x[4], &x[5], 1e-5)
                    } else {
                        sum.rms_norm(&x[4], 1e-6)
                    }
                };
                let first = by(&x[0], &x[1])?;
                let second = first.add(&by(&norm(&first)?.convert(dtype)?, &x[2])?)?;
                let out = by(&norm(&second)?.convert(dtype)?, &x[3])?;
                let mut results = backward(&out.mul(&out)?.sum_all()?, &x[..5])?;
                results.push(out);
                (results.iter().map(|x| x.convert(DType::F32))).collect()
            })
            .unwrap();
            let lowered = passes::lower(&graph, target).unwrap();
            lowered.check().unwrap();
            let calls = lowered
                .nodes
                .iter()
                .filter_map(|node| node.op.call::<KernelNorm>());
            let calls = calls.map(|call| (call.adds, call.narrows));
            let is_low = dtype == DType::BF16;
            let forward = [(false, false), (true, false)];
            let wanted = [forward, [(false, is_low), (true, is_low)]].concat();
            assert_eq!(calls.collect::<Vec<_>>(), wanted);
            let got = compile_for(&graph, target).run(&arguments);
            let want = compile_for(&graph, Target::CPU).run(&arguments);
            for (got, want) in got.iter().zip(&want) {
                let (got, want) = (got.numbers(), want.numbers());
                let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                let tolerance = if is_low { 2e-2 } else { 1e-5 };
                assert_close(&got, &want, tolerance * largest);
            }
        }
    }
}

/// Products of a few rows with a weight by calls are those of the operations: weights in f32 and bf16, as they lie
/// and transposed, in products of f32 and of bf16.
#[test]
fn gemv_by_calls_is_the_product() {
    xtrain_xla::register_kernels();
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<KernelGemv>(),
        ..CpuKernels::default()
    });
    let mut rng = Rng(41);
    for (m, k, n) in [
        (1, 300, 77),
        (2, 64, 2_050),
        (3, 1, 16_400),
        (4, 131, 1_024),
        (1, 2_049, 9),
    ] {
        for held in [DType::F32, DType::BF16] {
            for low in [false, true] {
                for is_turned in [false, true] {
                    let dims = if is_turned { [n, k] } else { [k, n] };
                    let arguments = [
                        values(&mut rng, DType::F32, &[1, m, k]),
                        values(&mut rng, held, &dims),
                    ];
                    let graph = trace(&arguments, |_, x| {
                        let (mut rows, mut weight) = (x[0].clone(), x[1].convert(DType::F32)?);
                        if low {
                            rows = rows.convert(DType::BF16)?;
                            weight = weight.convert(DType::BF16)?;
                        }
                        if is_turned {
                            weight = weight.transpose(&[1, 0])?;
                        }
                        let dims = DotDims {
                            lhs_contracting: vec![2],
                            rhs_contracting: vec![0],
                            ..DotDims::default()
                        };
                        let dtype = rows.dtype();
                        Ok(vec![
                            rows.dot_general(&weight, dims, dtype)?
                                .convert(DType::F32)?,
                        ])
                    })
                    .unwrap();
                    let lowered = passes::lower(&graph, target).unwrap();
                    lowered.check().unwrap();
                    let calls = lowered
                        .nodes
                        .iter()
                        .filter_map(|node| node.op.call::<KernelGemv>());
                    let calls: Vec<_> = calls.map(|call| (call.by_columns, call.rounds)).collect();
                    assert_eq!(
                        calls,
                        [(is_turned, low && held == DType::F32)],
                        "{m} {k} {n}"
                    );
                    let reads = |op: &Op| matches!(op, Op::Transpose(_));
                    assert!(!lowered.nodes.iter().any(|node| reads(&node.op)));
                    let got = compile_for(&graph, target).run(&arguments)[0].numbers();
                    let again = compile_for(&graph, target).run(&arguments)[0].numbers();
                    assert_eq!(got, again);
                    let want = compile_for(&graph, Target::CPU).run(&arguments)[0].numbers();
                    let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                    let tolerance = if low { 1e-2 } else { 1e-5 };
                    assert_close(&got, &want, tolerance * largest);
                }
            }
        }
    }
}

/// What is no weight, has more rows, or is small stays a dot.
#[test]
fn other_products_are_no_gemv() {
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<KernelGemv>(),
        ..CpuKernels::default()
    });
    let calls = |rows: usize, k: usize, of: fn(&Tensor) -> xtrain_graphs::Result<Tensor>| {
        let mut rng = Rng(1);
        let arguments = [
            values(&mut rng, DType::F32, &[rows, k]),
            values(&mut rng, DType::F32, &[k, 128]),
        ];
        let graph = trace(&arguments, |_, x| Ok(vec![x[0].matmul(&of(&x[1])?)?])).unwrap();
        let lowered = passes::lower(&graph, target).unwrap();
        lowered
            .nodes
            .iter()
            .filter(|node| node.op.call::<KernelGemv>().is_some())
            .count()
    };
    assert_eq!(calls(4, 128, |w| Ok(w.clone())), 1);
    assert_eq!(calls(5, 128, |w| Ok(w.clone())), 0);
    assert_eq!(calls(4, 127, |w| Ok(w.clone())), 0);
    assert_eq!(calls(4, 128, |w| w.add_scalar(1.0)), 0);
}

/// Lion's moment and its weight share no value but the gradient and the moment that they read: one
/// call for each parameter.
#[test]
fn values_of_one_array_are_made_together() {
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<OnePass>(),
        ..CpuKernels::default()
    });
    let mut rng = Rng(9);
    let arguments: Vec<Value> = (0..6)
        .map(|_| values(&mut rng, DType::F32, &[30, 40]))
        .collect();
    let graph = trace(&arguments, |trace, x| {
        let _update = trace.update_scope("optimizer");
        let mut results = Vec::new();
        for of_one in x.chunks(3) {
            let [m, w, g] = of_one else { unreachable!() };
            let direction = m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?.sign()?;
            results.push(m.mul_scalar(0.99)?.add(&g.mul_scalar(0.01)?)?);
            results.push(w.sub(&direction.mul_scalar(1e-3)?)?);
        }
        Ok(results)
    })
    .unwrap();
    let lowered = passes::lower(&graph, target).unwrap();
    lowered.check().unwrap();
    let passes = lowered
        .nodes
        .iter()
        .filter_map(|node| node.op.call::<OnePass>());
    let passes = passes.map(|pass| pass.results.len());
    assert_eq!(passes.collect::<Vec<usize>>(), [2, 2]);
    xtrain_xla::register_kernels();
    let got = compile_for(&graph, target).run(&arguments);
    let want = compile_for(&graph, Target::CPU).run(&arguments);
    for (got, want) in got.iter().zip(&want) {
        assert_close(&got.numbers(), &want.numbers(), 1e-6);
    }
}

/// A table of sines and cosines that two layers read for each of their heads is computed once: XLA is
/// given it by a call, which it cannot fuse.
#[test]
fn what_stands_before_a_barrier_is_computed_once() {
    xtrain_xla::register_kernels();
    let target = Target::Cpu(CpuKernels {
        calls: CallSet::only::<OnePass>(),
        ..CpuKernels::default()
    });
    let mut rng = Rng(8);
    let arguments = [
        values(&mut rng, DType::F32, &[70, 3]),
        values(&mut rng, DType::F32, &[5, 70, 3]),
    ];
    let graph = trace(&arguments, |_, x| {
        let table = x[0].sin()?.barrier()?.broadcast_in(&[5, 70, 3], &[1, 2])?;
        let first = x[1].mul(&table)?;
        // What is only moved may be moved again.
        let moved = x[1].transpose(&[1, 0, 2])?.barrier()?.neg()?;
        Ok(vec![first.exp()?.mul(&table)?, moved])
    })
    .unwrap();
    let lowered = passes::lower(&graph, target).unwrap();
    lowered.check().unwrap();
    let count = |wanted: fn(&Op) -> bool| lowered.nodes.iter().filter(|n| wanted(&n.op)).count();
    assert_eq!(count(|op| op.call::<OnePass>().is_some()), 1);
    assert_eq!(count(|op| *op == Op::Barrier), 1);
    let got = compile_for(&graph, target).run(&arguments);
    let want = compile_for(&graph, Target::CPU).run(&arguments);
    for (got, want) in got.iter().zip(&want) {
        assert_close(&got.numbers(), &want.numbers(), 1e-6);
    }
}
