//! What the processes of a run use of this machine: processor time and memory, from `/proc`.

use super::snapshot::Rank;
use crate::telemetry::host;
use std::collections::BTreeMap;
use std::time::Instant;

/// Asks the system again and again; the use of the processor is what happened between two
/// questions, at the first one since the process began.
#[derive(Default)]
pub struct Processes {
    /// When a process was asked about, and the seconds of processors that it had used.
    earlier: BTreeMap<u32, (Instant, f64)>,
}

impl Processes {
    /// Fills in the figures of the ranks that run on this machine.
    pub fn read(&mut self, ranks: &mut [Rank]) {
        let here = host();
        for rank in ranks.iter_mut().filter(|rank| rank.host == here) {
            let file = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", rank.pid));
            let Some(times) = file("stat").ok().as_deref().and_then(Times::parse) else {
                continue;
            };
            let (now, used) = (Instant::now(), times.used);
            let earlier = self.earlier.insert(rank.pid, (now, used));
            rank.cpu = match earlier {
                Some((then, before)) => Some((used - before, (now - then).as_secs_f64())),
                None => uptime().map(|uptime| (used, uptime - times.started)),
            }
            .filter(|(_, passed)| *passed > 0.0)
            .map(|(used, passed)| (used / passed).max(0.0));
            rank.memory_bytes = file("statm").ok().as_deref().and_then(resident);
        }
    }
}

/// Seconds, of a line of `/proc/PID/stat`.
#[derive(Debug, PartialEq)]
struct Times {
    /// Of processors, by the process and its threads.
    used: f64,
    /// From the machine's start to the process's.
    started: f64,
}

impl Times {
    fn parse(line: &str) -> Option<Times> {
        // The name, in brackets, may hold anything.
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Counted from the state, the third field of the line.
        let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        // SAFETY: asks the system for a number.
        let each = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        Some(Times {
            used: (ticks(14)? + ticks(15)?) / each,
            started: ticks(22)? / each,
        })
    }
}

fn uptime() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Bytes, of a line of `/proc/PID/statm`.
fn resident(line: &str) -> Option<u64> {
    let pages: u64 = line.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: asks the system for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_with_brackets_and_blanks_are_passed_over() {
        let line = "7 (a) b (c) R 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 3 0 900 1 2 3";
        // SAFETY: as above.
        let each = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let expected = Times {
            used: 300.0 / each,
            started: 900.0 / each,
        };
        assert_eq!(Times::parse(line), Some(expected));
        assert_eq!(Times::parse("7 (a) R 1"), None);
    }

    #[test]
    fn this_process_is_busy_when_it_works() {
        let mut ranks = [Rank {
            pid: std::process::id(),
            host: host(),
            ..Rank::default()
        }];
        let mut processes = Processes::default();
        processes.read(&mut ranks);
        assert!(ranks[0].memory_bytes.unwrap() > 1 << 20);
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            std::hint::black_box(0);
        }
        processes.read(&mut ranks);
        assert!(ranks[0].cpu.unwrap() > 0.1, "{ranks:?}");
        let mut elsewhere = [Rank {
            host: "elsewhere".into(),
            ..ranks[0].clone()
        }];
        elsewhere[0].cpu = None;
        processes.read(&mut elsewhere);
        assert_eq!(elsewhere[0].cpu, None);
    }
}
