//! The processes of a run as one of them sees them: its own number, the store, and the thread that
//! tells the others that it is alive.

use super::environment::RankInfo;
use super::job::{Ended, JobSettings, LOST_RENDEZVOUS, LastStep};
use super::secret::nonce;
use super::server::Server;
use super::wire::{Connection, Reply, Request, Role};
use super::{Error, Result};
use crate::report::telemetry::host;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// For questions that are answered at once.
const AT_ONCE: Duration = Duration::ZERO;

/// For what rank 0 does meanwhile, such as writing a checkpoint. Whether it still lives, heartbeats
/// tell.
const PATIENCE: Duration = Duration::from_secs(3600);

/// How long rank 0 waits at the end for the others to leave.
const FAREWELL: Duration = Duration::from_secs(30);

/// The process's own group; there is at most one.
static JOINED: OnceLock<Arc<ProcessGroup>> = OnceLock::new();

/// Something that a process has otherwise than rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub name: String,
    /// This process's.
    pub own: Option<String>,
    /// Rank 0's.
    pub first: Option<String>,
}

pub struct ProcessGroup {
    member: RankInfo,
    /// Connections that nobody is using. A question that waits for an answer keeps its own.
    idle: Mutex<Vec<Connection>>,
    /// Steps made, for heartbeats.
    step: AtomicU64,
    /// Comparisons with rank 0 made.
    comparisons: AtomicU64,
    /// A signal somewhere in the job asks for its end, as a heartbeat's answer said.
    stop: AtomicBool,
    /// The rendezvous that was joined, so that another one is not taken for it.
    job: String,
    host: IpAddr,
    /// Where this process holds the rendezvous itself.
    server: Option<Server>,
}

impl ProcessGroup {
    /// Joins the job once in a process; waits until the rendezvous is there.
    pub fn join(member: &RankInfo) -> Result<Arc<ProcessGroup>> {
        if let Some(group) = JOINED.get() {
            return Ok(group.clone());
        }
        let timeouts = member.timeouts;
        let hosts = member.hosts_rendezvous();
        let settings = JobSettings {
            nodes: 0,
            processes: member.world,
            max_restarts: 0,
            heartbeat: timeouts.heartbeat,
            join: timeouts.join,
        };
        let server = hosts
            .then(|| Server::start(&member.endpoint, member.secret.clone(), settings))
            .transpose()?;
        let mut first = connect(member, timeouts.join)?;
        let host = first.local_address()?.ip();
        claim_rank(&mut first, member.rank)?;
        let job = first.job().to_string();
        let idle = Mutex::new(vec![first]);
        let group = Arc::new(ProcessGroup {
            member: member.clone(),
            idle,
            step: AtomicU64::new(0),
            comparisons: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            job,
            host,
            server,
        });
        group.clone().beat()?;
        Ok(JOINED.get_or_init(|| group).clone())
    }

    /// The group that this process has joined.
    pub fn joined() -> Option<Arc<ProcessGroup>> {
        JOINED.get().cloned()
    }

    pub fn rank_info(&self) -> &RankInfo {
        &self.member
    }

    /// Whether this process writes what the run leaves behind: rank 0 of several, or the only one.
    pub fn this_writes() -> bool {
        Self::joined().is_none_or(|group| group.is_first())
    }

    pub fn is_first(&self) -> bool {
        self.member.rank == 0
    }

    /// The address at which other processes reach this one.
    pub fn host(&self) -> IpAddr {
        self.host
    }

    /// Reports the number of finished steps with the next heartbeat.
    pub fn made_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.ask(
            &Request::Put {
                key: key.into(),
                value: value.into(),
            },
            AT_ONCE,
        )
        .map(drop)
    }

    /// Puts a value unless there is one; the one that is there then.
    pub fn put_first(&self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        match self.ask(
            &Request::PutFirst {
                key: key.into(),
                value: value.into(),
            },
            AT_ONCE,
        )? {
            Reply::Value(Some(value)) => Ok(value),
            _ => Err(self.strange()),
        }
    }

    /// Waits for a value that some process puts.
    pub fn get(&self, key: &str, patience: Duration) -> Result<Vec<u8>> {
        let timeout_ms = patience.as_millis().try_into().unwrap_or(u64::MAX);
        match self.ask(
            &Request::Get {
                key: key.into(),
                timeout_ms,
            },
            patience,
        )? {
            Reply::Value(Some(value)) => Ok(value),
            Reply::Late { missing } => Err(Error::Timeout {
                what: format!("`{key}`"),
                seconds: patience.as_secs(),
                missing,
            }),
            _ => Err(self.strange()),
        }
    }

    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match self.ask(&Request::TryGet { key: key.into() }, AT_ONCE)? {
            Reply::Value(value) => Ok(value),
            _ => Err(self.strange()),
        }
    }

    /// The value that rank 0 decides on; the others wait for it.
    pub fn from_first(&self, key: &str, decide: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>> {
        if !self.is_first() {
            return self.get(key, PATIENCE);
        }
        let value = decide();
        self.put(key, &value)?;
        Ok(value)
    }

    /// What this process has otherwise than rank 0, of what both must have alike: by name, its own and rank
    /// 0's, `None` where one lacks it. Every process makes the same comparisons in the same order.
    ///
    /// # Errors
    /// If the rendezvous is lost, or rank 0 does not come to it.
    pub fn differences(&self, own: &BTreeMap<String, String>) -> Result<Vec<Difference>> {
        let text = serde_json::to_vec(own).expect("text");
        let number = self.comparisons.fetch_add(1, Ordering::Relaxed);
        let first = self.from_first(&format!("alike/{number}"), || text)?;
        let first: BTreeMap<String, String> =
            serde_json::from_slice(&first).map_err(|_| self.strange())?;
        let names: BTreeSet<&String> = own.keys().chain(first.keys()).collect();
        let differing = names
            .into_iter()
            .filter(|name| own.get(*name) != first.get(*name));
        let of = |name: &String| Difference {
            name: name.clone(),
            own: own.get(name).cloned(),
            first: first.get(name).cloned(),
        };
        Ok(differing.map(of).collect())
    }

    /// Whether a signal to some process asks all of them to stop. Asks nobody: the answers to
    /// heartbeats bring it.
    pub fn stop_is_asked(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says that this process has finished a step and is to stop; the last step of all, once each
    /// of them has said so. Ask after every step from then on.
    ///
    /// # Errors
    /// If the rendezvous is lost.
    pub fn agree_on_end(&self, step: u64, signal: Option<i32>) -> Result<Option<LastStep>> {
        match self.ask(&Request::Agree { step, signal }, AT_ONCE)? {
            Reply::Stop(last) => Ok(last),
            _ => Err(self.strange()),
        }
    }

    /// Says goodbye, and how this process ends. Rank 0 waits for the others where it holds the
    /// rendezvous.
    pub fn leave(&self, ended: Ended) {
        let failed = ended != Ended::Well;
        if !failed && self.member.is_launched() {
            return; // its launcher sees how it ends
        }
        let answer = self.ask(&Request::Leave { ended }, AT_ONCE);
        if let (Ok(_), false, Some(server)) = (answer, failed, &self.server) {
            server.wait_until_left(FAREWELL);
        }
    }

    /// Asks on a connection that nobody uses. A connection that was reset may come back within the
    /// heartbeat's patience: every request may be sent twice.
    fn ask(&self, request: &Request, wait: Duration) -> Result<Reply> {
        let idle = || {
            self.idle
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        let patience = self.member.timeouts.heartbeat;
        let mut lost: Option<Instant> = None;
        loop {
            let free = idle().pop();
            let mut connection = match free {
                Some(connection) => connection,
                None => connect(&self.member, patience)?.leading_to(&self.job)?,
            };
            match connection.ask(request, wait) {
                Ok(reply) => {
                    idle().push(connection);
                    return Ok(reply);
                }
                Err(Error::Lost { .. })
                    if lost.get_or_insert_with(Instant::now).elapsed() < patience => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn strange(&self) -> Error {
        Error::Lost {
            endpoint: self.member.endpoint.clone(),
            reason: "an answer that does not fit the question".into(),
        }
    }

    /// Starts the thread that beats. It ends the process when the job has to end and no launcher
    /// does that.
    fn beat(self: Arc<Self>) -> Result<()> {
        let timeouts = self.member.timeouts;
        let mut connection = connect(&self.member, timeouts.join)?;
        let pause = (timeouts.heartbeat / 4).min(Duration::from_secs(1));
        let (rank, launched) = (self.member.rank, self.member.is_launched());
        let quit = move |code: i32, reason: String| {
            eprintln!("error: {reason}");
            std::process::exit(code);
        };
        let lost = if launched { LOST_RENDEZVOUS } else { 1 };
        let (sender, first_beat) = std::sync::mpsc::channel();
        let body = move || {
            loop {
                let step = self.step.load(Ordering::Relaxed);
                let answer = connection.ask(&Request::Beat { step }, AT_ONCE);
                // Only the first one is waited for.
                let _ = sender.send(());
                match answer {
                    Ok(Reply::Alive {
                        failure: Some(reason),
                        ..
                    }) if !launched => quit(1, format!("the job was stopped: {reason}")),
                    Ok(reply) => {
                        if let Reply::Alive { stop: true, .. } = reply {
                            self.stop.store(true, Ordering::Relaxed);
                        }
                        std::thread::sleep(pause);
                    }
                    Err(_) => {
                        let again = connect(&self.member, timeouts.heartbeat);
                        match again.and_then(|again| again.leading_to(&self.job)) {
                            Ok(again) => connection = again,
                            Err(error) => quit(lost, error.to_string()),
                        }
                    }
                }
            }
        };
        let spawned = std::thread::Builder::new()
            .name("heartbeat".into())
            .spawn(body);
        spawned
            .map(drop)
            .map_err(|source| Error::Heartbeat { rank, source })?;
        // While a library is being opened, which for XLA's takes seconds, a new thread cannot
        // begin: the C library holds a lock that both need. So this one is at work before the
        // caller continues.
        let _ = first_beat.recv();
        Ok(())
    }
}

/// Takes a rank, which one process has.
///
/// # Errors
/// If another process has it.
fn claim_rank(connection: &mut Connection, rank: usize) -> Result<()> {
    let name = format!("process {} on {}", std::process::id(), host());
    // Process numbers are unique on one machine only, and names of containers need not be.
    let own = [name, nonce()];
    let request = Request::PutFirst {
        key: format!("rank/{rank}"),
        value: own.join("\n").into_bytes(),
    };
    let Reply::Value(Some(holder)) = connection.ask(&request, AT_ONCE)? else {
        return Ok(());
    };
    let holder = String::from_utf8_lossy(&holder);
    if holder == own.join("\n") {
        return Ok(());
    }
    let by = holder.lines().next().unwrap_or_default().to_string();
    Err(Error::Taken { rank, by })
}

/// Connects as a rank; retries for `patience`.
fn connect(member: &RankInfo, patience: Duration) -> Result<Connection> {
    let role = Role::Rank {
        rank: member.rank,
        world: member.world,
        generation: member.generation,
    };
    Connection::open(&member.endpoint, &member.secret, &role, patience)
}
