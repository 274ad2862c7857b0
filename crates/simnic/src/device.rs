//! A device of a simulated host, and the objects made from it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_net::EventFd;
use headworks_verbs::{
    Access, AddressHandle, AhInit, AhKey, AllocRequest, AsyncEvent, Buffer, Completion,
    CompletionChannel, CompletionQueue, CqCounters, CqId, CqInit, Device, DeviceInfo, Instant,
    ModifyError, PollError, PostError, PostErrorKind, ProtectionDomain, QpAttr, QpCaps, QpCounters,
    QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, Region, ResourceError, SendOp, SendWr,
    SharedReceiveQueue, SrqId, SrqInit,
};

use crate::completion_channel::SimChannel;
use crate::hardware_units::Ps;
use crate::model::{Armed, Cq, Model, Qp, Srq};
use crate::preset::Preset;
use crate::registered_memory;
use crate::wqe::{ReceiveWqe, Wqe};

/// Bytes of a request without its data, and of one line of it.
const HEADER: u64 = 32;
const LINE: u64 = 64;

/// The model, shared by all devices of a network.
#[derive(Clone)]
pub(crate) struct SharedModel(Arc<Mutex<Model>>);

impl SharedModel {
    pub(crate) fn new(model: Model) -> Self {
        Self(Arc::new(Mutex::new(model)))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// One opening of a host's device.
pub(crate) struct SimDevice {
    pub(crate) model: SharedModel,
    pub(crate) host: u32,
    /// Number of this opening. Objects of other openings are refused.
    pub(crate) opened: u32,
    pub(crate) info: DeviceInfo,
    pub(crate) alarm: Arc<EventFd>,
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        let mut model = self.model.lock();
        let pd = model.next_pd;
        model.next_pd += 1;
        Ok(Arc::new(SimPd {
            model: self.model.clone(),
            host: self.host,
            opened: self.opened,
            pd,
            pages: Pages::of(&model.preset),
            info: self.info.clone(),
        }))
    }

    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        request.check()?;
        let memory = registered_memory::SimBuffer::new(request).ok_or_else(|| {
            let len = request.len;
            ResourceError::NoSpace(format!("no memory for a buffer of {len} bytes"))
        })?;
        Ok(Arc::new(memory))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        let counted = self.model.lock().channels.clone();
        let channel =
            SimChannel::new(self.opened, counted).map_err(|source| ResourceError::System {
                what: "a completion channel",
                source,
            })?;
        Ok(Arc::new(channel))
    }

    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        ResourceError::check("CQ depth", init.depth, 1..=self.info.limits.max_cqe)?;
        let channel = match &init.channel {
            None => None,
            // A channel of another provider or another opening is refused.
            Some(channel) => {
                let own = channel.as_any().downcast_ref::<SimChannel>();
                let own = own.filter(|channel| channel.is_of(self.opened));
                Some(
                    own.ok_or(ResourceError::Foreign("completion channel"))?
                        .clone(),
                )
            }
        };
        let mut model = self.model.lock();
        let limit = self.info.limits.max_cq;
        if model.hosts[self.host as usize].cqs >= limit {
            return Err(ResourceError::Exhausted {
                what: "completion queues",
                limit: limit.into(),
            });
        }
        model.hosts[self.host as usize].cqs += 1;
        let cq = Cq {
            host: self.host,
            life: model.life(),
            opened: self.opened,
            depth: init.depth,
            queue: std::collections::VecDeque::new(),
            overrun: false,
            timestamps: init.timestamps,
            channel,
            armed: Armed::No,
            handle: 0,
            polled: 0,
            events: 0,
        };
        let id = match model.cqs.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                model.cqs.push(None);
                model.cqs.len() - 1
            }
        };
        model.cqs[id] = Some(cq);
        let made = Arc::new(SimCq {
            model: self.model.clone(),
            id: id as u32,
            depth: init.depth,
        });
        if let Some(Some(cq)) = model.cqs.get_mut(id) {
            cq.handle = Arc::as_ptr(&made).addr();
        }
        Ok(made)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        let mut model = self.model.lock();
        model.catch_up();
        let host = &mut model.hosts[self.host as usize];
        let next = host.async_events.pop_front();
        if host.async_events.is_empty() {
            self.alarm.clear();
        }
        next
    }

    fn now(&self) -> Instant {
        let model = self.model.lock();
        model.hosts[self.host as usize].clock(model.time())
    }
}

/// log2 of the sizes of ordinary and of huge pages.
#[derive(Clone, Copy)]
struct Pages(u32, u32);

impl Pages {
    fn of(preset: &Preset) -> Self {
        let power = |kib: u64| (kib * 1024).ilog2();
        Self(power(preset.page_kib), power(preset.huge_page_kib))
    }

    fn of_buffer(self, buffer: &dyn Buffer) -> u32 {
        match buffer.pages() {
            headworks_verbs::Pages::PreferHuge => self.1,
            headworks_verbs::Pages::Ordinary | headworks_verbs::Pages::OnDemand => self.0,
        }
    }
}

struct SimPd {
    model: SharedModel,
    host: u32,
    opened: u32,
    pd: u32,
    pages: Pages,
    info: DeviceInfo,
}

/// Deregisters a region when it is dropped.
struct Registration(SharedModel, u32);

impl Drop for Registration {
    fn drop(&mut self) {
        // The buffer is dropped after the lock is released: this may be its last reference.
        let _removed = self.0.lock().deregister(self.1);
    }
}

impl ProtectionDomain for SimPd {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        if !access.is_consistent() {
            return Err(ResourceError::Access);
        }
        let mut model = self.model.lock();
        let key = model.regions.add(
            buffer.clone(),
            self.pd,
            self.host,
            access,
            self.pages.of_buffer(&**buffer),
        );
        let key = key.ok_or_else(|| ResourceError::Exhausted {
            what: "regions",
            limit: self.info.limits.max_mr.into(),
        })?;
        let registration = Box::new(Registration(self.model.clone(), key));
        Ok(Region::new(key, key, access, buffer.clone(), registration))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        let limits = &self.info.limits;
        ResourceError::check("SRQ receives", init.max_wr, 1..=limits.max_srq_wr)?;
        ResourceError::check("SRQ scatter entries", init.max_sge, 0..=limits.max_sge)?;
        ResourceError::check("SRQ limit", init.limit, 0..=init.max_wr)?;
        let mut model = self.model.lock();
        let srq = Srq {
            host: self.host,
            opened: self.opened,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            pd: self.pd,
            queue: std::collections::VecDeque::new(),
            limit: init.limit,
        };
        let id = match model.srqs.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                model.srqs.push(None);
                model.srqs.len() - 1
            }
        };
        model.srqs[id] = Some(srq);
        Ok(Arc::new(SimSrq {
            model: self.model.clone(),
            id: id as u32,
            max_wr: init.max_wr,
        }))
    }

    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        ResourceError::check("flow label", init.flow_label, 0..=(1 << 20) - 1)?;
        ResourceError::check("service level", init.service_level.into(), 0..=15)?;
        let mut model = self.model.lock();
        let limit = self.info.limits.max_ah;
        if model.handles.len() >= limit as usize {
            return Err(ResourceError::Exhausted {
                what: "address handles",
                limit: limit.into(),
            });
        }
        let key = model.handles.enter(self.pd, init);
        Ok(Arc::new(SimAh(self.model.clone(), key)))
    }

    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        let limits = &self.info.limits;
        let caps = init.caps;
        ResourceError::check("send requests", caps.max_send_wr, 1..=limits.max_qp_wr)?;
        ResourceError::check("receives", caps.max_recv_wr, 0..=limits.max_qp_wr)?;
        ResourceError::check("send gather entries", caps.max_send_sge, 0..=limits.max_sge)?;
        ResourceError::check(
            "receive scatter entries",
            caps.max_recv_sge,
            0..=limits.max_sge,
        )?;
        ResourceError::check("inline bytes", caps.max_inline, 0..=limits.max_inline)?;
        let (send_cq, recv_cq) = (self.cq(&init.send_cq)?, self.cq(&init.recv_cq)?);
        let mut model = self.model.lock();
        let srq = match &init.srq {
            None => None,
            Some(srq) => {
                let own = srq.as_any().downcast_ref::<SimSrq>();
                let own = own.filter(|srq| srq.model.is(&self.model));
                let id = own.ok_or(ResourceError::Foreign("SRQ"))?.id;
                let found = model.srqs[id as usize].as_ref();
                if !found.is_some_and(|srq| srq.opened == self.opened && srq.pd == self.pd) {
                    return Err(ResourceError::Foreign("SRQ"));
                }
                Some(id)
            }
        };
        let (host, pd) = (self.host, self.pd);
        let kind = (init.qp_type, init.signal_all);
        let full = || ResourceError::Exhausted {
            what: "queue pairs",
            limit: limits.max_qp.into(),
        };
        if model.hosts[host as usize].qps >= limits.max_qp {
            return Err(full());
        }
        let made = model.enter(|reference, qpn| {
            Box::new(Qp::new(
                reference,
                qpn,
                (host, pd),
                caps,
                kind,
                (send_cq, recv_cq, srq),
            ))
        });
        let index = made.ok_or_else(full)?;
        let qpn = model.qps[index as usize].1.as_ref().map_or(0, |qp| qp.qpn);
        Ok(Box::new(SimQp {
            model: self.model.clone(),
            index,
            qpn: Qpn::new(qpn).unwrap_or_default(),
            caps,
            has_srq: srq.is_some(),
            limits: self.info.limits,
            _cqs: (init.send_cq.clone(), init.recv_cq.clone()),
            _srq: init.srq.clone(),
        }))
    }
}

impl SimPd {
    fn cq(&self, cq: &Arc<dyn CompletionQueue>) -> Result<u32, ResourceError> {
        let (id, handle) = (cq.id().0, Arc::as_ptr(cq).addr());
        let model = self.model.lock();
        let own = model.cqs.get(id as usize).and_then(Option::as_ref);
        match own {
            Some(own) if own.opened == self.opened && own.handle == handle => Ok(id),
            _ => Err(ResourceError::Foreign("completion queue")),
        }
    }
}

/// An address handle; frees its key when it is dropped.
struct SimAh(SharedModel, u32);

impl AddressHandle for SimAh {
    fn key(&self) -> AhKey {
        AhKey(self.1)
    }
}

impl Drop for SimAh {
    fn drop(&mut self) {
        self.0.lock().handles.leave(self.1);
    }
}

struct SimCq {
    model: SharedModel,
    id: u32,
    depth: u32,
}

impl CompletionQueue for SimCq {
    fn id(&self) -> CqId {
        CqId(self.id)
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        self.model.lock().poll(self.id, out)
    }

    fn arm(&self, solicited_only: bool) {
        self.model.lock().arm(self.id, solicited_only);
    }

    fn counters(&self) -> Option<CqCounters> {
        let model = self.model.lock();
        let cq = model.cqs.get(self.id as usize)?.as_ref()?;
        Some(CqCounters {
            polled: cq.polled,
            unpolled: cq.queue.len() as u64,
            events: cq.events,
            overrun: cq.overrun,
        })
    }
}

impl Drop for SimCq {
    fn drop(&mut self) {
        let mut model = self.model.lock();
        if let Some(gone) = model.cqs[self.id as usize].take() {
            model.hosts[gone.host as usize].cqs -= 1;
        }
    }
}

struct SimSrq {
    model: SharedModel,
    id: u32,
    max_wr: u32,
}

impl SharedReceiveQueue for SimSrq {
    fn id(&self) -> SrqId {
        SrqId(self.id)
    }

    fn max_wr(&self) -> u32 {
        self.max_wr
    }

    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut model = self.model.lock();
        for (index, wr) in wrs.iter().enumerate() {
            let (cost, at) = (model.cost.post_recv, model.time());
            let Some(Some(srq)) = model.srqs.get_mut(self.id as usize) else {
                return Err(PostErrorKind::Device.at(index));
            };
            if wr.sges.len() > srq.max_sge as usize {
                return Err(PostErrorKind::TooManySges(srq.max_sge).at(index));
            }
            if srq.queue.len() >= srq.max_wr as usize {
                return Err(PostErrorKind::QueueFull.at(index));
            }
            srq.queue.push_back(ReceiveWqe::new(wr, 0, at));
            model.work(cost);
        }
        Ok(())
    }

    fn set_limit(&self, limit: u32) -> Result<(), ResourceError> {
        ResourceError::check("SRQ limit", limit, 0..=self.max_wr)?;
        if let Some(Some(srq)) = self.model.lock().srqs.get_mut(self.id as usize) {
            srq.limit = limit;
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SimSrq {
    fn drop(&mut self) {
        let mut model = self.model.lock();
        model.srqs[self.id as usize] = None;
    }
}

struct SimQp {
    model: SharedModel,
    index: u32,
    qpn: Qpn,
    caps: QpCaps,
    has_srq: bool,
    limits: headworks_verbs::DeviceLimits,
    // Held so that they outlive the queue pair.
    _cqs: (Arc<dyn CompletionQueue>, Arc<dyn CompletionQueue>),
    _srq: Option<Arc<dyn SharedReceiveQueue>>,
}

impl QueuePair for SimQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn state(&self) -> QpState {
        let mut model = self.model.lock();
        model.catch_up();
        let found = &model.qps[self.index as usize].1;
        found.as_ref().map_or(QpState::Error, |qp| qp.state)
    }

    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        let mut model = self.model.lock();
        model.catch_up();
        attr.check_values(&self.limits)?;
        model.modify(self.index, attr)
    }

    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut model = self.model.lock();
        let model = &mut *model;
        let mut posted = Ok(());
        let mut spent: Ps = 0;
        let cost = &model.cost;
        let (_, Some(qp)) = &mut model.qps[self.index as usize] else {
            return Err(PostErrorKind::Device.at(0));
        };
        let before = qp.posted();
        for (index, wr) in wrs.iter().enumerate() {
            let len = match check_send(qp, wr) {
                Ok(len) => len,
                Err(kind) => {
                    posted = Err(kind.at(index));
                    break;
                }
            };
            let wqe = Wqe::new(
                wr,
                len,
                qp.next_psn,
                qp.connection.mtu.max(1),
                qp.signal_all,
            );
            spent += cost.post;
            if let Some(bytes) = wqe.data.bytes() {
                let lines = (HEADER + 4 + bytes.len() as u64).div_ceil(LINE);
                spent += cost.inline_line * (lines - 1);
            }
            qp.next_psn = wqe.end();
            qp.sq.push_back(wqe);
        }
        let upto = qp.posted();
        if upto > before {
            spent += cost.ring;
            if upto == before + 1
                && let Some(wqe) = qp.sq.back_mut()
            {
                // A short request comes with its doorbell and is not fetched.
                let sges = 16 * wqe.data.sges().len() as u64;
                let data = wqe
                    .data
                    .bytes()
                    .map_or(sges, |bytes| bytes.len() as u64 + 4);
                wqe.pushed = HEADER + data <= cost.blueflame;
            }
            let pushed = qp.sq.back().is_some_and(|wqe| wqe.pushed);
            let flushes = matches!(qp.state, QpState::Error | QpState::Sqe);
            let index = qp.index;
            model.work(spent);
            let fetch = if pushed { 0 } else { model.cost.dma_read };
            let at = model.time() + model.cost.doorbell + fetch;
            if flushes {
                let now = model.time();
                model.flush_sends(index, now);
            } else {
                model.ring(index, at, upto);
            }
        }
        posted
    }

    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.has_srq {
            return Err(PostErrorKind::HasSrq.at(0));
        }
        let mut model = self.model.lock();
        for (index, wr) in wrs.iter().enumerate() {
            let (cost, at) = (model.cost.post_recv, model.time());
            let (_, Some(qp)) = &mut model.qps[self.index as usize] else {
                return Err(PostErrorKind::Device.at(index));
            };
            if qp.state == QpState::Reset {
                return Err(PostErrorKind::State(qp.state).at(index));
            }
            if wr.sges.len() > self.caps.max_recv_sge as usize {
                return Err(PostErrorKind::TooManySges(self.caps.max_recv_sge).at(index));
            }
            let receives = &mut qp.receives;
            if receives.posted - receives.retired >= u64::from(self.caps.max_recv_wr) {
                return Err(PostErrorKind::QueueFull.at(index));
            }
            receives.posted += 1;
            let position = receives.posted;
            receives.queue.push_back(ReceiveWqe::new(wr, position, at));
            let flushes = qp.state == QpState::Error;
            model.work(cost);
            if flushes {
                model.flush(self.index);
            }
        }
        Ok(())
    }

    fn counters(&self) -> Option<QpCounters> {
        let model = self.model.lock();
        let qp = model.qps[self.index as usize].1.as_ref()?;
        Some(QpCounters {
            sends_posted: qp.posted(),
            sends_retired: qp.retired,
            sent_bytes: qp.sent_bytes,
            read_bytes: qp.read_bytes,
            receives_posted: qp.receives.posted,
            receives_retired: qp.receives.retired,
            rnr: qp.rnr,
            events: qp.events,
            ..QpCounters::default()
        })
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        self.model.lock().leave(self.index);
    }
}

/// Returns the number of bytes of a request, or why it may not be posted.
#[inline]
fn check_send(qp: &Qp, wr: &SendWr<'_>) -> Result<u32, PostErrorKind> {
    if !matches!(
        qp.state,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error
    ) {
        return Err(PostErrorKind::State(qp.state));
    }
    if qp.posted() - qp.retired >= u64::from(qp.caps.max_send_wr) {
        return Err(PostErrorKind::QueueFull);
    }
    let inline = match wr.payload {
        headworks_verbs::Payload::Gather(sges) => {
            if sges.len() > qp.caps.max_send_sge as usize {
                return Err(PostErrorKind::TooManySges(qp.caps.max_send_sge));
            }
            false
        }
        headworks_verbs::Payload::Inline(bytes) => {
            if bytes.len() > qp.caps.max_inline as usize {
                return Err(PostErrorKind::InlineTooLong(qp.caps.max_inline));
            }
            true
        }
    };
    let len = wr.payload.len();
    if len > u64::from(crate::provider::MAX_MESSAGE) {
        return Err(PostErrorKind::MessageTooLong(crate::provider::MAX_MESSAGE));
    }
    let legal = match wr.op {
        SendOp::Read(_) => !inline && qp.connection.max_reads > 0,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            !inline && len == 8 && qp.connection.max_reads > 0
        }
        SendOp::SendTo(_) | SendOp::SendToImm(..) => qp.qp_type == QpType::Ud,
        _ => qp.qp_type.is_connected(),
    };
    match legal {
        true => Ok(len as u32),
        false => Err(PostErrorKind::Operation),
    }
}
