//! The Hugging Face Hub: names of models, tokenizers and data sets to local files.
//!
//! Reading order: `settings` (where the Hub and its cache are), `fetch` (one file: cached, or
//! downloaded and checked), `model`, `dataset`, `card` and `paths` (which files a name stands for), `push` (commits).
//! Downloads and the cache's layout are the hf-hub crate's, so that Python programs and this one
//! share what they downloaded.

mod card;
mod dataset;
mod error;
mod fetch;
mod model;
mod paths;
mod patience;
mod push;
mod settings;

pub use dataset::DatasetFiles;
pub use error::{Error, Result};
pub use fetch::is_name;
pub use fetch::{Hub, Kind, Snapshot};
pub use push::{Addition, Repository, is_new_name};
pub use settings::HubSettings;

#[cfg(test)]
mod push_tests;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
