//! A word from time to time while something takes long: on an accelerator a first compile takes from
//! minutes to an hour, and looks like a program that hangs.

use super::progress;
use crate::errln;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds until the first word; 0: never.
pub const VARIABLE: &str = "XTRAIN_COMPILE_NOTICE";
const FIRST: Duration = Duration::from_secs(30);
/// Engines that watch a job's log take one that is silent for minutes as hung.
const RAREST: Duration = Duration::from_secs(60);
/// Between two looks at whether a bar can show it.
const GLANCE: Duration = Duration::from_millis(500);

/// Where a notice is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of its own.
    Line,
    /// Behind the bar on the terminal, where there is little room.
    BehindBar,
}

/// Does `work`, and says so if it takes long: behind the bar on the terminal, if there is one; else
/// `line` of the time that it has taken is printed, first after half a minute, then at growing
/// intervals.
pub fn while_busy<T>(
    mut line: impl FnMut(Duration, Place) -> String + Send,
    work: impl FnOnce() -> T,
) -> T {
    let first = first(std::env::var(VARIABLE).ok().as_deref());
    let (working, done) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (start, mut interval) = (Instant::now(), first.unwrap_or(Duration::MAX));
            let mut next = interval;
            while done.recv_timeout(GLANCE.min(next)) == Err(RecvTimeoutError::Timeout) {
                let passed = start.elapsed();
                if progress::show(&line(passed, Place::BehindBar)) || passed < next {
                    continue;
                }
                errln!("{}", line(passed, Place::Line));
                interval = (interval * 2).min(RAREST.max(interval));
                next = passed + interval;
            }
        });
        let result = work();
        drop(working);
        result
    })
}

fn first(text: Option<&str>) -> Option<Duration> {
    let seconds = text.and_then(|text| text.parse::<f64>().ok());
    let first = seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .unwrap_or(FIRST);
    (!first.is_zero()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_with_and_without_words() {
        assert_eq!(first(Some("0")), None);
        assert_eq!(first(Some("x")), Some(FIRST));
        assert_eq!(first(None), Some(FIRST));
        assert_eq!(
            while_busy(
                |_, place| unreachable!("nobody waits half a minute: {place:?}"),
                || 7
            ),
            7
        );
    }
}
