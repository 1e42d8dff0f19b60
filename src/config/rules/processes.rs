//! The devices and processes of a run: what a launcher is given, how they divide, which meshes are
//! compared.

use super::verdict::{Verdict, refuse, refuse_if};
use crate::choices::Device;
use crate::flags::Flags;
use crate::kind::Degree;
use crate::mesh::{automatic, degrees, mesh, product, times};

/// A job of several processes, seen by one of them.
pub fn environment_is_consistent(flags: &Flags) -> Verdict {
    match flags.member() {
        Ok(_) => Ok(()),
        Err(error) => refuse(
            error.to_string(),
            "see `xtrain launch --help` and docs/parallelism.md",
        ),
    }
}

/// Processes of the job; 1 where this is the only one.
fn world(flags: &Flags) -> usize {
    let member = flags.member().ok().flatten();
    member.map_or(1, |member| member.world)
}

pub fn devices_divide_between_processes(flags: &Flags) -> Verdict {
    let world = world(flags);
    let devices = flags.data_parallel.count().unwrap_or(1);
    let [data, others @ ..] =
        degrees(flags).map(|degree| (degree.name(), degree.count().unwrap_or(1)));
    product(&[&[data], &others[..]].concat())?;
    let others = product(&others)?;
    // One that is auto is dealt out by itself.
    let is_given = flags.data_parallel.is_given() && automatic(flags)?.is_none();
    if !is_given || (devices * others).is_multiple_of(world) {
        return Ok(());
    }
    let near = (1..)
        .map(|more| devices + more)
        .find(|devices| (devices * others).is_multiple_of(world))
        .unwrap_or(world);
    refuse(
        format!(
            "--data_parallel {devices} does not divide between {world} processes with equally many devices"
        ),
        format!("set --data_parallel {near}, or leave it out for one device a process"),
    )
}

/// Devices that a CPU client has at most.
const MOST_CPU_DEVICES: usize = 1024;

/// A process has as many devices as the CPU client can have.
pub fn cpu_devices_are_few(flags: &Flags) -> Verdict {
    let is_compared = flags.compare_meshes.is_some();
    let Some(mesh) = mesh(flags).ok().filter(|_| !is_compared) else {
        return Ok(());
    };
    let devices = mesh.devices() / world(flags).max(1);
    let given = degrees(flags).map(|degree| (degree.name(), degree.count().unwrap_or(1)));
    let given: Vec<_> = given.into_iter().filter(|(_, count)| *count > 1).collect();
    refuse_if(
        *flags.device == Device::Cpu && devices > MOST_CPU_DEVICES,
        &format!(
            "{} are {devices} CPU devices in this process, which can have {MOST_CPU_DEVICES}",
            times(&given)
        ),
        "lower it, or spread the devices over more processes with `xtrain launch`",
    )
}

pub fn automatic_batch_needs_one_process(flags: &Flags) -> Verdict {
    refuse_if(
        world(flags) > 1 && *flags.per_device_train_batch_size == Degree::Auto,
        "--per_device_train_batch_size auto looks at one process only",
        "find it with `xtrain fit` first, then launch with that number",
    )
}

pub fn degrees_have_an_answer(flags: &Flags) -> Verdict {
    mesh(flags).map(drop)
}

/// As the counts of rows, tokens and devices, that of a step's examples has a bound.
pub fn examples_of_a_step_have_a_bound(flags: &Flags) -> Verdict {
    let batch = flags.per_device_train_batch_size.count().unwrap_or(1);
    let steps = *flags.gradient_accumulation_steps;
    let shards = mesh(flags)?.batch_shards();
    let all = batch
        .checked_mul(steps)
        .and_then(|examples| examples.checked_mul(shards));
    let most = i32::MAX as usize;
    refuse_if(
        all.is_none_or(|all| all > most),
        &format!(
            "a step of {batch} examples per device, {steps} times accumulated on {shards} devices, has more than {most} examples"
        ),
        "lower --per_device_train_batch_size or --gradient_accumulation_steps",
    )
}

pub fn sequence_parallel_needs_tensor_parallel(flags: &Flags) -> Verdict {
    // A comparison of meshes tries several degrees.
    let is_compared = flags.compare_meshes.is_some();
    refuse_if(
        *flags.sequence_parallel && !is_compared && mesh(flags)?.tensor == 1,
        "--sequence_parallel shards activations over a tensor-parallel group, but --tensor_parallel is 1",
        "set --tensor_parallel to 2 or more, or leave --sequence_parallel out",
    )
}

pub fn node_rank_is_a_node(flags: &Flags) -> Verdict {
    let (nodes, node) = (*flags.nnodes, *flags.node_rank);
    if node < nodes {
        return Ok(());
    }
    refuse(
        format!("--node_rank {node} is out of range for --nnodes {nodes}"),
        format!("number them from 0 to {}, or raise --nnodes", nodes - 1),
    )
}

pub fn launch_runs_train_or_eval(flags: &Flags) -> Verdict {
    let word = flags.launched.first().map_or("", String::as_str);
    refuse_if(
        !["train", "eval"].contains(&word),
        &format!("launch runs train or eval, not `{word}`"),
        "write the command after --: `xtrain launch --nproc_per_node 2 -- train clm ...`",
    )
}

/// Refuses if a comparison of meshes is asked for and `illegal`; the problem completes
/// `--compare_meshes N`.
fn comparison(flags: &Flags, illegal: bool, problem: &str, fix: &str) -> Verdict {
    match *flags.compare_meshes {
        Some(devices) if illegal => refuse(format!("--compare_meshes {devices} {problem}"), fix),
        _ => Ok(()),
    }
}

pub fn comparison_is_a_plan(flags: &Flags) -> Verdict {
    let fix = if *flags.dry_run {
        "add --do_train"
    } else {
        "add --dry_run"
    };
    let illegal = !*flags.dry_run || !flags.trains();
    comparison(flags, illegal, "is for the plan of a training run", fix)
}

pub fn comparison_needs_memory(flags: &Flags) -> Verdict {
    comparison(
        flags,
        !flags.memory.is_given(),
        "needs --memory",
        "add --memory SIZE per device, for example 40GiB",
    )
}

pub fn comparison_is_at_one_batch(flags: &Flags) -> Verdict {
    comparison(
        flags,
        *flags.per_device_train_batch_size == Degree::Auto,
        "compares meshes at one batch size, and --per_device_train_batch_size is auto",
        "give a number; `xtrain fit` then finds the largest for the mesh that was chosen",
    )
}

pub fn comparison_finds_the_degrees(flags: &Flags) -> Verdict {
    let Some(axis) = automatic(flags)? else {
        return Ok(());
    };
    let name = degrees(flags)[axis].name();
    comparison(
        flags,
        true,
        &format!("finds the degrees, and --{name} is auto"),
        &format!("leave --{name} out"),
    )
}

pub fn comparison_has_a_mesh(flags: &Flags) -> Verdict {
    let Some(devices) = *flags.compare_meshes else {
        return Ok(());
    };
    let settings = degrees(flags);
    let given: Vec<(&str, usize)> = settings
        .iter()
        .filter(|degree| degree.is_given())
        .map(|degree| (degree.name(), degree.count().unwrap_or(1)))
        .collect();
    let product = product(&given)?;
    let is_whole = given.len() == settings.len();
    let shown: Vec<String> = given
        .iter()
        .map(|(name, degree)| format!("--{name} {degree}"))
        .collect();
    comparison(
        flags,
        !devices.is_multiple_of(product) || (is_whole && product != devices),
        &format!("has no mesh with {}", shown.join(" ")),
        "leave one of the degrees out",
    )
}

pub fn comparison_is_one_process(flags: &Flags) -> Verdict {
    comparison(
        flags,
        world(flags) > 1,
        "looks at all devices from one process",
        "run it without `xtrain launch`",
    )
}
