//! Files and directories that are either the old version or the new one, never half of each:
//! written under a `.tmp-` name beside their place, synced, renamed, and the directory above
//! synced.
//!
//! A writer holds a lock (`flock`) on what it writes aside. The kernel drops the lock when the
//! writer dies, however it dies, so [`clean_leftovers`] can tell a killed writer's remains from the
//! work of one that is still busy.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Error, Result};

/// Written aside, not in place yet.
const NEW: &str = ".tmp-new-";
/// The previous version of a directory, for the instant in which two renames swap it.
const OLD: &str = ".tmp-old-";
/// On its way to being deleted.
const DEAD: &str = ".tmp-del-";

/// `.tmp-new-NAME.PID.N` beside `path`.
fn aside(path: &Path, prefix: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!("{prefix}{name}.{}.{count}", std::process::id()))
}

/// The directory that holds `path`; a bare name is in the current one.
fn parent(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Makes renames and removals in `dir` survive a power failure.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(Error::io("sync", dir))
}

/// Writes `path` as a whole: `fill` gets a buffered writer, and whatever was at `path` stays until
/// all of it is on disk. Returns what `fill` returns. On an error nothing is left behind.
pub fn write_file<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> Result<T> {
    let temporary = aside(path, NEW);
    let write = || -> io::Result<T> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        lock(&file);
        let mut writer = BufWriter::with_capacity(1 << 20, &file);
        let value = fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        Ok(value)
    };
    let value = write().map_err(|source| {
        let _ = fs::remove_file(&temporary); // The error that matters is the one that led here.
        Error::Io {
            doing: "write",
            path: path.to_path_buf(),
            source,
        }
    })?;
    sync_dir(parent(path))?;
    Ok(value)
}

/// [`write_file`] for content that is in memory.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_file(path, |writer| writer.write_all(bytes))
}

/// A directory being written aside. Dropped without [`DirWriter::commit`], it leaves nothing.
#[derive(Debug)]
pub struct DirWriter {
    target: PathBuf,
    temporary: PathBuf,
    committed: bool,
    /// Held for its lock.
    _lock: File,
}

impl DirWriter {
    /// Starts a new version of `target`, whose parents are made where they lack.
    pub fn begin(target: &Path) -> Result<DirWriter> {
        let above = parent(target);
        fs::create_dir_all(above).map_err(Error::io("create", above))?;
        let temporary = aside(target, NEW);
        fs::create_dir(&temporary).map_err(Error::io("create", &temporary))?;
        let handle = File::open(&temporary).map_err(Error::io("open", &temporary))?;
        lock(&handle);
        Ok(DirWriter {
            target: target.to_path_buf(),
            temporary,
            committed: false,
            _lock: handle,
        })
    }

    /// Where to write: the directory under its temporary name.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// An error about a file in here, with the name that the user knows.
    pub fn io(&self, doing: &'static str, name: &str) -> impl FnOnce(io::Error) -> Error {
        Error::io(doing, &self.target.join(name))
    }

    /// Syncs every file and directory written, then takes the target's place in one rename (two
    /// when there is an old version).
    pub fn commit(mut self) -> Result<()> {
        sync_tree(&self.temporary)?;
        let above = parent(&self.target).to_path_buf();
        if self.target.exists() {
            let old = aside(&self.target, OLD);
            // Locked, so that nobody who cleans up between the two renames takes it for a dead
            // writer's and puts it back.
            let handle = File::open(&self.target).map_err(Error::io("open", &self.target))?;
            lock(&handle);
            fs::rename(&self.target, &old).map_err(Error::io("rename", &self.target))?;
            if let Err(error) = fs::rename(&self.temporary, &self.target) {
                let _ = fs::rename(&old, &self.target); // The previous version goes back; the error below is reported.
                return Err(Error::io("rename into place", &self.target)(error));
            }
            self.committed = true;
            sync_dir(&above)?;
            fs::remove_dir_all(&old).map_err(Error::io("remove", &old))?;
        } else {
            fs::rename(&self.temporary, &self.target)
                .map_err(Error::io("rename into place", &self.target))?;
            self.committed = true;
        }
        sync_dir(&above)
    }
}

impl Drop for DirWriter {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_dir_all(&self.temporary); // If even this fails, the next start cleans up.
        }
    }
}

fn sync_tree(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            File::open(&path)
                .and_then(|f| f.sync_all())
                .map_err(Error::io("sync", &path))?;
        }
    }
    sync_dir(dir)
}

/// Removes a directory so that it is never seen half deleted: renamed aside first.
pub fn remove_dir(path: &Path) -> Result<()> {
    let dead = aside(path, DEAD);
    fs::rename(path, &dead).map_err(Error::io("remove", path))?;
    sync_dir(parent(path))?;
    fs::remove_dir_all(&dead).map_err(Error::io("remove", &dead))
}

/// Removes what killed writers left in `dir`, leaving alone what a living one is busy with. A
/// directory that was set aside to be replaced, and never was, goes back to its place. Returns what
/// was cleaned.
pub fn clean_leftovers(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", dir)(error)),
    };
    let mut cleaned = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", dir))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some((prefix, original)) = parse_aside(&name) else {
            continue;
        };
        match File::open(&path) {
            Ok(file) if file.try_lock().is_ok() => {}
            _ => continue, // Busy, or already gone.
        }
        let original = dir.join(original);
        let result = if prefix == OLD && !original.exists() {
            fs::rename(&path, &original)
        } else if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match result {
            Ok(()) => cleaned.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // Another process cleaned it first.
            Err(error) => return Err(Error::io("remove", &path)(error)),
        }
    }
    cleaned.sort();
    Ok(cleaned)
}

/// Prefix and original name of an entry that [`aside`] named.
fn parse_aside(name: &str) -> Option<(&'static str, &str)> {
    let prefix = [NEW, OLD, DEAD]
        .into_iter()
        .find(|prefix| name.starts_with(prefix))?;
    let mut fields = name[prefix.len()..].rsplitn(3, '.');
    let (count, pid, original) = (fields.next()?, fields.next()?, fields.next()?);
    (count.parse::<u64>().is_ok() && pid.parse::<u32>().is_ok()).then_some((prefix, original))
}

/// Marks the open file or directory as in use. Where the file system has no locks this does
/// nothing: leftovers there are cleaned even if their writer lives, which then fails with an error
/// and loses nothing.
fn lock(file: &File) {
    let _ = file.try_lock();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_keeps_the_previous_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        write_bytes(&path, b"old").unwrap();
        let error = write_file(&path, |w| {
            w.write_all(b"half")?;
            Err::<(), _>(io::Error::from_raw_os_error(libc::ENOSPC))
        })
        .unwrap_err();
        assert!(error.is_disk_full());
        assert!(
            error.to_string().contains("config.json") && error.to_string().contains("space"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["config.json"]);
    }

    #[test]
    fn a_full_device_is_reported_with_its_cause() {
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let error = write_file(&dir.path().join("x"), |_| full.write_all(b"x")).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
    }

    #[test]
    fn directories_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("deep/checkpoint-1");
        for content in ["one", "two"] {
            let writer = DirWriter::begin(&target).unwrap();
            fs::create_dir(writer.path().join("sub")).unwrap();
            fs::write(writer.path().join("sub/a"), content).unwrap();
            assert_ne!(
                fs::read_to_string(target.join("sub/a")).unwrap_or_default(),
                content
            );
            writer.commit().unwrap();
            assert_eq!(fs::read_to_string(target.join("sub/a")).unwrap(), content);
        }
        drop(DirWriter::begin(&target).unwrap());
        assert_eq!(names(&dir.path().join("deep")), ["checkpoint-1"]);
    }

    #[test]
    fn leftovers_of_the_dead_go_and_work_of_the_living_stays() {
        let dir = tempfile::tempdir().unwrap();
        let busy = DirWriter::begin(&dir.path().join("checkpoint-2")).unwrap();
        fs::create_dir(dir.path().join(".tmp-new-checkpoint-1.999.0")).unwrap();
        fs::write(dir.path().join(".tmp-new-config.json.999.1"), "{").unwrap();
        fs::create_dir(dir.path().join(".tmp-old-checkpoint-7.999.2")).unwrap(); // killed between the two renames
        fs::write(dir.path().join(".tmp-mine"), "not ours").unwrap();
        assert_eq!(clean_leftovers(dir.path()).unwrap().len(), 3);
        assert!(busy.path().exists());
        drop(busy);
        assert_eq!(names(dir.path()), [".tmp-mine", "checkpoint-7"]);
        assert_eq!(
            clean_leftovers(&dir.path().join("nowhere")).unwrap(),
            Vec::<PathBuf>::new()
        );
    }

    #[test]
    fn removal_goes_through_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint-1");
        fs::create_dir(&path).unwrap();
        remove_dir(&path).unwrap();
        assert!(names(dir.path()).is_empty());
        assert!(
            remove_dir(&path)
                .unwrap_err()
                .to_string()
                .contains("checkpoint-1")
        );
    }
}
