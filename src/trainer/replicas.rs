//! Replicas hold the same state. A graph of its own makes sure: a checksum of every parameter on each replica, compared on the host.

use super::error::{Error, Result};
use super::session::{Recording, Session};
use xtrain_graphs::{DType, Tensor};
use xtrain_models::ParameterSpec;

/// The graph's name in plans, logs and the cache.
pub const GRAPH_NAME: &str = "check_replicas";

/// What the graph gives: `u32[parameters]`.
const CHECKSUMS: &str = "checksums";

/// Records the sum of every parameter's bits, as words modulo 2^32: it changes with any single bit.
pub fn record(recording: &mut Recording, parameters: &[ParameterSpec]) -> Result<()> {
    let checksum = |parameter: &ParameterSpec| -> Result<Tensor> {
        Ok(recording.state(&parameter.name)?.bitcast(DType::U32)?.sum_all()?.reshape(&[1])?)
    };
    let checksums = parameters.iter().map(checksum).collect::<Result<Vec<_>>>()?;
    recording.fetch(CHECKSUMS, &Tensor::concat(&checksums.iter().collect::<Vec<_>>(), 0)?);
    Ok(())
}

/// Compares the replicas after `step`; waits for the devices.
///
/// # Errors
/// [`Error::Diverged`] names the first parameter that differs, and the replica.
pub fn check(session: &mut Session, parameters: &[ParameterSpec], step: u64) -> Result<()> {
    let mut recording = session.begin();
    record(&mut recording, parameters)?;
    let marked = recording.mark_step(GRAPH_NAME)?;
    let checksums = marked.replicas(CHECKSUMS).iter().map(|sums| Ok(sums.download_to::<u32>()?)).collect::<Result<Vec<_>>>()?;
    match divergence(&checksums) {
        None => Ok(()),
        Some((replica, parameter)) => Err(Error::Diverged { step, replica, tensor: parameters[parameter].name.clone() }),
    }
}

/// The first parameter that differs from replica 0's, with the replica.
fn divergence(checksums: &[Vec<u32>]) -> Option<(usize, usize)> {
    let first = checksums.first()?;
    let differing = |sums: &Vec<u32>| sums.iter().zip(first).position(|(a, b)| a != b);
    checksums.iter().enumerate().filter_map(|(replica, sums)| Some((replica, differing(sums)?))).min_by_key(|(_, at)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(divergence(&[vec![1, 2, 3]]), None);
        assert_eq!(divergence(&[vec![1, 2, 3], vec![1, 2, 3]]), None);
        assert_eq!(divergence(&[vec![1, 2, 3], vec![1, 2, 4], vec![1, 9, 3]]), Some((2, 1)));
    }
}
