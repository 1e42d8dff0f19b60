//! Commits to the Hub, by the calls that huggingface_hub makes: create the repository, ask how each
//! file is stored (`preupload`), upload large files by the LFS protocol, in parts where the Hub
//! wants them, and send the commit as lines of JSON.
//!
//! A call that meets a broken connection or a server in trouble is repeated with growing pauses, for
//! a bounded time. The commit is repeated too: at worst the branch has two commits with the same
//! files. An address that is none, or an answer that makes no sense, fails at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::Sha256;
use ureq::http::Method;
use url::Url;

use super::answers::{Action, Committed, Made, Mode, Modes, Objects, Refusal};
use super::checks::{header, is_commit, is_name};
use super::client::{self, Ask, Client, Failure, Sent};
use super::download::digest;
use super::error::{Error, Result};
use super::settings::HubSettings;

/// How often a call is repeated, and the longest pause before that.
const RETRIES: u32 = 5;
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The longest pause that a server can ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// How long the head of an answer may take, in terms of the patience, and that of one for which the
/// other side has to work through all that was sent.
const WAIT: u32 = 3;
const LONG_WAIT: u32 = 10;

/// All pauses of a call, likewise.
const MOST_PAUSES: u32 = 12;

/// Bytes a second below which an upload is not repeated.
const SLOWEST_UPLOAD: u64 = 64 << 10;

/// Bytes of what a store of objects calls a part.
const LONGEST_TAG: usize = 256;

/// Files of one question, as huggingface_hub asks.
const ASKED_AT_ONCE: usize = 256;

/// Bytes of a file that the Hub looks at to decide how it is stored.
const SAMPLE: u64 = 512;

/// Of the server's own words in a message.
const LONGEST_REASON: usize = 300;

const JSON: &str = "application/json";
const LFS_JSON: &str = "application/vnd.git-lfs+json";

/// Whether a repository can be made under this name, `NAME` or `ORGANIZATION/NAME`.
pub fn is_new_name(name: &str) -> bool {
    is_name(name) && !name.contains("--") && !name.contains("..") && !name.ends_with(".git")
}

/// A file of a commit. It is open, so that what happens to its name later changes nothing; of one
/// that grows, what was there at first is committed.
#[derive(Debug)]
pub struct Addition {
    /// In the repository.
    path: String,
    file: File,
    size: u64,
}

impl Addition {
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: impl Into<String>, file: &Path) -> Result<Addition> {
        let open = || {
            let opened = File::open(file)?;
            let size = opened.metadata()?.len();
            Ok((opened, size))
        };
        let (opened, size) = open().map_err(Error::io("open", file))?;
        Ok(Addition {
            path: path.into(),
            file: opened,
            size,
        })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// `length` bytes from `start` on.
    fn slice(&self, start: u64, length: u64) -> Slice<'_> {
        Slice {
            file: &self.file,
            at: start,
            end: self.size.min(start + length),
        }
    }

    fn all(&self) -> Slice<'_> {
        self.slice(0, self.size)
    }

    fn bytes(&self, length: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.slice(0, length).read_to_end(&mut bytes);
        read.map_err(Error::io("read", Path::new(&self.path)))?;
        Ok(bytes)
    }

    fn sha256(&self) -> Result<String> {
        digest::<Sha256>(&mut self.all(), &[]).map_err(Error::io("read", Path::new(&self.path)))
    }

    /// Git's name for it.
    fn blob(&self) -> Result<String> {
        let head = format!("blob {}\0", self.size);
        digest::<Sha1>(&mut self.all(), head.as_bytes())
            .map_err(Error::io("read", Path::new(&self.path)))
    }
}

/// A range of a file. One that ends before its range does is an error: what is sent would not be
/// what was announced.
struct Slice<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Slice<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..wanted], self.at)?;
        if read == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        Ok(read)
    }
}

/// How a file gets into a commit.
enum Upload<'a> {
    /// In the commit itself.
    Regular(&'a Addition),
    /// By its digest, uploaded before.
    Large(&'a Addition, String),
}

/// What a server answered.
struct Answer {
    status: u16,
    /// Its own words about a refusal.
    reason: String,
    etag: Option<String>,
    bytes: Vec<u8>,
}

/// A repository that commits go to.
pub struct Repository {
    client: Client,
    endpoint: String,
    name: String,
    revision: String,
    token: String,
    /// Before the first repetition of a call.
    pub(super) pause: Duration,
}

impl Repository {
    /// Makes the repository unless it exists; `private` (`None`: as the account has it) is for a
    /// new one. A `name` without an organization is one of the token's account.
    ///
    /// # Errors
    /// If there is no token, the Hub does not answer or does not let this token write there, or
    /// the branch `revision` does not exist.
    pub fn create(
        settings: &HubSettings,
        name: &str,
        private: Option<bool>,
        revision: Option<&str>,
    ) -> Result<Repository> {
        if settings.offline {
            return Err(Error::PushOffline {
                name: name.to_string(),
            });
        }
        let Some(token) = settings.token.clone() else {
            return Err(Error::PushWithoutToken {
                name: name.to_string(),
            });
        };
        let mut repository = Repository {
            client: Client::new(settings)?,
            endpoint: settings.endpoint_url(),
            name: name.to_string(),
            revision: revision.unwrap_or("main").to_string(),
            token,
            pause: Duration::from_secs(1),
        };
        repository.make(private)?;
        if revision.is_some() {
            let url = repository.api(&["revision", &repository.revision]);
            repository.accepted(repository.get(url)?)?;
        }
        Ok(repository)
    }

    /// With its organization.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where people look at it.
    pub fn url(&self) -> String {
        format!("{}/{}", self.endpoint, self.name)
    }

    fn api(&self, more: &[&str]) -> Url {
        let segments = ["api", "models"].into_iter().chain(self.name.split('/'));
        self.client.url(segments.chain(more.iter().copied()))
    }

    fn make(&mut self, private: Option<bool>) -> Result<()> {
        let (organization, short) = match self.name.split_once('/') {
            Some((organization, name)) => (Some(organization), name),
            None => (None, self.name.as_str()),
        };
        let mut body = json!({"name": short, "organization": organization, "type": "model"});
        if let Some(private) = private {
            body["visibility"] = if private { "private" } else { "public" }.into();
        }
        let url = self.client.url(["api", "repos", "create"]);
        let answer = self.post(url, JSON, body.to_string().as_bytes())?;
        match answer.status {
            // It exists.
            200..300 | 409 => {}
            // A token may be allowed to write to a repository, and not to make one.
            401..=403 if self.get(self.api(&[]))?.status == 200 => return Ok(()),
            _ => return self.accepted(answer).map(drop),
        }
        if organization.is_some() {
            return Ok(());
        }
        // The answer has the whole name, whose account alone is not known here.
        let made: Made = self.json(&answer)?;
        let mut parts = made.url.trim_end_matches('/').rsplit('/');
        let made = parts
            .next()
            .zip(parts.next())
            .filter(|(name, _)| *name == short)
            .map(|(name, account)| format!("{account}/{name}"));
        let made = made.filter(|made| is_name(made));
        self.name = made.ok_or_else(|| self.senseless("no address of the repository"))?;
        Ok(())
    }

    /// A text file of the branch, if it has it.
    ///
    /// # Errors
    /// If the Hub refuses or cannot be reached.
    pub fn text(&self, path: &str) -> Result<Option<String>> {
        let segments = self.name.split('/').chain(["resolve", &self.revision]);
        let answer = self.get(self.client.url(segments.chain(path.split('/'))))?;
        match answer.status {
            404 => Ok(None),
            _ => {
                let bytes = self.accepted(answer)?.bytes;
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
        }
    }

    /// Commits the files on the branch; others that are there stay. Returns whether there was
    /// anything new.
    ///
    /// # Errors
    /// If a file cannot be read, the Hub refuses or damages something, or cannot be reached. The
    /// branch is as it was then.
    pub fn commit(&self, files: &[Addition], message: &str) -> Result<bool> {
        let mut uploads = Vec::new();
        for files in files.chunks(ASKED_AT_ONCE) {
            uploads.extend(self.modes(files)?);
        }
        if uploads.is_empty() {
            return Ok(false);
        }
        let large: Vec<(&Addition, &str)> = uploads
            .iter()
            .filter_map(|upload| match upload {
                Upload::Large(file, digest) => Some((*file, digest.as_str())),
                Upload::Regular(_) => None,
            })
            .collect();
        for files in large.chunks(ASKED_AT_ONCE) {
            self.upload_large(files)?;
        }
        let head = json!({"key": "header", "value": {"summary": message, "description": ""}});
        let mut lines = format!("{head}\n");
        for upload in &uploads {
            let line = match upload {
                Upload::Regular(file) => json!({"key": "file", "value": {
                    "content": STANDARD.encode(file.bytes(file.size)?),
                    "path": file.path, "encoding": "base64",
                }}),
                Upload::Large(file, digest) => json!({"key": "lfsFile", "value": {
                    "path": file.path, "algo": "sha256", "oid": digest, "size": file.size,
                }}),
            };
            lines.push_str(&format!("{line}\n"));
        }
        let url = self.api(&["commit", &self.revision]);
        let long = self.client.patience * LONG_WAIT;
        let answer = self.send(url, "application/x-ndjson", lines.as_bytes(), true, long)?;
        let answer = self.accepted(answer)?;
        let committed: Committed = self.json(&answer)?;
        if !is_commit(&committed.commit_oid) {
            return Err(self.senseless("no commit"));
        }
        Ok(true)
    }

    /// How each file is stored; without those that the branch has in the same form, or that its
    /// `.gitignore` names.
    fn modes<'a>(&self, files: &'a [Addition]) -> Result<Vec<Upload<'a>>> {
        let mut asked = Vec::new();
        for file in files {
            let sample = STANDARD.encode(file.bytes(SAMPLE)?);
            asked.push(json!({"path": file.path, "sample": sample, "size": file.size}));
        }
        let url = self.api(&["preupload", &self.revision]);
        let body = json!({"files": asked}).to_string();
        let answer = self.accepted(self.post(url, JSON, body.as_bytes())?)?;
        let found: Modes = self.json(&answer)?;
        let modes: BTreeMap<&str, &Mode> = found
            .files
            .iter()
            .map(|mode| (mode.path.as_str(), mode))
            .collect();
        let mut uploads = Vec::new();
        for file in files {
            let unknown = || self.senseless(&format!("no upload mode for {}", file.path));
            let mode = modes.get(file.path.as_str()).ok_or_else(unknown)?;
            if mode.should_ignore == Some(true) {
                continue;
            }
            let (upload, digest) = match mode.upload_mode.as_str() {
                // Nothing can't be uploaded to a store of large objects.
                "lfs" if file.size > 0 => {
                    let digest = file.sha256()?;
                    (Upload::Large(file, digest.clone()), digest)
                }
                "lfs" | "regular" => (Upload::Regular(file), file.blob()?),
                _ => return Err(unknown()),
            };
            if mode.oid.as_ref() != Some(&digest) {
                uploads.push(upload);
            }
        }
        Ok(uploads)
    }

    fn upload_large(&self, files: &[(&Addition, &str)]) -> Result<()> {
        let objects = files.iter();
        let objects = objects.map(|(file, digest)| json!({"oid": digest, "size": file.size}));
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256",
            "objects": objects.collect::<Vec<Value>>(), "ref": {"name": self.revision},
        });
        let git = format!("{}.git", self.name);
        let segments = git.split('/').chain(["info", "lfs", "objects", "batch"]);
        let url = self.client.url(segments);
        let answer = self.accepted(self.post(url, LFS_JSON, body.to_string().as_bytes())?)?;
        let found: Objects = self.json(&answer)?;
        for (file, digest) in files {
            let object = found.objects.iter().find(|object| object.oid == *digest);
            let object = object
                .ok_or_else(|| self.senseless(&format!("no upload address for {}", file.path)))?;
            if let Some(refusal) = &object.error {
                let reason = refusal.message.as_deref().unwrap_or("it does not take it");
                return Err(self.refused(&format!("{}: {}", file.path, self.shown(reason))));
            }
            // Without an address the Hub has it.
            if let Some(actions) = &object.actions
                && let Some(upload) = &actions.upload
            {
                self.upload(file, digest, upload, actions.verify.as_ref())?;
            }
        }
        Ok(())
    }

    /// Sends a file to where `upload` says. These addresses carry their own rights: the token is
    /// for the Hub alone.
    fn upload(
        &self,
        file: &Addition,
        digest: &str,
        upload: &Action,
        verify: Option<&Action>,
    ) -> Result<()> {
        let url = self.address(&upload.href)?;
        let parts = upload.header.as_ref();
        let size = parts.and_then(|parts| parts.size).filter(|size| *size > 0);
        match parts.zip(size) {
            None => drop(self.put(url, file, 0, file.size)?),
            Some((parts, size)) => {
                let parts = self.parts(file, &parts.addresses, size)?;
                let done = json!({"oid": digest, "parts": parts}).to_string();
                // The store gathers them meanwhile.
                let long = self.client.patience * LONG_WAIT;
                self.accepted(self.send(url, LFS_JSON, done.as_bytes(), false, long)?)?;
            }
        }
        if let Some(verify) = verify {
            let url = self.address(&verify.href)?;
            let body = json!({"oid": digest, "size": file.size}).to_string();
            self.accepted(self.post(url, JSON, body.as_bytes())?)?;
        }
        Ok(())
    }

    /// Sends a file in parts of `size` bytes to addresses by their numbers.
    fn parts(
        &self,
        file: &Addition,
        addresses: &BTreeMap<u64, String>,
        size: u64,
    ) -> Result<Vec<Value>> {
        let count = file.size.div_ceil(size);
        if !addresses.keys().copied().eq(1..=count) {
            let found = format!("not the addresses of {count} parts of {}", file.path);
            return Err(self.senseless(&found));
        }
        let urls = addresses.values().map(|url| self.address(url));
        let urls: Vec<Url> = urls.collect::<Result<_>>()?;
        let mut done = Vec::new();
        for (place, url) in urls.into_iter().enumerate() {
            let answer = self.put(url, file, place as u64 * size, size)?;
            let is_tag = |etag: &String| (1..=LONGEST_TAG).contains(&etag.len());
            let etag = answer.etag.filter(is_tag);
            let etag = etag.ok_or_else(|| self.senseless("no ETag of an uploaded part"))?;
            done.push(json!({"partNumber": place + 1, "etag": etag}));
        }
        Ok(done)
    }

    /// An address that the Hub names.
    fn address(&self, text: &str) -> Result<Url> {
        let url = self.client.address(text);
        url.map_err(|failure| self.failed(failure, 1))
    }

    fn put(&self, url: Url, file: &Addition, start: u64, length: u64) -> Result<Answer> {
        let length = length.min(file.size - start);
        let open = || -> Box<dyn Read + '_> { Box::new(file.slice(start, length)) };
        let answer = self.call(Ask {
            body: Some(Sent {
                length,
                open: &open,
            }),
            with_token: false,
            wait: self.client.patience * WAIT,
            ..self.client.ask(Method::PUT, url)
        })?;
        self.accepted(answer)
    }

    fn get(&self, url: Url) -> Result<Answer> {
        self.call(Ask {
            wait: self.client.patience * WAIT,
            ..self.client.ask(Method::GET, url)
        })
    }

    /// Sends a text, with the token if the address is the endpoint's.
    fn post(&self, url: Url, kind: &str, body: &[u8]) -> Result<Answer> {
        self.send(url, kind, body, true, self.client.patience * WAIT)
    }

    fn send(
        &self,
        url: Url,
        kind: &str,
        body: &[u8],
        with_token: bool,
        wait: Duration,
    ) -> Result<Answer> {
        let open = || -> Box<dyn Read + '_> { Box::new(body) };
        self.call(Ask {
            headers: vec![
                ("accept", kind.to_string()),
                ("content-type", kind.to_string()),
            ],
            body: Some(Sent {
                length: body.len() as u64,
                open: &open,
            }),
            with_token,
            wait,
            ..self.client.ask(Method::POST, url)
        })
    }

    /// Makes a call until there is an answer that repeating it would not change.
    fn call(&self, ask: Ask<'_>) -> Result<Answer> {
        let length = ask.body.as_ref().map_or(0, |sent| sent.length);
        let waiting = ask.wait * 3 / 2 + Duration::from_secs(length / SLOWEST_UPLOAD);
        let pausing = self.client.patience * MOST_PAUSES;
        let (began, mut paused) = (Instant::now(), Duration::ZERO);
        let mut pause = self.pause;
        for attempt in 1.. {
            let is_last = |pause: Duration| {
                let waited = began.elapsed().saturating_sub(paused);
                attempt > RETRIES || waited > waiting || paused + pause > pausing
            };
            let answer = self.client.send(&ask, &|_| Ok(()));
            let next = match answer.and_then(|answer| self.read(answer)) {
                Ok((answer, asked)) => {
                    let is_trouble = matches!(answer.status, 408 | 429 | 500 | 502..=504);
                    let next = asked.unwrap_or(pause).min(LONGEST_ASKED);
                    if !is_trouble || is_last(next) {
                        return Ok(answer);
                    }
                    next
                }
                Err(Failure::Wrong(reason)) => return Err(self.senseless(&reason)),
                Err(failure) if is_last(pause) => return Err(self.failed(failure, attempt)),
                Err(_) => pause,
            };
            std::thread::sleep(next);
            paused += next;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
        unreachable!("the loop has no end of its own")
    }

    /// An answer with its body, and the pause that it asks for.
    fn read(&self, answer: client::Answer) -> Result<(Answer, Option<Duration>), Failure> {
        let one = |name: &str| {
            let value = header(&answer.headers, name).map_err(Failure::Wrong)?;
            Ok(value.map(str::to_string))
        };
        let (etag, said, pause) = (one("etag")?, one("x-error-message")?, one("retry-after")?);
        let pause = pause.and_then(|text| text.parse().ok());
        let status = answer.status;
        let bytes = answer.bytes()?;
        // Only who refuses says why, and a store need not say it in JSON.
        let refusal = match status {
            400.. => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => Refusal::default(),
        };
        let said = said.or(refusal.error).or(refusal.message);
        let answer = Answer {
            status,
            reason: self.shown(&said.unwrap_or_default()),
            etag,
            bytes,
        };
        Ok((answer, pause.map(Duration::from_secs)))
    }

    fn json<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T> {
        let value = serde_json::from_slice(&answer.bytes);
        value.map_err(|error| self.senseless(&format!("its JSON: {error}")))
    }

    /// A call without an answer, in the user's terms.
    fn failed(&self, failure: Failure, attempts: u32) -> Error {
        let reason = match failure {
            Failure::Wrong(reason) => return self.senseless(&reason),
            Failure::Broken(reason) => reason,
            Failure::Silent(time) => format!("no answer for {} s", time.as_secs_f64()),
        };
        Error::PushBroken {
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            attempts,
            reason: self.shown(&reason),
        }
    }

    /// The server's own words, in one line and without the token.
    fn shown(&self, words: &str) -> String {
        let words = words.replace(&self.token, "***");
        let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
        plain.take(LONGEST_REASON).collect()
    }

    fn accepted(&self, answer: Answer) -> Result<Answer> {
        let (name, endpoint) = (self.name.clone(), self.endpoint.clone());
        Err(match answer.status {
            200..300 => return Ok(answer),
            // A redirect or the like: no refusal, and no answer either.
            status @ ..=399 => self.senseless(&format!("status {status}")),
            401 => Error::PushUnauthorized { name, endpoint },
            403 => Error::PushForbidden { name, endpoint },
            404 => Error::PushNotFound {
                name,
                endpoint,
                revision: self.revision.clone(),
            },
            409 | 412 => Error::PushConflict { name, endpoint },
            status => self.refused(&match answer.reason.as_str() {
                "" => format!("status {status}"),
                reason => format!("status {status}: {reason}"),
            }),
        })
    }

    fn refused(&self, reason: &str) -> Error {
        Error::PushRefused {
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            reason: reason.to_string(),
        }
    }

    fn senseless(&self, found: &str) -> Error {
        Error::Answer {
            endpoint: self.endpoint.clone(),
            name: self.name.clone(),
            reason: self.shown(found),
        }
    }
}
