//! Files and directories that are either the old version or the new one, never half of each, and
//! that any number of processes may write at once: written under a random name beside their place,
//! synced, renamed, and the directory above synced.
//!
//! A writer holds a lock (`flock`) on what it writes aside. The kernel drops the lock when the
//! writer dies, however it dies, so [`clean_leftovers`] can tell a killed writer's remains from the
//! work of one that is still busy. Between making a name and locking it a cleaner may be faster; the
//! writer sees that its name is gone and takes another. Where a file system has no locks, what
//! nobody has changed for a day is a dead writer's.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::{Builder, NamedTempFile, TempDir};

use super::error::{Error, Result};

/// Not in place yet, or on its way to being deleted.
pub(super) const ASIDE: &str = ".tmp-new-";
/// The previous version of a directory, for the instant in which two renames swap it where the file
/// system cannot exchange names.
const OLD: &str = ".tmp-old-";
/// Untouched for this long, what cannot be locked is nobody's.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// What a temporary name for `path` begins with; the rest is random.
fn prefix(kind: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{kind}{name}.")
}

/// The directory that holds `path`; a bare name is in the current one.
pub(super) fn parent(path: &Path) -> &Path {
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

/// Locks what was just made, and says whether it is still there: a cleaner that was faster holds
/// the lock until it has removed it.
fn claim(handle: &File, path: &Path) -> bool {
    let _ = handle.lock(); // A file system without locks has cleaners that go by age.
    path.exists()
}

/// An empty file beside `path`, to be filled and then to take its place with `persist`; dropped, it
/// is removed.
pub fn file_beside(path: &Path) -> io::Result<NamedTempFile> {
    loop {
        let file = Builder::new()
            .prefix(&prefix(ASIDE, path))
            // What the user's mask leaves of it, as for any other file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(parent(path))?;
        if claim(file.as_file(), file.path()) {
            return Ok(file);
        }
    }
}

/// The same as a directory, with the handle that holds its lock.
fn dir_beside(path: &Path) -> io::Result<(TempDir, File)> {
    loop {
        let dir = Builder::new()
            .prefix(&prefix(ASIDE, path))
            .tempdir_in(parent(path))?;
        match File::open(dir.path()) {
            Ok(handle) if claim(&handle, dir.path()) => return Ok((dir, handle)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
}

/// Writes `path` as a whole: `fill` gets a buffered writer, and whatever was at `path` stays until
/// all of it is on disk. Returns what `fill` returns. On an error nothing is left behind.
pub fn write_file<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> Result<T> {
    write(path, fill, |file| file.persist(path).map(drop))
}

/// [`write_file`] for a content that follows from the name: a file that has come to `path`
/// meanwhile stays.
pub fn write_new<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> Result<T> {
    write(path, fill, |file| match file.persist_noclobber(path) {
        Err(lost) if lost.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    })
}

fn write<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
    put_in_place: impl FnOnce(NamedTempFile) -> Result<(), tempfile::PersistError>,
) -> Result<T> {
    let write = || -> io::Result<T> {
        let file = file_beside(path)?;
        if let Some(old) = fs::symlink_metadata(path).ok().filter(Metadata::is_file) {
            // Where that is not to be had, the new one is this user's.
            let _ = make_alike(file.as_file(), &old);
        }
        let mut writer = BufWriter::with_capacity(1 << 20, file.as_file());
        let value = fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        file.as_file().sync_all()?;
        put_in_place(file)?;
        Ok(value)
    };
    let value = write().map_err(Error::io("write", path))?;
    sync_dir(parent(path))?;
    Ok(value)
}

/// Gives a file the owner and the mode of the one whose place it is to take.
pub(super) fn make_alike(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o777))
}

/// [`write_file`] for content that is in memory.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_file(path, |writer| writer.write_all(bytes))
}

/// A directory being written aside. Dropped without [`DirWriter::commit`], it leaves nothing.
#[derive(Debug)]
pub struct DirWriter {
    target: PathBuf,
    temporary: TempDir,
    /// Held for its lock.
    _lock: File,
}

impl DirWriter {
    /// Starts a new version of `target`, whose parents are made where they lack.
    pub fn begin(target: &Path) -> Result<DirWriter> {
        let above = parent(target);
        fs::create_dir_all(above).map_err(Error::io("create", above))?;
        check_place(target)?;
        let (temporary, lock) = dir_beside(target).map_err(Error::io("create", target))?;
        Ok(DirWriter {
            target: target.to_path_buf(),
            temporary,
            _lock: lock,
        })
    }

    /// Where to write: the directory under its temporary name.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// An error about a file in here, with the name that the user knows.
    pub fn io(&self, doing: &'static str, name: &str) -> impl FnOnce(io::Error) -> Error {
        Error::io(doing, &self.target.join(name))
    }

    /// Syncs every file and directory written, then takes the target's place.
    pub fn commit(self) -> Result<()> {
        sync_tree(self.path())?;
        check_place(&self.target)?;
        replace(self.path(), &self.target).map_err(Error::io("rename into place", &self.target))?;
        sync_dir(parent(&self.target))?;
        // The previous version, if there was one, has the temporary name now.
        remove(self.temporary).map_err(Error::io("remove the previous", &self.target))
    }
}

/// Refuses the place of a file, which is somebody else's. A link is no loss: what it leads to stays.
fn check_place(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if !found.is_dir() && !found.is_symlink() => {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            Err(Error::io("replace", target)(error))
        }
        _ => Ok(()),
    }
}

/// Gives `new` the name `target`. A directory that was there gets `new`'s name, in one moment where
/// the file system can exchange names.
fn replace(new: &Path, target: &Path) -> io::Result<()> {
    if renameat_with(CWD, new, CWD, target, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    if fs::symlink_metadata(target).is_err() {
        return fs::rename(new, target);
    }
    swap_by_renames(new, target)
}

fn swap_by_renames(new: &Path, target: &Path) -> io::Result<()> {
    // Locked, so that no cleaner puts it back between the renames. A link may lead nowhere.
    let handle = File::open(target).ok();
    let _ = handle.as_ref().map(File::try_lock);
    let old = Builder::new()
        .prefix(&prefix(OLD, target))
        .disable_cleanup(true)
        .make_in(parent(target), |old| fs::rename(target, old))?;
    let renamed = fs::rename(new, target);
    fs::rename(&old, if renamed.is_ok() { new } else { target })?;
    renamed
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
    let failed = |error| Error::io("remove", path)(error);
    let (dead, _lock) = dir_beside(path).map_err(failed)?;
    fs::rename(path, dead.path()).map_err(failed)?;
    sync_dir(parent(path))?;
    remove(dead).map_err(failed)
}

/// Removes what has a temporary name, if a cleaner was not faster.
fn remove(temporary: TempDir) -> io::Result<()> {
    match temporary.close() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
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
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let old = name.strip_prefix(OLD);
        if old.is_none() && !name.starts_with(ASIDE) {
            continue;
        }
        let is_dir = path.is_dir();
        // Network file systems lock only what is open for writing.
        let Ok(handle) = OpenOptions::new().read(true).write(!is_dir).open(&path) else {
            continue; // Already gone.
        };
        // Held until it is removed, so that a writer that has just made it takes another name.
        let is_dead = match handle.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => idle(&path) > ABANDONED,
        };
        if !is_dead {
            continue;
        }
        let original = old
            .and_then(|old| old.rsplit_once('.'))
            .map(|(original, _)| dir.join(original));
        let result = match original {
            Some(original) if !original.exists() => fs::rename(&path, &original),
            _ if is_dir => fs::remove_dir_all(&path),
            _ => fs::remove_file(&path),
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

/// How long nobody has changed a file, or a directory and the files in it.
fn idle(path: &Path) -> Duration {
    let age = |path: &Path| path.metadata().ok()?.modified().ok()?.elapsed().ok();
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    let ages = files.map(|file| age(&file.path()));
    ages.chain([age(path)])
        .map(Option::unwrap_or_default)
        .min()
        .unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The names in a directory, sorted.
    pub fn names(dir: &Path) -> Vec<String> {
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
    fn a_file_that_is_replaced_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        write_bytes(&path, b"old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write_bytes(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
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
    fn a_file_is_not_replaced_by_a_directory_and_a_link_is() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint-5");
        let writer = DirWriter::begin(&target).unwrap();
        // It comes while the checkpoint is written.
        fs::write(&target, "mine").unwrap();
        for error in [
            writer.commit().unwrap_err(),
            DirWriter::begin(&target).unwrap_err(),
        ] {
            assert!(error.to_string().starts_with("cannot replace "), "{error}");
        }
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        fs::remove_file(&target).unwrap();
        fs::create_dir(dir.path().join("elsewhere")).unwrap();
        for to in ["nowhere", "elsewhere"] {
            std::os::unix::fs::symlink(to, &target).unwrap();
            DirWriter::begin(&target).unwrap().commit().unwrap();
            assert!(!target.is_symlink() && target.is_dir(), "{to}");
            fs::remove_dir(&target).unwrap();
            std::os::unix::fs::symlink(to, &target).unwrap();
            let new = dir.path().join("new");
            fs::create_dir(&new).unwrap();
            swap_by_renames(&new, &target).unwrap();
            assert!(!target.is_symlink() && new.is_symlink(), "{to}");
            fs::remove_file(&new).unwrap();
            fs::remove_dir(&target).unwrap();
        }
        assert_eq!(names(dir.path()), ["elsewhere"]);
    }

    #[test]
    fn leftovers_of_the_dead_go_and_work_of_the_living_stays() {
        let dir = tempfile::tempdir().unwrap();
        let busy = DirWriter::begin(&dir.path().join("checkpoint-2")).unwrap();
        fs::create_dir(dir.path().join(".tmp-new-checkpoint-1.aB3dE6")).unwrap();
        fs::write(dir.path().join(".tmp-new-config.json.fG7hI0"), "{").unwrap();
        fs::create_dir(dir.path().join(".tmp-old-checkpoint-7.jK4lM8")).unwrap(); // killed between the two renames
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
    fn where_names_cannot_be_exchanged_two_renames_swap_directories() {
        let dir = tempfile::tempdir().unwrap();
        let (new, target) = (dir.path().join("new"), dir.path().join("target"));
        for (path, content) in [(&new, "new"), (&target, "old")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("x"), content).unwrap();
        }
        swap_by_renames(&new, &target).unwrap();
        assert_eq!(fs::read_to_string(target.join("x")).unwrap(), "new");
        assert_eq!(fs::read_to_string(new.join("x")).unwrap(), "old");
        assert_eq!(names(dir.path()), ["new", "target"]);
    }

    #[test]
    fn there_is_no_moment_without_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint-1");
        let write = || {
            let writer = DirWriter::begin(&target).unwrap();
            fs::write(writer.path().join("x"), "x").unwrap();
            writer.commit().unwrap();
        };
        write();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..50).for_each(|_| write()));
            while !writer.is_finished() {
                assert!(target.join("x").exists());
            }
        });
    }

    #[test]
    fn writers_and_cleaners_may_meet_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rows");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        clean_leftovers(dir.path()).unwrap();
                    }
                });
            }
            let writers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..100).for_each(|_| write_bytes(&path, b"whole").unwrap()))
                })
                .collect();
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["x.rows"]);
    }

    #[test]
    fn whoever_loses_a_race_takes_the_winners_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rows");
        let lost = |out: &mut BufWriter<&File>| {
            fs::write(&path, "winner")?;
            out.write_all(b"loser")
        };
        write_new(&path, lost).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"winner");
        assert_eq!(names(dir.path()), ["x.rows"]);
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
