//! One stored graph: a single file, so that it is there whole or not at all and can be copied by
//! hand.
//!
//! A line of text with the header's length and digest, the header as JSON, then the parts one after
//! another: the canonical graph, the HLO module and, where the device can serialize it, the
//! executable. `head -2 FILE` shows everything but the parts.

use super::key::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use xtrain_checkpoint::{files, hash};

pub const MAGIC: &str = "xtrain graph entry";
/// A header is a few KB; a damaged length must not make us allocate the machine.
const LARGEST_HEADER: usize = 16 << 20;

/// The name of graphs that evaluate; a batch's length may follow it.
pub const EVALUATION: &str = "eval";

/// Where a graph came from, in the user's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `train clm`, `bench`, ...
    pub command: String,
    pub model_type: String,
    /// Weights in the model; 0 where there is none.
    pub parameters: u64,
    /// Digest of the model's configuration.
    pub config_digest: String,
    /// Settings that shape graphs, to name the cause of a change.
    pub settings: BTreeMap<String, String>,
    /// Those that shape evaluations only, and those that shape all other graphs only; an entry has
    /// its own among `settings`.
    #[serde(skip)]
    pub of_evaluations: BTreeMap<String, String>,
    #[serde(skip)]
    pub of_others: BTreeMap<String, String>,
}

impl Origin {
    /// Of one graph: with the settings that shape it.
    pub fn of(&self, graph: &str) -> Origin {
        let is_evaluation = graph.split('.').next() == Some(EVALUATION);
        let own = if is_evaluation {
            &self.of_evaluations
        } else {
            &self.of_others
        };
        let mut origin = self.clone();
        origin.settings.extend(own.clone());
        (origin.of_evaluations, origin.of_others) = Default::default();
        origin
    }
}

/// The compiler's account of memory on one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub arguments: i64,
    pub outputs: i64,
    /// In both of the above: donated.
    pub donated: i64,
    pub temporaries: i64,
    pub code: i64,
    pub peak: i64,
}

/// Which part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Graph,
    Module,
    Executable,
    /// The module as the compiler left it, where the executable cannot be asked: it was compiled
    /// for a device that is not attached.
    OptimizedModule,
}

impl Content {
    pub fn name(self) -> &'static str {
        match self {
            Content::Graph => "graph",
            Content::Module => "HLO module",
            Content::Executable => "executable",
            Content::OptimizedModule => "optimized HLO module",
        }
    }
}

/// Size and digest of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    pub content: Content,
    pub bytes: u64,
    pub sha256: String,
}

/// Everything about an entry but its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub key: Key,
    /// The graph's name: what it is for in the run.
    pub phase: String,
    pub origin: Origin,
    /// Feeds with their shapes, largest rank first: what the user thinks of as the graph's shapes.
    pub feeds: Vec<String>,
    /// Seconds since 1970.
    pub created: u64,
    pub compile_seconds: f64,
    pub memory: Option<Memory>,
    /// The compiler's estimate (`flops`, `bytes accessed`).
    pub cost: BTreeMap<String, f64>,
    pub parts: Vec<Stored>,
}

impl Header {
    pub fn part(&self, content: Content) -> Option<&Stored> {
        self.parts.iter().find(|part| part.content == content)
    }

    fn offset(&self, content: Content) -> u64 {
        self.parts
            .iter()
            .take_while(|part| part.content != content)
            .map(|part| part.bytes)
            .sum()
    }
}

/// Why a file is not a usable entry.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it does not start as an entry does")]
    NoEntry,
    #[error(
        "it was written in cache format {found}, this xtrain reads {}",
        super::key::FORMAT_VERSION
    )]
    Format { found: u32 },
    #[error("its {part} is damaged")]
    Digest { part: &'static str },
    #[error("it is {found} bytes long where {wanted} were written")]
    Length { found: u64, wanted: u64 },
    #[error("it belongs to another key than its name says ({0})")]
    Foreign(String),
    #[error("its signature is not of this key")]
    Signature,
    #[error("its executable does not load: {0}")]
    NotLoadable(String),
}

/// An open entry whose header has been checked.
pub struct Entry {
    pub header: Header,
    pub file_bytes: u64,
    file: BufReader<File>,
    start: u64,
}

/// Writes an entry; digests are computed here.
pub fn write(
    to: &mut impl Write,
    mut header: Header,
    parts: &[(Content, &[u8])],
) -> io::Result<()> {
    header.parts = parts
        .iter()
        .map(|(content, bytes)| Stored {
            content: *content,
            bytes: bytes.len() as u64,
            sha256: hash::sha256(bytes),
        })
        .collect();
    let json = serde_json::to_vec(&header)?;
    writeln!(
        to,
        "{MAGIC} {} {} {}",
        super::key::FORMAT_VERSION,
        json.len(),
        hash::sha256(&json)
    )?;
    to.write_all(&json)?;
    to.write_all(b"\n")?;
    parts.iter().try_for_each(|(_, bytes)| to.write_all(bytes))
}

impl Entry {
    /// Opens a file and checks its header and length. Parts are checked when they are read.
    pub fn open(path: &Path) -> Result<Entry, Damage> {
        let file = files::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut file = BufReader::new(file);
        let mut line = Vec::new();
        file.by_ref().take(200).read_until(b'\n', &mut line)?;
        let line = String::from_utf8(line).map_err(|_| Damage::NoEntry)?;
        let rest = line
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.strip_suffix('\n'))
            .ok_or(Damage::NoEntry)?;
        let fields: Vec<&str> = rest.split(' ').skip(1).collect();
        let [version, length, digest] = fields[..] else {
            return Err(Damage::NoEntry);
        };
        let found = version.parse().map_err(|_| Damage::NoEntry)?;
        if found != super::key::FORMAT_VERSION {
            return Err(Damage::Format { found });
        }
        let length: usize = length
            .parse()
            .ok()
            .filter(|n| *n < LARGEST_HEADER)
            .ok_or(Damage::NoEntry)?;
        let mut json = vec![0; length + 1];
        file.read_exact(&mut json).map_err(|_| Damage::Length {
            found: file_bytes,
            wanted: (line.len() + length + 1) as u64,
        })?;
        let ended = json.pop() == Some(b'\n');
        if !ended || hash::sha256(&json) != digest {
            return Err(Damage::Digest { part: "header" });
        }
        let header: Header =
            serde_json::from_slice(&json).map_err(|_| Damage::Digest { part: "header" })?;
        let start = (line.len() + length + 1) as u64;
        let wanted = header
            .parts
            .iter()
            .fold(start, |sum, part| sum.saturating_add(part.bytes));
        if wanted != file_bytes {
            return Err(Damage::Length {
                found: file_bytes,
                wanted,
            });
        }
        Ok(Entry {
            header,
            file_bytes,
            file,
            start,
        })
    }

    /// A part's bytes, checked against their digest; `None` if the entry was stored without it.
    pub fn read(&mut self, content: Content) -> Result<Option<Vec<u8>>, Damage> {
        let Some(part) = self.header.part(content).cloned() else {
            return Ok(None);
        };
        self.file
            .seek(SeekFrom::Start(self.start + self.header.offset(content)))?;
        // The length has been compared with the file's, so a wrong one cannot get here.
        let mut bytes = vec![0; part.bytes as usize];
        self.file.read_exact(&mut bytes)?;
        if hash::sha256(&bytes) != part.sha256 {
            return Err(Damage::Digest {
                part: content.name(),
            });
        }
        Ok(Some(bytes))
    }

    /// Reads and checks every part; gives the executable, if there is one.
    pub fn check_all(&mut self) -> Result<Option<Vec<u8>>, Damage> {
        self.read(Content::Graph)?;
        self.read(Content::Module)?;
        self.read(Content::Executable)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    pub fn header(phase: &str) -> Header {
        let key = super::super::key::tests::key(&[("graph", phase), ("compiler", "x")]);
        let origin = Origin {
            command: "train clm".into(),
            model_type: "gpt2".into(),
            ..Default::default()
        };
        Header {
            key,
            phase: phase.into(),
            origin,
            feeds: vec!["input_ids s32[4,8]".into()],
            created: 1,
            compile_seconds: 2.5,
            memory: None,
            cost: BTreeMap::new(),
            parts: Vec::new(),
        }
    }

    /// A whole entry, for damage.
    pub fn sample_entry() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, header("train"), &PARTS).unwrap();
        bytes
    }

    /// What was an entry, with the length and digest that its damaged header has.
    pub fn with_digests(bytes: &[u8]) -> Vec<u8> {
        let rest = |bytes: &[u8]| -> Option<Vec<u8>> {
            let start = bytes.iter().position(|byte| *byte == b'\n')? + 1;
            let end = start + bytes[start..].iter().position(|byte| *byte == b'\n')?;
            let (json, version) = (&bytes[start..end], super::super::key::FORMAT_VERSION);
            let line = format!("{MAGIC} {version} {} {}\n", json.len(), hash::sha256(json));
            Some([line.as_bytes(), &bytes[start..]].concat())
        };
        rest(bytes).unwrap_or_else(|| bytes.to_vec())
    }

    const PARTS: [(Content, &[u8]); 3] = [
        (Content::Graph, b"graph bytes"),
        (Content::Module, b"module bytes"),
        (Content::Executable, b"executable bytes"),
    ];

    #[test]
    fn what_is_written_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&mut file.as_file(), header("train"), &PARTS).unwrap();
        let mut entry = Entry::open(file.path()).unwrap();
        assert_eq!(entry.header.phase, "train");
        for (content, bytes) in PARTS {
            assert_eq!(entry.read(content).unwrap().unwrap(), bytes);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&mut file.as_file(), header("train"), &PARTS[..2]).unwrap();
        assert_eq!(
            Entry::open(file.path())
                .unwrap()
                .read(Content::Executable)
                .unwrap(),
            None
        );
    }

    #[test]
    fn no_flipped_bit_and_no_lost_byte_goes_unnoticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&mut file.as_file(), header("train"), &PARTS).unwrap();
        let whole = fs::read(file.path()).unwrap();
        let check = |bytes: &[u8]| {
            fs::write(file.path(), bytes).unwrap();
            Entry::open(file.path()).and_then(|mut entry| entry.check_all())
        };
        assert!(check(&whole).is_ok());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(check(&damaged).is_err(), "bit {} of byte {at}", at % 8);
            assert!(check(&whole[..at]).is_err(), "cut at {at}");
        }
        assert!(check(&[&whole[..], b"x"].concat()).is_err());
    }
}
