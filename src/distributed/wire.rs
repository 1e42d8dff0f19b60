//! What goes over a connection to the rendezvous: requests and their replies, each authenticated
//! (`channel`), after a handshake in which both sides show that they know the secret.

use super::backoff::Backoff;
use super::channel::{Channel, Side, plain_frame, receive_plain, send_plain};
use super::job::{Beat, Ended, LastStep, Order, Others, Report};
use super::secret::{Secret, nonce};
use super::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Keys that begin so are kept over restarts.
pub(super) const OF_THE_JOB: &str = "job/";

/// Raise it when the messages change: processes of different versions do not train together.
const PROTOCOL: u32 = 4;

/// A claim names a role and a proof; the other messages of a handshake are shorter.
pub(super) const LARGEST_CLAIM: usize = 1 << 12;

/// For the few messages of a handshake, and for the answer to anything that does not wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// After so long without a request the server hangs up, so that a peer whose machine is gone does
/// not keep a descriptor; a rank that was only quiet comes back.
const IDLE: Duration = Duration::from_secs(600);

/// A try to connect has this long, however little time is left.
const SHORTEST_TRY: Duration = Duration::from_millis(100);

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Rank {
        rank: usize,
        world: usize,
        generation: u64,
    },
    Node {
        node: usize,
        nodes: usize,
        processes: usize,
        /// The launcher's own number: it may come back after its connection was reset, and a second
        /// one for the same node is another.
        session: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    Put {
        key: String,
        value: Vec<u8>,
    },
    /// Keeps the value that is there, if there is one; answers with what it is then.
    PutFirst {
        key: String,
        value: Vec<u8>,
    },
    Get {
        key: String,
        timeout_ms: u64,
    },
    TryGet {
        key: String,
    },
    /// Removes the values whose keys begin so, of this start of the job: every rank has read them.
    Forget {
        prefix: String,
    },
    Beat(Beat),
    /// A rank was asked to stop, by a signal or by [`Reply::Alive`], and has finished this step.
    Agree {
        step: u64,
        signal: Option<i32>,
    },
    /// A rank ends by its own will.
    Leave {
        ended: Ended,
    },
    Report(Report),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Value(Option<Vec<u8>>),
    /// A value did not come in time; the ranks that have not joined.
    Late {
        missing: Vec<usize>,
    },
    /// To a beat: why the job has to end, if it has to, whether a signal asks for its end, and what
    /// keeps the other ranks.
    Alive {
        failure: Option<String>,
        stop: bool,
        others: Others,
    },
    /// The step to stop after, once all ranks agree.
    Stop(Option<LastStep>),
    Order(Order),
    Error(String),
}

#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: u32,
    nonce: String,
}

/// What a peer says of itself, with the proof that it knows the secret.
#[derive(Serialize, Deserialize)]
pub(super) struct Claim {
    pub role: Role,
    nonce: String,
    proof: String,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    /// With the number of this rendezvous: another one at the same address is another job.
    Welcome {
        proof: String,
        job: String,
    },
    Denied {
        reason: String,
    },
}

/// The server's first words to a new connection; the nonce in them.
pub(super) fn greet(stream: &mut TcpStream) -> io::Result<String> {
    let nonce = nonce();
    let hello = Hello {
        protocol: PROTOCOL,
        nonce: nonce.clone(),
    };
    send_plain(stream, &hello)?;
    Ok(nonce)
}

/// The claim in what a peer has sent so far, `None` if more has to come.
pub(super) fn claim(received: &[u8]) -> io::Result<Option<Claim>> {
    plain_frame(received, LARGEST_CLAIM)
}

/// Whether a claim proves that its maker knows the secret, for this nonce of ours. If not, the peer
/// gets to know.
pub(super) fn knows_secret(
    stream: &mut TcpStream,
    secret: &Secret,
    claim: &Claim,
    own: &str,
) -> bool {
    let role = serde_json::to_string(&claim.role).expect("a role is plain data");
    let knows = secret.accepts(&claim.proof, &["joins", own, &claim.nonce, &role]);
    if !knows {
        let reason =
            "it presented a different secret (XTRAIN_RDZV_SECRET or --rdzv_secret_file must be the same everywhere)".into();
        // It may be gone already.
        let _ = send_plain(stream, &Answer::Denied { reason });
    }
    knows
}

/// Answers a claim that proves the secret; `admitted` says why its maker may not take part, and
/// `job` is the rendezvous' own number.
///
/// # Errors
/// If it may not, or is gone.
pub(super) fn welcome(
    mut stream: TcpStream,
    secret: &Secret,
    claim: &Claim,
    own: &str,
    job: &str,
    admitted: std::result::Result<(), String>,
) -> io::Result<Channel> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(IDLE))?;
    if let Err(reason) = admitted {
        let denied = Answer::Denied {
            reason: reason.clone(),
        };
        send_plain(&mut stream, &denied)?;
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    let role = serde_json::to_string(&claim.role)?;
    let proof = secret.proof(&["serves", own, &claim.nonce, &role, job]);
    let job = job.to_string();
    send_plain(&mut stream, &Answer::Welcome { proof, job })?;
    let key = secret.session(&[own, &claim.nonce, &role]);
    Ok(Channel::new(stream, key, Side::Server))
}

/// Answers requests until the other side hangs up.
pub(super) fn serve(
    mut channel: Channel,
    mut answer: impl FnMut(Request) -> Reply,
) -> io::Result<()> {
    loop {
        let request = channel.receive()?;
        channel.send(&answer(request))?;
    }
}

/// A connection of a rank or a node.
pub struct Connection {
    channel: Channel,
    endpoint: String,
    job: String,
}

impl Connection {
    /// Connects; retries for `patience`, because the rendezvous may start later.
    pub fn open(
        endpoint: &str,
        secret: &Secret,
        role: &Role,
        patience: Duration,
    ) -> Result<Connection> {
        let began = Instant::now();
        let mut backoff = Backoff::new();
        let mut last;
        loop {
            match connect(
                endpoint,
                patience.saturating_sub(began.elapsed()).max(SHORTEST_TRY),
            ) {
                Ok(stream) => match Self::introduce(stream, endpoint, secret, role) {
                    // It ended in between, or something else listens there that does not speak.
                    Err(Error::Lost { reason, .. }) => last = reason,
                    result => return result,
                },
                Err(error) => last = error.to_string(),
            }
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(Error::Unreachable {
                    endpoint: endpoint.into(),
                    seconds: patience.as_secs(),
                    last,
                });
            }
            std::thread::sleep(backoff.next().min(left));
        }
    }

    fn introduce(
        mut stream: TcpStream,
        endpoint: &str,
        secret: &Secret,
        role: &Role,
    ) -> Result<Connection> {
        let lost = |error: io::Error| Error::Lost {
            endpoint: endpoint.into(),
            reason: error.to_string(),
        };
        let refused = |reason: String| Error::Refused {
            endpoint: endpoint.into(),
            reason,
        };
        let until = Instant::now() + PATIENCE;
        stream.set_nodelay(true).map_err(lost)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(lost)?;
        let hello: Hello = receive_plain(&mut stream, LARGEST_CLAIM, until).map_err(lost)?;
        if hello.protocol != PROTOCOL {
            return Err(refused(format!(
                "it speaks version {} of the protocol, this is {PROTOCOL}",
                hello.protocol
            )));
        }
        let own = nonce();
        let text = serde_json::to_string(role).expect("a role is plain data");
        let proof = secret.proof(&["joins", &hello.nonce, &own, &text]);
        let claim = Claim {
            role: role.clone(),
            nonce: own.clone(),
            proof,
        };
        send_plain(&mut stream, &claim).map_err(lost)?;
        match receive_plain(&mut stream, LARGEST_CLAIM, until).map_err(lost)? {
            Answer::Denied { reason } => Err(refused(reason)),
            Answer::Welcome { proof, job }
                if secret.accepts(&proof, &["serves", &hello.nonce, &own, &text, &job]) =>
            {
                let key = secret.session(&[&hello.nonce, &own, &text]);
                Ok(Connection {
                    channel: Channel::new(stream, key, Side::Client),
                    endpoint: endpoint.into(),
                    job,
                })
            }
            Answer::Welcome { .. } => Err(Error::Impostor {
                endpoint: endpoint.into(),
            }),
        }
    }

    /// The number of the rendezvous that it leads to.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The connection, if it leads to this rendezvous.
    ///
    /// # Errors
    /// If another one has taken its place, which does not know what has happened so far.
    pub fn leading_to(self, job: &str) -> Result<Connection> {
        if self.job == job {
            Ok(self)
        } else {
            Err(Error::Replaced {
                endpoint: self.endpoint,
            })
        }
    }

    /// This side's address, at which others that reach the rendezvous reach it too.
    pub fn local_address(&self) -> Result<SocketAddr> {
        let address = self.channel.stream().local_addr();
        address.map_err(|error| self.lost(error))
    }

    /// Sends a request and waits for its answer, which may take `wait` and a little more.
    ///
    /// # Errors
    /// [`Error::Refused`], or [`Error::Lost`]: then the connection is of no more use, since an answer
    /// may still come that belongs to this request.
    pub fn ask(&mut self, request: &Request, wait: Duration) -> Result<Reply> {
        let asked = self
            .channel
            .stream()
            .set_read_timeout(Some(wait + PATIENCE))
            .and_then(|()| self.channel.send(request))
            .and_then(|()| self.channel.receive());
        match asked {
            Ok(Reply::Error(reason)) => Err(Error::Refused {
                endpoint: self.endpoint.clone(),
                reason,
            }),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn lost(&self, error: io::Error) -> Error {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "no answer; the machine is down, or the link to it is cut".into()
            }
            io::ErrorKind::UnexpectedEof => "it was closed".into(),
            _ => error.to_string(),
        };
        Error::Lost {
            endpoint: self.endpoint.clone(),
            reason,
        }
    }
}

fn connect(endpoint: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in endpoint.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience.min(PATIENCE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn frame(message: &impl Serialize) -> Vec<u8> {
        let body = serde_json::to_vec(message).unwrap();
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    }

    /// One frame of each kind that peers send, for damage.
    pub fn sample_frames() -> Vec<Vec<u8>> {
        let role = Role::Node {
            node: 1,
            nodes: 2,
            processes: 4,
            session: nonce(),
        };
        let claim = Claim {
            role,
            nonce: nonce(),
            proof: nonce(),
        };
        let ended = Ended::Killed(9);
        let report = Request::Report(Report {
            generation: 1,
            ended: vec![(3, ended.clone())],
            idle: true,
            signal: Some(15),
        });
        let put = Request::Put {
            key: "a".into(),
            value: vec![1, 2, 3],
        };
        let beat = Request::Beat(Beat {
            saved: Some(7),
            ..Beat::default()
        });
        let leave = Request::Leave { ended };
        [report, put, beat, leave]
            .iter()
            .map(frame)
            .chain([
                frame(&claim),
                frame(&Reply::Value(Some(vec![7]))),
                frame(&Reply::Done),
            ])
            .collect()
    }

    /// Reads bytes as each kind of frame.
    pub fn read_frames(bytes: &[u8]) {
        if let Ok(Some(found)) = claim(bytes) {
            let secret = Secret::generate();
            let parts = ["joins", "x", &found.nonce];
            assert!(!secret.accepts(&found.proof, &parts));
        }
        let _ = plain_frame::<Hello>(bytes, LARGEST_CLAIM);
        let _ = plain_frame::<Answer>(bytes, LARGEST_CLAIM);
        let _ = plain_frame::<Request>(bytes, 1 << 20);
        let _ = plain_frame::<Reply>(bytes, 1 << 20);
    }

    /// The frame of a right claim, after the server's greeting, and the claim's nonce.
    pub fn claim_bytes(stream: &mut TcpStream, secret: &Secret, role: &Role) -> (Vec<u8>, String) {
        let until = Instant::now() + PATIENCE;
        let hello: Hello = receive_plain(stream, LARGEST_CLAIM, until).unwrap();
        let (own, text) = (nonce(), serde_json::to_string(role).unwrap());
        let claim = Claim {
            role: role.clone(),
            nonce: own.clone(),
            proof: secret.proof(&["joins", &hello.nonce, &own, &text]),
        };
        let body = serde_json::to_vec(&claim).unwrap();
        (
            [&(body.len() as u32).to_be_bytes()[..], &body].concat(),
            own,
        )
    }

    pub fn answer(stream: &mut TcpStream) -> String {
        let until = Instant::now() + PATIENCE;
        let answer: Answer = receive_plain(stream, LARGEST_CLAIM, until).unwrap();
        serde_json::to_string(&answer).unwrap()
    }

    #[test]
    fn a_claim_is_complete_or_not_there_or_no_claim() {
        assert!(claim(b"\0\0").unwrap().is_none());
        assert!(claim(b"\0\0\0\x05{").unwrap().is_none());
        assert!(claim(b"\0\0\0\x02{}").is_err());
        assert!(claim(b"GET / HTTP").is_err());
    }
}
