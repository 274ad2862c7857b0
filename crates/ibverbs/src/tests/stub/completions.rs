//! Completion queues and channels of the stub, with plain and extended polling.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use super::{make, set_errno, state, unmake};
use crate::abi;

pub(super) extern "C" fn create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    let channel: *mut abi::CompChannel = make(context, "channel");
    if !channel.is_null() {
        let fd = state(context).fd.clone().unwrap();
        // SAFETY: the object was just made.
        unsafe { ((*channel).context, (*channel).fd) = (context, fd.as_raw_fd()) };
    }
    channel
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: `create_comp_channel` made the object.
    unmake(unsafe { (*channel).context }, "channel", channel)
}

fn new_cq(context: *mut abi::Context, depth: c_int, cq_context: *mut c_void) -> *mut abi::CqEx {
    let cq: *mut abi::CqEx = make(context, "cq");
    if !cq.is_null() {
        let cqs = &mut state(context).cqs;
        cqs.insert(cq_context as usize as u32, cq as usize);
        // SAFETY: the object was just made.
        let cq = unsafe { &mut (*cq).cq };
        (cq.context, cq.cq_context) = (context, cq_context);
        cq.cqe = (depth as u32).next_power_of_two() as c_int;
    }
    cq
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    depth: c_int,
    cq_context: *mut c_void,
    _: *mut abi::CompChannel,
    vector: c_int,
) -> *mut abi::Cq {
    state(context).vectors_used.push(vector);
    new_cq(context, depth, cq_context).cast()
}

pub(super) unsafe extern "C" fn modify_cq(cq: *mut abi::Cq, attr: *mut abi::ModifyCqAttr) -> c_int {
    // SAFETY: `create_cq` made the object; the caller's attributes are valid.
    let (context, attr) = unsafe { ((*cq).context, *attr) };
    assert_eq!(attr.attr_mask, abi::CQ_MODERATE);
    let mut state = state(context);
    if let Some(&errno) = state.fails.get("moderate") {
        return errno;
    }
    state
        .moderated
        .push((attr.moderate.cq_count, attr.moderate.cq_period));
    0
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut abi::Context,
    attr: *mut abi::CqInitAttrEx,
) -> *mut abi::CqEx {
    // SAFETY: the caller's attributes are valid.
    let attr = unsafe { &*attr };
    assert_eq!(attr.wc_flags & (1 << 7), 1 << 7);
    state(context).vectors_used.push(attr.comp_vector as c_int);
    let cq = new_cq(context, attr.cqe as c_int, attr.cq_context);
    // SAFETY: the object was just made.
    let ex = unsafe { &mut *cq };
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_wc_flags = Some(read_wc_flags);
    // A provider library has only the accessors that were asked for.
    let has_slid = attr.wc_flags & (1 << 4) != 0;
    ex.read_slid = has_slid.then_some(read_slid as unsafe extern "C" fn(_) -> _);
    ex.read_completion_ts = Some(read_completion_ts);
    cq
}

fn current(cq: *mut abi::CqEx) -> abi::Wc {
    // SAFETY: `create_cq_ex` made the CQ.
    state(unsafe { (*cq).cq.context }).current[&(cq as usize)]
}

pub(super) extern "C" fn read_opcode(cq: *mut abi::CqEx) -> c_int {
    let wc = current(cq);
    // For a failed request a provider library could not return an opcode.
    assert_eq!(wc.status, 0);
    wc.opcode
}

pub(super) extern "C" fn read_byte_len(cq: *mut abi::CqEx) -> u32 {
    current(cq).byte_len
}

pub(super) extern "C" fn read_imm_data(cq: *mut abi::CqEx) -> u32 {
    current(cq).imm_data
}

pub(super) extern "C" fn read_vendor_err(cq: *mut abi::CqEx) -> u32 {
    current(cq).vendor_err
}

pub(super) extern "C" fn read_qp_num(cq: *mut abi::CqEx) -> u32 {
    current(cq).qp_num
}

pub(super) extern "C" fn read_src_qp(cq: *mut abi::CqEx) -> u32 {
    current(cq).src_qp
}

pub(super) extern "C" fn read_slid(cq: *mut abi::CqEx) -> u32 {
    // On Ethernet the LID is not read.
    // SAFETY: `create_cq_ex` made the CQ.
    assert_eq!(state(unsafe { (*cq).cq.context }).link_layer, 1);
    current(cq).slid.into()
}

pub(super) extern "C" fn read_wc_flags(cq: *mut abi::CqEx) -> u32 {
    current(cq).wc_flags
}

pub(super) extern "C" fn read_completion_ts(cq: *mut abi::CqEx) -> u64 {
    // SAFETY: `create_cq_ex` made the CQ.
    let mut state = state(unsafe { (*cq).cq.context });
    state.clock.1 += 1;
    state.clock.1
}

pub(super) unsafe extern "C" fn start_poll(cq: *mut abi::CqEx, _: *mut abi::PollCqAttr) -> c_int {
    // SAFETY: `create_cq_ex` made the CQ.
    unsafe { next_poll(cq) }
}

pub(super) unsafe extern "C" fn next_poll(cq: *mut abi::CqEx) -> c_int {
    // SAFETY: `create_cq_ex` made the CQ.
    let mut state = state(unsafe { (*cq).cq.context });
    if state.polls_broken {
        return libc::EIO;
    }
    let waiting = state.completions.get_mut(&(cq as usize));
    let Some(wc) = waiting.and_then(VecDeque::pop_front) else {
        return libc::ENOENT;
    };
    state.current.insert(cq as usize, wc);
    // SAFETY: `create_cq_ex` made the CQ, and only the caller polls it.
    unsafe { ((*cq).wr_id, (*cq).status) = (wc.wr_id, wc.status) };
    0
}

pub(super) unsafe extern "C" fn end_poll(_: *mut abi::CqEx) {}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut abi::Cq) -> c_int {
    // SAFETY: `new_cq` made the CQ.
    unmake(unsafe { (*cq).context }, "cq", cq.cast::<abi::CqEx>())
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: `create_comp_channel` made the object.
    let mut state = state(unsafe { (*channel).context });
    let Some(event) = state.cq_events.pop_front() else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the caller's pointers are valid for the writes, and the CQ is alive.
    unsafe {
        *cq = event as *mut abi::Cq;
        *cq_context = (**cq).cq_context;
    }
    0
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut abi::Cq, count: u32) {
    // SAFETY: the CQ is alive.
    state(unsafe { (*cq).context }).acked += count as usize;
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, most: c_int, out: *mut abi::Wc) -> c_int {
    // SAFETY: `new_cq` made the CQ.
    let mut state = state(unsafe { (*cq).context });
    if state.polls_broken {
        return -1;
    }
    let Some(waiting) = state.completions.get_mut(&(cq as usize)) else {
        return 0;
    };
    let count = waiting.len().min(most as usize);
    for (at, wc) in waiting.drain(..count).enumerate() {
        // SAFETY: the caller has room for `most` completions.
        unsafe { out.add(at).write(wc) };
    }
    count as c_int
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    // SAFETY: `new_cq` made the CQ.
    state(unsafe { (*cq).context }).armed.push(solicited_only);
    0
}
