//! The largest batch that fits into memory, and what
//! `--per_device_train_batch_size auto` makes of it.

use super::error::{Error, failed};
use super::op_path::{StepPhase, phase};
use super::run::Run;
use super::target::AotTarget;
use xtrain_parallel::Placements;
use xtrain_report::errln;
use xtrain_report::progress::say;
use xtrain_report::units::bytes;
use xtrain_runtime::hlo::live_buffers;
use xtrain_trainer::ahead::Ahead;
use xtrain_trainer::fit::{Footprint, footprints, largest_batch};
use xtrain_trainer::matmul_peak;
use xtrain_trainer::step::TrainStep;

impl Run {
    /// Puts the batch size that fits where `auto` stands, for a target that is not attached if one is
    /// given. A run that continues finds the size that it began with, or is refused as any other
    /// change of batch is.
    ///
    /// # Errors
    /// As [`Run::largest_batch`].
    pub fn resolve_auto_batch(&mut self, target: Option<&mut AotTarget>) -> Result<(), Error> {
        if !self.plan.auto_batch || !self.plan.do_train {
            return Ok(());
        }
        let budget = self.memory_budget()?;
        let found = self.largest_batch(target, budget)?;
        errln!(
            "per_device_train_batch_size is {}: {} of {} at the peak",
            found.batch,
            bytes(found.peak),
            bytes(budget)
        );
        self.plan.train.per_device_train_batch_size = found.batch;
        // What memory holds is all that `compile` can find, which reads no data.
        let devices = self.session.mesh().batch_shards();
        match &self.train {
            Some(set) if set.len() < found.batch * devices => say(&format!(
                "note: the training set has only {} examples, and the rest of each batch is padding: \
                 --per_device_train_batch_size {} computes no more than it needs",
                set.len(),
                set.len().div_ceil(devices)
            )),
            _ => {}
        }
        Ok(())
    }

    /// Bytes of one device that the run may use: what was asked for, else what a card that is not
    /// there would leave to a run, else the device's own limit, else four fifths of the machine's
    /// memory. Not what happens to be free: the same command must find the same batch tomorrow.
    ///
    /// # Errors
    /// If none of these is known.
    pub fn memory_budget(&self) -> Result<u64, Error> {
        if let Some(memory) = self.plan.memory {
            return Ok(memory);
        }
        if let Some(gpu) = self.plan.target {
            return Ok(gpu.usable_memory(self.plan.train.mesh.devices()));
        }
        let device = self
            .session
            .client()
            .addressable_devices()
            .next()
            .and_then(|device| device.memory());
        let limit = device
            .and_then(|memory| memory.bytes_limit)
            .map(|limit| limit.max(0) as u64);
        limit
            .or_else(|| xtrain_report::memory::machine().map(|total| total / 5 * 4))
            .ok_or_else(|| {
                Error::usage(
                    "neither the device nor the system says how much memory there is",
                    "give --memory SIZE, for example 16GiB",
                )
            })
    }

    /// The largest batch whose peak is within `budget` bytes of one device, on the run's devices
    /// or a target that is not attached.
    ///
    /// # Errors
    /// If a graph cannot be compiled, or not even one example fits.
    pub fn largest_batch(
        &mut self,
        mut target: Option<&mut AotTarget>,
        budget: u64,
    ) -> Result<Footprint, Error> {
        let execution = self.execution();
        let found = largest_batch(budget, |batch| {
            let shapes = self.shapes_of(batch);
            let step = execution.recorded_step(&*self.loaded.model, &self.task.objective);
            let mut ahead = Ahead {
                session: &mut self.session,
                step: &step,
                shapes: &shapes,
                metrics: Some(&*self.task.metrics()),
            };
            let graphs = target.as_mut().map(|target| &mut target.graphs);
            let one = Footprint::largest(footprints(&mut ahead, graphs)?);
            errln!("batch {batch}: {} at the peak", bytes(one.peak));
            Ok(one)
        });
        found
            .map_err(failed("looking for the largest batch"))?
            .map_err(|one| {
                let problem = format!(
                    "not even one example of {} tokens fits: it needs {} (in `{}`, {} of it weights and moments), and there are {}",
                    self.task.length(),
                    bytes(one.peak),
                    one.graph,
                    bytes(one.state),
                    bytes(budget)
                );
                Error::failed(problem).with_hint(match &one.graph[..] {
                    matmul_peak::GRAPH_NAME => {
                        "raise --memory: that graph measures the matmul peak, whatever the model".to_string()
                    }
                    _ => format!(
                        "raise --memory, or lower --{} or --per_device_eval_batch_size",
                        self.task.length_flag()
                    ),
                })
            })
    }

    /// Compiles the run's graphs, so that the run itself compiles nothing, and looks into the one
    /// that a footprint is of.
    ///
    /// # Errors
    /// If a graph cannot be compiled or read.
    pub fn break_down(
        &mut self,
        target: Option<&mut AotTarget>,
        found: &Footprint,
    ) -> Result<Breakdown, Error> {
        let module = if let Some(target) = target {
            let mut graphs = self.record()?.into_iter().flat_map(|(_, graphs)| graphs);
            let graph = graphs.find(|graph| graph.name == found.graph);
            let graph = graph.expect("it is one of the run's graphs");
            target
                .graphs
                .check(&graph)
                .map_err(failed("compiling the graphs"))?
                .module
                .clone()
        } else {
            let mut graphs = self.compile(1, &mut |_| ())?.into_iter();
            let graph = graphs.find(|graph| graph.name == found.graph);
            graph
                .expect("it is one of the run's graphs")
                .executable
                .optimized_hlo()
                .map_err(failed("reading the compiled module"))?
        };
        let execution = self.execution();
        let step = execution.recorded_step(&*self.loaded.model, &self.task.objective);
        Breakdown::of(&step, self.session.placements(), found, &module)
    }
}

/// The peak by what it is for, in bytes.
pub struct Breakdown {
    /// The parameters.
    pub weights: u64,
    /// The optimizer's state.
    pub moments: u64,
    /// Gradients that microbatches add up.
    pub accumulated: u64,
    /// Batches and the other feeds.
    pub data: u64,
    /// Of the temporaries: what the forward pass left for the backward pass.
    pub activations: u64,
    /// What else lives only within a step.
    pub temporaries: u64,
}

impl Breakdown {
    /// Looks into the optimized module (a serialized HloModuleProto) of the graph that a footprint
    /// is of.
    ///
    /// # Errors
    /// If the module cannot be read.
    pub fn of(
        step: &TrainStep,
        placements: &Placements,
        found: &Footprint,
        module: &[u8],
    ) -> Result<Breakdown, Error> {
        let peak = live_buffers::peak(module).map_err(failed("reading the compiled module"))?;
        let activations: u64 = peak
            .buffers
            .iter()
            .filter(|b| phase(&b.op_name) == Some(StepPhase::Forward))
            .map(|b| b.bytes)
            .sum();
        // The walk over the module and the compiler's own figure differ a little; the latter is the
        // one that adds up.
        let activations = if peak.bytes == 0 {
            0
        } else {
            (activations as f64 / peak.bytes as f64 * found.temporaries as f64) as u64
        };
        let weights = step.weight_bytes(placements, found.stage);
        let without = step.state_bytes(false, placements, found.stage);
        Ok(Breakdown {
            weights,
            moments: without - weights,
            accumulated: found.state - without,
            data: found.data,
            activations,
            temporaries: found.temporaries - activations,
        })
    }

    /// With names for a table.
    pub fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("weights", self.weights),
            ("moments", self.moments),
            ("accumulated gradients", self.accumulated),
            ("batch and results", self.data),
            ("activations", self.activations),
            ("other temporaries", self.temporaries),
        ]
    }
}
