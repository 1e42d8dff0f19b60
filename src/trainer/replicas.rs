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
    recording.over_parts();
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
    let (mesh, placements) = (session.mesh(), session.placements());
    let part = |replica: usize, parameter: usize| placements.part(&parameters[parameter].name, mesh, replica);
    match divergence(&checksums, parameters.len(), part) {
        None => Ok(()),
        Some((replica, parameter)) => Err(Error::Diverged { step, replica, tensor: parameters[parameter].name.clone() }),
    }
}

/// The first parameter that differs from that of the first replica that holds the same part of it, with the replica. `part` says which
/// part a replica holds of a parameter.
fn divergence(checksums: &[Vec<f32>], parameters: usize, part: impl Fn(usize, usize) -> usize) -> Option<(usize, usize)> {
    let differs = |replica: usize, parameter: usize| {
        let first = (0..replica).find(|other| part(*other, parameter) == part(replica, parameter));
        let halves = [parameter, parameter + parameters];
        first.is_some_and(|first| halves.iter().any(|&half| checksums[first][half] != checksums[replica][half]))
    };
    let places = (0..parameters).flat_map(|parameter| (0..checksums.len()).map(move |replica| (replica, parameter)));
    places.into_iter().find(|(replica, parameter)| differs(*replica, *parameter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        let whole = |_: usize, _: usize| 0;
        let sums = |values: [u16; 6]| values.map(f32::from).to_vec();
        let first = sums([1, 2, 3, 4, 5, 6]);
        assert_eq!(divergence(std::slice::from_ref(&first), 3, whole), None);
        assert_eq!(divergence(&[first.clone(), first.clone()], 3, whole), None);
        let differing = [first.clone(), sums([1, 2, 9, 4, 5, 6]), sums([1, 2, 3, 4, 9, 6])];
        assert_eq!(divergence(&differing, 3, whole), Some((2, 1)));
        let in_pairs = |replica: usize, _: usize| replica % 2;
        let pairs = |last: [u16; 6]| [first.clone(), differing[1].clone(), first.clone(), sums(last)];
        assert_eq!(divergence(&pairs([1, 2, 9, 4, 5, 6]), 3, in_pairs), None);
        assert_eq!(divergence(&pairs([1, 2, 8, 4, 5, 6]), 3, in_pairs), Some((3, 2)));
    }
}
