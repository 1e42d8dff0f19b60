//! A word from time to time while something takes long: on an accelerator a first compile takes from
//! minutes to an hour, and looks like a program that hangs.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds until the first word; 0: never.
pub const VARIABLE: &str = "XTRAIN_COMPILE_NOTICE";
const FIRST: Duration = Duration::from_secs(30);
const RAREST: Duration = Duration::from_secs(5 * 60);

/// Does `work`, and prints `line` of the time that it has taken so far: first after half a minute,
/// then at growing intervals.
pub fn while_busy<T>(
    mut line: impl FnMut(Duration) -> String + Send,
    work: impl FnOnce() -> T,
) -> T {
    let Some(first) = first(std::env::var(VARIABLE).ok().as_deref()) else {
        return work();
    };
    let (working, done) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (start, mut interval) = (Instant::now(), first);
            while done.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{}", line(start.elapsed()));
                interval = (interval * 2).min(RAREST.max(first));
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
            while_busy(|_| unreachable!("nobody waits half a minute"), || 7),
            7
        );
    }
}
