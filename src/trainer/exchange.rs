//! What replicas exchange in a step: sums of gradients and losses, the norm over all of them, and,
//! where each replica updates its part only, the parts.
//!
//! A parameter lies in one of three ways (`Lay`). Whole everywhere: its gradients are summed
//! (all-reduce). In parts along the shard axis (ZeRO-3, Rajbhandari et al. 2020): the backward pass
//! has summed them within the group already (reduce-scatter, the gradient of putting the parameter
//! together), and what is left is the sum over groups (MiCS, Zhang et al. 2022). Whole, but with
//! its optimizer state in parts along the data axis (ZeRO-1): each replica gets the sum of its
//! part, updates that, and the new parts are put together (all-gather).

use super::error::Result;
use super::session::Recording;
use crate::checkpoint::state::exp_avg;
use crate::parallel::buckets::buckets;
use crate::parallel::placement::Split;
use crate::parallel::{Axis, Mesh, Placements, Stages, placement, stages};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
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
    match (
        placements.of(&parameter.name),
        placements.of(&exp_avg(&parameter.name)),
    ) {
        (Some(_), _) => Lay::Parts,
        (None, Some(split)) => Lay::UpdateInParts(split),
        (None, None) => Lay::Whole,
    }
}

/// Where a run's state lies: `of_parameter` names all state that has a parameter's shape, its
/// moments apart from its sums; `cuts` are the parameters that are divided along the tensor axis;
/// `shard_optimizer_state` puts the moments of whole parameters in parts.
pub fn placements(
    parameters: &[ParameterSpec],
    mesh: Mesh,
    cuts: &HashMap<String, Cut>,
    shard_optimizer_state: bool,
    stages: Option<&Arc<Stages>>,
    of_parameter: impl Fn(&str) -> (Vec<String>, Vec<String>),
) -> Placements {
    let mut placements = Placements::default();
    if let Some(stages) = stages {
        placements.set_stages(stages.clone());
    }
    let in_stages = |parameter: &ParameterSpec| -> Vec<(String, Option<usize>)> {
        let Some(stages) = stages else {
            return vec![(parameter.name.clone(), None)];
        };
        let held = |stage: &usize| {
            (
                stages.held_name(&parameter.name, &parameter.name, *stage),
                Some(*stage),
            )
        };
        stages.users(&parameter.name).iter().map(held).collect()
    };
    for (parameter, (name, stage)) in parameters
        .iter()
        .flat_map(|p| in_stages(p).into_iter().map(move |held| (p, held)))
    {
        let (moments, sums) = of_parameter(&name);
        let all: Vec<String> = moments
            .iter()
            .chain(&sums)
            .chain([&name])
            .cloned()
            .collect();
        if let Some(stage) = stage {
            all.iter()
                .for_each(|name| placements.set_home(name.clone(), stage));
        }
        let cut = cuts.get(&parameter.name);
        if let Some(Cut { dim, blocks }) = cut {
            let parts = mesh.size(Axis::Tensor);
            let filled =
                parameter.dims[*dim].next_multiple_of(parts * blocks) - parameter.dims[*dim];
            let split = Split {
                axis: Axis::Tensor,
                dim: *dim,
                blocks: *blocks,
                parts,
                filled,
            };
            all.iter()
                .for_each(|name| placements.insert(name.clone(), split));
        }
        let taken = cut.map(|cut| cut.dim);
        if let Some(split) = placement::split(&parameter.dims, mesh, Axis::Shard, taken) {
            all.into_iter()
                .for_each(|name| placements.insert(name, split));
        } else if let Some(split) = placement::split(&parameter.dims, mesh, Axis::Data, taken)
            .filter(|_| shard_optimizer_state)
        {
            moments
                .into_iter()
                .for_each(|name| placements.insert(name, split));
        }
    }
    placements
}

/// The sums over all replicas of the loss and of each gradient; of a gradient whose update is in
/// parts, this replica's part. The loss goes with the last bucket.
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
        add_copies(recording, parameters, &mut sums)?;
        return Ok((
            LossSum {
                sum: loss.sum.clone(),
                count: loss.count.clone(),
            },
            sums,
        ));
    };
    let _scope = recording.trace().scope("exchange");
    let lays: Vec<Lay> = parameters
        .iter()
        .map(|parameter| lay(placements, parameter))
        .collect();
    let mut bucket = 0;
    for (kind, groups) in [
        (Lay::Parts, mesh.groups(&[Axis::Data])),
        (Lay::Whole, Some(everywhere.clone())),
    ] {
        let Some(groups) = groups else { continue };
        let members: Vec<usize> = (0..lays.len())
            .filter(|&index| lays[index] == kind)
            .collect();
        let sizes: Vec<usize> = members
            .iter()
            .map(|&member| gradients[member].shape().bytes())
            .collect();
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
    add_copies(recording, parameters, &mut sums)?;
    let loss = LossSum {
        sum: loss.sum.all_reduce(&everywhere, last)?,
        count: loss.count.all_reduce(&everywhere, last)?,
    };
    Ok((loss, sums))
}

/// Where several stages of a pipeline hold a parameter, each has the gradient of its own uses; all
/// get the sum, added up in the order of stages, so that the copies stay equal.
fn add_copies(
    recording: &Recording,
    parameters: &[ParameterSpec],
    sums: &mut [Tensor],
) -> Result<()> {
    if recording.placements().stages().is_none() {
        return Ok(());
    }
    let mut held: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, parameter) in parameters.iter().enumerate() {
        held.entry(stages::original_name(&parameter.name))
            .or_default()
            .push(index);
    }
    for members in held.into_values().filter(|members| members.len() > 1) {
        let mut total = sums[members[0]].clone();
        for &member in &members[1..] {
            total = total.add(&sums[member])?;
        }
        members
            .into_iter()
            .for_each(|member| sums[member] = total.clone());
    }
    Ok(())
}

/// The L2 norm of all gradients as [`sum`] gives them, `f32[]`.
pub fn norm(
    recording: &Recording,
    parameters: &[ParameterSpec],
    gradients: &[Tensor],
) -> Result<Tensor> {
    let stages = recording
        .placements()
        .stages()
        .map_or(1, |stages| stages.count());
    let mut total: Option<Tensor> = None;
    // Each stage adds up its own, so that they exchange a number each.
    for stage in 0..stages {
        let is_counted = |parameter: &ParameterSpec| {
            recording.placements().home(&parameter.name).unwrap_or(0) == stage
                && !stages::is_copy(&parameter.name)
        };
        let own: Vec<(&ParameterSpec, &Tensor)> = parameters
            .iter()
            .zip(gradients)
            .filter(|(parameter, _)| is_counted(parameter))
            .collect();
        let Some(squares) = squares(recording, &own)? else {
            continue;
        };
        total = Some(match total {
            Some(total) => total.add(&squares)?,
            None => squares,
        });
    }
    Ok(total.expect("a model has at least one parameter").sqrt()?)
}

/// The sum of the squares of these gradients, over all their parts.
fn squares(
    recording: &Recording,
    gradients: &[(&ParameterSpec, &Tensor)],
) -> Result<Option<Tensor>> {
    let (mesh, placements) = (recording.mesh(), recording.placements());
    let of = |wanted: &dyn Fn(Lay) -> bool| -> Vec<Tensor> {
        let pairs = gradients
            .iter()
            .filter(|(parameter, _)| wanted(lay(placements, parameter)));
        pairs.map(|(_, gradient)| (*gradient).clone()).collect()
    };
    let mut total = optim::sum_of_squares(&of(&|lay| lay == Lay::Whole))?;
    for (in_parts, axis) in [
        (of(&|lay| lay == Lay::Parts), Axis::Shard),
        (of(&|lay| matches!(lay, Lay::UpdateInParts(_))), Axis::Data),
    ] {
        if let (Some(squares), Some(groups)) =
            (optim::sum_of_squares(&in_parts)?, mesh.groups(&[axis]))
        {
            let squares = squares.all_reduce(&groups, 0)?;
            total = Some(match total {
                Some(total) => total.add(&squares)?,
                None => squares,
            });
        }
    }
    Ok(total)
}

/// The parameters as the stages of a pipeline hold them, copies in further stages after the first;
/// without a pipeline as they are.
pub fn held<'p>(
    placements: &Placements,
    parameters: &'p [ParameterSpec],
) -> Cow<'p, [ParameterSpec]> {
    let Some(stages) = placements.stages() else {
        return Cow::Borrowed(parameters);
    };
    let copies = |parameter: &'p ParameterSpec| {
        stages
            .users(&parameter.name)
            .iter()
            .map(|stage| ParameterSpec {
                name: stages.held_name(&parameter.name, &parameter.name, *stage),
                ..parameter.clone()
            })
    };
    Cow::Owned(parameters.iter().flat_map(copies).collect())
}

/// The part of each update that this replica computes.
pub struct UpdateParts {
    /// This replica's place along the data axis, `s32[]`; `None` where updates are whole.
    place: Option<Tensor>,
}

impl UpdateParts {
    pub fn of(recording: &mut Recording, parameters: &[ParameterSpec]) -> Result<Self> {
        let in_parts = |parameter| {
            matches!(
                lay(recording.placements(), parameter),
                Lay::UpdateInParts(_)
            )
        };
        if !parameters.iter().any(in_parts) {
            return Ok(UpdateParts { place: None });
        }
        let mesh = recording.mesh();
        let places: Vec<[i32; 1]> = (0..mesh.replicas())
            .map(|replica| [mesh.index(Axis::Data, replica) as i32])
            .collect();
        let shape = Shape::scalar(DType::S32);
        let place = recording.feed_host_each("data_index", &shape, |replica| {
            bytemuck::cast_slice(&places[replica])
        })?;
        Ok(UpdateParts { place: Some(place) })
    }

    /// What this replica updates of a parameter.
    pub fn cut(
        &self,
        recording: &Recording,
        parameter: &ParameterSpec,
        whole: &Tensor,
    ) -> Result<Tensor> {
        match (lay(recording.placements(), parameter), &self.place) {
            (Lay::UpdateInParts(split), Some(place)) => {
                let size = whole.dims()[split.dim] / split.parts;
                Ok(whole.dynamic_slice(&place.mul_scalar(size as f64)?, split.dim, size)?)
            }
            _ => Ok(whole.clone()),
        }
    }

    /// The whole parameter from what each replica updated.
    pub fn join(
        &self,
        recording: &Recording,
        parameter: &ParameterSpec,
        part: Tensor,
    ) -> Result<Tensor> {
        match (
            lay(recording.placements(), parameter),
            recording.mesh().groups(&[Axis::Data]),
        ) {
            (Lay::UpdateInParts(split), Some(groups)) => Ok(part.all_gather(&groups, split.dim)?),
            _ => Ok(part),
        }
    }
}
