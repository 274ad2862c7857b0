//! Asynchronous events.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Weak;

use headworks_verbs::AsyncEvent;
use headworks_verbs_abi::{self as abi, event};

use crate::errors::{Errno, number};
use crate::objects::{ContextObject, CqObject, QpObject, SrqObject, ToldEvents, borrow, locked};

/// The program's event for one of the device; `None` if its object no longer exists. The event counts as handed out.
fn event_of(context: &ContextObject, said: AsyncEvent) -> Option<abi::AsyncEvent> {
    let qp = |qpn: u32| -> Option<*mut c_void> {
        let all = locked(&context.qps);
        let known = all.get(qpn).map(Weak::as_ptr)?;
        // SAFETY: a queue pair leaves the list, under its lock, before it is freed.
        let known: &QpObject = unsafe { &*known };
        known.events.hand_out();
        Some(known.base().cast())
    };
    let (element, event_type) = match said {
        AsyncEvent::QpFatal(qpn) => (qp(qpn.raw())?, event::QP_FATAL),
        AsyncEvent::QpLastWqe(qpn) => (qp(qpn.raw())?, event::QP_LAST_WQE_REACHED),
        AsyncEvent::CqError(id) => {
            let all = locked(&context.cqs);
            let known = all.get(id.0).map(Weak::as_ptr)?;
            // SAFETY: a queue leaves the list, under its lock, before it is freed.
            let known: &CqObject = unsafe { &*known };
            known.async_events.hand_out();
            (known.front.get().cast(), event::CQ_ERR)
        }
        AsyncEvent::SrqLimit(id) | AsyncEvent::SrqError(id) => {
            let all = locked(&context.srqs);
            let known = all.get(id.0).map(Weak::as_ptr)?;
            // SAFETY: a queue leaves the list, under its lock, before it is freed.
            let known: &SrqObject = unsafe { &*known };
            known.events.hand_out();
            let is_limit = matches!(said, AsyncEvent::SrqLimit(_));
            let event_type = match is_limit {
                true => event::SRQ_LIMIT_REACHED,
                false => event::SRQ_ERR,
            };
            if is_limit {
                locked(&known.attr).srq_limit = 0;
            }
            (known.front.get().cast(), event_type)
        }
        AsyncEvent::PortActive(port) => (port as usize as *mut c_void, event::PORT_ACTIVE),
        AsyncEvent::PortDown(port) => (port as usize as *mut c_void, event::PORT_ERR),
        AsyncEvent::GidChanged(port) => (port as usize as *mut c_void, event::GID_CHANGE),
        AsyncEvent::PKeyChanged(port) => (port as usize as *mut c_void, event::PKEY_CHANGE),
        AsyncEvent::DeviceFatal => (null_mut(), event::DEVICE_FATAL),
        _ => return None,
    };
    Some(abi::AsyncEvent {
        element,
        event_type,
    })
}

pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut abi::Context,
    to: *mut abi::AsyncEvent,
) -> c_int {
    number(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::of(context)? };
        if to.is_null() {
            return Err(Errno::INVALID);
        }
        loop {
            let next = || {
                let told = context.told.as_ref().and_then(ToldEvents::next);
                told.or_else(|| {
                    let said = context.device.next_async_event()?;
                    context.note_port(said);
                    Some(said)
                })
            };
            while let Some(said) = next() {
                if let Some(event) = event_of(context, said) {
                    // SAFETY: the program has room for the event.
                    unsafe { to.write(event) };
                    return Ok(0);
                }
            }
            context.events.wait()?;
        }
    })
}

pub(crate) unsafe extern "C" fn ack_async_event(said: *mut abi::AsyncEvent) {
    // SAFETY: the program passes an event that it was handed, and has not destroyed the object.
    unsafe {
        let Some(said) = said.as_ref() else {
            return;
        };
        let element = said.element;
        let counted = match said.event_type {
            event::QP_FATAL | event::QP_LAST_WQE_REACHED => {
                borrow::<QpObject>(element.cast()).map(|qp| &qp.events)
            }
            event::CQ_ERR => borrow::<CqObject>(element.cast()).map(|cq| &cq.async_events),
            event::SRQ_LIMIT_REACHED | event::SRQ_ERR => {
                borrow::<SrqObject>(element.cast()).map(|srq| &srq.events)
            }
            _ => return,
        };
        if let Ok(counted) = counted {
            counted.acknowledge(1);
        }
    }
}
