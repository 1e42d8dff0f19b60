//! What the doctor's pages on accelerators share: checks that build on each other, notes, and the
//! device itself.

use super::check::{Check, compile_and_run};
use crate::cache::CacheSettings;
use crate::commands::Error;
use crate::engine::failed;
use crate::report::units::bytes;
use crate::runtime::{Client, Library};
use crate::trainer;
use crate::trainer::session::Session;
use std::path::Path;

/// Checks that build on each other: the first failure ends the list.
pub(super) struct Report {
    checks: Vec<Check>,
}

impl Report {
    pub fn new(notes: Vec<Check>) -> Self {
        Report { checks: notes }
    }

    pub fn push(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Whether it went well.
    pub fn check(&mut self, name: &'static str, found: Result<String, Error>) -> bool {
        let found = found.map_err(|error| error.one_line());
        let is_ok = found.is_ok();
        self.checks.push(Check {
            name,
            found,
            is_note: false,
        });
        is_ok
    }

    pub fn done(self) -> Vec<Check> {
        self.checks
    }

    pub fn fail(mut self, name: &'static str, error: Error) -> Vec<Check> {
        self.check(name, Err(error));
        self.checks
    }

    /// What lowers graphs; without it, they have to be in the cache.
    pub fn library(&mut self) -> bool {
        let library = Library::open().map_err(failed("opening the XLA library"));
        let found = library.as_ref().map_or(None, |library| {
            Some(format!(
                "{} ({})",
                library.path().display(),
                library.version()
            ))
        });
        let is_found = found.is_some();
        self.push(note(
            "XLA library",
            found,
            "not here: what a run needs has to be in the cache, at least lowered (`xtrain cache import`)",
        ));
        is_found
    }

    /// The last ones: the device opens, and computes. The cache is used where there is nothing to
    /// lower with.
    pub fn device(
        mut self,
        cache: &CacheSettings,
        open: impl Fn(CacheSettings) -> trainer::Result<Session>,
    ) -> Vec<Check> {
        let cache = if self.library() {
            CacheSettings::in_memory()
        } else {
            cache.clone()
        };
        let mut session = match open(cache).map_err(failed("opening the device")) {
            Ok(session) => session,
            Err(error) => return self.fail("device", error),
        };
        self.check("device", Ok(describe(session.client())));
        self.check("compile and run", compile_and_run(&mut session));
        self.checks
    }
}

/// How many devices of which kind, with what the vendor tells of them.
fn describe(client: &Client) -> String {
    let kinds: Vec<&str> = client
        .devices()
        .iter()
        .map(|device| device.kind())
        .collect();
    let (major, minor) = client.plugin().api_version();
    let platform = format!(
        "platform {} {}, PJRT C API {major}.{minor}",
        client.platform_name(),
        client.platform_version()
    );
    let mut text = format!("{} of {}, {platform}", kinds.len(), kinds.join(", "));
    if let Some(device) = client.addressable_devices().next() {
        if let Some(capability) = device.attribute("compute_capability") {
            text.push_str(&format!(", compute capability {capability}"));
        }
        if let Some(limit) = device.memory().and_then(|memory| memory.bytes_limit) {
            text.push_str(&format!(", {} for a run", bytes(limit.max(0) as u64)));
        }
    }
    text
}

pub(super) fn note(name: &'static str, found: Option<String>, otherwise: &str) -> Check {
    Check {
        name,
        found: Ok(found.unwrap_or_else(|| otherwise.to_string())),
        is_note: true,
    }
}

/// The device nodes `/dev/NAME0`, `/dev/NAME1`, ...
pub(super) fn device_files(name: &str) -> Option<String> {
    let count = (0..)
        .take_while(|i| Path::new(&format!("/dev/{name}{i}")).exists())
        .count();
    (count > 0).then(|| format!("/dev/{name}0 and {} more", count - 1))
}
