//! How fast files are written while training goes on beside.
//!
//! Where steps keep every processor busy, each moment of a writer's work is a moment that the steps
//! lose, whatever its priority. So a writer in the background works in small pieces and rests after
//! them, as long as nobody waits for it.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// What a writer in the background takes of all processors together, at most.
const SHARE: f64 = 1.0 / 40.0;
/// Bytes between two rests: some milliseconds of hashing and writing.
pub const PIECE: usize = 8 << 20;
/// Rests shorter than this are put off, so that small files are written at once.
const SHORTEST_REST: Duration = Duration::from_millis(20);

/// The pace of one writer, which whoever waits for it can end. Cheap to clone; clones are the same
/// pace.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Seconds of rest for each second of work.
    rest: f64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    hurried: Condvar,
}

#[derive(Debug)]
struct State {
    is_hurried: bool,
    /// Rest that was put off.
    owed: Duration,
}

impl Pace {
    fn new(rest: f64, is_hurried: bool) -> Pace {
        let owed = Duration::ZERO;
        let shared = Shared {
            state: Mutex::new(State { is_hurried, owed }),
            hurried: Condvar::new(),
        };
        Pace {
            rest,
            shared: Arc::new(shared),
        }
    }

    /// Without rests: training waits.
    pub fn full() -> Pace {
        Pace::new(0.0, true)
    }

    /// A small share of the processors that this process may use; where there are very many, that is
    /// all of a thread's time.
    pub fn background() -> Pace {
        let processors = available_parallelism().map_or(1, usize::from);
        Pace::new(rest_for_share(SHARE * processors as f64), false)
    }

    /// From now on the writer does not rest: somebody waits for it.
    pub fn hurry(&self) {
        self.state().is_hurried = true;
        self.shared.hurried.notify_all();
    }

    /// Does a piece of the work, and then rests in proportion to the time that it took.
    pub fn work<T>(&self, piece: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = piece();
        self.rest_from(began.elapsed());
        done
    }

    fn rest_from(&self, work: Duration) {
        let mut state = self.state();
        state.owed += work.mul_f64(self.rest);
        if state.is_hurried || state.owed < SHORTEST_REST {
            return;
        }
        let rest = std::mem::take(&mut state.owed);
        // Whether it was hurried or had its rest makes no difference.
        drop(
            self.shared
                .hurried
                .wait_timeout_while(state, rest, |state| !state.is_hurried),
        );
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics halfway.
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds of rest for each second of work of a thread that takes this share of a processor.
fn rest_for_share(share: f64) -> f64 {
    (1.0 / share - 1.0).max(0.0)
}

/// Passes writes through at a pace, in pieces.
pub struct Paced<'p, W> {
    inner: W,
    pace: &'p Pace,
}

impl<'p, W> Paced<'p, W> {
    pub fn new(inner: W, pace: &'p Pace) -> Self {
        Paced { inner, pace }
    }

    pub fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: Write> Write for Paced<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let piece = &buffer[..buffer.len().min(PIECE)];
        self.pace.work(|| self.inner.write(piece))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rest that no test outlives.
    const FOR_EVER: f64 = 1e9;

    fn some_work() {
        std::thread::sleep(Duration::from_millis(1));
    }

    #[test]
    fn a_writer_rests_until_somebody_waits_for_it() {
        let pace = Pace::new(FOR_EVER, false);
        std::thread::scope(|scope| {
            let (worked, has_worked) = std::sync::mpsc::channel();
            let pace_of_writer = pace.clone();
            let writer = scope.spawn(move || {
                let piece = || {
                    some_work();
                    worked.send(()).unwrap();
                };
                pace_of_writer.work(piece);
                pace_of_writer.work(some_work);
            });
            has_worked.recv().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert!(!writer.is_finished());
            pace.hurry();
            writer.join().unwrap();
        });
    }

    #[test]
    fn who_is_waited_for_from_the_start_never_rests() {
        let pace = Pace::new(FOR_EVER, true);
        (0..3).for_each(|_| pace.work(some_work));
        (0..3).for_each(|_| Pace::full().work(some_work));
    }

    #[test]
    fn rests_leave_the_share_that_is_wanted() {
        assert_eq!(rest_for_share(0.25), 3.0);
        // More processors than it could use.
        assert_eq!(rest_for_share(1.0), 0.0);
        assert_eq!(rest_for_share(3.0), 0.0);
    }

    #[test]
    fn short_rests_are_put_off_and_not_forgotten() {
        let pace = Pace::new(1.0, false);
        pace.rest_from(SHORTEST_REST / 4);
        pace.rest_from(SHORTEST_REST / 4);
        assert_eq!(pace.state().owed, SHORTEST_REST / 2);
        pace.rest_from(SHORTEST_REST);
        assert_eq!(pace.state().owed, Duration::ZERO);
    }

    #[test]
    fn large_writes_are_made_in_pieces() {
        struct Pieces(Vec<usize>);
        impl Write for Pieces {
            fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
                self.0.push(buffer.len());
                Ok(buffer.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let pace = Pace::full();
        let mut out = Paced::new(Pieces(Vec::new()), &pace);
        out.write_all(&vec![0; 2 * PIECE + 5]).unwrap();
        assert_eq!(out.into_inner().0, [PIECE, PIECE, 5]);
    }
}
