//! Compiled graphs: nothing is compiled twice, in this process or in the next, and every compile
//! can be explained.
//!
//! Reading order: [`GraphCache`] (what this process has), `compiler` (from disk, else compiled),
//! `key` (what decides whether a stored executable fits), `entry` (one file), `store` (a directory
//! of them), `kernel_speeds` (which CPU kernels are the fastest), `read_through` (copies from a second store), `remote_store` (one in a bucket), `aot_cache` (for a device that is not attached), `explain` (why not found), `program`
//! (how a module is handed over). One process compiles a graph, the others wait
//! (`checkpoint/lock.rs`).

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod aot_cache;
pub mod archive;
mod compiler;
mod entry;
mod error;
mod explain;
#[cfg(test)]
mod fuzz;
mod graph_cache;
mod kernel_speeds;
mod key;
mod machine;
mod program;
mod read_through;
mod remote_store;
mod store;

pub use aot_cache::{AotCache, AotDevice, CheckedGraph, Compilation};
pub use entry::{Content, Damage, EVALUATION, Entry, Header, Memory, Origin, Stored};
pub use error::Error;
pub use explain::{Explanation, first_difference, nearest};
pub use graph_cache::{CacheStats, CompiledGraph, GraphCache};
pub use key::{DEVICE, Key, Part, described_device, is_compile_check, is_for_running, is_stale};
pub use machine::{CPU_THREADS, Machine};
pub use program::emit;
pub use remote_store::RemoteStore;
pub use store::{Claim, EntryStore, Listed, Store, age, now};

use read_through::ReadThrough;
use std::path::{Path, PathBuf};
use xtrain_distributed::ProcessGroup;
use xtrain_distributed::secret::Secret;
use xtrain_report::errln;

/// The folder of [`CacheSettings::autotune_dir`] in a cache's.
const AUTOTUNE: &str = "autotune";

/// The files in it, `CARD/KERNEL.pb`, in order; XLA names both by digests.
fn tuned_kernels(dir: &Path) -> Vec<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    let kernels = |card: String| {
        names(&dir.join(&card))
            .into_iter()
            .map(move |kernel| format!("{card}/{kernel}"))
    };
    let mut files: Vec<String> = names(dir)
        .into_iter()
        .flat_map(kernels)
        .filter(|file| is_tuned_kernel(file))
        .collect();
    files.sort();
    files
}

/// Whether a name is one that XLA gives.
fn is_tuned_kernel(name: &str) -> bool {
    let is_digest = |text: &str| {
        text.len() >= 8 && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    name.strip_suffix(".pb")
        .and_then(|name| name.split_once('/'))
        .is_some_and(|(card, kernel)| is_digest(card) && is_digest(kernel))
}

/// A store of compiled graphs that others fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSettings {
    /// A cache directory, or the URL of a folder of objects.
    pub place: PathBuf,
    /// Whether it gets what is compiled here.
    pub writes: bool,
    /// The file of the key that signs entries; `None`: what `XTRAIN_CACHE_KEY` holds, if anything.
    pub key: Option<PathBuf>,
}

/// Holds the key that signs the entries of a shared store.
pub const KEY_VARIABLE: &str = "XTRAIN_CACHE_KEY";

/// What may hold entries elsewhere.
pub enum Remote {
    Dir(Store),
    Objects(RemoteStore),
}

impl RemoteSettings {
    /// The store, of which nothing is asked yet.
    ///
    /// # Errors
    /// The key cannot be read, or the URL names no folder.
    pub fn open(&self) -> Result<Remote, Error> {
        let is_url = |text: &&str| {
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            scheme.is_some_and(|scheme| xtrain_objects::SCHEMES.contains(&scheme))
        };
        let Some(url) = self.place.to_str().filter(is_url) else {
            return Ok(Remote::Dir(Store::new(self.place.join("graphs"))));
        };
        let key = match &self.key {
            Some(file) => Some(Secret::from_file(file)?),
            None => Secret::from_variable(KEY_VARIABLE)?,
        };
        Ok(Remote::Objects(RemoteStore::open(url, key)?))
    }
}

/// How a run uses the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Where entries are kept; `None` keeps them in memory only.
    pub dir: Option<PathBuf>,
    /// Where else entries are looked for, to be copied into `dir`.
    pub remote: Option<RemoteSettings>,
    /// Size over which the least recently used entries go.
    pub max_bytes: u64,
    /// Stop instead of compiling what was compiled before in another form.
    pub fail_on_recompile: bool,
}

impl CacheSettings {
    /// Where XLA:GPU keeps which kernels were the fastest on a card, by card, kernel and its own
    /// version: a graph that is compiled anew then measures only what no graph before it had.
    /// `None` without a cache on disk, or where no folder can be made.
    pub fn autotune_dir(&self) -> Option<PathBuf> {
        let dir = self.dir.as_ref()?.join(AUTOTUNE);
        match std::fs::create_dir_all(&dir) {
            Ok(()) => Some(dir),
            Err(error) => {
                errln!(
                    "warning: measurements of kernels are not kept: {}: {error}",
                    dir.display()
                );
                None
            }
        }
    }

    /// What is in that folder, in a few words that change with it.
    fn tuning(&self) -> String {
        let files = self
            .dir
            .as_ref()
            .map(|dir| tuned_kernels(&dir.join(AUTOTUNE)))
            .unwrap_or_default();
        match files.len() {
            0 => "none".into(),
            n => format!(
                "{n} {}",
                &xtrain_checkpoint::hash::sha256(files.join("\n").as_bytes())[..16]
            ),
        }
    }

    /// What keeps the entries; `None` without a directory.
    fn store(&self) -> Option<Box<dyn EntryStore>> {
        let local = Box::new(Store::new(self.dir.as_ref()?));
        let Some(settings) = &self.remote else {
            return Some(local);
        };
        let usable = |remote: &Remote| match remote {
            // One that is written is made.
            Remote::Dir(store) if !settings.writes => std::fs::read_dir(store.dir())
                .map(drop)
                .map_err(|error| format!("{}: {error}", store.dir().display())),
            _ => Ok(()),
        };
        let opened = settings.open().map_err(|error| error.to_string());
        let remote: Box<dyn EntryStore> = match opened.and_then(|it| usable(&it).map(|()| it)) {
            Ok(Remote::Dir(store)) => Box::new(store),
            Ok(Remote::Objects(store)) => Box::new(store),
            Err(error) => {
                if ProcessGroup::this_writes() {
                    errln!("note: --cache_remote: {error}; --cache_dir alone is used");
                }
                return Some(local);
            }
        };
        let joined = ReadThrough::new(local, remote, self.max_bytes, settings.writes);
        Some(Box::new(joined))
    }

    /// Everything that is compiled is kept in a directory; without one, nothing is read from disk or
    /// stored.
    pub fn kept_in(dir: Option<PathBuf>) -> CacheSettings {
        CacheSettings {
            dir,
            remote: None,
            max_bytes: u64::MAX,
            fail_on_recompile: false,
        }
    }

    /// Nothing is read from disk or stored.
    pub fn in_memory() -> CacheSettings {
        CacheSettings::kept_in(None)
    }
}
