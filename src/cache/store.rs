//! Entries in a directory, shared by any number of processes.
//!
//! Plain files and no database: a rename is the only commit there is, so a crash at any moment
//! leaves whole entries; readers need no lock and no write permission; and an entry can be copied
//! by hand. `ID.graph` is an entry, `ID.uses` has one byte for each time it was loaded (its length
//! is the count, its time of change the last use; appending needs no lock), `locks/` holds the
//! locks of those who compile just now.

use super::entry::{self, Content, Damage, Entry, Header};
use super::key::Key;
use rayon::prelude::*;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xtrain_checkpoint::atomic;
use xtrain_checkpoint::lock::Lock;
use xtrain_report::telemetry;

const ENTRY: &str = "graph";
const USES: &str = "uses";

/// The right to compile a graph of a store that several hosts write, until it is dropped. One that is
/// none of any host's is as good: then two may do the same work.
pub struct Claim(Option<Box<dyn Send>>);

impl Claim {
    pub(crate) fn new(held: impl Send + 'static) -> Claim {
        Claim(Some(Box::new(held)))
    }

    pub(crate) fn none() -> Claim {
        Claim(None)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// What keeps compiled graphs. [`Store`] is a directory; what reads from elsewhere is beside it.
pub trait EntryStore: Send + Sync {
    /// The entry of this key; `None` if there is none. One that lies under the right name with
    /// another key is damaged.
    fn find(&self, key: &Key) -> Result<Option<Entry>, Damage>;

    /// The entry of this id.
    fn open(&self, id: &str) -> Result<Entry, Damage>;

    /// Stores an entry. What killed writers left is cleaned on the way.
    fn insert(&self, header: Header, parts: &[(Content, &[u8])]) -> xtrain_checkpoint::Result<()>;

    /// All entries, the last used first. Reads headers only.
    fn list(&self) -> io::Result<Vec<Listed>>;

    /// Removes the least recently used entries until the rest fits; the one named stays. Returns
    /// what went.
    ///
    /// # Errors
    /// If the directory cannot be read, or if too much stays because an entry cannot be removed.
    fn evict(&self, max_bytes: u64, keep: &str) -> io::Result<Vec<String>>;

    /// Counts a use. In a directory that cannot be written nothing is counted, and nothing else
    /// goes wrong.
    fn count_use(&self, id: &str);

    /// Where the entry of this id is or would be, for messages.
    fn path(&self, id: &str) -> PathBuf;

    /// Of the lock under which an entry is made.
    fn lock_path(&self, id: &str) -> PathBuf;

    /// Waits until no other host compiles this graph for the same store; `doing` is what such a host
    /// does. Processes of this host take turns by [`Self::lock_path`].
    fn claim(&self, _id: &str, _doing: &str) -> Claim {
        Claim::none()
    }

    /// The same where this store is the one that several hosts share.
    fn share(&self, id: &str, doing: &str) -> Claim {
        Lock::wait(&self.lock_path(id), doing).map_or_else(Claim::none, Claim::new)
    }

    /// The module that this key's graph is lowered to, from whichever entry has it: of another
    /// device, of other options, or of a compile check. One that is damaged is passed over.
    fn module(&self, key: &Key) -> Option<Vec<u8>> {
        let same = |listed: &Listed| {
            listed
                .header
                .as_ref()
                .is_ok_and(|header| header.key.has_module_of(key))
        };
        let read = |listed: Listed| {
            let module = self
                .open(&listed.id)
                .and_then(|mut entry| entry.read(Content::Module))
                .ok()
                .flatten()?;
            // What was brought here lowered must not be the first to go.
            self.count_use(&listed.id);
            Some(module)
        };
        self.list().ok()?.into_iter().filter(same).find_map(read)
    }
}

/// The directory of entries.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// An entry as a listing shows it.
pub struct Listed {
    pub id: String,
    pub file_bytes: u64,
    pub uses: u64,
    /// Seconds since 1970; when it was stored, if it was never loaded.
    pub last_used: u64,
    pub header: Result<Header, Damage>,
}

/// What is known of an entry without opening it.
struct Found {
    id: String,
    bytes: u64,
    uses: u64,
    last_used: u64,
}

fn seconds(time: io::Result<SystemTime>) -> u64 {
    time.ok()
        .and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_secs())
}

/// An error of the system's with the path that it is about.
fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Nothing is there: not the file, or not even a directory for it. Whether one can be made shows
/// when something is stored.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether a text is an entry's id.
pub fn is_id(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
}

/// Seconds since 1970, now.
pub fn now() -> u64 {
    telemetry::now() as u64
}

/// How long ago a time in seconds since 1970 was; nothing for the future, which a wrong clock
/// makes.
pub fn age(since: u64) -> Duration {
    Duration::from_secs(now().saturating_sub(since))
}

impl Store {
    pub fn new(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn uses_path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.{USES}"))
    }

    /// Whether there is an entry of this id, whatever its state.
    pub fn find_id(&self, id: &str) -> bool {
        self.path(id).exists()
    }

    /// Removes an entry; whoever is reading it reads on.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.path(id))?;
        // Without its entry it counts nothing.
        let _ = fs::remove_file(self.uses_path(id));
        Ok(())
    }

    fn scan(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        let mut uses = std::collections::HashMap::new();
        let files = match fs::read_dir(&self.dir) {
            Err(error) if is_absent(&error) => return Ok(found),
            files => files?,
        };
        for file in files {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let Some((id, kind)) = name.split_once('.').filter(|(id, _)| !id.is_empty()) else {
                continue;
            };
            // One that another process has just removed is gone.
            let Ok(about) = file.metadata() else { continue };
            match kind {
                ENTRY => found.push(Found {
                    id: id.to_string(),
                    bytes: about.len(),
                    uses: 0,
                    last_used: seconds(about.modified()),
                }),
                USES => drop(uses.insert(id.to_string(), (about.len(), seconds(about.modified())))),
                _ => {}
            }
        }
        for entry in &mut found {
            if let Some((count, last)) = uses.get(&entry.id) {
                (entry.uses, entry.last_used) = (*count, entry.last_used.max(*last));
            }
        }
        Ok(found)
    }
}

impl EntryStore for Store {
    fn find(&self, key: &Key) -> Result<Option<Entry>, Damage> {
        let entry = match Entry::open(&self.path(&key.id())) {
            Err(Damage::Io(error)) if is_absent(&error) => return Ok(None),
            other => other?,
        };
        match Key::changes(&entry.header.key, key).first() {
            None => Ok(Some(entry)),
            Some((part, ..)) => Err(Damage::Foreign((*part).to_string())),
        }
    }

    fn open(&self, id: &str) -> Result<Entry, Damage> {
        Entry::open(&self.path(id))
    }

    /// Written aside, synced, renamed.
    fn insert(&self, header: Header, parts: &[(Content, &[u8])]) -> xtrain_checkpoint::Result<()> {
        fs::create_dir_all(&self.dir).map_err(xtrain_checkpoint::Error::io("create", &self.dir))?;
        atomic::clean_leftovers(&self.dir)?;
        let path = self.path(&header.key.id());
        atomic::write_file(&path, |writer| entry::write(writer, header, parts))
    }

    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut found = self.scan()?;
        found.sort_by(|a, b| (b.last_used, &a.id).cmp(&(a.last_used, &b.id)));
        // Parsing a thousand headers is work for all cores.
        let list = found.into_par_iter().map(|found| Listed {
            header: self.open(&found.id).map(|entry| entry.header),
            id: found.id,
            file_bytes: found.bytes,
            uses: found.uses,
            last_used: found.last_used,
        });
        Ok(list.collect())
    }

    fn evict(&self, max_bytes: u64, keep: &str) -> io::Result<Vec<String>> {
        let mut found = self.scan()?;
        let mut total: u64 = found.iter().map(|f| f.bytes).sum();
        found.sort_by(|a, b| (a.last_used, &a.id).cmp(&(b.last_used, &b.id)));
        let (mut gone, mut stays) = (Vec::new(), None);
        for entry in found.into_iter().filter(|f| f.id != keep) {
            if total <= max_bytes {
                return Ok(gone);
            }
            match self.remove(&entry.id) {
                Ok(()) => gone.push(entry.id),
                // Another process has removed it first, which is as good.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    stays.get_or_insert(named(&self.path(&entry.id), error));
                    continue;
                }
            }
            total -= entry.bytes;
        }
        match stays.filter(|_| total > max_bytes) {
            Some(error) => Err(error),
            None => Ok(gone),
        }
    }

    fn count_use(&self, id: &str) {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.uses_path(id));
        let _ = file.and_then(|mut file| file.write_all(b"."));
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.{ENTRY}"))
    }

    fn lock_path(&self, id: &str) -> PathBuf {
        self.dir.join("locks").join(format!("{id}.lock"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::header;
    use super::*;
    use std::fs::File;

    const PARTS: [(Content, &[u8]); 2] = [
        (Content::Graph, b"graph"),
        (Content::Executable, b"executable"),
    ];

    fn stored(store: &Store, phase: &str) -> String {
        let header = header(phase);
        let id = header.key.id();
        store.insert(header, &PARTS).unwrap();
        id
    }

    fn set_time(path: PathBuf, seconds: u64) {
        let file = OpenOptions::new().append(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
            .unwrap();
    }

    #[test]
    fn an_entry_is_found_by_its_key_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("graphs"));
        assert!(store.find(&header("train").key).unwrap().is_none());
        let id = stored(&store, "train");
        assert!(store.find(&header("train").key).unwrap().is_some());
        assert!(store.find(&header("eval").key).unwrap().is_none());
        // Renamed, by accident or maliciously.
        fs::rename(store.path(&id), store.path(&header("eval").key.id())).unwrap();
        assert!(
            matches!(store.find(&header("eval").key), Err(Damage::Foreign(part)) if part == "graph")
        );
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let ids: Vec<String> = ["a", "b", "c", "d"]
            .map(|phase| stored(&store, phase))
            .into();
        for (age, id) in ids.iter().enumerate() {
            set_time(store.path(id), 1000 + age as u64);
        }
        store.count_use(&ids[0]); // The oldest, but used just now.
        let one = fs::metadata(store.path(&ids[0])).unwrap().len();
        assert_eq!(
            store.evict(2 * one, &ids[1]).unwrap(),
            [ids[2].clone(), ids[3].clone()]
        );
        assert_eq!(store.evict(0, &ids[1]).unwrap(), [ids[0].clone()]);
        let left = store.list().unwrap();
        assert_eq!(left.len(), 1);
        assert!(left[0].header.is_ok() && left[0].id == ids[1]);
    }

    #[test]
    fn what_cannot_be_removed_frees_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let ids: Vec<String> = ["a", "b", "c", "d"]
            .map(|phase| stored(&store, phase))
            .into();
        let one = fs::metadata(store.path(&ids[0])).unwrap().len();
        // No removal of a file removes a directory, whoever asks for it.
        fs::remove_file(store.path(&ids[0])).unwrap();
        fs::create_dir(store.path(&ids[0])).unwrap();
        let stuck = fs::metadata(store.path(&ids[0])).unwrap().len();
        for (age, id) in ids.iter().enumerate().skip(1) {
            set_time(store.path(id), 1000 + age as u64);
        }
        let touched = File::open(store.path(&ids[0])).unwrap();
        touched
            .set_modified(UNIX_EPOCH + Duration::from_secs(1000))
            .unwrap();
        // The others make the room.
        assert_eq!(
            store.evict(2 * one + stuck, &ids[3]).unwrap(),
            [ids[1].clone()]
        );
        let error = store.evict(one, &ids[3]).unwrap_err();
        assert!(error.to_string().contains(&ids[0]), "{error}");
        assert!(!store.path(&ids[2]).exists());
    }

    #[test]
    fn uses_are_counted_and_strangers_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let id = stored(&store, "train");
        (0..3).for_each(|_| store.count_use(&id));
        fs::write(dir.path().join("README"), "mine").unwrap();
        fs::write(dir.path().join("junk.graph"), "junk").unwrap();
        let list = store.list().unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list.iter().find(|l| l.id == id).unwrap().uses, 3);
        assert!(
            list.iter()
                .find(|l| l.id == "junk")
                .unwrap()
                .header
                .is_err()
        );
    }
}
