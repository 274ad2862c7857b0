//! Paced devices over one scripted device, what their programs post, and the expected outcome.

use std::sync::Arc;

use headworks_pacing::shared_state::BYTES;
use headworks_pacing::{PacedDevice, Pacing, PacingConfig, SharedPacing};
use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};
use headworks_verbs::{
    Completion, CompletionQueue, CqInit, Device, DeviceInfo, Payload, PostErrorKind,
    ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair, SendFlags, SendOp,
    SendWr, Sge, Status,
};

use crate::lifetimes::Life;
use crate::scripted_device::{Event, Script};

/// Time at which every test begins, in nanoseconds.
pub(crate) const START: u64 = 1_000_000_000;

/// A request as the program posts it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: SendOp,
    pub(crate) payload: Result<Vec<Sge>, Vec<u8>>,
    pub(crate) flags: SendFlags,
}

impl Request {
    pub(crate) fn wr(&self, wr_id: u64) -> SendWr<'_> {
        SendWr {
            wr_id,
            op: self.op,
            payload: match &self.payload {
                Ok(sges) => Payload::Gather(sges),
                Err(bytes) => Payload::Inline(bytes),
            },
            flags: self.flags,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.wr(0).payload.len()
    }
}

/// A queue pair of the program.
struct Pair {
    qp: Box<dyn QueuePair>,
    /// Index of its completion queue.
    cq: usize,
    life: usize,
}

/// A process with a device.
struct Host {
    /// Kept alive as long as what was created on it.
    _device: PacedDevice,
    domain: Arc<dyn ProtectionDomain>,
}

pub(crate) struct World {
    pub(crate) script: Script,
    pub(crate) config: Arc<PacingConfig>,
    share: SharedPacing,
    hosts: Vec<Host>,
    /// Completion queues, each with the index of its host.
    cqs: Vec<(Arc<dyn CompletionQueue>, usize)>,
    /// Completion queues that were armed and then polled in vain, so that their program sleeps.
    asleep: Vec<usize>,
    pairs: Vec<Pair>,
    lives: Vec<Life>,
    seen: usize,
    /// Bytes that the device was given. `largest` is the largest request, and `borrows` says whether some
    /// were posted before they were due.
    pub(crate) given: u64,
    largest: u64,
    pub(crate) borrows: bool,
}

pub(crate) const CAPS: QpCaps = QpCaps {
    max_send_wr: 24,
    max_recv_wr: 1,
    max_send_sge: 4,
    max_recv_sge: 1,
    max_inline: 64,
};

pub(crate) fn share() -> SharedPacing {
    let request = SegmentRequest {
        name: "pacing-test",
        len: BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let segment = SharedSegment::create(&request).expect("memory");
    SharedPacing::over(View::from(Arc::new(segment))).expect("long enough")
}

/// Creates a paced device over a scripted one.
pub(crate) fn device(
    script: &Script,
    share: &SharedPacing,
    config: &Arc<PacingConfig>,
) -> PacedDevice {
    device_that_is(script.info().clone(), script, share, config)
}

/// Creates a paced device over a scripted one that `info` describes.
pub(crate) fn device_that_is(
    info: DeviceInfo,
    script: &Script,
    share: &SharedPacing,
    config: &Arc<PacingConfig>,
) -> PacedDevice {
    let inner: Arc<dyn Device> = Arc::new(script.clone());
    let clock = script.clone();
    let pacing = Pacing {
        share: share.clone(),
        config: config.clone(),
        clock: Arc::new(move || clock.now()),
        is_real: false,
        keeper: None,
    };
    PacedDevice::new(inner, info, pacing)
}

pub(crate) fn queue_pair(
    domain: &Arc<dyn ProtectionDomain>,
    cq: &Arc<dyn CompletionQueue>,
    signal_all: bool,
) -> Box<dyn QueuePair> {
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        caps: CAPS,
        signal_all,
    };
    let mut qp = domain.create_qp(&init).expect("room");
    qp.modify(&ready()).expect("ready");
    qp
}

pub(crate) fn completion_queue(device: &PacedDevice) -> Arc<dyn CompletionQueue> {
    let init = CqInit {
        depth: 100,
        ..CqInit::default()
    };
    device.create_cq(&init).expect("room")
}

pub(crate) fn ready() -> QpAttr {
    QpAttr {
        state: Some(QpState::Rts),
        max_rd_atomic: Some(4),
        ..QpAttr::default()
    }
}

impl World {
    /// Creates one process with two completion queues and three queue pairs, and `others` with one of each.
    pub(crate) fn new(config: PacingConfig, others: usize) -> Self {
        let (script, share, config) = (Script::new(START), share(), Arc::new(config));
        let mut world = Self {
            script,
            config,
            share,
            hosts: Vec::new(),
            cqs: Vec::new(),
            asleep: Vec::new(),
            pairs: Vec::new(),
            lives: Vec::new(),
            seen: 0,
            given: 0,
            largest: 0,
            borrows: false,
        };
        for host in 0..=others {
            let device = device(&world.script, &world.share, &world.config);
            let domain = device.alloc_pd().expect("a domain");
            let cqs = if host == 0 { 2 } else { 1 };
            for _ in 0..cqs {
                world.cqs.push((completion_queue(&device), host));
            }
            world.hosts.push(Host {
                _device: device,
                domain,
            });
        }
        for cq in (0..world.cqs.len()).chain([0]) {
            let pair = world.pair(cq);
            world.pairs.push(pair);
        }
        world
    }

    fn pair(&mut self, cq: usize) -> Pair {
        let (queue, host) = &self.cqs[cq];
        let signal_all = self.lives.len() % 3 == 2;
        let qp = queue_pair(&self.hosts[*host].domain, queue, signal_all);
        let life = self.born(qp.qpn().raw(), signal_all);
        Pair { qp, cq, life }
    }

    fn born(&mut self, qpn: u32, signal_all: bool) -> usize {
        self.lives.push(Life::new(qpn, signal_all));
        self.lives.len() - 1
    }

    /// Checks everything that was posted to the device or completed there since the last call.
    fn observe(&mut self) {
        let events = self.script.state().events[self.seen..].to_vec();
        self.seen += events.len();
        for event in &events {
            let (Event::Posted { qpn, .. } | Event::Over { qpn, .. }) = event;
            let life = self.pairs.iter().find(|pair| pair.qp.qpn().raw() == *qpn);
            let life = &mut self.lives[life.expect("of a queue pair that is there").life];
            match event {
                Event::Posted {
                    payload,
                    at,
                    is_dead,
                    ..
                } => {
                    let len = match payload {
                        Ok(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
                        Err(bytes) => bytes.len() as u64,
                    };
                    life.goes(&self.config, event);
                    let cost = len + self.config.overhead_bytes;
                    if !is_dead {
                        self.pays(cost, *at);
                    }
                }
                Event::Over { status, .. } => life.ends(*status),
            }
        }
        for pair in &self.pairs {
            if self.script.state().is_in_error(pair.qp.qpn().raw()) {
                self.lives[pair.life].has_failed = true;
            }
        }
        let bounds = self.config.min_rate()..=self.config.line_rate();
        assert!(bounds.contains(&self.share.rate(&self.config)));
        if std::mem::take(&mut self.script.state().refused_dead) {
            // Nothing is left that would wake a sleeper.
            self.asleep.clear();
        }
        assert!(
            self.asleep.iter().all(|cq| self.wakes(*cq)),
            "requests wait, and nothing is under way that would wake anybody"
        );
    }

    /// Whether a program that sleeps on a completion queue will be woken, or has nothing to wait for.
    fn wakes(&self, cq: usize) -> bool {
        let mut pairs = self.pairs.iter().filter(|pair| pair.cq == cq);
        let state = self.script.state();
        let moves = |pair: &Pair| {
            let qpn = pair.qp.qpn().raw();
            state.flying(qpn) > 0 || state.rings(qpn)
        };
        pairs.clone().any(moves) || pairs.all(|pair| self.lives[pair.life].is_done())
    }

    /// Checks that no credit comes from nothing, however many processes share it.
    fn pays(&mut self, cost: u64, at: u64) {
        self.given += cost;
        if self.borrows || self.config.window {
            return;
        }
        let passed = u128::from(at - START) * u128::from(self.config.line_rate()) / 1_000_000_000;
        // The last credit may be as much as a thread takes at once, or as much as a request needs.
        let last = self.largest.max(self.config.quantum_bytes);
        let due = passed + u128::from(self.config.burst_bytes + last);
        let given = self.given;
        assert!(u128::from(given) <= due + 1, "{given} of {due}");
    }

    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    pub(crate) fn cqs(&self) -> usize {
        self.cqs.len()
    }

    /// The program posts a chain and then overwrites its inline bytes.
    pub(crate) fn post(&mut self, pair: usize, mut chain: Vec<Request>) {
        let life = self.pairs[pair].life;
        let first = self.lives[life].requests.len();
        for request in &chain {
            // A refused request counts too: what was paid for it is there for others.
            let cost = request.len() + self.config.overhead_bytes;
            self.largest = self.largest.max(cost);
        }
        let number = |index| (life as u64) << 32 | (first + index) as u64;
        let wrs: Vec<_> = chain
            .iter()
            .enumerate()
            .map(|(index, request)| request.wr(number(index)))
            .collect();
        let posted = self.pairs[pair].qp.post_send(&wrs);
        let taken = posted.map_or_else(|error| error.index, |()| wrs.len());
        let kept = chain[..taken].to_vec();
        for request in &mut chain {
            if let Err(bytes) = &mut request.payload {
                bytes.fill(0xee);
            }
        }
        self.lives[life].requests.extend(kept);
        self.observe();
        let life = &self.lives[life];
        assert!(life.outstanding() <= CAPS.max_send_wr as usize);
        match posted.map_err(|error| error.kind) {
            Ok(()) | Err(PostErrorKind::Device) => {}
            Err(PostErrorKind::QueueFull) => {
                assert_eq!(life.outstanding(), CAPS.max_send_wr as usize, "not full");
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// The program polls. Returns the number of completions.
    pub(crate) fn poll(&mut self, cq: usize, room: usize) -> usize {
        let mut out = vec![Completion::default(); room];
        self.asleep.retain(|other| *other != cq);
        let count = self.cqs[cq].0.poll(&mut out).expect("polls");
        self.observe();
        for done in &out[..count] {
            let life = (done.wr_id >> 32) as usize;
            let pair = self.pairs.iter().find(|pair| pair.life == life);
            assert_eq!(pair.expect("of one that is gone").cq, cq);
            self.lives[life].tells(done);
        }
        count
    }

    /// The program is about to sleep until something completes, so something must complete.
    pub(crate) fn arm(&mut self, cq: usize) {
        self.borrows = true;
        self.asleep.retain(|other| *other != cq);
        self.cqs[cq].0.arm(false);
        self.observe();
        // A completion from before the arming makes no event.
        if self.poll(cq, 4) == 0 {
            self.asleep.push(cq);
            self.observe();
        }
    }

    pub(crate) fn complete(&mut self, pair: usize, count: usize, last: Status) {
        let qpn = self.pairs[pair].qp.qpn().raw();
        self.script.state().complete(qpn, count, last);
        self.observe();
    }

    pub(crate) fn kill(&mut self, pair: usize) {
        let qpn = self.pairs[pair].qp.qpn().raw();
        self.script.state().fail(qpn);
        self.observe();
    }

    pub(crate) fn modify_to_error(&mut self, pair: usize) {
        let attr = QpAttr::to_state(QpState::Error);
        self.pairs[pair].qp.modify(&attr).expect("to ERROR");
        self.observe();
    }

    /// Resets the queue pair: what was in flight is dropped.
    pub(crate) fn reset(&mut self, pair: usize) {
        let attr = QpAttr::to_state(QpState::Reset);
        self.pairs[pair].qp.modify(&attr).expect("to RESET");
        self.observe();
        let (qpn, signal_all) = {
            let life = &self.lives[self.pairs[pair].life];
            (life.qpn, life.signal_all)
        };
        self.pairs[pair].life = self.born(qpn, signal_all);
        self.pairs[pair].qp.modify(&ready()).expect("ready");
    }

    /// Destroys the queue pair and creates another.
    pub(crate) fn destroy(&mut self, pair: usize) {
        let cq = self.pairs[pair].cq;
        let new = self.pair(cq);
        let old = std::mem::replace(&mut self.pairs[pair], new);
        drop(old);
        self.observe();
    }

    pub(crate) fn pass(&mut self, nanos: u64) {
        self.script.state().now += nanos;
    }

    pub(crate) fn qpn(&self, pair: usize) -> u32 {
        self.pairs[pair].qp.qpn().raw()
    }

    /// Number of a queue pair's requests that the device has.
    pub(crate) fn flying(&self, pair: usize) -> usize {
        self.script.state().flying(self.pairs[pair].qp.qpn().raw())
    }

    pub(crate) fn outstanding(&self, pair: usize) -> usize {
        self.lives[self.pairs[pair].life].outstanding()
    }

    /// Completes everything the device has and polls until nothing is left.
    pub(crate) fn settle(&mut self) {
        self.script.state().refuses = false;
        for _ in 0..20_000 {
            if self
                .pairs
                .iter()
                .all(|pair| self.lives[pair.life].is_done())
            {
                return;
            }
            self.pass(5_000);
            for pair in 0..self.pairs.len() {
                self.complete(pair, usize::MAX, Status::Success);
            }
            for cq in 0..self.cqs.len() {
                while self.poll(cq, 16) > 0 {}
            }
        }
        panic!("it does not finish");
    }
}
