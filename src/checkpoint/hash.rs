//! SHA-256 of what is written and read: the digests by which damage is noticed and tokenized files
//! are found again.

use std::io::{self, Read, Write};
use std::path::Path;

use super::files;
use sha2::{Digest, Sha256};
pub use xtrain_report::units::hex;

/// Digest of bytes in memory, as hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Length and digest of a file's bytes.
pub fn sha256_file(path: &Path) -> io::Result<(u64, String)> {
    let mut file = files::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, hex(&hasher.finalize()))),
            n => {
                hasher.update(&buffer[..n]);
                bytes += n as u64;
            }
        }
    }
}

/// Passes writes through and digests them on the way, so that a large file is not read again to be
/// hashed.
pub struct HashingWriter<W> {
    inner: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: Write> HashingWriter<W> {
    pub fn new(inner: W) -> Self {
        HashingWriter {
            inner,
            hasher: Sha256::new(),
            bytes: 0,
        }
    }

    /// The writer, the bytes that went through it, and their digest.
    pub fn finish(self) -> (W, u64, [u8; 32]) {
        (self.inner, self.bytes, self.hasher.finalize().into())
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
