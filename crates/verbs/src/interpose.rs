//! A device wrapper: it passes every call to the device below, except requests that the interposer withholds.
//!
//! It observes or changes the behaviour of any device from outside. Measurements count what is posted; tests
//! delay completions and shorten queues.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::address::Qpn;
use crate::completion::{Completion, CompletionChannel, CompletionQueue, CqId, CqInit};
use crate::counters::{CqCounters, QpCounters};
use crate::datagram::{AddressHandle, AhInit};
use crate::device::{AsyncEvent, Device, DeviceInfo, ProtectionDomain};
use crate::error::{ModifyError, PollError, PostError, ResourceError};
use crate::memory_region::{Access, AllocRequest, Buffer, Region};
use crate::port_failure::PortFailure;
use crate::qp_state::QpState;
use crate::queue_pair::{QpAttr, QpCaps, QpInit, QueuePair, SharedReceiveQueue, SrqInit};
use crate::time::Instant;
use crate::work_request::{RecvWr, SendWr};

/// Observes and filters calls. The thread that posts or polls calls it.
pub trait Interposer: Send + Sync + 'static {
    /// Called after these send requests were posted in one chain.
    fn on_send_posted(&self, _posted: &[SendWr<'_>]) {}

    /// Whether a send request reaches the device below. A withheld request is never sent and never completes.
    /// The index of a failed post does not count it.
    fn admits_send(&self, _posted: &SendWr<'_>) -> bool {
        true
    }

    /// Called after memory was registered with these rights.
    fn on_registered(&self, _rkey: u32, _access: Access) {}

    /// Called after `_posted` receives were posted to a queue pair's own queue.
    fn on_receives_posted(&self, _posted: usize) {}

    /// Called when the state of a queue pair is read.
    fn on_state_queried(&self) {}

    /// Whether a poll reaches the queue below; if not, it returns no completions.
    fn admits_poll(&self) -> bool {
        true
    }

    /// The error that a poll returns now, if any.
    fn poll_error(&self) -> Option<PollError> {
        None
    }

    /// Called after `_count` completions were polled.
    fn on_polled(&self, _count: usize) {}
}

/// The living completion queues of this device. They map a wrapped queue to the queue below, because the
/// device below knows only its own.
struct InterposedCqs<W>(Arc<Mutex<Vec<Weak<InterposedCq<W>>>>>);

impl<W> Clone for InterposedCqs<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W> InterposedCqs<W> {
    fn add(&self, queue: &Arc<InterposedCq<W>>) {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// The queue below `outer`. The search compares addresses, because queues of two devices may have the
    /// same number.
    fn inner_of(
        &self,
        outer: &Arc<dyn CompletionQueue>,
    ) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        let at = Arc::as_ptr(outer).cast::<()>();
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut living = queues.iter().filter_map(Weak::upgrade);
        let found = living.find(|queue| Arc::as_ptr(queue).cast::<()>() == at);
        let inner = found.map(|queue| queue.inner.clone());
        inner.ok_or(ResourceError::Foreign("the CQ"))
    }
}

/// A device that wraps another one and reports to an [`Interposer`].
pub struct InterposedDevice<W> {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    cqs: InterposedCqs<W>,
    interposer: Arc<W>,
}

impl<W: Interposer> InterposedDevice<W> {
    /// Wraps `inner` and keeps its description.
    pub fn new(inner: Arc<dyn Device>, interposer: Arc<W>) -> Self {
        let info = inner.info().clone();
        Self::with_info(inner, info, interposer)
    }

    /// Wraps `inner` and describes the device by `info` instead.
    pub fn with_info(inner: Arc<dyn Device>, info: DeviceInfo, interposer: Arc<W>) -> Self {
        Self {
            inner,
            info,
            cqs: InterposedCqs(Arc::default()),
            interposer,
        }
    }
}

struct InterposedPd<W> {
    inner: Arc<dyn ProtectionDomain>,
    cqs: InterposedCqs<W>,
    interposer: Arc<W>,
}

struct InterposedCq<W> {
    inner: Arc<dyn CompletionQueue>,
    interposer: Arc<W>,
}

struct InterposedQp<W> {
    inner: Box<dyn QueuePair>,
    interposer: Arc<W>,
}

impl<W: Interposer> Device for InterposedDevice<W> {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(InterposedPd {
            inner: self.inner.alloc_pd()?,
            cqs: self.cqs.clone(),
            interposer: self.interposer.clone(),
        }))
    }
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.inner.alloc(request)
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        self.inner.create_channel()
    }
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        let made = Arc::new(InterposedCq {
            inner: self.inner.create_cq(init)?,
            interposer: self.interposer.clone(),
        });
        self.cqs.add(&made);
        Ok(made)
    }
    fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.async_fd()
    }
    fn port_failure(&self) -> Option<PortFailure> {
        self.inner.port_failure()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.inner.next_async_event()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
}

impl<W: Interposer> ProtectionDomain for InterposedPd<W> {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        let region = self.inner.register(buffer, access)?;
        self.interposer.on_registered(region.rkey(), access);
        Ok(region)
    }
    fn register_again(
        &self,
        region: Region,
        buffer: &Arc<dyn Buffer>,
        access: Access,
    ) -> Result<Region, (ResourceError, Region)> {
        self.inner.register_again(region, buffer, access)
    }
    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        self.inner.create_ah(init)
    }
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        self.inner.create_srq(init)
    }
    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        let made = self.inner.create_qp(&QpInit {
            send_cq: self.cqs.inner_of(&init.send_cq)?,
            recv_cq: self.cqs.inner_of(&init.recv_cq)?,
            ..init.clone()
        })?;
        Ok(Box::new(InterposedQp {
            inner: made,
            interposer: self.interposer.clone(),
        }))
    }
}

impl<W: Interposer> CompletionQueue for InterposedCq<W> {
    fn id(&self) -> CqId {
        self.inner.id()
    }
    fn depth(&self) -> u32 {
        self.inner.depth()
    }
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        if !self.interposer.admits_poll() {
            return Ok(0);
        }
        if let Some(error) = self.interposer.poll_error() {
            return Err(error);
        }
        let count = self.inner.poll(out)?;
        self.interposer.on_polled(count);
        Ok(count)
    }
    fn arm(&self, solicited_only: bool) {
        self.inner.arm(solicited_only);
    }
    fn resize(&self, entries: u32) -> Result<(), ResourceError> {
        self.inner.resize(entries)
    }
    fn discard(&self, is_gone: &dyn Fn(&Completion) -> bool) {
        self.inner.discard(is_gone);
    }
    fn counters(&self) -> Option<CqCounters> {
        self.inner.counters()
    }
}

impl<W: Interposer> QueuePair for InterposedQp<W> {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }
    fn state(&self) -> QpState {
        self.interposer.on_state_queried();
        self.inner.state()
    }
    fn caps(&self) -> &QpCaps {
        self.inner.caps()
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.inner.modify(attr)
    }
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut kept: Option<Vec<SendWr<'_>>> = None;
        for (at, wr) in wrs.iter().enumerate() {
            match (&mut kept, self.interposer.admits_send(wr)) {
                (None, false) => kept = Some(wrs[..at].to_vec()),
                (Some(kept), true) => kept.push(*wr),
                _ => {}
            }
        }
        let wrs = kept.as_deref().unwrap_or(wrs);
        let posted = self.inner.post_send(wrs);
        let count = posted.as_ref().map_or_else(|e| e.index, |()| wrs.len());
        if let Some(posted @ [_, ..]) = wrs.get(..count) {
            self.interposer.on_send_posted(posted);
        }
        posted
    }
    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let posted = self.inner.post_recv(wrs);
        let count = posted.as_ref().map_or_else(|e| e.index, |()| wrs.len());
        self.interposer.on_receives_posted(count);
        posted
    }
    fn counters(&self) -> Option<QpCounters> {
        self.inner.counters()
    }
    fn as_any_mut(&mut self) -> Option<&mut dyn std::any::Any> {
        self.inner.as_any_mut()
    }
}
