//! Integration tests: what a user sees. One binary, one module per area, so that linking stays short.

mod cli;
