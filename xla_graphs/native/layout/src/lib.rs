//! Where the XLA library and headers are, for the build script of `xtrain-xla`. All work is in this
//! crate's build script.

/// The directory that holds `include/` and `lib/`.
pub const XLA_DIR: &str = env!("XTRAIN_XLA_DIR");

/// What identifies this build of XLA.
pub const XLA_VERSION: &str = env!("XTRAIN_XLA_VERSION");
