//! The optimizer's state in a checkpoint: one file or, where several processes write it together,
//! one of each with an index. Either holds whole tensors by name, so that any mesh can resume from
//! it.

use super::error::{Error, Result};
use super::hash::{self, HashingWriter};
use super::pace::{Pace, Paced};
use super::shards::weight_map;
use super::tensors::{TensorRef, write_safetensors};
use super::weights::Weights;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
pub const OPTIMIZER_INDEX_FILE: &str = "optimizer.safetensors.index.json";

/// Length and digest of a file as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    pub bytes: u64,
    pub sha256: String,
}

/// A file that one process has written, as it tells the one that finishes the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    pub name: String,
    pub record: FileRecord,
    /// The names of its tensors.
    pub tensors: Vec<String>,
}

/// The other processes, to the one that finishes the checkpoint.
pub trait PeerWriters {
    /// Files of all together.
    fn count(&self) -> usize;
    /// Tells them the directory that is being written aside.
    fn begin(&self, dir: &Path) -> Result<()>;
    /// Waits for their files.
    fn finish(&self) -> Result<Vec<PartFile>>;
}

pub(super) type Sink<'a> = Paced<'a, HashingWriter<BufWriter<&'a File>>>;

pub(super) fn write_hashed(
    path: &Path,
    pace: &Pace,
    fill: &dyn Fn(&mut Sink<'_>) -> io::Result<()>,
) -> io::Result<FileRecord> {
    let file = File::create_new(path)?;
    let out = HashingWriter::new(BufWriter::with_capacity(1 << 20, &file));
    let mut out = Paced::new(out, pace);
    fill(&mut out)?;
    let (mut writer, bytes, digest) = out.into_inner().finish();
    writer.flush()?;
    Ok(FileRecord {
        bytes,
        sha256: hash::hex(&digest),
    })
}

/// Writes file `number`, from 0, of `count` into a directory that is being written aside.
pub fn write_part(
    dir: &Path,
    number: usize,
    count: usize,
    tensors: &[TensorRef],
    pace: &Pace,
) -> Result<PartFile> {
    let name = format!("optimizer-{:05}-of-{count:05}.safetensors", number + 1);
    let path = dir.join(&name);
    let fill = |out: &mut Sink<'_>| write_safetensors(out, tensors);
    let written = write_hashed(&path, pace, &fill).and_then(|record| {
        // Another machine finishes the checkpoint: what it cannot sync has to be on the disk.
        File::open(&path)?.sync_all()?;
        Ok(record)
    });
    let record = written.map_err(Error::io("write", &path))?;
    Ok(PartFile {
        name,
        record,
        tensors: tensors
            .iter()
            .map(|tensor| tensor.name.to_string())
            .collect(),
    })
}

/// Which tensor is in which file, as transformers writes it for weights.
pub(super) fn index(parts: &[PartFile]) -> Value {
    let places = parts.iter().flat_map(|part| {
        part.tensors
            .iter()
            .map(|tensor| (tensor.as_str(), part.name.as_str()))
    });
    json!({"weight_map": weight_map(places)})
}

/// Opens whichever there is.
pub(super) fn open(dir: &Path) -> Result<Weights> {
    let index = dir.join(OPTIMIZER_INDEX_FILE);
    if index.exists() {
        Weights::open_sharded(dir, &index)
    } else {
        Weights::open(&dir.join(OPTIMIZER_FILE))
    }
}
