//! One mesh: what a run would hold and exchange on it.

use super::Compiled;
use crate::engine::error::{Error, failed};
use crate::engine::exchanged::{emitted, of_steps, sent_by_device};
use crate::engine::execution::Execution;
use crate::engine::run::{Run, origin_of};
use crate::parallel::Mesh;
use crate::parallel::schedule::bubble;
use crate::report::scaling::Exchange;
use crate::trainer::ahead::record_steps;
use crate::trainer::fit::{Footprint, estimated, footprints_of};
use crate::trainer::step::placements;

/// A mesh, estimated.
pub struct Candidate {
    pub mesh: Mesh,
    /// The moments are in parts along the data axis.
    pub zero1: bool,
    /// Of the stage that holds most. State is exact, the rest an estimate.
    pub footprint: Footprint,
    pub examples: usize,
    pub exchanged: Vec<Exchange>,
    /// Bytes that a device sends in a step.
    pub sent: u64,
    /// Share of the time in which stages wait for each other.
    pub waits: f64,
}

impl Candidate {
    /// The mesh of a plan. The inner error says why the model cannot be laid out on it.
    pub fn estimate(execution: &Execution, run: &Run) -> Result<Result<Candidate, String>, Error> {
        let (settings, model) = (&run.plan.train, &*run.loaded.model);
        let mesh = execution.mesh;
        let zero1 = execution.shard_optimizer_state;
        let optimizer = execution.optimizer.build();
        if let Err(reason) = placements(model, &*optimizer, mesh, zero1) {
            return Ok(Err(reason.to_string()));
        }
        // Recording needs no device but a place to record, and the CPU has as many as are wanted.
        let origin = origin_of(&run.plan, model, &run.task);
        let mut session = execution.clone().recording().session(model, origin)?;
        let (step, shapes) = (execution.recorded_step(model), run.shapes());
        let steps = emitted(&mut session, model, &step, &shapes)?;
        let batch = settings.per_device_train_batch_size;
        let all = footprints_of(
            &steps,
            &mut session,
            &step,
            shapes.accumulation,
            batch,
            &mut |_, graph| Ok(estimated(graph)),
        );
        let all = all.map_err(failed("estimating the memory"))?;
        let exchanged = of_steps(&steps, mesh, shapes.accumulation);
        Ok(Ok(Candidate {
            mesh,
            zero1,
            footprint: all
                .into_iter()
                .max_by_key(|one| one.peak)
                .expect("a run that trains has graphs"),
            examples: batch * mesh.batch_shards() * shapes.accumulation,
            sent: sent_by_device(&exchanged, mesh),
            exchanged,
            waits: bubble(mesh.stage, shapes.accumulation, execution.pipeline_schedule),
        }))
    }

    /// Compiles the graph that decides, for the plan's own device.
    pub fn compile(&self, execution: &Execution, run: &Run) -> Result<Compiled, Error> {
        let execution = Execution {
            mesh: self.mesh,
            shard_optimizer_state: self.zero1,
            ..execution.clone()
        };
        let model = &*run.loaded.model;
        let mut session = execution.session(model, origin_of(&run.plan, model, &run.task))?;
        let (step, shapes) = (execution.recorded_step(model), run.shapes());
        let mut steps = record_steps(&mut session, model, &step, &shapes)
            .map_err(failed("recording the graphs"))?;
        for (_, graphs) in &mut steps {
            graphs.retain(|graph| {
                graph.name == self.footprint.graph && graph.stage as usize == self.footprint.stage
            });
        }
        let batch = run.plan.train.per_device_train_batch_size;
        let of_device = &mut |session: &mut crate::trainer::session::Session, graph: &_| {
            session
                .cache_mut()
                .memory(graph)?
                .ok_or(crate::trainer::Error::NoMemoryStatistics)
        };
        let found = footprints_of(
            &steps,
            &mut session,
            &step,
            shapes.accumulation,
            batch,
            of_device,
        );
        let found = found.map_err(failed("compiling the best mesh"))?;
        let one = found
            .into_iter()
            .next()
            .expect("the graph is one of the run's");
        Ok(Compiled {
            peak: one.peak,
            graph: one.graph,
        })
    }

    /// The flags that ask for it.
    pub fn flags(&self) -> String {
        let Mesh {
            stage,
            data,
            shard,
            tensor,
        } = self.mesh;
        let degrees = [
            ("data_parallel", data),
            ("shard_parallel", shard),
            ("tensor_parallel", tensor),
            ("pipeline_parallel", stage),
        ];
        let mut flags: Vec<String> = degrees
            .into_iter()
            .filter(|(_, n)| *n > 1)
            .map(|(name, n)| format!("--{name} {n}"))
            .collect();
        flags.extend(self.zero1.then(|| "--shard_optimizer_state".to_string()));
        flags.join(" ")
    }
}
