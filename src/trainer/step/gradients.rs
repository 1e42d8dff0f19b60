//! What the backward pass of one microbatch leaves, and the sums of several (gradient
//! accumulation).

use crate::error::Result;
use crate::exchange;
use crate::session::Recording;
use crate::session::parameters::ExtraState;
use xtrain_graphs::{DType, Shape, Tensor};
use xtrain_models::{LossSum, ParameterSpec};

/// Loss and gradients of one microbatch or, accumulated, of several.
pub(super) struct Gradients {
    pub loss: LossSum,
    /// In the order of [`exchange::held`].
    pub gradients: Vec<Tensor>,
    /// In fp16, the gradients are those of the loss times the loss scale over `divisor`.
    pub is_scaled: bool,
    /// 1 where the loss is not scaled.
    pub divisor: f64,
}

/// The sum of losses.
pub(super) const LOSS: &str = "accumulated.loss";
/// How many losses that are.
pub(super) const COUNT: &str = "accumulated.count";
/// What the objective measures besides.
pub(super) const MEASURED: &str = "accumulated.measured";

/// Name of a parameter's accumulated gradient in the session.
pub(super) fn sum_name(parameter: &str) -> String {
    format!("accumulated.{parameter}")
}

/// A sum of the microbatches of a step: zero between steps, so that no checkpoint holds it.
pub(super) fn sum_state(name: String, dims: &[usize]) -> ExtraState {
    ExtraState {
        name,
        shape: Shape::new(DType::F32, dims.to_vec()),
        initial: Some(0.0),
        saved: false,
    }
}

impl Gradients {
    /// The same as gradients of the summed loss: microbatches of other shapes have other divisors,
    /// and only sums add up.
    fn of_sum(self) -> Result<Self> {
        if !self.is_scaled {
            return Ok(self);
        }
        let gradients = self.gradients.iter();
        Ok(Gradients {
            gradients: gradients
                .map(|gradient| Ok(gradient.mul_scalar(self.divisor)?))
                .collect::<Result<_>>()?,
            divisor: 1.0,
            ..self
        })
    }

    /// Adds this microbatch's sums to the accumulated ones.
    pub fn accumulate(self, recording: &mut Recording, parameters: &[ParameterSpec]) -> Result<()> {
        let Gradients {
            loss, gradients, ..
        } = self.of_sum()?;
        let _scope = recording.trace().clone().update_scope("accumulate");
        let held = exchange::held(recording.placements(), parameters).into_owned();
        let mut add = |name: &str, value: &Tensor| -> Result<()> {
            let sum = recording.state(name)?.add(value)?;
            recording.assign(name, &sum)
        };
        for (parameter, gradient) in held.iter().zip(&gradients) {
            add(&sum_name(&parameter.name), gradient)?;
        }
        add(LOSS, &loss.sum)?;
        add(COUNT, &loss.count)?;
        match &loss.measured {
            Some(measured) => add(MEASURED, measured),
            None => Ok(()),
        }
    }

    /// The sums of all microbatches including this one; what was accumulated starts again at zero.
    pub fn with_accumulated(
        self,
        recording: &mut Recording,
        parameters: &[ParameterSpec],
    ) -> Result<Self> {
        let sums = self.of_sum()?;
        let _scope = recording.trace().clone().update_scope("accumulate");
        let held = exchange::held(recording.placements(), parameters).into_owned();
        let mut take = |name: &str, value: &Tensor| -> Result<Tensor> {
            let sum = recording.state(name)?.add(value)?;
            let zero = recording.trace().full(0.0, value.shape())?;
            recording.assign(name, &zero)?;
            Ok(sum)
        };
        let gradients = held
            .iter()
            .zip(&sums.gradients)
            .map(|(parameter, gradient)| take(&sum_name(&parameter.name), gradient))
            .collect::<Result<Vec<_>>>()?;
        let loss = LossSum {
            sum: take(LOSS, &sums.loss.sum)?,
            count: take(COUNT, &sums.loss.count)?,
            measured: match &sums.loss.measured {
                Some(measured) => Some(take(MEASURED, measured)?),
                None => None,
            },
        };
        Ok(Gradients {
            loss,
            gradients,
            ..sums
        })
    }
}
