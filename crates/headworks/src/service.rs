//! Connections through the daemon of this host: a byte stream to a port of an application on another host,
//! over few queue pairs that all applications share (RaaS, section V.A). Its users need to know sockets, not
//! RDMA.
//!
//! ```no_run
//! use headworks::service::Service;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = Service::open("example")?;
//! let mut stream = service.connect("10.0.0.2:7000")?;
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
//! # Closing and exit
//!
//! Dropping a [`Stream`] closes the connection, and everything that was sent still arrives. A connection that is open
//! when its process ends is reset: the peer receives a part of what was sent, then an error. `std::process::exit` drops
//! nothing. So a program that calls [`Stream::send_all`] and then `exit` delivers only what the daemon had carried by
//! then; drop the stream before `exit`. A stream that is dropped with received data that was not read ends with a reset
//! at the peer, after everything that was sent. Returning from `main` drops the variables of `main`, but nothing that a thread
//! or a `static` owns.
//!
//! # When the daemon restarts
//!
//! The connections, ports and memory of a daemon that has ended are gone: their calls fail with
//! [`ServiceError::DaemonGone`] or [`ServiceError::Reset`]. The next call of the [`Service`] that asks for something
//! new (to connect, listen, bind or allocate) attaches to the daemon again, at the same socket. While no daemon serves
//! there, that call fails with [`ServiceError::NoDaemon`].
//!
//! # Polling
//!
//! [`Stream::readiness`], [`Listener::readiness`] and [`PendingConnection`] have descriptors for poll(2) and epoll(7).
//! The calls for when they are ready are those of a stream with [`Stream::set_nonblocking`],
//! [`Listener::try_accept`] and [`PendingConnection::finish`]. The descriptors are level-triggered, as those
//! of sockets: readable while there is something to receive, writable while there is room, hung up once the
//! connection is reset. Readiness may be spurious; the call then fails with [`ServiceError::WouldBlock`].
//! A program with many connections uses one [`Poller`], which makes no system call for a connection.
//! With the cargo feature `tokio`, the module `asynchronous` has streams for tasks.
//!
//! # Direct connections
//!
//! Where the daemons allow it, two applications of one machine exchange bytes without their daemons
//! ([`Stream::is_direct`]). The calls are the same. [`Stream::peek`] and [`Stream::recv_chunk`] then return copies, because the
//! other application could change what they lend. The descriptor of [`Stream::readiness`] is made ready by a thread of this
//! process; a [`Poller`] needs none. The connection outlives its daemons.
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
//! [`Stream::peek`] lends received bytes in place. [`Stream::recv_chunk`] returns received bytes that the caller keeps, without
//! a copy if they lie in the daemon's receive pool. [`Stream::lend`] sends the contents of a [`SharedMemory`]
//! from [`Service::alloc`] in place.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use headworks_client::control_block::Transfer;
pub use headworks_client::socket_message::Refusal;
pub use headworks_client::{ContractError, DESCRIPTORS as CHUNKS_MAX, Outcome, Reset, Rights};
use headworks_net::clock;
use headworks_shm::SegmentError;
use headworks_verbs::{Duration, Instant};

mod attachment;
mod chunk;
mod datagrams;
mod descriptor_thread;
mod leader_followers;
mod listener;
mod pair_socket;
mod peeked;
mod pending_connection;
mod poller;
mod readiness_socket;
mod remote_memory;
mod shared_memory;
mod shared_session;
mod stream;
mod stream_half;

use attachment::Attachment;
pub use chunk::{COPIED_MAX, Chunk};
pub use datagrams::{Datagrams, MESSAGE_MAX, Message};
pub use listener::Listener;
pub use peeked::Peeked;
pub use pending_connection::PendingConnection;
#[cfg(feature = "tokio")]
pub(crate) use poller::SessionRef;
pub use poller::{Interest, PollEvent, PollWaker, Poller};
pub use readiness_socket::Readiness;
pub use remote_memory::{Export, RemoteOperation, RevokeError};
pub use shared_memory::{Loan, SharedMemory};
use shared_session::Answer;
pub use stream::{Reader, ReclaimError, Stream, Writer};

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
    /// A chunk is still kept that is [`CHUNKS_MAX`] pieces of the stream old, so that no further piece can arrive.
    #[error("a chunk that is {CHUNKS_MAX} pieces old is still kept: drop it")]
    ChunksKept,
    /// A loan of no bytes, or of more bytes than the memory has.
    #[error("a loan of {len} bytes of {available}: lend 1 to {available} bytes")]
    Loan {
        /// Bytes that were to be lent.
        len: usize,
        /// Bytes that the memory has.
        available: usize,
    },
    /// A loan without memory, or of memory of another session.
    #[error("a loan of memory that this session did not allocate: lend memory of Service::alloc")]
    ForeignMemory,
    /// A call of another handle is in progress, so the stream's descriptor cannot be made now.
    #[error(
        "another thread waits on this connection: make the descriptor before, with Stream::readiness"
    )]
    Busy,
    /// The stream or listener is of another session than the poller.
    #[error(
        "the stream or listener is of another session than the poller: make both from one Service"
    )]
    OtherSession,
    /// The stream is in a poller.
    #[error("the stream is in a poller: remove it there before")]
    InPoller,
    /// The stream is not in this poller.
    #[error("the stream is not in this poller: add it before")]
    NotInPoller,
    /// The connection is direct, and a descriptor was made for it, so it can be in no poller.
    #[error("a direct stream with a descriptor can be in no poller: poll the descriptor")]
    HasDescriptor,
    /// The address is not that of the daemon, so nothing can be bound to it.
    #[error("{}", not_own(*.own))]
    NotOwnAddress {
        /// The daemon's address; `None` if the daemon is too old to tell.
        own: Option<IpAddr>,
    },
    /// The call would have to wait, and the object is nonblocking.
    #[error("the call would have to wait: nothing has arrived, or there is no room")]
    WouldBlock,
    /// The daemon wrote something illegal into shared memory or to the socket, or the peer of a direct connection wrote
    /// something illegal into its memory.
    #[error("the daemon, or the peer of a direct connection, broke the contract: {0}")]
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

fn not_own(own: Option<IpAddr>) -> String {
    match own {
        Some(own) => format!(
            "the daemon listens only at its own address: pass {own}, or an unspecified address"
        ),
        None => "the daemon does not tell its address: pass an unspecified address".to_owned(),
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
            // Frequent, so it takes no memory.
            ServiceError::WouldBlock => return ErrorKind::WouldBlock.into(),
            ServiceError::Busy => ErrorKind::ResourceBusy,
            ServiceError::NotOwnAddress { .. } => ErrorKind::AddrNotAvailable,
            ServiceError::System { source, .. } => source.kind(),
            ServiceError::Operation(Outcome::Denied) => ErrorKind::PermissionDenied,
            ServiceError::Operation(_)
            | ServiceError::TooLong(_)
            | ServiceError::ChunksKept
            | ServiceError::Loan { .. }
            | ServiceError::ForeignMemory
            | ServiceError::OtherSession
            | ServiceError::InPoller
            | ServiceError::NotInPoller => ErrorKind::InvalidInput,
            ServiceError::HasDescriptor => ErrorKind::Unsupported,
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
///
/// After the daemon was restarted, the next call that asks for something new attaches to it again: see
/// [the module](self#when-the-daemon-restarts).
#[derive(Clone)]
pub struct Service(Arc<Attachment>);

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({})", self.socket().display())
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
            return Self::attach(path, name);
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
                let attached = Self::attach(SYSTEM_SOCKET, name);
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
    pub fn attach(path: impl AsRef<Path>, name: &str) -> Result<Self, ServiceError> {
        Attachment::new(path.as_ref(), name).map(|attachment| Self(Arc::new(attachment)))
    }

    /// Returns the path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        self.0.path()
    }

    /// Whether the session has ended: the daemon is gone or has ended it, or this is a forked child. Connections, ports
    /// and memory of the session are then gone, too. The next call that asks for something new attaches again, and this
    /// is false from then on.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Attaches to the daemon again if the session has ended, and does nothing otherwise. Calls that ask for something
    /// new do this by themselves.
    ///
    /// # Errors
    ///
    /// As [`Service::attach`], and [`ServiceError::Forked`].
    pub fn reattach(&self) -> Result<(), ServiceError> {
        self.0.session(None).map(drop)
    }

    /// Connects to the listener at `to`: an address such as `"10.0.0.2:7000"` or `"[::1]:7000"`, or a host's name and a
    /// port. The system resolves names, which may take long. If a name has several addresses, they are tried in their
    /// order until a listener accepts.
    ///
    /// The daemon gives an address up after 10 seconds if the other host does not answer, the link to it does not come
    /// up, or the listener's backlog stays full.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] by the last address. [`ServiceError::NoDaemon`] if the daemon has ended and no other
    /// serves at its socket. [`ServiceError::DaemonGone`], [`ServiceError::DaemonSilent`]. [`ServiceError::System`] if
    /// the name cannot be resolved.
    pub fn connect(&self, to: impl ToSocketAddrs) -> Result<Stream, ServiceError> {
        self.connect_by(to, None)
    }

    /// Connects as [`Service::connect`] does, and waits no longer than `timeout`. Resolving a name does
    /// not count, nor does waiting while another thread attaches again.
    ///
    /// # Errors
    ///
    /// As [`Service::connect`], and [`ServiceError::Deadline`].
    pub fn connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        timeout: std::time::Duration,
    ) -> Result<Stream, ServiceError> {
        let to = resolve(to)?;
        self.connect_by(&*to, Some(clock::now() + timeout))
    }

    /// Connects as [`Service::connect`] does, no later than `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Service::connect`], and [`ServiceError::Deadline`].
    pub fn connect_by(
        &self,
        to: impl ToSocketAddrs,
        deadline: Option<Instant>,
    ) -> Result<Stream, ServiceError> {
        let addresses = resolve(to)?;
        let session = self.0.session(deadline)?;
        let mut refused = None;
        for to in addresses {
            match session.answer_connect(deadline, to) {
                Ok(Answer::Connected(connection)) => return Ok(Stream::new(&session, connection)),
                Ok(_) => return Err(UNEXPECTED_ANSWER.into()),
                Err(error @ ServiceError::Refused(_)) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refused.expect("there is an address, and it was refused"))
    }

    /// Starts to connect and does not wait for the answer. It waits only if the service has to attach again: see
    /// [`Service::reattach`].
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn connect_start(&self, to: SocketAddr) -> Result<PendingConnection, ServiceError> {
        PendingConnection::start(&self.0.session(None)?, to)
    }

    /// Like [`connect_start`](Self::connect_start), but without a descriptor: add it to a poller of this service by
    /// [`Poller::add_pending`].
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn connect_polled(&self, to: SocketAddr) -> Result<PendingConnection, ServiceError> {
        PendingConnection::start_polled(&self.0.session(None)?, to)
    }

    /// Allocates memory that can be lent ([`Stream::lend`]). The application owns it until it is dropped.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] if a quota is reached or there is no memory. [`ServiceError::NoDaemon`],
    /// [`ServiceError::DaemonGone`].
    pub fn alloc(&self, len: u32) -> Result<SharedMemory, ServiceError> {
        let session = self.0.session(None)?;
        match session.answer(None, |session| session.alloc(len))? {
            Answer::Allocated(extent) => SharedMemory::new(&session, extent, len),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Opens a port, 0 for any free one, for messages: see [`Datagrams`].
    ///
    /// # Errors
    ///
    /// As [`Service::listen`]; and [`ServiceError::System`].
    pub fn bind(&self, port: u16) -> Result<Datagrams, ServiceError> {
        Datagrams::bind(&self.0.session(None)?, port)
    }

    /// Opens a port for messages, as [`Service::bind`] does, at an address: see [`Service::listen_at`].
    ///
    /// # Errors
    ///
    /// As [`Service::bind`] and [`Service::listen_at`].
    pub fn bind_at(&self, at: impl ToSocketAddrs) -> Result<Datagrams, ServiceError> {
        let session = self.0.session(None)?;
        let port = session.own_port(&resolve(at)?)?;
        Datagrams::bind(&session, port)
    }

    /// Returns the address that the daemon serves, at which other hosts reach its listeners. `None` if the daemon is
    /// too old to tell.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::DaemonGone`].
    pub fn address(&self) -> Result<Option<IpAddr>, ServiceError> {
        self.0.session(None)?.address()
    }

    /// Listens at `port`, 0 for any free one. Up to `backlog` connections wait to be accepted; further callers wait
    /// until there is room.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::NoDaemon`], [`ServiceError::DaemonGone`].
    pub fn listen(&self, port: u16, backlog: u32) -> Result<Listener, ServiceError> {
        Listener::open(&self.0.session(None)?, port, backlog)
    }

    /// Listens at the port of `at`, as [`Service::listen`] does. The address of `at` must be the daemon's own, or
    /// unspecified (`0.0.0.0` or `::`). If a name has several addresses, the first that the daemon serves counts.
    ///
    /// # Errors
    ///
    /// As [`Service::listen`]; [`ServiceError::NotOwnAddress`]; and [`ServiceError::System`] if the name cannot be
    /// resolved.
    pub fn listen_at(
        &self,
        at: impl ToSocketAddrs,
        backlog: u32,
    ) -> Result<Listener, ServiceError> {
        let session = self.0.session(None)?;
        let port = session.own_port(&resolve(at)?)?;
        Listener::open(&session, port, backlog)
    }
}

/// Returns all addresses of `name`, at least one.
fn resolve(name: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, ServiceError> {
    let failed = |error: io::Error| {
        let what = match error.kind() {
            io::ErrorKind::InvalidInput => {
                "the address is not of the form HOST:PORT or [IPV6]:PORT, with a port up to 65535"
            }
            _ => "resolving the address",
        };
        system(what)(error)
    };
    match name.to_socket_addrs().map(Vec::from_iter) {
        Ok(all) if all.is_empty() => Err(failed(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ))),
        resolved => resolved.map_err(failed),
    }
}
