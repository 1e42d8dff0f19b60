//! `--report_to mlflow`: runs of an MLflow server by its REST API (`$MLFLOW_TRACKING_URI`), or of
//! the file store in `mlruns` where no server is named. Records are sent by a thread of their own:
//! a slow server does not hold up a step.

use super::{RunDescription, RunEnd, Tracker, cannot_write};
use crate::report::files;
use crate::report::records::Record;
use crate::report::telemetry::now;
use base64::Engine;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Where the id of the run is kept in the output directory, for a run that resumes.
const RUN_FILE: &str = "mlflow_run.json";
/// Of one request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// From the end of a run until what is not sent by then is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of one request, by the server's rules.
const LARGEST_BATCH: usize = 100;
/// Characters of a parameter, by the rules of older servers.
const LONGEST_PARAMETER: usize = 500;

/// What was measured at a step.
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
pub struct Mlflow {
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
    /// If the server does not answer or refuses, or the store cannot be written.
    pub fn start(output_dir: &Path, name: &str, run: &RunDescription) -> io::Result<Mlflow> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let experiment = variable("MLFLOW_EXPERIMENT_NAME");
        let experiment = experiment.as_deref().unwrap_or("Default");
        let store = Store::open(&variable)?;
        Mlflow::begin(store, output_dir, experiment, name, run)
    }

    fn begin(
        store: Store,
        output_dir: &Path,
        experiment: &str,
        name: &str,
        run: &RunDescription,
    ) -> io::Result<Mlflow> {
        let memory = output_dir.join(RUN_FILE);
        let resumed = || {
            let text = files::read(&memory).ok().filter(|_| run.step > 0)?;
            let value: Value = serde_json::from_slice(&text).ok()?;
            // They become parts of paths and addresses.
            let is_id = |id: &&str| {
                id.chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            };
            let field = |name: &str| value[name].as_str().filter(is_id).map(str::to_string);
            Some((field("experiment_id")?, field("run_id")?))
        };
        let ((experiment, id), logged) = match resumed() {
            Some(known) => {
                let logged = store.last_steps(&known.0, &known.1)?;
                (known, logged)
            }
            None => {
                let experiment = store.experiment(experiment)?;
                let id = store.create(&experiment, name)?;
                ((experiment, id), BTreeMap::new())
            }
        };
        let kept = json!({"experiment_id": experiment, "run_id": id}).to_string();
        fs::write(&memory, kept)?;
        if run.step == 0 {
            store.parameters(&experiment, &id, &parameters(run))?;
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
                        store.metrics(&experiment, &id, time, &metrics)?;
                    }
                    Message::End(end) => return store.end(&experiment, &id, end),
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

/// A name as MLflow takes it and as a file can have it: labels and configurations name what they like.
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
        "mlflow"
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

/// Where runs are kept.
enum Store {
    Server {
        url: String,
        authorization: Option<String>,
        agent: ureq::Agent,
    },
    Files(PathBuf),
}

impl Store {
    /// What the environment names.
    fn open(variable: &impl Fn(&str) -> Option<String>) -> io::Result<Store> {
        let uri = variable("MLFLOW_TRACKING_URI");
        let uri = uri.as_deref().unwrap_or("mlruns").trim_end_matches('/');
        if uri.starts_with("http://") || uri.starts_with("https://") {
            let secret = |user: String| {
                let password = variable("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
                let pair = format!("{user}:{password}");
                let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
                format!("Basic {encoded}")
            };
            let basic = variable("MLFLOW_TRACKING_USERNAME").map(secret);
            let token = variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
            let config = ureq::Agent::config_builder();
            let config = config.timeout_global(Some(TIMEOUT));
            let config = config.http_status_as_error(false).build();
            return Ok(Store::Server {
                url: uri.to_string(),
                authorization: token.or(basic),
                agent: config.into(),
            });
        }
        let path = uri.strip_prefix("file://").or(uri.strip_prefix("file:"));
        match path.unwrap_or(uri) {
            // A workspace, which MLflow's client finds in a file of Databricks' own.
            "databricks" | "databricks-uc" => Err(io::Error::other(format!(
                "MLFLOW_TRACKING_URI is {uri}, whose address is not known here: set it to the workspace's https://..., and \
                 MLFLOW_TRACKING_TOKEN"
            ))),
            path if path.contains(':') => Err(io::Error::other(format!(
                "MLFLOW_TRACKING_URI {uri} is neither a server's address (http://...) nor a directory"
            ))),
            path => Ok(Store::Files(std::path::absolute(path)?)),
        }
    }

    /// The id of an experiment, which is made if it is missing.
    fn experiment(&self, name: &str) -> io::Result<String> {
        let root = match self {
            Store::Server { .. } => {
                let encoded: String =
                    url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
                let path = format!("experiments/get-by-name?experiment_name={encoded}");
                let found = self.request(&path, None)?;
                if let Some(id) = found["experiment"]["experiment_id"].as_str() {
                    return Ok(id.to_string());
                }
                let made = self.request("experiments/create", Some(json!({"name": name})))?;
                return field(&made["experiment_id"], "experiment_id");
            }
            Store::Files(root) => root,
        };
        let line = format!("name: {}", quoted(name));
        let plain = format!("name: {name}");
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let meta = files::read_text(&entry.path().join("meta.yaml")).unwrap_or_default();
            if meta.lines().any(|own| own == line || own == plain) {
                return Ok(entry.file_name().to_string_lossy().into_owned());
            }
        }
        let id = match name {
            "Default" => "0".to_string(),
            _ => (100_000_000_000_000_000 + rand::random::<u64>() % 800_000_000_000_000_000)
                .to_string(),
        };
        let (dir, time) = (root.join(&id), milliseconds());
        fs::create_dir_all(&dir).map_err(cannot_write(&dir))?;
        let meta = format!(
            "artifact_location: {}\ncreation_time: {time}\nexperiment_id: '{id}'\nlast_update_time: {time}\n\
             lifecycle_stage: active\n{line}\n",
            quoted(&address(&dir)),
        );
        fs::write(dir.join("meta.yaml"), meta)?;
        Ok(id)
    }

    /// A new run's id.
    fn create(&self, experiment: &str, name: &str) -> io::Result<String> {
        let root = match self {
            Store::Server { .. } => {
                let user = std::env::var("USER").unwrap_or_default();
                let body = json!({
                    "experiment_id": experiment, "start_time": milliseconds(), "run_name": name,
                    "tags": [{"key": "mlflow.user", "value": user},
                             {"key": "mlflow.source.name", "value": "xtrain"},
                             {"key": "mlflow.source.type", "value": "LOCAL"}]
                });
                let made = self.request("runs/create", Some(body))?;
                return field(&made["run"]["info"]["run_id"], "run_id");
            }
            Store::Files(root) => root,
        };
        let id = format!("{:032x}", rand::random::<u128>());
        let dir = root.join(experiment).join(&id);
        for part in ["metrics", "params", "tags", "artifacts"] {
            fs::create_dir_all(dir.join(part))?;
        }
        fs::write(dir.join("tags/mlflow.runName"), name)?;
        fs::write(dir.join("tags/mlflow.source.name"), "xtrain")?;
        let meta = format!(
            "artifact_uri: {}\nend_time: null\nentry_point_name: ''\nexperiment_id: '{experiment}'\n\
             lifecycle_stage: active\nrun_id: {id}\nrun_name: {}\nrun_uuid: {id}\nsource_name: ''\n\
             source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {RUNNING}\ntags: []\nuser_id: ''\n",
            quoted(&address(&dir.join("artifacts"))),
            quoted(name),
            milliseconds(),
        );
        fs::write(dir.join("meta.yaml"), meta)?;
        Ok(id)
    }

    fn parameters(
        &self,
        experiment: &str,
        id: &str,
        parameters: &[(String, String)],
    ) -> io::Result<()> {
        if let Store::Files(root) = self {
            let dir = root.join(experiment).join(id).join("params");
            return parameters
                .iter()
                .try_for_each(|(name, value)| fs::write(dir.join(name), value));
        }
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

    fn metrics(&self, experiment: &str, id: &str, time: u64, metrics: &[Metric]) -> io::Result<()> {
        if let Store::Files(root) = self {
            let dir = root.join(experiment).join(id).join("metrics");
            return metrics.iter().try_for_each(|metric| {
                let open = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(dir.join(&metric.key));
                let line = format!("{time} {} {}\n", metric.value, metric.step);
                open?.write_all(line.as_bytes())
            });
        }
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

    fn end(&self, experiment: &str, id: &str, end: RunEnd) -> io::Result<()> {
        let (word, number) = match end {
            RunEnd::Finished => ("FINISHED", 3),
            RunEnd::Failed => ("FAILED", 4),
            RunEnd::Interrupted => ("KILLED", 5),
        };
        let time = milliseconds();
        let Store::Files(root) = self else {
            let body = json!({"run_id": id, "status": word, "end_time": time});
            return self.request("runs/update", Some(body)).map(drop);
        };
        let path = root.join(experiment).join(id).join("meta.yaml");
        let lines = files::read_text(&path)?;
        let lines = lines.lines().map(|line| match line.split_once(": ") {
            Some(("status", _)) => format!("status: {number}\n"),
            Some(("end_time", _)) => format!("end_time: {time}\n"),
            _ => format!("{line}\n"),
        });
        fs::write(&path, lines.collect::<String>())
    }

    /// The last step of each metric of a run.
    fn last_steps(&self, experiment: &str, id: &str) -> io::Result<BTreeMap<String, u64>> {
        if let Store::Files(root) = self {
            let dir = root.join(experiment).join(id).join("metrics");
            let last = |entry: fs::DirEntry| {
                let text = files::read_text(&entry.path()).ok()?;
                let step = text.lines().last()?.rsplit(' ').next()?.parse().ok()?;
                Some((entry.file_name().into_string().ok()?, step))
            };
            return Ok(fs::read_dir(dir)?.flatten().filter_map(last).collect());
        }
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

    /// The server's answer to a POST of `body` or, without one, to a GET. What it does not have is
    /// null.
    fn request(&self, path: &str, body: Option<Value>) -> io::Result<Value> {
        let Store::Server {
            url,
            authorization,
            agent,
        } = self
        else {
            return Ok(Value::Null);
        };
        let address = format!("{url}/api/2.0/mlflow/{path}");
        let secret = |name| authorization.as_deref().map(|value| (name, value));
        let answer = match &body {
            Some(body) => {
                let request = agent
                    .post(&address)
                    .header("content-type", "application/json");
                let request = match secret("authorization") {
                    Some((name, value)) => request.header(name, value),
                    None => request,
                };
                request.send(&body.to_string().into_bytes()[..])
            }
            None => {
                let request = agent.get(&address);
                match secret("authorization") {
                    Some((name, value)) => request.header(name, value),
                    None => request,
                }
                .call()
            }
        };
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

/// A run that goes on, as files have it.
const RUNNING: u8 = 1;

/// A text of YAML, in JSON's form.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A path as the address of a file.
fn address(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn field(value: &Value, name: &str) -> io::Result<String> {
    let text = value.as_str().map(str::to_string);
    text.ok_or_else(|| io::Error::other(format!("the server's answer has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::records::{EvalRecord, SummaryRecord};
    use serde_json::Map;
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    fn description(model: Map<String, Value>) -> RunDescription {
        RunDescription {
            settings: BTreeMap::new(),
            model,
            step: 0,
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
        let store = Store::open(&|name| (name == "MLFLOW_TRACKING_URI").then(|| uri.clone()));
        let model = [("n_layer".to_string(), json!(2))].into_iter().collect();
        let run = description(model);
        let mut mlflow = Mlflow::begin(store.unwrap(), dir.path(), "Default", "x", &run).unwrap();
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
    fn names_of_others_are_no_paths() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::Files(dir.path().join("mlruns"));
        let outside = dir.path().join("outside");
        let names = [
            outside.display().to_string(),
            "../../../../outside".into(),
            "..".into(),
        ];
        let model = names
            .iter()
            .map(|name| (name.clone(), json!("evil")))
            .collect();
        let mut mlflow =
            Mlflow::begin(store, dir.path(), "Default", "x", &description(model)).unwrap();
        mlflow
            .record(&Record::Eval(EvalRecord {
                suffix: "",
                loss: 1.0,
                metrics: vec![
                    ("a/../../../../outside".into(), 1.0),
                    ("PER_f1".into(), 0.5),
                ],
                perplexity: None,
                runtime: 1.0,
                samples: 1,
                steps: 1,
                epoch: None,
                tokens_seen: None,
                step: 1,
            }))
            .unwrap();
        mlflow.end(RunEnd::Finished).unwrap();
        assert!(!outside.exists());
        let experiment = dir.path().join("mlruns/0");
        let mut runs = fs::read_dir(&experiment).unwrap().flatten();
        let run = runs.find(|entry| entry.path().is_dir()).unwrap().path();
        assert!(run.join("metrics/eval_PER_f1").is_file());
        assert!(run.join("metrics/eval_a_.._.._.._.._outside").is_file());
        assert!(run.join("params/.._.._.._.._outside").is_file());
        assert!(run.join("params/_..").is_file());
    }
}
