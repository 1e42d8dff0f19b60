//! Requests to the Hub and to the addresses that it names. Nothing that a server answers decides who
//! gets the token (the endpoint's host alone), how far redirects lead, how much of an answer is
//! read or how long that may take.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use ureq::config::RedirectAuthHeaders;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, LOCATION};
use ureq::http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use ureq::{Agent, AsSendBody, Body, SendBody};
use url::Url;

use super::checks::{header, shown, size};
use super::error::{Error, Result};
use super::settings::HubSettings;

/// Redirects of one question, and of one that sends something.
const REDIRECTS: usize = 10;
const UPLOAD_REDIRECTS: usize = 3;

/// Bytes of an address that a server names.
const LONGEST_ADDRESS: usize = 16 << 10;

/// Bytes of an answer that is no file.
const LONGEST_ANSWER: u64 = 32 << 20;

/// Such an answer is whole within the patience times this.
const ANSWER_TIME: u32 = 6;

/// Bytes a second below which a transfer is given up.
const SLOWEST: f64 = 1024.0;

/// Why there is no answer that can be used.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing came for this long, or next to nothing.
    Silent(Duration),
    /// No connection, or one that broke.
    Broken(String),
    /// An answer or an address against the rules, which repeating would not change.
    Wrong(String),
}

/// Something to send: its length, and a reader of it for each attempt.
pub(super) struct Sent<'a> {
    pub length: u64,
    pub open: &'a dyn Fn() -> Box<dyn Read + 'a>,
}

/// A question.
pub(super) struct Ask<'a> {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Sent<'a>>,
    /// Whether the endpoint's host gets the token.
    pub with_token: bool,
    /// How long the head of the answer may take, over all redirects.
    pub wait: Duration,
    /// Whether a redirect with a commit in it, which leads to a store of files, is the answer.
    pub only_relative: bool,
    /// Whether the answer is a file, which takes as long as it moves.
    pub is_file: bool,
}

/// The head of an answer, and its body, which is not read yet.
pub(super) struct Answer {
    pub status: u16,
    /// Whether the endpoint's host gave it.
    pub is_home: bool,
    pub headers: HeaderMap,
    body: Body,
    wait: Duration,
}

/// The Hub's address, the token for it and the connections.
pub(super) struct Client {
    agent: Agent,
    endpoint: Url,
    token: Option<HeaderValue>,
    pub patience: Duration,
}

impl Client {
    /// # Errors
    /// If the endpoint is no address, or the token cannot be one.
    pub fn new(settings: &HubSettings) -> Result<Client> {
        let endpoint = settings.endpoint_url();
        let bad = |reason: String| Error::BadEndpoint {
            endpoint: endpoint.clone(),
            reason,
        };
        let url = Url::parse(&endpoint).map_err(|error| bad(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(bad("it is neither http:// nor https://".to_string()));
        }
        let token = match &settings.token {
            None => None,
            Some(token) => {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                let mut value = value.map_err(|_| Error::BadToken)?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here.
            .max_redirects(0)
            .redirect_auth_headers(RedirectAuthHeaders::Never)
            // Sizes and digests are of files as they are.
            .accept_encoding("identity")
            .user_agent(concat!("xtrain/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Client {
            agent: config.new_agent(),
            endpoint: url,
            token,
            patience: settings.patience,
        })
    }

    /// An address of the endpoint; `/` in a segment is quoted.
    pub fn url<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Url {
        let mut url = self.endpoint.clone();
        // Every http address has segments.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// A question for the endpoint, with the token.
    pub fn ask(&self, method: Method, url: Url) -> Ask<'static> {
        Ask {
            method,
            url,
            headers: Vec::new(),
            body: None,
            with_token: true,
            wait: self.patience,
            only_relative: false,
            is_file: false,
        }
    }

    /// Whether an address is the endpoint's: scheme, host and port.
    pub fn is_endpoint(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    /// An address that the Hub names for uploads.
    pub fn address(&self, text: &str) -> Result<Url, Failure> {
        self.linked(text, None)
    }

    /// An address in an answer of `from`, or of the endpoint.
    fn linked(&self, text: &str, from: Option<&Url>) -> Result<Url, Failure> {
        let wrong = |reason: &str| {
            let text = shown(text);
            Err(Failure::Wrong(format!("the address {text} {reason}")))
        };
        if text.len() > LONGEST_ADDRESS {
            return wrong("is too long");
        }
        let parsed = from.map_or_else(|| Url::parse(text), |from| from.join(text));
        let Ok(mut url) = parsed else {
            return wrong("is none");
        };
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return wrong("is neither http:// nor https://");
        }
        if from.unwrap_or(&self.endpoint).scheme() == "https" && url.scheme() == "http" {
            return wrong("leads from https to http");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return wrong("has a user in it");
        }
        url.set_fragment(None);
        Ok(url)
    }

    /// Asks, and follows redirects. `examine` sees every answer on the way, and one that it refuses
    /// is an error. Only the endpoint's host gets the token, and not after a redirect has led away.
    pub fn send(
        &self,
        ask: &Ask<'_>,
        examine: &dyn Fn(&Answer) -> Result<(), String>,
    ) -> Result<Answer, Failure> {
        let began = Instant::now();
        let most = match ask.body {
            None => REDIRECTS,
            Some(_) => UPLOAD_REDIRECTS,
        };
        let (mut url, mut is_home) = (ask.url.clone(), true);
        for _ in 0..=most {
            is_home &= self.is_endpoint(&url);
            let wait = match ask.body {
                None => ask.wait.saturating_sub(began.elapsed()),
                // Sending takes as long as it moves.
                Some(_) => ask.wait,
            };
            if wait.is_zero() {
                return Err(Failure::Silent(ask.wait));
            }
            let answer = self.once(ask, &url, is_home && ask.with_token, wait)?;
            examine(&answer).map_err(Failure::Wrong)?;
            match self.redirect(ask, &answer, &url)? {
                Some(next) => url = next,
                None => return Ok(answer),
            }
        }
        Err(Failure::Wrong(format!("more than {most} redirects")))
    }

    /// Where an answer leads; `None` where it is one.
    fn redirect(&self, ask: &Ask<'_>, answer: &Answer, from: &Url) -> Result<Option<Url>, Failure> {
        let status = answer.status;
        if !matches!(status, 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let location = answer.header(LOCATION.as_str())?;
        let location = location
            .ok_or_else(|| Failure::Wrong(format!("a redirect ({status}) without an address")))?;
        if ask.body.is_some() && !matches!(status, 307 | 308) {
            let reason = format!("a redirect ({status}) of what was sent");
            return Err(Failure::Wrong(reason));
        }
        let is_relative = location.starts_with('/') && !location.starts_with("//");
        if ask.only_relative && !is_relative && answer.headers.contains_key("x-repo-commit") {
            return Ok(None);
        }
        let next = self.linked(location, Some(from))?;
        if ask.body.is_some() && ask.with_token && !self.is_endpoint(&next) {
            let reason = format!("a redirect ({status}) of what was sent to another host");
            return Err(Failure::Wrong(reason));
        }
        Ok(Some(next))
    }

    fn once(
        &self,
        ask: &Ask<'_>,
        url: &Url,
        with_token: bool,
        wait: Duration,
    ) -> Result<Answer, Failure> {
        let wrong = || Failure::Wrong(format!("the address {} is none", shown(url.as_str())));
        let uri: Uri = url.as_str().parse().map_err(|_| wrong())?;
        // Two readers of one address must not see two hosts in it.
        if uri.host() != url.host_str() || uri.port_u16() != url.port() {
            return Err(wrong());
        }
        let mut request = Request::builder().method(ask.method.clone()).uri(uri);
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        if let Some(token) = self.token.as_ref().filter(|_| with_token) {
            request = request.header(AUTHORIZATION, token);
        }
        let answer = match &ask.body {
            None => self.run(request.body(()), ask, wait),
            Some(sent) => {
                let mut reader = Paced::new((sent.open)(), ask.wait);
                // Stores of objects want the length ahead.
                let request = request.header(CONTENT_LENGTH, sent.length);
                self.run(request.body(SendBody::from_reader(&mut reader)), ask, wait)
            }
        };
        let answer = answer.map_err(|error| failure(error, ask.wait))?;
        let (parts, body) = answer.into_parts();
        Ok(Answer {
            status: parts.status.as_u16(),
            is_home: self.is_endpoint(url),
            headers: parts.headers,
            body,
            wait: ask.wait,
        })
    }

    fn run(
        &self,
        request: ureq::http::Result<Request<impl AsSendBody>>,
        ask: &Ask<'_>,
        wait: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        let most = (!ask.is_file).then(|| self.patience * ANSWER_TIME);
        let request = self
            .agent
            .configure_request(request?)
            .timeout_resolve(Some(wait.min(self.patience)))
            .timeout_connect(Some(wait.min(self.patience)))
            .timeout_send_request(Some(wait))
            .timeout_per_write(Some(wait))
            .timeout_recv_response(Some(wait))
            .timeout_recv_body(most)
            .timeout_per_read(Some(wait))
            .build();
        self.agent.run(request)
    }
}

impl Answer {
    /// A header's value; an error of several values, or of none that is a text.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Failure> {
        header(&self.headers, name).map_err(Failure::Wrong)
    }

    /// The bytes of the body, where they are announced.
    pub fn length(&self) -> Result<Option<u64>, Failure> {
        let wrong = |text| Failure::Wrong(format!("{} is no length", shown(text)));
        let text = self.header(CONTENT_LENGTH.as_str())?;
        text.map(|text| size(text).ok_or_else(|| wrong(text)))
            .transpose()
    }

    /// The body of one that is short.
    pub fn bytes(self) -> Result<Vec<u8>, Failure> {
        let long = || Failure::Wrong(format!("it has more than {LONGEST_ANSWER} bytes"));
        if self.length()?.is_some_and(|length| length > LONGEST_ANSWER) {
            return Err(long());
        }
        let wait = self.wait;
        let mut bytes = Vec::new();
        let mut reader = self.body.into_reader().take(LONGEST_ANSWER + 1);
        let read = reader.read_to_end(&mut bytes);
        read.map_err(|error| broken(error, wait))?;
        if bytes.len() as u64 > LONGEST_ANSWER {
            return Err(long());
        }
        Ok(bytes)
    }

    /// The body of a file, which fails when it stands still or crawls.
    pub fn reader(self) -> impl Read {
        Paced::new(self.body.into_reader(), self.wait)
    }

    /// Why [`Answer::reader`] failed.
    pub fn broken(error: io::Error, wait: Duration) -> Failure {
        broken(error, wait)
    }
}

/// A reader that fails once it brings less than [`SLOWEST`] over a window of time.
struct Paced<R> {
    inner: R,
    window: Duration,
    began: Instant,
    bytes: u64,
}

impl<R> Paced<R> {
    fn new(inner: R, window: Duration) -> Paced<R> {
        Paced {
            inner,
            window,
            began: Instant::now(),
            bytes: 0,
        }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        let taken = self.began.elapsed();
        if taken >= self.window && read > 0 {
            if (self.bytes as f64) < SLOWEST * taken.as_secs_f64() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            (self.began, self.bytes) = (Instant::now(), 0);
        }
        Ok(read)
    }
}

/// An error of the crate before there was an answer.
fn failure(error: ureq::Error, wait: Duration) -> Failure {
    match error {
        ureq::Error::Timeout(_) => Failure::Silent(wait),
        ureq::Error::Io(error) => broken(error, wait),
        ureq::Error::Protocol(error) => {
            Failure::Wrong(format!("it is no HTTP: {}", shown(&error.to_string())))
        }
        ureq::Error::LargeResponseHeader(..) => {
            Failure::Wrong("its headers are too large".to_string())
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::RedirectFailed => {
            Failure::Wrong(shown(&error.to_string()))
        }
        error => Failure::Broken(error.to_string()),
    }
}

/// An error of a connection, or of the crate in the disguise of one.
fn broken(error: io::Error, wait: Duration) -> Failure {
    let is_late = |kind| matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock);
    match ureq::Error::from(error) {
        ureq::Error::Timeout(_) => Failure::Silent(wait),
        ureq::Error::Io(error) if is_late(error.kind()) => Failure::Silent(wait),
        error => Failure::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(endpoint: &str) -> Result<Client> {
        Client::new(&HubSettings {
            endpoint: Some(endpoint.to_string()),
            cache_dir: "none".into(),
            token: Some("hf_x".to_string()),
            offline: false,
            quiet: true,
            patience: Duration::from_secs(1),
        })
    }

    #[test]
    fn addresses_are_http_and_never_less_than_the_endpoint() {
        let secure = client("https://hub.example").unwrap();
        let plain = client("http://127.0.0.1:8080/mirror/").unwrap();
        let good = "https://store.example/a?signature=%2Fx";
        assert_eq!(secure.address(good).unwrap().as_str(), good);
        assert!(plain.address("http://store.example/a").is_ok());
        for text in [
            "",
            "store",
            "/a",
            "//store/a",
            "file:///etc/passwd",
            "ftp://store/a",
            "data:,x",
            "https://",
            "https://user@store/a",
            "https://store:99999/a",
            "javascript:x",
            "http://store.example/a",
            &format!("https://store/{}", "a".repeat(20_000)),
        ] {
            let error = secure.address(text);
            assert!(
                matches!(&error, Err(Failure::Wrong(reason)) if reason.len() < 300),
                "{text}"
            );
        }
        let from = Url::parse("https://hub.example/a/b").unwrap();
        let led = |to: &str| secure.linked(to, Some(&from)).map(String::from).ok();
        assert_eq!(led("/c").as_deref(), Some("https://hub.example/c"));
        assert_eq!(led("//other/c").as_deref(), Some("https://other/c"));
        assert_eq!(led("http://hub.example/c"), None);
    }

    #[test]
    fn the_endpoint_is_a_scheme_a_host_and_a_port() {
        let client = client("https://hub.example").unwrap();
        let is = |text: &str| client.is_endpoint(&Url::parse(text).unwrap());
        assert!(is("https://hub.example/x") && is("https://HUB.example:443/"));
        for text in [
            "http://hub.example/",
            "https://hub.example:444/",
            "https://hub.example.evil/",
            "https://evil/hub.example",
            "https://hub.example@evil/",
            "https://evil\\@hub.example/",
        ] {
            assert!(!is(text), "{text}");
        }
        for text in [
            "",
            "hub.example",
            "file:///x",
            "ftp://x",
            "http://",
            "localhost:8080",
        ] {
            let error = client_error(text);
            assert!(error.contains("HF_ENDPOINT"), "{text}: {error}");
        }
    }

    fn client_error(endpoint: &str) -> String {
        client(endpoint).err().expect("no address").to_string()
    }

    #[test]
    fn names_in_addresses_are_quoted() {
        let client = client("http://127.0.0.1:8080/mirror/").unwrap();
        let url = client.url(["org", "name", "resolve", "refs/pr/1", "a b?c#d%.json"]);
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:8080/mirror/org/name/resolve/refs%2Fpr%2F1/a%20b%3Fc%23d%25.json"
        );
    }

    #[test]
    fn what_crawls_is_given_up_and_what_moves_is_waited_for() {
        struct Slow(usize, Duration);
        impl Read for Slow {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                std::thread::sleep(self.1);
                let count = self.0.min(buffer.len());
                buffer[..count].fill(1);
                Ok(count)
            }
        }
        let window = Duration::from_millis(100);
        let mut crawling = Paced::new(Slow(1, Duration::from_millis(20)), window);
        let error = crawling.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut moving = Paced::new(Slow(4000, Duration::from_millis(20)), window).take(80_000);
        assert_eq!(moving.read_to_end(&mut Vec::new()).unwrap(), 80_000);
    }
}
