//! The launcher of one node. Node 0's also holds the rendezvous, where the job's state is; every
//! launcher, node 0's own too, only does what that tells it.

use super::ranks::{Ranks, Start};
use super::{Error, Result};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use xtrain_distributed as distributed;
use xtrain_distributed::environment::{self, Timeouts};
use xtrain_distributed::job::{Ended, JobSettings, Order, Report, Verdict};
use xtrain_distributed::secret::{self, Secret, nonce};
use xtrain_distributed::server::Server;
use xtrain_distributed::wire::{Connection, Reply, Request, Role};
use xtrain_report::accounting::process_age;
use xtrain_report::ending::ending_signals;
use xtrain_report::errln;
use xtrain_report::memory;
use xtrain_report::telemetry::now;
use xtrain_report::units::bytes;

/// Between two looks at the ranks and at the job.
const PAUSE: Duration = Duration::from_millis(100);

/// For one try to come back to the rendezvous; between two, signals are looked at.
const TRY: Duration = Duration::from_secs(1);

/// No process of a run is smaller.
const LEAST_MEMORY: u64 = 64 << 20;

/// How long node 0 waits at the end for the other nodes to fetch the verdict.
const FAREWELL: Duration = Duration::from_secs(10);

/// What is launched, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchSettings {
    pub processes: usize,
    pub nodes: usize,
    pub node: usize,
    /// HOST:PORT; `None` for a job on one node, which finds a port for itself.
    pub endpoint: Option<String>,
    pub secret_file: Option<PathBuf>,
    pub max_restarts: u64,
    pub timeouts: Timeouts,
    /// The command line of each rank, without the program.
    pub words: Vec<String>,
}

/// Runs this node's ranks until the job is over.
pub fn launch(settings: &LaunchSettings) -> Result<Verdict> {
    check_room(settings.processes, memory::available())?;
    let secret = secret_of(settings)?;
    let timeouts = settings.timeouts;
    let job = JobSettings {
        nodes: settings.nodes,
        processes: settings.processes,
        max_restarts: settings.max_restarts,
        heartbeat: timeouts.heartbeat,
        join: timeouts.join,
    };
    let given = settings
        .endpoint
        .clone()
        .unwrap_or_else(|| "127.0.0.1:0".into());
    if !given
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    {
        return Err(Error::Endpoint { endpoint: given });
    }
    let server = (settings.node == 0)
        .then(|| Server::start(&given, secret.clone(), job))
        .transpose()?;
    let endpoint = match (&server, settings.endpoint.is_some()) {
        (Some(server), false) => server.address().to_string(),
        _ => given,
    };
    let role = Role::Node {
        node: settings.node,
        nodes: settings.nodes,
        processes: settings.processes,
        session: nonce(),
    };
    let connection = Connection::open(&endpoint, &secret, &role, timeouts.join)?;
    let signals = Signals::new(ending_signals()).map_err(Error::Signals)?;
    let node = Node {
        settings,
        endpoint,
        secret,
        role,
        job: connection.job().into(),
        connection: Some(connection),
        ranks: Ranks::default(),
        signals,
        signalled: None,
        launched: now() - process_age().unwrap_or_default().as_secs_f64(),
    };
    let verdict = node.run();
    // After a second signal, or without a rendezvous, nobody is waited for.
    let others_wait = verdict
        .as_ref()
        .is_ok_and(|verdict| *verdict != Verdict::Quit);
    if let Some(server) = server.filter(|_| others_wait) {
        server.wait_for_nodes(FAREWELL);
    }
    verdict
}

/// Refuses a number of processes that would take the machine with them.
fn check_room(processes: usize, free: Option<u64>) -> Result<()> {
    let Some(free) = free else { return Ok(()) };
    let most = (free / LEAST_MEMORY).max(1);
    if processes as u64 <= most {
        return Ok(());
    }
    Err(Error::TooMany {
        processes,
        most,
        free: bytes(free),
        each: bytes(LEAST_MEMORY),
    })
}

fn secret_of(settings: &LaunchSettings) -> Result<Secret> {
    match (&settings.secret_file, Secret::from_environment()?) {
        (Some(path), _) => Ok(Secret::from_file(path)?),
        (None, Some(secret)) => Ok(secret),
        (None, None) if settings.nodes == 1 => Ok(Secret::generate()),
        (None, None) => Err(Error::NoSecret),
    }
}

struct Node<'s> {
    settings: &'s LaunchSettings,
    endpoint: String,
    secret: Secret,
    role: Role,
    /// The rendezvous that was joined.
    job: String,
    /// `None` after it was lost.
    connection: Option<Connection>,
    ranks: Ranks,
    signals: Signals,
    /// The first signal that asked for the end.
    signalled: Option<i32>,
    /// When this process started, in seconds since 1970.
    launched: f64,
}

impl Node<'_> {
    fn run(mut self) -> Result<Verdict> {
        let mut generation = 0;
        let mut started = None;
        let mut ended = Vec::new();
        let mut heard = Instant::now();
        // Why the connection was lost, until it is there again.
        let mut lost = None;
        loop {
            if self.pass_signals_on() {
                return Ok(Verdict::Quit);
            }
            ended.extend(self.ranks.take_ended()?);
            let report = Request::Report(Report {
                generation,
                ended: ended.clone(),
                idle: self.ranks.are_idle(),
                signal: self.signalled,
            });
            let order = match self.ask(&report) {
                Ok(Reply::Order(order)) => order,
                Ok(_) => Order::Wait,
                // It may come back, and the ranks go on meanwhile. What has ended is reported again.
                Err(
                    error @ (distributed::Error::Lost { .. }
                    | distributed::Error::Unreachable { .. }),
                ) => {
                    let (error, patience) =
                        (lost.get_or_insert(error), self.settings.timeouts.heartbeat);
                    if heard.elapsed() < patience {
                        if self.connection.take().is_some() {
                            let seconds = patience.saturating_sub(heard.elapsed()).as_secs();
                            errln!("launch: {error}; trying to reach it for {seconds} s");
                        }
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                    return Err(lost.expect("it was just noted").into());
                }
                Err(error) => return Err(error.into()),
            };
            if lost.take().is_some() {
                errln!("launch: reached the rendezvous at {} again", self.endpoint);
            }
            heard = Instant::now();
            ended.clear();
            match order {
                Order::Wait => {}
                Order::Run {
                    generation: wanted,
                    note,
                } => {
                    if started != Some(wanted) {
                        generation = wanted;
                        started = Some(wanted);
                        if let Some(note) = note {
                            errln!("launch: {note}");
                        }
                        match self.signalled {
                            // It came before the ranks were there to hear of it.
                            Some(signal) => ended = self.ended_by(signal),
                            None => self.start(generation)?,
                        }
                    }
                }
                Order::Stop { .. } => self.ranks.kill(),
                Order::End { verdict, note } => {
                    if let Some(note) = note {
                        errln!("launch: {note}");
                    }
                    self.end()?;
                    return Ok(verdict);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for what the ranks have left behind, which has a short time to end.
    fn end(&mut self) -> Result<()> {
        self.ranks.kill();
        while !self.ranks.are_idle() && !self.pass_signals_on() {
            self.ranks.take_ended()?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Asks on the connection, or on a new one if it was lost.
    fn ask(&mut self, request: &Request) -> distributed::Result<Reply> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            lost => {
                let again = Connection::open(&self.endpoint, &self.secret, &self.role, TRY)?;
                lost.insert(again.leading_to(&self.job)?)
            }
        };
        connection.ask(request, Duration::ZERO)
    }

    /// The first signal asks the ranks to stop and save, and the rendezvous, which hears of it with the
    /// next report, to start none. Whether there is a second one, which ends everything.
    fn pass_signals_on(&mut self) -> bool {
        for signal in self.signals.pending() {
            if self.signalled.replace(signal).is_some() {
                return true;
            }
            self.ranks.ask(signal);
        }
        false
    }

    /// Ranks that were not started, as a signal would have ended them.
    fn ended_by(&self, signal: i32) -> Vec<(usize, Ended)> {
        let first = self.settings.node * self.settings.processes;
        (first..first + self.settings.processes)
            .map(|rank| (rank, Ended::Interrupted(signal)))
            .collect()
    }

    fn start(&mut self, generation: u64) -> Result<()> {
        let settings = self.settings;
        let world = settings.nodes * settings.processes;
        let (host, port) = self
            .endpoint
            .rsplit_once(':')
            .unwrap_or((&self.endpoint, ""));
        for local in 0..settings.processes {
            let rank = settings.node * settings.processes + local;
            let environment = vec![
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", world.to_string()),
                ("LOCAL_RANK", local.to_string()),
                ("LOCAL_WORLD_SIZE", settings.processes.to_string()),
                ("MASTER_ADDR", host.to_string()),
                ("MASTER_PORT", port.to_string()),
                (environment::ENDPOINT, self.endpoint.clone()),
                (environment::GENERATION, generation.to_string()),
                (environment::LAUNCHED, self.launched.to_string()),
                (
                    environment::HEARTBEAT_TIMEOUT,
                    settings.timeouts.heartbeat.as_secs().to_string(),
                ),
                (
                    environment::RDZV_TIMEOUT,
                    settings.timeouts.join.as_secs().to_string(),
                ),
                (secret::VARIABLE, self.secret.expose()),
            ];
            self.ranks.start(Start {
                rank,
                words: &settings.words,
                environment,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_processes_than_memory_holds_are_refused() {
        assert!(check_room(1_000_000, None).is_ok());
        assert!(check_room(1, Some(0)).is_ok());
        assert!(check_room(64, Some(4 << 30)).is_ok());
        assert_eq!(
            check_room(1_000_000, Some(4 << 30))
                .unwrap_err()
                .to_string(),
            "--nproc_per_node 1000000: the 4.0 GiB of free memory hold 64 processes at most (64.0 MiB each)"
        );
    }
}
