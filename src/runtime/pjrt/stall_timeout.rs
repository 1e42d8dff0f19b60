//! The stall timeout: a device that never answers would hang a run for ever, without a message.
//!
//! A wait for an event is a call into the plugin that nobody can interrupt. So each wait is noted
//! (a lock and two writes), and one thread looks every few seconds whether one has lasted too long.
//! If so it says what and ends the process: no error could be returned, and the plugin's own
//! clean-up would wait for the same event.
//!
//! Time is counted in looks, not by the clock: a process that was stopped (Ctrl-Z, a debugger) has
//! not waited.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Seconds that a wait may last; 0 is for ever.
pub const VARIABLE: &str = "XTRAIN_EVENT_TIMEOUT";
/// No step of a model that anybody trains takes half an hour on one device.
const DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Looks within the limit.
const LOOKS: u32 = 200;

/// A wait that lasted too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    pub what: &'static str,
    pub plugin: PathBuf,
    pub limit: Duration,
}

impl std::fmt::Display for Overdue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.limit.as_secs_f64();
        let (plugin, what) = (self.plugin.display(), self.what);
        write!(
            f,
            "error: {plugin} has not finished {what} within {seconds} s: the device hangs, or another rank of the run does not take part\n\
             hint: saved checkpoints are intact, resume from the newest with --resume_from_checkpoint; {VARIABLE}=SECONDS waits \
             longer, 0 for ever\n"
        )
    }
}

/// Whose waits are watched.
struct Watch {
    limit: Duration,
    /// Looks so far.
    now: AtomicU64,
    waits: Mutex<Vec<Option<Wait>>>,
}

struct Wait {
    since: u64,
    what: &'static str,
    plugin: Arc<PathBuf>,
}

impl Watch {
    fn new(limit: Duration) -> Watch {
        Watch {
            limit,
            now: AtomicU64::new(0),
            waits: Mutex::default(),
        }
    }

    fn waits(&self) -> MutexGuard<'_, Vec<Option<Wait>>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a wait until the result is dropped.
    fn begin(&self, what: &'static str, plugin: &Arc<PathBuf>) -> Waiting<'_> {
        let wait = Wait {
            since: self.now.load(Ordering::Relaxed),
            what,
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

    /// One look: the wait that has lasted through all of them, if there is one.
    fn look(&self) -> Option<Overdue> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let waits = self.waits();
        // One look more, because the first may come right after the wait began.
        let overdue = waits
            .iter()
            .flatten()
            .find(|wait| now - wait.since > u64::from(LOOKS))?;
        Some(Overdue {
            what: overdue.what,
            plugin: overdue.plugin.as_ref().clone(),
            limit: self.limit,
        })
    }
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
    let limit = limit(std::env::var(VARIABLE).ok().as_deref())?;
    let watch = Arc::new(Watch::new(limit));
    let watched = watch.clone();
    let looks = move || {
        loop {
            thread::sleep(watched.limit / LOOKS);
            if let Some(overdue) = watched.look() {
                eprint!("{overdue}");
                // SAFETY: ends the process at once; handlers at exit would wait for the plugin.
                unsafe { libc::_exit(1) };
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

fn limit(text: Option<&str>) -> Option<Duration> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Some(DEFAULT);
    };
    match text
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    {
        Some(limit) => Some(limit).filter(|limit| !limit.is_zero()),
        None => {
            eprintln!(
                "warning: {VARIABLE}={text} is not a number of seconds; {} s it is",
                DEFAULT.as_secs()
            );
            Some(DEFAULT)
        }
    }
}

/// Makes a call that blocks until `what` is done, at most for as long as the process has patience.
pub(super) fn wait<T>(what: &'static str, plugin: &Arc<PathBuf>, call: impl FnOnce() -> T) -> T {
    let _waiting = WATCH.as_ref().map(|watch| watch.begin(what, plugin));
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wait_that_lasts_is_overdue() {
        let watch = Watch::new(Duration::from_secs(5));
        let plugin = Arc::new(PathBuf::from("/plugin.so"));
        let long = watch.begin("a result", &plugin);
        for _ in 0..LOOKS {
            // Any number of waits that end in time.
            drop(watch.begin("an upload", &plugin));
            assert_eq!(watch.look(), None);
        }
        let overdue = watch.look().unwrap();
        assert_eq!(
            (overdue.what, overdue.plugin.as_path()),
            ("a result", plugin.as_path())
        );
        let text = overdue.to_string();
        assert!(
            text.contains("/plugin.so has not finished a result within 5 s")
                && text.contains(VARIABLE),
            "{text}"
        );
        drop(long);
        assert_eq!(watch.look(), None);
        assert_eq!(watch.waits().len(), 2, "places are used again");
    }

    #[test]
    fn the_limit_is_read_leniently() {
        assert_eq!(limit(None), Some(DEFAULT));
        assert_eq!(limit(Some("2.5")), Some(Duration::from_millis(2500)));
        assert_eq!(limit(Some("0")), None);
        for text in ["", "soon", "-1", "nan"] {
            assert_eq!(limit(Some(text)), Some(DEFAULT), "{text}");
        }
    }
}
