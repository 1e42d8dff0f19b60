//! Replicas hold the same state, and stages of a pipeline that share a parameter equal copies of
//! it. A graph of its own makes sure: a checksum of every parameter on each replica, compared on
//! the host.

use super::{Recording, Session};
use crate::error::{Error, Result};
use crate::exchange::held;
use xtrain_graphs::{DType, Tensor};
use xtrain_models::ParameterSpec;
use xtrain_parallel::{Mesh, Placements, stages};

/// The graph's name in plans, logs and the cache.
pub const GRAPH_NAME: &str = "check_replicas";

/// What the graph gives: `u32[parameters]`. Where replicas live in several processes,
/// `f32[2 parameters]` instead, the lower and then the upper halves of the sums: floats are what
/// can be exchanged, and they hold so much exactly.
const CHECKSUMS: &str = "checksums";

/// Whether anything is held more than once.
pub fn have_equals(mesh: Mesh, placements: &Placements) -> bool {
    mesh.replicas() > 1
        || placements
            .stages()
            .is_some_and(|stages| stages.share_parameters())
}

/// Records the sum of every parameter's bits, as words modulo 2^32: it changes with any single bit.
///
/// # Errors
/// If a parameter was never set.
pub fn record(recording: &mut Recording, parameters: &[ParameterSpec]) -> Result<()> {
    recording.over_parts();
    let parameters = &held(recording.placements(), parameters);
    for (name, members) in by_stage(recording.placements(), parameters) {
        let mut checksums: Vec<Tensor> = Vec::new();
        for parameter in members {
            let mut value = recording.state(&parameter.name)?;
            if let Some(before) = checksums.last() {
                // A compiler may write the words of a parameter down before it adds them up; those
                // of all would be the model once more.
                value = value.after(&before.convert(DType::F32)?)?;
            }
            // What is held in few bits has integers.
            let words = match value.dtype().size() {
                4 => value.bitcast(DType::U32)?,
                _ => value.convert(DType::U32)?,
            };
            checksums.push(words.sum_all()?.reshape(&[1])?);
        }
        let checksums = Tensor::concat(&checksums.iter().collect::<Vec<_>>(), 0)?;
        fetch(recording, &name, &checksums)?;
    }
    Ok(())
}

/// The parameters that stages hold, each with the name of its checksums.
fn by_stage<'p>(
    placements: &Placements,
    parameters: &'p [ParameterSpec],
) -> Vec<(String, Vec<&'p ParameterSpec>)> {
    let Some(stages) = placements.stages() else {
        return vec![(CHECKSUMS.into(), parameters.iter().collect())];
    };
    let of = |stage: usize| {
        parameters
            .iter()
            .filter(move |p| placements.home(&p.name) == Some(stage))
            .collect::<Vec<_>>()
    };
    (0..stages.count())
        .map(|stage| (format!("{CHECKSUMS}.{stage}"), of(stage)))
        .filter(|(_, members)| !members.is_empty())
        .collect()
}

fn fetch(recording: &mut Recording, name: &str, checksums: &Tensor) -> Result<()> {
    if !recording.is_spread() {
        recording.fetch(name, checksums);
        return Ok(());
    }
    let half = checksums.trace().full(16.0, checksums.shape())?;
    let upper = checksums.shift_right_logical(&half)?;
    let lower = checksums.shift_left(&half)?.shift_right_logical(&half)?;
    recording.fetch_each(
        name,
        &Tensor::concat(
            &[&lower.convert(DType::F32)?, &upper.convert(DType::F32)?],
            0,
        )?,
    )
}

/// Compares the replicas after `step`; waits for the devices.
///
/// # Errors
/// [`Error::Diverged`] names the first parameter that differs, and the replica;
/// [`Error::CopyDiverged`] a stage's copy.
pub fn check(session: &mut Session, parameters: &[ParameterSpec], step: u64) -> Result<()> {
    let mut recording = session.begin();
    record(&mut recording, parameters)?;
    let marked = recording.mark_step(GRAPH_NAME)?;
    let (mesh, placements) = (session.mesh(), session.placements());
    let parameters = &held(placements, parameters);
    let mut found: Vec<(Vec<&ParameterSpec>, Vec<Vec<u32>>)> = Vec::new();
    for (name, members) in by_stage(placements, parameters) {
        let checksums: Vec<Vec<u32>> = if session.is_spread() {
            marked
                .start_reading_each(&name)?
                .wait()?
                .iter()
                .map(|halves| join(halves))
                .collect()
        } else {
            marked
                .replicas(&name)
                .iter()
                .map(|sums| Ok(sums.download_to::<u32>()?))
                .collect::<Result<_>>()?
        };
        let part = |replica: usize, parameter: usize| {
            placements.shard_index(&members[parameter].name, mesh, replica)
        };
        if let Some((replica, parameter)) = divergence(&checksums, part) {
            return Err(Error::Diverged {
                step,
                replica,
                tensor: members[parameter].name.clone(),
            });
        }
        found.push((members, checksums));
    }
    let of = |name: &str| {
        let place = |(members, _): &(Vec<&ParameterSpec>, _)| {
            members.iter().position(|member| member.name == name)
        };
        let held = found.iter().find_map(|held| Some((&held.1, place(held)?)));
        let (checksums, parameter) = held.expect("some stage holds every parameter and every copy");
        checksums
            .iter()
            .map(|sums| sums[parameter])
            .collect::<Vec<u32>>()
    };
    for copy in parameters
        .iter()
        .filter(|parameter| stages::is_copy(&parameter.name))
    {
        if let Some(replica) = stray(&of(stages::original_name(&copy.name)), &of(&copy.name)) {
            return Err(Error::CopyDiverged {
                step,
                replica,
                tensor: copy.name.clone(),
            });
        }
    }
    Ok(())
}

/// The first replica of a stage whose copy of a parameter is not what the same replica of the stage
/// that has the original holds.
fn stray(original: &[u32], copy: &[u32]) -> Option<usize> {
    original
        .iter()
        .zip(copy)
        .position(|(original, copy)| original != copy)
}

/// Sums from their lower halves, then their upper ones.
fn join(halves: &[f32]) -> Vec<u32> {
    let (lower, upper) = halves.split_at(halves.len() / 2);
    lower
        .iter()
        .zip(upper)
        .map(|(lower, upper)| *lower as u32 | (*upper as u32) << 16)
        .collect()
}

/// The first parameter that differs from that of the first replica that holds the same part of it,
/// with the replica. `part` says which part a replica holds of a parameter.
fn divergence(
    checksums: &[Vec<u32>],
    part: impl Fn(usize, usize) -> usize,
) -> Option<(usize, usize)> {
    let parameters = checksums.first()?.len();
    let differs = |replica: usize, parameter: usize| {
        let first = (0..replica).find(|other| part(*other, parameter) == part(replica, parameter));
        first.is_some_and(|first| checksums[first][parameter] != checksums[replica][parameter])
    };
    let places = (0..parameters)
        .flat_map(|parameter| (0..checksums.len()).map(move |replica| (replica, parameter)));
    places
        .into_iter()
        .find(|(replica, parameter)| differs(*replica, *parameter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_come_back_from_their_halves() {
        assert_eq!(join(&[65535.0, 1.0, 65535.0, 2.0]), [u32::MAX, 2 << 16 | 1]);
    }

    #[test]
    fn a_copy_that_strays_is_found() {
        assert_eq!(stray(&[1, 2], &[1, 2]), None);
        assert_eq!(stray(&[1, 2], &[1, 3]), Some(1));
    }

    #[test]
    fn the_first_difference_is_found() {
        let whole = |_: usize, _: usize| 0;
        assert_eq!(divergence(&[vec![1, 2, 3]], whole), None);
        assert_eq!(divergence(&[vec![1, 2, 3], vec![1, 2, 3]], whole), None);
        assert_eq!(
            divergence(&[vec![1, 2, 3], vec![1, 2, 4], vec![1, 9, 3]], whole),
            Some((2, 1))
        );
        let in_pairs = |replica: usize, _: usize| replica % 2;
        assert_eq!(
            divergence(&[vec![1], vec![2], vec![1], vec![2]], in_pairs),
            None
        );
        assert_eq!(
            divergence(&[vec![1], vec![2], vec![1], vec![3]], in_pairs),
            Some((3, 0))
        );
    }
}
