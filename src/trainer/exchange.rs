//! What replicas exchange in a step: sums of gradients and losses, the norm over all of them, and,
//! where each replica updates its shard only, the shards.
//!
//! A parameter has one of three placements (`Placement`). Replicated: its gradients are summed
//! (all-reduce). Sharded along the shard axis (ZeRO-3, Rajbhandari et al. 2020): the backward pass
//! has summed them within the group already (reduce-scatter, the VJP of the all-gather), and what
//! is left is the sum over groups (MiCS, Zhang et al. 2022). Replicated, but with its optimizer
//! state sharded along the data axis (ZeRO-1): each replica gets the sum of its shard, updates
//! that, and the new shards are gathered (all-gather).

use super::error::Result;
use super::session::Recording;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use xtrain_graphs::optim::{Optimizer, StateSpec, UpdateShard};
use xtrain_graphs::passes::partition::ShardSpec;
use xtrain_graphs::{DType, Shape, Tensor, optim};
use xtrain_models::{LossSum, ParameterSpec};
use xtrain_parallel::buckets::buckets;
use xtrain_parallel::{Axis, AxisSharding, Mesh, Placements, Stages, ZeroSharding, stages};

/// How a parameter and its update are placed on the replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Placement {
    Replicated,
    Sharded,
    /// Only the optimizer's state, and with it the update.
    ShardedUpdate(ZeroSharding),
}

impl Placement {
    fn of(placements: &Placements, parameter: &ParameterSpec) -> Self {
        match (
            placements.of(&parameter.name),
            placements.of_update(&parameter.name),
        ) {
            (Some(_), _) => Placement::Sharded,
            (None, Some(sharding)) => Placement::ShardedUpdate(sharding),
            (None, None) => Placement::Replicated,
        }
    }
}

/// Names of the state that belongs to a parameter; none where it is not trained.
#[derive(Default)]
pub struct ParameterState {
    /// Optimizer state: sharded with the parameter along the dimensions that it has of it, and in
    /// ZeRO-1 without it.
    pub kept: Vec<(String, StateSpec)>,
    /// The accumulated gradient, if the parameter is trained: sharded with it.
    pub sum: Option<String>,
}

/// Where a run's state is placed: `of_parameter` names the state of a parameter, by the name that
/// one of its stages gives it; `tensor` are the parameters that are sharded along the tensor axis;
/// `shard_optimizer_state` shards the optimizer state of replicated parameters.
pub fn placements(
    parameters: &[ParameterSpec],
    mesh: Mesh,
    tensor: &HashMap<String, ShardSpec>,
    shard_optimizer_state: bool,
    stages: Option<&Arc<Stages>>,
    of_parameter: impl Fn(&ParameterSpec, &str) -> ParameterState,
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
        let ParameterState { kept, sum } = of_parameter(parameter, &name);
        let arrays: Vec<(String, Vec<usize>)> = parameter
            .arrays(DType::F32)
            .into_iter()
            .map(|array| match (stages, stage) {
                (Some(stages), Some(stage)) => {
                    let held = stages.held_name(&parameter.name, &array.name, stage);
                    (held, array.along)
                }
                _ => (array.name, array.along),
            })
            .collect();
        if let Some(stage) = stage {
            let kept = kept.iter().map(|(name, _)| name);
            kept.chain(&sum)
                .chain(arrays.iter().map(|(name, _)| name))
                .for_each(|name| placements.set_home(name.clone(), stage));
        }
        // What is sharded with the parameter's dimension, each with the dimension that this is of it.
        let kept_along = |dim: usize| {
            let of = move |along: &[usize]| along.iter().position(|known| *known == dim);
            kept.iter()
                .filter_map(move |(name, state)| Some((name.clone(), of(&state.along)?)))
        };
        let all_along = |dim: usize| {
            let of = move |along: &[usize]| along.iter().position(|known| *known == dim);
            let arrays = arrays.iter();
            let arrays = arrays.filter_map(move |(name, along)| Some((name.clone(), of(along)?)));
            let sums = sum.iter().map(move |name| (name.clone(), dim));
            kept_along(dim).chain(sums).chain(arrays)
        };
        let tensor_spec = tensor.get(&parameter.name);
        if let Some(&spec) = tensor_spec {
            let parts = mesh.size(Axis::Tensor);
            let size = parameter.dims[spec.dim];
            let padding = size.next_multiple_of(parts * spec.blocks) - size;
            // Where blocks of numbers would be cut, each replica has all their scales; so it has where rows
            // that are only padding are no blocks of their own.
            let mut padded = parameter.dims.clone();
            padded[spec.dim] += padding;
            let is_whole = |name: &str| {
                let mut kept = kept.iter();
                kept.any(|(known, state)| {
                    let is_cut = !state.can_shard(&padded, spec.dim, parts * spec.blocks);
                    let is_joined = padding > 0 && state.along.last() == Some(&spec.dim);
                    known == name && state.per_block && (is_cut || is_joined)
                })
            };
            for (name, dim) in all_along(spec.dim).filter(|(name, _)| !is_whole(name)) {
                let sharding = AxisSharding {
                    axis: Axis::Tensor,
                    spec: spec.along(dim),
                    parts,
                    padding,
                };
                placements.insert_tensor(name, sharding);
            }
        }
        let taken = tensor_spec.map(|spec| spec.dim);
        let units = parameter.units();
        let along = |axis| {
            let can = |dim: usize| {
                let parts = mesh.size(axis);
                let mut kept = kept.iter();
                let can_shard = kept.all(|(_, own)| own.can_shard(&parameter.dims, dim, parts));
                taken != Some(dim) && can_shard
            };
            ZeroSharding::of(&units, mesh, axis, can)
        };
        if let Some(sharding) = along(Axis::Shard) {
            for (name, dim) in all_along(sharding.dim) {
                placements.insert_zero(name, ZeroSharding { dim, ..sharding });
            }
        } else if let Some(sharding) = along(Axis::Data)
            && shard_optimizer_state
            && !kept.is_empty()
        {
            for (name, dim) in kept_along(sharding.dim) {
                placements.insert_zero(name, ZeroSharding { dim, ..sharding });
            }
            placements.insert_update(name, sharding);
        }
    }
    placements
}

/// The sums over all replicas of the loss and of each gradient; of a gradient whose update is
/// sharded, this replica's shard. The loss goes with the last bucket.
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
        return Ok((loss.clone(), sums));
    };
    let _scope = recording.trace().scope("exchange");
    let kinds: Vec<Placement> = parameters
        .iter()
        .map(|parameter| Placement::of(placements, parameter))
        .collect();
    let mut bucket = 0;
    for (kind, groups) in [
        (Placement::Sharded, mesh.groups(&[Axis::Data])),
        (Placement::Replicated, Some(everywhere.clone())),
    ] {
        let Some(groups) = groups else { continue };
        let members: Vec<usize> = (0..kinds.len())
            .filter(|&index| kinds[index] == kind)
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
    for (index, kind) in kinds.iter().enumerate().rev() {
        if let (Placement::ShardedUpdate(sharding), Some(groups)) =
            (kind, mesh.groups(&[Axis::Data]))
        {
            sums[index] = gradients[index].reduce_scatter(&groups, sharding.dim)?;
        }
    }
    let last = bucket.saturating_sub(1);
    add_copies(recording, parameters, &mut sums)?;
    let loss = LossSum {
        sum: loss.sum.all_reduce(&everywhere, last)?,
        count: loss.count.all_reduce(&everywhere, last)?,
        measured: match &loss.measured {
            Some(measured) => Some(measured.all_reduce(&everywhere, last)?),
            None => None,
        },
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
    let norm = total.expect("at least one parameter is trained").sqrt()?;
    if every_stage_trains(recording.placements(), parameters) {
        return Ok(norm);
    }
    // It would be the other stages' alone, and so would what all stages make of it: the loss scale,
    // the metrics.
    let _everywhere = recording.trace().at_every_stage();
    Ok(norm.stop_gradient()?)
}

/// The sum of the squares of these gradients, over all their shards.
fn squares(
    recording: &Recording,
    gradients: &[(&ParameterSpec, &Tensor)],
) -> Result<Option<Tensor>> {
    let (mesh, placements) = (recording.mesh(), recording.placements());
    let of = |wanted: &dyn Fn(Placement) -> bool| -> Vec<Tensor> {
        let pairs = gradients
            .iter()
            .filter(|(parameter, _)| wanted(Placement::of(placements, parameter)));
        pairs.map(|(_, gradient)| (*gradient).clone()).collect()
    };
    let mut total = optim::sum_of_squares(&of(&|kind| kind == Placement::Replicated))?;
    for (sharded, axis) in [
        (of(&|kind| kind == Placement::Sharded), Axis::Shard),
        (
            of(&|kind| matches!(kind, Placement::ShardedUpdate(_))),
            Axis::Data,
        ),
    ] {
        if let (Some(squares), Some(groups)) =
            (optim::sum_of_squares(&sharded)?, mesh.groups(&[axis]))
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

/// Whether each stage holds some of `trained`, and so computes a part of the gradients' norm.
fn every_stage_trains(placements: &Placements, trained: &[ParameterSpec]) -> bool {
    let count = placements.stages().map_or(1, |stages| stages.count());
    (0..count).all(|stage| {
        let mut homes = trained.iter().map(|p| placements.home(&p.name));
        homes.any(|home| home.unwrap_or(0) == stage)
    })
}

/// The shard of each update that this replica computes: of a replicated parameter in ZeRO-1, of its
/// shard of a parameter in ZeRO-3.
pub struct ShardedUpdates {
    /// This replica's index along the data axis, `s32[]`; `None` where no update is sharded along it.
    data_index: Option<Tensor>,
    /// The same along the shard axis; `None` too where nothing needs it.
    shard_index: Option<Tensor>,
}

impl ShardedUpdates {
    /// Feeds the replica's index along each axis where the updates of `parameters` need it.
    ///
    /// # Errors
    /// If the upload fails.
    pub fn new(
        recording: &mut Recording,
        parameters: &[ParameterSpec],
        optimizer: &dyn Optimizer,
    ) -> Result<Self> {
        let placements = recording.placements();
        let has = |wanted: fn(Placement) -> bool| {
            let mut all = parameters.iter();
            all.any(|parameter| wanted(Placement::of(placements, parameter)))
        };
        let by_data = has(|found| matches!(found, Placement::ShardedUpdate(_)));
        let by_shard = optimizer.gathers_shards() && has(|found| found == Placement::Sharded);
        let mut index = |is_needed: bool, name, axis| -> Result<Option<Tensor>> {
            if !is_needed {
                return Ok(None);
            }
            let mesh = recording.mesh();
            let indices: Vec<[i32; 1]> = (0..mesh.replicas())
                .map(|replica| [mesh.index(axis, replica) as i32])
                .collect();
            let shape = Shape::scalar(DType::S32);
            let index = recording.feed_host_each(name, &shape, |replica| {
                bytemuck::cast_slice(&indices[replica])
            })?;
            Ok(Some(index))
        };
        Ok(ShardedUpdates {
            data_index: index(by_data, "data_index", Axis::Data)?,
            shard_index: index(by_shard, "shard_index", Axis::Shard)?,
        })
    }

    /// How the update of this replica's shard reaches the others; `None` of a whole parameter.
    pub fn others(&self, recording: &Recording, parameter: &ParameterSpec) -> Option<UpdateShard> {
        let placements = recording.placements();
        let (sharding, index) = match Placement::of(placements, parameter) {
            Placement::Replicated => return None,
            Placement::Sharded => (placements.of(&parameter.name)?, &self.shard_index),
            Placement::ShardedUpdate(sharding) => (sharding, &self.data_index),
        };
        Some(UpdateShard {
            dim: sharding.dim,
            groups: recording.mesh().groups(&[sharding.axis])?,
            index: index.clone(),
        })
    }

    /// What this replica updates of a parameter.
    ///
    /// # Errors
    /// If the graph refuses the slice.
    pub fn shard(
        &self,
        recording: &Recording,
        parameter: &ParameterSpec,
        whole: &Tensor,
    ) -> Result<Tensor> {
        let placement = Placement::of(recording.placements(), parameter);
        match (placement, &self.data_index) {
            (Placement::ShardedUpdate(sharding), Some(index)) => {
                let dim = sharding.dim;
                let size = whole.dims()[dim] / sharding.parts;
                Ok(whole.dynamic_slice(&index.mul_scalar(size as f64)?, dim, size)?)
            }
            _ => Ok(whole.clone()),
        }
    }

    /// The whole parameter from what each replica updated.
    ///
    /// # Errors
    /// If the graph refuses the all-gather.
    pub fn gather(
        &self,
        recording: &Recording,
        parameter: &ParameterSpec,
        shard: Tensor,
    ) -> Result<Tensor> {
        let placement = Placement::of(recording.placements(), parameter);
        match (placement, recording.mesh().groups(&[Axis::Data])) {
            (Placement::ShardedUpdate(sharding), Some(groups)) => {
                Ok(shard.all_gather(&groups, sharding.dim)?)
            }
            _ => Ok(shard),
        }
    }
}
