//! The hot path of posting. Requests are written straight into an array of libibverbs' work requests, which
//! is linked beforehand and reused by every call. The device gets the array as one chain: one call, one
//! doorbell. Scatter/gather lists are not copied, because our entries are laid out as libibverbs'.

use std::ptr::{null, null_mut};

use headworks_verbs::{
    AhKey, Payload, PostError, PostErrorKind, QpCaps, RecvWr, RemoteAddr, SendOp, SendWr, Sge,
};

use crate::abi::{self, opcode};
use crate::address_handle::AhLookup;
use crate::convert;
use crate::raw::ObjectRef;

/// Longest chain, in requests; a longer slice takes several doorbells.
pub(crate) const CHAIN_MAX: usize = 1024;

/// Limits of a queue pair's send requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Bytes of the longest message.
    pub(crate) max_message: u32,
    /// Bytes of the longest READ; -1 if no READ may be outstanding.
    pub(crate) max_read: i64,
    /// Bytes of an atomic; -1 if none may be outstanding.
    pub(crate) atomic: i64,
}

impl Rules {
    pub(crate) fn of(caps: &QpCaps, max_message: u32) -> Self {
        Self {
            max_sge: caps.max_send_sge,
            max_inline: caps.max_inline,
            max_message,
            max_read: max_message.into(),
            atomic: 8,
        }
    }

    /// Allows or forbids READs and atomics.
    pub(crate) fn may_read(&mut self, may_read: bool) {
        (self.max_read, self.atomic) = match may_read {
            true => (self.max_message.into(), 8),
            false => (-1, -1),
        };
    }

    /// Returns the reason why `wr` was not written.
    #[cold]
    fn broken_by(&self, wr: &SendWr<'_>) -> PostErrorKind {
        match wr.payload {
            Payload::Gather(sges) if sges.len() > self.max_sge as usize => {
                PostErrorKind::TooManySges(self.max_sge)
            }
            Payload::Gather(sges) if length(sges) > self.max_message.into() => {
                PostErrorKind::MessageTooLong(self.max_message)
            }
            Payload::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                PostErrorKind::InlineTooLong(self.max_inline)
            }
            // The operation does not fit the transport, the payload or the address.
            _ => PostErrorKind::Operation,
        }
    }
}

/// Stands for the number of gathered bytes if the payload is inline.
const INLINE: i64 = i64::MAX;

/// How a transport fills in a request. The posting loop is compiled once for each transport.
pub(crate) trait Transport {
    /// Writes the operation `op` into `out`, which already holds the payload. `gathered` is the payload's
    /// bytes, or [`INLINE`]. Returns whether the transport has this operation and may post it.
    fn write(&mut self, out: &mut abi::SendWr, op: &SendOp, gathered: i64, rules: &Rules) -> bool;
}

/// Transport of reliable connections.
pub(crate) struct Connected;

impl Transport for Connected {
    #[inline(always)]
    fn write(&mut self, out: &mut abi::SendWr, op: &SendOp, gathered: i64, rules: &Rules) -> bool {
        match *op {
            SendOp::Write(remote) => {
                out.opcode = opcode::WRITE;
                out.wr.rdma = remote;
                true
            }
            SendOp::WriteImm(remote, imm) => {
                out.opcode = opcode::WRITE_IMM;
                out.imm_data = imm.to_be();
                out.wr.rdma = remote;
                true
            }
            SendOp::Send => {
                out.opcode = opcode::SEND;
                true
            }
            SendOp::SendImm(imm) => {
                out.opcode = opcode::SEND_IMM;
                out.imm_data = imm.to_be();
                true
            }
            SendOp::Read(remote) => {
                out.opcode = opcode::READ;
                out.wr.rdma = remote;
                gathered <= rules.max_read
            }
            SendOp::CompareSwap {
                remote,
                expect,
                swap,
            } => {
                out.opcode = opcode::COMPARE_SWAP;
                out.wr.atomic = abi::Atomic {
                    remote_addr: remote.addr,
                    compare_add: expect,
                    swap,
                    rkey: remote.rkey,
                };
                gathered == rules.atomic
            }
            SendOp::FetchAdd { remote, add } => {
                out.opcode = opcode::FETCH_ADD;
                out.wr.atomic.remote_addr = remote.addr;
                out.wr.atomic.compare_add = add;
                out.wr.atomic.rkey = remote.rkey;
                gathered == rules.atomic
            }
            // The content of a request that is not posted does not matter. Because this arm differs from the
            // last one, the compiler sees that no value reaches the last one, and omits the check for it.
            SendOp::SendTo(_) | SendOp::SendToImm(..) => {
                out.opcode = opcode::SEND;
                false
            }
            _ => false,
        }
    }
}

/// Transport of datagrams, to the address handles that requests may name.
pub(crate) struct Datagrams<'a> {
    handles: AhLookup<'a>,
    last: &'a mut CachedAh,
}

/// The address handle named last, which is often the next one too.
pub(crate) struct CachedAh {
    /// Version of the table in which it was found.
    version: u64,
    key: AhKey,
    ah: *mut abi::Ah,
}

// SAFETY: `ah` is followed only while the table in which it was found is locked and unchanged.
unsafe impl Send for CachedAh {}

impl CachedAh {
    /// Creates an empty cache.
    pub(crate) const fn new() -> Self {
        Self {
            version: 0,
            key: AhKey(0),
            ah: null_mut(),
        }
    }
}

impl<'a> Datagrams<'a> {
    /// Prepares to post `wrs`. If the table has changed, the cached handle is not used again.
    #[inline(always)]
    pub(crate) fn to(handles: AhLookup<'a>, last: &'a mut CachedAh, wrs: &[SendWr<'_>]) -> Self {
        if last.version != handles.version() {
            last.key = other_than_first(wrs);
        }
        Self { handles, last }
    }

    /// Looks up `key`, which is not the cached handle's, and caches its handle. Returns whether it was found.
    #[inline(always)]
    fn find(&mut self, key: AhKey) -> bool {
        let found = self.handles.get(key);
        if let Some(ah) = found {
            *self.last = CachedAh {
                version: self.handles.version(),
                key,
                ah,
            };
        }
        found.is_some()
    }
}

/// A key that the first request does not name, so that its handle is looked up.
#[cold]
fn other_than_first(wrs: &[SendWr<'_>]) -> AhKey {
    match wrs.first().map(|wr| wr.op) {
        Some(SendOp::SendTo(to) | SendOp::SendToImm(to, _)) => AhKey(!to.ah.0),
        _ => AhKey(0),
    }
}

impl Transport for Datagrams<'_> {
    #[inline(always)]
    fn write(&mut self, out: &mut abi::SendWr, op: &SendOp, _: i64, _: &Rules) -> bool {
        let to = match op {
            SendOp::SendTo(to) => {
                out.opcode = opcode::SEND;
                to
            }
            SendOp::SendToImm(to, imm) => {
                out.imm_data = imm.to_be();
                out.opcode = opcode::SEND_IMM;
                to
            }
            _ => return false,
        };
        if to.ah != self.last.key && !self.find(to.ah) {
            return false;
        }
        out.wr.ud = abi::Ud {
            ah: self.last.ah,
            remote_qpn: to.qpn.raw(),
            remote_qkey: to.qkey,
        };
        true
    }
}

/// Array of linked requests: each but the last points to the next.
struct WrArray<T> {
    first: *mut T,
    len: usize,
}

impl<T> WrArray<T> {
    fn new(all: Box<[T]>) -> Self {
        let len = all.len();
        let first = Box::into_raw(all).cast();
        Self { first, len }
    }

    /// Number of requests before `end`.
    #[cold]
    fn before(&self, end: *mut T) -> usize {
        (end as usize - self.first as usize) / size_of::<T>()
    }

    /// Index of `bad` among the `count` requests in use, or 0 if it is none of them: if a device does not say
    /// where it stopped, it must be assumed to have posted nothing.
    #[cold]
    fn index_of(&self, bad: *mut T, count: usize) -> usize {
        let offset = (bad as usize).wrapping_sub(self.first as usize);
        let index = offset / size_of::<T>();
        if offset.is_multiple_of(size_of::<T>()) && index < count {
            index
        } else {
            0
        }
    }
}

impl<T> Drop for WrArray<T> {
    fn drop(&mut self) {
        let all = std::ptr::slice_from_raw_parts_mut(self.first, self.len);
        // SAFETY: `new` took this box apart, and nothing else keeps a pointer into it.
        drop(unsafe { Box::from_raw(all) });
    }
}

/// A request with its own scatter/gather entry for an inline payload.
#[repr(C)]
#[derive(Clone, Copy)]
struct WrSlot {
    wr: abi::SendWr,
    inline: Sge,
}

/// Posts requests to a send queue.
pub(crate) struct SendChain {
    places: WrArray<WrSlot>,
    pub(crate) rules: Rules,
    post: abi::PostSend,
    qp: ObjectRef<abi::Qp>,
}

// SAFETY: the array belongs to this value alone, and the queue pair may be used from any thread.
unsafe impl Send for SendChain {}

impl SendChain {
    /// Creates a chain for `qp`, whose send queue holds `depth` requests. `post` is the device's function.
    pub(crate) fn new(
        qp: ObjectRef<abi::Qp>,
        post: abi::PostSend,
        depth: u32,
        rules: Rules,
    ) -> Self {
        let len = (depth as usize).clamp(1, CHAIN_MAX);
        let nowhere = RemoteAddr::default();
        let wr = abi::SendWr {
            wr_id: 0,
            next: null_mut(),
            sg_list: null(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            wr: abi::Operation { rdma: nowhere },
            xrc_srqn: 0,
            bind_mw: [0; 6],
        };
        let inline = Sge::default();
        let places = WrArray::new(vec![WrSlot { wr, inline }; len].into_boxed_slice());
        for at in 0..len - 1 {
            // SAFETY: both are within the array, which belongs to this value.
            unsafe { (*places.first.add(at)).wr.next = places.first.add(at + 1).cast() };
        }
        Self {
            places,
            rules,
            post,
            qp,
        }
    }

    /// Posts `wrs` with one call of the device. If a request is refused, those before it are posted.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        wrs: &[SendWr<'_>],
        mut transport: impl Transport,
    ) -> Result<(), PostError> {
        // An empty slice wraps around and so takes the other path: it is no chain either.
        if wrs.len().wrapping_sub(1) >= self.places.len {
            return self.post_long(wrs, transport);
        }
        self.post_some(wrs, &mut transport)
    }

    /// Posts with several calls, each as long as possible; with none if there is nothing to post.
    #[cold]
    fn post_long(
        &mut self,
        wrs: &[SendWr<'_>],
        mut transport: impl Transport,
    ) -> Result<(), PostError> {
        let mut done = 0;
        for some in wrs.chunks(self.places.len) {
            self.post_some(some, &mut transport)
                .map_err(|error| error.kind.at(done + error.index))?;
            done += some.len();
        }
        Ok(())
    }

    /// Posts at least one request, and at most as many as the array has slots.
    #[inline(always)]
    fn post_some(
        &mut self,
        wrs: &[SendWr<'_>],
        transport: &mut impl Transport,
    ) -> Result<(), PostError> {
        let mut place = self.places.first;
        for wr in wrs {
            // SAFETY: there are at least as many slots as requests.
            if !write(unsafe { &mut *place }, wr, &self.rules, transport) {
                return self.stop(place, wr);
            }
            // SAFETY: as above; the result is at most one past the end.
            place = unsafe { place.add(1) };
        }
        self.ring(place)
    }

    /// Refuses `wr`, which would have gone into `place`, and posts the requests before it.
    #[cold]
    fn stop(&mut self, place: *mut WrSlot, wr: &SendWr<'_>) -> Result<(), PostError> {
        let count = self.places.before(place);
        if count > 0 {
            self.ring(place)?;
        }
        Err(self.rules.broken_by(wr).at(count))
    }

    /// Hands the requests before `end` to the device.
    #[inline(always)]
    fn ring(&mut self, end: *mut WrSlot) -> Result<(), PostError> {
        let first = self.places.first;
        let mut bad = null_mut();
        // SAFETY: at least one request is before `end`, which is at most one past the array's end. The caller
        // wrote all requests before it. Their scatter/gather lists are the caller's, which outlive this call,
        // or the array's own. The last link of the array is never followed: the chain is always cut after its
        // last request.
        let posted = unsafe {
            let last = &raw mut (*end.sub(1)).wr;
            (*last).next = null_mut();
            let posted = (self.post)(self.qp.as_ptr(), first.cast(), &mut bad);
            (*last).next = end.cast();
            posted
        };
        if posted == 0 {
            return Ok(());
        }
        self.refused(posted, bad, end)
    }

    #[cold]
    fn refused(&self, code: i32, bad: *mut abi::SendWr, end: *mut WrSlot) -> Result<(), PostError> {
        let count = self.places.before(end);
        Err(convert::refusal(code).at(self.places.index_of(bad.cast(), count)))
    }
}

/// Writes `wr` into `place`, except its link. Returns whether it may be posted.
#[inline(always)]
fn write(
    place: &mut WrSlot,
    wr: &SendWr<'_>,
    rules: &Rules,
    transport: &mut impl Transport,
) -> bool {
    let out = &mut place.wr;
    let mut flags = u32::from(wr.flags.bits());
    let gathered = match wr.payload {
        Payload::Gather([one]) => {
            if one.len > rules.max_message {
                return false;
            }
            out.sg_list = one;
            out.num_sge = 1;
            one.len.into()
        }
        Payload::Gather(_) => match gather(out, wr, rules) {
            Some(len) => len,
            None => return false,
        },
        Payload::Inline(bytes) => {
            if bytes.len() > rules.max_inline as usize {
                return false;
            }
            place.inline.addr = bytes.as_ptr() as u64;
            place.inline.len = bytes.len() as u32;
            // On some devices, an entry of 0 bytes has a meaning of its own.
            let entries = if bytes.is_empty() {
                &[]
            } else {
                std::slice::from_ref(&place.inline)
            };
            out.sg_list = list(entries);
            out.num_sge = entries.len() as i32;
            flags |= abi::SEND_INLINE;
            INLINE
        }
    };
    out.wr_id = wr.wr_id;
    out.send_flags = flags;
    transport.write(out, &wr.op, gathered, rules)
}

/// Writes a list of any length. Returns the bytes that it gathers, or `None` if they or the entries are too
/// many. This is a separate function because most requests have one entry.
#[cold]
#[inline(never)]
fn gather(out: &mut abi::SendWr, wr: &SendWr<'_>, rules: &Rules) -> Option<i64> {
    let Payload::Gather(sges) = wr.payload else {
        return None;
    };
    let len = length(sges);
    if sges.len() > rules.max_sge as usize || len > rules.max_message.into() {
        return None;
    }
    out.sg_list = list(sges);
    out.num_sge = sges.len() as i32;
    Some(len)
}

/// Pointer to a request's list of entries; null if the list is empty. The pointer of an empty slice is not null
/// and points to no memory, but the library of irdma reads the first entry unless the pointer is null.
#[inline(always)]
fn list(sges: &[Sge]) -> *const Sge {
    if sges.is_empty() {
        null()
    } else {
        sges.as_ptr()
    }
}

/// Number of bytes that a list of entries gathers.
fn length(sges: &[Sge]) -> i64 {
    sges.iter().map(|sge| i64::from(sge.len)).sum()
}

/// The queue that receives are posted to.
pub(crate) enum Receives {
    /// A queue pair's own receive queue.
    Own(ObjectRef<abi::Qp>, abi::PostRecv),
    /// A shared receive queue.
    Shared(ObjectRef<abi::Srq>, abi::PostSrqRecv),
}

/// Posts receives to a receive queue.
pub(crate) struct RecvChain {
    wrs: WrArray<abi::RecvWr>,
    max_sge: u32,
    to: Receives,
}

// SAFETY: as for `SendChain`; the shared receive queue, too, may be used from any thread.
unsafe impl Send for RecvChain {}

impl RecvChain {
    /// Creates a chain for a queue of `depth` receives with at most `max_sge` entries each.
    pub(crate) fn new(to: Receives, depth: u32, max_sge: u32) -> Self {
        let len = (depth as usize).clamp(1, CHAIN_MAX);
        let none = abi::RecvWr {
            wr_id: 0,
            next: null_mut(),
            sg_list: null(),
            num_sge: 0,
        };
        let wrs = WrArray::new(vec![none; len].into_boxed_slice());
        for at in 0..len - 1 {
            // SAFETY: both are within the array, which belongs to this value.
            unsafe { (*wrs.first.add(at)).next = wrs.first.add(at + 1) };
        }
        Self { wrs, max_sge, to }
    }

    /// Posts `wrs` with one call of the device. If a receive is refused, those before it are posted.
    #[inline(always)]
    pub(crate) fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // An empty slice wraps around, as in `SendChain::post`.
        if wrs.len().wrapping_sub(1) >= self.wrs.len {
            return self.post_long(wrs);
        }
        self.post_some(wrs)
    }

    /// Posts with several calls, each as long as possible; with none if there is nothing to post.
    #[cold]
    fn post_long(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut done = 0;
        for some in wrs.chunks(self.wrs.len) {
            self.post_some(some)
                .map_err(|error| error.kind.at(done + error.index))?;
            done += some.len();
        }
        Ok(())
    }

    /// Posts at least one receive, and at most as many as the array has slots.
    #[inline(always)]
    fn post_some(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let max_sge = self.max_sge as usize;
        let mut out = self.wrs.first;
        for wr in wrs {
            if wr.sges.len() > max_sge {
                return self.stop(out);
            }
            // SAFETY: there are at least as many slots as requests. After the last one, `out` is at most one
            // past the end.
            unsafe {
                (*out).wr_id = wr.wr_id;
                (*out).sg_list = list(wr.sges);
                (*out).num_sge = wr.sges.len() as i32;
                out = out.add(1);
            }
        }
        self.ring(out)
    }

    /// Refuses the receive that would have gone to `out`, for too many entries, and posts those before it.
    #[cold]
    fn stop(&mut self, out: *mut abi::RecvWr) -> Result<(), PostError> {
        let count = self.wrs.before(out);
        if count > 0 {
            self.ring(out)?;
        }
        Err(PostErrorKind::TooManySges(self.max_sge).at(count))
    }

    /// Hands the receives before `end` to the device.
    #[inline(always)]
    fn ring(&mut self, end: *mut abi::RecvWr) -> Result<(), PostError> {
        let first = self.wrs.first;
        let mut bad = null_mut();
        // SAFETY: as in `SendChain::ring`.
        let posted = unsafe {
            let last = end.sub(1);
            (*last).next = null_mut();
            let posted = match &self.to {
                Receives::Own(qp, post) => post(qp.as_ptr(), first, &mut bad),
                Receives::Shared(srq, post) => post(srq.as_ptr(), first, &mut bad),
            };
            (*last).next = end;
            posted
        };
        if posted == 0 {
            return Ok(());
        }
        self.refused(posted, bad, end)
    }

    #[cold]
    fn refused(
        &self,
        code: i32,
        bad: *mut abi::RecvWr,
        end: *mut abi::RecvWr,
    ) -> Result<(), PostError> {
        let count = self.wrs.before(end);
        Err(convert::refusal(code).at(self.wrs.index_of(bad, count)))
    }
}
