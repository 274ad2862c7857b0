//! Bounce buffers: access to memory that only its owner can reach, and atomics on it.
//!
//! A request for such memory becomes one call or several. The initiator writes a call into its bounce
//! buffer. The buffer is the initiator's memory; each queue pair that needs one has one. Then the initiator
//! marks the target queue pair in the owner's table and wakes the owner's progress thread. That thread
//! checks the call against the owner's own record of its registrations, copies between the bounce buffer
//! and the memory, answers in the bounce buffer, and wakes the initiator's progress thread. A queue pair has
//! one call under way at a time, which keeps its requests in order.
//!
//! A call has a number, which is stored last. Storing 0 there retracts the call. The owner marks in its row
//! that it is serving, fences, and then checks that the initiator's queue pair is still connected and that
//! there is a call. So an initiator that first retracts, then fences, and then sees that the owner is not
//! serving may reuse the bounce buffer.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use headworks_shm::{SharedSegment, asymmetric_fence};
use headworks_verbs::{Access, ResourceError};

use crate::datapath::context::Context;
use crate::datapath::copy::{MappedAddress, Span, copy_span};
use crate::table::arena::ArenaAllocation;
use crate::table::local_mrs::{LocalMr, LocalMrsGuard};
use crate::table::peer::Peer;
use crate::table::rows::{QpRow, QueueLocation};

/// Maximum number of bytes that one call moves.
pub(crate) const DATA: usize = 64 << 10;
/// Bytes of a bounce buffer.
const BYTES: usize = size_of::<Header>() + DATA;

/// The header at the start of a bounce buffer. The initiator writes it, except for `answer`.
#[repr(C, align(64))]
struct Header {
    /// Number of the call, stored last; 0 when there is none.
    call: AtomicU64,
    what: AtomicU32,
    key: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    operands: [AtomicU64; 2],
    answer: Reply,
}

/// The owner's answer, on a cache line of its own.
#[repr(C, align(64))]
struct Reply {
    /// Number of the call that this answers, stored last.
    call: AtomicU64,
    /// Value that an atomic found.
    old: AtomicU64,
    status: AtomicU32,
}

/// The operation that the owner is asked to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A WRITE.
    Place,
    /// Filling a posted receive.
    Receive,
    /// A READ.
    Fetch,
    CompareSwap {
        expect: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
}

/// A call for `len` bytes at `addr` of the region `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BounceCall {
    pub(crate) what: CallKind,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// The call was executed. Holds the value that an atomic found, or 0.
    Done(u64),
    /// The key, the bounds, the access or an atomic's alignment was wrong.
    Refused,
}

const DONE: u32 = 1;
const REFUSED: u32 = 2;

impl CallKind {
    /// Encodes the operation as a number and operands.
    const fn encode(self) -> (u32, [u64; 2]) {
        match self {
            Self::Place => (1, [0; 2]),
            Self::Receive => (2, [0; 2]),
            Self::Fetch => (3, [0; 2]),
            Self::CompareSwap { expect, swap } => (4, [expect, swap]),
            Self::FetchAdd { add } => (5, [add, 0]),
        }
    }

    const fn decode(code: u32, [first, second]: [u64; 2]) -> Option<Self> {
        Some(match code {
            1 => Self::Place,
            2 => Self::Receive,
            3 => Self::Fetch,
            4 => Self::CompareSwap {
                expect: first,
                swap: second,
            },
            5 => Self::FetchAdd { add: first },
            _ => return None,
        })
    }

    /// Returns the access that the region must allow. For a peer's request the queue pair must allow it too.
    const fn need(self) -> Access {
        match self {
            Self::Place => Access::REMOTE_WRITE,
            Self::Receive => Access::LOCAL_WRITE,
            Self::Fetch => Access::REMOTE_READ,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }
}

/// A bounce buffer, as the initiator holds it.
pub(crate) struct BounceBuffer {
    piece: ArenaAllocation,
    calls: u64,
}

impl BounceBuffer {
    pub(crate) fn open(context: &Context) -> Result<Self, ResourceError> {
        let piece = context.queue_memory(BYTES)?;
        Ok(Self { piece, calls: 0 })
    }

    /// Publishes the bounce buffer at `place`, where the peer looks for it.
    pub(crate) fn publish(&self, place: &QueueLocation) {
        place.set(self.piece.place(), DATA);
    }

    fn header(&self) -> &Header {
        // SAFETY: the allocation has `BYTES` bytes, is aligned to cache lines, is zeroed, and lives as long
        // as `self`. The header consists of atomics.
        unsafe { &*self.piece.as_ptr().cast::<Header>() }
    }

    /// Returns the first `len` bytes of the data area, which a call reads or fills.
    pub(crate) fn data(&self, len: usize) -> Span {
        assert!(len <= DATA);
        // SAFETY: in range of the allocation, which is kept while the request is executed.
        unsafe { Span::new(self.piece.as_ptr().add(size_of::<Header>()), len) }
    }

    /// Writes a call. The caller must then notify the owner that serves this queue pair.
    pub(crate) fn call(&mut self, call: &BounceCall) {
        self.calls += 1;
        let header = self.header();
        let (what, operands) = call.what.encode();
        header.what.store(what, Ordering::Relaxed);
        header.key.store(call.key, Ordering::Relaxed);
        header.addr.store(call.addr, Ordering::Relaxed);
        header.len.store(call.len as u64, Ordering::Relaxed);
        for (to, from) in header.operands.iter().zip(operands) {
            to.store(from, Ordering::Relaxed);
        }
        // Pairs with the load in `ServedBounceBuffer::carry_out`, which then sees the call and its data.
        header.call.store(self.calls, Ordering::Release);
    }

    /// Returns the answer to the last call, if there is one.
    pub(crate) fn answer(&self) -> Option<CallResult> {
        let answer = &self.header().answer;
        // Pairs with the store in `ServedBounceBuffer::carry_out`.
        if answer.call.load(Ordering::Acquire) != self.calls {
            return None;
        }
        Some(match answer.status.load(Ordering::Relaxed) {
            DONE => CallResult::Done(answer.old.load(Ordering::Relaxed)),
            _ => CallResult::Refused,
        })
    }

    /// Retracts the last call. The owner may still be executing it.
    pub(crate) fn retract(&self) {
        self.header().call.store(0, Ordering::Relaxed);
        asymmetric_fence::heavy();
    }
}

/// A peer's bounce buffer, while the owner's process serves a call.
pub(crate) struct ServedBounceBuffer<'a> {
    header: NonNull<Header>,
    data: *mut u8,
    target: &'a ServedQp<'a>,
    /// Keeps the bounce buffer mapped.
    _keep: Arc<SharedSegment>,
}

/// The queue pair that a call is for, and what its requests may reach.
pub(crate) struct ServedQp<'a> {
    pub(crate) row: &'a QpRow,
    pub(crate) pd: u32,
    /// The protection domain of its receives.
    pub(crate) receives_pd: u32,
    /// The registrations of this process. No region is deregistered meanwhile.
    pub(crate) areas: LocalMrsGuard<'a>,
}

impl<'a> ServedBounceBuffer<'a> {
    /// Opens the bounce buffer that `place` names in the memory of `peer`. Returns `None` if it is not there.
    pub(crate) fn open(
        peer: &Peer,
        place: &QueueLocation,
        target: &'a ServedQp<'a>,
    ) -> Option<Self> {
        let (at, data_len) = place.get();
        if data_len != DATA || !at.offset.is_multiple_of(64) {
            return None;
        }
        let (start, keep) = peer.memory(at, BYTES)?;
        Some(Self {
            header: NonNull::new(start.cast())?,
            data: start.wrapping_add(size_of::<Header>()),
            target,
            _keep: keep,
        })
    }

    fn header(&self) -> &Header {
        // SAFETY: `open` checked range and alignment in a mapping that `_keep` keeps. The header
        // consists of atomics, which the other process may write at any time.
        unsafe { self.header.as_ref() }
    }

    /// Executes the call and returns its number. Reads each word of the header once.
    pub(crate) fn carry_out(&self) -> Option<u64> {
        let header = self.header();
        // Pairs with the store in `BounceBuffer::call`.
        let number = header.call.load(Ordering::Acquire);
        if number == 0 || number == header.answer.call.load(Ordering::Relaxed) {
            return None;
        }
        let code = header.what.load(Ordering::Relaxed);
        let operands = [0, 1].map(|at: usize| header.operands[at].load(Ordering::Relaxed));
        let key = header.key.load(Ordering::Relaxed);
        let addr = header.addr.load(Ordering::Relaxed);
        let len = header.len.load(Ordering::Relaxed);
        let answer = usize::try_from(len)
            .ok()
            .zip(CallKind::decode(code, operands))
            .and_then(|(len, what)| {
                let call = BounceCall {
                    what,
                    key,
                    addr,
                    len,
                };
                let memory = self.check(&call)?;
                crate::crash_points::at("checked");
                self.execute(&call, memory)
            });
        crate::crash_points::at("served");
        let (status, old) = answer.map_or((REFUSED, 0), |old| (DONE, old));
        header.answer.old.store(old, Ordering::Relaxed);
        header.answer.status.store(status, Ordering::Relaxed);
        // Pairs with the load in `BounceBuffer::answer`, which then sees the fetched data.
        header.answer.call.store(number, Ordering::Release);
        Some(number)
    }

    /// Returns the memory that a call is for, if key, protection domain, access and bounds allow the call.
    fn check(&self, call: &BounceCall) -> Option<Span> {
        let need = call.what.need();
        let of_receives = call.what == CallKind::Receive;
        let allowed = Access::from_bits_truncate(self.target.row.access.load(Ordering::Relaxed));
        let pd = match of_receives {
            true => self.target.receives_pd,
            false => self.target.pd,
        };
        let area = self.target.areas.get(call.key)?;
        let fits = area.pd == pd
            && area.access.contains(need)
            && (of_receives || allowed.contains(need))
            && call.len <= DATA;
        area_span(area, call.addr, call.len).filter(|_| fits)
    }

    /// Executes a checked call. Returns the value that an atomic found, or 0 for other operations; `None` if
    /// an atomic's target is no aligned word.
    fn execute(&self, call: &BounceCall, memory: Span) -> Option<u64> {
        // SAFETY: `open` checked that the bounce buffer has `DATA` bytes, `check` that `call.len` is no
        // more.
        let data = unsafe { Span::new(self.data, call.len) };
        let is_word = memory.is_aligned_word();
        match call.what {
            CallKind::Place | CallKind::Receive => copy_span(memory, data),
            CallKind::Fetch => copy_span(data, memory),
            CallKind::CompareSwap { expect, swap } if is_word => {
                return Some(memory.compare_swap(expect, swap));
            }
            CallKind::FetchAdd { add } if is_word => return Some(memory.fetch_add(add)),
            CallKind::CompareSwap { .. } | CallKind::FetchAdd { .. } => return None,
        }
        Some(0)
    }
}

/// Returns `len` bytes at `addr` of registered memory, if in range.
fn area_span(area: &LocalMr, addr: u64, len: usize) -> Option<Span> {
    // SAFETY: a buffer is mapped at its address at least until it is deregistered. Deregistration needs the
    // lock on the registrations, which the caller holds.
    let mapped = unsafe { MappedAddress::new(area.mapped as *mut u8, area.len) };
    mapped.span(addr.wrapping_sub(area.start as u64), len)
}
