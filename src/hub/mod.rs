//! The Hugging Face Hub: names of models, tokenizers and data sets to local files.
//!
//! Reading order: `settings` (where the Hub and its cache are), `checks` (names, sizes and headers of
//! a server before they are used), `client` (requests, redirects, the token), `download` (one file
//! into the cache), `fetch` (one repository at one commit), `model`, `dataset`, `card` and `paths`
//! (which files a name stands for), `push` (commits, with `answers`: their types). Names and the
//! cache's layout are the hf-hub crate's, so that Python programs and this one share what they
//! downloaded. The transfer is not: hf-hub takes paths, sizes and the host that gets the token from
//! a server's answers.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod answers;
mod card;
mod checks;
mod client;
mod dataset;
mod download;
mod error;
mod fetch;
mod model;
mod paths;
mod push;
mod settings;

pub use checks::is_name;
pub use dataset::{DatasetFiles, dataset_in};
pub use error::{Error, Result};
pub use fetch::{Hub, Kind, Snapshot};
pub use push::{Addition, Repository, is_new_name};
pub use settings::HubSettings;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod push_tests;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
