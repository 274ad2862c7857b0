//! The sending end: copies a payload into memory that is registered already, or registers the payload's own buffer,
//! by size. Follows RaaS ("RDMA as a Service", sections III-B, IV-A and V-A), which copies data below 128 KiB and
//! registers longer data for one transmission.
//!
//! [`Sender::send`] makes bytes readable for a peer, and returns the address, key and length to announce. The program
//! tells them to the peer over any connection. The peer's [`receiver`](crate::receiver) READs the bytes. Then the
//! program calls [`Sender::done`], which frees the copy or ends the registration.
//!
//! # What a peer can read
//!
//! An address and key open more than one transfer's bytes:
//!
//! - The staging memory has one key. A peer that knows it can READ all payloads that are copied there, of any peer,
//!   and what earlier ones left behind. After `done` the key stays valid, and a late READ gets whatever lies there. So
//!   use one sender for peers that may see each other's bytes. A key works only on queue pairs of the sender's
//!   protection domain.
//! - A registered payload has a key of its own for the whole buffer, also outside of the range that was sent. `done`
//!   ends the registration, and a later READ fails with an access error. The sender holds the buffer until then, so
//!   its memory is never freed while a peer can reach it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Buffer, Device, ProtectionDomain, Region, RemoteAddr, ResourceError,
};
use slab::Slab;

use crate::config::{PoolConfigError, check_number};
use crate::units::{FreeUnits, UNIT, UNITS_MAX, units_of};

/// Greatest number of registered transfers of a sender that are not [done](Sender::done).
pub const REGISTERED_MAX: u32 = 1024;

/// Greatest value of `copy_below` and of `staging`, in bytes.
const BYTES_MAX: u64 = 1 << 30;

/// Parameters of a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Bytes: shorter payloads are copied, and the others are registered. 0 to 1,073,741,824; 0 registers all. Default
    /// 131,072, where registering becomes faster than copying in RaaS (section III-B).
    pub copy_below: u64,
    /// Bytes of memory for copies, registered from the start: enough for the longest copied payload
    /// ([`staging_min`](Self::staging_min)) to 1,073,741,824, a multiple of 4,096. Default 4,194,304: 32 payloads of
    /// 128 KiB, as many as a receiver READs at the same time.
    pub staging: u64,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            copy_below: 128 << 10,
            staging: 4 << 20,
        }
    }
}

impl SenderConfig {
    /// Checks that all values are allowed.
    ///
    /// # Errors
    ///
    /// [`PoolConfigError`] for the first value that is not.
    pub fn check(&self) -> Result<(), PoolConfigError> {
        check_number("copy_below", self.copy_below, 0, BYTES_MAX, 1)?;
        let least = self.staging_min();
        check_number("staging", self.staging, least, BYTES_MAX, UNIT.into())
    }

    /// Returns the least value of [`staging`](Self::staging) in bytes. An idle sender with that much can copy any
    /// payload shorter than `copy_below`. It is at least 4,096.
    pub fn staging_min(&self) -> u64 {
        let units = units_of(self.copy_below.saturating_sub(1)).max(1);
        // The allocator rounds a number of units within a block up to a power of two.
        let units = match units <= UNITS_MAX.into() {
            true => units.next_power_of_two(),
            false => units,
        };
        units * u64::from(UNIT)
    }
}

/// Makes a view of all memory of a buffer. This crate has no unsafe code, so the caller of [`Sender::new`] provides the
/// function: `headworks_ring::view_of_buffer`.
pub type BufferView = fn(&Arc<dyn Buffer>) -> View;

/// Bytes to send.
#[derive(Clone)]
pub enum SendPayload<'a> {
    /// Bytes that are copied. They must be shorter than [`SenderConfig::copy_below`].
    Bytes(&'a [u8]),
    /// Bytes of memory from [`Device::alloc`] of the sender's device. The buffer need not be registered. Memory from
    /// elsewhere may be slower to READ ([`ProtectionDomain::register`]).
    Memory {
        /// The buffer.
        buffer: &'a Arc<dyn Buffer>,
        /// Offsets of the bytes in the buffer.
        range: Range<usize>,
    },
}

/// Names a transfer of a sender until the transfer is [done](Sender::done). No two transfers of a process have equal
/// tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    sender: u64,
    at: usize,
    number: u64,
}

/// A payload that a peer may READ. Announce `from` and `len` to the peer, which passes them to its receiver as an
/// [`Announcement`](crate::receiver::Announcement).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the payload takes memory until its ticket is passed to `done`"]
pub struct Sent {
    /// Address and key of the first byte.
    pub from: RemoteAddr,
    /// Bytes of the payload.
    pub len: u64,
    /// Pass it to [`Sender::done`] when the peer has READ the bytes.
    pub ticket: Ticket,
    /// Whether the bytes were copied. If not, do not change the payload's memory until the transfer is done.
    pub is_copied: bool,
}

/// Error of [`Sender::new`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SenderError {
    /// The configuration is not allowed.
    #[error(transparent)]
    Config(#[from] PoolConfigError),
    /// The staging memory could not be allocated or registered.
    #[error("no staging memory: {0}")]
    Memory(#[from] ResourceError),
    /// The caller's function made a view of another length than the staging memory's.
    #[error("the view of the staging memory has {got} bytes, not {wanted}: pass view_of_buffer")]
    View {
        /// Bytes of the view.
        got: u64,
        /// Bytes of the staging memory.
        wanted: u64,
    },
}

/// Error of [`Sender::send`]. Nothing was sent, and the sender did not change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// A transfer has at least one byte.
    #[error("a payload of 0 bytes cannot be READ: send at least 1 byte")]
    Empty,
    /// The range does not lie in the buffer.
    #[error("bytes {start} to {end} do not lie in a buffer of {len} bytes")]
    Range {
        /// First byte of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Bytes of the buffer.
        len: usize,
    },
    /// Bytes of a slice are only copied, and these are too many.
    #[error(
        "{len} bytes of a slice are not copied (copy_below = {copy_below}): send a buffer of Device::alloc, \
         or raise copy_below"
    )]
    NotCopied {
        /// Bytes of the slice.
        len: u64,
        /// See [`SenderConfig::copy_below`].
        copy_below: u64,
    },
    /// The staging memory has no room for this payload now.
    #[error(
        "the staging memory has no {len} bytes in one piece ({free} are free): send again after a transfer is done, \
         or raise staging"
    )]
    StagingFull {
        /// Bytes of the payload.
        len: u64,
        /// Bytes of the staging memory that are free.
        free: u64,
    },
    /// As many registered transfers as are allowed are not done.
    #[error("{REGISTERED_MAX} transfers are registered: send again after one of them is done")]
    RegisteredFull,
    /// The device could not register the buffer.
    #[error("the buffer was not registered: {0}")]
    Register(#[from] ResourceError),
}

impl SendError {
    /// Whether the same call may succeed after [`Sender::done`].
    pub fn would_block(&self) -> bool {
        matches!(self, Self::StagingFull { .. } | Self::RegisteredFull)
    }
}

/// Error of [`Sender::done`]: the ticket names no transfer of this sender, or the transfer was done before. Nothing was
/// freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ticket names no transfer of this sender that is not done")]
pub struct UnknownTicket;

/// Counters of a sender. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Transfers that were copied.
    pub copied: u64,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Transfers that were registered.
    pub registered: u64,
    /// Bytes of registered transfers, without the rest of their buffers.
    pub registered_bytes: u64,
    /// Sends that were refused because the staging memory or the number of registered transfers was used up.
    pub refused: u64,
}

/// Memory of a transfer.
enum Source {
    /// Units of the staging memory.
    Staging(Range<u32>),
    /// The registration of the payload's buffer. Dropping the region deregisters it.
    Own(Region),
}

struct Transfer {
    number: u64,
    source: Source,
}

/// Number of the last sender of this process. A ticket carries its sender's number.
static LAST_SENDER: AtomicU64 = AtomicU64::new(0);

/// Makes payloads readable for peers: copies short ones, registers long ones. See the [module](self).
///
/// - Sending: [`send`](Self::send), then [`done`](Self::done).
/// - Querying: [`in_flight`](Self::in_flight), [`staging_free`](Self::staging_free), [`counters`](Self::counters).
///
/// Dropping a sender ends all transfers: later READs of them fail.
pub struct Sender {
    number: u64,
    pd: Arc<dyn ProtectionDomain>,
    copy_below: u64,
    view: BufferView,
    /// The staging memory, readable for peers.
    region: Region,
    staging: View,
    free: FreeUnits,
    transfers: Slab<Transfer>,
    /// Registered transfers that are not done.
    registered: u32,
    /// Number of the last transfer.
    last: u64,
    counters: SenderCounters,
}

impl Sender {
    /// Allocates the staging memory from `device`, and registers it in `pd` with remote read. `pd` must be a protection
    /// domain of `device`, and that of the queue pairs on which the peers READ.
    ///
    /// # Errors
    ///
    /// [`SenderError`].
    pub fn new(
        device: &dyn Device,
        pd: Arc<dyn ProtectionDomain>,
        config: &SenderConfig,
        view: BufferView,
    ) -> Result<Self, SenderError> {
        config.check()?;
        let buffer = device.alloc(&AllocRequest {
            align: UNIT as usize,
            ..AllocRequest::of(config.staging as usize)
        })?;
        let staging = view(&buffer);
        let (got, wanted) = (staging.len() as u64, config.staging);
        if got != wanted {
            return Err(SenderError::View { got, wanted });
        }
        Ok(Self {
            number: LAST_SENDER.fetch_add(1, Ordering::Relaxed) + 1,
            copy_below: config.copy_below,
            view,
            region: pd.register(&buffer, Access::REMOTE_READ)?,
            pd,
            staging,
            free: FreeUnits::free(units_of(config.staging) as u32),
            transfers: Slab::new(),
            registered: 0,
            last: 0,
            counters: SenderCounters::default(),
        })
    }

    /// Makes a payload readable for a peer. The payload's own memory may be changed at once if it was
    /// [copied](Sent::is_copied), otherwise after [`done`](Self::done).
    ///
    /// A slice that is not shorter than [`SenderConfig::copy_below`] is an error. Registering needs memory whose owner
    /// can be held, and a hidden copy to such memory would cost what `copy_below` is there to avoid.
    ///
    /// Copying allocates no memory, except when more transfers are in flight than ever before.
    ///
    /// # Errors
    ///
    /// [`SendError`].
    pub fn send(&mut self, payload: SendPayload<'_>) -> Result<Sent, SendError> {
        let len = payload.len()?;
        if len == 0 {
            return Err(SendError::Empty);
        }
        let is_copied = len < self.copy_below;
        let sent = match payload {
            _ if is_copied => self.copy(&payload, len),
            SendPayload::Bytes(_) => {
                let copy_below = self.copy_below;
                Err(SendError::NotCopied { len, copy_below })
            }
            SendPayload::Memory { buffer, range } => self.register(buffer, range),
        };
        match sent {
            Ok((from, source)) => {
                self.count(len, is_copied);
                self.last += 1;
                let number = self.last;
                let at = self.transfers.insert(Transfer { number, source });
                let ticket = Ticket {
                    sender: self.number,
                    at,
                    number,
                };
                Ok(Sent {
                    from,
                    len,
                    ticket,
                    is_copied,
                })
            }
            Err(error) => {
                self.counters.refused += u64::from(error.would_block());
                Err(error)
            }
        }
    }

    /// Copies a payload of `len` bytes into the staging memory.
    fn copy(
        &mut self,
        payload: &SendPayload<'_>,
        len: u64,
    ) -> Result<(RemoteAddr, Source), SendError> {
        // Shorter than `copy_below`, so at most 1 GiB.
        let units = units_of(len) as u32;
        let Some(run) = self.free.take_run(units) else {
            let free = self.staging_free();
            return Err(SendError::StagingFull { len, free });
        };
        let offset = run.start as usize * UNIT as usize;
        let copied = match payload {
            SendPayload::Bytes(bytes) => self.staging.write(offset, bytes),
            SendPayload::Memory { buffer, range } => {
                (self.view)(buffer).copy(range.start, &self.staging, offset, range.len())
            }
        };
        if copied.is_err() {
            // The view is shorter than the buffer.
            self.free_run(&run);
            return Err(payload.out_of_range());
        }
        Ok((self.region.remote(offset), Source::Staging(run)))
    }

    /// Registers the buffer of a payload.
    fn register(
        &mut self,
        buffer: &Arc<dyn Buffer>,
        range: Range<usize>,
    ) -> Result<(RemoteAddr, Source), SendError> {
        if self.registered >= REGISTERED_MAX {
            return Err(SendError::RegisteredFull);
        }
        let region = self.pd.register(buffer, Access::REMOTE_READ)?;
        self.registered += 1;
        Ok((region.remote(range.start), Source::Own(region)))
    }

    fn count(&mut self, len: u64, is_copied: bool) {
        let of = &mut self.counters;
        let (transfers, bytes) = match is_copied {
            true => (&mut of.copied, &mut of.copied_bytes),
            false => (&mut of.registered, &mut of.registered_bytes),
        };
        *transfers += 1;
        *bytes += len;
    }

    /// Ends a transfer that the peer has READ, or never will. Frees its staging memory, or deregisters its buffer.
    /// Before you end a transfer that the peer may still READ, destroy or reset the queue pair to the peer: a late READ
    /// of staging memory gets the bytes of another payload.
    ///
    /// Call it for tickets that the program itself keeps. Do not take the number of a transfer from a peer without
    /// checking that it was announced to that peer.
    ///
    /// # Errors
    ///
    /// [`UnknownTicket`].
    pub fn done(&mut self, ticket: Ticket) -> Result<(), UnknownTicket> {
        let transfer = self.transfers.get(ticket.at);
        let is_known = transfer.is_some_and(|one| one.number == ticket.number);
        if ticket.sender != self.number || !is_known {
            return Err(UnknownTicket);
        }
        match self.transfers.remove(ticket.at).source {
            Source::Staging(run) => self.free_run(&run),
            Source::Own(region) => {
                self.registered -= 1;
                drop(region);
            }
        }
        Ok(())
    }

    fn free_run(&mut self, run: &Range<u32>) {
        let released = self.free.release_run(run);
        debug_assert_eq!(released, Ok(()), "it was taken");
    }

    /// Number of transfers that are not done.
    pub fn in_flight(&self) -> usize {
        self.transfers.len()
    }

    /// Bytes of the staging memory that are free. They may lie in several pieces.
    pub fn staging_free(&self) -> u64 {
        u64::from(self.free.available()) * u64::from(UNIT)
    }

    /// Counters of the sender.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }
}

impl SendPayload<'_> {
    /// Returns the number of bytes, if the payload's buffer has them.
    fn len(&self) -> Result<u64, SendError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
            Self::Memory { buffer, range } => {
                let is_there = range.start <= range.end && range.end <= buffer.len();
                match is_there {
                    true => Ok(range.len() as u64),
                    false => Err(self.out_of_range()),
                }
            }
        }
    }

    fn out_of_range(&self) -> SendError {
        let (start, end, len) = match self {
            Self::Bytes(bytes) => (0, bytes.len(), bytes.len()),
            Self::Memory { buffer, range } => (range.start, range.end, buffer.len()),
        };
        SendError::Range { start, end, len }
    }
}

impl fmt::Debug for SendPayload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Memory { buffer, range } => {
                write!(f, "Memory({range:?} of {} bytes)", buffer.len())
            }
        }
    }
}

#[cfg(test)]
#[path = "sender/tests.rs"]
mod tests;
