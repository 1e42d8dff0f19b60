//! Files that are addressed by a URL: objects in S3 (`s3://BUCKET/KEY`), GCS (`gs://BUCKET/KEY`), Azure
//! (`az://CONTAINER/KEY`) and on web servers (`http://`, `https://`), read a piece at a time through the
//! object_store crate.
//!
//! Everything async stays in here: each object has a runtime of its own, on the thread that reads,
//! for one request at a time. A piece that does not arrive is asked for again, with growing pauses;
//! what an object is (its ETag) is remembered, so that one that is replaced while it is read is an
//! error rather than a text glued together from two.

use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::runtime::Runtime;
use url::Url;

use super::error::{Error, Result};
use xtrain_objects::{Effort, client};
use xtrain_report::printable::with_causes;

pub use xtrain_objects::patience;

/// Bytes that one request asks for.
const PIECE: u64 = 4 << 20;

/// Pieces that are kept: one for each column of a parquet file that is read.
const KEPT: usize = 4;

/// Schemes that are recognized with a single slash too, which is what a program leaves of a URL that
/// it normalizes as a path.
const KNOWN_SCHEMES: [&str; 16] = [
    "abfs", "abfss", "az", "dbfs", "file", "gcs", "gs", "hdfs", "hf", "http", "https", "s3", "s3a",
    "s3n", "wasb", "wasbs",
];

/// The scheme of a URL; `None` for a path on this machine.
pub fn scheme(path: &Path) -> Option<&str> {
    let (scheme, rest) = path.to_str()?.trim_start().split_once(':')?;
    // A single letter is a drive.
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_known = || {
        KNOWN_SCHEMES
            .iter()
            .any(|known| known.eq_ignore_ascii_case(scheme))
    };
    let is_url = rest.starts_with("//") || (rest.starts_with('/') && is_known());
    (is_scheme && is_url).then_some(scheme)
}

/// Whether this is a URL rather than a path on this machine.
pub fn is_url(path: &Path) -> bool {
    scheme(path).is_some()
}

/// A path on this machine in the place of a `file://` URL; anything else as it is.
pub fn local(path: PathBuf) -> PathBuf {
    let is_file = scheme(&path).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file"));
    let text = path.to_str().filter(|_| is_file);
    text.and_then(|text| Url::parse(text).ok())
        .and_then(|url| url.to_file_path().ok())
        .unwrap_or(path)
}

/// Whether a URL can be read at all; the error says why not. Nothing is asked of any server.
pub fn check(path: &Path) -> Result<()> {
    parse(path).map(|_| ())
}

fn parse(path: &Path) -> Result<Url> {
    let text = path.to_str().unwrap_or_default();
    let bad = |reason: String| Error::BadUrl {
        url: path.to_path_buf(),
        reason,
    };
    let url = Url::parse(text).map_err(|error| bad(format!("it is not a URL ({error})")))?;
    match url.scheme() {
        scheme if xtrain_objects::SCHEMES.contains(&scheme) => {}
        "file" => {
            return Err(bad(
                "it names no file of this machine; give file:///PATH, or the path alone"
                    .to_string(),
            ));
        }
        other => {
            return Err(bad(format!(
                "{other}:// is not supported; s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, https://, http:// and file:// are read"
            )));
        }
    }
    if url.host_str().is_none_or(str::is_empty)
        || url.path().trim_matches('/').is_empty()
        || url.path().ends_with('/')
    {
        return Err(bad(
            "it names no file; give s3://BUCKET/KEY or https://HOST/PATH".to_string(),
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        Err(bad(
            "a query or fragment in it would be lost; give the plain address of the file"
                .to_string(),
        ))
    } else {
        Ok(url)
    }
}

/// The objects that an address stands for, in the order of their names: `s3://BUCKET/DIR/part-*.jsonl`, or
/// `s3://BUCKET/DIR/` for all that lies right below. Neither hidden ones nor empty marks of folders.
///
/// # Errors
/// There is none, or the server does not list.
pub fn listed(address: &Path) -> Result<Vec<PathBuf>> {
    let bad = |reason: &str| Error::BadPattern {
        pattern: address.to_path_buf(),
        reason: reason.into(),
    };
    let text = address.to_str().unwrap_or_default();
    let (folder, last) = text.rsplit_once('/').unwrap_or(("", text));
    let scheme = scheme(address).unwrap_or_default();
    if !["s3", "gs", "az"].contains(&scheme) {
        return Err(bad("only buckets list their files"));
    }
    if folder.contains('*') {
        return Err(bad("a wildcard stands in the last part of the address"));
    }
    let last = if last.is_empty() { "*" } else { last };
    let pattern = glob::Pattern::new(last).map_err(|error| bad(error.msg))?;
    let url = Url::parse(&format!("{folder}/")).map_err(|_| bad("it is not a URL"))?;
    let (store, prefix) =
        client(&url, &Effort::of_files()).map_err(|error| explain(address, error))?;
    let runtime = runtime(address)?;
    let prefix = Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty());
    let listed = runtime.block_on(store.list_with_delimiter(prefix));
    let listed = listed.map_err(|error| explain(address, error))?.objects;
    let named = |meta: &ObjectMeta| {
        let name = meta.location.filename()?;
        let is_data = meta.size > 0 && !name.starts_with('.') && pattern.matches(name);
        let mut file = url.clone();
        let mut segments = file.path_segments_mut().ok().filter(|_| is_data)?;
        segments.pop_if_empty().push(name);
        drop(segments);
        Some(PathBuf::from(file.as_str()))
    };
    let mut found: Vec<PathBuf> = listed.iter().filter_map(named).collect();
    found.sort();
    if found.is_empty() {
        return Err(bad("no object there has such a name"));
    }
    Ok(found)
}

/// A runtime for one request at a time.
fn runtime(url: &Path) -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.map_err(|source| Error::Io {
        doing: "start reading",
        path: url.to_path_buf(),
        source,
    })
}

/// An object that has been found, and is read in pieces.
pub(super) struct Remote {
    url: PathBuf,
    store: Arc<dyn ObjectStore>,
    path: object_store::path::Path,
    meta: ObjectMeta,
    runtime: Runtime,
    /// The last pieces, newest last, by where they begin.
    pieces: Mutex<Vec<(u64, Bytes)>>,
}

impl Remote {
    /// Asks the server what there is.
    pub fn open(url: &Path) -> Result<Remote> {
        let (store, path) = store(url)?;
        let runtime = runtime(url)?;
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let answer = runtime.block_on(store.get_opts(&path, options));
        let meta = answer.map_err(|error| explain(url, error))?.meta;
        Ok(Remote {
            url: url.to_path_buf(),
            store,
            path,
            meta,
            runtime,
            pieces: Mutex::default(),
        })
    }

    /// Bytes of the object.
    pub fn size(&self) -> u64 {
        self.meta.size
    }

    /// What tells this object from another one at the same address.
    pub fn identity(&self) -> String {
        match &self.meta.e_tag {
            Some(tag) => format!("{} bytes, ETag {tag}", self.meta.size),
            None => format!("{} bytes, of {}", self.meta.size, self.meta.last_modified),
        }
    }

    /// Some of the bytes from `offset` on; none at the end.
    fn piece(&self, offset: u64) -> Result<Bytes> {
        if offset >= self.meta.size {
            return Ok(Bytes::new());
        }
        // A panic cannot leave the list half changed, so a poisoned lock is as good as any.
        let mut pieces = self
            .pieces
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let holds = |(start, bytes): &&(u64, Bytes)| {
            (*start..*start + bytes.len() as u64).contains(&offset)
        };
        if let Some((start, bytes)) = pieces.iter().find(holds) {
            return Ok(bytes.slice((offset - start) as usize..));
        }
        let bytes = self.request(offset..(offset + PIECE).min(self.meta.size))?;
        if pieces.len() == KEPT {
            pieces.remove(0);
        }
        pieces.push((offset, bytes.clone()));
        Ok(bytes)
    }

    /// Exactly these bytes; fewer only if the object ends before.
    pub fn bytes(&self, offset: u64, length: usize) -> Result<Bytes> {
        let first = self.piece(offset)?;
        if first.len() >= length {
            return Ok(first.slice(..length));
        }
        let mut all = first.to_vec();
        while all.len() < length {
            let more = self.piece(offset + all.len() as u64)?;
            if more.is_empty() {
                break;
            }
            all.extend_from_slice(&more[..more.len().min(length - all.len())]);
        }
        Ok(all.into())
    }

    fn request(&self, range: Range<u64>) -> Result<Bytes> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            // A weak tag never matches, by the protocol's rules; it is compared below.
            if_match: self.meta.e_tag.clone().filter(|tag| !tag.starts_with("W/")),
            ..GetOptions::default()
        };
        let answer = self.runtime.block_on(async {
            let answer = self.store.get_opts(&self.path, options).await?;
            let (tag, size) = (answer.meta.e_tag.clone(), answer.meta.size);
            answer.bytes().await.map(|bytes| (bytes, tag, size))
        });
        let (bytes, tag, size) = answer.map_err(|error| explain(&self.url, error))?;
        // Not every server honours If-Match.
        if tag != self.meta.e_tag || size != self.meta.size {
            return Err(Error::ObjectChanged {
                url: self.url.clone(),
            });
        }
        if bytes.len() as u64 != range.end - range.start {
            let reason = format!(
                "{} bytes came where {} were asked for",
                bytes.len(),
                range.end - range.start
            );
            return Err(Error::Unreachable {
                url: self.url.clone(),
                reason,
            });
        }
        Ok(bytes)
    }
}

/// The object from a place on, as a stream.
pub(super) struct RemoteReader {
    pub remote: Arc<Remote>,
    pub offset: u64,
}

impl Read for RemoteReader {
    /// Errors are [`Error`]s in disguise, which `input` takes out again.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.remote.piece(self.offset).map_err(io::Error::other)?;
        let taken = piece.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&piece[..taken]);
        self.offset += taken as u64;
        Ok(taken)
    }
}

/// Who serves a URL, and under which name.
fn store(path: &Path) -> Result<(Arc<dyn ObjectStore>, object_store::path::Path)> {
    client(&parse(path)?, &Effort::of_files()).map_err(|error| explain(path, error))
}

/// What went wrong, in the user's words.
fn explain(url: &Path, error: object_store::Error) -> Error {
    use object_store::Error as Cause;
    let url = url.to_path_buf();
    match error {
        Cause::NotFound { .. } => Error::NoObject { url },
        Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. } => Error::ObjectForbidden {
            hint: access_hint(&url),
            url,
        },
        Cause::Precondition { .. } => Error::ObjectChanged { url },
        Cause::NotSupported { .. } => Error::NoRanges { url },
        other => {
            let reason = with_causes(&other);
            if reason.contains("169.254.169.254")
                || reason.contains("metadata.google")
                || reason.to_lowercase().contains("credential")
            {
                Error::ObjectForbidden {
                    hint: access_hint(&url),
                    url,
                }
            } else {
                Error::Unreachable { url, reason }
            }
        }
    }
}

fn access_hint(url: &Path) -> &'static str {
    if url.starts_with("s3:") {
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (with AWS_SESSION_TOKEN if they are temporary) and AWS_REGION, or \
             AWS_SKIP_SIGNATURE=true for a public bucket"
    } else if url.starts_with("gs:") {
        "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or GOOGLE_SKIP_SIGNATURE=true for a public bucket"
    } else if url.starts_with("az:") {
        "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true for a \
             public container"
    } else {
        "only files that anybody may read can be streamed over HTTP; download this one first"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for url in [
            "s3://bucket/key.jsonl",
            "https://host/a/b.csv.gz",
            "file:///data/x.txt",
            "gs://bucket/x",
        ] {
            assert!(is_url(Path::new(url)), "{url}");
        }
        for path in ["data/x.txt", "/data/x.txt", "C://x", "a b://x", "://x"] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
        assert_eq!(
            local("file:///data/my%20text.txt".into()),
            Path::new("/data/my text.txt")
        );
        assert_eq!(
            local("s3://bucket/key".into()),
            Path::new("s3://bucket/key")
        );
    }

    #[test]
    fn urls_that_cannot_be_read_are_refused_with_the_reason() {
        let error = |url: &str| check(Path::new(url)).unwrap_err().to_string();
        assert!(error("abfs://bucket/x.txt").contains("abfs:// is not supported"));
        assert!(error("s3://bucket").contains("names no file"));
        assert!(error("https://host/dir/").contains("names no file"));
        assert!(error("https://host/x.txt?token=1").contains("query"));
        assert!(check(Path::new("s3://bucket/dir/x.jsonl.gz")).is_ok());
    }
}
