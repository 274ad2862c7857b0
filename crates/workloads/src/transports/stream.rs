//! The kernel's byte streams as arms: TCP, Unix sockets and pipes. To connect one, the receiving actor makes the names
//! and mails where they are, and the sending actor follows.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use headworks_stage::Cx;
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat, open};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size, set_tcp_nodelay,
};

use super::job::{Buffering, Job, Transport, Waiting};
use super::{Arm, Fill, Sink, Taken};
use crate::driven::Connect;
use crate::error::WorkloadError;
use crate::pair::{PairCx, Role};

/// Bytes that the application gathers where it buffers.
const BUFFER: usize = 64 * 1024;

/// One end of a byte stream that carries messages of one size.
pub struct Stream {
    incoming: OwnedFd,
    /// Where there is one descriptor for both ways, none.
    outgoing: Option<OwnedFd>,
    finished: bool,
    size: usize,
    blocking: bool,
    buffered: bool,
    /// Messages on their way out; `out[out_from..out_to]` is not written yet.
    out: Vec<u8>,
    out_from: usize,
    out_to: usize,
    /// Bytes that came in; `inward[in_from..in_to]` is not taken yet.
    inward: Vec<u8>,
    in_from: usize,
    in_to: usize,
}

impl Stream {
    /// Over one descriptor for both ways, or one each.
    fn new(
        job: &Job,
        waiting: Waiting,
        buffering: Buffering,
        incoming: OwnedFd,
        outgoing: Option<OwnedFd>,
    ) -> Self {
        let buffered = buffering == Buffering::Buffered;
        let capacity = if buffered {
            (BUFFER / job.size).max(1) * job.size
        } else {
            job.size
        };
        Self {
            incoming,
            outgoing,
            finished: false,
            size: job.size,
            blocking: waiting == Waiting::Blocking,
            buffered,
            out: vec![0; capacity],
            out_from: 0,
            out_to: 0,
            inward: vec![0; capacity],
            in_from: 0,
            in_to: 0,
        }
    }

    /// Writes what is pending; answers whether nothing is left.
    fn write_out(&mut self) -> Result<bool, WorkloadError> {
        while self.out_from < self.out_to {
            let fd = self.outgoing.as_ref().unwrap_or(&self.incoming);
            match rustix::io::write(fd, &self.out[self.out_from..self.out_to]) {
                Ok(n) => self.out_from += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(why) => return Err(WorkloadError::at("write", why)),
            }
        }
        (self.out_from, self.out_to) = (0, 0);
        Ok(true)
    }

    /// Reads once; `None` at the end of the stream.
    fn read_in(&mut self) -> Result<Option<usize>, WorkloadError> {
        if self.in_from > 0 {
            self.inward.copy_within(self.in_from..self.in_to, 0);
            self.in_to -= self.in_from;
            self.in_from = 0;
        }
        loop {
            match rustix::io::read(&self.incoming, &mut self.inward[self.in_to..]) {
                Ok(0) if self.in_to > 0 => {
                    return Err(WorkloadError("cut off in a message".into()));
                }
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.in_to += n;
                    return Ok(Some(n));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Some(0)),
                Err(Errno::CONNRESET) => return Ok(None),
                Err(why) => return Err(WorkloadError::at("read", why)),
            }
        }
    }
}

impl Arm for Stream {
    fn offer<F: Fill>(&mut self, n: usize, fill: &mut F) -> Result<usize, WorkloadError> {
        for accepted in 0..n {
            let full = self.out_to + self.size > self.out.len();
            if (full || self.out_from > 0) && !self.write_out()? {
                return Ok(accepted);
            }
            fill.fill(&mut self.out[self.out_to..self.out_to + self.size]);
            self.out_to += self.size;
            if !self.buffered && !self.write_out()? {
                return Ok(accepted + 1);
            }
        }
        Ok(n)
    }

    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<Taken, WorkloadError> {
        let mut taken = 0;
        while taken < max {
            if self.in_to - self.in_from >= self.size {
                sink.take(&self.inward[self.in_from..self.in_from + self.size]);
                self.in_from += self.size;
                taken += 1;
                continue;
            }
            // Once it has something, an end that blocks must not wait for more.
            if taken > 0 && (self.blocking || self.buffered) {
                break;
            }
            match self.read_in()? {
                None if taken == 0 => return Ok(Taken::Ended),
                None | Some(0) => break,
                Some(_) => {}
            }
        }
        Ok(Taken::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool, WorkloadError> {
        self.write_out()
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        if self.finished {
            return Ok(());
        }
        self.finished = true;
        if self.outgoing.take().is_none() {
            // The peer may be gone already.
            let _ = rustix::net::shutdown(&self.incoming, rustix::net::Shutdown::Write);
        }
        Ok(())
    }
}

/// Connects a kernel stream.
pub struct StreamConnect {
    job: Job,
    role: Role,
    transport: Transport,
    waiting: Waiting,
    buffering: Buffering,
    state: State,
}

enum State {
    Start,
    Listening(OwnedFd),
    /// Both pipes are open here, the one that is read and the one that is written; the sender has
    /// not opened them yet.
    Piped(OwnedFd, OwnedFd),
}

/// An error while `what` was being done.
fn at<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> WorkloadError {
    move |why| WorkloadError::at(what, why)
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

    /// Makes the names, and mails where they are.
    fn listen(&self, cx: &mut Cx<'_>) -> Result<State, WorkloadError> {
        let (listener, mail): (OwnedFd, [u8; 2]) = match self.transport {
            Transport::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
                let listener = listener.map_err(at("listening on the loopback"))?;
                let port = listener.local_addr().map_err(at("listener"))?.port();
                (listener.into(), port.to_le_bytes())
            }
            Transport::Unix => {
                let listener = UnixListener::bind(self.path("socket"));
                let listener = listener.map_err(at("listening on a Unix socket"))?;
                (listener.into(), [0; 2])
            }
            Transport::Pipe => {
                for name in ["there", "back"] {
                    let mode = Mode::RUSR | Mode::WUSR;
                    mknodat(CWD, self.path(name), FileType::Fifo, mode, 0)
                        .map_err(at("making a pipe"))?;
                }
                let there = self.pipe("there", OFlags::RDONLY)?;
                // Also for reading: a pipe cannot be opened for writing alone before its reader is
                // there, and reads as ended to a reader that comes before its writer.
                let back = self.pipe("back", OFlags::RDWR)?;
                cx.mail(b"opened")?;
                return Ok(State::Piped(there, back));
            }
        };
        self.set_buffers(&listener)?;
        self.set_nonblocking(&listener, true)?;
        cx.mail(&mail)?;
        Ok(State::Listening(listener))
    }

    /// The sending actor's end, told `mail` by the receiving actor.
    fn follow(&self, mail: &[u8], cx: &mut Cx<'_>) -> Result<Stream, WorkloadError> {
        match self.transport {
            Transport::Tcp => {
                let port = mail.try_into().map(u16::from_le_bytes);
                let port = port.map_err(|_| WorkloadError("no port in the mail".into()))?;
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                self.socket(stream.map_err(at("connecting over the loopback"))?.into())
            }
            Transport::Unix => {
                let stream = UnixStream::connect(self.path("socket"));
                self.socket(stream.map_err(at("connecting a Unix socket"))?.into())
            }
            Transport::Pipe => {
                let there = self.pipe("there", OFlags::WRONLY)?;
                let back = self.pipe("back", OFlags::RDONLY)?;
                cx.mail(b"opened")?;
                self.stream(back, Some(there))
            }
        }
    }

    /// The receiving actor's end, once the sending actor has followed.
    fn accept(&mut self, cx: &mut Cx<'_>) -> Result<Option<Stream>, WorkloadError> {
        match std::mem::replace(&mut self.state, State::Start) {
            State::Start => self.state = self.listen(cx)?,
            State::Listening(listener) => match rustix::net::accept(&listener) {
                Ok(socket) => return self.socket(socket).map(Some),
                Err(Errno::AGAIN) => self.state = State::Listening(listener),
                Err(why) => return Err(WorkloadError::at("accepting", why)),
            },
            // Without its writer the pipe that is read would read as ended.
            piped @ State::Piped(..) if cx.mailed().is_none() => self.state = piped,
            State::Piped(there, back) => return self.stream(there, Some(back)).map(Some),
        }
        Ok(None)
    }

    fn socket(&self, socket: OwnedFd) -> Result<Stream, WorkloadError> {
        if self.transport == Transport::Tcp {
            set_tcp_nodelay(&socket, true).map_err(at("TCP_NODELAY"))?;
        }
        self.set_buffers(&socket)?;
        self.stream(socket, None)
    }

    fn stream(
        &self,
        incoming: OwnedFd,
        outgoing: Option<OwnedFd>,
    ) -> Result<Stream, WorkloadError> {
        for fd in [Some(&incoming), outgoing.as_ref()].into_iter().flatten() {
            self.set_nonblocking(fd, self.waiting == Waiting::Spinning)?;
        }
        let (waiting, buffering) = (self.waiting, self.buffering);
        Ok(Stream::new(
            &self.job, waiting, buffering, incoming, outgoing,
        ))
    }

    fn pipe(&self, name: &str, way: OFlags) -> Result<OwnedFd, WorkloadError> {
        let flags = way | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(self.path(name), flags, Mode::empty()).map_err(at("opening a pipe"))?;
        if let Some(bytes) = self.job.buffer {
            rustix::pipe::fcntl_setpipe_size(&fd, bytes).map_err(at("pipe buffer"))?;
        }
        Ok(fd)
    }

    fn set_buffers(&self, socket: &OwnedFd) -> Result<(), WorkloadError> {
        let Some(bytes) = self.job.buffer else {
            return Ok(());
        };
        set_socket_send_buffer_size(socket, bytes)
            .and_then(|()| set_socket_recv_buffer_size(socket, bytes))
            .map_err(at("socket buffer"))
    }

    fn set_nonblocking(&self, fd: &OwnedFd, is_nonblocking: bool) -> Result<(), WorkloadError> {
        let mut flags = fcntl_getfl(fd).map_err(at("descriptor flags"))?;
        flags.set(OFlags::NONBLOCK, is_nonblocking);
        fcntl_setfl(fd, flags).map_err(at("descriptor flags"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.job.dir.join(name)
    }
}

impl Connect for StreamConnect {
    type Arm = Stream;

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Stream>, WorkloadError> {
        match self.role {
            Role::Receiver => self.accept(cx),
            Role::Sender => match cx.mailed() {
                Some(mail) => self.follow(&mail, cx).map(Some),
                None => Ok(None),
            },
        }
    }
}
