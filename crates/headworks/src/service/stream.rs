//! Connections.

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

/// A connection: a stream of bytes each way. Dropping it closes it; what was sent still arrives.
///
/// One thread may receive while another sends, once the [`Reader`] was [taken](Stream::take_reader) off it.
pub struct Stream {
    pub(super) half: StreamHalf<SendHalf>,
    reader: Option<Reader>,
    /// Where it is said what becomes of its operations.
    pub(super) slots: Option<ResultSlots>,
}

/// What comes over a connection: see [`Stream::take_reader`]. The connection is closed once neither is there any more.
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

    /// This end's address and port.
    pub fn local(&self) -> SocketAddr {
        self.half.connection.local
    }

    /// Address and port of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.half.connection.peer
    }

    /// Takes what comes over it, for another thread to receive while this one sends; `None` where that was done before.
    /// From then on [`recv`](Self::recv) and [`peek`](Self::peek) are the reader's alone.
    pub fn take_reader(&mut self) -> Option<Reader> {
        self.reader.take()
    }

    fn reader(&mut self) -> Result<&mut Reader, ServiceError> {
        self.reader.as_mut().ok_or(ServiceError::Taken)
    }

    /// Calls wait no longer than until then.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.half.deadline = deadline;
        if let Some(reader) = &mut self.reader {
            reader.set_deadline(deadline);
        }
    }

    /// Whether calls that would wait say [`ServiceError::WouldBlock`] instead.
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

    /// A descriptor to poll: readable while there is something to be received, or the end of the stream; writable
    /// while there is room; hung up once the connection is reset or the daemon is gone. It may be ready in vain.
    ///
    /// It is the same one each time. It becomes unready when [`recv`](Self::recv) or [`send`](Self::send) find
    /// that there is nothing more, so call them until they say [`ServiceError::WouldBlock`], or poll again.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`]: the daemon has too few descriptors. [`ServiceError::Taken`]: the reader was taken before
    /// there was one. [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn fd(&mut self) -> Result<BorrowedFd<'_>, ServiceError> {
        if self.half.watch.is_none() {
            self.shared().check()?;
            // It may be asleep, and be told by packets.
            self.reader()?;
            let (watch, other) =
                ReadinessSocket::new_pair().map_err(system("a pair of sockets"))?;
            // What was armed for packets: the daemon tells of it otherwise from now on.
            let block = self.half.half.block();
            block.bell().disarm();
            block.room_bell().disarm();
            let handle = self.handle();
            self.shared()
                .request_with_fd(other, |session| session.watch(handle))?;
            self.set_readiness_socket(watch);
        }
        Ok(self.half.watch.as_ref().expect("made above").as_fd())
    }

    /// Sends as many of the bytes as there is room for, at least one; says how many.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::Ended`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
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

    /// How what is sent is to be carried to the other host, from now on and where it is not yet on its way. Who does not
    /// know better leaves it to the daemons (RaaS's FLAGS, section V.A).
    pub fn set_transfer(&mut self, transfer: Transfer) {
        // A forked child's word is not its parent's.
        if self.shared().check().is_ok() {
            self.half.half.set_transfer(transfer);
        }
    }

    /// Sends all of the bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; some may have been sent.
    pub fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            let sent = self.send(bytes)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Receives as many bytes as have come and fit, at least one; 0 where the stream has ended.
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`]; and [`ServiceError::Taken`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.reader()?.recv(into)
    }

    /// Shows what has come where it lies; see [`Reader::peek`].
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`]; and [`ServiceError::Taken`].
    pub fn peek(&mut self) -> Result<Peeked<'_>, ServiceError> {
        self.reader()?.peek()
    }

    /// Sends the first `len` bytes of memory from where they are, without a copy. The memory is the daemon's until it
    /// is [returned](Self::reclaim).
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; and [`ServiceError::Refused`] where the memory has not as many bytes, or is of another
    /// [`Service`](super::Service). The memory is given back.
    pub fn lend(&mut self, memory: SharedMemory, len: usize) -> Result<Loan, ServiceError> {
        self.lend_from(&mut Some(memory), len)
    }

    /// [`lend`](Self::lend), of memory that stays where it is if it cannot be lent.
    ///
    /// # Errors
    ///
    /// As [`Stream::lend`], also where there is no memory.
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

    /// Memory that was lent, once it was sent: then it can be written to again.
    ///
    /// # Errors
    ///
    /// [`ReclaimError`] has the loan, and why it is one still: [`ServiceError::WouldBlock`], [`ServiceError::Deadline`],
    /// [`ServiceError::DaemonGone`]; [`ServiceError::Refused`]: it was lent by another connection.
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

    /// Ends the stream to the peer, who has all that was sent first. It can still be received.
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
    /// Calls wait no longer than until then.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.half.deadline = deadline;
    }

    /// Whether calls that would wait say [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.half.is_nonblocking = nonblocking;
    }

    /// Receives as many bytes as have come and fit, at least one; 0 where the stream has ended.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.half.wait(|receiving| {
            // Before it is looked for bytes: what came before a reset can still be received.
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

    /// Shows what has come where it lies, as much as does without a break: at least a byte, or nothing where the stream
    /// has ended. What is not [consumed](Peeked::consume) is there the next time.
    ///
    /// # Errors
    ///
    /// As [`Reader::recv`].
    pub fn peek(&mut self) -> Result<Peeked<'_>, ServiceError> {
        let view = self.half.wait(|receiving| {
            // Before it is looked: what came before a reset, or an end, can still be received.
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

/// What has come, where it lies.
pub struct Peeked<'s> {
    side: &'s mut StreamHalf<ReceiveHalf>,
    view: View,
}

impl Peeked<'_> {
    /// The first `bytes` of it are not needed any more; all of it, where there are fewer.
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

/// Memory that was not returned yet.
#[derive(Debug, thiserror::Error)]
#[error("memory that was lent is not returned: {error}")]
pub struct ReclaimError {
    /// The loan, which is still out.
    pub loan: Loan,
    /// Why it is still out.
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

    /// What was written is on its way already.
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
