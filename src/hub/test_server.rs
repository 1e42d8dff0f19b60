//! A Hub on the loopback interface for tests: its URL layout, redirects, ranges, commits and
//! refusals, faults and answers of any kind on demand. The integration tests use this file too, so it needs nothing of the library.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

#[path = "test_server/push.rs"]
mod push;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How a file is served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The connection ends after half of the requested bytes, this many times.
    BreaksOff(usize),
    /// A byte is changed on the way, this many times.
    Damaged(usize),
    /// Ranges are ignored: the whole file comes, whatever was asked for, after having broken off
    /// once.
    WholeAfterBreak(usize),
    /// The connection is taken, and nothing is sent for this many seconds.
    Silent(u64),
}

#[derive(Default)]
pub struct Repository {
    pub commit: String,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Readable only with this token; without it 401, with another one 403.
    pub token: Option<String>,
}

/// How a call that pushes is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PushFault {
    /// Not at all: the connection is reset while the client sends.
    Reset,
    Status(u16),
}

/// Who may push: with this token, to repositories of this name.
struct Account {
    name: String,
    token: String,
}

/// A commit that was pushed.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// `org/name@branch`.
    pub to: String,
    pub message: String,
    /// In the commit, in order; large ones end with `*`.
    pub paths: Vec<String>,
}

#[derive(Default)]
struct State {
    /// By path and revision: `models/org/name@main`.
    repositories: BTreeMap<String, Repository>,
    faults: BTreeMap<String, Fault>,
    requests: Vec<String>,
    /// Requests that came with a token.
    tokens: Vec<String>,
    /// By a part of `METHOD PATH`: how often, the bytes of the answer, and the pause after each of them.
    replies: Vec<(String, usize, Vec<u8>)>,
    pause: Duration,
    closing: bool,
    account: Option<Account>,
    /// By a part of the path, how often, and how.
    push_faults: Vec<(String, usize, PushFault)>,
    /// Large files by digest.
    objects: BTreeMap<String, Vec<u8>>,
    /// Bytes beyond which a large file comes in parts.
    part_size: Option<usize>,
    /// Those that have come, by digest and number.
    parts: BTreeMap<(String, usize), Vec<u8>>,
    commits: Vec<Commit>,
}

/// Files from here on are large ones: behind a redirect to another path, as the Hub has them on
/// another host.
const LARGE: usize = 1000;

pub struct TestHub {
    pub url: String,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

impl TestHub {
    pub fn start() -> TestHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, base) = (state.clone(), url.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.lock().unwrap().closing {
                    return;
                }
                let (shared, base) = (shared.clone(), base.clone());
                // A client that goes away mid-answer is part of the tests.
                std::thread::spawn(move || drop(serve(stream.unwrap(), &shared, &base)));
            }
        });
        TestHub {
            url,
            state,
            thread: Some(thread),
        }
    }

    /// `path` is `models/org/name` or `datasets/org/name`.
    pub fn add(&self, path: &str, revision: &str, commit: &str, files: &[(&str, Vec<u8>)]) {
        let files = files
            .iter()
            .map(|(name, bytes)| (name.to_string(), bytes.clone()))
            .collect();
        let repository = Repository {
            commit: commit.to_string(),
            files,
            token: None,
        };
        self.state
            .lock()
            .unwrap()
            .repositories
            .insert(format!("{path}@{revision}"), repository);
    }

    pub fn protect(&self, path: &str, token: &str) {
        let mut state = self.state.lock().unwrap();
        let of_path = state
            .repositories
            .iter_mut()
            .filter(|(key, _)| key.starts_with(path));
        of_path.for_each(|(_, repository)| repository.token = Some(token.to_string()));
    }

    pub fn fault(&self, file: &str, fault: Fault) {
        self.state
            .lock()
            .unwrap()
            .faults
            .insert(file.to_string(), fault);
    }

    /// Lets this token push to repositories of `name`.
    pub fn account(&self, name: &str, token: &str) {
        let (name, token) = (name.to_string(), token.to_string());
        self.state.lock().unwrap().account = Some(Account { name, token });
    }

    /// Large files of more than `bytes` come in parts.
    pub fn parts_of(&self, bytes: usize) {
        self.state.lock().unwrap().part_size = Some(bytes);
    }

    /// Answers the next `times` calls that push to a path with this in it badly.
    pub fn push_fault(&self, path: &str, times: usize, fault: PushFault) {
        let mut state = self.state.lock().unwrap();
        state.push_faults.push((path.to_string(), times, fault));
    }

    /// Answers the next `times` requests whose `METHOD PATH` has this in it with these bytes.
    pub fn reply(&self, request: &str, times: usize, answer: impl Into<Vec<u8>>) {
        let reply = (request.to_string(), times, answer.into());
        self.state.lock().unwrap().replies.push(reply);
    }

    /// Makes such answers slow: a pause after each byte.
    pub fn crawl(&self, pause: Duration) {
        self.state.lock().unwrap().pause = pause;
    }

    /// The requests that had a token.
    pub fn tokens(&self) -> Vec<String> {
        self.state.lock().unwrap().tokens.clone()
    }

    pub fn commits(&self) -> Vec<Commit> {
        self.state.lock().unwrap().commits.clone()
    }

    /// The files of a repository, `models/org/name`, at `revision`.
    pub fn files(&self, path: &str, revision: &str) -> BTreeMap<String, Vec<u8>> {
        let state = self.state.lock().unwrap();
        let key = format!("{path}@{revision}");
        state
            .repositories
            .get(&key)
            .map(|found| found.files.clone())
            .unwrap_or_default()
    }

    /// Whether only its account may read a repository.
    pub fn is_private(&self, path: &str) -> bool {
        let state = self.state.lock().unwrap();
        state.repositories[&format!("{path}@main")].token.is_some()
    }

    /// Requests so far, as `PATH RANGE` or `METHOD PATH`.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

impl Drop for TestHub {
    fn drop(&mut self) {
        self.state.lock().unwrap().closing = true;
        // Wakes the thread that waits for a connection.
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Request {
    method: String,
    path: String,
    range: Option<u64>,
    /// `HEAD`: a question about the file.
    probe: bool,
    token: Option<String>,
}

/// A request without its body, and how long that is.
fn read_request(stream: &mut impl BufRead) -> Option<(Request, usize)> {
    let mut lines = stream.lines();
    let first = lines.next()?.ok()?;
    let (method, path) = first.split_once(' ')?;
    let path = path.split(' ').next()?.to_string();
    let mut length = 0;
    let mut request = Request {
        method: method.to_string(),
        path,
        range: None,
        probe: method == "HEAD",
        token: None,
    };
    for line in lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
    {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        match name.to_lowercase().as_str() {
            "range" => {
                request.range = value
                    .trim()
                    .trim_start_matches("bytes=")
                    .split('-')
                    .next()
                    .and_then(|start| start.parse().ok());
            }
            "content-length" => length = value.trim().parse().ok()?,
            "authorization" => {
                request.token = value.trim().strip_prefix("Bearer ").map(str::to_string)
            }
            _ => {}
        }
    }
    Some((request, length))
}

fn answer(
    stream: &mut TcpStream,
    status: &str,
    headers: &[(&str, String)],
    body: &[u8],
    declared: usize,
) -> std::io::Result<()> {
    let mut head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {declared}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"\r\n")?;
    stream.write_all(body)?;
    stream.flush()
}

fn serve(mut stream: TcpStream, state: &Mutex<State>, base: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let Some((request, length)) = read_request(&mut reader) else {
        return Ok(());
    };
    let line = format!("{} {}", request.method, request.path);
    let reply = state.lock().unwrap().reply(&request, &line);
    if let Some((bytes, pause)) = reply {
        // What has come unread would make a reset of the close.
        reader.read_exact(&mut vec![0; length])?;
        let at_once = if pause.is_zero() {
            bytes.len().max(1)
        } else {
            1
        };
        for piece in bytes.chunks(at_once) {
            stream.write_all(piece)?;
            std::thread::sleep(pause);
        }
        return Ok(());
    }
    if matches!(request.method.as_str(), "GET" | "HEAD") {
        return serve_file(&mut stream, state, &request, base);
    }
    let (status, headers, body) = {
        let mut state = state.lock().unwrap();
        state.requests.push(line);
        let fault = state.fault(&request.path);
        // Bytes that nobody has read make a reset of the close.
        if fault == Some(PushFault::Reset) {
            return Ok(());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        match fault {
            Some(PushFault::Status(status)) => {
                let said = format!("the stand-in says {status} to {:?}", request.token);
                (status, None, json!({"error": said}))
            }
            _ => state.push(&request, body, base),
        }
    };
    let body = (!body.is_null()).then(|| body.to_string());
    let body = body.unwrap_or_default();
    let headers: Vec<(&str, String)> = headers.into_iter().collect();
    let status = format!("{status} Answer");
    answer(&mut stream, &status, &headers, body.as_bytes(), body.len())
}

impl State {
    /// An answer that was given for such requests, with the pause between its bytes.
    fn reply(&mut self, request: &Request, line: &str) -> Option<(Vec<u8>, Duration)> {
        let token = request.token.iter();
        self.tokens.extend(token.map(|_| line.to_string()));
        let mut replies = self.replies.iter_mut();
        let found = replies.find(|(part, times, _)| *times > 0 && line.contains(part.as_str()))?;
        found.1 -= 1;
        let bytes = found.2.clone();
        self.requests.push(line.to_string());
        Some((bytes, self.pause))
    }

    /// What a path names: the key of a repository and, unless the repository itself is meant, a file of it, with
    /// whether it is asked for where large files are stored.
    fn find(&self, path: &str) -> Option<(String, Option<(String, bool)>)> {
        let path = path.trim_start_matches('/').replace("%2F", "/");
        let (path, revision, file) = if let Some(rest) = path.strip_prefix("api/") {
            let (path, revision) = rest.split_once("/revision/").unwrap_or((rest, "main"));
            (path.to_string(), revision.to_string(), None)
        } else {
            let (large, path) = path
                .strip_prefix("cdn/")
                .map_or((false, path.as_str()), |path| (true, path));
            let of_kind = if path.starts_with("datasets/") {
                path.to_string()
            } else {
                format!("models/{path}")
            };
            let (path, rest) = of_kind.split_once("/resolve/")?;
            let prefix = format!("{path}@");
            let own = self.repositories.iter();
            let own =
                own.filter_map(|(key, repository)| Some((key.strip_prefix(&prefix)?, repository)));
            let (revisions, commits): (Vec<&str>, Vec<&str>) = own
                .map(|(revision, repository)| (revision, repository.commit.as_str()))
                .unzip();
            let revision = commits
                .into_iter()
                .chain(revisions)
                .find(|revision| rest.starts_with(&format!("{revision}/")))?;
            let file = rest[revision.len() + 1..].to_string();
            (path.to_string(), revision.to_string(), Some((file, large)))
        };
        let by_commit = |key: &&String| {
            key.starts_with(&format!("{path}@")) && self.repositories[*key].commit == revision
        };
        let mut keys = self.repositories.keys();
        let key = keys
            .find(|key| **key == format!("{path}@{revision}"))
            .or_else(|| self.repositories.keys().find(by_commit))?;
        Some((key.clone(), file))
    }
}

/// Answers a call that reads: a repository's list of files, or a file.
fn serve_file(
    stream: &mut TcpStream,
    state: &Mutex<State>,
    request: &Request,
    base: &str,
) -> std::io::Result<()> {
    let range = match request.range {
        _ if request.probe => "probe".to_string(),
        Some(start) => format!("from {start}"),
        None => "whole".to_string(),
    };
    let mut state = state.lock().unwrap();
    state.requests.push(format!("{} {range}", request.path));
    let Some((key, file)) = state.find(&request.path) else {
        return answer(stream, "404 Not Found", &[], b"", 0);
    };
    let repository = &state.repositories[&key];
    if repository.token.is_some() && repository.token != request.token {
        let status = if request.token.is_some() {
            "403 Forbidden"
        } else {
            "401 Unauthorized"
        };
        return answer(stream, status, &[], b"", 0);
    }
    let commit = repository.commit.clone();
    let Some((file, at_large)) = file else {
        let siblings: Vec<_> = repository
            .files
            .keys()
            .map(|name| serde_json::json!({"rfilename": name}))
            .collect();
        let body = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
        return answer(
            stream,
            "200 OK",
            &[("Content-Type", "application/json".into())],
            body.as_bytes(),
            body.len(),
        );
    };
    let Some(bytes) = repository.files.get(&file).cloned() else {
        return answer(stream, "404 Not Found", &[], b"", 0);
    };
    let large = bytes.len() >= LARGE;
    let git = hex(&Sha1::digest(
        [format!("blob {}\0", bytes.len()).as_bytes(), &bytes].concat(),
    ));
    let mut headers = if at_large {
        // A store knows nothing of commits, and has tags of its own.
        vec![("ETag", "\"of-the-store\"".to_string())]
    } else {
        vec![("X-Repo-Commit", commit), ("ETag", format!("\"{git}\""))]
    };
    if large && !at_large {
        headers.push(("X-Linked-Size", bytes.len().to_string()));
        headers.push((
            "X-Linked-Etag",
            format!("\"{}\"", hex(&Sha256::digest(&bytes))),
        ));
        headers.push(("Location", format!("{base}/cdn{}", request.path)));
        return answer(stream, "302 Found", &headers, b"", 0);
    }
    if let (Some(Fault::Silent(seconds)), false) = (state.faults.get(&file), request.probe) {
        let seconds = *seconds;
        drop(state);
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        return Ok(());
    }
    let mut start = request.range.unwrap_or(0) as usize;
    if start > 0 && start >= bytes.len() {
        return answer(stream, "416 Range Not Satisfiable", &[], b"", 0);
    }
    let mut sent = bytes.clone();
    let mut half = false;
    if !request.probe
        && let Some(fault) = state.faults.get_mut(&file)
    {
        match fault {
            Fault::BreaksOff(times) if *times > 0 => (*times, half) = (*times - 1, true),
            Fault::Damaged(times) if *times > 0 => {
                *times -= 1;
                sent[bytes.len() / 3] ^= 1;
            }
            Fault::WholeAfterBreak(times) if *times > 0 => (*times, half) = (*times - 1, true),
            Fault::WholeAfterBreak(_) => start = 0,
            _ => {}
        }
    }
    drop(state);
    if request.probe {
        return answer(stream, "200 OK", &headers, b"", bytes.len());
    }
    let body = &sent[start..];
    let shown = if half { &body[..body.len() / 2] } else { body };
    let mut status = "200 OK";
    if start > 0 {
        status = "206 Partial Content";
        let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
        headers.push(("Content-Range", range));
    }
    answer(stream, status, &headers, shown, body.len())
}
