//! The rendezvous: a store of small values, and the job's state, behind a listening socket. Runs in
//! node 0's launcher, or in rank 0 where something else started the ranks.

use super::job::{Job, JobSettings, Others};
use super::secret::{Secret, nonce};
use super::strangers;
use super::wire::{self, Claim, Reply, Request, Role};
use super::{Error, Result};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Values that the store holds at most: addresses of a job of thousands of ranks, and a few for each
/// rank of what its processes agree on ([`Request::Forget`] removes those of the time before).
const MOST_VALUES: usize = 1 << 20;

pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    secret: Secret,
    /// Tells this rendezvous from another at the same address.
    id: String,
    /// Values that the store holds at most.
    room: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    values: BTreeMap<String, Vec<u8>>,
    /// The start of the job that the values are of.
    generation: u64,
    job: Job,
}

impl State {
    /// After a restart nobody asks for values of the start before.
    fn forget_earlier_starts(&mut self) {
        if self.generation != self.job.generation() {
            self.generation = self.job.generation();
            let own = scoped(self.generation, "");
            self.values
                .retain(|key, _| key.starts_with(wire::OF_THE_JOB) || key.starts_with(&own));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Server {
    /// Listens at the address that was given, and only there. Ends with the process.
    pub fn start(endpoint: &str, secret: Secret, settings: JobSettings) -> Result<Server> {
        Server::with_room(endpoint, secret, settings, MOST_VALUES)
    }

    /// The same with a store that holds `room` values.
    pub(super) fn with_room(
        endpoint: &str,
        secret: Secret,
        settings: JobSettings,
        room: usize,
    ) -> Result<Server> {
        let fail = |source| Error::Listen {
            endpoint: endpoint.into(),
            source,
        };
        let addresses: Vec<SocketAddr> = endpoint.to_socket_addrs().map_err(fail)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let state = State {
            values: BTreeMap::new(),
            generation: 0,
            job: Job::new(settings, Instant::now()),
        };
        let shared = Arc::new(Shared {
            secret,
            id: nonce(),
            room,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let serving = shared.clone();
        let accept = move || {
            let welcome = |stream, claim, nonce: String| {
                let shared = serving.clone();
                let _ = std::thread::Builder::new()
                    .name("rendezvous".into())
                    .spawn(move || shared.serve(stream, &claim, &nonce));
            };
            strangers::admit(&listener, &serving.secret, welcome)
        };
        std::thread::Builder::new()
            .name("rendezvous".into())
            .spawn(accept)
            .map_err(fail)?;
        Ok(Server { shared, address })
    }

    /// Where it listens, with the port that the system chose if none was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every node that can be reached knows how the job ended, at most this long.
    pub fn wait_for_nodes(&self, patience: Duration) {
        self.wait_until(patience, |job| job.all_know_the_end(Instant::now()));
    }

    /// Waits until no rank is at work any more, at most this long.
    pub fn wait_until_left(&self, patience: Duration) {
        self.wait_until(patience, Job::all_left);
    }

    fn wait_until(&self, patience: Duration, done: impl Fn(&Job) -> bool) {
        let began = Instant::now();
        while began.elapsed() < patience && !done(&self.shared.lock().job) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Shared {
    /// One connection of a peer that knows the secret, until it ends.
    fn serve(&self, stream: TcpStream, claim: &Claim, nonce: &str) {
        let admitted = {
            let job = &mut self.lock().job;
            match &claim.role {
                Role::Rank {
                    rank,
                    world,
                    generation,
                } => job.admit_rank(*rank, *world, *generation, Instant::now()),
                Role::Node {
                    node,
                    nodes,
                    processes,
                    session,
                } => job.admit_node(*node, *nodes, *processes, session),
            }
        };
        let Ok(channel) = wire::welcome(stream, &self.secret, claim, nonce, &self.id, admitted)
        else {
            return;
        };
        let _ = wire::serve(channel, |request| self.answer(&claim.role, request));
    }

    fn answer(&self, role: &Role, request: Request) -> Reply {
        match role {
            Role::Rank {
                rank, generation, ..
            } => self.answer_rank(*rank, *generation, request),
            Role::Node { node, .. } => match request {
                Request::Report(report) => {
                    let mut state = self.lock();
                    let order = state.job.report(*node, report, Instant::now());
                    state.forget_earlier_starts();
                    Reply::Order(order)
                }
                _ => not_for_this_side(),
            },
        }
    }

    fn answer_rank(&self, rank: usize, generation: u64, request: Request) -> Reply {
        match request {
            Request::Put { key, value } => self.put(generation, key, value, true),
            Request::PutFirst { key, value } => self.put(generation, key, value, false),
            Request::Get { key, timeout_ms } => {
                match self.get(&scoped(generation, &key), Duration::from_millis(timeout_ms)) {
                    Some(value) => Reply::Value(Some(value)),
                    None => Reply::Late {
                        missing: self.lock().job.missing(),
                    },
                }
            }
            Request::TryGet { key } => {
                Reply::Value(self.lock().values.get(&scoped(generation, &key)).cloned())
            }
            Request::Forget { prefix } => {
                let prefix = scoped(generation, &prefix);
                let mut state = self.lock();
                let mut rest = state.values.split_off(&prefix);
                rest.retain(|key, _| !key.starts_with(&prefix));
                state.values.append(&mut rest);
                Reply::Done
            }
            Request::Beat(beat) => {
                let job = &mut self.lock().job;
                if generation == job.generation() {
                    Reply::Alive {
                        failure: job.beat(rank, beat, Instant::now()),
                        stop: job.stop_is_asked(),
                        others: job.others(rank),
                    }
                } else {
                    Reply::Alive {
                        failure: None,
                        stop: false,
                        others: Others::default(),
                    }
                }
            }
            Request::Agree { step, signal } => {
                let job = &mut self.lock().job;
                let current = generation == job.generation();
                Reply::Stop(current.then(|| job.agree(rank, step, signal)).flatten())
            }
            Request::Leave { ended } => {
                let job = &mut self.lock().job;
                if generation == job.generation() {
                    job.leave(rank, ended, Instant::now());
                }
                Reply::Done
            }
            Request::Report(_) => not_for_this_side(),
        }
    }

    fn put(&self, generation: u64, key: String, value: Vec<u8>, replace: bool) -> Reply {
        let mut state = self.lock();
        let key = scoped(generation, &key);
        if state.values.len() >= self.room && !state.values.contains_key(&key) {
            return Reply::Error("the store is full".into());
        }
        if replace || !state.values.contains_key(&key) {
            state.values.insert(key.clone(), value);
        }
        let now = state.values.get(&key).cloned();
        drop(state);
        self.changed.notify_all();
        if replace {
            Reply::Done
        } else {
            Reply::Value(now)
        }
    }

    fn get(&self, key: &str, patience: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            if let Some(value) = state.values.get(key) {
                return Some(value.clone());
            }
            let left = until
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())?;
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .0;
        }
    }
}

fn not_for_this_side() -> Reply {
    Reply::Error("unexpected request for this role".into())
}

/// Values of one start are not seen by the next, but for those of the whole job.
fn scoped(generation: u64, key: &str) -> String {
    if key.starts_with(wire::OF_THE_JOB) {
        key.to_string()
    } else {
        format!("{generation}/{key}")
    }
}
