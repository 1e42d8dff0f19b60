//! A web server and S3 store on the loopback interface for tests: whole objects, ranges, ETags, and
//! faults on demand. S3's path-style addresses (`/BUCKET/KEY`) are served like any others. The
//! tests of `src/tasks` use this file too, so it needs nothing of the library.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// How an object is served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The connection ends after half of what was asked for, this many times.
    BreaksOff(usize),
    /// An answer with this status, this many times.
    Status(&'static str, usize),
    /// The connection is accepted, and nothing is ever sent.
    Silent,
    /// Ranges are ignored.
    NoRanges,
    /// Another ETag and other bytes after this many requests.
    ChangesAfter(usize),
    /// The same bytes under another ETag.
    Retagged,
    /// Only with credentials.
    NeedsSignature,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, Fault>,
    requests: Vec<String>,
    /// Bytes of bodies.
    sent: u64,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    closed: Condvar,
}

pub struct TestStore {
    pub url: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl TestStore {
    pub fn start() -> TestStore {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared::default());
        let served = shared.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.state.lock().unwrap().closing {
                    return;
                }
                let served = served.clone();
                // A client that goes away mid-answer is part of the tests.
                std::thread::spawn(move || drop(serve(stream.unwrap(), &served)));
            }
        });
        TestStore {
            url,
            shared,
            thread: Some(thread),
        }
    }

    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        self.shared
            .state
            .lock()
            .unwrap()
            .objects
            .insert(path.to_string(), bytes);
    }

    pub fn fault(&self, path: &str, fault: Fault) {
        self.shared
            .state
            .lock()
            .unwrap()
            .faults
            .insert(path.to_string(), fault);
    }

    /// The names of the objects.
    pub fn names(&self) -> Vec<String> {
        self.shared
            .state
            .lock()
            .unwrap()
            .objects
            .keys()
            .cloned()
            .collect()
    }

    pub fn remove(&self, path: &str) {
        let removed = self.shared.state.lock().unwrap().objects.remove(path);
        removed.unwrap_or_else(|| panic!("no {path}"));
    }

    /// An object.
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        self.shared.state.lock().unwrap().objects[path].clone()
    }

    /// Requests so far, as `GET PATH RANGE`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().requests.clone()
    }

    /// Bytes of bodies so far.
    pub fn sent(&self) -> u64 {
        self.shared.state.lock().unwrap().sent
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().closing = true;
        self.shared.closed.notify_all();
        // Wakes the thread that waits for a connection.
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Request {
    method: String,
    path: String,
    /// What follows the path.
    query: String,
    body: Vec<u8>,
    /// Nothing may be replaced.
    creates: bool,
    /// First and last byte.
    range: Option<(usize, usize)>,
    if_match: Option<String>,
    signed: bool,
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut lines = reader.by_ref().take(1 << 16).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_string(), words.next()?.to_string());
    let (path, query) = path.split_once('?').unwrap_or((&path, ""));
    let mut length = 0;
    let mut request = Request {
        method,
        path: path.to_string(),
        query: query.to_string(),
        body: Vec::new(),
        creates: false,
        range: None,
        if_match: None,
        signed: false,
    };
    for line in lines
        .by_ref()
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
    {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match name.to_lowercase().as_str() {
            "range" => {
                let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.range = Some((start.parse().ok()?, end.parse().unwrap_or(usize::MAX)));
            }
            "content-length" => length = value.parse().ok()?,
            "if-none-match" => request.creates = value == "*",
            "if-match" => request.if_match = Some(value.to_string()),
            "authorization" => request.signed = value.starts_with("AWS4-HMAC-SHA256 "),
            _ => {}
        }
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// What changes with the bytes.
fn sum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Writes, removes or lists objects.
fn change(stream: &mut TcpStream, state: &mut State, request: Request) -> std::io::Result<()> {
    let (mut status, mut body) = ("200 OK", String::new());
    let fault = state.faults.get_mut(&request.path);
    match request.method.as_str() {
        "PUT"
            if let Some(Fault::Status(refused, times)) = fault
                && *times > 0 =>
        {
            *times -= 1;
            status = *refused;
        }
        "PUT" if request.creates && state.objects.contains_key(&request.path) => {
            status = "412 Precondition Failed";
        }
        // S3's request for many.
        "POST" => {
            let text = String::from_utf8_lossy(&request.body).into_owned();
            let bucket = request.path.trim_end_matches('/');
            let mut removed = String::new();
            for key in text.split("<Key>").skip(1) {
                let key = key.split("</Key>").next().unwrap_or_default();
                state.objects.remove(&format!("{bucket}/{key}"));
                removed += &format!("<Deleted><Key>{key}</Key></Deleted>");
            }
            body = format!("<DeleteResult>{removed}</DeleteResult>");
        }
        "PUT" => drop(state.objects.insert(request.path, request.body)),
        "DELETE" => {
            state.objects.remove(&request.path);
            status = "204 No Content";
        }
        _ => {
            let prefix = request
                .query
                .split('&')
                .find_map(|pair| pair.strip_prefix("prefix="));
            let prefix = prefix.unwrap_or_default().replace("%2F", "/");
            let bucket = format!("{}/", request.path.trim_end_matches('/'));
            let keys = state.objects.iter().filter_map(|(path, bytes)| {
                let key = path.strip_prefix(&bucket)?;
                key.starts_with(&prefix).then(|| {
                    format!(
                        "<Contents><Key>{key}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>{}</Size></Contents>",
                        bytes.len()
                    )
                })
            });
            let keys: String = keys.collect();
            body = format!(
                "<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>"
            );
        }
    }
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nETag: \"x\"\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes())
}

fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Some(request) = read_request(&stream) else {
        return Ok(());
    };
    let mut state = shared.state.lock().unwrap();
    let range = request.range.map_or("whole".to_string(), |(first, last)| {
        format!("{first}-{last}")
    });
    state
        .requests
        .push(format!("{} {} {range}", request.method, request.path));
    if request.method != "GET" && request.method != "HEAD" || request.query.contains("list-type=2")
    {
        return change(&mut stream, &mut state, request);
    }
    let mut status_only = |status: &str| {
        stream.write_all(
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                .as_bytes(),
        )
    };
    let Some(mut bytes) = state.objects.get(&request.path).cloned() else {
        return status_only("404 Not Found");
    };
    let (mut half, mut ranges) = (false, true);
    let mut tag = format!("\"{:x}-{:x}\"", bytes.len(), sum(&bytes));
    match state.faults.get_mut(&request.path) {
        Some(Fault::BreaksOff(times)) if *times > 0 && request.method == "GET" => {
            (*times, half) = (*times - 1, true)
        }
        Some(Fault::Status(status, times)) if *times > 0 => {
            *times -= 1;
            return status_only(status);
        }
        Some(Fault::Silent) => {
            while !state.closing {
                state = shared.closed.wait(state).unwrap();
            }
            return Ok(());
        }
        Some(Fault::NoRanges) => ranges = false,
        Some(Fault::ChangesAfter(0)) => {
            tag = "\"another\"".to_string();
            bytes
                .iter_mut()
                .for_each(|byte| *byte = byte.to_ascii_uppercase());
        }
        Some(Fault::ChangesAfter(times)) => *times -= 1,
        Some(Fault::Retagged) => tag = "\"another\"".to_string(),
        Some(Fault::NeedsSignature) if !request.signed => return status_only("403 Forbidden"),
        _ => {}
    }
    if request
        .if_match
        .as_ref()
        .is_some_and(|wanted| *wanted != tag)
    {
        return status_only("412 Precondition Failed");
    }
    let whole = (0, bytes.len().saturating_sub(1));
    let (first, last) = request
        .range
        .filter(|_| ranges)
        .map_or(whole, |(first, last)| (first, last.min(whole.1)));
    let body = if request.method == "HEAD" || bytes.is_empty() {
        &[]
    } else {
        &bytes[first..=last]
    };
    let declared = if request.method == "HEAD" {
        bytes.len()
    } else {
        body.len()
    };
    let shown = if half { &body[..body.len() / 2] } else { body };
    state.sent += shown.len() as u64;
    drop(state);
    let (status, place) = match request.range.filter(|_| ranges) {
        Some(_) => (
            "206 Partial Content",
            format!("Content-Range: bytes {first}-{last}/{}\r\n", bytes.len()),
        ),
        None => ("200 OK", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {declared}\r\nETag: {tag}\r\n\
         Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n{place}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(shown)?;
    stream.flush()
}
