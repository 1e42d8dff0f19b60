//! Frames over a connection: four bytes of length and what they announce. In the handshake they are
//! plain; after it each bears a MAC with the connection's own key and the frame's number, so that
//! nobody on the way can change, repeat, drop or reorder what ranks and launchers say.
//!
//! Why MACs and not the Noise protocol with a pre-shared key (the crate `snow`): nothing that goes
//! over these connections is confidential (addresses, ranks, steps), and tensors, which go over the
//! platform's own sockets, would not be covered anyway. HMAC-SHA-256 is here already and proves the
//! secret in the handshake; a key derived from both nonces and a counter are all that is missing.
//! Noise would add five crates of cryptography, messages of at most 64 KiB, and a Diffie-Hellman
//! exchange that any stranger could make the server compute.

use super::secret::SessionKey;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Addresses and short texts are all that is sent.
const LARGEST_FRAME: usize = 1 << 20;

/// Bytes of a frame's MAC, which comes before its body.
const TAG: usize = 32;

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// The length that a frame announces.
fn checked(length: [u8; 4], largest: usize) -> io::Result<usize> {
    let length = u32::from_be_bytes(length) as usize;
    if length <= largest {
        Ok(length)
    } else {
        Err(invalid(format!(
            "a frame of {length} bytes: not xtrain's protocol"
        )))
    }
}

/// Sends a frame of the handshake.
pub(super) fn send_plain(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    send_frame(stream, &[], &serde_json::to_vec(message)?)
}

fn send_frame(stream: &mut TcpStream, tag: &[u8], body: &[u8]) -> io::Result<()> {
    let frame = [&(body.len() as u32).to_be_bytes(), tag, body].concat();
    stream.write_all(&frame)
}

/// Receives a frame of the handshake, all of which has to come until then: who is there is not
/// known yet, and may send a byte a second.
pub(super) fn receive_plain<T: DeserializeOwned>(
    stream: &mut TcpStream,
    largest: usize,
    until: Instant,
) -> io::Result<T> {
    let mut length = [0; 4];
    read_until(stream, &mut length, until)?;
    let mut body = vec![0; checked(length, largest)?];
    read_until(stream, &mut body, until)?;
    Ok(serde_json::from_slice(&body)?)
}

fn read_until(stream: &mut TcpStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The frame at the beginning of what has been received, `None` if more has to come.
pub(super) fn plain_frame<T: DeserializeOwned>(
    received: &[u8],
    largest: usize,
) -> io::Result<Option<T>> {
    let Some((length, body)) = received.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let body = body.get(..checked(*length, largest)?);
    Ok(body.map(serde_json::from_slice).transpose()?)
}

/// Which end of a connection this is. Each direction has its own numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// A connection whose two ends have shown each other that they know the secret.
pub(super) struct Channel {
    stream: TcpStream,
    key: SessionKey,
    side: Side,
    sent: u64,
    received: u64,
}

impl Channel {
    pub fn new(stream: TcpStream, key: SessionKey, side: Side) -> Channel {
        Channel {
            stream,
            key,
            side,
            sent: 0,
            received: 0,
        }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        if body.len() > LARGEST_FRAME {
            return Err(invalid(format!(
                "a message of {} bytes, more than the {LARGEST_FRAME} that one may have",
                body.len()
            )));
        }
        let tag = self.key.tag(self.side == Side::Server, self.sent, &body);
        self.sent += 1;
        send_frame(&mut self.stream, &tag, &body)
    }

    /// # Errors
    /// If the connection ends, or the frame is not the one that the other side sent next.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut head = [0; 4 + TAG];
        self.stream.read_exact(&mut head)?;
        let (length, tag) = head.split_first_chunk().expect("the head begins with it");
        let mut body = vec![0; checked(*length, LARGEST_FRAME)?];
        self.stream.read_exact(&mut body)?;
        let from_server = self.side == Side::Client;
        if !self.key.accepts(tag, from_server, self.received, &body) {
            return Err(invalid(
                "a message was changed, repeated or left out on the way".into(),
            ));
        }
        self.received += 1;
        Ok(serde_json::from_slice(&body)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::Secret;
    use super::*;
    use std::net::TcpListener;

    type Frame = Vec<u8>;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// What a client sends for these messages, and a server's end to feed the frames to.
    fn recorded(messages: &[&str]) -> (Vec<Frame>, impl Fn(&[Frame]) -> Vec<String>) {
        let key = Secret::generate().session(&["nonces"]);
        let (client, mut tap) = pair();
        let mut sender = Channel::new(client, key.clone(), Side::Client);
        let mut frames = Vec::new();
        for message in messages {
            sender.send(message).unwrap();
            let mut frame = vec![0; 4 + TAG + message.len() + 2];
            tap.read_exact(&mut frame).unwrap();
            frames.push(frame);
        }
        let heard = move |frames: &[Frame]| {
            let (mut client, server) = pair();
            client.write_all(&frames.concat()).unwrap();
            drop(client);
            let mut receiver = Channel::new(server, key.clone(), Side::Server);
            std::iter::from_fn(|| receiver.receive().ok()).collect()
        };
        (frames, heard)
    }

    #[test]
    fn frames_are_taken_as_they_were_sent_or_not_at_all() {
        let (frames, heard) = recorded(&["one", "two", "six"]);
        assert_eq!(heard(&frames), ["one", "two", "six"]);
        // Repeated, left out, in another order.
        assert_eq!(heard(&[frames[0].clone(), frames[0].clone()]), ["one"]);
        assert_eq!(heard(&[frames[0].clone(), frames[2].clone()]), ["one"]);
        assert!(heard(&[frames[1].clone(), frames[0].clone()]).is_empty());
        // Each byte matters: of the length, the MAC and the body.
        for index in 0..frames[0].len() {
            let mut changed = frames[0].clone();
            changed[index] ^= 1;
            assert!(heard(&[changed]).is_empty(), "byte {index}");
        }
        // Another connection's frame, of the same secret or not.
        let (others, _) = recorded(&["one"]);
        assert!(heard(&others).is_empty());
    }

    #[test]
    fn what_one_side_sent_is_not_taken_as_the_others() {
        let key = Secret::generate().session(&["nonces"]);
        let (client, server) = pair();
        let (mut client, mut echo) = (
            Channel::new(client, key.clone(), Side::Client),
            Channel::new(server, key, Side::Client),
        );
        client.send(&"reflected").unwrap();
        assert!(echo.receive::<String>().is_err());
    }

    #[test]
    fn a_slow_sender_has_until_the_end_of_the_handshake() {
        let (mut client, mut server) = pair();
        let began = Instant::now();
        let writer = std::thread::spawn(move || {
            client.write_all(&100_u32.to_be_bytes()).unwrap();
            while client.write_all(b" ").is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let until = began + std::time::Duration::from_millis(200);
        let received: io::Result<String> = receive_plain(&mut server, 4096, until);
        assert!(received.is_err() && began.elapsed().as_secs() < 2);
        drop(server);
        writer.join().unwrap();
    }
}
