//! Bytes there and back over many connections at once: one thread that sends and checks, and one that echoes. Each
//! waits for all of its connections at once.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use headworks::service::{Interest, Stream};

use super::ready_set::{EpollSet, PollerSet, ReadySet};
use super::{Result, failed};
use crate::error::WorkloadError;

/// Bytes after which the sent pattern repeats. No usual size divides it.
const PATTERN: usize = 1_000_003;
/// Bytes received at a time.
const PIECE: usize = 64 << 10;
/// A connection that many others are polled with.
pub trait EchoSocket: Read + Write + Sized {
    /// Tells which of many connections are ready.
    type Ready: ReadySet<Self>;
}

/// The service that streams belong to; nothing for TCP connections.
pub type Context<S> = <<S as EchoSocket>::Ready as ReadySet<S>>::Context;

impl EchoSocket for TcpStream {
    type Ready = EpollSet;
}

impl EchoSocket for Stream {
    type Ready = PollerSet;
}

/// Returns whether a call failed because there was nothing to receive or no room to send.
pub fn is_to_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// The bytes that each connection carries.
pub struct Pattern {
    /// The pattern twice, so that a slice may extend past the end of the first copy.
    bytes: Vec<u8>,
}

impl Default for Pattern {
    fn default() -> Self {
        let mut bytes = vec![0; PATTERN];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        bytes.extend_from_within(..);
        Self { bytes }
    }
}

impl Pattern {
    /// Returns the `len` bytes that connection `number` carries from a position on. `len` is at most 1,000,003.
    pub fn at(&self, number: usize, position: u64, len: usize) -> &[u8] {
        let at = (position + number as u64 * 4099) % PATTERN as u64;
        &self.bytes[at as usize..][..len]
    }
}

/// A connection of an [`EchoClient`].
struct Sending<S> {
    socket: S,
    /// Bytes sent.
    sent: u64,
    /// Bytes of those that came back.
    back: u64,
}

/// Sends over many connections, and checks what comes back.
pub struct EchoClient<S: EchoSocket> {
    connections: Vec<Sending<S>>,
    ready: S::Ready,
    pattern: Pattern,
    window: u64,
    buffer: Vec<u8>,
    numbers: Vec<usize>,
}

impl<S: EchoSocket> EchoClient<S> {
    /// Makes a client that has at most `window` bytes, at most 1,000,003, under way on each connection.
    ///
    /// # Errors
    ///
    /// A connection cannot be polled.
    pub fn new(context: &Context<S>, sockets: Vec<S>, window: u64) -> Result<Self> {
        let mut ready = S::Ready::new(context)?;
        let mut connections = Vec::new();
        for (number, mut socket) in (0..).zip(sockets) {
            ready.add(&mut socket, number, Interest::RECEIVE)?;
            let (sent, back) = (0, 0);
            connections.push(Sending { socket, sent, back });
        }
        Ok(Self {
            connections,
            ready,
            pattern: Pattern::default(),
            window,
            buffer: vec![0; window as usize],
            numbers: Vec::new(),
        })
    }

    /// Fills the window of every connection. Returns the number of bytes sent.
    ///
    /// # Errors
    ///
    /// A connection fails.
    pub fn start(&mut self) -> Result<u64> {
        let mut sent = 0;
        for number in 0..self.connections.len() {
            sent += self.fill(number)?;
        }
        Ok(sent)
    }

    /// Waits for up to `limit` until bytes come back. Takes and checks them, and sends others if `sends`. Returns the
    /// number of bytes sent and of those that came back.
    ///
    /// # Errors
    ///
    /// A connection fails, or carries wrong bytes.
    pub fn turn(&mut self, limit: Duration, sends: bool) -> Result<(u64, u64)> {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        self.ready.wait(Some(limit), &mut numbers)?;
        let (mut sent, mut back) = (0, 0);
        for number in &numbers {
            back += self.take_back(*number)?;
            if sends {
                sent += self.fill(*number)?;
            }
        }
        self.numbers = numbers;
        Ok((sent, back))
    }

    /// Returns the connections.
    pub fn into_sockets(self) -> Vec<S> {
        let sockets = self.connections.into_iter();
        sockets.map(|one| one.socket).collect()
    }

    /// Sends as much as the window and the connection have room for. If that is nothing, bytes that come back
    /// will make room.
    fn fill(&mut self, number: usize) -> Result<u64> {
        let window = self.window;
        let connection = &mut self.connections[number];
        let before = connection.sent;
        // Waits until half of the window is free, so that pieces are large.
        if window - (before - connection.back) < window / 2 {
            return Ok(0);
        }
        while connection.sent - connection.back < window {
            let room = window - (connection.sent - connection.back);
            let bytes = self.pattern.at(number, connection.sent, room as usize);
            match connection.socket.write(bytes) {
                Ok(sent) => connection.sent += sent as u64,
                Err(error) if is_to_wait(&error) => break,
                Err(error) => return Err(failed("sending on a connection")(error)),
            }
        }
        Ok(connection.sent - before)
    }

    /// Receives and checks what is there. Returns how many bytes.
    fn take_back(&mut self, number: usize) -> Result<u64> {
        let connection = &mut self.connections[number];
        let before = connection.back;
        loop {
            match connection.socket.read(&mut self.buffer) {
                Ok(0) => return Err(WorkloadError("the other process is gone".to_owned())),
                Ok(len) => {
                    let expected = self.pattern.at(number, connection.back, len);
                    if self.buffer[..len] != *expected {
                        let at = connection.back;
                        return Err(WorkloadError(format!(
                            "connection {number} carried wrong bytes after byte {at}"
                        )));
                    }
                    connection.back += len as u64;
                }
                Err(error) if is_to_wait(&error) => return Ok(connection.back - before),
                Err(error) => return Err(failed("receiving on a connection")(error)),
            }
        }
    }
}

/// A connection that is echoed.
struct Echoed<S> {
    socket: S,
    /// Bytes received and not sent back, for lack of room; of these, the first `sent` were sent back since.
    pending: Vec<u8>,
    sent: usize,
}

/// Echoes over connections until all have ended.
///
/// # Errors
///
/// A connection cannot be polled, or fails.
pub fn echo_all<S: EchoSocket>(context: &Context<S>, sockets: Vec<S>) -> Result<()> {
    let mut ready = S::Ready::new(context)?;
    let mut all = Vec::new();
    for (number, mut socket) in (0..).zip(sockets) {
        ready.add(&mut socket, number, Interest::RECEIVE)?;
        all.push(Some(Echoed {
            socket,
            pending: Vec::new(),
            sent: 0,
        }));
    }
    let mut left = all.len();
    let mut piece = vec![0; PIECE];
    let mut numbers = Vec::new();
    while left > 0 {
        numbers.clear();
        ready.wait(None, &mut numbers)?;
        for number in &numbers {
            let Some(slot) = all.get_mut(*number) else {
                continue;
            };
            let Some(one) = slot else {
                continue;
            };
            let was_full = !one.pending.is_empty();
            if !one.pass(&mut piece)? {
                *slot = None;
                left -= 1;
                continue;
            }
            let is_full = !one.pending.is_empty();
            if is_full != was_full {
                // Bytes that wait to be sent back need room first.
                let interest = if is_full {
                    Interest::SEND
                } else {
                    Interest::RECEIVE
                };
                ready.modify(&mut one.socket, *number, interest)?;
            }
        }
    }
    Ok(())
}

impl<S: EchoSocket> Echoed<S> {
    /// Sends back as much as possible. Returns `false` if the connection has ended.
    fn pass(&mut self, piece: &mut [u8]) -> Result<bool> {
        self.sent += send(&mut self.socket, &self.pending[self.sent..])?;
        if self.sent < self.pending.len() {
            return Ok(true);
        }
        self.pending.clear();
        self.sent = 0;
        loop {
            let len = match self.socket.read(piece) {
                Ok(0) => return Ok(false),
                Ok(len) => len,
                Err(error) if is_to_wait(&error) => return Ok(true),
                Err(error) => return Err(failed("receiving")(error)),
            };
            let sent = send(&mut self.socket, &piece[..len])?;
            if sent < len {
                self.pending.extend_from_slice(&piece[sent..len]);
                return Ok(true);
            }
        }
    }
}

/// Sends as many of the bytes as there is room for. Returns their number.
fn send(socket: &mut impl Write, bytes: &[u8]) -> Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(more) => sent += more,
            Err(error) if is_to_wait(&error) => break,
            Err(error) => return Err(failed("sending back")(error)),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn everything_comes_back_over_every_connection() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect(to).unwrap();
        let (here, there): (Vec<_>, Vec<_>) = (0..20)
            .map(|number| (connect(number), listener.accept().unwrap().0))
            .unzip();
        let echoing = thread::spawn(move || echo_all(&(), there));
        let mut client = EchoClient::new(&(), here, 100_000).unwrap();
        let mut sent = client.start().unwrap();
        let mut back = 0;
        while back < sent {
            let (more, came) = client
                .turn(Duration::from_secs(60), sent < 40 << 20)
                .unwrap();
            assert!(came > 0, "all bytes come back");
            (sent, back) = (sent + more, back + came);
        }
        assert!(sent >= 40 << 20);
        assert!(
            client
                .connections
                .iter()
                .all(|one| one.back == one.sent && one.sent > 0)
        );
        drop(client);
        echoing.join().unwrap().unwrap();
    }

    #[test]
    fn wrong_bytes_are_an_error() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut there = listener.accept().unwrap().0;
        let mut client = EchoClient::new(&(), vec![here], 1000).unwrap();
        client.start().unwrap();
        let mut bytes = [0; 1000];
        there.read_exact(&mut bytes).unwrap();
        bytes[999] ^= 1;
        there.write_all(&bytes).unwrap();
        let why = loop {
            if let Err(why) = client.turn(Duration::from_secs(60), false) {
                break why;
            }
        };
        assert!(
            why.0.starts_with("connection 0 carried wrong bytes"),
            "{why}"
        );
    }
}
