//! What several test modules need: where shared data lies, how a skip is told, how numbers are compared.

use std::path::{Path, PathBuf};

/// A directory outside the repository that holds reference data. `None`, with a line that says so, if it is not there.
pub fn shared_dir(variable: &str, default: &str) -> Option<PathBuf> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(default),
    };
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: {} is not a directory; set {variable} to run this test", path.display());
    None
}

pub fn golden_dir() -> Option<PathBuf> {
    shared_dir("XTRAIN_GOLDEN_DIR", "../shared/golden")
}

#[allow(dead_code)]
pub fn data_dir() -> Option<PathBuf> {
    shared_dir("XTRAIN_DATA_DIR", "../shared/data")
}

/// The largest absolute difference, NaN if any value is NaN.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}
