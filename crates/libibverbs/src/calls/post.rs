//! Posting of requests.
#![allow(unsafe_code)]

use std::ffi::c_int;

use headworks_verbs::{
    AhKey, Destination, Payload, PostError, Qpn, QueuePair, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge,
};
use headworks_verbs_abi::{self as abi, opcode};

use crate::builder::EMPTY_SEND;
use crate::errors::{Errno, complain};
use crate::manners::Manner;
use crate::objects::{AhObject, PdObject, QpObject, SrqObject, borrow, locked};

/// Requests that are handed to the device at a time.
const CHAIN: usize = 16;

/// The entries of a request.
///
/// # Safety
///
/// `list` has `count` entries.
unsafe fn entries<'a>(pd: &PdObject, list: *const Sge, count: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        // The first entry would be read and used, whatever is there.
        Ok(0) if !list.is_null() && pd.about.manners.has(Manner::ReadsEmptyLists) => {
            complain(
                "a request without entries has a list that is not NULL: devices of this driver read its first entry",
            );
            Err(Errno::INVALID)
        }
        Ok(0) => Ok(&[]),
        // SAFETY: the caller says so.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
        _ => Err(Errno::INVALID),
    }
}

/// The bytes of an inline request. Those of several entries are gathered in `gathered`.
///
/// # Safety
///
/// The entries are memory of the program, which it does not change meanwhile.
unsafe fn inline_bytes<'a>(sges: &[Sge], gathered: &'a mut Vec<u8>) -> &'a [u8] {
    let bytes = |sge: &Sge| match sge.len {
        0 => &[][..],
        // SAFETY: the caller says so.
        len => unsafe { std::slice::from_raw_parts(sge.addr as *const u8, len as usize) },
    };
    match sges {
        [sge] => bytes(sge),
        _ => {
            gathered.extend(sges.iter().flat_map(bytes));
            gathered
        }
    }
}

/// The operation of a request, on a queue pair for datagrams or another.
///
/// # Safety
///
/// The address handle of a datagram is one.
unsafe fn operation(
    wr: &abi::SendWr,
    (pd, is_datagrams): (&PdObject, bool),
) -> Result<SendOp, Errno> {
    let imm = u32::from_be(wr.imm_data);
    // SAFETY: each field of the union is numbers and pointers, of which any bits are a value.
    let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    if is_datagrams {
        // SAFETY: the caller says so.
        let to = unsafe { destination(ud.ah, ud.remote_qpn, ud.remote_qkey)? };
        return match wr.opcode {
            opcode::SEND => Ok(SendOp::SendTo(to)),
            opcode::SEND_IMM => Ok(SendOp::SendToImm(to, imm)),
            _ => Err(Errno::INVALID),
        };
    }
    let is_atomic = matches!(wr.opcode, opcode::COMPARE_SWAP | opcode::FETCH_ADD);
    if is_atomic && pd.about.manners.has(Manner::Atomics(abi::ATOMIC_NONE)) {
        return Err(Errno::INVALID);
    }
    let word = RemoteAddr {
        addr: atomic.remote_addr,
        rkey: atomic.rkey,
    };
    Ok(match wr.opcode {
        opcode::SEND => SendOp::Send,
        opcode::SEND_IMM => SendOp::SendImm(imm),
        opcode::WRITE => SendOp::Write(rdma),
        opcode::WRITE_IMM => SendOp::WriteImm(rdma, imm),
        opcode::READ => SendOp::Read(rdma),
        opcode::COMPARE_SWAP => SendOp::CompareSwap {
            remote: word,
            expect: atomic.compare_add,
            swap: atomic.swap,
        },
        opcode::FETCH_ADD => SendOp::FetchAdd {
            remote: word,
            add: atomic.compare_add,
        },
        _ => return Err(Errno::INVALID),
    })
}

/// The destination of a datagram.
///
/// # Safety
///
/// `ah` is an address handle, or null.
pub(super) unsafe fn destination(
    ah: *mut abi::Ah,
    qpn: u32,
    qkey: u32,
) -> Result<Destination, Errno> {
    // SAFETY: the caller says so.
    let ah: &AhObject = unsafe { borrow(ah)? };
    Ok(Destination {
        ah: AhKey(ah.handle.key().0),
        qpn: Qpn::new(qpn).ok_or(Errno::INVALID)?,
        qkey,
    })
}

/// The flags of a request; those that the device does not have are left out.
pub(super) fn flags(of: u32) -> SendFlags {
    SendFlags::from_bits_truncate(of as u8)
}

/// A send request, whose inline bytes are gathered in `gathered` if they are in several places.
///
/// # Safety
///
/// The pointers of the request lead to memory of the program.
unsafe fn send_wr<'a>(
    wr: &'a abi::SendWr,
    (pd, is_datagrams): (&PdObject, bool),
    gathered: &'a mut Vec<u8>,
) -> Result<SendWr<'a>, Errno> {
    // SAFETY: the caller says so.
    unsafe {
        let sges = entries(pd, wr.sg_list, wr.num_sge)?;
        let is_inline =
            wr.send_flags & abi::SEND_INLINE != 0 && !pd.about.manners.has(Manner::IgnoresInline);
        Ok(SendWr {
            wr_id: wr.wr_id,
            op: operation(wr, (pd, is_datagrams))?,
            payload: match is_inline {
                false => Payload::Gather(sges),
                true => Payload::Inline(inline_bytes(sges, gathered)),
            },
            flags: flags(wr.send_flags),
        })
    }
}

/// Posts a chain, and returns the error and the first request that was not posted.
///
/// # Safety
///
/// The chain and what it points to are memory of the program.
unsafe fn post_chain(
    qp: &mut dyn QueuePair,
    kind: (&PdObject, bool),
    mut next: *mut abi::SendWr,
) -> Result<(), (*mut abi::SendWr, Errno)> {
    // SAFETY: the caller says so.
    while let Some(first) = unsafe { next.as_ref() } {
        let mut gathered: [Vec<u8>; CHAIN] = Default::default();
        let mut places = gathered.iter_mut();
        let mut chain = [EMPTY_SEND; CHAIN];
        let mut starts = [next; CHAIN];
        let mut count = 0;
        let mut refused = None;
        let mut wr = Some(first);
        while let (Some(one), Some(place)) = (wr, places.next()) {
            starts[count] = std::ptr::from_ref(one).cast_mut();
            // SAFETY: the caller says so.
            match unsafe { send_wr(one, kind, place) } {
                Ok(one) => chain[count] = one,
                Err(error) => {
                    refused = Some((starts[count], error));
                    break;
                }
            }
            count += 1;
            next = one.next;
            // SAFETY: the caller says so.
            wr = unsafe { next.as_ref() };
        }
        qp.post_send(&chain[..count])
            .map_err(|PostError { index, kind }| (starts[index], kind.into()))?;
        if let Some(refused) = refused {
            return Err(refused);
        }
    }
    Ok(())
}

/// Reports the result of posting as the interface does.
///
/// # Safety
///
/// `bad` has room for a pointer, or is null.
unsafe fn posted<W>(done: Result<(), (*mut W, Errno)>, bad: *mut *mut W) -> c_int {
    match done {
        Ok(()) => 0,
        Err((at, Errno(number))) => {
            if !bad.is_null() {
                // SAFETY: the caller says so.
                unsafe { *bad = at };
            }
            number
        }
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    wr: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    // SAFETY: the program passes a queue pair and a chain of requests, and room for a pointer.
    unsafe {
        let Ok(object) = borrow::<QpObject>(qp) else {
            return libc::EINVAL;
        };
        let is_datagrams = object.own().qp_type == headworks_verbs::QpType::Ud;
        let kind = (&*object.pd, is_datagrams);
        let mut qp = locked(&object.qp);
        // Most programs post one request at a time.
        if let Some(one) = wr.as_ref()
            && one.next.is_null()
        {
            let mut gathered = Vec::new();
            let done = send_wr(one, kind, &mut gathered)
                .and_then(|one| qp.post_send(&[one]).map_err(|error| error.kind.into()));
            return posted(done.map_err(|error| (wr, error)), bad);
        }
        posted(post_chain(&mut **qp, kind, wr), bad)
    }
}

/// Posts a chain of receives through `post`.
///
/// # Safety
///
/// The chain and what it points to are memory of the program.
unsafe fn post_receives(
    pd: &PdObject,
    mut next: *mut abi::RecvWr,
    mut post: impl FnMut(&[RecvWr<'_>]) -> Result<(), PostError>,
) -> Result<(), (*mut abi::RecvWr, Errno)> {
    // SAFETY: the caller says so.
    while let Some(first) = unsafe { next.as_ref() } {
        let mut chain = [RecvWr {
            wr_id: 0,
            sges: &[],
        }; CHAIN];
        let mut starts = [next; CHAIN];
        let mut count = 0;
        let mut refused = None;
        let mut wr = Some(first);
        while let Some(one) = wr.filter(|_| count < CHAIN) {
            starts[count] = std::ptr::from_ref(one).cast_mut();
            // SAFETY: the caller says so.
            match unsafe { entries(pd, one.sg_list, one.num_sge) } {
                Ok(sges) => {
                    let wr_id = one.wr_id;
                    chain[count] = RecvWr { wr_id, sges };
                }
                Err(error) => {
                    refused = Some((starts[count], error));
                    break;
                }
            }
            count += 1;
            next = one.next;
            // SAFETY: the caller says so.
            wr = unsafe { next.as_ref() };
        }
        post(&chain[..count]).map_err(|PostError { index, kind }| (starts[index], kind.into()))?;
        if let Some(refused) = refused {
            return Err(refused);
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    wr: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: the program passes a queue pair and a chain of requests, and room for a pointer.
    unsafe {
        let Ok(object) = borrow::<QpObject>(qp) else {
            return libc::EINVAL;
        };
        let mut qp = locked(&object.qp);
        let post = |chain: &[RecvWr<'_>]| qp.post_recv(chain);
        posted(post_receives(&object.pd, wr, post), bad)
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    wr: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: the program passes a shared receive queue and a chain of requests, and room for a pointer.
    unsafe {
        let Ok(object) = borrow::<SrqObject>(srq) else {
            return libc::EINVAL;
        };
        posted(
            post_receives(&object.pd, wr, |chain| object.queue.post_recv(chain)),
            bad,
        )
    }
}
