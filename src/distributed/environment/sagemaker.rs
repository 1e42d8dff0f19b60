//! What SageMaker gives the container of a training job: files below `/opt/ml`
//! (aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md and environment.py). The toolkit makes
//! its `SM_*` variables from them; a bare image has the files alone.

use super::super::{Error, Result};
use super::variables::{Variables, of_process};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use xtrain_report::files;

/// The toolkit's variable that moves the folder.
const BASE: &str = "SAGEMAKER_BASE_DIR";

/// The folder of a container's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    root: PathBuf,
}

/// A folder of input data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    pub name: String,
    pub dir: PathBuf,
    /// The data come through pipes and not as files.
    pub is_piped: bool,
}

impl Container {
    /// The one that this process runs in; `None` elsewhere.
    pub fn found() -> Option<Container> {
        Container::among(&of_process)
    }

    pub(super) fn among(variable: Variables) -> Option<Container> {
        let root = variable(BASE).map_or_else(|| PathBuf::from("/opt/ml"), PathBuf::from);
        let container = Container { root };
        let names = ["resourceconfig.json", "hyperparameters.json"];
        let is_here = names.iter().any(|name| container.config(name).is_file());
        is_here.then_some(container)
    }

    fn config(&self, name: &str) -> PathBuf {
        self.root.join("input/config").join(name)
    }

    /// The job's hyperparameters: an object whose values are strings.
    pub fn hyperparameters(&self) -> PathBuf {
        self.config("hyperparameters.json")
    }

    /// A folder that SageMaker copies to S3 while the job runs, and from there when it starts again.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Where the finished model goes.
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }

    /// Its text becomes the job's `FailureReason`.
    pub fn failure(&self) -> PathBuf {
        self.root.join("output/failure")
    }

    /// This container's number and the names of all, in order; `None` where only the
    /// hyperparameters are given.
    ///
    /// # Errors
    /// The file cannot be read, or does not say it.
    pub fn hosts(&self) -> Result<Option<(usize, Vec<String>)>> {
        let path = self.config("resourceconfig.json");
        let Some(config) = object(&path)? else {
            return Ok(None);
        };
        let wrong = |problem: &str| Err(unreadable(&path, problem.to_string()));
        let names = config.get("hosts").and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        let mut hosts: Vec<String> = names.map(str::to_string).collect();
        // SageMaker documents them in this order; all containers have to agree on it.
        hosts.sort();
        let Some(own) = config.get("current_host").and_then(Value::as_str) else {
            return wrong("expected `current_host` and `hosts`");
        };
        match hosts.iter().position(|host| host == own) {
            Some(rank) => Ok(Some((rank, hosts))),
            None => wrong("`current_host` is not among `hosts`"),
        }
    }

    /// The job's input data, by name.
    ///
    /// # Errors
    /// The file that lists them cannot be read.
    pub fn channels(&self) -> Result<Vec<Channel>> {
        let listed = object(&self.config("inputdataconfig.json"))?.unwrap_or_default();
        let channel = |(name, about): (&String, &Value)| Channel {
            dir: self.root.join("input/data").join(name),
            is_piped: about["TrainingInputMode"] == "Pipe",
            name: name.clone(),
        };
        // A name that leaves the folder is none that SageMaker gives.
        let is_name = |(name, _): &(&String, &Value)| !name.contains('/') && !name.starts_with('.');
        let mut channels: Vec<Channel> = listed.iter().filter(is_name).map(channel).collect();
        channels.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(channels)
    }

    /// Copies the files of a finished run's directory to where SageMaker takes the model from, without
    /// its checkpoints. Nothing is done for a run that wrote elsewhere than into [`Self::checkpoints`]:
    /// its user has chosen the place. Returns where they are.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn export(&self, output_dir: &Path) -> std::io::Result<Option<PathBuf>> {
        let real = |path: &Path| path.canonicalize().ok();
        if real(output_dir).is_none() || real(output_dir) != real(&self.checkpoints()) {
            return Ok(None);
        }
        let model = self.model();
        fs::create_dir_all(&model)?;
        for entry in fs::read_dir(output_dir)? {
            let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let is_hidden = name.to_string_lossy().starts_with('.');
            if entry.is_file() && !is_hidden {
                fs::copy(&entry, model.join(name))?;
            }
        }
        Ok(Some(model))
    }
}

/// The object in a file; `None` where there is no file.
fn object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match files::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, error.to_string())),
    };
    match serde_json::from_slice(&text) {
        Ok(object) => Ok(Some(object)),
        Err(error) => Err(unreadable(path, format!("expected a JSON object: {error}"))),
    }
}

fn unreadable(path: &Path, problem: String) -> Error {
    Error::Engine {
        path: path.to_path_buf(),
        problem,
    }
}
