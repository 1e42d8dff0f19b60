//! What this process is, for its telemetry.

use crate::config::RunPlan;
use crate::distributed::environment;
use crate::report::accounting;
use crate::report::memory;
use crate::report::telemetry::{ProcessEvent, cpu, host, now};
use crate::trainer::session::Session;
use std::collections::BTreeMap;
use xtrain_models::Model;

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
    let parameters = model.parameters();
    ProcessEvent {
        time: now(),
        started: now() - age.as_secs_f64(),
        command: command_line(std::env::args()),
        settings: settings
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect(),
        versions: BTreeMap::from(
            versions.map(|(name, version)| (name.to_string(), version.to_string())),
        ),
        host: host(),
        cpu: cpu(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_bytes: memory::machine(),
        device: client
            .addressable_devices()
            .next()
            .map_or(String::new(), |device| device.kind().to_string()),
        devices: session.mesh().devices(),
        processes,
        instances: member.map_or(1, |member| processes.div_ceil(member.local_world.max(1))),
        launched: environment::launched(),
        attempt: member.map_or(0, |member| member.generation),
        parameters: parameters
            .iter()
            .map(|p| p.dims.iter().product::<usize>() as u64)
            .sum(),
        examples_per_step: plan.train.examples_per_step() as u64,
        peak_tflops: Some(peak),
    }
}

/// The words without the value of `--token`.
fn command_line(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    for word in words {
        let is_value = shown.last().is_some_and(|last| last == "--token");
        shown.push(match word.split_once('=') {
            _ if is_value => "***".into(),
            Some(("--token", _)) => "--token=***".into(),
            _ => word,
        });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_kept() {
        let words = ["xtrain", "--token", "hf_1", "--token=hf_2", "--seed", "3"];
        assert_eq!(
            command_line(words.map(str::to_string).into_iter()).join(" "),
            "xtrain --token *** --token=*** --seed 3"
        );
    }
}
