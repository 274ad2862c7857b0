//! The kernel's byte streams as transports: TCP, Unix sockets and pipes. To connect one, the receiving actor
//! makes the names and mails where they are, and the sending actor follows.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use headworks_runtime::ActorContext;
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat, open};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size, set_tcp_nodelay,
};
use rustix::net::{SocketFlags, accept_with};

use super::buffer::Buffer;
use super::job::{Buffering, Job, StreamKind, Waiting};
use super::{MessageSink, MessageSource, MessageTransport, TakeResult};
use crate::actor_pair::{PairMail, Role};
use crate::connecting_actor::Connect;
use crate::error::{Result, WorkloadError};

/// Bytes that a buffering application gathers.
const BUFFER: usize = 64 * 1024;

/// One end of a byte stream that carries messages of one size.
pub struct ByteStream {
    incoming: OwnedFd,
    /// Descriptor for writing; `None` if one descriptor serves both directions.
    outgoing: Option<OwnedFd>,
    finished: bool,
    size: usize,
    blocking: bool,
    buffered: bool,
    out: Buffer,
    inward: Buffer,
}

impl ByteStream {
    /// Writes what is pending. Returns whether nothing is left.
    fn write_out(&mut self) -> Result<bool> {
        while !self.out.pending().is_empty() {
            let fd = self.outgoing.as_ref().unwrap_or(&self.incoming);
            match rustix::io::write(fd, self.out.pending()) {
                Ok(n) => self.out.used(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(why) => return Err(WorkloadError::at("write", why)),
            }
        }
        self.out.rewind();
        Ok(true)
    }

    /// Reads once. Returns `None` at the end of the stream.
    fn read_in(&mut self) -> Result<Option<usize>> {
        self.inward.rewind();
        loop {
            match rustix::io::read(&self.incoming, self.inward.room()) {
                Ok(0) if !self.inward.pending().is_empty() => {
                    return Err(WorkloadError("the stream ended within a message".into()));
                }
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.inward.filled(n);
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

impl MessageTransport for ByteStream {
    fn offer<F: MessageSource>(&mut self, n: usize, fill: &mut F) -> Result<usize> {
        for accepted in 0..n {
            let full = self.out.room().len() < self.size;
            if (full || self.out.is_begun()) && !self.write_out()? {
                return Ok(accepted);
            }
            fill.fill(&mut self.out.room()[..self.size]);
            self.out.filled(self.size);
            if !self.buffered && !self.write_out()? {
                return Ok(accepted + 1);
            }
        }
        Ok(n)
    }

    fn take<S: MessageSink>(&mut self, max: usize, sink: &mut S) -> Result<TakeResult> {
        let mut taken = 0;
        while taken < max {
            if let Some(message) = self.inward.pending().get(..self.size) {
                sink.take(message);
                self.inward.used(self.size);
                taken += 1;
                continue;
            }
            // An end that blocks must not wait for more once it has something.
            if taken > 0 && (self.blocking || self.buffered) {
                break;
            }
            match self.read_in()? {
                None if taken == 0 => return Ok(TakeResult::Ended),
                None | Some(0) => break,
                Some(_) => {}
            }
        }
        Ok(TakeResult::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool> {
        self.write_out()
    }

    fn finish(&mut self) -> Result<()> {
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
pub struct ByteStreamConnect {
    job: Job,
    role: Role,
    transport: StreamKind,
    blocking: bool,
    buffered: bool,
    state: State,
}

enum State {
    Start,
    Listening(OwnedFd),
    /// This actor has opened both pipes, the one to read and the one to write. The sender has not opened them
    /// yet.
    Piped(OwnedFd, OwnedFd),
}

/// Makes errors that say what was being done.
fn at<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> WorkloadError {
    move |why| WorkloadError::at(what, why)
}

impl ByteStreamConnect {
    /// Connects for `job`, whose channel is this stream.
    pub fn new(job: Job, role: Role, stream: (StreamKind, Waiting, Buffering)) -> Self {
        let (transport, waiting, buffering) = stream;
        Self {
            job,
            role,
            transport,
            blocking: waiting == Waiting::Blocking,
            buffered: buffering == Buffering::Buffered,
            state: State::Start,
        }
    }

    /// Makes the names, and mails where they are.
    fn listen(&self, cx: &mut ActorContext<'_>) -> Result<State> {
        let (listener, mail): (OwnedFd, [u8; 2]) = match self.transport {
            StreamKind::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
                let listener = listener.map_err(at("listening on the loopback"))?;
                let port = listener.local_addr().map_err(at("listener"))?.port();
                (listener.into(), port.to_le_bytes())
            }
            StreamKind::Unix => {
                let listener = UnixListener::bind(self.path("socket"));
                let listener = listener.map_err(at("listening on a Unix socket"))?;
                (listener.into(), [0; 2])
            }
            StreamKind::Pipe => {
                for name in ["there", "back"] {
                    let mode = Mode::RUSR | Mode::WUSR;
                    mknodat(CWD, self.path(name), FileType::Fifo, mode, 0)
                        .map_err(at("making a pipe"))?;
                }
                let there = self.pipe("there", OFlags::RDONLY)?;
                // Open it for reading as well. A pipe cannot be opened for writing alone before its reader is
                // there, and a reader that comes before the writer reads the end of the stream.
                let back = self.pipe("back", OFlags::RDWR)?;
                cx.send_mail(b"opened")?;
                return Ok(State::Piped(there, back));
            }
        };
        self.set_buffers(&listener)?;
        self.set_nonblocking(&listener, true)?;
        cx.send_mail(&mail)?;
        Ok(State::Listening(listener))
    }

    /// Connects the sending actor's end, with the `mail` of the receiving actor.
    fn follow(&self, mail: &[u8], cx: &mut ActorContext<'_>) -> Result<ByteStream> {
        match self.transport {
            StreamKind::Tcp => {
                let port = mail.try_into().map(u16::from_le_bytes);
                let port = port.map_err(|_| WorkloadError("no port in the mail".into()))?;
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                self.socket(stream.map_err(at("connecting over the loopback"))?.into())
            }
            StreamKind::Unix => {
                let stream = UnixStream::connect(self.path("socket"));
                self.socket(stream.map_err(at("connecting a Unix socket"))?.into())
            }
            StreamKind::Pipe => {
                let there = self.pipe("there", OFlags::WRONLY)?;
                let back = self.pipe("back", OFlags::RDONLY)?;
                cx.send_mail(b"opened")?;
                self.stream(back, Some(there))
            }
        }
    }

    /// Returns the receiving actor's end once the sending actor has followed.
    fn accept(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<ByteStream>> {
        match std::mem::replace(&mut self.state, State::Start) {
            State::Start => self.state = self.listen(cx)?,
            State::Listening(listener) => match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(socket) => return self.socket(socket).map(Some),
                Err(Errno::AGAIN | Errno::INTR) => self.state = State::Listening(listener),
                Err(why) => return Err(WorkloadError::at("accepting", why)),
            },
            // As long as the pipe has no writer, reading from it returns the end of the stream.
            piped @ State::Piped(..) if cx.receive_mail().is_none() => self.state = piped,
            State::Piped(there, back) => return self.stream(there, Some(back)).map(Some),
        }
        Ok(None)
    }

    fn socket(&self, socket: OwnedFd) -> Result<ByteStream> {
        if self.transport == StreamKind::Tcp {
            set_tcp_nodelay(&socket, true).map_err(at("TCP_NODELAY"))?;
        }
        self.set_buffers(&socket)?;
        self.stream(socket, None)
    }

    fn stream(&self, incoming: OwnedFd, outgoing: Option<OwnedFd>) -> Result<ByteStream> {
        for fd in [Some(&incoming), outgoing.as_ref()].into_iter().flatten() {
            self.set_nonblocking(fd, !self.blocking)?;
        }
        let size = self.job.size;
        let capacity = match self.buffered {
            true => (BUFFER / size).max(1) * size,
            false => size,
        };
        Ok(ByteStream {
            incoming,
            outgoing,
            finished: false,
            size,
            blocking: self.blocking,
            buffered: self.buffered,
            out: Buffer::new(capacity),
            inward: Buffer::new(capacity),
        })
    }

    fn pipe(&self, name: &str, way: OFlags) -> Result<OwnedFd> {
        let flags = way | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(self.path(name), flags, Mode::empty()).map_err(at("opening a pipe"))?;
        if let Some(bytes) = self.job.buffer {
            rustix::pipe::fcntl_setpipe_size(&fd, bytes).map_err(at("pipe buffer"))?;
        }
        Ok(fd)
    }

    fn set_buffers(&self, socket: &OwnedFd) -> Result<()> {
        let Some(bytes) = self.job.buffer else {
            return Ok(());
        };
        set_socket_send_buffer_size(socket, bytes)
            .and_then(|()| set_socket_recv_buffer_size(socket, bytes))
            .map_err(at("socket buffer"))
    }

    fn set_nonblocking(&self, fd: &OwnedFd, is_nonblocking: bool) -> Result<()> {
        let mut flags = fcntl_getfl(fd).map_err(at("descriptor flags"))?;
        flags.set(OFlags::NONBLOCK, is_nonblocking);
        fcntl_setfl(fd, flags).map_err(at("descriptor flags"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.job.dir.join(name)
    }
}

impl Connect for ByteStreamConnect {
    type Connected = ByteStream;

    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<ByteStream>> {
        match self.role {
            Role::Receiver => self.accept(cx),
            Role::Sender => match cx.receive_mail() {
                Some(mail) => self.follow(&mail, cx).map(Some),
                None => Ok(None),
            },
        }
    }
}
