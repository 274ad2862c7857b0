//! An opened device: its objects, what they share, and its protection domains.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_verbs::{
    Access, AddressHandle, AhInit, AhKey, AllocRequest, AsyncEvent, Buffer, Completion,
    CompletionChannel, CompletionQueue, CqInit, Device, DeviceInfo, Instant, ProtectionDomain,
    QpInit, QpType, Qpn, QueuePair, Region, ResourceError, SharedReceiveQueue, SrqInit,
};

use crate::abi;
use crate::address_handle::AddressHandles;
use crate::attributes::Port;
use crate::completion_channel::IbvChannel;
use crate::convert;
use crate::cq::IbvCq;
use crate::events::Events;
use crate::memory::Arena;
use crate::qp::IbvQp;
use crate::qp_state_cache::QpStateCache;
use crate::raw::{Object, Raw};
use crate::srq::IbvSrq;

/// What the system said of something that was not made.
pub(crate) fn refused(what: &'static str, source: io::Error) -> ResourceError {
    refused_or(what, "", source)
}

/// The same, where too little memory may also mean what `or` says.
pub(crate) fn refused_or(what: &'static str, or: &str, source: io::Error) -> ResourceError {
    if source.raw_os_error() == Some(libc::ENOMEM) {
        return ResourceError::NoSpace(format!(
            "{what}: the device or the system has no memory left, or this process may lock no more \
             (see `ulimit -l`){or}"
        ));
    }
    ResourceError::System { what, source }
}

/// CLOCK_MONOTONIC: the clock of completions where the device has none.
#[inline(never)]
pub(crate) fn clock() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The same clock as of the kernel's last tick, in milliseconds: some nanoseconds to read, and no system
/// call.
#[inline]
pub(crate) fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many objects of a kind there are, of this process.
#[derive(Default)]
pub(crate) struct Count(AtomicU32);

/// The objects of a device, counted. Other processes have some too: the device may refuse earlier.
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
    /// Counts one more, if there may be one.
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

/// One object, counted until it is dropped.
pub(crate) struct CountTicket(Arc<Count>);

impl Drop for CountTicket {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a device has that its public limits do not name; 0 where it does not say.
#[derive(Clone, Copy, Default)]
pub(crate) struct ExtraLimits {
    /// Bytes of the largest region.
    pub(crate) region_bytes: u64,
    /// Protection domains.
    pub(crate) pds: u32,
}

/// What everything made from a device shares.
pub(crate) struct Context {
    pub(crate) info: DeviceInfo,
    pub(crate) port: Port,
    most: ExtraLimits,
    /// The frequency of the device's clock, where completions can be stamped with it.
    pub(crate) khz: Option<u64>,
    pub(crate) counts: Counts,
    pub(crate) handles: AddressHandles,
    arena: Arena,
    next_id: AtomicU32,
    cqs: Mutex<HashMap<u32, Weak<IbvCq>>>,
    lives: Mutex<HashMap<Qpn, Weak<QpStateCache>>>,
    events: Events,
    pub(crate) raw: Arc<Raw>,
}

impl Context {
    pub(crate) fn new(
        raw: Arc<Raw>,
        info: DeviceInfo,
        port: Port,
        most: ExtraLimits,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            most,
            info,
            port,
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

    /// A number for a CQ or an SRQ.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes of the longest message of a queue pair.
    pub(crate) fn max_message(&self, qp_type: QpType) -> u32 {
        match qp_type {
            QpType::Ud => self.info.mtu.bytes(),
            _ => self.info.limits.max_message,
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

    pub(crate) fn enter_qp(&self, qpn: Qpn, life: &Arc<QpStateCache>) {
        locked(&self.lives).insert(qpn, Arc::downgrade(life));
    }

    pub(crate) fn leave_qp(&self, qpn: Qpn, life: &Arc<QpStateCache>) {
        let mut lives = locked(&self.lives);
        // The number may have been given out again meanwhile.
        let is_ours = |known: &Weak<QpStateCache>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(life));
        if lives.get(&qpn).is_some_and(is_ours) {
            lives.remove(&qpn);
        }
    }

    fn life(&self, qpn: Qpn) -> Option<Arc<QpStateCache>> {
        locked(&self.lives).get(&qpn).and_then(Weak::upgrade)
    }

    /// A request failed: its queue pair may be in another state since.
    #[cold]
    pub(crate) fn failed(&self, completion: &Completion) {
        if let Some(life) = self.life(completion.qpn) {
            life.request_failed(completion.status);
        }
    }

    /// Takes the asynchronous events that are there, so that what they say is known.
    pub(crate) fn pump(&self) {
        self.events.pump(&self.raw, |event| self.note(event));
    }

    /// The same now and then: once per millisecond, for those who look often.
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

    /// Has the program hear of a failure that the device did not tell of.
    pub(crate) fn tell(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    /// Learns from an event. Whether it is news to the program.
    fn note(&self, event: &AsyncEvent) -> bool {
        match *event {
            AsyncEvent::QpFatal(qpn) => self.life(qpn).is_none_or(|life| life.device_told()),
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
            _ => true,
        }
    }

    /// Those queue pairs are in error, since what they stand on is gone.
    fn lose(&self, which: impl Fn(&QpStateCache) -> bool) {
        let lives = locked(&self.lives);
        let lost = lives.values().filter_map(Weak::upgrade);
        lost.filter(|life| which(life))
            .for_each(|life| life.is_lost());
    }
}

/// The device as its users hold it.
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
        &self.context.info
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        let context = &self.context;
        context.usable()?;
        // Before the device is asked, as of the others.
        let limit = match context.most.pds {
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
        let node = self.context.info.numa_node;
        Ok(self.context.arena.alloc(request, node)?)
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

    fn next_async_event(&self) -> Option<AsyncEvent> {
        let context = &self.context;
        if context.raw.is_foreign() {
            return None;
        }
        let note = |event: &AsyncEvent| context.note(event);
        context.events.next(&context.raw, note)
    }

    fn now(&self) -> Instant {
        let stamp = |khz| {
            let ticks = self.context.raw.ticks()?;
            Some(Instant::from_nanos(convert::nanos(ticks, khz)))
        };
        self.context.khz.and_then(stamp).unwrap_or_else(clock)
    }
}

/// A protection domain, as what is made in it holds it.
pub(crate) struct Pd {
    pub(crate) object: Object<abi::Pd>,
    pub(crate) number: u32,
    pub(crate) context: Arc<Context>,
    _ticket: CountTicket,
}

/// A protection domain as its users hold it.
struct IbvPd(Arc<Pd>);

/// A registered region: deregistered first, then the rest is let go of.
struct Registration {
    _mr: Object<abi::Mr>,
    _pd: Arc<Pd>,
    _ticket: CountTicket,
}

/// An address handle: leaves the table, which destroys it.
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
        // In a forked child the table may be locked by a thread that is not here.
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
        let (asked, highest) = (buffer.len() as u64, context.most.region_bytes);
        if highest != 0 && asked > highest {
            return Err(ResourceError::Limit {
                what: "bytes of a memory region",
                asked,
                lowest: 1,
                highest,
            });
        }
        let limit = context.info.limits.max_mr;
        let ticket = context.counts.regions.take("memory regions", limit)?;
        // Never with relaxed ordering: rings rely on the order of WRITEs.
        let rights = context.port.rights(access);
        let made = pd.object.register(buffer.as_ptr(), buffer.len(), rights);
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
        if context.port.lacks_lid(init.dlid) {
            return Err(ResourceError::NoLid);
        }
        let limit = context.info.limits.max_ah;
        // Before the device is asked: not all say that this is why they refuse.
        let ticket = context.counts.handles.take("address handles", limit)?;
        let made = pd.object.create_ah(context.port.way(init));
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
