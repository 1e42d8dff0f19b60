//! SageMaker's model parallelism, as its estimator passes it to a script (`--mp_parameters`): each
//! parameter becomes the flag that asks for the same. Flags that were given win.

use super::error::{Origin, UsageError};
use super::flags::Flags;
use super::kind::{Degree, parse_bool};
use super::lookup;
use super::nearest::nearest;
use serde_json::Value;

/// Parameters, and the flags that they are here.
const FLAGS: &[(&str, &str)] = &[
    ("partitions", "pipeline_parallel"),
    ("pipeline_parallel_degree", "pipeline_parallel"),
    ("pipeline", "pipeline_schedule"),
    ("tensor_parallel_degree", "tensor_parallel"),
    ("sharded_data_parallel_degree", "shard_parallel"),
    ("shard_optimizer_state", "shard_optimizer_state"),
    ("offload_activations", "activation_offloading"),
    ("fp16", "fp16"),
    ("bf16", "bf16"),
];

const MICROBATCHES: &str = "microbatches";

/// Whether the devices of a tensor-parallel group share a batch, as they do here; in SageMaker's library
/// each has one of its own by default.
const PRESCALED: &str = "prescaled_batch";

/// Parameters that change how SageMaker's library works, not what is computed.
const NO_COUNTERPART: &[&str] = &[
    "activation_loading_horizon",
    "active_microbatches",
    "auto_partition",
    "contiguous",
    "ddp",
    "ddp_dist_backend",
    "ddp_port",
    "default_partition",
    "delayed_parameter_initialization",
    "deterministic_server",
    "fast_mode",
    "fp16_params",
    "horovod",
    "memory_weight",
    "optimize",
    "placement_strategy",
    "sdp_gradient_clipping",
    "sdp_hierarchical_allgather",
    "sdp_max_live_parameters",
    "sdp_param_persistence_threshold",
    "sdp_reduce_bucket_size",
    "skip_tracing",
    "static_mode",
    "tensor_parallel_seed",
];

/// Puts flags in the place of `--mp_parameters`; what is wrong with them is added to the mistakes.
pub fn apply(flags: &mut Flags) {
    let Some(parameters) = flags.mp_parameters.clone() else {
        return;
    };
    let mut without = Vec::new();
    let mut is_prescaled = false;
    for (name, value) in parameters {
        let text = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let flag = FLAGS.iter().find(|(own, _)| *own == name);
        let taken = if let Some((_, flag)) = flag {
            let flag = lookup::find(flag, flags.command).expect("training takes all of them");
            flags.take(flag, &[text], Origin::CommandLine)
        } else if name == MICROBATCHES {
            microbatches(flags, &text)
        } else if name == PRESCALED {
            prescaled(&text).map(|answer| is_prescaled = answer)
        } else if NO_COUNTERPART.contains(&name.as_str()) {
            without.push(name);
            Ok(())
        } else {
            Err(unknown(&name))
        };
        if let Err(mistake) = taken {
            flags.mistakes.push(mistake);
        }
    }
    if !is_prescaled {
        flags.notes.extend(batch_note(flags));
    }
    if !without.is_empty() {
        flags.notes.push(format!(
            "--mp_parameters: {} without a counterpart here; layers are balanced between stages by work",
            without.join(", ")
        ));
    }
}

fn prescaled(text: &str) -> Result<bool, UsageError> {
    parse_bool(text).ok_or_else(|| {
        UsageError::illegal(
            format!("--mp_parameters: {PRESCALED} is `{text}`"),
            "give true or false",
        )
    })
}

/// How a batch is counted with tensor parallelism, which is not how SageMaker counts it by default.
fn batch_note(flags: &Flags) -> Option<String> {
    let ranks = flags.tensor_parallel.count().filter(|ranks| *ranks > 1)?;
    let batch = flags.per_device_train_batch_size.count()?;
    Some(format!(
        "--mp_parameters: without {PRESCALED} each of SageMaker's {ranks} tensor-parallel ranks reads {batch} examples; here the {ranks} \
         devices share them, so a step has 1/{ranks} as many examples; --per_device_train_batch_size {} has as many",
        batch.saturating_mul(ranks)
    ))
}

/// SageMaker splits the batch of a device; here a batch is one microbatch.
fn microbatches(flags: &mut Flags, text: &str) -> Result<(), UsageError> {
    let refuse = |problem: String, fix: &str| {
        Err(UsageError::illegal(
            format!("--mp_parameters: {problem}"),
            fix,
        ))
    };
    let Some(count) = text.parse::<usize>().ok().filter(|count| *count > 0) else {
        return refuse(
            format!("microbatches is `{text}`"),
            "give a whole number that is at least 1",
        );
    };
    match *flags.per_device_train_batch_size {
        Degree::Count(batch) if batch.is_multiple_of(count) => {
            let (size, steps) = (batch / count, *flags.gradient_accumulation_steps * count);
            flags.per_device_train_batch_size.set(Degree::Count(size));
            flags.gradient_accumulation_steps.set(steps);
            flags.notes.push(format!(
                "--mp_parameters: {count} microbatches of {batch} examples are --per_device_train_batch_size {size} \
                 --gradient_accumulation_steps {steps}"
            ));
            Ok(())
        }
        Degree::Count(batch) => refuse(
            format!(
                "--per_device_train_batch_size {batch} does not divide into {count} microbatches"
            ),
            "make it a multiple of them",
        ),
        Degree::Auto => refuse(
            "--per_device_train_batch_size auto finds the size of a microbatch".into(),
            "leave microbatches out, and use --gradient_accumulation_steps N",
        ),
    }
}

fn unknown(name: &str) -> UsageError {
    let known = FLAGS.iter().map(|(name, _)| *name);
    let known = || known.clone().chain([MICROBATCHES, PRESCALED]);
    let fix = match nearest(name, known()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known().collect::<Vec<_>>().join(", ")),
    };
    UsageError::illegal(format!("--mp_parameters: unknown parameter `{name}`"), fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandName, TaskName};

    fn applied(parameters: &str, more: &[(&str, &str)]) -> Flags {
        let mut flags = Flags::new(CommandName::Train(TaskName::Clm));
        for (name, text) in more.iter().chain(&[("mp_parameters", parameters)]) {
            let flag = lookup::find(name, flags.command).unwrap();
            flags
                .take(flag, &[text.to_string()], Origin::CommandLine)
                .unwrap();
        }
        apply(&mut flags);
        flags
    }

    #[test]
    fn parameters_become_flags() {
        let json = r#"{"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "microbatches": 4, "ddp": true,
            "sharded_data_parallel_degree": 2, "bf16": true, "pipeline": "simple", "placement_strategy": "spread"}"#;
        let pairs = "pipeline_parallel_degree=2,tensor_parallel_degree=2,microbatches=4,ddp=True,\
                     sharded_data_parallel_degree=2,bf16=True,pipeline=simple,placement_strategy=spread";
        for text in [json, pairs] {
            let flags = applied(text, &[]);
            assert_eq!(flags.mistakes, [], "{text}");
            let degrees = [
                *flags.pipeline_parallel,
                *flags.tensor_parallel,
                *flags.shard_parallel,
                *flags.per_device_train_batch_size,
            ];
            assert_eq!(degrees, [2, 2, 2, 2].map(Degree::Count));
            assert_eq!((*flags.gradient_accumulation_steps, *flags.bf16), (4, true));
            assert_eq!(flags.notes.len(), 3, "{:?}", flags.notes);
        }
    }

    /// SageMaker's tensor-parallel ranks read a batch each, unless it is prescaled.
    #[test]
    fn a_batch_that_is_counted_otherwise_gets_a_note() {
        let notes = |text: &str, more: &[(&str, &str)]| applied(text, more).notes;
        let [note] = &notes("tensor_parallel_degree=4", &[])[..] else {
            panic!("one note")
        };
        assert!(
            note.contains("4 tensor-parallel ranks reads 8 examples")
                && note.contains("--per_device_train_batch_size 32 has as many"),
            "{note}"
        );
        let after = notes(
            "microbatches=2,prescaled_batch=False",
            &[("tensor_parallel", "2")],
        );
        assert!(
            after[1].contains("--per_device_train_batch_size 8 has as many"),
            "{after:?}"
        );
        for silent in [
            "tensor_parallel_degree=4,prescaled_batch=True",
            "tensor_parallel_degree=1",
            "partitions=2",
        ] {
            assert_eq!(notes(silent, &[]), [] as [String; 0], "{silent}");
        }
        let json = r#"{"tensor_parallel_degree": 2, "prescaled_batch": true}"#;
        assert_eq!(notes(json, &[]), [] as [String; 0]);
    }

    #[test]
    fn flags_win_and_mistakes_are_named() {
        let flags = applied("partitions=4", &[("pipeline_parallel", "2")]);
        assert_eq!(*flags.pipeline_parallel, Degree::Count(2));
        for (text, message) in [
            ("partitons=4", "unknown parameter `partitons`"),
            ("microbatches=3", "8 does not divide into 3 microbatches"),
            ("microbatches=x", "microbatches is `x`"),
            ("prescaled_batch=x", "prescaled_batch is `x`"),
            (
                "partitions=none",
                "`pipeline_parallel` must be a whole number",
            ),
        ] {
            let flags = applied(text, &[]);
            let [mistake] = &flags.mistakes[..] else {
                panic!("{text}: {:?}", flags.mistakes)
            };
            assert!(mistake.to_string().contains(message), "{mistake}");
        }
    }
}
