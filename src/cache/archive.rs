//! Entries in a tar file: one machine compiles, many take. What is taken is checked as a whole
//! before it gets its name.

use super::Error;
use super::entry::{self, Content, Damage, Entry, Header};
use super::store::{EntryStore, Store, is_id};
use super::{AUTOTUNE, is_tuned_kernel, tuned_kernels};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use xtrain_checkpoint::named::write_named;
use xtrain_checkpoint::{atomic, files};
use xtrain_report::units::bytes;

/// What an import did.
#[derive(Debug, Default, PartialEq)]
pub struct Imported {
    pub taken: usize,
    /// Already here.
    pub known: usize,
    /// Measurements of kernels that were new.
    pub tuned: usize,
    /// Name in the tar file, and what is wrong with it.
    pub refused: Vec<(String, String)>,
}

/// What an export wrote.
#[derive(Debug, PartialEq)]
pub struct Exported {
    pub graphs: usize,
    /// The tar file's.
    pub bytes: u64,
}

/// Writes entries to a tar file, and what was measured of kernels.
pub fn export(store: &Store, ids: &[&str], file: &Path) -> Result<Exported, Error> {
    let append = |archive: &mut Builder| {
        for id in ids {
            let path = store.path(id);
            archive.append_path_with_name(&path, path.file_name().unwrap_or_default())?;
        }
        Ok(())
    };
    write_archive(store, file, append).map(|bytes| Exported {
        graphs: ids.len(),
        bytes,
    })
}

/// The same of their modules alone, each once, however many devices and options it was compiled
/// for.
pub fn export_modules(store: &Store, ids: &[&str], file: &Path) -> Result<Exported, Error> {
    let mut modules = BTreeMap::new();
    for id in ids {
        let read = || -> Result<Option<(String, Vec<u8>)>, Damage> {
            let mut entry = store.open(id)?;
            let (Some(graph), Some(module)) =
                (entry.read(Content::Graph)?, entry.read(Content::Module)?)
            else {
                return Ok(None);
            };
            let key = entry.header.key.of_module();
            let header = Header {
                compile_seconds: 0.0,
                memory: None,
                cost: BTreeMap::new(),
                key,
                ..entry.header
            };
            let (id, mut bytes) = (header.key.id(), Vec::new());
            entry::write(
                &mut bytes,
                header,
                &[(Content::Graph, &graph), (Content::Module, &module)],
            )?;
            Ok(Some((id, bytes)))
        };
        modules
            .extend(read().map_err(|damage| Error::io(store.path(id))(io::Error::other(damage)))?);
    }
    let append = |archive: &mut Builder| {
        for (id, bytes) in &modules {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            let path = store.path(id);
            archive.append_data(
                &mut header,
                path.file_name().unwrap_or_default(),
                &bytes[..],
            )?;
        }
        Ok(())
    };
    write_archive(store, file, append).map(|bytes| Exported {
        graphs: modules.len(),
        bytes,
    })
}

type Builder<'w> = tar::Builder<&'w mut dyn Write>;

/// Counts what passes through: a pipe has no size to ask for afterwards.
struct Counted<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Returns the archive's size.
fn write_archive(
    store: &Store,
    file: &Path,
    append: impl Fn(&mut Builder) -> io::Result<()>,
) -> Result<u64, Error> {
    let autotune = store.dir().join(AUTOTUNE);
    let bytes = write_named(file, |writer| {
        let mut counted = Counted {
            to: writer,
            bytes: 0,
        };
        let mut archive = tar::Builder::new(&mut counted as &mut dyn Write);
        for name in tuned_kernels(&autotune) {
            archive.append_path_with_name(autotune.join(&name), Path::new(AUTOTUNE).join(&name))?;
        }
        append(&mut archive)?;
        archive.into_inner()?.flush()?;
        Ok(counted.bytes)
    })?;
    Ok(bytes)
}

/// Takes the entries of a tar file that are whole and rightly named. Anything else in it is listed
/// and left.
pub fn import(store: &Store, file: &Path) -> Result<Imported, Error> {
    let opened = files::open(file).map_err(Error::io(file))?;
    let size = opened.metadata().map_err(Error::io(file))?.len();
    let reader = BufReader::new(opened);
    let mut archive = tar::Archive::new(reader);
    let mut imported = Imported::default();
    // What the tar crate says of other files quotes them.
    let no_archive = |error: io::Error| {
        let reason = "not a whole tar file of `xtrain cache export`";
        Error::io(file)(match error.raw_os_error() {
            Some(_) => error,
            None => io::Error::new(error.kind(), reason),
        })
    };
    // Raw: names of entries are short, and extensions of the format need not be read.
    for member in archive.entries_with_seek().map_err(no_archive)?.raw(true) {
        let mut member = member.map_err(no_archive)?;
        let name = member
            .path()
            .map_err(Error::io(file))?
            .display()
            .to_string();
        let (kind, claimed) = (member.header().entry_type(), member.size());
        if kind.is_pax_global_extensions() || kind.is_pax_local_extensions() {
            continue;
        }
        if !kind.is_file() {
            let reason = "it is no plain file, as `xtrain cache export` writes them";
            imported.refused.push((name, reason.into()));
            continue;
        }
        if claimed > size.min(LARGEST) {
            let [claimed, most, size] = [claimed, LARGEST, size].map(bytes);
            let reason = format!(
                "it claims {claimed}; entries have at most {most}, and the whole archive has {size}"
            );
            imported.refused.push((name, reason));
            // What follows is found by the size that it claims.
            break;
        }
        if let Some(kernel) = name
            .strip_prefix(AUTOTUNE)
            .and_then(|rest| rest.strip_prefix('/'))
            && is_tuned_kernel(kernel)
        {
            imported.tuned += usize::from(
                take_kernel(&store.dir().join(AUTOTUNE).join(kernel), &mut member)
                    .map_err(Error::io(file))?,
            );
            continue;
        }
        // Other names are only ever looked at, never used as paths: the entry's own key says where
        // it goes.
        let Some(id) = name
            .strip_suffix(".graph")
            .filter(|id| is_id(id))
            .map(str::to_string)
        else {
            imported
                .refused
                .push((name, "its name is not that of an entry".into()));
            continue;
        };
        if store.find_id(&id) {
            imported.known += 1;
            continue;
        }
        match take(store, &id, &mut member).map_err(Error::io(file))? {
            Ok(()) => imported.taken += 1,
            Err(reason) => imported.refused.push((name, reason)),
        }
    }
    Ok(imported)
}

/// Bytes of an entry, at most. A tar file may announce any size, and one with holes need not take up
/// that much itself.
const LARGEST: u64 = 4 << 30;

/// Bytes of a measurement, at most; XLA's have some hundred.
const KERNEL: u64 = 1 << 20;

/// Writes a measurement of a kernel, unless there is one. XLA reads it with care: what it cannot
/// read it measures anew.
fn take_kernel(path: &Path, member: &mut impl Read) -> io::Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    member.take(KERNEL).read_to_end(&mut bytes)?;
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    atomic::write_bytes(path, &bytes).map_err(io::Error::other)?;
    Ok(true)
}

/// Writes a member aside, checks it, and only then lets it in. The inner error says what is wrong
/// with it.
fn take(store: &Store, id: &str, member: &mut impl Read) -> io::Result<Result<(), String>> {
    std::fs::create_dir_all(store.dir())?;
    let checked = |path: &Path| -> Result<(), String> {
        let mut entry = Entry::open(path).map_err(|damage| damage.to_string())?;
        for content in [
            Content::Graph,
            Content::Module,
            Content::Executable,
            Content::OptimizedModule,
        ] {
            entry.read(content).map_err(|damage| damage.to_string())?;
        }
        if entry.header.key.id() == id {
            Ok(())
        } else {
            Err("it belongs to another key than its name says".into())
        }
    };
    let mut start = Vec::new();
    member
        .take(entry::MAGIC.len() as u64)
        .read_to_end(&mut start)?;
    if start != entry::MAGIC.as_bytes() {
        return Ok(Err(Damage::NoEntry.to_string()));
    }
    // Under a name that is no entry's, so that nobody can load it before it is checked.
    let mut aside = atomic::file_beside(&store.path(id))?;
    aside.write_all(&start)?;
    io::copy(member, &mut aside)?;
    if let Err(reason) = checked(aside.path()) {
        return Ok(Err(reason));
    }
    aside.as_file().sync_all()?;
    aside.persist(store.path(id))?;
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::header;
    use super::super::key::Part;
    use super::*;

    /// A tar file may announce what it has not, and its holes may be read as zeros.
    #[test]
    fn sizes_that_lie_are_refused_by_their_number() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("store"));
        let tar = dir.path().join("graphs.tar");
        let name = format!("{}.graph", "0".repeat(32));
        let write = |kind: tar::EntryType, size: u64, holes: u64| {
            let mut header = tar::Header::new_gnu();
            header.set_path(&name).unwrap();
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_cksum();
            std::fs::write(&tar, header.as_bytes()).unwrap();
            let file = std::fs::File::options().append(true).open(&tar).unwrap();
            file.set_len(512 + holes).unwrap();
        };
        let eight = 8 << 30;
        let regular = tar::EntryType::Regular;
        for (kind, size, holes, word) in [
            (regular, eight, 1024, "it claims 8.0 GiB"),
            (regular, eight, eight + 1024, "it claims 8.0 GiB"),
            (
                regular,
                LARGEST,
                LARGEST + 1024,
                "does not start as an entry",
            ),
            (tar::EntryType::Symlink, 0, 1024, "no plain file"),
            (
                tar::EntryType::GNULongName,
                64 << 20,
                128 << 20,
                "no plain file",
            ),
        ] {
            write(kind, size, holes);
            let imported = import(&store, &tar).unwrap();
            let reason = &imported.refused[0].1;
            assert!(imported.taken == 0 && reason.contains(word), "{imported:?}");
        }
        assert!(store.list().unwrap().is_empty());
    }

    #[test]
    fn what_one_exports_another_imports_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (
            Store::new(dir.path().join("one")),
            Store::new(dir.path().join("other")),
        );
        for phase in ["train", "eval"] {
            one.insert(
                header(phase),
                &[(Content::Graph, b"graph"), (Content::Module, b"module")],
            )
            .unwrap();
        }
        let ids: Vec<String> = one
            .list()
            .unwrap()
            .into_iter()
            .map(|listed| listed.id)
            .collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let tar = dir.path().join("graphs.tar");
        let kernel = "autotune/a4baa03864db7cfb/8523ecd2bee61f19f58212ee3a2c7a27.pb";
        std::fs::create_dir_all(one.dir().join(kernel).parent().unwrap()).unwrap();
        std::fs::write(one.dir().join(kernel), b"measured").unwrap();
        std::fs::write(
            one.dir().join("autotune/a4baa03864db7cfb/strange"),
            b"not XLA's",
        )
        .unwrap();
        export(&one, &ids, &tar).unwrap();
        assert_eq!(
            import(&other, &tar).unwrap(),
            Imported {
                taken: 2,
                tuned: 1,
                ..Default::default()
            }
        );
        assert_eq!(
            import(&other, &tar).unwrap(),
            Imported {
                known: 2,
                ..Default::default()
            }
        );
        assert_eq!(
            std::fs::read(other.dir().join(kernel)).unwrap(),
            b"measured"
        );
        assert!(
            !other
                .dir()
                .join("autotune/a4baa03864db7cfb/strange")
                .exists()
        );
        assert!(
            other
                .list()
                .unwrap()
                .iter()
                .all(|listed| listed.header.is_ok())
        );

        // What was compiled stays; the same module, stored for two devices, is one.
        let tar_of_modules = dir.path().join("modules.tar");
        let mut elsewhere = header("train");
        elsewhere.key.parts.push(Part {
            name: "device".into(),
            value: "another".into(),
        });
        one.insert(
            elsewhere.clone(),
            &[
                (Content::Graph, b"graph"),
                (Content::Module, b"module"),
                (Content::Executable, b"code"),
            ],
        )
        .unwrap();
        let all = [ids[0], ids[1], &elsewhere.key.id()];
        assert_eq!(
            export_modules(&one, &all, &tar_of_modules).unwrap().graphs,
            2
        );
        let fourth = Store::new(dir.path().join("fourth"));
        assert_eq!(
            import(&fourth, &tar_of_modules).unwrap(),
            Imported {
                taken: 2,
                tuned: 1,
                ..Default::default()
            }
        );
        for wanted in ["train", "eval"] {
            assert_eq!(fourth.module(&header(wanted).key).unwrap(), b"module");
            assert!(fourth.find(&header(wanted).key).unwrap().is_none());
        }
        assert_eq!(fourth.module(&header("other").key), None);

        // A damaged one, one under another's name, and a stranger.
        let mut damaged = std::fs::read(one.path(ids[0])).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(one.path(ids[0]), damaged).unwrap();
        let wrong = "0".repeat(32);
        std::fs::copy(one.path(ids[1]), one.path(&wrong)).unwrap();
        export(&one, &[ids[0], &wrong], &tar).unwrap();
        let third = Store::new(dir.path().join("third"));
        let imported = import(&third, &tar).unwrap();
        assert_eq!(
            (imported.taken, imported.refused.len()),
            (0, 2),
            "{imported:?}"
        );
        let kept: Vec<_> = std::fs::read_dir(third.dir())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(kept, ["autotune"]);
    }
}
