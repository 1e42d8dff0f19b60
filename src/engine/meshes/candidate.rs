//! One mesh: what a run would hold and exchange on it.

use super::Compiled;
use crate::error::{Error, failed};
use crate::exchanged::{emitted, is_step, of_steps, sent_by_device};
use crate::execution::Execution;
use crate::precompile::PlannedGraph;
use crate::run::{Run, origin_of};
use crate::target::AotTarget;
use xtrain_config::Device;
use xtrain_graphs::{Graph, Target};
use xtrain_parallel::Mesh;
use xtrain_parallel::schedule::bubble;
use xtrain_report::scaling::Exchange;
use xtrain_trainer::ahead::Ahead;
use xtrain_trainer::fit::{Footprint, by_compiler, estimated, footprints_of};
use xtrain_trainer::session::Session;
use xtrain_trainer::settings::Checkpointing;
use xtrain_trainer::step::placements;

/// A mesh, estimated.
pub struct Candidate {
    /// Sizes of its axes.
    pub mesh: Mesh,
    /// The moments are in parts along the data axis.
    pub zero1: bool,
    /// Of the stage that holds most. State is exact, the rest an estimate.
    pub footprint: Footprint,
    /// Examples of one microbatch of a replica.
    pub examples: usize,
    /// The collectives of a step, by kind and axis.
    pub exchanged: Vec<Exchange>,
    /// Bytes that a device sends in a step.
    pub sent: u64,
    /// Share of the time in which stages wait for each other.
    pub waits: f64,
}

impl Candidate {
    /// The mesh of a plan. The inner error says why the model cannot be laid out on it.
    ///
    /// # Errors
    /// If a step cannot be recorded.
    pub fn estimate(execution: &Execution, run: &Run) -> Result<Result<Candidate, String>, Error> {
        let (settings, model) = (&run.plan.train, &*run.loaded.model);
        let (mesh, zero1) = (execution.train.mesh, execution.train.shard_optimizer_state);
        let optimizer = execution.train.optimizer.build();
        if mesh.stage > 1 && matches!(execution.train.checkpointing, Checkpointing::Offloaded(_)) {
            let reason = "--activation_offloading does not go with stages";
            return Ok(Err(reason.to_string()));
        }
        if let Err(reason) = placements(model, &*optimizer, mesh, zero1) {
            return Ok(Err(reason.to_string()));
        }
        // Recording needs no device but a place to record, and the CPU has as many as are wanted.
        let origin = origin_of(&run.plan, model, &run.task);
        let mut session = execution.clone().recording().session(model, origin)?;
        let (step, shapes) = (
            execution.recorded_step(model, &run.task.objective),
            run.shapes(),
        );
        let mut ahead = Ahead {
            session: &mut session,
            step: &step,
            shapes: &shapes,
            metrics: Some(&*run.task.metrics()),
        };
        // On the CPU with its kernels, whose calls keep less than XLA's loops. How another compiler lays
        // memory out is not known; XLA's CPU compiler stands for it.
        let target = match execution.device.kind {
            Device::Cpu => execution.device.settings.cpu_target(&execution.cache),
            _ => Ok(Target::CPU),
        };
        let steps = target.and_then(|target| emitted(&mut ahead, target));
        let steps = steps.map_err(failed("recording the graphs"))?;
        let all = footprints_of(&steps, &mut ahead, |_, graph| Ok(estimated(graph)));
        let exchanged = of_steps(&steps, mesh, shapes.accumulation);
        let batch = settings.per_device_train_batch_size;
        Ok(Ok(Candidate {
            mesh,
            zero1,
            footprint: Footprint::largest(all.map_err(failed("estimating the memory"))?),
            examples: batch * mesh.batch_shards() * shapes.accumulation,
            sent: sent_by_device(&exchanged, mesh),
            exchanged,
            waits: bubble(
                mesh.stage,
                shapes.accumulation,
                *settings.flags.pipeline_schedule,
            ),
        }))
    }

    /// Compiles the graph that decides, for the plan's own device.
    ///
    /// # Errors
    /// If the device cannot be opened, or the graph cannot be compiled.
    pub fn compile(&self, execution: &Execution, run: &Run) -> Result<Compiled, Error> {
        let execution = execution.clone().on(self.mesh, self.zero1);
        let model = &*run.loaded.model;
        let mut session = execution.session(model, origin_of(&run.plan, model, &run.task))?;
        let (step, shapes) = (
            execution.recorded_step(model, &run.task.objective),
            run.shapes(),
        );
        let mut ahead = Ahead {
            session: &mut session,
            step: &step,
            shapes: &shapes,
            metrics: Some(&*run.task.metrics()),
        };
        let mut steps = ahead.steps().map_err(failed("recording the graphs"))?;
        for (_, graphs) in &mut steps {
            graphs.retain(|graph| {
                graph.name == self.footprint.graph && graph.stage as usize == self.footprint.stage
            });
        }
        let found = footprints_of(&steps, &mut ahead, by_compiler);
        let one = Footprint::largest(found.map_err(failed("compiling the best mesh"))?);
        Ok(Compiled {
            peak: one.peak,
            graph: one.graph,
            seconds: None,
        })
    }

    /// Compiles the graphs of its step for a card that is only described, and adds up the least times of
    /// their kernels: those of the slowest stage, and what it waits for the others. Links are not counted.
    ///
    /// # Errors
    /// If a graph cannot be compiled or read.
    pub fn compile_for(
        &self,
        execution: &Execution,
        run: &Run,
        target: &mut AotTarget,
    ) -> Result<Compiled, Error> {
        let execution = execution.clone().on(self.mesh, self.zero1).recording();
        let model = &*run.loaded.model;
        let mut session = execution.session(model, origin_of(&run.plan, model, &run.task))?;
        let (step, shapes) = (
            execution.recorded_step(model, &run.task.objective),
            run.shapes().of_training(),
        );
        let mut ahead = Ahead {
            session: &mut session,
            step: &step,
            shapes: &shapes,
            metrics: None,
        };
        let mut steps = ahead.steps().map_err(failed("recording the graphs"))?;
        steps.retain(|(name, _)| is_step(name));
        // Of each stage, while every graph's is known.
        let mut seconds = Some(vec![0f64; self.mesh.stage]);
        for (accumulates, repeats) in [(true, shapes.accumulation - 1), (false, 1)] {
            // Of batches of several shapes, the longest.
            let mut longest = vec![0f64; self.mesh.stage];
            let of_phase = steps.iter();
            let of_phase =
                of_phase.filter(|(name, _)| name.starts_with("accumulate") == accumulates);
            for (_, graphs) in of_phase {
                let mut of_shape = vec![0f64; self.mesh.stage];
                for graph in graphs {
                    let planned = PlannedGraph::described(graph, target)?;
                    match planned.bounds {
                        Some(bounds) => of_shape[graph.stage as usize] += bounds.honest(),
                        None => seconds = None,
                    }
                }
                for (longest, found) in longest.iter_mut().zip(of_shape) {
                    *longest = longest.max(found);
                }
            }
            for (seconds, longest) in seconds.iter_mut().flatten().zip(longest) {
                *seconds += repeats as f64 * longest;
            }
        }
        let memory = |_: &mut Session, graph: &Graph| Ok(target.graphs.memory(graph)?);
        let found = footprints_of(&steps, &mut ahead, memory);
        let one = Footprint::largest(found.map_err(failed("compiling the best mesh"))?);
        let slowest = seconds.map(|all| all.into_iter().fold(0.0, f64::max));
        Ok(Compiled {
            peak: one.peak,
            graph: one.graph,
            seconds: slowest.map(|slowest| slowest / (1.0 - self.waits)),
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
