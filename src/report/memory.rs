//! Memory and processor time of this process as the system counts them. Memory is Linux's; other
//! systems say nothing, which is not zero.

/// The most memory that this process ever had resident, in bytes; `None` where the system does not
/// say.
pub fn peak_rss() -> Option<u64> {
    field(
        &std::fs::read_to_string("/proc/self/status").ok()?,
        "VmHWM:",
    )
}

/// The memory of this machine, or of the control group that limits this process, in bytes; `None`
/// where the system does not say.
pub fn machine() -> Option<u64> {
    let total = field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    Some(group.map_or(total, |limit| limit.min(total)))
}

/// The memory that programs may still take, in this machine or control group, in bytes; `None` where
/// the system does not say.
pub fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let free = field(&info, "MemAvailable:")?;
    let group = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let left = group("memory.max")
        .zip(group("memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    Some(left.map_or(free, |left| left.min(free)))
}

/// Processor time that all threads of this process used so far. On a machine that is shared, it
/// says more about the work done than the clock does.
pub fn cpu_time() -> std::time::Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every system that xtrain runs on, and `time` is valid for the
    // write.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A line of Linux's `/proc/self/status`, which counts in KiB.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_kib() {
        assert_eq!(
            field("Name:\tx\nVmHWM:\t  123 kB\nVmRSS:\t 5 kB\n", "VmHWM:"),
            Some(123 * 1024)
        );
        assert_eq!(field("Name:\tx\n", "VmHWM:"), None);
        assert_eq!(field("VmHWM: many kB\n", "VmHWM:"), None);
    }

    #[test]
    fn a_peak_is_never_below_what_was_touched() {
        // Seen by the compiler as used, or it is not made.
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        // The system counts pages per processor, and adds these up later.
        assert!(peak_rss().unwrap() >= (block.len() - (1 << 20)) as u64);
    }
}
