//! SIGINT, SIGTERM, SIGUSR1 and SIGHUP: before the first step they end the run, which has nothing to save. After it
//! the first one asks for a clean end after the current step, and a second one quits at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use xtrain_checkpoint::lock::abandon;
use xtrain_distributed::{self as distributed, ProcessGroup};
use xtrain_report::ending::{end_now, ending_signals};
use xtrain_report::errln;

/// The exit code after a second signal.
pub const QUIT: u8 = 3;

/// Remembers the first signal. Cheap to clone.
#[derive(Clone)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// There will be something to save.
    has_begun: Arc<AtomicBool>,
    /// The signal that all of several processes stop for.
    agreed: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Takes over the signals for the rest of the process.
    ///
    /// # Errors
    /// If they cannot be taken over.
    pub fn install() -> std::io::Result<Self> {
        let interrupt = Interrupt {
            signal: Arc::default(),
            has_begun: Arc::default(),
            agreed: Arc::default(),
        };
        let (signal, has_begun) = (interrupt.signal.clone(), interrupt.has_begun.clone());
        let mut signals = signal_hook::iterator::Signals::new(ending_signals())?;
        let answer = move || {
            let mut received = signals.forever();
            let Some(first) = received.next() else { return };
            signal.store(first as usize, Ordering::Relaxed);
            if !has_begun.load(Ordering::Relaxed) {
                quit(
                    128 + first,
                    "stopped before training: there is nothing to save\n",
                );
            }
            // A step, an evaluation or a compilation may take minutes; without a word the user would
            // think that nothing happened.
            errln!("stopping after this step; a second signal quits at once, without saving");
            if received.next().is_some() {
                quit(QUIT.into(), "");
            }
        };
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(answer)?;
        Ok(interrupt)
    }

    /// From now on a signal waits for the end of a step.
    pub fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// The signal that asked for an end, if any; of several processes, once all of them have
    /// stopped for it.
    pub fn received(&self) -> Option<i32> {
        let told = match ProcessGroup::joined() {
            Some(_) => &self.agreed,
            None => &self.signal,
        };
        match told.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }

    /// The signal that ends the run with this step, if one does. Several processes agree on a step
    /// that none of them has passed, since one that stopped earlier would leave the others waiting
    /// for it. Ask after each step; as long as no signal has come to any of them this asks nobody.
    ///
    /// # Errors
    /// If the other processes cannot be asked.
    pub fn ends_with(&self, step: u64) -> distributed::Result<Option<i32>> {
        let Some(group) = ProcessGroup::joined() else {
            return Ok(self.received());
        };
        let signal = match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        };
        if signal.is_some() || group.stop_is_asked() {
            let last = group.agree_on_end(step, signal)?;
            if let Some(last) = last.filter(|last| step >= last.step) {
                self.agreed.store(last.signal as usize, Ordering::Relaxed);
            }
        }
        Ok(self.received())
    }
}

/// Ends the process without waiting for what its other threads are at.
fn quit(code: i32, last_words: &str) -> ! {
    abandon();
    end_now(code, last_words)
}
