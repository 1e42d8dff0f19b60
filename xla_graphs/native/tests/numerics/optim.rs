//! Optimizer steps and clipping against scalar f64, several steps in a row with the state carried
//! over.

use crate::support::{Rng, Value, assert_close, compile};
use xtrain_graphs::optim::{AdamW, Sgd, StepFeed, StepScalars, clip_factor, global_norm};
use xtrain_graphs::{DType, Graph, InputRole, Shape, Trace};

const N: usize = 5;

fn vector(numbers: &[f64]) -> Value {
    Value::new(DType::F32, &[numbers.len()], numbers)
}

fn feed(feed: StepFeed) -> Value {
    vector(&feed.to_array().map(f64::from))
}

fn adamw_graph(adamw: &AdamW, decay: bool) -> Graph {
    let trace = Trace::new();
    let state = |name: &str| trace.input(name, Shape::new(DType::F32, [N]), InputRole::State);
    let (w, m, v) = (state("w"), state("w.m"), state("w.v"));
    let grad = trace.input("grad", Shape::new(DType::F32, [N]), InputRole::Feed);
    let step =
        StepScalars::of(&trace.input("optimizer", Shape::new(DType::F32, [3]), InputRole::Feed))
            .unwrap();
    let update = adamw
        .update(
            &step,
            &w,
            &grad,
            &trace.constant(1.0, DType::F32).unwrap(),
            &m,
            &v,
            decay,
        )
        .unwrap();
    trace.output("w", &update.parameter);
    trace.output("w.m", &update.exp_avg);
    trace.output("w.v", &update.exp_avg_sq);
    trace.finish("adamw").unwrap()
}

#[test]
fn adamw_follows_the_scalar_formula() {
    let adamw = AdamW {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    for decay in [true, false] {
        let program = compile(&adamw_graph(&adamw, decay));
        let mut rng = Rng(4);
        let start = rng.floats(N, -1.0, 1.0);
        let mut state = vec![vector(&start), vector(&[0.0; N]), vector(&[0.0; N])];
        let (mut w, mut m, mut v) = (start, [0.0; N], [0.0; N]);
        for k in 1..=20 {
            let learning_rate = 0.01 * f64::from(k);
            let grad = rng.floats(N, -2.0, 2.0);
            state.extend([
                vector(&grad),
                feed(StepFeed::adamw(learning_rate, &adamw, k as u64)),
            ]);
            state = program.run(&state);
            for i in 0..N {
                let g = f64::from(grad[i] as f32);
                m[i] = adamw.beta1 * m[i] + (1.0 - adamw.beta1) * g;
                v[i] = adamw.beta2 * v[i] + (1.0 - adamw.beta2) * g * g;
                if decay {
                    w[i] -= learning_rate * adamw.weight_decay * w[i];
                }
                let (m_hat, v_hat) = (
                    m[i] / (1.0 - adamw.beta1.powi(k)),
                    v[i] / (1.0 - adamw.beta2.powi(k)),
                );
                w[i] -= learning_rate * m_hat / (v_hat.sqrt() + adamw.eps);
            }
            // Rounding of k steps in f32.
            assert_close(&state[0].numbers(), &w, 1e-6 * f64::from(k));
            assert_close(&state[1].numbers(), &m, 1e-6);
            assert_close(&state[2].numbers(), &v, 1e-6);
        }
    }
}

#[test]
fn sgd_follows_the_scalar_formula() {
    let trace = Trace::new();
    let w = trace.input("w", Shape::new(DType::F32, [2]), InputRole::State);
    let grad = trace.input("grad", Shape::new(DType::F32, [2]), InputRole::Feed);
    let step =
        StepScalars::of(&trace.input("optimizer", Shape::new(DType::F32, [3]), InputRole::Feed))
            .unwrap();
    let sgd = Sgd { weight_decay: 0.5 };
    trace.output("w", &sgd.update(&step, &w, &grad, true).unwrap());
    trace.output("plain", &sgd.update(&step, &w, &grad, false).unwrap());
    let program = compile(&trace.finish("sgd").unwrap());
    let got = program.run(&[
        vector(&[1.0, -2.0]),
        vector(&[0.5, 1.0]),
        feed(StepFeed::plain(0.1)),
    ]);
    assert_close(
        &got[0].numbers(),
        &[1.0 - 0.1 * 1.0, -2.0 - 0.1 * 0.0],
        1e-7,
    );
    assert_close(&got[1].numbers(), &[0.95, -2.1], 1e-7);
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
