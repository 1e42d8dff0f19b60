//! Where the wall time of a process goes. The thread that began the account is in exactly one
//! [`Part`] at every moment, so the parts add up to the time since the process started. Other
//! threads have no account, and their calls change nothing; one may read the first one's through a
//! [`Reader`].

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Declares the parts with their names in files and the words that reports use.
macro_rules! parts {
    ($( $(#[$doc:meta])* $name:ident = $key:literal, $title:literal; )+) => {
        /// What the thread that runs the command is doing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Part { $( $(#[$doc])* $name, )+ }

        impl Part {
            /// In the order of reports.
            pub const ALL: &[Part] = &[$( Part::$name, )+];

            /// Its name in `telemetry.jsonl` and in JSON reports.
            pub fn key(self) -> &'static str {
                match self { $( Part::$name => $key, )+ }
            }

            /// Its name in reports for people.
            pub fn title(self) -> &'static str {
                match self { $( Part::$name => $title, )+ }
            }
        }
    };
}

parts! {
    /// From the start of the process: devices, model, weights, the matmul peak.
    Start = "start", "start";
    /// Reading and tokenizing data, or opening what was tokenized before.
    Tokenizing = "tokenizing", "tokenizing";
    /// Waiting for graphs that the compiler makes.
    CompilingCold = "compiling_cold", "compiling, cold";
    /// Waiting for graphs from the cache.
    CompilingCached = "compiling_cached", "compiling, cached";
    /// Training steps: waiting for the next batch.
    InputWait = "steps_input_wait", "steps: input wait";
    /// Training steps: recording, looking graphs up, everything else on the host.
    Host = "steps_host", "steps: host";
    /// Training steps: handing graphs to the device and waiting for it, the collectives inside of
    /// graphs included.
    Device = "steps_device", "steps: device";
    /// What processes exchange outside of graphs: barriers, comparing replicas.
    Exchange = "steps_exchange", "steps: exchange";
    Evaluation = "evaluation", "evaluation";
    Saving = "saving", "saving";
    /// After training: closing the devices, the report, the last push.
    Rest = "rest", "rest";
}

const PARTS: usize = Part::ALL.len();

/// The time of one process until a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Since the process started.
    pub wall: Duration,
    /// In the order of [`Part::ALL`]; their sum is `wall`.
    pub parts: Vec<(Part, Duration)>,
}

struct Frame {
    part: Part,
    /// Without what was entered from it.
    spent: Duration,
}

struct Clock {
    began: Instant,
    /// Until then everything is in a frame or in `totals`.
    last: Instant,
    totals: [Duration; PARTS],
    /// The innermost last; the first one is never left.
    frames: Vec<Frame>,
}

impl Clock {
    /// Adds the time since the last change to the innermost frame.
    fn lap(&mut self) -> &mut Frame {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.last);
        self.last = now;
        let frame = self.frames.last_mut().expect("the first frame stays");
        frame.spent += passed;
        frame
    }

    fn account(&mut self) -> Account {
        self.lap();
        let mut totals = self.totals;
        for frame in &self.frames {
            totals[frame.part as usize] += frame.spent;
        }
        Account {
            wall: self.last.saturating_duration_since(self.began),
            parts: Part::ALL.iter().copied().zip(totals).collect(),
        }
    }
}

/// Reads the account of the thread that made it, from any thread.
#[derive(Clone)]
pub struct Reader(Arc<Mutex<Clock>>);

impl Reader {
    fn with<T>(&self, use_it: impl FnOnce(&mut Clock) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The account until now.
    pub fn account(&self) -> Account {
        self.with(Clock::account)
    }
}

thread_local! {
    static CLOCK: RefCell<Option<Reader>> = const { RefCell::new(None) };
}

fn with_clock<T>(use_it: impl FnOnce(&mut Clock) -> T) -> Option<T> {
    CLOCK.with(|clock| clock.borrow().as_ref().map(|clock| clock.with(use_it)))
}

/// What reads this thread's account, if it has one.
pub fn reader() -> Option<Reader> {
    CLOCK.with(|clock| clock.borrow().clone())
}

/// Begins this thread's account at the start of the process, in [`Part::Start`], unless it has
/// one.
pub fn begin() {
    CLOCK.with(|clock| {
        clock.borrow_mut().get_or_insert_with(|| {
            let now = Instant::now();
            let began = process_age().and_then(|age| now.checked_sub(age));
            let began = began.unwrap_or(now);
            Reader(Arc::new(Mutex::new(Clock {
                began,
                last: began,
                totals: [Duration::ZERO; PARTS],
                frames: vec![Frame {
                    part: Part::Start,
                    spent: Duration::ZERO,
                }],
            })))
        });
    });
}

/// From now on, what is in no other part is in this one.
pub fn proceed_to(part: Part) {
    with_clock(|clock| {
        clock.lap();
        let first = &mut clock.frames[0];
        clock.totals[first.part as usize] += std::mem::take(&mut first.spent);
        first.part = part;
    });
}

/// The thread is in `part` until the guard is dropped; then in what it was in before.
#[must_use = "the part ends when the guard is dropped"]
pub fn enter(part: Part) -> Entered {
    let depth = with_clock(|clock| {
        clock.lap();
        let spent = Duration::ZERO;
        clock.frames.push(Frame { part, spent });
        clock.frames.len()
    });
    Entered { depth }
}

/// A part that the thread is in.
pub struct Entered {
    /// `None` in a thread without an account.
    depth: Option<usize>,
}

impl Entered {
    /// It turned out to be another part, from its beginning.
    pub fn was(&self, part: Part) {
        if let Some(depth) = self.depth {
            with_clock(|clock| clock.frames[depth - 1].part = part);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let Some(depth) = self.depth else { return };
        with_clock(|clock| {
            clock.lap();
            // Guards that outlived this one end with it.
            for frame in clock.frames.drain(depth - 1..) {
                clock.totals[frame.part as usize] += frame.spent;
            }
        });
    }
}

/// Moves time that was just spent in the part that the thread is in to another.
pub fn transfer(part: Part, time: Duration) {
    with_clock(|clock| {
        let frame = clock.lap();
        let moved = time.min(frame.spent);
        frame.spent -= moved;
        clock.totals[part as usize] += moved;
    });
}

/// How long this process has run, to a hundredth of a second; `None` where the system does not
/// say.
pub fn process_age() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may hold blanks; behind its bracket the 20th field is the start.
    let ticks: f64 = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()?;
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for the write.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    // SAFETY: asks for a number.
    let rate = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if failed != 0 || rate <= 0 {
        return None;
    }
    let uptime = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    Duration::try_from_secs_f64(uptime - ticks / rate as f64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    fn of(account: &Account, part: Part) -> Duration {
        account
            .parts
            .iter()
            .find(|(own, _)| *own == part)
            .unwrap()
            .1
    }

    #[test]
    fn parts_add_up_whatever_is_entered() {
        std::thread::spawn(|| {
            begin();
            let pause = Duration::from_millis(20);
            {
                let outer = enter(Part::Evaluation);
                sleep(pause);
                {
                    let inner = enter(Part::CompilingCold);
                    sleep(pause);
                    inner.was(Part::CompilingCached);
                }
                sleep(pause);
                transfer(Part::Device, pause);
                drop(outer);
            }
            proceed_to(Part::Rest);
            sleep(pause);
            // Another thread sees the same.
            let reader = reader().unwrap();
            let read = std::thread::spawn(move || reader.account());
            let account = read.join().unwrap();
            let sum: Duration = account.parts.iter().map(|(_, time)| *time).sum();
            assert_eq!(sum, account.wall);
            for part in [
                Part::Evaluation,
                Part::CompilingCached,
                Part::Device,
                Part::Rest,
            ] {
                assert!(of(&account, part) >= pause, "{part:?}: {account:?}");
            }
            assert_eq!(of(&account, Part::CompilingCold), Duration::ZERO);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_without_an_account_has_nothing_to_say() {
        std::thread::spawn(|| {
            drop(enter(Part::Saving));
            transfer(Part::Device, Duration::from_secs(1));
            assert!(reader().is_none());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_account_costs_less_than_a_microsecond_an_entry() {
        std::thread::spawn(|| {
            begin();
            let entries = 100_000;
            let start = Instant::now();
            for _ in 0..entries {
                drop(enter(Part::InputWait));
            }
            // A step has about ten; a microsecond of each is 0.02 % of 50 ms.
            assert!(start.elapsed() < entries * Duration::from_micros(2));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_process_has_an_age() {
        let age = process_age().unwrap();
        assert!(age < Duration::from_secs(24 * 3600), "{age:?}");
    }
}
