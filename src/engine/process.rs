//! What this process is, for its telemetry.

use super::device::cpu_kernels;
use super::model::parameter_count;
use xtrain_config::{RunPlan, without_secrets};
use xtrain_distributed::environment;
use xtrain_models::Model;
use xtrain_report::accounting;
use xtrain_report::memory;
use xtrain_report::telemetry::{ProcessEvent, cpu, host, now};
use xtrain_trainer::session::Session;

/// The process that trains by this plan; `peak` is the devices' measured matmul peak, in units of
/// 10^12 FLOP/s.
pub fn describe(plan: &RunPlan, session: &Session, model: &dyn Model, peak: f64) -> ProcessEvent {
    let (client, member) = (session.client(), plan.device.settings.member.as_deref());
    let processes = member.map_or(1, |member| member.world.max(1));
    let age = accounting::process_age().unwrap_or_default();
    let settings = plan.settings.iter();
    let platform = (client.platform_name(), client.platform_version());
    let versions = [
        ("xtrain", env!("CARGO_PKG_VERSION")),
        (platform.0, platform.1),
    ];
    // The CPU's plugin has no version of its own: it says "cpu".
    let versions = versions
        .into_iter()
        .filter(|(name, version)| name != version);
    ProcessEvent {
        time: now(),
        started: now() - age.as_secs_f64(),
        command: without_secrets(std::env::args()),
        settings: settings
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect(),
        versions: versions
            .map(|(name, version)| (name.to_string(), version.to_string()))
            .collect(),
        host: host(),
        cpu: cpu(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_bytes: memory::machine(),
        device: client
            .addressable_devices()
            .next()
            .map_or(String::new(), |device| device.kind().to_string()),
        kernels: cpu_kernels(&plan.device, &plan.cache),
        devices: session.mesh().devices(),
        processes,
        instances: member.map_or(1, |member| processes.div_ceil(member.local_world.max(1))),
        launched: environment::launched(),
        attempt: member.map_or(0, |member| member.generation),
        parameters: parameter_count(model),
        examples_per_step: plan.train.examples_per_step() as u64,
        peak_tflops: Some(peak),
    }
}
