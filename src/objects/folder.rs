//! The objects below one URL, each read and written whole.

use super::{Effort, SCHEMES, client};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as Cause, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use url::Url;
use xtrain_report::printable::with_causes;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0} names no folder; give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or https://HOST/PATH"
    )]
    Url(String),
    #[error("{name} has {bytes} bytes, more than the {most} that it may have")]
    TooLarge { name: String, bytes: u64, most: u64 },
    /// The store does not know the kind of request, such as one that creates and never replaces.
    #[error("the store cannot do this: {0}")]
    NotSupported(String),
    #[error("{0}")]
    Failed(String),
}

/// What a folder lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Below the folder, without it.
    pub name: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

/// The objects below one URL.
pub struct Folder {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    /// Requests of this process take turns: it has one store and few objects.
    pub(super) runtime: Runtime,
}

impl Folder {
    /// Asks nothing of any server yet.
    ///
    /// # Errors
    /// The URL is of no kind that is served, or the environment's credentials contradict themselves.
    pub fn open(url: &str, effort: &Effort) -> Result<Folder, Error> {
        let parsed = Url::parse(url).map_err(|_| Error::Url(url.into()))?;
        let is_folder = SCHEMES.contains(&parsed.scheme())
            && parsed.host_str().is_some_and(|host| !host.is_empty())
            && parsed.query().is_none()
            && parsed.fragment().is_none();
        if !is_folder {
            return Err(Error::Url(url.into()));
        }
        let (store, prefix) = client(&parsed, effort).map_err(failed)?;
        let runtime = Builder::new_current_thread().enable_time().build();
        Ok(Folder {
            store,
            prefix,
            runtime: runtime.map_err(|error| Error::Failed(error.to_string()))?,
        })
    }

    /// Of an object below the folder. Every character stays as it is, as in the names that the store lists.
    pub(super) fn path(&self, name: &str) -> Result<Path, Error> {
        Path::parse(format!("{}/{name}", self.prefix)).map_err(|error| failed(error.into()))
    }

    /// All of an object; `None` if there is none of this name.
    ///
    /// # Errors
    /// It has more than `most` bytes, or does not arrive.
    pub fn get(&self, name: &str, most: u64) -> Result<Option<Bytes>, Error> {
        let path = self.path(name)?;
        let read = async {
            // The size first: what is read is kept in memory.
            let meta = self.store.head(&path).await?;
            if meta.size > most {
                return Ok(Err(meta.size));
            }
            let bytes = self.store.get(&path).await?.bytes().await?;
            Ok(match bytes.len() as u64 {
                size if size > most => Err(size),
                _ => Ok(bytes),
            })
        };
        match self.runtime.block_on(read) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(bytes)) => Err(Error::TooLarge {
                name: name.into(),
                bytes,
                most,
            }),
            Err(Cause::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// What changes with an object's content; `None` if there is none of this name.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn tag(&self, name: &str) -> Result<Option<String>, Error> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let path = self.path(name)?;
        match self.runtime.block_on(self.store.get_opts(&path, options)) {
            Ok(answer) => {
                let meta = answer.meta;
                let time = meta.last_modified.timestamp_millis();
                Ok(Some(format!("{:?} {time}", meta.e_tag)))
            }
            Err(Cause::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Writes an object, in the place of one of this name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Error> {
        let path = self.path(name)?;
        let put = self.store.put(&path, bytes.into());
        self.runtime.block_on(put).map(drop).map_err(failed)
    }

    /// Writes an object unless there is one of this name; whether it did.
    ///
    /// # Errors
    /// It cannot be written, or the store has no such request.
    pub fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool, Error> {
        let (path, options) = (self.path(name)?, PutOptions::from(PutMode::Create));
        let put = self.store.put_opts(&path, bytes.into(), options);
        match self.runtime.block_on(put) {
            Ok(_) => Ok(true),
            Err(Cause::AlreadyExists { .. } | Cause::Precondition { .. }) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name)?;
        match self.runtime.block_on(self.store.delete(&path)) {
            Ok(()) | Err(Cause::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// The objects right below the folder.
    ///
    /// # Errors
    /// The store does not answer, or does not list.
    pub fn list(&self) -> Result<Vec<Object>, Error> {
        let prefix = Some(&self.prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let listed = self
            .runtime
            .block_on(self.store.list_with_delimiter(prefix));
        let object = |meta: object_store::ObjectMeta| {
            Some(Object {
                name: meta.location.filename()?.to_string(),
                bytes: meta.size,
                modified: meta.last_modified.timestamp(),
            })
        };
        let objects = listed.map_err(failed)?.objects;
        Ok(objects.into_iter().filter_map(object).collect())
    }
}

pub(super) fn failed(error: Cause) -> Error {
    match error {
        Cause::NotSupported { .. } | Cause::NotImplemented { .. } => {
            Error::NotSupported(with_causes(&error))
        }
        error => Error::Failed(with_causes(&error)),
    }
}
