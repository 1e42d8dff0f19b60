//! Connections whose peer has not yet shown that it knows the secret. One thread holds all of them,
//! and what they may cost is bounded: how many there are, what they send, how long they take, how
//! many are taken in a second. Only who knows the secret gets a thread of its own.

use super::secret::Secret;
use super::wire::{self, Claim, LARGEST_CLAIM};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, getrlimit};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Most connections at a time, if the process may have enough descriptors; of more, one goes.
const MOST: usize = 128;

/// In all, from being taken to a right claim. Peers need two round trips.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections that are taken in a row before the thread rests. Others wait in the system's queue.
const BURST: usize = 16;
const REST: Duration = Duration::from_millis(16);

struct Stranger {
    stream: TcpStream,
    address: IpAddr,
    since: Instant,
    nonce: String,
    /// What it has sent so far.
    received: Vec<u8>,
}

/// What a stranger turned out to be.
enum Progress {
    Waiting,
    Gone,
    Claims(Claim),
}

impl Stranger {
    /// Greets a new connection.
    fn greet(mut stream: TcpStream, address: IpAddr) -> io::Result<Stranger> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // A few hundred bytes into the empty buffer of a new socket: this does not wait.
        let nonce = wire::greet(&mut stream)?;
        Ok(Stranger {
            stream,
            address,
            since: Instant::now(),
            nonce,
            received: Vec::new(),
        })
    }

    /// Takes what has come; never waits.
    fn listen(&mut self) -> Progress {
        let mut bytes = [0; 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Progress::Gone,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Progress::Waiting;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Progress::Gone,
            }
            if self.received.len() > 4 + LARGEST_CLAIM {
                return Progress::Gone;
            }
            match wire::claim(&self.received) {
                Ok(Some(claim)) => return Progress::Claims(claim),
                Ok(None) => {}
                Err(_) => return Progress::Gone,
            }
        }
    }
}

/// Takes connections for as long as the process lives, and hands those whose peer knows the secret
/// to `welcome`, with what the peer claims and the nonce that its proof is for.
pub fn admit(
    listener: &TcpListener,
    secret: &Secret,
    welcome: impl Fn(TcpStream, Claim, String),
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(descriptors / 4).map_or(MOST, |share| share.clamp(4, MOST));
    let mut strangers: VecDeque<Stranger> = VecDeque::new();
    loop {
        let ready = ready(listener, &strangers);
        let mut index = 0;
        let now = Instant::now();
        strangers.retain_mut(|stranger| {
            index += 1;
            let progress = if ready.get(index).copied().unwrap_or(false) {
                stranger.listen()
            } else {
                Progress::Waiting
            };
            match progress {
                Progress::Waiting => now - stranger.since < PATIENCE,
                Progress::Gone => false,
                Progress::Claims(claim) => {
                    let nonce = std::mem::take(&mut stranger.nonce);
                    if let Ok(mut stream) = stranger.stream.try_clone()
                        && wire::knows_secret(&mut stream, secret, &claim, &nonce)
                    {
                        welcome(stream, claim, nonce);
                    }
                    false
                }
            }
        });
        if !ready[0] {
            continue;
        }
        for _ in 0..BURST {
            match listener.accept() {
                Ok((stream, from)) => {
                    if strangers.len() >= most {
                        make_room(&mut strangers);
                    }
                    strangers.extend(Stranger::greet(stream, from.ip()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No descriptor is left: one of ours makes room, and the others wait.
                Err(_) => {
                    make_room(&mut strangers);
                    break;
                }
            }
        }
        std::thread::sleep(REST);
    }
}

/// Sends away the oldest of those that come from the busiest address, so that a flood from a few
/// addresses does not cost others the two round trips that they need.
fn make_room(strangers: &mut VecDeque<Stranger>) {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for stranger in strangers.iter() {
        *counts.entry(stranger.address).or_default() += 1;
    }
    let most = counts.values().copied().max();
    let oldest = strangers
        .iter()
        .position(|stranger| counts.get(&stranger.address).copied() == most);
    if let Some(index) = oldest {
        strangers.remove(index);
    }
}

/// Waits until something happens; whether it did at the listener, then at each of the strangers.
fn ready(listener: &TcpListener, strangers: &VecDeque<Stranger>) -> Vec<bool> {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(
        strangers
            .iter()
            .map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN)),
    );
    let oldest = strangers.front().map(|stranger| {
        let left = PATIENCE.saturating_sub(stranger.since.elapsed());
        left.try_into().unwrap_or_default()
    });
    match poll(&mut fds, oldest.as_ref()) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        // A signal came: look again.
        Err(_) => vec![false; fds.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Beat, JobSettings};
    use super::super::server::Server;
    use super::super::wire::{Connection, Reply, Request, Role};
    use super::*;
    use std::io::Write;

    fn server(secret: &Secret) -> Server {
        let settings = JobSettings {
            nodes: 0,
            processes: 2,
            max_restarts: 0,
            heartbeat: Duration::from_secs(60),
            join: Duration::from_secs(60),
        };
        Server::start("127.0.0.1:0", secret.clone(), settings).unwrap()
    }

    fn rank(number: usize) -> Role {
        Role::Rank {
            rank: number,
            world: 2,
            generation: 0,
        }
    }

    #[test]
    fn who_knows_the_secret_gets_past_any_number_of_strangers() {
        let secret = Secret::generate();
        let address = server(&secret).address();
        let mut held = Vec::new();
        for number in 0..3 * MOST {
            let mut stranger = TcpStream::connect(address).unwrap();
            let _ = stranger.write_all(match number % 3 {
                0 => b"GET / HTTP/1.1\r\n\r\n".as_slice(),
                1 => b"\0\0\0\x40{",
                _ => b"",
            });
            held.push(stranger);
        }
        for number in [0, 1] {
            let patience = Duration::from_secs(60);
            let endpoint = address.to_string();
            let mut connection =
                Connection::open(&endpoint, &secret, &rank(number), patience).unwrap();
            let reply = connection.ask(&Request::Beat(Beat::default()), Duration::ZERO);
            assert!(
                matches!(reply, Ok(Reply::Alive { failure: None, .. })),
                "{reply:?}"
            );
        }
        // The oldest were sent away.
        held[2]
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        assert!(io::copy(&mut held[2], &mut io::sink()).is_ok_and(|bytes| bytes < 1000));
    }

    #[test]
    fn a_flood_from_one_address_sends_its_own_away() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers = VecDeque::new();
        let mut peers = Vec::new();
        for last in [9, 7, 7, 7] {
            peers.push(TcpStream::connect(address).unwrap());
            let stream = listener.accept().unwrap().0;
            strangers.extend(Stranger::greet(stream, IpAddr::from([10, 0, 0, last])));
        }
        let ends = |strangers: &VecDeque<Stranger>| -> Vec<IpAddr> {
            strangers.iter().map(|stranger| stranger.address).collect()
        };
        make_room(&mut strangers);
        make_room(&mut strangers);
        assert_eq!(
            ends(&strangers),
            [9, 7].map(|last| IpAddr::from([10, 0, 0, last]))
        );
        make_room(&mut strangers);
        assert_eq!(ends(&strangers), [IpAddr::from([10, 0, 0, 7])]);
        make_room(&mut strangers);
        make_room(&mut strangers);
        assert!(strangers.is_empty());
    }

    #[test]
    fn a_claim_that_comes_byte_by_byte_is_heard() {
        let secret = Secret::generate();
        let mut stream = TcpStream::connect(server(&secret).address()).unwrap();
        let (bytes, _) = wire::tests::claim_bytes(&mut stream, &secret, &rank(1));
        for byte in bytes {
            stream.write_all(&[byte]).unwrap();
            stream.flush().unwrap();
        }
        let answer = wire::tests::answer(&mut stream);
        assert!(answer.contains("Welcome"), "{answer}");
    }

    #[test]
    fn a_wrong_secret_is_told_so() {
        let address = server(&Secret::generate()).address().to_string();
        let wrong = Secret::generate();
        let refused = Connection::open(&address, &wrong, &rank(0), Duration::from_secs(5));
        let message = refused.err().unwrap().to_string();
        assert!(
            message.contains("presented a different secret"),
            "{message}"
        );
    }
}
