//! `--report_to kubeflow`: the progress of a TrainJob, which Kubeflow Trainer shows in its status. Its
//! controller gives each pod the address, the file with the pod's token and that of its own
//! certificate (kubeflow/trainer, docs/proposals/2779-trainjob-progress). Only the newest state
//! counts: a thread sends it, at most every five seconds, and what a slow server misses is replaced.

use super::tracker::{RunDescription, RunEnd, Tracker, TrackerKind};
use crate::files;
use crate::progress::say;
use crate::records::Record;
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

pub static KIND: TrackerKind = TrackerKind {
    name: "kubeflow",
    is_set_up: || std::env::var_os(URL).is_some(),
    start: |_, run| {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let server = Server::open(&variable)?;
        Ok(Box::new(Kubeflow::begin(server, run, PAUSE)?))
    },
};

const URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
const TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
const CERTIFICATE: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";

/// Between two posts: the controller limits their rate.
const PAUSE: Duration = Duration::from_secs(5);
/// The limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a run that has ended waits for its last post.
const PATIENCE: Duration = Duration::from_secs(10);

struct Kubeflow {
    sender: Option<Sender<Value>>,
    ended: Receiver<()>,
    start: u64,
    total: u64,
    began: Instant,
    /// The last values by name, as they are sent.
    metrics: Vec<(String, f64)>,
}

impl Kubeflow {
    fn begin(server: Server, run: &RunDescription, pause: Duration) -> io::Result<Kubeflow> {
        let (sender, states) = channel();
        let (done, ended) = channel();
        let send = move || {
            post_newest(&server, &states, pause);
            let _ = done.send(());
        };
        std::thread::Builder::new()
            .name("kubeflow".into())
            .spawn(send)?;
        let mut kubeflow = Kubeflow {
            sender: Some(sender),
            ended,
            start: run.step,
            total: run.total_steps,
            began: Instant::now(),
            metrics: Vec::new(),
        };
        kubeflow.send(run.step, false);
        Ok(kubeflow)
    }

    /// The state after `step`, on its way.
    fn send(&mut self, step: u64, is_done: bool) {
        let share = step as f64 / self.total.max(1) as f64;
        let percent = if is_done { 100.0 } else { 100.0 * share };
        let mut status = json!({
            "progressPercentage": (percent as u64).min(100),
            "lastUpdatedTime": chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        let made = step.saturating_sub(self.start);
        if made > 0 || is_done {
            let left = self.total.saturating_sub(step) as f64;
            let each = self.began.elapsed().as_secs_f64() / made.max(1) as f64;
            let seconds = if is_done { 0.0 } else { left * each };
            status["estimatedRemainingSeconds"] = json!(seconds.round() as u64);
        }
        let metric =
            |(name, value): &(String, f64)| json!({"name": name, "value": value.to_string()});
        let metrics: Vec<Value> = self.metrics.iter().map(metric).collect();
        if !metrics.is_empty() {
            status["metrics"] = json!(metrics);
        }
        if let Some(sender) = &self.sender {
            let _ = sender.send(json!({ "trainerStatus": status }));
        }
    }
}

/// Posts the newest of the states that come, until no more can; of trouble it warns once.
fn post_newest(server: &Server, states: &Receiver<Value>, pause: Duration) {
    let mut warned = false;
    let mut next = states.recv().ok();
    while let Some(state) = next.take() {
        if let Err(error) = server.post(&state)
            && !std::mem::replace(&mut warned, true)
        {
            say(&format!(
                "warning: Kubeflow does not get this run's progress: {error}"
            ));
        }
        // The last one of a pause is sent after it, that of the end at once.
        let until = Instant::now() + pause;
        let has_ended = loop {
            match states.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(state) => next = Some(state),
                Err(RecvTimeoutError::Timeout) => break false,
                Err(RecvTimeoutError::Disconnected) => break true,
            }
        };
        if next.is_none() && !has_ended {
            next = states.recv().ok();
        }
    }
}

impl Tracker for Kubeflow {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        for (name, value) in record.scalars() {
            match self.metrics.iter_mut().find(|(known, _)| *known == name) {
                Some(known) => known.1 = value,
                None => self.metrics.push((name, value)),
            }
        }
        self.send(record.step(), false);
        Ok(())
    }

    fn end(&mut self, end: RunEnd) -> io::Result<()> {
        if end == RunEnd::Finished {
            self.send(self.total, true);
        }
        self.sender = None;
        match self.ended.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => Err(io::Error::other(format!(
                "the server is too slow; {} s after the end of the run its last state was not sent",
                PATIENCE.as_secs()
            ))),
            _ => Ok(()),
        }
    }
}

/// The controller of TrainJobs.
struct Server {
    url: String,
    /// Its content changes while a job runs.
    token: String,
    agent: ureq::Agent,
}

impl Server {
    fn open(variable: &impl Fn(&str) -> Option<String>) -> io::Result<Server> {
        let needed = |name: &str| {
            variable(name).ok_or_else(|| {
                io::Error::other(format!(
                    "{name} is not set: Kubeflow Trainer sets it in the pods of a TrainJob, with the feature gate TrainJobStatus"
                ))
            })
        };
        let (url, token) = (needed(URL)?, needed(TOKEN)?);
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false);
        let config = match variable(CERTIFICATE) {
            Some(path) => config.tls_config(
                TlsConfig::builder()
                    .root_certs(certificates(Path::new(&path))?)
                    .build(),
            ),
            None => config,
        };
        Ok(Server {
            url,
            token,
            agent: config.build().into(),
        })
    }

    fn post(&self, state: &Value) -> io::Result<()> {
        let token = read(Path::new(&self.token))?;
        let token = String::from_utf8_lossy(&token);
        let answer = self
            .agent
            .post(&self.url)
            .header("Authorization", format!("Bearer {}", token.trim()))
            .content_type("application/json")
            .send(state.to_string())
            .map_err(io::Error::other)?;
        if answer.status().is_success() {
            Ok(())
        } else {
            let status = answer.status();
            Err(io::Error::other(format!("the server answers {status}")))
        }
    }
}

/// A small file, by its name in messages.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    files::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn certificates(path: &Path) -> io::Result<RootCerts> {
    let pem = read(path)?;
    let items = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    let found: Result<Vec<_>, _> = items.collect();
    let found = found.map_err(io::Error::other)?;
    if found.is_empty() {
        let path = path.display();
        Err(io::Error::other(format!("{path}: no certificate in it")))
    } else {
        Ok(RootCerts::new_with_certs(&found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::SummaryRecord;
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    type Posts = Arc<Mutex<Vec<(String, Value)>>>;

    /// A server that answers each post with the next status, and keeps them.
    fn serve(statuses: &'static [u16]) -> (String, Posts) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/status", listener.local_addr().unwrap());
        let posts = Posts::default();
        let kept = posts.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut length, mut token) = (0, String::new());
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim();
                    if let Some((name, value)) = line.split_once(": ") {
                        match name.to_ascii_lowercase().as_str() {
                            "content-length" => length = value.parse().unwrap(),
                            "authorization" => token = value.to_string(),
                            _ => {}
                        }
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                kept.lock().unwrap().push((token, body));
                let status = statuses[number.min(statuses.len() - 1)];
                let answer = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (url, posts)
    }

    fn record(step: u64) -> Record {
        Record::Summary(SummaryRecord {
            set: None,
            runtime: 1.0,
            samples: 1,
            steps: 1,
            loss: 1.5,
            total_flos: 1.0,
            epoch: 1.0,
            tokens_seen: None,
            step,
        })
    }

    fn open(url: &str, token: &Path) -> Server {
        let server = Server::open(&|name| match name {
            URL => Some(url.to_string()),
            TOKEN => Some(token.display().to_string()),
            _ => None,
        });
        server.unwrap()
    }

    fn description() -> RunDescription {
        RunDescription {
            settings: BTreeMap::new(),
            model: Default::default(),
            step: 0,
            total_steps: 8,
        }
    }

    /// The newest state of many is sent, with the token of the moment, and the end is not lost in a
    /// pause.
    #[test]
    fn posts_are_few_and_the_last_one_is_the_end() {
        let (url, posts) = serve(&[503, 200]);
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "first\n").unwrap();
        let pause = Duration::from_millis(200);
        let mut run = Kubeflow::begin(open(&url, &token), &description(), pause).unwrap();
        let begun = Instant::now();
        while posts.lock().unwrap().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(&token, "second\n").unwrap();
        for step in 1..=6 {
            run.record(&record(step)).unwrap();
        }
        run.end(RunEnd::Finished).unwrap();
        let posts = posts.lock().unwrap();
        assert!((2..=4).contains(&posts.len()), "{posts:?}");
        let (first, begun) = &posts[0];
        assert_eq!(first, "Bearer first");
        assert_eq!(begun["trainerStatus"]["progressPercentage"], 0);
        let (last, end) = posts.last().unwrap();
        assert_eq!(last, "Bearer second");
        let status = &end["trainerStatus"];
        assert_eq!(status["progressPercentage"], 100);
        assert_eq!(status["estimatedRemainingSeconds"], 0);
        let metrics = status["metrics"].as_array().unwrap();
        assert!(
            metrics.contains(&json!({"name": "train_loss", "value": "1.5"})),
            "{metrics:?}"
        );
        let time = status["lastUpdatedTime"].as_str().unwrap();
        assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    }

    #[test]
    fn what_is_not_set_or_not_readable_is_named() {
        let error = Server::open(&|_| None).err().unwrap().to_string();
        assert!(
            error.contains("KUBEFLOW_TRAINER_SERVER_URL is not set"),
            "{error}"
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, "no certificate").unwrap();
        for (path, problem) in [
            (dir.path().join("none"), "No such file"),
            (file, "no certificate in it"),
        ] {
            let error = Server::open(&|name| {
                Some(match name {
                    CERTIFICATE => path.display().to_string(),
                    _ => "http://127.0.0.1:1/".into(),
                })
            });
            let error = error.err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
