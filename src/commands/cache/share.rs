//! `cache push`, `cache pull` and `cache ls --cache_remote`: graphs in a store that others share.

use super::entries::{all, chosen, short};
use super::list;
use crate::Error;
use serde_json::{Value, json};
use std::time::Duration;
use xtrain_cache::{Content, Damage, EntryStore, Header, Remote, RemoteSettings, Store, now};
use xtrain_engine::failed;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, duration};
use xtrain_report::{errln, out, outln};

fn open(settings: &RemoteSettings) -> Result<Remote, Error> {
    settings.open().map_err(failed("--cache_remote"))
}

/// Ids with sizes and times of what a folder of objects has.
fn listed(store: &xtrain_cache::RemoteStore) -> Result<Vec<(String, u64, i64)>, Error> {
    store.objects().map_err(failed("listing --cache_remote"))
}

pub fn list(settings: &RemoteSettings, as_json: bool) -> Result<(), Error> {
    let store = match open(settings)? {
        Remote::Dir(store) => return list::list(&store, as_json),
        Remote::Objects(store) => store,
    };
    let objects = listed(&store)?;
    if as_json {
        let object = |(id, bytes, time): &(String, u64, i64)| json!({"id": id, "bytes": bytes, "modified": time});
        outln!("{}", Value::Array(objects.iter().map(object).collect()));
        return Ok(());
    }
    let mut table = Table::new("lrr");
    table.row(["id", "size", "age"]);
    for (id, size, time) in &objects {
        let age = now().saturating_sub(u64::try_from(*time).unwrap_or_default());
        let age = duration(Duration::from_secs(age));
        table.row([short(id).to_string(), bytes(*size), age]);
    }
    out!("{}", table.render());
    if objects.is_empty() {
        outln!("nothing is stored in {} yet", settings.place.display());
    }
    Ok(())
}

type Parts = Vec<(Content, Vec<u8>)>;

/// A whole entry, each part checked.
fn whole(store: &dyn EntryStore, id: &str) -> Result<(Header, Parts), Damage> {
    let mut entry = store.open(id)?;
    let mut parts = Vec::new();
    for stored in entry.header.parts.clone() {
        let content = entry.read(stored.content)?.unwrap_or_default();
        parts.push((stored.content, content));
    }
    Ok((entry.header, parts))
}

/// Copies entries from one store to another; how many were copied and how many were there. Damaged
/// ones are reported and left.
fn copy(
    from: &dyn EntryStore,
    to: &dyn EntryStore,
    ids: &[String],
    is_there: impl Fn(&str) -> bool,
) -> Result<(usize, usize), Error> {
    let (mut copied, mut known) = (0, 0);
    for id in ids {
        if is_there(id) {
            known += 1;
            continue;
        }
        let (header, parts) = match whole(from, id) {
            Ok(entry) => entry,
            Err(damage) => {
                errln!("warning: leaving {} out: {damage}", from.path(id).display());
                continue;
            }
        };
        let parts: Vec<(Content, &[u8])> = parts
            .iter()
            .map(|(content, bytes)| (*content, &bytes[..]))
            .collect();
        to.insert(header, &parts)
            .map_err(failed("storing a graph"))?;
        copied += 1;
    }
    Ok((copied, known))
}

pub fn push(store: &Store, settings: &RemoteSettings, ids: &[String]) -> Result<(), Error> {
    let entries = all(store)?;
    let wanted = chosen(&entries, ids, store)?;
    let wanted: Vec<String> = wanted.iter().map(|entry| entry.id.clone()).collect();
    let (copied, known) = match open(settings)? {
        Remote::Dir(remote) => copy(store, &remote, &wanted, |id| remote.find_id(id))?,
        Remote::Objects(remote) => {
            let there = listed(&remote)?;
            let is_there = |id: &str| there.iter().any(|(known, ..)| known == id);
            let done = copy(store, &remote, &wanted, is_there)?;
            if remote.has_failed() {
                return Err(Error::failed(
                    "not all graphs were stored (the reason is above)",
                ));
            }
            done
        }
    };
    let place = settings.place.display();
    outln!("stored {copied} graphs in {place}; {known} were there");
    Ok(())
}

pub fn pull(store: &Store, settings: &RemoteSettings, ids: &[String]) -> Result<(), Error> {
    let remote = open(settings)?;
    let there: Vec<String> = match &remote {
        Remote::Dir(remote) => all(remote)?.into_iter().map(|entry| entry.id).collect(),
        Remote::Objects(remote) => listed(remote)?.into_iter().map(|(id, ..)| id).collect(),
    };
    let mut wanted = Vec::new();
    for prefix in ids {
        let found: Vec<&String> = there.iter().filter(|id| id.starts_with(prefix)).collect();
        let [one] = found[..] else {
            let (place, count) = (settings.place.display(), found.len());
            return Err(
                Error::failed(format!("{count} graphs in {place} begin with {prefix}"))
                    .with_hint("`xtrain cache ls` with the same --cache_remote lists them"),
            );
        };
        wanted.push(one.clone());
    }
    let wanted = if ids.is_empty() { there } else { wanted };
    let is_there = |id: &str| store.find_id(id);
    let (copied, known) = match &remote {
        Remote::Dir(remote) => copy(remote, store, &wanted, is_there)?,
        Remote::Objects(remote) => {
            let done = copy(remote, store, &wanted, is_there)?;
            if remote.has_failed() {
                return Err(Error::failed(
                    "not all graphs were taken (the reason is above)",
                ));
            }
            done
        }
    };
    let (from, to) = (settings.place.display(), store.dir().display());
    outln!("took {copied} graphs from {from} to {to}; {known} were there");
    Ok(())
}
