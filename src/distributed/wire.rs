//! What goes over a connection to the rendezvous: frames of JSON behind their length, after a
//! handshake in which both sides show that they know the secret.

use super::job::{Ended, Order};
use super::secret::{Secret, nonce};
use super::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Keys that begin so are kept over restarts.
pub(super) const OF_THE_JOB: &str = "job/";

/// Raise it when the messages change: processes of different versions do not train together.
const PROTOCOL: u32 = 2;

/// Addresses and short texts are all that is sent.
const LARGEST_FRAME: usize = 1 << 20;

/// For the few messages of a handshake, and for the answer to anything that does not wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries to connect.
const RETRY: Duration = Duration::from_millis(100);

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
    /// A heartbeat, with the number of finished steps.
    Beat {
        step: u64,
    },
    /// A rank ends, with exit code and reason if it failed.
    Leave {
        failure: Option<(i32, String)>,
    },
    /// What happened on a node since its last report, and whether none of its ranks runs any more.
    Report {
        generation: u64,
        ended: Vec<(usize, Ended)>,
        idle: bool,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Value(Option<Vec<u8>>),
    /// To a beat: why the job has to end, if it has to.
    Alive(Option<String>),
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
    Welcome { proof: String },
    Denied { reason: String },
}

fn send(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

fn too_long(length: usize) -> io::Error {
    let reason = format!("a frame of {length} bytes: not xtrain's protocol");
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > LARGEST_FRAME {
        return Err(too_long(length));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// The server's first words to a new connection; the nonce in them.
pub(super) fn greet(stream: &mut TcpStream) -> io::Result<String> {
    let nonce = nonce();
    let hello = Hello {
        protocol: PROTOCOL,
        nonce: nonce.clone(),
    };
    send(stream, &hello)?;
    Ok(nonce)
}

/// The claim in what a peer has sent so far, `None` if more has to come.
pub(super) fn claim(received: &[u8], largest: usize) -> io::Result<Option<Claim>> {
    let Some((length, body)) = received.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > largest {
        return Err(too_long(length));
    }
    let body = body.get(..length);
    Ok(body.map(serde_json::from_slice).transpose()?)
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
            "its secret is another one (XTRAIN_RDZV_SECRET or --rdzv_secret_file must be the same everywhere)".into();
        // It may be gone already.
        let _ = send(stream, &Answer::Denied { reason });
    }
    knows
}

/// Answers a claim that proves the secret; `admitted` says why its maker may not take part.
///
/// # Errors
/// If it may not, or is gone.
pub(super) fn welcome(
    stream: &mut TcpStream,
    secret: &Secret,
    claim: &Claim,
    own: &str,
    admitted: std::result::Result<(), String>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if let Err(reason) = admitted {
        let denied = Answer::Denied {
            reason: reason.clone(),
        };
        send(stream, &denied)?;
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    let role = serde_json::to_string(&claim.role)?;
    let proof = secret.proof(&["serves", own, &claim.nonce, &role]);
    send(stream, &Answer::Welcome { proof })
}

/// Answers requests until the other side hangs up.
pub fn serve(mut stream: TcpStream, mut answer: impl FnMut(Request) -> Reply) -> io::Result<()> {
    loop {
        let request = receive(&mut stream)?;
        send(&mut stream, &answer(request))?;
    }
}

/// A connection of a rank or a node.
pub struct Connection {
    stream: TcpStream,
    endpoint: String,
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
        let mut last;
        loop {
            match connect(
                endpoint,
                patience.saturating_sub(began.elapsed()).max(RETRY),
            ) {
                Ok(stream) => match Self::introduce(stream, endpoint, secret, role) {
                    // It ended in between, or something else listens there that does not speak.
                    Err(Error::Lost { reason, .. }) => last = reason,
                    result => return result,
                },
                Err(error) => last = error.to_string(),
            }
            if began.elapsed() >= patience {
                return Err(Error::Unreachable {
                    endpoint: endpoint.into(),
                    seconds: patience.as_secs(),
                    last,
                });
            }
            std::thread::sleep(RETRY);
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
        stream.set_nodelay(true).map_err(lost)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(lost)?;
        let hello: Hello = receive(&mut stream).map_err(lost)?;
        if hello.protocol != PROTOCOL {
            return Err(refused(format!(
                "it speaks version {} of the protocol, this is {PROTOCOL}",
                hello.protocol
            )));
        }
        let own = nonce();
        let text = serde_json::to_string(role).expect("a role is plain data");
        let proof = secret.proof(&["joins", &hello.nonce, &own, &text]);
        send(
            &mut stream,
            &Claim {
                role: role.clone(),
                nonce: own.clone(),
                proof,
            },
        )
        .map_err(lost)?;
        match receive(&mut stream).map_err(lost)? {
            Answer::Denied { reason } => Err(refused(reason)),
            Answer::Welcome { proof }
                if secret.accepts(&proof, &["serves", &hello.nonce, &own, &text]) =>
            {
                Ok(Connection {
                    stream,
                    endpoint: endpoint.into(),
                })
            }
            Answer::Welcome { .. } => Err(Error::Impostor {
                endpoint: endpoint.into(),
            }),
        }
    }

    /// This side's address, at which others that reach the rendezvous reach it too.
    pub fn local_address(&self) -> Result<SocketAddr> {
        self.stream.local_addr().map_err(|error| self.lost(error))
    }

    /// Sends a request and waits for its answer, which may take `wait` and a little more.
    pub fn ask(&mut self, request: &Request, wait: Duration) -> Result<Reply> {
        let asked = self
            .stream
            .set_read_timeout(Some(wait + PATIENCE))
            .and_then(|()| send(&mut self.stream, request))
            .and_then(|()| receive(&mut self.stream));
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
pub(super) mod tests {
    use super::*;

    /// The frame of a right claim, after the server's greeting, and the claim's nonce.
    pub fn claim_bytes(stream: &mut TcpStream, secret: &Secret, role: &Role) -> (Vec<u8>, String) {
        let hello: Hello = receive(stream).unwrap();
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
        let answer: Answer = receive(stream).unwrap();
        serde_json::to_string(&answer).unwrap()
    }

    #[test]
    fn a_claim_is_complete_or_not_there_or_no_claim() {
        assert!(claim(b"\0\0", 99).unwrap().is_none());
        assert!(claim(b"\0\0\0\x05{", 99).unwrap().is_none());
        assert!(claim(b"\0\0\0\x02{}", 99).is_err());
        assert!(claim(b"GET / HTTP", 99).is_err());
    }
}
