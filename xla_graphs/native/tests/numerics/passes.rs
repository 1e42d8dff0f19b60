//! Compares calls of one pass (activations, gates and rotations with their gradients, and generated programs)
//! with the same operations in f64.

use crate::kernels::values;
use crate::support::{Rng, Value, assert_close, compile_for, trace};
use xtrain_graphs::op::{CallSet, Gelu, OnePass, Op};
use xtrain_graphs::{CpuKernels, DType, Graph, Target, Tensor, backward, passes};

fn target() -> Target {
    xtrain_xla::register_kernels();
    Target::Cpu(CpuKernels {
        calls: CallSet::only::<OnePass>(),
        ..CpuKernels::default()
    })
}

/// The calls of the lowered graph: how many operands and results each has.
fn calls(graph: &Graph) -> Vec<[usize; 2]> {
    let lowered = passes::lower(graph, target()).unwrap();
    lowered.check().unwrap();
    let nodes = lowered.nodes.iter();
    let calls = nodes.filter_map(|node| {
        let call = node.op.call::<OnePass>()?;
        Some([node.operands.len(), call.results.len()])
    });
    calls.collect()
}

fn count(graph: &Graph, is_counted: fn(&Op) -> bool) -> usize {
    let lowered = passes::lower(graph, target()).unwrap();
    let ops = lowered.nodes.iter().map(|node| &node.op);
    ops.filter(|op| is_counted(op)).count()
}

/// Runs what `record` records of `arguments` by calls twice, and in f64.
fn check(
    arguments: &[Value],
    tolerance: f64,
    record: impl Fn(&[Tensor]) -> xtrain_graphs::Result<Vec<Tensor>>,
) -> Graph {
    let graph = trace(arguments, |_, x| record(x)).unwrap();
    let wide: Vec<Value> = (arguments.iter())
        .map(|x| Value::new(DType::F64, &x.shape.dims, &x.numbers()))
        .collect();
    let exact = trace(&wide, |_, x| record(x)).unwrap();
    let program = compile_for(&graph, target());
    let (got, again) = (program.run(arguments), program.run(arguments));
    assert_eq!(got, again);
    let want = compile_for(&exact, Target::CPU).run(&wide);
    for (got, want) in got.iter().zip(&want) {
        let want = want.numbers();
        let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        assert_close(&got.numbers(), &want, tolerance * largest);
    }
    graph
}

/// An activation between matmuls.
fn activated(x: &Tensor, of: Option<Gelu>) -> xtrain_graphs::Result<Tensor> {
    let _again = of.is_none().then(|| x.trace().cheap());
    // In f32 where x is bf16, as autocast has it.
    let wide = match x.dtype() {
        DType::BF16 => x.convert(DType::F32)?,
        _ => x.clone(),
    };
    let y = match of {
        Some(kind) => wide.gelu(kind)?,
        None => wide.mul(&wide.logistic()?)?,
    };
    y.convert(x.dtype())
}

/// The gradients of the sum of squares, all outputs in f32 or f64.
fn with_gradients(out: &Tensor, x: &[Tensor]) -> xtrain_graphs::Result<Vec<Tensor>> {
    let wide = |x: &Tensor| match x.dtype() {
        DType::BF16 => x.convert(DType::F32),
        _ => Ok(x.clone()),
    };
    let out = wide(out)?;
    let mut results = backward(&out.mul(&out)?.sum_all()?, x)?;
    results.push(out);
    results.iter().map(wide).collect()
}

/// GELUs and SiLUs with their gradients are one call each way, which reads and writes what the matmuls do.
#[test]
fn activations_are_calls() {
    let mut rng = Rng(37);
    for kind in [Some(Gelu::Tanh), Some(Gelu::Erf), None] {
        for dtype in [DType::F32, DType::BF16] {
            let arguments = [[301, 9], [9, 77], [77, 5]].map(|dims| values(&mut rng, dtype, &dims));
            let tolerance = if dtype == DType::BF16 { 2e-2 } else { 2e-6 };
            let graph = check(&arguments, tolerance, |x| {
                let out = activated(&x[0].matmul(&x[1])?, kind)?.matmul(&x[2])?;
                with_gradients(&out, x)
            });
            // What SiLU gives is computed again for the second weight's gradient, when this is there.
            let backward = if kind.is_some() { [2, 1] } else { [3, 2] };
            assert_eq!(calls(&graph), [[1, 1], backward], "{kind:?} {dtype}");
            let converts = count(&graph, |op| *op == Op::Convert(DType::F32));
            // The outputs', and the predicate that copies wait for.
            let wanted = if dtype == DType::BF16 { 4 } else { 0 } + usize::from(kind.is_none());
            assert_eq!(converts, wanted);
        }
    }
}

/// A gated activation is one call, and so are its gradients with what the second matmul reads again; where
/// gate and rest are columns of one matrix, they are read there, and their gradients written as one.
#[test]
fn gates_are_calls() {
    let mut rng = Rng(38);
    for kind in [Some(Gelu::Tanh), Some(Gelu::Erf), None] {
        for dtype in [DType::F32, DType::BF16] {
            for is_one in [false, true] {
                let [rows, width, f] = [257, 24, 72];
                let of = |n: usize| vec![width, n];
                let mut dims = vec![vec![rows, width]];
                dims.extend(if is_one {
                    vec![of(2 * f)]
                } else {
                    vec![of(f); 2]
                });
                dims.push(vec![f, 16]);
                let arguments: Vec<Value> = (dims.iter())
                    .map(|dims| values(&mut rng, dtype, dims))
                    .collect();
                let tolerance = if dtype == DType::BF16 { 3e-2 } else { 3e-6 };
                let graph = check(&arguments, tolerance, |x| {
                    let project = |w: &Tensor| x[0].matmul(w);
                    let (gate, up) = if is_one {
                        let both = project(&x[1])?;
                        (both.slice_dim(1, 0, f)?, both.slice_dim(1, f, 2 * f)?)
                    } else {
                        (project(&x[1])?, project(&x[2])?)
                    };
                    let gated = {
                        let _again = gate.trace().cheap();
                        let low = |x: Tensor| match dtype {
                            DType::BF16 if x.dtype() == DType::F32 => x.convert(dtype),
                            _ => Ok(x),
                        };
                        low(activated(&gate, kind)?.mul(&up)?)?
                    };
                    with_gradients(&gated.matmul(&x[x.len() - 1])?, x)
                });
                // Forward; backward the gradients of both and what the second matmul read.
                let calls = calls(&graph);
                let found = format!("{kind:?} {dtype} {is_one} {calls:?}");
                assert_eq!(calls.len(), 2, "{found}");
                assert_eq!(calls[0], [2, 1], "{found}");
                assert_eq!(calls[1][1], 3, "{found}");
                let is_left =
                    |op: &Op| matches!(op, Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. });
                // What the copies wait for is a slice of one element.
                assert!(count(&graph, is_left) <= 2, "{found}");
            }
        }
    }
}

/// Halves of heads that turn by an angle of their position, read and written in place: one call each way.
#[test]
fn rotations_are_calls() {
    let mut rng = Rng(39);
    for dtype in [DType::F32, DType::BF16] {
        for [b, t, h, d] in [[2, 120, 3, 64], [3, 37, 5, 70]] {
            let arguments = [
                values(&mut rng, dtype, &[b * t, 40]),
                values(&mut rng, dtype, &[40, h * d]),
                values(&mut rng, DType::F32, &[t, d / 2]),
                values(&mut rng, DType::F32, &[t, d / 2]),
                values(&mut rng, dtype, &[d, 8]),
            ];
            let tolerance = if dtype == DType::BF16 { 2e-2 } else { 2e-6 };
            let graph = check(&arguments, tolerance, |x| {
                let heads = x[0].matmul(&x[1])?.reshape(&[b, t, h, d])?;
                let [first, second] =
                    [0, d / 2].map(|start| heads.slice_dim(3, start, start + d / 2));
                let wide = |x: Tensor| match dtype {
                    DType::BF16 if x.dtype() == DType::BF16 => x.convert(DType::F32),
                    _ => Ok(x),
                };
                let (first, second) = (wide(first?)?, wide(second?)?);
                let [sin, cos] =
                    [&x[2], &x[3]].map(|table| table.broadcast_in(first.dims(), &[1, 3]));
                let (sin, cos) = (sin?, cos?);
                let turned = Tensor::concat(
                    &[
                        &first.mul(&cos)?.sub(&second.mul(&sin)?)?,
                        &second.mul(&cos)?.add(&first.mul(&sin)?)?,
                    ],
                    3,
                )?;
                let low = match turned.dtype() {
                    DType::F32 => turned.convert(dtype)?,
                    _ => turned,
                };
                let out = low.transpose(&[0, 2, 1, 3])?;
                let out = out.reshape(&[b * h * t, d])?.matmul(&x[4])?;
                with_gradients(&out, &x[..2])
            });
            let calls = calls(&graph);
            assert_eq!(calls, [[4, 2], [4, 2]], "{dtype} {b} {t} {h} {d}");
            let is_left =
                |op: &Op| matches!(op, Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. });
            assert_eq!(count(&graph, is_left), 0);
        }
    }
}

/// A part of a result in bf16, read in f32 by another call: the first call writes what the second reads.
#[test]
fn parts_of_results_are_read_where_they_were_written() {
    let mut rng = Rng(41);
    let arguments = [values(&mut rng, DType::BF16, &[64, 512])];
    let graph = check(&arguments, 2e-2, |x| {
        let narrow = |y: &Tensor| y.convert(x[0].dtype());
        let wide = |y: &Tensor| match y.dtype() {
            DType::BF16 => y.convert(DType::F32),
            _ => Ok(y.clone()),
        };
        let f = wide(&x[0])?;
        let y = narrow(&f.mul(&f.logistic()?)?)?;
        let part = wide(&y)?.slice_dim(1, 0, 256)?;
        Ok(vec![part.mul(&part.logistic()?)?, f.neg()?])
    });
    assert_eq!(calls(&graph).len(), 2);
}

fn below(rng: &mut Rng, end: usize) -> usize {
    (rng.next() % end as u64) as usize
}

/// One of a generated program's arrays: of `dims` through a slice, a transposition, a reshape or a broadcast.
fn viewed(rng: &mut Rng, x: &Tensor, dims: [usize; 3]) -> xtrain_graphs::Result<Tensor> {
    let [a, b, c] = dims;
    match (x.rank(), below(rng, 2)) {
        (1, _) => x.broadcast_in(&dims, &[2]),
        (2, _) => x.broadcast_in(&dims, &[0, 2]),
        (4, _) => x.reshape(&dims),
        (_, 0) if x.dims() == [b, a, c] => x.transpose(&[1, 0, 2]),
        (_, _) if x.dims() == [a, b, c] => Ok(x.clone()),
        (_, _) if x.dims() == [b, a, c] => x.transpose(&[1, 0, 2]),
        _ => x.slice(&[1, 0, 2], &[1 + a, b, 2 + c]),
    }
}

/// Generated programs over arrays that lie anyhow, with several results, some of them halves of one array.
#[test]
fn generated_programs_are_calls() {
    let mut rng = Rng(40);
    for case in 0..24 {
        let dims = [
            3 + below(&mut rng, 9),
            7 + below(&mut rng, 60),
            16 * (2 + below(&mut rng, 8)),
        ];
        let [a, b, c] = dims;
        let dtype = [DType::F32, DType::BF16][case % 2];
        let shapes = [
            vec![a, b, c],
            vec![b, a, c],
            vec![a + 2, b, c + 5],
            vec![c],
            vec![a, c],
            vec![a, b, c / 16, 16],
        ];
        let arguments: Vec<Value> = (0..3 + below(&mut rng, 3))
            .map(|_| {
                let shape = below(&mut rng, shapes.len());
                values(&mut rng, dtype, &shapes[shape])
            })
            .collect();
        let seed = case as u64;
        let graph = check(&arguments, 1e-5, |x| {
            let mut rng = Rng(seed);
            let mut pool: Vec<Tensor> = Vec::new();
            for x in x {
                let x = viewed(&mut rng, x, dims)?;
                pool.push(match x.dtype() {
                    DType::BF16 => x.convert(DType::F32)?,
                    _ => x,
                });
            }
            pool.push(pool[0].logistic()?);
            for _ in 0..3 + below(&mut rng, 8) {
                let mut any = || pool[below(&mut rng, pool.len())].clone();
                let (x, y) = (any(), any());
                pool.push(match below(&mut rng, 9) {
                    0 => x.add(&y)?,
                    1 => x.sub(&y)?,
                    2 => x.mul(&y)?,
                    3 => x.abs()?,
                    4 => x.neg()?.mul_scalar(0.5)?,
                    5 => x.logistic()?,
                    6 => x.gelu(Gelu::Tanh)?,
                    7 => x.gelu(Gelu::Erf)?,
                    _ => x.div(&y.mul(&y)?.add_scalar(1.0)?)?,
                });
            }
            let last = &pool[pool.len() - 2..];
            let joined = Tensor::concat(&[&last[0], &last[1]], below(&mut rng, 3))?;
            Ok(vec![
                joined,
                pool[pool.len() - 3].clone(),
                pool[x.len()].clone(),
            ])
        });
        assert!(!calls(&graph).is_empty() || a * b * c < 1 << 14, "{case}");
    }
}
