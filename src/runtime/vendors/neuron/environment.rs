//! The environment of Neuron's plugin, runtime and compiler, which they read while they are opened:
//! decided first, from the user's variables and the command line, and set afterwards in one go.
//! What would make a run wrong or kill it is refused or left out with a note.

use super::compiler::{Compiler, NeuronSettings, VARIABLE};
use super::host::Host;
use crate::error::{Error, Result};
use crate::split_xla_flags;
use std::path::Path;
use xtrain_graphs::NeuronChip;

/// Cores that the runtime makes groups of, besides multiples of 32.
const GROUPS: [u32; 4] = [1, 2, 8, 16];
/// One chip's logical cores on a trn2 and trn3, which are neighbours.
const LARGE_CHIP: u32 = 4;

/// How many cores a process is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// One for each of this process's replicas: with fewer there is no run.
    pub needed: u32,
    /// What is taken unless the environment says how many.
    pub wanted: u32,
}

/// What to set, what to take away, what to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub compiler: Compiler,
    pub set: Vec<(&'static str, String)>,
    pub remove: Vec<&'static str>,
    pub notes: Vec<String>,
}

impl Environment {
    /// Decides for a run on these cores; `variable` reads the environment.
    pub fn new(
        settings: &NeuronSettings,
        cores: Cores,
        host: &Host,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Environment> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let logical =
            value("NEURON_LOGICAL_NC_CONFIG").or_else(|| value("NEURON_RT_VIRTUAL_CORE_SIZE"));
        let user = value(VARIABLE).unwrap_or_default();
        let compiler = Compiler::new(settings, &user, host.chip(), logical.as_deref())?;
        check_cores(cores.needed, compiler.chip, &value)?;
        let mut environment = Environment {
            compiler,
            set: Vec::new(),
            remove: Vec::new(),
            notes: Vec::new(),
        };
        environment.refuse_wrong_results(&value)?;
        environment.logical_cores(logical.as_deref())?;
        environment.rounding(settings, &value)?;
        environment.leave_out(&value);
        let flags = environment.compiler.flags();
        environment.set(VARIABLE, flags);
        if value("NEURON_RT_VISIBLE_CORES").is_none() && value("NEURON_RT_NUM_CORES").is_none() {
            // Cores belong to one process at a time: what is not used is left to others.
            environment.set("NEURON_RT_NUM_CORES", cores.wanted.to_string());
        }
        let ranks = [
            "NEURON_RT_ROOT_COMM_ID",
            "NEURON_PJRT_PROCESSES_NUM_DEVICES",
            "NEURON_PJRT_WORLD_SIZE",
        ];
        if ranks.iter().all(|name| value(name).is_none())
            && let Some(port) = free_port()
        {
            // One process with several cores needs a communicator too.
            environment.set("NEURON_RT_ROOT_COMM_ID", format!("127.0.0.1:{port}"));
        }
        Ok(environment)
    }

    fn set(&mut self, name: &'static str, value: String) {
        self.set.push((name, value));
    }

    /// Variables that make every result zero or move the work to the CPU.
    fn refuse_wrong_results(&self, value: &impl Fn(&str) -> Option<String>) -> Result<()> {
        let on = |name: &str| value(name).filter(|value| value != "0");
        let refused = [
            (
                "NEURON_EXTRACT_GRAPHS_ONLY",
                "makes every result zero",
                "unset it; `xtrain compile` compiles a run's graphs ahead",
            ),
            (
                "NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU",
                "moves graphs without collectives to the CPU",
                "unset it",
            ),
        ];
        match refused
            .into_iter()
            .find_map(|(name, problem, fix)| Some((name, on(name)?, problem, fix)))
        {
            Some((variable, value, problem, fix)) => Err(Error::Contradiction {
                variable,
                value,
                problem: problem.into(),
                fix: fix.into(),
            }),
            None => Ok(()),
        }
    }

    fn logical_cores(&mut self, given: Option<&str>) -> Result<()> {
        let chip = self.compiler.chip;
        if let Some(value) = given
            && (!["1", "2"].contains(&value) || (chip == NeuronChip::Trn1 && value != "1"))
        {
            return Err(Error::Contradiction {
                variable: "NEURON_LOGICAL_NC_CONFIG",
                value: value.into(),
                problem: format!(
                    "is no number of physical cores that a logical core of {chip} has"
                ),
                fix: "trn1 has 1, trn2 and trn3 have 1 or 2".into(),
            });
        }
        if let Some(cores) = self.compiler.logical_cores().map(str::to_string) {
            self.set("NEURON_LOGICAL_NC_CONFIG", cores);
        }
        Ok(())
    }

    fn rounding(
        &mut self,
        settings: &NeuronSettings,
        value: &impl Fn(&str) -> Option<String>,
    ) -> Result<()> {
        const ROUNDING: &str = "NEURON_RT_STOCHASTIC_ROUNDING_EN";
        const SEED: &str = "NEURON_RT_STOCHASTIC_ROUNDING_SEED";
        match (settings.stochastic_rounding, value(ROUNDING).as_deref()) {
            (true, Some("0")) => {
                return Err(Error::Contradiction {
                    variable: ROUNDING,
                    value: "0".into(),
                    problem: "contradicts --neuron_stochastic_rounding".into(),
                    fix: "leave one of them out".into(),
                });
            }
            (true, _) => {
                self.set(ROUNDING, "1".into());
                if value(SEED).is_none() {
                    // The runtime's own default, written down so that a run can be repeated.
                    self.set(SEED, "0".into());
                }
            }
            (false, Some("1")) => self.notes.push(format!(
                "{ROUNDING}=1 rounds at random; --neuron_stochastic_rounding says so too"
            )),
            (false, _) => {}
        }
        Ok(())
    }

    /// What the plugin's copy of XLA or the compiler would die of.
    fn leave_out(&mut self, value: &impl Fn(&str) -> Option<String>) {
        if !self.compiler.dropped.is_empty() {
            let words = self.compiler.dropped.join(" ");
            self.notes.push(format!(
                "{VARIABLE}: `{words}` is for the Python wrapper of older plugins and was left out"
            ));
        }
        if let Some(flags) = value("XLA_FLAGS") {
            let (kept, gone) = split_xla_flags(&flags);
            if !gone.is_empty() {
                self.notes.push(format!(
                    "XLA_FLAGS: `{}` was left out: the plugin ends the process at flags it does not know",
                    gone.join(" ")
                ));
                self.set("XLA_FLAGS", kept.join(" "));
            }
        }
        if value("LD_PRELOAD").is_some_and(|preload| preload.contains("tcmalloc")) {
            self.notes.push(
                "LD_PRELOAD: tcmalloc is not passed on to neuronx-cc, which does not run with it"
                    .into(),
            );
            self.remove.push("LD_PRELOAD");
        }
    }

    /// `PATH` with the folder of a compiler that is not on it in front.
    pub fn with_compiler(mut self, folder: Option<&Path>, path: Option<String>) -> Self {
        let Some(folder) = folder else { return self };
        let path = path.unwrap_or_default();
        if !std::env::split_paths(&path).any(|known| known == folder) {
            self.set("PATH", format!("{}:{path}", folder.display()));
        }
        self
    }
}

/// Refuses numbers of cores that the runtime has no communicators for, and fewer than the run
/// needs, before the cores are taken.
fn check_cores(
    needed: u32,
    chip: NeuronChip,
    value: &impl Fn(&str) -> Option<String>,
) -> Result<()> {
    let fix = match chip {
        NeuronChip::Trn1 => {
            "Neuron's runtime knows groups of 1, 2, 8, 16 and multiples of 32 cores; take one of these"
        }
        NeuronChip::Trn2 | NeuronChip::Trn3 => {
            "Neuron's runtime knows groups of 1, 2, 4, 8, 16 and multiples of 32 cores; take one of these"
        }
    };
    let is_group = |n: u32| {
        GROUPS.contains(&n)
            || (n > 0 && n.is_multiple_of(32))
            || (chip != NeuronChip::Trn1 && n == LARGE_CHIP)
    };
    for variable in ["NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"] {
        let Some(value) = value(variable) else {
            continue;
        };
        let count = match variable {
            "NEURON_RT_VISIBLE_CORES" => visible_cores(&value),
            _ => value
                .trim()
                .parse()
                .map_err(|_| "is not a number of cores".to_string()),
        };
        let refuse = |problem: String, fix: &str| Error::Contradiction {
            variable,
            value: value.clone(),
            problem,
            fix: fix.into(),
        };
        match count {
            // All there are; how many that is shows when they are taken.
            Ok(0) => {}
            Ok(n) if !is_group(n) => return Err(refuse(format!("asks for {n} cores"), fix)),
            Ok(n) if n < needed => {
                let problem = format!("leaves {n} to a run that needs {needed} (--data_parallel)");
                return Err(refuse(
                    problem,
                    "leave the variable out, or name as many cores as the run needs",
                ));
            }
            Ok(_) => {}
            Err(problem) => return Err(refuse(problem, fix)),
        }
    }
    if is_group(needed) {
        return Ok(());
    }
    Err(Error::Contradiction {
        variable: "--data_parallel",
        value: needed.to_string(),
        problem: format!("is no number of cores that {chip}'s runtime makes a group of"),
        fix: fix.into(),
    })
}

/// How many cores `0`, `3-6` or `3-5,6` are; they have to be neighbours, in order.
pub fn visible_cores(text: &str) -> std::result::Result<u32, String> {
    let number = |text: &str| {
        text.trim()
            .parse::<u32>()
            .map_err(|_| format!("has `{text}`, which is no core's number"))
    };
    let mut next: Option<u32> = None;
    let mut count = 0;
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if last < first || next.is_some_and(|next| next != first) {
            return Err("names cores that are not neighbours in ascending order".into());
        }
        count += last - first + 1;
        next = Some(last + 1);
    }
    Ok(count)
}

fn free_port() -> Option<u16> {
    Some(
        std::net::TcpListener::bind(("127.0.0.1", 0))
            .ok()?
            .local_addr()
            .ok()?
            .port(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(
        settings: NeuronSettings,
        variables: &[(&str, &str)],
    ) -> std::result::Result<Environment, String> {
        decide_for(1, settings, variables)
    }

    fn decide_for(
        cores: u32,
        settings: NeuronSettings,
        variables: &[(&str, &str)],
    ) -> std::result::Result<Environment, String> {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.to_string())
        };
        Environment::new(
            &settings,
            Cores {
                needed: cores,
                wanted: cores,
            },
            &Host::at("/nowhere"),
            variable,
        )
        .map_err(|e| e.to_string())
    }

    fn value(environment: &Environment, name: &str) -> Option<String> {
        environment
            .set
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.clone())
    }

    #[test]
    fn a_bare_environment_is_completed() {
        let environment = decide(NeuronSettings::default(), &[]).unwrap();
        let flags = "--target=trn1 --model-type=transformer --optlevel=2 --auto-cast=none --auto-cast-type=bf16";
        assert_eq!(
            value(&environment, "NEURON_CC_FLAGS").as_deref(),
            Some(flags)
        );
        assert_eq!(
            value(&environment, "NEURON_RT_NUM_CORES").as_deref(),
            Some("1")
        );
        assert_eq!(
            value(&environment, "NEURON_RT_STOCHASTIC_ROUNDING_EN"),
            None
        );
        assert!(
            value(&environment, "NEURON_RT_ROOT_COMM_ID")
                .unwrap()
                .starts_with("127.0.0.1:")
        );
        assert!(environment.notes.is_empty() && environment.remove.is_empty());
    }

    #[test]
    fn what_the_user_set_stays() {
        let set = [
            ("NEURON_RT_VISIBLE_CORES", "2-3"),
            ("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:62182"),
        ];
        let environment = decide(NeuronSettings::default(), &set).unwrap();
        assert_eq!(value(&environment, "NEURON_RT_NUM_CORES"), None);
        assert_eq!(value(&environment, "NEURON_RT_ROOT_COMM_ID"), None);
    }

    #[test]
    fn rounding_is_switched_on_and_contradictions_are_refused() {
        let rounds = NeuronSettings {
            stochastic_rounding: true,
            ..Default::default()
        };
        let environment = decide(rounds, &[]).unwrap();
        assert_eq!(
            value(&environment, "NEURON_RT_STOCHASTIC_ROUNDING_EN").as_deref(),
            Some("1")
        );
        assert_eq!(
            value(&environment, "NEURON_RT_STOCHASTIC_ROUNDING_SEED").as_deref(),
            Some("0")
        );
        let message = decide(rounds, &[("NEURON_RT_STOCHASTIC_ROUNDING_EN", "0")]).unwrap_err();
        assert!(
            message.contains("contradicts --neuron_stochastic_rounding"),
            "{message}"
        );
        let noted = decide(
            NeuronSettings::default(),
            &[("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1")],
        )
        .unwrap();
        assert!(noted.notes[0].contains("at random"), "{:?}", noted.notes);
    }

    #[test]
    fn what_would_go_wrong_later_is_refused_now() {
        for (name, text, part) in [
            ("NEURON_RT_NUM_CORES", "3", "asks for 3 cores"),
            ("NEURON_RT_NUM_CORES", "two", "not a number"),
            ("NEURON_RT_VISIBLE_CORES", "0-2", "asks for 3 cores"),
            ("NEURON_RT_VISIBLE_CORES", "0,2", "not neighbours"),
            ("NEURON_RT_VISIBLE_CORES", "3-2", "not neighbours"),
            ("NEURON_RT_VISIBLE_CORES", "x", "no core's number"),
            ("NEURON_EXTRACT_GRAPHS_ONLY", "1", "every result zero"),
            ("NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU", "1", "to the CPU"),
            ("NEURON_LOGICAL_NC_CONFIG", "2", "of trn1"),
        ] {
            let message = decide(NeuronSettings::default(), &[(name, text)]).unwrap_err();
            assert!(
                message.contains(part) && message.contains(&format!("{name}={text}")),
                "{message}"
            );
        }
        for (name, text) in [
            ("NEURON_RT_NUM_CORES", "0"),
            ("NEURON_RT_NUM_CORES", "64"),
            ("NEURON_RT_VISIBLE_CORES", "3-5,6-10"),
            ("NEURON_EXTRACT_GRAPHS_ONLY", "0"),
        ] {
            decide(NeuronSettings::default(), &[(name, text)]).unwrap();
        }
        let trn2 = [
            ("NEURON_CC_FLAGS", "--target=trn2"),
            ("NEURON_LOGICAL_NC_CONFIG", "1"),
        ];
        assert!(
            value(
                &decide(NeuronSettings::default(), &trn2).unwrap(),
                "NEURON_CC_FLAGS"
            )
            .unwrap()
            .contains("--lnc=1")
        );
    }

    #[test]
    fn a_run_gets_a_group_of_cores_or_is_refused() {
        let plain = NeuronSettings::default;
        for cores in [1, 2, 8, 16, 32, 64] {
            let environment = decide_for(cores, plain(), &[]).unwrap();
            assert_eq!(
                value(&environment, "NEURON_RT_NUM_CORES"),
                Some(cores.to_string())
            );
        }
        for cores in [3, 4, 12, 48] {
            let message = decide_for(cores, plain(), &[]).unwrap_err();
            assert!(
                message.contains(&format!(
                    "--data_parallel={cores} is no number of cores that trn1's"
                )),
                "{message}"
            );
        }
        let trn2 = ("NEURON_CC_FLAGS", "--target=trn2");
        decide_for(4, plain(), &[trn2]).unwrap();
        for variable in [
            ("NEURON_RT_NUM_CORES", "2"),
            ("NEURON_RT_VISIBLE_CORES", "4-5"),
        ] {
            let message = decide_for(8, plain(), &[variable]).unwrap_err();
            assert!(
                message.contains("leaves 2 to a run that needs 8"),
                "{message}"
            );
            decide_for(2, plain(), &[variable]).unwrap();
        }
        decide_for(8, plain(), &[("NEURON_RT_NUM_CORES", "0")]).unwrap();
    }

    #[test]
    fn what_kills_the_plugin_or_its_compiler_is_left_out_aloud() {
        let environment = decide(
            NeuronSettings::default(),
            &[
                ("XLA_FLAGS", "--xla_gpu_graph_level=0 --xla_dump_to=/tmp/x"),
                ("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4"),
                ("NEURON_CC_FLAGS", "--retry_failed_compilation"),
            ],
        )
        .unwrap();
        assert_eq!(
            value(&environment, "XLA_FLAGS").as_deref(),
            Some("--xla_dump_to=/tmp/x")
        );
        assert_eq!(environment.remove, ["LD_PRELOAD"]);
        assert_eq!(environment.notes.len(), 3);
        assert!(
            environment
                .notes
                .iter()
                .any(|note| note.contains("--xla_gpu_graph_level=0"))
        );
    }
}
