//! Posting to the stub's device, which reads requests as a provider library reads them.

use std::ffi::c_int;

use headworks_verbs::Sge;

use super::{Seen, state};
use crate::abi::{self, opcode};

/// Copies a scatter/gather list.
///
/// # Safety
///
/// `list` has `count` entries.
unsafe fn entries(list: *const Sge, count: c_int) -> Vec<Sge> {
    let each = 0..count as usize;
    // SAFETY: as the caller guarantees.
    each.map(|at| unsafe { *list.add(at) }).collect()
}

/// Copies what a request says.
///
/// # Safety
///
/// `wr` is a valid request for libibverbs.
unsafe fn seen(wr: &abi::SendWr) -> Seen {
    // SAFETY: the request's list has this many entries.
    let sges = unsafe { entries(wr.sg_list, wr.num_sge) };
    let is_inline = wr.send_flags & abi::SEND_INLINE != 0;
    let mut inline = Vec::new();
    for sge in sges.iter().filter(|_| is_inline) {
        // SAFETY: these are the bytes of an inline payload, which outlive the call.
        let bytes = unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.len as usize) };
        inline.extend_from_slice(bytes);
    }
    let has_imm = [opcode::SEND_IMM, opcode::WRITE_IMM].contains(&wr.opcode);
    let is_atomic = [opcode::COMPARE_SWAP, opcode::FETCH_ADD].contains(&wr.opcode);
    let is_send = [opcode::SEND, opcode::SEND_IMM].contains(&wr.opcode);
    // SAFETY: all fields are numbers and pointers, for which any bytes are valid.
    let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    Seen {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        imm: if has_imm { wr.imm_data } else { 0 },
        remote: match (is_atomic, is_send) {
            (true, _) => (atomic.remote_addr, atomic.rkey),
            (_, true) => (0, 0),
            _ => (rdma.addr, rdma.rkey),
        },
        operands: match is_atomic {
            true => (atomic.compare_add, atomic.swap),
            false => (0, 0),
        },
        to: match is_send {
            true => (ud.ah as usize, ud.remote_qpn, ud.remote_qkey),
            false => (0, 0, 0),
        },
        sges: if is_inline { Vec::new() } else { sges },
        inline,
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    mut wr: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    // SAFETY: `create_qp` made the queue pair.
    let mut state = state(unsafe { (*qp).context });
    state.posts += 1;
    let mut chain = Vec::new();
    let mut count = 0;
    while !wr.is_null() {
        if let Some((at, errno)) = state.refuses
            && at == count
        {
            if !state.is_vague {
                // SAFETY: the caller's pointer is valid for the write.
                unsafe { *bad = wr };
            }
            state.chains.push(chain);
            return errno;
        }
        // SAFETY: the chain is valid for libibverbs.
        let (list, length) = unsafe { ((*wr).sg_list, (*wr).num_sge) };
        state.dangling += usize::from(length == 0 && !list.is_null());
        if !state.forgets {
            // SAFETY: as above.
            chain.push(unsafe { seen(&*wr) });
        }
        count += 1;
        // SAFETY: as above.
        wr = unsafe { (*wr).next };
    }
    if !state.forgets {
        state.chains.push(chain);
    }
    0
}

fn receive(
    context: *mut abi::Context,
    mut wr: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    let mut state = state(context);
    state.posts += 1;
    let mut chain = Vec::new();
    let mut count = 0;
    while !wr.is_null() {
        if let Some((at, errno)) = state.refuses
            && at == count
        {
            // SAFETY: the caller's pointer is valid for the write.
            unsafe { *bad = wr };
            state.receives.push(chain);
            return errno;
        }
        // SAFETY: the chain is valid for libibverbs.
        let (list, length) = unsafe { ((*wr).sg_list, (*wr).num_sge) };
        state.dangling += usize::from(length == 0 && !list.is_null());
        if !state.forgets {
            // SAFETY: as above; the list has this many entries.
            chain.push(unsafe { ((*wr).wr_id, entries(list, length)) });
        }
        count += 1;
        // SAFETY: as above.
        wr = unsafe { (*wr).next };
    }
    if !state.forgets {
        state.receives.push(chain);
    }
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    wr: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: `create_qp` made the queue pair.
    receive(unsafe { (*qp).context }, wr, bad)
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    wr: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: `create_srq` made the SRQ.
    receive(unsafe { (*srq).context }, wr, bad)
}
