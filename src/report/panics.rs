//! Panics as users see them: one that nobody handles is reported as a bug, one inside a guarded
//! call becomes that call's error.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

thread_local! {
    /// Guarded calls that this thread is inside of.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// Calls `work` and returns a panic's message as the error. The hook of [`install_hook`] prints
/// nothing for it: the caller reports the error.
///
/// # Errors
/// The message of the panic.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    GUARDS.set(GUARDS.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDS.set(GUARDS.get() - 1);
    result.map_err(|panic| message(&*panic).to_string())
}

/// The message that a panic was raised with.
fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Hands every panic outside of [`guarded`] to `report`, as one line with its place in the source.
/// With `RUST_BACKTRACE` set Rust's own hook stays.
pub fn install_hook(report: impl Fn(&str) + Send + Sync + 'static) {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        return;
    }
    panic::set_hook(Box::new(hook(report)));
}

fn hook(report: impl Fn(&str)) -> impl Fn(&PanicHookInfo) {
    move |info| {
        if GUARDS.get() == 0 {
            report(&line(info));
        }
    }
}

fn line(info: &PanicHookInfo) -> String {
    let place = info
        .location()
        .map(|at| format!(" at {}:{}", at.file(), at.line()))
        .unwrap_or_default();
    format!("internal error{place}: {}", message(info.payload()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_panic_in_a_guarded_call_is_an_error_and_no_bug_report() {
        assert_eq!(guarded(|| 7), Ok(7));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let reported = seen.clone();
        let before = panic::take_hook();
        // Tests run side by side: only what this one raises counts.
        panic::set_hook(Box::new(hook(move |line| {
            if line.contains("of this test") {
                reported.lock().unwrap().push(line.to_string());
            }
        })));
        let caught = guarded(|| -> usize {
            let inner = guarded(|| panic!("the inner one of this test"));
            assert_eq!(inner, Err::<(), _>("the inner one of this test".into()));
            panic!("the outer one of this test, {}", 2)
        });
        let free = std::thread::spawn(|| panic!("a free one of this test")).join();
        panic::set_hook(before);
        assert_eq!(caught, Err("the outer one of this test, 2".into()));
        assert!(free.is_err());
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert!(seen[0].contains("a free one of this test"), "{seen:?}");
    }
}
