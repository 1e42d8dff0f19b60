//! SIGINT and SIGTERM: the first asks for a clean end after the current step, a second one quits at
//! once.

use crate::distributed::{self, ProcessGroup};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Processes of a run are at most this many steps apart: each step ends with an exchange between all
/// of them, and the host of one may have handed over the next one or two.
const MOST_APART: u64 = 3;

/// Where processes agree on their last step.
const STOP_KEY: &str = "stop";

/// Remembers the first signal. Cheap to clone.
#[derive(Clone)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// Of several processes: who they are, and the signal that all of them stop for.
    group: Option<Arc<ProcessGroup>>,
    agreed: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Takes over both signals for the rest of the process.
    pub fn install() -> std::io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let signal = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            // In this order: the second signal finds `again` set and ends the process before it
            // could be set anew.
            signal_hook::flag::register_conditional_shutdown(number, 128 + number, again.clone())?;
            signal_hook::flag::register(number, again.clone())?;
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)?;
        }
        // A step, an evaluation or a compilation may take minutes; without a word the user would
        // think that nothing happened.
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    eprintln!(
                        "stopping after this step; a second signal quits at once, without saving"
                    );
                }
            })?;
        Ok(Interrupt {
            signal,
            group: ProcessGroup::joined(),
            agreed: Arc::new(AtomicUsize::new(0)),
        })
    }

    /// The signal that asked for an end, if any; of several processes, once all of them have
    /// stopped for it.
    pub fn received(&self) -> Option<i32> {
        let told = if self.group.is_some() {
            &self.agreed
        } else {
            &self.signal
        };
        match told.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }

    /// The signal that ends the run with this step, if one does. Several processes agree on a step
    /// that none of them has passed, since one that stopped earlier would leave the others waiting
    /// for it. Ask after each step.
    pub fn ends_with(&self, step: u64) -> distributed::Result<Option<i32>> {
        let Some(group) = &self.group else {
            return Ok(self.received());
        };
        let told = match self.signal.load(Ordering::Relaxed) {
            0 => group.try_get(STOP_KEY)?,
            signal => Some(group.put_first(
                STOP_KEY,
                format!("{} {signal}", step + MOST_APART).as_bytes(),
            )?),
        };
        let told = told.map(|told| String::from_utf8_lossy(&told).into_owned());
        let Some((last, signal)) = told.as_deref().and_then(|told| told.split_once(' ')) else {
            return Ok(None);
        };
        if last.parse::<u64>().is_ok_and(|last| step >= last) {
            self.agreed
                .store(signal.parse().unwrap_or(0), Ordering::Relaxed);
        }
        Ok(self.received())
    }
}
