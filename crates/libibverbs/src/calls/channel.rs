//! Completion channels and their events.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

use headworks_verbs::CqId;
use headworks_verbs_abi as abi;

use crate::errors::{Errno, number, object, status};
use crate::objects::{
    ChannelObject, ContextObject, CqObject, Front, borrow, expose, locked, take_back,
};
use crate::system::ProgramFd;

pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut abi::Context,
) -> *mut abi::CompChannel {
    object(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::hold(context)? };
        let channel = context.device.create_channel()?;
        let fd = ProgramFd::of(channel.fd())?;
        Ok(expose(Arc::new(ChannelObject {
            front: Front::new(abi::CompChannel {
                context: context.context(),
                fd: fd.fd.as_raw_fd(),
                refcnt: 0,
            }),
            channel,
            fd,
            context,
        })))
    })
}

pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: the program passes a channel that it does not use again.
    status(|| unsafe { take_back::<ChannelObject>(channel) }.map(drop))
}

/// Counts an event of a completion queue that still exists, and returns the queue's pointer and the program's value for it.
fn event_of(context: &ContextObject, id: CqId) -> Option<(*mut abi::Cq, *mut c_void)> {
    // Under this lock, so that the queue is not destroyed before the event is counted.
    let cqs = locked(&context.cqs);
    let cq = cqs.get(id.0).map(Weak::as_ptr)?;
    // SAFETY: a queue leaves the list, under its lock, before it is freed.
    let cq: &CqObject = unsafe { &*cq };
    cq.completion_events.hand_out();
    let front = cq.front.get().cast::<abi::Cq>();
    // SAFETY: the field was set when the queue was made.
    Some((front, unsafe { (*front).cq_context }))
}

pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    number(|| {
        // SAFETY: the program passes a channel.
        let channel: &ChannelObject = unsafe { borrow(channel)? };
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVALID);
        }
        loop {
            while let Some(id) = channel.channel.next_event()? {
                if let Some(found) = event_of(&channel.context, id) {
                    // SAFETY: the program has room for both pointers.
                    unsafe { (*cq, *cq_context) = found };
                    return Ok(0);
                }
            }
            channel.fd.wait()?;
        }
    })
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut abi::Cq, count: c_uint) {
    // SAFETY: the program passes a completion queue.
    if let Ok(cq) = unsafe { borrow::<CqObject>(cq) } {
        cq.completion_events.acknowledge(count);
    }
}
