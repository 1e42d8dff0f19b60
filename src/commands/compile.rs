//! `xtrain compile clm`: compiles and stores every graph that a training run with the same flags will use, or with `--check`
//! compares each with what the device's compiler is known to take, for which neither the device nor its plugin has to be there. For
//! a card that is not there (`--target`): `target`.

use super::model::failed;
use super::train::Prepared;
use super::{Error, Outcome, fit, target};
use crate::config::{CompilePlan, Device, TrainPlan};
use crate::report::units::bytes;
use crate::trainer::ahead::{compile_all, record_all};
use crate::trainer::cuda::LEAST_CAPABILITY;
use crate::trainer::gpu::Gpu;
use crate::trainer::step::Stepper;
use xtrain_graphs::optim::{Schedule, ScheduleKind};
use xtrain_graphs::{NeuronChip, Target, conformance, passes};
use xtrain_models::Model;

/// Violations that are printed of one graph; the rest is counted.
const SHOWN: usize = 10;

pub fn run(CompilePlan { train: mut plan, jobs, check: only_check }: CompilePlan) -> Result<Outcome, Error> {
    if only_check {
        return check(plan);
    }
    if plan.target.is_some() {
        return target::compile(plan);
    }
    if plan.cache.dir.is_none() {
        return Err(Error::failed("there is nowhere to keep the graphs: --compile_cache is false"));
    }
    let mut prepared = Prepared::new(&plan, false)?;
    fit::resolve_auto(&mut plan, &mut prepared)?;
    let shapes = prepared.shapes(&plan);
    let model = &*prepared.loaded.model;
    let stepper = stepper(&plan, model);
    let mut report = |graph: &crate::cache::CompiledGraph| {
        let how = if graph.loaded { "was stored already, loaded" } else { "compiled" };
        let peak = graph.memory().map_or(String::new(), |m| format!(", {} at the peak", bytes(m.peak() as u64)));
        println!("{:12} {}  {how} in {:.1} s{peak}", graph.name, &graph.id[..12], graph.ready_time.as_secs_f64());
    };
    compile_all(&mut prepared.session, model, &stepper, &shapes, jobs, &mut report).map_err(failed("compiling the graphs"))?;
    eprintln!("{}", prepared.session.cache().stats());
    Ok(Outcome::Done)
}

/// The run's steps, for recording its graphs ahead.
pub(super) fn stepper<'m>(plan: &TrainPlan, model: &'m dyn Model) -> Stepper<'m> {
    // The learning rate is fed at each step, so that no graph knows the schedule.
    let schedule = Schedule { kind: ScheduleKind::Constant, peak: 0.0, warmup: 0, total: 0 };
    Stepper::new(model, plan.train.optimizer.clone(), schedule, plan.train.seed)
        .with_precision(plan.train.precision)
        .with_buckets(plan.train.gradient_bucket_bytes)
}

/// Lowers every graph for the device and says what of it its compiler is not known to take.
fn check(plan: TrainPlan) -> Result<Outcome, Error> {
    let target = match plan.device.kind {
        Device::Cpu => Target::Cpu,
        Device::Cuda => {
            let capability = plan.target.map_or(LEAST_CAPABILITY, Gpu::capability);
            Target::Cuda { capability, fused_attention: !plan.device.settings.plain_attention }
        }
        Device::Neuron => Target::Neuron(NeuronChip::Trn1),
    };
    // The graphs are only recorded, which the CPU's session can do for any device.
    let mut prepared = Prepared::new(&target::recorder(&plan), false)?;
    let shapes = prepared.shapes(&plan);
    let model = &*prepared.loaded.model;
    let graphs =
        record_all(&mut prepared.session, model, &stepper(&plan, model), &shapes).map_err(failed("recording the graphs"))?;
    let mut broken = 0;
    for graph in graphs {
        let lowered = passes::prepare(&graph, target).map_err(failed("lowering the graphs"))?;
        let found = conformance::check(&lowered, target);
        match found.len() {
            0 => println!("{:12} {} operations, all known to compile for {}", graph.name, lowered.nodes.len(), target.name()),
            n => println!("{:12} {n} of {} operations break a rule of {}", graph.name, lowered.nodes.len(), target.name()),
        }
        found.iter().take(SHOWN).for_each(|violation| println!("  {violation}"));
        broken += found.len();
    }
    match broken {
        0 => Ok(Outcome::Done),
        n => Err(Error::failed(format!("{n} operations are not known to compile for {}", target.name()))
            .with_hint("each line above names the operation, its layer, the rule and its source")),
    }
}
