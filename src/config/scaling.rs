//! `xtrain scaling`: the command to measure, written anew for each degree. The typed command describes
//! the run on one device; along an axis whose devices take different rows each gets its part of
//! that batch.

use super::choices::{Axis, Device};
use super::command::CommandName;
use super::command_line::Parsed;
use super::error::{UsageError, refuse};
use super::flags::Flags;
use super::kind::Degree;
use super::mesh::{degrees, mesh};
use super::plan::{ScaledRun, ScalingPlan};
use super::reading;
use super::rules;
use super::setting::Setting;
use std::path::Path;
use xtrain_report::scaling::Fixed;
use xtrain_trainer::settings::Resume;

/// The first step compiles or loads its graphs and is not counted; of the others at least two say
/// something.
const LEAST_STEPS: u64 = 3;

impl Axis {
    /// Whether its devices take different rows of a batch.
    fn is_of_rows(self) -> bool {
        match self {
            Axis::DataParallel | Axis::ShardParallel | Axis::Processes => true,
            Axis::TensorParallel | Axis::PipelineParallel | Axis::DataloaderNumWorkers => false,
        }
    }

    /// The flag of the command that each degree sets, and its name as the command gave it.
    fn flag(self, flags: &Flags) -> (&'static str, Option<&'static str>) {
        let of = |setting: &Setting<Degree>| (setting.name(), setting.given_name());
        match self {
            Axis::DataParallel | Axis::Processes => of(&flags.data_parallel),
            Axis::ShardParallel => of(&flags.shard_parallel),
            Axis::TensorParallel => of(&flags.tensor_parallel),
            Axis::PipelineParallel => of(&flags.pipeline_parallel),
            Axis::DataloaderNumWorkers => {
                let workers = &flags.dataloader_num_workers;
                (workers.name(), workers.given_name())
            }
        }
    }
}

/// The degrees, and what stays the same at each.
fn asked(flags: &Flags) -> Result<(Vec<usize>, Fixed), UsageError> {
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
    let axis = *flags.axis;
    if degrees.contains(&0) && axis != Axis::DataloaderNumWorkers {
        return refuse(
            "--degrees: nothing runs on 0 devices",
            "write --degrees 1,2,4; efficiency is relative to the smallest",
        );
    }
    let fixed = match (*flags.weak, *flags.fixed) {
        (false, fixed) => fixed,
        (true, Fixed::Batch) if flags.fixed.is_given() => {
            return refuse(
                "--weak and --fixed batch contradict each other",
                "leave one of them out",
            );
        }
        (true, Fixed::Batch | Fixed::PerDevice) => Fixed::PerDevice,
        (true, Fixed::Examples) => Fixed::Examples,
    };
    if fixed != Fixed::Batch && !axis.is_of_rows() {
        let flag = if *flags.weak {
            "--weak".into()
        } else {
            format!("--fixed {fixed}")
        };
        return refuse(
            format!(
                "{flag} grows the batch with the degree, and at every degree of --{axis} a step takes the same rows"
            ),
            format!("leave {flag} out"),
        );
    }
    Ok((degrees, fixed))
}

/// Reads the degrees and the command.
///
/// # Errors
/// The command cannot be scaled.
pub fn plan(flags: &Flags) -> Result<ScalingPlan, UsageError> {
    let (degrees, fixed) = asked(flags)?;
    let axis = *flags.axis;
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
    if fixed == Fixed::Examples && !trains {
        return refuse(
            "--fixed examples needs a run with a number of examples, and bench has none",
            "scale a training run: `-- train clm ... --max_steps 20`",
        );
    }
    let divides = fixed == Fixed::Batch && axis.is_of_rows();
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
        let mut more = vec![
            (axis.flag(&command).0, degree as u64),
            (batch_flag, per_device as u64),
        ];
        let steps = command
            .max_steps
            .filter(|_| trains)
            .map(|steps| match fixed {
                Fixed::Examples => steps.div_ceil(degree as u64),
                Fixed::Batch | Fixed::PerDevice => steps,
            });
        if let Some(few) = steps.filter(|steps| *steps < LEAST_STEPS) {
            return refuse(
                format!(
                    "--fixed examples leaves {few} steps at degree {degree}, too little to measure"
                ),
                format!(
                    "raise --max_steps of the command to at least {}",
                    LEAST_STEPS * degree as u64
                ),
            );
        }
        more.extend(steps.map(|steps| (command.max_steps.name(), steps)));
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
            max_steps: steps,
            examples_per_device: per_device,
            examples_per_step: per_device * accumulated * mesh.batch_shards(),
            words,
        });
    }
    Ok(ScalingPlan {
        shares_processor: *command.device == Device::Cpu,
        axis,
        fixed,
        trains,
        runs,
        command: words.to_vec(),
        repeats: *flags.repeats,
        plot: flags.plot.clone(),
        html: flags.html.clone(),
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
    let needs_training = match axis {
        Axis::Processes => Some("bench is one process"),
        Axis::DataloaderNumWorkers => Some("bench reads no data"),
        Axis::DataParallel
        | Axis::ShardParallel
        | Axis::TensorParallel
        | Axis::PipelineParallel => None,
    };
    if let Some(problem) = needs_training.filter(|_| words[0] == "bench") {
        return refuse(
            problem,
            format!("scale a training run: `--axis {axis} -- train clm ... --max_steps 20`"),
        );
    }
    let command = parse(words)?;
    if let Some(own) = axis.flag(&command).1 {
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
    if let Some(name) = command.push_to_hub.name_if_true() {
        return refuse(
            format!("--{name}: what scaling trains is discarded"),
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

/// The flags of a command that another one runs.
///
/// # Errors
/// All mistakes in it.
pub fn parse(words: &[String]) -> Result<Flags, UsageError> {
    let words = std::iter::once("xtrain").chain(words.iter().map(String::as_str));
    match reading::read(words.map(Into::into))? {
        Parsed::Flags(flags) => {
            UsageError::all(flags.mistakes.clone())?;
            Ok(*flags)
        }
        Parsed::Text(_) => refuse(
            "the command after -- asks for help",
            "write a command that runs",
        ),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
