//! Objects behind the C structs that programs hold.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use headworks_verbs::{
    AddressHandle, AsyncEvent, Completion, CompletionChannel, CompletionQueue, Device,
    ProtectionDomain, QpType, Qpn, QueuePair, SharedReceiveQueue,
};
use headworks_verbs_abi as abi;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::attributes::KnownAttr;
use crate::builder::Builder;
use crate::devices::{PORT, PortTables, VerbsDevice};
use crate::errors::Errno;
use crate::manners::Manner;
use crate::numbered::Numbered;
use crate::registration::Registered;
use crate::system::ProgramFd;

/// Locks a mutex. What a panic left is used as it is: no lock here protects more than one value.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The C struct at the front of an object. The program may write its fields at any time.
#[repr(transparent)]
pub(crate) struct Front<C>(UnsafeCell<C>);

impl<C> Front<C> {
    pub(crate) fn new(fields: C) -> Self {
        Self(UnsafeCell::new(fields))
    }

    pub(crate) fn get(&self) -> *mut C {
        self.0.get()
    }
}

/// A C struct of which all fields are zero or null.
///
/// # Safety
///
/// All zeroes must be a value of the type.
pub(crate) unsafe fn zeroed<C>() -> C {
    // SAFETY: the caller says so.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// An object that a program holds by a pointer to its front.
///
/// # Safety
///
/// The type is `repr(C)`, and its first field is a `Front` of a struct that begins with `C`. It may be used from several threads, as far as
/// the interface lets a program do so.
pub(crate) unsafe trait Object: Sized {
    /// The struct that the program sees.
    type C;

    /// The object that the program knows as `pointer`, which is not null.
    ///
    /// # Safety
    ///
    /// The pointer is from [`expose`], and the program has not destroyed the object.
    unsafe fn behind(pointer: *mut Self::C) -> *mut Self {
        pointer.cast()
    }

    /// The pointer that the program gets.
    fn seen_as(object: *mut Self) -> *mut Self::C {
        object.cast()
    }
}

/// Hands an object to the program.
pub(crate) fn expose<T: Object>(object: Arc<T>) -> *mut T::C {
    T::seen_as(Arc::into_raw(object).cast_mut())
}

/// The object behind the program's pointer.
///
/// # Safety
///
/// As for [`borrow`].
unsafe fn behind<T: Object>(pointer: *mut T::C) -> Result<NonNull<T>, Errno> {
    if pointer.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller says so.
    NonNull::new(unsafe { T::behind(pointer) }).ok_or(Errno::INVALID)
}

/// The object behind the program's pointer.
///
/// # Errors
///
/// `EINVAL` for null.
///
/// # Safety
///
/// The pointer is null, or from [`expose`] and the program has not destroyed the object.
pub(crate) unsafe fn borrow<'a, T: Object>(pointer: *mut T::C) -> Result<&'a T, Errno> {
    // SAFETY: the pointer is that of an `Arc<T>`, which the program holds.
    unsafe { Ok(behind::<T>(pointer)?.as_ref()) }
}

/// As [`borrow`], for an object that is to outlive the program's use of it.
///
/// # Safety
///
/// As for [`borrow`].
pub(crate) unsafe fn hold<T: Object>(pointer: *mut T::C) -> Result<Arc<T>, Errno> {
    // SAFETY: the pointer is that of an `Arc<T>`, which the program holds.
    unsafe {
        let object = behind::<T>(pointer)?;
        Arc::increment_strong_count(object.as_ptr());
        Ok(Arc::from_raw(object.as_ptr()))
    }
}

/// Takes an object back that the program destroys.
///
/// # Errors
///
/// `EBUSY` if another object uses it. The program keeps it.
///
/// # Safety
///
/// As for [`borrow`]; after a success the pointer is not used again.
pub(crate) unsafe fn take_back<T: Object>(pointer: *mut T::C) -> Result<Arc<T>, Errno> {
    // SAFETY: the pointer is that of an `Arc<T>`, which the program holds.
    let object = unsafe { Arc::from_raw(behind::<T>(pointer)?.as_ptr()) };
    if Arc::strong_count(&object) > 1 {
        let _ = Arc::into_raw(object);
        return Err(Errno::BUSY);
    }
    Ok(object)
}

/// A device that programs see. It lives as long as the process.
#[repr(C)]
pub(crate) struct DeviceObject {
    pub(crate) front: Front<abi::Device>,
    /// Room for the fields that providers of libibverbs have behind the struct. Some libraries look there for their own devices, and find
    /// null.
    pub(crate) provider: [usize; 16],
    pub(crate) about: VerbsDevice,
}

/// Bit of [`ContextObject::port_faults`]: the port is down.
const DOWN: u32 = 1;
/// As above: the GIDs were replaced.
const NEW_GIDS: u32 = 2;
/// As above: the partition keys were replaced.
const NEW_PKEYS: u32 = 4;

/// An open device.
#[repr(C)]
pub(crate) struct ContextObject {
    pub(crate) front: Front<abi::VerbsContext>,
    pub(crate) about: &'static VerbsDevice,
    pub(crate) cqs: Mutex<Numbered<CqObject>>,
    pub(crate) qps: Mutex<Numbered<QpObject>>,
    pub(crate) srqs: Mutex<Numbered<SrqObject>>,
    pub(crate) events: ProgramFd,
    /// Events that this library makes, if the device's manners have it make some.
    pub(crate) told: Option<ToldEvents>,
    /// How many places the entries of the port's tables have moved.
    moves: AtomicU32,
    /// Faults of the port that were injected: [`DOWN`], [`NEW_GIDS`], [`NEW_PKEYS`].
    port_faults: AtomicU32,
    /// Queue pairs made so far.
    made: AtomicU32,
    /// Descriptor that programs find in the place of that of the kernel's device. Some programs duplicate it.
    _command_fd: OwnedFd,
    /// Numbers objects of all kinds, for their fields `handle`.
    handles: AtomicU32,
    pub(crate) device: Arc<dyn Device>,
}

impl ContextObject {
    pub(crate) fn new(
        fields: abi::VerbsContext,
        about: &'static VerbsDevice,
        device: Arc<dyn Device>,
        (events, told): (ProgramFd, Option<ToldEvents>),
        command_fd: OwnedFd,
    ) -> Arc<Self> {
        Arc::new(Self {
            front: Front::new(fields),
            about,
            cqs: Mutex::default(),
            qps: Mutex::default(),
            srqs: Mutex::default(),
            events,
            told,
            moves: AtomicU32::new(0),
            port_faults: AtomicU32::new(0),
            made: AtomicU32::new(0),
            _command_fd: command_fd,
            handles: AtomicU32::new(0),
            device,
        })
    }

    /// The pointer that the program holds, in the middle of the front.
    pub(crate) fn context(&self) -> *mut abi::Context {
        // SAFETY: the field lies within the struct; no reference is made.
        unsafe { &raw mut (*self.front.get()).context }
    }

    /// The front of the context that the program knows as `context`.
    fn front_of(context: *mut abi::Context) -> *mut abi::VerbsContext {
        if context.is_null() {
            return std::ptr::null_mut();
        }
        let before = std::mem::offset_of!(abi::VerbsContext, context);
        context.wrapping_byte_sub(before).cast()
    }

    /// As [`borrow`].
    ///
    /// # Safety
    ///
    /// As for [`borrow`].
    pub(crate) unsafe fn of<'a>(context: *mut abi::Context) -> Result<&'a Self, Errno> {
        // SAFETY: the caller says so.
        unsafe { borrow(Self::front_of(context)) }
    }

    /// As [`hold`].
    ///
    /// # Safety
    ///
    /// As for [`borrow`].
    pub(crate) unsafe fn hold(context: *mut abi::Context) -> Result<Arc<Self>, Errno> {
        // SAFETY: the caller says so.
        unsafe { hold(Self::front_of(context)) }
    }

    /// Takes the program's reference back. Objects of the context may go on to hold it.
    ///
    /// # Safety
    ///
    /// As for [`take_back`].
    pub(crate) unsafe fn close(context: *mut abi::Context) -> Result<(), Errno> {
        let object = Self::front_of(context).cast::<Self>();
        let object = NonNull::new(object).ok_or(Errno::INVALID)?;
        // SAFETY: the pointer is that of an `Arc`, which the program holds no longer.
        drop(unsafe { Arc::from_raw(object.as_ptr()) });
        Ok(())
    }

    /// Returns the changes of the port's tables.
    pub(crate) fn tables(&self) -> PortTables {
        self.look_for_port_events();
        let faults = self.port_faults.load(Ordering::Relaxed);
        PortTables {
            moves: self.moves.load(Ordering::Relaxed),
            has_new_gids: faults & NEW_GIDS != 0,
            has_new_pkeys: faults & NEW_PKEYS != 0,
        }
    }

    /// Whether the port is down.
    pub(crate) fn is_port_down(&self) -> bool {
        self.look_for_port_events();
        self.port_faults.load(Ordering::Relaxed) & DOWN != 0
    }

    /// Takes the software RNIC's events, and keeps them for the program.
    fn look_for_port_events(&self) {
        let Some(told) = &self.told else { return };
        while let Some(event) = self.device.next_async_event() {
            self.note_port(event);
            told.tell(event);
        }
    }

    /// Changes the port as an event of the software RNIC says, which only injected faults raise.
    pub(crate) fn note_port(&self, event: AsyncEvent) {
        let fault = match event {
            AsyncEvent::PortDown(_) => DOWN,
            AsyncEvent::GidChanged(_) => NEW_GIDS,
            AsyncEvent::PKeyChanged(_) => NEW_PKEYS,
            _ => return,
        };
        self.port_faults.fetch_or(fault, Ordering::Relaxed);
    }

    /// Counts a queue pair. If the tables move, they do after every third one.
    pub(crate) fn count_queue_pair(&self) {
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(told) = &self.told
            && self.about.manners.has(Manner::TablesMove)
            && made.is_multiple_of(3)
        {
            self.moves.fetch_add(1, Ordering::Relaxed);
            told.tell(AsyncEvent::GidChanged(PORT));
        }
    }

    pub(crate) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }
}

/// Asynchronous events of a device that this library makes beside those of the soft device.
pub(crate) struct ToldEvents {
    _device: OwnedFd,
    waiting: OwnedFd,
    events: Mutex<VecDeque<AsyncEvent>>,
}

impl ToldEvents {
    /// Makes a queue beside the events of `device`, and a descriptor that is readable while one of them has an event.
    pub(crate) fn beside(device: OwnedFd) -> Result<(Self, OwnedFd), Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waiting = eventfd(0, flags)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [&device, &waiting] {
            epoll::add(
                &both,
                fd,
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN,
            )?;
        }
        let told = Self {
            _device: device,
            waiting,
            events: Mutex::default(),
        };
        Ok((told, both))
    }

    fn tell(&self, event: AsyncEvent) {
        let mut events = locked(&self.events);
        // A program that reads none learns of the change from one as well as from many.
        if events.len() < 64 {
            events.push_back(event);
            // The counter does not overflow. Written under the lock, so that it tells whether there is an event.
            let _ = rustix::io::write(&self.waiting, &1u64.to_ne_bytes());
        }
    }

    /// The next event.
    pub(crate) fn next(&self) -> Option<AsyncEvent> {
        let mut events = locked(&self.events);
        let event = events.pop_front();
        if events.is_empty() {
            let _ = rustix::io::read(&self.waiting, &mut [0; 8]);
        }
        event
    }
}

/// Events that a program was handed and those that it has acknowledged. Destruction waits until all are.
#[derive(Default)]
pub(crate) struct EventCount {
    /// Events that are not yet acknowledged.
    open: AtomicU32,
}

/// Wakes who waits for any object's events: few do, and an object takes less memory without one of its own.
static ACKNOWLEDGED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

impl EventCount {
    pub(crate) fn hand_out(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        let fewer = |open: u32| Some(open.saturating_sub(count));
        let _ = self
            .open
            .fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
        // Who waits has either seen the number or sleeps.
        drop(locked(&ACKNOWLEDGED.0));
        ACKNOWLEDGED.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        if self.open.load(Ordering::Acquire) == 0 {
            return;
        }
        let (lock, acknowledged) = &ACKNOWLEDGED;
        let has_open = |_: &mut ()| self.open.load(Ordering::Acquire) > 0;
        let woken = acknowledged.wait_while(locked(lock), has_open);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A protection domain.
#[repr(C)]
pub(crate) struct PdObject {
    pub(crate) front: Front<abi::Pd>,
    pub(crate) domain: Arc<dyn ProtectionDomain>,
    /// The domain that a parent domain stands for.
    pub(crate) parent_of: Option<Arc<Self>>,
    pub(crate) context: Arc<ContextObject>,
}

/// A thread domain. The queue pairs of one have a lock all the same.
#[repr(C)]
pub(crate) struct TdObject {
    pub(crate) front: Front<abi::Td>,
    pub(crate) context: Arc<ContextObject>,
}

/// A memory region.
#[repr(C)]
pub(crate) struct MrObject {
    pub(crate) front: Front<abi::Mr>,
    /// `None` while it is registered anew.
    pub(crate) registered: Mutex<Option<Registered>>,
    pub(crate) pd: Mutex<Arc<PdObject>>,
}

/// An address handle.
#[repr(C)]
pub(crate) struct AhObject {
    pub(crate) front: Front<abi::Ah>,
    pub(crate) handle: Arc<dyn AddressHandle>,
    pub(crate) pd: Arc<PdObject>,
}

/// A completion channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    pub(crate) front: Front<abi::CompChannel>,
    pub(crate) channel: Arc<dyn CompletionChannel>,
    pub(crate) fd: ProgramFd,
    pub(crate) context: Arc<ContextObject>,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct CqObject {
    pub(crate) front: Front<abi::CqEx>,
    /// The completion that the accessors of the extended interface read. Only used between `start_poll` and `end_poll`.
    pub(crate) current: UnsafeCell<Completion>,
    /// Whether one thread at a time polls, so that polling through the extended interface locks nothing.
    pub(crate) is_single_threaded: bool,
    pub(crate) completion_events: EventCount,
    pub(crate) async_events: EventCount,
    pub(crate) queue: Arc<dyn CompletionQueue>,
    /// Number of entries that it has memory for.
    pub(crate) room: u32,
    pub(crate) channel: Option<Arc<ChannelObject>>,
    /// The parent domain that it was created in, if any.
    pub(crate) pd: Option<Arc<PdObject>>,
    pub(crate) context: Arc<ContextObject>,
}

impl QpObject {
    /// Discards the completions of this queue pair that are not polled yet, as drivers of RNICs do when a queue pair is reset or
    /// destroyed. Receives of a shared receive queue are still completed: their memory is the program's only by the completion.
    pub(crate) fn discard_completions(&self, qpn: Qpn) {
        let send_cq = &self.send_cq.queue;
        send_cq.discard(&|done| done.qpn == qpn && !done.opcode.is_recv());
        if self.srq.is_none() {
            let recv_cq = &self.recv_cq.queue;
            recv_cq.discard(&|done| done.qpn == qpn && done.opcode.is_recv());
        }
    }
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqObject {
    pub(crate) front: Front<abi::Srq>,
    /// Its attributes now.
    pub(crate) attr: Mutex<abi::SrqAttr>,
    pub(crate) events: EventCount,
    pub(crate) queue: Arc<dyn SharedReceiveQueue>,
    pub(crate) pd: Arc<PdObject>,
}

/// A queue pair.
#[repr(C)]
pub(crate) struct QpObject {
    /// What the program sees, unless it asked for the extended interface.
    front: Front<abi::Qp>,
    pub(crate) qp: Mutex<Box<dyn QueuePair>>,
    /// What the program sees if it asked for the extended interface. The larger struct takes more than all else here, and few
    /// programs ask for it.
    pub(crate) extended: Option<Box<ExtendedQp>>,
    pub(crate) events: EventCount,
    pub(crate) send_cq: Arc<CqObject>,
    pub(crate) recv_cq: Arc<CqObject>,
    pub(crate) srq: Option<Arc<SrqObject>>,
    pub(crate) pd: Arc<PdObject>,
}

/// The part of a queue pair that only the extended interface needs.
#[repr(C)]
pub(crate) struct ExtendedQp {
    pub(crate) front: Front<abi::QpEx>,
    /// Requests that the program builds. Only used between `wr_start` and `wr_complete` or `wr_abort`, under the front's mutex.
    pub(crate) builder: UnsafeCell<Builder>,
}

/// Parts of a new [`QpObject`].
pub(crate) struct QpObjectParts {
    pub(crate) qp: Box<dyn QueuePair>,
    pub(crate) qp_type: QpType,
    pub(crate) signal_all: bool,
    pub(crate) send_cq: Arc<CqObject>,
    pub(crate) recv_cq: Arc<CqObject>,
    pub(crate) srq: Option<Arc<SrqObject>>,
    pub(crate) pd: Arc<PdObject>,
}

impl QpObject {
    /// Makes one. The program sees `extended`, if there is one, or else `base`.
    pub(crate) fn new(
        base: abi::Qp,
        extended: Option<Box<ExtendedQp>>,
        parts: QpObjectParts,
    ) -> Arc<Self> {
        let object = Arc::new(Self {
            front: Front::new(base),
            qp: Mutex::new(parts.qp),
            extended,
            events: EventCount::default(),
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            pd: parts.pd,
        });
        let pointer = Arc::as_ptr(&object).cast_mut();
        // SAFETY: neither struct is the program's yet, and both have room.
        unsafe {
            Self::own_at(object.front.get()).write(QpOwn {
                attr: Mutex::default(),
                qp_type: parts.qp_type,
                signal_all: parts.signal_all,
                object: pointer,
            });
            (&raw mut (*Self::own_at(object.base())).object).write(pointer);
        }
        object
    }

    /// The struct that the program sees.
    pub(crate) fn base(&self) -> *mut abi::Qp {
        match &self.extended {
            Some(extended) => extended.front.get().cast(),
            None => self.front.get(),
        }
    }

    /// State in a struct that the program sees.
    fn own_at(base: *mut abi::Qp) -> *mut QpOwn {
        base.wrapping_byte_add(std::mem::offset_of!(abi::Qp, mutex))
            .cast()
    }

    pub(crate) fn own(&self) -> &QpOwn {
        // SAFETY: `new` has written it, and the program leaves it alone.
        unsafe { &*Self::own_at(self.front.get()) }
    }
}

/// State of a queue pair in the place of its struct's mutex and condition variable. Only providers of libibverbs use these two, and a
/// queue pair takes less memory. The larger struct of the extended interface has its mutex, and only the pointer.
#[repr(C)]
pub(crate) struct QpOwn {
    /// The attributes that were set.
    pub(crate) attr: Mutex<KnownAttr>,
    pub(crate) qp_type: QpType,
    pub(crate) signal_all: bool,
    object: *mut QpObject,
}

const _: () = {
    use std::mem::offset_of;
    let room = offset_of!(abi::Qp, events_completed) - offset_of!(abi::Qp, mutex);
    assert!(size_of::<QpOwn>() <= room && !std::mem::needs_drop::<QpOwn>());
    let in_cond = offset_of!(abi::Qp, cond) - offset_of!(abi::Qp, mutex);
    assert!(offset_of!(QpOwn, object) >= in_cond);
    assert!(align_of::<QpOwn>() <= align_of::<libc::pthread_mutex_t>());
};

// SAFETY: both structs that a program may see begin with `Qp`. Fields that calls change are behind locks, but for those that only the
// caller of a pair of functions uses meanwhile.
unsafe impl Object for QpObject {
    type C = abi::Qp;

    unsafe fn behind(pointer: *mut abi::Qp) -> *mut Self {
        // SAFETY: `new` has written the pointer into either struct.
        unsafe { (&raw const (*Self::own_at(pointer)).object).read() }
    }

    fn seen_as(object: *mut Self) -> *mut abi::Qp {
        // SAFETY: the caller holds the object.
        unsafe { (*object).base() }
    }
}

// SAFETY: as above: what several threads may change is behind locks.
unsafe impl Send for QpObject {}
// SAFETY: as above.
unsafe impl Sync for QpObject {}

impl Deref for PdObject {
    type Target = ContextObject;

    fn deref(&self) -> &ContextObject {
        &self.context
    }
}

macro_rules! objects {
    ($($object:ident is $c:ident;)*) => {
        $(
            // SAFETY: the struct above is `repr(C)`, and its first field is a front that is or begins with the C struct. Fields that
            // calls change are behind locks, but for those that only the caller of a pair of functions uses meanwhile.
            unsafe impl Object for $object {
                type C = abi::$c;
            }

            // SAFETY: as above: what several threads may change is behind locks.
            unsafe impl Send for $object {}
            // SAFETY: as above.
            unsafe impl Sync for $object {}
        )*
    };
}

objects! {
    DeviceObject is Device;
    ContextObject is VerbsContext;
    PdObject is Pd;
    TdObject is Td;
    MrObject is Mr;
    AhObject is Ah;
    ChannelObject is CompChannel;
    CqObject is Cq;
    SrqObject is Srq;
}

/// A count of C as a Rust number.
pub(crate) fn count(number: c_int) -> Result<u32, Errno> {
    u32::try_from(number).map_err(|_| Errno::INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_takes_little_memory_beside_the_device() {
        // Its place in the table of queue pairs comes on top.
        assert!(size_of::<QpObject>() <= 232, "{}", size_of::<QpObject>());
    }
}
