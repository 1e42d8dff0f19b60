//! The mesh: which replicas there are and which of them belong together.
//!
//! Device number = ((stage index x D + data index) x S + shard index) x T + tensor index: tensor
//! groups, which talk most, sit closest, and stages, which talk least, farthest apart. The devices
//! of one stage are the *replicas* that run its graphs, numbered from 0 in each stage.

/// The arrangement of a run's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// P: groups of devices that hold consecutive layers of the model and pass microbatches on
    /// (pipeline parallelism).
    pub stage: usize,
    /// D: replicas, or groups of them, that hold the same state and take different rows of each
    /// batch.
    pub data: usize,
    /// S: replicas that hold one part each of every parameter's state and take different rows too.
    pub shard: usize,
    /// T: replicas that compute one part each of every layer for the same rows.
    pub tensor: usize,
}

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Replicas with other rows and all of the state.
    Data,
    /// Replicas with other rows and a part of the state each (ZeRO-3, FSDP).
    Shard,
    /// Replicas with the same rows and a part of each layer (Megatron).
    Tensor,
}

impl Axis {
    /// From the slowest-varying to the fastest in replica numbers.
    pub const ALL: [Axis; 3] = [Axis::Data, Axis::Shard, Axis::Tensor];
}

/// As plans name it.
impl std::fmt::Display for Axis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Axis::Data => "data",
            Axis::Shard => "shard",
            Axis::Tensor => "tensor",
        })
    }
}

impl Mesh {
    /// `data` replicas (at least 1) that share each batch.
    pub fn data_parallel(data: usize) -> Self {
        Mesh {
            data: data.max(1),
            ..Self::single()
        }
    }

    /// One device.
    pub fn single() -> Self {
        Mesh {
            stage: 1,
            data: 1,
            shard: 1,
            tensor: 1,
        }
    }

    /// Every mesh of this many devices.
    pub fn all_of(devices: usize) -> Vec<Self> {
        let dividing = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
        let mut meshes = Vec::new();
        for data in dividing(devices) {
            for shard in dividing(devices / data) {
                for tensor in dividing(devices / data / shard) {
                    meshes.push(Mesh {
                        stage: devices / data / shard / tensor,
                        data,
                        shard,
                        tensor,
                    });
                }
            }
        }
        meshes
    }

    /// All devices of the run.
    pub fn devices(self) -> usize {
        self.stage * self.replicas()
    }

    /// The devices of one stage.
    pub fn replicas(self) -> usize {
        self.data * self.shard * self.tensor
    }

    /// Parts that each batch is cut into.
    pub fn batch_shards(self) -> usize {
        self.data * self.shard
    }

    /// The part of each batch that a replica takes.
    pub fn batch_shard(self, replica: usize) -> usize {
        replica / self.tensor
    }

    /// Replicas along an axis.
    pub fn size(self, axis: Axis) -> usize {
        match axis {
            Axis::Data => self.data,
            Axis::Shard => self.shard,
            Axis::Tensor => self.tensor,
        }
    }

    /// Distance of neighbours along an axis, in replica numbers.
    fn stride(self, axis: Axis) -> usize {
        match axis {
            Axis::Data => self.shard * self.tensor,
            Axis::Shard => self.tensor,
            Axis::Tensor => 1,
        }
    }

    /// A replica's place along an axis.
    pub fn index(self, axis: Axis, replica: usize) -> usize {
        replica / self.stride(axis) % self.size(axis)
    }

    /// The replicas that differ in their place along these axes only, in that order; `None` where
    /// each is alone.
    pub fn groups(self, axes: &[Axis]) -> Option<Vec<Vec<u32>>> {
        let place = |replica: usize| {
            axes.iter().fold(0, |place, axis| {
                place * self.size(*axis) + self.index(*axis, replica)
            })
        };
        let size: usize = axes.iter().map(|axis| self.size(*axis)).product();
        if size == 1 {
            return None;
        }
        let first = (0..self.replicas()).filter(|replica| place(*replica) == 0);
        let group = |first: usize| {
            let same = |replica: &usize| {
                Axis::ALL.iter().all(|axis| {
                    axes.contains(axis) || self.index(*axis, *replica) == self.index(*axis, first)
                })
            };
            let mut members: Vec<usize> = (0..self.replicas()).filter(same).collect();
            members.sort_by_key(|replica| place(*replica));
            members.into_iter().map(|replica| replica as u32).collect()
        };
        Some(first.map(group).collect())
    }

    /// The replicas that take different rows: those between which losses, and gradients of whole
    /// parameters, are summed.
    pub fn batch_groups(self) -> Option<Vec<Vec<u32>>> {
        self.groups(&[Axis::Data, Axis::Shard])
    }
}

/// As plans and the cache's origin name it.
impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.stage > 1 {
            write!(f, "stages {}, ", self.stage)?;
        }
        write!(f, "data {}", self.data)?;
        for axis in [Axis::Shard, Axis::Tensor] {
            if self.size(axis) > 1 {
                write!(f, ", {axis} {}", self.size(axis))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_exchanges_nothing() {
        assert_eq!(Mesh::single().batch_groups(), None);
        assert_eq!(
            Mesh::data_parallel(3).batch_groups(),
            Some(vec![vec![0, 1, 2]])
        );
    }

    #[test]
    fn all_meshes_are_found_once() {
        let meshes = Mesh::all_of(8);
        // Three factors of two, each in one of four places.
        assert_eq!(meshes.len(), 20);
        assert!(meshes.iter().all(|mesh| mesh.devices() == 8));
        assert!((0..20).all(|i| !meshes[..i].contains(&meshes[i])));
        assert_eq!(Mesh::all_of(6).len(), 16);
    }

    #[test]
    fn groups_differ_along_their_axes_only() {
        let mesh = Mesh {
            stage: 1,
            data: 2,
            shard: 2,
            tensor: 2,
        };
        assert_eq!(
            mesh.groups(&[Axis::Tensor]),
            Some(vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]])
        );
        assert_eq!(
            mesh.groups(&[Axis::Shard]),
            Some(vec![vec![0, 2], vec![1, 3], vec![4, 6], vec![5, 7]])
        );
        assert_eq!(
            mesh.groups(&[Axis::Data]),
            Some(vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]])
        );
        assert_eq!(
            mesh.batch_groups(),
            Some(vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]])
        );
        assert_eq!(
            (0..8)
                .map(|replica| mesh.batch_shard(replica))
                .collect::<Vec<_>>(),
            [0, 0, 1, 1, 2, 2, 3, 3]
        );
    }
}
