//! Where an engine looks for the reason of a failure.

use super::sagemaker::Container;
use super::variables::{GENERATION, of_process};
use std::fs;
use std::path::PathBuf;

/// What SageMaker shows is shorter, what Kubernetes keeps is this long.
const MOST: usize = 4096;

/// Kubernetes' default `terminationMessagePath`, which the kubelet makes before the container starts.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Leaves the reason of a failure where the engine that runs this process looks for it: in
/// SageMaker's failure file, which becomes the job's `FailureReason`, and in Kubernetes' termination
/// message. A rank of `xtrain launch` leaves that to the launcher, which knows the cause. A file that
/// cannot be written changes nothing: the message is on standard error too.
pub fn report_failure(message: &str) {
    if of_process(GENERATION).is_some() {
        return;
    }
    let termination = PathBuf::from(TERMINATION_LOG);
    let in_pod = of_process("KUBERNETES_SERVICE_HOST").is_some() && termination.is_file();
    let files = [
        Container::found().map(|container| container.failure()),
        in_pod.then_some(termination),
    ];
    let end = (0..=MOST.min(message.len()))
        .rev()
        .find(|end| message.is_char_boundary(*end))
        .unwrap_or(0);
    for file in files.into_iter().flatten() {
        if let Some(folder) = file.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let _ = fs::write(file, &message[..end]);
    }
}
