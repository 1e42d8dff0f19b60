//! `neuron-monitor` (aws-neuronx-tools) as a child process: a line of JSON every few seconds, of
//! which the newest counts. It ends with the watcher.

use crate::{files, json};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const PROGRAM: &str = "neuron-monitor";
/// Where AWS's packages put it, which is not always on `PATH`.
const FOLDER: &str = "opt/aws/neuron/bin";

/// A running monitor.
pub struct Monitor {
    child: Child,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    newest: Option<Value>,
    /// It will say nothing more.
    ended: bool,
}

impl Monitor {
    /// Starts the one that is installed below `root` or on `path`; `None` where there is none or it
    /// does not start.
    pub fn start(root: &Path, path: Option<&std::ffi::OsStr>) -> Option<Monitor> {
        let mut command = Command::new(find(root, path)?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let output = child.stdout.take()?;
        let shared = Arc::<(Mutex<State>, Condvar)>::default();
        let writer = shared.clone();
        thread::spawn(move || {
            let (state, changed) = &*writer;
            let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = files::lines_of(output).map_while(Result::ok);
            for line in lines {
                if let Ok(report) = json::from_slice(&line.bytes) {
                    lock().newest = Some(report);
                    changed.notify_all();
                }
            }
            lock().ended = true;
            changed.notify_all();
        });
        Some(Monitor { child, shared })
    }

    /// The newest report, if there is one yet.
    pub fn report(&self) -> Option<Value> {
        self.shared
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .newest
            .clone()
    }

    /// Waits for the first report, for the monitor's end or for so long.
    pub fn wait(&self, limit: Duration) {
        let (state, changed) = &*self.shared;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |state: &mut State| state.newest.is_none() && !state.ended;
        drop(changed.wait_timeout_while(state, limit, waiting));
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find(root: &Path, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let on_path = path.into_iter().flat_map(std::env::split_paths);
    on_path
        .chain([root.join(FOLDER)])
        .map(|folder| folder.join(PROGRAM))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn monitor(script: &str) -> (tempfile::TempDir, Option<Monitor>) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(PROGRAM);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let monitor = Monitor::start(root.path(), None);
        (root, monitor)
    }

    #[test]
    fn the_newest_report_counts_and_the_child_ends_with_its_watcher() {
        let (_root, started) = monitor("echo 'not JSON'; echo '{\"n\":1}'; exec sleep 60");
        let started = started.unwrap();
        started.wait(Duration::from_secs(20));
        assert_eq!(started.report().unwrap()["n"], 1);
        let pid = started.child.id();
        drop(started);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn one_that_fails_or_is_missing_tells_nothing() {
        let (_root, failing) = monitor("echo 'no device' >&2; exit 1");
        let failing = failing.unwrap();
        // Returns at the monitor's end, long before the limit.
        failing.wait(Duration::from_secs(600));
        assert_eq!(failing.report(), None);
        assert!(Monitor::start(Path::new("/nowhere"), None).is_none());
    }
}
