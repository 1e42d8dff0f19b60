//! The report on a compiled module, for people: [`KernelReport`] made of what `runtime::hlo` reads in it
//! and of what a card can do.

use super::error::{Error, failed};
use super::op_path::{StepPhase, layer, phase};
use std::time::Duration;
use xtrain_cache::Memory as CompilerMemory;
use xtrain_graphs::Graph;
use xtrain_report::kernels::{
    Bounds, Buffer, Collective, Finding, Inputs, KernelReport, Memory, PHASES, PhasePeak, Work,
};
use xtrain_runtime::hlo::kernels::{self, Kernel, KernelClass};
use xtrain_runtime::hlo::launch_stats::Launches;
use xtrain_runtime::hlo::{aliased_parameters, live_buffers, parameter_count};
use xtrain_trainer::gpu::{self, Gpu, PEAK_SHARE};

/// Of what the compiler made up and gave no path.
const NO_LAYER: &str = "(no path)";

/// A compiled module with what is known of it.
pub struct Compiled<'a> {
    /// As the report is called.
    pub title: String,
    /// The optimized module, a serialized HloModuleProto.
    pub module: &'a [u8],
    /// What it was lowered from, with the module's inputs; `None` of another program's module.
    pub graph: Option<&'a Graph>,
    /// The compiler's account.
    pub memory: Option<CompilerMemory>,
    /// What a step launches, where the compiler reports it.
    pub launches: Option<Launches>,
    /// The card, where its rates are known.
    pub gpu: Option<Gpu>,
}

/// The report on a compiled module.
///
/// # Errors
/// If the module cannot be read.
pub fn report(compiled: &Compiled) -> Result<KernelReport, Error> {
    let reading = || failed("reading the compiled module");
    let kernels = kernels::of(compiled.module).map_err(reading())?;
    let clock = Clock::of(compiled);
    let works: Vec<Work> = kernels.iter().map(|kernel| clock.work(kernel)).collect();
    let class = |class: KernelClass| {
        let work = sum(&kernels, &works, |kernel| kernel.class == class);
        (work.kernels > 0).then_some((class.name(), work))
    };
    Ok(KernelReport {
        title: compiled.title.clone(),
        classes: KernelClass::ALL.into_iter().filter_map(class).collect(),
        layers: layers(&kernels, &works),
        findings: findings(&kernels, &works),
        collectives: collectives(&kernels, &works),
        inputs: inputs(compiled).map_err(reading())?,
        memory: memory(compiled).map_err(reading())?,
        bounds: clock.bounds(&kernels),
    })
}

/// The least time of an execution; `None` where the card's rates are unknown.
///
/// # Errors
/// If the module cannot be read.
pub fn bounds(compiled: &Compiled) -> Result<Option<Bounds>, Error> {
    let kernels = kernels::of(compiled.module).map_err(failed("reading the compiled module"))?;
    Ok(Clock::of(compiled).bounds(&kernels))
}

/// How long kernels take at least.
struct Clock {
    gpu: Option<Gpu>,
    gap: Duration,
}

impl Clock {
    fn of(compiled: &Compiled) -> Clock {
        let Launches {
            inside, outside, ..
        } = compiled.launches.unwrap_or_default();
        Clock {
            gpu: compiled.gpu,
            gap: compiled
                .gpu
                .map_or(Duration::ZERO, |gpu| gpu.gap(inside, outside)),
        }
    }

    /// Of all of a kernel's runs in one execution.
    fn work(&self, kernel: &Kernel) -> Work {
        let once = self.gpu.map_or(Duration::ZERO, |gpu| {
            gpu.estimate(asked(kernel)).time() + self.gap
        });
        Work {
            kernels: 1,
            launches: kernel.times,
            bytes: kernel.times * kernel.bytes,
            flops: kernel.times * kernel.work.flops(),
            seconds: kernel.times * once.as_secs_f64(),
        }
    }

    fn bounds(&self, kernels: &[Kernel]) -> Option<Bounds> {
        let gpu = self.gpu?;
        let mut whole = gpu::Work::default();
        let (mut seconds, mut launches, mut at_peak) = (0.0, 0.0, 0.0);
        for kernel in kernels {
            let asked = asked(kernel);
            whole.low_flops += kernel.times * asked.low_flops;
            whole.f32_flops += kernel.times * asked.f32_flops;
            whole.bytes += kernel.times * asked.bytes;
            whole.tf32 |= asked.tf32;
            seconds += kernel.times * gpu.estimate(asked).time().as_secs_f64();
            launches += kernel.times * self.gap.as_secs_f64();
            at_peak += kernel.times * gpu.at_peak(asked).as_secs_f64();
        }
        Some(Bounds {
            optimistic: gpu.estimate(whole).time().as_secs_f64(),
            kernels: seconds,
            launches,
            at_peak,
            peak_share: PEAK_SHARE,
        })
    }
}

/// What one run of a kernel asks of a device.
fn asked(kernel: &Kernel) -> gpu::Work {
    gpu::Work {
        low_flops: kernel.work.low,
        f32_flops: kernel.work.wide,
        tf32: kernel.work.rounds_f32,
        bytes: kernel.bytes,
    }
}

fn sum(kernels: &[Kernel], works: &[Work], is_of: impl Fn(&Kernel) -> bool) -> Work {
    let mut sum = Work::default();
    let all = kernels.iter().zip(works);
    all.filter(|(kernel, _)| is_of(kernel))
        .for_each(|(_, work)| sum += *work);
    sum
}

fn place(phase: StepPhase) -> usize {
    match phase {
        StepPhase::Forward => 0,
        StepPhase::Backward => 1,
        StepPhase::Update => 2,
    }
}

fn layers(kernels: &[Kernel], works: &[Work]) -> Vec<(String, [Work; 3])> {
    let mut layers: Vec<(String, [Work; 3])> = Vec::new();
    for (kernel, work) in kernels.iter().zip(works) {
        let layer = layer(&kernel.op_name).unwrap_or_else(|| NO_LAYER.to_string());
        let known = layers.iter().position(|(name, _)| *name == layer);
        let known = known.unwrap_or_else(|| {
            layers.push((layer, Default::default()));
            layers.len() - 1
        });
        let phase = phase(&kernel.op_name).unwrap_or(StepPhase::Update);
        layers[known].1[place(phase)] += *work;
    }
    layers
}

fn findings(kernels: &[Kernel], works: &[Work]) -> Vec<Finding> {
    let prologue = |kernel: &Kernel, names: &[&str]| {
        names
            .iter()
            .any(|name| kernel.operand_work.contains_key(name))
    };
    let only_moves = |kernel: &Kernel| kernel.class == KernelClass::DataMovement;
    type Is<'a> = &'a dyn Fn(&Kernel) -> bool;
    let all: [(&'static str, Is); 6] = [
        ("matmuls that convert an operand", &|kernel| {
            prologue(kernel, &["convert"])
        }),
        ("matmuls that transpose an operand", &|kernel| {
            prologue(kernel, &["transpose", "copy"])
        }),
        ("only move data", &only_moves),
        ("  of them only convert", &|kernel| kernel.only_converts),
        ("  of them for a library's matmul", &|kernel| {
            kernel.feeds_matmul
        }),
        ("column reductions", &|kernel| kernel.sums_columns),
    ];
    let finding = |(name, is_of): (&'static str, Is)| {
        let work = sum(kernels, works, is_of);
        let found = kernels.iter().filter(|kernel| is_of(kernel));
        let largest = found.max_by(|a, b| (a.times * a.bytes).total_cmp(&(b.times * b.bytes)))?;
        let path = match &largest.op_name[..] {
            "" => &largest.name,
            path => path,
        };
        Some(Finding {
            name,
            work,
            largest: path.to_string(),
        })
    };
    all.into_iter().filter_map(finding).collect()
}

fn collectives(kernels: &[Kernel], works: &[Work]) -> Vec<Collective> {
    let mut all: Vec<Collective> = Vec::new();
    for (kernel, exchange) in kernels
        .iter()
        .filter_map(|it| Some((it, it.exchange.as_ref()?)))
    {
        let is_same = |it: &Collective| it.kind == exchange.kind && it.devices == exchange.devices;
        let place = all.iter().position(is_same);
        let place = place.unwrap_or_else(|| {
            all.push(Collective {
                kind: exchange.kind.clone(),
                devices: exchange.devices,
                ..Collective::default()
            });
            all.len() - 1
        });
        let into = &mut all[place];
        into.count += 1;
        into.bytes += (kernel.times * exchange.bytes as f64) as u64;
        let meanwhile = exchange.meanwhile.clone();
        let others = meanwhile.filter(|&at| kernels[at].class != KernelClass::Collective);
        let mut work = Work::default();
        others.for_each(|at| work += works[at]);
        into.overlapped += u64::from(work.kernels > 0);
        into.overlapped_work += work;
    }
    all
}

fn inputs(compiled: &Compiled) -> xtrain_runtime::Result<Inputs> {
    let aliased = aliased_parameters(compiled.module)?;
    let Some(graph) = compiled.graph else {
        return Ok(Inputs {
            count: parameter_count(compiled.module)?,
            aliased: aliased.len(),
            ..Inputs::default()
        });
    };
    let donated: Vec<usize> = graph.aliases().map(|(_, input, _)| input).collect();
    let names = |wanted: &dyn Fn(&usize) -> bool| -> Vec<String> {
        let inputs = graph.inputs.iter().enumerate();
        let named = inputs.filter(|(place, _)| wanted(place));
        named.map(|(_, input)| input.name.clone()).collect()
    };
    Ok(Inputs {
        count: graph.inputs.len(),
        aliased: donated
            .iter()
            .filter(|place| aliased.contains(place))
            .count(),
        not_aliased: names(&|place| donated.contains(place) && !aliased.contains(place)),
        kept: names(&|place| !donated.contains(place)),
    })
}

fn memory(compiled: &Compiled) -> xtrain_runtime::Result<Memory> {
    let profile = live_buffers::profile(compiled.module)?;
    let held = profile.held();
    // What the compiler made up belongs to what runs before it.
    let mut current = StepPhase::Forward;
    let phases = profile.op_names.iter().map(|path| {
        current = phase(path).unwrap_or(current);
        place(current)
    });
    let phase_at: Vec<usize> = phases.collect();
    let highest = |is_of: &dyn Fn(usize) -> bool| {
        let of = (0..held.len()).filter(|&at| is_of(at));
        of.max_by_key(|&at| (held[at], std::cmp::Reverse(at)))
    };
    let peak_of = |number: usize| {
        let at = highest(&|at| phase_at[at] == number)?;
        Some(PhasePeak {
            phase: PHASES[number],
            bytes: held[at],
            at: profile.at(at).at,
        })
    };
    let buffers = highest(&|_| true).map(|at| profile.at(at).buffers);
    let buffers = buffers
        .unwrap_or_default()
        .into_iter()
        .map(|buffer| Buffer {
            bytes: buffer.bytes,
            shape: buffer.shape,
            path: if buffer.op_name.is_empty() {
                format!("({})", buffer.opcode)
            } else {
                buffer.op_name
            },
        });
    let account = |memory: CompilerMemory| {
        [memory.peak, memory.arguments, memory.temporaries].map(|bytes| bytes.max(0) as u64)
    };
    Ok(Memory {
        compiler: compiled.memory.map(account),
        phases: (0..PHASES.len()).filter_map(peak_of).collect(),
        buffers: buffers.collect(),
        phase_at,
        held,
    })
}
