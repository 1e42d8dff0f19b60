//! Servers that take a connection and then say nothing. hf-hub's client waits for them without end,
//! so that its calls run on threads of their own here, which are given up when nothing comes any
//! more.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often a call is looked after.
const GLANCE: Duration = Duration::from_millis(100);

/// Runs `work` on another thread; `None` once it has neither ended nor moved on for `limit`.
/// `moved` says how far it is, in numbers that change. A thread that was given up ends with the
/// process.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    moved: impl Fn() -> u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = channel();
    // Nobody listens any more once the call was given up.
    std::thread::spawn(move || drop(sender.send(work())));
    let (mut last, mut since) = (moved(), Instant::now());
    loop {
        match receiver.recv_timeout(GLANCE.min(limit)) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                let now = moved();
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() >= limit {
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn what_moves_is_waited_for_and_what_stands_still_is_given_up() {
        let limit = Duration::from_millis(300);
        assert_eq!(within(limit, || 0, || 7), Some(7));
        assert_eq!(
            within(limit, || 0, || std::thread::sleep(Duration::from_secs(60))),
            None
        );
        // Ten times as long as the limit, but never still for long.
        let progress = Arc::new(AtomicU64::new(0));
        let count = progress.clone();
        let work = move || {
            for _ in 0..60 {
                std::thread::sleep(Duration::from_millis(50));
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert_eq!(
            within(limit, || progress.load(Ordering::Relaxed), work),
            Some(())
        );
    }
}
