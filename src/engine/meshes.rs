//! `--dry_run --compare_meshes N`: every mesh of N devices, what a run holds and exchanges on each,
//! and which of them fit.
//!
//! A compiler takes half a minute for a large model, and there are dozens of meshes. So they are
//! compared by estimates: the graphs of a step are recorded for each mesh, and memory and exchanges
//! counted on these. The best mesh that fits is then compiled; where the compiler needs more than
//! was estimated and it does not fit, the next one. For a card that is only described, the best ones
//! are compiled, and of those that fit that is chosen whose kernels need the least time for an example.

mod candidate;

use super::error::Error;
use super::execution::Execution;
use super::run::{Run, execution};
use super::target::AotTarget;
pub use candidate::Candidate;
use xtrain_config::{MeshComparison, RunPlan};
use xtrain_parallel::Mesh;
use xtrain_trainer::settings::Checkpointing;

/// Meshes that are compiled at most, of which each takes as long as all estimates.
const TRIES: usize = 3;

/// What was found.
pub struct Comparison {
    /// Devices of every candidate.
    pub devices: usize,
    /// Bytes of a device.
    pub memory: u64,
    /// What the candidates recompute in the backward pass.
    pub checkpointing: Checkpointing,
    /// Nothing fitted without it, and it was not asked for.
    pub checkpointing_added: bool,
    /// The best first.
    pub candidates: Vec<Candidate>,
    /// Why some meshes are none, with how many.
    pub impossible: Vec<(String, usize)>,
    /// By number among the candidates, in the order in which they were compiled.
    pub compiled: Vec<(usize, Compiled)>,
}

/// What the compiler says of a candidate.
pub struct Compiled {
    /// Bytes of one device at the step's peak.
    pub peak: u64,
    /// Of the graphs that were compiled, the one with that peak: by the estimate, the one that decides.
    pub graph: String,
    /// The least time of a step by its kernels, in seconds, with what stages wait; `None` where the
    /// device's rates are unknown.
    pub seconds: Option<f64>,
}

impl Comparison {
    /// The first that the compiler agrees to; where the least times are known, the one with the most examples
    /// a second.
    pub fn chosen(&self) -> Option<&Candidate> {
        let fitting = self.compiled.iter();
        let mut fitting = fitting.filter(|(_, compiled)| compiled.peak <= self.memory);
        let first = fitting.next()?;
        let best = fitting.fold(first, |best, other| {
            let speed = |one: &(usize, Compiled)| self.speed(one.0, &one.1);
            let is_faster = match (speed(best), speed(other)) {
                (Some(best), Some(other)) => other > best,
                _ => false,
            };
            if is_faster { other } else { best }
        });
        Some(&self.candidates[best.0])
    }

    /// Examples a second at most, of one that was compiled.
    pub fn speed(&self, index: usize, compiled: &Compiled) -> Option<f64> {
        let seconds = compiled.seconds?;
        Some(self.candidates[index].examples as f64 / seconds)
    }
}

/// Compares the meshes that are wanted by estimates, and compiles for the best.
///
/// # Errors
/// If the run cannot be prepared, or a graph cannot be recorded or compiled.
pub fn compare(plan: &RunPlan, wanted: MeshComparison) -> Result<Comparison, Error> {
    let memory = plan
        .memory
        .expect("checked: there is something to be held against");
    let mut execution = execution(plan);
    let mut single = plan.clone();
    single.train.mesh = Mesh::single();
    single.train.shard_optimizer_state = false;
    let run = match plan.target {
        Some(_) => Run::for_planning(single)?,
        None => Run::prepare(single)?,
    };
    let mut target = AotTarget::of(&run)?;
    let (mut candidates, mut impossible) = estimate(&execution, &run, wanted)?;
    let fits = |candidates: &[Candidate]| {
        candidates
            .iter()
            .any(|candidate| candidate.footprint.peak <= memory)
    };
    let adds = !fits(&candidates) && execution.train.checkpointing == Checkpointing::Off;
    if adds {
        execution.train.checkpointing = Checkpointing::Full;
        (candidates, impossible) = estimate(&execution, &run, wanted)?;
    }
    sort(&mut candidates, memory);
    let mut comparison = Comparison {
        devices: wanted.devices,
        memory,
        checkpointing: execution.train.checkpointing,
        checkpointing_added: adds,
        candidates,
        impossible,
        compiled: Vec::new(),
    };
    for (index, candidate) in comparison.candidates.iter().enumerate().take(TRIES) {
        let mut compiled = comparison.compiled.iter();
        let is_found = target.is_none() && compiled.any(|(_, found)| found.peak <= memory);
        if candidate.footprint.peak > memory || is_found {
            break;
        }
        let compiled = match &mut target {
            Some(target) => candidate.compile_for(&execution, &run, target),
            None => candidate.compile(&execution, &run),
        };
        comparison.compiled.push((index, compiled?));
    }
    Ok(comparison)
}

/// Every mesh that the model can be laid out on, and why it cannot on the others.
#[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
fn estimate(
    execution: &Execution,
    run: &Run,
    wanted: MeshComparison,
) -> Result<(Vec<Candidate>, Vec<(String, usize)>), Error> {
    let (mut candidates, mut impossible) = (Vec::new(), Vec::<(String, usize)>::new());
    for (mesh, shard_optimizer_state) in meshes(wanted) {
        let execution = execution.clone().on(mesh, shard_optimizer_state);
        match Candidate::estimate(&execution, run)? {
            Ok(candidate) => candidates.push(candidate),
            Err(reason) => match impossible.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => impossible.push((reason, 1)),
            },
        }
    }
    Ok((candidates, impossible))
}

/// The meshes of this many devices with the given degrees; those with data parallelism also
/// with the moments in parts (ZeRO-1), unless everything is in parts already.
fn meshes(wanted: MeshComparison) -> Vec<(Mesh, bool)> {
    let has_degrees = |mesh: &Mesh| {
        let degrees = [mesh.data, mesh.shard, mesh.tensor, mesh.stage];
        degrees
            .into_iter()
            .zip(wanted.given)
            .all(|(degree, given)| given.is_none_or(|given| given == degree))
    };
    let meshes = Mesh::all_of(wanted.devices).into_iter().filter(has_degrees);
    let both = |mesh: Mesh| {
        if mesh.data > 1 && mesh.shard == 1 {
            vec![(mesh, false), (mesh, true)]
        } else {
            vec![(mesh, false)]
        }
    };
    meshes.flat_map(both).collect()
}

/// What one would take first: of what fits, the most examples in a step's time, so that devices
/// work on rows of their own and hardly wait for each other within a layer; of equal ones the
/// fewest bytes sent, then the least memory. What does not fit comes after it, the nearest first.
fn sort(candidates: &mut [Candidate], memory: u64) {
    candidates.sort_by(|a, b| {
        let fits = |candidate: &Candidate| candidate.footprint.peak <= memory;
        let work = |candidate: &Candidate| candidate.examples as f64 * (1.0 - candidate.waits);
        let (peak, sent) = (a.footprint.peak.cmp(&b.footprint.peak), a.sent.cmp(&b.sent));
        match (fits(a), fits(b)) {
            (true, true) => work(b).total_cmp(&work(a)).then(sent).then(peak),
            (false, false) => peak,
            (one, other) => other.cmp(&one),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_trainer::fit::Footprint;

    fn candidate(peak: u64, examples: usize, waits: f64, sent: u64) -> Candidate {
        let footprint = Footprint {
            batch: 1,
            stage: 0,
            peak,
            graph: "train".into(),
            state: 0,
            data: 0,
            temporaries: peak,
        };
        Candidate {
            mesh: Mesh::single(),
            zero1: false,
            footprint,
            examples,
            exchanged: Vec::new(),
            sent,
            waits,
        }
    }

    #[test]
    fn the_first_fits_and_keeps_devices_busy() {
        let mut candidates = vec![
            candidate(90, 8, 0.0, 1),
            candidate(30, 2, 0.0, 5),
            candidate(40, 8, 0.5, 1),
            candidate(50, 8, 0.0, 9),
            candidate(50, 8, 0.0, 7),
            candidate(49, 8, 0.0, 7),
            candidate(60, 8, 0.0, 1),
        ];
        sort(&mut candidates, 50);
        let found: Vec<(u64, u64)> = candidates
            .iter()
            .map(|c| (c.footprint.peak, c.sent))
            .collect();
        assert_eq!(
            found,
            [
                (49, 7),
                (50, 7),
                (50, 9),
                (40, 1),
                (30, 5),
                (60, 1),
                (90, 1)
            ]
        );
    }

    /// The second has more examples in a step, and needs more than twice the time for them.
    #[test]
    fn of_known_times_the_best_rate_decides() {
        let compiled = |peak, seconds| Compiled {
            peak,
            graph: "train".into(),
            seconds,
        };
        let chosen = |all: [(u64, Option<f64>); 3]| {
            let candidates = [(1, 8), (2, 4), (3, 4)];
            let candidates = candidates.map(|(peak, examples)| candidate(peak, examples, 0.0, 0));
            let all = all.map(|(peak, seconds)| compiled(peak, seconds));
            let comparison = Comparison {
                devices: 2,
                memory: 50,
                checkpointing: Checkpointing::Off,
                checkpointing_added: false,
                candidates: candidates.into(),
                impossible: Vec::new(),
                compiled: all.into_iter().enumerate().collect(),
            };
            comparison.chosen().map(|one| one.footprint.peak)
        };
        assert_eq!(
            chosen([(40, Some(1.0)), (40, Some(0.4)), (40, Some(0.6))]),
            Some(2)
        );
        assert_eq!(
            chosen([(40, Some(1.0)), (60, Some(0.4)), (40, Some(0.6))]),
            Some(1)
        );
        assert_eq!(chosen([(60, None), (40, None), (40, None)]), Some(2));
        assert_eq!(chosen([(60, None), (60, None), (60, None)]), None);
    }

    #[test]
    fn given_degrees_stay() {
        let all = meshes(MeshComparison {
            devices: 8,
            given: [None; 4],
        });
        assert_eq!(all.len(), 26);
        let some = meshes(MeshComparison {
            devices: 8,
            given: [None, Some(1), None, Some(2)],
        });
        let found: Vec<(usize, usize, bool)> = some
            .iter()
            .map(|(mesh, zero1)| (mesh.data, mesh.tensor, *zero1))
            .collect();
        assert_eq!(
            found,
            [
                (1, 4, false),
                (2, 2, false),
                (2, 2, true),
                (4, 1, false),
                (4, 1, true)
            ]
        );
        assert!(
            some.iter()
                .all(|(mesh, _)| mesh.stage == 2 && mesh.shard == 1)
        );
    }
}
