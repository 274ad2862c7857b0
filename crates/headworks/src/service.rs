//! Connections through the daemon of this host: a byte stream to a port of an application on another host,
//! over few queue pairs that all applications share (RaaS, section V.A). Its users need to know sockets, not
//! RDMA.
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
//! A call that waits polls for a bounded time, yielding its core, and then sleeps. While neither side sleeps,
//! sending and receiving take no lock and make no system call.
//!
//! A process that forks keeps its connections. The child's copies are inert: every call fails with
//! [`ServiceError::Forked`], and dropping them has no effect. The child may attach itself. The C library's fork
//! closes the child's copy of the socket, so the daemon notices the parent's death while the child lives.
//!
//! # Polling
//!
//! [`Stream::fd`], [`Listener::fd`] and [`PendingConnection`] have descriptors for poll(2) and epoll(7). The
//! calls for when they are ready are those of a stream with [`Stream::set_nonblocking`],
//! [`Listener::try_accept`] and [`PendingConnection::finish`]. The descriptors are level-triggered, as those
//! of sockets: readable while there is something to receive, writable while there is room, hung up once the
//! connection is reset. Readiness may be spurious; the call then fails with [`ServiceError::WouldBlock`].
//!
//! # Messages
//!
//! [`Service::bind`] opens a port that exchanges messages with many others: [`Datagrams`].
//!
//! # The other end's memory
//!
//! One end [exports](Stream::export) memory and sends the other end its export number. The other end then
//! [reads](Stream::read_from), [writes](Stream::write_to) and [changes](Stream::fetch_add) it, without the
//! application that owns it.
//!
//! # Without copies
//!
//! [`Stream::peek`] lends received bytes in place. [`Stream::lend`] sends the contents of a [`SharedMemory`]
//! from [`Service::alloc`] in place.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use headworks_client::control_block::Transfer;
pub use headworks_client::socket_message::Refusal;
pub use headworks_client::{ContractError, Outcome, Reset, Rights};
use headworks_shm::SegmentError;
use headworks_verbs::{Duration, Instant};

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

/// Returns the default path of the socket of the daemon that serves `address` for applications of its own
/// user.
pub fn socket_of(address: IpAddr) -> PathBuf {
    let directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // As the XDG specification has it, a path that is not absolute counts as unset.
    let directory = directory.filter(|path| path.is_absolute());
    let directory = directory.unwrap_or_else(|| "/tmp".into());
    directory.join(format!("headworks-{address}.sock"))
}

/// Returns the default path at which the daemon of that socket serves its metrics.
pub fn metrics_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".metrics");
    path.into()
}

/// How long [`Service::connect`] waits for the daemon, which gives a connect request up after 10 seconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Socket of a daemon that the system's service manager started.
const SYSTEM_SOCKET: &str = "/run/headworks/daemon.sock";

/// Error of a call of the service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// No daemon listens at the path, or it serves other users.
    #[error("{}", no_daemon(.path, .source))]
    NoDaemon {
        /// Path of the daemon's socket.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon does not answer, or does not take requests.
    #[error("the daemon at {path} did not answer for {} s: is it stopped?", .patience.as_secs_f64())]
    DaemonSilent {
        /// Path of the daemon's socket.
        path: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(Refusal),
    /// The connection was reset.
    #[error("{0}")]
    Reset(Reset),
    /// This side has ended the stream.
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
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// A one-sided operation was not executed.
    #[error("{0}")]
    Operation(Outcome),
    /// The message has this many bytes, more than [`MESSAGE_MAX`].
    #[error("a message of {0} bytes: at most {MESSAGE_MAX} are allowed")]
    TooLong(usize),
    /// The stream's reader was taken, so only the reader receives.
    #[error("the stream's reader was taken: receive with the reader")]
    Taken,
    /// The call would have to wait, and the object is nonblocking.
    #[error("the call would have to wait: nothing has arrived, or there is no room")]
    WouldBlock,
    /// The daemon wrote something illegal into shared memory or to the socket.
    #[error("the daemon broke the contract: {0}")]
    Contract(#[from] ContractError),
    /// Memory that the daemon shares could not be mapped.
    #[error(transparent)]
    Memory(#[from] SegmentError),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn no_daemon(path: &str, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied if Path::new(path).metadata().is_err() => {
            format!(
                "no daemon can be looked for at {path}: {source}: its directory is closed to this user"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "the daemon at {path} may not be attached to: {source}: it serves its own user only, unless it is started \
             with --users all"
        ),
        _ => format!("no daemon at {path}: {source}"),
    }
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
            ServiceError::Refused(Refusal::TimedOut)
            | ServiceError::Deadline
            | ServiceError::DaemonSilent { .. } => ErrorKind::TimedOut,
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

/// Error for a daemon that answers something that was not asked.
const UNEXPECTED_ANSWER: ContractError = ContractError::Message("another answer");

/// An application's session with the daemon of its host. Clones share the session.
#[derive(Clone)]
pub struct Service(Arc<SharedSession>);

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Service {
    /// Attaches to this host's daemon; `name` appears in the daemon's logs. Tries the daemon at
    /// `$HEADWORKS_DAEMON` if that is set; else the user's own daemon of 127.0.0.1 and, where there is none, the
    /// system's.
    ///
    /// # Errors
    ///
    /// As [`Service::attach`].
    pub fn open(name: &str) -> Result<Self, ServiceError> {
        let named = std::env::var_os("HEADWORKS_DAEMON");
        if let Some(path) = named.filter(|path| !path.is_empty()) {
            return Self::attach(path.as_ref(), name);
        }
        let own = socket_of(Ipv4Addr::LOCALHOST.into());
        let is_absent = |source: &io::Error| {
            matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            )
        };
        match Self::attach(&own, name) {
            Err(ServiceError::NoDaemon { source, .. })
                if is_absent(&source) && Path::new(SYSTEM_SOCKET).exists() =>
            {
                let attached = Self::attach(SYSTEM_SOCKET.as_ref(), name);
                attached.map_err(|error| match error {
                    ServiceError::NoDaemon { source, .. } if is_absent(&source) => {
                        ServiceError::NoDaemon {
                            path: format!("{} or {SYSTEM_SOCKET}", own.display()),
                            source,
                        }
                    }
                    error => error,
                })
            }
            attached => attached,
        }
    }

    /// Attaches to the daemon whose socket is at `path`; `name` appears in the daemon's logs.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::Refused`]. [`ServiceError::DaemonSilent`] after 10 seconds.
    pub fn attach(path: &Path, name: &str) -> Result<Self, ServiceError> {
        SharedSession::attach(path, name).map(Self)
    }

    /// Returns the path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.0.path
    }

    /// Whether no request is possible any more: the daemon is gone or has ended this session, or this is a
    /// forked child. It stays so if another daemon starts at the same path.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Connects to the listener at `to`. The daemon gives up after 10 seconds if the other host does not answer, the
    /// link to it does not come up, or the listener's backlog stays full.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::DaemonGone`], [`ServiceError::DaemonSilent`].
    pub fn connect(&self, to: SocketAddr) -> Result<Stream, ServiceError> {
        self.connect_by(to, None)
    }

    /// Connects as [`Service::connect`] does, no later than `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Service::connect`], and [`ServiceError::Deadline`].
    pub fn connect_by(
        &self,
        to: SocketAddr,
        deadline: Option<Instant>,
    ) -> Result<Stream, ServiceError> {
        match self.0.answer_connect(deadline, to)? {
            Answer::Connected(connection) => Ok(Stream::new(&self.0, connection)),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Starts to connect and does not wait for the answer.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn connect_start(&self, to: SocketAddr) -> Result<PendingConnection, ServiceError> {
        PendingConnection::start(&self.0, to)
    }

    /// Allocates memory that can be lent ([`Stream::lend`]). The application owns it until it is dropped.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] if a quota is reached or there is no memory. [`ServiceError::DaemonGone`].
    pub fn alloc(&self, len: u32) -> Result<SharedMemory, ServiceError> {
        match self.0.answer(None, |session| session.alloc(len))? {
            Answer::Allocated(extent) => SharedMemory::new(&self.0, extent, len),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Opens a port, 0 for any free one, for messages: see [`Datagrams`].
    ///
    /// # Errors
    ///
    /// As [`Service::listen`]; and [`ServiceError::System`].
    pub fn bind(&self, port: u16) -> Result<Datagrams, ServiceError> {
        Datagrams::bind(self, port)
    }

    /// Returns the address that the daemon serves, at which other hosts reach its listeners. `None` if the daemon is
    /// too old to tell.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn address(&self) -> Result<Option<IpAddr>, ServiceError> {
        Ok(self.0.lock()?.session.address())
    }

    /// Listens at `port`, 0 for any free one. Up to `backlog` connections wait to be accepted; further callers wait
    /// until there is room.
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
