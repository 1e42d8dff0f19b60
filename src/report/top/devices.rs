//! The machine's accelerators: by neuron-monitor's JSON beside the files of Neuron's driver, else
//! by nvidia-smi. All fields are read leniently: what is missing is not shown.

use super::monitor::Monitor;
use crate::files;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One core or card.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceUse {
    pub name: String,
    /// Percent of the time.
    pub utilization: Option<f64>,
    pub memory_used: Option<u64>,
    pub memory_peak: Option<u64>,
    pub memory_total: Option<u64>,
    /// Where the figures are from.
    pub source: &'static str,
}

/// Asks the machine again and again; utilisation is what happened between two questions.
pub struct Devices {
    root: PathBuf,
    /// A file that `neuron-monitor` writes into, if the user named one.
    file: Option<PathBuf>,
    /// The one that was started here, if there is one to start.
    monitor: Option<Monitor>,
    earlier: Option<(Instant, Vec<u64>)>,
}

impl Devices {
    /// Looks into `file` if there is one, else starts `neuron-monitor` where that is installed.
    pub fn new(file: Option<PathBuf>) -> Devices {
        let root = PathBuf::from("/");
        let monitor = match &file {
            Some(_) => None,
            None => Monitor::start(&root, std::env::var_os("PATH").as_deref()),
        };
        Devices {
            root,
            file,
            monitor,
            earlier: None,
        }
    }

    /// Waits until a monitor that was started has something to tell, or has ended, at most so long.
    pub fn wait(&self, limit: Duration) {
        if let Some(monitor) = &self.monitor {
            monitor.wait(limit);
        }
    }

    /// Every device of whichever kind is there.
    pub fn read(&mut self) -> Vec<DeviceUse> {
        if let Some(file) = &self.file {
            let text = files::read_piped(file, files::MOST).unwrap_or_default();
            return last_report(&String::from_utf8_lossy(&text))
                .map(|report| from_monitor(&report))
                .unwrap_or_default();
        }
        let files = self.read_files();
        let reported = self
            .monitor
            .as_ref()
            .and_then(Monitor::report)
            .map(|report| from_monitor(&report))
            .unwrap_or_default();
        let cores = beside(reported, files);
        if cores.is_empty() {
            from_nvidia()
        } else {
            cores
        }
    }

    /// The driver's files, which anybody may read. (Writing to a counter clears it; nothing here
    /// opens one for writing.)
    fn read_files(&mut self) -> Vec<DeviceUse> {
        let base = self.root.join("sys/devices/virtual/neuron_device");
        let number = |path: PathBuf| {
            std::fs::read_to_string(path)
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let (mut devices, mut busy) = (Vec::new(), Vec::new());
        for chip in (0..).map_while(|i| {
            Some((i, base.join(format!("neuron{i}")))).filter(|(_, path)| path.is_dir())
        }) {
            let (chip, path) = chip;
            for core in (0..).map_while(|j| {
                Some((j, path.join(format!("neuron_core{j}")))).filter(|(_, path)| path.is_dir())
            }) {
                let (core, path) = core;
                let memory = path.join("stats/memory_usage/device_mem");
                busy.push(number(path.join("stats/other_info/nc_time_in_use")).unwrap_or(0));
                devices.push(DeviceUse {
                    name: format!("chip {chip} core {core}"),
                    memory_used: number(memory.join("present")),
                    memory_peak: number(memory.join("peak")),
                    source: "sysfs",
                    ..Default::default()
                });
            }
        }
        let now = Instant::now();
        if let Some((then, before)) = &self.earlier {
            let passed = now.duration_since(*then).as_micros() as f64;
            for ((device, now), before) in devices.iter_mut().zip(&busy).zip(before) {
                device.utilization = (passed > 0.0)
                    .then(|| (now.saturating_sub(*before) as f64 / passed * 100.0).min(100.0));
            }
        }
        self.earlier = Some((now, busy));
        devices
    }
}

/// What neuron-monitor tells of the cores in use, with the peaks that only the driver knows; then
/// the driver's other cores. The monitor counts cores through all chips, in the order of the
/// driver's files.
fn beside(mut reported: Vec<DeviceUse>, files: Vec<DeviceUse>) -> Vec<DeviceUse> {
    for (index, of_driver) in files.into_iter().enumerate() {
        let name = format!("core {index}");
        match reported.iter_mut().find(|core| core.name == name) {
            Some(core) => core.memory_peak = of_driver.memory_peak,
            None => reported.push(of_driver),
        }
    }
    reported
}

/// The last whole line of what neuron-monitor has written.
fn last_report(text: &str) -> Option<Value> {
    text.lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
}

/// The cores in use, over all runtimes that neuron-monitor sees.
pub fn from_monitor(report: &Value) -> Vec<DeviceUse> {
    let hardware = &report["neuron_hardware_info"];
    let per_device = hardware["neuroncore_per_device_count"]
        .as_u64()
        .filter(|n| *n > 0);
    let total = hardware["neuron_device_memory_size"]
        .as_u64()
        .zip(per_device)
        .map(|(size, cores)| size / cores);
    let mut devices: Vec<DeviceUse> = Vec::new();
    let runtimes = report["neuron_runtime_data"]
        .as_array()
        .into_iter()
        .flatten();
    for runtime in
        runtimes.filter(|runtime| runtime["error"].as_str().unwrap_or_default().is_empty())
    {
        let cores = &runtime["report"]["neuroncore_counters"]["neuroncores_in_use"];
        let usage = &runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
            ["neuroncore_memory_usage"];
        for (id, core) in cores.as_object().into_iter().flatten() {
            let parts = usage[id].as_object();
            devices.push(DeviceUse {
                name: format!("core {id}"),
                utilization: core["neuroncore_utilization"].as_f64(),
                memory_used: parts.map(|parts| parts.values().filter_map(Value::as_u64).sum()),
                memory_total: total,
                source: "neuron-monitor",
                ..Default::default()
            });
        }
    }
    let number = |device: &DeviceUse| device.name[5..].parse::<u64>().unwrap_or(u64::MAX);
    devices.sort_by_key(number);
    devices
}

fn from_nvidia() -> Vec<DeviceUse> {
    // Where there is no card there is no driver, and nothing to run.
    if !Path::new("/proc/driver/nvidia").exists() {
        return Vec::new();
    }
    let query = "--query-gpu=index,name,utilization.gpu,memory.used,memory.total";
    let output = Command::new("nvidia-smi")
        .args([query, "--format=csv,noheader,nounits"])
        .stderr(Stdio::null())
        .output();
    output
        .map(|output| parse_nvidia(&String::from_utf8_lossy(&output.stdout)))
        .unwrap_or_default()
}

/// `0, NVIDIA H200, 97, 81920, 143771`: percent and MiB; `[N/A]` where a card does not tell.
fn parse_nvidia(text: &str) -> Vec<DeviceUse> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, name, busy, used, total] = fields[..] else {
            return None;
        };
        let bytes = |mib: &str| mib.parse::<u64>().ok().map(|mib| mib << 20);
        Some(DeviceUse {
            name: format!("{index} {name}"),
            utilization: busy.parse().ok(),
            memory_used: bytes(used),
            memory_peak: None,
            memory_total: bytes(total),
            source: "nvidia-smi",
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the shape that AWS's user guide gives, shortened; two processes, the second of which has
    /// no counters.
    const MONITOR: &str = r#"{"neuron_runtime_data":[
        {"pid":11,"neuron_runtime_tag":"train","error":"","report":{
            "neuroncore_counters":{"period":5.0,"neuroncores_in_use":{
                "10":{"neuroncore_utilization":12.5,"flops":1},"2":{"neuroncore_utilization":99.25}},"error":""},
            "memory_used":{"period":5.0,"neuron_runtime_used_bytes":{"host":7,"neuron_device":30,"usage_breakdown":{
                "neuroncore_memory_usage":{"2":{"constants":1,"model_code":2,"tensors":20},"10":{"tensors":7}}}}}}},
        {"pid":12,"error":"no counters","report":{}}],
        "neuron_hardware_info":{"neuron_device_count":16,"neuron_device_memory_size":34359738368,"neuroncore_per_device_count":2}}"#;

    #[test]
    fn monitors_json_is_read_and_ordered() {
        let devices = from_monitor(&serde_json::from_str(MONITOR).unwrap());
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["core 2", "core 10"]);
        assert_eq!(
            (devices[0].utilization, devices[0].memory_used),
            (Some(99.25), Some(23))
        );
        assert_eq!(devices[1].memory_total, Some(16 << 30));
        // Idle, as measured on a trn1.2xlarge; and what is no report at all.
        for text in [r#"{"neuron_runtime_data":[]}"#, "{}", "[]", "null"] {
            assert!(
                from_monitor(&serde_json::from_str(text).unwrap()).is_empty(),
                "{text}"
            );
        }
    }

    #[test]
    fn the_last_whole_line_of_a_growing_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("monitor.jsonl");
        let line = MONITOR.replace('\n', "");
        std::fs::write(&file, format!("{{}}\n{line}\n{}", &line[..40])).unwrap();
        assert_eq!(Devices::new(Some(file)).read().len(), 2);
        assert!(
            Devices::new(Some(dir.path().join("none")))
                .read()
                .is_empty()
        );
    }

    #[test]
    fn the_drivers_files_tell_memory_and_time() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root
                .path()
                .join("sys/devices/virtual/neuron_device")
                .join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for core in 0..2 {
            let at = |name: &str| format!("neuron0/neuron_core{core}/stats/{name}");
            write(
                &at("memory_usage/device_mem/present"),
                &format!("{}\n", 1000 + core),
            );
            write(&at("memory_usage/device_mem/peak"), "5000\n");
            write(&at("other_info/nc_time_in_use"), "100\n");
        }
        let mut devices = Devices {
            root: root.path().into(),
            file: None,
            monitor: None,
            earlier: None,
        };
        let first = devices.read();
        assert_eq!(first.len(), 2);
        assert_eq!(
            (
                first[1].name.as_str(),
                first[1].memory_used,
                first[1].utilization
            ),
            ("chip 0 core 1", Some(1001), None)
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
        // One core was busy all the time and longer, the other not at all.
        write(
            "neuron0/neuron_core0/stats/other_info/nc_time_in_use",
            "99999999\n",
        );
        let second = devices.read();
        assert_eq!(
            (second[0].utilization, second[1].utilization),
            (Some(100.0), Some(0.0))
        );

        // Beside a monitor's report: its core 0 gets the peak, the other stays the driver's.
        let reported = DeviceUse {
            name: "core 0".into(),
            utilization: Some(61.5),
            ..Default::default()
        };
        let both = beside(vec![reported], second);
        assert_eq!(
            (
                both[0].utilization,
                both[0].memory_peak,
                both[1].name.as_str()
            ),
            (Some(61.5), Some(5000), "chip 0 core 1")
        );
    }

    #[test]
    fn cards_are_read_with_their_gaps() {
        let cards = parse_nvidia(
            "0, NVIDIA H200, 97, 81920, 143771\n1, NVIDIA H200, [N/A], 4, 143771\nbroken\n",
        );
        assert_eq!(cards.len(), 2);
        assert_eq!(
            (cards[0].utilization, cards[0].memory_used),
            (Some(97.0), Some(81920 << 20))
        );
        assert_eq!(
            (cards[1].utilization, cards[1].memory_total),
            (None, Some(143_771 << 20))
        );
    }
}
