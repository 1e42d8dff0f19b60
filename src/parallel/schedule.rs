//! The order in which a pipeline's stages take the pieces of a step's microbatches.
//!
//! The devices of a stage run what they are handed in order, so the order is the schedule.
//! *Simple*: a stage passes all microbatches forward before the first goes backward (Huang et al.
//! 2019, "GPipe"). *Interleaved*: a stage takes a microbatch backward as soon as it can and has no
//! more under way than there are stages from it to the end ("one forward, one backward", Narayanan
//! et al. 2019, "PipeDream"; SageMaker's name for it).

use serde::{Deserialize, Serialize};

/// Which of two microbatches a stage takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipelineSchedule {
    /// All forward passes of a stage before its backward passes: GPipe's.
    Simple,
    /// A stage's backward passes as early as they can be: one forward, one backward.
    #[default]
    Interleaved,
}

/// As `--pipeline_schedule` has it.
impl std::fmt::Display for PipelineSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PipelineSchedule::Simple => "simple",
            PipelineSchedule::Interleaved => "interleaved",
        })
    }
}

/// A piece of a microbatch as schedules see it.
#[derive(Clone, Debug, PartialEq)]
pub struct PieceShape {
    /// The stage whose devices run it.
    pub stage: usize,
    /// How often values have changed stage on their way to it: the stage's forward pass has its own
    /// number.
    pub level: usize,
    /// The pieces of the same microbatch whose values it takes.
    pub after: Vec<usize>,
}

impl PieceShape {
    fn is_forward(&self) -> bool {
        self.level <= self.stage
    }

    /// Time that it takes, in forward passes: a backward pass has twice the products; the last
    /// stage does both at once; updates count nothing.
    fn cost(&self, stages: usize) -> f64 {
        match self.level {
            level if level >= 2 * stages - 1 => 0.0,
            _ if self.stage + 1 == stages => 3.0,
            _ if self.is_forward() => 1.0,
            _ => 2.0,
        }
    }
}

/// A piece of a microbatch, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Number of the microbatch, from 0.
    pub microbatch: usize,
    /// Index among the pieces.
    pub piece: usize,
}

/// A schedule's totals.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// In the order in which the host starts them.
    pub tasks: Vec<Task>,
    /// Share of the stages' time in which they wait for each other, if all layers took equally
    /// long.
    pub bubble: f64,
}

/// The order of all pieces of a step's microbatches: each piece after those whose values it takes,
/// and after the same stage's piece of the microbatch before, so that sums add up in the order of
/// microbatches.
pub fn order(microbatches: &[Vec<PieceShape>], stages: usize, schedule: PipelineSchedule) -> Order {
    let mut free_at = vec![0.0f64; stages];
    let mut under_way = vec![0usize; stages];
    let mut done_at: Vec<Vec<Option<f64>>> = microbatches
        .iter()
        .map(|pieces| vec![None; pieces.len()])
        .collect();
    let total: usize = microbatches.iter().map(Vec::len).sum();
    let (mut tasks, mut busy) = (Vec::with_capacity(total), 0.0);
    while tasks.len() < total {
        // When each task that nothing is missing for could start; beyond the limit only where there
        // is no other.
        let next = |limited: bool| {
            let mut best: Option<((f64, usize, usize, usize), Task)> = None;
            for (microbatch, pieces) in microbatches.iter().enumerate() {
                for (piece, shape) in pieces.iter().enumerate() {
                    let same = |other: &PieceShape| {
                        (other.stage, other.level) == (shape.stage, shape.level)
                    };
                    let before = microbatch.checked_sub(1).and_then(|before| {
                        Some((before, microbatches[before].iter().position(same)?))
                    });
                    let own = shape.after.iter().map(|&other| done_at[microbatch][other]);
                    let needed =
                        own.chain(before.map(|(microbatch, piece)| done_at[microbatch][piece]));
                    let ready = needed
                        .into_iter()
                        .try_fold(0.0f64, |latest, done| Some(latest.max(done?)));
                    let Some(ready) = ready.filter(|_| done_at[microbatch][piece].is_none()) else {
                        continue;
                    };
                    let has_backward = shape.is_forward() && shape.stage + 1 < stages;
                    if limited && has_backward && under_way[shape.stage] >= stages - shape.stage {
                        continue;
                    }
                    let rank = usize::from(
                        shape.is_forward() == (schedule == PipelineSchedule::Interleaved),
                    );
                    let urgency = (
                        ready.max(free_at[shape.stage]),
                        rank,
                        microbatch,
                        shape.level,
                    );
                    if best.as_ref().is_none_or(|(least, _)| urgency < *least) {
                        best = Some((urgency, Task { microbatch, piece }));
                    }
                }
            }
            best
        };
        let found = next(schedule == PipelineSchedule::Interleaved).or_else(|| next(false));
        let ((start, ..), task) = found.expect("pieces precede those that take their values");
        let shape = &microbatches[task.microbatch][task.piece];
        let cost = shape.cost(stages);
        match shape.is_forward() {
            true if shape.stage + 1 < stages => under_way[shape.stage] += 1,
            false if cost > 0.0 => {
                under_way[shape.stage] = under_way[shape.stage].saturating_sub(1)
            }
            _ => {}
        }
        busy += cost;
        free_at[shape.stage] = start + cost;
        done_at[task.microbatch][task.piece] = Some(start + cost);
        tasks.push(task);
    }
    let span = free_at.iter().copied().fold(0.0, f64::max);
    let bubble = if span > 0.0 {
        1.0 - busy / (span * stages as f64)
    } else {
        0.0
    };
    Order { tasks, bubble }
}

/// The share of a training step that stages wait for each other, if all layers took equally long.
pub fn bubble(stages: usize, microbatches: usize, schedule: PipelineSchedule) -> f64 {
    order(&vec![training(stages); microbatches], stages, schedule).bubble
}

/// Forward through all stages and back, as training splits.
fn training(stages: usize) -> Vec<PieceShape> {
    let piece = |level: usize| PieceShape {
        stage: if level < stages {
            level
        } else {
            2 * stages - 2 - level
        },
        level,
        after: level.checked_sub(1).into_iter().collect(),
    };
    (0..2 * stages - 1).map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forward passes without their backward pass that a stage has at most.
    fn most_under_way(order: &Order, microbatches: &[Vec<PieceShape>], stage: usize) -> usize {
        let (mut now, mut most) = (0usize, 0);
        for task in &order.tasks {
            let shape = &microbatches[task.microbatch][task.piece];
            if shape.stage == stage {
                if shape.is_forward() {
                    now += 1
                } else {
                    now -= 1
                }
                most = most.max(now);
            }
        }
        most
    }

    #[test]
    fn both_schedules_run_everything_in_a_possible_order() {
        for (stages, count) in [(2, 1), (2, 5), (4, 8), (3, 2)] {
            let microbatches = vec![training(stages); count];
            for schedule in [PipelineSchedule::Simple, PipelineSchedule::Interleaved] {
                let order = order(&microbatches, stages, schedule);
                assert_eq!(order.tasks.len(), count * (2 * stages - 1), "{schedule}");
                let place =
                    |task: Task| order.tasks.iter().position(|other| *other == task).unwrap();
                for (microbatch, pieces) in microbatches.iter().enumerate() {
                    for (piece, shape) in pieces.iter().enumerate() {
                        let own = place(Task { microbatch, piece });
                        assert!(
                            shape
                                .after
                                .iter()
                                .all(|&piece| place(Task { microbatch, piece }) < own)
                        );
                        assert!(
                            microbatch == 0
                                || place(Task {
                                    microbatch: microbatch - 1,
                                    piece
                                }) < own
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn interleaving_holds_fewer_microbatches() {
        let microbatches = vec![training(4); 8];
        let simple = order(&microbatches, 4, PipelineSchedule::Simple);
        let interleaved = order(&microbatches, 4, PipelineSchedule::Interleaved);
        assert_eq!(most_under_way(&simple, &microbatches, 0), 8);
        for stage in 0..3 {
            assert_eq!(
                most_under_way(&interleaved, &microbatches, stage),
                4 - stage
            );
        }
    }

    #[test]
    fn the_bubble_is_that_of_the_papers() {
        // (P - 1) / (M + P - 1)
        for (stages, count) in [(2, 1), (2, 4), (4, 4), (4, 16)] {
            let expected = (stages - 1) as f64 / (count + stages - 1) as f64;
            for schedule in [PipelineSchedule::Simple, PipelineSchedule::Interleaved] {
                let found = bubble(stages, count, schedule);
                assert!(
                    (found - expected).abs() < 0.01,
                    "{schedule}, {stages} stages, {count}: {found} for {expected}"
                );
            }
        }
    }
}
