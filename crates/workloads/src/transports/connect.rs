//! Making the two ends of a kernel stream meet: the receiving part makes the names and mails
//! where they are, the sending part follows.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat, open};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use headworks_baselines::counting::Counts;

use super::Arm;
use super::job::{Buffering, Job, Transport, Waiting};
use super::stream::Stream;
use crate::error::WorkloadError;
use crate::pair::PairCx;
pub use crate::pair::Role;
use headworks_stage::Cx;

/// An end that is being connected.
pub trait Connect {
    /// What it becomes.
    type Arm: Arm;

    /// Goes on; answers the arm once both ends have met. Never waits.
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Self::Arm>, WorkloadError>;

    /// What was posted and polled since then, if the job has that counted.
    fn counts(&self) -> Option<Counts> {
        None
    }
}

/// Connects a kernel stream.
#[derive(Debug)]
pub struct StreamConnect {
    job: Job,
    role: Role,
    transport: Transport,
    waiting: Waiting,
    buffering: Buffering,
    state: State,
}

#[derive(Debug)]
enum State {
    Start,
    Tcp(TcpListener),
    Unix(UnixListener),
    /// Both pipes are open here, the one that is read and the one that is written; the sender has
    /// not opened them yet.
    Piped(OwnedFd, OwnedFd),
}

impl StreamConnect {
    /// For `job`, whose channel is the stream described by the others.
    pub fn new(
        job: Job,
        role: Role,
        transport: Transport,
        waiting: Waiting,
        buffering: Buffering,
    ) -> Self {
        Self {
            job,
            role,
            transport,
            waiting,
            buffering,
            state: State::Start,
        }
    }

    fn listen(&mut self, cx: &mut Cx<'_>) -> Result<(), WorkloadError> {
        self.state = match self.transport {
            Transport::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                    .map_err(|e| WorkloadError::at("listening on the loopback", e))?;
                self.socket_buffers(&listener)?;
                listener
                    .set_nonblocking(true)
                    .map_err(|e| WorkloadError::at("listener", e))?;
                let port = listener
                    .local_addr()
                    .map_err(|e| WorkloadError::at("listener", e))?
                    .port();
                cx.mail(&port.to_le_bytes())?;
                State::Tcp(listener)
            }
            Transport::Unix => {
                let listener = UnixListener::bind(self.path("socket"))
                    .map_err(|e| WorkloadError::at("listening on a Unix socket", e))?;
                self.socket_buffers(&listener)?;
                listener
                    .set_nonblocking(true)
                    .map_err(|e| WorkloadError::at("listener", e))?;
                cx.mail(b"listening")?;
                State::Unix(listener)
            }
            Transport::Pipe => {
                for name in ["there", "back"] {
                    let mode = Mode::RUSR | Mode::WUSR;
                    mknodat(CWD, self.path(name), FileType::Fifo, mode, 0)
                        .map_err(|e| WorkloadError::at("making a pipe", e))?;
                }
                let there = self.pipe("there", OFlags::RDONLY)?;
                // Also for reading: a pipe cannot be opened for writing alone before its reader is
                // there, and reads as ended to a reader that comes before its writer.
                let back = self.pipe("back", OFlags::RDWR)?;
                cx.mail(b"opened")?;
                State::Piped(there, back)
            }
        };
        Ok(())
    }

    /// The sending part's end, told `mail` by the receiving part.
    fn follow(&self, mail: &[u8], cx: &mut Cx<'_>) -> Result<Stream, WorkloadError> {
        match self.transport {
            Transport::Tcp => {
                let port = mail.try_into().map(u16::from_le_bytes);
                let port = port.map_err(|_| WorkloadError("no port in the mail".into()))?;
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                    .map_err(|e| WorkloadError::at("connecting over the loopback", e))?;
                self.tcp(stream)
            }
            Transport::Unix => {
                let stream = UnixStream::connect(self.path("socket"))
                    .map_err(|e| WorkloadError::at("connecting a Unix socket", e))?;
                self.socket_buffers(&stream)?;
                self.stream(stream.into(), None)
            }
            Transport::Pipe => {
                let there = self.pipe("there", OFlags::WRONLY)?;
                let back = self.pipe("back", OFlags::RDONLY)?;
                cx.mail(b"opened")?;
                self.stream(back, Some(there))
            }
        }
    }

    fn accept(&mut self, cx: &mut Cx<'_>) -> Result<Option<Stream>, WorkloadError> {
        let accepted: std::io::Result<OwnedFd> = match &self.state {
            State::Start => return Ok(None),
            State::Tcp(listener) => match listener.accept() {
                Ok((stream, _)) => return self.tcp(stream).map(Some),
                Err(e) => Err(e),
            },
            State::Unix(listener) => listener.accept().map(|(stream, _)| stream.into()),
            State::Piped(..) => {
                // Without its writer this one would read as ended.
                if cx.mailed().is_none() {
                    return Ok(None);
                }
                let State::Piped(there, back) = std::mem::replace(&mut self.state, State::Start)
                else {
                    return Ok(None);
                };
                return self.stream(there, Some(back)).map(Some);
            }
        };
        match accepted {
            Ok(fd) => {
                self.socket_buffers(&fd)?;
                self.stream(fd, None).map(Some)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(WorkloadError::at("accepting", e)),
        }
    }

    fn tcp(&self, stream: TcpStream) -> Result<Stream, WorkloadError> {
        stream
            .set_nodelay(true)
            .map_err(|e| WorkloadError::at("TCP_NODELAY", e))?;
        self.socket_buffers(&stream)?;
        self.stream(stream.into(), None)
    }

    fn stream(
        &self,
        incoming: OwnedFd,
        outgoing: Option<OwnedFd>,
    ) -> Result<Stream, WorkloadError> {
        for fd in [Some(&incoming), outgoing.as_ref()].into_iter().flatten() {
            let flags = fcntl_getfl(fd).map_err(|e| WorkloadError::at("descriptor flags", e))?;
            let flags = match self.waiting {
                Waiting::Spinning => flags | OFlags::NONBLOCK,
                Waiting::Blocking => flags - OFlags::NONBLOCK,
            };
            fcntl_setfl(fd, flags).map_err(|e| WorkloadError::at("descriptor flags", e))?;
        }
        Ok(Stream::new(
            &self.job,
            self.waiting,
            self.buffering,
            incoming,
            outgoing,
        ))
    }

    fn pipe(&self, name: &str, way: OFlags) -> Result<OwnedFd, WorkloadError> {
        let flags = way | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(self.path(name), flags, Mode::empty())
            .map_err(|e| WorkloadError::at("opening a pipe", e))?;
        if let Some(bytes) = self.job.buffer {
            rustix::pipe::fcntl_setpipe_size(&fd, bytes)
                .map_err(|e| WorkloadError::at("pipe buffer", e))?;
        }
        Ok(fd)
    }

    fn socket_buffers(&self, socket: &impl AsFd) -> Result<(), WorkloadError> {
        let Some(bytes) = self.job.buffer else {
            return Ok(());
        };
        set_socket_send_buffer_size(socket, bytes)
            .and_then(|()| set_socket_recv_buffer_size(socket, bytes))
            .map_err(|e| WorkloadError::at("socket buffer", e))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.job.dir.join(name)
    }
}

impl Connect for StreamConnect {
    type Arm = Stream;

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Stream>, WorkloadError> {
        match (self.role, &self.state) {
            (Role::Sender, _) => match cx.mailed() {
                Some(mail) => self.follow(&mail, cx).map(Some),
                None => Ok(None),
            },
            (Role::Receiver, State::Start) => self.listen(cx).map(|()| None),
            (Role::Receiver, _) => self.accept(cx),
        }
    }
}
