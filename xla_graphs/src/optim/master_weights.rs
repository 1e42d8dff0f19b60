//! Master copies of weights that are held in fewer bits (Micikevicius et al. 2018): any optimizer,
//! with its parameters in f32 as one more state. What it updates are the copies; the weights are
//! these, rounded. As state of the optimizer they are sharded with it in ZeRO-1.

use super::{Optimizer, ParameterInfo, StateSpec, Update, Updated};
use crate::error::Result;
use crate::trace::Tensor;

/// The name of the copies' state.
pub const MASTER_WEIGHT: &str = "master";

/// An optimizer that updates master copies.
#[derive(Debug)]
pub struct MasterWeights(pub Box<dyn Optimizer>);

impl Optimizer for MasterWeights {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        let mut state = self.0.state(parameter);
        state.push(StateSpec {
            initial: None,
            ..StateSpec::zeros(MASTER_WEIGHT, parameter.dims)
        });
        state
    }

    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        self.0.scalars(learning_rate, step)
    }

    fn counters(&self) -> &'static [&'static str] {
        self.0.counters()
    }

    fn next_counters(&self, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        self.0.next_counters(counters)
    }

    fn counted_scalars(&self, rate: &Tensor, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        self.0.counted_scalars(rate, counters)
    }

    fn gathers_shards(&self) -> bool {
        self.0.gathers_shards()
    }

    fn update(&self, update: &Update) -> Result<Updated> {
        let (master, state) = update.state.split_last().expect("the copy is the last");
        let mut new = self.0.update(&Update {
            parameter: master,
            state,
            ..*update
        })?;
        new.state.push(new.parameter.clone());
        Ok(new)
    }
}
