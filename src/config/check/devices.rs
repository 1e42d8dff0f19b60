//! Where a run may take place: its device, the processes that share it, what a launcher is told.

use super::{Verdict, refuse};
use crate::config::flags::Commands;
use crate::config::mesh;
use crate::config::resolve;
use crate::config::typed::Typed;
use crate::trainer::gpu::Gpu;

/// Flags under which a layer's operations run more than once in a step.
const RECOMPUTING: [&str; 2] = ["gradient_checkpointing", "activation_offloading"];

/// A job of several processes, seen by one of them.
pub(super) fn processes(typed: &Typed) -> Verdict {
    let member = match resolve::member(typed) {
        Ok(Some(member)) => member,
        Ok(None) => return Ok(()),
        Err(error) => {
            return refuse(
                error.to_string(),
                "`xtrain launch --help` and docs/parallelism.md tell what belongs together",
            );
        }
    };
    let world = member.world;
    let devices = typed.count("data_parallel").unwrap_or(1);
    let degree = |name: &str| typed.count(name).unwrap_or(1).max(1);
    let parts = degree("shard_parallel") * degree("tensor_parallel") * degree("pipeline_parallel");
    // One that is auto is dealt out by itself.
    let told = typed.is_given("data_parallel") && mesh::automatic(typed)?.is_none();
    if told && !(devices * parts).is_multiple_of(world) {
        let near = (1..)
            .map(|more| devices + more)
            .find(|devices| (devices * parts).is_multiple_of(world))
            .unwrap_or(world);
        return refuse(
            format!(
                "--data_parallel {devices} cannot be dealt out to {world} processes, each of which has as many devices"
            ),
            format!("set --data_parallel {near}, or leave it out for one device a process"),
        );
    }
    if world > 1
        && Commands::TRAIN.contains(typed.command)
        && typed.count("per_device_train_batch_size").is_none()
    {
        return refuse(
            "--per_device_train_batch_size auto looks at one process only",
            "find it with `xtrain fit` first, then launch with that number",
        );
    }
    Ok(())
}

/// A plan that looks at every mesh of so many devices.
pub(super) fn comparison(typed: &Typed) -> Verdict {
    let Some(devices) = typed.count("compare_meshes") else {
        return Ok(());
    };
    let what = format!("--compare_meshes {devices}");
    if !typed.bool("dry_run") || !resolve::do_train(typed) {
        let fix = if typed.bool("dry_run") {
            "add --do_train"
        } else {
            "add --dry_run"
        };
        return refuse(format!("{what} is for the plan of a training run"), fix);
    }
    if !typed.is_given("memory") {
        return refuse(
            format!("{what} asks what fits, and not into what"),
            "add --memory SIZE, one device's, for example 40GiB",
        );
    }
    if typed.count("per_device_train_batch_size").is_none() {
        return refuse(
            format!(
                "{what} compares meshes at one batch size, and --per_device_train_batch_size is auto"
            ),
            "give a number; `xtrain fit` then finds the largest for the mesh that was chosen",
        );
    }
    if let Some(name) = mesh::automatic(typed)? {
        return refuse(
            format!("{what} finds the degrees, and --{name} is auto"),
            format!("leave --{name} out"),
        );
    }
    let given: Vec<&str> = mesh::DEGREES
        .into_iter()
        .filter(|name| typed.is_given(name))
        .collect();
    let product: usize = given
        .iter()
        .map(|name| typed.count(name).unwrap_or(1))
        .product();
    if !devices.is_multiple_of(product)
        || (given.len() == mesh::DEGREES.len() && product != devices)
    {
        let told: Vec<String> = given
            .iter()
            .map(|name| format!("--{name} {}", typed.count(name).unwrap_or(1)))
            .collect();
        return refuse(
            format!("{what}: no mesh of so many devices has {}", told.join(" ")),
            "leave one of the degrees out",
        );
    }
    match resolve::member(typed) {
        Ok(Some(member)) if member.world > 1 => refuse(
            format!("{what} looks at all devices from one process"),
            "run it without `xtrain launch`",
        ),
        _ => Ok(()),
    }
}

pub(super) fn launch(typed: &Typed) -> Verdict {
    let (nodes, node) = (
        typed.count("nnodes").unwrap_or(1),
        typed.count("node_rank").unwrap_or(0),
    );
    let words = typed.words("command");
    if typed.is_given("device") {
        return refuse(
            "--device belongs to the command that is launched",
            "write it after --: `-- train clm --device cuda ...`",
        );
    }
    if node >= nodes {
        return refuse(
            format!("--node_rank {node} is none of {nodes} machines"),
            format!("number them from 0 to {}, or raise --nnodes", nodes - 1),
        );
    }
    if nodes > 1 && !typed.is_given("rdzv_endpoint") {
        return refuse(
            "several machines need to know where they meet",
            "add --rdzv_endpoint HOST:PORT with an address of node 0",
        );
    }
    if !matches!(words.first().map(String::as_str), Some("train" | "eval")) {
        return refuse(
            format!(
                "launch runs train or eval, not `{}`",
                words.first().map_or("", String::as_str)
            ),
            "write the command after --: `xtrain launch --nproc_per_node 2 -- train clm ...`",
        );
    }
    Ok(())
}

/// What only some meshes have a use for.
pub(super) fn mesh_options(typed: &Typed) -> Verdict {
    // A comparison of meshes tries several degrees.
    let is_compared = typed.count("compare_meshes").is_some();
    if typed.bool("sequence_parallel") && !is_compared && mesh::mesh(typed)?.tensor == 1 {
        return refuse(
            "--sequence_parallel cuts activations between the devices of a tensor group, and --tensor_parallel is 1",
            "set --tensor_parallel to 2 or more, or leave --sequence_parallel out",
        );
    }
    Ok(())
}

/// What belongs to a device goes with it alone.
pub(super) fn device(typed: &Typed) -> Verdict {
    let device = typed.text("device").unwrap_or_default();
    if let Some(target) = typed.text("target") {
        let (what, wanted) = match Gpu::NAMES.contains(&target.as_str()) {
            true => ("an NVIDIA card", "cuda"),
            false => ("a chip of AWS's", "neuron"),
        };
        if device != wanted {
            return refuse(
                format!("--target {target} is {what}, but --device is {device}"),
                format!("add --device {wanted}"),
            );
        }
    }
    if typed.is_given("plugin") && device == "cpu" {
        return refuse(
            "--plugin names an accelerator's plugin, but --device is cpu",
            "add --device cuda or --device neuron",
        );
    }
    let of_cuda = ["gpu_memory_fraction", "visible_devices", "xla_options"]
        .into_iter()
        .find(|name| typed.is_given(name));
    if let (Some(name), true) = (of_cuda, device != "cuda") {
        return refuse(
            format!("--{name} is for NVIDIA cards, but --device is {device}"),
            "add --device cuda, or leave it out",
        );
    }
    if typed.bool("activation_offloading") {
        let reason = match device.as_str() {
            "cuda" => None,
            "neuron" => {
                Some("Neuron's plugin shows no memory but the device's own to put them into")
            }
            _ => Some("the CPU has no second memory: its activations are in the host's already"),
        };
        if let Some(reason) = reason {
            return refuse(
                format!("--activation_offloading: {reason}"),
                "leave it out; --gradient_checkpointing computes activations again instead of keeping them",
            );
        }
        if typed.text("gradient_checkpointing").as_deref() == Some("attention") {
            return refuse(
                "--activation_offloading puts away what checkpointing by layers keeps, and --gradient_checkpointing is attention",
                "use --gradient_checkpointing full or every:K, or leave one of them out",
            );
        }
    }
    if typed.bool("tf32") && device != "cuda" {
        return refuse(
            format!("--tf32 needs an NVIDIA card of Ampere or newer, but --device is {device}"),
            match device.as_str() {
                "neuron" => {
                    "leave it out, or let AWS's compiler round by --neuron_auto_cast matmult --neuron_auto_cast_type tf32"
                }
                _ => "leave it out, or add --device cuda",
            },
        );
    }
    let by_cudnn = typed.text("attention_dropout_kernel").as_deref() == Some("cudnn");
    if by_cudnn && device != "cuda" {
        return refuse(
            format!(
                "--attention_dropout_kernel cudnn is for NVIDIA cards, but --device is {device}"
            ),
            "leave it out, or add --device cuda",
        );
    }
    if by_cudnn && typed.text("attn_implementation").as_deref() == Some("eager") {
        return refuse(
            "--attention_dropout_kernel cudnn and --attn_implementation eager contradict each other",
            "leave one of them out: only a call of cuDNN can drop out with its masks",
        );
    }
    let is_on = |name: &&str| {
        typed.bool_if_given(name) == Some(true)
            || typed.text(name).is_some_and(|text| text != "off")
    };
    if let Some(name) = RECOMPUTING.into_iter().find(is_on).filter(|_| by_cudnn) {
        return refuse(
            format!(
                "--attention_dropout_kernel cudnn does not go with --{name}: the masks of a recomputed or repeated call are not known to be the same"
            ),
            "leave one of them out",
        );
    }
    if typed.float("gpu_memory_fraction") == Some(0.0) {
        return refuse(
            "--gpu_memory_fraction 0 leaves a run no memory",
            "raise it; 0.9 is usual",
        );
    }
    if let Some(Err(part)) = typed
        .text("visible_devices")
        .map(|text| resolve::device_numbers(&text))
    {
        return refuse(
            format!("--visible_devices: `{part}` is not the number of a GPU, or is named twice"),
            "write it as 0 or 0,1, as nvidia-smi numbers them",
        );
    }
    match typed
        .text("xla_options")
        .map(|text| resolve::xla_options(&text))
    {
        Some(Err(part)) => refuse(
            format!("--xla_options: `{part}` is not of the form xla_NAME=VALUE"),
            "write it as xla_gpu_enable_triton_gemm=false,xla_gpu_graph_min_graph_size=1",
        ),
        _ => Ok(()),
    }
}

/// What is said to Neuron's compiler is for that device alone.
pub(super) fn neuron(typed: &Typed) -> Verdict {
    let flags = [
        "neuron_model_type",
        "neuron_optlevel",
        "neuron_auto_cast",
        "neuron_auto_cast_type",
        "neuron_stochastic_rounding",
        "export",
    ];
    let device = typed.text("device").unwrap_or_default();
    match flags
        .into_iter()
        .find(|name| typed.is_given(name) && typed.bool_if_given(name) != Some(false))
    {
        Some(name) if device != "neuron" => refuse(
            format!("--{name} says something to AWS's compiler, and --device is {device}"),
            format!("add --device neuron, or leave --{name} out"),
        ),
        _ => Ok(()),
    }
}
