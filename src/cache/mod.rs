//! Compiled graphs: nothing is compiled twice, in this process or in the next, and every compile can be explained.
//!
//! Reading order: [`GraphCache`] (what this process has), `compiler` (from disk, else compiled), `key` (what decides whether a stored
//! executable fits), `entry` (one file), `store` (a directory of them), `target_cache` (for a device that is not there),
//! `lock` (one process compiles, the others wait), `explain` (why not found), `program` (how a module is handed over), `notice` (a
//! word while that lasts).

pub mod archive;
mod compiler;
mod entry;
mod error;
mod explain;
mod graph_cache;
mod key;
mod lock;
mod machine;
mod notice;
mod program;
mod store;
mod target_cache;

pub use entry::{Content, Damage, Entry, Header, Memory, Origin, Stored};
pub use error::Error;
pub use explain::{Explanation, first_difference, nearest};
pub use graph_cache::{CacheStats, CompiledGraph, GraphCache};
pub use key::{COMPILER, DEVICE, FORMAT_VERSION, Key, Part, is_compile_check};
pub use program::emit;
pub use store::{Listed, Store, age, now};
pub use target_cache::{AbsentDevice, CheckedGraph, TargetCache};

use std::path::PathBuf;

/// How a run uses the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Where entries are kept; `None` keeps them in memory only.
    pub dir: Option<PathBuf>,
    /// Size over which the least recently used entries go.
    pub max_bytes: u64,
    /// Stop instead of compiling what was compiled before in another form.
    pub fail_on_recompile: bool,
}

impl CacheSettings {
    /// Nothing is read from disk or stored.
    pub fn in_memory() -> CacheSettings {
        CacheSettings { dir: None, max_bytes: 0, fail_on_recompile: false }
    }
}
