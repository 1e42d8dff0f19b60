//! Which process of a job this one is, as the environment says: that of `xtrain launch`, torchrun,
//! SLURM's srun, Open MPI's mpirun, or Neuron's.

use super::secret::Secret;
use super::{Error, Result, hostlist};
use std::path::PathBuf;
use std::time::Duration;

pub const ENDPOINT: &str = "XTRAIN_RDZV_ENDPOINT";
pub const GENERATION: &str = "XTRAIN_GENERATION";
/// Seconds since 1970 at which the launcher started.
pub const LAUNCHED: &str = "XTRAIN_LAUNCHED";
pub const HEARTBEAT_TIMEOUT: &str = "XTRAIN_HEARTBEAT_TIMEOUT";
pub const RDZV_TIMEOUT: &str = "XTRAIN_RDZV_TIMEOUT";

/// torch's default, where a job has no number to take one from.
const PORT: u16 = 29500;

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
        member(
            &|name| std::env::var(name).ok().filter(|value| !value.is_empty()),
            || Secret::from_environment()?.map_or_else(|| Secret::of_user(&secret_folder()), Ok),
        )
    }

    /// Whether `xtrain launch` started it, which then watches over it.
    pub fn is_launched(&self) -> bool {
        self.launched.is_some()
    }

    /// Whether it is the process that finds the job's files as the user left them.
    pub fn begins_job(&self) -> bool {
        self.rank == 0 && self.generation == 0
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

/// What one launcher's variables mean.
struct Found {
    rank: usize,
    world: usize,
    local_rank: usize,
    endpoint: String,
}

type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

fn member(
    variable: Variables,
    secret: impl FnOnce() -> Result<Secret>,
) -> Result<Option<RankInfo>> {
    let generation = variable(GENERATION)
        .map(|value| number(GENERATION, &value))
        .transpose()?;
    let ways = [torchrun, slurm, open_mpi, neuron];
    let mut found = None;
    for way in ways {
        found = way(variable)?;
        if found.is_some() {
            break;
        }
    }
    let Some(found) = found else { return Ok(None) };
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
        secret: secret()?,
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

fn number(name: &str, value: &str) -> Result<usize> {
    value.trim().parse().map_err(|_| Error::Environment {
        variable: name.into(),
        value: value.into(),
        problem: "expected a number that is 0 or more".into(),
    })
}

/// Variables that come together: those after the first must be there when the first is.
fn numbers<const N: usize>(
    variable: Variables,
    source_name: &'static str,
    names: [&'static str; N],
) -> Result<Option<[usize; N]>> {
    let Some(_) = variable(names[0]) else {
        return Ok(None);
    };
    let mut numbers = [0; N];
    for (place, name) in numbers.iter_mut().zip(names) {
        let value = variable(name).ok_or(Error::Incomplete {
            given: names[0],
            missing: name,
            source_name,
        })?;
        *place = number(name, &value)?;
    }
    Ok(Some(numbers))
}

fn port(variable: Variables, otherwise: u16) -> Result<u16> {
    let Some(value) = variable("MASTER_PORT") else {
        return Ok(otherwise);
    };
    let problem = "expected the number of a port".to_string();
    value.trim().parse().map_err(|_| Error::Environment {
        variable: "MASTER_PORT".into(),
        value,
        problem,
    })
}

/// torchrun's variables, which `xtrain launch` sets too.
fn torchrun(variable: Variables) -> Result<Option<Found>> {
    if variable("RANK").is_none() {
        return Ok(None);
    }
    let Some([rank, world, local_rank]) =
        numbers(variable, "torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])?
    else {
        return Ok(None);
    };
    let missing = |missing| Error::Incomplete {
        given: "RANK",
        missing,
        source_name: "torchrun",
    };
    let host = match variable("MASTER_ADDR") {
        Some(host) => host,
        None if world == 1 => "127.0.0.1".into(),
        None => return Err(missing("MASTER_ADDR")),
    };
    // torchrun's own store listens at its port.
    let taken = variable("TORCHELASTIC_USE_AGENT_STORE")
        .is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = port(variable, PORT)?;
    let port = if taken {
        port.checked_add(1).unwrap_or(PORT)
    } else {
        port
    };
    Ok(Some(Found {
        rank,
        world,
        local_rank,
        endpoint: format!("{host}:{port}"),
    }))
}

fn slurm(variable: Variables) -> Result<Option<Found>> {
    let tasks = if variable("SLURM_STEP_NUM_TASKS").is_some() {
        "SLURM_STEP_NUM_TASKS"
    } else {
        "SLURM_NTASKS"
    };
    // A batch script has a number too, but no tasks beside it: only srun sets all three.
    if variable(tasks).is_none() {
        return Ok(None);
    }
    let Some([rank, local_rank, world]) =
        numbers(variable, "srun", ["SLURM_PROCID", "SLURM_LOCALID", tasks])?
    else {
        return Ok(None);
    };
    if world == 1 {
        return Ok(Some(Found {
            rank,
            world,
            local_rank,
            endpoint: String::new(),
        }));
    }
    let host = match (
        variable("MASTER_ADDR"),
        variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST")),
    ) {
        (Some(host), _) => host,
        (None, Some(list)) => hostlist::first_host(&list).ok_or_else(|| Error::Environment {
            variable: "SLURM_JOB_NODELIST".into(),
            value: list,
            problem: "expected a list of hosts as node[1-3]".into(),
        })?,
        (None, None) => {
            return Err(Error::Incomplete {
                given: "SLURM_PROCID",
                missing: "SLURM_JOB_NODELIST",
                source_name: "srun",
            });
        }
    };
    // From the job's number, so that two jobs on one machine do not meet.
    let job = variable("SLURM_JOB_ID")
        .and_then(|id| id.parse::<u32>().ok())
        .unwrap_or(0);
    let port = port(variable, 20_000 + (job % 10_000) as u16)?;
    Ok(Some(Found {
        rank,
        world,
        local_rank,
        endpoint: format!("{host}:{port}"),
    }))
}

fn open_mpi(variable: Variables) -> Result<Option<Found>> {
    let names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ];
    let Some([rank, world, local_rank]) = numbers(variable, "mpirun", names)? else {
        return Ok(None);
    };
    let is_local =
        variable("OMPI_COMM_WORLD_LOCAL_SIZE").and_then(|size| size.parse().ok()) == Some(world);
    let host = match variable("MASTER_ADDR") {
        Some(host) => host,
        None if is_local => "127.0.0.1".into(),
        None => {
            let (given, missing) = ("OMPI_COMM_WORLD_RANK", "MASTER_ADDR");
            return Err(Error::Incomplete {
                given,
                missing,
                source_name: "mpirun -x MASTER_ADDR=HOST",
            });
        }
    };
    Ok(Some(Found {
        rank,
        world,
        local_rank,
        endpoint: format!("{host}:{}", port(variable, PORT)?),
    }))
}

/// As AWS's guides set them in job scripts: a process for each machine.
fn neuron(variable: Variables) -> Result<Option<Found>> {
    let (index, devices, root) = (
        "NEURON_PJRT_PROCESS_INDEX",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES",
        "NEURON_RT_ROOT_COMM_ID",
    );
    let Some(rank) = variable(index) else {
        return Ok(None);
    };
    let missing = |missing| Error::Incomplete {
        given: index,
        missing,
        source_name: "a Neuron job",
    };
    let rank = number(index, &rank)?;
    let world = variable(devices)
        .ok_or(missing(devices))?
        .split(',')
        .filter(|part| !part.trim().is_empty())
        .count();
    let root_comm = variable(root).ok_or(missing(root))?;
    let wrong = || Error::Environment {
        variable: root.into(),
        value: root_comm.clone(),
        problem: "expected HOST:PORT".into(),
    };
    let (host, port) = root_comm.rsplit_once(':').ok_or_else(wrong)?;
    // Neuron's runtime listens at that port itself.
    let port = port
        .parse::<u16>()
        .ok()
        .and_then(|port| port.checked_add(1))
        .ok_or_else(wrong)?;
    Ok(Some(Found {
        rank,
        world,
        local_rank: 0,
        endpoint: format!("{host}:{port}"),
    }))
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
        let found = member(&variable, || Ok(Secret::generate()))?;
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
        ] {
            let error = found(variables).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
