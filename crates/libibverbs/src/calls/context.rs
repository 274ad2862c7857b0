//! Opening a device, and its attributes.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use headworks_softnic::SoftProvider;
use headworks_verbs::{DeviceName, Provider};
use headworks_verbs_abi as abi;
use rustix::io::fcntl_dupfd_cloexec;

use super::{cq, cq_ex, pd, port, post, qp, srq};
use crate::devices::{COMP_VECTORS, describe, describe_extended};
use crate::errors::{Errno, complain, object, status};
use crate::faults;
use crate::manners::Manner;
use crate::objects::{ContextObject, DeviceObject, ToldEvents, borrow, expose, zeroed};
use crate::system::{
    ProgramFd, allow_copies_by_peers, at_exit, keep_large_blocks_apart, without_signals,
};

/// The value of `abi_compat` that tells programs to look for the larger struct around the context.
const HAS_EXTENSIONS: *mut c_void = usize::MAX as *mut c_void;

/// The functions that programs call through a context.
fn functions() -> abi::VerbsContext {
    // SAFETY: all fields are pointers and functions that may be null, and numbers.
    let mut verbs: abi::VerbsContext = unsafe { zeroed() };
    verbs.sz = size_of::<abi::VerbsContext>();
    verbs.query_port = Some(port::query_port_ex);
    verbs.query_device_ex = Some(query_device_ex);
    verbs.query_rt_values = Some(query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.alloc_td = Some(pd::alloc_td);
    verbs.dealloc_td = Some(pd::dealloc_td);
    verbs.alloc_parent_domain = Some(pd::alloc_parent_domain);
    let ops = &mut verbs.context.ops;
    ops._compat_query_device = Some(query_device);
    ops._compat_query_port = Some(port::query_port);
    ops.alloc_mw = Some(super::stubs::alloc_mw);
    ops.bind_mw = Some(super::stubs::bind_mw);
    ops.dealloc_mw = Some(super::stubs::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    verbs
}

pub(crate) unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    object(|| {
        // SAFETY: the program passes a device of the list, and these live as long as the process.
        let listed: &'static DeviceObject = unsafe { borrow(device)? };
        let about = &listed.about;
        let name: DeviceName = about.soft_name().parse().map_err(|_| Errno::INVALID)?;
        let mut provider = SoftProvider::new();
        let rules = faults::of_process().map_err(|line| {
            complain(line);
            Errno::INVALID
        })?;
        if let Some(rules) = rules {
            provider = provider.with_rules(rules.clone());
        } else if let Some(listed) = about.manners.faults() {
            let manners = faults::rules(Some(listed), None).map_err(|line| {
                complain(&line);
                Errno::INVALID
            })?;
            if let Some(rules) = manners {
                provider = provider.with_rules(rules);
            }
        }
        let opened = without_signals(|| provider.open(&name));
        let soft = opened.map_err(|error| {
            complain(&format!("{}: {error}", about.name));
            Errno::from(error)
        })?;
        if rules.is_some() {
            report_faults_at_exit();
        }
        allow_copies_by_peers();
        keep_large_blocks_apart();
        let events = ProgramFd::of(soft.async_fd())?;
        let mut verbs = functions();
        if about.manners.has(Manner::NoExtendedQueues) {
            verbs.create_cq_ex = None;
        }
        let context = &mut verbs.context;
        context.device = device;
        let command_fd = fcntl_dupfd_cloexec(&events.fd, 0)?;
        context.cmd_fd = command_fd.as_raw_fd();
        // Injected faults may have the port fail, which queries must show before the program reads the event.
        let has_faults = matches!(faults::of_process(), Ok(Some(_)));
        let (events, told) = match has_faults || about.manners.has(Manner::TablesMove) {
            true => {
                let (told, both) = ToldEvents::beside(events.fd)?;
                (ProgramFd::of_both(both), Some(told))
            }
            false => (events, None),
        };
        context.async_fd = events.fd.as_raw_fd();
        context.num_comp_vectors = COMP_VECTORS;
        context.abi_compat = HAS_EXTENSIONS;
        let object = ContextObject::new(verbs, about, soft, (events, told), command_fd);
        let context = object.context();
        expose(object);
        Ok(context)
    })
}

/// Has this process say at its end what faults it had, once.
fn report_faults_at_exit() {
    static OWNER: OnceLock<u32> = OnceLock::new();
    extern "C" fn report() {
        // A forked child has the parent's handlers too.
        if OWNER.get() == Some(&std::process::id())
            && let Ok(Some(rules)) = faults::of_process()
        {
            complain(&faults::summary(rules));
        }
    }
    OWNER.get_or_init(|| {
        at_exit(report);
        std::process::id()
    });
}

pub(crate) unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: the program closes a context that it opened.
    status(|| unsafe { ContextObject::close(context) })
}

/// The attributes of the device.
fn attributes(context: &ContextObject) -> abi::DeviceAttr {
    // SAFETY: the struct has numbers and characters only.
    let mut attr: abi::DeviceAttr = unsafe { zeroed() };
    describe(context.about, &context.device.info().limits, &mut attr);
    attr
}

pub(crate) unsafe extern "C" fn query_device(
    context: *mut abi::Context,
    attr: *mut abi::DeviceAttr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context, and room for the attributes.
        let (context, attr) = unsafe { (ContextObject::of(context)?, attr.as_mut()) };
        *attr.ok_or(Errno::INVALID)? = attributes(context);
        Ok(())
    })
}

unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    _input: *const c_void,
    attr: *mut abi::DeviceAttrEx,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::of(context)? };
        if attr.is_null() || size < size_of::<abi::DeviceAttr>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the struct has numbers and characters only.
        let mut extended: abi::DeviceAttrEx = unsafe { zeroed() };
        extended.orig_attr = attributes(context);
        describe_extended(&mut extended);
        // SAFETY: the program has room for `size` bytes. A longer struct of a newer header is zero where this one ends.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            let shared = size.min(size_of::<abi::DeviceAttrEx>());
            attr.cast::<u8>()
                .copy_from_nonoverlapping((&raw const extended).cast(), shared);
        }
        Ok(())
    })
}

unsafe extern "C" fn query_rt_values(
    context: *mut abi::Context,
    values: *mut abi::ValuesEx,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context, and room for the values.
        let (context, values) = unsafe { (ContextObject::of(context)?, values.as_mut()) };
        let values = values.ok_or(Errno::INVALID)?;
        let asked = values.comp_mask;
        values.comp_mask = asked & abi::RAW_CLOCK;
        if values.comp_mask != 0 {
            // The clock of completion timestamps, whose reading as a whole goes into the second field.
            values.raw_clock.tv_sec = 0;
            let now = context.device.now().nanos();
            values.raw_clock.tv_nsec = i64::try_from(now).unwrap_or(i64::MAX);
        }
        Ok(())
    })
}
