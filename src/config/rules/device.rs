//! What goes with one device only.

use super::verdict::{Verdict, refuse, refuse_if};
use crate::choices::{AttentionDropoutKernel, AttnImplementation, Device, Target};
use crate::flags::Flags;
use crate::mesh::mesh;
use xtrain_trainer::settings::Checkpointing;

pub fn target_is_of_the_device(flags: &Flags) -> Verdict {
    let (target, what, wanted) = match (*flags.target, *flags.neuron_target) {
        (Some(Target::Gpu(gpu)), _) => (gpu.name().to_string(), "an NVIDIA card", Device::Cuda),
        (Some(Target::Chip(chip)), _) | (None, Some(chip)) => {
            (chip.to_string(), "a chip of AWS's", Device::Neuron)
        }
        (None, None) => return Ok(()),
    };
    let device = *flags.device;
    if device == wanted {
        return Ok(());
    }
    refuse(
        format!("--target {target} is {what}, but --device is {device}"),
        format!("add --device {wanted}"),
    )
}

pub fn cuda_flags_need_cuda(flags: &Flags) -> Verdict {
    let given = [
        flags.gpu_memory_fraction.given_name(),
        flags.visible_devices.given_name(),
        flags.xla_options.given_name(),
    ];
    match given.into_iter().flatten().next() {
        Some(name) if *flags.device != Device::Cuda => refuse(
            format!(
                "--{name} is for NVIDIA cards, but --device is {}",
                *flags.device
            ),
            "add --device cuda, or leave it out",
        ),
        _ => Ok(()),
    }
}

pub fn offloading_needs_two_memories(flags: &Flags) -> Verdict {
    let reason = match *flags.device {
        Device::Cuda => return Ok(()),
        Device::Neuron => "Neuron's plugin exposes no host memory",
        Device::Cpu => "on the CPU activations are in host memory already",
    };
    refuse_if(
        *flags.activation_offloading,
        &format!("--activation_offloading: {reason}"),
        "leave it out; --gradient_checkpointing recomputes activations instead of keeping them",
    )
}

/// A stage's forward and backward passes are graphs of their own, and what one hands to the other is on
/// the device.
pub fn offloading_is_within_a_graph(flags: &Flags) -> Verdict {
    refuse_if(
        *flags.activation_offloading && mesh(flags).is_ok_and(|mesh| mesh.stage > 1),
        "--activation_offloading does not go with --pipeline_parallel: between their passes stages keep layer inputs on the device",
        "leave it out; --gradient_checkpointing keeps as little there, and --pipeline_schedule bounds how many microbatches wait",
    )
}

pub fn tf32_needs_cuda(flags: &Flags) -> Verdict {
    let fix = match *flags.device {
        Device::Cuda => return Ok(()),
        Device::Neuron => {
            "leave it out, or use --neuron_auto_cast matmult --neuron_auto_cast_type tf32"
        }
        Device::Cpu => "leave it out, or add --device cuda",
    };
    let device = *flags.device;
    refuse_if(
        *flags.tf32,
        &format!("--tf32 needs an NVIDIA card of Ampere or newer, but --device is {device}"),
        fix,
    )
}

fn drops_out_by_cudnn(flags: &Flags) -> bool {
    *flags.attention_dropout_kernel == AttentionDropoutKernel::Cudnn
}

pub fn cudnn_dropout_needs_cuda(flags: &Flags) -> Verdict {
    let device = *flags.device;
    refuse_if(
        drops_out_by_cudnn(flags) && device != Device::Cuda,
        &format!("--attention_dropout_kernel cudnn is for NVIDIA cards, but --device is {device}"),
        "leave it out, or add --device cuda",
    )
}

pub fn cudnn_dropout_is_fused(flags: &Flags) -> Verdict {
    refuse_if(
        drops_out_by_cudnn(flags) && *flags.attn_implementation == AttnImplementation::Eager,
        "--attention_dropout_kernel cudnn and --attn_implementation eager contradict each other",
        "leave one out: cudnn dropout needs fused attention",
    )
}

/// The masks of a layer that runs more than once in a step would have to be the same.
pub fn cudnn_dropout_runs_once(flags: &Flags) -> Verdict {
    let checkpointing = &flags.gradient_checkpointing;
    let recomputing = [
        (**checkpointing != Checkpointing::Off).then_some(checkpointing.name()),
        flags.activation_offloading.name_if_true(),
    ];
    match recomputing.into_iter().flatten().next() {
        Some(name) if drops_out_by_cudnn(flags) => refuse(
            format!(
                "--attention_dropout_kernel cudnn does not go with --{name}: cuDNN does not guarantee equal masks when a call is recomputed"
            ),
            "leave one of them out",
        ),
        _ => Ok(()),
    }
}

pub fn neuron_flags_need_neuron(flags: &Flags) -> Verdict {
    let given = [
        flags.neuron_model_type.given_name(),
        flags.neuron_optlevel.given_name(),
        flags.neuron_auto_cast.given_name(),
        flags.neuron_auto_cast_type.given_name(),
        flags.neuron_stochastic_rounding.name_if_true(),
        flags.export.given_name(),
    ];
    match given.into_iter().flatten().next() {
        Some(name) if *flags.device != Device::Neuron => refuse(
            format!(
                "--{name} is for AWS's compiler, but --device is {}",
                *flags.device
            ),
            format!("add --device neuron, or leave --{name} out"),
        ),
        _ => Ok(()),
    }
}
