//! Objects of libibverbs, destroyed in the right order, and the calls on them that are off the hot path.
//!
//! An [`Object`] keeps its device open; its owner keeps the other objects that it was made from. So nothing
//! is destroyed before what was made from it. A forked child destroys nothing, because the objects are its
//! parent's. An object that the library refuses to destroy is logged and stays until the process ends.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{AsyncEvent, CqId, PKey, Qpn, SrqId};

use crate::abi::{self, event};
use crate::attributes;
use crate::gid::{Entry, GidType};
use crate::library::{self, Api};

mod calls;

/// An opened device of libibverbs.
pub(crate) struct Raw {
    pub(crate) api: Api,
    context: NonNull<abi::Context>,
    made_by: ForkGeneration,
}

// SAFETY: libibverbs may be called from several threads at once, and only libibverbs changes the context.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Converts a return code: 0 is success, -1 means that `errno` has the error, and any other code is an error
/// number or its negative.
pub(crate) fn check(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.wrapping_abs())),
    }
}

/// libibverbs' list of devices, freed on drop.
struct List {
    api: Api,
    first: NonNull<*mut abi::Device>,
    count: usize,
}

impl List {
    /// Returns `None` if the kernel has no support for RDMA: there are no devices then.
    fn new(api: &Api) -> io::Result<Option<Self>> {
        let mut count = 0;
        // SAFETY: `count` is valid for the write.
        let first = unsafe { (api.get_device_list)(&mut count) };
        let Some(first) = NonNull::new(first) else {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOENT) => Ok(None),
                _ => Err(error),
            };
        };
        Ok(Some(Self {
            api: *api,
            first,
            count: usize::try_from(count).unwrap_or(0),
        }))
    }

    fn devices(&self) -> &[*mut abi::Device] {
        // SAFETY: the library made a list of `count` entries, and it lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is from `get_device_list` and not used afterwards; opened devices stay valid.
        unsafe { (self.api.free_device_list)(self.first.as_ptr()) };
    }
}

pub(crate) fn name_of(device: *mut abi::Device) -> String {
    // SAFETY: the device is in a list that is not freed yet; its name ends with a NUL.
    let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

/// Names of all devices that libibverbs finds.
pub(crate) fn names(api: &Api) -> io::Result<Vec<String>> {
    let list = List::new(api)?;
    Ok(list.map_or_else(Vec::new, |list| {
        list.devices()
            .iter()
            .map(|&device| name_of(device))
            .collect()
    }))
}

impl Raw {
    /// Opens the device called `name`; returns `None` if there is none.
    pub(crate) fn open(api: &Api, name: &str) -> io::Result<Option<Arc<Self>>> {
        let made_by = ForkGeneration::current();
        let Some(list) = List::new(api)? else {
            return Ok(None);
        };
        let found = list
            .devices()
            .iter()
            .find(|&&device| name_of(device) == name);
        let Some(&device) = found else {
            return Ok(None);
        };
        // SAFETY: the device is in the list, which is not freed yet.
        let context = unsafe { (api.open_device)(device) };
        let context = NonNull::new(context).ok_or_else(io::Error::last_os_error)?;
        let raw = Self {
            api: *api,
            context,
            made_by,
        };
        // A blocking descriptor would make `next_event` wait for an event.
        make_nonblocking(raw.async_fd())?;
        Ok(Some(Arc::new(raw)))
    }

    /// Returns whether this process was forked from the one that opened the device.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Fork generation of the process that opened the device.
    pub(crate) fn made_by(&self) -> ForkGeneration {
        self.made_by
    }

    /// Whether huge pages can be registered.
    pub(crate) fn registers_huge_pages(&self) -> bool {
        let status = self.api.is_fork_initialized.map(|status| {
            // SAFETY: the library stays loaded, and its function of this name takes no argument.
            unsafe { status() }
        });
        let is_set = std::env::var_os("RDMAV_HUGEPAGES_SAFE").is_some();
        library::huge_pages_are_safe(status, is_set)
    }

    /// Whether the library can register memory with relaxed ordering.
    pub(crate) fn knows_relaxed(&self) -> bool {
        self.api.reg_mr_iova2.is_some()
    }

    /// Whether the library can ask a device for the order of data.
    pub(crate) fn answers_data_in_order(&self) -> bool {
        self.api.query_qp_data_in_order.is_some()
    }

    /// The device's transport type, as libibverbs numbers it.
    pub(crate) fn transport(&self) -> c_int {
        // SAFETY: the context is open and keeps its device.
        unsafe { (*(*self.context.as_ptr()).device).transport_type }
    }

    /// The device's own functions.
    pub(crate) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context is open as long as this value, and `ops` is not written after opening.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }

    /// Returns the structure around the context if it has the field at `offset`. That field and all after it
    /// may be read. An older library's structure lacks fields at the front.
    fn extended(&self, offset: usize) -> Option<*const abi::VerbsContext> {
        let context = self.context.as_ptr();
        // SAFETY: the field belongs to an open context.
        if unsafe { (*context).abi_compat } as usize != usize::MAX {
            return None;
        }
        let back = offset_of!(abi::VerbsContext, context);
        // SAFETY: the mark just checked says that the context is the last part of a larger structure, which
        // always has at least the field `sz`.
        let around = unsafe { context.byte_sub(back) }.cast::<abi::VerbsContext>();
        // SAFETY: as above; this reads a plain field.
        let sz = unsafe { (*around).sz };
        if sz < size_of::<abi::VerbsContext>() - offset {
            return None;
        }
        Some(around)
    }

    pub(crate) fn device_attr(&self) -> io::Result<abi::DeviceAttr> {
        // SAFETY: the structure has only numbers, for which zeros are valid.
        let mut attr: abi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `attr` has the right type.
        check(unsafe { (self.api.query_device)(self.context.as_ptr(), &mut attr) })?;
        Ok(attr)
    }

    pub(crate) fn port_attr(&self, port: u8) -> io::Result<abi::PortAttr> {
        // SAFETY: the structure has only numbers, for which zeros are valid.
        let mut attr: abi::PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; `attr` is four bytes longer than what the function writes.
        check(unsafe { (self.api.query_port)(self.context.as_ptr(), port, &mut attr) })?;
        Ok(attr)
    }

    /// The first `count` GIDs of a port; unused entries are zeros or left out.
    pub(crate) fn gids(&self, port: u8, count: usize) -> Vec<Entry> {
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        (0..count)
            .filter_map(|index| self.gid(port, index))
            .collect()
    }

    fn gid(&self, port: u8, index: u8) -> Option<Entry> {
        let context = self.context.as_ptr();
        let Some(query) = self.api.query_gid_ex else {
            let mut gid = [0; 2];
            // SAFETY: the context is open, and `gid` has room for 16 bytes.
            let asked = unsafe { (self.api.query_gid)(context, port, index.into(), &mut gid) };
            return check(asked).ok().map(|()| Entry {
                index,
                gid: attributes::gid(gid),
                gid_type: GidType::Unknown,
                has_interface: true,
            });
        };
        let mut entry = abi::GidEntry::default();
        let size = size_of::<abi::GidEntry>();
        // SAFETY: the context is open, and `entry` has the size that is passed.
        let asked = unsafe { query(context, port.into(), index.into(), &mut entry, 0, size) };
        check(asked).ok().map(|()| Entry {
            index,
            gid: attributes::gid(entry.gid),
            gid_type: GidType::from_code(entry.gid_type),
            has_interface: entry.ndev_ifindex != 0,
        })
    }

    /// The partition key of an entry of a port's table; `None` if the entry is unused.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> Option<PKey> {
        let query = self.api.query_pkey?;
        let mut pkey = 0;
        // SAFETY: the context is open, and `pkey` has the right type.
        let asked = unsafe { query(self.context.as_ptr(), port, index.into(), &mut pkey) };
        // The library returns network byte order.
        check(asked)
            .ok()
            .and_then(|()| PKey::new(u16::from_be(pkey)))
    }

    /// Number of interrupts that completion queues can be spread over.
    pub(crate) fn vectors(&self) -> u32 {
        // SAFETY: the field belongs to an open context, and is set once.
        let vectors = unsafe { (*self.context.as_ptr()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(0).max(1)
    }

    /// Frequency in kHz of the clock that stamps completions. `None` if the device has none, if the clock
    /// cannot be read here too, or if there are no extended CQs.
    pub(crate) fn clock_khz(&self) -> Option<u64> {
        let around = self.extended(offset_of!(abi::VerbsContext, query_device_ex))?;
        // SAFETY: `extended` checked that the field is there.
        let query = unsafe { (*around).query_device_ex }?;
        // SAFETY: the structure has only numbers, for which zeros are valid.
        let mut attr: abi::DeviceAttrEx = unsafe { std::mem::zeroed() };
        let size = size_of::<abi::DeviceAttrEx>();
        // SAFETY: the context is open, there is no input, and `attr` has the size that is passed.
        let asked = unsafe { query(self.context.as_ptr(), null(), &mut attr, size) };
        let stamps = asked == 0 && attr.completion_timestamp_mask != 0;
        let readable = stamps && attr.hca_core_clock != 0 && self.ticks().is_some();
        let makes = self.create_cq_ex().is_some();
        (readable && makes).then_some(attr.hca_core_clock)
    }

    /// The device's clock now, in ticks.
    pub(crate) fn ticks(&self) -> Option<u64> {
        let around = self.extended(offset_of!(abi::VerbsContext, query_rt_values))?;
        // SAFETY: `extended` checked that the field is there.
        let query = unsafe { (*around).query_rt_values }?;
        let raw_clock = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut values = abi::ValuesEx {
            comp_mask: abi::RAW_CLOCK,
            raw_clock,
        };
        // SAFETY: the context is open, and `values` has the right type.
        let asked = unsafe { query(self.context.as_ptr(), &mut values) };
        // Despite its name, this field holds ticks.
        let is_known = asked == 0 && values.comp_mask & abi::RAW_CLOCK != 0;
        is_known.then_some(values.raw_clock.tv_nsec as u64)
    }

    fn create_cq_ex(&self) -> Option<abi::CreateCqEx> {
        let around = self.extended(offset_of!(abi::VerbsContext, create_cq_ex))?;
        // SAFETY: `extended` checked that the field is there.
        unsafe { (*around).create_cq_ex }
    }

    /// The next asynchronous event, or libibverbs' number of one that `AsyncEvent` lacks. Never blocks.
    pub(crate) fn next_event(&self) -> Option<Result<AsyncEvent, i32>> {
        let mut said = abi::AsyncEvent {
            element: null_mut(),
            event_type: 0,
        };
        // SAFETY: the context is open, `said` has the right type, and the descriptor does not block.
        if unsafe { (self.api.get_async_event)(self.context.as_ptr(), &mut said) } != 0 {
            return None;
        }
        let element = said.element;
        // SAFETY: the element of such an event is a queue pair. A thread that destroys it now waits until the
        // event is acknowledged below.
        let qpn = || Qpn::new(unsafe { (*element.cast::<abi::Qp>()).qp_num }).unwrap_or_default();
        // SAFETY: as above, for a CQ; its context is the number it was created with.
        let cq = || CqId(unsafe { (*element.cast::<abi::Cq>()).cq_context } as usize as u32);
        // SAFETY: as above, for an SRQ.
        let srq = || SrqId(unsafe { (*element.cast::<abi::Srq>()).srq_context } as usize as u32);
        let port = element as usize as u8;
        let heard = match said.event_type {
            event::QP_FATAL | event::QP_REQ_ERR | event::QP_ACCESS_ERR => {
                Ok(AsyncEvent::QpFatal(qpn()))
            }
            event::QP_LAST_WQE_REACHED => Ok(AsyncEvent::QpLastWqe(qpn())),
            event::CQ_ERR => Ok(AsyncEvent::CqError(cq())),
            event::SRQ_LIMIT_REACHED => Ok(AsyncEvent::SrqLimit(srq())),
            event::SRQ_ERR => Ok(AsyncEvent::SrqError(srq())),
            event::DEVICE_FATAL => Ok(AsyncEvent::DeviceFatal),
            event::PORT_ACTIVE => Ok(AsyncEvent::PortActive(port)),
            event::PORT_ERR => Ok(AsyncEvent::PortDown(port)),
            event::GID_CHANGE => Ok(AsyncEvent::GidChanged(port)),
            event::PKEY_CHANGE => Ok(AsyncEvent::PKeyChanged(port)),
            event::LID_CHANGE => Ok(AsyncEvent::LidChanged(port)),
            event::SM_CHANGE | event::CLIENT_REREGISTER => {
                Ok(AsyncEvent::SubnetManagerChanged(port))
            }
            other => Err(other),
        };
        // SAFETY: the event was received above and is acknowledged once.
        unsafe { (self.api.ack_async_event)(&mut said) };
        Some(heard)
    }

    pub(crate) fn alloc_pd(self: &Arc<Self>) -> io::Result<Object<abi::Pd>> {
        // SAFETY: the context is open.
        let made = unsafe { (self.api.alloc_pd)(self.context.as_ptr()) };
        self.own(made, self.api.dealloc_pd, "protection domain")
    }

    pub(crate) fn create_channel(self: &Arc<Self>) -> io::Result<Object<abi::CompChannel>> {
        // SAFETY: the context is open.
        let made = unsafe { (self.api.create_comp_channel)(self.context.as_ptr()) };
        let destroy = self.api.destroy_comp_channel;
        let channel = self.own(made, destroy, "completion channel")?;
        make_nonblocking(channel.fd())?;
        Ok(channel)
    }

    /// Creates a CQ numbered `id`. Its events go through the channel, if one is given, by the interrupt
    /// with this number. With `stamps`, the CQ is extended and its completions have these fields.
    pub(crate) fn create_cq(
        self: &Arc<Self>,
        id: CqId,
        depth: u32,
        channel: Option<(&Object<abi::CompChannel>, u32)>,
        stamps: Option<u64>,
    ) -> io::Result<Object<abi::Cq>> {
        let context = self.context.as_ptr();
        let vector = channel.map_or(0, |(_, vector)| vector % self.vectors());
        let channel = channel.map(|(channel, _)| channel);
        let cq_context = id.0 as usize as *mut c_void;
        let channel = channel.map_or(null_mut(), Object::as_ptr);
        let made = if let Some(wc_flags) = stamps {
            let create = self.create_cq_ex().ok_or(io::ErrorKind::Unsupported)?;
            let mut attr = abi::CqInitAttrEx {
                cqe: depth,
                cq_context,
                channel,
                comp_vector: vector,
                wc_flags,
                comp_mask: 0,
                flags: 0,
                parent_domain: null_mut(),
            };
            // SAFETY: the context is open, the channel is one of its own or null, and `attr` has the right
            // type.
            unsafe { create(context, &mut attr) }.cast()
        } else {
            // SAFETY: the context is open, and the channel is one of its own or null.
            unsafe {
                (self.api.create_cq)(
                    context,
                    depth as c_int,
                    cq_context,
                    channel,
                    vector as c_int,
                )
            }
        };
        self.own(made, self.api.destroy_cq, "completion queue")
    }

    /// Has a CQ raise an event after `count` completions, or `micros` microseconds after the first.
    pub(crate) fn moderate(&self, cq: &Object<abi::Cq>, count: u16, micros: u16) -> io::Result<()> {
        let around = self.extended(offset_of!(abi::VerbsContext, modify_cq));
        // SAFETY: `extended` checked that the field is there.
        let modify = around.and_then(|around| unsafe { (*around).modify_cq });
        let modify = modify.ok_or(io::ErrorKind::Unsupported)?;
        let mut attr = abi::ModifyCqAttr {
            attr_mask: abi::CQ_MODERATE,
            moderate: abi::ModerateCq {
                cq_count: count,
                cq_period: micros,
            },
        };
        // SAFETY: the CQ is alive and of this device, and `attr` has the right type.
        check(unsafe { modify(cq.as_ptr(), &mut attr) })
    }

    fn own<T>(
        self: &Arc<Self>,
        made: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
        what: &'static str,
    ) -> io::Result<Object<T>> {
        Ok(Object {
            ptr: NonNull::new(made).ok_or_else(io::Error::last_os_error)?,
            destroy,
            what,
            raw: self.clone(),
        })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.is_foreign() {
            return;
        }
        // SAFETY: every object holds this value, so none is left.
        let closed = unsafe { (self.api.close_device)(self.context.as_ptr()) };
        lost("device", check(closed));
    }
}

/// Logs an object that could not be destroyed.
pub(crate) fn lost(what: &'static str, destroyed: io::Result<()>) {
    if let Err(error) = destroyed {
        tracing::error!(what, %error, "could not be destroyed: it stays until the process ends");
    }
}

pub(crate) fn make_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(
        fd,
        flags | rustix::fs::OFlags::NONBLOCK,
    )?)
}

/// An object of libibverbs, destroyed on drop. Its owner must keep the objects that it was made from.
pub(crate) struct Object<T> {
    ptr: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
    what: &'static str,
    raw: Arc<Raw>,
}

// SAFETY: libibverbs may be called from several threads at once.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Pointer to the object, valid as long as this value.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        if self.raw.is_foreign() {
            return;
        }
        // SAFETY: the library made the object; it is destroyed only here and not used afterwards.
        let destroyed = unsafe { (self.destroy)(self.ptr.as_ptr()) };
        lost(self.what, check(destroyed));
    }
}

/// Pointer to an object, and the reference that keeps it valid.
pub(crate) struct ObjectRef<T> {
    ptr: *mut T,
    _object: Arc<Object<T>>,
}

// SAFETY: as for the object itself.
unsafe impl<T> Send for ObjectRef<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ObjectRef<T> {}

impl<T> ObjectRef<T> {
    pub(crate) fn of(object: &Arc<Object<T>>) -> Self {
        Self {
            ptr: object.as_ptr(),
            _object: object.clone(),
        }
    }

    /// Pointer to the object, valid as long as this value.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.ptr
    }
}
