//! What the doctor's pages on accelerators share: checks that build on each other, notes, and the
//! device itself.

use super::check::{Failed, Report};
use std::path::Path;
use xtrain_cache::CacheSettings;
use xtrain_engine::failed;
use xtrain_report::units::bytes;
use xtrain_runtime::{Client, Library};
use xtrain_trainer as trainer;
use xtrain_trainer::session::Session;

impl Report {
    /// A note of what was found, or of why it was not.
    pub fn note_or(&mut self, name: &'static str, found: Option<String>, otherwise: &str) {
        self.note(name, found.unwrap_or_else(|| otherwise.to_string()));
    }

    /// The last lines: what lowers graphs, and the device. The cache is used where there is nothing
    /// to lower with.
    pub fn accelerator(
        &mut self,
        cache: &CacheSettings,
        open: impl Fn(CacheSettings) -> trainer::Result<Session>,
    ) -> Result<(), Failed> {
        let library = Library::open().map_err(failed("opening the XLA library"));
        let found = library
            .as_ref()
            .map(|library| format!("{} ({})", library.path().display(), library.version()));
        self.note_or(
            "XLA library",
            found.ok(),
            "not here: what a run needs has to be in the cache, at least lowered (`xtrain cache import`)",
        );
        let cache = if library.is_ok() {
            CacheSettings::in_memory()
        } else {
            cache.clone()
        };
        self.device(open(cache), describe).map(drop)
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

/// The device nodes `/dev/NAME0`, `/dev/NAME1`, ...
pub(super) fn device_files(name: &str) -> Option<String> {
    let count = (0..)
        .take_while(|i| Path::new(&format!("/dev/{name}{i}")).exists())
        .count();
    (count > 0).then(|| format!("/dev/{name}0 and {} more", count - 1))
}
