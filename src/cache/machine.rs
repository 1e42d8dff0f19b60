//! What of this machine ends up in code compiled for its CPU. XLA's own checks are weak (a foreign
//! executable loads with a log line and may die of SIGILL), so the cache keys on all of it.

use std::fs;

/// The processor as `/proc` describes it. Empty texts where there is no such file: then only
/// equally silent machines share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpu: String,
    /// Sorted, separated by blanks.
    pub features: String,
    /// CPUs that this process may run on: XLA splits work into as many tasks, at compile time.
    pub threads: usize,
}

impl Machine {
    pub fn this() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Machine::from_texts(&info, &status)
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

fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

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
