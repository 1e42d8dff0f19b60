//! One file from the Hub into the cache's blobs.
//!
//! The Hub is asked what the file is: the digest that names it, and its size. The bytes go to a file
//! of their own, never more of them than announced, are compared with both, and only then moved to
//! where Python programs and this one look for them. An interrupted transfer is resumed, by a later
//! run too.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xtrain_report::errln;

use hf_hub::CacheRepo;
use indicatif::ProgressBar;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::Method;
use url::Url;

use super::checks::{etag, range, shown, size};
use super::client::{Answer, Client, Failure};
use super::error::{Error, Result};
use xtrain_checkpoint::hash::hex;
use xtrain_checkpoint::lock::Lock;
use xtrain_report::progress;

/// How often an interrupted transfer is resumed before it is an error.
const ATTEMPTS: usize = 3;

/// A file of a snapshot that is not in the cache.
pub(super) struct Wanted<'a> {
    pub client: &'a Client,
    /// The repository's name.
    pub name: &'a str,
    pub commit: &'a str,
    pub file: &'a str,
    pub url: Url,
    pub cache: CacheRepo,
    /// Where files are until they are whole and checked.
    pub incoming: CacheRepo,
    /// Whether nobody looks at progress.
    pub is_quiet: bool,
    /// A failed question in the user's terms.
    pub explain: &'a dyn Fn(Failure) -> Error,
    /// An answer with this status, and without a file, in the user's terms.
    pub status: &'a dyn Fn(u16) -> Error,
}

/// A file's content, as the Hub announces it.
#[derive(Debug)]
struct Content {
    /// The SHA-256 of large files, git's blob id of small ones, or another server's own kind of tag.
    etag: String,
    size: u64,
}

impl Content {
    /// Whether the tag is a digest of the content.
    fn is_digest(&self) -> bool {
        matches!(self.etag.len(), 40 | 64) && self.etag.bytes().all(|b| b.is_ascii_hexdigit())
    }
}

/// How an attempt at a transfer ended.
enum Attempt {
    Whole,
    /// The connection broke, for this reason.
    Broken(String),
}

impl Wanted<'_> {
    /// The blob, downloaded unless the cache has it.
    pub fn fetch(&self) -> Result<PathBuf> {
        let content = self.ask()?;
        let blob = self.cache.blob_path(&content.etag);
        if self.has(&blob, &content)? {
            return Ok(blob);
        }
        let part = self.incoming.blob_path(&format!("{}.part", content.etag));
        let doing = format!("downloading {} of {}", self.file, self.name);
        let _lock = Lock::wait(&part.with_extension("xtrain.lock"), &doing);
        if !self.has(&blob, &content)? {
            for dir in [&part, &blob].into_iter().filter_map(|path| path.parent()) {
                std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
            }
            self.download(&part, &content)?;
            std::fs::rename(&part, &blob).map_err(Error::io("write", &blob))?;
        }
        Ok(blob)
    }

    /// Whether the cache has the content. A blob of another size is damaged, or, if its name is no
    /// digest, another file's.
    fn has(&self, blob: &Path, content: &Content) -> Result<bool> {
        match blob.metadata() {
            Ok(found) if found.len() == content.size => Ok(true),
            Ok(found) if !content.is_digest() => Err(self.wrong(format!(
                "{} bytes for {}, of which the cache has {} under the same ETag",
                content.size,
                self.file,
                found.len()
            ))),
            _ => Ok(false),
        }
    }

    /// The file's content, as the Hub describes it.
    fn ask(&self) -> Result<Content> {
        let mut ask = self.client.ask(Method::HEAD, self.url.clone());
        ask.only_relative = true;
        let examine = |answer: &Answer| self.same_commit(answer).map(drop);
        let answer = self.client.send(&ask, &examine);
        let answer = answer.map_err(self.explain)?;
        let is_moved = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
        if answer.status != 200 && !is_moved {
            return Err((self.status)(answer.status));
        }
        self.content(&answer, is_moved).map_err(self.explain)
    }

    fn content(&self, answer: &Answer, is_moved: bool) -> Result<Content, Failure> {
        let missing = |what: &str| Failure::Wrong(format!("no {what} for {}", self.file));
        if !self.same_commit(answer).map_err(Failure::Wrong)? {
            return Err(missing("X-Repo-Commit"));
        }
        let etag = tag(answer, true).map_err(Failure::Wrong)?;
        let size = match linked_size(answer).map_err(Failure::Wrong)? {
            // The length of a redirect is not the file's.
            None if !is_moved => answer.length()?,
            size => size,
        };
        Ok(Content {
            etag: etag.ok_or_else(|| missing("ETag"))?,
            size: size.ok_or_else(|| missing("size"))?,
        })
    }

    /// Whether an answer names the snapshot's commit; an error of another one.
    fn same_commit(&self, answer: &Answer) -> Result<bool, String> {
        match super::checks::header(&answer.headers, "X-Repo-Commit")? {
            None => Ok(false),
            Some(commit) if commit == self.commit => Ok(true),
            Some(other) => Err(format!(
                "{} is of commit {} instead of {}",
                self.file,
                shown(other),
                self.commit
            )),
        }
    }

    /// Whether an answer on the way to the file's bytes agrees with what the Hub announced. One of a
    /// store of files, which knows no commits, has tags of its own.
    fn agrees(&self, answer: &Answer, content: &Content) -> Result<(), String> {
        if !self.same_commit(answer)? {
            return Ok(());
        }
        let is_final = matches!(answer.status, 200 | 206);
        if let Some(other) = tag(answer, is_final)?.filter(|tag| *tag != content.etag) {
            return Err(format!(
                "{} has the ETag {other}, after {}",
                self.file, content.etag
            ));
        }
        match linked_size(answer)?.filter(|size| *size != content.size) {
            Some(other) => Err(format!(
                "{} has {other} bytes, after {}",
                self.file, content.size
            )),
            None => Ok(()),
        }
    }

    /// Downloads until the bytes at `part` have the Hub's digest.
    fn download(&self, part: &Path, content: &Content) -> Result<()> {
        let (mut broken, mut damaged) = (0, 0);
        loop {
            let reason = match self.attempt(part, content)? {
                Attempt::Whole => match check(part, content) {
                    Ok(()) => return Ok(()),
                    Err(reason) => reason,
                },
                Attempt::Broken(reason) => {
                    broken += 1;
                    if broken == ATTEMPTS {
                        return Err(self.interrupted(part, content, reason));
                    }
                    continue;
                }
            };
            std::fs::remove_file(part).map_err(Error::io("remove", part))?;
            damaged += 1;
            let (name, file) = (self.name, self.file);
            if damaged == 2 {
                return Err(Error::Damaged {
                    name: name.to_string(),
                    file: file.to_string(),
                    reason,
                });
            }
            errln!("warning: {file} of {name} arrived damaged ({reason}); downloading it again");
        }
    }

    /// Requests what `part` lacks and adds it there.
    fn attempt(&self, part: &Path, content: &Content) -> Result<Attempt> {
        let open = || {
            let options = OpenOptions::new().append(true).create(true).open(part)?;
            // What is longer than the file is not its beginning.
            if options.metadata()?.len() > content.size {
                options.set_len(0)?;
            }
            let start = options.metadata()?.len();
            Ok((options, start))
        };
        let (mut out, start) = open().map_err(Error::io("write", part))?;
        if start == content.size {
            return Ok(Attempt::Whole);
        }
        self.has_room(part, content.size - start, content.size)?;
        let mut ask = self.client.ask(Method::GET, self.url.clone());
        ask.is_file = true;
        if start > 0 {
            ask.headers.push(("range", format!("bytes={start}-")));
        }
        let examine = |answer: &Answer| self.agrees(answer, content);
        let answer = match self.client.send(&ask, &examine) {
            Ok(answer) => answer,
            Err(failure) => return self.failed(failure, part, content),
        };
        let wrong = self.explain;
        let start = match answer.status {
            206 => {
                starts_at(&answer, start, content.size).map_err(wrong)?;
                start
            }
            // A server without ranges sends the whole file.
            200 => {
                out.set_len(0).map_err(Error::io("write", part))?;
                0
            }
            // What a store of files refuses is not for the token to say.
            status if !answer.is_home => {
                return Err(self.wrong(format!("status {status} where {} should be", self.file)));
            }
            status => return Err((self.status)(status)),
        };
        let left = content.size - start;
        let length = answer.length().map_err(wrong)?;
        if let Some(length) = length.filter(|length| *length != left) {
            let file = self.file;
            return Err(self.wrong(format!("{length} bytes of {file} where {left} are left")));
        }
        let bar = self.bar(content.size, start);
        let mut reader = answer.reader();
        let copied = self.copy(&mut reader, &mut out, part, left, &bar)?;
        bar.finish_and_clear();
        if let Err(failure) = copied {
            return self.failed(failure, part, content);
        }
        // Without a length, only the end tells that there is no more.
        if length.is_none() && reader.read(&mut [0]).is_ok_and(|read| read > 0) {
            std::fs::remove_file(part).map_err(Error::io("remove", part))?;
            return Err(self.wrong(format!("more bytes of {} than were announced", self.file)));
        }
        Ok(Attempt::Whole)
    }

    /// Copies exactly `left` bytes. The outer error is of this machine, the inner one of the
    /// connection.
    fn copy(
        &self,
        from: &mut impl Read,
        to: &mut File,
        part: &Path,
        mut left: u64,
        bar: &ProgressBar,
    ) -> Result<Result<(), Failure>> {
        let mut buffer = vec![0; 1 << 18];
        while left > 0 {
            let most = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = match from.read(&mut buffer[..most]) {
                Ok(0) => {
                    let reason = format!("it ended {left} bytes early");
                    return Ok(Err(Failure::Broken(reason)));
                }
                Ok(read) => read,
                Err(error) => return Ok(Err(Answer::broken(error, self.client.patience))),
            };
            to.write_all(&buffer[..read])
                .map_err(Error::io("write", part))?;
            left -= read as u64;
            bar.inc(read as u64);
        }
        Ok(Ok(()))
    }

    /// Whether a failed transfer is tried again: one that broke is.
    fn failed(&self, failure: Failure, part: &Path, content: &Content) -> Result<Attempt> {
        match failure {
            Failure::Broken(reason) => Ok(Attempt::Broken(reason)),
            Failure::Silent(time) => {
                let reason = format!(
                    "nothing or next to nothing came for {} s, HF_HUB_DOWNLOAD_TIMEOUT",
                    time.as_secs_f64()
                );
                Err(self.interrupted(part, content, reason))
            }
            wrong => Err((self.explain)(wrong)),
        }
    }

    fn interrupted(&self, part: &Path, content: &Content, reason: String) -> Error {
        Error::Truncated {
            name: self.name.to_string(),
            file: self.file.to_string(),
            got: part.metadata().map_or(0, |found| found.len()),
            size: content.size,
            reason,
        }
    }

    fn wrong(&self, reason: String) -> Error {
        (self.explain)(Failure::Wrong(reason))
    }

    /// An error if the disk has no room for the bytes that are left.
    fn has_room(&self, part: &Path, left: u64, size: u64) -> Result<()> {
        let dir = part.parent().unwrap_or(part);
        // Where nobody knows, writing tells.
        let Ok(found) = rustix::fs::statvfs(dir) else {
            return Ok(());
        };
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free >= left {
            return Ok(());
        }
        Err(Error::NoRoom {
            name: self.name.to_string(),
            file: self.file.to_string(),
            size,
            free,
            dir: dir.to_path_buf(),
        })
    }

    fn bar(&self, size: u64, done: u64) -> ProgressBar {
        if self.is_quiet || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let position = "{bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let bar = progress::bar(self.file, size, position);
        bar.set_position(done);
        bar
    }
}

/// The tag of the content that an answer is about: that of the file behind a link or, if wanted,
/// its own.
fn tag(answer: &Answer, or_own: bool) -> Result<Option<String>, String> {
    let header = |name| super::checks::header(&answer.headers, name);
    let text = match header("X-Linked-ETag")? {
        None if or_own => header("ETag")?,
        linked => linked,
    };
    let plain = |text| etag(text).map(str::to_string);
    text.map(|text| plain(text).ok_or_else(|| format!("the ETag {} is no digest", shown(text))))
        .transpose()
}

fn linked_size(answer: &Answer) -> Result<Option<u64>, String> {
    let text = super::checks::header(&answer.headers, "X-Linked-Size")?;
    text.map(|text| size(text).ok_or_else(|| format!("{} is no size", shown(text))))
        .transpose()
}

/// Whether a partial answer is the rest of a file of `size` bytes from `start` on.
fn starts_at(answer: &Answer, start: u64, size: u64) -> Result<(), Failure> {
    let text = answer.header("Content-Range")?.unwrap_or_default();
    match range(text) {
        Some((first, last, total))
            if first == start && last == size - 1 && total.is_none_or(|total| total == size) =>
        {
            Ok(())
        }
        _ => Err(Failure::Wrong(format!(
            "the range {} where bytes {start}-{}/{size} were asked for",
            shown(text),
            size - 1
        ))),
    }
}

/// Compares a file with its size and checksum.
fn check(path: &Path, content: &Content) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let mut file = File::open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    file.rewind().map_err(failed)?;
    if size != content.size {
        return Err(format!("{size} bytes instead of {}", content.size));
    }
    let found = match content.etag.len() {
        // Another server's own kind of tag: the size is all there is.
        _ if !content.is_digest() => return Ok(()),
        64 => digest::<Sha256>(&mut file, &[]),
        _ => digest::<Sha1>(&mut file, format!("blob {size}\0").as_bytes()),
    };
    let found = found.map_err(failed)?;
    if found == content.etag.to_lowercase() {
        Ok(())
    } else {
        Err(format!("checksum {found} instead of {}", content.etag))
    }
}

/// Digest of a prefix and all that can be read, as hexadecimal.
pub(super) fn digest<D: Digest>(file: &mut impl Read, prefix: &[u8]) -> io::Result<String> {
    let mut hasher = D::new();
    hasher.update(prefix);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
