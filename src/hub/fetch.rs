//! One repository at one commit, and its files: out of the cache, or downloaded.
//!
//! A branch is resolved to its commit once, so that the files of one snapshot belong together.

use std::io::ErrorKind::AlreadyExists;
use std::path::{Path, PathBuf};
use xtrain_report::errln;

use hf_hub::api::RepoInfo;
use hf_hub::{Cache, Repo, RepoType};
use ureq::http::Method;

use super::checks::{is_commit, is_file, is_name, is_revision, shown};
use super::client::{Client, Failure};
use super::download::Wanted;
use super::error::{Error, Result};
use super::settings::HubSettings;
use xtrain_checkpoint::atomic;

/// Where in the cache downloads are until they are whole and checked.
const INCOMING: &str = ".xtrain-incoming";

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
    client: Option<Client>,
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
    remote: Option<Remote<'a>>,
}

struct Remote<'a> {
    client: &'a Client,
    commit: String,
}

impl Hub {
    /// # Errors
    /// If the Hub's address or the token cannot be one.
    pub fn new(settings: HubSettings) -> Result<Hub> {
        let cache_dir = std::path::absolute(&settings.cache_dir)
            .map_err(Error::io("find", &settings.cache_dir))?;
        let client = if settings.offline {
            None
        } else {
            Some(Client::new(&settings)?)
        };
        Ok(Hub {
            cache: Cache::new(cache_dir),
            settings,
            client,
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
        if !is_revision(&revision) {
            return Err(Error::BadRevision { revision });
        }
        let Some(client) = &self.client else {
            return self.cached(kind, name, &revision);
        };
        let info = match self.info(client, kind, name, &revision) {
            Ok(info) => info,
            Err(error) => {
                let reason = match &error {
                    Error::Unreachable { reason, .. } => reason.clone(),
                    Error::Silent { seconds, .. } => format!("it has not answered for {seconds} s"),
                    _ => return Err(error),
                };
                let Ok(snapshot) = self.cached(kind, name, &revision) else {
                    return Err(error);
                };
                errln!(
                    "note: the Hub cannot be reached ({reason}); using {name} as it is in the cache"
                );
                return Ok(snapshot);
            }
        };
        let commit = info.sha;
        if !is_commit(&commit) {
            return Err(self.wrong(name, format!("{} is no commit", shown(&commit))));
        }
        let names = info.siblings.into_iter().map(|file| file.rfilename);
        let repo = Repo::with_revision(name.to_string(), kind.repo_type(), revision.clone());
        let reference = self.reference(&repo);
        let dir = reference.parent().expect("a reference has a directory");
        std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        atomic::write_bytes(&reference, commit.as_bytes())?;
        Ok(Snapshot {
            hub: self,
            name: name.to_string(),
            revision,
            kind,
            // Git has no others either.
            files: names.filter(|name| is_file(name)).collect(),
            dir: self.cache.repo(repo).pointer_path(&commit),
            remote: Some(Remote { client, commit }),
        })
    }

    /// Commit and files of a revision.
    fn info(&self, client: &Client, kind: Kind, name: &str, revision: &str) -> Result<RepoInfo> {
        let repo = Repo::new(name.to_string(), kind.repo_type());
        let path = match kind {
            Kind::Model => format!("models/{}", repo.url()),
            Kind::Dataset => repo.url(),
        };
        let segments = ["api"].into_iter().chain(path.split('/'));
        let url = client.url(segments.chain(["revision", revision]));
        let explain = |failure| self.explain(failure, name);
        let answer = client
            .send(&client.ask(Method::GET, url), &|_| Ok(()))
            .map_err(explain)?;
        if answer.status != 200 {
            return Err(self.status(answer.status, kind, name, revision, None));
        }
        let bytes = answer.bytes().map_err(explain)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| self.wrong(name, format!("its JSON: {}", shown(&error.to_string()))))
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
        if !is_commit(commit.trim()) || !dir.is_dir() {
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

    /// A failed question in the user's terms.
    fn explain(&self, failure: Failure, name: &str) -> Error {
        let (endpoint, name) = (self.endpoint(), name.to_string());
        match failure {
            Failure::Silent(time) => Error::Silent {
                endpoint,
                name,
                seconds: time.as_secs_f64(),
            },
            Failure::Broken(reason) => Error::Unreachable {
                endpoint,
                name,
                reason,
            },
            Failure::Wrong(reason) => Error::Answer {
                endpoint,
                name,
                reason,
            },
        }
    }

    fn wrong(&self, name: &str, reason: String) -> Error {
        self.explain(Failure::Wrong(reason), name)
    }

    /// An answer without what was asked for, in the user's terms.
    fn status(
        &self,
        status: u16,
        kind: Kind,
        name: &str,
        revision: &str,
        file: Option<&str>,
    ) -> Error {
        let (endpoint, name, revision) = (self.endpoint(), name.to_string(), revision.to_string());
        match (status, file) {
            (404, Some(file)) => Error::NoFile {
                name,
                revision,
                file: file.to_string(),
            },
            (404, None) => Error::NotFound {
                what: kind.what(),
                name,
                revision,
                endpoint,
            },
            (401, _) if self.settings.token.is_none() => Error::NeedsToken { name, endpoint },
            (401 | 403, _) => Error::Forbidden { name, endpoint },
            (400.., _) => Error::Status {
                endpoint,
                name,
                status,
            },
            _ => self.wrong(&name, format!("status {status}")),
        }
    }
}

/// Paths of all files in a directory, sorted.
pub(super) fn list(dir: &Path, prefix: &str, files: &mut Vec<String>) -> std::io::Result<()> {
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

impl Snapshot<'_> {
    /// Paths of the repository's files; offline, of those in the cache.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Whether the Hub said which files there are, and not the cache.
    pub fn is_online(&self) -> bool {
        self.remote.is_some()
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
        let name = || self.name.clone();
        if !is_file(file) {
            let (revision, file) = (self.revision.clone(), file.to_string());
            return Err(Error::NoFile {
                name: name(),
                revision,
                file,
            });
        }
        let path = self.dir.join(file);
        if path.exists() {
            return Ok(path);
        }
        let Some(Remote { client, commit }) = &self.remote else {
            return Err(Error::NotCached {
                what: self.kind.what(),
                name: name(),
                revision: self.revision.clone(),
                cache: self.hub.cache.path().clone(),
                missing: format!(" (its file {file} is missing)"),
            });
        };
        let repo = Repo::new(name(), self.kind.repo_type());
        let repo_url = repo.url();
        let segments = repo_url.split('/').chain(["resolve", commit]);
        let wanted = Wanted {
            client,
            name: &self.name,
            commit,
            file,
            url: client.url(segments.chain(file.split('/'))),
            cache: self.hub.cache.repo(repo.clone()),
            incoming: Cache::new(self.hub.cache.path().join(INCOMING)).repo(repo),
            is_quiet: self.hub.settings.quiet,
            explain: &|failure| self.hub.explain(failure, &self.name),
            status: &|status| {
                let (kind, file) = (self.kind, Some(file));
                self.hub
                    .status(status, kind, &self.name, &self.revision, file)
            },
        };
        let blob = wanted.fetch()?;
        self.link(&blob, &path)?;
        Ok(path)
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
