//! Control stream: a byte stream between two processes, over TCP, a Unix socket or another transport, for bring-up
//! and short messages. Sets the keep-alive of TCP.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use headworks_shm::descriptor_passing::{self, peer_credentials};
use headworks_shm::fork::CloseOnFork;
use headworks_verbs::bringup::{ConnectionParams, Hello};
use headworks_verbs::{DeviceInfo, QueuePair};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
    set_tcp_user_timeout, socket_domain,
};
use rustix::net::{AddressFamily, SendFlags, send};
use rustix::process::geteuid;

use crate::framing::{FrameDecoder, encode_frame};
use crate::waiting::ready_events;
use crate::{NetError, WaitLimit};

mod bring_up;
mod other_transport;

pub use bring_up::BringUpOverStream;
pub use other_transport::ControlTransport;

/// Bytes of queued messages that are sent at once.
const QUEUED_MAX: usize = 16 << 10;

/// Longest control message, in bytes.
pub const CONTROL_MESSAGE_MAX: usize = 64 << 10;
/// Seconds without an answer after which the other host counts as gone.
pub const KEEPALIVE_TIMEOUT_S: u32 = 10;
/// Most files that were received and that the caller has not taken. More are closed.
const FILES_MAX: usize = 256;
/// Most bytes that were handed over and that the socket has not taken.
const UNWRITTEN_MAX: usize = 256 << 10;

/// One end of a control stream.
///
/// - Bring-up, first and at most once: [`ControlStream::bring_up`], or [`BringUpOverStream`] step by step.
/// - Control messages: [`ControlStream::send_control`], [`ControlStream::recv_control`] and [`ControlStream::flush`] never block;
///   [`ControlStream::recv_control_wait`] waits.
/// - The peer's end: [`ControlStream::peer_gone`]. The descriptor ([`AsFd`]) is readable then, as it is when a message
///   waits.
#[derive(Debug)]
pub struct ControlStream {
    io: ControlIo,
    peer_pid: Option<u32>,
    peer_host: Option<IpAddr>,
    /// Bytes that were read and not parsed yet: of the bring-up, then of the messages.
    pub(super) inbox: Vec<u8>,
    messages: FrameDecoder,
    unwritten: Vec<u8>,
    files: Box<PassedFiles>,
    ended: bool,
}

/// Files that travel with messages.
#[derive(Debug, Default)]
struct PassedFiles {
    /// Files to send, each with the offset in `unwritten` of the message that it belongs to.
    unsent: VecDeque<(usize, OwnedFd)>,
    /// Files that were received and that the caller has not taken.
    received: VecDeque<OwnedFd>,
}

/// The transport of a control stream.
#[derive(Debug)]
enum ControlIo {
    /// A forked child does not keep it, so the peer notices this process's death even if a child lives on.
    Socket(CloseOnFork<OwnedFd>),
    Transport(Box<dyn ControlTransport>),
}

impl ControlIo {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                Ok(send(socket, bytes, flags)?)
            }
            Self::Transport(carrier) => carrier.send(bytes),
        }
    }

    /// Sends bytes with a file, of which a socket takes at least the first byte.
    fn send_with_file(&self, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => Ok(descriptor_passing::send(socket, bytes, &[file])?),
            Self::Transport(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn recv(&self, bytes: &mut [u8], files: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => {
                let received = descriptor_passing::receive(socket, bytes)?;
                let room = FILES_MAX.saturating_sub(files.len());
                files.extend(received.descriptors.into_iter().take(room));
                Ok(received.len)
            }
            Self::Transport(carrier) => carrier.recv(bytes),
        }
    }
}

impl ControlStream {
    /// Creates both ends, for two parties in one process.
    pub fn pair() -> Result<(Self, Self), NetError> {
        let (one, other) = UnixStream::pair().map_err(NetError::system("socket pair"))?;
        Ok((Self::from_unix(one)?, Self::from_unix(other)?))
    }

    /// A control stream over a connected Unix socket. Refuses a peer of another user.
    pub fn from_unix(stream: impl Into<OwnedFd>) -> Result<Self, NetError> {
        let socket = stream.into();
        let peer = peer_credentials(&socket).map_err(NetError::system("peer credentials"))?;
        let (theirs, ours) = (peer.user, geteuid().as_raw());
        if theirs != ours {
            return Err(NetError::OtherUser { theirs, ours });
        }
        let socket = ControlIo::Socket(CloseOnFork::new(socket));
        Ok(Self::new(socket, peer.pid))
    }

    /// Makes a control stream over a transport that is no socket, such as a [`QpStream`](super::QpStream).
    pub fn from_transport(carrier: Box<dyn ControlTransport>) -> Self {
        Self::new(ControlIo::Transport(carrier), None)
    }

    /// Makes a control stream over a connected TCP socket, to another host. A host that vanishes is noticed after some
    /// seconds of silence ([`KEEPALIVE_TIMEOUT_S`]).
    pub fn from_tcp(stream: TcpStream) -> Result<Self, NetError> {
        let alone = std::time::Duration::from_secs(KEEPALIVE_TIMEOUT_S.into()) / 2;
        let probes: u32 = 5;
        let peer = stream.peer_addr().ok().map(|peer| peer.ip());
        let set = set_tcp_nodelay(&stream, true)
            .and_then(|()| set_socket_keepalive(&stream, true))
            .and_then(|()| set_tcp_keepidle(&stream, alone))
            .and_then(|()| set_tcp_keepintvl(&stream, alone / probes))
            .and_then(|()| set_tcp_keepcnt(&stream, probes))
            // Keepalive does not cover data that was sent and not acknowledged; this does.
            .and_then(|()| set_tcp_user_timeout(&stream, KEEPALIVE_TIMEOUT_S * 1000));
        set.map_err(NetError::system("a TCP socket"))?;
        let socket = ControlIo::Socket(CloseOnFork::new(stream.into()));
        let control = Self::new(socket, None);
        Ok(control.with_peer_host(peer))
    }

    fn new(io: ControlIo, peer_pid: Option<u32>) -> Self {
        Self {
            io,
            peer_pid,
            peer_host: None,
            inbox: Vec::new(),
            messages: FrameDecoder::new(CONTROL_MESSAGE_MAX),
            unwritten: Vec::new(),
            files: Box::default(),
            ended: false,
        }
    }

    /// Process id of the other end, as the kernel recorded it when the control stream was made. `None` if the other end
    /// is on another host, or in a PID namespace whose ids this one does not have.
    pub fn peer_pid(&self) -> Option<u32> {
        self.peer_pid
    }

    /// Whether the stream is a Unix socket, over which files can be passed.
    pub fn is_local(&self) -> bool {
        match &self.io {
            ControlIo::Socket(socket) => socket_domain(socket) == Ok(AddressFamily::UNIX),
            ControlIo::Transport(_) => false,
        }
    }

    /// Address of the other end, if it connected over a network and is known.
    pub fn peer_host(&self) -> Option<IpAddr> {
        self.peer_host
    }

    /// Sets the address of the other end.
    #[must_use]
    pub fn with_peer_host(mut self, host: Option<IpAddr>) -> Self {
        self.peer_host = host;
        self
    }

    /// Connects `qp`, which is in RESET or INIT, with the queue pair that the other end brings up at the same
    /// time. `payload` is for the other side; the other side's is in the returned [`Hello`]. Waits.
    pub fn bring_up<'u>(
        &mut self,
        device: &DeviceInfo,
        qp: &mut dyn QueuePair,
        tuning: ConnectionParams,
        payload: Vec<u8>,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<Hello, NetError> {
        let until = until.into();
        let mut bring_up = BringUpOverStream::start(device, qp, tuning, payload)?;
        loop {
            if let Some(hello) = bring_up.step(self, qp)? {
                return Ok(hello);
            }
            self.wait("connecting", &until)?;
        }
    }

    /// Sends a message of up to [`CONTROL_MESSAGE_MAX`] bytes. Keeps what the socket does not take for
    /// [`ControlStream::flush`].
    pub fn send_control(&mut self, message: &[u8]) -> Result<(), NetError> {
        self.queue_control(message)?;
        self.flush().map(drop)
    }

    /// Queues a message: call [`flush`](Self::flush) soon. So several messages take one system call. Many are sent at once.
    ///
    /// # Errors
    ///
    /// As [`send_control`](Self::send_control).
    pub fn queue_control(&mut self, message: &[u8]) -> Result<(), NetError> {
        if self.unwritten.len() > UNWRITTEN_MAX {
            return Err(NetError::Full);
        }
        encode_frame(&mut self.unwritten, &[message], CONTROL_MESSAGE_MAX)?;
        match self.unwritten.len() < QUEUED_MAX {
            true => Ok(()),
            false => self.flush().map(drop),
        }
    }

    /// Like [`ControlStream::send_control`], with a file, over a Unix socket. The other end [takes](Self::take_file) files in
    /// the order of their messages.
    pub fn send_control_with_file(
        &mut self,
        message: &[u8],
        file: OwnedFd,
    ) -> Result<(), NetError> {
        if self.unwritten.len() > UNWRITTEN_MAX {
            return Err(NetError::Full);
        }
        self.files.unsent.push_back((self.unwritten.len(), file));
        self.send_control(message)
    }

    /// Returns the next file that came with a message. Call it when a message was received that carries one.
    pub fn take_file(&mut self) -> Option<OwnedFd> {
        self.files.received.pop_front()
    }

    /// Sends bytes that are left over. Returns whether all of them are sent.
    pub fn flush(&mut self) -> Result<bool, NetError> {
        let mut done = 0;
        while done < self.unwritten.len() {
            // A file travels with the first byte of its message.
            let next = self.files.unsent.front().map(|(at, _)| *at);
            let sent = match self.files.unsent.front() {
                Some((at, file)) if *at == done => {
                    let until = self.files.unsent.get(1).map(|(at, _)| *at);
                    let until = until.unwrap_or(self.unwritten.len());
                    self.io
                        .send_with_file(&self.unwritten[done..until], file.as_fd())
                }
                _ => {
                    let until = next.unwrap_or(self.unwritten.len());
                    self.io.send(&self.unwritten[done..until])
                }
            };
            match sent {
                Ok(sent) => {
                    if next == Some(done) {
                        self.files.unsent.pop_front();
                    }
                    done += sent;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => break,
                    _ => return Err(lost(error, "writing to the other end")),
                },
            }
        }
        self.unwritten.drain(..done);
        self.files.unsent.iter_mut().for_each(|(at, _)| *at -= done);
        Ok(self.unwritten.is_empty())
    }

    /// Waits until the socket has taken all messages. What it has not taken is lost with the control stream.
    pub fn flush_wait<'u>(&mut self, until: impl Into<WaitLimit<'u>>) -> Result<(), NetError> {
        let until = until.into();
        while !self.flush()? {
            self.wait("sending what is left", &until)?;
        }
        Ok(())
    }

    /// Returns the next message, if there is one.
    pub fn recv_control(&mut self) -> Result<Option<Vec<u8>>, NetError> {
        loop {
            if let Some(message) = self.messages.next_message()? {
                return Ok(Some(message));
            }
            if self.inbox.is_empty() && !self.read()? {
                if self.ended {
                    return Err(NetError::PeerGone);
                }
                // The caller may have been woken because the other end takes more.
                if !self.unwritten.is_empty() {
                    self.flush()?;
                }
                return Ok(None);
            }
            self.messages.feed(&self.inbox);
            self.inbox.clear();
        }
    }

    /// Waits for the next message.
    pub fn recv_control_wait<'u>(
        &mut self,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<Vec<u8>, NetError> {
        let until = until.into();
        loop {
            if let Some(message) = self.recv_control()? {
                return Ok(message);
            }
            self.flush()?;
            self.wait("waiting for a control message", &until)?;
        }
    }

    /// Whether the other end has closed or died. What it sent before can still be received. This is a system
    /// call: ask when the descriptor is readable, or now and then.
    pub fn peer_gone(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        self.ended
            || match &self.io {
                ControlIo::Socket(socket) => {
                    ready_events(socket.as_fd(), PollFlags::RDHUP).intersects(gone)
                }
                ControlIo::Transport(carrier) => carrier.is_gone(),
            }
    }

    /// Whether the control stream has ended. Then nothing is left to read.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.unwritten.extend_from_slice(bytes);
    }

    /// Moves the bytes after the last message back into the inbox, because the peer's hello may have arrived
    /// together with the message before it.
    pub(super) fn restore_inbox(&mut self) {
        let mut rest = self.messages.take_rest();
        if !rest.is_empty() {
            rest.append(&mut self.inbox);
            self.inbox = rest;
        }
    }

    /// Reads what is there into the inbox, up to a bound. Returns whether there was anything.
    pub(super) fn read(&mut self) -> Result<bool, NetError> {
        let mut bytes = [0; 8 << 10];
        match self.io.recv(&mut bytes, &mut self.files.received) {
            Ok(0) => self.ended = true,
            Ok(got) => self.inbox.extend_from_slice(&bytes[..got]),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(false),
                _ if is_loss(&error) => self.ended = true,
                _ => return Err(lost(error, "reading from the other end")),
            },
        }
        Ok(!self.ended)
    }

    fn wait(&self, what: &'static str, until: &WaitLimit<'_>) -> Result<(), NetError> {
        let output = if self.unwritten.is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        };
        until.wait(what, &[(self.as_fd(), PollFlags::IN | output)], None)
    }
}

/// Whether an error means that the other end is gone.
fn is_loss(error: &io::Error) -> bool {
    let gone = [
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::TimedOut,
        io::ErrorKind::HostUnreachable,
        io::ErrorKind::NetworkUnreachable,
        io::ErrorKind::NetworkDown,
    ];
    gone.contains(&error.kind()) || Errno::from_io_error(error) == Some(Errno::HOSTDOWN)
}

fn lost(error: io::Error, what: &'static str) -> NetError {
    match is_loss(&error) {
        true => NetError::PeerGone,
        false => NetError::system(what)(error),
    }
}

impl AsFd for ControlStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.io {
            ControlIo::Socket(socket) => socket.as_fd(),
            ControlIo::Transport(carrier) => carrier.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::framing::FrameError;
    use headworks_verbs::Duration;

    #[test]
    fn messages_arrive_whole_and_the_end_after_them() {
        let (mut one, mut other) = ControlStream::pair().expect("pair");
        assert_eq!(other.recv_control().expect("open"), None);
        let long = vec![7; CONTROL_MESSAGE_MAX];
        one.send_control(b"first").expect("sends");
        one.send_control(&long).expect("sends");
        one.send_control(b"").expect("sends");
        let soon = || clock::now() + Duration::from_secs(10);
        assert_eq!(other.recv_control_wait(soon()).expect("first"), b"first");
        assert_eq!(other.recv_control_wait(soon()).expect("long"), long);
        assert!(one.flush().expect("open"));
        assert_eq!(other.recv_control_wait(soon()).expect("empty"), b"");
        one.send_control(b"last").expect("sends");
        assert!(!other.peer_gone());
        drop(one);
        assert!(other.peer_gone());
        assert_eq!(other.recv_control_wait(soon()).expect("last"), b"last");
        assert!(matches!(other.recv_control(), Err(NetError::PeerGone)));
        assert!(matches!(other.send_control(b"x"), Err(NetError::PeerGone)));
    }

    #[test]
    fn limits_are_errors() {
        let (mut one, mut other) = ControlStream::pair().expect("pair");
        let error = one
            .send_control(&vec![0; CONTROL_MESSAGE_MAX + 1])
            .expect_err("too long");
        assert!(matches!(error, NetError::Frame(FrameError::TooLong { .. })));
        let full = (0..10_000).find_map(|_| one.send_control(&[0; 4096]).err());
        assert!(matches!(full, Some(NetError::Full)));
        let past = other
            .recv_control_wait(clock::now())
            .map(|message| message.len());
        assert_eq!(past.expect("there"), 4096);
        other.write(&u32::MAX.to_le_bytes());
        assert!(other.flush().expect("open"));
        assert!(matches!(one.recv_control(), Err(NetError::Frame(_))));
    }

    #[test]
    fn waiting_ends_by_deadline_and_by_interrupt() {
        let (mut one, mut other) = ControlStream::pair().expect("pair");
        let error = one
            .recv_control_wait(clock::now())
            .expect_err("nothing there");
        assert!(matches!(error, NetError::Deadline { .. }), "{error}");
        let (interrupt, mut raise) = UnixStream::pair().expect("pair");
        std::io::Write::write_all(&mut raise, b"!").expect("raises");
        let until =
            WaitLimit::deadline(headworks_verbs::Instant::FAR_FUTURE).or_readable(&interrupt);
        let error = other.recv_control_wait(until).expect_err("interrupted");
        assert!(matches!(error, NetError::Interrupted), "{error}");
    }
}
