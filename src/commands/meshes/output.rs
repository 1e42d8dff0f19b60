//! The comparison as a table for people and as JSON for programs.

use serde_json::{Value, json};
use xtrain_engine::meshes::{Candidate, Comparison};
use xtrain_parallel::Mesh;
use xtrain_report::scaling::Exchange;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, exact};
use xtrain_trainer::settings::Checkpointing;

/// An estimate that is off by less than this part of the memory does not decide.
const UNSURE: u64 = 10;

pub(super) fn text(comparison: &Comparison) -> String {
    let Comparison {
        devices,
        memory,
        candidates,
        ..
    } = comparison;
    let (room, fitting) = (
        bytes(*memory),
        candidates
            .iter()
            .filter(|one| one.footprint.peak <= *memory)
            .count(),
    );
    let mut text = format!(
        "{} meshes of {devices} devices, {fitting} of which fit into {room} a device\n",
        candidates.len()
    );
    if comparison.checkpointing != Checkpointing::Off {
        let added = if comparison.checkpointing_added {
            ", since nothing fits without"
        } else {
            ""
        };
        text += &format!(
            "activations are computed twice ({}{added})\n",
            comparison.checkpointing
        );
    }
    let mut table = Table::new("rrrrrrrrrrr");
    table.row([
        "data", "shard", "tensor", "stages", "ZeRO-1", "examples", "state", "peak", "fits", "sent",
        "waits",
    ]);
    for candidate in candidates {
        table.row(cells(candidate, *memory));
    }
    text += &format!("\n{}\n", table.render());
    for (reason, count) in &comparison.impossible {
        text += &format!(
            "left out, {} of the meshes: {reason}\n",
            exact(*count as u64)
        );
    }
    text += "examples: of a step, on all devices. state: weights, moments and sums of the fullest device, exactly.\n\
             peak: with batch and temporaries, estimated from the recorded graphs as XLA's CPU compiler would lay them out; close: within\n\
             a tenth of what there is, which only a compiler decides (leave --compare_meshes out and give the degrees).\n\
             sent: by each device in a step, if collectives go in rings. waits: share of the time in which stages wait for each other.\n\
             Order: what fits; the most examples in a step less what stages wait, since devices with rows of their own wait least for\n\
             each other; the fewest bytes sent; the least memory. What does not fit: the nearest first.\n";
    for (index, compiled) in &comparison.compiled {
        let candidate = &comparison.candidates[*index];
        let verdict = if compiled.peak <= *memory {
            "fits"
        } else {
            "does not fit"
        };
        text += &format!(
            "\ncompiled {}: {} at the peak by the compiler (in `{}`), {} by the estimate: {verdict}\n",
            candidate.flags(),
            bytes(compiled.peak),
            compiled.graph,
            bytes(candidate.footprint.peak)
        );
        let speed = comparison.speed(*index, compiled);
        if let (Some(seconds), Some(speed)) = (compiled.seconds, speed) {
            text += &format!(
                "  its kernels need at least {:.1} ms a step: at most {speed:.0} examples/s\n",
                seconds * 1e3
            );
        }
    }
    let has_times = comparison
        .compiled
        .iter()
        .any(|(_, compiled)| compiled.seconds.is_some());
    if let Some(chosen) = comparison.chosen().filter(|_| has_times) {
        text += &format!(
            "\nchosen: {}, the most examples a second of those that were compiled and fit (links between cards are not counted)\n",
            chosen.flags()
        );
    }
    if comparison.chosen().is_none() {
        let advice = match comparison.checkpointing {
            Checkpointing::Full => {
                "more devices, or a smaller --per_device_train_batch_size or fewer tokens, would be needed"
            }
            _ => {
                "--gradient_checkpointing full, more devices or a smaller --per_device_train_batch_size would need less"
            }
        };
        text += &format!("\nno mesh is known to fit; {advice}\n");
    }
    text
}

fn cells(candidate: &Candidate, memory: u64) -> [String; 11] {
    let Mesh {
        stage,
        data,
        shard,
        tensor,
    } = candidate.mesh;
    let footprint = &candidate.footprint;
    [
        data.to_string(),
        shard.to_string(),
        tensor.to_string(),
        stage.to_string(),
        if candidate.zero1 { "yes" } else { "" }.to_string(),
        exact(candidate.examples as u64),
        bytes(footprint.state),
        bytes(footprint.peak),
        match footprint.peak {
            peak if peak.abs_diff(memory) <= memory / UNSURE => "close",
            peak if peak <= memory => "yes",
            _ => "no",
        }
        .to_string(),
        bytes(candidate.sent),
        if stage > 1 {
            format!("{:.0} %", 100.0 * candidate.waits)
        } else {
            String::new()
        },
    ]
}

pub(super) fn json(comparison: &Comparison) -> Value {
    let meshes: Vec<Value> = comparison
        .candidates
        .iter()
        .map(|one| mesh(one, comparison.memory))
        .collect();
    let compiled = comparison.compiled.iter().map(|(index, compiled)| {
        json!({
            "flags": comparison.candidates[*index].flags(),
            "graph": compiled.graph,
            "peak_bytes": compiled.peak,
            "estimated_peak_bytes": comparison.candidates[*index].footprint.peak,
            "fits": compiled.peak <= comparison.memory,
            "honest_ms": compiled.seconds.map(|seconds| seconds * 1e3),
            "examples_per_second": comparison.speed(*index, compiled),
        })
    });
    json!({
        "devices": comparison.devices,
        "memory_bytes": comparison.memory,
        "gradient_checkpointing": comparison.checkpointing.to_string(),
        "meshes": meshes,
        "left_out": comparison.impossible.iter().map(|(reason, count)| json!({"reason": reason, "meshes": count})).collect::<Vec<_>>(),
        "compiled": compiled.collect::<Vec<_>>(),
        "chosen": comparison.chosen().map(Candidate::flags),
    })
}

fn mesh(candidate: &Candidate, memory: u64) -> Value {
    let footprint = &candidate.footprint;
    json!({
        "flags": candidate.flags(),
        "data_parallel": candidate.mesh.data,
        "shard_parallel": candidate.mesh.shard,
        "tensor_parallel": candidate.mesh.tensor,
        "pipeline_parallel": candidate.mesh.stage,
        "shard_optimizer_state": candidate.zero1,
        "examples_per_step": candidate.examples,
        "state_bytes": footprint.state,
        "estimated_peak_bytes": footprint.peak,
        "estimated_fits": footprint.peak <= memory,
        "decided_by": footprint.graph,
        "sent_bytes_by_device": candidate.sent,
        "exchanged_per_step": candidate.exchanged.iter().map(Exchange::json).collect::<Vec<_>>(),
        "waiting": candidate.waits,
    })
}
