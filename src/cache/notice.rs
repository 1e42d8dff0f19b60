//! A word from time to time while a compiler works: on an accelerator a first compile takes from
//! minutes to an hour, and looks like a program that hangs.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds until the first word; 0: never.
pub const VARIABLE: &str = "XTRAIN_COMPILE_NOTICE";
const FIRST: Duration = Duration::from_secs(30);
const RAREST: Duration = Duration::from_secs(5 * 60);

/// Runs `compile`, and says how long it has been at it: first after half a minute, then at growing
/// intervals. `last` finds how long a graph like this one took before; it is asked when there is
/// something to say.
pub(super) fn while_compiling<T>(
    name: &str,
    last: impl FnOnce() -> Option<Duration> + Send,
    compile: impl FnOnce() -> T,
) -> T {
    let Some(first) = first(std::env::var(VARIABLE).ok().as_deref()) else {
        return compile();
    };
    let (working, done) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (start, mut interval) = (Instant::now(), first);
            let mut known = None;
            let mut last = Some(last);
            while done.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                if let Some(last) = last.take() {
                    known = last();
                }
                eprintln!("{}", sentence(name, start.elapsed(), known));
                interval = (interval * 2).min(RAREST.max(first));
            }
        });
        let result = compile();
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

fn sentence(name: &str, so_far: Duration, last: Option<Duration>) -> String {
    use crate::report::units::duration;
    let last = match last {
        Some(last) => format!("one like it took {} before", duration(last)),
        None => "none like it was compiled here before".into(),
    };
    format!("compiling `{name}` for {} so far; {last}", duration(so_far))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_tells_both_times() {
        let text = sentence(
            "train",
            Duration::from_secs(40),
            Some(Duration::from_secs(95)),
        );
        assert!(
            text.starts_with("compiling `train` for 40.0 s so far; one like it took "),
            "{text}"
        );
        assert!(
            sentence("train", Duration::from_secs(40), None)
                .ends_with("none like it was compiled here before")
        );
    }

    #[test]
    fn the_work_is_done_with_and_without_words() {
        assert_eq!(first(Some("0")), None);
        assert_eq!(first(Some("x")), Some(FIRST));
        assert_eq!(first(None), Some(FIRST));
        assert_eq!(
            while_compiling("x", || unreachable!("nobody waits half a minute"), || 7),
            7
        );
    }
}
