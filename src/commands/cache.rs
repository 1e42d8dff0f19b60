//! `xtrain cache`: looks into the compiled graphs that are stored, without a device wherever that
//! is possible.

mod entries;
mod list;
mod share;
mod show;
mod upkeep;

use super::{Error, Outcome};
use xtrain_cache::Store;
use xtrain_config::{CachePlan, CacheVerb};
use xtrain_report::outln;

pub fn run(plan: CachePlan) -> Result<Outcome, Error> {
    let (store, flags) = (Store::new(plan.dir()), &*plan.flags);
    let missing = || {
        Error::usage(
            "cache: a word or a flag is missing",
            "see `xtrain cache --help`",
        )
    };
    let file = || flags.file.as_deref().ok_or_else(missing);
    let ids: Vec<&str> = flags.id.iter().map(String::as_str).collect();
    match (plan.verb, &ids[..]) {
        (CacheVerb::Ls, _) => match plan.remote() {
            Some(remote) => share::list(&remote, *flags.json)?,
            None => list::list(&store, *flags.json)?,
        },
        (CacheVerb::Push, _) => {
            share::push(&store, &plan.remote().ok_or_else(missing)?, &flags.id)?
        }
        (CacheVerb::Pull, _) => {
            share::pull(&store, &plan.remote().ok_or_else(missing)?, &flags.id)?
        }
        (CacheVerb::Stats, _) => list::stats(&store, *flags.json)?,
        (CacheVerb::Path, _) => outln!("{}", store.dir().display()),
        (CacheVerb::Show, [id, ..]) => show::show(&store, id, flags)?,
        (CacheVerb::Explain, [newer]) => show::explain(&store, None, newer)?,
        (CacheVerb::Explain, [older, .., newer]) => show::explain(&store, Some(older), newer)?,
        (CacheVerb::Verify, _) => upkeep::verify(&store, &flags.id, &plan.device())?,
        (CacheVerb::Prune, _) => upkeep::prune(&store, flags)?,
        (CacheVerb::Export, _) => upkeep::export(&store, file()?, &flags.id, *flags.modules_only)?,
        (CacheVerb::Import, _) => upkeep::import(&store, file()?)?,
        // A rule refuses these.
        (CacheVerb::Show | CacheVerb::Explain, []) => return Err(missing()),
    }
    Ok(Outcome::Done)
}
