//! A run's state besides the parameters, and where all of it is placed on a mesh.

use super::gradients::{COUNT, LOSS, MEASURED, sum_name, sum_state};
use super::loss_scale;
use super::optimizer_step::state_name;
use crate::error::Result;
use crate::exchange::{self, ParameterState};
use crate::pipeline::layer_costs;
use crate::session::parameters::ExtraState;
use xtrain_graphs::optim::Optimizer;
use xtrain_graphs::{DType, Shape};
use xtrain_models::{Model, ParameterSpec, tensor_shard_specs};
use xtrain_parallel::{Mesh, Placements};

/// Which state a run has beside its parameters.
pub(super) struct StateOptions {
    /// Gradients accumulate over microbatches.
    pub accumulates: bool,
    pub scales_loss: bool,
    /// Means that the objective measures.
    pub measures: usize,
    /// Of the optimizer's state, where it has none of its own.
    pub dtype: DType,
}

/// Optimizer state, sums where gradients accumulate, and the loss scale with the optimizer's
/// counters where there is one; `trained` are the parameters that have a gradient.
pub(super) fn extra_state(
    optimizer: &dyn Optimizer,
    trained: &[ParameterSpec],
    options: &StateOptions,
) -> Vec<ExtraState> {
    let saved = |name: String, shape: Shape, initial: Option<f32>| ExtraState {
        name,
        shape,
        initial,
        saved: true,
    };
    let mut state = Vec::new();
    for parameter in trained {
        for own in optimizer.state(parameter.info()) {
            let name = state_name(&own, &parameter.name);
            let shape = Shape::new(own.dtype.unwrap_or(options.dtype), own.dims);
            state.push(saved(name, shape, own.initial));
        }
        if options.accumulates {
            state.push(sum_state(sum_name(&parameter.name), &parameter.dims));
        }
    }
    if options.accumulates {
        state.extend([LOSS, COUNT].map(|name| sum_state(name.into(), &[])));
        if options.measures > 0 {
            state.push(sum_state(MEASURED.into(), &[2, options.measures]));
        }
    }
    if options.scales_loss {
        let scale = loss_scale::STATE.into_iter();
        let counters = optimizer.counters().iter().map(|name| (*name, 0.0));
        let scalars = scale.chain(counters);
        state.extend(
            scalars.map(|(name, initial)| {
                saved(name.into(), Shape::scalar(DType::F32), Some(initial))
            }),
        );
    }
    state
}

/// Where the state of a run is placed on its mesh. With `shard_optimizer_state` the optimizer's
/// state of replicated parameters is sharded along the data axis (ZeRO-1).
///
/// # Errors
/// If the tensor axis cannot divide the model's layers, or if it has fewer layers than stages.
pub fn placements(
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    mesh: Mesh,
    shard_optimizer_state: bool,
) -> Result<Placements> {
    let tensor = tensor_shard_specs(model, mesh.tensor)?;
    let stages = layer_costs::plan(model, mesh.stage)?;
    let of_parameter = |parameter: &ParameterSpec, name: &str| {
        if !parameter.trained {
            return ParameterState::default();
        }
        let state = optimizer.state(parameter.info()).into_iter();
        ParameterState {
            kept: state
                .map(|state| (state_name(&state, name), state))
                .collect(),
            sum: Some(sum_name(name)),
        }
    };
    let mut placements = exchange::placements(
        &model.parameters(),
        mesh,
        &tensor,
        shard_optimizer_state,
        stages.as_ref(),
        of_parameter,
    );
    if let Some(stages) = stages {
        [LOSS, COUNT, MEASURED]
            .into_iter()
            .for_each(|name| placements.set_home(name.into(), stages.last()));
    }
    Ok(placements)
}
