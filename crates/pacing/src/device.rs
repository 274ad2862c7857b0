//! A device that wraps another and paces its queue pairs.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::BiasedLock;
use headworks_shm::fork::ForkGeneration;
use headworks_verbs::versions::Versions;
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, Completion, CompletionChannel,
    CompletionQueue, CqId, CqInit, Device, DeviceInfo, Instant, ModifyError, PollError,
    PortFailure, PostError, PostErrorKind, ProtectionDomain, QpAttr, QpCaps, QpCounters, QpInit,
    QpState, QpType, Qpn, QueuePair, RecvWr, Region, ResourceError, SendWr, SharedReceiveQueue,
    SrqInit,
};

use crate::background::{BackgroundThread, BackgroundWork, CallCounter};
use crate::completion_channel::PacedChannel;
use crate::config::PacingConfig;
use crate::paced_sq::{Clock, Counts, PacedSq, PacedSqInit};
use crate::rate_feedback::RateFeedback;
use crate::shared_state::{BLOCK, BLOCKS, BYTES, ROWS, ShareError, SharedPacing, Status};

/// Parameters of a paced device.
#[derive(Clone)]
pub struct Pacing {
    /// State that all processes of the RNIC share.
    pub share: SharedPacing,
    /// The constants.
    pub config: Arc<PacingConfig>,
    /// The host's clock.
    pub clock: Clock,
    /// Whether the clock shows real time, so that a timer can wake a sleeper.
    pub is_real: bool,
    /// An object that is kept alive as long as the device.
    pub keeper: Option<Arc<dyn Send + Sync>>,
}

/// A device whose queue pairs are paced. It passes everything else through.
pub struct PacedDevice {
    inner: Arc<dyn Device>,
    /// The description, replaced whenever the port of the device below changes.
    info: Versions<DeviceInfo>,
    pacing: Pacing,
    queues: PacedCqs,
    /// Present where real time passes.
    attendant: Option<Arc<BackgroundThread>>,
    made_by: ForkGeneration,
}

/// The completion queues that the device created and that still exist.
#[derive(Clone, Default)]
struct PacedCqs(Arc<Mutex<Vec<Weak<PacedCq>>>>);

impl PacedCqs {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<PacedCq>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<dyn BackgroundWork>> {
        let queues = self.lock();
        let living = queues.iter().filter_map(Weak::upgrade);
        living.map(|queue| queue as _).collect()
    }

    /// Translates the id of the device's completion queue for requests into the one that the program knows.
    fn outer(&self, inner: CqId) -> CqId {
        let queues = self.lock();
        let mut living = queues.iter().filter_map(Weak::upgrade);
        let found = living.find(|queue| queue.completions.id() == inner);
        found.map_or(inner, |queue| queue.id())
    }

    fn find(&self, outer: &Arc<dyn CompletionQueue>) -> Result<Arc<PacedCq>, ResourceError> {
        let at = Arc::as_ptr(outer).cast::<()>();
        let queues = self.lock();
        let mut living = queues.iter().filter_map(Weak::upgrade);
        let found = living.find(|queue| Arc::as_ptr(queue).cast::<()>() == at);
        found.ok_or(ResourceError::Foreign("the CQ"))
    }
}

impl PacedDevice {
    /// Wraps `inner`, which `info` describes.
    pub fn new(inner: Arc<dyn Device>, mut info: DeviceInfo, pacing: Pacing) -> Self {
        let limits = &mut info.limits;
        // Each paced completion queue uses two of the device's.
        limits.max_cq = (limits.max_cq / 2).min(ROWS as u32);
        limits.max_qp = limits.max_qp.min((BLOCKS * BLOCK) as u32);
        if !info.promises.ordered_between_writes {
            // A longer WRITE is posted as several.
            let whole = &mut info.promises.in_order_within_write;
            *whole = (*whole).min(pacing.config.slice_bytes as u32);
        }
        let queues = PacedCqs::default();
        let attendant = pacing.is_real.then(|| {
            let queues = queues.clone();
            Arc::new(BackgroundThread::new(Box::new(move || queues.all())))
        });
        Self {
            inner,
            info: Versions::new(info),
            pacing,
            queues,
            attendant,
            made_by: ForkGeneration::current(),
        }
    }

    /// Current state of the pacing.
    pub fn status(&self) -> Status {
        let now = (self.pacing.clock)();
        self.pacing.share.status(&self.pacing.config, now)
    }

    /// Cuts the rate after a receiver's congestion signal. Returns whether it did.
    pub fn cut(&self) -> bool {
        if self.made_by.is_foreign() {
            return false;
        }
        let now = (self.pacing.clock)();
        self.pacing.share.cut(&self.pacing.config, now)
    }

    /// Statistics of all completion queues that still exist.
    pub fn counts(&self) -> Counts {
        if self.made_by.is_foreign() {
            return Counts::default();
        }
        let queues = self.queues.lock();
        let all = queues.iter().filter_map(Weak::upgrade);
        all.map(|queue| queue.side.lock().counts())
            .fold(Counts::default(), Counts::and)
    }

    fn paced_cq(&self, init: &CqInit) -> Result<Arc<PacedCq>, ResourceError> {
        let config = &self.pacing.config;
        let channel = match &init.channel {
            None => None,
            Some(channel) => {
                let own = channel.as_any().downcast_ref::<SharedChannel>();
                Some(own.ok_or(ResourceError::Foreign("the channel"))?.0.clone())
            }
        };
        let inner_channel = channel.as_ref().map(|channel| channel.inner.clone());
        let inner = self.inner.create_cq(&CqInit {
            channel: inner_channel.clone(),
            ..init.clone()
        })?;
        let stamped = config.timestamps;
        // Half of the depth is for the completions that destroyed queue pairs leave behind.
        let wanted = init.depth.max(64).min(config.max_in_flight as u32);
        let limit = self.info.newest().limits.max_cqe;
        let completions = self.inner.create_cq(&CqInit {
            depth: (2 * wanted).min(limit).max(1),
            channel: inner_channel,
            timestamps: stamped || init.timestamps,
        })?;
        let (clock, device) = (
            self.pacing.clock.clone(),
            stamped.then(|| self.inner.clone()),
        );
        let member = self.pacing.share.join(clock()).map_err(no_room)?;
        let side = PacedSq::new(PacedSqInit {
            completions: completions.clone(),
            config: config.clone(),
            max_message: self.info.newest().limits.max_message,
            feedback: RateFeedback::new(config.clone(), clock, device),
            member,
            stamps: init.timestamps,
        });
        if let Some(channel) = &channel {
            channel.name(completions.id(), inner.id());
        }
        Ok(Arc::new(PacedCq {
            inner,
            completions,
            side: BiasedLock::new(side),
            channel,
            receives: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            made_by: ForkGeneration::current(),
            calls: CallCounter::default(),
            attendant: self.attendant.clone(),
            _keeper: self.pacing.keeper.clone(),
        }))
    }
}

fn no_room(error: ShareError) -> ResourceError {
    match error {
        ShareError::Rows => ResourceError::Exhausted {
            what: "completion queues",
            limit: ROWS as u64,
        },
        ShareError::Blocks => ResourceError::Exhausted {
            what: "queue pairs",
            limit: (BLOCKS * BLOCK) as u64,
        },
        ShareError::Layout(_) => ResourceError::Exhausted {
            what: "bytes of shared pacing state",
            limit: BYTES as u64,
        },
    }
}

/// The program's handle of a completion channel.
struct SharedChannel(Arc<PacedChannel>);

impl CompletionChannel for SharedChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
    fn next_event(&self) -> Result<Option<CqId>, ResourceError> {
        self.0.next_event()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Device for PacedDevice {
    fn info(&self) -> &DeviceInfo {
        let (own, inner) = (self.info.newest(), self.inner.info());
        let of_port = |info: &DeviceInfo| (info.gid, info.lid, info.roce, info.pkey);
        if of_port(own) == of_port(inner) {
            return own;
        }
        self.info.replace(DeviceInfo {
            gid: inner.gid,
            lid: inner.lid,
            roce: inner.roce,
            pkey: inner.pkey,
            ..own.clone()
        });
        self.info.newest()
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(PacedPd {
            inner: self.inner.alloc_pd()?,
            queues: self.queues.clone(),
            device: self.inner.clone(),
            caps: Mutex::default(),
            made_by: self.made_by,
        }))
    }
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.inner.alloc(request)
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        let inner = self.inner.create_channel()?;
        let channel = PacedChannel::new(inner, self.pacing.is_real)?;
        Ok(Arc::new(SharedChannel(Arc::new(channel))))
    }
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        if self.made_by.is_foreign() {
            return Err(ResourceError::Forked);
        }
        let made = self.paced_cq(init)?;
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&made));
        Ok(made)
    }
    fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.async_fd()
    }
    fn port_failure(&self) -> Option<PortFailure> {
        self.inner.port_failure()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        let event = self.inner.next_async_event()?;
        Some(match event {
            // The program knows one of the two completion queues.
            AsyncEvent::CqError(id) => AsyncEvent::CqError(self.queues.outer(id)),
            other => other,
        })
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
}

struct PacedPd {
    inner: Arc<dyn ProtectionDomain>,
    queues: PacedCqs,
    /// The device below.
    device: Arc<dyn Device>,
    /// Capacities of the last queue pair. The next one mostly has the same and shares them.
    caps: Mutex<Option<Arc<QpCaps>>>,
    made_by: ForkGeneration,
}

impl ProtectionDomain for PacedPd {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        self.inner.register(buffer, access)
    }
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        self.inner.create_srq(init)
    }
    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        self.inner.create_ah(init)
    }
    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        if self.made_by.is_foreign() {
            return Err(ResourceError::Forked);
        }
        let (sends, receives) = (
            self.queues.find(&init.send_cq)?,
            self.queues.find(&init.recv_cq)?,
        );
        let inner = self.inner.create_qp(&QpInit {
            send_cq: sends.completions.clone(),
            recv_cq: receives.inner.clone(),
            signal_all: true,
            ..init.clone()
        })?;
        receives.receives.store(true, Ordering::Relaxed);
        let (qpn, caps) = (inner.qpn(), self.caps_like(inner.caps()));
        let is_datagram = init.qp_type == QpType::Ud;
        let added = sends.side.lock().add(inner, is_datagram, init.signal_all);
        let slot = added.map_err(no_room)?;
        Ok(Box::new(PacedQp {
            cq: sends,
            caps,
            slot,
            qpn,
            device: self.device.clone(),
        }))
    }
}

impl PacedPd {
    fn caps_like(&self, caps: &QpCaps) -> Arc<QpCaps> {
        let mut last = self.caps.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(same) if **same == *caps => same.clone(),
            _ => last.insert(Arc::new(*caps)).clone(),
        }
    }
}

/// A completion queue. Receives come from the device's own; completions of requests come through the
/// [`PacedSq`].
struct PacedCq {
    inner: Arc<dyn CompletionQueue>,
    completions: Arc<dyn CompletionQueue>,
    side: BiasedLock<PacedSq>,
    channel: Option<Arc<PacedChannel>>,
    /// Whether a queue pair completes its receives here.
    receives: AtomicBool,
    /// Whether the queue was armed and no poll has looked for both receives and completions since.
    armed: AtomicBool,
    made_by: ForkGeneration,
    calls: CallCounter,
    attendant: Option<Arc<BackgroundThread>>,
    _keeper: Option<Arc<dyn Send + Sync>>,
}

impl PacedCq {
    /// Records a call of the program and whether something waits after it.
    #[inline]
    fn left(&self, side: &PacedSq) {
        let waits = !side.is_plain() && side.waits();
        self.calls.left(waits, self.attendant.as_deref());
    }
}

impl BackgroundWork for PacedCq {
    fn calls(&self) -> &CallCounter {
        &self.calls
    }

    fn service(&self) -> Option<std::time::Duration> {
        if self.made_by.is_foreign() {
            return None;
        }
        let mut side = self.side.lock();
        let now = side.now();
        side.progress(now);
        self.calls.attended(side.waits());
        let due = side.due().map(|due| due.since(now).into());
        side.waits().then(|| due.unwrap_or_default())
    }
}

impl CompletionQueue for PacedCq {
    fn id(&self) -> CqId {
        self.inner.id()
    }
    fn depth(&self) -> u32 {
        self.inner.depth()
    }
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        if self.made_by.is_foreign() {
            return Err(PollError::Forked);
        }
        let mut side = self.side.lock();
        if !self.receives.load(Ordering::Relaxed) {
            let polled = side.poll(out);
            self.left(&side);
            return polled;
        }
        // Neither kind of completion starves the other, and neither is polled in vain while the other is
        // there.
        let both = self.armed.load(Ordering::Relaxed) || side.receives_next();
        let first = match both {
            true => self.inner.poll(out)?,
            false => 0,
        };
        let polled = side.poll(&mut out[first..]);
        self.left(&side);
        drop(side);
        let count = match polled {
            Ok(more) => first + more,
            // The next poll reports the error; this one has receives to return.
            Err(_) if first > 0 => first,
            Err(error) => return Err(error),
        };
        if both && self.armed.load(Ordering::Relaxed) {
            self.armed.store(false, Ordering::Relaxed);
        }
        match count {
            0 => self.inner.poll(out),
            _ => Ok(count),
        }
    }
    fn arm(&self, solicited_only: bool) {
        if self.made_by.is_foreign() {
            return;
        }
        self.inner.arm(solicited_only);
        self.armed.store(true, Ordering::Relaxed);
        // Completions that the program did not ask for release waiting requests, so they must wake it too.
        self.completions.arm(false);
        let timed = self.channel.as_ref().filter(|channel| channel.has_timer());
        let wait = self.side.lock().before_sleep(timed.is_some());
        if let (Some(channel), Some(wait)) = (timed, wait) {
            channel.wake_after(self.id(), wait);
        }
    }
}

impl Drop for PacedCq {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel
            && !self.made_by.is_foreign()
        {
            channel.forget(self.inner.id());
        }
    }
}

/// A paced queue pair.
pub struct PacedQp {
    cq: Arc<PacedCq>,
    caps: Arc<QpCaps>,
    slot: u32,
    qpn: Qpn,
    /// The device below.
    device: Arc<dyn Device>,
}

impl PacedQp {
    fn is_forked(&self) -> bool {
        self.cq.made_by.is_foreign()
    }
}

impl QueuePair for PacedQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }
    fn state(&self) -> QpState {
        if self.is_forked() {
            return QpState::Error;
        }
        let mut side = self.cq.side.lock();
        // A program that waits for the state to change may make no other call.
        if side.waits() {
            let now = side.now();
            side.progress(now);
            self.cq.left(&side);
        }
        side.pair(self.slot)
            .map_or(QpState::Error, |pair| pair.inner.state())
    }
    fn caps(&self) -> &QpCaps {
        &self.caps
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        if self.is_forked() {
            return Err(ModifyError::Forked);
        }
        let mut side = self.cq.side.lock();
        let Some(pair) = side.pair(self.slot) else {
            return Err(ModifyError::Forked);
        };
        pair.inner.modify(attr)?;
        let is_local = attr.dest_gid.map(|gid| gid == self.device.info().gid);
        side.modified(self.slot, attr.state, attr.max_rd_atomic, is_local);
        Ok(())
    }
    #[inline]
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.is_forked() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let mut side = self.cq.side.lock();
        let posted = side.post(self.slot, wrs);
        self.cq.left(&side);
        posted
    }
    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.is_forked() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let mut side = self.cq.side.lock();
        match side.pair(self.slot) {
            Some(pair) => pair.inner.post_recv(wrs),
            None => Err(PostErrorKind::Device.at(0)),
        }
    }
    fn counters(&self) -> Option<QpCounters> {
        if self.is_forked() {
            return None;
        }
        let mut side = self.cq.side.lock();
        side.pair(self.slot)?.inner.counters()
    }
}

impl Drop for PacedQp {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        let gone = self.cq.side.lock().remove(self.slot);
        drop(gone);
    }
}
