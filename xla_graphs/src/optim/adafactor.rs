//! Adafactor (Shazeer and Stern 2018) with a learning rate from outside and without a first moment,
//! as transformers builds it for `--optim adafactor`: of a matrix it keeps the second moment's means
//! over rows and columns only. Weight decay is decoupled.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated, next_step,
};
use crate::error::Result;
use crate::trace::Tensor;

/// `--optim adafactor`.
pub const ADAFACTOR: OptimizerKind = OptimizerKind {
    name: "adafactor",
    choices: &["adafactor"],
    new: Adafactor::boxed,
};

#[derive(Debug)]
struct Adafactor {
    eps: f64,
    clip_threshold: f64,
    decay_rate: f64,
}

impl Adafactor {
    fn boxed(_: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        let above_zero = f64::MIN_POSITIVE..=f64::MAX;
        Box::new(Adafactor {
            // Smaller numbers are 0 in f32.
            eps: args.number("eps", 1e-30, 1e-38..=f64::MAX, "a number from 1e-38"),
            clip_threshold: args.number("clip_threshold", 1.0, above_zero, "a number above 0"),
            decay_rate: args.number("decay_rate", -0.8, f64::MIN..=0.0, "a number up to 0"),
        })
    }

    /// What the second moment, or its means, become: `decay` of the old and `fresh` of the new,
    /// which is at least eps.
    fn moved(&self, old: &Tensor, squares: &Tensor, fresh: &Tensor) -> Result<Tensor> {
        let one = fresh.trace().full(1.0, fresh.shape())?;
        let new = squares.add_scalar(self.eps)?.mul(fresh)?;
        old.mul(&one.sub(fresh)?)?.add(&new)
    }
}

impl Optimizer for Adafactor {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        let rank = parameter.dims.len();
        if rank < 2 {
            return vec![StateSpec::zeros("exp_avg_sq", parameter.dims)];
        }
        let without = |name, gone: usize| {
            let kept = (0..rank).filter(|dim| *dim != gone).collect();
            StateSpec::zeros_along(name, parameter.dims, kept)
        };
        vec![
            without("exp_avg_sq_row", rank - 1),
            without("exp_avg_sq_col", rank - 2),
        ]
    }

    /// The share of the new in the second moment, `k^decay_rate`: all of it in the first step.
    fn scalars(&self, _learning_rate: f64, step: u64) -> Vec<f64> {
        vec![(step as f64).powf(self.decay_rate)]
    }

    fn counters(&self) -> &'static [&'static str] {
        &["adafactor.steps"]
    }

    fn next_counters(&self, steps: &[Tensor]) -> Result<Vec<Tensor>> {
        next_step(steps)
    }

    fn counted_scalars(&self, _: &Tensor, steps: &[Tensor]) -> Result<Vec<Tensor>> {
        let fresh = |step: &Tensor| step.log()?.mul_scalar(self.decay_rate)?.exp();
        steps.iter().map(fresh).collect()
    }

    /// The gradient over the root of its second moment, of a matrix `r_i c_j / mean(r)`; clipped to
    /// a root mean square of `clip_threshold`; `w' = w (1 - lr wd) - lr u`.
    fn update(&self, update: &Update) -> Result<Updated> {
        let fresh = &update.scalars.own[0];
        let gradient = update.scaled()?;
        let squares = gradient.mul(&gradient)?;
        let rank = update.info.dims.len();
        let (direction, state) = if rank < 2 {
            let v = self.moved(&update.state[0], &squares, fresh)?;
            (gradient.mul(&v.rsqrt()?)?, vec![v])
        } else {
            let (rows, columns) = (rank - 2, rank - 1);
            let row = update.mean(&squares, columns)?;
            let row = self.moved(&update.state[0], &row, fresh)?;
            let column = update.mean(&squares, rows)?;
            let column = self.moved(&update.state[1], &column, fresh)?;
            let mean = update.mean(&row, rows)?;
            let before: Vec<usize> = (0..rows).collect();
            let mean = mean.broadcast_in(row.dims(), &before)?;
            let of_rows: Vec<usize> = (0..columns).collect();
            let of_columns: Vec<usize> = (0..rank).filter(|dim| *dim != rows).collect();
            let dims = gradient.dims();
            let row_factor = row.div(&mean)?.rsqrt()?.broadcast_in(dims, &of_rows)?;
            let column_factor = column.rsqrt()?.broadcast_in(dims, &of_columns)?;
            let direction = row_factor.mul(&column_factor)?.mul(&gradient)?;
            (direction, vec![row, column])
        };
        let elements: usize = update.info.dims.iter().product();
        let sum = update.sum_all(&direction.mul(&direction)?)?;
        let size = sum.mul_scalar(1.0 / elements as f64)?.sqrt()?;
        let excess = size
            .mul_scalar(1.0 / self.clip_threshold)?
            .max_scalar(1.0)?;
        let rate = update.scalars.learning_rate.div(&excess)?;
        Ok(Updated {
            parameter: update.decayed()?.sub(&direction.mul(&rate)?)?,
            state,
        })
    }
}
