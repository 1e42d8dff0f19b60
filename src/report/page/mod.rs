//! The reports of `xtrain report`: one page of HTML that needs no network, the same as Markdown, and the
//! numbers as JSON.
//!
//! `report` has the runs with their numbers, `tables` the tables of both pages, `charts` the
//! drawings. `card` is the model card of one run.

mod card;
mod charts;
mod html;
mod json;
mod markdown;
mod report;
mod summary;
mod tables;

pub use card::{card, is_generated};
pub use html::{Figure, document, html};
pub use json::json;
pub use markdown::markdown;
pub use report::Report;
pub use summary::{rank, result, speed, summary};
