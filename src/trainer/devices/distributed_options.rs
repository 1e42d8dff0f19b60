//! Options of a device when several processes share a run: which one this is, how it finds the
//! others, and whose device each replica runs on.

use std::sync::Arc;
use std::time::Duration;
use xtrain_distributed::{Error, ProcessGroup, RankInfo};
use xtrain_parallel::Mesh;
use xtrain_runtime::{Client, CompileOptions, KeyValueStore, OptionValue, StoreError};

/// Ranks may be as far apart as it takes one of them to write a checkpoint or compile a graph; who
/// is gone or hangs is found out by heartbeats and by the stall timeout, long before.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Devices of this process.
pub fn local_devices(group: Option<&Arc<ProcessGroup>>, mesh: Mesh) -> usize {
    mesh.devices() / group.map_or(1, |group| group.rank_info().world)
}

/// Options of our CPU plugin.
pub fn cpu_options(group: &ProcessGroup) -> Vec<(String, OptionValue)> {
    let member = group.rank_info();
    let seconds = |time: Duration| OptionValue::Int(time.as_secs().max(1) as i64);
    [
        ("process_id", OptionValue::Int(member.rank as i64)),
        ("num_processes", OptionValue::Int(member.world as i64)),
        (
            "collectives_host",
            OptionValue::String(group.host().to_string()),
        ),
        ("connect_timeout_seconds", seconds(member.timeouts.join)),
        ("collective_timeout_seconds", seconds(COLLECTIVE_TIMEOUT)),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into()
}

/// Options of XLA's plugin for GPUs; ours for the CPU, which stands in for it, knows these names
/// too.
pub fn cuda_options(member: &RankInfo) -> Vec<(String, OptionValue)> {
    [("node_id", member.rank), ("num_nodes", member.world)]
        .map(|(name, value)| (name.to_string(), OptionValue::Int(value as i64)))
        .into()
}

/// What Neuron's plugin reads instead of options, as AWS's guides set it: the processes with their
/// cores, and where its runtime's own communicator starts. Processes of one machine take its cores
/// in their order.
pub fn neuron_variables(member: &RankInfo, cores: u32) -> Vec<(&'static str, String)> {
    let (host, port) = member
        .endpoint
        .rsplit_once(':')
        .unwrap_or((&member.endpoint, ""));
    // Not the rendezvous' own port.
    let port = port
        .parse::<u16>()
        .ok()
        .and_then(|port| port.checked_add(1))
        .unwrap_or(62182);
    let first = member.local_rank as u32 * cores;
    let mut variables = vec![
        ("NEURON_RT_ROOT_COMM_ID", format!("{host}:{port}")),
        (
            "NEURON_PJRT_PROCESSES_NUM_DEVICES",
            vec![cores.to_string(); member.world].join(","),
        ),
        ("NEURON_PJRT_PROCESS_INDEX", member.rank.to_string()),
    ];
    if member.local_world > 1 {
        variables.push((
            "NEURON_RT_VISIBLE_CORES",
            format!("{first}-{}", first + cores - 1),
        ));
    }
    variables
}

/// The rendezvous as the plugin's store.
pub fn store(group: &Arc<ProcessGroup>) -> Arc<dyn KeyValueStore> {
    Arc::new(Bootstrap(group.clone()))
}

/// The same options with the device of each of the mesh's places: those of process 0 first, as many
/// of each process as it has.
pub fn assigned(options: CompileOptions, client: &Client, mesh: Mesh) -> CompileOptions {
    let processes = client.processes();
    if processes == 1 && mesh.stage == 1 {
        return options;
    }
    let each = mesh.devices() / processes;
    let mut devices: Vec<(i32, i64)> = client
        .devices()
        .iter()
        .map(|d| (d.process_index(), i64::from(d.id())))
        .collect();
    devices.sort_unstable();
    let of_process = |process: i32| {
        devices
            .iter()
            .filter(move |(index, _)| *index == process)
            .take(each)
    };
    let mut indices: Vec<i32> = devices.iter().map(|(index, _)| *index).collect();
    indices.dedup();
    let rows = indices
        .into_iter()
        .flat_map(of_process)
        .map(|(_, id)| vec![*id])
        .collect();
    CompileOptions {
        device_assignment: Some(rows),
        ..options
    }
}

struct Bootstrap(Arc<ProcessGroup>);

fn failed(error: Error) -> StoreError {
    match error {
        Error::Timeout { .. } => StoreError::Timeout(error.to_string()),
        _ => StoreError::Failed(error.to_string()),
    }
}

impl KeyValueStore for Bootstrap {
    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.0.put(key, value).map_err(failed)
    }

    fn get(&self, key: &str, patience: Duration) -> Result<Vec<u8>, StoreError> {
        self.0.get(key, patience).map_err(failed)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.try_get(key).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_distributed::environment::Timeouts;
    use xtrain_distributed::secret::Secret;

    fn member(local_world: usize) -> RankInfo {
        RankInfo {
            rank: 3,
            world: 4,
            local_rank: 1,
            local_world,
            endpoint: "10.0.0.1:29500".into(),
            secret: Secret::generate(),
            launched: None,
            generation: 0,
            timeouts: Timeouts::default(),
        }
    }

    #[test]
    fn vendors_are_told_in_their_own_way() {
        let told: Vec<String> = cuda_options(&member(2))
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(told, ["node_id=3", "num_nodes=4"]);
        let told = |local_world| -> Vec<String> {
            neuron_variables(&member(local_world), 2)
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect()
        };
        let all = [
            "NEURON_RT_ROOT_COMM_ID=10.0.0.1:29501",
            "NEURON_PJRT_PROCESSES_NUM_DEVICES=2,2,2,2",
            "NEURON_PJRT_PROCESS_INDEX=3",
            "NEURON_RT_VISIBLE_CORES=2-3",
        ];
        assert_eq!(told(2), all);
        assert_eq!(told(1), all[..3]);
    }
}
