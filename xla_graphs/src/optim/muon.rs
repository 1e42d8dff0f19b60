//! Muon (Jordan et al. 2024): the momentum of a hidden matrix, made nearly orthogonal by
//! Newton-Schulz iterations, as `torch.optim.Muon`; AdamW for everything else.

use super::adamw::AdamW;
use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::DotDims;
use crate::trace::Tensor;

/// `--optim muon`. The `--adam_` flags are those of AdamW for embeddings, heads and vectors.
pub const MUON: OptimizerKind = OptimizerKind {
    name: "muon",
    choices: &["muon"],
    new: Muon::boxed,
};

/// The quintic's coefficients.
const COEFFICIENTS: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);

/// How the rate depends on a matrix's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Adjust {
    /// `0.2 sqrt(max(rows, columns))`: steps as large as AdamW's, so that its rates and decays suit
    /// (Liu et al. 2025).
    MatchRmsAdamW,
    /// `sqrt(max(1, rows / columns))`.
    Original,
    /// `sqrt(rows / columns)`.
    SpectralUnclamped,
}

#[derive(Debug)]
struct Muon {
    momentum: f64,
    nesterov: bool,
    steps: u64,
    eps: f64,
    adjust: Adjust,
    rest: AdamW,
}

impl Muon {
    fn boxed(hyper: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        let muon = Muon {
            momentum: args.below_one("momentum", 0.95),
            nesterov: args.flag("nesterov", true),
            steps: args.optional_count("ns_steps", 1).unwrap_or(5),
            eps: args.not_negative("eps", 1e-7),
            adjust: args.choice(
                "adjust_lr_fn",
                &[
                    ("match_rms_adamw", Adjust::MatchRmsAdamW),
                    ("original", Adjust::Original),
                    ("spectral_unclamped", Adjust::SpectralUnclamped),
                ],
            ),
            rest: AdamW(*hyper),
        };
        // Each iteration is part of the graph.
        if muon.steps >= 100 {
            args.refuse(format!(
                "ns_steps must be below 100, found `{}`",
                muon.steps
            ));
        }
        Box::new(muon)
    }

    /// The factor on the learning rate of a matrix.
    fn rate_factor(&self, dims: &[usize]) -> f64 {
        let (rows, columns) = (dims[0] as f64, dims[1] as f64);
        match self.adjust {
            Adjust::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            Adjust::Original => (rows / columns).max(1.0).sqrt(),
            Adjust::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }

    /// The nearly orthogonal matrix of the same singular vectors, f32. As in torch, what is
    /// multiplied is bf16; sums are f32.
    fn orthogonalized(&self, matrix: &Tensor) -> Result<Tensor> {
        let trace = matrix.trace().clone();
        let _wide = trace.in_f32();
        let wide = |x: &Tensor| x.convert(DType::F32);
        let narrow = |x: &Tensor| x.convert(DType::BF16);
        // The smaller side first: the products between it and itself are the smallest.
        let is_tall = matrix.dims()[0] > matrix.dims()[1];
        let turned = |x: &Tensor| {
            if is_tall {
                x.transpose(&[1, 0])
            } else {
                Ok(x.clone())
            }
        };
        // XLA's CPU compiler folds a transposition, also that of a gradient, into the matmul, and then
        // has none for 16-bit operands of that form.
        let mut x = turned(&narrow(matrix)?)?.barrier()?;
        let norm = wide(&x)?.mul(&wide(&x)?)?.sum_all()?.sqrt()?;
        let norm = wide(&narrow(&norm)?)?.max_scalar(self.eps)?;
        x = narrow(&wide(&x)?.div(&norm)?)?;
        let dot = |a: &Tensor, b: &Tensor, contracted: usize| {
            let dims = DotDims {
                lhs_contracting: vec![1],
                rhs_contracting: vec![contracted],
                ..Default::default()
            };
            a.dot_general(b, dims, DType::F32)
        };
        let (a, b, c) = COEFFICIENTS;
        for _ in 0..self.steps {
            let gram = narrow(&dot(&x, &x, 1)?)?;
            let square = dot(&gram, &gram, 0)?.mul_scalar(c)?;
            let polynomial = narrow(&wide(&gram)?.mul_scalar(b)?.add(&square)?)?;
            let moved = dot(&polynomial, &x, 0)?;
            x = narrow(&wide(&x)?.mul_scalar(a)?.add(&moved)?)?;
        }
        turned(&wide(&x)?)
    }
}

impl Optimizer for Muon {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        if parameter.is_hidden_matrix {
            vec![StateSpec::zeros("momentum_buffer", parameter.dims)]
        } else {
            self.rest.state(parameter)
        }
    }

    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        self.rest.scalars(learning_rate, step)
    }

    fn counters(&self) -> &'static [&'static str] {
        self.rest.counters()
    }

    fn next_counters(&self, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        self.rest.next_counters(counters)
    }

    fn counted_scalars(&self, learning_rate: &Tensor, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        self.rest.counted_scalars(learning_rate, counters)
    }

    fn gathers_shards(&self) -> bool {
        true
    }

    /// `m' = m + (1 - momentum) (g - m)`, with Nesterov's momentum `u = g + momentum (m' - g)`, else
    /// `m'`; `w' = w (1 - lr wd) - lr factor orthogonalized(u)`.
    fn update(&self, update: &Update) -> Result<Updated> {
        if !update.info.is_hidden_matrix {
            return self.rest.update(update);
        }
        let (gradient, old) = (update.scaled()?, &update.state[0]);
        let momentum = old.add(&gradient.sub(old)?.mul_scalar(1.0 - self.momentum)?)?;
        let direction = if self.nesterov {
            gradient.add(&momentum.sub(&gradient)?.mul_scalar(self.momentum)?)?
        } else {
            momentum.clone()
        };
        let direction = update.shard_of_whole(&direction, |whole| self.orthogonalized(whole))?;
        let rate = &update.scalars.learning_rate;
        let rate = rate.mul_scalar(self.rate_factor(update.info.dims))?;
        Ok(Updated {
            parameter: update.decayed()?.sub(&direction.mul(&rate)?)?,
            state: vec![momentum],
        })
    }
}
