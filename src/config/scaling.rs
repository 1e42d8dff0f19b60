//! `xtrain scaling`: the command to measure, written anew for each degree. What is typed describes
//! the run on one device; along an axis whose devices take different rows each gets its part of
//! that batch.

use super::choices::{Axis, Device};
use super::command::CommandName;
use super::command_line::{self, Parsed};
use super::config_file;
use super::error::UsageError;
use super::flags::Flags;
use super::glue;
use super::kind::Degree;
use super::mesh::{degrees, mesh};
use super::plan::{ScaledRun, ScalingPlan};
use super::rules;
use super::sagemaker;
use super::setting::Setting;
use crate::trainer::settings::Resume;
use std::path::Path;

/// The first step compiles or loads its graphs and is not counted; of the others at least two say
/// something.
const LEAST_STEPS: u64 = 3;

impl Axis {
    /// Whether its devices take different rows of a batch.
    fn is_of_rows(self) -> bool {
        match self {
            Axis::DataParallel | Axis::ShardParallel | Axis::Processes => true,
            Axis::TensorParallel | Axis::PipelineParallel => false,
        }
    }

    /// The flag of the command that each degree sets.
    fn degree(self, flags: &Flags) -> &Setting<Degree> {
        match self {
            Axis::DataParallel | Axis::Processes => &flags.data_parallel,
            Axis::ShardParallel => &flags.shard_parallel,
            Axis::TensorParallel => &flags.tensor_parallel,
            Axis::PipelineParallel => &flags.pipeline_parallel,
        }
    }
}

/// Reads the degrees and the command.
///
/// # Errors
/// What cannot be scaled.
pub fn plan(flags: &Flags) -> Result<ScalingPlan, UsageError> {
    if flags.device.is_given() {
        return refuse(
            "--device belongs to the command that is scaled",
            "write it after --: `-- bench --device cuda ...`",
        );
    }
    let Some(degrees) = flags.degrees.clone() else {
        return refuse(
            "scaling: no degrees given",
            "write --degrees 1,2,4; efficiency is relative to the smallest",
        );
    };
    let (axis, weak) = (*flags.axis, *flags.weak);
    if weak && !axis.is_of_rows() {
        return refuse(
            format!(
                "--weak grows the batch with the devices, and those of --{axis} take the same rows"
            ),
            "leave --weak out",
        );
    }
    let words: &[String] = &flags.scaled;
    let command = read(words, axis)?;
    let trains = command.command != CommandName::Bench;
    let (batch_flag, batch) = if trains {
        let batch = &command.per_device_train_batch_size;
        (batch.name(), batch.count())
    } else {
        (command.batch.name(), Some(*command.batch))
    };
    let Some(batch) = batch else {
        return refuse(
            format!("--{batch_flag} auto would be another number at each degree"),
            "give the number for one device",
        );
    };
    let divides = !weak && axis.is_of_rows();
    if let Some(degree) = degrees
        .iter()
        .find(|degree| divides && !batch.is_multiple_of(**degree))
    {
        let all = degrees
            .iter()
            .fold(1, |all, degree| all / gcd(all, *degree) * degree);
        return refuse(
            format!(
                "--{batch_flag} {batch}, all examples of a step on one device, cannot be divided between {degree}"
            ),
            format!(
                "set it to {} (a multiple of {all}), or add --weak for as many on each device",
                batch.next_multiple_of(all)
            ),
        );
    }
    let mut runs = Vec::new();
    for degree in degrees {
        let per_device = if divides { batch / degree } else { batch };
        let more = [
            (axis.degree(&command).name(), degree),
            (batch_flag, per_device),
        ];
        let more = more
            .into_iter()
            .flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
        let words: Vec<String> = words.iter().cloned().chain(more).collect();
        // Refused before anything runs, in the words of the command itself.
        let anywhere = std::env::temp_dir().join("xtrain-scaling");
        let alone = parse(&if trains {
            into_directory(&words, &anywhere)
        } else {
            words.clone()
        })?;
        rules::check(&alone)?;
        let mesh = mesh(&alone)?;
        let accumulated = *alone.gradient_accumulation_steps;
        runs.push(ScaledRun {
            degree,
            processes: if axis == Axis::Processes { degree } else { 1 },
            devices: mesh.devices(),
            examples_per_device: per_device,
            examples_per_step: per_device * accumulated * mesh.batch_shards(),
            words,
        });
    }
    Ok(ScalingPlan {
        shares_processor: *command.device == Device::Cpu,
        axis,
        weak,
        trains,
        runs,
        command: words.to_vec(),
        repeats: *flags.repeats,
        plot: flags.plot.clone(),
        json: *flags.json,
    })
}

/// A training run's words with another directory to write into, whatever is there.
pub fn into_directory(words: &[String], dir: &Path) -> Vec<String> {
    let more = [
        "--output_dir",
        &dir.display().to_string(),
        "--overwrite_output_dir",
        "true",
        "--disable_tqdm",
        "true",
        "--report",
        "none",
    ];
    words
        .iter()
        .map(String::as_str)
        .chain(more)
        .map(str::to_string)
        .collect()
}

/// The command, if it can be measured at several degrees of this axis.
fn read(words: &[String], axis: Axis) -> Result<Flags, UsageError> {
    let example = "write it after --: `xtrain scaling --degrees 1,2 -- bench --model_type gpt2`";
    match words.first().map(String::as_str) {
        None => return refuse("scaling: no command given", example),
        Some("bench" | "train") => {}
        Some("launch") => {
            return refuse(
                "scaling starts the processes itself",
                "use --axis processes, and write after -- what each process runs: `-- train clm ...`",
            );
        }
        Some(word) => {
            return refuse(
                format!("scaling measures training steps, and `{word}` runs none"),
                example,
            );
        }
    }
    if axis == Axis::Processes && words[0] == "bench" {
        return refuse(
            "bench is one process",
            "scale a training run: `--axis processes -- train clm ... --max_steps 20`",
        );
    }
    let command = parse(words)?;
    if let Some(own) = axis.degree(&command).given_name() {
        return refuse(
            format!("--{own} of the command is what --axis {axis} varies"),
            "leave it out of the command",
        );
    }
    let automatic = degrees(&command)
        .into_iter()
        .find(|degree| ***degree == Degree::Auto);
    if let Some(degree) = automatic {
        return refuse(
            format!("--{} auto would change with the degree", degree.name()),
            "give its number",
        );
    }
    if command.command == CommandName::Bench {
        return Ok(command);
    }
    let resume = &command.resume_from_checkpoint;
    let unfit = [
        command.dry_run.name_if_true(),
        (**resume != Resume::No).then_some(resume.name()),
    ];
    if let Some(name) = unfit.into_iter().flatten().next() {
        return refuse(
            format!("--{name}: scaling needs a run that begins at its first step and takes some"),
            "leave it out",
        );
    }
    match *command.max_steps {
        Some(steps) if steps >= LEAST_STEPS => Ok(command),
        Some(steps) => refuse(
            format!(
                "--max_steps {steps} leaves too little to measure: the first step compiles or loads its graphs"
            ),
            "20 steps of half a second do",
        ),
        None => refuse(
            "without --max_steps each run would train for all epochs",
            "add --max_steps 20 to the command; its output is discarded",
        ),
    }
}

fn parse(words: &[String]) -> Result<Flags, UsageError> {
    let words = std::iter::once("xtrain").chain(words.iter().map(String::as_str));
    match command_line::parse(words.map(Into::into))? {
        Parsed::Flags(flags) => {
            let mut flags = config_file::read(*flags);
            sagemaker::apply(&mut flags);
            glue::apply(&mut flags);
            UsageError::all(flags.mistakes.clone())?;
            Ok(flags)
        }
        Parsed::Text(_) => refuse(
            "the command after -- asks for help",
            "write a command that runs",
        ),
    }
}

fn refuse<T>(problem: impl Into<String>, fix: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError::illegal(problem, fix))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
