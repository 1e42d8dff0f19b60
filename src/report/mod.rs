//! What the program prints: log records, the step line, progress, tables. The bottom layer:
//! it imports nothing of ours, and everything but [`accounting`], [`ending`], [`files`], [`progress`], [`memory`],
//! [`notice`], [`output`], [`panics`], [`telemetry`], [`terminal`], [`top`] and [`trackers`] is a function from values to text.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod accounting;
pub mod csv;
pub mod ending;
pub mod files;
#[cfg(test)]
mod fuzz;
pub mod json;
pub mod kernels;
pub mod memory;
pub mod notice;
pub mod output;
pub mod page;
pub mod panics;
pub mod printable;
pub mod progress;
pub mod python_float;
pub mod records;
pub mod runs;
pub mod scaling;
pub mod step_line;
pub mod svg;
pub mod table;
pub mod telemetry;
pub mod terminal;
pub mod top;
pub mod trackers;
pub mod units;
