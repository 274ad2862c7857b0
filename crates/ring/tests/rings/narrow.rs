//! A device with a short send queue, whose completions come late: no room there is `Full`, for as
//! long as it lasts.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use headworks_ring::oracle::{Checked, Ring, op};
use headworks_ring::{Framing, Mode, Receiver, RingConfig, SendError, Sender};
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, Completion, CompletionChannel,
    CompletionQueue, CqId, CqInit, Device, DeviceInfo, Instant, PollError, ProtectionDomain,
    QpInit, QueuePair, Region, ResourceError, SharedReceiveQueue, SrqInit,
};
use proptest::prelude::*;

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
}

struct LateQueue {
    inner: Arc<dyn CompletionQueue>,
    late: Arc<AtomicBool>,
}

struct Domain {
    inner: Arc<dyn ProtectionDomain>,
    queues: Queues,
}

impl Device for Narrow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(Domain {
            inner: self.inner.alloc_pd()?,
            queues: self.queues.clone(),
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
        self.inner.create_qp(&QpInit {
            send_cq: inner(&init.send_cq),
            recv_cq: inner(&init.recv_cq),
            ..init.clone()
        })
    }
}

/// A ring whose sender's queue holds `depth` requests, and what makes its completions late.
fn narrow(hosts: &Hosts, depth: u32, config: &RingConfig) -> (Sender, Receiver, Arc<AtomicBool>) {
    let inner = hosts.left.clone();
    let mut info = inner.info().clone();
    info.limits.max_qp_wr = depth;
    let late = Arc::new(AtomicBool::new(false));
    let left: Arc<dyn Device> = Arc::new(Narrow {
        inner,
        info,
        queues: Queues::default(),
        late: late.clone(),
    });
    let (tx, rx) = connect(&left, config, &hosts.right, config).unwrap();
    (tx.unwrap(), rx.unwrap(), late)
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
