//! A model with an adapter.

use crate::batch::TokenBatch;
use crate::declare::declare;
use crate::error::Result;
use crate::lora::{Adapter, LoraConfig};
use crate::model::{Model, ModelInfo};
use crate::weights::Weights;
use xtrain_graphs::{DropoutRng, Tensor};

struct Adapted {
    base: Box<dyn Model>,
    info: ModelInfo,
    adapter: Adapter,
}

/// [`adapt`](crate::adapt); `usual`: see [`Adapter::of`].
pub(crate) fn adapt(
    base: Box<dyn Model>,
    config: LoraConfig,
    usual: Option<&[&str]>,
) -> Result<Box<dyn Model>> {
    let info = base.info();
    let adapter = Adapter::of(config, info.declaration(), info.head, usual)?;
    let adapted = Adapted {
        info: info.undeclared(),
        adapter,
        base,
    };
    declare(&adapted)?;
    Ok(Box::new(adapted))
}

impl Model for Adapted {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn adapter(&self) -> Option<&Adapter> {
        Some(&self.adapter)
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let weights = weights.with_adapter(&self.adapter, rng);
        self.base.hidden(&weights, batch, rng)
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        let base = self.base.info().declaration();
        self.info.declaration().step_flops_on(base, batch, tokens)
    }

    fn head_flops(&self, rows: usize) -> f64 {
        let base = self.base.info().declaration();
        self.info.declaration().head_flops_on(base, rows)
    }

    fn pool(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        self.base.pool(hidden, batch)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        let weights = weights.with_adapter(&self.adapter, rng);
        self.base.head(&weights, hidden, rng)
    }
}
