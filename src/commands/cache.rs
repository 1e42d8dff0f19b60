//! `xtrain cache`: looks into the compiled graphs that are stored, without a device wherever that
//! is possible.

mod entries;
mod list;
mod show;
mod upkeep;

use super::{Error, Outcome};
use crate::cache::Store;
use crate::config::{CacheAction, CachePlan};

pub fn run(plan: CachePlan) -> Result<Outcome, Error> {
    let store = Store::new(plan.dir);
    match plan.action {
        CacheAction::List { json } => list::list(&store, json)?,
        CacheAction::Stats { json } => list::stats(&store, json)?,
        CacheAction::Path => outln!("{}", store.dir().display()),
        CacheAction::Show { id, form } => show::show(&store, &id, form)?,
        CacheAction::Explain { older, newer } => show::explain(&store, older.as_deref(), &newer)?,
        CacheAction::Verify { ids, device } => upkeep::verify(&store, &ids, &device)?,
        CacheAction::Prune(rules) => upkeep::prune(&store, &rules)?,
        CacheAction::Export {
            file,
            ids,
            modules_only,
        } => upkeep::export(&store, &file, &ids, modules_only)?,
        CacheAction::Import { file } => upkeep::import(&store, &file)?,
    }
    Ok(Outcome::Done)
}
