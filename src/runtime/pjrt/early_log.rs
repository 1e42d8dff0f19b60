//! What a plugin's initializers write on standard error while its library is being opened. absl,
//! which the plugins carry, has no log level yet then: without NVIDIA's driver `--device cuda`
//! would begin each command with a warning about absl itself and a message of a level that
//! `TF_CPP_MIN_LOG_LEVEL` leaves out.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{dup2, fcntl_dupfd_cloexec};
use std::fs::File;
use std::io::{Read, Seek, Write, stderr};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// Does something that may write on standard error (file descriptor 2), and passes on what it wrote
/// but for absl's messages of level INFO. Where the descriptor cannot be exchanged, everything is
/// written as it comes.
pub(super) fn without_info<T>(work: impl FnOnce() -> T) -> T {
    let Ok((held, mut text)) = exchange() else {
        return work();
    };
    let result = work();
    // Nothing can be done about a standard error that takes nothing.
    let _ = put(&held);
    let mut bytes = Vec::new();
    if text.rewind().is_ok() && text.read_to_end(&mut bytes).is_ok() {
        let _ = stderr().write_all(&kept(&bytes));
    }
    result
}

/// Puts a file in memory in the place of standard error: that of before, and the file.
fn exchange() -> rustix::io::Result<(OwnedFd, File)> {
    let held = fcntl_dupfd_cloexec(stderr(), 3)?;
    let memory = memfd_create("standard error", MemfdFlags::CLOEXEC)?;
    put(&memory)?;
    Ok((held, memory.into()))
}

/// Makes a file the process's standard error.
fn put(file: &impl AsFd) -> rustix::io::Result<()> {
    // SAFETY: the descriptor is only exchanged, never closed by this handle. It was open in
    // `exchange`, which duplicated it.
    let mut descriptor = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(2) });
    dup2(file, &mut descriptor)
}

/// The lines that are neither messages of level INFO (`I0000 00:00:...`: before absl is initialized
/// it has no date) nor the warning that absl puts before the first of them.
fn kept(text: &[u8]) -> Vec<u8> {
    let is_kept = |line: &&[u8]| {
        !line.starts_with(b"I0000 00:00:")
            && !line.starts_with(b"WARNING: All log messages before absl::InitializeLog()")
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.filter(is_kept).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARNING: &str =
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n";
    const INFO: &str = "I0000 00:00:1795860684.035860    3665 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.\n";
    const ERROR: &str = "E0000 00:00:1795860684.035860    3665 platform.cc:7] failed\n";

    #[test]
    fn errors_and_foreign_lines_are_kept() {
        let text = [
            WARNING,
            INFO,
            ERROR,
            "a line of another library\n",
            "half a",
        ]
        .concat();
        let rest = [ERROR, "a line of another library\n", "half a"].concat();
        assert_eq!(kept(text.as_bytes()), rest.as_bytes());
    }

    /// Standard error of this process is a file for a moment, to see what reaches it.
    #[test]
    fn standard_error_is_as_before() {
        let (held, mut outer) = exchange().unwrap();
        let value = without_info(|| {
            rustix::io::write(stderr(), [WARNING, INFO, ERROR].concat().as_bytes())
        });
        rustix::io::write(stderr(), b"after\n").unwrap();
        put(&held).unwrap();
        let mut seen = String::new();
        outer.rewind().unwrap();
        outer.read_to_string(&mut seen).unwrap();
        assert_eq!(value, Ok([WARNING, INFO, ERROR].concat().len()));
        assert!(!seen.contains(WARNING) && !seen.contains(INFO), "{seen}");
        assert!(seen.contains(ERROR) && seen.contains("after\n"), "{seen}");
    }
}
