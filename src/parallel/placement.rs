//! Where a value lies on the mesh: replicated, or sharded along an axis.

use super::mesh::{Axis, Mesh};
use super::stages::{self, Stages};
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::Shape;
use xtrain_graphs::passes::partition::{ShardSpec, shard};

/// A value sharded over an axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisSharding {
    /// The axis whose replicas hold the shards.
    pub axis: Axis,
    /// The dimension, and the blocks that are divided.
    pub spec: ShardSpec,
    /// The size of the axis.
    pub parts: usize,
    /// Rows of zeros that pad the value where it does not divide; only along the first dimension,
    /// in one block.
    pub padding: usize,
}

impl AxisSharding {
    /// The shape of a shard; the dimension must divide once it is padded.
    pub fn shard_of(&self, shape: &Shape) -> Shape {
        let mut dims = self.padded(shape).dims;
        dims[self.spec.dim] /= self.parts;
        Shape::new(shape.dtype, dims)
    }

    fn padded(&self, shape: &Shape) -> Shape {
        let mut dims = shape.dims.clone();
        dims[self.spec.dim] += self.padding;
        Shape::new(shape.dtype, dims)
    }

    /// The shape without its padding.
    pub fn unpadded(&self, padded: &Shape) -> Shape {
        let mut dims = padded.dims.clone();
        dims[self.spec.dim] -= self.padding;
        Shape::new(padded.dtype, dims)
    }

    /// The shape of the whole, padded, of which this is a shard's.
    pub fn whole_of(&self, shard: &Shape) -> Shape {
        let mut dims = shard.dims.clone();
        dims[self.spec.dim] *= self.parts;
        Shape::new(shard.dtype, dims)
    }

    /// Bytes of shard `index` of a dense row-major value.
    pub fn shard(&self, bytes: &[u8], shape: &Shape, index: usize) -> Vec<u8> {
        let padded = self.padded(shape);
        let (run, whole) = self.runs(&padded);
        let mut bytes = std::borrow::Cow::Borrowed(bytes);
        if self.padding > 0 {
            bytes.to_mut().resize(padded.bytes(), 0);
        }
        let mut shard = Vec::with_capacity(padded.bytes() / self.parts);
        for row in bytes.chunks(whole) {
            shard.extend_from_slice(&row[index * run..(index + 1) * run]);
        }
        shard
    }

    /// The wholes, each of shape `shape` when it is padded, from all their shards, one after the
    /// other in order.
    pub fn join(&self, mut shards: Vec<u8>, shape: &Shape) -> Vec<u8> {
        let (run, row) = self.runs(shape);
        let (rows, shard) = (shape.bytes() / row, shape.bytes() / self.parts);
        let unpadded = self.unpadded(shape).bytes();
        if rows == 1 && (self.padding == 0 || shards.len() == shape.bytes()) {
            // They lie as they should, but for the padding at the end.
            if self.padding > 0 {
                shards.truncate(unpadded);
            }
            return shards;
        }
        let mut joined = Vec::with_capacity(shards.len());
        for whole in shards.chunks_exact(shape.bytes().max(1)) {
            let begin = joined.len();
            for row in 0..rows {
                for shard in whole.chunks_exact(shard) {
                    joined.extend_from_slice(&shard[row * run..(row + 1) * run]);
                }
            }
            joined.truncate(begin + unpadded);
        }
        joined
    }

    /// Bytes that lie together in a shard, and in the whole.
    fn runs(&self, shape: &Shape) -> (usize, usize) {
        let whole = shape.dims[self.spec.dim..].iter().product::<usize>() * shape.dtype.size()
            / self.spec.blocks;
        (whole / self.parts, whole.max(1))
    }
}

/// A dimension that ZeRO shards evenly over an axis of the mesh.
///
/// Unlike tensor parallelism ([`AxisSharding`]), which shards by logical axes because a layer
/// computes with its shard, ZeRO gathers a parameter whole before a layer uses it, and an
/// optimizer's rule gets sums over all shards (`xtrain_graphs::optim::Update`). What a dimension
/// stands for therefore changes no number and no layer's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSharding {
    /// The shard axis (ZeRO-3) or the data axis (ZeRO-1).
    pub axis: Axis,
    /// The dimension.
    pub dim: usize,
    /// The size of the axis, which divides the dimension.
    pub parts: usize,
}

impl ZeroSharding {
    /// The sharding along `axis` of a parameter of these sizes: at its first dimension that divides
    /// and that it `can` be sharded along: tensor parallelism has not taken it, no block of numbers is cut.
    ///
    /// The outermost one is best because its shards are contiguous, so that collectives move no
    /// element twice. Vectors stay replicated, as does what has no such dimension: they are a
    /// thousandth of a model, and a collective costs the same for little as for much.
    pub fn of(dims: &[usize], mesh: Mesh, axis: Axis, can: impl Fn(usize) -> bool) -> Option<Self> {
        let parts = mesh.size(axis);
        if parts == 1 || dims.len() < 2 {
            return None;
        }
        let divides = |dim: &usize| dims[*dim].is_multiple_of(parts) && dims[*dim] > 0;
        let dim = (0..dims.len()).find(|dim| divides(dim) && can(*dim))?;
        Some(ZeroSharding { axis, dim, parts })
    }
}

impl From<ZeroSharding> for AxisSharding {
    fn from(ZeroSharding { axis, dim, parts }: ZeroSharding) -> Self {
        AxisSharding {
            axis,
            spec: shard(dim),
            parts,
            padding: 0,
        }
    }
}

/// How a run's state is sharded, by name; what is not named is replicated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placements {
    /// Along the data or the shard axis. Recorded steps know of these.
    sharded: HashMap<String, ZeroSharding>,
    /// By parameter that is replicated: the shards that replicas update, along the data axis (ZeRO-1).
    updates: HashMap<String, ZeroSharding>,
    /// Along the tensor axis. Recorded steps are over what is whole along it; the graph is partitioned
    /// afterwards.
    tensor: HashMap<String, AxisSharding>,
    stages: Option<Arc<Stages>>,
    /// The stage that holds each state; what is not named here, all hold.
    homes: HashMap<String, usize>,
}

impl Placements {
    /// The stages of a pipeline, if there is one.
    pub fn stages(&self) -> Option<&Arc<Stages>> {
        self.stages.as_ref()
    }

    /// Sets how layers are divided among a pipeline's stages.
    pub fn set_stages(&mut self, stages: Arc<Stages>) {
        self.stages = Some(stages);
    }

    /// Says which stage holds a state.
    pub fn set_home(&mut self, name: String, stage: usize) {
        self.homes.insert(name, stage);
    }

    /// The stage that holds a state; `None` if each does, or there are no stages.
    pub fn home(&self, name: &str) -> Option<usize> {
        self.homes.get(name).copied()
    }

    /// What a value is called in other stages that hold it too.
    pub fn copies(&self, name: &str) -> impl Iterator<Item = String> {
        let stages = self.stages.as_ref().map_or(0, |stages| stages.count());
        let copies = (0..stages)
            .map(|stage| stages::copy_name(name, stage))
            .filter(|copy| self.homes.contains_key(copy));
        copies.collect::<Vec<_>>().into_iter()
    }

    /// Shards a value along the data or the shard axis.
    pub fn insert_zero(&mut self, name: String, sharding: ZeroSharding) {
        self.sharded.insert(name, sharding);
    }

    /// Shards a value along the tensor axis.
    pub fn insert_tensor(&mut self, name: String, sharding: AxisSharding) {
        self.tensor.insert(name, sharding);
    }

    /// Records that each replica updates its shard of a whole parameter.
    pub fn insert_update(&mut self, parameter: String, sharding: ZeroSharding) {
        self.updates.insert(parameter, sharding);
    }

    /// The shards that replicas update of a whole parameter.
    pub fn of_update(&self, parameter: &str) -> Option<ZeroSharding> {
        self.updates.get(parameter).copied()
    }

    /// The sharding along the data or the shard axis.
    pub fn of(&self, name: &str) -> Option<ZeroSharding> {
        self.sharded.get(name).copied()
    }

    /// The sharding along the tensor axis.
    pub fn of_tensor(&self, name: &str) -> Option<AxisSharding> {
        self.tensor.get(name).copied()
    }

    /// Everything that is sharded along the tensor axis.
    pub fn tensor_shardings(&self) -> impl Iterator<Item = (&str, AxisSharding)> {
        self.tensor
            .iter()
            .map(|(name, sharding)| (name.as_str(), *sharding))
    }

    fn shardings(&self, name: &str) -> impl Iterator<Item = AxisSharding> + use<> {
        let zero = self.of(name).map(AxisSharding::from);
        [self.of_tensor(name), zero].into_iter().flatten()
    }

    /// The shape that one replica holds of a value.
    pub fn local(&self, name: &str, shape: &Shape) -> Shape {
        self.shardings(name)
            .fold(shape.clone(), |shape, sharding| sharding.shard_of(&shape))
    }

    /// Bytes that a replica of a stage holds of a value, its copy counted.
    pub fn held_bytes(&self, name: &str, shape: &Shape, stage: usize) -> u64 {
        let mut held = std::iter::once(name.to_string()).chain(self.copies(name));
        if held.any(|held| self.home(&held).is_none_or(|home| home == stage)) {
            self.local(name, shape).bytes() as u64
        } else {
            0
        }
    }

    /// The shape of a value of which a replica holds this.
    pub fn whole(&self, name: &str, held: &Shape) -> Shape {
        self.shardings(name).fold(held.clone(), |shape, sharding| {
            sharding.unpadded(&sharding.whole_of(&shape))
        })
    }

    /// The shape that a recorded step has for a value of which a replica holds this.
    pub fn recorded(&self, name: &str, held: &Shape) -> Shape {
        self.of_tensor(name)
            .map_or_else(|| held.clone(), |sharding| sharding.whole_of(held))
    }

    /// Of a whole value that steps recorded, its true bytes and shape.
    pub fn unpadded(&self, name: &str, mut bytes: Vec<u8>, shape: &Shape) -> (Vec<u8>, Shape) {
        let shape = self
            .of_tensor(name)
            .map_or_else(|| shape.clone(), |sharding| sharding.unpadded(shape));
        bytes.truncate(shape.bytes());
        (bytes, shape)
    }

    /// What a replica holds of a value: its bytes.
    pub fn shard(
        &self,
        name: &str,
        bytes: &[u8],
        shape: &Shape,
        mesh: Mesh,
        replica: usize,
    ) -> Vec<u8> {
        let mut held = (bytes.to_vec(), shape.clone());
        for sharding in self.shardings(name) {
            held = (
                sharding.shard(&held.0, &held.1, mesh.index(sharding.axis, replica)),
                sharding.shard_of(&held.1),
            );
        }
        held.0
    }

    /// Which shard of a value a replica holds: equal for replicas that hold the same.
    pub fn shard_index(&self, name: &str, mesh: Mesh, replica: usize) -> usize {
        self.shardings(name).fold(0, |index, sharding| {
            index * sharding.parts + mesh.index(sharding.axis, replica)
        })
    }

    /// A whole value from what replicas hold, shard after shard in the order of
    /// [`Placements::shard_index`].
    pub fn join(&self, name: &str, mut shards: Vec<u8>, held: &Shape) -> Vec<u8> {
        let shardings: Vec<AxisSharding> = self.shardings(name).collect();
        let mut shape = held.clone();
        for sharding in shardings.iter().rev() {
            shape = sharding.whole_of(&shape);
            shards = sharding.join(shards, &shape);
            shape = sharding.unpadded(&shape);
        }
        shards
    }

    /// Shards of a value.
    pub fn count(&self, name: &str) -> usize {
        self.shardings(name)
            .map(|sharding| sharding.parts)
            .product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_graphs::DType;

    #[test]
    fn shards_join_again() {
        let shape = Shape::new(DType::U8, [2, 6]);
        let bytes: Vec<u8> = (0..12).collect();
        for (dim, parts, second) in [(1, 3, vec![2, 3, 8, 9]), (0, 2, vec![6, 7, 8, 9, 10, 11])] {
            let sharding = AxisSharding::from(ZeroSharding {
                axis: Axis::Shard,
                dim,
                parts,
            });
            let shards: Vec<Vec<u8>> = (0..parts)
                .map(|index| sharding.shard(&bytes, &shape, index))
                .collect();
            assert_eq!(shards[1], second);
            assert_eq!(shards[1].len(), sharding.shard_of(&shape).bytes());
            assert_eq!(sharding.join(shards.concat(), &shape), bytes);
        }
    }

    #[test]
    fn the_first_dimension_that_divides_is_sharded() {
        let mesh = Mesh {
            shard: 4,
            ..Mesh::single()
        };
        let dim = |dims: &[usize]| {
            ZeroSharding::of(dims, mesh, Axis::Shard, |_| true).map(|sharding| sharding.dim)
        };
        assert_eq!(dim(&[50257, 768]), Some(1));
        assert_eq!(dim(&[768, 3072]), Some(0));
        assert_eq!((dim(&[768]), dim(&[3, 5])), (None, None));
        let any = |_| true;
        assert_eq!(ZeroSharding::of(&[768, 3072], mesh, Axis::Data, any), None);
        let untaken = ZeroSharding::of(&[768, 3072], mesh, Axis::Shard, |dim| dim != 0);
        assert_eq!(untaken.map(|sharding| sharding.dim), Some(1));
    }

    #[test]
    fn what_does_not_divide_is_padded() {
        let mesh = Mesh {
            tensor: 2,
            ..Mesh::single()
        };
        let mut placements = Placements::default();
        placements.insert_tensor(
            "w".into(),
            AxisSharding {
                axis: Axis::Tensor,
                spec: shard(0),
                parts: 2,
                padding: 1,
            },
        );
        let shape = Shape::new(DType::U8, [3, 2]);
        let bytes: Vec<u8> = (1..7).collect();
        let held = |replica: usize| placements.shard("w", &bytes, &shape, mesh, replica);
        assert_eq!((held(0), held(1)), (vec![1, 2, 3, 4], vec![5, 6, 0, 0]));
        let local = placements.local("w", &shape);
        assert_eq!(
            (
                local.dims.as_slice(),
                placements.recorded("w", &local).dims.as_slice()
            ),
            (&[2, 2][..], &[4, 2][..])
        );
        assert_eq!(placements.whole("w", &local), shape);
        assert_eq!(
            placements.join("w", [held(0), held(1)].concat(), &local),
            bytes
        );
        assert_eq!(
            placements.unpadded(
                "w",
                vec![1, 2, 3, 4, 5, 6, 0, 0],
                &placements.recorded("w", &local)
            ),
            (bytes, shape)
        );
    }

    #[test]
    fn shards_of_shards_join_again() {
        let mesh = Mesh {
            shard: 2,
            tensor: 2,
            ..Mesh::single()
        };
        let mut placements = Placements::default();
        placements.insert_tensor(
            "w".into(),
            AxisSharding {
                axis: Axis::Tensor,
                spec: ShardSpec { dim: 1, blocks: 3 },
                parts: 2,
                padding: 0,
            },
        );
        placements.insert_zero(
            "w".into(),
            ZeroSharding {
                axis: Axis::Shard,
                dim: 0,
                parts: 2,
            },
        );
        let shape = Shape::new(DType::U8, [2, 12]);
        let bytes: Vec<u8> = (0..24).collect();
        let held = |replica: usize| placements.shard("w", &bytes, &shape, mesh, replica);
        assert_eq!(held(1), [2, 3, 6, 7, 10, 11]);
        assert_eq!(held(2), [12, 13, 16, 17, 20, 21]);
        let mut replicas: Vec<usize> = (0..4).collect();
        replicas.sort_by_key(|replica| placements.shard_index("w", mesh, *replica));
        let shards = replicas.into_iter().flat_map(held).collect();
        assert_eq!(
            placements.join("w", shards, &placements.local("w", &shape)),
            bytes
        );
        assert_eq!(placements.whole("w", &placements.local("w", &shape)), shape);
    }
}
