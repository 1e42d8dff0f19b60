//! Matmuls by the plugin's own kernels: the whole way from a graph's dot to the call, for every kernel
//! that this processor executes. `kernels/harness.cc` has the kernels alone.

use crate::support::{Rng, Value, assert_close, compile_for, trace};
use std::path::Path;
use std::process::Command;
use xtrain_graphs::op::{
    Attention, AttentionDropout, Comparison, CpuKernel, DotDims, F64, KernelAttention,
    KernelMatmul, KeyMask, MatmulStart, MatmulSums, Op,
};
use xtrain_graphs::{CpuKernels, DType, DropoutRng, Graph, Target, Tensor, backward, passes};

/// Those of this processor; `None` if it has none.
fn target() -> Option<CpuKernels> {
    let kernels = CpuKernels::best(is_here);
    if (kernels.bf16, kernels.f32) == (None, None) {
        eprintln!("this processor has no AVX2");
        return None;
    }
    Some(kernels)
}

pub fn is_here(kernel: CpuKernel) -> bool {
    xtrain_xla::xtrain_xla_has_kernel(kernel.number()) != 0
}

fn is_matmul(op: &Op) -> bool {
    op.call::<KernelMatmul>().is_some()
}

fn calls(graph: &Graph, kernels: CpuKernels) -> Vec<Op> {
    let lowered = passes::lower(graph, Target::Cpu(kernels)).unwrap();
    let all = lowered.nodes.into_iter().map(|node| node.op);
    all.filter(|op| is_matmul(op) || matches!(op, Op::Dot { .. } | Op::Transpose(_)))
        .collect()
}

pub fn values(rng: &mut Rng, dtype: DType, dims: &[usize]) -> Value {
    let numbers = rng.floats(dims.iter().product(), -1.0, 1.0);
    Value::new(dtype, dims, &numbers)
}

/// A dot over operands and a result whose dimensions are in any order, as transpositions leave them.
struct Case {
    /// Sizes of two batch dimensions, m, n, k.
    sizes: [usize; 5],
    /// The memory's order of (p, q, m, k), of (p, q, k, n), and the result's of (p, q, m, n).
    orders: [[usize; 4]; 3],
}

impl Case {
    fn operands(&self) -> [[usize; 4]; 2] {
        let [p, q, m, n, k] = self.sizes;
        let stored = |dims: [usize; 4], order: [usize; 4]| order.map(|dim| dims[dim]);
        [
            stored([p, q, m, k], self.orders[0]),
            stored([p, q, k, n], self.orders[1]),
        ]
    }

    fn record(&self, x: &[Tensor], low: DType, result: DType) -> xtrain_graphs::Result<Tensor> {
        let back = |order: [usize; 4]| {
            [0, 1, 2, 3].map(|dim| order.iter().position(|&o| o == dim).unwrap())
        };
        let [a, b] = [0, 1].map(|i| {
            x[i].convert(low)
                .and_then(|x| x.transpose(&back(self.orders[i])))
        });
        let dims = DotDims {
            lhs_contracting: vec![3],
            rhs_contracting: vec![2],
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
        };
        a?.dot_general(&b?, dims, low)?
            .transpose(&self.orders[2])?
            .convert(result)
    }
}

#[test]
fn kernels_agree_with_xla_for_every_order_of_dimensions() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    // What a processor without AVX-512 would choose, and one whose products of pairs are missing or slow.
    let of =
        |all: [CpuKernel; 2]| CpuKernels::best(|kernel| all.contains(&kernel) && is_here(kernel));
    let avx2 = of([CpuKernel::Avx2F32, CpuKernel::Avx2WidenedBf16]);
    let widened = of([CpuKernel::Avx512F32, CpuKernel::Avx512WidenedBf16]);
    let mut rng = Rng(19);
    let mut taken = 0;
    for case in 0..24 {
        let mut order = |last: Option<usize>| {
            let mut order = rng.permutation(4);
            if let Some(last) = last {
                // The result's last dimension is m or n: kernels write nothing else contiguously.
                let at = order.iter().position(|&dim| dim == last).unwrap();
                order.swap(at, 3);
            }
            [0, 1, 2, 3].map(|i| order[i])
        };
        let orders = [
            order(Some(2 + case % 2)),
            order(Some(2 + case / 2 % 2)),
            order(Some(2 + case / 4 % 2)),
        ];
        // Some are large enough for every kernel.
        let (least, most) = if case % 4 == 0 { (182, 260) } else { (17, 130) };
        let case = Case {
            sizes: [
                rng.int(1, 3),
                rng.int(1, 3),
                rng.int(least, most),
                rng.int(least, most),
                rng.int(900, 1100),
            ],
            orders,
        };
        let [a, b] = case.operands();
        for (kernels, low, stored, result) in [
            (kernels, DType::F32, DType::F32, DType::F32),
            (kernels, DType::BF16, DType::BF16, DType::BF16),
            (kernels, DType::BF16, DType::F32, DType::F32),
            (avx2, DType::F32, DType::F32, DType::F32),
            (avx2, DType::BF16, DType::BF16, DType::BF16),
            (avx2, DType::BF16, DType::F32, DType::F32),
            (widened, DType::BF16, DType::BF16, DType::F32),
        ] {
            let kernel = match low {
                DType::BF16 => kernels.bf16,
                _ => kernels.f32,
            };
            if kernel.is_none() {
                continue;
            }
            let arguments = [values(&mut rng, stored, &a), values(&mut rng, stored, &b)];
            let graph = trace(&arguments, |_, x| Ok(vec![case.record(x, low, result)?])).unwrap();
            taken += calls(&graph, kernels)
                .iter()
                .filter(|op| is_matmul(op))
                .count();
            let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
            let want = compile_for(&graph, Target::CPU).run(&arguments);
            // Sums of a thousand products of numbers up to 1, in another order. bf16 has 8 bits, and
            // XLA rounds to it what a call writes as f32 at once.
            let tolerance = if low == DType::BF16 { 1e-2 } else { 2e-5 };
            let scale = want[0]
                .numbers()
                .iter()
                .fold(1.0f64, |most, x| most.max(x.abs()));
            let scaled =
                |value: &Value| -> Vec<f64> { value.numbers().iter().map(|x| x / scale).collect() };
            assert_close(&scaled(&got[0]), &scaled(&want[0]), tolerance);
        }
    }
    assert!(taken >= 24, "only {taken} matmuls were calls");
}

#[test]
fn what_stands_around_a_dot_goes_into_its_call() {
    let kernels = CpuKernels {
        bf16: Some(CpuKernel::AmxBf16),
        f32: Some(CpuKernel::Avx512F32),
        ..CpuKernels::default()
    };
    let mut rng = Rng(1);
    // Attention's product: [B, T, H, D] twice, turned to [B, H, T, D] before and back after it.
    let heads = [
        values(&mut rng, DType::F32, &[2, 128, 4, 64]),
        values(&mut rng, DType::F32, &[2, 4, 128, 128]),
    ];
    let graph = trace(&heads, |_, x| {
        let v = x[0].transpose(&[0, 2, 1, 3])?;
        let dims = DotDims {
            lhs_contracting: vec![3],
            rhs_contracting: vec![2],
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
        };
        Ok(vec![
            x[1].dot_general(&v, dims, DType::F32)?
                .transpose(&[0, 2, 1, 3])?,
        ])
    })
    .unwrap();
    assert!(matches!(&calls(&graph, kernels)[..], [op] if is_matmul(op)));
    assert_eq!(calls(&graph, CpuKernels::default()).len(), 3);
    // A small one stays XLA's.
    let small = [
        values(&mut rng, DType::F32, &[8, 64]),
        values(&mut rng, DType::F32, &[64, 64]),
    ];
    let graph = trace(&small, |_, x| Ok(vec![x[0].matmul(&x[1])?])).unwrap();
    assert!(matches!(calls(&graph, kernels)[..], [Op::Dot { .. }]));
}

/// A bias's gradient is the second result of the call that gives its weight's, whichever way round the weight lies.
#[test]
fn a_bias_has_its_gradient_from_the_call_of_its_weights() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    let mut rng = Rng(36);
    for dtype in [DType::F32, DType::BF16] {
        if dtype == DType::BF16 && kernels.bf16.is_none() {
            continue;
        }
        for is_turned in [false, true] {
            let weight = if is_turned { [190, 150] } else { [150, 190] };
            let arguments = [
                values(&mut rng, dtype, &[3, 67, 150]),
                values(&mut rng, dtype, &weight),
                values(&mut rng, DType::F32, &[190]),
            ];
            let graph = trace(&arguments, |_, x| {
                let dims = DotDims {
                    lhs_contracting: vec![2],
                    rhs_contracting: vec![usize::from(is_turned)],
                    ..DotDims::default()
                };
                let product = x[0].dot_general(&x[1], dims, dtype)?;
                let wide = product.convert(DType::F32)?.add(&x[2])?;
                let out = wide.convert(dtype)?.convert(DType::F32)?;
                let grads = backward(&out.mul(&out)?.sum_all()?, &x[1..])?;
                grads.iter().map(|x| x.convert(DType::F32)).collect()
            })
            .unwrap();
            let sums: Vec<_> = (calls(&graph, kernels).into_iter())
                .filter_map(|op| op.call::<KernelMatmul>()?.sums)
                .collect();
            let wanted = if is_turned {
                MatmulSums::Rows
            } else {
                MatmulSums::Columns
            };
            assert_eq!(sums, [wanted], "{dtype}");
            let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
            let want = compile_for(&graph, Target::CPU).run(&arguments);
            for (got, want) in got.iter().zip(&want) {
                let (got, want) = (got.numbers(), want.numbers());
                let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                let tolerance = if dtype == DType::BF16 { 2e-2 } else { 1e-5 };
                assert_close(&got, &want, tolerance * largest);
            }
        }
    }
}

/// A linear layer is one call, and gives what is wanted of it: bf16 where its sum with the bias is
/// rounded, f32 where something else reads that too.
#[test]
fn a_bias_is_what_the_sums_begin_with() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    let mut rng = Rng(35);
    for (dtype, is_read_twice) in [
        (DType::F32, false),
        (DType::BF16, false),
        (DType::BF16, true),
    ] {
        if dtype == DType::BF16 && kernels.bf16.is_none() {
            continue;
        }
        let arguments = [
            values(&mut rng, dtype, &[3, 67, 70]),
            values(&mut rng, dtype, &[70, 190]),
            values(&mut rng, DType::F32, &[190]),
        ];
        let graph = trace(&arguments, |_, x| {
            let dims = DotDims {
                lhs_contracting: vec![2],
                rhs_contracting: vec![0],
                ..DotDims::default()
            };
            // As `autocast` leaves it.
            let product = x[0].dot_general(&x[1], dims, dtype)?;
            let wide = product.convert(DType::F32)?.add(&x[2])?;
            let low = wide.convert(dtype)?.convert(DType::F32)?;
            Ok(if is_read_twice {
                vec![low, wide]
            } else {
                vec![low]
            })
        })
        .unwrap();
        let calls = calls(&graph, kernels);
        let [op] = &calls[..] else {
            panic!("{calls:?}");
        };
        let call: &KernelMatmul = op.call().unwrap();
        let given = if is_read_twice { DType::F32 } else { dtype };
        assert_eq!((call.start, call.shape.dtype), (MatmulStart::Bias, given));
        let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
        let want = compile_for(&graph, Target::CPU).run(&arguments);
        let tolerance = if dtype == DType::BF16 { 1e-2 } else { 1e-5 };
        for (got, want) in got.iter().zip(&want) {
            assert_close(&got.numbers(), &want.numbers(), tolerance);
        }
    }
}

/// A head over more words than a step wants to hold logits of: hidden states `[N, E]`, the table
/// `[V, E]`, a bias and labels, a part of which count; logits are capped as Gemma 2 caps them.
fn head(x: &[Tensor], low: DType) -> xtrain_graphs::Result<[Tensor; 2]> {
    let [hidden, table, bias, labels] = x else {
        unreachable!()
    };
    let dims = DotDims {
        lhs_contracting: vec![1],
        rhs_contracting: vec![1],
        ..DotDims::default()
    };
    let logits = hidden
        .convert(low)?
        .dot_general(&table.convert(low)?, dims, low)?
        .convert(DType::F32)?;
    let bias = bias.broadcast_in(logits.dims(), &[1])?;
    let logits = logits
        .add(&bias)?
        .mul_scalar(1.0 / 3.0)?
        .tanh()?
        .mul_scalar(3.0)?;
    Ok([logits.cross_entropy(labels, -100)?, logits])
}

fn head_arguments(rng: &mut Rng, rows: usize, vocabulary: usize) -> [Value; 4] {
    let labels: Vec<f64> = (0..rows)
        .map(|row| match row % 5 {
            0 => -100.0,
            _ => rng.int(0, vocabulary - 1) as f64,
        })
        .collect();
    [
        values(rng, DType::F32, &[rows, 32]),
        values(rng, DType::F32, &[vocabulary, 32]),
        values(rng, DType::F32, &[vocabulary]),
        Value::new(DType::S32, &[rows], &labels),
    ]
}

/// Whether the lowered graph holds the logits of all rows.
fn holds_logits(graph: &Graph, kernels: CpuKernels, dims: [usize; 2]) -> bool {
    let lowered = passes::lower(graph, Target::Cpu(kernels)).unwrap();
    lowered.check().unwrap();
    lowered.nodes.iter().any(|node| node.shape.dims == dims)
}

#[test]
fn logits_of_large_vocabularies_are_computed_in_blocks() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    let mut rng = Rng(31);
    // Two blocks, the second with fewer rows.
    let dims @ [rows, vocabulary] = [530, 131_100];
    let arguments = head_arguments(&mut rng, rows, vocabulary);
    for low in [DType::F32, DType::BF16] {
        let graph = trace(&arguments, |_, x| {
            let [losses, logits] = head(x, low)?;
            let count = x[3].compare_scalar(Comparison::Ne, -100.0)?;
            let count = count.convert(DType::F32)?.sum_all()?;
            let loss = losses.sum_all()?.div(&count)?;
            let best = logits.max(&[1])?;
            let mut results = vec![loss.clone(), losses, best];
            results.extend(backward(&loss, &x[..3])?);
            Ok(results)
        })
        .unwrap();
        assert!(!holds_logits(&graph, kernels, dims));
        assert!(holds_logits(&graph, CpuKernels::default(), dims));
        let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
        let want = compile_for(&graph, Target::CPU).run(&arguments);
        for (got, want) in got.iter().zip(&want) {
            let [got, want] = [got, want].map(Value::numbers);
            let most = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let scaled = |x: Vec<f64>| -> Vec<f64> { x.iter().map(|x| x / most).collect() };
            // Of bf16, XLA rounds logits that a kernel gives in f32.
            let tolerance = if low == DType::BF16 { 2e-2 } else { 1e-4 };
            assert_close(&scaled(got), &scaled(want), tolerance);
        }
    }
}

/// Blocks are compiled one by one: a long batch has larger ones, not more.
#[test]
fn logits_of_a_long_batch_are_sixteen_blocks() {
    let kernels = CpuKernels {
        f32: Some(CpuKernel::Avx512F32),
        ..CpuKernels::default()
    };
    let [rows, vocabulary] = [20_000, 131_100];
    let graph = trace(&head_arguments(&mut Rng(34), rows, vocabulary), |_, x| {
        let [losses, _] = head(x, DType::F32)?;
        backward(&losses.sum_all()?, &x[..3])
    })
    .unwrap();
    let lowered = passes::lower(&graph, Target::Cpu(kernels)).unwrap();
    let blocks = lowered.nodes.iter().filter(|node| {
        is_matmul(&node.op) && node.shape.dims[0] > 32 && node.shape.dims[1] == vocabulary
    });
    let sizes: Vec<usize> = blocks.map(|node| node.shape.dims[0]).collect();
    assert_eq!(sizes.len(), 16, "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), rows);
}

/// Where logits are small, are read otherwise, or have a gradient that needs all losses first.
#[test]
fn logits_stay_whole_where_blocks_cannot_stand_for_them() {
    let kernels = CpuKernels {
        bf16: Some(CpuKernel::AmxBf16),
        f32: Some(CpuKernel::Avx512F32),
        ..CpuKernels::default()
    };
    let mut rng = Rng(32);
    let held = |dims @ [rows, vocabulary]: [usize; 2],
                rng: &mut Rng,
                results: fn(&[Tensor]) -> xtrain_graphs::Result<Vec<Tensor>>| {
        let graph = trace(&head_arguments(rng, rows, vocabulary), |_, x| results(x)).unwrap();
        holds_logits(&graph, kernels, dims)
    };
    let large = [530, 131_100];
    let gradients = |x: &[Tensor]| {
        let [losses, _] = head(x, DType::F32)?;
        backward(&losses.sum_all()?, &x[..3])
    };
    assert!(!held(large, &mut rng, gradients));
    assert!(held([512, 131_100], &mut rng, gradients));
    assert!(held([2048, 5000], &mut rng, gradients));
    assert!(held(large, &mut rng, |x| Ok(head(x, DType::F32)?.to_vec())));
    assert!(held(large, &mut rng, |x| {
        let [losses, _] = head(x, DType::F32)?;
        let loss = losses.sum_all()?;
        backward(&loss.mul(&loss)?, &x[..3])
    }));
    // Forward alone.
    assert!(!held(large, &mut rng, |x| Ok(vec![
        head(x, DType::F32)?[0].clone()
    ])));
}

/// The gradient of a bias: the sum of rows in bf16, in f32, as a matmul by ones.
#[test]
fn the_sum_of_rows_is_a_matmul() {
    let Some(kernels) = target().filter(|kernels| kernels.bf16.is_some()) else {
        return;
    };
    xtrain_xla::register_kernels();
    let mut rng = Rng(34);
    for (dims, summed, is_call) in [
        (vec![70, 90], vec![0], true),
        (vec![3, 900, 130], vec![0, 1], true),
        (vec![3, 900, 130], vec![0], false),
        (vec![3, 900, 130], vec![1], false),
        (vec![3, 900, 130], vec![2], false),
        (vec![90, 40], vec![0], false),
    ] {
        let arguments = [values(&mut rng, DType::BF16, &dims)];
        let graph = trace(&arguments, |_, x| {
            // Something else reads what is summed, too.
            let rows = x[0].convert(DType::F32)?;
            Ok(vec![rows.sum(&summed)?, rows.exp()?])
        })
        .unwrap();
        let found = calls(&graph, kernels);
        let taken = found.iter().any(is_matmul);
        assert_eq!(taken, is_call, "{dims:?} {summed:?}");
        let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
        let want = compile_for(&graph, Target::CPU).run(&arguments);
        for (got, want) in got.iter().zip(&want) {
            assert_close(&got.numbers(), &want.numbers(), 1e-4);
        }
    }
}

/// Sums of matmuls, in f32: one after the other adds to the first product.
#[test]
fn the_sum_of_matmuls_is_one_array() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    let mut rng = Rng(33);
    let arguments: Vec<Value> = [[150, 80], [80, 190], [150, 900], [900, 190]]
        .iter()
        .map(|dims| values(&mut rng, DType::F32, dims))
        .collect();
    let turned = |x: Tensor| x.transpose(&[1, 0]);
    let sum = |x: &[Tensor], turn: &dyn Fn(Tensor) -> xtrain_graphs::Result<Tensor>| {
        let [a, b, c, d] = x else { unreachable!() };
        turn(a.matmul(b)?)?.add(&turn(c.matmul(d)?)?)
    };
    for turn in [&turned as &dyn Fn(Tensor) -> _, &Ok] {
        let graph = trace(&arguments, |_, x| Ok(vec![sum(x, turn)?])).unwrap();
        let calls = calls(&graph, kernels);
        let starts = calls
            .iter()
            .map(|op| op.call::<KernelMatmul>().unwrap().start);
        let wanted = [MatmulStart::Zero, MatmulStart::Result];
        assert_eq!(starts.collect::<Vec<MatmulStart>>(), wanted);
        let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
        let want = compile_for(&graph, Target::CPU).run(&arguments);
        assert_close(&got[0].numbers(), &want[0].numbers(), 1e-4);
    }
}

/// The kernels alone: f64 references over generated shapes, special numbers, the same bits with 1 to
/// 8 threads, no write outside of the result. AMX's tiles are emulated besides, so that its kernel is
/// tested on processors without them.
#[test]
fn kernels_alone_are_right_for_any_shape_and_number_of_threads() {
    test_alone("kernels", &[], ["80", "150"]);
}

/// The same for shapes as training has them.
#[test]
#[ignore = "slow: up to 3,000 a side and 30,000 along k; bin/test --slow -- kernels_alone"]
fn kernels_alone_are_right_for_large_shapes() {
    test_alone("kernels-large", &[], ["12", "3000"]);
}

/// The same under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer.
#[test]
#[ignore = "slow: compiles the kernels twice more; bin/test --slow -- kernels_alone"]
fn kernels_alone_are_clean_under_sanitizers() {
    test_alone(
        "kernels-address",
        &[
            "-g",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover",
        ],
        ["40", "120"],
    );
    test_alone(
        "kernels-thread",
        &["-g", "-fsanitize=thread"],
        ["40", "120"],
    );
}

/// Runs the harness, compiled with `flags` into a folder of this name, over `[cases, side]`.
fn test_alone(folder: &str, flags: &[&str], generated: [&str; 2]) {
    if target().is_none() {
        return;
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&dir).unwrap();
    let build = Command::new("bash")
        .arg(sources.join("tests/kernels/build.sh"))
        .arg(&dir)
        .args(flags)
        .env("CXX", env!("XTRAIN_CXX"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&build.stderr);
    assert!(build.status.success(), "{errors}");
    let harness = Command::new(dir.join("harness"))
        .arg("test")
        .args(generated)
        .output()
        .unwrap();
    let (text, errors) = (&harness.stdout, &harness.stderr);
    assert!(
        harness.status.success(),
        "{}{}",
        String::from_utf8_lossy(text),
        String::from_utf8_lossy(errors)
    );
}

/// XLA's time over the kernels' for 200 shapes, as a table of geometric means and the shapes that lose
/// most. Times are for people: only the results' agreement is asserted, elsewhere.
#[test]
#[ignore = "slow: measures 200 shapes; bin/test --slow -- sweep_of_shapes --nocapture"]
fn sweep_of_shapes() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    let mut rng = Rng(200);
    let plain = [0, 1, 2, 3];
    // Of (p, q, m, k): k before m; heads inside of rows, as attention has them.
    let (turned, heads) = ([0, 1, 3, 2], [0, 2, 1, 3]);
    let mut cases = vec![
        (
            [1, 1, 64, 257_000, 64],
            [plain, turned, plain],
            "vocabulary",
        ),
        (
            [1, 1, 512, 50_257, 768],
            [plain, turned, plain],
            "vocabulary",
        ),
        (
            [1, 1, 50_257, 768, 512],
            [turned, plain, plain],
            "vocabulary",
        ),
        ([1, 1, 1, 4096, 1024], [plain, plain, plain], "one row"),
        ([2, 17, 128, 128, 40], [heads, turned, plain], "heads"),
    ];
    while cases.len() < 200 {
        let mut log = |most: f64| rng.float(4f64.ln(), most.ln()).exp() as usize;
        let [m, n, k, q] = [log(3000.0), log(3000.0), log(3000.0), log(48.0)];
        let orders = [0; 3].map(|_| rng.bool(0.5));
        let order = |is_turned: bool| if is_turned { turned } else { plain };
        cases.push(match cases.len() % 3 {
            0 => (
                [2, q, m.min(512), n.min(512), k.min(128)],
                [heads, if orders[0] { heads } else { turned }, plain],
                "heads",
            ),
            _ => (
                [1, 1, m, n, k],
                [order(orders[0]), order(orders[1]), order(orders[2])],
                match (orders[0], orders[1], orders[2]) {
                    (false, false, false) => "plain",
                    _ => "transposed",
                },
            ),
        });
    }
    let mut lines: Vec<(f64, String)> = Vec::new();
    for (sizes, orders, class) in cases {
        let case = Case { sizes, orders };
        let [a, b] = case.operands();
        for (name, low, stored) in [
            ("f32", DType::F32, DType::F32),
            ("bf16", DType::BF16, DType::BF16),
            ("bf16 of f32", DType::BF16, DType::F32),
        ] {
            let arguments = [values(&mut rng, stored, &a), values(&mut rng, stored, &b)];
            let graph = trace(&arguments, |_, x| Ok(vec![case.record(x, low, low)?])).unwrap();
            if !calls(&graph, kernels).iter().any(is_matmul) {
                continue;
            }
            let programs = [Target::CPU, Target::Cpu(kernels)].map(|to| compile_for(&graph, to));
            let once = programs[1].seconds(&arguments, 2);
            let runs = (0.02 / once.max(1e-5)).clamp(3.0, 100.0) as usize;
            let mut least = [f64::INFINITY; 2];
            for _ in 0..3 {
                for (program, least) in programs.iter().zip(&mut least) {
                    *least = least.min(program.seconds(&arguments, runs));
                }
            }
            let line = format!("{name} {class} {sizes:?} {orders:?}");
            lines.push((least[0] / least[1], line));
        }
    }
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (ratio, line) in &lines {
        println!("{ratio:6.2} {line}");
    }
    for name in ["f32", "bf16", "bf16 of f32"] {
        for class in ["plain", "transposed", "heads", "vocabulary"] {
            let prefix = format!("{name} {class}");
            let of_class = lines.iter().filter(|line| line.1.starts_with(&prefix));
            let logs: Vec<f64> = of_class.map(|line| line.0.ln()).collect();
            if logs.is_empty() {
                println!("{prefix}: none taken");
                continue;
            }
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            println!("{prefix}: {mean:.2} of {}", logs.len());
        }
    }
}

/// An attention and the sizes B, H, K, T, S, D that it is over.
fn attentions() -> Vec<(Attention, [usize; 6])> {
    let plain = Attention {
        scale: F64::new(0.3),
        causal: false,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    let causal = Attention {
        causal: true,
        ..plain
    };
    let masked = Attention {
        key_mask: KeyMask::Keys,
        ..plain
    };
    let dropping = Some(AttentionDropout::by_mask(0.2));
    let packed = Attention {
        key_mask: KeyMask::Before,
        ..causal
    };
    vec![
        (packed, [2, 4, 2, 130, 130, 64]),
        (plain, [2, 3, 3, 33, 47, 20]),
        (causal, [1, 4, 2, 130, 130, 64]),
        (masked, [3, 2, 1, 40, 40, 8]),
        (
            Attention {
                dropout: dropping,
                ..causal
            },
            [2, 2, 2, 70, 70, 16],
        ),
        (
            Attention {
                dropout: dropping,
                causal: true,
                window: Some(9),
                ..masked
            },
            [2, 4, 1, 61, 61, 33],
        ),
        (
            Attention {
                window: Some(5),
                soft_cap: Some(F64::new(2.0)),
                ..plain
            },
            [1, 2, 2, 100, 100, 24],
        ),
        (
            Attention {
                window: Some(11),
                dropout: dropping,
                soft_cap: Some(F64::new(2.0)),
                ..packed
            },
            [3, 2, 2, 201, 201, 24],
        ),
    ]
}

/// Output and gradients of an attention over heads side by side in one array, as GPT-2's projection
/// leaves them, where sizes allow that; else over three arrays.
fn attention_graph(
    of: Attention,
    sizes: [usize; 6],
    x: &[Tensor],
) -> xtrain_graphs::Result<Vec<Tensor>> {
    let [b, h, kv_heads, t, s, d] = sizes;
    let split = |x: &Tensor, heads: usize, rows: usize| {
        x.reshape(&[b, rows, heads, d])?.transpose(&[0, 2, 1, 3])
    };
    let (q, k, v) = match &x[..x.len() - 2] {
        [all] => {
            let part = |i: usize| split(&all.slice_dim(1, i * h * d, (i + 1) * h * d)?, h, t);
            (part(0)?, part(1)?, part(2)?)
        }
        [q, k, v] => (
            split(q, h, t)?,
            split(k, kv_heads, s)?,
            split(v, kv_heads, s)?,
        ),
        _ => unreachable!(),
    };
    let [mask, key] = &x[x.len() - 2..] else {
        unreachable!()
    };
    let rate = of.dropout.map_or(0.0, |dropout| dropout.rate.get());
    let (dropout, key) = DropoutRng::keyed(key.clone()).of_attention(rate).unzip();
    let of = Attention { dropout, ..of };
    let out = q.attention(
        &k,
        &v,
        of.key_mask.is_some().then_some(mask),
        key.as_ref(),
        of,
    )?;
    let weights = q.trace().iota(DType::F32, &[d], 0)?.cos()?;
    let loss = out.convert(DType::F32)?.mul(&weights)?.sum_all()?;
    let mut results = vec![out.convert(DType::F32)?];
    for grad in backward(&loss, &x[..x.len() - 2])? {
        results.push(grad.convert(DType::F32)?);
    }
    Ok(results)
}

/// Attention and its gradients by one call each are those of the operations that define it: every
/// mask, heads that share keys, dropout with the same mask, rows that see no key.
#[test]
fn attention_by_a_call_is_attention() {
    let Some(kernels) = target() else { return };
    xtrain_xla::register_kernels();
    let mut rng = Rng(23);
    for (case, (of, sizes)) in attentions().into_iter().enumerate() {
        let [b, h, kv_heads, t, s, d] = sizes;
        for (kernel, dtype) in [(kernels.f32, DType::F32), (kernels.bf16, DType::BF16)] {
            if kernel.and_then(CpuKernel::of_attention).is_none() {
                continue;
            }
            let mut arguments: Vec<Value> = if h == kv_heads && t == s {
                vec![values(&mut rng, dtype, &[b * t, 3 * h * d])]
            } else {
                let kv = [b * s, kv_heads * d];
                [[b * t, h * d], kv, kv]
                    .map(|dims| values(&mut rng, dtype, &dims))
                    .into()
            };
            // The first keys of each row do not count: with a causal mask some queries see none.
            let mask: Vec<f64> = (0..b * s).map(|i| f64::from(i % s > 2 + i / s)).collect();
            arguments.push(match of.key_mask {
                // Examples of 7 tokens, and one of many.
                KeyMask::Before => {
                    let start = |i: usize| if i % s < s / 2 { i % s / 7 * 7 } else { s / 2 };
                    let starts: Vec<f64> = (0..b * s).map(|i| start(i) as f64).collect();
                    Value::new(DType::S32, &[b, s], &starts)
                }
                _ => Value::new(DType::Pred, &[b, s], &mask),
            });
            // A shard whose first element no index of 32 bits would tell from the first of all.
            let shard = f64::from(1u32 << 30);
            arguments.push(match case % 2 {
                0 => Value::new(DType::U32, &[2], &[7.0, 3.0]),
                _ => Value::new(DType::U32, &[3], &[7.0, 3.0, shard]),
            });
            let graph = trace(&arguments, |_, x| attention_graph(of, sizes, x)).unwrap();
            let lowered = passes::lower(&graph, Target::Cpu(kernels)).unwrap();
            let calls = |is: fn(&Op) -> bool| lowered.nodes.iter().filter(|n| is(&n.op)).count();
            assert_eq!(
                calls(|op| op.call::<KernelAttention>().is_some()),
                2,
                "{of:?}"
            );
            assert_eq!(calls(|op| matches!(op, Op::Dot { .. }) || is_matmul(op)), 0);
            // The gradients of columns of one array are written there.
            assert_eq!(calls(|op| matches!(op, Op::Pad { .. })), 0);
            let got = compile_for(&graph, Target::Cpu(kernels)).run(&arguments);
            let want = compile_for(&graph, Target::CPU).run(&arguments);
            let tolerance = if dtype == DType::BF16 { 3e-2 } else { 2e-5 };
            for (got, want) in got.iter().zip(&want) {
                let most = want
                    .numbers()
                    .iter()
                    .fold(0.1f64, |most, x| most.max(x.abs()));
                let scaled = |value: &Value| -> Vec<f64> {
                    value.numbers().iter().map(|x| x / most).collect()
                };
                assert_close(&scaled(got), &scaled(want), tolerance);
            }
        }
    }
}
