//! What a training loop of one's own needs besides [`Session`]: the parameters of a model, and
//! `optimizer_step`, which as torch_xla's averages the gradients over the replicas and updates.
//!
//! `examples/own_loop.rs` is such a loop.

use super::error::Result;
use super::session::parameters::constant;
use super::session::{Recording, Session};
use super::step::optimizer_step::{SCALARS, state_name, state_tensors};
use xtrain_graphs::optim::{Optimizer, ParameterInfo, StepScalars, Update, step_feed};
use xtrain_graphs::{DType, Shape, Tensor};
use xtrain_parallel::Axis;

/// The parameters of a model, equal on all data-parallel replicas, and what optimizes them.
pub struct ParameterSet {
    optimizer: Box<dyn Optimizer>,
    /// Names and dimensions, in the order in which they were placed.
    parameters: Vec<(String, Vec<usize>)>,
}

impl ParameterSet {
    /// A set without parameters.
    pub fn new(optimizer: Box<dyn Optimizer>) -> Self {
        ParameterSet {
            optimizer,
            parameters: Vec::new(),
        }
    }

    /// Adds a parameter of f32 `values` in row-major order, and puts it on every replica's device
    /// with the optimizer's state for it.
    ///
    /// # Errors
    /// If the device refuses an upload.
    ///
    /// # Panics
    /// If `values` do not fill `dims`.
    pub fn place(
        &mut self,
        session: &mut Session,
        name: &str,
        dims: &[usize],
        values: &[f32],
    ) -> Result<()> {
        let shape = Shape::new(DType::F32, dims.to_vec());
        assert_eq!(shape.elements(), values.len(), "{name} is {shape}");
        session.set_state(name, bytemuck::cast_slice(values), &shape)?;
        for state in self.optimizer.state(info(dims)) {
            let shape = Shape::new(state.dtype.unwrap_or(DType::F32), state.dims.clone());
            let constant = state.initial.map(|initial| constant(initial, &shape));
            let initial = constant
                .as_deref()
                .unwrap_or_else(|| bytemuck::cast_slice(values));
            session.set_state(&state_name(&state, name), initial, &shape)?;
        }
        self.parameters.push((name.to_string(), dims.to_vec()));
        Ok(())
    }

    /// The parameters as they are when the step begins, in the order in which they were placed.
    ///
    /// # Errors
    /// If they are not in the session.
    pub fn tensors(&self, recording: &mut Recording) -> Result<Vec<Tensor>> {
        let mut tensor = |name: &String| recording.state(name);
        self.parameters
            .iter()
            .map(|(name, _)| tensor(name))
            .collect()
    }

    /// Averages `gradients`, one for each parameter in order, over the replicas, and updates the
    /// parameters and the optimizer's state. `step` counts optimizer steps from 0.
    ///
    /// # Errors
    /// If a gradient does not have its parameter's shape.
    pub fn optimizer_step(
        &self,
        recording: &mut Recording,
        gradients: &[Tensor],
        learning_rate: f64,
        step: u64,
    ) -> Result<()> {
        let trace = recording.trace().clone();
        let _scope = trace.update_scope("optimizer");
        let optimizer = &*self.optimizer;
        let scalars = step_feed(optimizer, learning_rate, step + 1);
        let shape = Shape::new(DType::F32, [scalars.len()]);
        let scalars = recording.feed_host(SCALARS, bytemuck::cast_slice(&scalars), &shape)?;
        let scalars = StepScalars::of(&scalars)?;
        let scale = trace.constant(1.0, DType::F32)?;
        for ((name, dims), gradient) in self.parameters.iter().zip(gradients) {
            let _scope = trace.scope(name);
            let info = info(dims);
            let (names, state) = state_tensors(recording, optimizer, name, info)?;
            let updated = optimizer.update(&Update {
                scalars: &scalars,
                info,
                parameter: &recording.state(name)?,
                gradient: &mean_over_replicas(recording, gradient)?,
                scale: &scale,
                state: &state,
                weight_decay: 0.0,
                shard: None,
            })?;
            recording.assign(name, &updated.parameter)?;
            for (name, value) in names.iter().zip(&updated.state) {
                recording.assign(name, value)?;
            }
        }
        Ok(())
    }
}

/// What the optimizer knows of a parameter: here any matrix counts as one between hidden states.
fn info(dims: &[usize]) -> ParameterInfo<'_> {
    ParameterInfo {
        dims,
        is_hidden_matrix: dims.len() == 2,
        is_embedding: false,
    }
}

/// The mean of the tensors that the data-parallel replicas have.
///
/// # Errors
/// If the tensor holds no floats.
pub fn mean_over_replicas(recording: &Recording, tensor: &Tensor) -> Result<Tensor> {
    let mesh = recording.mesh();
    match mesh.groups(&[Axis::Data]) {
        Some(groups) => Ok(tensor
            .all_reduce(&groups, 0)?
            .mul_scalar(1.0 / mesh.data as f64)?),
        None => Ok(tensor.clone()),
    }
}
