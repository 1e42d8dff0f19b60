//! A Hub on the loopback interface for tests: its URL layout, redirects, ranges and refusals, and
//! faults on demand. The integration tests use this file too, so it needs nothing of the library.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

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

#[derive(Default)]
struct State {
    /// By path and revision: `models/org/name@main`.
    repositories: BTreeMap<String, Repository>,
    faults: BTreeMap<String, Fault>,
    requests: Vec<String>,
    closing: bool,
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

    /// Requests so far, as `GET PATH RANGE`.
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
    path: String,
    range: Option<u64>,
    /// `bytes=0-0`: only a question about the size.
    probe: bool,
    token: Option<String>,
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream.take(1 << 16)).lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_string();
    let mut request = Request {
        path,
        range: None,
        probe: false,
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
                request.probe = value.trim() == "bytes=0-0";
                request.range = value
                    .trim()
                    .trim_start_matches("bytes=")
                    .split('-')
                    .next()
                    .and_then(|start| start.parse().ok());
            }
            "authorization" => {
                request.token = value.trim().strip_prefix("Bearer ").map(str::to_string)
            }
            _ => {}
        }
    }
    Some(request)
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
    let Some(request) = read_request(&stream) else {
        return Ok(());
    };
    let range = request.range.map_or("whole".to_string(), |start| {
        if request.probe {
            "probe".into()
        } else {
            format!("from {start}")
        }
    });
    let mut state = state.lock().unwrap();
    state.requests.push(format!("{} {range}", request.path));
    let path = request.path.trim_start_matches('/').replace("%2F", "/");
    let found = if let Some(rest) = path.strip_prefix("api/") {
        rest.split_once("/revision/")
            .map(|(path, revision)| (path.to_string(), revision.to_string(), None))
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
    let mut headers = vec![("X-Repo-Commit", commit), ("ETag", format!("\"{git}\""))];
    if large && !at_large {
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
    if start >= bytes.len() {
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
    let body = if request.probe {
        &sent[..1]
    } else {
        &sent[start..]
    };
    headers.push((
        "Content-Range",
        format!("bytes {start}-{}/{}", start + body.len() - 1, bytes.len()),
    ));
    let shown = if half { &body[..body.len() / 2] } else { body };
    answer(
        &mut stream,
        "206 Partial Content",
        &headers,
        shown,
        body.len(),
    )
}
