//! A lock for each key, so that of many processes that want one graph a single one compiles and the
//! others wait for it.
//!
//! Locks are `flock`s: the kernel drops them when their holder dies, however it dies, so a lock
//! file that lies around means nothing. Holders remove the file when they are done; whoever waited
//! for a removed file starts over with a new one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Held until dropped.
pub struct KeyLock {
    path: PathBuf,
    _file: File,
}

impl KeyLock {
    /// Waits for the lock; `waiting` is called once, with the holder's process id if known, before
    /// the first wait. `None` where locks are not to be had (a read-only directory, a file system
    /// without them): then several processes may compile the same.
    pub fn acquire(dir: &Path, id: &str, waiting: impl FnOnce(Option<u32>)) -> Option<KeyLock> {
        fs::create_dir_all(dir).ok()?;
        let path = dir.join(format!("{id}.lock"));
        let mut waiting = Some(waiting);
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .ok()?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if let Some(waiting) = waiting.take() {
                        let mut holder = String::new();
                        let _ = file.read_to_string(&mut holder);
                        waiting(holder.trim().parse().ok());
                    }
                    file.lock().ok()?;
                }
                Err(TryLockError::Error(_)) => return None,
            }
            let same = |found: fs::Metadata| {
                file.metadata()
                    .is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
            };
            if fs::metadata(&path).is_ok_and(same) {
                // Only for the message above, so a failure does not matter.
                let _ = file
                    .set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| writeln!(file, "{}", std::process::id()));
                return Some(KeyLock { path, _file: file });
            }
        }
    }
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // Still locked here, so that nobody can have taken it in between.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let count = |_| {
                            waited.fetch_add(1, Ordering::SeqCst);
                        };
                        let lock = KeyLock::acquire(dir.path(), "key", count).unwrap();
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

    #[test]
    fn a_file_left_by_the_dead_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("key.lock"), "999999\n").unwrap();
        assert!(KeyLock::acquire(dir.path(), "key", |_| panic!("nobody holds it")).is_some());
    }
}
