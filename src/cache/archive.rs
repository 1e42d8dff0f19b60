//! Entries in a tar file: one machine compiles, many take. What is taken is checked as a whole before it gets its name.

use super::Error;
use super::entry::{Content, Entry};
use super::store::Store;
use super::{AUTOTUNE, is_tuned_kernel, tuned_kernels};
use crate::checkpoint::atomic;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

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

/// Writes entries to a tar file, and what was measured of kernels; returns its size.
pub fn export(store: &Store, ids: &[&str], file: &Path) -> Result<u64, Error> {
    let autotune = store.dir().join(AUTOTUNE);
    atomic::write_file(file, |writer| {
        let mut archive = tar::Builder::new(writer);
        for name in tuned_kernels(&autotune) {
            archive.append_path_with_name(autotune.join(&name), Path::new(AUTOTUNE).join(&name))?;
        }
        for id in ids {
            let path = store.path(id);
            archive.append_path_with_name(&path, path.file_name().unwrap_or_default())?;
        }
        archive.into_inner()?.flush()
    })?;
    Ok(std::fs::metadata(file).map_err(Error::io(file))?.len())
}

/// Takes the entries of a tar file that are whole and rightly named. Anything else in it is listed and left.
pub fn import(store: &Store, file: &Path) -> Result<Imported, Error> {
    let reader = BufReader::new(File::open(file).map_err(Error::io(file))?);
    let mut archive = tar::Archive::new(reader);
    let mut imported = Imported::default();
    for member in archive.entries().map_err(Error::io(file))? {
        let mut member = member.map_err(Error::io(file))?;
        let name = member.path().map_err(Error::io(file))?.display().to_string();
        if let Some(kernel) = name.strip_prefix(AUTOTUNE).and_then(|rest| rest.strip_prefix('/'))
            && is_tuned_kernel(kernel)
        {
            imported.tuned +=
                usize::from(take_kernel(&store.dir().join(AUTOTUNE).join(kernel), &mut member).map_err(Error::io(file))?);
            continue;
        }
        // Other names are only ever looked at, never used as paths: the entry's own key says where it goes.
        let Some(id) = name.strip_suffix(".graph").filter(|id| is_id(id)).map(str::to_string) else {
            imported.refused.push((name, "its name is not that of an entry".into()));
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

/// Bytes of a measurement, at most; XLA's have some hundred.
const KERNEL: u64 = 1 << 20;

/// Writes a measurement of a kernel, unless there is one. XLA reads it with care: what it cannot read it measures anew.
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

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
}

/// Writes a member aside, checks it, and only then lets it in. The inner error says what is wrong with it.
fn take(store: &Store, id: &str, member: &mut impl Read) -> io::Result<Result<(), String>> {
    std::fs::create_dir_all(store.dir())?;
    let checked = |path: &Path| -> Result<(), String> {
        let mut entry = Entry::open(path).map_err(|damage| damage.to_string())?;
        for content in [Content::Graph, Content::Module, Content::Executable] {
            entry.read(content).map_err(|damage| damage.to_string())?;
        }
        match entry.header.key.id() == id {
            true => Ok(()),
            false => Err("it belongs to another key than its name says".into()),
        }
    };
    let mut bytes = Vec::new();
    member.read_to_end(&mut bytes)?;
    // Under a name that is no entry's, so that nobody can load it before it is checked.
    let aside = store.dir().join(format!("{id}.import.{}", std::process::id()));
    let result = (|| {
        std::fs::write(&aside, &bytes)?;
        match checked(&aside) {
            Ok(()) => {
                File::open(&aside)?.sync_all()?;
                std::fs::rename(&aside, store.path(id))?;
                Ok(Ok(()))
            }
            refused => Ok(refused),
        }
    })();
    let _ = std::fs::remove_file(&aside); // Gone already if it was taken.
    result
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::header;
    use super::*;

    #[test]
    fn what_one_exports_another_imports_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Store::new(dir.path().join("one")), Store::new(dir.path().join("other")));
        for phase in ["train", "eval"] {
            one.insert(header(phase), &[(Content::Graph, b"graph"), (Content::Module, b"module")]).unwrap();
        }
        let ids: Vec<String> = one.list().unwrap().into_iter().map(|listed| listed.id).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let tar = dir.path().join("graphs.tar");
        let kernel = "autotune/a4baa03864db7cfb/8523ecd2bee61f19f58212ee3a2c7a27.pb";
        std::fs::create_dir_all(one.dir().join(kernel).parent().unwrap()).unwrap();
        std::fs::write(one.dir().join(kernel), b"measured").unwrap();
        std::fs::write(one.dir().join("autotune/a4baa03864db7cfb/strange"), b"not XLA's").unwrap();
        export(&one, &ids, &tar).unwrap();
        assert_eq!(import(&other, &tar).unwrap(), Imported { taken: 2, tuned: 1, ..Default::default() });
        assert_eq!(import(&other, &tar).unwrap(), Imported { known: 2, ..Default::default() });
        assert_eq!(std::fs::read(other.dir().join(kernel)).unwrap(), b"measured");
        assert!(!other.dir().join("autotune/a4baa03864db7cfb/strange").exists());
        assert!(other.list().unwrap().iter().all(|listed| listed.header.is_ok()));

        // A damaged one, one under another's name, and a stranger.
        let mut damaged = std::fs::read(one.path(ids[0])).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(one.path(ids[0]), damaged).unwrap();
        let wrong = "0".repeat(32);
        std::fs::copy(one.path(ids[1]), one.path(&wrong)).unwrap();
        export(&one, &[ids[0], &wrong], &tar).unwrap();
        let third = Store::new(dir.path().join("third"));
        let imported = import(&third, &tar).unwrap();
        assert_eq!((imported.taken, imported.refused.len()), (0, 2), "{imported:?}");
        let kept: Vec<_> = std::fs::read_dir(third.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(kept, ["autotune"]);
    }
}
