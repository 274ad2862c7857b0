//! Connections through the daemon of this host: a stream of bytes to a port of another host's application, over few
//! queue pairs that all share (RaaS, section V.A). Who uses it knows sockets, and nothing of RDMA.
//!
//! ```no_run
//! use headworks::service::Service;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = Service::open("example")?;
//! let mut stream = service.connect("10.0.0.2:7000".parse()?)?;
//! stream.send_all(b"over the weir")?;
//! let mut answer = [0; 64];
//! let len = stream.recv(&mut answer)?;
//! # let _ = len;
//! # Ok(())
//! # }
//! ```
//!
//! A call that waits looks around for a bounded time, offering its core to others, and then sleeps. While neither side
//! sleeps, sending and receiving take no lock and no system call.
//!
//! A process that forks keeps what it has. The child has copies that are good for nothing: every call fails with
//! [`ServiceError::Forked`], and dropping them touches nothing. It may attach itself. While it lives, its copy of the
//! socket keeps the daemon from noticing that its parent has died, unless it executes another program.
//!
//! # Polling
//!
//! [`Stream::fd`], [`Listener::fd`] and [`PendingConnection`] have descriptors for poll(2) and epoll(7), with
//! [`Stream::set_nonblocking`], [`Listener::try_accept`] and [`PendingConnection::finish`] for when they are ready. They are
//! level-triggered, as those of sockets: readable while there is something to be received, writable while there is
//! room, hung up once the connection is reset. One may be ready in vain; what was asked for then says so by
//! [`ServiceError::WouldBlock`].
//!
//! # Messages
//!
//! [`Service::bind`] gives a port that messages are sent from and come to, from and to many others: [`Datagrams`].
//!
//! # Memory of the other end's
//!
//! One end [exports](Stream::export) memory and sends the other what it is called; that one [reads](Stream::read_from),
//! [writes](Stream::write_to) and [changes](Stream::fetch_add) it, without the application that it belongs to.
//!
//! # Without copies
//!
//! [`Stream::peek`] shows what has come where it lies. What lies in a [`SharedMemory`] from [`Service::alloc`] is sent from
//! there by [`Stream::lend`].

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use headworks_client::control_block::Transfer;
pub use headworks_client::socket_message::Refusal;
pub use headworks_client::{ContractError, Outcome, Reset, Rights};
use headworks_shm::SegmentError;
use headworks_verbs::Instant;

mod datagrams;
mod leader_followers;
mod listener;
mod pending_connection;
mod readiness_socket;
mod remote_memory;
mod shared_memory;
mod shared_session;
mod stream;
mod stream_half;

pub use datagrams::{Datagrams, MESSAGE_MAX, Message};
pub use listener::Listener;
pub use pending_connection::PendingConnection;
pub use remote_memory::{Export, RemoteOperation, RevokeError};
pub use shared_memory::{Loan, SharedMemory};
use shared_session::{Answer, SharedSession};
pub use stream::{Peeked, Reader, ReclaimError, Stream};

/// Where the daemon that serves `address` is attached to, unless it was told otherwise: by its own user's applications.
pub fn socket_of(address: IpAddr) -> PathBuf {
    let directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directory = directory.unwrap_or_else(std::env::temp_dir);
    directory.join(format!("headworks-{address}.sock"))
}

/// Where the daemon of that socket says what there is, unless it was told otherwise.
pub fn metrics_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".metrics");
    path.into()
}

/// Where a daemon that the system's service manager started is attached to.
const SYSTEM_SOCKET: &str = "/run/headworks/daemon.sock";

/// Why something cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// There is no daemon there.
    #[error("no daemon at {path}: {source}")]
    NoDaemon {
        /// Path of the daemon's socket.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon says no.
    #[error("{0}")]
    Refused(Refusal),
    /// The connection is no more.
    #[error("{0}")]
    Reset(Reset),
    /// The stream was ended by this side.
    #[error("the stream was ended: nothing can be sent any more")]
    Ended,
    /// The daemon is gone.
    #[error("the daemon is gone")]
    DaemonGone,
    /// This process was forked from the one that attached.
    #[error(
        "this process was forked from the one that attached to the daemon: it has to attach itself"
    )]
    Forked,
    /// The time is up.
    #[error("the time is up")]
    Deadline,
    /// A one-sided operation was not carried out.
    #[error("{0}")]
    Operation(Outcome),
    /// A message of so many bytes.
    #[error("a message of {0} bytes: at most {MESSAGE_MAX}")]
    TooLong(usize),
    /// What comes over the connection is another's to receive.
    #[error("the stream's reader was taken off it")]
    Taken,
    /// It would have to wait, and is not to.
    #[error("nothing there yet, or no room")]
    WouldBlock,
    /// What the daemon shares makes no sense.
    #[error("the daemon does not keep to the contract: {0}")]
    Contract(#[from] ContractError),
    /// Memory that the daemon shares cannot be mapped.
    #[error(transparent)]
    Memory(#[from] SegmentError),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServiceError {
    move |source| ServiceError::System { what, source }
}

impl From<ServiceError> for io::Error {
    fn from(error: ServiceError) -> Self {
        use io::ErrorKind;
        let kind = match &error {
            ServiceError::Refused(Refusal::Refused) => ErrorKind::ConnectionRefused,
            ServiceError::Refused(Refusal::Unreachable) => ErrorKind::HostUnreachable,
            ServiceError::Refused(Refusal::TimedOut) | ServiceError::Deadline => {
                ErrorKind::TimedOut
            }
            ServiceError::Refused(Refusal::PortTaken) => ErrorKind::AddrInUse,
            ServiceError::Refused(Refusal::Memory) => ErrorKind::OutOfMemory,
            ServiceError::Refused(Refusal::Denied) => ErrorKind::PermissionDenied,
            ServiceError::Reset(_) => ErrorKind::ConnectionReset,
            ServiceError::Ended => ErrorKind::BrokenPipe,
            ServiceError::WouldBlock => ErrorKind::WouldBlock,
            ServiceError::Operation(Outcome::Denied) => ErrorKind::PermissionDenied,
            ServiceError::Operation(_) | ServiceError::TooLong(_) => ErrorKind::InvalidInput,
            ServiceError::DaemonGone => ErrorKind::ConnectionAborted,
            ServiceError::NoDaemon { source, .. } => source.kind(),
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The daemon answers what it was not asked.
const UNEXPECTED_ANSWER: ContractError = ContractError::Message("another answer");

/// An application's way to the daemon of its host. Clones are the same one.
#[derive(Clone)]
pub struct Service(Arc<SharedSession>);

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Service {
    /// Attaches to this host's daemon, as `name` in its logs: that at `$HEADWORKS_DAEMON`, else the user's own one of
    /// 127.0.0.1, else the system's.
    ///
    /// # Errors
    ///
    /// As [`Service::attach`].
    pub fn open(name: &str) -> Result<Self, ServiceError> {
        if let Some(path) = std::env::var_os("HEADWORKS_DAEMON") {
            return Self::attach(path.as_ref(), name);
        }
        let own = socket_of(Ipv4Addr::LOCALHOST.into());
        match Self::attach(&own, name) {
            Err(ServiceError::NoDaemon { .. }) if Path::new(SYSTEM_SOCKET).exists() => {
                Self::attach(SYSTEM_SOCKET.as_ref(), name)
            }
            attached => attached,
        }
    }

    /// Attaches to the daemon whose socket is at `path`, as `name` in its logs.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::Refused`].
    pub fn attach(path: &Path, name: &str) -> Result<Self, ServiceError> {
        SharedSession::attach(path, name).map(Self)
    }

    /// Where the daemon is attached to.
    pub fn socket(&self) -> &Path {
        &self.0.path
    }

    /// Whether the daemon is gone or has ended this session, or this is a forked child: nothing can be asked any more, also
    /// where another daemon serves there by now.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Connects to whoever listens there.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::DaemonGone`].
    pub fn connect(&self, to: SocketAddr) -> Result<Stream, ServiceError> {
        self.connect_by(to, None)
    }

    /// The same, no later than `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Service::connect`], and [`ServiceError::Deadline`].
    pub fn connect_by(
        &self,
        to: SocketAddr,
        deadline: Option<Instant>,
    ) -> Result<Stream, ServiceError> {
        match self.0.answer(deadline, |session| session.connect(to))? {
            Answer::Connected(connection) => Ok(Stream::new(&self.0, connection)),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Begins to connect, and does not wait for the answer.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn connect_start(&self, to: SocketAddr) -> Result<PendingConnection, ServiceError> {
        PendingConnection::start(&self.0, to)
    }

    /// Memory that can be lent: see [`Stream::lend`]. It is the application's until it is dropped.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`]: a quota, or no memory. [`ServiceError::DaemonGone`].
    pub fn alloc(&self, len: u32) -> Result<SharedMemory, ServiceError> {
        match self.0.answer(None, |session| session.alloc(len))? {
            Answer::Allocated(extent) => SharedMemory::new(&self.0, extent, len),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// A port, 0 for any that is free, that messages are sent from and come to: see [`Datagrams`].
    ///
    /// # Errors
    ///
    /// As [`Service::listen`]; and [`ServiceError::System`].
    pub fn bind(&self, port: u16) -> Result<Datagrams, ServiceError> {
        Datagrams::bind(self, port)
    }

    /// Listens at `port`, 0 for any that is free; `backlog` callers may wait to be accepted.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::DaemonGone`].
    pub fn listen(&self, port: u16, backlog: u32) -> Result<Listener, ServiceError> {
        match self
            .0
            .answer(None, |session| session.listen(port, backlog))?
        {
            Answer::Listening { listener, port } => Ok(Listener::new(&self.0, listener, port)),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }
}
