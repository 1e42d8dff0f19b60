//! What can go wrong between a name and its files, each with what to do.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The result of this module's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be fetched from the Hugging Face Hub or pushed to it.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error(
        "{name:?} is neither a directory that exists nor a name on the Hub (NAME or ORGANIZATION/NAME)"
    )]
    BadName { name: String },

    #[error("{revision:?} is no branch, tag or commit (--model_revision)")]
    BadRevision { revision: String },

    #[error(
        "HF_ENDPOINT is {endpoint:?}, and no address of a Hub: {reason}; give one such as https://HOST, or unset it"
    )]
    BadEndpoint { endpoint: String, reason: String },

    #[error(
        "the token for the Hub has characters that no token has; copy it again (HF_TOKEN, --token or --hub_token)"
    )]
    BadToken,

    #[error(
        "the Hub ({endpoint}) has no {what} {name} at revision {revision}; check the spelling, or give a path on this machine"
    )]
    NotFound {
        what: &'static str,
        name: String,
        revision: String,
        endpoint: String,
    },

    #[error("{name} at revision {revision} has no file {file}")]
    NoFile {
        name: String,
        revision: String,
        file: String,
    },

    #[error(
        "the Hub ({endpoint}) does not let {name} be read without a token: it is private, gated or misspelt. Accept its conditions \
         on its page if it has some, then set HF_TOKEN"
    )]
    NeedsToken { name: String, endpoint: String },

    #[error(
        "the Hub ({endpoint}) does not let this token read {name}: accept the conditions on its page with the token's account, or \
         use a token that may read it (HF_TOKEN)"
    )]
    Forbidden { name: String, endpoint: String },

    #[error(
        "{what} {name} (revision {revision}) is not in the cache {}, and the run is offline (HF_HUB_OFFLINE or local_files_only){missing}; \
         run once online, or give a path on this machine",
        cache.display()
    )]
    NotCached {
        what: &'static str,
        name: String,
        revision: String,
        cache: PathBuf,
        missing: String,
    },

    #[error(
        "the Hub ({endpoint}) cannot be reached for {name}, which is no path on this machine: {reason}. Check the connection and HF_ENDPOINT; with HF_HUB_OFFLINE=1 \
         only the cache is used"
    )]
    Unreachable {
        endpoint: String,
        name: String,
        reason: String,
    },

    #[error(
        "the Hub ({endpoint}) took the question for {name} and did not answer for {seconds} s; try again later, or raise \
         HF_HUB_DOWNLOAD_TIMEOUT (seconds)"
    )]
    Silent {
        endpoint: String,
        name: String,
        seconds: f64,
    },

    #[error("the Hub ({endpoint}) answered with status {status} for {name}{}", later(*status))]
    Status {
        endpoint: String,
        name: String,
        status: u16,
    },

    #[error(
        "the Hub ({endpoint}) sent an answer for {name} that xtrain does not take: {reason}. A proxy or mirror may have changed it; check \
         HF_ENDPOINT"
    )]
    Answer {
        endpoint: String,
        name: String,
        reason: String,
    },

    #[error(
        "the download of {file} of {name} was interrupted after {got} of {size} bytes ({reason}); run the command again to resume it"
    )]
    Truncated {
        name: String,
        file: String,
        got: u64,
        size: u64,
        reason: String,
    },

    #[error(
        "{file} of {name} has {size} bytes, and the disk has room for {free} in {}; make room, or set HF_HUB_CACHE to a directory on \
         another disk",
        dir.display()
    )]
    NoRoom {
        name: String,
        file: String,
        size: u64,
        free: u64,
        dir: PathBuf,
    },

    #[error("{file} of {name} does not say which files have the weights: {reason}")]
    BadIndex {
        name: String,
        file: String,
        reason: String,
    },

    #[error(
        "{file} of {name} arrived damaged twice ({reason}); nothing of it is kept. A proxy may be changing it; try again later"
    )]
    Damaged {
        name: String,
        file: String,
        reason: String,
    },

    #[error(
        "{name} has no model.safetensors (it has {found}). Convert it once with Python: from transformers import AutoModel as M; \
         M.from_pretrained({name:?}).save_pretrained(DIR), and give DIR"
    )]
    NoSafetensors { name: String, found: String },

    #[error("{name} has no tokenizer files")]
    NoTokenizer { name: String },

    #[error(
        "data set {name} has no parquet, CSV, JSON or text files that xtrain could find; download it and name its files with --train_file"
    )]
    NoData { name: String },

    #[error(
        "data set {name} has no configuration {wanted:?}; name one of these with --dataset_config_name: {found}"
    )]
    NoConfig {
        name: String,
        wanted: String,
        found: String,
    },

    #[error(
        "data set {name} has several configurations; name one with --dataset_config_name: {found}"
    )]
    WhichConfig { name: String, found: String },

    #[error(
        "data set {name} has no split {split}, but several that could be it: {found}; name files with --train_file, --validation_file and --test_file"
    )]
    WhichSplit {
        name: String,
        split: &'static str,
        found: String,
    },

    #[error(
        "{} holds Arrow files, as save_to_disk and the cache of datasets write them, which xtrain does not read; write parquet with \
         Python: datasets.load_from_disk({:?})[\"train\"].to_parquet(\"train.parquet\")",
        dir.display(), dir.display().to_string()
    )]
    ArrowFiles { dir: PathBuf },

    #[error("the card of the data set, {}, cannot be read: {reason}; name files with --train_file", path.display())]
    BadCard { path: PathBuf, reason: String },

    #[error(
        "pushing {name} needs a token that may write: set HF_TOKEN or --hub_token, or run `hf auth login`"
    )]
    PushWithoutToken { name: String },

    #[error(
        "pushing {name} needs the Hub, and HF_HUB_OFFLINE says not to connect; unset it, or leave --push_to_hub out"
    )]
    PushOffline { name: String },

    #[error(
        "the Hub ({endpoint}) does not accept the token for pushing {name} (401): it is wrong or expired; give another one (HF_TOKEN or \
         --hub_token)"
    )]
    PushUnauthorized { name: String, endpoint: String },

    #[error(
        "the Hub ({endpoint}) does not let this token write to {name} (403): use a token with the right to write there, or another \
         --hub_model_id"
    )]
    PushForbidden { name: String, endpoint: String },

    #[error(
        "the Hub ({endpoint}) has no {name} with a branch {revision} that this token may write to (404); check --hub_model_id and \
         --hub_revision"
    )]
    PushNotFound {
        name: String,
        endpoint: String,
        revision: String,
    },

    #[error(
        "the Hub ({endpoint}) has another change to {name} under way or made before this one (409); push again when it is done"
    )]
    PushConflict { name: String, endpoint: String },

    #[error("the Hub ({endpoint}) refuses the push to {name}: {reason}")]
    PushRefused {
        name: String,
        endpoint: String,
        reason: String,
    },

    #[error(
        "the connection to the Hub ({endpoint}) broke {attempts} times in pushing {name} ({reason}); check the network, and push again"
    )]
    PushBroken {
        name: String,
        endpoint: String,
        attempts: u32,
        reason: String,
    },

    #[error(transparent)]
    File(#[from] xtrain_checkpoint::Error),

    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

/// What to do about a status that may pass.
fn later(status: u16) -> &'static str {
    match status {
        408 | 429 | 500.. => "; try again later",
        _ => "",
    }
}

impl Error {
    /// For `map_err`: what was being done (an infinitive), and to what.
    pub(super) fn io(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Io {
            doing,
            path,
            source,
        }
    }
}
