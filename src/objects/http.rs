//! object_store's requests, carried by ureq: the client that downloads from the Hub too, so that
//! there is one TLS library.
//!
//! The call blocks although its signature is async. Nothing else runs on its runtime, and the whole
//! answer is read before it returns, so that a transfer that breaks off is one failed request,
//! which object_store repeats.

use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::Body;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use ureq::config::AutoHeaderValue;

/// An answer beyond this is none that was asked for.
const MOST: u64 = 1 << 30;

/// Makes clients that give up on a server that says nothing for too long.
#[derive(Debug)]
pub struct Connector {
    pub patience: Duration,
    /// For a request with its answer.
    pub whole: Option<Duration>,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let patience = Some(self.patience);
        let config = ureq::Agent::config_builder()
            // A status is an answer for object_store to judge.
            .http_status_as_error(false)
            .timeout_global(self.whole)
            .timeout_connect(patience)
            .timeout_per_read(patience)
            .timeout_per_write(patience)
            .user_agent(concat!("xtrain/", env!("CARGO_PKG_VERSION")))
            // Ranges are of the bytes as they are stored.
            .accept_encoding(AutoHeaderValue::None)
            .build();
        Ok(HttpClient::new(Service(config.new_agent())))
    }
}

#[derive(Debug)]
struct Service(ureq::Agent);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = match body.as_bytes() {
            Some(bytes) if bytes.is_empty() => {
                self.0.run(ureq::http::Request::from_parts(parts, ()))
            }
            Some(bytes) => self
                .0
                .run(ureq::http::Request::from_parts(parts, &bytes[..])),
            None => {
                let bytes = collect(body)?;
                self.0
                    .run(ureq::http::Request::from_parts(parts, &bytes[..]))
            }
        };
        let (parts, body) = answer
            .map_err(|error| failed(kind(&error), error))?
            .into_parts();
        let mut bytes = Vec::new();
        let mut reader = body.into_with_config().limit(MOST).reader();
        reader
            .read_to_end(&mut bytes)
            .map_err(|error| failed(HttpErrorKind::Interrupted, error))?;
        Ok(HttpResponse::from_parts(parts, Bytes::from(bytes).into()))
    }
}

/// The pieces of a body that is uploaded: all of them are in memory, so none has to be waited for.
fn collect(mut body: HttpRequestBody) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::with_capacity(body.content_length());
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
        if let Ok(piece) = frame?.into_data() {
            bytes.extend_from_slice(&piece);
        }
    }
    Ok(bytes)
}

fn failed(kind: HttpErrorKind, error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(kind, error)
}

/// What object_store repeats: everything but what would fail in the same way again.
fn kind(error: &ureq::Error) -> HttpErrorKind {
    match error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(_) | ureq::Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    }
}
