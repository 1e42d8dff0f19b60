//! The engines that start processes in their own ways, one declaration each. Sources of what each one
//! sets: docs/where-to-run.md.

use super::super::{Error, Result, hostlist};
use super::sagemaker;
use super::variables::{Variables, number};

/// torch's default, where a job has no number to take one from.
const PORT: u16 = 29500;

/// A launcher or scheduler whose processes join their job by what they find in their environment.
pub struct Engine {
    pub name: &'static str,
    /// The variable, or the file, by which its processes know it.
    pub sign: &'static str,
    pub(super) secrets: Secrets,
    pub(super) find: fn(Variables) -> Result<Option<Found>>,
}

/// Where the processes of a job have their common secret from, unless `XTRAIN_RDZV_SECRET` has it.
pub(super) enum Secrets {
    /// From a file in the home directory, which they share.
    OfUser,
    /// They share no home directory: the job has to give them one, in this way.
    Given(&'static str),
}

const KUBERNETES: Secrets =
    Secrets::Given("set it from a Kubernetes Secret: env, valueFrom, secretKeyRef");

/// Every engine, in the order in which they are looked for: those that start several processes on a
/// machine come before those that only join machines, because the former run under the latter.
pub static ENGINES: &[Engine] = &[
    Engine {
        name: "torchrun",
        sign: "RANK",
        secrets: Secrets::OfUser,
        find: torchrun,
    },
    Engine {
        name: "SLURM",
        sign: "SLURM_PROCID",
        secrets: Secrets::OfUser,
        find: slurm,
    },
    Engine {
        name: "Open MPI",
        sign: "OMPI_COMM_WORLD_RANK",
        secrets: Secrets::OfUser,
        find: open_mpi,
    },
    Engine {
        name: "a Neuron job",
        sign: "NEURON_PJRT_PROCESS_INDEX",
        secrets: Secrets::OfUser,
        find: neuron,
    },
    Engine {
        name: "Kubeflow Trainer (JAX)",
        sign: "JAX_PROCESS_ID",
        secrets: KUBERNETES,
        find: jax,
    },
    Engine {
        name: "Kubeflow Trainer (torch)",
        sign: "PET_NODE_RANK",
        secrets: KUBERNETES,
        find: pet,
    },
    Engine {
        name: "JobSet",
        sign: "JOB_COMPLETION_INDEX",
        secrets: KUBERNETES,
        find: jobset,
    },
    Engine {
        name: "SkyPilot",
        sign: "SKYPILOT_NODE_RANK",
        secrets: Secrets::Given(
            "list it under secrets: in the task, and pass it with sky launch --secret",
        ),
        find: skypilot,
    },
    Engine {
        name: "dstack",
        sign: "DSTACK_NODE_RANK",
        secrets: Secrets::Given(
            "list XTRAIN_RDZV_SECRET=${{ secrets.xtrain }} under env: in the task",
        ),
        find: dstack,
    },
    Engine {
        name: "SageMaker",
        sign: "/opt/ml/input/config/resourceconfig.json",
        secrets: Secrets::Given(
            "pass a random one in the estimator's environment, for example secrets.token_hex(32)",
        ),
        find: sagemaker,
    },
];

/// What an engine's variables mean.
pub(super) struct Found {
    pub rank: usize,
    pub world: usize,
    pub local_rank: usize,
    /// HOST:PORT of the rendezvous.
    pub endpoint: String,
}

impl Found {
    /// The one process of its machine, whose number it has.
    fn of_node(node: usize, nodes: usize, endpoint: String) -> Option<Found> {
        Some(Found {
            rank: node,
            world: nodes,
            local_rank: 0,
            endpoint,
        })
    }
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
    port_of(variable, "MASTER_PORT", otherwise)
}

fn port_of(variable: Variables, name: &str, otherwise: u16) -> Result<u16> {
    let Some(value) = variable(name) else {
        return Ok(otherwise);
    };
    let problem = "expected the number of a port".to_string();
    value.trim().parse().map_err(|_| Error::Environment {
        variable: name.into(),
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

/// Of Kubeflow Trainer's JAX runtimes: a process for each machine.
fn jax(variable: Variables) -> Result<Option<Found>> {
    let names = ["JAX_PROCESS_ID", "JAX_NUM_PROCESSES"];
    let Some([rank, world]) = numbers(variable, "Kubeflow's JAX runtime", names)? else {
        return Ok(None);
    };
    let address = "JAX_COORDINATOR_ADDRESS";
    let endpoint = match variable(address) {
        None if world == 1 => String::new(),
        None => {
            return Err(Error::Incomplete {
                given: names[0],
                missing: address,
                source_name: "Kubeflow's JAX runtime",
            });
        }
        Some(value) if value.rsplit_once(':').is_some_and(is_address) => value,
        Some(value) => {
            return Err(Error::Environment {
                variable: address.into(),
                value,
                problem: "expected HOST:PORT".into(),
            });
        }
    };
    Ok(Found::of_node(rank, world, endpoint))
}

fn is_address((host, port): (&str, &str)) -> bool {
    !host.is_empty() && port.parse::<u16>().is_ok()
}

/// torchrun's flags as variables, which Kubeflow Trainer and its PyTorchJob set for a torchrun in
/// each pod: without torchrun the pod's one process is the machine's.
fn pet(variable: Variables) -> Result<Option<Found>> {
    let (rank, nodes) = ("PET_NODE_RANK", "PET_NNODES");
    if let Some(value) = variable(nodes).filter(|value| value.contains(':'))
        && variable(rank).is_some()
    {
        return Err(Error::Environment {
            variable: nodes.into(),
            value,
            problem: "a job has a fixed number of nodes here; give one number".into(),
        });
    }
    let Some([node, nodes]) = numbers(variable, "Kubeflow's torch runtime", [rank, nodes])? else {
        return Ok(None);
    };
    let host = match variable("PET_MASTER_ADDR") {
        Some(host) => host,
        None if nodes == 1 => String::new(),
        None => {
            return Err(Error::Incomplete {
                given: rank,
                missing: "PET_MASTER_ADDR",
                source_name: "Kubeflow's torch runtime",
            });
        }
    };
    let port = port_of(variable, "PET_MASTER_PORT", PORT)?;
    Ok(Found::of_node(node, nodes, format!("{host}:{port}")))
}

/// Of a Kubernetes Job whose pods have numbers: the manifest adds how many there are and which one
/// is the first. A Job without these is not one run but many.
fn jobset(variable: Variables) -> Result<Option<Found>> {
    let index = "JOB_COMPLETION_INDEX";
    if variable("WORLD_SIZE").is_none() {
        return Ok(None);
    }
    let source = "the manifest of a JobSet";
    let Some([rank, world]) = numbers(variable, source, [index, "WORLD_SIZE"])? else {
        return Ok(None);
    };
    let host = match variable("MASTER_ADDR") {
        Some(host) => host,
        None if world == 1 => String::new(),
        None => {
            return Err(Error::Incomplete {
                given: index,
                missing: "MASTER_ADDR",
                source_name: source,
            });
        }
    };
    let endpoint = format!("{host}:{}", port(variable, PORT)?);
    Ok(Found::of_node(rank, world, endpoint))
}

/// A process for each machine of a SkyPilot task.
fn skypilot(variable: Variables) -> Result<Option<Found>> {
    let names = ["SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"];
    let Some([node, nodes]) = numbers(variable, "SkyPilot", names)? else {
        return Ok(None);
    };
    let list = "SKYPILOT_NODE_IPS";
    let ips = variable(list).ok_or(Error::Incomplete {
        given: names[0],
        missing: list,
        source_name: "SkyPilot",
    })?;
    let Some(first) = ips.split_whitespace().next() else {
        return Err(Error::Environment {
            variable: list.into(),
            value: ips,
            problem: "expected an address on each line".into(),
        });
    };
    let endpoint = format!("{first}:{}", port(variable, PORT)?);
    Ok(Found::of_node(node, nodes, endpoint))
}

/// A process for each machine of a dstack task.
fn dstack(variable: Variables) -> Result<Option<Found>> {
    let names = ["DSTACK_NODE_RANK", "DSTACK_NODES_NUM"];
    let Some([node, nodes]) = numbers(variable, "dstack", names)? else {
        return Ok(None);
    };
    let master = "DSTACK_MASTER_NODE_IP";
    let host = variable(master).ok_or(Error::Incomplete {
        given: names[0],
        missing: master,
        source_name: "dstack",
    })?;
    let endpoint = format!("{host}:{}", port(variable, PORT)?);
    Ok(Found::of_node(node, nodes, endpoint))
}

/// A process for each container of a SageMaker training job.
fn sagemaker(variable: Variables) -> Result<Option<Found>> {
    let Some(container) = sagemaker::Container::among(variable) else {
        return Ok(None);
    };
    let Some((rank, hosts)) = container.hosts()? else {
        return Ok(None);
    };
    let endpoint = format!("{}:{}", hosts[0], port(variable, PORT)?);
    Ok(Found::of_node(rank, hosts.len(), endpoint))
}
