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
    /// Something that a restart cannot mend: a damaged checkpoint, a full disk.
    Lasting,
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

/// A rank's heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The step of the newest checkpoint that this rank knows of.
    pub saved: Option<u64>,
    /// It writes a checkpoint or a model.
    pub is_saving: bool,
    /// It compiles a graph.
    pub is_compiling: bool,
}

/// What keeps the other ranks of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Others {
    /// One of them saves or compiles: what they are to put into the store may take long.
    pub are_busy: bool,
    /// A wait for the devices may take long although none hangs: another rank compiles, or rank 0
    /// saves. Rank 0 itself has no such excuse, and another rank's saving is none: all ranks are in a
    /// save together, and if a device hangs there, rank 0's wait must show it.
    pub delay_devices: bool,
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
    Stop { generation: u64 },
    /// The job is over; a line about that for the log.
    End {
        verdict: Verdict,
        note: Option<String>,
    },
}

/// What a node's launcher has seen since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub generation: u64,
    pub ended: Vec<(usize, Ended)>,
    /// None of its ranks runs any more.
    pub idle: bool,
    /// The signal that asked it to end the job.
    pub signal: Option<i32>,
}

/// How the whole job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Done,
    Interrupted(i32),
    /// By a second signal, without saving.
    Quit,
    Failed {
        cause: String,
        /// The same would happen again.
        is_lasting: bool,
    },
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
    heard: Option<Instant>,
    beat: Beat,
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
    is_lasting: bool,
    is_node: bool,
}

/// Of a failure that follows from another one.
const CONSEQUENCE: u8 = 3;

impl Failure {
    fn new(blame: u8, text: String) -> Failure {
        Failure {
            blame,
            text,
            is_lasting: false,
            is_node: false,
        }
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
    /// The signal that asked the job to end: it is not started again.
    signal: Option<i32>,
    /// The step of the newest checkpoint of the job.
    saved: Option<u64>,
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
            signal: None,
            saved: None,
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
        self.ranks[rank].heard = Some(now);
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
    pub fn beat(&mut self, rank: usize, beat: Beat, now: Instant) -> Option<String> {
        let place = &mut self.ranks[rank];
        (place.heard, place.beat) = (Some(now), beat);
        // Its step may be that of the checkpoint that the job was started from.
        self.saved = self.saved.max(beat.saved);
        self.tick(now);
        match &self.phase {
            Phase::Over(Verdict::Failed { cause, .. }) => Some(cause.clone()),
            _ => None,
        }
    }

    /// What keeps the ranks other than this one.
    pub fn others(&self, rank: usize) -> Others {
        let ranks = self.ranks.iter().enumerate();
        let mut others = Others::default();
        for (other, place) in ranks.filter(|(other, place)| *other != rank && place.ended.is_none())
        {
            let beat = place.beat;
            others.are_busy |= beat.is_saving || beat.is_compiling;
            others.delay_devices |= beat.is_compiling || (other == 0 && beat.is_saving);
        }
        others
    }

    /// Whether a signal asks all ranks to stop.
    pub fn stop_is_asked(&self) -> bool {
        self.stop.is_some()
    }

    /// A rank that a signal or a heartbeat's answer asked to stop has finished this step. The step
    /// that all stop after, once each of them has come here: none has passed it, because from its
    /// first call on a rank calls after every step.
    pub fn agree(&mut self, rank: usize, step: u64, signal: Option<i32>) -> Option<LastStep> {
        self.signal = self.signal.or(signal);
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
            .filter(|(_, rank)| rank.heard.is_none() && rank.ended.is_none())
            .map(|(number, _)| number)
            .collect()
    }

    /// A rank ends by its own will.
    pub fn leave(&mut self, rank: usize, ended: Ended, now: Instant) {
        self.end_of(rank, ended, now);
        self.tick(now);
    }

    /// What a node's launcher has seen since it last reported; what it is to do now.
    pub fn report(&mut self, node: usize, report: Report, now: Instant) -> Order {
        let place = &mut self.nodes[node];
        place.heard = Some(now);
        place.idle = report.idle;
        self.signal = self.signal.or(report.signal);
        if report.generation == self.generation {
            for (rank, ended) in report.ended {
                self.end_of(rank, ended, now);
            }
        }
        if let (Phase::Gathering, Some(signal)) = (&self.phase, self.signal) {
            self.phase = Phase::Over(Verdict::Interrupted(signal));
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
            Phase::Over(verdict) => Order::End {
                verdict: verdict.clone(),
                note: self.note.clone(),
            },
        };
        self.nodes[node].has_verdict = matches!(order, Order::End { .. });
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
        let agreed = place.stops_at.is_some();
        // The rank's own message comes before what its launcher sees of its end, and a report may
        // come twice.
        if matches!(first, Some(Ended::Failed { .. } | Ended::Killed(_)))
            || matches!(self.phase, Phase::Stopping | Phase::Over(_))
        {
            return;
        }
        match ended {
            Ended::Well => {}
            Ended::Interrupted(signal) => {
                self.signal = self.signal.or(Some(signal));
                // It left before all agreed on a step, so the others wait for it in vain.
                if !agreed {
                    self.settle(now);
                }
            }
            Ended::Killed(signal) => {
                let text = format!(
                    "{} was killed by signal {signal}{}",
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
                    format!("{} ended with exit code {code}", self.name(rank))
                } else {
                    format!("{} failed: {message}", self.name(rank))
                };
                let blame = if cause == Cause::Peers {
                    CONSEQUENCE
                } else {
                    2
                };
                let failure = Failure {
                    is_lasting: matches!(cause, Cause::Usage | Cause::Lasting),
                    ..Failure::new(blame, text)
                };
                self.fail(failure, now);
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
        self.settle(now);
    }

    fn settle(&mut self, now: Instant) {
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
                    0 => Phase::Over(self.verdict()),
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
            self.phase = Phase::Over(Verdict::Failed {
                cause: format!("{missing} did not join within {seconds} s"),
                is_lasting: false,
            });
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
            self.note = None;
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
            if rank.ended.is_none() && silent(rank.heard) {
                let text = format!(
                    "no heartbeat from {} for {} s; it appears hung",
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

    /// How a job ends that is not started again: by the failure that the others follow from, unless a
    /// signal asked for the end and nothing else is wrong.
    fn verdict(&self) -> Verdict {
        let first = self.failures.iter().min_by_key(|failure| failure.blame);
        match (first, self.signal) {
            (Some(failure), None) => self.failed(failure),
            (Some(failure), Some(_)) if failure.blame < CONSEQUENCE => self.failed(failure),
            (_, Some(signal)) => Verdict::Interrupted(signal),
            (None, None) => Verdict::Done,
        }
    }

    fn failed(&self, failure: &Failure) -> Verdict {
        let saved = self
            .saved
            .map(|step| format!("; the last saved step is {step}"));
        Verdict::Failed {
            cause: format!("{}{}", failure.text, saved.unwrap_or_default()),
            is_lasting: self.failures.iter().any(|failure| failure.is_lasting),
        }
    }

    fn stop(&mut self, now: Instant) {
        let limit = self.settings.heartbeat;
        let lost = |node: &Node| node.heard.is_none_or(|at| now - at > limit);
        if !self.nodes.iter().all(|node| node.idle || lost(node)) {
            return;
        }
        let hopeless = self
            .failures
            .iter()
            .any(|failure| failure.is_lasting || failure.is_node)
            || self.nodes.iter().any(lost);
        let verdict = self.verdict();
        if !matches!(verdict, Verdict::Failed { .. }) {
            self.note = None;
            self.phase = Phase::Over(verdict);
            return;
        }
        let first = self.failures.iter().min_by_key(|failure| failure.blame);
        let cause = first.map_or("", |failure| &failure.text);
        if hopeless || self.generation >= self.settings.max_restarts {
            self.note = None;
            self.phase = Phase::Over(verdict);
            return;
        }
        if let Some(signal) = self.signal {
            self.note = Some(format!(
                "{cause}; not started again, since signal {signal} asks for the end"
            ));
            self.phase = Phase::Over(Verdict::Interrupted(signal));
            return;
        }
        self.generation += 1;
        let from = self.saved.map(|step| format!(" from step {step}"));
        self.note = Some(format!(
            "{cause}; starting again{}, restart {} of {}",
            from.unwrap_or_default(),
            self.generation,
            self.settings.max_restarts
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
#[path = "job_tests.rs"]
mod tests;
