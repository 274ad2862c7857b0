//! Two domains, each on its own device. The test passes their messages between them, and injects illegal
//! ones.

use std::net::SocketAddr;
use std::sync::Arc;

use headworks_client::socket_message::Refusal;
use headworks_client::{
    ControlBlock, EgressWriter, Extent, IngressReader, Op, Operation, Reset, Rights, Slabs, Vqpn,
};
use headworks_runtime::{ActorContext, StandaloneContext};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_softnic::hostile::{FaultPoint, Rules, Verdict, rules};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, Instant, Provider};

use crate::domain::{Domain, DomainId, Offer, Output, QpGroupKey};
use crate::frame::{Header, Kind, MEMORY};
use crate::ids::WorkerId;
use crate::limits::DaemonLimits;
use crate::qp_group::QpRole;
use crate::send_queue::OnCompletion;
use crate::session_memory::SessionMemory;

/// Context of a world in which no time passes.
const ALONE: StandaloneContext = StandaloneContext {
    role: "daemon",
    clock: || Instant::ZERO,
};

/// Two domains with a group between them, a session each, and two ends of one connection that do not know
/// each other yet.
struct TwoDomains {
    domains: [Domain; 2],
    groups: [usize; 2],
    sessions: [usize; 2],
    offers: [Offer; 2],
    _directory: tempfile::TempDir,
}

fn key(own: usize) -> QpGroupKey {
    QpGroupKey {
        peer: 1 - own as u64,
        domain: DomainId(1 - own as u32),
    }
}

/// Changes nothing.
struct Unwatched;

impl Interposer for Unwatched {}

/// The device as one that has no shared receive queues.
fn without_srqs(inner: Arc<dyn Device>) -> Arc<dyn Device> {
    let mut info = inner.info().clone();
    (info.limits.max_srq, info.limits.max_srq_wr) = (0, 0);
    Arc::new(InterposedDevice::with_info(
        inner,
        info,
        Arc::new(Unwatched),
    ))
}

impl TwoDomains {
    fn new(config: &DaemonLimits) -> Self {
        Self::with_srqs(config, [true; 2])
    }

    /// Two domains whose devices have shared receive queues or not.
    fn with_srqs(config: &DaemonLimits, has_srqs: [bool; 2]) -> Self {
        Self::with_rules(config, has_srqs, None)
    }

    /// As [`TwoDomains::with_srqs`], with faults that these rules inject.
    fn with_rules(config: &DaemonLimits, has_srqs: [bool; 2], rules: Option<Rules>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(directory.path().join("fabric")).unwrap();
        let mut provider = SoftProvider::on(fabric);
        if let Some(rules) = rules {
            provider = provider.with_rules(rules);
        }
        let mut domains = [0, 1].map(|own| {
            let name = format!("soft:h{own}").parse().unwrap();
            let mut device: Arc<dyn Device> = provider.open(&name).unwrap();
            if !has_srqs[own as usize] {
                device = without_srqs(device);
            }
            let pd = device.alloc_pd().unwrap();
            let memory = SessionMemory::new(&device, &pd, config);
            let number = DomainId(own);
            let worker = WorkerId::FIRST;
            let domain = Domain::new(number, own.into(), worker, (&device, &pd), config);
            let mut domain = domain.unwrap();
            domain.attach(memory, "test".to_owned(), true).unwrap();
            domain
        });
        let opened = domains[0].qp_group(key(0), true).unwrap();
        let mut two = Self {
            groups: [opened; 2],
            sessions: [0, 0],
            offers: [Offer {
                number: Vqpn::default(),
                window: 0,
            }; 2],
            domains,
            _directory: directory,
        };
        two.settle();
        two.groups[1] = two.domains[1].qp_group(key(1), false).unwrap();
        two.settle();
        let address: SocketAddr = "10.0.0.1:7".parse().unwrap();
        two.offers = [0, 1].map(|own| {
            let (group, session) = (two.groups[own], two.sessions[own]);
            let domain = &mut two.domains[own];
            assert!(domain.groups[group].group.is_up());
            domain
                .open(group, session, 0, (address, address), None)
                .unwrap()
        });
        two
    }

    /// Connects the two ends to each other.
    fn connect(&mut self) {
        for own in [0, 1] {
            let (number, other) = (self.offers[own].number, self.offers[1 - own]);
            self.domains[own].connect(number, other).unwrap();
        }
        self.settle();
    }

    fn step(&mut self, own: usize) -> bool {
        let stepped = self.domains[own].step(&mut ActorContext::new(&mut { ALONE }));
        let mut was_busy = stepped.unwrap();
        while let Some(output) = self.domains[own].output() {
            was_busy = true;
            let other = &mut self.domains[1 - own];
            let of = key(1 - own);
            match output {
                Output::BringUp {
                    instance,
                    qp_role,
                    bytes,
                    ..
                } => other.bring_up(of, instance, qp_role, &bytes),
                Output::QpGroupWanted { known, .. } => other.qp_group_wanted(of, known),
                Output::QpGroupDown { instance, .. } => other.qp_group_down(of, instance),
                Output::Slabs { .. }
                | Output::AwaitsPeer { .. }
                | Output::Reply { .. }
                | Output::HandleFreed { .. }
                | Output::Signal { .. }
                | Output::Wake { .. }
                | Output::WakeThread(_)
                | Output::PoolLevel
                | Output::QpGroupProven { .. } => {}
            }
        }
        was_busy || !self.domains[own].is_idle()
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !(self.step(0) | self.step(1)) {
                return;
            }
        }
        panic!("the domains never become idle");
    }

    /// Returns the memory of an end's session as its application has it, and the control block of the connection.
    fn block(&self, own: usize) -> (&Slabs, ControlBlock) {
        let domain = &self.domains[own];
        let connection = domain.connections.get(self.offers[own].number).unwrap();
        let slabs = domain.sessions[self.sessions[own]].memory.slabs();
        (
            slabs,
            ControlBlock::at(slabs, connection.place.block).unwrap(),
        )
    }

    /// Returns the application's writer of the first end.
    fn writer(&self) -> EgressWriter {
        let (slabs, block) = self.block(0);
        EgressWriter::new(slabs, &block).unwrap()
    }

    /// Lets the first end's application send `bytes`, and the second one's receive them.
    fn send(&mut self, writer: &mut EgressWriter, reader: &mut IngressReader, bytes: &[u8]) {
        assert_eq!(writer.write(self.block(0).0, bytes), Ok(bytes.len()));
        self.call();
        self.settle();
        self.receive(reader, bytes);
    }

    /// Lets the second end's application receive `bytes`, which have come.
    fn receive(&mut self, reader: &mut IngressReader, bytes: &[u8]) {
        let mut came = vec![0; bytes.len()];
        let pool = &self.domains[1].pool;
        let mut slabs = self.block(1).0.clone();
        slabs.add(pool.slab(), pool.view().clone()).unwrap();
        assert_eq!(
            reader.read(&slabs, &mut came),
            Ok(bytes.len()),
            "not all came"
        );
        assert_eq!(came, bytes);
        self.domains[1].touched(self.offers[1].number);
        self.settle();
    }

    fn call(&mut self) {
        self.domains[0].call(self.groups[0], self.offers[0].number);
    }

    /// Returns the bytes in use of a session's memory.
    fn in_use(&self, own: usize) -> u64 {
        let session = &self.domains[own].sessions[self.sessions[own]];
        session.memory.bytes().0
    }

    /// Allocates memory of a session.
    fn take(&mut self, own: usize, bytes: u32) -> Extent {
        let session = &mut self.domains[own].sessions[self.sessions[own]];
        session.memory.take(bytes).unwrap()
    }
}

#[test]
fn a_peer_whose_pool_is_in_danger_gets_longer_pieces_in_frames() {
    let mut two = TwoDomains::new(&DaemonLimits {
        ring_bytes: 1 << 18,
        ingress_bytes: 1 << 18,
        ingress_max: 1 << 18,
        ..DaemonLimits::default()
    });
    two.connect();
    let mut near = two.writer();
    let (slabs, block) = two.block(1);
    let mut far = EgressWriter::new(slabs, &block).unwrap();
    let mut announced = |two: &mut TwoDomains, is_in_danger: bool, len: usize| {
        // A short message tells of the pool of the first end.
        two.domains[0].pool.set_in_danger(is_in_danger);
        assert_eq!(near.write(two.block(0).0, &[1; 10]), Ok(10));
        two.call();
        two.settle();
        let before = two.domains[1].groups[two.groups[1]].group.announced;
        assert_eq!(far.write(two.block(1).0, &vec![2; len]), Ok(len));
        two.domains[1].call(two.groups[1], two.offers[1].number);
        two.settle();
        two.domains[1].groups[two.groups[1]].group.announced - before
    };
    let piece = 64 << 10;
    assert_eq!(announced(&mut two, false, piece), 1);
    assert_eq!(announced(&mut two, true, piece), 0, "it goes in frames");
    assert_eq!(announced(&mut two, false, piece), 1);
    // Nobody has read so far, so the rings have little room left.
    drop(two);
    let mut two = TwoDomains::new(&DaemonLimits {
        ring_bytes: 1 << 18,
        copy_below: 32 << 10,
        ..DaemonLimits::default()
    });
    two.connect();
    two.domains[0].groups[two.groups[0]].group.is_peer_short = true;
    let mut near = two.writer();
    assert_eq!(near.write(two.block(0).0, &[1; 32 << 10]), Ok(32 << 10));
    two.call();
    two.settle();
    assert_eq!(two.domains[0].groups[two.groups[0]].group.announced, 1);
}

#[test]
fn a_connection_waiting_for_room_is_queued_once() {
    let mut two = TwoDomains::new(&DaemonLimits {
        bulk_depth: 8,
        bulk_each: 32,
        bulk_max: 4096,
        ..DaemonLimits::default()
    });
    two.connect();
    let operation = Operation {
        op: Op::Write,
        export_id: 1,
        at: 0,
        local: two.take(0, 1 << 16),
        operand: 0,
        compare: 0,
        result: two.take(0, 64).part(0, 16),
    };
    let target = two.take(1, 1 << 16);
    let other = &two.domains[1].sessions[two.sessions[1]];
    let memory = other.memory.remote(target);
    let number = two.offers[0].number;
    let connection = two.domains[0].connections.get_mut(number).unwrap();
    assert!(connection.egress.imports.add(1, memory, Rights::ALL));
    let mut writer = two.writer();
    let slabs = two.domains[0].sessions[two.sessions[0]].memory.slabs();
    assert!(writer.operate(slabs, &operation).unwrap().is_some());
    for _ in 0..20 {
        // Completions are not polled, so the queue pair stays full.
        two.call();
        two.domains[0].serve_groups();
    }
    let group = &two.domains[0].groups[two.groups[0]].group;
    assert_eq!(group.bulk.room(), 0);
    assert_eq!(group.waiting.len(), 1);
}

#[test]
fn a_long_record_is_announced_whole_where_the_ring_wraps() {
    let mut two = TwoDomains::new(&DaemonLimits {
        bulk_min: 1024,
        ring_bytes: 4096,
        ring_max: 4096,
        ..DaemonLimits::default()
    });
    two.connect();
    let mut writer = two.writer();
    let (slabs, block) = two.block(1);
    let mut reader = IngressReader::new(slabs, &block).unwrap();
    two.send(&mut writer, &mut reader, &[1; 3500]);
    let announced = |two: &TwoDomains| two.domains[0].groups[two.groups[0]].group.announced;
    let before = announced(&two);
    // Before the end of the ring there is room for less than the record.
    two.send(&mut writer, &mut reader, &[2; 2000]);
    assert_eq!(announced(&two) - before, 1);
}

#[test]
fn an_end_that_is_refused_keeps_its_memory_while_something_is_read_into_it() {
    let mut two = TwoDomains::new(&DaemonLimits::default());
    // The end here was made for a caller that announces data and then gives up the connection.
    let from = two.take(1, 4096);
    let number = two.offers[0].number;
    let other = &mut two.domains[1];
    let session = &other.sessions[two.sessions[1]];
    let group = &mut other.groups[two.groups[1]].group;
    for (at, len) in [(0, 512), (512, 512)] {
        let (view, body, _) = group.body();
        let memory = session.memory.remote(from);
        view.write(body, &memory.emit_memory()).unwrap();
        let header = Header {
            at,
            len,
            ..Header::of(Kind::Announce)
        };
        group.send(
            QpRole::Frames,
            number,
            header,
            MEMORY,
            OnCompletion::Nothing,
        );
    }
    group.flush().unwrap();
    while two.domains[0].groups[two.groups[0]].group.reads == 0 {
        two.step(0);
    }
    let in_use = two.in_use(0);
    two.domains[0].refuse(number);
    assert!(two.domains[0].connections.get(number).is_some());
    assert_eq!(two.in_use(0), in_use);
    two.settle();
    assert!(two.domains[0].connections.get(number).is_none());
    assert!(two.in_use(0) < in_use);
    assert_eq!(two.domains[0].groups[two.groups[0]].group.reads, 0);
    // An end that was offered nothing goes at once.
    let number = two.offers[1].number;
    two.domains[1].refuse(number);
    assert!(two.domains[1].connections.get(number).is_none());
}

#[test]
fn a_malformed_record_behind_a_frame_is_still_detected() {
    let mut two = TwoDomains::new(&DaemonLimits::default());
    two.connect();
    let mut writer = two.writer();
    let number = two.offers[0].number;
    let domain = &two.domains[0];
    let slabs = domain.sessions[two.sessions[0]].memory.slabs();
    for bytes in [&b"right"[..], b"pad", b"and two more."] {
        assert_eq!(writer.write(slabs, bytes).unwrap(), bytes.len());
    }
    // Two pads and a record. The second pad is wrong only for a reader that remembers the first.
    let connection = domain.connections.get(number).unwrap();
    let ring = connection.egress.memory().next().unwrap();
    let view = domain.sessions[two.sessions[0]].memory.slab(ring.slab);
    for (at, kind, len) in [(16, 2, 8), (32, 1, 0), (40, 1, 3)] {
        let word = (u64::from(kind as u32) | (len as u64) << 32).to_le_bytes();
        view.unwrap()
            .write(ring.offset as usize + at, &word)
            .unwrap();
    }
    two.call();
    two.settle();
    let connection = two.domains[0].connections.get(number).unwrap();
    assert!(!connection.is_alive());
    let come = two.domains[1].connections.get(two.offers[1].number);
    assert_eq!(come.unwrap().ingress.come(), 5);
}

/// A clock of the tests below, in nanoseconds.
static NOW: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

fn tick(two: &mut TwoDomains) {
    use std::sync::atomic::Ordering;
    let clock =
        || Instant::ZERO + headworks_verbs::Duration::from_nanos(NOW.load(Ordering::Relaxed));
    let ticking = StandaloneContext {
        role: "daemon",
        clock,
    };
    for _ in 0..4 {
        for own in [0, 1] {
            let stepped = two.domains[own].step(&mut ActorContext::new(&mut { ticking }));
            stepped.unwrap();
            while two.domains[own].output().is_some() {}
        }
    }
    NOW.fetch_add(50_000, Ordering::Relaxed);
}

/// Has the pool of the second domain signal, as in danger.
fn signal(two: &mut TwoDomains) {
    let at = two.groups[1];
    two.domains[1].groups[at].group.is_slow_due = true;
    two.domains[1].activate(at);
}

#[test]
fn a_signal_slows_down_sends_and_writes_of_its_link_alone() {
    let mut two = TwoDomains::new(&DaemonLimits::default());
    two.connect();
    let mut writer = two.writer();
    let (slabs, block) = two.block(1);
    let mut reader = IngressReader::new(slabs, &block).unwrap();
    let (source, result) = (two.take(0, 4096), two.take(0, 64).part(0, 16));
    let target = two.take(1, 4096);
    let memory = two.domains[1].sessions[two.sessions[1]]
        .memory
        .remote(target);
    let number = two.offers[0].number;
    let connection = two.domains[0].connections.get_mut(number).unwrap();
    assert!(connection.egress.imports.add(1, memory, Rights::ALL));
    let write = Operation {
        op: Op::Write,
        export_id: 1,
        at: 0,
        local: source,
        operand: 0,
        compare: 0,
        result,
    };
    // Bytes that arrive, or are WRITTEN, in 10 ms in which the application sends whenever it can.
    let mut load = |two: &mut TwoDomains, writes: bool| {
        let mut bytes = 0;
        for _ in 0..200 {
            let slabs = two.domains[0].sessions[two.sessions[0]]
                .memory
                .slabs()
                .clone();
            if writes {
                let _ = writer.operate(&slabs, &write).unwrap();
            } else {
                writer.write(&slabs, &[7; 1000]).unwrap();
            }
            two.call();
            let before = two.domains[0].connections.get(number).unwrap();
            let before = before.egress.operations_done();
            tick(two);
            let after = two.domains[0].connections.get(number).unwrap();
            bytes += (after.egress.operations_done() - before) as usize * 4096;
            let slabs = two.block(1).0.clone();
            bytes += reader.read(&slabs, &mut [0; 65_536]).unwrap();
            two.domains[1].touched(two.offers[1].number);
        }
        bytes
    };
    for writes in [false, true] {
        // Until the rings have grown.
        load(&mut two, writes);
        let free = load(&mut two, writes);
        signal(&mut two);
        load(&mut two, writes);
        signal(&mut two);
        let slowed = load(&mut two, writes);
        assert!(
            slowed < free * 7 / 10,
            "writes {writes}: {slowed} of {free}"
        );
        assert!(slowed > free / 10, "writes {writes}: {slowed} of {free}");
        // It rises again by itself.
        for _ in 0..20 {
            load(&mut two, writes);
        }
        let again = load(&mut two, writes);
        assert!(again > free * 9 / 10, "writes {writes}: {again} of {free}");
    }
}

/// Checks that a domain with receives of its own has lost none, and has as many posted as its peers were promised.
fn check_receives(domain: &Domain) {
    assert!(domain.receives.srq().is_none());
    let all = || domain.groups.iter().map(|(_, entry)| &entry.group);
    for group in all() {
        let held = group.own_receives.held() as u64;
        assert_eq!(group.credit.outstanding(), held);
    }
    let held: usize = all().map(|group| group.own_receives.held()).sum();
    let shares = &domain.receive_shares;
    assert_eq!(shares.promised() as usize, held);
    assert_eq!(shares.posted() as usize - held, domain.receives.idle());
}

#[test]
fn domains_without_shared_receive_queues_exchange_messages() {
    let config = DaemonLimits {
        receives: 16,
        receives_max: 32,
        qp_group_floor: 4,
        qp_group_share: 12,
        ..DaemonLimits::default()
    };
    for has_srqs in [[false, false], [false, true], [true, false]] {
        let mut two = TwoDomains::with_srqs(&config, has_srqs);
        two.connect();
        let mut near = two.writer();
        let (slabs, block) = two.block(1);
        let mut reader = IngressReader::new(slabs, &block).unwrap();
        for round in 0..200u8 {
            for len in [1, 300, 2000] {
                two.send(&mut near, &mut reader, &vec![round; len]);
            }
            for own in (0..2).filter(|own| !has_srqs[*own]) {
                check_receives(&two.domains[own]);
            }
        }
        let group = &two.domains[1].groups[two.groups[1]].group;
        assert!(group.credit.got() > 600);
        assert_eq!(group.credit.outstanding(), 12, "the sender has its share");
    }
}

#[test]
fn a_receive_that_a_queue_pair_has_no_room_for_is_posted_and_promised_later() {
    let config = DaemonLimits {
        frame_bytes: 256,
        receives: 16,
        receives_max: 32,
        qp_group_floor: 4,
        qp_group_share: 12,
        ..DaemonLimits::default()
    };
    // The device refuses each receive three times, except the first one of an empty queue.
    let full =
        rules::by(|event, _| (event.point == FaultPoint::PostReceive).then_some(Verdict::Refuse));
    let rules = Rules::new(1).with(full);
    let mut two = TwoDomains::with_rules(&config, [false; 2], Some(rules));
    two.connect();
    let mut near = two.writer();
    let (slabs, block) = two.block(1);
    let mut reader = IngressReader::new(slabs, &block).unwrap();
    let mut waited = 0;
    for round in 0..200u8 {
        // These are more frames than the peer has promised receives.
        let bytes = vec![round; 1900];
        assert_eq!(near.write(two.block(0).0, &bytes), Ok(bytes.len()));
        two.call();
        while two.step(0) | two.step(1) {
            for domain in two.domains.iter().filter(|one| !one.refill.is_empty()) {
                waited += 1;
                assert!(!domain.is_idle());
                assert!(domain.receive_shares.promised() <= domain.receive_shares.posted());
            }
        }
        two.receive(&mut reader, &bytes);
        check_receives(&two.domains[0]);
        check_receives(&two.domains[1]);
    }
    assert!(waited > 200, "{waited}");
}

/// Makes the first domain's peer send a frame that promises more than is allowed.
fn send_illegal_frame(two: &mut TwoDomains) {
    let group = &mut two.domains[1].groups[two.groups[1]].group;
    let header = Header {
        promised: u64::MAX,
        ..Header::of(Kind::Tell)
    };
    let frames = group.channel(QpRole::Frames);
    frames.frame(Vqpn::default(), &header, 0, OnCompletion::Nothing);
    group.flush().unwrap();
}

#[test]
fn a_group_that_dies_and_comes_back_gets_its_receives_back() {
    // A group takes all receives at once.
    let config = DaemonLimits {
        receives: 16,
        receives_max: 16,
        qp_group_floor: 16,
        qp_group_share: 16,
        ..DaemonLimits::default()
    };
    let mut two = TwoDomains::with_srqs(&config, [false; 2]);
    for round in 0..300 {
        match round % 3 {
            0 => two.domains[0].fail(two.groups[0], Reset::Unreachable),
            1 => send_illegal_frame(&mut two),
            // The second domain has lost its group, and the first one does not know yet.
            _ => two.domains[1].fail(two.groups[1], Reset::Unreachable),
        }
        if round % 2 == 0 {
            two.settle();
            assert!(two.domains[0].groups.is_empty(), "round {round}");
            assert!(two.domains[1].groups.is_empty(), "round {round}");
            for domain in &two.domains {
                assert_eq!(domain.receive_shares.promised(), 0, "round {round}");
                assert_eq!(domain.receives.idle(), 16, "round {round}");
            }
        } else {
            // The group comes back before any completion of the failed one is polled.
            two.domains[0].fail(two.groups[0], Reset::Unreachable);
        }
        two.groups[0] = two.domains[0].qp_group(key(0), true).unwrap();
        two.settle();
        two.groups[1] = two.domains[1].qp_group(key(1), false).unwrap();
        two.settle();
        for (own, domain) in two.domains.iter().enumerate() {
            assert!(domain.groups[two.groups[own]].group.is_proven());
            check_receives(domain);
        }
    }
    assert_eq!(two.domains[0].receive_shares.posted(), 16);
}

#[test]
fn a_group_that_finds_no_receives_of_its_own_is_refused() {
    let config = DaemonLimits {
        receives: 16,
        receives_max: 16,
        qp_group_floor: 5,
        qp_group_share: 16,
        ..DaemonLimits::default()
    };
    let mut two = TwoDomains::with_srqs(&config, [false; 2]);
    let domain = &mut two.domains[0];
    let other = |peer| QpGroupKey {
        peer,
        domain: DomainId(7),
    };
    // The group of the two domains has five receives.
    let second = domain.qp_group(other(10), true).unwrap();
    domain.qp_group(other(11), true).unwrap();
    assert_eq!(domain.qp_group(other(12), true), Err(Refusal::Limit));
    check_receives(domain);
    domain.fail(second, Reset::Unreachable);
    domain.qp_group(other(12), true).unwrap();
    assert_eq!(domain.qp_group(other(13), true), Err(Refusal::Limit));
    check_receives(domain);
}
