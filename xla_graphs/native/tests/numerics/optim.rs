//! Optimizer steps and clipping against scalar f64, several steps in a row with the state carried
//! over.

use crate::support::{Rng, Value, assert_close, compile};
use xtrain_graphs::optim::{
    ADAFACTOR, ADAGRAD, ADAMW, Argument, Arguments, Hyperparameters, LAMB, LION, MUON, OPTIMIZERS,
    Optimizer, OptimizerKind, ParameterInfo, RMSPROP, SGD, StepScalars, Update, clip_factor,
    global_norm, step_feed,
};
use xtrain_graphs::{DType, Graph, InputRole, Shape, Trace};

const N: usize = 5;

fn vector(numbers: &[f64]) -> Value {
    Value::new(DType::F32, &[numbers.len()], numbers)
}

const HYPER: Hyperparameters = Hyperparameters {
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
};

/// Of a hidden matrix, or a vector.
fn info(dims: &[usize]) -> ParameterInfo<'_> {
    ParameterInfo {
        dims,
        is_hidden_matrix: dims.len() == 2,
        is_embedding: false,
    }
}

fn arguments(given: &[(&str, Argument)]) -> Arguments {
    let owned = given.iter().map(|(name, x)| (name.to_string(), x.clone()));
    owned.collect()
}

/// One step of a parameter of these sizes: takes the parameter, its state, the gradient and the
/// feed; gives the parameter and its state.
fn step_graph(optimizer: &dyn Optimizer, dims: &[usize], weight_decay: f64) -> Graph {
    let trace = Trace::new();
    let tensor =
        |name: &str, dims: &[usize], role| trace.input(name, Shape::new(DType::F32, dims), role);
    let parameter = tensor("w", dims, InputRole::State);
    let specs = optimizer.state(info(dims));
    let state = specs
        .iter()
        .map(|spec| tensor(spec.name, &spec.dims, InputRole::State));
    let state: Vec<_> = state.collect();
    let gradient = tensor("grad", dims, InputRole::Feed);
    let scalars = step_feed(optimizer, 0.0, 1).len();
    let scalars = StepScalars::of(&tensor("optimizer", &[scalars], InputRole::Feed)).unwrap();
    let new = optimizer
        .update(&Update {
            scalars: &scalars,
            info: info(dims),
            shard: None,
            parameter: &parameter,
            gradient: &gradient,
            scale: &trace.constant(1.0, DType::F32).unwrap(),
            state: &state,
            weight_decay,
        })
        .unwrap();
    trace.output("w", &new.parameter);
    for (spec, new) in specs.iter().zip(&new.state) {
        trace.output(spec.name, new);
    }
    trace.finish("step").unwrap()
}

/// Twenty steps beside `formula`, which updates an element and its state from the gradient, the
/// learning rate, the decay and the 1-based step, in f64.
fn assert_follows(
    kind: OptimizerKind,
    given: &[(&str, Argument)],
    formula: impl Fn(&mut f64, &mut [f64], f64, f64, f64, i32),
) {
    let optimizer = kind.with(&HYPER, &arguments(given)).unwrap();
    let count = optimizer.state(info(&[N])).len();
    for decay in [0.1, 0.0] {
        let program = compile(&step_graph(&*optimizer, &[N], decay));
        let mut rng = Rng(4);
        let mut weights = rng.floats(N, -1.0, 1.0);
        let mut states = vec![vec![0.0; count]; N];
        let mut found = vec![vector(&weights)];
        found.extend((0..count).map(|_| vector(&[0.0; N])));
        for k in 1..=20 {
            let learning_rate = 0.01 * f64::from(k);
            let grad = rng.floats(N, -2.0, 2.0);
            let feed = step_feed(&*optimizer, learning_rate, k as u64);
            let feed: Vec<f64> = feed.into_iter().map(f64::from).collect();
            found.extend([vector(&grad), vector(&feed)]);
            found = program.run(&found);
            for i in 0..N {
                let g = f64::from(grad[i] as f32);
                formula(&mut weights[i], &mut states[i], g, learning_rate, decay, k);
            }
            // Rounding of k steps in f32.
            assert_close(&found[0].numbers(), &weights, 1e-6 * f64::from(k));
            for index in 0..count {
                let expected: Vec<f64> = states.iter().map(|state| state[index]).collect();
                // Coupled decay brings the weights' rounding in.
                assert_close(&found[1 + index].numbers(), &expected, 1e-5);
            }
        }
    }
}

#[test]
fn adamw_follows_the_scalar_formula() {
    let Hyperparameters { beta1, beta2, eps } = HYPER;
    assert_follows(ADAMW, &[], |w, state, g, lr, decay, k| {
        state[0] = beta1 * state[0] + (1.0 - beta1) * g;
        state[1] = beta2 * state[1] + (1.0 - beta2) * g * g;
        *w -= lr * decay * *w;
        let m_hat = state[0] / (1.0 - beta1.powi(k));
        let v_hat = state[1] / (1.0 - beta2.powi(k));
        *w -= lr * m_hat / (v_hat.sqrt() + eps);
    });
}

#[test]
fn sgd_follows_the_scalar_formula() {
    assert_follows(SGD, &[], |w, _, g, lr, decay, _| {
        *w -= lr * (g + decay * *w)
    });
}

#[test]
fn sgd_with_momentum_follows_the_scalar_formula() {
    use Argument::{Bool, Number};
    let nesterov = [("momentum", Number(0.9)), ("nesterov", Bool(true))];
    assert_follows(SGD, &nesterov, |w, state, g, lr, decay, _| {
        let g = g + decay * *w;
        state[0] = 0.9 * state[0] + g;
        *w -= lr * (g + 0.9 * state[0]);
    });
    let dampened = [("momentum", Number(0.8)), ("dampening", Number(0.3))];
    assert_follows(SGD, &dampened, |w, state, g, lr, decay, k| {
        let g = g + decay * *w;
        state[0] = match k {
            1 => g,
            _ => 0.8 * state[0] + 0.7 * g,
        };
        *w -= lr * state[0];
    });
}

#[test]
fn adagrad_follows_the_scalar_formula() {
    for slower in [0.0, 0.1] {
        let given = [("lr_decay", Argument::Number(slower))];
        assert_follows(ADAGRAD, &given, |w, state, g, lr, decay, k| {
            let g = g + decay * *w;
            state[0] += g * g;
            *w -= lr / (1.0 + f64::from(k - 1) * slower) * g / (state[0].sqrt() + 1e-10);
        });
    }
}

#[test]
fn rmsprop_follows_the_scalar_formula() {
    use Argument::{Bool, Number};
    assert_follows(RMSPROP, &[], |w, state, g, lr, decay, _| {
        let g = g + decay * *w;
        state[0] = 0.99 * state[0] + 0.01 * g * g;
        *w -= lr * g / (state[0].sqrt() + 1e-8);
    });
    let given = [
        ("alpha", Number(0.9)),
        ("eps", Number(1e-3)),
        ("momentum", Number(0.5)),
        ("centered", Bool(true)),
    ];
    assert_follows(RMSPROP, &given, |w, state, g, lr, decay, _| {
        let g = g + decay * *w;
        state[0] = 0.9 * state[0] + 0.1 * g * g;
        state[1] += 0.1 * (g - state[1]);
        let variance = state[0] - state[1] * state[1];
        state[2] = 0.5 * state[2] + g / (variance.sqrt() + 1e-3);
        *w -= lr * state[2];
    });
}

/// Twenty steps of a parameter beside `formula`, which updates all of it and its state.
fn assert_follows_whole(
    kind: OptimizerKind,
    dims: &[usize],
    tolerance: f64,
    formula: impl Fn(&mut [f64], &mut [Vec<f64>], &[f64], f64, f64, i32),
) {
    let optimizer = kind.build(&HYPER);
    let specs = optimizer.state(info(dims));
    let n: usize = dims.iter().product();
    for decay in [0.1, 0.0] {
        let program = compile(&step_graph(&*optimizer, dims, decay));
        let mut rng = Rng(4);
        let mut weights = rng.floats(n, -1.0, 1.0);
        let mut states: Vec<Vec<f64>> = specs
            .iter()
            .map(|spec| vec![0.0; spec.dims.iter().product()])
            .collect();
        let mut found = vec![Value::new(DType::F32, dims, &weights)];
        let zeros = specs.iter().zip(&states);
        found.extend(zeros.map(|(spec, zeros)| Value::new(DType::F32, &spec.dims, zeros)));
        for k in 1..=20 {
            let learning_rate = 0.003 * f64::from(k);
            let grad = rng.floats(n, -2.0, 2.0);
            let feed = step_feed(&*optimizer, learning_rate, k as u64);
            let feed: Vec<f64> = feed.into_iter().map(f64::from).collect();
            found.extend([Value::new(DType::F32, dims, &grad), vector(&feed)]);
            found = program.run(&found);
            let grad: Vec<f64> = grad.iter().map(|g| f64::from(*g as f32)).collect();
            formula(&mut weights, &mut states, &grad, learning_rate, decay, k);
            assert_close(&found[0].numbers(), &weights, tolerance * f64::from(k));
            for (found, expected) in found[1..].iter().zip(&states) {
                assert_close(&found.numbers(), expected, 1e-5);
            }
        }
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn lamb_follows_the_formula() {
    let Hyperparameters { beta1, beta2, .. } = HYPER;
    for dims in [&[5][..], &[3, 4]] {
        assert_follows_whole(LAMB, dims, 1e-5, |w, state, g, lr, decay, k| {
            let mut step_of = |i: usize| {
                state[0][i] = beta1 * state[0][i] + (1.0 - beta1) * g[i];
                state[1][i] = beta2 * state[1][i] + (1.0 - beta2) * g[i] * g[i];
                let m_hat = state[0][i] / (1.0 - beta1.powi(k));
                let v_hat = state[1][i] / (1.0 - beta2.powi(k));
                m_hat / (v_hat.sqrt() + 1e-6) + decay * w[i]
            };
            let step: Vec<f64> = (0..g.len()).map(&mut step_of).collect();
            let trust = norm(w) / norm(&step);
            w.iter_mut()
                .zip(&step)
                .for_each(|(w, r)| *w -= lr * trust * r);
        });
    }
}

#[test]
fn adafactor_follows_the_formula() {
    let clip = |u: &mut [f64]| {
        let size = norm(u) / (u.len() as f64).sqrt();
        u.iter_mut().for_each(|u| *u /= size.max(1.0));
    };
    assert_follows_whole(ADAFACTOR, &[5], 1e-6, |w, state, g, lr, decay, k| {
        let fresh = f64::from(k).powf(-0.8);
        let mut direction = |i: usize| {
            state[0][i] = (1.0 - fresh) * state[0][i] + fresh * (g[i] * g[i] + 1e-30);
            g[i] / state[0][i].sqrt()
        };
        let mut u: Vec<f64> = (0..g.len()).map(&mut direction).collect();
        clip(&mut u);
        let moved = w.iter_mut().zip(&u);
        moved.for_each(|(w, u)| *w = *w * (1.0 - lr * decay) - lr * u);
    });
    assert_follows_whole(ADAFACTOR, &[3, 4], 1e-6, |w, state, g, lr, decay, k| {
        let fresh = f64::from(k).powf(-0.8);
        let square = |i: usize, j: usize| g[4 * i + j] * g[4 * i + j] + 1e-30;
        for (i, row) in state[0].iter_mut().enumerate() {
            let mean = (0..4).map(|j| square(i, j)).sum::<f64>() / 4.0;
            *row = (1.0 - fresh) * *row + fresh * mean;
        }
        for (j, column) in state[1].iter_mut().enumerate() {
            let mean = (0..3).map(|i| square(i, j)).sum::<f64>() / 3.0;
            *column = (1.0 - fresh) * *column + fresh * mean;
        }
        let mean = state[0].iter().sum::<f64>() / 3.0;
        let at = |i: usize| g[i] / (state[0][i / 4] / mean * state[1][i % 4]).sqrt();
        let mut u: Vec<f64> = (0..12).map(at).collect();
        clip(&mut u);
        let moved = w.iter_mut().zip(&u);
        moved.for_each(|(w, u)| *w = *w * (1.0 - lr * decay) - lr * u);
    });
}

/// The product of two matrices, `a` with `n` columns.
fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let (rows, columns) = (a.len() / n, b.len() / n);
    let at = |i: usize, j: usize| (0..n).map(|k| a[i * n + k] * b[k * columns + j]).sum();
    (0..rows * columns)
        .map(|i| at(i / columns, i % columns))
        .collect()
}

fn transposed(a: &[f64], columns: usize) -> Vec<f64> {
    let rows = a.len() / columns;
    (0..a.len())
        .map(|i| a[i % rows * columns + i / rows])
        .collect()
}

/// What is multiplied is bf16 there and f64 here: three digits of each step.
#[test]
fn muon_follows_the_formula() {
    for dims in [[3, 4], [4, 3]] {
        let [rows, columns] = dims;
        assert_follows_whole(MUON, &dims, 1.5e-3, |w, state, g, lr, decay, _| {
            for (m, g) in state[0].iter_mut().zip(g) {
                *m += 0.05 * (g - *m);
            }
            let mut x: Vec<f64> = g
                .iter()
                .zip(&state[0])
                .map(|(g, m)| g + 0.95 * (m - g))
                .collect();
            let size = norm(&x);
            x.iter_mut().for_each(|x| *x /= size);
            for _ in 0..5 {
                let gram = product(&x, &transposed(&x, columns), columns);
                let square = product(&gram, &gram, rows);
                let polynomial: Vec<f64> = gram
                    .iter()
                    .zip(&square)
                    .map(|(a, b)| -4.7750 * a + 2.0315 * b)
                    .collect();
                let moved = product(&polynomial, &x, rows);
                x = x.iter().zip(&moved).map(|(x, y)| 3.4445 * x + y).collect();
            }
            let rate = lr * 0.2 * 2.0;
            let moved = w.iter_mut().zip(&x);
            moved.for_each(|(w, x)| *w = *w * (1.0 - lr * decay) - rate * x);
        });
    }
}

#[test]
fn muon_is_adamw_for_vectors() {
    let step = |kind: OptimizerKind| step_graph(&*kind.build(&HYPER), &[N], 0.1);
    assert_eq!(step(MUON).fingerprint(), step(ADAMW).fingerprint());
}

#[test]
fn lion_follows_the_scalar_formula() {
    let Hyperparameters { beta1, beta2, .. } = HYPER;
    assert_follows(LION, &[], |w, state, g, lr, decay, _| {
        let direction = beta1 * state[0] + (1.0 - beta1) * g;
        *w -= lr * decay * *w;
        *w -= lr * direction.signum();
        state[0] = beta2 * state[0] + (1.0 - beta2) * g;
    });
}

/// The scalars that the device derives from its count of steps are those that the host feeds.
#[test]
fn counters_give_the_fed_scalars() {
    let number = |name, x| arguments(&[(name, Argument::Number(x))]);
    let further = [
        (
            SGD,
            arguments(&[
                ("momentum", Argument::Number(0.9)),
                ("dampening", Argument::Number(0.5)),
            ]),
        ),
        (ADAGRAD, number("lr_decay", 0.1)),
    ];
    let usual = OPTIMIZERS.iter().map(|kind| (*kind, Arguments::default()));
    for (kind, given) in usual.chain(further) {
        let optimizer = kind.with(&HYPER, &given).unwrap();
        let count = optimizer.counters().len();
        if count == 0 {
            continue;
        }
        let mut counters = vec![Value::new(DType::F32, &[], &[0.0]); count];
        // Each step is compiled by itself.
        for k in 1..=5 {
            let mut arguments = counters.clone();
            arguments.push(Value::new(DType::F32, &[], &[0.01]));
            let got = crate::support::evaluate(&arguments, |_, x| {
                let next = optimizer.next_counters(&x[..count])?;
                let scalars = optimizer.counted_scalars(&x[count], &next)?;
                Ok([next, scalars].concat())
            });
            counters = got[..count].to_vec();
            let fed = optimizer.scalars(0.01, k);
            for (found, fed) in got[count..].iter().zip(&fed) {
                assert_close(&found.numbers(), &[*fed], 1e-6 * fed.abs());
            }
            assert_eq!(got.len(), count + fed.len());
        }
    }
}

#[test]
fn clipping_by_the_global_norm() {
    let arguments = [
        vector(&[3.0, 0.0]),
        Value::new(DType::F32, &[2, 2], &[0.0, 4.0, 12.0, 0.0]),
    ];
    let got = crate::support::evaluate(&arguments, |_, x| {
        let norm = global_norm(x)?;
        Ok(vec![
            norm.clone(),
            clip_factor(&norm, 1.0)?,
            clip_factor(&norm, 100.0)?,
        ])
    });
    assert_close(&got[0].numbers(), &[13.0], 1e-6);
    assert_close(&got[1].numbers(), &[1.0 / (13.0 + 1e-6)], 1e-6);
    assert_eq!(got[2].numbers(), [1.0]);
}
