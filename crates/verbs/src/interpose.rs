//! A device around another: everything goes through but for requests that the watcher holds back.
//!
//! For what is to be seen or changed of any device from outside: counting what is posted, in
//! measurements; completions that come late and queues that are short, in tests.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::address::Qpn;
use crate::completion::{Completion, CompletionChannel, CompletionQueue, CqId, CqInit};
use crate::counters::{CqCounters, QpCounters};
use crate::datagram::{AddressHandle, AhInit};
use crate::device::{AsyncEvent, Device, DeviceInfo, ProtectionDomain};
use crate::error::{ModifyError, PollError, PostError, ResourceError};
use crate::memory_region::{Access, AllocRequest, Buffer, Region};
use crate::qp_state::QpState;
use crate::queue_pair::{QpAttr, QpCaps, QpInit, QueuePair, SharedReceiveQueue, SrqInit};
use crate::time::Instant;
use crate::work_request::{RecvWr, SendWr};

/// Who watches. Called from whichever thread posts and polls.
pub trait Interposer: Send + Sync + 'static {
    /// These send requests were posted, in one chain.
    fn on_send_posted(&self, _posted: &[SendWr<'_>]) {}

    /// Whether a send request reaches the device below. A request that does not is never sent and never completes, and the
    /// index of a failed post does not count it.
    fn admits_send(&self, _posted: &SendWr<'_>) -> bool {
        true
    }

    /// So many receives were posted to a queue pair's own queue.
    fn on_receives_posted(&self, _posted: usize) {}

    /// A queue pair was asked for its state.
    fn on_state_queried(&self) {}

    /// Whether a poll finds anything now.
    fn admits_poll(&self) -> bool {
        true
    }

    /// Why a poll is refused now, if it is.
    fn poll_error(&self) -> Option<PollError> {
        None
    }

    /// So many completions were polled.
    fn on_polled(&self, _count: usize) {}
}

/// The completion queues made here, as long as anybody has them: the device below knows only its own.
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

    /// The one below `outer`, by where that is: another device's may have the same number.
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

/// A device as another, watched.
pub struct InterposedDevice<W> {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    cqs: InterposedCqs<W>,
    interposer: Arc<W>,
}

impl<W: Interposer> InterposedDevice<W> {
    /// Around `inner`, which says what it is.
    pub fn new(inner: Arc<dyn Device>, interposer: Arc<W>) -> Self {
        let info = inner.info().clone();
        Self::with_info(inner, info, interposer)
    }

    /// Around `inner`, which is said to be what `info` says.
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
    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.inner.next_async_event()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
}

impl<W: Interposer> ProtectionDomain for InterposedPd<W> {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        self.inner.register(buffer, access)
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
