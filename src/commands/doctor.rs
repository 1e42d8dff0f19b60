//! `xtrain doctor`: checks, in the order in which a run would need them, that everything is there
//! and works.

mod accelerator;
mod check;
mod cuda;
mod neuron;

use super::{Error, Outcome};
use crate::cache::CacheSettings;
use crate::config::{Device, DoctorPlan};
use crate::engine::failed;
use crate::parallel::Mesh;
use crate::report::units::bytes;
use crate::runtime::Library;
use crate::trainer::{device, matmul_peak};
use serde_json::json;
use std::time::Instant;
use xtrain_graphs::Precision;

pub(super) use check::sum_of_squares;
use check::{Check, compile_and_run};

pub fn run(plan: DoctorPlan) -> Result<Outcome, Error> {
    let checks = match plan.device.kind {
        Device::Cpu => check_cpu(),
        Device::Cuda => cuda::check(&plan.device.settings, &plan.cache),
        Device::Neuron => neuron::check(&plan.device.settings),
    };
    for check in checks.iter().filter(|_| !plan.json) {
        match &check.found {
            Ok(found) => println!(
                "{:5} {:20} {found}",
                if check.is_note { "note" } else { "ok" },
                check.name
            ),
            Err(reason) => println!("FAIL  {:20} {reason}", check.name),
        }
    }
    if plan.json {
        let entry = |c: &Check| match &c.found {
            Ok(found) => json!({"check": c.name, "ok": true, "found": found}),
            Err(reason) => json!({"check": c.name, "ok": false, "reason": reason}),
        };
        println!(
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

/// The checks build on each other: the first failure ends the list.
fn check_cpu() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |name, found: Result<String, Error>| {
        let found = found.map_err(|error| error.one_line());
        let ok = found.is_ok();
        checks.push(Check {
            name,
            found,
            is_note: false,
        });
        ok
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    check("processor", Ok(format!("{cores} cores")));
    let start = Instant::now();
    let library = Library::open().map_err(failed("opening the XLA library"));
    let found = library.map(|l| {
        format!(
            "{} ({}), opened in {:.2} s",
            l.path().display(),
            l.version(),
            start.elapsed().as_secs_f64()
        )
    });
    if !check("XLA library", found) {
        return checks;
    }
    let plugin = Library::open()
        .and_then(Library::cpu_plugin)
        .map_err(failed("starting the CPU plugin"));
    let found = plugin.map(|p| format!("PJRT C API {}.{}", p.api_version().0, p.api_version().1));
    if !check("CPU plugin", found) {
        return checks;
    }
    let session = device::open_cpu(Mesh::single(), CacheSettings::in_memory())
        .map_err(failed("opening the CPU device"));
    let mut session = match session {
        Ok(session) => session,
        Err(error) => {
            check("device", Err(error));
            return checks;
        }
    };
    let client = session.client();
    let memory = client.devices().first().and_then(|d| d.memory());
    let limit = memory
        .and_then(|m| m.bytes_limit)
        .map_or(String::new(), |b| {
            format!(", memory limit {}", bytes(b as u64))
        });
    let found = format!(
        "{} device(s), platform {} {}{limit}",
        client.devices().len(),
        client.platform_name(),
        client.platform_version()
    );
    check("device", Ok(found));
    if check("compile and run", compile_and_run(&mut session)) {
        let found = matmul_peak::measure_tflops(
            &mut session,
            Precision::F32,
            std::time::Duration::from_secs(1),
        )
        .map(|t| format!("{:.0} GFLOP/s in f32", t * 1e3));
        check("matrix multiply", found.map_err(failed("measuring")));
    }
    checks
}
