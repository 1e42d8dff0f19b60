//! Optimizer steps and clipping against scalar f64, several steps in a row with the state carried
//! over.

use crate::support::{Rng, Value, assert_close, compile};
use xtrain_graphs::optim::{
    ADAMW, Hyperparameters, LION, OPTIMIZERS, Optimizer, OptimizerKind, SGD, StepScalars, Update,
    clip_factor, global_norm, step_feed,
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

/// One step of a parameter `f32[n]`: takes the parameter, its state, the gradient and the feed;
/// gives the parameter and its state.
fn step_graph(optimizer: &dyn Optimizer, n: usize, weight_decay: f64) -> Graph {
    let trace = Trace::new();
    let vector = |name: &str, n: usize, role| trace.input(name, Shape::new(DType::F32, [n]), role);
    let parameter = vector("w", n, InputRole::State);
    let specs = optimizer.state(&[n]);
    let state = specs
        .iter()
        .map(|spec| vector(spec.name, n, InputRole::State));
    let state: Vec<_> = state.collect();
    let gradient = vector("grad", n, InputRole::Feed);
    let scalars = step_feed(optimizer, 0.0, 1).len();
    let scalars = StepScalars::of(&vector("optimizer", scalars, InputRole::Feed)).unwrap();
    let new = optimizer
        .update(&Update {
            scalars: &scalars,
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
fn assert_follows(kind: OptimizerKind, formula: impl Fn(&mut f64, &mut [f64], f64, f64, f64, i32)) {
    let optimizer = kind.build(&HYPER);
    let count = optimizer.state(&[N]).len();
    for decay in [0.1, 0.0] {
        let program = compile(&step_graph(&*optimizer, N, decay));
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
                assert_close(&found[1 + index].numbers(), &expected, 1e-6);
            }
        }
    }
}

#[test]
fn adamw_follows_the_scalar_formula() {
    let Hyperparameters { beta1, beta2, eps } = HYPER;
    assert_follows(ADAMW, |w, state, g, lr, decay, k| {
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
    assert_follows(SGD, |w, _, g, lr, decay, _| *w -= lr * (g + decay * *w));
}

#[test]
fn lion_follows_the_scalar_formula() {
    let Hyperparameters { beta1, beta2, .. } = HYPER;
    assert_follows(LION, |w, state, g, lr, decay, _| {
        let direction = beta1 * state[0] + (1.0 - beta1) * g;
        *w -= lr * decay * *w;
        *w -= lr * direction.signum();
        state[0] = beta2 * state[0] + (1.0 - beta2) * g;
    });
}

/// The scalars that the device derives from its count of steps are those that the host feeds.
#[test]
fn counters_give_the_fed_scalars() {
    for kind in OPTIMIZERS {
        let optimizer = kind.build(&HYPER);
        let count = optimizer.counters().len();
        if count == 0 {
            continue;
        }
        let mut counters = vec![Value::new(DType::F32, &[], &[0.0]); count];
        for k in 1..=20 {
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
