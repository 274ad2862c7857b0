//! Streams over connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use headworks_client::Session;
use headworks_client::connection::{
    Connection, ConnectionShared, ReceiveHalf, Received, SendHalf, Wake,
};
use headworks_verbs::{Duration, Instant};

use super::chunk::{COPIED_MAX, Chunk};
use super::descriptor_thread;
use super::peeked::{Lent, Peeked};
use super::poller::Polled;
use super::readiness_socket::{Readiness, ReadinessSocket};
use super::remote_memory::ResultSlots;
use super::shared_memory::{Loan, SharedMemory};
use super::shared_session::SharedSession;
use super::stream_half::{
    CallLimits, HalfCell, HalfGuard, ServiceConnection, StreamHalf, WeakConnection,
};
use super::{ServiceError, Transfer, system};

/// A connection: a byte stream in each direction. Dropping it closes it; what was sent still arrives.
///
/// Several threads may use one connection: [`try_clone`](Stream::try_clone) makes another handle, and
/// [`split`](Stream::split) makes a handle for each direction. Calls in different directions never wait for each other.
/// Calls in one direction take turns: a call that waits keeps the calls of other handles in the same direction waiting,
/// whatever their limits. The connection is closed when its last handle is dropped.
///
/// A shared `&Stream` reads and writes too, by [`io::Read`] and [`io::Write`]. Calls of a `&mut Stream` take no lock
/// unless the stream was cloned.
pub struct Stream {
    pub(super) writer: Writer,
    reader: Reader,
}

/// The receiving half of a connection: see [`Stream::split`]. The connection is closed once both halves are dropped.
pub struct Reader {
    cell: HalfCell<StreamHalf<ReceiveHalf>>,
    connection: Arc<ServiceConnection>,
    limits: CallLimits,
}

/// The sending half of a connection: see [`Stream::split`]. The connection is closed once both halves are dropped.
pub struct Writer {
    pub(super) cell: HalfCell<SendSide>,
    pub(super) connection: Arc<ServiceConnection>,
    pub(super) limits: CallLimits,
}

/// The sending half, and what belongs to it.
pub(super) struct SendSide {
    pub(super) half: StreamHalf<SendHalf>,
    /// Memory for the results of one-sided operations; allocated by the first one.
    pub(super) slots: Option<ResultSlots>,
}

impl Stream {
    pub(super) fn new(shared: &Arc<SharedSession>, connection: Box<Connection>) -> Self {
        let direct = connection.direct().map(|direct| {
            // In a forked child, which can use nothing of it, there is no socket.
            let state = shared.lock().ok();
            let socket = state.and_then(|state| state.pairs.get(direct.pair()));
            direct.take();
            (direct.clone(), socket)
        });
        let link = Arc::new(ServiceConnection {
            shared: shared.clone(),
            direct,
            handle: connection.handle(),
            local: connection.local(),
            peer: connection.peer(),
            readiness: OnceLock::new(),
            polled: Polled::default(),
        });
        let Connection { sending, receiving } = *connection;
        let side = SendSide {
            half: StreamHalf::new(sending, &link),
            slots: None,
        };
        Self {
            reader: Reader {
                cell: HalfCell::new(StreamHalf::new(receiving, &link)),
                connection: link.clone(),
                limits: CallLimits::default(),
            },
            writer: Writer {
                cell: HalfCell::new(side),
                connection: link,
                limits: CallLimits::default(),
            },
        }
    }

    pub(super) fn shared(&self) -> &Arc<SharedSession> {
        &self.writer.connection.shared
    }

    pub(super) fn connection(&self) -> &ServiceConnection {
        &self.writer.connection
    }

    /// Returns the connection as the daemon announced it, if no call of another handle is in progress.
    pub(super) fn known(&mut self) -> Result<Arc<ConnectionShared>, ServiceError> {
        let (sending, receiving) = (self.writer.cell.try_lock(), self.reader.cell.try_lock());
        match (sending, receiving) {
            (Some(sending), Some(_)) => Ok(sending.half.half.known().clone()),
            _ => Err(ServiceError::Busy),
        }
    }

    pub(super) fn handle(&self) -> u32 {
        self.writer.connection.handle
    }

    /// Returns this end's address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.writer.local_addr()
    }

    /// Returns the other end's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.writer.peer_addr()
    }

    /// Whether the connection is direct: both ends are on this machine, and bytes go between them without the daemons.
    pub fn is_direct(&self) -> bool {
        self.writer.is_direct()
    }

    /// Makes another handle of the same connection, with the same limits. From now on each call of either handle takes
    /// a lock.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Forked`].
    pub fn try_clone(&mut self) -> Result<Self, ServiceError> {
        self.shared().check()?;
        let Self { writer, reader } = self;
        Ok(Self {
            writer: Writer {
                cell: writer.cell.share(),
                connection: writer.connection.clone(),
                limits: writer.limits,
            },
            reader: Reader {
                cell: reader.cell.share(),
                connection: reader.connection.clone(),
                limits: reader.limits,
            },
        })
    }

    /// Splits the stream into its halves, so that one thread can receive while another sends. Neither takes a lock.
    ///
    /// The halves have no calls for [memory of the other end](super#the-other-ends-memory) and make no
    /// [descriptor](Self::readiness). A program that needs these calls uses [`try_clone`](Self::try_clone), or makes the
    /// descriptor first.
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }

    /// Sets the instant until which calls of this handle may wait; `None` for no limit. A call that reaches it fails
    /// with [`ServiceError::Deadline`].
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.reader.set_deadline(deadline);
        self.writer.set_deadline(deadline);
    }

    /// Sets how long each call of this handle that receives may wait; `None` for no limit. See
    /// [`Reader::set_read_timeout`].
    pub fn set_read_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.reader.set_read_timeout(timeout);
    }

    /// Sets how long each call of this handle that sends, or waits for memory, may wait; `None` for no limit. See
    /// [`Writer::set_write_timeout`].
    pub fn set_write_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.writer.set_write_timeout(timeout);
    }

    /// Sets whether calls of this handle that would wait fail with [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.reader.set_nonblocking(nonblocking);
        self.writer.set_nonblocking(nonblocking);
    }

    /// Makes the daemon signal readiness by `watch`.
    pub(super) fn set_readiness_socket(&mut self, watch: ReadinessSocket) {
        let connection = self.writer.connection.clone();
        let _ = connection.readiness.set(watch.readiness().clone());
        self.reader.cell.borrow().watch = Some(watch.another());
        self.writer.cell.borrow().half.watch = Some(watch);
    }

    /// Returns a descriptor to poll: readable while there is something to receive, or the end of the stream;
    /// writable while there is room; hung up once the connection is reset or, unless it is direct, the daemon is gone.
    /// Readiness may be spurious. The descriptor may become ready a little after the bytes can be received.
    ///
    /// A thread of this process makes the descriptors of direct connections ready: one thread for each session, from the first
    /// such descriptor to the last. A [`Poller`](super::Poller) needs no thread and makes fewer system calls.
    ///
    /// The first call makes the descriptor, and each call returns the same one. It becomes unready when [`recv`](Self::recv) or
    /// [`send`](Self::send) finds that there is nothing more. Call them until they fail with [`ServiceError::WouldBlock`], or
    /// poll again.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] if the daemon has too few descriptors. [`ServiceError::Busy`] if a call of another handle is in
    /// progress when the descriptor is to be made. [`ServiceError::InPoller`], [`ServiceError::DaemonGone`],
    /// [`ServiceError::System`].
    pub fn readiness(&mut self) -> Result<&Readiness, ServiceError> {
        let connection = &*self.writer.connection;
        if connection.readiness.get().is_none() {
            connection.shared.check()?;
            if connection.polled.current().is_some() {
                return Err(ServiceError::InPoller);
            }
            // A call in progress relies on other means to wake it.
            let mut sending = self.writer.cell.try_lock().ok_or(ServiceError::Busy)?;
            let mut receiving = self.reader.cell.try_lock().ok_or(ServiceError::Busy)?;
            // Another handle may have made it meanwhile.
            if connection.readiness.get().is_none() {
                let (watch, other) =
                    ReadinessSocket::new_pair().map_err(system("a pair of sockets"))?;
                // They were armed for wake-ups by packet; from now on the daemon signals by the descriptor.
                let half = &sending.half.half;
                half.block().event_count().disarm();
                half.block().room_event_count().disarm();
                match &connection.direct {
                    None => {
                        let request = |session: &mut Session| session.watch(connection.handle);
                        connection.shared.request_with_fd(other, request)?;
                    }
                    Some(_) => descriptor_thread::watch(connection, half.known().clone(), other)?,
                }
                let _ = connection.readiness.set(watch.readiness().clone());
                receiving.watch = Some(watch.another());
                sending.half.watch = Some(watch);
            }
        }
        Ok(connection.readiness.get().expect("made above"))
    }

    /// Returns the descriptor of [`Stream::readiness`], borrowed.
    ///
    /// # Errors
    ///
    /// As [`Stream::readiness`].
    pub fn fd(&mut self) -> Result<BorrowedFd<'_>, ServiceError> {
        self.readiness().map(AsFd::as_fd)
    }

    /// Sends bytes; see [`Writer::send`].
    ///
    /// # Errors
    ///
    /// As [`Writer::send`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.writer.send(bytes)
    }

    /// Puts the two halves of a stream together again.
    #[cfg(feature = "tokio")]
    pub(crate) fn from_halves(reader: Reader, writer: Writer) -> Self {
        debug_assert!(Arc::ptr_eq(&reader.connection, &writer.connection));
        Self { writer, reader }
    }

    /// Sends bytes that are carried in a way of their own; see [`Writer::send_as`].
    ///
    /// # Errors
    ///
    /// As [`Writer::send`].
    pub fn send_as(&mut self, bytes: &[u8], transfer: Transfer) -> Result<usize, ServiceError> {
        self.writer.send_as(bytes, transfer)
    }

    /// Sends all of the bytes; see [`Writer::send_all`].
    ///
    /// # Errors
    ///
    /// As [`Writer::send_all`].
    pub fn send_all(&mut self, bytes: &[u8]) -> Result<(), ServiceError> {
        self.writer.send_all(bytes)
    }

    /// Sets how bytes are carried to the other host; see [`Writer::set_transfer`].
    pub fn set_transfer(&mut self, transfer: Transfer) {
        self.writer.set_transfer(transfer);
    }

    /// Receives bytes; see [`Reader::recv`].
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.reader.recv(into)
    }

    /// Lends received bytes in place; see [`Reader::peek`].
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`].
    pub fn peek(&mut self) -> Result<Peeked<'_>, ServiceError> {
        self.reader.peek()
    }

    /// Receives the next bytes without a copy where that is possible; see [`Reader::recv_chunk`].
    ///
    /// # Errors
    ///
    /// As [`Reader::recv_chunk`].
    pub fn recv_chunk(&mut self) -> Result<Chunk, ServiceError> {
        self.reader.recv_chunk()
    }

    /// Sends memory in place; see [`Writer::lend`].
    ///
    /// # Errors
    ///
    /// As [`Writer::lend`].
    pub fn lend(&mut self, memory: SharedMemory, len: usize) -> Result<Loan, ServiceError> {
        self.writer.lend(memory, len)
    }

    /// Like [`lend`](Self::lend), but leaves the memory in `place` if it cannot be lent.
    ///
    /// # Errors
    ///
    /// As [`Writer::lend_from`].
    pub fn lend_from(
        &mut self,
        place: &mut Option<SharedMemory>,
        len: usize,
    ) -> Result<Loan, ServiceError> {
        self.writer.lend_from(place, len)
    }

    /// Takes back memory that was lent; see [`Writer::reclaim`].
    ///
    /// # Errors
    ///
    /// As [`Writer::reclaim`].
    pub fn reclaim(&mut self, loan: Loan) -> Result<SharedMemory, ReclaimError> {
        self.writer.reclaim(loan)
    }

    /// Ends the stream towards the peer; see [`Writer::end`].
    ///
    /// # Errors
    ///
    /// As [`Writer::end`].
    pub fn end(&mut self) -> Result<(), ServiceError> {
        self.writer.end()
    }
}

/// Implements what both halves tell of their connection.
macro_rules! addresses {
    ($half:ident) => {
        impl $half {
            /// Returns this end's address and port.
            pub fn local_addr(&self) -> SocketAddr {
                self.connection.local
            }

            /// Returns the other end's address and port.
            pub fn peer_addr(&self) -> SocketAddr {
                self.connection.peer
            }

            /// Whether the connection is direct: see [`Stream::is_direct`].
            pub fn is_direct(&self) -> bool {
                self.connection.direct.is_some()
            }
        }
    };
}

addresses!(Reader);
addresses!(Writer);

impl Writer {
    /// Sets the instant until which calls of this handle may wait; `None` for no limit. A call that reaches it fails
    /// with [`ServiceError::Deadline`].
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.limits.deadline = deadline;
    }

    /// Sets how long each call of this handle may wait; `None` for no limit. A call that waits longer fails with
    /// [`ServiceError::Deadline`]. [`send_all`](Self::send_all) may wait that long for each part that it sends.
    pub fn set_write_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.limits.timeout = timeout.map(Duration::from);
    }

    /// Sets whether calls of this handle that would wait fail with [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limits.is_nonblocking = nonblocking;
    }

    /// Returns the descriptor of [`Stream::readiness`], if it was made before the stream was split.
    pub fn readiness(&self) -> Option<&Readiness> {
        self.connection.readiness.get()
    }

    /// Borrows the sending half.
    pub(super) fn side(&mut self) -> Result<HalfGuard<'_, SendSide>, ServiceError> {
        // In a forked child, a thread that does not exist there may hold the lock.
        self.connection.shared.check()?;
        Ok(self.cell.borrow())
    }

    /// Sends as many of the bytes as there is room for, at least one. Returns the number. Without bytes it only checks
    /// that the stream can still be sent to.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::Ended`], [`ServiceError::DaemonGone`],
    /// [`ServiceError::Deadline`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.send_as(bytes, Transfer::Any)
    }

    /// Like [`send`](Self::send), and has these bytes carried in this way, whatever [`set_transfer`](Self::set_transfer)
    /// says; [`Transfer::Any`] stands for what it says (RaaS's FLAGS, section V.A).
    ///
    /// # Errors
    ///
    /// As [`Writer::send`].
    pub fn send_as(&mut self, bytes: &[u8], transfer: Transfer) -> Result<usize, ServiceError> {
        let limits = self.limits;
        self.side()?.send(&limits, bytes, transfer)
    }

    /// Sets how bytes are carried to the other host: those not yet on their way, and all later ones. Callers
    /// that do not know better leave the choice to the daemons (RaaS's FLAGS, section V.A).
    pub fn set_transfer(&mut self, transfer: Transfer) {
        // A forked child must not change its parent's connection.
        if let Ok(side) = self.side() {
            side.half.half.set_transfer(transfer);
        }
    }

    /// Sends all of the bytes. The bytes of another handle's call may come between them.
    ///
    /// # Errors
    ///
    /// As [`Writer::send`]; some of the bytes may have been sent.
    pub fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            let sent = self.send(bytes)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends the first `len` bytes of memory in place, without a copy. The memory belongs to the daemon until
    /// it is [returned](Self::reclaim).
    ///
    /// # Errors
    ///
    /// As [`Writer::send`]; [`ServiceError::Loan`] if `len` is 0 or the memory is shorter; and
    /// [`ServiceError::ForeignMemory`] if it is of another [`Service`](super::Service). The memory is then freed.
    pub fn lend(&mut self, memory: SharedMemory, len: usize) -> Result<Loan, ServiceError> {
        self.lend_from(&mut Some(memory), len)
    }

    /// Like [`lend`](Self::lend), but leaves the memory in `place` if it cannot be lent.
    ///
    /// # Errors
    ///
    /// As [`Writer::lend`], also if `place` is empty.
    pub fn lend_from(
        &mut self,
        place: &mut Option<SharedMemory>,
        len: usize,
    ) -> Result<Loan, ServiceError> {
        let memory = place.as_ref();
        let memory = memory.filter(|memory| memory.is_of(&self.connection.shared));
        let memory = memory.ok_or(ServiceError::ForeignMemory)?;
        let available = memory.len();
        let extent = Some(memory).filter(|_| len > 0);
        let extent = extent.and_then(|memory| memory.first(len));
        let extent = extent.ok_or(ServiceError::Loan { len, available })?;
        let limits = self.limits;
        let lent = self.side()?.half.wait(&limits, |sending| {
            if let Some(why) = sending.status().reset {
                return Err(ServiceError::Reset(why));
            }
            match sending.lend(extent)? {
                (Some(lent), wakes) => Ok((Some(lent), wakes)),
                (None, _) if sending.is_ended() => Err(ServiceError::Ended),
                (None, wakes) => Ok((None, wakes)),
            }
        })?;
        let memory = place.take().expect("seen above");
        Ok(Loan::new(
            memory,
            lent,
            WeakConnection::from(&self.connection),
        ))
    }

    /// Takes back memory that was lent, once it was sent: then it can be written to again.
    ///
    /// # Errors
    ///
    /// [`ReclaimError`] returns the loan, and tells why it is still out: [`ServiceError::WouldBlock`],
    /// [`ServiceError::Deadline`], [`ServiceError::DaemonGone`], or [`ServiceError::Refused`] if another
    /// connection lent it.
    pub fn reclaim(&mut self, loan: Loan) -> Result<SharedMemory, ReclaimError> {
        if let Err(error) = loan.of().check(&self.connection) {
            return Err(ReclaimError { loan, error });
        }
        let (lent, limits) = (loan.lent(), self.limits);
        let returned = self.side().and_then(|mut side| {
            side.half.wait(&limits, |sending| {
                let is_returned = sending.is_returned(lent)?;
                Ok((is_returned.then_some(()), Wake::No))
            })
        });
        match returned {
            Ok(()) => Ok(loan.into_memory()),
            Err(error) => Err(ReclaimError { loan, error }),
        }
    }

    /// Ends the stream towards the peer, after everything that was sent. This side can still receive.
    ///
    /// # Errors
    ///
    /// As [`Writer::send`].
    pub fn end(&mut self) -> Result<(), ServiceError> {
        let limits = self.limits;
        self.side()?.half.wait(&limits, |sending| {
            let (is_ended, wakes) = sending.end()?;
            match sending.status().reset {
                Some(why) if !is_ended => Err(ServiceError::Reset(why)),
                _ => Ok((is_ended.then_some(()), wakes)),
            }
        })
    }
}

impl SendSide {
    fn send(
        &mut self,
        limits: &CallLimits,
        bytes: &[u8],
        transfer: Transfer,
    ) -> Result<usize, ServiceError> {
        self.half.wait(limits, |sending| {
            if let Some(why) = sending.status().reset {
                return Err(ServiceError::Reset(why));
            }
            match sending.send_as(bytes, transfer)? {
                (0, _) if sending.is_ended() => Err(ServiceError::Ended),
                (sent, wakes) if sent > 0 || bytes.is_empty() => Ok((Some(sent), wakes)),
                (_, wakes) => Ok((None, wakes)),
            }
        })
    }
}

impl Reader {
    /// Sets the instant until which calls of this handle may wait; `None` for no limit. A call that reaches it fails
    /// with [`ServiceError::Deadline`].
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.limits.deadline = deadline;
    }

    /// Sets how long each call of this handle may wait; `None` for no limit. A call that waits longer fails with
    /// [`ServiceError::Deadline`]. A [deadline](Self::set_deadline) ends the call if it is earlier.
    pub fn set_read_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.limits.timeout = timeout.map(Duration::from);
    }

    /// Sets whether calls of this handle that would wait fail with [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limits.is_nonblocking = nonblocking;
    }

    /// Returns the descriptor of [`Stream::readiness`], if it was made before the stream was split.
    pub fn readiness(&self) -> Option<&Readiness> {
        self.connection.readiness.get()
    }

    /// Receives as many bytes as have arrived and fit, at least one; 0 if the stream has ended.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        // In a forked child, a thread that does not exist there may hold the lock.
        self.connection.shared.check()?;
        self.cell.borrow().recv(&self.limits, into)
    }

    /// Lends the next contiguous received bytes in place: at least one, or none if the stream has ended.
    /// Bytes that are not [consumed](Peeked::consume) are lent again the next time. While they are lent, calls of
    /// other handles that receive wait.
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`].
    pub fn peek(&mut self) -> Result<Peeked<'_>, ServiceError> {
        self.connection.shared.check()?;
        let mut side = self.cell.borrow();
        let lent = side.wait(&self.limits, |receiving| {
            // Read before the peek: bytes that arrived before a reset or an end can still be received.
            let status = receiving.status();
            let direct = receiving.peek_direct()?;
            let (len, lent) = match direct {
                // The peer can change them at any time, so the caller gets a copy.
                Some(view) => {
                    let mut bytes = vec![0; view.len().min(COPIED_MAX)];
                    let read = view.read(0, &mut bytes);
                    debug_assert_eq!(read, Ok(()), "within the view");
                    (bytes.len(), Lent::Copied(bytes))
                }
                None => {
                    let extent = receiving.peek()?;
                    let view = receiving.slabs().view(extent)?;
                    (view.len(), Lent::InPlace(view))
                }
            };
            if len > 0 || (status.is_ended && !receiving.is_withheld()) {
                return Ok((Some(lent), Wake::No));
            }
            match status.reset {
                Some(why) if !receiving.is_withheld() => Err(ServiceError::Reset(why)),
                None if receiving.is_blocked() => Err(ServiceError::ChunksKept),
                _ => Ok((None, Wake::No)),
            }
        })?;
        Ok(Peeked { side, lent })
    }

    /// Receives the next bytes without a copy where that is possible: at least one, or none if the stream has ended. The
    /// caller keeps them as long as it likes, and may receive further chunks meanwhile: see [`Chunk`].
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`]; [`ServiceError::ChunksKept`].
    pub fn recv_chunk(&mut self) -> Result<Chunk, ServiceError> {
        self.connection.shared.check()?;
        let connection = &self.connection;
        self.cell.borrow().wait(&self.limits, |receiving| {
            // Read before looking: bytes that arrived before the end, or before a reset, can still be received.
            let status = receiving.status();
            // Found before keeping: what arrives in between can be kept the next time, and is not copied.
            let here = match receiving.peek_direct()? {
                Some(view) => view.len(),
                None => receiving.peek()?.len as usize,
            };
            let (kept, wakes) = receiving.keep()?;
            if let Some((extent, memory)) = kept {
                let view = receiving.slabs().view(extent)?;
                return Ok((Some(Chunk::kept(view, memory, connection)), wakes));
            }
            if here > 0 {
                let mut bytes = vec![0; here.min(COPIED_MAX)];
                let (received, more) = receiving.recv(&mut bytes)?;
                let chunk = match received {
                    Received::Bytes(len) => {
                        bytes.truncate(len);
                        Some(Chunk::copied(bytes, connection))
                    }
                    Received::Ended | Received::Nothing => None,
                };
                return Ok((chunk, wakes.or(more)));
            }
            match status.reset {
                _ if receiving.is_withheld() => Ok((None, wakes)),
                _ if status.is_ended => Ok((Some(Chunk::copied(Vec::new(), connection)), wakes)),
                Some(why) => Err(ServiceError::Reset(why)),
                None if receiving.is_blocked() => Err(ServiceError::ChunksKept),
                None => Ok((None, wakes)),
            }
        })
    }
}

impl StreamHalf<ReceiveHalf> {
    fn recv(&mut self, limits: &CallLimits, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.wait(limits, |receiving| {
            if let Some((len, wakes)) = receiving.recv_in_ring(into) {
                return Ok((Some(len), wakes));
            }
            // Read before receiving: bytes that arrived before a reset can still be received.
            let reset = receiving.status().reset;
            let (received, wakes) = receiving.recv(into)?;
            match (received, reset) {
                (Received::Bytes(len), _) => Ok((Some(len), wakes)),
                (Received::Ended, _) => Ok((Some(0), wakes)),
                (Received::Nothing, None) if receiving.is_blocked() => {
                    Err(ServiceError::ChunksKept)
                }
                (Received::Nothing, Some(why)) if !receiving.is_withheld() => {
                    Err(ServiceError::Reset(why))
                }
                (Received::Nothing, _) => Ok((None, wakes)),
            }
        })
    }
}

/// Lent memory that was not returned yet.
#[derive(Debug, thiserror::Error)]
#[error("the lent memory is not returned yet: {error}")]
pub struct ReclaimError {
    /// The loan, which is still out.
    pub loan: Loan,
    /// Reason for which the memory is still lent.
    #[source]
    pub error: ServiceError,
}

impl io::Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(into)?)
    }
}

impl io::Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Reader { cell, limits, .. } = &self.reader;
        self.shared().check()?;
        Ok(cell.lock().recv(limits, into)?)
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes)?)
    }

    /// Does nothing: written bytes are on their way already.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Writer { cell, limits, .. } = &self.writer;
        self.shared().check()?;
        Ok(cell.lock().send(limits, bytes, Transfer::Any)?)
    }

    /// Does nothing: written bytes are on their way already.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(into)?)
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes)?)
    }

    /// Does nothing: written bytes are on their way already.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceConnection { local, peer, .. } = &*self.connection;
        write!(f, "Reader({local} from {peer})")
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceConnection { local, peer, .. } = &*self.connection;
        write!(f, "Writer({local} to {peer})")
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} to {})", self.local_addr(), self.peer_addr())
    }
}
