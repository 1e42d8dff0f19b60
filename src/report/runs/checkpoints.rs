//! The names of checkpoint directories, as transformers has them: `checkpoint-N`, N being the step.

use std::io;
use std::path::{Path, PathBuf};

/// The name of a checkpoint before its step.
pub const CHECKPOINT_PREFIX: &str = "checkpoint-";

/// N of a path whose name is `checkpoint-N`, N being nothing but digits.
pub fn checkpoint_step(path: &Path) -> Option<u64> {
    let digits = path
        .file_name()?
        .to_str()?
        .strip_prefix(CHECKPOINT_PREFIX)?;
    // A number may have a sign for Rust.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The directories `checkpoint-N` in `output_dir` by rising N, whatever is in them.
///
/// # Errors
/// If `output_dir` cannot be read.
pub fn numbered_checkpoints(output_dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(output_dir)? {
        let path = entry?.path();
        if let Some(step) = checkpoint_step(&path)
            && path.is_dir()
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The directory `checkpoint-N` with the largest N of those that are `wanted`.
pub fn newest_checkpoint(output_dir: &Path, wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let found = numbered_checkpoints(output_dir).unwrap_or_default();
    let mut paths = found.into_iter().rev().map(|(_, path)| path);
    paths.find(|path| wanted(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_a_prefix_once_and_digits() {
        let step = |name: &str| checkpoint_step(Path::new(name));
        assert_eq!(step("checkpoint-7"), Some(7));
        assert_eq!(step("out/checkpoint-1000/"), Some(1000));
        for name in [
            "checkpoint-checkpoint-7",
            "checkpoint-",
            "checkpoint-+7",
            "checkpoint--7",
            "checkpoint-7a",
            "checkpoint-99999999999999999999",
            "last-checkpoint-7",
            "7",
            "",
        ] {
            assert_eq!(step(name), None, "{name}");
        }
    }

    #[test]
    fn directories_are_found_in_order_of_their_steps() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["checkpoint-9", "checkpoint-10", "checkpoint-best"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("checkpoint-11"), "a file").unwrap();
        let steps: Vec<u64> = numbered_checkpoints(dir.path())
            .unwrap()
            .into_iter()
            .map(|(step, _)| step)
            .collect();
        assert_eq!(steps, [9, 10]);
        let newest = newest_checkpoint(dir.path(), |path| !path.ends_with("checkpoint-10"));
        assert_eq!(newest, Some(dir.path().join("checkpoint-9")));
        assert_eq!(newest_checkpoint(&dir.path().join("none"), |_| true), None);
    }
}
