//! Files of text and of tables, line by line and row by row.
//!
//! `input` has the bytes (plain or gzip, on disk or behind a URL, from a place on that was marked),
//! `text` their lines; `table` gives rows whose cells look the same whether `csv`, `json` or
//! `parquet` read them. A new format is a file beside those and a row in [`table::Format`].

pub mod cell;
pub mod conll;
mod csv;
mod feature;
pub mod input;
mod json;
mod json_value;
mod pandas;
mod parquet;
pub mod table;
pub mod text;

#[cfg(test)]
pub(crate) use parquet::tests::sample as parquet_sample;
