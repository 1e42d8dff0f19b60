//! `xtrain doctor`: checks, in the order in which a run would need them, that everything is there
//! and works.

mod accelerator;
mod check;
mod cuda;
mod neuron;
mod numbers;

use super::{Error, Outcome};
use serde_json::json;
use std::time::{Duration, Instant};
use xtrain_cache::CacheSettings;
use xtrain_config::{Device, DoctorPlan};
use xtrain_engine::failed;
use xtrain_graphs::Precision;
use xtrain_parallel::Mesh;
use xtrain_report::outln;
use xtrain_report::terminal::{Tone, paint};
use xtrain_report::units::bytes;
use xtrain_runtime::{Client, KernelSpeed, Library};
use xtrain_trainer::device::DeviceSettings;
use xtrain_trainer::{device, matmul_peak};

pub(super) use check::sum_of_squares;
use check::{Check, Failed, Report};

pub fn run(plan: DoctorPlan) -> Result<Outcome, Error> {
    let settings = &plan.device.settings;
    let mut report = Report::default();
    // A failure is among the lines.
    let _ = match plan.device.kind {
        Device::Cpu => check_cpu(&mut report, settings, &plan.cache),
        Device::Cuda => cuda::check(&mut report, settings, &plan.cache),
        Device::Neuron => neuron::check(&mut report, settings),
    };
    let (checks, stdout) = (report.checks, std::io::stdout());
    for check in checks.iter().filter(|_| !plan.json) {
        match &check.found {
            Ok(found) => {
                let (word, tone) = if check.is_note {
                    ("note ", Tone::Warning)
                } else {
                    ("ok   ", Tone::Good)
                };
                outln!("{} {:20} {found}", paint(&stdout, tone, word), check.name);
            }
            Err(reason) => {
                let word = paint(&stdout, Tone::Bad, "FAIL ");
                outln!("{word} {:20} {reason}", check.name);
            }
        }
    }
    if plan.json {
        let entry = |c: &Check| match &c.found {
            Ok(found) => json!({"check": c.name, "ok": true, "found": found}),
            Err(reason) => json!({"check": c.name, "ok": false, "reason": reason}),
        };
        outln!(
            "{}",
            json!({"device": plan.device.kind.to_string(), "checks": checks.iter().map(entry).collect::<Vec<_>>()})
        );
    }
    match checks.iter().find(|c| c.found.is_err()) {
        None => Ok(Outcome::Done),
        Some(check) => Err(Error::failed(format!("check `{}` failed", check.name))
            .with_hint("its line above says what to do")),
    }
}

fn check_cpu(
    report: &mut Report,
    settings: &DeviceSettings,
    cache: &CacheSettings,
) -> Result<(), Failed> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    report.line("processor", Ok(format!("{cores} cores")));
    let start = Instant::now();
    let library = Library::open().map_err(failed("opening the XLA library"));
    let found = library.map(|library| {
        let (path, version) = (library.path().display(), library.version());
        let seconds = start.elapsed().as_secs_f64();
        format!("{path} ({version}), opened in {seconds:.2} s")
    });
    report.check("XLA library", found)?;
    let plugin = Library::open()
        .and_then(Library::cpu_plugin)
        .map_err(failed("starting the CPU plugin"));
    let found = plugin.map(|p| format!("PJRT C API {}.{}", p.api_version().0, p.api_version().1));
    report.check("CPU plugin", found)?;
    let kernels = settings
        .cpu_kernels(cache)
        .map_err(failed("choosing the matmul kernels"));
    report.check("matmul kernels", kernels.map(|kernels| describe(&kernels)))?;
    let opened = device::open_cpu(Mesh::single(), CacheSettings::in_memory());
    let mut session = report.device(opened, describe_cpu)?;
    let found = matmul_peak::measure_tflops(&mut session, Precision::F32, Duration::from_secs(1))
        .map(|t| format!("{:.0} GFLOP/s in f32", t * 1e3));
    report.check("matrix multiply", found.map_err(failed("measuring")))
}

fn describe(kernels: &[KernelSpeed]) -> String {
    let texts: Vec<String> = kernels.iter().map(KernelSpeed::to_string).collect();
    match &texts[..] {
        [] => "none for this processor: matmuls are XLA's".to_string(),
        texts => texts.join(", "),
    }
}

fn describe_cpu(client: &Client) -> String {
    let (count, name) = (client.devices().len(), client.platform_name());
    let memory = client.devices().first().and_then(|d| d.memory());
    let limit = memory.and_then(|memory| memory.bytes_limit);
    let limit = limit.map_or(String::new(), |b| {
        format!(", memory limit {}", bytes(b as u64))
    });
    let version = client.platform_version();
    format!("{count} device(s), platform {name} {version}{limit}")
}
