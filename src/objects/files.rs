//! Files in the place of objects: written and read a piece at a time, whatever their size.

use super::folder::{Error, Folder, Object, failed};
use futures_util::TryStreamExt;
use object_store::{Error as Cause, GetOptions, GetRange, ObjectStoreExt};
use std::io::{self, Read, Write};

/// Bytes of a piece, of which one is in memory. S3 takes no more than [`MOST_PARTS`] parts, so that those of a large
/// file are larger.
const PIECE: u64 = 16 << 20;
const MOST_PARTS: u64 = 9_000;

impl Folder {
    /// Everything below the folder, at any depth, by its path from there.
    ///
    /// # Errors
    /// The store does not answer, or does not list.
    pub fn list_all(&self) -> Result<Vec<Object>, Error> {
        let prefix = Some(&self.prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let listed = self.store.list(prefix).try_collect::<Vec<_>>();
        let listed = self.runtime.block_on(listed).map_err(failed)?;
        let object = |meta: object_store::ObjectMeta| {
            let parts = meta.location.prefix_match(&self.prefix)?;
            let parts: Vec<String> = parts.map(|part| part.as_ref().to_string()).collect();
            Some(Object {
                name: parts.join("/"),
                bytes: meta.size,
                modified: meta.last_modified.timestamp(),
            })
        };
        let objects = listed.into_iter().filter_map(object);
        // Consoles mark folders by objects without a name.
        Ok(objects.filter(|object| !object.name.is_empty()).collect())
    }

    /// Writes an object of `bytes` bytes, in the place of one of this name: nobody sees a part of it.
    ///
    /// # Errors
    /// The content cannot be read or ends early, or the object cannot be written.
    pub fn upload(&self, name: &str, bytes: u64, content: &mut dyn Read) -> Result<(), Error> {
        let length = PIECE.max(bytes.div_ceil(MOST_PARTS));
        if bytes <= length {
            return self.put(name, piece(name, content, bytes)?);
        }
        let path = self.path(name)?;
        let begun = self.runtime.block_on(self.store.put_multipart(&path));
        let mut upload = begun.map_err(failed)?;
        let mut send = || {
            for start in (0..bytes).step_by(length as usize) {
                let part = piece(name, content, length.min(bytes - start))?;
                let sent = self.runtime.block_on(upload.put_part(part.into()));
                sent.map_err(failed)?;
            }
            self.runtime.block_on(upload.complete()).map_err(failed)
        };
        let sent = send().map(drop);
        if sent.is_err() {
            // Parts that stay cost their owner money. The failure is reported either way.
            let _ = self.runtime.block_on(upload.abort());
        }
        sent
    }

    /// Reads an object into `content`; its size, or `None` if there is none of this name.
    ///
    /// # Errors
    /// It does not arrive, is replaced meanwhile, or cannot be written here.
    pub fn download(&self, name: &str, content: &mut dyn Write) -> Result<Option<u64>, Error> {
        let path = self.path(name)?;
        let meta = match self.runtime.block_on(self.store.head(&path)) {
            Ok(meta) => meta,
            Err(Cause::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        for start in (0..meta.size).step_by(PIECE as usize) {
            let options = GetOptions {
                range: Some(GetRange::Bounded(start..(start + PIECE).min(meta.size))),
                if_match: meta.e_tag.clone(),
                ..GetOptions::default()
            };
            let read = async { self.store.get_opts(&path, options).await?.bytes().await };
            let piece = self.runtime.block_on(read).map_err(failed)?;
            content.write_all(&piece).map_err(here("write", name))?;
        }
        Ok(Some(meta.size))
    }
}

/// The next `bytes` bytes.
fn piece(name: &str, content: &mut dyn Read, bytes: u64) -> Result<Vec<u8>, Error> {
    let mut piece = vec![0; bytes as usize];
    content.read_exact(&mut piece).map_err(here("read", name))?;
    Ok(piece)
}

fn here(doing: &'static str, name: &str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Failed(format!("cannot {doing} {name} here: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use std::sync::Arc;

    fn folder() -> Folder {
        Folder {
            store: Arc::new(InMemory::new()),
            prefix: Path::from("run"),
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap(),
        }
    }

    /// Sizes around a piece's, and beyond.
    #[test]
    fn a_file_comes_back_as_it_went() {
        let folder = folder();
        let sizes = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7];
        for size in sizes {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let name = format!("checkpoint-{size}/model.safetensors");
            folder.upload(&name, size, &mut &content[..]).unwrap();
            let mut back = Vec::new();
            assert_eq!(folder.download(&name, &mut back).unwrap(), Some(size));
            assert!(back == content, "{size} bytes");
        }
        let listed = folder.list_all().unwrap();
        assert_eq!(listed.len(), sizes.len());
        assert!(
            listed
                .iter()
                .all(|object| object.name
                    == format!("checkpoint-{}/model.safetensors", object.bytes))
        );
        assert_eq!(
            folder
                .download("checkpoint-9/none", &mut Vec::new())
                .unwrap(),
            None
        );
    }

    /// Names come back from the lists as they were given, whoever wrote the object.
    #[test]
    fn names_keep_every_character() {
        let folder = folder();
        let names = ["a#b~%.txt", "a%23b", "checkpoint-1/[x] ä?*.json"];
        for name in names {
            folder.upload(name, 1, &mut &b"x"[..]).unwrap();
        }
        let listed = folder.list_all().unwrap();
        let listed: Vec<&str> = listed.iter().map(|object| &*object.name).collect();
        assert_eq!(listed, names);
        for name in listed {
            assert_eq!(folder.get(name, 9).unwrap().as_deref(), Some(&b"x"[..]));
            folder.remove(name).unwrap();
        }
        assert!(folder.list_all().unwrap().is_empty());
        for name in ["a//b", "../a", "a\nb"] {
            assert!(folder.put(name, Vec::new()).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_no_object() {
        let folder = folder();
        for size in [10, 2 * PIECE] {
            let error = folder
                .upload("cut", size, &mut &[0; 9][..])
                .unwrap_err()
                .to_string();
            assert!(error.contains("cannot read cut here"), "{error}");
        }
        assert!(folder.list_all().unwrap().is_empty());
    }
}
