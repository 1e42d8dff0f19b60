//! One repository at one commit, and its files: out of the cache, or downloaded.
//!
//! A branch is resolved to its commit once, so that the files of one snapshot belong together. A
//! download goes to a place of its own in the cache, is compared with the size and checksum that
//! the Hub gave, and only then moved to where Python programs and this one look for it. What broke
//! off stays there and is resumed.

use std::fs::File;
use std::io::ErrorKind::{AlreadyExists, PermissionDenied, ReadOnlyFilesystem, StorageFull};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo, Metadata};
use hf_hub::{Cache, Repo, RepoType};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::patience::within;
use super::settings::HubSettings;
use crate::checkpoint::atomic;
use crate::checkpoint::hash::hex;
use crate::checkpoint::lock::Lock;

/// Where in the cache downloads are until they are whole and checked.
const INCOMING: &str = ".xtrain-incoming";

/// Git's name for a file without content.
const EMPTY: &str = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

/// How often an interrupted transfer is resumed before it is an error.
const ATTEMPTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Model,
    Dataset,
}

impl Kind {
    fn repo_type(self) -> RepoType {
        match self {
            Kind::Model => RepoType::Model,
            Kind::Dataset => RepoType::Dataset,
        }
    }

    fn what(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Dataset => "data set",
        }
    }
}

/// The Hub as these settings see it.
pub struct Hub {
    settings: HubSettings,
    cache: Cache,
    /// `None` offline.
    api: Option<Api>,
}

/// A repository at one commit.
pub struct Snapshot<'a> {
    hub: &'a Hub,
    pub(super) name: String,
    pub(super) revision: String,
    kind: Kind,
    /// Its files' paths: of the whole repository or, offline, those in the cache.
    files: Vec<String>,
    /// In the cache; files are added to it as they are fetched.
    dir: PathBuf,
    /// At its commit; `None` offline.
    remote: Option<(Repo, ApiRepo)>,
}

impl Hub {
    pub fn new(settings: HubSettings) -> Result<Hub> {
        let cache_dir = std::path::absolute(&settings.cache_dir)
            .map_err(Error::io("find", &settings.cache_dir))?;
        let api = if settings.offline {
            None
        } else {
            let bars = !settings.quiet && std::io::stderr().is_terminal();
            let mut builder = ApiBuilder::from_cache(Cache::new(cache_dir.join(INCOMING)))
                .with_token(settings.token.clone())
                .with_progress(bars)
                .with_user_agent("xtrain", env!("CARGO_PKG_VERSION"));
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            let answer = |error: ApiError| Error::Answer {
                endpoint: settings.endpoint.clone().unwrap_or_default(),
                name: "a client".to_string(),
                reason: error.to_string(),
            };
            Some(builder.build().map_err(answer)?)
        };
        Ok(Hub {
            cache: Cache::new(cache_dir),
            settings,
            api,
        })
    }

    fn endpoint(&self) -> String {
        self.settings
            .endpoint
            .clone()
            .unwrap_or_else(|| "its public address".to_string())
    }

    /// A repository at a revision (a branch, tag or commit; `None` is `main`). One question to the
    /// Hub, or a look into the cache when offline, and also, with a note, when the Hub cannot be
    /// reached.
    pub fn snapshot(&self, kind: Kind, name: &str, revision: Option<&str>) -> Result<Snapshot<'_>> {
        if !is_name(name) {
            return Err(Error::BadName {
                name: name.to_string(),
            });
        }
        let revision = revision.unwrap_or("main").to_string();
        let repo = Repo::with_revision(name.to_string(), kind.repo_type(), revision.clone());
        let Some(api) = &self.api else {
            return self.cached(kind, name, &revision);
        };
        let asked = api.repo(repo.clone());
        let info = match self
            .ask(name, move || asked.info())
            .map(|answer| answer.map_err(|error| self.explain(error, kind, name, &revision, None)))
        {
            Ok(Ok(info)) => info,
            Ok(Err(error)) | Err(error) => {
                let reason = match &error {
                    Error::Unreachable { reason, .. } => reason.clone(),
                    Error::Silent { seconds, .. } => format!("it has not answered for {seconds} s"),
                    _ => return Err(error),
                };
                let Ok(snapshot) = self.cached(kind, name, &revision) else {
                    return Err(error);
                };
                eprintln!(
                    "note: the Hub cannot be reached ({reason}); using {name} as it is in the cache"
                );
                return Ok(snapshot);
            }
        };
        let plain = |file: &String| {
            !file.starts_with('/') && file.split('/').all(|part| !matches!(part, "" | "." | ".."))
        };
        let commit = info.sha;
        let files: Vec<String> = info
            .siblings
            .into_iter()
            .map(|file| file.rfilename)
            .filter(plain)
            .collect();
        if commit.len() < 7 || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            let reason = format!("{commit:?} is no commit");
            return Err(Error::Answer {
                endpoint: self.endpoint(),
                name: name.to_string(),
                reason,
            });
        }
        let reference = self.reference(&repo);
        let dir = reference.parent().expect("a reference has a directory");
        std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        atomic::write_bytes(&reference, commit.as_bytes())?;
        let at_commit = Repo::with_revision(name.to_string(), kind.repo_type(), commit.clone());
        Ok(Snapshot {
            hub: self,
            name: name.to_string(),
            revision,
            kind,
            files,
            dir: self.cache.repo(repo).pointer_path(&commit),
            remote: Some((at_commit.clone(), api.repo(at_commit))),
        })
    }

    /// A question whose answer is short; an error if there is none in time.
    fn ask<T: Send + 'static>(
        &self,
        name: &str,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let limit = self.settings.patience;
        within(limit, || 0, question).ok_or_else(|| Error::Silent {
            endpoint: self.endpoint(),
            name: name.to_string(),
            seconds: limit.as_secs_f64(),
        })
    }

    /// The file that says which commit a revision is.
    fn reference(&self, repo: &Repo) -> PathBuf {
        let refs = self.cache.path().join(repo.folder_name()).join("refs");
        refs.join(repo.revision())
    }

    fn cached(&self, kind: Kind, name: &str, revision: &str) -> Result<Snapshot<'_>> {
        let repo = Repo::with_revision(name.to_string(), kind.repo_type(), revision.to_string());
        let cached = self.cache.repo(repo.clone());
        let commit = std::fs::read_to_string(self.reference(&repo));
        // A commit has no reference of its own.
        let commit = commit.unwrap_or_else(|_| revision.to_string());
        let dir = cached.pointer_path(commit.trim());
        if !dir.is_dir() {
            let (what, name, cache) = (kind.what(), name.to_string(), self.cache.path().clone());
            return Err(Error::NotCached {
                what,
                name,
                revision: revision.to_string(),
                cache,
                missing: String::new(),
            });
        }
        let mut files = Vec::new();
        list(&dir, "", &mut files).map_err(Error::io("list", &dir))?;
        Ok(Snapshot {
            hub: self,
            name: name.to_string(),
            revision: revision.to_string(),
            kind,
            files,
            dir,
            remote: None,
        })
    }

    /// An error of the crate in the user's terms.
    fn explain(
        &self,
        error: ApiError,
        kind: Kind,
        name: &str,
        revision: &str,
        file: Option<&str>,
    ) -> Error {
        let (endpoint, name, revision) = (self.endpoint(), name.to_string(), revision.to_string());
        let ApiError::RequestError(request) = error else {
            return Error::Answer {
                endpoint,
                name,
                reason: error.to_string(),
            };
        };
        match (*request, file) {
            (ureq::Error::StatusCode(404), Some(file)) => Error::NoFile {
                name,
                revision,
                file: file.to_string(),
            },
            (ureq::Error::StatusCode(404), None) => Error::NotFound {
                what: kind.what(),
                name,
                revision,
                endpoint,
            },
            (ureq::Error::StatusCode(401), _) if self.settings.token.is_none() => {
                Error::NeedsToken { name, endpoint }
            }
            (ureq::Error::StatusCode(401 | 403), _) => Error::Forbidden { name, endpoint },
            (ureq::Error::StatusCode(status), _) => Error::Status {
                endpoint,
                name,
                status,
            },
            (ureq::Error::Json(error), _) => Error::Answer {
                endpoint,
                name,
                reason: error.to_string(),
            },
            (other, _) => Error::Unreachable {
                endpoint,
                name,
                reason: other.to_string(),
            },
        }
    }
}

fn list(dir: &Path, prefix: &str, files: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{name}/"), files)?
        } else {
            files.push(name)
        }
    }
    files.sort();
    Ok(())
}

/// Where a download goes.
struct Places {
    /// Until it is checked.
    incoming: PathBuf,
    /// A link to it, which the crate makes and which is of no use here.
    pointer: PathBuf,
}

impl Snapshot<'_> {
    /// Paths of the repository's files; offline, of those in the cache.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    pub fn has(&self, file: &str) -> bool {
        self.files.iter().any(|found| found == file)
    }

    /// The directory that fetched files are in, under their paths in the repository.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file's path on this machine, downloaded if it is not in the cache.
    pub fn fetch(&self, file: &str) -> Result<PathBuf> {
        let path = self.dir.join(file);
        if path.exists() {
            return Ok(path);
        }
        let Some((repo, remote)) = &self.remote else {
            let missing = format!(" (its file {file} is missing)");
            let (what, name, revision) =
                (self.kind.what(), self.name.clone(), self.revision.clone());
            return Err(Error::NotCached {
                what,
                name,
                revision,
                cache: self.hub.cache.path().clone(),
                missing,
            });
        };
        let api = self
            .hub
            .api
            .as_ref()
            .expect("only a snapshot without a remote side is offline");
        let explain = |error| {
            self.hub
                .explain(error, self.kind, &self.name, &self.revision, Some(file))
        };
        let (asked, url) = (api.clone(), remote.url(file));
        let metadata = match self.hub.ask(&self.name, move || asked.metadata(&url))? {
            Ok(metadata) => metadata,
            // The first byte was asked for, and there is none.
            Err(ApiError::RequestError(error))
                if matches!(*error, ureq::Error::StatusCode(416)) =>
            {
                let blob = self.hub.cache.repo(repo.clone()).blob_path(EMPTY);
                let dir = blob.parent().expect("a blob has a directory");
                std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
                atomic::write_bytes(&blob, &[])?;
                self.link(&blob, &path)?;
                return Ok(path);
            }
            Err(error) => return Err(explain(error)),
        };
        if metadata.etag().is_empty() || metadata.etag().contains(['/', '.']) {
            let (endpoint, reason) = (
                self.hub.endpoint(),
                format!("{:?} is no checksum of {file}", metadata.etag()),
            );
            return Err(Error::Answer {
                endpoint,
                name: self.name.clone(),
                reason,
            });
        }
        let blob = self.hub.cache.repo(repo.clone()).blob_path(metadata.etag());
        if !blob.exists() {
            let arriving = Cache::new(self.hub.cache.path().join(INCOMING)).repo(repo.clone());
            let pointer = arriving.pointer_path(metadata.commit_hash()).join(file);
            let incoming = arriving.blob_path(metadata.etag());
            let doing = format!("downloading {file} of {}", self.name);
            // Not the crate's lock, which it takes for the transfer alone.
            let _lock = Lock::wait(&incoming.with_extension("xtrain.lock"), &doing);
            if !blob.exists() {
                let places = Places { incoming, pointer };
                self.download(api, repo, file, &metadata, &places)?;
                let dir = blob.parent().expect("a blob has a directory");
                std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
                std::fs::rename(&places.incoming, &blob).map_err(Error::io("write", &blob))?;
            }
        }
        self.link(&blob, &path)?;
        Ok(path)
    }

    /// Downloads until the bytes have the Hub's digest; they are at `incoming` then.
    fn download(
        &self,
        api: &Api,
        repo: &Repo,
        file: &str,
        metadata: &Metadata,
        places: &Places,
    ) -> Result<()> {
        let Places { incoming, pointer } = places;
        let part = incoming.with_extension("part");
        let size = metadata.size() as u64;
        let on_disk = |path: &Path| path.metadata().map(|m| m.len()).unwrap_or(0);
        let (mut broken, mut damaged) = (0, 0);
        loop {
            // One left by a killed process would be in the crate's way.
            let _ = std::fs::remove_file(pointer);
            // A whole or too long part cannot be resumed: the server has no bytes after its
            // end.
            if part.exists() && on_disk(&part) >= size {
                std::fs::rename(&part, incoming).map_err(Error::io("write", incoming))?;
            }
            let result = if incoming.exists() {
                Ok(())
            } else {
                let (api, repo, wanted) = (api.clone(), repo.clone(), file.to_string());
                let transfer = move || api.repo(repo).download(&wanted).map(|_| ());
                let limit = self.hub.settings.patience;
                within(limit, || on_disk(&part), transfer).ok_or_else(|| {
                    let (name, file, got) = (self.name.clone(), file.to_string(), on_disk(&part));
                    let reason = format!(
                        "nothing came for {} s, HF_HUB_DOWNLOAD_TIMEOUT",
                        limit.as_secs_f64()
                    );
                    Error::Truncated {
                        name,
                        file,
                        got,
                        size,
                        reason,
                    }
                })?
            };
            match result {
                Ok(()) => match check(incoming, metadata) {
                    Ok(()) => {
                        let _ = std::fs::remove_file(pointer);
                        return Ok(());
                    }
                    Err(reason) => {
                        std::fs::remove_file(incoming).map_err(Error::io("remove", incoming))?;
                        damaged += 1;
                        if damaged == 2 {
                            return Err(Error::Damaged {
                                name: self.name.clone(),
                                file: file.to_string(),
                                reason,
                            });
                        }
                        eprintln!(
                            "warning: {file} of {} arrived damaged ({reason}); downloading it again",
                            self.name
                        );
                    }
                },
                // The disk, not the connection.
                Err(ApiError::IoError(error))
                    if matches!(
                        error.kind(),
                        PermissionDenied | StorageFull | ReadOnlyFilesystem
                    ) =>
                {
                    return Err(Error::io("write", &part)(error));
                }
                // A status is an answer, not a connection that broke.
                Err(ApiError::RequestError(error))
                    if matches!(*error, ureq::Error::StatusCode(_)) =>
                {
                    let error = ApiError::RequestError(error);
                    return Err(self.hub.explain(
                        error,
                        self.kind,
                        &self.name,
                        &self.revision,
                        Some(file),
                    ));
                }
                Err(error) => {
                    broken += 1;
                    if broken == ATTEMPTS {
                        let (name, file, got) =
                            (self.name.clone(), file.to_string(), on_disk(&part));
                        return Err(Error::Truncated {
                            name,
                            file,
                            got,
                            size,
                            reason: error.to_string(),
                        });
                    }
                }
            }
        }
    }

    /// A file of the snapshot is a relative link to its blob.
    fn link(&self, blob: &Path, path: &Path) -> Result<()> {
        let dir = path.parent().expect("a file has a snapshot");
        std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let depth = path
            .strip_prefix(&self.dir)
            .expect("it was made of it")
            .components()
            .count();
        let name = blob.file_name().expect("a blob has a name");
        // From snapshots/COMMIT/FILE, up to the repository's directory.
        let target = PathBuf::from("../".repeat(depth + 1))
            .join("blobs")
            .join(name);
        match std::os::unix::fs::symlink(target, path) {
            Err(error) if error.kind() == AlreadyExists => Ok(()),
            other => other.map_err(Error::io("write", path)),
        }
    }
}

/// Compares a file with its size and checksum: the ETag is the SHA-256 of large files and git's
/// blob id of small ones.
fn check(path: &Path, metadata: &Metadata) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut file = File::open(path).map_err(failed)?;
    let (size, wanted) = (
        file.metadata().map_err(failed)?.len(),
        metadata.size() as u64,
    );
    if size != wanted {
        return Err(format!("{size} bytes instead of {wanted}"));
    }
    let etag = metadata.etag();
    let hexadecimal = etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = match etag.len() {
        64 if hexadecimal => digest::<Sha256>(&mut file, &[]),
        40 if hexadecimal => digest::<Sha1>(&mut file, format!("blob {size}\0").as_bytes()),
        // Another server's own kind of tag: the size is all there is.
        _ => return Ok(()),
    };
    let found = found.map_err(failed)?;
    if found == etag.to_lowercase() {
        Ok(())
    } else {
        Err(format!("checksum {found} instead of {etag}"))
    }
}

/// Digest of a prefix and all that can be read, as hexadecimal.
pub(super) fn digest<D: Digest>(file: &mut impl Read, prefix: &[u8]) -> std::io::Result<String> {
    let mut hasher = D::new();
    hasher.update(prefix);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Whether this can be a name on the Hub: one or two parts of letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(part)
}
