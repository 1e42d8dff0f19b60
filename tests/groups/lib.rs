//! Tests that need more than a clone of the repository, in named groups. A test that finds its
//! group's need unmet says so with [`Group::skip`] and returns; `bin/test` lists each group with
//! its number of tests and the reason. Where `XTRAIN_REQUIRE` names the group, the test fails
//! instead.

use std::fmt;
use std::io::Write;

/// What a test can need beside the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Published corpora, tokenizers and ids, in `XTRAIN_DATA_DIR` or `../shared/data`, and the
    /// golden cases beside them, in `XTRAIN_GOLDEN_DIR` or `../shared/golden`.
    Shared,
    /// jax's CUDA plugin, named by `XTRAIN_TEST_CUDA_PLUGIN`; no card is needed.
    Cuda,
    /// cuDNN's libraries beside that plugin.
    Cudnn,
    /// Another vendor's PJRT plugin, named by `XTRAIN_TEST_PLUGIN`.
    Plugin,
    /// `libxtrain_gloo.so`, which is built where Gloo's headers were found.
    Gloo,
    /// The right to make namespaces and to trace processes, and the tools for it (`ip`, `unshare`,
    /// `strace`).
    Namespaces,
    /// `libxtrain_xla.so` and the tools of a build (`nm`).
    Library,
}

impl Group {
    /// Every group.
    pub const ALL: [Group; 7] = [
        Group::Shared,
        Group::Cuda,
        Group::Cudnn,
        Group::Plugin,
        Group::Gloo,
        Group::Namespaces,
        Group::Library,
    ];

    /// The word that stands for the group in `XTRAIN_REQUIRE` and in the summary.
    pub fn name(self) -> &'static str {
        match self {
            Group::Shared => "shared",
            Group::Cuda => "cuda",
            Group::Cudnn => "cudnn",
            Group::Plugin => "plugin",
            Group::Gloo => "gloo",
            Group::Namespaces => "namespaces",
            Group::Library => "library",
        }
    }

    /// Whether `XTRAIN_REQUIRE`, a list of groups with commas or `all`, names this one.
    pub fn is_required(self) -> bool {
        let required = std::env::var("XTRAIN_REQUIRE").unwrap_or_default();
        required
            .split(',')
            .any(|word| word == "all" || word == self.name())
    }

    /// Records that the running test is skipped, and why. The test then returns.
    ///
    /// # Panics
    /// If the group is required.
    #[track_caller]
    pub fn skip(self, why: impl fmt::Display) {
        let thread = std::thread::current();
        // With one test thread, libtest runs tests on the main thread.
        let test = match thread.name() {
            Some(name) if name != "main" => name.to_string(),
            _ => std::panic::Location::caller().to_string(),
        };
        assert!(
            !self.is_required(),
            "XTRAIN_REQUIRE asks for the group {}, but {why}",
            self.name()
        );
        // Not with eprintln!, which the harness hides for a test that passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED {test} (group {}): {why}",
            self.name()
        );
        if let Some(path) = std::env::var_os("XTRAIN_SKIPPED_TESTS") {
            let line = format!("{}\t{test}\t{why}\n", self.name());
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            file.write_all(line.as_bytes()).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Group;

    #[test]
    fn names_are_distinct() {
        for (i, group) in Group::ALL.iter().enumerate() {
            assert!(Group::ALL[..i].iter().all(|g| g.name() != group.name()));
        }
    }
}
