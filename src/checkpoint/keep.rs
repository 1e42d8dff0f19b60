//! `save_total_limit`: how many `checkpoint-N` directories stay.

use std::path::{Path, PathBuf};

use super::atomic;
use super::error::Result;
use super::state::list_checkpoints;

/// Removes the oldest checkpoints (smallest step) until at most `limit` complete ones are left,
/// never one of `protect`: the one just written, the best one. A limit of 0 keeps all, as in
/// transformers. Returns what was removed.
///
/// Call it after a checkpoint was written, so that there is never a moment with fewer good ones
/// than before.
pub fn prune(output_dir: &Path, limit: Option<usize>, protect: &[&Path]) -> Result<Vec<PathBuf>> {
    let Some(limit) = limit.filter(|limit| *limit > 0) else {
        return Ok(Vec::new());
    };
    let checkpoints = list_checkpoints(output_dir)?;
    let excess = checkpoints.len().saturating_sub(limit);
    let removable = checkpoints
        .into_iter()
        .map(|(_, path)| path)
        .filter(|path| !protect.iter().any(|kept| kept == path));
    let mut removed = Vec::new();
    for path in removable.take(excess) {
        atomic::remove_dir(&path)?;
        removed.push(path);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{TRAINING_STATE_FILE, checkpoint_dir};
    use std::fs;

    fn output(steps: &[u64]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for step in steps {
            let path = checkpoint_dir(dir.path(), *step);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(TRAINING_STATE_FILE), "{}").unwrap();
        }
        dir
    }

    fn left(dir: &tempfile::TempDir) -> Vec<u64> {
        list_checkpoints(dir.path())
            .unwrap()
            .into_iter()
            .map(|(step, _)| step)
            .collect()
    }

    #[test]
    fn oldest_go_first_by_number() {
        let dir = output(&[900, 1000, 20, 3]);
        assert_eq!(prune(dir.path(), Some(2), &[]).unwrap().len(), 2);
        assert_eq!(left(&dir), [900, 1000]);
        assert_eq!(prune(dir.path(), None, &[]).unwrap().len(), 0);
        assert_eq!(prune(dir.path(), Some(0), &[]).unwrap().len(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_protected_stay_even_when_oldest() {
        let dir = output(&[1, 2, 3]);
        let new = checkpoint_dir(dir.path(), 1);
        prune(dir.path(), Some(1), &[&new]).unwrap();
        assert_eq!(left(&dir), [1]);
    }

    #[test]
    fn directories_of_others_are_not_counted() {
        let dir = output(&[5, 6]);
        for name in ["checkpoint-1", "checkpoint-best", "runs"] {
            fs::create_dir(dir.path().join(name)).unwrap(); // a torch checkpoint or a stray directory: no training_state.json
        }
        prune(dir.path(), Some(1), &[]).unwrap();
        assert_eq!(left(&dir), [6]);
        assert!(dir.path().join("checkpoint-1").exists());
    }
}
