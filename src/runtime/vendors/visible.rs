//! How many accelerators a process may take, by the variables and files that say so. Nothing is
//! opened: a plan is made before.

use super::neuron::environment::visible_cores;
use super::neuron::host::Host;
use std::path::Path;
use xtrain_graphs::NeuronChip;

/// NVIDIA cards of this machine: those that CUDA_VISIBLE_DEVICES leaves, else those with a device
/// file below `root`.
pub fn cuda_cards(root: &Path, variable: impl Fn(&str) -> Option<String>) -> usize {
    match variable("CUDA_VISIBLE_DEVICES") {
        // As CUDA reads it: an empty list hides all cards, and what comes after a wrong number does
        // not count.
        Some(list) => list
            .split(',')
            .map(str::trim)
            .take_while(|card| !card.is_empty() && !card.starts_with('-'))
            .count(),
        None => (0..)
            .take_while(|card| root.join(format!("dev/nvidia{card}")).exists())
            .count(),
    }
}

/// Neuron cores: those that the runtime's variables leave to each process, else those of all chips,
/// which `processes` share.
pub fn neuron_cores(
    host: &Host,
    processes: usize,
    variable: impl Fn(&str) -> Option<String>,
) -> usize {
    let value = |name: &str| variable(name).filter(|value| !value.is_empty());
    let visible = value("NEURON_RT_VISIBLE_CORES").map(|list| visible_cores(&list).unwrap_or(0));
    let limit = visible
        .or_else(|| value("NEURON_RT_NUM_CORES").and_then(|count| count.trim().parse().ok()));
    // 0 stands for all there are.
    if let Some(cores) = limit.filter(|cores| *cores > 0) {
        return cores as usize;
    }
    let physical = value("NEURON_LOGICAL_NC_CONFIG").as_deref() == Some("1");
    let of_chip = match host.chip() {
        Some(NeuronChip::Trn2 | NeuronChip::Trn3) if physical => 8,
        Some(NeuronChip::Trn2 | NeuronChip::Trn3) => 4,
        _ => 2,
    };
    host.device_files() * of_chip / processes.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files
            .iter()
            .map(|file| file.split_once('=').unwrap_or((file, "")))
        {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn variables<'v>(all: &'v [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'v {
        |name| {
            all.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.to_string())
        }
    }

    #[test]
    fn cards_are_counted_by_variable_or_file() {
        let root = machine(&["dev/nvidia0", "dev/nvidia1", "dev/nvidiactl"]);
        let cards = |all: &[(&str, &str)]| cuda_cards(root.path(), variables(all));
        assert_eq!(cards(&[]), 2);
        for (list, count) in [
            ("0,1,2", 3),
            ("", 0),
            ("-1", 0),
            ("1", 1),
            ("GPU-3f, 2", 2),
            ("0,-1,1", 1),
        ] {
            assert_eq!(cards(&[("CUDA_VISIBLE_DEVICES", list)]), count, "{list}");
        }
    }

    #[test]
    fn cores_are_counted_by_variables_or_chips() {
        let of = |instance: &str| {
            let name = format!("sys/devices/virtual/dmi/id/product_name={instance}");
            machine(&[
                "dev/neuron0",
                "dev/neuron1",
                "sys/devices/virtual/dmi/id/sys_vendor=Amazon EC2",
                &name,
            ])
        };
        let (trn1, trn2) = (of("trn1.32xlarge"), of("trn2.48xlarge"));
        let cores = |root: &tempfile::TempDir, processes, all: &[(&str, &str)]| {
            neuron_cores(&Host::at(root.path()), processes, variables(all))
        };
        assert_eq!((cores(&trn1, 1, &[]), cores(&trn1, 2, &[])), (4, 2));
        assert_eq!(
            (
                cores(&trn2, 1, &[]),
                cores(&trn2, 1, &[("NEURON_LOGICAL_NC_CONFIG", "1")])
            ),
            (8, 16)
        );
        assert_eq!(cores(&trn1, 2, &[("NEURON_RT_VISIBLE_CORES", "4-7")]), 4);
        assert_eq!(cores(&trn1, 1, &[("NEURON_RT_NUM_CORES", "8")]), 8);
        assert_eq!(cores(&trn1, 1, &[("NEURON_RT_NUM_CORES", "0")]), 4);
    }
}
