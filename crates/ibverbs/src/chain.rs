//! The hot path of posting: requests are written straight into an array of libibverbs' own, which is
//! linked beforehand and used again for every call, and handed to the device as one chain: one call, one
//! doorbell. Lists of scatter/gather entries are not copied at all, since ours are libibverbs'.

use std::ptr::null_mut;

use headworks_verbs::{
    AhKey, Destination, Payload, PostError, PostErrorKind, QpCaps, RecvWr, RemoteAddr, SendOp,
    SendWr, Sge,
};

use crate::abi::{self, opcode};
use crate::handles::Lookup;
use crate::raw::Held;
use crate::translate;

/// The longest chain, in requests; a longer slice takes several doorbells.
pub(crate) const CHAIN_MAX: usize = 1024;

/// What a send request of a queue pair may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Bytes of one message.
    pub(crate) max_message: u32,
    /// Whether READs and atomics may be outstanding at all.
    pub(crate) may_read: bool,
}

impl Rules {
    pub(crate) fn of(caps: &QpCaps, max_message: u32) -> Self {
        Self {
            max_sge: caps.max_send_sge,
            max_inline: caps.max_inline,
            max_message,
            may_read: true,
        }
    }
}

/// What a transport makes of a request: the loop over them is compiled once for each.
pub(crate) trait Transport {
    /// Writes what `op` says into `out`, which holds the payload already.
    fn write(
        &mut self,
        out: &mut abi::SendWr,
        op: &SendOp,
        payload: &Payload<'_>,
        rules: &Rules,
    ) -> Result<(), PostErrorKind>;
}

/// Reliable connections.
pub(crate) struct Connected;

impl Transport for Connected {
    #[inline(always)]
    fn write(
        &mut self,
        out: &mut abi::SendWr,
        op: &SendOp,
        payload: &Payload<'_>,
        rules: &Rules,
    ) -> Result<(), PostErrorKind> {
        match *op {
            SendOp::Write(remote) => {
                out.opcode = opcode::WRITE;
                out.wr.rdma = rdma(remote);
            }
            SendOp::WriteImm(remote, imm) => {
                out.opcode = opcode::WRITE_IMM;
                out.imm_data = imm.to_be();
                out.wr.rdma = rdma(remote);
            }
            SendOp::Send => out.opcode = opcode::SEND,
            SendOp::SendImm(imm) => {
                out.opcode = opcode::SEND_IMM;
                out.imm_data = imm.to_be();
            }
            ref op => return write_rare(out, op, payload, rules),
        }
        Ok(())
    }
}

/// Datagrams, to the address handles that may be named.
pub(crate) struct Datagrams<'a> {
    handles: Lookup<'a>,
    /// The one that was named last: in a chain it is often the next one too.
    last: Option<(AhKey, *mut abi::Ah)>,
}

impl<'a> Datagrams<'a> {
    pub(crate) const fn to(handles: Lookup<'a>) -> Self {
        Self {
            handles,
            last: None,
        }
    }

    #[inline(always)]
    fn ud(&mut self, to: &Destination) -> Result<abi::Ud, PostErrorKind> {
        let ah = match self.last {
            Some((key, ah)) if key == to.ah => ah,
            _ => {
                let ah = self.handles.get(to.ah).ok_or(PostErrorKind::Operation)?;
                self.last = Some((to.ah, ah));
                ah
            }
        };
        Ok(abi::Ud {
            ah,
            remote_qpn: to.qpn.raw(),
            remote_qkey: to.qkey,
        })
    }
}

impl Transport for Datagrams<'_> {
    #[inline(always)]
    fn write(
        &mut self,
        out: &mut abi::SendWr,
        op: &SendOp,
        _: &Payload<'_>,
        _: &Rules,
    ) -> Result<(), PostErrorKind> {
        match op {
            SendOp::SendTo(to) => {
                out.wr.ud = self.ud(to)?;
                out.opcode = opcode::SEND;
            }
            SendOp::SendToImm(to, imm) => {
                out.wr.ud = self.ud(to)?;
                out.opcode = opcode::SEND_IMM;
                out.imm_data = imm.to_be();
            }
            _ => return Err(PostErrorKind::Operation),
        }
        Ok(())
    }
}

/// An array of linked requests: each but the last knows the next.
struct Linked<T> {
    first: *mut T,
    len: usize,
}

impl<T> Linked<T> {
    fn new(all: Box<[T]>) -> Self {
        let len = all.len();
        let first = Box::into_raw(all).cast();
        Self { first, len }
    }

    /// Which of the `count` requests in use `bad` is, or 0 for none of them: a device that does not say
    /// where it stopped has to be taken to have posted nothing.
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

impl<T> Drop for Linked<T> {
    fn drop(&mut self) {
        let all = std::ptr::slice_from_raw_parts_mut(self.first, self.len);
        // SAFETY: the box taken apart in `new`; nobody else has kept a part of it.
        drop(unsafe { Box::from_raw(all) });
    }
}

/// Posts to a send queue.
pub(crate) struct SendChain {
    wrs: Linked<abi::SendWr>,
    /// One for each request: inline payloads.
    sges: Linked<Sge>,
    post: abi::PostSend,
    qp: Held<abi::Qp>,
}

// SAFETY: the arrays belong to it alone, and the queue pair may be used from any thread.
unsafe impl Send for SendChain {}

impl SendChain {
    /// For a queue pair of the device whose call `post` is, of `depth` requests.
    pub(crate) fn new(qp: Held<abi::Qp>, post: abi::PostSend, depth: u32) -> Self {
        let len = (depth as usize).clamp(1, CHAIN_MAX);
        let sges = Linked::new(vec![Sge::default(); len].into_boxed_slice());
        let nowhere = rdma(RemoteAddr { addr: 0, rkey: 0 });
        let none = abi::SendWr {
            wr_id: 0,
            next: null_mut(),
            sg_list: std::ptr::null(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            wr: abi::Operation { rdma: nowhere },
            xrc_srqn: 0,
            rest: [0; 6],
        };
        let wrs = Linked::new(vec![none; len].into_boxed_slice());
        for at in 0..len - 1 {
            // SAFETY: both are within the array, which is ours.
            unsafe { (*wrs.first.add(at)).next = wrs.first.add(at + 1) };
        }
        Self {
            wrs,
            sges,
            post,
            qp,
        }
    }

    /// Posts `wrs` by one call of the device. Those before the one that is refused are posted.
    #[inline]
    pub(crate) fn post(
        &mut self,
        wrs: &[SendWr<'_>],
        rules: &Rules,
        mut transport: impl Transport,
    ) -> Result<(), PostError> {
        if wrs.len() <= self.wrs.len {
            return self.post_some(wrs, rules, &mut transport);
        }
        let mut done = 0;
        for some in wrs.chunks(self.wrs.len) {
            self.post_some(some, rules, &mut transport)
                .map_err(|error| error.kind.at(done + error.index))?;
            done += some.len();
        }
        Ok(())
    }

    #[inline]
    fn post_some(
        &mut self,
        wrs: &[SendWr<'_>],
        rules: &Rules,
        transport: &mut impl Transport,
    ) -> Result<(), PostError> {
        // Copies of its own, which no store into the arrays can change.
        let rules = *rules;
        let (first, inlines) = (self.wrs.first, self.sges.first);
        let mut count = 0;
        let mut refused = Ok(());
        for wr in wrs {
            // SAFETY: `count` is less than the number of requests, which is at most the arrays' length.
            let (out, inline) = unsafe { (&mut *first.add(count), inlines.add(count)) };
            if let Err(kind) = write(out, inline, wr, &rules, transport) {
                refused = Err(kind.at(count));
                break;
            }
            count += 1;
        }
        if count > 0 {
            self.ring(count)?;
        }
        refused
    }

    /// Hands the first `count` requests to the device.
    #[inline]
    fn ring(&mut self, count: usize) -> Result<(), PostError> {
        let first = self.wrs.first;
        let mut bad = null_mut();
        // SAFETY: at least one, within the array; all of them were written by the caller. Their lists of
        // entries are those of the requests, which outlive this call, and our own.
        let posted = unsafe {
            let last = first.add(count - 1);
            let next = (*last).next;
            (*last).next = null_mut();
            let posted = (self.post)(self.qp.as_ptr(), first, &mut bad);
            (*last).next = next;
            posted
        };
        if posted == 0 {
            return Ok(());
        }
        Err(translate::refusal(posted).at(self.wrs.index_of(bad, count)))
    }
}

/// Writes `wr` into `out`, all but its link; `inline` is a place for an entry of its own.
#[inline(always)]
fn write(
    out: &mut abi::SendWr,
    inline: *mut Sge,
    wr: &SendWr<'_>,
    rules: &Rules,
    transport: &mut impl Transport,
) -> Result<(), PostErrorKind> {
    let mut flags = wr.flags.bits();
    match wr.payload {
        Payload::Gather(sges) => {
            if sges.len() > rules.max_sge as usize {
                return Err(PostErrorKind::TooManySges(rules.max_sge));
            }
            let len = match sges {
                [one] => u64::from(one.len),
                [one, two] => u64::from(one.len) + u64::from(two.len),
                sges => sges.iter().map(|sge| u64::from(sge.len)).sum(),
            };
            if len > u64::from(rules.max_message) {
                return Err(PostErrorKind::MessageTooLong(rules.max_message));
            }
            out.sg_list = sges.as_ptr();
            out.num_sge = sges.len() as i32;
        }
        Payload::Inline(bytes) => {
            if bytes.len() > rules.max_inline as usize {
                return Err(PostErrorKind::InlineTooLong(rules.max_inline));
            }
            let sge = Sge {
                addr: bytes.as_ptr() as u64,
                len: bytes.len() as u32,
                lkey: 0,
            };
            // SAFETY: the place of this request in the array of entries, as the caller says.
            unsafe { *inline = sge };
            out.sg_list = inline;
            // An entry of no bytes has a meaning of its own on some devices.
            out.num_sge = i32::from(!bytes.is_empty());
            flags |= abi::SEND_INLINE;
        }
    }
    out.wr_id = wr.wr_id;
    out.send_flags = flags;
    transport.write(out, &wr.op, &wr.payload, rules)
}

#[inline(always)]
fn rdma(remote: RemoteAddr) -> abi::Rdma {
    abi::Rdma {
        remote_addr: remote.addr,
        rkey: remote.rkey,
    }
}

/// The rest of what connections carry: what takes a round trip anyhow.
#[inline(never)]
fn write_rare(
    out: &mut abi::SendWr,
    op: &SendOp,
    payload: &Payload<'_>,
    rules: &Rules,
) -> Result<(), PostErrorKind> {
    let may_read = rules.may_read && matches!(payload, Payload::Gather(_));
    let may_change = may_read && payload.len() == 8;
    match *op {
        SendOp::Read(remote) if may_read => {
            out.opcode = opcode::READ;
            out.wr.rdma = rdma(remote);
        }
        SendOp::CompareSwap {
            remote,
            expect,
            swap,
        } if may_change => {
            out.opcode = opcode::COMPARE_SWAP;
            out.wr.atomic = abi::Atomic {
                remote_addr: remote.addr,
                compare_add: expect,
                swap,
                rkey: remote.rkey,
            };
        }
        SendOp::FetchAdd { remote, add } if may_change => {
            out.opcode = opcode::FETCH_ADD;
            out.wr.atomic = abi::Atomic {
                remote_addr: remote.addr,
                compare_add: add,
                swap: 0,
                rkey: remote.rkey,
            };
        }
        _ => return Err(PostErrorKind::Operation),
    }
    Ok(())
}

/// Where receives are posted to.
pub(crate) enum Receives {
    /// A queue pair's own queue.
    Own(Held<abi::Qp>, abi::PostRecv),
    /// A shared one.
    Shared(Held<abi::Srq>, abi::PostSrqRecv),
}

/// Posts receives.
pub(crate) struct RecvChain {
    wrs: Linked<abi::RecvWr>,
    max_sge: u32,
    to: Receives,
}

// SAFETY: as for the other chain.
unsafe impl Send for RecvChain {}

impl RecvChain {
    /// For a queue of `depth` receives of at most `max_sge` entries.
    pub(crate) fn new(to: Receives, depth: u32, max_sge: u32) -> Self {
        let len = (depth as usize).clamp(1, CHAIN_MAX);
        let none = abi::RecvWr {
            wr_id: 0,
            next: null_mut(),
            sg_list: std::ptr::null(),
            num_sge: 0,
        };
        let wrs = Linked::new(vec![none; len].into_boxed_slice());
        for at in 0..len - 1 {
            // SAFETY: both are within the array, which is ours.
            unsafe { (*wrs.first.add(at)).next = wrs.first.add(at + 1) };
        }
        Self { wrs, max_sge, to }
    }

    /// Posts `wrs` by one call of the device. Those before the one that is refused are posted.
    #[inline]
    pub(crate) fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut done = 0;
        for some in wrs.chunks(self.wrs.len) {
            self.post_some(some)
                .map_err(|error| error.kind.at(done + error.index))?;
            done += some.len();
        }
        Ok(())
    }

    #[inline]
    fn post_some(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let first = self.wrs.first;
        let fits = |wr: &RecvWr<'_>| wr.sges.len() <= self.max_sge as usize;
        let mut count = 0;
        for wr in wrs.iter().take_while(|wr| fits(wr)) {
            // SAFETY: `count` is less than the number of requests, which is at most the array's length.
            let out = unsafe { &mut *first.add(count) };
            out.wr_id = wr.wr_id;
            out.sg_list = wr.sges.as_ptr();
            out.num_sge = wr.sges.len() as i32;
            count += 1;
        }
        if count > 0 {
            let mut bad = null_mut();
            // SAFETY: as in `SendChain::ring`.
            let posted = unsafe {
                let last = first.add(count - 1);
                let next = (*last).next;
                (*last).next = null_mut();
                let posted = match &self.to {
                    Receives::Own(qp, post) => post(qp.as_ptr(), first, &mut bad),
                    Receives::Shared(srq, post) => post(srq.as_ptr(), first, &mut bad),
                };
                (*last).next = next;
                posted
            };
            if posted != 0 {
                return Err(translate::refusal(posted).at(self.wrs.index_of(bad, count)));
            }
        }
        if count < wrs.len() {
            return Err(PostErrorKind::TooManySges(self.max_sge).at(count));
        }
        Ok(())
    }
}
