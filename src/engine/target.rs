//! Ahead-of-time targets: GPUs that are not attached, for which a run's graphs are compiled.

use super::error::{Error, failed};
use super::run::Run;
use xtrain_cache::AotCache;
use xtrain_trainer::cuda;
use xtrain_trainer::gpu::Gpu;

/// A GPU that is not attached, with what compiles for it.
pub struct AotTarget {
    /// The card.
    pub gpu: Gpu,
    /// Compiles and keeps graphs for it.
    pub graphs: AotCache,
}

impl AotTarget {
    /// The card that a run's plan names; `None` if it names none and so means one that is there.
    ///
    /// # Errors
    /// If the CUDA plugin cannot be opened, or does not know the card.
    pub fn of(run: &Run) -> Result<Option<Self>, Error> {
        let plan = &run.plan;
        let Some(gpu) = plan.target else {
            return Ok(None);
        };
        let graphs = cuda::describe(gpu, &plan.device.settings, plan.cache.clone());
        let mut graphs = graphs.map_err(failed("describing the card to the CUDA plugin"))?;
        graphs.set_origin(run.session.cache().origin().clone());
        Ok(Some(AotTarget { gpu, graphs }))
    }
}
