//! `xtrain doctor --device neuron`: from the driver to a training step, in the order in which a
//! bare instance meets them. What lies outside of the plugin is a note, since a stand-in
//! does without and the plugin's own errors decide. What nobody outside of AWS has confirmed about
//! the plugin gets a line each, with what was seen here.

use super::check::{Failed, Report};
use super::numbers;
use crate::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use xtrain_cache::CacheSettings;
use xtrain_engine::failed;
use xtrain_graphs::optim::{ADAMW, Schedule};
use xtrain_graphs::{DType, Shape};
use xtrain_models::{HeadKind, NextToken};
use xtrain_parallel::Mesh;
use xtrain_runtime::discover::package_version;
use xtrain_runtime::neuron::host::Host;
use xtrain_runtime::neuron::releases::wrong_collectives;
use xtrain_runtime::{Client, CompileOptions, Plugin, Signature, conformance};
use xtrain_trainer::device::{self, DeviceSettings, NeuronEnvironment};
use xtrain_trainer::feed::DeviceBatch;
use xtrain_trainer::parameters;
use xtrain_trainer::session::Session;
use xtrain_trainer::settings::OptimizerSettings;
use xtrain_trainer::step::{Phase, TrainStep, read_metrics};

/// Cores that the checks ask for: an all-reduce takes two.
const CORES: u32 = 2;

pub(super) fn check(report: &mut Report, settings: &DeviceSettings) -> Result<(), Failed> {
    let host = Host::this();
    outside(report, &host);
    let path = device::neuron_plugin(settings.plugin.as_deref());
    let path = report.need("plugin", path.map_err(failed("looking for the plugin")))?;
    let version = package_version(&path, "libneuronxla");
    let wrong = version.as_deref().and_then(wrong_collectives);
    let version = version.map_or("of no known version".into(), |v| {
        format!("libneuronxla {v}")
    });
    report.line("plugin", Ok(format!("{} ({version})", path.display())));
    if let Some(wrong) = wrong {
        report.note("collectives", wrong);
    }
    // The cores, the communicator and the compiler's options are in the environment before the
    // plugin is opened.
    let began = Instant::now();
    let opened = NeuronEnvironment::set_for_cores(settings, CORES, 1).and_then(|environment| {
        let cache = CacheSettings::in_memory();
        device::open_neuron(settings, environment, Mesh::single(), cache)
    });
    let took = began.elapsed().as_secs_f64();
    let api = Plugin::load(&path).map(|plugin| {
        let (major, minor) = plugin.api_version();
        format!("PJRT C API {major}.{minor}, asked for 0.90")
    });
    report.check("API version", api.map_err(failed("opening the plugin")))?;
    compiler(report, &host, &path);
    let flags = std::env::var("NEURON_CC_FLAGS").unwrap_or_default();
    report.line("compiler's options", Ok(flags));
    let mut session = report.device(opened, |client| {
        let devices = client.addressable_devices();
        let kinds: Vec<&str> = devices.map(|device| device.kind()).collect();
        let (count, kinds) = (kinds.len(), kinds.join(", "));
        let (name, version) = (client.platform_name(), client.platform_version());
        format!("{count} of {kinds}, platform {name} {version}, in {took:.1} s")
    })?;
    let client = session.client().clone();
    let reduced = (client.addressable_devices().len() > 1)
        .then(|| report.line("all-reduce", all_reduce(&client)));
    if reduced.is_none() {
        let why = "not tried: there is one core; NEURON_RT_NUM_CORES=2 gives two";
        report.note("all-reduce", why);
    }
    report.line("random words", numbers::words(&mut session));
    report.line("one-hot products", numbers::one_hot(&mut session));
    let trained = training_step(&mut session);
    let donated = trained.as_ref().ok().map(|(_, donated)| *donated);
    report.line("training step", trained.map(|(text, _)| text));
    unconfirmed(report, &session, reduced, donated);
    Ok(())
}

/// Driver, device files, cores, libraries.
fn outside(report: &mut Report, host: &Host) {
    let files = host.device_files();
    report.note_or(
        "instance",
        host.instance_type(),
        "not an EC2 instance, as far as its files tell",
    );
    report.note_or(
        "driver",
        host.driver_version(),
        "the neuron kernel module is not loaded: install aws-neuronx-dkms",
    );
    report.note_or(
        "device files",
        (files > 0).then(|| format!("/dev/neuron0 and {} more", files - 1)),
        "there is no /dev/neuron0: this is no trn1, trn2 or trn3 instance, or the driver is missing",
    );
    report.note_or(
        "free cores",
        free_cores(),
        "not known: neuron-ls (aws-neuronx-tools) is not on PATH",
    );
    for (name, package) in [
        ("libnrt.so.1", "aws-neuronx-runtime-lib"),
        ("libncfw.so", "aws-neuronx-runtime-lib"),
        ("libnccom.so.2", "aws-neuronx-collectives"),
    ] {
        let found = host.library(name).map(|path| path.display().to_string());
        let otherwise = format!("{name} is not in /opt/aws/neuron/lib: install {package}");
        report.note_or("library", found, &otherwise);
    }
}

/// By neuron-ls: cores, and which processes have some.
fn free_cores() -> Option<String> {
    let output = std::process::Command::new("neuron-ls")
        .arg("-j")
        .output()
        .ok()?;
    if !output.status.success() {
        return Some("neuron-ls finds no device".into());
    }
    let chips: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).ok()?;
    let cores: u64 = chips
        .iter()
        .filter_map(|chip| chip["nc_count"].as_u64())
        .sum();
    let processes = chips
        .iter()
        .filter_map(|chip| chip["neuron_processes"].as_array())
        .flatten();
    let busy: Vec<String> = processes
        .filter_map(|process| Some(process["pid"].as_u64()?.to_string()))
        .collect();
    let busy = busy.join(", ");
    Some(if busy.is_empty() {
        format!("{cores} cores, no process has any")
    } else {
        format!("{cores} cores, of which processes {busy} have some")
    })
}

/// neuronx-cc, run once as the plugin will run it, and what it says it can compile.
fn compiler(report: &mut Report, host: &Host, plugin: &Path) {
    let Some(file) = host.compiler(Some(plugin), std::env::var("PATH").ok().as_deref()) else {
        return report.note(
            "neuronx-cc",
            "is neither on PATH nor beside the plugin: libneuronxla 3 runs it to compile; install neuronx-cc",
        );
    };
    let found = file
        .run_version()
        .map(|version| format!("{} ({version})", file.path.display()));
    if report.line("neuronx-cc", found.map_err(Error::failed)) {
        let listed = file.list_operators().map(|text| compare_operators(&text));
        let listed = listed.unwrap_or_else(|problem| format!("not listed: {problem}"));
        report.note("operators", listed);
    }
}

/// The table's operations that the compiler's own list has not. Its spelling has changed
/// (`AllReduce`, `all-reduce`), so only letters are compared.
fn compare_operators(text: &str) -> String {
    let letters = |text: &str| {
        text.chars()
            .filter(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase()
    };
    let listed: std::collections::HashSet<String> = text
        .split(|c: char| c.is_whitespace() || ",;:|[]()".contains(c))
        .map(letters)
        .filter(|word| !word.is_empty())
        .collect();
    let (known, missing): (Vec<&str>, Vec<&str>) =
        conformance::operations().partition(|opcode| listed.contains(&letters(opcode)));
    let (count, missing) = (known.len(), missing.join(", "));
    if missing.is_empty() {
        format!("all {count} of xtrain's table are in its list of operators")
    } else {
        format!("{count} of xtrain's table are in its list of operators; not: {missing}")
    }
}

/// Two replicas of one program, from text, since models use more of the machinery than this has to
/// show.
fn all_reduce(client: &Client) -> Result<String, Error> {
    const PROGRAM: &str = r#"module @all_reduce {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"#;
    let sum = || -> Result<Vec<Vec<f32>>, xtrain_runtime::Error> {
        let shape = Shape::new(DType::F32, [2]);
        let signature = Signature::new([shape.clone()], [shape.clone()]);
        let executable = client.compile_stablehlo(
            PROGRAM.as_bytes(),
            signature,
            &CompileOptions::replicated(2),
        )?;
        let upload = |device: usize| {
            let values = [device as f32 + 1.0, 10.0];
            client.upload(bytemuck::cast_slice(&values), &shape, device)
        };
        let inputs = [upload(0)?, upload(1)?];
        let outputs = executable.execute_replicated(&[vec![&inputs[0]], vec![&inputs[1]]])?;
        outputs
            .iter()
            .map(|device| device[0].download_to())
            .collect()
    };
    let start = Instant::now();
    let found = sum().map_err(failed("adding on two cores"))?;
    if found.iter().any(|sum| sum[..] != [3.0, 20.0]) {
        let problem = format!("[1, 10] + [2, 10] came out as {found:?}");
        return Err(Error::failed(problem));
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(
        "[1, 10] + [2, 10] = [3, 20] on both of two cores in {seconds:.2} s"
    ))
}

/// Two steps of a very small GPT-2: what was found, and whether the state of before was donated.
fn training_step(session: &mut Session) -> Result<(String, bool), Error> {
    const VOCABULARY: usize = 32;
    let start = Instant::now();
    let mut config =
        xtrain_models::preset(xtrain_models::EXAMPLE_PRESET).expect("it is one of the presets");
    for (key, value) in [
        ("n_layer", 1),
        ("n_head", 2),
        ("n_embd", 16),
        ("n_positions", 16),
        ("vocab_size", VOCABULARY),
    ] {
        config.set(key, value);
    }
    let model = xtrain_models::build(config, HeadKind::CausalLm)
        .map_err(failed("building a small model"))?;
    let optimizer = OptimizerSettings {
        weight_decay: 0.0,
        ..OptimizerSettings::constant(ADAMW, 1e-2)
    };
    let schedule = Schedule::constant(optimizer.learning_rate);
    let train_step = TrainStep::new(
        &*model,
        Arc::new(NextToken::default()),
        optimizer,
        schedule,
        1,
    );
    let mut train = || -> xtrain_trainer::Result<(Vec<f32>, bool)> {
        parameters::initialize(session, train_step.parameters(), 1)?;
        parameters::set_extra_state(session, &train_step.extra_state(false), None)?;
        let ids: Vec<i32> = (0..32).map(|i| i * 7 % VOCABULARY as i32).collect();
        let ids = session.upload(bytemuck::cast_slice(&ids), &Shape::new(DType::S32, [2, 16]))?;
        let batch = DeviceBatch::full(ids.clone(), ids);
        let before = session.replicas(&train_step.parameters()[0].name).cloned();
        let mut losses = Vec::new();
        for step in 0..2 {
            let marked = train_step.microbatch(
                session,
                &batch,
                Phase::Update { accumulated: false },
                step,
                step,
            )?;
            losses.push(read_metrics(&marked)?.wait()?.loss);
        }
        Ok((
            losses,
            before.is_some_and(|buffers| buffers[0].is_deleted()),
        ))
    };
    let (losses, donated) = train().map_err(failed("training a small model"))?;
    let expected = (VOCABULARY as f32).ln();
    let (first, then, seconds) = (losses[0], losses[1], start.elapsed().as_secs_f64());
    let text = format!("loss {first:.3}, then {then:.3} in {seconds:.1} s");
    if (first - expected).abs() < 0.5 && then < first {
        Ok((format!("GPT-2 of one layer: {text}"), donated))
    } else {
        Err(Error::failed(format!(
            "a new model of {VOCABULARY} tokens should begin near {expected:.3} and fall: {text}"
        )))
    }
}

/// A line for each fact about the plugin that no public source confirms, with what this run shows
/// of it.
fn unconfirmed(
    report: &mut Report,
    session: &Session,
    reduced: Option<bool>,
    donated: Option<bool>,
) {
    let seen = |value: Option<bool>, yes, no| match value {
        Some(true) => yes,
        Some(false) => no,
        None => "not tried",
    };
    let variable = |name: &str| {
        std::env::var(name).map_or("not set".to_string(), |value| format!("{name}={value}"))
    };
    let mut line = |name, seen: &str| report.note(name, format!("unconfirmed: {seen}"));
    line("C API 0.90", "the plugin took it: there is a client");
    line(
        "device assignment",
        "never asked for: older plugins end the process there",
    );
    line(
        "program format",
        "StableHLO first, HLO if that is refused; a note above says which was taken",
    );
    line(
        "replicas in one process",
        seen(reduced, "the all-reduce ran", "the all-reduce failed"),
    );
    line(
        "rng_default",
        "never emitted: masks are made of plain arithmetic",
    );
    let copied = "state was copied: twice the memory";
    line(
        "promised donations",
        seen(donated, "state was updated in place", copied),
    );
    let cache = variable("NEURON_COMPILE_CACHE_URL");
    line("the plugin's own cache", &format!("not relied on; {cache}"));
    let stored = match store_and_load(session) {
        Ok(()) => "serialized and loaded".into(),
        Err(error) => format!("do not load: {}", error.one_line()),
    };
    line("stored executables", &stored);
    let timeout = variable("NEURON_RT_EXEC_TIMEOUT");
    line(
        "stuck executions",
        &format!("{timeout}; xtrain gives up after XTRAIN_EVENT_TIMEOUT"),
    );
    line(
        "instruction limit",
        "not tried: it shows with a model that is too large",
    );
    line("barriers with donation", "never emitted for this device");
    line(
        "executions in flight",
        "left to the runtime, which has no setting for them since SDK 2.32",
    );
    line("erf", "never emitted: a polynomial stands in for it");
}

fn store_and_load(session: &Session) -> Result<(), Error> {
    let graph = session
        .cache()
        .graphs()
        .into_iter()
        .next()
        .ok_or_else(|| Error::failed("nothing was compiled"))?;
    let executable = &graph.executable;
    let loaded = executable.serialize().and_then(|bytes| {
        session
            .client()
            .load(&bytes, executable.signature().clone())
    });
    loaded.map(drop).map_err(failed("storing an executable"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_runtime::{Library, OptionValue};
    use xtrain_test_groups::Group;

    #[test]
    fn two_devices_add_up() {
        let plugin = match Library::open().and_then(Library::cpu_plugin) {
            Ok(plugin) => plugin,
            Err(error) => return Group::Library.skip(error),
        };
        let client =
            Client::create(&plugin, &[("cpu_device_count".into(), OptionValue::Int(2))]).unwrap();
        assert!(
            all_reduce(&client)
                .unwrap()
                .contains("[3, 20] on both of two cores")
        );
    }

    #[test]
    fn the_compilers_list_is_compared_whatever_its_spelling() {
        let spelled: String = conformance::operations()
            .map(|opcode| opcode.replace('-', "").to_uppercase() + ",\n")
            .collect();
        assert!(
            compare_operators(&spelled).starts_with("all "),
            "{}",
            compare_operators(&spelled)
        );
        let found = compare_operators(&spelled.replace("TANH", "TAN"));
        assert!(found.ends_with("not: tanh"), "{found}");
    }
}
