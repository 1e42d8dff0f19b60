//! Locks between processes: of many that want the same thing made a single one makes it, and an
//! output directory has one run that writes it.
//!
//! Locks are `flock`s: the kernel drops them when their holder dies, however it dies. A lock file
//! says who holds it. Holders remove it when they are done; whoever waited for a removed file starts
//! over with a new one.

use super::atomic::ASIDE;
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtrain_report::errln;
use xtrain_report::files;
use xtrain_report::notice::while_busy;
use xtrain_report::telemetry::{host, now};
use xtrain_report::units::duration;

/// Name of the lock of the run that writes to an output directory.
pub const RUN_LOCK: &str = ".xtrain.lock";

/// Held until dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

/// The process that has a lock, as the lock's file names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub host: String,
    pub pid: u32,
    /// When it took the lock, in seconds since 1970.
    pub since: f64,
}

impl Holder {
    fn this_process() -> Holder {
        Holder {
            host: host(),
            pid: std::process::id(),
            since: now(),
        }
    }

    /// Whether it was killed or has returned and only the kernel still clears up behind it: its
    /// locks go with the last of its threads, which on a busy machine is a moment after the first.
    fn is_ending(&self) -> bool {
        const EXITING: u32 = 4; // PF_EXITING of linux/sched.h
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        if self.host != host() {
            return false;
        }
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap_or_default()
        };
        let (stat, status) = (read("stat"), read("status"));
        // After the command's name in parentheses, which may hold anything: state, five numbers, flags.
        let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
        let fields: Vec<&str> = fields.split_whitespace().take(7).collect();
        let exits = |flags: &&str| flags.parse().is_ok_and(|flags: u32| flags & EXITING != 0);
        let is_killed = status.lines().any(|line| {
            let pending = ["SigPnd:", "ShdPnd:"]
                .iter()
                .find_map(|key| line.strip_prefix(key));
            let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            pending.is_some_and(|mask| mask & KILL != 0)
        });
        is_killed || matches!(fields.first(), Some(&"Z" | &"X")) || fields.get(6).is_some_and(exits)
    }

    /// Whom a lock's file names; a new file names nobody.
    fn read(file: &File) -> Option<Holder> {
        serde_json::from_slice(&files::read_all(file, 1 << 16).ok()?).ok()
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        let age = Duration::try_from_secs_f64(now() - self.since).unwrap_or_default();
        let (pid, host, age) = (self.pid, &self.host, duration(age));
        write!(f, "process {pid} on host {host} (started {age} ago)")
    }
}

/// Why a lock was not acquired at once.
#[derive(Debug, PartialEq)]
pub enum Refused {
    /// A living process has it, by this description.
    Busy(String),
    /// This one had it, and nothing shows whether it lives.
    Left(Holder),
}

impl Lock {
    /// Waits for the lock, and says so: `doing` is the work of its holder. `None` where
    /// locking is unsupported (a read-only directory, a file system without locks): then several
    /// processes may do the same work.
    pub fn wait(path: &Path, doing: &str) -> Option<Lock> {
        fs::create_dir_all(path.parent()?).ok()?;
        let file = match attempt(path, false).ok()? {
            Ok(file) => file,
            Err(holder) => {
                let who = name(holder);
                errln!("waiting for {who}, which is {doing}");
                let still =
                    |time, _| format!("still waiting after {}: {who} is {doing}", duration(time));
                while_busy(still, || attempt(path, true)).ok()?.ok()?
            }
        };
        Some(Lock::hold(path, file))
    }

    /// The lock, if nobody holds it. What a killed process of this host left is free, as soon as the
    /// last of its threads has ended. Another host's locks may not be seen here, and some file
    /// systems have none: what such a holder left is free only if `takes_over`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn take(path: &Path, takes_over: bool) -> io::Result<Result<Lock, Refused>> {
        let mut attempted = attempt(path, false);
        while let Ok(Err(Some(holder))) = &attempted {
            let is_ending = holder.is_ending();
            if is_ending {
                std::thread::sleep(Duration::from_millis(10));
            }
            // Also of a holder that was gone when it was looked at.
            attempted = attempt(path, false);
            if !is_ending {
                break;
            }
        }
        let (file, is_locked) = match attempted {
            Ok(Ok(file)) => (file, true),
            Ok(Err(holder)) => return Ok(Err(Refused::Busy(name(holder)))),
            Err(_) => (open(path)?, false),
        };
        let is_free = |last: &Holder| takes_over || is_locked && last.host == host();
        Ok(match Holder::read(&file) {
            Some(last) if !is_free(&last) => Err(Refused::Left(last)),
            _ => Ok(Lock::hold(path, file)),
        })
    }

    /// Names this process as the holder. Only messages need that, so a failure does not matter.
    fn hold(path: &Path, mut file: File) -> Lock {
        let text = serde_json::to_string(&Holder::this_process()).unwrap_or_default();
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
        let path = path.to_path_buf();
        Lock { path, _file: file }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // Still locked here, so that nobody can have taken it in between.
    }
}

/// Removes what this process has begun to write, and the lock of its run, for a process that ends
/// without returning. Both are among the files that it has open.
pub fn abandon() {
    for open in fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = fs::read_link(open.path()).unwrap_or_default();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(ASIDE) || name == RUN_LOCK {
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    files::open_as(&mut options, path)
}

/// How messages name a holder.
fn name(holder: Option<Holder>) -> String {
    holder.map_or("another process".into(), |holder| holder.to_string())
}

/// The file at `path`, made where it lacks, locked as long as it is open; or else who holds it.
fn attempt(path: &Path, waits: bool) -> io::Result<Result<File, Option<Holder>>> {
    loop {
        let file = open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if waits => file.lock()?,
            Err(TryLockError::WouldBlock) => return Ok(Err(Holder::read(&file))),
            other => other?,
        }
        let own = file.metadata()?;
        let same = |found: fs::Metadata| (own.dev(), own.ino()) == (found.dev(), found.ino());
        if fs::metadata(path).is_ok_and(same) {
            return Ok(Ok(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.lock");
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let lock = Lock::wait(&path, "counting").unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A killed process whose first thread is a zombie while another still holds the lock refuses
    /// nobody: the next run waits for that moment.
    #[test]
    fn a_lock_of_the_dying_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let held = Lock::take(&path, false).unwrap().unwrap();
        // A zombie, as long as nobody asks for its exit code.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let holder = Holder {
            pid: dead.id(),
            ..Holder::this_process()
        };
        while !holder.is_ending() {
            std::thread::yield_now();
        }
        assert!(!Holder::this_process().is_ending());
        let elsewhere = Holder {
            host: "elsewhere".into(),
            ..holder.clone()
        };
        assert!(!elsewhere.is_ending());
        fs::write(&path, serde_json::to_vec(&holder).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| Lock::take(&path, false).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!next.is_finished());
            drop(held);
            assert!(next.join().unwrap().is_ok());
        });
        dead.wait().unwrap();
    }

    #[test]
    fn a_lock_of_the_dead_is_free_if_they_were_of_this_host() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let held = Lock::take(&path, false).unwrap().unwrap();
        let refused = Lock::take(&path, true).unwrap().unwrap_err();
        let holder = Holder::this_process();
        let name = format!("process {} on host {} (", holder.pid, holder.host);
        assert!(
            matches!(&refused, Refused::Busy(who) if who.starts_with(&name)),
            "{refused:?}"
        );
        drop(held);
        let leave =
            |holder: &Holder| fs::write(&path, serde_json::to_vec(holder).unwrap()).unwrap();
        leave(&holder);
        drop(Lock::take(&path, false).unwrap().unwrap());
        let elsewhere = Holder {
            host: "elsewhere".into(),
            ..holder
        };
        leave(&elsewhere);
        assert_eq!(
            Lock::take(&path, false).unwrap().unwrap_err(),
            Refused::Left(elsewhere)
        );
        drop(Lock::take(&path, true).unwrap().unwrap());
        assert!(!path.exists());
    }
}
