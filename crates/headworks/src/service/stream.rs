//! Streams over connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use headworks_client::connection::{Connection, ReceiveHalf, Received, SendHalf};
use headworks_shm::View;
use headworks_verbs::Instant;

use super::readiness_socket::ReadinessSocket;
use super::remote_memory::ResultSlots;
use super::shared_memory::{self, Loan, SharedMemory};
use super::shared_session::SharedSession;
use super::stream_half::{ServiceConnection, StreamHalf, WeakConnection};
use super::{Refusal, ServiceError, Transfer, system};

/// A connection: a byte stream in each direction. Dropping it closes it; what was sent still arrives.
///
/// One thread may receive while another sends, once the [`Reader`] was [taken](Stream::take_reader) from it.
pub struct Stream {
    pub(super) half: StreamHalf<SendHalf>,
    reader: Option<Reader>,
    /// Memory for the results of one-sided operations; allocated by the first one.
    pub(super) slots: Option<ResultSlots>,
}

/// The receiving half of a connection: see [`Stream::take_reader`]. The connection is closed once both the
/// stream and the reader are dropped.
pub struct Reader {
    half: StreamHalf<ReceiveHalf>,
}

impl Stream {
    pub(super) fn new(shared: &Arc<SharedSession>, connection: Box<Connection>) -> Self {
        let link = Arc::new(ServiceConnection {
            shared: shared.clone(),
            handle: connection.handle(),
            local: connection.local(),
            peer: connection.peer(),
        });
        let Connection { sending, receiving } = *connection;
        let side = StreamHalf::new(receiving, &link);
        Self {
            half: StreamHalf::new(sending, &link),
            reader: Some(Reader { half: side }),
            slots: None,
        }
    }

    pub(super) fn shared(&self) -> &Arc<SharedSession> {
        &self.half.connection.shared
    }

    pub(super) fn handle(&self) -> u32 {
        self.half.connection.handle
    }

    /// Returns this end's address and port.
    pub fn local(&self) -> SocketAddr {
        self.half.connection.local
    }

    /// Returns the other end's address and port.
    pub fn peer(&self) -> SocketAddr {
        self.half.connection.peer
    }

    /// Takes the receiving half, so that another thread can receive while this one sends; `None` if it was
    /// taken before. From then on, only the reader has [`recv`](Self::recv) and [`peek`](Self::peek).
    pub fn take_reader(&mut self) -> Option<Reader> {
        self.reader.take()
    }

    fn reader(&mut self) -> Result<&mut Reader, ServiceError> {
        self.reader.as_mut().ok_or(ServiceError::Taken)
    }

    /// Sets the instant until which calls may wait; `None` for no limit.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.half.deadline = deadline;
        if let Some(reader) = &mut self.reader {
            reader.set_deadline(deadline);
        }
    }

    /// Sets whether calls that would wait fail with [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.half.is_nonblocking = nonblocking;
        if let Some(reader) = &mut self.reader {
            reader.set_nonblocking(nonblocking);
        }
    }

    pub(super) fn set_readiness_socket(&mut self, watch: ReadinessSocket) {
        if let Some(reader) = &mut self.reader {
            reader.half.watch = Some(watch.another());
        }
        self.half.watch = Some(watch);
    }

    /// Returns a descriptor to poll: readable while there is something to receive, or the end of the stream;
    /// writable while there is room; hung up once the connection is reset or the daemon is gone. Readiness
    /// may be spurious. The descriptor may become ready a little after the bytes can be received.
    ///
    /// Each call returns the same descriptor. It becomes unready when [`recv`](Self::recv) or
    /// [`send`](Self::send) finds that there is nothing more. Call them until they fail with
    /// [`ServiceError::WouldBlock`], or poll again.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] if the daemon has too few descriptors. [`ServiceError::Taken`] if the reader
    /// was taken before the first call. [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn fd(&mut self) -> Result<BorrowedFd<'_>, ServiceError> {
        if self.half.watch.is_none() {
            self.shared().check()?;
            // A reader that was taken may be asleep, and relies on packets to wake it.
            self.reader()?;
            let (watch, other) =
                ReadinessSocket::new_pair().map_err(system("a pair of sockets"))?;
            // They were armed for wake-ups by packet; from now on the daemon signals by the descriptor.
            let block = self.half.half.block();
            block.event_count().disarm();
            block.room_event_count().disarm();
            let handle = self.handle();
            self.shared()
                .request_with_fd(other, |session| session.watch(handle))?;
            self.set_readiness_socket(watch);
        }
        Ok(self.half.watch.as_ref().expect("made above").as_fd())
    }

    /// Sends as many of the bytes as there is room for, at least one. Returns the number.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::Ended`], [`ServiceError::DaemonGone`],
    /// [`ServiceError::Deadline`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.half.wait(|sending| {
            if let Some(why) = sending.status().reset {
                return Err(ServiceError::Reset(why));
            }
            match sending.send(bytes)? {
                (sent, wakes) if sent > 0 || bytes.is_empty() => Ok((Some(sent), wakes)),
                _ if sending.is_ended() => Err(ServiceError::Ended),
                (_, wakes) => Ok((None, wakes)),
            }
        })
    }

    /// Sets how bytes are carried to the other host: those not yet on their way, and all later ones. Callers
    /// that do not know better leave the choice to the daemons (RaaS's FLAGS, section V.A).
    pub fn set_transfer(&mut self, transfer: Transfer) {
        // A forked child must not change its parent's connection.
        if self.shared().check().is_ok() {
            self.half.half.set_transfer(transfer);
        }
    }

    /// Sends all of the bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; some of the bytes may have been sent.
    pub fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            let sent = self.send(bytes)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Receives as many bytes as have arrived and fit, at least one; 0 if the stream has ended.
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`]; and [`ServiceError::Taken`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.reader()?.recv(into)
    }

    /// Lends received bytes in place; see [`Reader::peek`].
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`]; and [`ServiceError::Taken`].
    pub fn peek(&mut self) -> Result<Peeked<'_>, ServiceError> {
        self.reader()?.peek()
    }

    /// Sends the first `len` bytes of memory in place, without a copy. The memory belongs to the daemon until
    /// it is [returned](Self::reclaim).
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; and [`ServiceError::Refused`] if the memory is shorter, or is of another
    /// [`Service`](super::Service). The memory is then freed.
    pub fn lend(&mut self, memory: SharedMemory, len: usize) -> Result<Loan, ServiceError> {
        self.lend_from(&mut Some(memory), len)
    }

    /// Like [`lend`](Self::lend), but leaves the memory in `place` if it cannot be lent.
    ///
    /// # Errors
    ///
    /// As [`Stream::lend`], also if `place` is empty.
    pub fn lend_from(
        &mut self,
        place: &mut Option<SharedMemory>,
        len: usize,
    ) -> Result<Loan, ServiceError> {
        let memory = place.as_ref();
        let memory = memory.filter(|memory| len > 0 && memory.is_of(self.shared()));
        let extent = memory.and_then(|memory| memory.first(len));
        let extent = extent.ok_or(ServiceError::Refused(Refusal::Misuse))?;
        let lent = self.half.wait(|sending| {
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
            WeakConnection::from(&self.half.connection),
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
        if let Err(error) = loan.of().check(&self.half.connection) {
            return Err(ReclaimError { loan, error });
        }
        let lent = loan.lent();
        let returned = self.half.wait(|sending| {
            let is_returned = sending.is_returned(lent)?;
            Ok((is_returned.then_some(()), false))
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
    /// As [`Stream::send`].
    pub fn end(&mut self) -> Result<(), ServiceError> {
        self.half.wait(|sending| {
            let (is_ended, wakes) = sending.end()?;
            match sending.status().reset {
                Some(why) if !is_ended => Err(ServiceError::Reset(why)),
                _ => Ok((is_ended.then_some(()), wakes)),
            }
        })
    }
}

impl Reader {
    /// Sets the instant until which calls may wait; `None` for no limit.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.half.deadline = deadline;
    }

    /// Sets whether calls that would wait fail with [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.half.is_nonblocking = nonblocking;
    }

    /// Receives as many bytes as have arrived and fit, at least one; 0 if the stream has ended.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.half.wait(|receiving| {
            // Read before receiving: bytes that arrived before a reset can still be received.
            let reset = receiving.status().reset;
            let (received, wakes) = receiving.recv(into)?;
            match (received, reset) {
                (Received::Bytes(len), _) => Ok((Some(len), wakes)),
                (Received::Ended, _) => Ok((Some(0), wakes)),
                (Received::Nothing, Some(why)) if !receiving.awaits_slab() => {
                    Err(ServiceError::Reset(why))
                }
                (Received::Nothing, _) => Ok((None, wakes)),
            }
        })
    }

    /// Lends the next contiguous received bytes in place: at least one, or none if the stream has ended.
    /// Bytes that are not [consumed](Peeked::consume) are lent again the next time.
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`].
    pub fn peek(&mut self) -> Result<Peeked<'_>, ServiceError> {
        let view = self.half.wait(|receiving| {
            // Read before the peek: bytes that arrived before a reset or an end can still be received.
            let status = receiving.status();
            let extent = receiving.peek()?;
            if extent.len > 0 || (status.is_ended && !receiving.awaits_slab()) {
                return Ok((Some(receiving.slabs().view(extent)?), false));
            }
            match status.reset {
                Some(why) if !receiving.awaits_slab() => Err(ServiceError::Reset(why)),
                _ => Ok((None, false)),
            }
        })?;
        let side = &mut self.half;
        Ok(Peeked { side, view })
    }
}

/// Received bytes, lent in place.
pub struct Peeked<'s> {
    side: &'s mut StreamHalf<ReceiveHalf>,
    view: View,
}

impl Peeked<'_> {
    /// Consumes the first `bytes` of them; all of them, if there are fewer.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn consume(self, bytes: usize) -> Result<(), ServiceError> {
        self.side.connection.shared.check()?;
        let bytes = bytes.min(self.view.len()) as u64;
        match self.side.half.consume(bytes) {
            true => self.side.connection.shared.wake(),
            false => Ok(()),
        }
    }
}

impl std::ops::Deref for Peeked<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        shared_memory::bytes(&self.view)
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

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes)?)
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

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceConnection { local, peer, .. } = &*self.half.connection;
        write!(f, "Reader({local} from {peer})")
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} to {})", self.local(), self.peer())
    }
}
