//! Integration tests: what a user sees.
mod data;
