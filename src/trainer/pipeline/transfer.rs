//! How a value goes from one stage's devices to another's.

use super::parts::{Handed, Values};
use super::running::Stages;
use crate::error::Result;
use crate::mesh_devices::Buffers;
use std::collections::HashMap;
use xtrain_graphs::{Graph, InputRole, Shape, Trace};
use xtrain_parallel::Mesh;
use xtrain_runtime::{Buffer, RunOptions};

/// What is kept for transfers between processes.
#[derive(Default)]
pub(super) struct Transfers {
    /// What the receiving end of one puts in, by shape.
    fillers: HashMap<(usize, Shape), Buffers>,
}

impl Transfers {
    /// Keeps a value for the pieces that take it, where they run.
    pub fn hand_on(
        &mut self,
        stages: &mut Stages,
        handed: &Handed,
        stage: usize,
        buffers: Vec<Buffer>,
        values: &mut Values,
    ) -> Result<()> {
        for (&to, &takers) in handed.takers.iter().filter(|(to, _)| **to != stage) {
            let copies: Vec<Buffer> = if stages.devices.are_together(stage, to) {
                let devices = stages.devices.places(to).map(|(device, _)| device);
                buffers
                    .iter()
                    .zip(devices)
                    .map(|(buffer, device)| Ok(buffer.copy_to(device)?))
                    .collect::<Result<_>>()?
            } else {
                self.transfer(stages, stage, to, &handed.shape, &buffers)?
            };
            if !copies.is_empty() {
                values.insert((handed.name.clone(), to), (copies.into(), takers));
            }
        }
        if let Some(&takers) = handed.takers.get(&stage).filter(|_| !buffers.is_empty()) {
            values.insert((handed.name.clone(), stage), (buffers.into(), takers));
        }
        Ok(())
    }

    /// Sends a value between processes: a graph on the devices of both stages, in which each pair of
    /// replicas puts together what both have (an all-gather, which every device's collectives know;
    /// Neuron's libraries send no other way) and the receiver's is not used.
    fn transfer(
        &mut self,
        stages: &mut Stages,
        from: usize,
        to: usize,
        shape: &Shape,
        buffers: &[Buffer],
    ) -> Result<Vec<Buffer>> {
        let devices = stages.devices;
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (devices.places(from).collect(), devices.places(to).collect());
        if senders.is_empty() && receivers.is_empty() {
            return Ok(Vec::new());
        }
        let graph = transfer_graph(devices.mesh, from, to, shape)?;
        let compiled = stages.cache.get(&graph)?;
        if !receivers.is_empty() && !self.fillers.contains_key(&(to, shape.clone())) {
            let zeros = vec![0; shape.bytes()];
            let filler = devices.upload_at(to, shape, |_| &zeros)?;
            self.fillers.insert((to, shape.clone()), filler);
        }
        let filler = self.fillers.get(&(to, shape.clone()));
        let sent = senders
            .iter()
            .zip(buffers)
            .map(|((device, _), buffer)| (*device, buffer));
        let filled = receivers
            .iter()
            .zip(filler.into_iter().flat_map(|filler| filler.iter()))
            .map(|((device, _), buffer)| (*device, buffer));
        let given: HashMap<usize, &Buffer> = sent.chain(filled).collect();
        let arguments: Vec<Vec<&Buffer>> = compiled
            .executable
            .devices()
            .iter()
            .map(|device| vec![given[device]])
            .collect();
        stages.finish(from)?;
        stages.finish(to)?;
        let execution = compiled.executable.run(&arguments, RunOptions::default())?;
        // One of the two is enough: whichever goes on here waits for it.
        stages.start(if receivers.is_empty() { from } else { to }, execution.done);
        let is_receiver = |device: &usize| receivers.iter().any(|(own, _)| own == device);
        let outputs = compiled.executable.devices().iter().zip(execution.outputs);
        Ok(outputs
            .filter(|(device, _)| is_receiver(device))
            .flat_map(|(_, outputs)| outputs)
            .collect())
    }
}

fn transfer_graph(mesh: Mesh, from: usize, to: usize, shape: &Shape) -> Result<Graph> {
    let replicas = mesh.replicas() as u32;
    let pairs: Vec<Vec<u32>> = (0..replicas)
        .map(|replica| vec![replica, replicas + replica])
        .collect();
    let trace = Trace::new();
    let value = trace.input("sent", shape.clone(), InputRole::Feed);
    let row = [&[1], value.dims()].concat();
    let both = value.reshape(&row)?.all_gather(&pairs, 0)?;
    trace.output("received", &both.slice_dim(0, 0, 1)?.reshape(value.dims())?);
    let graph = trace.finish(&format!("transfer.stage{from}.stage{to}.{shape}"))?;
    Ok(Graph {
        stage: (mesh.stage * (1 + from) + to) as u32,
        ..graph
    })
}
