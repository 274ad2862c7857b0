//! Bytes there and back over many connections at once: one thread that sends and checks, and one that echoes. Each
//! waits in epoll(7).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use headworks::service::Stream;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::{Result, failed};
use crate::error::WorkloadError;

/// Bytes after which the sent pattern repeats. No usual size divides it.
const PATTERN: usize = 1_000_003;
/// Bytes received at a time.
const PIECE: usize = 64 << 10;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Event number of a descriptor that only ends a wait.
const OTHER: u64 = u64::MAX;

/// A connection that can be polled.
pub trait EchoSocket: Read + Write {
    /// Returns a descriptor that is readable while there is something to receive, writable while there is room.
    fn pollable(&mut self) -> std::io::Result<BorrowedFd<'_>>;

    /// Makes calls return at once.
    fn set_polled(&mut self) -> std::io::Result<()>;
}

impl EchoSocket for TcpStream {
    fn pollable(&mut self) -> std::io::Result<BorrowedFd<'_>> {
        Ok(AsFd::as_fd(&*self))
    }

    fn set_polled(&mut self) -> std::io::Result<()> {
        self.set_nodelay(true)?;
        self.set_nonblocking(true)
    }
}

impl EchoSocket for Stream {
    fn pollable(&mut self) -> std::io::Result<BorrowedFd<'_>> {
        Ok(self.fd()?)
    }

    fn set_polled(&mut self) -> std::io::Result<()> {
        self.set_nonblocking(true);
        Ok(())
    }
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

/// Descriptors that a thread waits for.
pub(super) struct Ready(OwnedFd);

impl Ready {
    pub(super) fn new() -> Result<Self> {
        let made = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self(made.map_err(failed("epoll"))?))
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> Result<()> {
        self.watch_for(fd, number, epoll::EventFlags::IN)
    }

    /// Watches a descriptor for events. Its number is reported while there is one of them.
    pub(super) fn watch_for(
        &self,
        fd: BorrowedFd<'_>,
        number: u64,
        events: epoll::EventFlags,
    ) -> Result<()> {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.0, fd, data, events).map_err(failed("epoll"))
    }

    /// Appends the numbers of the ready descriptors, after waiting for up to `limit` for the first. Returns `false` if
    /// the limit has passed.
    pub(super) fn wait(&self, limit: Option<Duration>, numbers: &mut Vec<usize>) -> Result<bool> {
        let mut events = Vec::with_capacity(EVENTS);
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let into = rustix::buffer::spare_capacity(&mut events);
        let woke = match epoll::wait(&self.0, into, limit.as_ref()) {
            Ok(count) => count > 0,
            Err(Errno::INTR) => true,
            Err(error) => return Err(failed("epoll")(error)),
        };
        let ready = events.iter().map(|event| event.data.u64());
        numbers.extend(ready.filter(|one| *one != OTHER).map(|one| one as usize));
        Ok(woke)
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
pub struct EchoClient<S> {
    connections: Vec<Sending<S>>,
    ready: Ready,
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
    pub fn new(sockets: Vec<S>, window: u64) -> Result<Self> {
        let ready = Ready::new()?;
        let mut connections = Vec::new();
        for (number, mut socket) in (0..).zip(sockets) {
            socket.set_polled()?;
            ready.watch(socket.pollable()?, number)?;
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

    /// Has [`turn`](Self::turn) return when a descriptor is readable.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be watched.
    pub fn watch(&self, other: BorrowedFd<'_>) -> Result<()> {
        self.ready.watch(other, OTHER)
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
    /// number of bytes sent and of those that came back; `None` if the limit has passed.
    ///
    /// # Errors
    ///
    /// A connection fails, or carries wrong bytes.
    pub fn turn(&mut self, limit: Duration, sends: bool) -> Result<Option<(u64, u64)>> {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        let woke = self.ready.wait(Some(limit), &mut numbers)?;
        let (mut sent, mut back) = (0, 0);
        for number in &numbers {
            back += self.take_back(*number)?;
            if sends {
                sent += self.fill(*number)?;
            }
        }
        self.numbers = numbers;
        Ok(woke.then_some((sent, back)))
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
    /// Bytes received, of which the first `sent` were sent back.
    pending: Vec<u8>,
    sent: usize,
}

/// Echoes over connections until all have ended.
///
/// # Errors
///
/// A connection cannot be polled, or fails.
pub fn echo_all<S: EchoSocket>(sockets: Vec<S>) -> Result<()> {
    let ready = Ready::new()?;
    let mut all = Vec::new();
    for (number, mut socket) in (0..).zip(sockets) {
        socket.set_polled()?;
        ready.watch(socket.pollable()?, number)?;
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
                one.rewatch(&ready, *number, is_full)?;
            }
        }
    }
    Ok(())
}

impl<S: EchoSocket> Echoed<S> {
    /// Sends back as much as possible. Returns `false` if the connection has ended.
    fn pass(&mut self, piece: &mut [u8]) -> Result<bool> {
        loop {
            while self.sent < self.pending.len() {
                match self.socket.write(&self.pending[self.sent..]) {
                    Ok(sent) => self.sent += sent,
                    Err(error) if is_to_wait(&error) => return Ok(true),
                    Err(error) => return Err(failed("sending back")(error)),
                }
            }
            self.pending.clear();
            self.sent = 0;
            match self.socket.read(piece) {
                Ok(0) => return Ok(false),
                Ok(len) => self.pending.extend_from_slice(&piece[..len]),
                Err(error) if is_to_wait(&error) => return Ok(true),
                Err(error) => return Err(failed("receiving")(error)),
            }
        }
    }

    /// Watches for room if bytes wait to be sent back, else for bytes to receive.
    fn rewatch(&mut self, ready: &Ready, number: usize, is_full: bool) -> Result<()> {
        let flags = match is_full {
            true => epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(number as u64);
        let changed = epoll::modify(&ready.0, self.socket.pollable()?, data, flags);
        changed.map_err(failed("epoll"))
    }
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
        let echoing = thread::spawn(move || echo_all(there));
        let mut client = EchoClient::new(here, 100_000).unwrap();
        let mut sent = client.start().unwrap();
        let mut back = 0;
        while back < sent {
            let turn = client
                .turn(Duration::from_secs(60), sent < 40 << 20)
                .unwrap();
            let (more, came) = turn.expect("all bytes come back");
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
        let mut client = EchoClient::new(vec![here], 1000).unwrap();
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
