//! `xtrain sweep`: one training command at every combination of some flags' values.

use super::command::CommandName;
use super::error::{UsageError, refuse};
use super::flags::Flags;
use super::forms::Grid;
use super::lookup;
use super::plan::{SweepPlan, SweptRun};
use super::rules;
use super::scaling::parse;
use std::collections::HashSet;
use xtrain_checkpoint::hash::sha256;
use xtrain_trainer::settings::Resume;

/// More runs than anybody meant.
const MOST_RUNS: usize = 10_000;
/// In bytes; files beside a run have longer names.
const LONGEST_NAME: usize = 200;
/// Of a digest in a name.
const DIGITS: usize = 12;

/// Reads the grid and the command.
///
/// # Errors
/// The command cannot be swept, or refuses a combination.
pub fn plan(flags: &Flags) -> Result<SweepPlan, UsageError> {
    if flags.device.is_given() {
        return refuse(
            "--device belongs to the command that is swept",
            "write it after --: `-- train clm --device cuda ...`",
        );
    }
    let example = "write it after --: `xtrain sweep --grid learning_rate=1e-4,3e-4 --output_dir sweep -- train clm ...`";
    let words: &[String] = &flags.swept;
    match words.first().map(String::as_str) {
        None => return refuse("sweep: no command given", example),
        Some("train") => {}
        Some(word) => {
            return refuse(
                format!("sweep compares training runs, and `{word}` is none"),
                example,
            );
        }
    }
    let Some(output_dir) = flags.output_dir.clone() else {
        return refuse(
            "sweep: no directory given",
            "add --output_dir DIR: each run gets a directory there",
        );
    };
    if flags.grid.is_empty() {
        return refuse(
            "sweep: nothing to vary",
            "add --grid learning_rate=1e-4,3e-4, one --grid for each flag",
        );
    }
    let command = parse(words)?;
    if !matches!(command.command, CommandName::Train(_)) {
        return refuse("sweep compares training runs", example);
    }
    check_own_flags(flags, &command)?;
    let sizes = flags.grid.iter().map(|grid| grid.values.len());
    let size = sizes.fold(1, usize::saturating_mul);
    if size > MOST_RUNS {
        return refuse(
            format!("the grid has {size} combinations"),
            "give fewer values",
        );
    }
    let run = |chosen: Vec<(&str, &str)>| -> Result<SweptRun, UsageError> {
        let pairs = chosen.iter().map(|(flag, value)| format!("{flag}={value}"));
        let name = directory_of(&pairs.collect::<Vec<_>>().join(","));
        let more = chosen
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}"));
        let words: Vec<String> = words.iter().cloned().chain(more).collect();
        // Refused before anything runs, in the words of the command itself.
        let anywhere = std::env::temp_dir().join("xtrain-sweep");
        let mut whole = words.clone();
        whole.push(format!("--output_dir={}", anywhere.display()));
        let flags = parse(&whole)?;
        rules::check(&flags)?;
        Ok(SweptRun {
            name,
            words,
            replaces: *flags.overwrite_output_dir,
        })
    };
    let (mut runs, mut mistakes): (Vec<SweptRun>, Vec<UsageError>) = Default::default();
    for chosen in combinations(&flags.grid) {
        match run(chosen) {
            Ok(run) => runs.push(run),
            Err(error) => {
                let is_new = |mistake: &&UsageError| !mistakes.contains(*mistake);
                let new: Vec<UsageError> = error.each().filter(is_new).cloned().collect();
                mistakes.extend(new);
            }
        }
    }
    UsageError::all(mistakes)?;
    let mut names = HashSet::new();
    if let Some(run) = runs.iter().find(|run| !names.insert(&run.name)) {
        return refuse(
            format!("two runs of the grid would write to {}", run.name),
            "change one of the values",
        );
    }
    Ok(SweepPlan {
        runs,
        output_dir,
        jobs: *flags.sweep_jobs,
    })
}

/// Refuses what a sweep sets for each run itself, in the command and in the grid.
fn check_own_flags(flags: &Flags, command: &Flags) -> Result<(), UsageError> {
    let own = [
        (
            command.output_dir.is_given(),
            command.output_dir.name(),
            "sweep gives each run a directory of its own",
        ),
        (
            *command.dry_run,
            command.dry_run.name(),
            "a sweep needs runs that train",
        ),
        (
            *command.push_to_hub,
            command.push_to_hub.name(),
            "a sweep compares runs; push the best one's directory with `hf upload`",
        ),
        (
            *command.resume_from_checkpoint != Resume::No,
            command.resume_from_checkpoint.name(),
            "a sweep that is started again resumes by itself",
        ),
    ];
    for (is_given, name, why) in own {
        if is_given {
            return refuse(
                format!("--{name} of the command: {why}"),
                "leave it out of the command",
            );
        }
        let meant = |grid: &Grid| lookup::find(&grid.flag, command.command).map(|flag| flag.name);
        if flags.grid.iter().any(|grid| meant(grid) == Some(name)) {
            return refuse(format!("--grid {name}: {why}"), "leave it out of the grid");
        }
    }
    Ok(())
}

/// Every combination of the flags' values.
fn combinations(grid: &[Grid]) -> Vec<Vec<(&str, &str)>> {
    let mut combinations: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
    for Grid { flag, values } in grid {
        let longer = |chosen: &Vec<(_, _)>| {
            let mut all = Vec::new();
            for value in values {
                let mut chosen = chosen.clone();
                chosen.push((flag.as_str(), value.as_str()));
                all.push(chosen);
            }
            all
        };
        combinations = combinations.iter().flat_map(longer).collect();
    }
    combinations
}

/// The directory of a run: its combination, where that is a name that no other combination has. Names
/// of files have 255 bytes at most, and a log's is longer than its run's. A digest tells apart what
/// differs in what a name cannot have.
fn directory_of(combination: &str) -> String {
    let mut name: String = combination
        .chars()
        .map(|c| if c == '/' || c.is_control() { '_' } else { c })
        .collect();
    // A log is named after its run.
    if name == combination && name.len() <= LONGEST_NAME && !name.ends_with(".log") {
        return name;
    }
    let digest = sha256(combination.as_bytes());
    let longest = LONGEST_NAME - 1 - DIGITS;
    let end = (0..=longest.min(name.len()))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    name.truncate(end.unwrap_or(0));
    format!("{name}-{}", &digest[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_has_a_directory_of_its_own() {
        let plain = "learning_rate=1e-4,weight_decay=0.1";
        assert_eq!(directory_of(plain), plain);
        let long = "x".repeat(300);
        let others = [
            "run_name=a/b".to_string(),
            "run_name=a_b".into(),
            "run_name=a\nb".into(),
            "run_name=a".into(),
            "run_name=a.log".into(),
            format!("run_name={long}1"),
            format!("run_name={long}2"),
            format!("run_name={}1", "\u{1F600}".repeat(99)),
            format!("run_name={}2", "\u{1F600}".repeat(99)),
        ];
        let names: HashSet<String> = others.iter().map(|name| directory_of(name)).collect();
        assert_eq!(names.len(), others.len(), "{names:?}");
        for name in &names {
            assert!(name.len() <= LONGEST_NAME, "{name}");
            assert!(!name.contains(['/', '\n']), "{name}");
            let log = format!("{name}.log");
            assert!(
                !names.contains(&log),
                "{log} is a run's log and another run"
            );
        }
    }
}
