//! Which process of a job this one is, as the environment says: that of `xtrain launch`, or of one of
//! the engines ([`ENGINES`]) that start processes in their own ways.

mod engines;
mod failure;
pub mod sagemaker;
mod variables;

pub use engines::ENGINES;
pub use failure::report_failure;
pub use variables::GENERATION;

use super::secret::Secret;
use super::{Error, Result};
use engines::{Engine, Secrets};
use std::path::PathBuf;
use std::time::Duration;
use variables::{Variables, number, of_process};

pub const ENDPOINT: &str = "XTRAIN_RDZV_ENDPOINT";
/// Seconds since 1970 at which the launcher started.
pub const LAUNCHED: &str = "XTRAIN_LAUNCHED";
pub const HEARTBEAT_TIMEOUT: &str = "XTRAIN_HEARTBEAT_TIMEOUT";
pub const RDZV_TIMEOUT: &str = "XTRAIN_RDZV_TIMEOUT";

/// How long is waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For all processes to be there.
    pub join: Duration,
    /// For a sign of life from each.
    pub heartbeat: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            join: Duration::from_secs(300),
            heartbeat: Duration::from_secs(60),
        }
    }
}

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankInfo {
    pub rank: usize,
    pub world: usize,
    /// Number on its machine, which decides about its devices.
    pub local_rank: usize,
    /// Processes on its machine, as far as the environment says; else 1.
    pub local_world: usize,
    /// HOST:PORT of the rendezvous.
    pub endpoint: String,
    pub secret: Secret,
    /// How often the job was started before; `None` where no launcher of ours starts it again.
    pub launched: Option<u64>,
    pub generation: u64,
    pub timeouts: Timeouts,
}

impl RankInfo {
    /// What the environment of this process says; `None` if it is the only one.
    pub fn from_environment() -> Result<Option<RankInfo>> {
        member(&of_process, |engine| {
            match (Secret::from_environment()?, &engine.secrets) {
                (Some(secret), _) => Ok(secret),
                (None, Secrets::OfUser) => Secret::of_user(&secret_folder()),
                (None, Secrets::Given(how)) => Err(Error::NoSecret {
                    engine: engine.name,
                    how,
                }),
            }
        })
    }

    /// Whether `xtrain launch` started it, which then watches over it.
    pub fn is_launched(&self) -> bool {
        self.launched.is_some()
    }

    /// Whether it is the process that finds the job's files as the user left them.
    pub fn begins_job(&self) -> bool {
        self.rank == 0 && self.generation == 0
    }

    /// [`RankInfo::begins_job`] of this process. An environment that contradicts itself is reported elsewhere.
    pub fn this_begins_job() -> bool {
        RankInfo::from_environment().map_or(true, |rank| rank.is_none_or(|rank| rank.begins_job()))
    }

    /// Whether it holds the rendezvous of the job.
    pub fn hosts_rendezvous(&self) -> bool {
        self.rank == 0 && !self.is_launched()
    }
}

/// Where the user's secret is kept.
fn secret_folder() -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = || set("HOME").map(|home| home.join(".config"));
    set("XDG_CONFIG_HOME")
        .or_else(home)
        .unwrap_or_else(std::env::temp_dir)
        .join("xtrain")
}

/// When the launcher of this process started, in seconds since 1970, if one of ours started it.
pub fn launched() -> Option<f64> {
    std::env::var(LAUNCHED).ok()?.parse().ok()
}

fn member(
    variable: Variables,
    secret: impl FnOnce(&Engine) -> Result<Secret>,
) -> Result<Option<RankInfo>> {
    let generation = variable(GENERATION)
        .map(|value| number(GENERATION, &value))
        .transpose()?;
    let mut found = None;
    for engine in ENGINES {
        if let Some(of_engine) = (engine.find)(variable)? {
            found = Some((engine, of_engine));
            break;
        }
    }
    let Some((engine, found)) = found else {
        return Ok(None);
    };
    if found.rank >= found.world {
        let (value, problem) = (
            found.rank.to_string(),
            format!("there are {} processes, numbered from 0", found.world),
        );
        return Err(Error::Environment {
            variable: "the rank".into(),
            value,
            problem,
        });
    }
    if found.world == 1 && generation.is_none() {
        return Ok(None);
    }
    let seconds = |name: &str, default: Duration| -> Result<Duration> {
        Ok(variable(name)
            .map(|value| number(name, &value))
            .transpose()?
            .map_or(default, |n| Duration::from_secs(n.max(1) as u64)))
    };
    let default = Timeouts::default();
    let timeouts = Timeouts {
        join: seconds(RDZV_TIMEOUT, default.join)?,
        heartbeat: seconds(HEARTBEAT_TIMEOUT, default.heartbeat)?,
    };
    Ok(Some(RankInfo {
        rank: found.rank,
        world: found.world,
        local_rank: found.local_rank,
        local_world: local_world(variable).max(found.local_rank + 1),
        endpoint: variable(ENDPOINT).unwrap_or(found.endpoint),
        secret: secret(engine)?,
        launched: generation.map(|n| n as u64),
        generation: generation.unwrap_or(0) as u64,
        timeouts,
    }))
}

/// Of whichever launcher says it. SLURM may add how often: `2(x3)`.
fn local_world(variable: Variables) -> usize {
    let names = [
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_TASKS_PER_NODE",
    ];
    let list = names
        .iter()
        .find_map(|name| variable(name))
        .unwrap_or_default();
    list.split(['(', ','])
        .next()
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<(usize, usize, usize, String)>> {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.to_string())
        };
        let found = member(&variable, |_| Ok(Secret::generate()))?;
        Ok(found.map(|m| (m.rank, m.world, m.local_rank, m.endpoint)))
    }

    #[test]
    fn every_launcher_is_understood() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "7"),
        ];
        assert_eq!(found(&torchrun).unwrap(), Some((3, 4, 1, "a:7".into())));
        let elastic = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(found(&elastic).unwrap(), Some((3, 4, 1, "a:8".into())));
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_JOB_NODELIST", "trn[01-04]"),
            ("SLURM_JOB_ID", "1234567"),
        ];
        assert_eq!(
            found(&slurm).unwrap(),
            Some((5, 8, 1, "trn01:24567".into()))
        );
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(
            found(&mpi).unwrap(),
            Some((1, 2, 1, "127.0.0.1:29500".into()))
        );
        let neuron = [
            ("NEURON_PJRT_PROCESS_INDEX", "1"),
            ("NEURON_PJRT_PROCESSES_NUM_DEVICES", "32,32"),
            ("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:41000"),
        ];
        assert_eq!(
            found(&neuron).unwrap(),
            Some((1, 2, 0, "10.0.0.1:41001".into()))
        );
    }

    /// Each engine's variables with those that it sets beside them, as its documentation has them.
    #[test]
    fn a_process_of_each_machine_joins_under_every_engine() {
        let jax = [
            ("JAX_NUM_PROCESSES", "3"),
            ("JAX_PROCESS_ID", "2"),
            ("JAX_COORDINATOR_ADDRESS", "run-node-0-0.run:29500"),
            ("JOB_COMPLETION_INDEX", "2"),
        ];
        let pet = [
            ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "run-node-0-0.run"),
            ("PET_MASTER_PORT", "29400"),
        ];
        let jobset = [
            ("JOB_COMPLETION_INDEX", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "run-workers-0-0.run"),
        ];
        let sky = [
            ("SKYPILOT_NODE_RANK", "1"),
            ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5\n"),
            ("SKYPILOT_NUM_NODES", "2"),
            ("SKYPILOT_NUM_GPUS_PER_NODE", "8"),
        ];
        let dstack = [
            ("DSTACK_NODE_RANK", "1"),
            ("DSTACK_NODES_NUM", "2"),
            ("DSTACK_MASTER_NODE_IP", "10.0.0.4"),
            ("DSTACK_NODES_IPS", "10.0.0.4\n10.0.0.5"),
        ];
        for (variables, expected) in [
            (&jax[..], (2, 3, 0, "run-node-0-0.run:29500")),
            (&pet, (1, 2, 0, "run-node-0-0.run:29400")),
            (&jobset, (1, 2, 0, "run-workers-0-0.run:29500")),
            (&sky, (1, 2, 0, "10.0.0.4:29500")),
            (&dstack, (1, 2, 0, "10.0.0.4:29500")),
        ] {
            let (rank, world, local, endpoint) = expected;
            assert_eq!(
                found(variables).unwrap(),
                Some((rank, world, local, endpoint.to_string()))
            );
        }
        // An indexed Job may be many runs, and a launcher in the container has the last word.
        assert_eq!(found(&[("JOB_COMPLETION_INDEX", "1")]).unwrap(), None);
        let launched = [
            ("RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "a"),
        ];
        assert_eq!(
            found(&[&launched[..], &sky].concat()).unwrap(),
            Some((1, 4, 1, "a:29500".into()))
        );
    }

    #[test]
    fn engines_without_a_shared_home_need_a_secret_that_is_given() {
        let given = ENGINES.iter().filter_map(|engine| match engine.secrets {
            Secrets::Given(how) => Some((engine.name, how)),
            Secrets::OfUser => None,
        });
        for (engine, how) in given {
            let error = Error::NoSecret { engine, how }.to_string();
            assert!(
                error.contains(engine) && error.contains("XTRAIN_RDZV_SECRET is not set"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_sagemaker_container_is_known_by_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let config = folder.path().join("input/config");
        std::fs::create_dir_all(&config).unwrap();
        assert_eq!(found(&[("SAGEMAKER_BASE_DIR", root)]).unwrap(), None);
        let write = |name: &str, text: &str| std::fs::write(config.join(name), text).unwrap();
        write("hyperparameters.json", "{}");
        assert_eq!(found(&[("SAGEMAKER_BASE_DIR", root)]).unwrap(), None);
        write(
            "resourceconfig.json",
            r#"{"current_host": "algo-2", "current_instance_type": "ml.trn1.32xlarge", "current_group_name": "homogeneousCluster",
                "hosts": ["algo-2", "algo-1"], "network_interface_name": "eth0"}"#,
        );
        assert_eq!(
            found(&[("SAGEMAKER_BASE_DIR", root)]).unwrap(),
            Some((1, 2, 0, "algo-1:29500".into()))
        );
        write(
            "inputdataconfig.json",
            r#"{"train": {"TrainingInputMode": "File"}, "../x": {}, "live": {"TrainingInputMode": "Pipe"}}"#,
        );
        let container = sagemaker::Container::among(&|name| {
            (name == "SAGEMAKER_BASE_DIR").then(|| root.to_string())
        })
        .unwrap();
        let channels = container.channels().unwrap();
        let about = channels.iter().map(|c| (c.name.as_str(), c.is_piped));
        assert_eq!(
            about.collect::<Vec<_>>(),
            [("live", true), ("train", false)]
        );
        for (text, part) in [
            ("{", "expected a JSON object"),
            ("{\"hosts\": [\"algo-1\"]}", "expected `current_host`"),
            (
                "{\"current_host\": \"x\", \"hosts\": [\"algo-1\"]}",
                "is not among `hosts`",
            ),
        ] {
            write("resourceconfig.json", text);
            let error = found(&[("SAGEMAKER_BASE_DIR", root)]).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.to_string().contains("resourceconfig.json"), "{error}");
        }
    }

    #[test]
    fn a_single_process_is_no_job() {
        assert_eq!(found(&[]).unwrap(), None);
        assert_eq!(
            found(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")]).unwrap(),
            None
        );
        assert_eq!(
            found(&[
                ("SLURM_PROCID", "0"),
                ("SLURM_LOCALID", "0"),
                ("SLURM_NTASKS", "1")
            ])
            .unwrap(),
            None
        );
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (variables, part) in [
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2")][..],
                "LOCAL_RANK is not",
            ),
            (
                &[("RANK", "x"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
                "RANK is `x`",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
                "MASTER_ADDR is not",
            ),
            (
                &[
                    ("RANK", "2"),
                    ("WORLD_SIZE", "2"),
                    ("LOCAL_RANK", "0"),
                    ("MASTER_ADDR", "a"),
                ],
                "the rank is `2`",
            ),
            (
                &[
                    ("SLURM_PROCID", "1"),
                    ("SLURM_LOCALID", "1"),
                    ("SLURM_NTASKS", "2"),
                ],
                "SLURM_JOB_NODELIST is not",
            ),
            (
                &[("NEURON_PJRT_PROCESS_INDEX", "1")],
                "NEURON_PJRT_PROCESSES_NUM_DEVICES is not",
            ),
            (&[("JAX_PROCESS_ID", "1")], "JAX_NUM_PROCESSES is not"),
            (
                &[("JAX_PROCESS_ID", "1"), ("JAX_NUM_PROCESSES", "2")],
                "JAX_COORDINATOR_ADDRESS is not",
            ),
            (
                &[
                    ("JAX_PROCESS_ID", "1"),
                    ("JAX_NUM_PROCESSES", "2"),
                    ("JAX_COORDINATOR_ADDRESS", "host"),
                ],
                "expected HOST:PORT",
            ),
            (
                &[("PET_NODE_RANK", "0"), ("PET_NNODES", "1:4")],
                "fixed number of nodes",
            ),
            (
                &[("PET_NODE_RANK", "0"), ("PET_NNODES", "2")],
                "PET_MASTER_ADDR is not",
            ),
            (
                &[("JOB_COMPLETION_INDEX", "0"), ("WORLD_SIZE", "2")],
                "MASTER_ADDR is not",
            ),
            (
                &[("SKYPILOT_NODE_RANK", "0"), ("SKYPILOT_NUM_NODES", "2")],
                "SKYPILOT_NODE_IPS is not",
            ),
            (
                &[("DSTACK_NODE_RANK", "0"), ("DSTACK_NODES_NUM", "2")],
                "DSTACK_MASTER_NODE_IP is not",
            ),
        ] {
            let error = found(variables).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
