//! What Neuron's own numbers and names mean, for the end of an error message: the runtime's status
//! codes and the compiler's error codes that a training run can meet.

/// A sign in a message with what it means and what to do.
const SIGNS: &[(&[&str], &str)] = &[
    (
        &[
            "NRT_RESOURCE",
            "nrt_status=4",
            "EOOM00",
            "EVRF009",
            "EXSP001",
        ],
        "the model does not fit into the device's memory: lower the batch or block size, or use --bf16",
    ),
    (
        &["NRT_TIMEOUT", "nrt_status=5"],
        "the runtime gave up waiting: see NEURON_RT_EXEC_TIMEOUT",
    ),
    (
        &[
            "nrt_status=9",
            "NRT_UNINITIALIZED_CORES",
            "NeuronCore(s) not available",
        ],
        "another process has the cores: neuron-ls shows which; NEURON_RT_VISIBLE_CORES chooses others",
    ),
    (
        &["nrt_status=10", "NRT_UNSUPPORTED_NEFF_VERSION"],
        "compiler and runtime are of different releases: update both",
    ),
    (
        &["nrt_status=1002", "NRT_EXEC_BAD_INPUT"],
        "the runtime refuses an input's size",
    ),
    (
        &["nrt_status=1003", "NRT_EXEC_COMPLETED_WITH_NUM_ERR"],
        "numbers overflowed on the device: lower the learning rate",
    ),
    (
        &["nrt_status=1005", "NRT_EXEC_NC_BUSY"],
        "the core is busy with another process's graph",
    ),
    (
        &["nrt_status=1006", "NRT_EXEC_OOB"],
        "an index lay outside of its table: check the tokenizer against the model's vocabulary",
    ),
    (
        &["nrt_status=1200", "NRT_EXEC_HW_ERR_COLLECTIVES"],
        "a collective hangs: every rank has to load the same graph at the same time",
    ),
    (
        &["nrt_status=1201", "NRT_EXEC_HW_ERR_HBM_UE"],
        "the device's memory has an error that cannot be corrected: replace the instance",
    ),
    (
        &["nrt_status=1202", "NRT_EXEC_HW_ERR_NC_UE"],
        "a core has an error: stop and start the instance",
    ),
    (
        &["BuildGlobalComm"],
        "ranks do not meet: NEURON_RT_ROOT_COMM_ID must name rank 0's host and a free port",
    ),
    (
        &["ModuleNotFoundError", "No module named 'neuronxcc'"],
        "neuronx-cc runs under a Python that does not have it: activate its environment, or put its bin folder first on PATH",
    ),
    (
        &["neuronx-cc: not found", "neuronx-cc: command not found"],
        "put the folder of neuronx-cc on PATH",
    ),
    (
        &["status -9", "exit code -9", "signal 9", "Killed"],
        "the compiler was killed, usually for memory: compile on a larger host, or fewer at a time (-j 1)",
    ),
    (
        &["EBVF030", "EVRF007", "EXTP004"],
        "the graph has too many instructions: a smaller batch, or fewer layers a graph",
    ),
    (&["EMOD025"], "a shape is dynamic"),
    (
        &["EVRF0", "EUOC00", "ESPP00", "ESFH00", "EHCA00"],
        "the compiler refuses an operation: `xtrain compile --device neuron --check` names its layer",
    ),
];

/// What a message of AWS's plugin, runtime or compiler means, if it shows a known sign.
pub fn explain(message: &str) -> Option<&'static str> {
    SIGNS
        .iter()
        .find(|(signs, _)| signs.iter().any(|sign| has(message, sign)))
        .map(|(_, meaning)| *meaning)
}

/// Whether a sign stands in a message: one that ends in a digit is not the start of a longer
/// number.
fn has(message: &str, sign: &str) -> bool {
    let is_number = sign.contains("status=");
    message.match_indices(sign).any(|(at, _)| {
        let next = message[at + sign.len()..].chars().next();
        !(is_number && next.is_some_and(|c| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_signs_are_explained_and_numbers_are_whole() {
        assert!(
            explain("nrt_execute failed: nrt_status=1006")
                .unwrap()
                .contains("index")
        );
        assert!(
            explain("nrt_init: nrt_status=9")
                .unwrap()
                .contains("neuron-ls")
        );
        assert!(
            explain("CANCELLED: ModuleNotFoundError: No module named 'neuronxcc'")
                .unwrap()
                .contains("PATH")
        );
        assert!(explain("[EVRF031] iota index").unwrap().contains("--check"));
        assert!(explain("[EVRF009] too large").unwrap().contains("memory"));
        assert_eq!(explain("nrt_status=95"), None);
        assert_eq!(explain("something else"), None);
    }
}
