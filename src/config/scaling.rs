//! `xtrain scaling`: the command to measure, written anew for each degree. What is typed describes
//! the run on one device; along an axis whose devices take different rows each gets its part of
//! that batch.

use super::UsageError;
use super::check::check;
use super::command_line::{self, Parsed};
use super::flags::Commands;
use super::mesh::DEGREES;
use super::plan::{ScaledRun, ScalingPlan};
use super::resolve;
use super::typed::Typed;
use std::path::Path;

/// What `--axis` may name: the flag that each degree sets. `processes` is data parallel with one
/// process for each place on that axis.
pub const AXES: &[&str] = &[
    "data_parallel",
    "shard_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "processes",
];

/// Axes whose devices take different rows of a batch.
const OF_ROWS: [&str; 3] = ["data_parallel", "shard_parallel", "processes"];

/// The first step compiles or loads its graphs and is not counted; of the others at least two say
/// something.
const LEAST_STEPS: i64 = 3;

const BATCH: &str = "per_device_train_batch_size";

/// Reads the degrees and the command, and refuses what cannot be scaled.
pub fn plan(typed: &Typed) -> Result<ScalingPlan, UsageError> {
    if typed.is_given("device") {
        return refuse(
            "--device belongs to the command that is scaled",
            "write it after --: `-- bench --device cuda ...`",
        );
    }
    let degrees = degrees(&typed.text("degrees").unwrap_or_default())?;
    let axis = typed.text("axis").unwrap_or_default();
    let weak = typed.bool("weak");
    if weak && !OF_ROWS.contains(&axis.as_str()) {
        return refuse(
            format!(
                "--weak grows the batch with the devices, and those of --{axis} take the same rows"
            ),
            "leave --weak out",
        );
    }
    let words = typed.words("command");
    let command = read(&words, &axis)?;
    let trains = command.command != Commands::BENCH;
    let batch_flag = if trains { BATCH } else { "batch" };
    let Some(batch) = command.count(batch_flag) else {
        return refuse(
            format!("--{batch_flag} auto would be another number at each degree"),
            "give the number for one device",
        );
    };
    let divides = !weak && OF_ROWS.contains(&axis.as_str());
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
        let flag = if axis == "processes" {
            "data_parallel"
        } else {
            &axis
        };
        let more = [(flag, degree), (batch_flag, per_device)];
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
        check(&alone)?;
        let mesh = resolve::mesh(&alone);
        let accumulated = alone.count("gradient_accumulation_steps").unwrap_or(1);
        runs.push(ScaledRun {
            degree,
            processes: if axis == "processes" { degree } else { 1 },
            devices: mesh.devices(),
            examples_per_device: per_device,
            examples_per_step: per_device * accumulated * mesh.batch_shards(),
            words,
        });
    }
    Ok(ScalingPlan {
        shares_processor: command.text("device").as_deref() == Some("cpu"),
        axis,
        weak,
        trains,
        runs,
        command: words,
        repeats: typed.count("repeats").unwrap_or(1),
        plot: typed.path("plot"),
        json: typed.bool("json"),
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
    ];
    words
        .iter()
        .map(String::as_str)
        .chain(more)
        .map(str::to_string)
        .collect()
}

/// The numbers in `1,2,4`, in order.
fn degrees(text: &str) -> Result<Vec<usize>, UsageError> {
    const EXAMPLE: &str = "write --degrees 1,2,4; efficiency is told against the first";
    if text.is_empty() {
        return refuse("scaling is not told at which degrees", EXAMPLE);
    }
    let mut degrees = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.parse::<usize>() {
            Ok(0) => return refuse("--degrees: nothing runs on 0 devices", EXAMPLE),
            Ok(degree) if degrees.contains(&degree) => {
                return refuse(format!("--degrees: {degree} stands there twice"), EXAMPLE);
            }
            Ok(degree) => degrees.push(degree),
            Err(_) => {
                return refuse(
                    format!("--degrees: `{part}` is not a number of devices"),
                    EXAMPLE,
                );
            }
        }
    }
    degrees.sort_unstable();
    Ok(degrees)
}

/// The command, if it can be measured at several degrees of this axis.
fn read(words: &[String], axis: &str) -> Result<Typed, UsageError> {
    let example = "write it after --: `xtrain scaling --degrees 1,2 -- bench --model_type gpt2`";
    match words.first().map(String::as_str) {
        None => return refuse("scaling is not told what to run", example),
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
    if axis == "processes" && words[0] == "bench" {
        return refuse(
            "bench is one process",
            "scale a training run: `--axis processes -- train clm ... --max_steps 20`",
        );
    }
    let command = parse(words)?;
    let own = if axis == "processes" {
        "data_parallel"
    } else {
        axis
    };
    if command.is_given(own) {
        return refuse(
            format!("--{own} of the command is what --axis {axis} varies"),
            "leave it out of the command",
        );
    }
    if let Some(name) = DEGREES
        .into_iter()
        .find(|name| command.text(name).as_deref() == Some("auto"))
    {
        return refuse(
            format!("--{name} auto would change with the degree"),
            "give its number",
        );
    }
    if command.command == Commands::BENCH {
        return Ok(command);
    }
    if let Some(name) = ["dry_run", "resume_from_checkpoint"]
        .into_iter()
        .find(|name| is_on(&command, name))
    {
        return refuse(
            format!("--{name}: scaling needs a run that begins at its first step and takes some"),
            "leave it out",
        );
    }
    match command.int("max_steps") {
        Some(steps) if steps >= LEAST_STEPS => Ok(command),
        Some(steps) if steps > 0 => refuse(
            format!(
                "--max_steps {steps} leaves too little to measure: the first step compiles or loads its graphs"
            ),
            "20 steps of half a second do",
        ),
        _ => refuse(
            "without --max_steps each of the runs would go through all epochs",
            "add --max_steps 20 to the command; what it leaves behind is thrown away",
        ),
    }
}

fn is_on(command: &Typed, name: &str) -> bool {
    command.is_given(name) && command.bool_if_given(name) != Some(false)
}

fn parse(words: &[String]) -> Result<Typed, UsageError> {
    let words = std::iter::once("xtrain").chain(words.iter().map(String::as_str));
    match command_line::parse(words.map(Into::into))? {
        Parsed::Typed(typed) => typed.with_config_file(),
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
