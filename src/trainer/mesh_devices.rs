//! The devices of a mesh that live in this process, and values on them.

use super::error::Result;
use std::ops::Range;
use std::sync::Arc;
use xtrain_graphs::{DType, Shape};
use xtrain_parallel::{Axis, Mesh};
use xtrain_runtime::{Buffer, Client};

/// A value on the devices: one buffer for each device of this process, or each that belongs to one
/// stage, in their order, all of one shape.
pub type Buffers = Arc<[Buffer]>;

/// The devices of a mesh that live in this process.
pub(crate) struct MeshDevices {
    pub client: Client,
    pub mesh: Mesh,
    /// Their numbers in the mesh.
    pub local: Range<usize>,
}

impl MeshDevices {
    /// The replicas are dealt out to the client's processes in order, and in each to its devices.
    pub fn new(client: Client, mesh: Mesh) -> Self {
        MeshDevices {
            local: local_devices(&client, mesh.devices()),
            client,
            mesh,
        }
    }

    /// Those that belong to a stage, each with its replica's number there.
    pub fn places(&self, stage: usize) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
        let replicas = self.mesh.replicas();
        let of_stage = move |(_, number): &(usize, usize)| number / replicas == stage;
        self.local
            .clone()
            .enumerate()
            .filter(of_stage)
            .map(move |(device, number)| (device, number % replicas))
    }

    /// Whether one process has all devices of both stages.
    pub fn are_together(&self, one: usize, other: usize) -> bool {
        let (replicas, each) = (self.mesh.replicas(), self.local.len().max(1));
        let process = |stage: usize| (stage * replicas / each, ((stage + 1) * replicas - 1) / each);
        process(one) == process(other) && process(one).0 == process(one).1
    }

    /// A value for each of them, by its replica's number in its stage.
    pub fn upload<'b>(&self, shape: &Shape, bytes: impl Fn(usize) -> &'b [u8]) -> Result<Buffers> {
        let places = (0..self.mesh.stage).flat_map(|stage| self.places(stage));
        places
            .map(|(device, replica)| Ok(self.client.upload(bytes(replica), shape, device)?))
            .collect()
    }

    /// The same for those of one stage.
    pub fn upload_at<'b>(
        &self,
        stage: usize,
        shape: &Shape,
        bytes: impl Fn(usize) -> &'b [u8],
    ) -> Result<Buffers> {
        self.places(stage)
            .map(|(device, replica)| Ok(self.client.upload(bytes(replica), shape, device)?))
            .collect()
    }

    /// Each replica's place along the tensor axis.
    pub fn tensor_places(&self) -> Result<Buffers> {
        let mesh = self.mesh;
        let places: Vec<[i32; 1]> = (0..mesh.replicas())
            .map(|replica| [mesh.index(Axis::Tensor, replica) as i32])
            .collect();
        self.upload(&Shape::scalar(DType::S32), |replica| {
            bytemuck::cast_slice(&places[replica])
        })
    }
}

/// Which of a mesh's devices live in the client's process.
pub fn local_devices(client: &Client, devices: usize) -> Range<usize> {
    let each = devices / client.processes();
    let first = client.process_index().max(0) as usize * each;
    first..first + each
}
