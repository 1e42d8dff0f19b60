//! The optimizer's state of a checkpoint, written by all processes of a run: each puts some of the
//! tensors together, holds only those in its memory and writes them into a file of its own, in the
//! directory that rank 0 finishes.

use crate::error::Result as Trained;
use crate::session::Session;
use crate::session::parameters::{HostTensor, download, take_part_in_download};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;
use xtrain_checkpoint::atomic;
use xtrain_checkpoint::optimizer::{PartFile, PeerWriters, write_part};
use xtrain_checkpoint::{Error as CheckpointError, Pace, TensorRef};
use xtrain_distributed::ProcessGroup;
use xtrain_report::errln;

/// Who writes what in the checkpoint of one step.
pub struct ShardedStateWriter {
    group: Arc<ProcessGroup>,
    step: u64,
    /// Of each rank that writes, its tensors.
    names: Vec<Vec<String>>,
}

impl ShardedStateWriter {
    /// `None` where one process writes all: it is alone, or the others do not see its `output_dir`.
    /// All ranks call it at the same step.
    pub fn of(
        session: &Session,
        names: &[String],
        step: u64,
        output_dir: &Path,
    ) -> Trained<Option<ShardedStateWriter>> {
        let Some(group) = ProcessGroup::joined().filter(|group| group.rank_info().world > 1) else {
            return Ok(None);
        };
        let bytes = |name: &str| {
            session
                .shape(name)
                .map_or(0, |held| session.placements().whole(name, held).bytes())
        };
        let sized: Vec<(String, usize)> = names
            .iter()
            .map(|name| (name.clone(), bytes(name)))
            .collect();
        let names = deal_out(&sized, group.rank_info().world);
        let shares = ShardedStateWriter { group, step, names };
        Ok(
            if shares.names.len() > 1 && shares.share_directory(output_dir)? {
                Some(shares)
            } else {
                None
            },
        )
    }

    /// Whether a file that rank 0 puts into its `output_dir` is there for all others too.
    fn share_directory(&self, output_dir: &Path) -> Trained<bool> {
        let member = self.group.rank_info();
        if member.rank > 0 {
            let probe = self.group.wait_for(&self.key("probe"))?;
            let probe = output_dir.join(String::from_utf8_lossy(&probe).as_ref());
            return self.all_share(comes_into_sight(&probe));
        }
        let written = std::fs::create_dir_all(output_dir)
            .and_then(|()| atomic::file_beside(&output_dir.join("shared")));
        let probe = written
            .as_ref()
            .ok()
            .and_then(|file| file.path().file_name());
        let probe = probe.unwrap_or_default();
        self.group.put(&self.key("probe"), probe.as_bytes())?;
        // What is wrong with the directory comes out when the checkpoint is written.
        let is_shared = self.all_share(written.is_ok())?;
        if !is_shared {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                errln!(
                    "note: {} is not shared by all processes; rank 0 writes the whole training state",
                    output_dir.display()
                );
            });
        }
        Ok(is_shared)
    }

    fn all_share(&self, own: bool) -> Trained<bool> {
        Ok(self.group.all_agree(&values_of(self.step), "shared", own)?)
    }

    /// This rank's tensors. All ranks call it too.
    pub fn download(&self, session: &mut Session) -> Trained<Vec<HostTensor>> {
        let mut own = Vec::new();
        for (rank, names) in self.names.iter().enumerate() {
            if rank == self.group.rank_info().rank {
                own = download(session, names)?
            } else {
                take_part_in_download(session, names)?
            }
        }
        Ok(own)
    }

    /// Writes this rank's tensors into the directory that rank 0 has begun in `output_dir`, and
    /// tells rank 0 how that went. If one of them is broken, rank 0 gets its name instead.
    pub fn write(
        &self,
        output_dir: &Path,
        tensors: &[TensorRef],
        broken: Option<&str>,
        pace: &Pace,
    ) -> Trained<()> {
        let rank = self.group.rank_info().rank;
        if rank >= self.names.len() {
            return Ok(());
        }
        let key = self.key(&rank.to_string());
        if let Some(tensor) = broken {
            let reason = not_finite(tensor);
            return Ok(self.group.put(&key, &encoded(&Err((reason, true))))?);
        }
        let name = self.group.wait_for(&self.key("directory"))?;
        if name.is_empty() {
            return Ok(()); // Rank 0 gave up, and reports why.
        }
        let dir = output_dir.join(String::from_utf8_lossy(&name).as_ref());
        let written = write_part(&dir, rank, self.names.len(), tensors, pace);
        let told = written
            .as_ref()
            .map(PartFile::clone)
            .map_err(|error| (error.to_string(), error.is_lasting()));
        self.group.put(&key, &encoded(&told))?;
        Ok(written.map(drop)?)
    }

    /// Has the other processes write nothing, where they wait for a directory to write into.
    pub fn give_up(&self) {
        // Without the store the job ends anyway.
        let _ = self.group.put(&self.key("directory"), &[]);
    }

    fn key(&self, what: &str) -> String {
        format!("{}/{what}", values_of(self.step))
    }
}

/// How the keys begin of what ranks tell each other about the checkpoint of a step.
pub fn values_of(step: u64) -> String {
    format!("checkpoint/{step}")
}

/// A part that was written, or why not, and whether the same would happen again.
type PartResult = Result<PartFile, (String, bool)>;

impl PeerWriters for ShardedStateWriter {
    fn count(&self) -> usize {
        self.names.len()
    }

    /// By its name alone: other machines may have the output directory elsewhere.
    fn begin(&self, dir: &Path) -> Result<(), CheckpointError> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let put = self.group.put(&self.key("directory"), name.as_bytes());
        put.map_err(|error| {
            CheckpointError::io("tell the other processes of", dir)(io::Error::other(error))
        })
    }

    fn finish(&self) -> Result<Vec<PartFile>, CheckpointError> {
        let mut parts = Vec::new();
        for rank in 1..self.names.len() {
            let failed = |error: String, is_lasting| CheckpointError::Part {
                rank,
                error,
                is_lasting,
            };
            let told = self
                .group
                .wait_for(&self.key(&rank.to_string()))
                .map_err(|error| failed(error.to_string(), false))?;
            let told: PartResult =
                serde_json::from_slice(&told).map_err(|error| failed(error.to_string(), false))?;
            parts.push(told.map_err(|(error, is_lasting)| failed(error, is_lasting))?);
        }
        Ok(parts)
    }
}

/// Why a tensor is not saved.
pub fn not_finite(tensor: &str) -> String {
    format!("{tensor} holds values that are not finite")
}

/// Whether a file appears within the time that network file systems take to tell each other.
fn comes_into_sight(file: &Path) -> bool {
    for _ in 0..30 {
        // Reading the directory makes network file systems look again.
        let listed = file.parent().and_then(|dir| std::fs::read_dir(dir).ok());
        if listed.is_some_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.path() == file))
        }) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

fn encoded(told: &PartResult) -> Vec<u8> {
    serde_json::to_vec(told).expect("it is made of texts and numbers")
}

/// Each tensor to the rank that has least so far; the same on every rank. Ranks that would get
/// nothing are left out.
fn deal_out(sized: &[(String, usize)], ranks: usize) -> Vec<Vec<String>> {
    let mut dealt: Vec<(usize, Vec<String>)> = vec![(0, Vec::new()); ranks.min(sized.len())];
    for (name, bytes) in sized {
        // The first of equals; a tensor of no bytes counts too, so that none piles up.
        let least = dealt
            .iter_mut()
            .min_by_key(|(filled, names)| (*filled, names.len()))
            .expect("there is a tensor, so there is a rank");
        least.0 += bytes;
        least.1.push(name.clone());
    }
    dealt.into_iter().map(|(_, names)| names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_dealt_out_evenly() {
        let sized = |sizes: &[usize]| {
            sizes
                .iter()
                .enumerate()
                .map(|(i, n)| (format!("t{i}"), *n))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            deal_out(&sized(&[8, 4, 4, 1, 1]), 2),
            [vec!["t0", "t3"], vec!["t1", "t2", "t4"]]
        );
        assert_eq!(deal_out(&sized(&[0, 0]), 4), [vec!["t0"], vec!["t1"]]);
        assert!(deal_out(&[], 4).is_empty());
    }
}
