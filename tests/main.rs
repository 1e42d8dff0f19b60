//! Integration tests: what a user sees.
