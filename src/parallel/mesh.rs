//! The mesh: which replicas there are and which of them belong together.

/// The arrangement of a run's replicas. Each is one device that runs the run's one graph on its own part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Replicas that hold the same state and take different rows of each batch.
    data: usize,
}

impl Mesh {
    /// `data` replicas (at least 1) that share each batch.
    pub fn data_parallel(data: usize) -> Self {
        Mesh { data: data.max(1) }
    }

    /// One device.
    pub fn single() -> Self {
        Self::data_parallel(1)
    }

    /// All devices of the run.
    pub fn replicas(self) -> usize {
        self.data
    }

    /// Parts that each batch is cut into.
    pub fn batch_shards(self) -> usize {
        self.data
    }

    /// The replicas between which gradients are summed; `None` where there is nothing to sum.
    pub fn data_groups(self) -> Option<Vec<Vec<u32>>> {
        (self.data > 1).then(|| vec![(0..self.data as u32).collect()])
    }
}

/// As plans and the cache's origin name it.
impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "data {}", self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_exchanges_nothing() {
        assert_eq!(Mesh::single().data_groups(), None);
        assert_eq!(Mesh::data_parallel(3).data_groups(), Some(vec![vec![0, 1, 2]]));
    }
}
