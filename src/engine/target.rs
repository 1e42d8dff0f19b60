//! A card that is not there, for which a run's graphs are compiled.

use super::error::{Error, failed};
use super::run::Prepared;
use crate::cache::TargetCache;
use crate::config::{Device, DevicePlan, TrainPlan};
use crate::trainer::cuda;
use crate::trainer::device::DeviceSettings;
use crate::trainer::gpu::Gpu;

/// A card that is not there, with what compiles for it.
pub struct AbsentGpu {
    pub gpu: Gpu,
    pub graphs: TargetCache,
}

/// The plan on the CPU, whose session records graphs for any device.
pub fn recorder(plan: &TrainPlan) -> TrainPlan {
    TrainPlan {
        device: DevicePlan {
            kind: Device::Cpu,
            settings: DeviceSettings::default(),
        },
        ..plan.clone()
    }
}

impl AbsentGpu {
    /// The card that a plan names; `None` if it names none and so means one that is there.
    pub fn of(plan: &TrainPlan, prepared: &Prepared) -> Result<Option<Self>, Error> {
        let Some(gpu) = plan.target else {
            return Ok(None);
        };
        let graphs = cuda::describe(gpu, &plan.device.settings, plan.cache.clone());
        let mut graphs = graphs.map_err(failed("describing the card to the CUDA plugin"))?;
        graphs.set_origin(prepared.session.cache().origin().clone());
        Ok(Some(AbsentGpu { gpu, graphs }))
    }
}
