//! The largest batch that fits into memory, and what
//! `--per_device_train_batch_size auto` makes of it.

use super::error::{Error, failed};
use super::run::{Prepared, run_shapes, stepper};
use super::target::AbsentGpu;
use crate::config::TrainPlan;
use crate::parallel::Placements;
use crate::report::units::bytes;
use crate::runtime::Library;
use crate::trainer::ahead::{compile_all, record_all};
use crate::trainer::fit::{Footprint, footprint, largest_batch};
use crate::trainer::step::Stepper;
use xtrain_graphs::{BACKWARD, Graph};

/// Puts the batch size that fits where `auto` stands. A run that continues finds the size that it
/// began with, or is refused as any other change of batch is.
pub fn resolve_auto(plan: &mut TrainPlan, prepared: &mut Prepared) -> Result<(), Error> {
    resolve_auto_for(plan, prepared, None)
}

/// As `resolve_auto`, for a card that is not there if one is given.
pub fn resolve_auto_for(
    plan: &mut TrainPlan,
    prepared: &mut Prepared,
    absent: Option<&mut AbsentGpu>,
) -> Result<(), Error> {
    if !plan.auto_batch || !plan.do_train {
        return Ok(());
    }
    let budget = budget(plan, prepared)?;
    let found = search(plan, prepared, absent, budget)?;
    eprintln!(
        "per_device_train_batch_size is {}: {} of {} at the peak",
        found.batch,
        bytes(found.peak),
        bytes(budget)
    );
    plan.train.per_device_train_batch_size = found.batch;
    Ok(())
}

/// What was asked for, else what a card that is not there would leave to a run, else the device's
/// own limit, else four fifths of the machine's memory. Not of what happens to be free: the same
/// command must find the same batch tomorrow.
pub fn budget(plan: &TrainPlan, prepared: &Prepared) -> Result<u64, Error> {
    if let Some(memory) = plan.memory {
        return Ok(memory);
    }
    if let Some(gpu) = plan.target {
        return Ok(gpu.usable_memory());
    }
    let device = prepared
        .session
        .client()
        .addressable_devices()
        .next()
        .and_then(|device| device.memory());
    let limit = device
        .and_then(|memory| memory.bytes_limit)
        .map(|limit| limit.max(0) as u64);
    limit
        .or_else(|| crate::report::memory::machine().map(|total| total / 5 * 4))
        .ok_or_else(|| {
            Error::usage(
                "neither the device nor the system says how much memory there is",
                "give --memory SIZE, for example 16GiB",
            )
        })
}

pub fn search(
    plan: &TrainPlan,
    prepared: &mut Prepared,
    mut absent: Option<&mut AbsentGpu>,
    budget: u64,
) -> Result<Footprint, Error> {
    let Prepared {
        loaded,
        session,
        task,
        train,
        validation,
        ..
    } = prepared;
    let model = &*loaded.model;
    let stepper = stepper(plan, model);
    let found = largest_batch(budget, |batch| {
        let shapes = run_shapes(plan, task, (train.as_ref(), validation.as_ref()), batch);
        let absent = absent.as_mut().map(|absent| &mut absent.graphs);
        let one = footprint(session, absent, model, &stepper, &shapes, batch)?;
        eprintln!("batch {batch}: {} at the peak", bytes(one.peak));
        Ok(one)
    });
    found.map_err(failed("looking for the largest batch"))?.map_err(|one| {
        let problem = format!(
            "not even one example of {} tokens fits: it needs {} (in `{}`, {} of it weights and moments), and there are {}",
            task.length,
            bytes(one.peak),
            one.graph,
            bytes(one.state),
            bytes(budget)
        );
        Error::failed(problem)
            .with_hint(format!("raise --memory, or lower --{} or --per_device_eval_batch_size", task.length_flag()))
    })
}

/// The peak by what it is for, in bytes.
pub struct Split {
    pub weights: u64,
    pub moments: u64,
    pub accumulated: u64,
    pub data: u64,
    /// Of the temporaries: what the forward pass left for the backward pass.
    pub activations: u64,
    pub temporaries: u64,
}

impl Split {
    /// Looks into the optimized module (a serialized HloModuleProto) of the graph that a footprint
    /// is of.
    pub fn of(
        stepper: &Stepper,
        placements: &Placements,
        found: &Footprint,
        module: &[u8],
    ) -> Result<Split, Error> {
        let peak = Library::open().and_then(|library| library.live_buffers(module));
        let peak = peak.map_err(failed("reading the compiled module"))?;
        let forward = |op_name: &str| {
            let path = op_name.split_once('/').map_or("", |(_, path)| path);
            ![BACKWARD, "optimizer", "accumulate", "outputs"]
                .iter()
                .any(|other| path.starts_with(other))
                && !path.is_empty()
        };
        let activations: u64 = peak
            .buffers
            .iter()
            .filter(|b| forward(&b.op_name))
            .map(|b| b.bytes)
            .sum();
        // The walk over the module and the compiler's own figure differ a little; the latter is the
        // one that adds up.
        let activations = if peak.bytes == 0 {
            0
        } else {
            (activations as f64 / peak.bytes as f64 * found.temporaries as f64) as u64
        };
        let weights = stepper.weight_bytes(placements, found.stage);
        let without = stepper.state_bytes(false, placements, found.stage);
        Ok(Split {
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

/// Compiles the run's graphs with the batch that was found, so that the run itself compiles
/// nothing, and looks into the one that decides.
pub fn split(
    plan: &TrainPlan,
    prepared: &mut Prepared,
    absent: Option<&mut AbsentGpu>,
    found: &Footprint,
) -> Result<Split, Error> {
    let shapes = prepared.shapes(plan);
    let model = &*prepared.loaded.model;
    let stepper = stepper(plan, model);
    let decides = |graph: &Graph| graph.name == found.graph;
    if let Some(absent) = absent {
        let graphs = record_all(&mut prepared.session, model, &stepper, &shapes)
            .map_err(failed("recording the graphs"))?;
        let graph = graphs
            .into_iter()
            .find(decides)
            .expect("it is one of the run's graphs");
        let checked = absent
            .graphs
            .check(&graph)
            .map_err(failed("compiling the graphs"))?;
        return Split::of(
            &stepper,
            prepared.session.placements(),
            found,
            &checked.module,
        );
    }
    let graphs = compile_all(
        &mut prepared.session,
        model,
        &stepper,
        &shapes,
        1,
        &mut |_| (),
    );
    let graphs = graphs.map_err(failed("compiling the graphs"))?;
    let decides = graphs
        .iter()
        .find(|graph| graph.name == found.graph)
        .expect("it is one of the run's graphs");
    let module = decides
        .executable
        .optimized_hlo()
        .map_err(failed("reading the compiled module"))?;
    Split::of(&stepper, prepared.session.placements(), found, &module)
}
