//! Objects that are addressed by a URL: in buckets of S3 (`s3://BUCKET/KEY`) and GCS (`gs://BUCKET/KEY`),
//! containers of Azure (`az://CONTAINER/KEY`) and on web servers (`http://`, `https://`), through the
//! object_store crate.
//!
//! [`client`] gives object_store's own interface, which async is; [`Folder`] is the objects below one
//! URL, read and written whole, for a caller that waits.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod files;
mod folder;
mod http;

pub use folder::{Error, Folder, Object};

use http::Connector;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use url::{Position, Url};

/// The schemes of [`client`].
pub const SCHEMES: [&str; 5] = ["s3", "gs", "az", "https", "http"];

/// How long is waited, and how often a request is repeated before it is an error.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// For a server that says nothing.
    pub patience: Duration,
    /// For one request with its answer, however slowly it comes; `None` without a limit.
    pub whole: Option<Duration>,
    pub retries: usize,
    /// For all repetitions of a request.
    pub retry_timeout: Duration,
}

impl Effort {
    /// For the files of a run: a server may be as slow as `HF_HUB_DOWNLOAD_TIMEOUT` says, and out of order for
    /// three minutes.
    pub fn of_files() -> Effort {
        let variable = std::env::var("HF_HUB_DOWNLOAD_TIMEOUT").ok();
        Effort {
            patience: patience(variable.as_deref()),
            whole: None,
            retries: 4,
            retry_timeout: Duration::from_secs(180),
        }
    }
}

/// How long a server may say nothing: what `HF_HUB_DOWNLOAD_TIMEOUT` says in seconds, as for
/// huggingface_hub, or 10.
pub fn patience(variable: Option<&str>) -> Duration {
    let seconds = variable.and_then(|text| text.trim().parse::<f64>().ok());
    Duration::from_secs_f64(
        seconds
            .filter(|seconds| *seconds > 0.0 && seconds.is_finite())
            .unwrap_or(10.0)
            .min(86_400.0),
    )
}

/// Who serves a URL, and under which name. Credentials are those of the environment.
///
/// # Errors
/// The URL is none that can be served, or the environment's settings contradict themselves.
pub fn client(url: &Url, effort: &Effort) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
    let path = Path::from_url_path(url.path())?;
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: effort.retries,
        retry_timeout: effort.retry_timeout,
    };
    let connector = Connector {
        patience: effort.patience,
        whole: effort.whole,
    };
    let bucket = url.host_str().unwrap_or_default();
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" => {
            let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            // Whoever names an endpoint without TLS means it.
            let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
            if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
                builder = builder.with_allow_http(true);
            }
            let builder = builder.with_retry(retry).with_http_connector(connector);
            Arc::new(builder.build()?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            let builder = builder.with_retry(retry).with_http_connector(connector);
            Arc::new(builder.build()?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            let builder = builder.with_retry(retry).with_http_connector(connector);
            Arc::new(builder.build()?)
        }
        _ => {
            let options = ClientOptions::new().with_allow_http(true);
            let builder = HttpBuilder::new()
                .with_url(&url[..Position::BeforePath])
                .with_client_options(options)
                .with_retry(retry)
                .with_http_connector(connector);
            Arc::new(builder.build()?)
        }
    };
    Ok((store, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_number_of_seconds() {
        let seconds = |text| patience(text).as_secs_f64();
        assert_eq!(seconds(Some(" 2.5 ")), 2.5);
        assert_eq!(seconds(Some("1e9")), 86_400.0);
        for text in [
            None,
            Some("soon"),
            Some("0"),
            Some("-3"),
            Some("nan"),
            Some("inf"),
        ] {
            assert_eq!(seconds(text), 10.0, "{text:?}");
        }
    }

    #[test]
    fn folders_are_named_by_urls_of_known_stores() {
        let effort = Effort {
            patience: Duration::from_secs(1),
            whole: None,
            retries: 0,
            retry_timeout: Duration::from_secs(1),
        };
        for url in [
            "s3://bucket/prefix",
            "s3://bucket",
            "http://host/dir",
            "https://host:81/a/b",
        ] {
            assert!(Folder::open(url, &effort).is_ok(), "{url}");
        }
        for url in [
            "ftp://host/dir",
            "bucket/prefix",
            "s3:///prefix",
            "https://host/dir?token=1",
            "s3://bucket/a#b",
        ] {
            let error = Folder::open(url, &effort)
                .err()
                .map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(
                error.contains(url) && error.contains("names no folder"),
                "{url}: {error}"
            );
        }
    }
}
