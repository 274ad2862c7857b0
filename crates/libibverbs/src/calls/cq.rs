//! Completion queues.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use headworks_verbs::{Completion, CompletionQueue, CqInit, Status};
use headworks_verbs_abi as abi;

use crate::completions::wc;
use crate::devices::COMP_VECTORS;
use crate::errors::{Errno, object, status};
use crate::objects::{
    ChannelObject, ContextObject, CqObject, EventCount, Front, PdObject, borrow, count, expose,
    hold, locked, take_back, zeroed,
};
use crate::peers::is_silent;

/// Completions that are taken from the device at a time.
const BATCH: usize = 16;

/// Entries that each completion queue has memory for at least. A program may enlarge a smaller one up to that.
const ENTRIES_MIN: u32 = 64;

/// The depth of a queue, as programs see it.
fn cqe_of(queue: &dyn CompletionQueue) -> c_int {
    c_int::try_from(queue.depth()).unwrap_or(c_int::MAX)
}

/// Parameters of a new completion queue.
pub(super) struct CqParameters {
    pub(super) cqe: u32,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut abi::CompChannel,
    pub(super) comp_vector: u32,
    pub(super) timestamps: bool,
    pub(super) is_single_threaded: bool,
    pub(super) pd: Option<Arc<PdObject>>,
}

/// Makes a completion queue whose front has no functions yet.
///
/// # Safety
///
/// The pointers are those of a program: the context is open, and the channel is one or null.
pub(super) unsafe fn cq_object(
    context: *mut abi::Context,
    parameters: CqParameters,
) -> Result<Arc<CqObject>, Errno> {
    // SAFETY: the caller says so.
    let context = unsafe { ContextObject::hold(context)? };
    if parameters.comp_vector >= COMP_VECTORS as u32 {
        return Err(Errno::INVALID);
    }
    let channel: Option<Arc<ChannelObject>> = match parameters.channel.is_null() {
        true => None,
        // SAFETY: the caller says so.
        false => Some(unsafe { hold(parameters.channel)? }),
    };
    let queue = context.device.create_cq(&CqInit {
        // A queue of no entries is an error of the program's.
        depth: match parameters.cqe {
            0 => 0,
            wanted => wanted.max(ENTRIES_MIN),
        },
        channel: channel.as_ref().map(|channel| channel.channel.clone()),
        timestamps: parameters.timestamps,
    })?;
    let room = queue.depth();
    queue.resize(parameters.cqe)?;
    // SAFETY: all fields are pointers and functions that may be null, numbers, and a mutex and a condition whose initial state is zero.
    let mut front: abi::CqEx = unsafe { zeroed() };
    front.cq.context = context.context();
    front.cq.channel = parameters.channel;
    front.cq.cq_context = parameters.cq_context;
    front.cq.handle = context.next_handle();
    front.cq.cqe = cqe_of(&*queue);
    let id = queue.id().0;
    let cq = Arc::new(CqObject {
        front: Front::new(front),
        current: UnsafeCell::default(),
        is_single_threaded: parameters.is_single_threaded,
        completion_events: EventCount::default(),
        async_events: EventCount::default(),
        queue,
        room,
        channel,
        pd: parameters.pd,
        context: context.clone(),
    });
    locked(&context.cqs).insert(id, Arc::downgrade(&cq));
    Ok(cq)
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
) -> *mut abi::Cq {
    object(|| {
        let parameters = CqParameters {
            cqe: count(cqe)?,
            cq_context,
            channel,
            comp_vector: count(comp_vector)?,
            timestamps: false,
            is_single_threaded: false,
            pd: None,
        };
        // SAFETY: the program passes an open context, and a channel or null.
        Ok(expose(unsafe { cq_object(context, parameters)? }))
    })
}

/// Changes the size of a completion queue, as far as the memory that it has allows.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes a completion queue.
        let cq: &CqObject = unsafe { borrow(cq)? };
        let wanted = count(cqe)?;
        let most = cq.context.device.info().limits.max_cqe;
        if wanted > cq.room && wanted <= most {
            return Err(Errno::UNSUPPORTED);
        }
        cq.queue.resize(wanted)?;
        // SAFETY: the struct is the program's, and only this call writes the field.
        unsafe { (*cq.front.get()).cq.cqe = cqe_of(&*cq.queue) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut abi::Cq) -> c_int {
    status(|| {
        // SAFETY: the program passes a completion queue that it does not use again.
        let cq = unsafe { take_back::<CqObject>(cq)? };
        locked(&cq.context.cqs).remove(cq.queue.id().0);
        cq.completion_events.wait();
        cq.async_events.wait();
        Ok(())
    })
}

/// Takes at most `wanted` completions, `BATCH` at a time.
///
/// # Safety
///
/// `to` has room for them.
unsafe fn take<const BATCH: usize>(cq: &CqObject, wanted: usize, to: *mut abi::Wc) -> c_int {
    let mut batch = [Completion::default(); BATCH];
    let mut taken = 0;
    while taken < wanted {
        let most = BATCH.min(wanted - taken);
        let got = match cq.queue.poll(&mut batch[..most]) {
            Ok(got) => got,
            Err(_) if taken > 0 => break,
            Err(_) => return -libc::EIO,
        };
        for completion in &mut batch[..got] {
            if completion.status != Status::Success {
                failed(cq, completion);
            }
            // SAFETY: the caller has room for them.
            unsafe { to.add(taken).write(wc(completion)) };
            taken += 1;
        }
        if got < most {
            break;
        }
    }
    taken as c_int
}

/// Adds to a failed completion what the device's driver would, and says if the peer is silent.
#[cold]
pub(super) fn failed(cq: &CqObject, completion: &mut Completion) {
    let about = cq.context.about;
    completion.vendor_err = about.manners.vendor_error();
    if completion.status == Status::RetryExceeded {
        is_silent(&about.name, completion.qpn.raw());
    }
}

pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut abi::Cq,
    wanted: c_int,
    to: *mut abi::Wc,
) -> c_int {
    // SAFETY: the program passes a completion queue, and room for as many completions as it asks for.
    unsafe {
        match (borrow::<CqObject>(cq), usize::try_from(wanted)) {
            (Err(_), _) => -libc::EINVAL,
            // Many programs ask for one at a time, and most of the time there is none.
            (Ok(cq), Ok(1)) => take::<1>(cq, 1, to),
            (Ok(cq), Ok(wanted)) => take::<BATCH>(cq, wanted, to),
            (Ok(_), Err(_)) => 0,
        }
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes a completion queue.
        let cq: &CqObject = unsafe { borrow(cq)? };
        cq.queue.arm(solicited_only != 0);
        Ok(())
    })
}
