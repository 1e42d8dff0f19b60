//! Integration tests: what a user sees. One binary, one module for each area.

mod cli;
mod golden;
mod support;
