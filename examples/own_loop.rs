//! A training loop of one's own, as a script for Trainium writes it: a model, a batch for each of
//! two replicas, loss, backward, `optimizer_step`, `mark_step`. The loss is read one step late, so
//! that the devices never wait for the host.
//!
//! `cargo run --release --example own_loop`

use rand::{RngExt, SeedableRng, rngs::StdRng};
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::trainer::device;
use xtrain::trainer::own_loop::{ParameterSet, mean_over_replicas};
use xtrain_graphs::optim::{ADAMW, Hyperparameters};
use xtrain_graphs::{DType, Result, Shape, Tensor, backward};

const REPLICAS: usize = 2;
/// B: examples of each replica in a step.
const ROWS: usize = 64;
/// H: features of the hidden layer.
const HIDDEN: usize = 32;
const STEPS: u64 = 400;

/// `tanh(x W1 + b1) W2`: `[B, 2]` to `[B, 1]`.
fn model(weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let [w1, b1, w2] = weights else {
        unreachable!("the model has three parameters");
    };
    x.matmul(w1)?.add(b1)?.tanh()?.matmul(w2)
}

/// The mean squared error, `f32[]`.
fn loss(output: &Tensor, target: &Tensor) -> Result<Tensor> {
    let error = output.sub(target)?;
    error.mul(&error)?.sum_all()?.mul_scalar(1.0 / ROWS as f64)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mesh = Mesh {
        data: REPLICAS,
        ..Mesh::single()
    };
    let mut session = device::open_cpu(mesh, CacheSettings::in_memory())?;
    let mut random = StdRng::seed_from_u64(0);
    let mut numbers = |count: usize| -> Vec<f32> {
        let number = |_| random.random_range(-1.0..1.0);
        (0..count).map(number).collect()
    };

    let mut parameters = ParameterSet::new(ADAMW.build(&Hyperparameters {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    }));
    parameters.place(&mut session, "w1", &[2, HIDDEN], &numbers(2 * HIDDEN))?;
    parameters.place(&mut session, "b1", &[HIDDEN], &numbers(HIDDEN))?;
    parameters.place(&mut session, "w2", &[HIDDEN, 1], &numbers(HIDDEN))?;

    let mut pending = None;
    for step in 0..STEPS {
        // What is to be learned is the product of two numbers.
        let inputs: Vec<Vec<f32>> = (0..REPLICAS).map(|_| numbers(2 * ROWS)).collect();
        let product = |pair: &[f32]| pair[0] * pair[1];
        let products = inputs.iter().map(|x| x.chunks(2).map(product).collect());
        let targets: Vec<Vec<f32>> = products.collect();

        let mut recording = session.begin();
        let x = Shape::new(DType::F32, [ROWS, 2]);
        let x = recording.feed_host_each("x", &x, |i| bytemuck::cast_slice(&inputs[i]))?;
        let y = Shape::new(DType::F32, [ROWS, 1]);
        let y = recording.feed_host_each("y", &y, |i| bytemuck::cast_slice(&targets[i]))?;
        let weights = parameters.tensors(&mut recording)?;
        let loss = loss(&model(&weights, &x)?, &y)?;
        let gradients = backward(&loss, &weights)?;
        parameters.optimizer_step(&mut recording, &gradients, 1e-2, step)?;
        let mean = mean_over_replicas(&recording, &loss)?;
        recording.fetch("loss", &mean);
        let outputs = recording.mark_step("train")?;

        let loss = outputs.fetched("loss").start_download_to::<f32>()?;
        if let Some(earlier) = pending.replace(loss).filter(|_| step % 50 == 1) {
            println!("step {:3}  loss {:.5}", step - 1, earlier.wait()?[0]);
        }
    }
    let last = pending.expect("a step was made").wait()?[0];
    println!("step {:3}  loss {last:.5}", STEPS - 1);
    println!("{}", session.cache().stats());
    Ok(())
}
