//! What replicas exchange in a step: sums of gradients and losses, the norm over all of them, and, where each replica updates its part
//! only, the parts.
//!
//! A parameter lies in one of three ways ([`Lay`]). Whole everywhere: its gradients are summed (all-reduce). In parts along the shard
//! axis (ZeRO-3, Rajbhandari et al. 2020): the backward pass has summed them within the group already (reduce-scatter, the
//! gradient of putting the parameter together), and what is left is the sum over groups (MiCS, Zhang et al. 2022). Whole, but with its
//! optimizer state in parts along the data axis (ZeRO-1): each replica gets the sum of its part, updates that, and the new
//! parts are put together (all-gather).

use super::error::Result;
use super::session::Recording;
use crate::checkpoint::state::exp_avg;
use crate::parallel::buckets::buckets;
use crate::parallel::placement::Split;
use crate::parallel::{Axis, Mesh, Placements, placement};
use std::collections::HashMap;
use xtrain_graphs::passes::partition::Cut;
use xtrain_graphs::{DType, Shape, Tensor, optim};
use xtrain_models::{LossSum, ParameterSpec};

/// How a parameter and its update lie on the replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lay {
    Whole,
    Parts,
    /// Only the optimizer's state, and with it the update.
    UpdateInParts(Split),
}

fn lay(placements: &Placements, parameter: &ParameterSpec) -> Lay {
    match (placements.of(&parameter.name), placements.of(&exp_avg(&parameter.name))) {
        (Some(_), _) => Lay::Parts,
        (None, Some(split)) => Lay::UpdateInParts(split),
        (None, None) => Lay::Whole,
    }
}

/// Where a run's state lies: `of_parameter` names all state that has a parameter's shape, its moments apart from its sums; `cuts` are
/// the parameters that are divided along the tensor axis; `shard_optimizer_state` puts the moments of whole parameters in parts.
pub fn placements(
    parameters: &[ParameterSpec],
    mesh: Mesh,
    cuts: &HashMap<String, Cut>,
    shard_optimizer_state: bool,
    of_parameter: impl Fn(&str) -> (Vec<String>, Vec<String>),
) -> Placements {
    let mut placements = Placements::default();
    for parameter in parameters {
        let (moments, sums) = of_parameter(&parameter.name);
        let all: Vec<String> = moments.iter().chain(&sums).chain([&parameter.name]).cloned().collect();
        let cut = cuts.get(&parameter.name);
        if let Some(Cut { dim, blocks }) = cut {
            let split = Split { axis: Axis::Tensor, dim: *dim, blocks: *blocks, parts: mesh.size(Axis::Tensor) };
            all.iter().for_each(|name| placements.insert(name.clone(), split));
        }
        let taken = cut.map(|cut| cut.dim);
        if let Some(split) = placement::split(&parameter.dims, mesh, Axis::Shard, taken) {
            all.into_iter().for_each(|name| placements.insert(name, split));
        } else if let Some(split) = placement::split(&parameter.dims, mesh, Axis::Data, taken).filter(|_| shard_optimizer_state) {
            moments.into_iter().for_each(|name| placements.insert(name, split));
        }
    }
    placements
}

/// The sums over all replicas of the loss and of each gradient; of a gradient whose update is in parts, this replica's part. The loss
/// goes with the last bucket.
pub fn sum(
    recording: &Recording,
    parameters: &[ParameterSpec],
    loss: &LossSum,
    gradients: &[Tensor],
    bucket_bytes: usize,
) -> Result<(LossSum, Vec<Tensor>)> {
    let (mesh, placements) = (recording.mesh(), recording.placements());
    let mut sums = gradients.to_vec();
    let Some(everywhere) = mesh.batch_groups() else {
        return Ok((LossSum { sum: loss.sum.clone(), count: loss.count.clone() }, sums));
    };
    let _scope = recording.trace().scope("exchange");
    let lays: Vec<Lay> = parameters.iter().map(|parameter| lay(placements, parameter)).collect();
    let mut bucket = 0;
    for (kind, groups) in [(Lay::Parts, mesh.groups(&[Axis::Data])), (Lay::Whole, Some(everywhere.clone()))] {
        let Some(groups) = groups else { continue };
        let members: Vec<usize> = (0..lays.len()).filter(|&index| lays[index] == kind).collect();
        let sizes: Vec<usize> = members.iter().map(|&member| gradients[member].shape().bytes()).collect();
        for filled in buckets(&sizes, bucket_bytes) {
            for member in filled.into_iter().map(|index| members[index]) {
                sums[member] = gradients[member].all_reduce(&groups, bucket)?;
            }
            bucket += 1;
        }
    }
    for (index, lay) in lays.iter().enumerate().rev() {
        if let (Lay::UpdateInParts(split), Some(groups)) = (lay, mesh.groups(&[Axis::Data])) {
            sums[index] = gradients[index].reduce_scatter(&groups, split.dim)?;
        }
    }
    let last = bucket.saturating_sub(1);
    let loss = LossSum { sum: loss.sum.all_reduce(&everywhere, last)?, count: loss.count.all_reduce(&everywhere, last)? };
    Ok((loss, sums))
}

/// The L2 norm of all gradients as [`sum`] gives them, `f32[]`.
pub fn norm(recording: &Recording, parameters: &[ParameterSpec], gradients: &[Tensor]) -> Result<Tensor> {
    let (mesh, placements) = (recording.mesh(), recording.placements());
    let of = |wanted: &dyn Fn(Lay) -> bool| -> Vec<Tensor> {
        let pairs = parameters.iter().zip(gradients).filter(|(parameter, _)| wanted(lay(placements, parameter)));
        pairs.map(|(_, gradient)| gradient.clone()).collect()
    };
    let mut total = optim::sum_of_squares(&of(&|lay| lay == Lay::Whole))?;
    for (in_parts, axis) in
        [(of(&|lay| lay == Lay::Parts), Axis::Shard), (of(&|lay| matches!(lay, Lay::UpdateInParts(_))), Axis::Data)]
    {
        if let (Some(squares), Some(groups)) = (optim::sum_of_squares(&in_parts)?, mesh.groups(&[axis])) {
            let squares = squares.all_reduce(&groups, 0)?;
            total = Some(match total {
                Some(total) => total.add(&squares)?,
                None => squares,
            });
        }
    }
    Ok(total.expect("a model has at least one parameter").sqrt()?)
}

/// The part of each update that this replica computes.
pub struct UpdateParts {
    /// This replica's place along the data axis, `s32[]`; `None` where updates are whole.
    place: Option<Tensor>,
}

impl UpdateParts {
    pub fn of(recording: &mut Recording, parameters: &[ParameterSpec]) -> Result<Self> {
        let in_parts = |parameter| matches!(lay(recording.placements(), parameter), Lay::UpdateInParts(_));
        if !parameters.iter().any(in_parts) {
            return Ok(UpdateParts { place: None });
        }
        let mesh = recording.mesh();
        let places: Vec<[i32; 1]> = (0..mesh.replicas()).map(|replica| [mesh.index(Axis::Data, replica) as i32]).collect();
        let shape = Shape::scalar(DType::S32);
        let place = recording.feed_host_each("data_index", &shape, |replica| bytemuck::cast_slice(&places[replica]))?;
        Ok(UpdateParts { place: Some(place) })
    }

    /// What this replica updates of a parameter.
    pub fn cut(&self, recording: &Recording, parameter: &ParameterSpec, whole: &Tensor) -> Result<Tensor> {
        match (lay(recording.placements(), parameter), &self.place) {
            (Lay::UpdateInParts(split), Some(place)) => {
                let size = whole.dims()[split.dim] / split.parts;
                Ok(whole.dynamic_slice(&place.mul_scalar(size as f64)?, split.dim, size)?)
            }
            _ => Ok(whole.clone()),
        }
    }

    /// The whole parameter from what each replica updated.
    pub fn join(&self, recording: &Recording, parameter: &ParameterSpec, part: Tensor) -> Result<Tensor> {
        match (lay(recording.placements(), parameter), recording.mesh().groups(&[Axis::Data])) {
            (Lay::UpdateInParts(split), Some(groups)) => Ok(part.all_gather(&groups, split.dim)?),
            _ => Ok(part),
        }
    }
}
