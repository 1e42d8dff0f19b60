//! Entries in a bucket or on a web server, which a fleet shares. An entry is the object
//! `ID.graph`, byte for byte the file of a local store; where a key is given it is `ID.signed`, with
//! a signature before it, and only signed entries are taken: what is loaded is native code. Nothing
//! that such a store does stops a run: after its first failure it is left alone, with one line.

use super::entry::{self, Content, Damage, Entry, Header};
use super::key::Key;
use super::store::{Claim, EntryStore, Listed, is_id};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use xtrain_checkpoint::hash;
use xtrain_distributed::secret::Secret;
use xtrain_objects::{Effort, Error, Folder};
use xtrain_report::errln;
use xtrain_report::progress::say;
use xtrain_report::telemetry::host;
use xtrain_report::units::duration;

/// A compile is worth minutes, so that a store has seconds to answer, and an entry two minutes to
/// arrive.
const EFFORT: Effort = Effort {
    patience: Duration::from_secs(10),
    whole: Some(Duration::from_secs(120)),
    retries: 2,
    retry_timeout: Duration::from_secs(20),
};

/// Bytes of an entry, at most: as many as one answer may have.
const LARGEST: u64 = 1 << 30;

/// Between two signs of life of a host that compiles, and two looks at it.
const RENEWAL: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_secs(2);
/// A host without a sign of life for so long is gone.
const SILENCE: Duration = Duration::from_secs(90);
/// Whoever holds a claim for longer is not waited for: a store may claim anything.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// What a signed entry begins with; its signature and a line's end follow.
const SIGNED: &str = "xtrain signed entry ";
const SIGNATURE: usize = 64;

/// The entries below a URL.
pub struct RemoteStore {
    url: String,
    folder: Arc<Folder>,
    key: Option<Secret>,
    /// Set by the first failure.
    is_off: AtomicBool,
    /// How long a claim may be silent, and how often it is looked at.
    silence: Duration,
    look: Duration,
}

impl RemoteStore {
    /// Asks nothing of the store yet.
    ///
    /// # Errors
    /// The URL names no folder of a kind that is served.
    pub fn open(url: &str, key: Option<Secret>) -> Result<RemoteStore, Error> {
        let url = url.trim_end_matches('/');
        Ok(RemoteStore {
            folder: Arc::new(Folder::open(&format!("{url}/graphs"), &EFFORT)?),
            url: url.to_string(),
            key,
            is_off: AtomicBool::new(false),
            silence: SILENCE,
            look: LOOK,
        })
    }

    /// Whether the store failed, and is not asked any more.
    pub fn has_failed(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    fn name(&self, id: &str) -> String {
        match self.key {
            Some(_) => format!("{id}.signed"),
            None => format!("{id}.graph"),
        }
    }

    /// The store has failed: it is not asked again, so that a run does not wait for it at each graph.
    fn give_up(&self, error: &Error) {
        if !self.is_off.swap(true, Ordering::Relaxed) {
            let url = &self.url;
            say(&format!(
                "warning: --cache_remote {url} is not used any more in this run: {error}"
            ));
        }
    }

    /// The answer of the store, if it is still asked.
    fn ask<T>(&self, request: impl FnOnce(&Folder) -> Result<T, Error>) -> Option<T> {
        if self.is_off.load(Ordering::Relaxed) {
            return None;
        }
        match request(&self.folder) {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.give_up(&error);
                None
            }
        }
    }

    fn sign(&self, id: &str, bytes: &[u8]) -> Option<String> {
        let key = self.key.as_ref()?;
        Some(key.proof(&["cache entry", id, &hash::sha256(bytes)]))
    }

    /// The entry in an object, whose signature is checked where there is a key.
    fn unpacked<'b>(&self, id: &str, object: &'b [u8]) -> Result<&'b [u8], Damage> {
        let Some(key) = &self.key else {
            return Ok(object);
        };
        let rest = object.strip_prefix(SIGNED.as_bytes());
        let parts = rest.and_then(|rest| rest.split_at_checked(SIGNATURE));
        let Some((signature, entry)) = parts else {
            return Err(Damage::Signature);
        };
        let signature = std::str::from_utf8(signature).map_err(|_| Damage::Signature)?;
        let entry = entry.strip_prefix(b"\n").ok_or(Damage::Signature)?;
        let is_right = key.accepts(signature, &["cache entry", id, &hash::sha256(entry)]);
        is_right.then_some(entry).ok_or(Damage::Signature)
    }

    /// The entry of this id as an open file without a name; `None` if there is none.
    fn fetch(&self, id: &str) -> Result<Option<Entry>, Damage> {
        let name = self.name(id);
        let object = if self.is_off.load(Ordering::Relaxed) {
            None
        } else {
            match self.folder.get(&name, LARGEST) {
                Ok(object) => object,
                // It may be one object alone.
                Err(error @ Error::TooLarge { .. }) => {
                    return Err(Damage::Io(io::Error::other(error)));
                }
                Err(error) => {
                    self.give_up(&error);
                    None
                }
            }
        };
        let Some(object) = object else {
            return Ok(None);
        };
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(self.unpacked(id, &object)?)?;
        file.flush()?;
        // Its name goes with the guard, the open file stays.
        Entry::open(file.path()).map(Some)
    }

    /// Writes the bytes of an entry; whether the store took them.
    pub fn put(&self, id: &str, entry: Vec<u8>) -> bool {
        let object = match self.sign(id, &entry) {
            Some(signature) => {
                let mut object = format!("{SIGNED}{signature}\n").into_bytes();
                object.extend_from_slice(&entry);
                object
            }
            None => entry,
        };
        let name = self.name(id);
        self.ask(|folder| folder.put(&name, object)).is_some()
    }

    /// Ids with sizes and times, the newest first: of signed entries where there is a key. Other
    /// names are passed over.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn objects(&self) -> Result<Vec<(String, u64, i64)>, Error> {
        let ending = self.name("");
        let entry = |object: xtrain_objects::Object| {
            let id = object.name.strip_suffix(&ending)?;
            is_id(id).then(|| (id.to_string(), object.bytes, object.modified))
        };
        let mut found: Vec<_> = self.folder.list()?.into_iter().filter_map(entry).collect();
        found.sort_by(|a, b| (b.2, &a.0).cmp(&(a.2, &b.0)));
        Ok(found)
    }

    /// Holds a claim that was made, with a sign of life from time to time.
    fn hold(&self, name: String) -> Claim {
        let (stop, stopped) = channel::<()>();
        let folder = self.folder.clone();
        let renewed = name.clone();
        let renew = move || {
            let mut count = 0u64;
            while stopped.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
                count += 1;
                let _ = folder.put(&renewed, claim_text(count));
            }
        };
        let thread = std::thread::Builder::new().name("claim".into());
        let thread = thread.spawn(renew).ok();
        Claim::new(Held {
            folder: self.folder.clone(),
            name,
            stop: Some(stop),
            thread,
        })
    }
}

fn claim_text(count: u64) -> Vec<u8> {
    format!("{} {} {count}\n", host(), std::process::id()).into_bytes()
}

/// A claim of this process.
struct Held {
    folder: Arc<Folder>,
    name: String,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = self.folder.remove(&self.name);
    }
}

impl EntryStore for RemoteStore {
    fn find(&self, key: &Key) -> Result<Option<Entry>, Damage> {
        match self.fetch(&key.id())? {
            None => Ok(None),
            Some(entry) => match Key::changes(&entry.header.key, key).first() {
                None => Ok(Some(entry)),
                Some((part, ..)) => Err(Damage::Foreign((*part).to_string())),
            },
        }
    }

    fn open(&self, id: &str) -> Result<Entry, Damage> {
        let missing = || Damage::Io(io::ErrorKind::NotFound.into());
        let entry = self.fetch(id)?.ok_or_else(missing)?;
        if entry.header.key.id() == id {
            Ok(entry)
        } else {
            Err(Damage::Foreign("its id".into()))
        }
    }

    fn insert(&self, header: Header, parts: &[(Content, &[u8])]) -> xtrain_checkpoint::Result<()> {
        let (id, mut bytes) = (header.key.id(), Vec::new());
        let path = self.path(&id);
        entry::write(&mut bytes, header, parts)
            .map_err(xtrain_checkpoint::Error::io("write", &path))?;
        self.put(&id, bytes);
        Ok(())
    }

    /// Nothing: looking into the headers of all would cost a request each.
    fn list(&self) -> io::Result<Vec<Listed>> {
        Ok(Vec::new())
    }

    /// Nothing: whoever owns the store decides how long it keeps objects.
    fn evict(&self, _: u64, _: &str) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn count_use(&self, _: &str) {}

    fn path(&self, id: &str) -> PathBuf {
        PathBuf::from(format!("{}/graphs/{}", self.url, self.name(id)))
    }

    fn lock_path(&self, id: &str) -> PathBuf {
        PathBuf::from(format!("{}/graphs/{id}.claim", self.url))
    }

    /// A claim is an object that is created and never replaced by another host. Who finds one waits
    /// until the entry is there, the claim is gone, or its host gives no sign of life.
    fn share(&self, id: &str, doing: &str) -> Claim {
        let (claim, entry) = (format!("{id}.claim"), self.name(id));
        let began = Instant::now();
        let (mut seen, mut since) = (None, Instant::now());
        while !self.is_off.load(Ordering::Relaxed) {
            match self.folder.create(&claim, claim_text(0)) {
                Ok(true) => return self.hold(claim),
                Ok(false) => {}
                // Every host compiles for itself.
                Err(Error::NotSupported(_)) => return Claim::none(),
                Err(error) => {
                    self.give_up(&error);
                    return Claim::none();
                }
            }
            if seen.is_none() {
                errln!("waiting for another host, which is {doing}");
            }
            loop {
                if began.elapsed() > LONGEST {
                    let waited = duration(LONGEST);
                    errln!(
                        "another host claims to be {doing} after {waited}: not waiting any longer"
                    );
                    return Claim::none();
                }
                let Some(is_stored) = self.ask(|folder| folder.tag(&entry)) else {
                    return Claim::none();
                };
                if is_stored.is_some() {
                    return Claim::none();
                }
                let Some(now) = self.ask(|folder| folder.tag(&claim)) else {
                    return Claim::none();
                };
                let Some(now) = now else { break };
                if seen.as_ref() != Some(&now) {
                    (seen, since) = (Some(now), Instant::now());
                } else if since.elapsed() > self.silence {
                    errln!("the host that was {doing} gives no sign of life");
                    let _ = self.folder.remove(&claim);
                    break;
                }
                sleep(self.look);
            }
        }
        Claim::none()
    }
}
