//! NVIDIA cards, there or not: jax's plugin with what it needs, the options of its client and
//! compiler, and the target that a card is.

use super::device::{DeviceSettings, open_plugin, session};
use super::distributed_options;
use super::gpu::{Gpu, memory_share};
use crate::error::Result;
use crate::session::Session;
use std::ops::Range;
use xtrain_cache::{AotCache, AotDevice, CacheSettings};
use xtrain_graphs::Target;
use xtrain_parallel::Mesh;
use xtrain_report::errln;
use xtrain_runtime::discover::CUDA;
use xtrain_runtime::{
    Client, Error, OptionValue, OverrideValue, Plugin, Topology, cuda_tools, nvidia_libraries,
};

/// The oldest compute capability that graphs are lowered for where no card tells its own: 8.0, from
/// which on there are bf16 products.
pub const LEAST_CAPABILITY: u16 = 80;

/// Opens NVIDIA cards through jax's plugin.
///
/// # Errors
/// If there is no plugin, it does not open, or has too few cards.
pub fn open_cuda(settings: &DeviceSettings, mesh: Mesh, cache: CacheSettings) -> Result<Session> {
    let path = CUDA.find(settings.plugin.as_deref())?;
    // What cannot be opened here may be found by the plugin elsewhere; if not, its own error
    // decides.
    nvidia_libraries::preload(&path);
    let group = settings.group()?;
    let local = distributed_options::local_devices(group.as_ref(), mesh);
    // Processes of one machine take its cards in their order.
    let first = group
        .as_ref()
        .map_or(0, |group| group.rank_info().local_rank * local);
    let cards = first..first + local;
    let client = open_plugin(&CUDA, &path, mesh, group.as_ref(), |plugin| {
        let mut options = client_options(plugin, settings, cards.clone(), mesh.devices());
        options.extend(
            group
                .iter()
                .flat_map(|group| distributed_options::cuda_options(group.rank_info())),
        );
        options
    })?;
    let target = cuda_target(&client, settings)?;
    if settings.fused_attention_dropout {
        errln!(
            "note: cuDNN draws the dropout of attention: a run that is resumed or repeated gets other masks, and replicas get equal ones"
        );
    }
    let mut options = settings.compile_options(mesh);
    options.local.extend(tools_elsewhere(client.plugin()));
    if client.platform_name() == CUDA.device {
        let processes = group.as_ref().map_or(1, |group| group.rank_info().world);
        options.local.extend(tuning(&cache, processes));
    }
    session(client, target, options, mesh, cache)
}

/// Options of the plugin's client. A stand-in, which knows none of them, gets none.
fn client_options(
    plugin: &Plugin,
    settings: &DeviceSettings,
    cards: Range<usize>,
    devices: usize,
) -> Vec<(String, OptionValue)> {
    match cuda_tools::cuda_version(plugin) {
        Some(_) => card_options(settings, cards, devices),
        None => Vec::new(),
    }
}

/// `cards` are this process's, of the run's `devices`.
fn card_options(
    settings: &DeviceSettings,
    cards: Range<usize>,
    devices: usize,
) -> Vec<(String, OptionValue)> {
    let share = memory_share(devices);
    let fraction = settings.memory_fraction.unwrap_or(share);
    // As many as there are replicas; the others are left to other processes.
    let first = cards.map(|card| card as i64).collect();
    let visible = if settings.visible_devices.is_empty() {
        first
    } else {
        settings.visible_devices.clone()
    };
    [
        ("memory_fraction", OptionValue::Float(fraction as f32)),
        // Taken at once: a step that needs it finds it, or the run ends before its first step.
        ("preallocate", OptionValue::Bool(true)),
        ("visible_devices", OptionValue::IntList(visible)),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into()
}

/// The compile option for `ptxas` and `libdevice`, where the plugin would not find them by itself.
fn tools_elsewhere(plugin: &Plugin) -> Option<(&'static str, OverrideValue)> {
    cuda_tools::cuda_version(plugin)?;
    // If there are none at all, compiling says so.
    let found = cuda_tools::find(plugin).ok()?;
    let beside =
        cuda_tools::nvidia_folder(plugin.path()).is_some_and(|nvidia| found.starts_with(nvidia));
    (!beside).then(|| {
        (
            cuda_tools::DATA_DIR_OPTION,
            OverrideValue::String(found.display().to_string()),
        )
    })
}

/// The compile options about what XLA measures of kernels. It reads and writes that in the cache's
/// folder, by the card, the kernel and its own version. Of several processes each measures for
/// itself: XLA would divide the kernels of a module between all of them, and wait for their results,
/// but here one process compiles what the others load, and stages compile other modules.
fn tuning(cache: &CacheSettings, processes: usize) -> Vec<(&'static str, OverrideValue)> {
    let dir = cache.autotune_dir().map(|dir| {
        (
            "xla_gpu_per_fusion_autotune_cache_dir",
            OverrideValue::String(dir.display().to_string()),
        )
    });
    let apart = ("xla_gpu_shard_autotuning", OverrideValue::Bool(false));
    dir.into_iter()
        .chain((processes > 1).then_some(apart))
        .collect()
}

/// By the first card's own word, `9.0` for an H200; all cards of a process are of one kind.
fn cuda_target(client: &Client, settings: &DeviceSettings) -> Result<Target> {
    if client.platform_name() != CUDA.device {
        // A stand-in has no cuDNN.
        let settings = DeviceSettings {
            plain_attention: true,
            ..settings.clone()
        };
        return Ok(settings.cuda_target(LEAST_CAPABILITY));
    }
    let name = "compute_capability";
    let attribute = client
        .addressable_devices()
        .next()
        .and_then(|device| device.attribute(name));
    let attribute = attribute.map(|value| value.to_string()).unwrap_or_default();
    match capability(&attribute) {
        // As transformers says it of such a card.
        Some(capability) if settings.tf32 && capability < LEAST_CAPABILITY => Err(Error::Contradiction {
            variable: "--tf32",
            value: "true".into(),
            problem: format!("needs a card of Ampere or newer (compute capability 8.0), and this one has {attribute}"),
            fix: "leave it out".into(),
        }
        .into()),
        Some(capability) => Ok(settings.cuda_target(capability)),
        None => Err(Error::DeviceAttribute { name, found: attribute, wanted: "a number as 9.0" }.into()),
    }
}

/// 90 for `9.0`.
fn capability(text: &str) -> Option<u16> {
    let (major, minor) = text.split_once('.')?;
    Some(major.parse::<u16>().ok()? * 10 + minor.parse::<u16>().ok()?)
}

/// A card that is not attached, through the same plugin: graphs are compiled for it, and nothing runs.
///
/// # Errors
/// If there is no plugin, or it has not the tools to compile for a card that is not attached.
pub fn describe(gpu: Gpu, settings: &DeviceSettings, cache: CacheSettings) -> Result<AotCache> {
    let path = CUDA.find(settings.plugin.as_deref())?;
    let plugin = Plugin::load(&path)?;
    let tools = cuda_tools::find(&plugin)?;
    let description = gpu.target_config(&plugin);
    let text = |name: &str, value: &str| (name.to_string(), OptionValue::String(value.to_string()));
    let topology = Topology::create(
        &plugin,
        &[
            text("target_config", &description),
            text("topology", "1x1x1"),
        ],
    )?;
    let mut options = settings.compile_options(Mesh::single());
    options.local.insert(
        cuda_tools::DATA_DIR_OPTION,
        OverrideValue::String(tools.display().to_string()),
    );
    options.local.extend(tuning(&cache, 1));
    let device = AotDevice {
        topology,
        target: settings.cuda_target(gpu.capability()),
        name: gpu.name().to_string(),
        description,
        options,
    };
    Ok(AotCache::new(device, cache)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_do_not_wait_for_each_others_tuning() {
        let has = |processes| {
            let options = tuning(&CacheSettings::in_memory(), processes);
            let apart = ("xla_gpu_shard_autotuning", OverrideValue::Bool(false));
            options.contains(&apart)
        };
        assert!(has(2) && has(64));
        assert!(!has(1));
    }

    #[test]
    fn a_process_with_one_of_several_cards_leaves_them_room() {
        let fraction = |settings: &DeviceSettings, devices| {
            let options = card_options(settings, 0..1, devices);
            let found = options.iter().find(|(name, _)| name == "memory_fraction");
            found.unwrap().1.clone()
        };
        let by_default = DeviceSettings::default();
        assert_eq!(fraction(&by_default, 1), OptionValue::Float(0.9));
        assert_eq!(fraction(&by_default, 8), OptionValue::Float(0.85));
        let given = DeviceSettings {
            memory_fraction: Some(0.7),
            ..by_default
        };
        assert_eq!(fraction(&given, 8), OptionValue::Float(0.7));
    }

    #[test]
    fn capabilities_are_read_as_the_plugin_writes_them() {
        assert_eq!(capability("9.0"), Some(90));
        assert_eq!(capability("8.6"), Some(86));
        assert_eq!(capability("12.1"), Some(121));
        for text in ["", "9", "sm_90", "9.0a"] {
            assert_eq!(capability(text), None, "{text}");
        }
    }
}
