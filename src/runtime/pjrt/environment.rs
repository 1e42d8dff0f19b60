//! The process's environment, which plugins, runtimes and compilers read through C, written while
//! other threads may read it.

use std::ffi::{CString, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, Once};

use super::flags_trial::{self, FLAGS};
use xtrain_report::progress::say;

unsafe extern "C" {
    /// The C library's array of `NAME=value`, ended by a null pointer.
    static mut environ: *mut *mut c_char;
}

/// Sets a variable for what this process loads and starts from now on, or removes it (`None`).
///
/// Other threads may read the environment meanwhile, through C too: they find it as it was or as it
/// is. C's `setenv` cannot be used then, because it frees the array that another thread's `getenv`
/// is reading; here a new array takes the place of the old one, and neither it nor a string in it is
/// freed, so each call that changes something keeps a few kilobytes. Of writers at the same time in
/// other code one may be lost.
///
/// # Panics
/// If the name is empty or has a `=` or a null byte, or the value has a null byte.
pub fn set_environment(name: &str, value: Option<&str>) {
    assert!(
        !name.is_empty() && !name.contains('='),
        "no name of a variable: `{name}`"
    );
    static WRITES: Mutex<()> = Mutex::new(());
    let _guard = WRITES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if std::env::var_os(name).as_deref() == value.map(OsStr::new) {
        return;
    }
    let others = std::env::vars_os().filter(|(other, _)| other != name);
    let set = value.map(|value| (OsString::from(name), OsString::from(value)));
    let entry = |(mut entry, value): (OsString, OsString)| {
        entry.push("=");
        entry.push(value);
        let entry = CString::new(entry.into_vec());
        entry.expect("a variable has no null byte").into_raw()
    };
    let entries: Vec<*mut c_char> = others
        .chain(set)
        .map(entry)
        .chain([ptr::null_mut()])
        .collect();
    let entries = entries.leak().as_mut_ptr();
    // SAFETY: the pointer is aligned and lives as long as the process. C reads it whole, and what it
    // then finds is complete, because the store releases what was written before and nothing of the
    // old array or the new one is ever freed or changed.
    unsafe { AtomicPtr::from_ptr(&raw mut environ) }.store(entries, Ordering::Release);
}

/// The flags of `XLA_FLAGS` that every version of XLA has, and the others. A word that is no flag
/// would be the name of a file with flags.
pub fn split_xla_flags(flags: &str) -> (Vec<&str>, Vec<&str>) {
    const KNOWN: [&str; 2] = ["--xla_dump_", "--xla_disable_hlo_passes="];
    flags
        .split_whitespace()
        .partition(|flag| KNOWN.iter().any(|known| flag.starts_with(known)))
}

/// Whether `XLA_FLAGS` holds what libraries of this process read, and nothing else.
static IS_SETTLED: AtomicBool = AtomicBool::new(false);

/// `XLA_FLAGS` as libraries of this process read it.
pub fn xla_flags() -> String {
    let flags = std::env::var(FLAGS).unwrap_or_default();
    let kept: Vec<&str> = if IS_SETTLED.load(Ordering::Acquire) {
        flags.split_whitespace().collect()
    } else {
        split_xla_flags(&flags).0
    };
    kept.join(" ")
}

/// The file of xtrain's own library.
pub(super) const OWN_LIBRARY: &str = "libxtrain_xla.so";

/// Whose XLA reads `XLA_FLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagReader {
    /// That of xtrain's own library, whose flags can be tried.
    Own,
    /// A plugin's, besides that one.
    Plugin,
}

/// Takes out of `XLA_FLAGS` what other programs left there, before a library with an XLA is opened: it
/// ends the process at a flag that its version does not have.
pub fn leave_out_foreign_flags(reader: FlagReader) {
    static ONCE: Once = Once::new();
    if flags_trial::is_trial() {
        return;
    }
    ONCE.call_once(|| {
        let is_on = |value: String| ["1", "true", "True"].contains(&value.as_str());
        for name in ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"] {
            if std::env::var(name).is_ok_and(is_on) {
                say(&format!(
                    "note: {name} is PyTorch/XLA's and changes nothing here; --bf16 computes in bfloat16"
                ));
            }
        }
    });
    static WRITES: Mutex<()> = Mutex::new(());
    let _guard = WRITES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let is_settled = IS_SETTLED.load(Ordering::Acquire);
    if is_settled && reader == FlagReader::Own {
        return;
    }
    let flags = std::env::var(FLAGS).unwrap_or_default();
    let (mut kept, others) = split_xla_flags(&flags);
    if reader == FlagReader::Own {
        kept.extend(flags_trial::accepted(&others));
    }
    let gone: Vec<&str> = others
        .into_iter()
        .filter(|flag| !kept.contains(flag))
        .collect();
    if !gone.is_empty() {
        say(&format!(
            "note: {FLAGS}: `{}` was left out: XLA ends the process at flags that its version does not have",
            gone.join(" ")
        ));
        let kept = kept.join(" ");
        let kept = Some(&kept).filter(|kept| !kept.is_empty());
        set_environment(FLAGS, kept.map(String::as_str));
    }
    IS_SETTLED.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::thread;

    /// As C code reads it.
    fn from_c(name: &CStr) -> Option<String> {
        // SAFETY: strings of this environment are not freed.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: what is not null ends with a null byte.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_str().unwrap().into())
    }

    #[test]
    fn c_rust_and_children_see_what_is_set() {
        let name = "XTRAIN_TEST_SET_ENVIRONMENT";
        let seen = || {
            let child = std::process::Command::new("printenv").arg(name).output();
            let child = String::from_utf8(child.unwrap().stdout).unwrap();
            let child = child.strip_suffix('\n').map(str::to_string);
            let rust = std::env::var(name).ok();
            (from_c(c"XTRAIN_TEST_SET_ENVIRONMENT"), rust, child)
        };
        let all = |value: Option<&str>| {
            let value = value.map(str::to_string);
            (value.clone(), value.clone(), value)
        };
        for value in [None, Some("one"), Some("a=b"), Some(""), None] {
            set_environment(name, value);
            assert_eq!(seen(), all(value));
        }
        assert!(from_c(c"PATH").is_some());
    }

    #[test]
    fn flags_of_other_programs_are_told_from_those_of_every_xla() {
        let flags = "--xla_dump_to=/tmp/x hello --xla_tpu_x=1\t--xla_disable_hlo_passes=a,b";
        let (kept, gone) = split_xla_flags(flags);
        assert_eq!(
            kept,
            ["--xla_dump_to=/tmp/x", "--xla_disable_hlo_passes=a,b"]
        );
        assert_eq!(gone, ["hello", "--xla_tpu_x=1"]);
        assert!(split_xla_flags("").1.is_empty());
    }

    /// Readers find each variable with one of its values, while others come and go.
    #[test]
    fn threads_may_read_through_c_meanwhile() {
        let ends = AtomicBool::new(false);
        set_environment("XTRAIN_TEST_READ", Some("first"));
        thread::scope(|scope| {
            let read = || {
                let mut reads = 0_usize;
                while !ends.load(Ordering::Relaxed) {
                    let value = from_c(c"XTRAIN_TEST_READ");
                    assert!(matches!(value.as_deref(), Some("first" | "second")));
                    reads += 1;
                }
                reads
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            for i in 0..500 {
                let value = if i % 2 == 0 { "second" } else { "first" };
                set_environment("XTRAIN_TEST_READ", Some(value));
                set_environment(&format!("XTRAIN_TEST_OTHER_{}", i % 7), Some(value));
            }
            ends.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }

    #[test]
    #[should_panic(expected = "no name of a variable")]
    fn a_name_with_an_equals_sign_is_refused() {
        set_environment("A=B", Some("c"));
    }
}
