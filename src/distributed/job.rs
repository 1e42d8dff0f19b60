//! The job as the rendezvous sees it: which nodes and ranks are there, what happened to them, and
//! what follows from that. Plain state with the time handed in; nothing here waits or talks.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// After the first failure, how long others are waited for: a rank that is killed makes the others
/// fail too, and the first to be reported need not be the cause.
const SETTLING: Duration = Duration::from_millis(1500);

/// How a rank's process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Well,
    /// Stopped at the end of a step, with a checkpoint, because this signal asked for it.
    Interrupted(i32),
    /// By a signal that it did not ask for.
    Killed(i32),
    /// With an exit code, or by its own word, and its last error message.
    Failed {
        cause: Cause,
        code: i32,
        message: String,
    },
}

/// Where the reason of a rank's failure lies, as the rank itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// A mistake in what it was asked for: it would happen again.
    Usage,
    /// Something that happened in it.
    Own,
    /// Other processes, or the way to them.
    Peers,
}

/// What a launched rank ends with if it has lost the rendezvous, so that it can only tell its
/// launcher.
pub const LOST_RENDEZVOUS: i32 = 4;

impl Cause {
    /// What an exit code says where the rank said nothing itself.
    pub fn of_exit_code(code: i32) -> Cause {
        match code {
            2 => Cause::Usage,
            LOST_RENDEZVOUS => Cause::Peers,
            _ => Cause::Own,
        }
    }
}

/// The step that all ranks stop after, and the signal that they do so for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastStep {
    pub step: u64,
    pub signal: i32,
}

/// What a node's launcher is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Not all nodes are there.
    Wait,
    /// Run the ranks of this generation; a line about it for the log.
    Run {
        generation: u64,
        note: Option<String>,
    },
    /// End what runs of this generation.
    Stop {
        generation: u64,
    },
    End(Verdict),
}

/// How the whole job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Done,
    Interrupted(i32),
    /// By a second signal, without saving.
    Quit,
    Failed(String),
}

#[derive(Clone, Copy, Debug)]
pub struct JobSettings {
    /// Launchers; 0 where ranks are started by something else.
    pub nodes: usize,
    /// Ranks of each node, or of the whole job where there are no nodes.
    pub processes: usize,
    pub max_restarts: u64,
    /// A rank or node without a heartbeat for this long hangs or is gone.
    pub heartbeat: Duration,
    /// In this time all of them have to be there.
    pub join: Duration,
}

impl JobSettings {
    pub fn world(&self) -> usize {
        self.processes * self.nodes.max(1)
    }
}

enum Phase {
    Gathering,
    Running {
        since: Instant,
    },
    /// Something failed; what else is heard now may be the cause.
    Settling {
        since: Instant,
    },
    Stopping,
    Over(Verdict),
}

#[derive(Clone, Default)]
struct Node {
    /// The launcher that has joined.
    session: Option<String>,
    heard: Option<Instant>,
    /// None of its ranks runs.
    idle: bool,
    has_verdict: bool,
}

#[derive(Clone, Default)]
struct Rank {
    beat: Option<Instant>,
    step: u64,
    ended: Option<Ended>,
    /// The last step that it has finished since it knows that all are to stop.
    stops_at: Option<u64>,
}

/// What a signal asked for.
struct Stop {
    signal: i32,
    /// The last step, once every rank has said where it is.
    step: Option<u64>,
}

struct Failure {
    /// The smaller, the likelier it is the cause and not a consequence.
    blame: u8,
    text: String,
    /// The same would happen again.
    is_usage: bool,
    is_node: bool,
}

impl Failure {
    fn new(blame: u8, text: String) -> Failure {
        Failure {
            blame,
            text,
            is_usage: false,
            is_node: false,
        }
    }
}

/// How far a rank had come, for messages.
fn after(step: u64) -> String {
    match step {
        0 => String::new(),
        step => format!(" after step {step}"),
    }
}

pub struct Job {
    settings: JobSettings,
    generation: u64,
    phase: Phase,
    began: Instant,
    nodes: Vec<Node>,
    ranks: Vec<Rank>,
    failures: Vec<Failure>,
    note: Option<String>,
    stop: Option<Stop>,
}

impl Job {
    pub fn new(settings: JobSettings, now: Instant) -> Self {
        let phase = if settings.nodes == 0 {
            Phase::Running { since: now }
        } else {
            Phase::Gathering
        };
        let nodes = vec![Node::default(); settings.nodes];
        let ranks = vec![Rank::default(); settings.world()];
        Job {
            settings,
            generation: 0,
            phase,
            began: now,
            nodes,
            ranks,
            failures: Vec::new(),
            note: None,
            stop: None,
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Why this rank may not join, if so.
    pub fn admit_rank(
        &mut self,
        rank: usize,
        world: usize,
        generation: u64,
        now: Instant,
    ) -> Result<(), String> {
        let expected = self.settings.world();
        if world != expected {
            return Err(format!(
                "it says that the job has {world} processes, and this one has {expected}"
            ));
        }
        if rank >= world {
            return Err(format!("there is no rank {rank} among {world} processes"));
        }
        if generation != self.generation {
            return Err(format!(
                "stale process: from attempt {generation}, the job is on attempt {}",
                self.generation
            ));
        }
        self.ranks[rank].beat = Some(now);
        Ok(())
    }

    /// Why this node may not join, if so.
    pub fn admit_node(
        &mut self,
        node: usize,
        nodes: usize,
        processes: usize,
        session: &str,
    ) -> Result<(), String> {
        if nodes != self.settings.nodes {
            return Err(format!(
                "it was started with --nnodes {nodes}, node 0 with --nnodes {}",
                self.settings.nodes
            ));
        }
        if processes != self.settings.processes {
            let own = self.settings.processes;
            return Err(format!(
                "it was started with --nproc_per_node {processes}, node 0 with --nproc_per_node {own}"
            ));
        }
        if node >= nodes {
            return Err(format!("there is no node {node} among {nodes}"));
        }
        match &self.nodes[node].session {
            Some(joined) if joined != session => Err(format!(
                "node {node} has joined already: each needs a --node_rank of its own"
            )),
            _ => {
                self.nodes[node].session = Some(session.into());
                Ok(())
            }
        }
    }

    /// A rank is alive. Why the job has to end, if it has to.
    pub fn beat(&mut self, rank: usize, step: u64, now: Instant) -> Option<String> {
        let place = &mut self.ranks[rank];
        (place.beat, place.step) = (Some(now), step);
        self.tick(now);
        match &self.phase {
            Phase::Over(Verdict::Failed(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Whether a signal asks all ranks to stop.
    pub fn stop_is_asked(&self) -> bool {
        self.stop.is_some()
    }

    /// A rank that a signal or a heartbeat's answer asked to stop has finished this step. The step
    /// that all stop after, once each of them has come here: none has passed it, because from its
    /// first call on a rank calls after every step.
    pub fn agree(&mut self, rank: usize, step: u64, signal: Option<i32>) -> Option<LastStep> {
        if self.stop.is_none() {
            let step = None;
            self.stop = signal.map(|signal| Stop { signal, step });
        }
        let stop = self.stop.as_mut()?;
        self.ranks[rank].stops_at = Some(step);
        let here = |rank: &Rank| rank.stops_at.is_some() || rank.ended.is_some();
        if stop.step.is_none() && self.ranks.iter().all(here) {
            let furthest = self.ranks.iter().filter_map(|rank| rank.stops_at).max();
            stop.step = furthest.map(|step| step + 1);
        }
        let signal = stop.signal;
        stop.step.map(|step| LastStep { step, signal })
    }

    /// Ranks that have not joined.
    pub fn missing(&self) -> Vec<usize> {
        let ranks = self.ranks.iter().enumerate();
        ranks
            .filter(|(_, rank)| rank.beat.is_none() && rank.ended.is_none())
            .map(|(number, _)| number)
            .collect()
    }

    /// A rank ends by its own will.
    pub fn leave(&mut self, rank: usize, ended: Ended, now: Instant) {
        self.end_of(rank, ended, now);
        self.tick(now);
    }

    /// What a node's launcher has seen since it last reported; what it is to do now.
    pub fn report(
        &mut self,
        node: usize,
        generation: u64,
        ended: Vec<(usize, Ended)>,
        idle: bool,
        now: Instant,
    ) -> Order {
        let place = &mut self.nodes[node];
        place.heard = Some(now);
        place.idle = idle;
        if generation == self.generation {
            for (rank, ended) in ended {
                self.end_of(rank, ended, now);
            }
        }
        self.tick(now);
        let order = match &self.phase {
            Phase::Gathering => Order::Wait,
            Phase::Running { .. } | Phase::Settling { .. } => Order::Run {
                generation: self.generation,
                note: self.note.clone(),
            },
            Phase::Stopping => Order::Stop {
                generation: self.generation,
            },
            Phase::Over(verdict) => Order::End(verdict.clone()),
        };
        self.nodes[node].has_verdict = matches!(order, Order::End(_));
        order
    }

    /// Whether every node that can still be reached knows how it ended.
    pub fn all_know_the_end(&self, now: Instant) -> bool {
        let knows = |node: &Node| {
            node.has_verdict
                || node
                    .heard
                    .is_none_or(|at| now - at > self.settings.heartbeat)
        };
        matches!(self.phase, Phase::Over(_)) && self.nodes.iter().all(knows)
    }

    /// Whether no rank is still at work.
    pub fn all_left(&self) -> bool {
        self.ranks.iter().all(|rank| rank.ended.is_some())
    }

    fn end_of(&mut self, rank: usize, ended: Ended, now: Instant) {
        let Some(place) = self.ranks.get_mut(rank) else {
            return;
        };
        let first = place.ended.replace(ended.clone());
        let step = place.step;
        // The rank's own message comes before what its launcher sees of its end, and a report may
        // come twice.
        if matches!(first, Some(Ended::Failed { .. } | Ended::Killed(_)))
            || matches!(self.phase, Phase::Stopping | Phase::Over(_))
        {
            return;
        }
        let at = after(step);
        match ended {
            Ended::Well | Ended::Interrupted(_) => {}
            Ended::Killed(signal) => {
                let text = format!(
                    "{} was killed by signal {signal}{}{at}",
                    self.name(rank),
                    signal_name(signal)
                );
                self.fail(Failure::new(0, text), now);
            }
            Ended::Failed {
                cause,
                code,
                message,
            } => {
                let text = if message.is_empty() {
                    format!("{} ended with exit code {code}{at}", self.name(rank))
                } else {
                    format!("{} failed{at}: {message}", self.name(rank))
                };
                let blame = if cause == Cause::Peers { 3 } else { 2 };
                let is_usage = cause == Cause::Usage;
                let failure = Failure::new(blame, text);
                self.fail(
                    Failure {
                        is_usage,
                        ..failure
                    },
                    now,
                );
            }
        }
    }

    fn name(&self, rank: usize) -> String {
        match self.settings.nodes {
            0 | 1 => format!("rank {rank}"),
            _ => format!("rank {rank} (node {})", rank / self.settings.processes),
        }
    }

    fn fail(&mut self, failure: Failure, now: Instant) {
        self.failures.push(failure);
        if matches!(self.phase, Phase::Gathering | Phase::Running { .. }) {
            self.phase = Phase::Settling { since: now };
        }
    }

    /// What follows from the time that has passed.
    pub fn tick(&mut self, now: Instant) {
        match self.phase {
            Phase::Gathering => self.gather(now),
            Phase::Running { since } => self.watch(since, now),
            Phase::Settling { since } if now - since >= SETTLING => {
                // Whoever fell silent at the same time is found out now.
                self.watch_silence(now);
                self.phase = match self.settings.nodes {
                    0 => Phase::Over(Verdict::Failed(self.cause())),
                    _ => Phase::Stopping,
                };
                // Launchers report again whether anything still runs.
                self.nodes.iter_mut().for_each(|node| node.idle = false);
            }
            Phase::Stopping => self.stop(now),
            _ => {}
        }
    }

    fn gather(&mut self, now: Instant) {
        if self.nodes.iter().all(|node| node.heard.is_some()) {
            self.phase = Phase::Running { since: now };
        } else if now - self.began > self.settings.join {
            let missing: Vec<usize> = (0..self.nodes.len())
                .filter(|&n| self.nodes[n].heard.is_none())
                .collect();
            let (missing, seconds) = (listed("node", &missing), self.settings.join.as_secs());
            self.phase = Phase::Over(Verdict::Failed(format!(
                "{missing} did not join within {seconds} s"
            )));
        }
    }

    fn watch(&mut self, since: Instant, now: Instant) {
        self.watch_silence(now);
        if matches!(self.phase, Phase::Running { .. }) && now - since > self.settings.join {
            let missing = match &self.missing()[..] {
                [] => None,
                [rank] => Some(self.name(*rank)),
                several => Some(listed("rank", several)),
            };
            if let Some(missing) = missing {
                let seconds = self.settings.join.as_secs();
                let text = format!("{missing} did not join within {seconds} s");
                self.fail(Failure::new(1, text), now);
            }
        }
        if matches!(self.phase, Phase::Running { .. }) && self.all_left() {
            let signal = self.ranks.iter().find_map(|rank| match rank.ended {
                Some(Ended::Interrupted(signal)) => Some(signal),
                _ => None,
            });
            self.phase = Phase::Over(signal.map_or(Verdict::Done, Verdict::Interrupted));
        }
    }

    fn watch_silence(&mut self, now: Instant) {
        let limit = self.settings.heartbeat;
        let silent = |heard: Option<Instant>| heard.is_some_and(|at| now - at > limit);
        let mut found = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if silent(node.heard) {
                let text = format!(
                    "no heartbeat from node {index} for {} s; it is down, or its network link is",
                    limit.as_secs()
                );
                found.push(Failure {
                    is_node: true,
                    ..Failure::new(0, text)
                });
            }
        }
        for (index, rank) in self.ranks.iter().enumerate() {
            if rank.ended.is_none() && silent(rank.beat) {
                let at = after(rank.step);
                let text = format!(
                    "no heartbeat from {} for {} s{at}; it appears hung",
                    self.name(index),
                    limit.as_secs()
                );
                found.push(Failure::new(1, text));
            }
        }
        for failure in found {
            if !self.failures.iter().any(|known| known.text == failure.text) {
                self.fail(failure, now);
            }
        }
    }

    /// The failure that the others follow from.
    fn cause(&self) -> String {
        let first = self.failures.iter().min_by_key(|failure| failure.blame);
        first.map_or_else(String::new, |failure| failure.text.clone())
    }

    fn stop(&mut self, now: Instant) {
        let limit = self.settings.heartbeat;
        let lost = |node: &Node| node.heard.is_none_or(|at| now - at > limit);
        if !self.nodes.iter().all(|node| node.idle || lost(node)) {
            return;
        }
        let cause = self.cause();
        let hopeless = self
            .failures
            .iter()
            .any(|failure| failure.is_usage || failure.is_node)
            || self.nodes.iter().any(lost);
        if hopeless || self.generation >= self.settings.max_restarts {
            self.phase = Phase::Over(Verdict::Failed(cause));
            return;
        }
        self.generation += 1;
        self.note = Some(format!(
            "{cause}; starting again, restart {} of {}",
            self.generation, self.settings.max_restarts
        ));
        self.failures.clear();
        self.stop = None;
        self.ranks
            .iter_mut()
            .for_each(|rank| *rank = Rank::default());
        self.phase = Phase::Running { since: now };
    }
}

/// `rank 3`, `ranks 1, 2 and 5`, the first ten of more.
pub(super) fn listed(noun: &str, numbers: &[usize]) -> String {
    const MOST: usize = 10;
    let text = |numbers: &[usize]| {
        let numbers = numbers.iter().map(usize::to_string);
        numbers.collect::<Vec<_>>().join(", ")
    };
    match numbers {
        [one] => format!("{noun} {one}"),
        many if many.len() > MOST => {
            let more = many.len() - MOST;
            format!("{noun}s {} and {more} more", text(&many[..MOST]))
        }
        [first @ .., last] => format!("{noun}s {} and {last}", text(first)),
        [] => format!("no {noun}"),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGKILL => " (SIGKILL; by the kernel, if memory ran out)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn job(nodes: usize, processes: usize, max_restarts: u64) -> (Job, Instant) {
        let now = Instant::now();
        let (heartbeat, join) = (10 * SECOND, 60 * SECOND);
        (
            Job::new(
                JobSettings {
                    nodes,
                    processes,
                    max_restarts,
                    heartbeat,
                    join,
                },
                now,
            ),
            now,
        )
    }

    fn run(generation: u64) -> Order {
        Order::Run {
            generation,
            note: None,
        }
    }

    fn failed(cause: Cause, code: i32, message: &str) -> Ended {
        let message = message.into();
        Ended::Failed {
            cause,
            code,
            message,
        }
    }

    #[test]
    fn a_job_runs_when_all_nodes_are_there_and_ends_with_its_last_rank() {
        let (mut job, now) = job(2, 1, 0);
        assert_eq!(job.admit_node(0, 2, 1, "a"), Ok(()));
        assert_eq!(job.report(0, 0, vec![], true, now), Order::Wait);
        let mut refused =
            |node, nodes, processes| job.admit_node(node, nodes, processes, "b").unwrap_err();
        assert!(refused(1, 3, 1).contains("--nnodes 3"));
        assert!(refused(1, 2, 4).contains("--nproc_per_node 4"));
        assert!(refused(0, 2, 1).contains("node_rank"));
        // The launcher that has joined may come back.
        assert_eq!(job.admit_node(0, 2, 1, "a"), Ok(()));
        assert_eq!(job.report(1, 0, vec![], true, now), run(0));
        assert!(
            job.admit_rank(0, 4, 0, now)
                .unwrap_err()
                .contains("4 processes, and this one has 2")
        );
        assert_eq!(job.report(0, 0, vec![(0, Ended::Well)], true, now), run(0));
        assert_eq!(
            job.report(1, 0, vec![(1, Ended::Well)], true, now),
            Order::End(Verdict::Done)
        );
        assert!(!job.all_know_the_end(now));
        assert_eq!(
            job.report(0, 0, vec![], true, now),
            Order::End(Verdict::Done)
        );
        assert!(job.all_know_the_end(now));
    }

    #[test]
    fn the_killed_rank_is_blamed_though_another_is_heard_of_first() {
        let (mut job, now) = job(1, 2, 1);
        assert_eq!(job.report(0, 0, vec![], true, now), run(0));
        for rank in 0..2 {
            job.admit_rank(rank, 2, 0, now).unwrap();
            assert_eq!(job.beat(rank, 7, now), None);
        }
        let consequence = "all-reduce failed on rank 0 of 2: connection closed";
        job.leave(0, failed(Cause::Peers, 1, consequence), now);
        assert_eq!(
            job.report(0, 0, vec![(1, Ended::Killed(libc::SIGKILL))], false, now),
            run(0)
        );
        let later = now + 2 * SECOND;
        assert_eq!(
            job.report(0, 0, vec![], false, later),
            Order::Stop { generation: 0 }
        );
        let Order::Run {
            generation: 1,
            note: Some(note),
        } = job.report(0, 0, vec![], true, later)
        else {
            panic!("no restart")
        };
        assert!(
            note.contains("rank 1 was killed by signal 9") && note.contains("after step 7"),
            "{note}"
        );
        // The second failure is the last.
        assert!(
            job.admit_rank(0, 2, 0, later)
                .unwrap_err()
                .contains("attempt 0")
        );
        job.report(
            0,
            1,
            vec![(0, failed(Cause::Own, 1, "disk full"))],
            false,
            later,
        );
        let later = later + 2 * SECOND;
        job.report(0, 1, vec![], false, later);
        let end = job.report(0, 1, vec![], true, later);
        assert_eq!(
            end,
            Order::End(Verdict::Failed("rank 0 failed: disk full".into()))
        );
    }

    #[test]
    fn silence_is_a_failure_with_a_name() {
        let (mut job, now) = job(1, 2, 0);
        job.report(0, 0, vec![], true, now);
        for rank in 0..2 {
            job.admit_rank(rank, 2, 0, now).unwrap();
        }
        for second in 1..14 {
            job.beat(0, 3, now + second * SECOND);
            job.report(0, 0, vec![], false, now + second * SECOND);
        }
        let Order::End(Verdict::Failed(cause)) = job.report(0, 0, vec![], true, now + 14 * SECOND)
        else {
            panic!("no end")
        };
        assert_eq!(cause, "no heartbeat from rank 1 for 10 s; it appears hung");
    }

    #[test]
    fn a_lost_node_ends_the_job_and_a_usage_error_is_not_tried_again() {
        let (mut first, now) = job(2, 1, 5);
        first.report(0, 0, vec![], true, now);
        first.report(1, 0, vec![], true, now);
        let mut last = Order::Wait;
        for second in 1..16 {
            last = first.report(0, 0, vec![], true, now + second * SECOND);
        }
        let Order::End(Verdict::Failed(cause)) = last else {
            panic!("{last:?}")
        };
        assert!(cause.starts_with("no heartbeat from node 1"), "{cause}");

        let (mut second, now) = job(1, 1, 5);
        second.report(
            0,
            0,
            vec![(0, failed(Cause::of_exit_code(2), 2, "no such flag"))],
            true,
            now,
        );
        second.report(0, 0, vec![], true, now + 2 * SECOND);
        let end = second.report(0, 0, vec![], true, now + 2 * SECOND);
        assert_eq!(
            end,
            Order::End(Verdict::Failed("rank 0 failed: no such flag".into()))
        );
    }

    #[test]
    fn without_launchers_the_ranks_learn_it_themselves() {
        let (mut job, now) = job(0, 2, 0);
        job.admit_rank(0, 2, 0, now).unwrap();
        job.admit_rank(1, 2, 0, now).unwrap();
        assert_eq!(job.beat(0, 1, now + 11 * SECOND), None);
        let reason = job.beat(0, 1, now + 13 * SECOND).unwrap();
        assert!(reason.starts_with("no heartbeat from rank 1"), "{reason}");
    }

    #[test]
    fn the_cause_is_what_a_rank_says_and_not_what_its_message_contains() {
        for (first, second, blamed) in [
            (Cause::Peers, Cause::Own, 1),
            (Cause::Own, Cause::Peers, 0),
            (
                Cause::of_exit_code(LOST_RENDEZVOUS),
                Cause::of_exit_code(1),
                1,
            ),
        ] {
            let (mut job, now) = job(0, 2, 0);
            // Each sounds like the other's.
            job.leave(0, failed(first, 1, "the rendezvous is on fire"), now);
            job.leave(1, failed(second, 1, "disk full"), now);
            let reason = job.beat(0, 1, now + 2 * SECOND).unwrap();
            assert!(reason.starts_with(&format!("rank {blamed}")), "{reason}");
        }
    }

    #[test]
    fn ranks_stop_after_a_step_that_none_has_passed() {
        let (mut job, now) = job(0, 3, 0);
        assert_eq!(job.agree(0, 5, None), None);
        assert!(!job.stop_is_asked());
        assert_eq!(job.agree(1, 5, Some(libc::SIGTERM)), None);
        assert!(job.stop_is_asked());
        // Rank 0 learns of it late, rank 2 has ended: each goes on until all have said where they are.
        assert_eq!(job.agree(1, 6, Some(libc::SIGTERM)), None);
        job.leave(2, Ended::Well, now);
        let last = Some(LastStep {
            step: 9,
            signal: libc::SIGTERM,
        });
        assert_eq!(job.agree(0, 8, None), last);
        assert_eq!(job.agree(1, 7, Some(libc::SIGTERM)), last);
        // A second signal changes nothing.
        assert_eq!(job.agree(1, 8, Some(libc::SIGINT)), last);
        assert_eq!(job.agree(0, 9, None), last);
    }

    #[test]
    fn who_did_not_come_is_named() {
        let (mut first, now) = job(4, 1, 0);
        first.report(0, 0, vec![], true, now);
        first.report(2, 0, vec![], true, now);
        let end = first.report(0, 0, vec![], true, now + 61 * SECOND);
        let text = "nodes 1 and 3 did not join within 60 s";
        assert_eq!(end, Order::End(Verdict::Failed(text.into())));

        let (mut second, now) = job(0, 30, 0);
        second.admit_rank(4, 30, 0, now).unwrap();
        let mut reason = None;
        for tick in 1..64 {
            reason = second.beat(4, 0, now + tick * SECOND).or(reason);
        }
        assert_eq!(
            reason.unwrap(),
            "ranks 0, 1, 2, 3, 5, 6, 7, 8, 9, 10 and 19 more did not join within 60 s"
        );
        assert_eq!(listed("rank", &[3]), "rank 3");
        assert_eq!(listed("rank", &[1, 2, 5]), "ranks 1, 2 and 5");
    }
}
