//! See `src/lib.rs` for where this stands.
