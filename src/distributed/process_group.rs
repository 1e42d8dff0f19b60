//! The processes of a run as one of them sees them: its own number, the store, and the thread that
//! tells the others that it is alive.

use super::backoff::Backoff;
use super::environment::RankInfo;
use super::job::{Beat, Ended, JobSettings, LOST_RENDEZVOUS, LastStep};
use super::secret::nonce;
use super::server::Server;
use super::wire::{Connection, Reply, Request, Role};
use super::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use xtrain_report::ending::end_now;
use xtrain_report::telemetry::host;

/// For questions that are answered at once.
const AT_ONCE: Duration = Duration::ZERO;

/// For what another rank does meanwhile. Whether it still lives, heartbeats tell; while it says that
/// it saves or compiles, no time counts.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Between two looks at what the others do.
const LOOK: Duration = Duration::from_secs(30);

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

/// No checkpoint has this step.
const NONE: u64 = u64::MAX;

/// What a process does that others may wait for, for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Saving,
    Compiling,
}

/// A process is at a [`Work`] until this is dropped.
pub struct Busy {
    group: Arc<ProcessGroup>,
    work: Work,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.group.busy[self.work as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

pub struct ProcessGroup {
    member: RankInfo,
    /// Connections that nobody is using. A question that waits for an answer keeps its own.
    idle: Mutex<Vec<Connection>>,
    /// For heartbeats: the step of the newest checkpoint, [`NONE`] without one.
    saved: AtomicU64,
    /// How often this process is saving and compiling.
    busy: [AtomicUsize; 2],
    /// Waits for values of other ranks.
    waits: AtomicUsize,
    /// As heartbeats' answers say: others save or compile, and may so delay the devices.
    others_are_busy: AtomicBool,
    devices_are_delayed: AtomicBool,
    /// What all ranks have reached last, whose values they have not all read yet.
    reached: Mutex<String>,
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
        let group = ProcessGroup::new(member)?;
        Ok(JOINED.get_or_init(|| group).clone())
    }

    fn new(member: &RankInfo) -> Result<Arc<ProcessGroup>> {
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
            saved: AtomicU64::new(NONE),
            busy: Default::default(),
            waits: AtomicUsize::new(0),
            others_are_busy: AtomicBool::new(false),
            devices_are_delayed: AtomicBool::new(false),
            reached: Mutex::default(),
            comparisons: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            job,
            host,
            server,
        });
        group.clone().beat()?;
        Ok(group)
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

    /// Says that there is a whole checkpoint of this step, which a restart would go on from.
    pub fn saved(&self, step: u64) {
        self.saved.store(step, Ordering::Relaxed);
        // At once: this process may not live to its next heartbeat. If the rendezvous is lost, that one
        // finds it out.
        let _ = self.ask(&Request::Beat(self.state()), AT_ONCE);
    }

    /// Says that this process of a job is at such work until the result is dropped: others that wait
    /// for it wait longer.
    pub fn at_work(work: Work) -> Option<Busy> {
        let group = ProcessGroup::joined()?;
        group.busy[work as usize].fetch_add(1, Ordering::Relaxed);
        Some(Busy { group, work })
    }

    /// Whether a wait for the devices may be long for what another rank does.
    pub fn devices_are_delayed() -> bool {
        let group = JOINED.get();
        group.is_some_and(|group| group.devices_are_delayed.load(Ordering::Relaxed))
    }

    fn state(&self) -> Beat {
        let saved = self.saved.load(Ordering::Relaxed);
        // Who waits for another rank keeps none waiting, or each would excuse the other for ever.
        let waits = self.waits.load(Ordering::Relaxed) > 0;
        let is_at = |work: Work| !waits && self.busy[work as usize].load(Ordering::Relaxed) > 0;
        Beat {
            saved: (saved != NONE).then_some(saved),
            is_saving: is_at(Work::Saving),
            is_compiling: is_at(Work::Compiling),
        }
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

    /// Waits for a value that another rank puts, an hour at most: time in which another rank saves or
    /// compiles does not count.
    ///
    /// # Errors
    /// If it does not come in time, or the rendezvous is lost.
    pub fn wait_for(&self, key: &str) -> Result<Vec<u8>> {
        self.wait_within(key, PATIENCE, LOOK)
    }

    fn wait_within(&self, key: &str, patience: Duration, look: Duration) -> Result<Vec<u8>> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let value = self.value_within(key, patience, look);
        self.waits.fetch_sub(1, Ordering::Relaxed);
        value
    }

    fn value_within(&self, key: &str, patience: Duration, look: Duration) -> Result<Vec<u8>> {
        let mut left = patience;
        loop {
            let look = look.min(left);
            match self.get(key, look) {
                Err(Error::Timeout { .. }) if self.others_are_busy.load(Ordering::Relaxed) => {}
                Err(Error::Timeout { .. }) if left > look => left -= look,
                Err(Error::Timeout { what, missing, .. }) => {
                    return Err(Error::Timeout {
                        what,
                        seconds: patience.as_secs(),
                        missing,
                    });
                }
                result => return result,
            }
        }
    }

    /// Whether all ranks say yes. Each of them calls it, once for each `question` about `what`, and
    /// in the same order. Whoever asks about something else has read all values about what came
    /// before, whose keys begin with its name: they are removed once all ranks have asked.
    ///
    /// # Errors
    /// If the others cannot be asked.
    pub fn all_agree(&self, what: &str, question: &str, own: bool) -> Result<bool> {
        let RankInfo { rank, world, .. } = self.member;
        let key = format!("{what}/{question}");
        let of = |rank: usize| format!("{key}/from/{rank}");
        if rank > 0 {
            self.put(&of(rank), &[u8::from(own)])?;
            return Ok(self.wait_for(&key)? == [1]);
        }
        let mut all = own;
        for rank in 1..world {
            all &= self.wait_for(&of(rank))? == [1];
        }
        let before = {
            let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
            (*reached != what).then(|| std::mem::replace(&mut *reached, what.to_string()))
        };
        if let Some(before) = before.filter(|before| !before.is_empty()) {
            let prefix = format!("{before}/");
            self.ask(&Request::Forget { prefix }, AT_ONCE)?;
        }
        self.put(&key, &[u8::from(all)])?;
        Ok(all)
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
            return self.wait_for(key);
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
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = self.member.timeouts.heartbeat;
        let mut lost: Option<Instant> = None;
        let mut backoff = Backoff::new();
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
                    if lost.get_or_insert_with(Instant::now).elapsed() < patience =>
                {
                    std::thread::sleep(backoff.next());
                }
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
        // Other threads may be inside of collectives.
        let quit =
            |code: i32, reason: String| -> ! { end_now(code, &format!("error: {reason}\n")) };
        let lost = if launched { LOST_RENDEZVOUS } else { 1 };
        let (sender, first_beat) = std::sync::mpsc::channel();
        let body = move || {
            let mut backoff = Backoff::new();
            loop {
                let answer = connection.ask(&Request::Beat(self.state()), AT_ONCE);
                // Only the first one is waited for.
                let _ = sender.send(());
                match answer {
                    Ok(Reply::Alive {
                        failure: Some(reason),
                        ..
                    }) if !launched => quit(1, format!("the job was stopped: {reason}")),
                    Ok(reply) => {
                        if let Reply::Alive { stop, others, .. } = reply {
                            self.stop.fetch_or(stop, Ordering::Relaxed);
                            let set = |of: &AtomicBool, is| of.store(is, Ordering::Relaxed);
                            set(&self.others_are_busy, others.are_busy);
                            set(&self.devices_are_delayed, others.delay_devices);
                        }
                        backoff = Backoff::new();
                        std::thread::sleep(pause);
                    }
                    Err(_) => {
                        std::thread::sleep(backoff.next());
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

#[cfg(test)]
mod tests {
    use super::super::environment::Timeouts;
    use super::super::secret::Secret;
    use super::*;

    /// A rendezvous with a store of N values, and the groups of its ranks.
    fn groups(world: usize, room: usize) -> Vec<Arc<ProcessGroup>> {
        let (secret, timeouts) = (Secret::generate(), Timeouts::default());
        let settings = JobSettings {
            nodes: 0,
            processes: world,
            max_restarts: 0,
            heartbeat: timeouts.heartbeat,
            join: timeouts.join,
        };
        let server = Server::with_room("127.0.0.1:0", secret.clone(), settings, room).unwrap();
        let member = |rank| RankInfo {
            rank,
            world,
            local_rank: rank,
            local_world: world,
            endpoint: server.address().to_string(),
            secret: secret.clone(),
            launched: Some(0),
            generation: 0,
            timeouts,
        };
        (0..world)
            .map(|rank| ProcessGroup::new(&member(rank)).unwrap())
            .collect()
    }

    /// A checkpoint takes several values of each rank; a job makes any number of checkpoints.
    #[test]
    fn the_store_does_not_fill_with_what_all_have_read() {
        const WORLD: usize = 4;
        let checkpoints = |group: Arc<ProcessGroup>| {
            let rank = group.rank_info().rank;
            for step in 1..=60 {
                let what = format!("checkpoint/{step}");
                if rank == 0 {
                    group.put(&format!("{what}/directory"), b"x").unwrap();
                }
                assert!(group.all_agree(&what, "shared", true).unwrap());
                let agreed = group.all_agree(&what, "background", rank != 2).unwrap();
                assert!(!agreed, "rank 2 says no");
                group.wait_for(&format!("{what}/directory")).unwrap();
                group.put(&format!("{what}/part/{rank}"), &[1]).unwrap();
                for other in 0..WORLD {
                    group.wait_for(&format!("{what}/part/{other}")).unwrap();
                }
            }
        };
        // Room for the values of the ranks themselves, and of two checkpoints.
        let groups = groups(WORLD, WORLD + 2 * (3 + 3 * WORLD));
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(|| checkpoints(group));
            }
        });
    }

    #[test]
    fn a_rank_that_saves_is_waited_for() {
        let groups = groups(2, 100);
        let milliseconds = Duration::from_millis;
        let error = groups[1]
            .wait_within("late", milliseconds(50), milliseconds(10))
            .unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        groups[0].busy[Work::Saving as usize].fetch_add(1, Ordering::Relaxed);
        // Rank 1 hears of it with its next heartbeat.
        let until = Instant::now() + Duration::from_secs(20);
        while !groups[1].devices_are_delayed.load(Ordering::Relaxed) {
            assert!(Instant::now() < until);
            std::thread::sleep(milliseconds(20));
        }
        let writer = groups[0].clone();
        let late = std::thread::spawn(move || {
            std::thread::sleep(milliseconds(400));
            writer.put("late", b"x").unwrap();
        });
        let value = groups[1].wait_within("late", milliseconds(50), milliseconds(10));
        assert_eq!(value.unwrap(), b"x");
        late.join().unwrap();
    }

    #[test]
    fn a_rank_that_saves_and_waits_for_another_delays_no_device() {
        let groups = groups(2, 100);
        groups[0].busy[Work::Saving as usize].fetch_add(1, Ordering::Relaxed);
        assert!(groups[0].state().is_saving);
        let saving = groups[0].clone();
        let waits = std::thread::spawn(move || saving.wait_for("answer"));
        let until = Instant::now() + Duration::from_secs(20);
        while groups[0].state().is_saving {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        groups[1].put("answer", b"x").unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), b"x");
        assert!(groups[0].state().is_saving);
    }
}
