//! The key of a compiled graph: named parts, each hashed, so that a miss can say which of them
//! changed.
//!
//! The graph is what the model recorded. What this build of xtrain makes of it on a target is in as
//! `lowering`, a digest of the code that does it (`xtrain_graphs::LOWERING`): a stored executable
//! is found without lowering anything, and so without the XLA library, and yet no change to a pass
//! or to the emitter can load an executable of the old code.

use super::machine::Machine;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use xtrain_checkpoint::hash;
use xtrain_graphs::{Graph, Target};
use xtrain_runtime::{Client, CompileOptions, Library, Plugin, Topology, xla_flags};

/// Raised when entries are written differently, or when a part is added whose absence must miss.
pub const FORMAT_VERSION: u32 = 1;

/// Names of the parts that `explain` treats specially.
pub const GRAPH: &str = "graph";
pub const LOWERING: &str = "lowering";
const TARGET: &str = "target";
/// What the calls of the CPU's target follow, in its text.
const CALLS: &str = ", calls ";
pub const DONATION: &str = "donation";
const COMPILE_OPTIONS: &str = "compile options";
/// The XLA library, where its compiler makes the code. An accelerator's code is its plugin's, and
/// what the library does for that, lowering, is in [`LOWERING`]: such a key is known where there is
/// no library.
pub const COMPILER: &str = "compiler";
/// What decides a module: graphs that agree in these are lowered to the same one, whatever compiles
/// it.
const OF_MODULE: [&str; 5] = [GRAPH, DONATION, TARGET, LOWERING, COMPILER];
pub const DEVICE: &str = "device";
const TOPOLOGY: &str = "topology";
/// Suffix of the device of what was compiled for one that is not attached.
const COMPILE_CHECK: &str = "(compile check)";
/// The device of what was lowered and not compiled.
const ANY_DEVICE: &str = "any (lowered only)";
const CPU_FEATURES: &str = "CPU features";
const CACHE_FORMAT: &str = "cache format";

/// One reason why an executable fits or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    /// For people; long values are digests.
    pub value: String,
}

impl Part {
    fn new(name: &str, value: impl Into<String>) -> Part {
        Part {
            name: name.to_string(),
            value: value.into(),
        }
    }
}

/// All parts in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key {
    pub parts: Vec<Part>,
}

impl Key {
    /// The entry's name: 32 hexadecimal digits over the digests of all parts.
    pub fn id(&self) -> String {
        let mut hasher = Sha256::new();
        for part in &self.parts {
            hasher.update(Sha256::digest(&part.name));
            hasher.update(Sha256::digest(&part.value));
        }
        hash::hex(&hasher.finalize()[..16])
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.parts
            .iter()
            .find(|part| part.name == name)
            .map(|part| part.value.as_str())
    }

    /// The devices that the executable runs on, as its compile options say.
    pub fn devices(&self) -> usize {
        let degrees = self
            .value(COMPILE_OPTIONS)
            .unwrap_or_default()
            .split(' ')
            .step_by(2)
            .take(2);
        degrees
            .map(|degree| degree.parse().unwrap_or(1))
            .product::<usize>()
            .max(1)
    }

    /// The key of the module alone.
    pub fn of_module(&self) -> Key {
        let own = [
            Part::new(DEVICE, ANY_DEVICE),
            Part::new(CACHE_FORMAT, FORMAT_VERSION.to_string()),
        ];
        let decisive = self
            .parts
            .iter()
            .filter(|part| OF_MODULE.contains(&part.name.as_str()));
        Key {
            parts: decisive.cloned().chain(own).collect(),
        }
    }

    /// The same graph, lowered for another target.
    pub fn with_target(mut self, target: Target) -> Key {
        self.parts
            .iter_mut()
            .filter(|part| part.name == TARGET)
            .for_each(|part| part.value = target.to_string());
        self
    }

    /// Whether the graphs of both keys are lowered to the same module.
    pub fn has_module_of(&self, other: &Key) -> bool {
        OF_MODULE
            .iter()
            .all(|name| self.value(name) == other.value(name))
    }

    /// Every part that is not the same in both: `(name, old value, new value)`.
    pub fn changes<'a>(old: &'a Key, new: &'a Key) -> Vec<(&'a str, &'a str, &'a str)> {
        let names: Vec<&str> = new.parts.iter().map(|p| p.name.as_str()).collect();
        let gone = old
            .parts
            .iter()
            .map(|p| p.name.as_str())
            .filter(|name| !names.contains(name));
        let names = names.iter().copied().chain(gone);
        let values = |name| {
            (
                name,
                old.value(name).unwrap_or("absent"),
                new.value(name).unwrap_or("absent"),
            )
        };
        names
            .map(values)
            .filter(|(_, old, new)| old != new)
            .collect()
    }
}

/// The parts that do not depend on the graph, computed once per client.
pub struct CompileEnvironment {
    parts: Vec<Part>,
}

impl CompileEnvironment {
    pub fn of(
        client: &Client,
        options: &CompileOptions,
        target: Target,
    ) -> Result<CompileEnvironment, xtrain_runtime::Error> {
        let kinds: BTreeSet<&str> = client
            .devices()
            .iter()
            .map(|device| device.kind())
            .collect();
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        let (all, own) = (client.devices().len(), client.addressable_devices().len());
        let mut parts =
            compiler_parts(client.plugin(), client.platform_version(), options, target)?;
        parts.extend([
            // The CPU's kind is its platform's name again.
            Part::new(
                DEVICE,
                if kinds == client.platform_name() {
                    kinds
                } else {
                    format!("{} {kinds}", client.platform_name())
                },
            ),
            // Each process of a CPU run compiles the same, so what one has stored serves all.
            if client.platform_name() == "cpu" && all > own {
                Part::new(TOPOLOGY, format!("{own} of {all} devices, in each process"))
            } else {
                Part::new(
                    TOPOLOGY,
                    format!("{own} of {all} devices, process {}", client.process_index()),
                )
            },
        ]);
        parts.extend(
            options
                .surroundings
                .iter()
                .map(|(name, value)| Part::new(name, value)),
        );
        if client.platform_name() == "cpu" {
            let machine = Machine::this();
            parts.push(Part::new("CPU", machine.cpu));
            parts.push(Part::new(CPU_FEATURES, machine.features));
            parts.push(Part::new("CPU threads", machine.threads.to_string()));
        }
        parts.push(Part::new(CACHE_FORMAT, FORMAT_VERSION.to_string()));
        Ok(CompileEnvironment { parts })
    }

    /// For devices that are not attached: `device` names them, `description` is the one that the
    /// plugin was given, `tuning` which measurements the compiler can use. No part of a client's key
    /// begins as the device and the topology do here, so that no run can load what nobody has
    /// tuned.
    pub fn of_topology(
        topology: &Topology,
        device: &str,
        description: &str,
        tuning: &str,
        options: &CompileOptions,
        target: Target,
    ) -> Result<CompileEnvironment, xtrain_runtime::Error> {
        let mut parts = compiler_parts(
            topology.plugin(),
            topology.platform_version(),
            options,
            target,
        )?;
        parts.extend([
            Part::new(
                DEVICE,
                format!("{} {device} {COMPILE_CHECK}", topology.platform_name()),
            ),
            Part::new(TOPOLOGY, "no device: compiled by description, not tuned"),
            Part::new(
                "device description",
                &hash::sha256(description.as_bytes())[..16],
            ),
            Part::new("tuned kernels", tuning),
            Part::new(CACHE_FORMAT, FORMAT_VERSION.to_string()),
        ]);
        Ok(CompileEnvironment { parts })
    }

    pub fn key(&self, graph: &Graph) -> Key {
        let donated: Vec<&str> = graph.aliases().map(|(name, ..)| name).collect();
        let donation = format!(
            "{} inputs {}",
            donated.len(),
            &hash::sha256(donated.join("\n").as_bytes())[..16]
        );
        let own = [
            Part::new(GRAPH, graph.fingerprint().to_string()),
            Part::new(DONATION, donation),
        ];
        Key {
            parts: own.into_iter().chain(self.parts.iter().cloned()).collect(),
        }
    }
}

/// The name of the device that was not attached, where what is stored under a key was compiled for one:
/// `h200`.
pub fn described_device(key: &Key) -> Option<&str> {
    let (_, device) = key.value(DEVICE)?.split_once(' ')?;
    device.strip_suffix(COMPILE_CHECK).map(str::trim_end)
}

/// Whether what is stored under a key was compiled for a device that was not attached.
pub fn is_compile_check(key: &Key) -> bool {
    key.value(DEVICE)
        .is_some_and(|device| device.ends_with(COMPILE_CHECK))
}

/// Whether what is stored under a key is for running.
pub fn is_for_running(key: &Key) -> bool {
    !is_compile_check(key) && key.value(DEVICE) != Some(ANY_DEVICE)
}

/// Whether this build of xtrain, with this XLA library, would not look for such a key.
pub fn is_stale(key: &Key, library: &Library) -> bool {
    let differs = |name: &str, own: &str| key.value(name).is_some_and(|value| value != own);
    differs(COMPILER, library.version())
        || differs(LOWERING, lowering())
        || differs(CACHE_FORMAT, &FORMAT_VERSION.to_string())
}

/// Digest of what this build makes of graphs.
fn lowering() -> &'static str {
    &xtrain_graphs::LOWERING[..16]
}

/// What turns a graph into code, whatever it is for.
fn compiler_parts(
    plugin: &Plugin,
    platform_version: &str,
    options: &CompileOptions,
    target: Target,
) -> Result<Vec<Part>, xtrain_runtime::Error> {
    let attributes = plugin
        .attributes()
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect::<Vec<_>>()
        .join(" ");
    let (major, minor) = plugin.api_version();
    let mut parts = vec![
        Part::new(TARGET, target.to_string()),
        Part::new(LOWERING, lowering()),
        Part::new(COMPILE_OPTIONS, describe(options)?),
        Part::new("XLA_FLAGS", xla_flags()),
        Part::new(
            "plugin",
            format!("{platform_version} PJRT {major}.{minor} {attributes}"),
        ),
    ];
    if matches!(target, Target::Cpu(_)) {
        parts.push(Part::new(COMPILER, Library::open()?.version()));
    }
    Ok(parts)
}

/// Options as text, but for those that are this machine's: the serialized bytes decide, the fields
/// in front are for people.
fn describe(options: &CompileOptions) -> Result<String, xtrain_runtime::Error> {
    let mut text = format!("{} x {}", options.num_replicas, options.num_partitions);
    for (name, value) in &options.overrides {
        text.push_str(&format!(" {name}={value:?}"));
    }
    let passed = CompileOptions {
        local: Default::default(),
        ..options.clone()
    };
    let stages = passed
        .device_assignment
        .as_ref()
        .map_or(1, |rows| (rows.len() / passed.num_replicas.max(1)).max(1));
    let each = (0..stages)
        .map(|stage| passed.of_stage(stage).to_bytes())
        .collect::<Result<Vec<_>, _>>()?;
    text.push_str(&format!(" ({})", &hash::sha256(&each.concat())[..16]));
    Ok(text)
}

/// How a part's change is printed: feature sets as additions and removals, digests not at all.
pub fn describe_change(name: &str, old: &str, new: &str) -> String {
    if name == LOWERING {
        return "lowering (this build of xtrain writes graphs differently)".into();
    }
    if name == GRAPH || name == DONATION {
        return name.into();
    }
    if name == TARGET {
        // Of two processors, or of one that measured its kernels anew, the kernels are what differs.
        let calls = |target: &str| target.find(CALLS).map(|at| target[at..].to_string());
        let short = |target: &str| {
            let clauses = if calls(old) == calls(new) {
                target.split(CALLS).next()
            } else {
                None
            };
            clauses.unwrap_or(target).to_string()
        };
        return format!("{name}: `{}` was `{}`", short(new), short(old));
    }
    if name == CPU_FEATURES {
        let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
            (old.split(' ').collect(), new.split(' ').collect());
        let came = new.difference(&old).map(|f| format!("+{f}"));
        let went = old.difference(&new).map(|f| format!("-{f}"));
        return format!("{name}: {}", came.chain(went).collect::<Vec<_>>().join(" "));
    }
    format!("{name}: `{new}` was `{old}`")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn key(parts: &[(&str, &str)]) -> Key {
        Key {
            parts: parts
                .iter()
                .map(|(name, value)| Part::new(name, *value))
                .collect(),
        }
    }

    #[test]
    fn every_part_decides_and_boundaries_cannot_shift() {
        let base = [("graph", "a"), ("compiler", "b")];
        let id = key(&base).id();
        assert_eq!(id.len(), 32);
        assert_eq!(id, key(&base).id());
        for other in [
            &[("graph", "x"), ("compiler", "b")][..],
            &[("graph", "a"), ("compiler", "x")],
            &[("graph", "ac"), ("ompiler", "b")],
            &[("graph", "a")],
            &[("graph", "a"), ("compiler", "b"), ("format", "1")],
        ] {
            assert_ne!(key(other).id(), id, "{other:?}");
        }
    }

    #[test]
    fn the_number_of_devices_is_in_the_compile_options() {
        let options = CompileOptions {
            num_replicas: 4,
            num_partitions: 2,
            ..Default::default()
        };
        assert_eq!(
            key(&[(COMPILE_OPTIONS, &describe(&options).unwrap())]).devices(),
            8
        );
        assert_eq!(
            key(&[(
                COMPILE_OPTIONS,
                &describe(&CompileOptions::default()).unwrap()
            )])
            .devices(),
            1
        );
        assert_eq!(key(&[]).devices(), 1);
    }

    #[test]
    fn changes_are_named_in_order() {
        let old = key(&[("graph", "a"), ("compiler", "b"), ("gone", "1")]);
        let new = key(&[("graph", "a"), ("compiler", "c"), ("new", "2")]);
        assert_eq!(
            Key::changes(&old, &new),
            [
                ("compiler", "b", "c"),
                ("new", "absent", "2"),
                ("gone", "1", "absent")
            ]
        );
        assert_eq!(
            describe_change("compiler", "b", "c"),
            "compiler: `c` was `b`"
        );
        assert_eq!(
            describe_change(
                "target",
                "cpu, matmuls by avx512-bf16 and avx512-f32, calls gemv",
                "cpu, matmuls by avx2-f32, calls gemv"
            ),
            "target: `cpu, matmuls by avx2-f32` was `cpu, matmuls by avx512-bf16 and avx512-f32`"
        );
        assert_eq!(
            describe_change("target", "cpu, calls gemv", "cpu, calls norm"),
            "target: `cpu, calls norm` was `cpu, calls gemv`"
        );
        assert_eq!(
            describe_change("CPU features", "avx sse2", "avx512f sse2"),
            "CPU features: +avx512f -avx"
        );
    }
}
