//! Files that the user names: written as a shell's `>` writes them, so that what has the name stays
//! what it is. A device, a pipe and a descriptor (`/dev/stdout`) are opened and written to; a link
//! still leads where it led; a file keeps its owner, its mode and its other names. A file is still
//! the old one or the new one wherever that can be had: a new file with the same owner and mode
//! takes its place, and only where none can is the old one written over.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::atomic;
use super::error::{Error, Result};

/// Links that lead to one another, at most: as many as Linux follows.
const LINKS: usize = 40;

/// Writes the file that the user calls `path`: `fill` gets a buffered writer. Returns what `fill`
/// returns.
pub fn write_named<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> Result<T> {
    write(path, fill).map_err(Error::named(path))
}

/// [`write_named`] for content that is in memory.
pub fn write_named_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_named(path, |out| out.write_all(bytes))
}

/// Looks whether [`write_named`] can write `path`, before the work whose result it is to hold.
/// Nothing is opened: a reader at the other end of a pipe would see its end.
pub fn check_named(path: &Path) -> Result<()> {
    let check = || -> io::Result<()> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            // Whoever opened it may write to it; its owner's mode says nothing of this process.
            Ok(_) if descriptor(path).is_some() => Ok(()),
            Ok(_) => Ok(access(path, Access::WRITE_OK)?),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // A link to a file that is to be made.
            Err(_) if path.is_symlink() => Ok(()),
            Err(_) => Ok(access(
                atomic::parent(path),
                Access::WRITE_OK | Access::EXEC_OK,
            )?),
        }
    };
    check().map_err(Error::named(path))
}

/// Whether `path` is a device, a pipe or an open descriptor, which no ending makes a file of.
pub fn is_device(path: &Path) -> bool {
    let is_other = |about: Metadata| !about.is_file() && !about.is_dir();
    descriptor(path).is_some() || fs::metadata(path).is_ok_and(is_other)
}

/// Whether what is written to `path` arrives at standard output, where it must stand alone.
pub fn is_standard_output(path: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|about| (about.dev(), about.ino()));
    matches!((of(path), of(Path::new("/proc/self/fd/1"))), (Ok(a), Ok(b)) if a == b)
}

fn write<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> io::Result<T> {
    if let Some(number) = descriptor(path) {
        return stream(&duplicate(number)?.into(), fill);
    }
    let mut options = OpenOptions::new();
    options.write(true);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            return match atomic::write_file(path, fill) {
                Err(Error::Io { source, .. }) => Err(source),
                other => other.map_err(io::Error::other),
            };
        }
        // The system follows a link that leads nowhere yet, or refuses to.
        Err(error) if error.kind() == io::ErrorKind::NotFound => options.create(true).open(path),
        opened => opened,
    }?;
    let about = file.metadata()?;
    if !about.is_file() {
        return stream(&file, fill);
    }
    replace(&fs::canonicalize(path)?, &file, &about, fill)
}

/// Writes to what has no content of its own.
fn stream<T>(
    file: &File,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> io::Result<T> {
    let mut out = BufWriter::new(file);
    let value = fill(&mut out)?;
    out.flush()?;
    Ok(value)
}

/// Replaces the content of `file`, which lies at `path` and was like `about`.
fn replace<T>(
    path: &Path,
    file: &File,
    about: &Metadata,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> io::Result<T> {
    let Ok(aside) = atomic::file_beside(path) else {
        // A directory where only this file may be written.
        file.set_len(0)?;
        let value = stream(file, fill)?;
        file.sync_all()?;
        return Ok(value);
    };
    let value = stream(aside.as_file(), fill)?;
    aside.as_file().sync_all()?;
    let is_alike = about.nlink() == 1 && atomic::make_alike(aside.as_file(), about).is_ok();
    let aside = if is_alike {
        match aside.persist(path) {
            Ok(_) => {
                atomic::sync_dir(atomic::parent(path)).map_err(io::Error::other)?;
                return Ok(value);
            }
            // A mount point, as containers have for one file.
            Err(kept) => kept.file,
        }
    } else {
        aside
    };
    file.set_len(0)?;
    let mut copy = File::open(aside.path())?;
    io::copy(&mut copy, &mut &*file)?;
    file.sync_all()?;
    Ok(value)
}

/// The number of the open descriptor of this process that `path` is a name of.
fn descriptor(path: &Path) -> Option<RawFd> {
    let own = fs::canonicalize("/proc/self/fd").ok()?;
    let mut path: PathBuf = path.to_path_buf();
    for _ in 0..LINKS {
        // What is no link is no descriptor either.
        let link = fs::read_link(&path).ok()?;
        let above = fs::canonicalize(atomic::parent(&path)).ok()?;
        if above == own {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = above.join(link);
    }
    None
}

/// A descriptor with the same place in its file, which a file opened anew would not have.
fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    let _ = io::stdout().flush();
    // SAFETY: `descriptor` has just found it open, and it is only borrowed for this call.
    let open = unsafe { BorrowedFd::borrow_raw(number) };
    open.try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::tests::names;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::process::Command;

    #[test]
    fn devices_and_pipes_stay_and_get_the_bytes() {
        let dir = tempfile::tempdir().unwrap();
        write_named_bytes(Path::new("/dev/null"), b"nobody").unwrap();
        let null = fs::symlink_metadata("/dev/null").unwrap();
        assert!(null.file_type().is_char_device());
        let error = write_named_bytes(Path::new("/dev/full"), b"x").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot write /dev/full: No space left"),
            "{error}"
        );
        let full = fs::symlink_metadata("/dev/full").unwrap();
        assert!(full.file_type().is_char_device());
        let pipe = dir.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        check_named(&pipe).unwrap();
        assert!(is_device(&pipe) && is_device(Path::new("/dev/null")) && !is_device(dir.path()));
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write_named_bytes(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(names(dir.path()), ["pipe"]);
    }

    #[test]
    fn links_stay_and_their_files_change() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("deep")).unwrap();
        let target = dir.path().join("deep/target");
        fs::write(&target, "old").unwrap();
        symlink("deep/target", dir.path().join("link")).unwrap();
        symlink("link", dir.path().join("second")).unwrap();
        symlink("deep/new", dir.path().join("dangling")).unwrap();
        check_named(&dir.path().join("dangling")).unwrap();
        write_named_bytes(&dir.path().join("second"), b"new").unwrap();
        write_named_bytes(&dir.path().join("dangling"), b"made").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::read(dir.path().join("deep/new")).unwrap(), b"made");
        for link in ["link", "second", "dangling"] {
            assert!(dir.path().join(link).is_symlink(), "{link}");
        }
        // A failure leaves what was there.
        let failed = write_named(&dir.path().join("link"), |out| {
            out.write_all(b"half")?;
            Err::<(), _>(io::Error::from_raw_os_error(libc::ENOSPC))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(names(&dir.path().join("deep")), ["new", "target"]);
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(write_named_bytes(&dir.path().join("loop"), b"x").is_err());
        assert!(check_named(&dir.path().join("loop")).is_err());
    }

    #[test]
    fn modes_and_other_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        for mode in [0o600, 0o664, 0o777] {
            fs::write(&path, "a long old text").unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            write_named_bytes(&path, b"new").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        fs::hard_link(&path, &other).unwrap();
        write_named_bytes(&path, b"x").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"x");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&path), inode(&other));
        assert_eq!(names(dir.path()), ["a", "b"]);
    }

    #[test]
    fn a_descriptor_is_written_where_it_stands() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all(b"before ").unwrap();
        let inode = file.metadata().unwrap().ino();
        let named = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
        check_named(&named).unwrap();
        write_named_bytes(&named, b"here").unwrap();
        file.write_all(b" after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before here after");
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        let (mut reader, writer) = io::pipe().unwrap();
        let named = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        write_named_bytes(&named, b"piped").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "piped");
        assert_eq!(descriptor(Path::new("/proc/self/fd/99999")), None);
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        let message = |path: &Path| check_named(path).unwrap_err().to_string();
        assert!(
            message(dir.path()).contains("Is a directory")
                || message(dir.path()).contains("is a directory")
        );
        let missing = message(&dir.path().join("none/x"));
        assert!(missing.contains("there is no directory"), "{missing}");
        fs::write(dir.path().join("file"), "").unwrap();
        check_named(&dir.path().join("file")).unwrap();
        assert!(message(&dir.path().join("file/x")).contains("Not a directory"));
        check_named(&dir.path().join("new")).unwrap();
        assert_eq!(names(dir.path()), ["file"]);
        check_named(Path::new("/dev/full")).unwrap();
    }
}
