//! The functions with which a program builds requests one call at a time.
//!
//! `wr_start` locks the front's mutex, and `wr_complete` or `wr_abort` unlocks it, so several threads may build on one queue pair.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use headworks_verbs::{SendOp, Sge};
use headworks_verbs_abi as abi;

use super::post::{destination, flags};
use crate::builder::{Builder, remote};
use crate::errors::{Errno, status};
use crate::objects::{QpObject, borrow, locked};

/// Puts the functions into the front of a new queue pair. Programs call them without looking whether they are there.
pub(super) fn set_functions(front: &mut abi::QpEx) {
    front.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    front.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    front.wr_bind_mw = Some(wr_bind_mw);
    front.wr_local_inv = Some(wr_local_inv);
    front.wr_rdma_read = Some(wr_rdma_read);
    front.wr_rdma_write = Some(wr_rdma_write);
    front.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    front.wr_send = Some(wr_send);
    front.wr_send_imm = Some(wr_send_imm);
    front.wr_send_inv = Some(wr_send_inv);
    front.wr_send_tso = Some(wr_send_tso);
    front.wr_set_ud_addr = Some(wr_set_ud_addr);
    front.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    front.wr_set_inline_data = Some(wr_set_inline_data);
    front.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    front.wr_set_sge = Some(wr_set_sge);
    front.wr_set_sge_list = Some(wr_set_sge_list);
    front.wr_start = Some(wr_start);
    front.wr_complete = Some(wr_complete);
    front.wr_abort = Some(wr_abort);
    front.wr_atomic_write = Some(wr_atomic_write);
}

/// The object behind a queue pair of the extended interface, and its builder.
///
/// # Safety
///
/// The program passes such a queue pair, between `wr_start` and the end.
unsafe fn parts<'a>(qp: *mut abi::QpEx) -> Option<(&'a QpObject, &'a mut Builder)> {
    // SAFETY: the caller says so. The mutex excludes other users of the builder.
    unsafe {
        let object: &QpObject = borrow(qp.cast()).ok()?;
        let builder = object.extended.as_ref()?.builder.get().as_mut()?;
        Some((object, builder))
    }
}

/// Does something to the builder.
///
/// # Safety
///
/// As for [`parts`].
unsafe fn with(qp: *mut abi::QpEx, act: impl FnOnce(&mut Builder)) {
    // SAFETY: the caller says so.
    if let Some((_, builder)) = unsafe { parts(qp) } {
        act(builder);
    }
}

/// Begins a request, with the number and flags that the program has put into the struct.
///
/// # Safety
///
/// As for [`parts`].
unsafe fn begin(qp: *mut abi::QpEx, op: SendOp) {
    // SAFETY: the caller says so.
    unsafe {
        let (wr_id, wr_flags) = ((*qp).wr_id, (*qp).wr_flags);
        with(qp, |builder| builder.begin(wr_id, flags(wr_flags), op));
    }
}

/// Refuses an operation that the device does not have.
///
/// # Safety
///
/// As for [`parts`].
unsafe fn refuse(qp: *mut abi::QpEx) {
    // SAFETY: the caller says so.
    unsafe { with(qp, |builder| builder.refuse(Errno::UNSUPPORTED)) }
}

macro_rules! functions {
    ($($(#[$about:meta])* fn $name:ident($qp:ident $(, $argument:ident: $kind:ty)*) $body:block)*) => {
        $(
            $(#[$about])*
            unsafe extern "C" fn $name($qp: *mut abi::QpEx $(, $argument: $kind)*) {
                // SAFETY: the program calls it between `wr_start` and the end, with memory of its own.
                unsafe { $body }
            }
        )*
    };
}

functions! {
    fn wr_atomic_cmp_swp(qp, rkey: u32, addr: u64, expect: u64, swap: u64) {
        begin(qp, SendOp::CompareSwap { remote: remote(rkey, addr), expect, swap });
    }

    fn wr_atomic_fetch_add(qp, rkey: u32, addr: u64, add: u64) {
        begin(qp, SendOp::FetchAdd { remote: remote(rkey, addr), add });
    }

    fn wr_bind_mw(qp, _mw: *mut abi::Mw, _rkey: u32, _info: *const abi::MwBindInfo) {
        refuse(qp);
    }

    fn wr_local_inv(qp, _rkey: u32) {
        refuse(qp);
    }

    fn wr_rdma_read(qp, rkey: u32, addr: u64) {
        begin(qp, SendOp::Read(remote(rkey, addr)));
    }

    fn wr_rdma_write(qp, rkey: u32, addr: u64) {
        begin(qp, SendOp::Write(remote(rkey, addr)));
    }

    fn wr_rdma_write_imm(qp, rkey: u32, addr: u64, imm: u32) {
        begin(qp, SendOp::WriteImm(remote(rkey, addr), u32::from_be(imm)));
    }

    fn wr_send(qp) {
        begin(qp, SendOp::Send);
    }

    fn wr_send_imm(qp, imm: u32) {
        begin(qp, SendOp::SendImm(u32::from_be(imm)));
    }

    fn wr_send_inv(qp, _rkey: u32) {
        refuse(qp);
    }

    fn wr_send_tso(qp, _header: *mut c_void, _len: u16, _mss: u16) {
        refuse(qp);
    }

    fn wr_set_ud_addr(qp, ah: *mut abi::Ah, qpn: u32, qkey: u32) {
        let to = destination(ah, qpn, qkey);
        with(qp, |builder| builder.send_to(to));
    }

    fn wr_set_xrc_srqn(qp, _number: u32) {
        refuse(qp);
    }

    fn wr_set_inline_data(qp, addr: *mut c_void, len: usize) {
        let piece = bytes(addr, len);
        with(qp, |builder| builder.set_inline(&[piece]));
    }

    fn wr_set_inline_data_list(qp, count: usize, list: *const abi::DataBuf) {
        let list = match count {
            0 => &[],
            _ => std::slice::from_raw_parts(list, count),
        };
        let pieces = list.iter().map(|piece| bytes(piece.addr, piece.length));
        let pieces: Vec<_> = pieces.collect();
        with(qp, |builder| builder.set_inline(&pieces));
    }

    fn wr_set_sge(qp, lkey: u32, addr: u64, len: u32) {
        with(qp, |builder| builder.set_entries(&[Sge { addr, len, lkey }]));
    }

    fn wr_set_sge_list(qp, count: usize, list: *const Sge) {
        let list = match count {
            0 => &[],
            _ => std::slice::from_raw_parts(list, count),
        };
        with(qp, |builder| builder.set_entries(list));
    }

    fn wr_atomic_write(qp, _rkey: u32, _addr: u64, _word: *const c_void) {
        refuse(qp);
    }

    fn wr_start(qp) {
        libc::pthread_mutex_lock(&raw mut (*qp).qp_base.mutex);
        with(qp, Builder::clear);
    }

    fn wr_abort(qp) {
        with(qp, Builder::clear);
        libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex);
    }
}

/// Bytes of the program.
///
/// # Safety
///
/// There are `len` of them, which the program does not change meanwhile.
unsafe fn bytes<'a>(addr: *mut c_void, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller says so.
        _ => unsafe { std::slice::from_raw_parts(addr.cast(), len) },
    }
}

unsafe extern "C" fn wr_complete(qp: *mut abi::QpEx) -> c_int {
    let done = status(|| {
        // SAFETY: the program calls it after `wr_start`.
        let (object, builder) = unsafe { parts(qp) }.ok_or(Errno::INVALID)?;
        builder.post(&mut **locked(&object.qp))
    });
    // SAFETY: this thread locked it in `wr_start`.
    unsafe { libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex) };
    done
}
