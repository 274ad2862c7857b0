//! Extended completion queues: the program looks at one completion at a time, by accessors.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use headworks_verbs::{Completion, Status};
use headworks_verbs_abi as abi;
use rustix::time::{ClockId, clock_gettime};

use super::cq::{CqParameters, cq_object, failed};
use crate::completions;
use crate::errors::{Errno, object};
use crate::objects::{CqObject, PdObject, expose, hold};

/// Fields of a completion that a program may ask for.
const READABLE: u64 = abi::WC_EX_WITH
    | abi::WC_EX_WITH_SLID
    | abi::WC_EX_SL
    | abi::WC_EX_DLID_PATH_BITS
    | abi::WC_EX_WALLCLOCK;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut abi::Context,
    init: *mut abi::CqInitAttrEx,
) -> *mut abi::CqEx {
    object(|| {
        // SAFETY: the program passes an open context and attributes, with objects or null in them.
        unsafe {
            let init = init.as_ref().ok_or(Errno::INVALID)?;
            let has = |bit: u32| init.comp_mask & bit != 0;
            let flags = match has(abi::CQ_INIT_FLAGS) {
                true => init.flags,
                false => 0,
            };
            let is_unknown = init.comp_mask & !(abi::CQ_INIT_FLAGS | abi::CQ_INIT_PD) != 0
                || init.wc_flags & !READABLE != 0
                || flags & !abi::CQ_SINGLE_THREADED != 0;
            if is_unknown {
                return Err(Errno::UNSUPPORTED);
            }
            let pd = match has(abi::CQ_INIT_PD) {
                true => Some(hold::<PdObject>(init.parent_domain)?),
                false => None,
            };
            if pd.as_ref().is_some_and(|pd| pd.parent_of.is_none()) {
                return Err(Errno::INVALID);
            }
            let parameters = CqParameters {
                cqe: init.cqe,
                cq_context: init.cq_context,
                channel: init.channel,
                comp_vector: init.comp_vector,
                timestamps: init.wc_flags & (abi::WC_EX_TIMESTAMP | abi::WC_EX_WALLCLOCK) != 0,
                is_single_threaded: flags & abi::CQ_SINGLE_THREADED != 0,
                pd,
            };
            let cq = cq_object(context, parameters)?;
            set_functions(&mut *cq.front.get());
            Ok(expose(cq).cast())
        }
    })
}

fn set_functions(front: &mut abi::CqEx) {
    front.start_poll = Some(start_poll);
    front.next_poll = Some(next_poll);
    front.end_poll = Some(end_poll);
    front.read_opcode = Some(read_opcode);
    front.read_vendor_err = Some(read_vendor_err);
    front.read_byte_len = Some(read_byte_len);
    front.read_imm_data = Some(read_imm_data);
    front.read_qp_num = Some(read_qp_num);
    front.read_src_qp = Some(read_src_qp);
    front.read_wc_flags = Some(read_wc_flags);
    front.read_slid = Some(read_slid);
    front.read_sl = Some(read_sl);
    front.read_dlid_path_bits = Some(read_dlid_path_bits);
    front.read_completion_ts = Some(read_completion_ts);
    front.read_cvlan = Some(read_cvlan);
    front.read_flow_tag = Some(read_flow_tag);
    front.read_tm_info = Some(read_tm_info);
    front.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// The queue behind a program's pointer.
///
/// # Safety
///
/// The program passes an extended completion queue.
unsafe fn queue<'a>(cq: *mut abi::CqEx) -> &'a CqObject {
    // SAFETY: the caller says so.
    unsafe { &*cq.cast::<CqObject>() }
}

/// Takes the next completion. Returns 0, `ENOENT` if there is none, or another error number.
///
/// # Safety
///
/// As for [`queue`]; no other thread polls.
unsafe fn take(cq: *mut abi::CqEx) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        let object = queue(cq);
        let current = &mut *object.current.get();
        match object.queue.poll(std::slice::from_mut(current)) {
            Ok(0) => libc::ENOENT,
            Ok(_) => {
                (*cq).wr_id = current.wr_id;
                (*cq).status = current.status as c_int;
                if current.status != Status::Success {
                    failed(object, current);
                }
                0
            }
            Err(_) => libc::EIO,
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut abi::CqEx, attr: *mut abi::PollCqAttr) -> c_int {
    // SAFETY: the program passes an extended completion queue, and attributes.
    unsafe {
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        lock(cq);
        let got = take(cq);
        if got != 0 {
            // The program calls `end_poll` only after a success.
            end_poll(cq);
        }
        got
    }
}

unsafe extern "C" fn next_poll(cq: *mut abi::CqEx) -> c_int {
    // SAFETY: the program calls it after `start_poll`.
    unsafe { take(cq) }
}

unsafe fn lock(cq: *mut abi::CqEx) {
    // SAFETY: the mutex is that of the queue.
    unsafe {
        if !queue(cq).is_single_threaded {
            libc::pthread_mutex_lock(&raw mut (*cq).cq.mutex);
        }
    }
}

unsafe extern "C" fn end_poll(cq: *mut abi::CqEx) {
    // SAFETY: the mutex is that of the queue, which this thread locked in `start_poll`.
    unsafe {
        if !queue(cq).is_single_threaded {
            libc::pthread_mutex_unlock(&raw mut (*cq).cq.mutex);
        }
    }
}

/// The completion that accessors read.
///
/// # Safety
///
/// The program calls them between `start_poll` and `end_poll`.
unsafe fn current<'a>(cq: *mut abi::CqEx) -> &'a Completion {
    // SAFETY: the caller says so.
    unsafe { &*queue(cq).current.get() }
}

macro_rules! accessors {
    ($(fn $name:ident($completion:ident) -> $kind:ty { $value:expr })*) => {
        $(
            unsafe extern "C" fn $name(cq: *mut abi::CqEx) -> $kind {
                // SAFETY: the program calls it between `start_poll` and `end_poll`.
                let $completion = unsafe { current(cq) };
                $value
            }
        )*
    };
}

accessors! {
    fn read_opcode(completion) -> c_int { completions::opcode(completion.opcode) }
    fn read_vendor_err(completion) -> u32 { completion.vendor_err }
    fn read_byte_len(completion) -> u32 { completion.byte_len }
    fn read_imm_data(completion) -> u32 { completions::imm(completion) }
    fn read_qp_num(completion) -> u32 { completion.qpn.raw() }
    fn read_src_qp(completion) -> u32 { completion.src_qpn.raw() }
    fn read_wc_flags(completion) -> u32 { completions::flags(completion) }
    fn read_slid(_completion) -> u32 { 0 }
    fn read_sl(completion) -> u8 { completions::service_level(completion) }
    fn read_dlid_path_bits(_completion) -> u8 { 0 }
    fn read_completion_ts(completion) -> u64 { completion.timestamp.nanos() }
    fn read_cvlan(_completion) -> u16 { 0 }
    fn read_flow_tag(_completion) -> u32 { 0 }
}

unsafe extern "C" fn read_tm_info(_: *mut abi::CqEx, _: *mut c_void) {}

/// Returns the time of the completion on the system's clock, in nanoseconds.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut abi::CqEx) -> u64 {
    // SAFETY: the program calls it between `start_poll` and `end_poll`.
    let (completion, object) = unsafe { (current(cq), queue(cq)) };
    let ago = object.context.device.now().since(completion.timestamp);
    let wall = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(wall.tv_sec).unwrap_or(0);
    let now = seconds * 1_000_000_000 + u64::try_from(wall.tv_nsec).unwrap_or(0);
    now.saturating_sub(ago.nanos())
}
