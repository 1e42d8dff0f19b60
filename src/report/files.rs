//! Opening files that others name: what is none is refused before a read waits for it, and nothing
//! is read without a bound.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::units::bytes;

/// Bytes of the largest file that is read as a whole. Files of that kind (settings, configurations,
/// tokenizers, logs) are far smaller.
pub const MOST: u64 = 512 << 20;

/// The same of a file of settings, whose values take far more memory than their text.
pub const SETTINGS: u64 = 4 << 20;

/// Bytes of the largest file that is read line by line, and of a line.
const MOST_IN_LINES: u64 = 4 << 30;
const LINE: u64 = 16 << 20;

/// Opens a file for reading.
///
/// # Errors
/// It cannot be opened, or is a pipe, a device or a socket, whose end nobody knows.
pub fn open(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().read(true), path)
}

/// Opens a file in another way than for reading, as [`open`] does: a log, a lock.
///
/// # Errors
/// As [`open`].
pub fn open_as(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    match fs::metadata(path) {
        Ok(found) => regular(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Another one may have taken its place since. Of a regular file the flag means nothing.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// All of a file.
///
/// # Errors
/// As [`open`], or it has more than [`MOST`] bytes.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open(path)?, MOST)
}

/// All of a file or of a pipe without a name, as the shell's `<(command)` and `/dev/stdin` are:
/// these have a writer, and end when it ends.
///
/// # Errors
/// As [`read`].
pub fn read_piped(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let is_pipe = fs::metadata(path)?.file_type().is_fifo();
    if !is_pipe {
        return read_all(open(path)?, most);
    }
    // A pipe with a name would wait here for somebody who writes into it.
    let options = &mut OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    if !fs::read_link(own)?.to_string_lossy().starts_with("pipe:") {
        regular(file.metadata()?.file_type())?;
    }
    // SAFETY: the descriptor is open as long as `file` is, and the call changes only its flags.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    read_all(file, most)
}

/// All that a reader gives.
///
/// # Errors
/// It fails, or gives more than `most` bytes.
pub fn read_all(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    reader.take(most + 1).read_to_end(&mut found)?;
    if found.len() as u64 > most {
        return Err(too_large(most));
    }
    Ok(found)
}

/// A line of a file.
#[derive(Debug, PartialEq)]
pub struct Line {
    /// Without its end. Of a line that is too long to be a record, the beginning.
    pub bytes: Vec<u8>,
    /// Whether the line has an end: a program that writes it may not be done.
    pub has_ended: bool,
}

/// The lines of a file of records, such as a log, one by one.
///
/// # Errors
/// As [`open`], or the file has more than 4 GiB.
pub fn lines(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Line>> + use<>> {
    let file = open(path)?;
    let size = file.metadata()?.len();
    if size > MOST_IN_LINES {
        return Err(too_large(MOST_IN_LINES));
    }
    Ok(lines_of(file.take(MOST_IN_LINES)))
}

/// The lines of what a reader gives, one by one; of one without an end, without an end.
pub fn lines_of<R: Read>(reader: R) -> impl Iterator<Item = io::Result<Line>> + use<R> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let next = move || -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        reader.by_ref().take(LINE).read_until(b'\n', &mut bytes)?;
        let mut has_ended = bytes.last() == Some(&b'\n');
        if bytes.len() as u64 == LINE && !has_ended {
            has_ended = reader.skip_until(b'\n')? > 0;
        } else if has_ended {
            bytes.pop();
        }
        let line = Line { bytes, has_ended };
        Ok((line.has_ended || !line.bytes.is_empty()).then_some(line))
    };
    let mut next = Some(next);
    std::iter::from_fn(move || {
        let read = next.as_mut()?().transpose();
        if !matches!(read, Some(Ok(_))) {
            next = None;
        }
        read
    })
}

fn too_large(most: u64) -> io::Error {
    let reason = format!("it has more than the {} that are read", bytes(most));
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Refuses all but regular files, by what they are.
fn regular(found: FileType) -> io::Result<()> {
    let what = if found.is_file() {
        return Ok(());
    } else if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let kind = if found.is_dir() {
        io::ErrorKind::IsADirectory
    } else {
        io::ErrorKind::InvalidInput
    };
    Err(io::Error::new(
        kind,
        format!("it is {what}, not a regular file"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    /// Makes a pipe with a name.
    pub fn make_fifo(path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn what_is_no_file_is_named_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        make_fifo(&at("fifo"));
        fs::create_dir(at("dir")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (path, what) in [
            (at("fifo"), "pipe"),
            (at("dir"), "directory"),
            (at("socket"), "socket"),
            ("/dev/zero".into(), "device"),
            ("/dev/null".into(), "device"),
        ] {
            let append = &mut OpenOptions::new();
            append.append(true).create(true);
            for opened in [
                read(&path).map(drop),
                read_piped(&path, 10).map(drop),
                open_as(append, &path).map(drop),
            ] {
                let message = opened.unwrap_err().to_string();
                assert_eq!(message, format!("it is a {what}, not a regular file"));
            }
        }
        assert_eq!(
            open(&at("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn nothing_is_read_without_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(MOST + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("more than"));
        assert!(read_piped(&path, 100).is_err());
        fs::write(&path, "abc").unwrap();
        assert_eq!(read_piped(&path, 3).unwrap(), b"abc");
        assert!(read_all(io::repeat(1), 1000).is_err());
    }

    #[test]
    fn lines_have_a_bound_and_say_whether_they_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let long = "x".repeat(LINE as usize + 5);
        fs::write(&path, format!("a\n\n{long}\nb\nc")).unwrap();
        let found = lines(&path).unwrap().map(|line| {
            let line = line.unwrap();
            (line.bytes.len() as u64, line.has_ended)
        });
        let found: Vec<(u64, bool)> = found.collect();
        assert_eq!(
            found,
            [(1, true), (0, true), (LINE, true), (1, true), (1, false)]
        );
        let file = File::create(&path).unwrap();
        file.set_len(MOST_IN_LINES + 1).unwrap();
        assert!(lines(&path).is_err());
    }

    /// What `<(command)` gives a program is a pipe without a name.
    #[test]
    fn a_pipe_of_the_shell_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let writes = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            io::Write::write_all(&mut writer, b"text").unwrap();
        });
        assert_eq!(read_piped(Path::new(&path), 100).unwrap(), b"text");
        writes.join().unwrap();
    }
}
