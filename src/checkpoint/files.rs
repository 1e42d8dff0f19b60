//! Opening files that others name: what is none is refused before a read waits for it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Opens a file for reading.
///
/// # Errors
/// It cannot be opened, or is a pipe, a device or a socket, whose end nobody knows.
pub fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() {
        return File::open(path);
    }
    let kind = if path.is_dir() {
        io::ErrorKind::IsADirectory
    } else {
        io::ErrorKind::InvalidInput
    };
    Err(io::Error::new(kind, "it is not a regular file"))
}

/// All of a file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
