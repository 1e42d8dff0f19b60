//! Where the Hub is, where downloads are kept, and who asks.

use std::path::PathBuf;
use std::time::Duration;

use hf_hub::Cache;
use hf_hub::api::sync::ApiBuilder;

use xtrain_data::remote::patience;

#[derive(Clone, PartialEq)]
pub struct HubSettings {
    /// Another Hub than the public one (`HF_ENDPOINT`), without a slash at the end.
    pub endpoint: Option<String>,
    /// The cache that is shared with Python programs (`HF_HUB_CACHE`, or `hub` in `HF_HOME`).
    pub cache_dir: PathBuf,
    /// For gated and private repositories (`HF_TOKEN`, or the file that `hf auth login` writes).
    pub token: Option<String>,
    /// Use only what is in the cache (`HF_HUB_OFFLINE`, or `local_files_only` as
    /// `from_pretrained` has it).
    pub offline: bool,
    /// Show no progress bars.
    pub quiet: bool,
    /// How long the Hub may say nothing (`HF_HUB_DOWNLOAD_TIMEOUT`).
    pub patience: Duration,
}

/// A token is a secret: it must not get into logs with the other settings.
impl std::fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint)
            .field("cache_dir", &self.cache_dir)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("offline", &self.offline)
            .finish()
    }
}

impl HubSettings {
    /// The Hub's address, without a slash at the end: the public one's is hf-hub's to know.
    pub(super) fn endpoint_url(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| {
            let api = ApiBuilder::from_cache(Cache::new(self.cache_dir.clone())).build();
            let url = api.map(|api| api.model("a/b".into()).url("c"));
            let url = url.unwrap_or_default();
            let end = url.find("/a/b/").unwrap_or(0);
            url[..end].to_string()
        })
    }

    /// From the variables that huggingface_hub reads; `variable` gives their values
    /// (`|name| std::env::var(name).ok()`).
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> HubSettings {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let cache_home = set("XDG_CACHE_HOME").map(PathBuf::from);
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache =
                cache_home.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
            cache.unwrap_or_default().join("huggingface")
        });
        let token_file = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let token = set("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file).ok());
        let yes = |name: &str| {
            set(name).is_some_and(|value| {
                ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
            })
        };
        HubSettings {
            endpoint: set("HF_ENDPOINT").map(|url| url.trim().trim_end_matches('/').to_string()),
            cache_dir: set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            token: token
                .map(|token| token.trim().to_string())
                .filter(|token| !token.is_empty()),
            offline: yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE"),
            quiet: yes("HF_HUB_DISABLE_PROGRESS_BARS"),
            patience: patience(set("HF_HUB_DOWNLOAD_TIMEOUT").as_deref()),
        }
    }
}
