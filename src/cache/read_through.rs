//! Compiled graphs of others: what the local store lacks is looked for in a second one, and copied
//! from there. The second store gets what is compiled here only if that was asked for, what is read is
//! checked as a whole, and nothing about it stops a run.

use super::entry::{Content, Damage, Entry, Header};
use super::key::Key;
use super::store::{Claim, EntryStore, Listed};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use xtrain_report::progress::say;

/// A local store in front of one that others fill.
pub struct ReadThrough {
    local: Box<dyn EntryStore>,
    remote: Box<dyn EntryStore>,
    /// Of the local store, copies included.
    max_bytes: u64,
    /// Whether the remote store gets what is compiled here.
    writes: bool,
    /// So that each text is printed once.
    printed: Mutex<HashSet<String>>,
}

impl ReadThrough {
    pub fn new(
        local: Box<dyn EntryStore>,
        remote: Box<dyn EntryStore>,
        max_bytes: u64,
        writes: bool,
    ) -> ReadThrough {
        ReadThrough {
            local,
            remote,
            max_bytes,
            writes,
            printed: Mutex::default(),
        }
    }

    /// The remote entry of this key, copied into the local store. Where that cannot be written, the
    /// remote entry itself.
    fn copied(&self, key: &Key) -> Option<Entry> {
        let id = key.id();
        let (entry, parts) = match self.remote.find(key).and_then(|e| e.map(whole).transpose()) {
            Ok(found) => found?,
            Err(damage) => {
                let path = self.remote.path(&id);
                self.print(format!(
                    "warning: ignoring the cached graph {}: {damage}",
                    path.display()
                ));
                return None;
            }
        };
        let parts: Vec<(Content, &[u8])> = parts
            .iter()
            .map(|(content, bytes)| (*content, &bytes[..]))
            .collect();
        if let Err(error) = self.local.insert(entry.header.clone(), &parts) {
            let error = error.naming("--cache_dir");
            self.print(format!("warning: compiled graphs are not kept: {error}"));
            return Some(entry);
        }
        if let Err(error) = self.local.evict(self.max_bytes, &id) {
            self.print(format!(
                "warning: the cache stays larger than its limit: {error}"
            ));
        }
        self.local.find(key).ok().flatten().or(Some(entry))
    }

    fn print(&self, text: String) {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.insert(text.clone()) {
            say(&text);
        }
    }
}

type Parts = Vec<(Content, Vec<u8>)>;

/// An entry with all its parts, each checked.
fn whole(mut entry: Entry) -> Result<(Entry, Parts), Damage> {
    let mut parts = Vec::new();
    for stored in entry.header.parts.clone() {
        let bytes = entry.read(stored.content)?.unwrap_or_default();
        parts.push((stored.content, bytes));
    }
    Ok((entry, parts))
}

impl EntryStore for ReadThrough {
    /// A damaged local entry is replaced by the remote one, and reported where there is none.
    fn find(&self, key: &Key) -> Result<Option<Entry>, Damage> {
        match self.local.find(key) {
            Ok(Some(entry)) => Ok(Some(entry)),
            missing => self.copied(key).map_or(missing, |entry| Ok(Some(entry))),
        }
    }

    fn module(&self, key: &Key) -> Option<Vec<u8>> {
        let copied = || {
            let listed = self.remote.list().ok()?.into_iter();
            let keys = listed.filter_map(|listed| Some(listed.header.ok()?.key));
            keys.filter(|stored| stored.has_module_of(key))
                .find_map(|stored| self.copied(&stored)?.read(Content::Module).ok()?)
        };
        self.local.module(key).or_else(copied)
    }

    fn open(&self, id: &str) -> Result<Entry, Damage> {
        self.local.open(id)
    }

    fn insert(&self, header: Header, parts: &[(Content, &[u8])]) -> xtrain_checkpoint::Result<()> {
        if self.writes
            && let Err(error) = self.remote.insert(header.clone(), parts)
        {
            let error = error.naming("--cache_remote");
            self.print(format!(
                "warning: other hosts do not get this graph: {error}"
            ));
        }
        self.local.insert(header, parts)
    }

    fn claim(&self, id: &str, doing: &str) -> Claim {
        if self.writes {
            self.remote.share(id, doing)
        } else {
            Claim::none()
        }
    }

    /// What is here: misses are explained by what this machine compiled or took before.
    fn list(&self) -> io::Result<Vec<Listed>> {
        self.local.list()
    }

    fn evict(&self, max_bytes: u64, keep: &str) -> io::Result<Vec<String>> {
        self.local.evict(max_bytes, keep)
    }

    fn count_use(&self, id: &str) {
        self.local.count_use(id);
    }

    fn path(&self, id: &str) -> PathBuf {
        self.local.path(id)
    }

    fn lock_path(&self, id: &str) -> PathBuf {
        self.local.lock_path(id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::header;
    use super::super::store::Store;
    use super::*;
    use std::fs;
    use std::path::Path;

    const PARTS: [(Content, &[u8]); 3] = [
        (Content::Graph, b"graph"),
        (Content::Module, b"module"),
        (Content::Executable, b"executable"),
    ];

    /// A folder with the two stores, and an entry of the remote one.
    fn stores() -> (tempfile::TempDir, Store, Store, Key) {
        let dir = tempfile::tempdir().unwrap();
        let [local, remote] = ["local", "remote"].map(|name| Store::new(dir.path().join(name)));
        let stored = header("train");
        let key = stored.key.clone();
        remote.insert(stored, &PARTS).unwrap();
        (dir, local, remote, key)
    }

    fn joined(local: &Store, remote: &Store, max_bytes: u64) -> ReadThrough {
        let (local, remote) = (Box::new(local.clone()), Box::new(remote.clone()));
        ReadThrough::new(local, remote, max_bytes, false)
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn printed(store: &ReadThrough) -> Vec<String> {
        let printed = store.printed.lock().unwrap();
        printed.iter().cloned().collect()
    }

    #[test]
    fn a_remote_entry_is_copied_once_and_the_remote_store_stays_as_it_is() {
        let (_dir, local, remote, key) = stores();
        let before = files(remote.dir());
        let store = joined(&local, &remote, u64::MAX);
        let mut entry = store.find(&key).unwrap().unwrap();
        store.count_use(&key.id());
        assert_eq!(entry.check_all().unwrap().unwrap(), b"executable");
        assert_eq!(
            fs::read(local.path(&key.id())).unwrap(),
            fs::read(remote.path(&key.id())).unwrap()
        );
        assert_eq!(files(remote.dir()), before);
        // The copy is enough from now on.
        fs::remove_dir_all(remote.dir()).unwrap();
        assert!(store.find(&key).unwrap().is_some());
        assert!(printed(&store).is_empty());
    }

    #[test]
    fn what_is_compiled_here_goes_to_the_remote_store_if_that_was_asked_for() {
        let (_dir, local, remote, _) = stores();
        for (writes, phase) in [(false, "eval"), (true, "predict")] {
            let (near, far) = (Box::new(local.clone()), Box::new(remote.clone()));
            let store = ReadThrough::new(near, far, u64::MAX, writes);
            let key = header(phase).key;
            let claim = store.claim(&key.id(), "compiling");
            assert_eq!(remote.lock_path(&key.id()).exists(), writes);
            store.insert(header(phase), &PARTS).unwrap();
            drop(claim);
            assert!(local.find_id(&key.id()));
            assert_eq!(remote.find_id(&key.id()), writes);
            assert!(!remote.lock_path(&key.id()).exists());
        }
    }

    #[test]
    fn a_damaged_remote_entry_is_a_miss_with_a_warning() {
        let (_dir, local, remote, key) = stores();
        let path = remote.path(&key.id());
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let store = joined(&local, &remote, u64::MAX);
        for _ in 0..2 {
            assert!(store.find(&key).unwrap().is_none());
        }
        let printed = printed(&store);
        assert_eq!(printed.len(), 1, "{printed:?}");
        assert!(
            printed[0].contains(&path.display().to_string()),
            "{printed:?}"
        );
        assert!(!local.find_id(&key.id()));
    }

    #[test]
    fn an_entry_of_another_key_is_not_taken() {
        let (_dir, local, remote, key) = stores();
        let other = header("eval").key;
        fs::rename(remote.path(&key.id()), remote.path(&other.id())).unwrap();
        let store = joined(&local, &remote, u64::MAX);
        assert!(store.find(&other).unwrap().is_none());
        assert_eq!(printed(&store).len(), 1);
        assert!(!local.find_id(&other.id()));
    }

    #[test]
    fn a_remote_directory_that_is_missing_has_nothing() {
        let (dir, local, _, key) = stores();
        let store = joined(&local, &Store::new(dir.path().join("none")), u64::MAX);
        assert!(store.find(&key).unwrap().is_none());
        assert!(store.module(&key).is_none());
        assert!(printed(&store).is_empty());
    }

    #[test]
    fn the_remote_entry_serves_where_no_copy_can_be_made() {
        let (dir, _, remote, key) = stores();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let store = joined(&Store::new(file), &remote, u64::MAX);
        let mut entry = store.find(&key).unwrap().unwrap();
        assert_eq!(entry.check_all().unwrap().unwrap(), b"executable");
        assert_eq!(printed(&store).len(), 1);
    }

    #[test]
    fn a_damaged_local_entry_is_replaced_and_the_limit_is_kept() {
        let (_dir, local, remote, key) = stores();
        local.insert(header("old"), &PARTS).unwrap();
        fs::write(local.path(&key.id()), "junk").unwrap();
        let store = joined(&local, &remote, 1);
        assert!(store.find(&key).unwrap().is_some());
        let left: Vec<String> = local.list().unwrap().into_iter().map(|l| l.id).collect();
        assert_eq!(left, [key.id()]);
    }

    #[test]
    fn a_module_is_taken_from_the_remote_store() {
        let (_dir, local, remote, key) = stores();
        let store = joined(&local, &remote, u64::MAX);
        assert_eq!(store.module(&key).unwrap(), b"module");
        assert!(local.find_id(&key.id()));
    }
}
