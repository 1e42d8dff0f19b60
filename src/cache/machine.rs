//! What of this machine ends up in code compiled for its CPU. XLA's own checks are weak (a foreign
//! executable loads with a log line and may die of SIGILL), so the cache keys on all of it.

use std::collections::BTreeSet;
use std::fs;

/// What XLA sizes its thread pools by when a CPU client is made, if it is set.
pub const CPU_THREADS: &str = "NPROC";

/// The processor as `/proc` describes it. Empty texts where there is no such file: then only
/// equally silent machines share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpu: String,
    /// Sorted, separated by blanks.
    pub features: String,
    /// Threads of XLA's pool: work is split into as many tasks, at compile time.
    pub threads: usize,
}

impl Machine {
    pub fn this() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut machine = Machine::from_texts(&info, &status);
        let chosen = std::env::var(CPU_THREADS).ok();
        if let Some(threads) = chosen.and_then(|text| text.parse().ok()) {
            machine.threads = threads;
        }
        machine
    }

    /// The cores that CPU affinity and the control group's quota leave this process. Two threads
    /// of one core share its multipliers, and matmuls are what a step waits for.
    pub fn physical_cores() -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let siblings = |cpu: usize| {
            let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            fs::read_to_string(format!("{topology}/thread_siblings_list")).ok()
        };
        available().min(cores(list.unwrap_or_default(), siblings).unwrap_or(usize::MAX))
    }

    fn from_texts(info: &str, status: &str) -> Machine {
        // The first processor stands for all; Arm calls its flags features and has no model name,
        // only part numbers.
        let first = info.split("\n\n").next().unwrap_or_default();
        let field = |wanted: &str| {
            let fields = first.lines().filter_map(|line| line.split_once(':'));
            fields
                .filter(|(name, _)| name.trim() == wanted)
                .map(|(_, value)| value.trim().to_string())
                .next()
        };
        let names = [
            "vendor_id",
            "model name",
            "cpu family",
            "model",
            "stepping",
            "CPU implementer",
            "CPU part",
        ];
        let cpu = names
            .iter()
            .filter_map(|name| field(name))
            .collect::<Vec<_>>()
            .join(" ");
        let features = field("flags")
            .or_else(|| field("Features"))
            .unwrap_or_default();
        let mut features: Vec<&str> = features.split_whitespace().collect();
        features.sort_unstable();
        Machine {
            cpu,
            features: features.join(" "),
            threads: allowed_cpus(status).unwrap_or_else(available),
        }
    }
}

/// The size of the affinity mask, which is what XLA counts. (Rust's `available_parallelism` also
/// knows CPU quotas, XLA does not.)
fn allowed_cpus(status: &str) -> Option<usize> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    let bits = mask
        .trim()
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(u32::count_ones)
        .sum::<u32>();
    (bits > 0).then_some(bits as usize)
}

/// How many cores the CPUs of a list such as `0-3,8` belong to, by the list of each one's
/// siblings; `None` where one is unknown.
fn cores(list: &str, siblings: impl Fn(usize) -> Option<String>) -> Option<usize> {
    let mut cores = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse().ok()?..=last.parse().ok()? {
            cores.insert(siblings(cpu)?);
        }
    }
    Some(cores.len())
}

fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_count_once() {
        let of_pairs = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(cores("0-7\n", of_pairs), Some(4));
        assert_eq!(cores("0,4,1", of_pairs), Some(2));
        assert_eq!(cores("3", of_pairs), Some(1));
        assert_eq!(cores("0-1", |_| None), None);
        assert_eq!(cores("", of_pairs), None);
        assert!(Machine::physical_cores() >= 1);
    }

    #[test]
    fn x86_and_arm_are_distinguished_by_cpuinfo() {
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nflags\t\t: sse2 avx2 avx\n\n\
                   processor\t: 1\nflags\t: none\n";
        let machine = Machine::from_texts(
            x86,
            "Name:\tx\nCpus_allowed:\tff,0000000f\nCpus_allowed_list:\t0-3\n",
        );
        assert_eq!(machine.cpu, "AuthenticAMD AMD EPYC 17");
        assert_eq!(machine.features, "avx avx2 sse2");
        assert_eq!(machine.threads, 12);
        let arm = Machine::from_texts(
            "processor : 0\nFeatures : sve fp\nCPU implementer : 0x41\nCPU part : 0xd40\n",
            "",
        );
        assert_eq!(
            (arm.cpu.as_str(), arm.features.as_str()),
            ("0x41 0xd40", "fp sve")
        );
        assert!(Machine::this().threads >= 1);
    }
}
