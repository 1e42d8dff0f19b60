//! Replicas hold the same state. A graph of its own makes sure: a checksum of every parameter on each replica, compared on the host.

use super::error::{Error, Result};
use super::session::{Recording, Session};
use xtrain_graphs::{DType, Tensor};
use xtrain_models::ParameterSpec;

/// The graph's name in plans, logs and the cache.
pub const GRAPH_NAME: &str = "check_replicas";

/// What the graph gives for each replica: `f32[2 parameters]`, the lower and the upper halves of the sums, which floats hold exactly.
const CHECKSUMS: &str = "checksums";

/// Records the sum of every parameter's bits, as words modulo 2^32: it changes with any single bit.
pub fn record(recording: &mut Recording, parameters: &[ParameterSpec]) -> Result<()> {
    let checksum = |parameter: &ParameterSpec| -> Result<Tensor> {
        Ok(recording.state(&parameter.name)?.bitcast(DType::U32)?.sum_all()?.reshape(&[1])?)
    };
    let checksums = parameters.iter().map(checksum).collect::<Result<Vec<_>>>()?;
    let checksums = Tensor::concat(&checksums.iter().collect::<Vec<_>>(), 0)?;
    let half = checksums.trace().full(16.0, checksums.shape())?;
    let upper = checksums.shift_right_logical(&half)?;
    let lower = checksums.shift_left(&half)?.shift_right_logical(&half)?;
    recording.fetch_each(CHECKSUMS, &Tensor::concat(&[&lower.convert(DType::F32)?, &upper.convert(DType::F32)?], 0)?)
}

/// Compares the replicas after `step`; waits for the devices.
///
/// # Errors
/// [`Error::Diverged`] names the first parameter that differs, and the replica.
pub fn check(session: &mut Session, parameters: &[ParameterSpec], step: u64) -> Result<()> {
    let mut recording = session.begin();
    record(&mut recording, parameters)?;
    let marked = recording.mark_step(GRAPH_NAME)?;
    let checksums = marked.start_reading_each(CHECKSUMS)?.wait()?;
    match divergence(&checksums, parameters.len()) {
        None => Ok(()),
        Some((replica, parameter)) => Err(Error::Diverged { step, replica, tensor: parameters[parameter].name.clone() }),
    }
}

/// The first parameter that differs from replica 0's, with the replica.
fn divergence(checksums: &[Vec<f32>], parameters: usize) -> Option<(usize, usize)> {
    let first = checksums.first()?;
    let differs = |sums: &[f32], at: usize| [at, at + parameters].iter().any(|&half| sums[half] != first[half]);
    let differing = |sums: &Vec<f32>| (0..parameters).find(|&at| differs(sums, at));
    checksums.iter().enumerate().filter_map(|(replica, sums)| Some((replica, differing(sums)?))).min_by_key(|(_, at)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        let sums = |values: [u16; 6]| values.map(f32::from).to_vec();
        let first = sums([1, 2, 3, 4, 5, 6]);
        assert_eq!(divergence(std::slice::from_ref(&first), 3), None);
        assert_eq!(divergence(&[first.clone(), first.clone()], 3), None);
        assert_eq!(divergence(&[first.clone(), sums([1, 2, 9, 4, 5, 6]), sums([1, 2, 3, 4, 9, 6])], 3), Some((2, 1)));
    }
}
