//! The shared window: how memory is reached that only its owner can reach, and atomics on it.
//!
//! A request for such memory becomes one call or several. A call is written into a window, which is
//! the initiator's memory, one for each queue pair that ever needs it; then the queue pair that it is
//! for is marked in the owner's table, and the owner's progress thread is woken. That checks the call
//! against what its process knows of its own memory, carries it out between the window and that memory,
//! answers in the window, and wakes the initiator's progress thread. An initiator has one call of a
//! queue pair under way at a time, which keeps the requests' order.
//!
//! A call has a number, stored after the rest of it, and 0 stored there takes it back. The owner says in
//! its row that it serves, fences, and then looks whether the initiator's queue pair is what it was and
//! whether there is a call; so whoever stores first and fences then, and sees nobody serve, knows that
//! the window is his again.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use headworks_shm::asymmetric_fence;
use headworks_verbs::{Access, QpState, ResourceError};

use crate::arena::Piece;
use crate::copy::{Mapped, Span, copy_span};
use crate::device::{Context, slot_of};
use crate::local_mrs::{Area, Areas};
use crate::qp::QpCore;
use crate::table::Place;

/// Bytes that a call moves at most.
pub(crate) const DATA: usize = 64 << 10;
/// Bytes of a window.
const BYTES: usize = size_of::<Header>() + DATA;

/// What a window begins with.
#[repr(C, align(64))]
struct Header {
    /// The number of the call, stored last; 0 when there is none.
    call: AtomicU64,
    what: AtomicU32,
    key: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    operands: [AtomicU64; 2],
    answer: Reply,
}

/// The owner's line.
#[repr(C, align(64))]
struct Reply {
    /// The number of the call that this answers, stored last.
    call: AtomicU64,
    /// What an atomic found.
    old: AtomicU64,
    status: AtomicU32,
}

/// What the owner is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A WRITE.
    Place,
    /// Filling a receive.
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

/// A call, about `len` bytes at `addr` of the region `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done; what an atomic found.
    Done(u64),
    /// The key, the bounds or the access did not fit.
    Refused,
}

const DONE: u32 = 1;
const REFUSED: u32 = 2;

impl What {
    /// As it is written: a number, and operands.
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

    /// What the region, and for peers' requests the queue pair, must allow.
    const fn need(self) -> Access {
        match self {
            Self::Place => Access::REMOTE_WRITE,
            Self::Receive => Access::LOCAL_WRITE,
            Self::Fetch => Access::REMOTE_READ,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }
}

/// A window as its initiator has it.
pub(crate) struct BounceBuffer {
    piece: Piece,
    calls: u64,
}

impl BounceBuffer {
    pub(crate) fn open(context: &Context) -> Result<Self, ResourceError> {
        let piece = context.queue_memory(BYTES)?;
        Ok(Self { piece, calls: 0 })
    }

    /// Lets the peer find it, at the place for the queue pair's window.
    pub(crate) fn publish(&self, place: &Place) {
        place.set(self.piece.place(), DATA);
    }

    fn header(&self) -> &Header {
        // SAFETY: the piece has `BYTES` bytes, aligned to cache lines, zero at first, and is kept as
        // long as `self`; the header consists of atomics.
        unsafe { &*self.piece.as_ptr().cast::<Header>() }
    }

    /// The first `len` bytes of its data, for or of a call.
    pub(crate) fn data(&self, len: usize) -> Span {
        assert!(len <= DATA);
        // SAFETY: in range of the piece, which is kept while the request is executed.
        unsafe { Span::new(self.piece.as_ptr().add(size_of::<Header>()), len) }
    }

    /// Makes a call. Whoever serves this queue pair must be told.
    pub(crate) fn call(&mut self, call: &Call) {
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
        // Pairs with the load in `Served::take`: the call is there, and its data.
        header.call.store(self.calls, Ordering::Release);
    }

    /// The answer to the last call, if there is one.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let answer = &self.header().answer;
        // Pairs with the store in `Served::answer`.
        if answer.call.load(Ordering::Acquire) != self.calls {
            return None;
        }
        Some(match answer.status.load(Ordering::Relaxed) {
            DONE => Answer::Done(answer.old.load(Ordering::Relaxed)),
            _ => Answer::Refused,
        })
    }

    /// Takes the last call back. It may be under way still.
    pub(crate) fn retract(&self) {
        self.header().call.store(0, Ordering::Relaxed);
        asymmetric_fence::heavy();
    }
}

/// A window as its owner's process has it while it serves.
struct Served<'a> {
    header: NonNull<Header>,
    data: *mut u8,
    core: &'a QpCore,
    areas: &'a Areas<'a>,
}

/// Serves the calls of the queue pairs that are marked.
pub(crate) fn serve(context: &Context) {
    context.table.attention().calls.take(|slot| {
        if let Some(core) = context.queue_pair(slot) {
            serve_one(context, &core);
        }
    });
}

/// Serves the call of the peer that `core` is connected to, if there is one. While it is served, nothing
/// is deregistered, and no queue pair passes `QpCore::quiesce`.
fn serve_one(context: &Context, core: &QpCore) -> Option<()> {
    let peer = core.peer()?;
    let ours = core.row();
    let areas = context.private.lock();
    let serving = ours.executing.serve();
    let dest = ours.dest_qpn.load(Ordering::Relaxed);
    let slot = slot_of(dest);
    let theirs = peer.table.qp(slot);
    let is_up = core.state().can_receive()
        && matches!(theirs.life().state(), QpState::Rts | QpState::Sqd)
        && theirs.sends_to(core);
    let (at, data_len) = peer.table.window(slot).get();
    if !is_up || data_len != DATA || !at.offset.is_multiple_of(64) {
        return None;
    }
    let (start, _keep) = peer.memory(at, BYTES)?;
    let served = Served {
        header: NonNull::new(start.cast())?,
        data: start.wrapping_add(size_of::<Header>()),
        core,
        areas: &areas,
    };
    let number = served.carry_out()?;
    drop(serving);
    tracing::trace!(number, "served a call");
    crate::crash_points::at("answered");
    peer.kick();
    Some(())
}

impl Served<'_> {
    fn header(&self) -> &Header {
        // SAFETY: `serve_one` checked range and alignment in a mapping that it keeps meanwhile; the
        // header consists of atomics, which the other process may write at any time.
        unsafe { self.header.as_ref() }
    }

    /// Carries the call out; says which that was. What the header says is read once.
    fn carry_out(&self) -> Option<u64> {
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
            .zip(What::decode(code, operands))
            .and_then(|(len, what)| {
                let call = Call {
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
        // Pairs with the load in `BounceBuffer::answer`: what was fetched is in the window.
        header.answer.call.store(number, Ordering::Release);
        Some(number)
    }

    /// The memory that a call is about, if it may be.
    fn check(&self, call: &Call) -> Option<Span> {
        let need = call.what.need();
        let of_receives = call.what == What::Receive;
        let allowed = Access::from_bits_truncate(self.core.row().access.load(Ordering::Relaxed));
        let pd = match &self.core.srq {
            Some(srq) if of_receives => srq.pd,
            _ => self.core.pd,
        };
        let area = self.areas.get(call.key)?;
        let fits = area.pd == pd
            && area.access.contains(need)
            && (of_receives || allowed.contains(need))
            && call.len <= DATA;
        area_span(area, call.addr, call.len).filter(|_| fits)
    }

    /// Does it. What an atomic found, or 0.
    fn execute(&self, call: &Call, memory: Span) -> Option<u64> {
        // SAFETY: `serve_one` checked that the window has `DATA` bytes, `check` that these are no more.
        let data = unsafe { Span::new(self.data, call.len) };
        let is_word = memory.is_aligned_word();
        match call.what {
            What::Place | What::Receive => copy_span(memory, data),
            What::Fetch => copy_span(data, memory),
            What::CompareSwap { expect, swap } if is_word => {
                return Some(memory.compare_swap(expect, swap));
            }
            What::FetchAdd { add } if is_word => return Some(memory.fetch_add(add)),
            What::CompareSwap { .. } | What::FetchAdd { .. } => return None,
        }
        Some(0)
    }
}

/// `len` bytes at `addr` of registered memory.
fn area_span(area: &Area, addr: u64, len: usize) -> Option<Span> {
    // SAFETY: a buffer is mapped where it says, at least until it is not registered any more, for which
    // the lock on the areas is needed.
    let mapped = unsafe { Mapped::new(area.start as *mut u8, area.len, None) };
    mapped.span(addr.wrapping_sub(area.start as u64), len)
}
