//! A scripted device that records its calls. It completes requests when the test says so, in order for each
//! queue pair, and its time passes when the test says so.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::versions::Versions;
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, Completion, CompletionChannel,
    CompletionQueue, CqId, CqInit, Device, DeviceInfo, DeviceLimits, Instant, ModifyError, Opcode,
    Payload, PollError, PostError, PostErrorKind, ProtectionDomain, QpAttr, QpCaps, QpInit,
    QpState, QpType, Qpn, QueuePair, RecvWr, Region, ResourceError, SendFlags, SendOp, SendWr, Sge,
    SharedReceiveQueue, SrqInit, Status,
};

/// Longest message, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;

/// A recorded event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A request was posted.
    Posted {
        qpn: u32,
        at: u64,
        op: SendOp,
        payload: Result<Vec<Sge>, Vec<u8>>,
        flags: SendFlags,
        /// Whether the queue pair was in the error state, so that the request is flushed and not sent.
        is_dead: bool,
    },
    /// The oldest request of a queue pair completed.
    Over { qpn: u32, status: Status },
}

/// State of a queue pair and its requests.
struct Pair {
    cq: u32,
    state: QpState,
    caps: QpCaps,
    qp_type: QpType,
    max_rd_atomic: u8,
    /// Requests that are not over: `wr_id`, opcode, length.
    queue: VecDeque<(u64, Opcode, u32)>,
    /// Requests that are over and not yet polled.
    unpolled: u32,
    /// Counts the resets, to distinguish completions from before a reset.
    life: u32,
}

/// A completion, its queue pair, and the queue pair's `life` when it completed.
type Done = (Completion, u32, u32);

/// State of a completion queue.
#[derive(Default)]
struct Queue {
    depth: usize,
    held: VecDeque<Done>,
    is_armed: bool,
    /// Whether a completion came after the queue was armed, which makes an event.
    has_rung: bool,
}

impl Queue {
    fn push(&mut self, done: Done) {
        self.held.push_back(done);
        assert!(self.held.len() <= self.depth, "the CQ overran");
        self.has_rung |= std::mem::take(&mut self.is_armed);
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) now: u64,
    pub(crate) events: Vec<Event>,
    /// Whether the next post is to be refused.
    pub(crate) refuses: bool,
    /// Whether a refused post was one of a queue pair in the error state, whose request was to be flushed.
    pub(crate) refused_dead: bool,
    /// Number of posts that are still to be refused because the queue is full.
    pub(crate) full: u32,
    cqs: Vec<Queue>,
    pairs: BTreeMap<u32, Pair>,
    next: u32,
}

impl State {
    /// Completes up to `count` requests of a queue pair, the last of them with this status.
    pub(crate) fn complete(&mut self, qpn: u32, count: usize, last: Status) {
        for left in (0..count).rev() {
            let status = if left == 0 { last } else { Status::Success };
            if !self.end(qpn, status) {
                return;
            }
            if status != Status::Success {
                self.fail(qpn);
            }
        }
    }

    /// Moves the queue pair to the error state and flushes its requests.
    pub(crate) fn fail(&mut self, qpn: u32) {
        if let Some(pair) = self.pairs.get_mut(&qpn) {
            pair.state = QpState::Error;
        }
        while self.end(qpn, Status::Flushed) {}
    }

    fn end(&mut self, qpn: u32, status: Status) -> bool {
        let now = self.now;
        let Some(pair) = self.pairs.get_mut(&qpn) else {
            return false;
        };
        let Some((wr_id, opcode, len)) = pair.queue.pop_front() else {
            return false;
        };
        pair.unpolled += 1;
        let completion = Completion {
            wr_id,
            status,
            opcode,
            qpn: Qpn::new(qpn).expect("24 bits"),
            byte_len: if opcode == Opcode::Read { len } else { 0 },
            timestamp: Instant::from_nanos(now),
            ..Completion::default()
        };
        self.cqs[pair.cq as usize].push((completion, qpn, pair.life));
        self.events.push(Event::Over { qpn, status });
        true
    }

    pub(crate) fn is_in_error(&self, qpn: u32) -> bool {
        let pair = self.pairs.get(&qpn);
        pair.is_some_and(|pair| pair.state == QpState::Error)
    }

    /// Whether a thread that armed a queue pair's completion queue and then found nothing has been woken.
    pub(crate) fn rings(&self, qpn: u32) -> bool {
        let pair = self.pairs.get(&qpn);
        pair.is_some_and(|pair| self.cqs[pair.cq as usize].has_rung)
    }

    /// Number of a queue pair's requests that are not over.
    pub(crate) fn flying(&self, qpn: u32) -> usize {
        self.pairs.get(&qpn).map_or(0, |pair| pair.queue.len())
    }

    /// Flushes the requests of a queue pair that was reset or destroyed. Their completions come when nobody
    /// waits for them.
    fn leave(&mut self, qpn: u32) {
        let Some(pair) = self.pairs.get_mut(&qpn) else {
            return;
        };
        let queue = &mut self.cqs[pair.cq as usize];
        for (wr_id, ..) in pair.queue.drain(..) {
            let completion = Completion {
                wr_id,
                status: Status::Flushed,
                ..Completion::default()
            };
            queue.push((completion, qpn, pair.life));
        }
        (pair.unpolled, pair.life) = (0, pair.life + 1);
    }

    fn post(&mut self, qpn: u32, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        assert!(!wrs.is_empty(), "a doorbell for nothing");
        if self.full > 0 {
            self.full -= 1;
            return Err(PostErrorKind::QueueFull.at(0));
        }
        let refuses = std::mem::take(&mut self.refuses);
        for (index, wr) in wrs.iter().enumerate() {
            let pair = self.pairs.get_mut(&qpn).expect("it is there");
            // The last request of the chain is the one that is refused.
            if refuses && index + 1 == wrs.len() {
                self.refused_dead |= pair.state == QpState::Error;
                return Err(PostErrorKind::Device.at(index));
            }
            pair.check(wr).map_err(|kind| kind.at(index))?;
            let opcode = opcode(&wr.op);
            let len = wr.payload.len() as u32;
            pair.queue.push_back((wr.wr_id, opcode, len));
            let is_dead = pair.state == QpState::Error;
            self.events.push(Event::Posted {
                qpn,
                at: self.now,
                op: wr.op,
                payload: match wr.payload {
                    Payload::Gather(sges) => Ok(sges.to_vec()),
                    Payload::Inline(bytes) => Err(bytes.to_vec()),
                },
                flags: wr.flags,
                is_dead,
            });
            if is_dead {
                self.fail(qpn);
            }
        }
        Ok(())
    }
}

impl Pair {
    /// Refuses what a NIC's driver refuses.
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        use QpState::{Error, Rts, Sqd, Sqe};
        if !matches!(self.state, Rts | Sqd | Sqe | Error) {
            return Err(PostErrorKind::State(self.state));
        }
        if self.queue.len() + self.unpolled as usize >= self.caps.max_send_wr as usize {
            return Err(PostErrorKind::QueueFull);
        }
        let is_inline = matches!(wr.payload, Payload::Inline(_));
        match wr.payload {
            Payload::Inline(bytes) if bytes.len() > self.caps.max_inline as usize => {
                return Err(PostErrorKind::InlineTooLong(self.caps.max_inline));
            }
            Payload::Gather(sges) if sges.len() > self.caps.max_send_sge as usize => {
                return Err(PostErrorKind::TooManySges(self.caps.max_send_sge));
            }
            _ => {}
        }
        if wr.payload.len() > u64::from(MAX_MESSAGE) {
            return Err(PostErrorKind::MessageTooLong(MAX_MESSAGE));
        }
        let is_ud = self.qp_type == QpType::Ud;
        let reads = !is_ud && !is_inline && self.max_rd_atomic > 0;
        let is_legal = match wr.op {
            SendOp::SendTo(_) | SendOp::SendToImm(..) => is_ud,
            SendOp::Read(_) => reads,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => reads && wr.payload.len() == 8,
            _ => !is_ud,
        };
        is_legal.then_some(()).ok_or(PostErrorKind::Operation)
    }
}

/// Opcode of a request's completion.
pub(crate) fn opcode(op: &SendOp) -> Opcode {
    match op {
        SendOp::Write(_) | SendOp::WriteImm(..) => Opcode::Write,
        SendOp::Read(_) => Opcode::Read,
        SendOp::CompareSwap { .. } => Opcode::CompareSwap,
        SendOp::FetchAdd { .. } => Opcode::FetchAdd,
        _ => Opcode::Send,
    }
}

/// The device. Clones share its state.
#[derive(Clone)]
pub(crate) struct Script {
    state: Arc<Mutex<State>>,
    pub(crate) info: Arc<Versions<DeviceInfo>>,
    nothing: Arc<File>,
}

impl Script {
    /// A device whose clock shows `now`.
    pub(crate) fn new(now: u64) -> Self {
        let many = 1 << 20;
        Self {
            state: Arc::new(Mutex::new(State {
                now,
                next: 100,
                ..State::default()
            })),
            info: Arc::new(Versions::new(DeviceInfo {
                limits: DeviceLimits {
                    max_qp: many,
                    max_qp_wr: many,
                    max_sge: 16,
                    max_inline: 256,
                    max_cq: many,
                    max_cqe: many,
                    max_mr: many,
                    max_ah: many,
                    max_srq: many,
                    max_srq_wr: many,
                    max_rd_atomic: 16,
                    max_message: MAX_MESSAGE,
                },
                ..DeviceInfo::named("script".parse().expect("a name"))
            })),
            nothing: Arc::new(File::open("/dev/null").expect("/dev/null")),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Cq(Script, u32);
struct Qp(Script, Qpn, QpCaps);

fn none<T>(what: &'static str) -> Result<T, ResourceError> {
    Err(ResourceError::Unsupported { what })
}

impl Device for Script {
    fn info(&self) -> &DeviceInfo {
        self.info.newest()
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(self.clone()))
    }
    fn alloc(&self, _: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        none("memory")
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        none("completion channel")
    }
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        let mut state = self.state();
        state.cqs.push(Queue {
            depth: init.depth as usize,
            ..Queue::default()
        });
        Ok(Arc::new(Cq(self.clone(), state.cqs.len() as u32 - 1)))
    }
    fn async_fd(&self) -> BorrowedFd<'_> {
        self.nothing.as_fd()
    }
    fn next_async_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.state().now)
    }
}

impl ProtectionDomain for Script {
    fn register(&self, _: &Arc<dyn Buffer>, _: Access) -> Result<Region, ResourceError> {
        none("memory")
    }
    fn create_srq(&self, _: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        none("shared receive queue")
    }
    fn create_ah(&self, _: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        none("address handle")
    }
    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        assert!(init.signal_all, "every request completes internally");
        let mut state = self.state();
        state.next += 1;
        let qpn = state.next;
        let pair = Pair {
            cq: init.send_cq.id().0,
            state: QpState::Reset,
            caps: init.caps,
            qp_type: init.qp_type,
            max_rd_atomic: 0,
            queue: VecDeque::new(),
            unpolled: 0,
            life: 0,
        };
        state.pairs.insert(qpn, pair);
        let number = Qpn::new(qpn).expect("24 bits");
        Ok(Box::new(Qp(self.clone(), number, init.caps)))
    }
}

impl CompletionQueue for Cq {
    fn id(&self) -> CqId {
        CqId(self.1)
    }
    fn depth(&self) -> u32 {
        self.0.state().cqs[self.1 as usize].depth as u32
    }
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        let mut state = self.0.state();
        let State { cqs, pairs, .. } = &mut *state;
        let held = &mut cqs[self.1 as usize].held;
        let count = held.len().min(out.len());
        for (place, (done, qpn, life)) in out.iter_mut().zip(held.drain(..count)) {
            *place = done;
            if let Some(pair) = pairs.get_mut(&qpn).filter(|pair| pair.life == life) {
                pair.unpolled -= 1;
            }
        }
        Ok(count)
    }
    fn arm(&self, _: bool) {
        let mut state = self.0.state();
        let queue = &mut state.cqs[self.1 as usize];
        (queue.is_armed, queue.has_rung) = (true, false);
    }
}

impl QueuePair for Qp {
    fn qpn(&self) -> Qpn {
        self.1
    }
    fn state(&self) -> QpState {
        self.0.state().pairs[&self.1.raw()].state
    }
    fn caps(&self) -> &QpCaps {
        &self.2
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        let mut state = self.0.state();
        let pair = state.pairs.get_mut(&self.1.raw()).expect("it is there");
        if let Some(reads) = attr.max_rd_atomic {
            pair.max_rd_atomic = reads;
        }
        match attr.state {
            Some(QpState::Error) => state.fail(self.1.raw()),
            Some(QpState::Reset) => {
                pair.state = QpState::Reset;
                state.leave(self.1.raw());
            }
            Some(other) => pair.state = other,
            None => {}
        }
        Ok(())
    }
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.state().post(self.1.raw(), wrs)
    }
    fn post_recv(&mut self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.leave(self.1.raw());
        state.pairs.remove(&self.1.raw());
    }
}
