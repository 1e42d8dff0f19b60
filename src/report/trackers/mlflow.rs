//! `--report_to mlflow`: runs of an MLflow server by its REST API (`$MLFLOW_TRACKING_URI`). A thread
//! of its own sends the records, so that a slow server does not hold up a step.

use super::tracker::{RunDescription, RunEnd, Tracker, TrackerKind};
use crate::files;
use crate::records::Record;
use crate::telemetry::now;
use base64::Engine;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

pub static KIND: TrackerKind = TrackerKind {
    name: "mlflow",
    is_set_up: || std::env::var_os(URI).is_some(),
    start: |to, run| {
        let mlflow = Mlflow::start(to.output_dir, to.run_name, run)?;
        Ok(Box::new(mlflow))
    },
};

/// The variable with the server's address.
const URI: &str = "MLFLOW_TRACKING_URI";
/// Where the id of the run is kept in the output directory, for a run that resumes.
const RUN_FILE: &str = "mlflow_run.json";
/// The limit of one request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a run that has ended waits for unsent records.
const PATIENCE: Duration = Duration::from_secs(10);
/// Parameters in one request, by the server's rules.
const LARGEST_BATCH: usize = 100;
/// Characters of a parameter, by the rules of older servers.
const LONGEST_PARAMETER: usize = 500;

/// A value at a step.
struct Metric {
    key: String,
    value: f64,
    step: u64,
}

enum Message {
    Metrics(u64, Vec<Metric>),
    End(RunEnd),
}

/// A run of MLflow.
struct Mlflow {
    sender: Sender<Message>,
    /// How the thread that sends has ended.
    ended: Receiver<io::Result<()>>,
    /// Messages that it has not sent yet.
    unsent: Arc<AtomicUsize>,
    /// Set when nobody waits for it any more.
    given_up: Arc<AtomicBool>,
    patience: Duration,
    /// The last step of each metric that an earlier process logged.
    logged: BTreeMap<String, u64>,
}

impl Mlflow {
    /// Begins a run named `name`, or resumes that of `output_dir` if the run is a resumed one.
    ///
    /// # Errors
    /// No server is named, or it does not answer or refuses.
    fn start(output_dir: &Path, name: &str, run: &RunDescription) -> io::Result<Mlflow> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let experiment = variable("MLFLOW_EXPERIMENT_NAME");
        let experiment = experiment.as_deref().unwrap_or("Default");
        let server = Server::open(&variable)?;
        Mlflow::begin(server, output_dir, experiment, name, run)
    }

    fn begin(
        server: Server,
        output_dir: &Path,
        experiment: &str,
        name: &str,
        run: &RunDescription,
    ) -> io::Result<Mlflow> {
        let memory = output_dir.join(RUN_FILE);
        let resumed = || {
            let text = files::read(&memory).ok().filter(|_| run.step > 0)?;
            let value: Value = serde_json::from_slice(&text).ok()?;
            // They become parts of addresses.
            let is_id = |id: &&str| {
                id.chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            };
            let field = |name: &str| value[name].as_str().filter(is_id).map(str::to_string);
            Some((field("experiment_id")?, field("run_id")?))
        };
        let ((experiment, id), logged) = match resumed() {
            Some(known) => {
                let logged = server.last_steps(&known.1)?;
                (known, logged)
            }
            None => {
                let experiment = server.experiment(experiment)?;
                let id = server.create(&experiment, name)?;
                ((experiment, id), BTreeMap::new())
            }
        };
        let kept = json!({"experiment_id": experiment, "run_id": id}).to_string();
        fs::write(&memory, kept)?;
        if run.step == 0 {
            server.parameters(&id, &parameters(run))?;
        }
        let (unsent, given_up) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (left, is_over) = (unsent.clone(), given_up.clone());
        let (sender, messages) = channel();
        let work = move || {
            for message in messages {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                match message {
                    Message::Metrics(time, metrics) => {
                        server.metrics(&id, time, &metrics)?;
                    }
                    Message::End(end) => return server.end(&id, end),
                }
                left.fetch_sub(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let (report, ended) = channel();
        std::thread::Builder::new()
            .name("mlflow".into())
            .spawn(move || drop(report.send(work())))?;
        Ok(Mlflow {
            sender,
            ended,
            unsent,
            given_up,
            patience: PATIENCE,
            logged,
        })
    }

    fn send(&mut self, message: Message) -> io::Result<()> {
        self.unsent.fetch_add(1, Ordering::Relaxed);
        match self.sender.send(message) {
            Ok(()) => Ok(()),
            // The thread has ended, by an error.
            Err(_) => self.outcome(),
        }
    }

    /// Waits for the thread, as long as a run that has ended should.
    fn outcome(&mut self) -> io::Result<()> {
        match self.ended.recv_timeout(self.patience) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the thread that sends has ended"))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.given_up.store(true, Ordering::Relaxed);
                // The last message is how the run ended.
                let records = self.unsent.load(Ordering::Relaxed).saturating_sub(1);
                Err(io::Error::other(format!(
                    "the server is too slow; {} s after the end of the run, {records} records and how it ended were not sent",
                    self.patience.as_secs()
                )))
            }
        }
    }
}

/// A name with the characters that MLflow takes: labels and configurations have others.
fn allowed(name: &str) -> String {
    let is_allowed = |c: char| c.is_alphanumeric() || "_-. :".contains(c);
    let name: String = name
        .chars()
        .map(|c| if is_allowed(c) { c } else { '_' })
        .collect();
    match name.trim_matches('.') {
        "" => format!("_{name}"),
        _ => name,
    }
}

impl Tracker for Mlflow {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        let step = record.step();
        // A resumed run makes steps again, to the same numbers; MLflow forgets nothing.
        let is_new = |key: &String| self.logged.get(key).is_none_or(|last| *last < step);
        let named = record.scalars().into_iter();
        let named = named.map(|(key, value)| (allowed(&key), value));
        let metrics = named.filter(|(key, _)| is_new(key));
        let metrics = metrics.map(|(key, value)| Metric { key, value, step });
        let metrics: Vec<Metric> = metrics.collect();
        self.send(Message::Metrics(milliseconds(), metrics))
    }

    fn end(&mut self, end: RunEnd) -> io::Result<()> {
        self.send(Message::End(end))?;
        self.outcome()
    }
}

/// Settings and the model's configuration, as MLflow's parameters.
fn parameters(run: &RunDescription) -> Vec<(String, String)> {
    let mut all = run.model.clone();
    all.extend(run.values());
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    all.into_iter()
        .map(|(name, value)| (allowed(&name), text(value)))
        .filter(|(_, value)| value.len() <= LONGEST_PARAMETER)
        .collect()
}

fn milliseconds() -> u64 {
    (now() * 1e3) as u64
}

/// A tracking server.
struct Server {
    url: String,
    authorization: Option<String>,
    agent: ureq::Agent,
}

impl Server {
    /// The server that the environment names.
    fn open(variable: &impl Fn(&str) -> Option<String>) -> io::Result<Server> {
        let refused = |problem: String| Err(io::Error::other(problem));
        let uri = variable(URI).unwrap_or_default();
        let uri = uri.trim_end_matches('/');
        match uri {
            _ if uri.starts_with("http://") || uri.starts_with("https://") => {}
            "" => {
                return refused(
                    "MLFLOW_TRACKING_URI is not set: set it to a server's address, or start one with `mlflow server` and set \
                     http://127.0.0.1:5000"
                        .into(),
                );
            }
            // A workspace, which MLflow's client finds in a file of Databricks' own.
            "databricks" | "databricks-uc" => {
                return refused(format!(
                    "MLFLOW_TRACKING_URI is {uri}, whose address is not known here: set it to the workspace's https://..., and \
                     MLFLOW_TRACKING_TOKEN"
                ));
            }
            _ if uri.starts_with("file:") || !uri.contains(':') => {
                let dir = uri.strip_prefix("file:").unwrap_or(uri);
                let dir = dir.strip_prefix("//").unwrap_or(dir);
                return refused(format!(
                    "MLFLOW_TRACKING_URI {uri} is a file store, which MLflow deprecates and xtrain does not write: \
                     run `mlflow server --backend-store-uri {dir}` and set http://127.0.0.1:5000"
                ));
            }
            _ => {
                return refused(format!(
                    "MLFLOW_TRACKING_URI {uri} is no server's address (http://... or https://...)"
                ));
            }
        }
        let basic = variable("MLFLOW_TRACKING_USERNAME").map(|user| {
            let password = variable("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
            let pair = format!("{user}:{password}");
            let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
            format!("Basic {encoded}")
        });
        let token = variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        let config = ureq::Agent::config_builder();
        let config = config.timeout_global(Some(TIMEOUT));
        let config = config.http_status_as_error(false).build();
        Ok(Server {
            url: uri.to_string(),
            authorization: token.or(basic),
            agent: config.into(),
        })
    }

    /// The id of an experiment, which is created if it is missing.
    fn experiment(&self, name: &str) -> io::Result<String> {
        let encoded: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        let path = format!("experiments/get-by-name?experiment_name={encoded}");
        let found = self.request(&path, None)?;
        if let Some(id) = found["experiment"]["experiment_id"].as_str() {
            return Ok(id.to_string());
        }
        let made = self.request("experiments/create", Some(json!({"name": name})))?;
        field(&made["experiment_id"], "experiment_id")
    }

    /// A new run's id.
    fn create(&self, experiment: &str, name: &str) -> io::Result<String> {
        let user = std::env::var("USER").unwrap_or_default();
        let body = json!({
            "experiment_id": experiment, "start_time": milliseconds(), "run_name": name,
            "tags": [{"key": "mlflow.user", "value": user},
                     {"key": "mlflow.source.name", "value": "xtrain"},
                     {"key": "mlflow.source.type", "value": "LOCAL"}]
        });
        let made = self.request("runs/create", Some(body))?;
        field(&made["run"]["info"]["run_id"], "run_id")
    }

    fn parameters(&self, id: &str, parameters: &[(String, String)]) -> io::Result<()> {
        for batch in parameters.chunks(LARGEST_BATCH) {
            let pair = |(key, value): &(String, String)| json!({"key": key, "value": value});
            let pairs: Vec<Value> = batch.iter().map(pair).collect();
            self.request(
                "runs/log-batch",
                Some(json!({"run_id": id, "params": pairs})),
            )?;
        }
        Ok(())
    }

    fn metrics(&self, id: &str, time: u64, metrics: &[Metric]) -> io::Result<()> {
        // JSON has no NaN; MLflow takes these words for it.
        let value = |value: f64| match value {
            value if value.is_nan() => json!("NaN"),
            value if value.is_infinite() => {
                json!(if value > 0.0 { "Infinity" } else { "-Infinity" })
            }
            value => json!(value),
        };
        let metric = |metric: &Metric| json!({"key": metric.key, "value": value(metric.value), "timestamp": time, "step": metric.step});
        let metrics: Vec<Value> = metrics.iter().map(metric).collect();
        let body = json!({"run_id": id, "metrics": metrics});
        self.request("runs/log-batch", Some(body)).map(drop)
    }

    fn end(&self, id: &str, end: RunEnd) -> io::Result<()> {
        let status = match end {
            RunEnd::Finished => "FINISHED",
            RunEnd::Failed => "FAILED",
            RunEnd::Interrupted => "KILLED",
        };
        let body = json!({"run_id": id, "status": status, "end_time": milliseconds()});
        self.request("runs/update", Some(body)).map(drop)
    }

    /// The last step of each metric of a run.
    fn last_steps(&self, id: &str) -> io::Result<BTreeMap<String, u64>> {
        let run = self.request(&format!("runs/get?run_id={id}"), None)?;
        let metrics = run["run"]["data"]["metrics"]
            .as_array()
            .into_iter()
            .flatten();
        let number = |value: &Value| value.as_u64().or(value.as_str()?.parse().ok());
        let last = metrics.filter_map(|metric| {
            // A step of 0 may be left out.
            Some((
                metric["key"].as_str()?.to_string(),
                number(&metric["step"]).unwrap_or(0),
            ))
        });
        Ok(last.collect())
    }

    /// The server's answer to a POST of `body` or, without one, to a GET. A resource that does not
    /// exist is null.
    fn request(&self, path: &str, body: Option<Value>) -> io::Result<Value> {
        let url = &self.url;
        let address = format!("{url}/api/2.0/mlflow/{path}");
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(address)
            .header("content-type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let text = body.as_ref().map_or(String::new(), Value::to_string);
        let request = request.body(text).map_err(io::Error::other)?;
        let answer = self.agent.run(request);
        let mut answer = answer.map_err(|error| io::Error::other(format!("{url}: {error}")))?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        match status.as_u16() {
            200..300 => Ok(value),
            404 if body.is_none() => Ok(Value::Null),
            _ => {
                let reason = value["message"].as_str().unwrap_or("no reason given");
                Err(io::Error::other(format!(
                    "{url} answered {status}: {reason}"
                )))
            }
        }
    }
}

fn field(value: &Value, name: &str) -> io::Result<String> {
    let text = value.as_str().map(str::to_string);
    text.ok_or_else(|| io::Error::other(format!("the server's answer has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::SummaryRecord;
    use serde_json::Map;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    fn description(model: Map<String, Value>) -> RunDescription {
        RunDescription {
            settings: BTreeMap::new(),
            model,
            step: 0,
            total_steps: 3,
        }
    }

    /// Answers requests until `most` have come; the others wait for ever.
    fn answer(mut stream: TcpStream, most: usize) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for _ in 0..most {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            let text =
                json!({"experiment": {"experiment_id": "7"}, "run": {"info": {"run_id": "r"}}});
            let text = text.to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all((head + &text).as_bytes()).unwrap();
        }
        let _ = reader.read_to_end(&mut Vec::new());
    }

    #[test]
    fn a_slow_server_does_not_hold_the_end_of_a_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        // The experiment, the run, its parameters and one record.
        std::thread::spawn(move || answer(listener.accept().unwrap().0, 4));
        let dir = tempfile::tempdir().unwrap();
        let server = Server::open(&|name| (name == "MLFLOW_TRACKING_URI").then(|| uri.clone()));
        let model = [("n_layer".to_string(), json!(2))].into_iter().collect();
        let run = description(model);
        let mut mlflow = Mlflow::begin(server.unwrap(), dir.path(), "Default", "x", &run).unwrap();
        assert_eq!(mlflow.patience, PATIENCE);
        mlflow.patience = Duration::from_millis(300);
        for step in 1..=3 {
            mlflow
                .record(&Record::Summary(SummaryRecord {
                    set: None,
                    runtime: 1.0,
                    samples: 1,
                    steps: 1,
                    loss: 1.0,
                    total_flos: 1.0,
                    epoch: 1.0,
                    tokens_seen: None,
                    step,
                }))
                .unwrap();
        }
        let began = Instant::now();
        let error = mlflow.end(RunEnd::Finished).unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(
            error.contains("2 records and how it ended were not sent"),
            "{error}"
        );
    }

    #[test]
    fn names_have_the_characters_that_mlflow_takes() {
        assert_eq!(allowed("PER_f1"), "PER_f1");
        assert_eq!(allowed("a/../../outside"), "a_.._.._outside");
        assert_eq!(allowed(".."), "_..");
    }

    /// Each refusal says what to set instead.
    #[test]
    fn a_store_that_is_no_server_is_refused_by_name() {
        for (uri, fix) in [
            (
                "",
                "MLFLOW_TRACKING_URI is not set: set it to a server's address",
            ),
            ("mlruns", "`mlflow server --backend-store-uri mlruns`"),
            (
                "file:///data/mlruns/",
                "`mlflow server --backend-store-uri /data/mlruns`",
            ),
            ("file:mlruns", "`mlflow server --backend-store-uri mlruns`"),
            ("sqlite:///runs.db", "is no server's address"),
            ("databricks", "the workspace's https://"),
        ] {
            let error = Server::open(&|_| Some(uri.to_string())).err().unwrap();
            assert!(error.to_string().contains(fix), "{error}");
        }
    }
}
