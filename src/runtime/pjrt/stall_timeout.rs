//! The stall timeout: a device that never answers, or a compiler that never ends, would hang a run
//! for ever, without a message.
//!
//! A wait for an event and a compilation are calls into the plugin that nobody can interrupt. So each
//! is noted (a lock and two writes), and one thread looks every few seconds whether one has lasted
//! too long. If so it says what and ends the process: no error could be returned, and the plugin's
//! own clean-up would wait for the same event.
//!
//! Time is counted in looks, not by the clock: a process that was stopped (Ctrl-Z, a debugger) has
//! not waited. Nor does time count in which another rank of the run compiles or rank 0 saves: then
//! the devices wait for that rank, and none hangs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use xtrain_distributed::ProcessGroup;
use xtrain_report::ending::end_now;
use xtrain_report::errln;

/// Seconds that a wait for a device may last; 0 is for ever.
pub const VARIABLE: &str = "XTRAIN_EVENT_TIMEOUT";
/// No step of a model that anybody trains takes half an hour on one device.
const DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Seconds that compiling a graph may take; 0 is for ever.
pub const COMPILE_VARIABLE: &str = "XTRAIN_COMPILE_TIMEOUT";
/// A vendor's compiler may take hours for a large graph.
const COMPILE_DEFAULT: Duration = Duration::from_secs(6 * 3600);
/// Looks within the shorter limit.
const LOOKS: u32 = 200;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The device, for this.
    Device(&'static str),
    /// A client of the plugin.
    Client,
    /// The plugin's compiler.
    Compile,
}

/// A wait that lasted too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    pub call: Watched,
    pub plugin: PathBuf,
    pub limit: Duration,
}

impl std::fmt::Display for Overdue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.limit.as_secs_f64();
        let plugin = self.plugin.display();
        match self.call {
            Watched::Device(what) => write!(
                f,
                "error: {plugin} has not finished {what} within {seconds} s: the device hangs, or another rank of the run does not take part\n\
                 hint: saved checkpoints are intact, resume from the newest with --resume_from_checkpoint; {VARIABLE}=SECONDS waits \
                 longer, 0 for ever\n"
            ),
            Watched::Client => write!(
                f,
                "error: {plugin} has not opened its devices within {seconds} s: a device hangs, or another rank of the run does not take part\n\
                 hint: another process may hold the devices; {VARIABLE}=SECONDS waits longer, 0 for ever\n"
            ),
            Watched::Compile => write!(
                f,
                "error: {plugin} has not compiled a graph within {seconds} s: its compiler hangs, or the graph is too large for it\n\
                 hint: graphs that were compiled are kept, so the same command begins with this one; {COMPILE_VARIABLE}=SECONDS waits \
                 longer, 0 for ever\n"
            ),
        }
    }
}

/// Whose waits are watched.
struct Watch {
    /// For the device and its client, and for the compiler; `None` is for ever.
    device: Option<Duration>,
    compile: Option<Duration>,
    /// Between two looks.
    pause: Duration,
    /// Looks so far.
    now: AtomicU64,
    waits: Mutex<Vec<Option<Wait>>>,
}

struct Wait {
    began: u64,
    /// Looks that do not count.
    excused: u64,
    call: Watched,
    plugin: Arc<PathBuf>,
}

impl Watch {
    /// `None` where nothing is limited.
    fn new(device: Option<Duration>, compile: Option<Duration>) -> Option<Watch> {
        let shorter = [device, compile].into_iter().flatten().min()?;
        Some(Watch {
            device,
            compile,
            pause: shorter / LOOKS,
            now: AtomicU64::new(0),
            waits: Mutex::default(),
        })
    }

    fn waits(&self) -> MutexGuard<'_, Vec<Option<Wait>>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a wait until the result is dropped.
    fn begin(&self, call: Watched, plugin: &Arc<PathBuf>) -> Waiting<'_> {
        let wait = Wait {
            began: self.now.load(Ordering::Relaxed),
            excused: 0,
            call,
            plugin: plugin.clone(),
        };
        let mut waits = self.waits();
        let place = waits
            .iter()
            .position(Option::is_none)
            .unwrap_or(waits.len());
        match waits.get_mut(place) {
            Some(free) => *free = Some(wait),
            None => waits.push(Some(wait)),
        }
        Waiting { watch: self, place }
    }

    fn limit(&self, call: Watched) -> Option<Duration> {
        match call {
            Watched::Device(_) => self.device,
            Watched::Client => self.device.map(|limit| limit + joining()),
            Watched::Compile => self.compile,
        }
    }

    /// One look: the wait that has lasted too long, if there is one. With `is_delayed` another rank
    /// keeps the devices waiting; even that excuses no more than compiling may take.
    fn look(&self, is_delayed: bool) -> Option<Overdue> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let most = self.compile.map_or(u64::MAX, |limit| self.looks(limit));
        let mut waits = self.waits();
        waits.iter_mut().flatten().find_map(|wait| {
            let limit = self.limit(wait.call)?;
            if is_delayed && matches!(wait.call, Watched::Device(_)) && wait.excused < most {
                wait.excused += 1;
            }
            // One look more, because the first may come right after the wait began.
            let is_overdue = now - wait.began - wait.excused > self.looks(limit);
            is_overdue.then(|| Overdue {
                call: wait.call,
                plugin: wait.plugin.as_ref().clone(),
                limit,
            })
        })
    }

    fn looks(&self, limit: Duration) -> u64 {
        limit.div_duration_f64(self.pause).round() as u64
    }
}

/// How long the other processes of a run may take to come, which a new client waits for too.
fn joining() -> Duration {
    let group = ProcessGroup::joined();
    group.map_or(Duration::ZERO, |group| group.rank_info().timeouts.join)
}

struct Waiting<'w> {
    watch: &'w Watch,
    place: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.watch.waits()[self.place] = None;
    }
}

/// The process's watch; `None` when it waits for ever.
static WATCH: LazyLock<Option<Arc<Watch>>> = LazyLock::new(|| {
    let of = |name: &str, default| limit(name, std::env::var(name).ok().as_deref(), default);
    let (device, compile) = (of(VARIABLE, DEFAULT), of(COMPILE_VARIABLE, COMPILE_DEFAULT));
    let watch = Arc::new(Watch::new(device, compile)?);
    let watched = watch.clone();
    let looks = move || {
        loop {
            thread::sleep(watched.pause);
            if let Some(overdue) = watched.look(ProcessGroup::devices_are_delayed()) {
                end_now(1, &overdue.to_string());
            }
        }
    };
    // Without the thread there is no limit, as with 0.
    thread::Builder::new()
        .name("stall-timeout".into())
        .spawn(looks)
        .ok()?;
    Some(watch)
});

fn limit(name: &str, text: Option<&str>, default: Duration) -> Option<Duration> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Some(default);
    };
    match text
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    {
        Some(limit) => Some(limit).filter(|limit| !limit.is_zero()),
        None => {
            errln!(
                "warning: {name}={text} is not a number of seconds; {} s it is",
                default.as_secs()
            );
            Some(default)
        }
    }
}

/// Makes a call that blocks until it is done, at most for as long as the process has patience.
pub(super) fn wait<T>(call: Watched, plugin: &Arc<PathBuf>, work: impl FnOnce() -> T) -> T {
    let _waiting = WATCH.as_ref().map(|watch| watch.begin(call, plugin));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: Watched = Watched::Device("a result");

    fn watch() -> (Watch, Arc<PathBuf>) {
        let seconds = |n| Some(Duration::from_secs(n));
        let plugin = Arc::new(PathBuf::from("/plugin.so"));
        (Watch::new(seconds(5), seconds(20)).unwrap(), plugin)
    }

    #[test]
    fn only_a_wait_that_lasts_is_overdue() {
        let (watch, plugin) = watch();
        let long = watch.begin(RESULT, &plugin);
        for _ in 0..LOOKS {
            // Any number of waits that end in time.
            drop(watch.begin(Watched::Device("an upload"), &plugin));
            assert_eq!(watch.look(false), None);
        }
        let overdue = watch.look(false).unwrap();
        assert_eq!(
            (overdue.call, overdue.plugin.as_path()),
            (RESULT, plugin.as_path())
        );
        let text = overdue.to_string();
        assert!(
            text.contains("/plugin.so has not finished a result within 5 s")
                && text.contains(VARIABLE),
            "{text}"
        );
        drop(long);
        assert_eq!(watch.look(false), None);
        assert_eq!(watch.waits().len(), 2, "places are used again");
    }

    #[test]
    fn compiling_has_a_limit_and_a_message_of_its_own() {
        let (watch, plugin) = watch();
        let compiling = watch.begin(Watched::Compile, &plugin);
        for _ in 0..4 * LOOKS {
            assert_eq!(watch.look(true), None);
        }
        let text = watch.look(false).unwrap().to_string();
        assert!(
            text.contains("has not compiled a graph within 20 s")
                && text.contains(COMPILE_VARIABLE),
            "{text}"
        );
        drop(compiling);
        let _opening = watch.begin(Watched::Client, &plugin);
        for _ in 0..LOOKS {
            assert_eq!(watch.look(false), None);
        }
        let text = watch.look(false).unwrap().to_string();
        assert!(
            text.contains("has not opened its devices within 5 s"),
            "{text}"
        );
    }

    #[test]
    fn a_wait_for_a_rank_that_saves_is_excused_but_not_for_ever() {
        let (watch, plugin) = watch();
        let first = watch.begin(RESULT, &plugin);
        for _ in 0..3 * LOOKS {
            assert_eq!(watch.look(true), None);
        }
        // After that it has its own time.
        for _ in 0..LOOKS {
            assert_eq!(watch.look(false), None);
        }
        assert!(watch.look(false).is_some());
        drop(first);
        let _second = watch.begin(RESULT, &plugin);
        for _ in 0..5 * LOOKS {
            assert_eq!(watch.look(true), None);
        }
        assert!(watch.look(true).is_some());
    }

    #[test]
    fn the_limit_is_read_leniently() {
        let limit = |text| limit(VARIABLE, text, DEFAULT);
        assert_eq!(limit(None), Some(DEFAULT));
        assert_eq!(limit(Some("2.5")), Some(Duration::from_millis(2500)));
        assert_eq!(limit(Some("0")), None);
        for text in ["", "soon", "-1", "nan"] {
            assert_eq!(limit(Some(text)), Some(DEFAULT), "{text}");
        }
        assert!(Watch::new(None, None).is_none());
    }
}
