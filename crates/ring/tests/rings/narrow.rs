//! A device with a short send queue, whose completions come late: no room there is `Full`, for as
//! long as it lasts. It also counts how often its queue pairs are looked at.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use headworks_ring::oracle::{Checked, Ring, op};
use headworks_ring::{Framing, Group, GroupConfig, Mode, Receiver, RingConfig, SendError, Sender};
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, Completion, CompletionChannel,
    CompletionQueue, CqId, CqInit, Device, DeviceInfo, Instant, ModifyError, PollError, PostError,
    ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, Qpn, QueuePair, RecvWr, Region,
    ResourceError, SendWr, SharedReceiveQueue, SrqInit,
};
use proptest::prelude::*;

use crate::group::join_told;
use crate::oracle::rings;
use crate::pair::{Hosts, config, connect, fill, holds};

type Queues = Arc<Mutex<Vec<Arc<dyn CompletionQueue>>>>;

/// A device as another, but for the depth of its send queues and the delay of its completions.
struct Narrow {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    queues: Queues,
    /// While it is set no completion comes.
    late: Arc<AtomicBool>,
    /// How often a queue pair was asked for its state.
    looks: Arc<AtomicUsize>,
}

struct LateQueue {
    inner: Arc<dyn CompletionQueue>,
    late: Arc<AtomicBool>,
}

struct Domain {
    inner: Arc<dyn ProtectionDomain>,
    queues: Queues,
    looks: Arc<AtomicUsize>,
}

struct Watched {
    inner: Box<dyn QueuePair>,
    looks: Arc<AtomicUsize>,
}

impl Device for Narrow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(Domain {
            inner: self.inner.alloc_pd()?,
            queues: self.queues.clone(),
            looks: self.looks.clone(),
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
        self.queues.lock().unwrap().push(inner.clone());
        Ok(Arc::new(LateQueue {
            inner,
            late: self.late.clone(),
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

impl CompletionQueue for LateQueue {
    fn id(&self) -> CqId {
        self.inner.id()
    }
    fn depth(&self) -> u32 {
        self.inner.depth()
    }
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        match self.late.load(Ordering::Relaxed) {
            true => Ok(0),
            false => self.inner.poll(out),
        }
    }
    fn arm(&self, solicited_only: bool) {
        self.inner.arm(solicited_only);
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
        let queues = self.queues.lock().unwrap();
        let inner = |late: &Arc<dyn CompletionQueue>| {
            let found = queues.iter().rfind(|queue| queue.id() == late.id());
            found.expect("made here").clone()
        };
        let inner = self.inner.create_qp(&QpInit {
            send_cq: inner(&init.send_cq),
            recv_cq: inner(&init.recv_cq),
            ..init.clone()
        })?;
        let looks = self.looks.clone();
        Ok(Box::new(Watched { inner, looks }))
    }
}

impl QueuePair for Watched {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }
    fn state(&self) -> QpState {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.state()
    }
    fn caps(&self) -> &QpCaps {
        self.inner.caps()
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.inner.modify(attr)
    }
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.inner.post_send(wrs)
    }
    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.inner.post_recv(wrs)
    }
}

impl Narrow {
    /// As `inner`, with send queues of `depth` requests.
    fn over(inner: &Arc<dyn Device>, depth: u32) -> Self {
        let mut info = inner.info().clone();
        info.limits.max_qp_wr = info.limits.max_qp_wr.min(depth);
        Self {
            inner: inner.clone(),
            info,
            queues: Queues::default(),
            late: Arc::default(),
            looks: Arc::default(),
        }
    }
}

/// A ring whose sender's queue holds `depth` requests, and what makes its completions late.
fn narrow(hosts: &Hosts, depth: u32, config: &RingConfig) -> (Sender, Receiver, Arc<AtomicBool>) {
    let left = Narrow::over(&hosts.left, depth);
    let late = left.late.clone();
    let left: Arc<dyn Device> = Arc::new(left);
    let (tx, rx) = connect(&left, config, &hosts.right, config).unwrap();
    (tx.unwrap(), rx.unwrap(), late)
}

/// A group on such a device with `count` senders; what makes completions late, and counts looks.
fn narrow_group(
    hosts: &Hosts,
    config: &RingConfig,
    count: usize,
) -> (Group, Vec<Sender>, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let right = Narrow::over(&hosts.right, u32::MAX);
    let (late, looks) = (right.late.clone(), right.looks.clone());
    let right: Arc<dyn Device> = Arc::new(right);
    let mut group = Group::receiving(&right, &GroupConfig::new(config.clone(), count)).unwrap();
    let mut senders = Vec::new();
    for _ in 0..count {
        senders.push(
            join_told(&hosts.left, config, &right, &mut group)
                .unwrap()
                .0,
        );
    }
    (group, senders, late, looks)
}

const DEPTH: u32 = 16;

/// In every mode: sends and publishes until there is no room in the send queue, although there is in
/// the ring; what was published arrives; when completions come the rest goes.
#[test]
fn no_room_in_the_send_queue_is_full_until_completions_come() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Latency, Mode::Notify] {
        let (mut tx, mut rx, late) = narrow(&hosts, DEPTH, &config(128, Framing::Fixed(40), mode));
        let (mut sent, mut read) = (0, 0);
        let mut message = [0; 40];
        for _ in 0..50 {
            late.store(true, Ordering::Relaxed);
            let before = sent;
            loop {
                fill(sent, &mut message);
                match tx.try_send(&message) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
                if !tx.flush().unwrap() {
                    break;
                }
            }
            assert!(sent > before, "{mode:?}: no room for a single one");
            assert!(sent - before <= DEPTH.into(), "{mode:?}: more than fit");
            // A second look changes nothing, and breaks nothing.
            assert!(tx.step().is_ok());
            let published = tx.published();
            while let Some(got) = rx.try_recv().unwrap() {
                assert!(holds(read, &got), "{mode:?}: message {read}");
                read += 1;
            }
            assert_eq!(read, published, "{mode:?}: what was published");
            late.store(false, Ordering::Relaxed);
            assert!(tx.step().unwrap() || read == sent);
            assert_eq!(tx.published(), sent, "{mode:?}: held back");
        }
        while let Some(got) = rx.try_recv().unwrap() {
            assert!(holds(read, &got));
            read += 1;
        }
        assert_eq!(read, sent);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_message_arrives_though_completions_are_late(
        rings in proptest::collection::vec(
            (rings(), proptest::collection::vec((op(), any::<bool>()), 0..300)), 1..4),
    ) {
        let hosts = Hosts::new();
        for (config, ops) in rings {
            let ring = config.settle().unwrap();
            // The fewest requests that a ring is made with.
            let depth = ring.slots.div_ceil(ring.transmit_every) as u32 + 8;
            let (tx, rx, late) = narrow(&hosts, depth, &config);
            let mut checked = Checked::<Ring>::new(tx, rx, config.framing);
            for (op, wait) in ops {
                late.store(wait, Ordering::Relaxed);
                checked.run(op);
            }
            late.store(false, Ordering::Relaxed);
            checked.finish();
        }
    }
}

/// An idle look at a group asks no queue pair; a step asks a few, others each time.
#[test]
fn a_group_looks_at_few_queue_pairs_at_a_time() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = config(8, Framing::Fixed(40), mode);
        let (mut group, mut senders, _, looks) = narrow_group(&hosts, &config, 80);
        looks.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            assert!(group.try_recv().unwrap().is_none());
        }
        assert_eq!(looks.load(Ordering::Relaxed), 0, "{mode:?}");
        for _ in 0..10 {
            assert!(!group.step(true).unwrap());
        }
        assert_eq!(looks.load(Ordering::Relaxed), 80, "{mode:?}");
        // At most one a round, and some, where it is never empty.
        looks.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            senders[7].try_send(&[1; 40]).unwrap();
            senders[7].flush().unwrap();
            assert!(group.try_recv().unwrap().is_some());
        }
        let looks = looks.load(Ordering::Relaxed);
        assert!((1..=100).contains(&looks), "{mode:?}: {looks}");
    }
}

/// Heads for which there is no room in the send queue go once completions have made some, and the
/// senders that wait for them go on.
#[test]
fn heads_of_a_group_that_had_no_room_are_pushed_later() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = RingConfig {
            push_every: Some(1),
            ..config(200, Framing::Fixed(40), mode)
        };
        let (mut group, mut senders, late, _) = narrow_group(&hosts, &config, 30);
        for round in 0..5 {
            // In Notify mode late completions are late tails too.
            late.store(mode == Mode::Poll, Ordering::Relaxed);
            for tx in &mut senders {
                while tx.try_send(&[round; 40]).is_ok() {}
            }
            let mut read = 0;
            while group.try_recv().unwrap().is_some() {
                read += 1;
            }
            assert!(read >= 30 * 199, "{mode:?}: {read}");
            late.store(false, Ordering::Relaxed);
            // Too few to look at all queue pairs: what completes must do.
            group.step(false).unwrap();
            for tx in &mut senders {
                tx.step().unwrap();
                assert!(tx.is_drained(), "{mode:?}: round {round}");
            }
        }
    }
}
