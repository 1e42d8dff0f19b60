//! Entries of the cache as the user names them.

use crate::Error;
use xtrain_cache::{EntryStore, Listed, Store};

/// Every entry.
pub fn all(store: &Store) -> Result<Vec<Listed>, Error> {
    store
        .list()
        .map_err(|e| Error::because(format!("reading {}", store.dir().display()), e))
}

/// The entry whose id begins as was typed.
pub fn choose<'a>(entries: &'a [Listed], typed: &str, store: &Store) -> Result<&'a Listed, Error> {
    let mut found = entries.iter().filter(|entry| entry.id.starts_with(typed));
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok(entry),
        (None, _) => {
            let dir = store.dir().display();
            Err(Error::failed(format!(
                "no stored graph in {dir} has an id that begins with {typed}"
            ))
            .with_hint("`xtrain cache ls` lists them"))
        }
        (Some(a), Some(b)) => Err(Error::failed(format!(
            "{typed} is the start of several ids, {} and {} among them",
            a.id, b.id
        ))
        .with_hint("type more of the id")),
    }
}

/// The entries that were named, or all.
pub fn chosen<'a>(
    entries: &'a [Listed],
    ids: &[String],
    store: &Store,
) -> Result<Vec<&'a Listed>, Error> {
    if ids.is_empty() {
        Ok(entries.iter().collect())
    } else {
        ids.iter().map(|id| choose(entries, id, store)).collect()
    }
}

/// Enough of an id to tell it from others at a glance.
pub fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}
