//! SIGINT and SIGTERM: the first asks for a clean end after the current step, a second one quits at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Remembers the first signal. Cheap to clone.
#[derive(Clone)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Takes over both signals for the rest of the process.
    pub fn install() -> std::io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let signal = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            // In this order: the second signal finds `again` set and ends the process before it could be set anew.
            signal_hook::flag::register_conditional_shutdown(number, 128 + number, again.clone())?;
            signal_hook::flag::register(number, again.clone())?;
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)?;
        }
        // A step, an evaluation or a compilation may take minutes; without a word the user would think that nothing happened.
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                eprintln!("stopping after this step; a second signal quits at once, without saving");
            }
        })?;
        Ok(Interrupt { signal })
    }

    /// The signal that asked for an end, if any.
    pub fn received(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }
}
