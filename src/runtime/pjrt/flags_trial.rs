//! Which flags of `XLA_FLAGS` the XLA of xtrain's library takes, found by trying: it ends a process at a
//! flag, or a value, that its version does not have. So another process of this program reads them
//! first.

use std::io;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const FLAGS: &str = "XLA_FLAGS";

/// The argument that makes a process of this program try flags.
pub(super) const ARGUMENT: &str = "\u{1}try-xla-flags";

/// Flags that are tried one by one, where XLA does not say which of them it ends at.
const MOST_ALONE: usize = 16;

static IS_AVAILABLE: AtomicBool = AtomicBool::new(false);
static IS_TRIAL: AtomicBool = AtomicBool::new(false);

/// Notes whether this process tries flags; if not, it is of a program that can.
pub(super) fn is_of_a_program(is_trial: bool) {
    let flag = if is_trial { &IS_TRIAL } else { &IS_AVAILABLE };
    flag.store(true, Ordering::Relaxed);
}

/// Whether this process tries flags.
pub(super) fn is_trial() -> bool {
    IS_TRIAL.load(Ordering::Relaxed)
}

/// Those of these flags that XLA takes; none where this program cannot try them.
pub(super) fn accepted<'f>(flags: &[&'f str]) -> Vec<&'f str> {
    // A word that is no flag would be the name of a file with flags.
    let mut left: Vec<&str> = flags.to_vec();
    left.retain(|flag| flag.starts_with("--xla_"));
    if left.is_empty() || !IS_AVAILABLE.load(Ordering::Relaxed) {
        return Vec::new();
    }
    choose(left, &attempt).unwrap_or_default()
}

/// What remains of flags when those are gone at which `attempt` fails, with the words that it then says.
fn choose<'f>(
    mut left: Vec<&'f str>,
    attempt: &dyn Fn(&[&str]) -> io::Result<Option<String>>,
) -> io::Result<Vec<&'f str>> {
    while !left.is_empty() {
        let Some(words) = attempt(&left)? else {
            return Ok(left);
        };
        // Of a value that is not one, XLA lists all flags with their defaults instead.
        let lines = words.lines().filter(|line| line.contains("Unknown flag"));
        let unknown: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let before = left.len();
        left.retain(|flag| !unknown.contains(flag));
        if left.len() == before {
            break;
        }
    }
    if left.len() > MOST_ALONE {
        return Ok(Vec::new());
    }
    let mut alone = Vec::new();
    for flag in left {
        if attempt(&[flag])?.is_none() {
            alone.push(flag);
        }
    }
    let works = alone.is_empty() || attempt(&alone)?.is_none();
    Ok(if works { alone } else { Vec::new() })
}

/// Lets another process read flags; what it said if it failed.
fn attempt(flags: &[&str]) -> io::Result<Option<String>> {
    // This very program, even if its file has been replaced since.
    let output = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .env(FLAGS, flags.join(" "))
        .stdin(Stdio::null())
        .output()?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_left_out_by_name_or_one_by_one() {
        // Ends at unknown flags by name, at a bad value without a word.
        let xla = |flags: &[&str]| -> io::Result<Option<String>> {
            let unknown: Vec<&str> = flags
                .iter()
                .copied()
                .filter(|f| f.contains("foo"))
                .collect();
            Ok(if !unknown.is_empty() {
                Some(format!("Unknown flags in XLA_FLAGS: {}", unknown.join(" ")))
            } else {
                let usage = "usage:\n\t--xla_a=false  bool".to_string();
                flags.contains(&"--xla_b=maybe").then_some(usage)
            })
        };
        let of = |flags: &[&'static str]| choose(flags.to_vec(), &xla).unwrap();
        assert_eq!(of(&["--xla_a=1", "--xla_c"]), ["--xla_a=1", "--xla_c"]);
        assert_eq!(of(&["--xla_foo=1", "--xla_a", "--xla_foo2"]), ["--xla_a"]);
        assert_eq!(of(&["--xla_a=false", "--xla_b=maybe"]), ["--xla_a=false"]);
        assert_eq!(of(&["--xla_foo", "--xla_b=maybe", "--xla_c"]), ["--xla_c"]);
        assert!(of(&["--xla_foo", "--xla_b=maybe"]).is_empty());
        // Tests are no program that could try them.
        assert!(accepted(&["--xla_cpu_enable_fast_math=true"]).is_empty());
    }
}
