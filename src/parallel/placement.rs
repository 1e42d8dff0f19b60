//! Where a value lies on the mesh: whole on every replica, or cut into parts along an axis.

use super::mesh::{Axis, Mesh};
use super::stages::{self, Stages};
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::Shape;

/// A value cut along one dimension, or each of some equal blocks of it, into equal parts, one for
/// each place along an axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub axis: Axis,
    pub dim: usize,
    pub blocks: usize,
    /// Places along the axis.
    pub parts: usize,
    /// Rows of zeros that fill the value up where it does not divide; only along the first
    /// dimension, in one block.
    pub filled: usize,
}

impl Split {
    /// The shape of a part; the dimension must divide once it is filled up.
    pub fn part_of(&self, shape: &Shape) -> Shape {
        let mut dims = self.filled_up(shape).dims;
        dims[self.dim] /= self.parts;
        Shape::new(shape.dtype, dims)
    }

    fn filled_up(&self, shape: &Shape) -> Shape {
        let mut dims = shape.dims.clone();
        dims[self.dim] += self.filled;
        Shape::new(shape.dtype, dims)
    }

    /// The shape without what fills it up.
    pub fn true_shape(&self, filled_up: &Shape) -> Shape {
        let mut dims = filled_up.dims.clone();
        dims[self.dim] -= self.filled;
        Shape::new(filled_up.dtype, dims)
    }

    /// The shape of the whole, filled up, of which this is a part's.
    pub fn whole_of(&self, part: &Shape) -> Shape {
        let mut dims = part.dims.clone();
        dims[self.dim] *= self.parts;
        Shape::new(part.dtype, dims)
    }

    /// Bytes of part `index` of a dense row-major value.
    pub fn cut(&self, bytes: &[u8], shape: &Shape, index: usize) -> Vec<u8> {
        let filled = self.filled_up(shape);
        let (run, whole) = self.runs(&filled);
        let mut bytes = std::borrow::Cow::Borrowed(bytes);
        if self.filled > 0 {
            bytes.to_mut().resize(filled.bytes(), 0);
        }
        bytes
            .chunks(whole)
            .flat_map(|row| &row[index * run..(index + 1) * run])
            .copied()
            .collect()
    }

    /// The whole, of shape `shape` when it is filled up, from all its parts, in order.
    pub fn join(&self, parts: &[Vec<u8>], shape: &Shape) -> Vec<u8> {
        let (run, whole) = self.runs(shape);
        let rows = shape.bytes().checked_div(whole).unwrap_or(0);
        let joined = (0..rows).flat_map(|row| {
            parts
                .iter()
                .flat_map(move |part| &part[row * run..(row + 1) * run])
        });
        joined
            .copied()
            .take(self.true_shape(shape).bytes())
            .collect()
    }

    /// Bytes that lie together in a part, and in the whole.
    fn runs(&self, shape: &Shape) -> (usize, usize) {
        let whole =
            shape.dims[self.dim..].iter().product::<usize>() * shape.dtype.size() / self.blocks;
        (whole / self.parts, whole.max(1))
    }
}

/// The splits of a run's state, by name; what has none is whole everywhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placements {
    /// Along the data or the shard axis. Recorded steps know of these.
    parts: HashMap<String, Split>,
    /// By parameter that is whole: the shards that replicas update, along the data axis (ZeRO-1).
    updates: HashMap<String, Split>,
    /// Along the tensor axis. Recorded steps are over what is whole along it; the graph is divided
    /// afterwards.
    tensor: HashMap<String, Split>,
    stages: Option<Arc<Stages>>,
    /// The stage that holds each state; what is not named here, all hold.
    homes: HashMap<String, usize>,
}

impl Placements {
    /// The stages of a pipeline, if there is one.
    pub fn stages(&self) -> Option<&Arc<Stages>> {
        self.stages.as_ref()
    }

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

    pub fn insert(&mut self, name: String, split: Split) {
        let splits = if split.axis == Axis::Tensor {
            &mut self.tensor
        } else {
            &mut self.parts
        };
        splits.insert(name, split);
    }

    /// Records that each replica updates its shard of a whole parameter.
    pub fn insert_update(&mut self, parameter: String, split: Split) {
        self.updates.insert(parameter, split);
    }

    /// The shards that replicas update of a whole parameter.
    pub fn of_update(&self, parameter: &str) -> Option<Split> {
        self.updates.get(parameter).copied()
    }

    /// The split along the data or the shard axis.
    pub fn of(&self, name: &str) -> Option<Split> {
        self.parts.get(name).copied()
    }

    /// The split along the tensor axis.
    pub fn of_tensor(&self, name: &str) -> Option<Split> {
        self.tensor.get(name).copied()
    }

    /// Everything that is split along the tensor axis.
    pub fn tensor_splits(&self) -> impl Iterator<Item = (&str, Split)> {
        self.tensor
            .iter()
            .map(|(name, split)| (name.as_str(), *split))
    }

    fn splits(&self, name: &str) -> impl Iterator<Item = Split> + use<> {
        [self.of_tensor(name), self.of(name)].into_iter().flatten()
    }

    /// The shape that one replica holds of a value.
    pub fn local(&self, name: &str, shape: &Shape) -> Shape {
        self.splits(name)
            .fold(shape.clone(), |shape, split| split.part_of(&shape))
    }

    /// Bytes that a replica of a stage holds of a value, its copy counted.
    pub fn held_bytes(&self, name: &str, shape: &Shape, stage: usize) -> u64 {
        let mut held = std::iter::once(name.to_string()).chain(self.copies(name));
        match held.any(|held| self.home(&held).is_none_or(|home| home == stage)) {
            true => self.local(name, shape).bytes() as u64,
            false => 0,
        }
    }

    /// The shape of a value of which a replica holds this.
    pub fn whole(&self, name: &str, held: &Shape) -> Shape {
        self.splits(name).fold(held.clone(), |shape, split| {
            split.true_shape(&split.whole_of(&shape))
        })
    }

    /// The shape that a recorded step has for a value of which a replica holds this.
    pub fn recorded(&self, name: &str, held: &Shape) -> Shape {
        self.of_tensor(name)
            .map_or_else(|| held.clone(), |split| split.whole_of(held))
    }

    /// Of a whole value that steps recorded, its true bytes and shape.
    pub fn unfilled(&self, name: &str, mut bytes: Vec<u8>, shape: &Shape) -> (Vec<u8>, Shape) {
        let shape = self
            .of_tensor(name)
            .map_or_else(|| shape.clone(), |split| split.true_shape(shape));
        bytes.truncate(shape.bytes());
        (bytes, shape)
    }

    /// What a replica holds of a value: its bytes.
    pub fn cut(
        &self,
        name: &str,
        bytes: &[u8],
        shape: &Shape,
        mesh: Mesh,
        replica: usize,
    ) -> Vec<u8> {
        let mut held = (bytes.to_vec(), shape.clone());
        for split in self.splits(name) {
            held = (
                split.cut(&held.0, &held.1, mesh.index(split.axis, replica)),
                split.part_of(&held.1),
            );
        }
        held.0
    }

    /// Which part of a value a replica holds: equal for replicas that hold the same.
    pub fn part(&self, name: &str, mesh: Mesh, replica: usize) -> usize {
        self.splits(name).fold(0, |part, split| {
            part * split.parts + mesh.index(split.axis, replica)
        })
    }

    /// A whole value from what replicas hold, part by part in the order of [`Placements::part`].
    pub fn join(&self, name: &str, mut parts: Vec<Vec<u8>>, held: &Shape) -> Vec<u8> {
        let splits: Vec<Split> = self.splits(name).collect();
        let mut shape = held.clone();
        for split in splits.iter().rev() {
            shape = split.whole_of(&shape);
            parts = parts
                .chunks(split.parts)
                .map(|parts| split.join(parts, &shape))
                .collect();
            shape = split.true_shape(&shape);
        }
        parts.pop().unwrap_or_default()
    }

    /// Parts that a value is cut into.
    pub fn count(&self, name: &str) -> usize {
        self.splits(name).map(|split| split.parts).product()
    }
}

/// The split of a parameter along `axis`: at its first dimension that divides and is not `taken`.
/// Vectors stay whole, as does what has no such dimension: they are a thousandth of a model, and a
/// collective costs the same for little as for much.
pub fn split(dims: &[usize], mesh: Mesh, axis: Axis, taken: Option<usize>) -> Option<Split> {
    let parts = mesh.size(axis);
    if parts == 1 || dims.len() < 2 {
        return None;
    }
    let dim = (0..dims.len())
        .find(|dim| dims[*dim].is_multiple_of(parts) && dims[*dim] > 0 && taken != Some(*dim))?;
    Some(Split {
        axis,
        dim,
        blocks: 1,
        parts,
        filled: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_graphs::DType;

    #[test]
    fn what_is_cut_joins_again() {
        let shape = Shape::new(DType::U8, [2, 6]);
        let bytes: Vec<u8> = (0..12).collect();
        for (dim, parts, second) in [(1, 3, vec![2, 3, 8, 9]), (0, 2, vec![6, 7, 8, 9, 10, 11])] {
            let split = Split {
                axis: Axis::Shard,
                dim,
                blocks: 1,
                parts,
                filled: 0,
            };
            let cut: Vec<Vec<u8>> = (0..parts)
                .map(|index| split.cut(&bytes, &shape, index))
                .collect();
            assert_eq!(cut[1], second);
            assert_eq!(cut[1].len(), split.part_of(&shape).bytes());
            assert_eq!(split.join(&cut, &shape), bytes);
        }
    }

    #[test]
    fn the_first_dimension_that_divides_is_cut() {
        let mesh = Mesh {
            shard: 4,
            ..Mesh::single()
        };
        let dim = |dims: &[usize]| split(dims, mesh, Axis::Shard, None).map(|split| split.dim);
        assert_eq!(dim(&[50257, 768]), Some(1));
        assert_eq!(dim(&[768, 3072]), Some(0));
        assert_eq!((dim(&[768]), dim(&[3, 5])), (None, None));
        assert_eq!(split(&[768, 3072], mesh, Axis::Data, None), None);
        assert_eq!(
            split(&[768, 3072], mesh, Axis::Shard, Some(0)).map(|split| split.dim),
            Some(1)
        );
    }

    #[test]
    fn what_does_not_divide_is_filled_up() {
        let mesh = Mesh {
            tensor: 2,
            ..Mesh::single()
        };
        let mut placements = Placements::default();
        placements.insert(
            "w".into(),
            Split {
                axis: Axis::Tensor,
                dim: 0,
                blocks: 1,
                parts: 2,
                filled: 1,
            },
        );
        let shape = Shape::new(DType::U8, [3, 2]);
        let bytes: Vec<u8> = (1..7).collect();
        let held = |replica: usize| placements.cut("w", &bytes, &shape, mesh, replica);
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
        assert_eq!(placements.join("w", vec![held(0), held(1)], &local), bytes);
        assert_eq!(
            placements.unfilled(
                "w",
                vec![1, 2, 3, 4, 5, 6, 0, 0],
                &placements.recorded("w", &local)
            ),
            (bytes, shape)
        );
    }

    #[test]
    fn parts_of_parts_join_again() {
        let mesh = Mesh {
            shard: 2,
            tensor: 2,
            ..Mesh::single()
        };
        let mut placements = Placements::default();
        placements.insert(
            "w".into(),
            Split {
                axis: Axis::Tensor,
                dim: 1,
                blocks: 3,
                parts: 2,
                filled: 0,
            },
        );
        placements.insert(
            "w".into(),
            Split {
                axis: Axis::Shard,
                dim: 0,
                blocks: 1,
                parts: 2,
                filled: 0,
            },
        );
        let shape = Shape::new(DType::U8, [2, 12]);
        let bytes: Vec<u8> = (0..24).collect();
        let held = |replica: usize| placements.cut("w", &bytes, &shape, mesh, replica);
        assert_eq!(held(1), [2, 3, 6, 7, 10, 11]);
        assert_eq!(held(2), [12, 13, 16, 17, 20, 21]);
        let mut replicas: Vec<usize> = (0..4).collect();
        replicas.sort_by_key(|replica| placements.part("w", mesh, *replica));
        let parts = replicas.into_iter().map(held).collect();
        assert_eq!(
            placements.join("w", parts, &placements.local("w", &shape)),
            bytes
        );
        assert_eq!(placements.whole("w", &placements.local("w", &shape)), shape);
    }
}
