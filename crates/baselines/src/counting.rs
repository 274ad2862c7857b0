//! A device that counts what is posted to it and what is polled from it, whatever runs on it.
//!
//! For the counts that the RB² paper's Table I compares designs by. It costs time, so figures of time
//! are never taken on it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, Completion, CompletionChannel,
    CompletionQueue, CqCounters, CqId, CqInit, Device, DeviceInfo, Instant, ModifyError, PollError,
    PostError, ProtectionDomain, QpAttr, QpCaps, QpCounters, QpInit, QpState, Qpn, QueuePair,
    RecvWr, Region, RemoteAddr, ResourceError, SendOp, SendWr, SharedReceiveQueue, SrqInit,
};

use serde::{Deserialize, Serialize};

/// Bytes of a cache line.
const LINE: u64 = 64;

/// What was posted and polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Chains of send requests: doorbells.
    pub doorbells: u64,
    /// WRITEs, those with immediate included.
    pub writes: u64,
    /// WRITEs with immediate.
    pub immediates: u64,
    /// READs.
    pub reads: u64,
    /// Bytes of all WRITEs.
    pub bytes: u64,
    /// Cache lines that the WRITEs touch at their target, each counted for every WRITE that does.
    pub lines: u64,
    /// Completions polled.
    pub completions: u64,
    /// Receives posted.
    pub receives: u64,
}

/// The counters of a device.
#[derive(Debug, Default)]
pub struct Tally([AtomicU64; 8]);

impl Tally {
    fn add(&self, which: usize, by: u64) {
        // Only a sum: nothing is ordered by it.
        self.0[which].fetch_add(by, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let [
            doorbells,
            writes,
            immediates,
            reads,
            bytes,
            lines,
            completions,
            receives,
        ] = [0, 1, 2, 3, 4, 5, 6, 7].map(|which: usize| self.0[which].load(Ordering::Relaxed));
        Counts {
            doorbells,
            writes,
            immediates,
            reads,
            bytes,
            lines,
            completions,
            receives,
        }
    }

    fn count(&self, wr: &SendWr<'_>) {
        let to = match wr.op {
            SendOp::Write(to) => to,
            SendOp::WriteImm(to, _) => {
                self.add(2, 1);
                to
            }
            SendOp::Read(_) => return self.add(3, 1),
            _ => return,
        };
        self.add(1, 1);
        self.add(4, wr.payload.len());
        self.add(5, lines(to, wr.payload.len()));
    }
}

impl Counts {
    /// What was counted since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            doorbells: self.doorbells - before.doorbells,
            writes: self.writes - before.writes,
            immediates: self.immediates - before.immediates,
            reads: self.reads - before.reads,
            bytes: self.bytes - before.bytes,
            lines: self.lines - before.lines,
            completions: self.completions - before.completions,
            receives: self.receives - before.receives,
        }
    }
}

/// Lines that `len` bytes at `to` touch.
fn lines(to: RemoteAddr, len: u64) -> u64 {
    match len {
        0 => 0,
        _ => (to.addr.wrapping_add(len - 1)) / LINE - to.addr / LINE + 1,
    }
}

/// The completion queues made here, and what they count for.
type Queues = Arc<Mutex<Vec<Arc<dyn CompletionQueue>>>>;

/// A device as another, that counts.
pub struct Counting {
    inner: Arc<dyn Device>,
    queues: Queues,
    tally: Arc<Tally>,
}

impl Counting {
    /// Around `inner`.
    pub fn around(inner: Arc<dyn Device>) -> Self {
        Self {
            inner,
            queues: Queues::default(),
            tally: Arc::default(),
        }
    }

    /// Where it counts.
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }
}

struct Domain {
    inner: Arc<dyn ProtectionDomain>,
    queues: Queues,
    tally: Arc<Tally>,
}

struct Queue {
    inner: Arc<dyn CompletionQueue>,
    tally: Arc<Tally>,
}

struct Pair {
    inner: Box<dyn QueuePair>,
    tally: Arc<Tally>,
}

impl Device for Counting {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(Domain {
            inner: self.inner.alloc_pd()?,
            queues: self.queues.clone(),
            tally: self.tally.clone(),
        }))
    }
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.inner.alloc(request)
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        self.inner.create_channel()
    }
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        let inner = self.inner.create_cq(init)?;
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.push(inner.clone());
        Ok(Arc::new(Queue {
            inner,
            tally: self.tally.clone(),
        }))
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

impl ProtectionDomain for Domain {
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
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // The device below knows its own queues only. Identifiers of queues that are gone come again,
        // so the latest counts.
        let inner = |outer: &Arc<dyn CompletionQueue>| {
            let found = queues.iter().rfind(|queue| queue.id() == outer.id());
            found.cloned().ok_or(ResourceError::Foreign("the CQ"))
        };
        let made = self.inner.create_qp(&QpInit {
            send_cq: inner(&init.send_cq)?,
            recv_cq: inner(&init.recv_cq)?,
            ..init.clone()
        })?;
        Ok(Box::new(Pair {
            inner: made,
            tally: self.tally.clone(),
        }))
    }
}

impl CompletionQueue for Queue {
    fn id(&self) -> CqId {
        self.inner.id()
    }
    fn depth(&self) -> u32 {
        self.inner.depth()
    }
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        let count = self.inner.poll(out)?;
        self.tally.add(6, count as u64);
        Ok(count)
    }
    fn arm(&self, solicited_only: bool) {
        self.inner.arm(solicited_only);
    }
    fn counters(&self) -> Option<CqCounters> {
        self.inner.counters()
    }
}

impl QueuePair for Pair {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }
    fn state(&self) -> QpState {
        self.inner.state()
    }
    fn caps(&self) -> &QpCaps {
        self.inner.caps()
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.inner.modify(attr)
    }
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let posted = self.inner.post_send(wrs);
        let count = posted.as_ref().map_or_else(|e| e.index, |()| wrs.len());
        self.tally.add(0, u64::from(count > 0));
        for wr in &wrs[..count] {
            self.tally.count(wr);
        }
        posted
    }
    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let posted = self.inner.post_recv(wrs);
        let count = posted.as_ref().map_or_else(|e| e.index, |()| wrs.len());
        self.tally.add(7, count as u64);
        posted
    }
    fn counters(&self) -> Option<QpCounters> {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_where_the_bytes_lie() {
        let at = |addr| RemoteAddr { addr, rkey: 0 };
        assert_eq!(lines(at(0), 0), 0);
        assert_eq!(lines(at(0), 64), 1);
        assert_eq!(lines(at(8), 64), 2);
        assert_eq!(lines(at(63), 2), 2);
        assert_eq!(lines(at(40), 128), 3);
    }
}
