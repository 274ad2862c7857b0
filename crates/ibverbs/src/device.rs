//! An opened device: the state that its objects share, and its protection domains.

mod port_changes;

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_verbs::versions::Versions;
use headworks_verbs::{
    Access, AddressHandle, AhInit, AhKey, AllocRequest, AsyncEvent, Buffer, Completion,
    CompletionChannel, CompletionQueue, CqInit, Device, DeviceInfo, Instant, Pages, PortFailure,
    ProtectionDomain, QpInit, QpType, Qpn, QueuePair, Region, ResourceError, SharedReceiveQueue,
    SrqInit, Status,
};

use crate::abi;
use crate::address_handle::AddressHandles;
use crate::attributes::Port;
use crate::buffer::Arena;
use crate::completion_channel::IbvChannel;
use crate::convert;
use crate::cq::IbvCq;
use crate::events::Events;
use crate::qp::IbvQp;
use crate::qp_state_cache::QpStateCache;
use crate::raw::{Object, Raw};
use crate::srq::IbvSrq;
use port_changes::PortFailures;

/// Converts the system's error on the creation of an object.
pub(crate) fn refused(what: &'static str, source: io::Error) -> ResourceError {
    refused_or(what, "", source)
}

/// As [`refused`]; for a lack of memory, the message also names the cause `or`.
pub(crate) fn refused_or(what: &'static str, or: &str, source: io::Error) -> ResourceError {
    if source.raw_os_error() == Some(libc::ENOMEM) {
        return ResourceError::NoSpace(format!(
            "{what}: the device or the system has no memory left, or this process may lock no more \
             (see `ulimit -l`){or}"
        ));
    }
    ResourceError::System { what, source }
}

/// CLOCK_MONOTONIC, which stamps completions if the device has no clock.
#[inline(never)]
pub(crate) fn clock() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The same clock at the kernel's last tick, in milliseconds. Reading it takes a few nanoseconds and no
/// system call.
#[inline]
pub(crate) fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of this process's objects of a kind.
#[derive(Default)]
pub(crate) struct Count(AtomicU32);

/// Numbers of a device's objects. Other processes have objects too, so the device may refuse earlier.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) qps: Arc<Count>,
    pub(crate) cqs: Arc<Count>,
    pub(crate) srqs: Arc<Count>,
    pub(crate) regions: Arc<Count>,
    pds: Arc<Count>,
    pub(crate) handles: Arc<Count>,
}

impl Count {
    /// Counts one more object, unless the limit is reached.
    pub(crate) fn take(
        self: &Arc<Self>,
        what: &'static str,
        limit: u32,
    ) -> Result<CountTicket, ResourceError> {
        let more = |now: u32| (now < limit).then_some(now + 1);
        match self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
        {
            Ok(_) => Ok(CountTicket(self.clone())),
            Err(_) => Err(ResourceError::Exhausted {
                what,
                limit: limit.into(),
            }),
        }
    }
}

/// Counts one object until it is dropped.
pub(crate) struct CountTicket(Arc<Count>);

impl Drop for CountTicket {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Limits and behaviour of a device that its public description does not include.
#[derive(Clone, Copy, Default)]
pub(crate) struct DeviceTraits {
    /// Bytes of the largest memory region; 0 if the device does not report it.
    pub(crate) region_bytes: u64,
    /// Largest number of protection domains; 0 if the device does not report it.
    pub(crate) pds: u32,
    /// Whether the port was up when the device was opened.
    pub(crate) is_active: bool,
    /// Whether memory can only be registered with relaxed ordering.
    pub(crate) registers_relaxed: bool,
    /// Whether huge pages can be registered.
    pub(crate) registers_huge_pages: bool,
    /// Whether a queue pair may report more than it has.
    pub(crate) inflates_sizes: bool,
    /// Whether the device reports each failure of a queue pair by an event or a completion.
    pub(crate) reports_failures: bool,
}

/// A queue pair that exists.
struct LiveQp {
    life: Weak<QpStateCache>,
    qp: Weak<Object<abi::Qp>>,
}

/// State shared by all objects of a device.
pub(crate) struct Context {
    info: Versions<DeviceInfo>,
    port: Versions<Port>,
    pub(crate) traits: DeviceTraits,
    /// Numbers completion queues with a channel, to spread them over the device's interrupts.
    next_vector: AtomicU32,
    /// Whether the device reported that the port's tables changed, and they were not read again yet.
    is_port_stale: AtomicBool,
    /// Failures of the port. The lock also lets one thread at a time read the tables again.
    port_failures: Mutex<PortFailures>,
    /// Frequency of the device's clock in kHz, if completions can be stamped with it.
    pub(crate) khz: Option<u64>,
    pub(crate) counts: Counts,
    pub(crate) handles: AddressHandles,
    arena: Arena,
    next_id: AtomicU32,
    cqs: Mutex<HashMap<u32, Weak<IbvCq>>>,
    lives: Mutex<HashMap<Qpn, LiveQp>>,
    events: Events,
    pub(crate) raw: Arc<Raw>,
}

impl Context {
    pub(crate) fn new(
        raw: Arc<Raw>,
        info: DeviceInfo,
        port: Port,
        traits: DeviceTraits,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            traits,
            info: Versions::new(info),
            port_failures: Mutex::new(PortFailures::of(port.number, traits.is_active)),
            port: Versions::new(port),
            next_vector: AtomicU32::new(0),
            is_port_stale: AtomicBool::new(false),
            khz: raw.clock_khz(),
            counts: Counts::default(),
            handles: AddressHandles::default(),
            arena: Arena::default(),
            next_id: AtomicU32::new(0),
            cqs: Mutex::default(),
            lives: Mutex::default(),
            events: Events::new(&raw)?,
            raw,
        }))
    }

    pub(crate) fn usable(&self) -> Result<(), ResourceError> {
        if self.raw.is_foreign() {
            Err(ResourceError::Forked)
        } else {
            Ok(())
        }
    }

    /// The description of the device as its port is now.
    #[inline]
    pub(crate) fn info(&self) -> &DeviceInfo {
        self.info.newest()
    }

    /// The port as it is now.
    #[inline]
    pub(crate) fn port(&self) -> &Port {
        self.port.newest()
    }

    /// The interrupt for the next completion queue with a channel.
    pub(crate) fn next_vector(&self) -> u32 {
        match self.port().options.comp_vector {
            Some(vector) => vector.into(),
            None => self.next_vector.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns a new number for a CQ or an SRQ.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes of the longest message of a queue pair of this type.
    pub(crate) fn max_message(&self, qp_type: QpType) -> u32 {
        match qp_type {
            QpType::Ud => self.info().mtu.bytes(),
            _ => self.info().limits.max_message,
        }
    }

    pub(crate) fn own_cq(
        &self,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Result<Arc<IbvCq>, ResourceError> {
        let known = locked(&self.cqs).get(&cq.id().0).and_then(Weak::upgrade);
        known
            .filter(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(cq)))
            .ok_or(ResourceError::Foreign("the completion queue"))
    }

    pub(crate) fn enter_qp(&self, qp: &Arc<Object<abi::Qp>>, life: &Arc<QpStateCache>) {
        let live = LiveQp {
            life: Arc::downgrade(life),
            qp: Arc::downgrade(qp),
        };
        locked(&self.lives).insert(qp.qpn(), live);
    }

    pub(crate) fn leave_qp(&self, qpn: Qpn, life: &Arc<QpStateCache>) {
        let mut lives = locked(&self.lives);
        // The number may have been given to another queue pair meanwhile.
        let is_ours = |known: &LiveQp| std::ptr::eq(known.life.as_ptr(), Arc::as_ptr(life));
        if lives.get(&qpn).is_some_and(is_ours) {
            lives.remove(&qpn);
        }
    }

    fn life(&self, qpn: Qpn) -> Option<Arc<QpStateCache>> {
        locked(&self.lives).get(&qpn)?.life.upgrade()
    }

    /// Records a failed request, which may have changed the state of its queue pair.
    #[cold]
    pub(crate) fn failed(&self, completion: &Completion) {
        let Completion {
            qpn,
            status,
            vendor_err,
            ..
        } = completion;
        // The end of a peer is reported elsewhere.
        let is_usual = matches!(*status, Status::Flushed | Status::RetryExceeded);
        if *vendor_err != 0 && !is_usual {
            tracing::warn!(
                "a request of queue pair {qpn} failed: {status}, vendor error {vendor_err:#x}"
            );
        } else {
            tracing::debug!(%qpn, %status, vendor_err, "a request failed");
        }
        if let Some(life) = self.life(completion.qpn) {
            life.request_failed(completion.status);
        }
    }

    /// Reads all pending asynchronous events and updates the cached states.
    pub(crate) fn pump(&self) {
        self.events.pump(&self.raw, |event| self.note(event));
        self.settle_port();
    }

    /// As [`Context::pump`], but at most once per millisecond, for callers that call often.
    #[inline]
    pub(crate) fn glance(&self, now_ms: u64) {
        if self.events.is_due(now_ms) {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        self.events.glance(&self.raw, |event| self.note(event));
    }

    /// Reports an event to the program that the device did not report.
    pub(crate) fn tell(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    /// Updates the cached states from an event. Returns whether to pass the event on to the program.
    fn note(&self, event: &AsyncEvent) -> bool {
        match *event {
            AsyncEvent::QpFatal(qpn) => self
                .life(qpn)
                .is_none_or(|life| life.record_device_failure()),
            AsyncEvent::CqError(id) => {
                let cq = locked(&self.cqs).get(&id.0).and_then(Weak::upgrade);
                if let Some(cq) = cq {
                    cq.overran.store(true, Ordering::Relaxed);
                }
                self.lose(|life| life.completes_on(id));
                true
            }
            AsyncEvent::DeviceFatal => {
                self.lose(|_| true);
                true
            }
            AsyncEvent::PortDown(number) | AsyncEvent::PortActive(number) => {
                if number == self.port().number {
                    let is_active = matches!(event, AsyncEvent::PortActive(_));
                    locked(&self.port_failures).is_active(is_active);
                }
                true
            }
            AsyncEvent::GidChanged(number)
            | AsyncEvent::PKeyChanged(number)
            | AsyncEvent::LidChanged(number)
            | AsyncEvent::SubnetManagerChanged(number) => {
                let is_ours = number == self.port().number;
                if is_ours {
                    self.is_port_stale.store(true, Ordering::Release);
                }
                is_ours
            }
            _ => true,
        }
    }

    /// Marks these queue pairs as in error, because their CQ or the device is broken.
    fn lose(&self, which: impl Fn(&QpStateCache) -> bool) {
        let lives = locked(&self.lives);
        let lost = lives.values().filter_map(|live| live.life.upgrade());
        lost.filter(|life| which(life))
            .for_each(|life| life.is_lost());
    }
}

/// An opened device, held by its users.
pub(crate) struct IbvDevice {
    pub(crate) context: Arc<Context>,
    next_pd: AtomicU32,
}

impl IbvDevice {
    pub(crate) fn over(context: Arc<Context>) -> Self {
        Self {
            context,
            next_pd: AtomicU32::new(0),
        }
    }
}

impl Device for IbvDevice {
    fn info(&self) -> &DeviceInfo {
        // The description includes all changes that the device has reported. A forked child does not read the parent's events.
        if !self.context.raw.is_foreign() {
            self.context.glance(coarse_ms());
            self.context.settle_port();
        }
        self.context.info()
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        let context = &self.context;
        context.usable()?;
        // The limit is checked before the device is asked, as for the other objects.
        let limit = match context.traits.pds {
            0 => u32::MAX,
            limit => limit,
        };
        let ticket = context.counts.pds.take("protection domains", limit)?;
        let made = context.raw.alloc_pd();
        let pd = Pd {
            object: made.map_err(|error| refused("making a protection domain", error))?,
            number: self.next_pd.fetch_add(1, Ordering::Relaxed),
            context: context.clone(),
            _ticket: ticket,
        };
        Ok(Arc::new(IbvPd(Arc::new(pd))))
    }

    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.context.usable()?;
        let context = &self.context;
        let node = context.info().numa_node;
        if request.pages == Pages::PreferHuge && !context.traits.registers_huge_pages {
            tracing::warn!(
                "ordinary pages are used: on this kernel libibverbs can register huge pages only if RDMAV_HUGEPAGES_SAFE=1 is set"
            );
            let request = AllocRequest {
                pages: Pages::Ordinary,
                ..request.clone()
            };
            return Ok(context.arena.alloc(&request, node)?);
        }
        Ok(context.arena.alloc(request, node)?)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        self.context.usable()?;
        Ok(Arc::new(IbvChannel::create(&self.context)?))
    }

    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        self.context.usable()?;
        let cq = Arc::new(IbvCq::create(&self.context, init)?);
        let mut cqs = locked(&self.context.cqs);
        cqs.retain(|_, known| known.strong_count() > 0);
        cqs.insert(cq.id().0, Arc::downgrade(&cq));
        Ok(cq)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.context.events.fd()
    }

    fn port_failure(&self) -> Option<PortFailure> {
        let context = &self.context;
        if context.raw.is_foreign() {
            return None;
        }
        context.pump();
        locked(&context.port_failures).latest()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        let context = &self.context;
        if context.raw.is_foreign() {
            return None;
        }
        let note = |event: &AsyncEvent| context.note(event);
        let event = context.events.next(&context.raw, note);
        context.settle_port();
        event
    }

    fn now(&self) -> Instant {
        let stamp = |khz| {
            let ticks = self.context.raw.ticks()?;
            Some(Instant::from_nanos(convert::nanos(ticks, khz)))
        };
        self.context.khz.and_then(stamp).unwrap_or_else(clock)
    }
}

/// A protection domain, held by the objects that are made in it.
pub(crate) struct Pd {
    pub(crate) object: Object<abi::Pd>,
    pub(crate) number: u32,
    pub(crate) context: Arc<Context>,
    _ticket: CountTicket,
}

/// A protection domain, held by its users.
struct IbvPd(Arc<Pd>);

/// A registered memory region. The fields are dropped in order, so it is deregistered first.
struct Registration {
    _mr: Object<abi::Mr>,
    _pd: Arc<Pd>,
    _ticket: CountTicket,
}

/// An address handle; leaves the table on drop, which destroys it.
struct IbvAh {
    key: AhKey,
    pd: Arc<Pd>,
    _ticket: CountTicket,
}

impl AddressHandle for IbvAh {
    fn key(&self) -> AhKey {
        self.key
    }
}

impl Drop for IbvAh {
    fn drop(&mut self) {
        let context = &self.pd.context;
        // In a forked child, a thread that does not exist there may hold the table's lock.
        if !context.raw.is_foreign() {
            context.handles.leave(self.key);
        }
    }
}

impl ProtectionDomain for IbvPd {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        let pd = &self.0;
        let context = &pd.context;
        context.usable()?;
        if !access.is_consistent() {
            return Err(ResourceError::Access);
        }
        let (asked, highest) = (buffer.len() as u64, context.traits.region_bytes);
        if highest != 0 && asked > highest {
            return Err(ResourceError::Limit {
                what: "bytes of a memory region",
                asked,
                lowest: 1,
                highest,
            });
        }
        let limit = context.info().limits.max_mr;
        let ticket = context.counts.regions.take("memory regions", limit)?;
        // Otherwise relaxed ordering is requested only from devices that have no other, because programs rely on the order of
        // WRITEs. A library that does not know it registers with the strict order, which is always legal.
        let rights = context.port().rights(access);
        let memory = (buffer.as_ptr(), buffer.len());
        let is_asked = access.contains(Access::RELAXED_ORDERING) && context.raw.knows_relaxed();
        let relaxed = context.traits.registers_relaxed || is_asked;
        let made = pd.object.register(memory, rights, relaxed);
        let mr = made.map_err(|error| refused("registering memory", error))?;
        let (lkey, rkey) = mr.keys();
        let registration = Box::new(Registration {
            _mr: mr,
            _pd: pd.clone(),
            _ticket: ticket,
        });
        Ok(Region::new(
            lkey,
            rkey,
            access,
            buffer.clone(),
            registration,
        ))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        self.0.context.usable()?;
        Ok(Arc::new(IbvSrq::create(&self.0, init)?))
    }

    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        let pd = &self.0;
        let context = &pd.context;
        context.usable()?;
        ResourceError::check("flow label", init.flow_label, 0..=(1 << 20) - 1)?;
        ResourceError::check("service level", init.service_level.into(), 0..=15)?;
        if context.port().lacks_lid(init.dlid) {
            return Err(ResourceError::NoLid);
        }
        let limit = context.info().limits.max_ah;
        // The limit is checked first, because not every device says that this is why it refuses.
        let ticket = context.counts.handles.take("address handles", limit)?;
        context.settle_port();
        let made = pd.object.create_ah(context.port().way(init));
        let ah = Arc::new(made.map_err(|error| refused("making an address handle", error))?);
        let key = context.handles.enter(pd.number, ah, limit)?;
        let made = IbvAh {
            key,
            pd: pd.clone(),
            _ticket: ticket,
        };
        Ok(Arc::new(made))
    }

    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        self.0.context.usable()?;
        Ok(Box::new(IbvQp::create(&self.0, init)?))
    }
}
