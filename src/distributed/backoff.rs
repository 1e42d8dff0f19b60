//! Pauses between tries to reach the rendezvous: all ranks of a job lose it at the same moment, when
//! the machine of node 0 restarts, and must not come back at the same moments too.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// Pauses that double, each shortened by up to a half at random.
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    pub fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    /// The next pause.
    pub fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        whole.mul_f64(1.0 - rand::random::<f64>() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let pauses = || {
            let mut backoff = Backoff::new();
            (0..12).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        let first = pauses();
        let within = |pause: Duration, whole: Duration| pause <= whole && pause >= whole / 2;
        assert!(
            within(first[0], FIRST) && within(first[3], FIRST * 8),
            "{first:?}"
        );
        assert!(
            first[5..].iter().all(|pause| within(*pause, LONGEST)),
            "{first:?}"
        );
        assert_ne!(first, pauses(), "ranks take turns");
    }
}
