//! A small transformer's training step, broad enough to reach most operations: for tests of graphs
//! as a whole.

use xtrain_graphs::op::{Attention, F64, Gelu, KeyMask};
use xtrain_graphs::optim::{
    ADAMW, Hyperparameters, ParameterInfo, StepScalars, Update, clip_factor, global_norm,
};
use xtrain_graphs::{DType, DropoutRng, Graph, InputRole, Result, Shape, Tensor, Trace, backward};

const BATCH: usize = 2;
const TOKENS: usize = 4;
const WIDTH: usize = 8;
const HEADS: usize = 2;
const VOCABULARY: usize = 11;

struct Parameters<'a> {
    trace: &'a Trace,
    all: Vec<(String, Tensor)>,
}

impl Parameters<'_> {
    fn declare(&mut self, name: String, dims: &[usize]) -> Tensor {
        let tensor = self
            .trace
            .input(name.clone(), Shape::new(DType::F32, dims), InputRole::State);
        self.all.push((name, tensor.clone()));
        tensor
    }
}

/// Forward, backward, clipping and AdamW of `layers` layers with dropout, cut as graph `train`.
pub fn training_step(layers: usize) -> Graph {
    record(layers).expect("the model's shapes fit")
}

fn record(layers: usize) -> Result<Graph> {
    let trace = Trace::new();
    let feed = |name: &str, dtype, dims: &[usize]| {
        trace.input(name, Shape::new(dtype, dims), InputRole::Feed)
    };
    let tokens = feed("tokens", DType::S32, &[BATCH, TOKENS]);
    let labels = feed("labels", DType::S32, &[BATCH * TOKENS]);
    let key_mask = feed("key_mask", DType::Pred, &[BATCH, TOKENS]);
    let random = DropoutRng::keyed(feed("random", DType::U32, &[2]));
    let step =
        StepScalars::of(&trace.input("optimizer", Shape::new(DType::F32, [3]), InputRole::Feed))?;
    let mut parameters = Parameters {
        trace: &trace,
        all: Vec::new(),
    };
    let embedding = parameters.declare("wte.weight".into(), &[VOCABULARY, WIDTH]);
    let mut x = embedding.take_rows(&tokens)?;
    for layer in 0..layers {
        let _scope = trace.scope(&format!("h.{layer}"));
        let mut norm = |x: &Tensor, name: &str| {
            let gamma = parameters.declare(format!("h.{layer}.{name}.weight"), &[WIDTH]);
            let beta = parameters.declare(format!("h.{layer}.{name}.bias"), &[WIDTH]);
            x.layer_norm(&gamma, &beta, 1e-5)
        };
        let (normed, _scope) = (norm(&x, "ln_1")?, trace.scope("attn"));
        let heads = |x: Tensor| {
            x.reshape(&[BATCH, TOKENS, HEADS, WIDTH / HEADS])?
                .transpose(&[0, 2, 1, 3])
        };
        let mut projection = |name: &str| {
            let weight =
                parameters.declare(format!("h.{layer}.attn.{name}.weight"), &[WIDTH, WIDTH]);
            heads(normed.matmul(&weight)?)
        };
        let (q, k, v) = (projection("q")?, projection("k")?, projection("v")?);
        let (dropout, key) = random.of_attention(0.1).unzip();
        let attributes = Attention {
            scale: F64::new(0.5),
            causal: true,
            window: Some(3),
            key_mask: KeyMask::Keys,
            dropout,
            soft_cap: None,
        };
        let mixed = q.attention(&k, &v, Some(&key_mask), key.as_ref(), attributes)?;
        drop(_scope);
        x = x.add(
            &mixed
                .transpose(&[0, 2, 1, 3])?
                .reshape(&[BATCH, TOKENS, WIDTH])?,
        )?;
        let _scope = trace.scope("mlp");
        let weight = parameters.declare(format!("h.{layer}.mlp.weight"), &[WIDTH, WIDTH]);
        let kind = if layer % 2 == 0 {
            Gelu::Erf
        } else {
            Gelu::Tanh
        };
        x = x.add(&random.dropout(&x.matmul(&weight)?.gelu(kind)?.barrier()?, 0.1)?)?;
    }
    let losses = x
        .reshape(&[BATCH * TOKENS, WIDTH])?
        .matmul_transposed(&embedding)?
        .cross_entropy(&labels, -100)?;
    let loss = losses.sum_all()?;
    let tensors: Vec<Tensor> = parameters.all.iter().map(|(_, t)| t.clone()).collect();
    let gradients = backward(&loss, &tensors)?;
    let factor = clip_factor(&global_norm(&gradients)?, 1.0)?;
    let adamw = ADAMW.build(&Hyperparameters {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    });
    for ((name, tensor), gradient) in parameters.all.iter().zip(&gradients) {
        let state = |suffix: &str| {
            trace.input(
                format!("{name}{suffix}"),
                tensor.shape().clone(),
                InputRole::State,
            )
        };
        let new = adamw.update(&Update {
            scalars: &step,
            info: ParameterInfo {
                dims: tensor.dims(),
                is_hidden_matrix: tensor.rank() == 2,
                is_embedding: false,
            },
            parameter: tensor,
            gradient,
            scale: &factor,
            state: &[state(".exp_avg"), state(".exp_avg_sq")],
            weight_decay: if tensor.rank() > 1 { 0.01 } else { 0.0 },
            shard: None,
        })?;
        trace.output(name.clone(), &new.parameter);
        trace.output(format!("{name}.exp_avg"), &new.state[0]);
        trace.output(format!("{name}.exp_avg_sq"), &new.state[1]);
    }
    trace.output("loss", &loss);
    trace.finish("train")
}
