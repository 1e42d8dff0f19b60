//! Every gradient rule against central finite differences in f64 on the CPU.
//!
//! A case draws shapes, attributes and arguments from a seed (ranks and sizes differ, sizes of 1
//! included) and gives a function of tensors. The loss is the sum of the result times fixed random
//! weights; its derivative by every element of every float argument is compared with the five-point
//! stencil. `cases.rs` is the table of cases; the table here says which operands of which operation
//! have a gradient, and the test fails for one that no case reaches. A new operation does not
//! compile here until it has a row.

#[path = "gradients/cases.rs"]
mod cases;
mod support;

use cases::{Argument, Sample};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use support::{Rng, Value, compile};
use xtrain_graphs::op::{Binary, Composite, Norm, NormKind, Op, Reduction, Unary};
use xtrain_graphs::{DType, Error, Graph, InputRole, Shape, Tensor, Trace, backward};

/// Seeds per case: each draws other shapes and attributes.
const SEEDS: u64 = 6;
/// The stencil's step: a power of two, so that arguments on a grid stay exact in f32.
const STEP: f64 = 1.0 / 1024.0;
/// Bound on |gradient - difference| relative to max(1, |difference|). The stencil's own errors are
/// STEP^4 f'''''/30 (3e-14 times the fifth derivative, which reaches a few thousand in the domains
/// used) and rounding of the loss over STEP (1e-12 or so).
const TOLERANCE: f64 = 2e-9;

macro_rules! gradient_table {
    ($($pattern:pat => $operands:expr;)*) => {
        /// Each operation with the operands that it has a gradient for.
        const TABLE: &[(&str, &[usize])] = &[$((stringify!($pattern), &$operands)),*];

        /// The table's row for an operation; does not compile when an operation has none.
        fn row(op: &Op) -> usize {
            match op { $($pattern => {})* }
            [$(matches!(op, $pattern)),*].iter().position(|&hit| hit).expect("the match above is exhaustive")
        }
    };
}

gradient_table! {
    Op::Input(_) | Op::Constant { .. } | Op::Iota { .. } | Op::Compare(_) | Op::Composite(Composite::RandomBits { .. }) => [];
    Op::Unary(Unary::Neg) => [0];
    Op::Unary(Unary::Exp) => [0];
    Op::Unary(Unary::Log) => [0];
    Op::Unary(Unary::Log1p) => [0];
    Op::Unary(Unary::Tanh) => [0];
    Op::Unary(Unary::Sqrt) => [0];
    Op::Unary(Unary::Rsqrt) => [0];
    Op::Unary(Unary::Erf) => [0];
    Op::Unary(Unary::Logistic) => [0];
    Op::Unary(Unary::Sin) => [0];
    Op::Unary(Unary::Cos) => [0];
    Op::Unary(Unary::Abs) => [0];
    Op::Unary(Unary::Sign) => [0];
    Op::Unary(Unary::Floor) => [0];
    Op::Unary(Unary::Not) | Op::Unary(Unary::IsFinite) => [];
    Op::Binary(Binary::Add) => [0, 1];
    Op::Binary(Binary::Sub) => [0, 1];
    Op::Binary(Binary::Mul) => [0, 1];
    Op::Binary(Binary::Div) => [0, 1];
    Op::Binary(Binary::Max) => [0, 1];
    Op::Binary(Binary::Min) => [0, 1];
    Op::Binary(Binary::Pow) => [0, 1];
    // Refused by `backward`, which the test below checks.
    Op::Binary(Binary::Rem) => [];
    Op::Binary(Binary::And) | Op::Binary(Binary::Or) | Op::Binary(Binary::Xor) => [];
    Op::Binary(Binary::ShiftLeft) | Op::Binary(Binary::ShiftRightLogical) => [];
    Op::Select => [1, 2];
    Op::Convert(_) => [0];
    Op::Bitcast(_) => [];
    Op::Reshape(_) => [0];
    Op::Broadcast { .. } => [0];
    Op::Transpose(_) => [0];
    Op::Slice { .. } => [0];
    Op::Concat { .. } => [0, 1, 2];
    Op::Pad { .. } => [0];
    Op::Reduce { kind: Reduction::Sum, .. } => [0];
    Op::Reduce { kind: Reduction::Max, .. } => [0];
    Op::Reduce { kind: Reduction::Min, .. } => [0];
    Op::Dot { .. } => [0, 1];
    Op::TakeRows => [0];
    Op::ScatterAddRows => [0, 2];
    Op::Barrier => [0];
    // The identity, which the CPU's compiler does not take.
    Op::ToHost | Op::ToDevice => [];
    Op::AllReduce(_) => [0];
    Op::AllGather { .. } => [0];
    Op::ReduceScatter { .. } => [0];
    // Beside updates and in generation only, never under a gradient.
    Op::AllReduceMax(_) | Op::DynamicSlice { .. } | Op::DynamicUpdateSlice { .. } => [];
    Op::BarrierAfter => [0];
    Op::Composite(Composite::Norm(Norm { kind: NormKind::Layer, .. })) => [0, 1, 2];
    Op::Composite(Composite::Norm(Norm { kind: NormKind::Rms, .. })) => [0, 1];
    Op::Composite(Composite::Gelu(xtrain_graphs::op::Gelu::Erf)) => [0];
    Op::Composite(Composite::Gelu(xtrain_graphs::op::Gelu::Tanh)) => [0];
    Op::Composite(Composite::CrossEntropy { .. }) => [0];
    Op::Composite(Composite::Attention(_)) => [0, 1, 2];
    // Gradients themselves: compared through the operation that they belong to; no second
    // derivatives.
    Op::Composite(Composite::NormGrad { .. }) | Op::Composite(Composite::GeluGrad(_)) => [];
    Op::Composite(Composite::CrossEntropyGrad { .. }) | Op::Composite(Composite::AttentionGrad { .. }) => [];
    // Differs from finite differences by design; `a_stopped_gradient_is_the_identity_forwards` has
    // it.
    Op::Composite(Composite::StopGradient) => [];
    // Of weights that are not trained.
    Op::Composite(Composite::Dequantize(_)) => [];
    // Put on gradients, which are not differentiated.
    Op::Composite(Composite::MasterGradient) => [];
    // A target's own, which passes put there after gradients are taken.
    Op::Call(_) | Op::GetTupleElement { .. } => [];
    Op::PassStep(_) | Op::Composite(Composite::BlockCodes(_)) => [];
}

/// What all cases together have reached and found.
#[derive(Default)]
struct Report {
    /// (row, operand) pairs that a float argument flows through.
    covered: BTreeSet<(usize, usize)>,
    elements: usize,
    /// Case name to the largest error relative to max(1, |difference|).
    worst: BTreeMap<&'static str, f64>,
    failures: Vec<String>,
}

#[test]
fn gradients_agree_with_finite_differences() {
    let cases = cases::cases();
    let report = Mutex::new(Report::default());
    let next = std::sync::atomic::AtomicUsize::new(0);
    // Two threads: compiling is most of the time.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, draw)) =
                    cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    for seed in 0..SEEDS {
                        let mut rng = Rng(seed + 1);
                        let sample = draw(&mut rng);
                        check(name, seed, sample, &mut rng, &report);
                    }
                }
            });
        }
    });
    let report = report.into_inner().unwrap();
    let largest = report
        .worst
        .iter()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .unwrap();
    println!(
        "{} cases x {SEEDS} seeds, {} derivatives; largest error {:.1e} ({})",
        cases.len(),
        report.elements,
        largest.1,
        largest.0
    );
    assert!(
        report.failures.is_empty(),
        "{} failures:\n{}",
        report.failures.len(),
        report.failures.join("\n")
    );
    for (index, (pattern, operands)) in TABLE.iter().enumerate() {
        for operand in *operands {
            assert!(
                report.covered.contains(&(index, *operand)),
                "no case differentiates operand {operand} of {pattern}"
            );
        }
    }
}

fn check(name: &'static str, seed: u64, sample: Sample, rng: &mut Rng, report: &Mutex<Report>) {
    let label = || {
        format!(
            "{name}, seed {seed}, {}",
            sample
                .arguments
                .iter()
                .map(Argument::describe)
                .collect::<Vec<_>>()
                .join(" ")
        )
    };
    let mut arguments: Vec<Value> = sample.arguments.iter().map(|a| a.draw(rng)).collect();
    let real: Vec<usize> = (0..arguments.len())
        .filter(|&i| arguments[i].shape.dtype == DType::F64)
        .collect();
    let graphs = record(&arguments, &real, &sample, rng);
    let (forward, graph, weights) = graphs.unwrap_or_else(|e| panic!("{}: {e}", label()));
    let covered = coverage(&forward, &real);
    arguments.push(weights);
    let program = compile(&graph);
    let results = program.run(&arguments);
    let loss_at = |arguments: &[Value]| program.run(arguments)[0].numbers()[0];
    let (mut failures, mut worst, mut elements) = (Vec::new(), 0f64, 0);
    for (which, &argument) in real.iter().enumerate() {
        let gradient = results[1 + which].numbers();
        let values = arguments[argument].numbers();
        for (i, &x) in values.iter().enumerate() {
            let mut moved = |steps: f64| {
                arguments[argument].set(i, x + steps * STEP);
                loss_at(&arguments)
            };
            let difference =
                (8.0 * (moved(1.0) - moved(-1.0)) - (moved(2.0) - moved(-2.0))) / (12.0 * STEP);
            arguments[argument].set(i, x);
            let error = (gradient[i] - difference).abs() / difference.abs().max(1.0);
            worst = worst.max(error);
            elements += 1;
            // Written so that a NaN fails.
            if !matches!(
                error.partial_cmp(&TOLERANCE),
                Some(std::cmp::Ordering::Less)
            ) {
                failures.push(format!(
                    "{}: argument {argument}[{i}] = {x}: {} but {difference}",
                    label(),
                    gradient[i]
                ));
            }
        }
    }
    let mut report = report.lock().unwrap();
    report.covered.extend(covered);
    report.elements += elements;
    report.failures.extend(failures.into_iter().take(3));
    let entry = report.worst.entry(name).or_default();
    *entry = entry.max(worst);
}

/// The forward graph, the graph of loss and gradients, and the weights that are its last argument.
fn record(
    arguments: &[Value],
    real: &[usize],
    sample: &Sample,
    rng: &mut Rng,
) -> xtrain_graphs::Result<(Graph, Graph, Value)> {
    let inputs = |trace: &Trace| -> Vec<Tensor> {
        let declare = |(i, a): (usize, &Value)| {
            trace.input(format!("in{i}"), a.shape.clone(), InputRole::Feed)
        };
        arguments.iter().enumerate().map(declare).collect()
    };
    let trace = Trace::new();
    trace.output("result", &(sample.function)(&inputs(&trace))?);
    let forward = trace.finish("forward")?;

    let trace = Trace::new();
    let tensors = inputs(&trace);
    let result = (sample.function)(&tensors)?;
    assert_eq!(result.dtype(), DType::F64);
    // Multiples of 1/256: exact in f32, which a conversion's gradient passes through.
    let numbers: Vec<f64> = (0..result.shape().elements())
        .map(|_| rng.float(-512.0, 512.0).round() / 256.0)
        .collect();
    let weights = Value::new(DType::F64, result.dims(), &numbers);
    let weight_input = trace.input(
        "weights",
        Shape::new(DType::F64, result.dims()),
        InputRole::Feed,
    );
    let loss = result.mul(&weight_input)?.sum_all()?;
    let parameters: Vec<Tensor> = real.iter().map(|&i| tensors[i].clone()).collect();
    let gradients = backward(&loss, &parameters)?;
    trace.output("loss", &loss);
    for (i, gradient) in gradients.iter().enumerate() {
        trace.output(format!("gradient{i}"), gradient);
    }
    Ok((forward, trace.finish("gradients")?, weights))
}

/// The (row, operand) pairs of a forward graph that carry a float argument's value as floats.
fn coverage(graph: &Graph, real: &[usize]) -> BTreeSet<(usize, usize)> {
    let mut carries = vec![false; graph.nodes.len()];
    let mut covered = BTreeSet::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        carries[id] = match node.op {
            Op::Input(index) => real.contains(&(index as usize)),
            _ => node.shape.dtype.is_float() && node.operands.iter().any(|&o| carries[o as usize]),
        };
        if carries[id] {
            let through = node
                .operands
                .iter()
                .enumerate()
                .filter(|&(_, &o)| carries[o as usize]);
            covered.extend(through.map(|(operand, _)| (row(&node.op), operand)));
        }
    }
    covered
}

#[test]
fn an_operation_without_a_rule_is_named() {
    let trace = Trace::new();
    let x = trace.input("x", Shape::new(DType::F64, [2]), InputRole::Feed);
    let _scope = trace.scope("h.0");
    let loss = x
        .rem(&x.mul_scalar(2.0).unwrap())
        .unwrap()
        .sum_all()
        .unwrap();
    let error = backward(&loss, &[x]).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::NoGradient { .. }), "{message}");
    assert!(
        message.contains("rem in h.0") && message.contains("gradients.rs"),
        "{message}"
    );
}

#[test]
fn an_unused_parameter_has_a_zero_gradient() {
    let arguments = [
        Value::new(DType::F64, &[2], &[1.0, 2.0]),
        Value::new(DType::F64, &[3], &[1.0; 3]),
    ];
    let results = support::evaluate(&arguments, |_, x| {
        let loss = x[0].mul(&x[0])?.sum_all()?;
        backward(&loss, &[x[1].clone(), x[0].clone(), loss.clone()])
    });
    assert_eq!(results[0].numbers(), [0.0; 3]);
    assert_eq!(results[1].numbers(), [2.0, 4.0]);
    assert_eq!(results[2].numbers(), [1.0]);
}

#[test]
fn integer_paths_carry_no_gradient() {
    let arguments = [Value::new(DType::F64, &[2], &[1.5, 2.5])];
    let results = support::evaluate(&arguments, |_, x| {
        let through_integers = x[0].convert(DType::S32)?.convert(DType::F64)?;
        backward(&x[0].mul(&through_integers)?.sum_all()?, &[x[0].clone()])
    });
    assert_eq!(results[0].numbers(), [1.0, 2.0]);
}

#[test]
fn a_stopped_gradient_is_the_identity_forwards() {
    let arguments = [Value::new(DType::F64, &[2], &[1.5, 2.5])];
    let results = support::evaluate(&arguments, |_, x| {
        let loss = x[0].mul(&x[0].stop_gradient()?)?.sum_all()?;
        Ok([vec![loss.clone()], backward(&loss, &[x[0].clone()])?].concat())
    });
    assert_eq!(results[0].numbers(), [8.5]);
    assert_eq!(results[1].numbers(), [1.5, 2.5]);
}
