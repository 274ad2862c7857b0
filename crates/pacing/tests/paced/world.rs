//! Paced devices over one scripted one, what their program posted, and what must come of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_pacing::share::BYTES;
use headworks_pacing::{Config, PacedDevice, Pacing, Share};
use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};
use headworks_verbs::{
    Completion, CompletionQueue, CqInit, Device, DeviceInfo, Instant, Opcode, Payload,
    PostErrorKind, ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair, SendFlags,
    SendOp, SendWr, Sge, Status,
};

use crate::script::{Event, Script, opcode};

/// When everything begins.
pub(crate) const START: u64 = 1_000_000_000;

/// A request as a program has it.
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

/// Byte by byte where they lie.
fn places(sges: &[Sge]) -> Vec<(u64, u32)> {
    let each = |sge: &Sge| {
        let (first, lkey) = (sge.addr, sge.lkey);
        (0..u64::from(sge.len)).map(move |at| (first + at, lkey))
    };
    sges.iter().flat_map(each).collect()
}

/// Bytes of a slice that another follows: up to the last line of the cache that ends within it, there.
fn whole_lines(op: &SendOp, done: u64, slice: u64) -> u64 {
    let (SendOp::Write(there) | SendOp::WriteImm(there, _) | SendOp::Read(there)) = op else {
        unreachable!("not cut");
    };
    let first = there.addr + done;
    (first + slice) / 64 * 64 - first
}

/// A queue pair from one reset to the next.
#[derive(Default)]
struct Life {
    qpn: u32,
    signal_all: bool,
    requests: Vec<Request>,
    /// How far the device has them: whole ones, bytes of the next, where those lay.
    posted: (usize, u64, Vec<(u64, u32)>),
    /// Which request each slice is of that the device has, and whether it is its last.
    slices: Vec<(usize, bool)>,
    /// Of them those that are over.
    over: usize,
    fates: BTreeMap<usize, Status>,
    has_failed: bool,
    /// The program was told of requests before this one.
    told: usize,
}

impl Life {
    fn is_signaled(&self, index: usize) -> bool {
        self.signal_all || self.requests[index].flags.contains(SendFlags::SIGNALED)
    }

    /// The device was given a slice: of the right request, with the right bytes.
    fn goes(&mut self, config: &Config, event: &Event) {
        let Event::Posted {
            op, payload, flags, ..
        } = event
        else {
            return;
        };
        let slice = config.slice_bytes as u64;
        let (mut index, mut done, mut seen) = std::mem::take(&mut self.posted);
        if self.has_failed {
            // What waited was flushed without the device: it has a later one.
            let found = (index..self.requests.len()).find(|at| {
                let request = &self.requests[*at];
                let same = |flag| flags.contains(flag) == request.flags.contains(flag);
                let is_this = request.op == *op && request.payload == *payload;
                let is_this = is_this && same(SendFlags::FENCE) && same(SendFlags::SOLICITED);
                is_this && (done == 0 || *at > index)
            });
            if let Some(found) = found.filter(|found| *found > index) {
                (index, done) = (found, 0);
                seen.clear();
            }
        }
        let request = &self.requests[index];
        let len = request.len();
        let cut = match request.op {
            SendOp::Write(_) | SendOp::Read(_) => len > slice,
            SendOp::WriteImm(..) => len > slice && config.slice_imm != 0.0,
            _ => false,
        };
        let cut = cut && request.payload.is_ok();
        let here = match request.op {
            op if cut && len - done > slice => whole_lines(&op, done, slice),
            _ if cut => len - done,
            _ => len,
        };
        let is_last = done + here == len;
        let expected = match request.op {
            op if !cut => op,
            SendOp::Write(to) => SendOp::Write(to.plus(done)),
            SendOp::Read(from) => SendOp::Read(from.plus(done)),
            SendOp::WriteImm(to, imm) if is_last => SendOp::WriteImm(to.plus(done), imm),
            SendOp::WriteImm(to, _) => SendOp::Write(to.plus(done)),
            _ => unreachable!("not cut"),
        };
        assert_eq!(*op, expected, "request {index} from {done}");
        assert!(flags.contains(SendFlags::SIGNALED));
        let fences = request.flags.contains(SendFlags::FENCE);
        assert_eq!(flags.contains(SendFlags::FENCE), fences && done == 0);
        let solicits = request.flags.contains(SendFlags::SOLICITED);
        assert_eq!(flags.contains(SendFlags::SOLICITED), solicits && is_last);
        match (payload, &request.payload) {
            (Ok(found), Ok(all)) => {
                let found = places(found);
                assert_eq!(found.len() as u64, here);
                seen.extend(found);
                assert!(!is_last || seen == places(all), "its bytes lie elsewhere");
            }
            (Err(found), Err(all)) => assert_eq!(found, all, "inline bytes of posting"),
            _ => panic!("inline and not"),
        }
        self.slices.push((index, is_last));
        self.posted = match is_last {
            true => (index + 1, 0, Vec::new()),
            false => (index, done + here, seen),
        };
    }

    fn ends(&mut self, status: Status) {
        let (index, is_last) = self.slices[self.over];
        self.over += 1;
        self.has_failed |= status != Status::Success;
        if status != Status::Success || is_last {
            self.fates.entry(index).or_insert(status);
        }
    }

    /// The program was told something: of the next request that it asked the completion of, or that failed.
    fn tells(&mut self, done: &Completion) {
        let index = done.wr_id as u32 as usize;
        assert!(index >= self.told, "request {index} is told of again");
        for earlier in self.told..index {
            let fate = self.fates.get(&earlier);
            assert!(
                fate == Some(&Status::Success) && !self.is_signaled(earlier),
                "request {index} is told of, and {earlier} was not: {fate:?}"
            );
        }
        match self.fates.get(&index) {
            Some(fate) => assert_eq!(done.status, *fate, "request {index}"),
            // What the device never had all of.
            None => {
                assert_eq!(done.status, Status::Flushed, "request {index}");
                assert!(self.has_failed, "flushed for nothing");
            }
        }
        let request = &self.requests[index];
        if done.status == Status::Success {
            assert!(self.is_signaled(index), "nobody asked");
            assert_eq!(done.opcode, opcode(&request.op));
            if done.opcode == Opcode::Read {
                assert_eq!(u64::from(done.byte_len), request.len());
            }
        }
        assert_eq!(done.qpn.raw(), self.qpn);
        assert_eq!(done.timestamp, Instant::ZERO, "nobody asked for one");
        self.told = index + 1;
    }

    fn outstanding(&self) -> usize {
        self.requests.len() - self.told
    }

    /// All is over and told of.
    fn is_done(&self) -> bool {
        let mut left = self.told..self.requests.len();
        left.all(|index| {
            self.fates.get(&index) == Some(&Status::Success) && !self.is_signaled(index)
        })
    }
}

/// A queue pair of the program.
struct Pair {
    qp: Box<dyn QueuePair>,
    /// Its completion queue.
    cq: usize,
    life: usize,
}

/// A process with a device.
struct Host {
    /// Lives as long as what was made of it.
    _device: PacedDevice,
    domain: Arc<dyn ProtectionDomain>,
}

pub(crate) struct World {
    pub(crate) script: Script,
    pub(crate) config: Arc<Config>,
    share: Share,
    hosts: Vec<Host>,
    /// And whose they are.
    cqs: Vec<(Arc<dyn CompletionQueue>, usize)>,
    pairs: Vec<Pair>,
    lives: Vec<Life>,
    seen: usize,
    /// Bytes that the device was given, the largest request, and whether some were not due.
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

pub(crate) fn share() -> Share {
    let request = SegmentRequest {
        name: "pacing-test",
        len: BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
    };
    let segment = SharedSegment::create(&request).expect("memory");
    Share::over(View::from(Arc::new(segment))).expect("long enough")
}

/// A paced device over a scripted one.
pub(crate) fn device(script: &Script, share: &Share, config: &Arc<Config>) -> PacedDevice {
    device_that_is(script.info().clone(), script, share, config)
}

/// The same of one that is said to be this.
pub(crate) fn device_that_is(
    info: DeviceInfo,
    script: &Script,
    share: &Share,
    config: &Arc<Config>,
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

fn ready() -> QpAttr {
    QpAttr {
        state: Some(QpState::Rts),
        max_rd_atomic: Some(4),
        ..QpAttr::default()
    }
}

impl World {
    /// One process with two completion queues and three queue pairs, and others with one of each.
    pub(crate) fn new(config: Config, others: usize) -> Self {
        let (script, share, config) = (Script::new(START), share(), Arc::new(config));
        let mut world = Self {
            script,
            config,
            share,
            hosts: Vec::new(),
            cqs: Vec::new(),
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
        self.lives.push(Life {
            qpn,
            signal_all,
            ..Life::default()
        });
        self.lives.len() - 1
    }

    /// Whatever the device was given and finished since is as it should be.
    fn observe(&mut self) {
        let events = self.script.state().events[self.seen..].to_vec();
        self.seen += events.len();
        for event in &events {
            let (Event::Posted { qpn, .. } | Event::Over { qpn, .. }) = event;
            let life = self.pairs.iter().find(|pair| pair.qp.qpn().raw() == *qpn);
            let life = &mut self.lives[life.expect("of a queue pair that is there").life];
            match event {
                Event::Posted { payload, at, .. } => {
                    let len = match payload {
                        Ok(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
                        Err(bytes) => bytes.len() as u64,
                    };
                    life.goes(&self.config, event);
                    let cost = len + self.config.overhead_bytes as u64;
                    self.pays(cost, *at);
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
    }

    /// No credit comes from nothing, however many share.
    fn pays(&mut self, cost: u64, at: u64) {
        self.given += cost;
        if self.borrows || self.config.window != 0.0 {
            return;
        }
        let passed = u128::from(at - START) * u128::from(self.config.line_rate()) / 1_000_000_000;
        // The last credit may be as much as one takes at once, or as a request needs.
        let last = self.largest.max(self.config.quantum_bytes as u64);
        let due = passed + u128::from(self.config.burst_bytes as u64 + last);
        let given = self.given;
        assert!(u128::from(given) <= due + 1, "{given} of {due}");
    }

    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    pub(crate) fn cqs(&self) -> usize {
        self.cqs.len()
    }

    /// The program posts a chain, and writes over its inline bytes afterwards.
    pub(crate) fn post(&mut self, pair: usize, mut chain: Vec<Request>) {
        let life = self.pairs[pair].life;
        let first = self.lives[life].requests.len();
        for request in &chain {
            // Also of one that is refused: what was paid for it is there for others.
            let cost = request.len() + self.config.overhead_bytes as u64;
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

    /// The program polls. Says how many there were.
    pub(crate) fn poll(&mut self, cq: usize, room: usize) -> usize {
        let mut out = vec![Completion::default(); room];
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

    /// The program is about to sleep until something completes: something must.
    pub(crate) fn arm(&mut self, cq: usize) {
        self.borrows = true;
        self.cqs[cq].0.arm(false);
        self.observe();
        if self.poll(cq, 4) > 0 {
            return;
        }
        let mut pairs = self.pairs.iter().filter(|pair| pair.cq == cq);
        if pairs.clone().all(|pair| self.lives[pair.life].is_done()) {
            return;
        }
        // What was over before makes no event.
        let state = self.script.state();
        let wakes = pairs.any(|pair| {
            let qpn = pair.qp.qpn().raw();
            state.flying(qpn) > 0 || state.rings(qpn)
        });
        assert!(
            wakes,
            "requests wait, and nothing is under way that would wake anybody"
        );
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

    /// The queue pair is as new: what was under way is nobody's.
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

    /// The queue pair is gone, and there is another.
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

    /// Requests of a queue pair that the device has.
    pub(crate) fn flying(&self, pair: usize) -> usize {
        self.script.state().flying(self.pairs[pair].qp.qpn().raw())
    }

    pub(crate) fn outstanding(&self, pair: usize) -> usize {
        self.lives[self.pairs[pair].life].outstanding()
    }

    /// The device does all it has and the program polls: everything comes to its end.
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
        panic!("it comes to no end");
    }
}
