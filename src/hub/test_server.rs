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
    let reply = {
        let mut state = state.lock().unwrap();
        let token = request.token.iter();
        state.tokens.extend(token.map(|_| line.clone()));
        let mut replies = state.replies.iter_mut();
        let found = replies.find(|(part, times, _)| *times > 0 && line.contains(part.as_str()));
        let found = found.map(|found| {
            found.1 -= 1;
            found.2.clone()
        });
        if found.is_some() {
            state.requests.push(line.clone());
        }
        found.zip(Some(state.pause))
    };
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
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
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
        return answer(&mut stream, &status, &headers, body.as_bytes(), body.len());
    }
    let range = match request.range {
        _ if request.probe => "probe".to_string(),
        Some(start) => format!("from {start}"),
        None => "whole".to_string(),
    };
    let mut state = state.lock().unwrap();
    state.requests.push(format!("{} {range}", request.path));
    let path = request.path.trim_start_matches('/').replace("%2F", "/");
    let found = if let Some(rest) = path.strip_prefix("api/") {
        let (path, revision) = rest.split_once("/revision/").unwrap_or((rest, "main"));
        Some((path.to_string(), revision.to_string(), None))
    } else {
        let (large, path) = path
            .strip_prefix("cdn/")
            .map_or((false, path.as_str()), |path| (true, path));
        let of_kind = if path.starts_with("datasets/") {
            path.to_string()
        } else {
            format!("models/{path}")
        };
        of_kind.split_once("/resolve/").and_then(|(path, rest)| {
            let revisions: Vec<String> = state
                .repositories
                .keys()
                .filter_map(|key| key.strip_prefix(&format!("{path}@")).map(str::to_string))
                .collect();
            let commits = revisions.iter().map(|revision| {
                state.repositories[&format!("{path}@{revision}")]
                    .commit
                    .clone()
            });
            let known: Vec<String> = commits.chain(revisions.iter().cloned()).collect();
            let revision = known
                .into_iter()
                .find(|revision| rest.starts_with(&format!("{revision}/")))?;
            let file = rest[revision.len() + 1..].to_string();
            Some((path.to_string(), revision, Some((file, large))))
        })
    };
    let Some((path, revision, file)) = found else {
        return answer(&mut stream, "404 Not Found", &[], b"", 0);
    };
    let by_commit = |key: &&String| {
        key.starts_with(&format!("{path}@")) && state.repositories[*key].commit == revision
    };
    let key = state
        .repositories
        .keys()
        .find(|key| **key == format!("{path}@{revision}"))
        .or_else(|| state.repositories.keys().find(by_commit));
    let Some(key) = key.cloned() else {
        return answer(&mut stream, "404 Not Found", &[], b"", 0);
    };
    let repository = &state.repositories[&key];
    if repository.token.is_some() && repository.token != request.token {
        let status = if request.token.is_some() {
            "403 Forbidden"
        } else {
            "401 Unauthorized"
        };
        return answer(&mut stream, status, &[], b"", 0);
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
            &mut stream,
            "200 OK",
            &[("Content-Type", "application/json".into())],
            body.as_bytes(),
            body.len(),
        );
    };
    let Some(bytes) = repository.files.get(&file).cloned() else {
        return answer(&mut stream, "404 Not Found", &[], b"", 0);
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
        return answer(&mut stream, "302 Found", &headers, b"", 0);
    }
    if let (Some(Fault::Silent(seconds)), false) = (state.faults.get(&file), request.probe) {
        let seconds = *seconds;
        drop(state);
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        return Ok(());
    }
    let mut start = request.range.unwrap_or(0) as usize;
    if start > 0 && start >= bytes.len() {
        return answer(&mut stream, "416 Range Not Satisfiable", &[], b"", 0);
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
        return answer(&mut stream, "200 OK", &headers, b"", bytes.len());
    }
    let body = &sent[start..];
    let shown = if half { &body[..body.len() / 2] } else { body };
    let mut status = "200 OK";
    if start > 0 {
        status = "206 Partial Content";
        let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
        headers.push(("Content-Range", range));
    }
    answer(&mut stream, status, &headers, shown, body.len())
}

/// Status, a header, and the body.
type Said = (u16, Option<(&'static str, String)>, Value);

fn said(status: u16, body: Value) -> Said {
    (status, None, body)
}

impl State {
    fn fault(&mut self, path: &str) -> Option<PushFault> {
        let mut faults = self.push_faults.iter_mut();
        let found = faults.find(|(part, times, _)| *times > 0 && path.contains(part.as_str()))?;
        found.1 -= 1;
        Some(found.2)
    }

    /// Answers a call that pushes.
    fn push(&mut self, request: &Request, body: Vec<u8>, base: &str) -> Said {
        let path = request.path.trim_start_matches('/').replace("%2F", "/");
        // Addresses that carry their own rights take no token: it would be given away.
        let signed = path
            .split_once('/')
            .filter(|(head, _)| ["lfs", "part"].contains(head));
        if let Some((head, rest)) = signed {
            return match &request.token {
                Some(_) => said(400, json!({"error": "a token where none belongs"})),
                None => self.store(head, rest, &request.method, body),
            };
        }
        let account = self.account.as_ref();
        let Some(account) = account.filter(|own| Some(&own.token) == request.token.as_ref()) else {
            return said(401, json!({"error": "Invalid credentials"}));
        };
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if path == "api/repos/create" {
            let name = value["name"].as_str().unwrap();
            let organization = value["organization"].as_str().unwrap_or(&account.name);
            let url = format!("{base}/{organization}/{name}");
            if organization != account.name {
                return said(403, json!({"error": "no right to create there"}));
            }
            let key = format!("models/{organization}/{name}@main");
            if self.repositories.contains_key(&key) {
                return said(
                    409,
                    json!({"error": "You already created this", "url": url}),
                );
            }
            let private = value["visibility"] == "private";
            let repository = Repository {
                commit: "0".repeat(40),
                token: private.then(|| account.token.clone()),
                ..Default::default()
            };
            self.repositories.insert(key, repository);
            return said(200, json!({"url": url}));
        }
        if let Some((_, digest)) = path.split_once("verify/") {
            let size = self.objects.get(digest).map(Vec::len);
            let is_there = size.is_some() && value["size"].as_u64() == size.map(|n| n as u64);
            return said(if is_there { 200 } else { 404 }, Value::Null);
        }
        let writable = format!("{}/", account.name);
        if let Some(name) = path.strip_suffix(".git/info/lfs/objects/batch") {
            assert!(
                self.repositories
                    .contains_key(&format!("models/{name}@main"))
            );
            return said(
                200,
                json!({"transfer": "basic", "objects": self.addresses(&value, base)}),
            );
        }
        let parts: Vec<&str> = path.splitn(6, '/').collect();
        let ["api", "models", organization, name, what, revision] = parts[..] else {
            return said(404, Value::Null);
        };
        let name = format!("{organization}/{name}");
        let key = format!("models/{name}@{revision}");
        if !self.repositories.contains_key(&key) {
            return said(404, json!({"error": "Repository not found"}));
        }
        if !name.starts_with(&writable) {
            return said(403, json!({"error": "no right to write there"}));
        }
        match what {
            "preupload" => said(200, self.modes(&key, &value)),
            "commit" => {
                let lines = body
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty());
                let lines = lines
                    .map(|line| serde_json::from_slice(line).unwrap())
                    .collect();
                self.commit(&key, lines);
                said(
                    200,
                    json!({"commitUrl": base, "commitOid": self.repositories[&key].commit}),
                )
            }
            _ => said(404, Value::Null),
        }
    }

    /// How each file is stored: weights as large ones, and what the branch has of it.
    fn modes(&self, key: &str, asked: &Value) -> Value {
        let of_file = |file: &Value| {
            let path = file["path"].as_str().unwrap();
            let large = path.ends_with(".safetensors") && file["size"] != 0;
            let there = self.repositories[key].files.get(path).map(|bytes| {
                if large {
                    hex(&Sha256::digest(bytes))
                } else {
                    hex(&Sha1::digest(
                        [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat(),
                    ))
                }
            });
            let mode = if large { "lfs" } else { "regular" };
            json!({"path": path, "uploadMode": mode, "shouldIgnore": path == "ignored.txt", "oid": there})
        };
        let files: Vec<Value> = asked["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(of_file)
            .collect();
        json!({"files": files})
    }

    /// Where large files go that have not come yet.
    fn addresses(&self, asked: &Value, base: &str) -> Vec<Value> {
        let of_object = |object: &Value| {
            let (digest, size) = (
                object["oid"].as_str().unwrap(),
                object["size"].as_u64().unwrap(),
            );
            if self.objects.contains_key(digest) {
                return object.clone();
            }
            let mut header = json!({});
            if let Some(part) = self.part_size.filter(|part| size as usize > *part) {
                header["chunk_size"] = part.to_string().into();
                for number in 1..=(size as usize).div_ceil(part) {
                    header[number.to_string()] = format!("{base}/part/{digest}/{number}").into();
                }
            }
            json!({"oid": digest, "size": size, "actions": {
                "upload": {"href": format!("{base}/lfs/{digest}"), "header": header},
                "verify": {"href": format!("{base}/verify/{digest}")},
            }})
        };
        asked["objects"]
            .as_array()
            .unwrap()
            .iter()
            .map(of_object)
            .collect()
    }

    /// Takes a large file, a part of one, or the word that all parts are there.
    fn store(&mut self, head: &str, rest: &str, method: &str, body: Vec<u8>) -> Said {
        if head == "part" {
            let (digest, number) = rest.split_once('/').unwrap();
            let number: usize = number.parse().unwrap();
            self.parts.insert((digest.to_string(), number), body);
            return (
                200,
                Some(("ETag", format!("\"part-{number}\""))),
                Value::Null,
            );
        }
        let whole = match method {
            "PUT" => body,
            _ => {
                let done: Value = serde_json::from_slice(&body).unwrap();
                let parts = done["parts"].as_array().unwrap().iter();
                let of_part = |part: &Value| {
                    let number = part["partNumber"].as_u64().unwrap() as usize;
                    assert_eq!(part["etag"], format!("\"part-{number}\""));
                    self.parts[&(rest.to_string(), number)].clone()
                };
                parts.flat_map(of_part).collect()
            }
        };
        if hex(&Sha256::digest(&whole)) != rest {
            return said(400, json!({"error": "another file than was announced"}));
        }
        self.objects.insert(rest.to_string(), whole);
        said(200, Value::Null)
    }

    fn commit(&mut self, key: &str, lines: Vec<Value>) {
        let (mut message, mut paths) = (String::new(), Vec::new());
        let files = &mut self.repositories.get_mut(key).unwrap().files;
        for line in lines {
            let value = &line["value"];
            let path = value["path"].as_str().unwrap_or_default().to_string();
            match line["key"].as_str().unwrap() {
                "header" => message = value["summary"].as_str().unwrap().to_string(),
                "file" => {
                    let content = value["content"].as_str().unwrap();
                    let bytes = base64::engine::general_purpose::STANDARD
                        .decode(content)
                        .unwrap();
                    files.insert(path.clone(), bytes);
                    paths.push(path);
                }
                "lfsFile" => {
                    let bytes = &self.objects[value["oid"].as_str().unwrap()];
                    assert_eq!(value["size"].as_u64(), Some(bytes.len() as u64));
                    files.insert(path.clone(), bytes.clone());
                    paths.push(format!("{path}*"));
                }
                other => panic!("{other}"),
            }
        }
        let count = self.commits.len() + 1;
        self.repositories.get_mut(key).unwrap().commit = format!("{count:040}");
        let to = key.trim_start_matches("models/").to_string();
        self.commits.push(Commit { to, message, paths });
    }
}
