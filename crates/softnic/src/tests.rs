//! Tests that need the crate's internals: keys that repeat, marks of executing, descriptors, stopped
//! peers. What can be tested from outside is in the conformance suite.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};

use headworks_shm::segment::LAYOUT_VERSION;
use headworks_shm::{
    ContextClaim, ContextRecord, DescriptorRequest, DescriptorSource, HostKey, Registry,
};
use headworks_verbs::{
    Access, AllocRequest, AsyncEvent, Buffer, Completion, CompletionQueue, CqInit, Device, Gid,
    ModifyError, Mtu, Payload, PollError, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn,
    QueuePair, RecvWr, Region, RemoteAddr, ResourceError, RnrTimer, SendFlags, SendOp, SendWr,
    SharedReceiveQueue, SrqId, SrqInit, Status,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::device::SoftDevice;
use crate::control::provider::info;
use crate::datapath::context::Context;
use crate::datapath::cq::CqPort;
use crate::datapath::mr_key_check::MrKeyCheck;
use crate::datapath::qp::SoftQp;
use crate::datapath::srq::{OWNER, SoftSrq};
use crate::table::addresses::{host_of, slot_of};
use crate::table::rows::{CqSlot, Executing, MAX_REGION, RecvSlot};

mod bounce;
pub(crate) mod child;
mod counters;
mod datagram_senders;
mod datagrams;
mod deaths;
mod hostile;
mod hostile_qps;
mod local_mrs;
mod many_queue_pairs;
mod memory_limits;
mod observers;
mod other_user;
mod refusals;
mod write_path;

/// Far longer than anything in a correct run takes.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

/// The protection domain that tests use unless they say otherwise.
const PD: u32 = 1;

struct Fabric {
    folder: tempfile::TempDir,
    dir: Arc<Registry>,
}

impl Fabric {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = Registry::open_at(folder.path().join("fabric")).unwrap();
        Self { folder, dir }
    }

    fn open(&self, name: &str) -> SoftDevice {
        let info = info(&name.parse().unwrap());
        SoftDevice::over(Context::open(self.dir.clone(), info).unwrap())
    }

    /// Makes two connected queue pairs, each on a host of its own.
    fn pair(&self) -> [TestQp; 2] {
        let mut ends = ["soft:h1", "soft:h2"].map(|name| TestQp::new(self.open(name), None, 16));
        connect(&mut ends);
        ends
    }
}

/// A queue pair with a CQ and a region of 4 KiB.
struct TestQp {
    // Dropped in this order.
    qp: SoftQp,
    region: Region,
    cq: Arc<dyn CompletionQueue>,
    device: SoftDevice,
}

fn cq_init(depth: u32) -> CqInit {
    CqInit {
        depth,
        channel: None,
        timestamps: false,
    }
}

fn qp_init(cq: &Arc<dyn CompletionQueue>, srq: Option<Arc<dyn SharedReceiveQueue>>) -> QpInit {
    QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq,
        caps: QpCaps::default(),
        signal_all: true,
    }
}

fn region(device: &SoftDevice, pd: u32) -> Region {
    let buffer: Arc<dyn Buffer> = device.alloc(&AllocRequest::of(4096)).unwrap();
    device.register(pd, &buffer, Access::ALL).unwrap()
}

/// Fills memory that nothing may write to.
const CANARY: u8 = 0xc5;

/// Fills a buffer with a byte. The buffer's length must be a multiple of 8.
#[allow(unsafe_code)]
fn fill(buffer: &Arc<dyn Buffer>, byte: u8) {
    let words = buffer.as_ptr().cast::<u64>();
    for at in 0..buffer.len() / 8 {
        // SAFETY: in range of the buffer, which is aligned. Others may write it too, hence volatile.
        unsafe { words.add(at).write_volatile(u64::from_ne_bytes([byte; 8])) };
    }
}

/// Returns whether the buffer holds nothing but `byte`.
fn holds(buffer: &Arc<dyn Buffer>, byte: u8) -> bool {
    words_of(buffer).all(|word| word == u64::from_ne_bytes([byte; 8]))
}

/// The words of a buffer, whose length must be a multiple of 8.
#[allow(unsafe_code)]
fn words_of(buffer: &Arc<dyn Buffer>) -> impl Iterator<Item = u64> + use<> {
    let buffer = buffer.clone();
    (0..buffer.len() / 8).map(move |at| {
        // SAFETY: as above.
        unsafe { buffer.as_ptr().cast::<u64>().add(at).read_volatile() }
    })
}

impl TestQp {
    fn new(device: SoftDevice, srq: Option<Arc<dyn SharedReceiveQueue>>, depth: u32) -> Self {
        Self::of_type(QpType::Rc, device, srq, depth)
    }

    fn of_type(
        qp_type: QpType,
        device: SoftDevice,
        srq: Option<Arc<dyn SharedReceiveQueue>>,
        depth: u32,
    ) -> Self {
        let cq = device.create_cq(&cq_init(depth)).unwrap();
        let init = QpInit {
            qp_type,
            ..qp_init(&cq, srq)
        };
        Self {
            qp: device.create_qp(PD, &init).unwrap(),
            region: region(&device, PD),
            cq,
            device,
        }
    }

    fn executing(&self) -> &Executing {
        let slot = slot_of(self.qp.qpn().raw());
        &self.device.context.table.qp(slot).executing
    }

    fn post(&mut self, op: SendOp) {
        self.post_bytes(op, 8);
    }

    /// Posts a request of the region's first `len` bytes.
    fn post_bytes(&mut self, op: SendOp, len: u32) {
        let sges = [self.region.sge(0, len)];
        let wr = SendWr {
            wr_id: 7,
            op,
            payload: Payload::Gather(&sges),
            flags: SendFlags::default(),
        };
        self.qp.post_send(&[wr]).unwrap();
    }

    fn receive_as(&mut self, wr_id: u64) {
        let sges = [self.region.sge(0, 8)];
        let sges = &sges[..];
        self.qp.post_recv(&[RecvWr { wr_id, sges }]).unwrap();
    }

    fn completed(&self) -> Completion {
        let mut out = [Completion::default()];
        until("a completion", || self.cq.poll(&mut out) == Ok(1));
        out[0]
    }

    /// WRITEs into a region, and returns the completion's status.
    fn write_to(&mut self, target: &Region) -> Status {
        self.post(SendOp::Write(RemoteAddr {
            addr: target.addr(0),
            rkey: target.rkey(),
        }));
        self.completed().status
    }
}

fn to_init() -> QpAttr {
    QpAttr {
        access: Some(Access::ALL),
        ..QpAttr::to_state(QpState::Init)
    }
}

fn to_rtr(gid: Gid, qpn: Qpn) -> QpAttr {
    QpAttr {
        dest_gid: Some(gid),
        dest_qpn: Some(qpn),
        rq_psn: Some(Psn::truncated(1)),
        path_mtu: Some(Mtu::B4096),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(RnrTimer::default()),
        ..QpAttr::to_state(QpState::Rtr)
    }
}

fn connect(ends: &mut [TestQp; 2]) {
    let names = [0, 1].map(|at: usize| (ends[at].device.info().gid, ends[at].qp.qpn()));
    for (end, (gid, qpn)) in ends.iter_mut().zip([names[1], names[0]]) {
        join(&mut end.qp, gid, qpn);
    }
}

/// Connects a queue pair to another.
fn join(qp: &mut SoftQp, gid: Gid, qpn: Qpn) {
    let is_reliable = qp.qp_type().is_reliable();
    let rtr = to_rtr(gid, qpn);
    let steps = [
        to_init(),
        QpAttr {
            max_dest_rd_atomic: rtr.max_dest_rd_atomic.filter(|_| is_reliable),
            min_rnr_timer: rtr.min_rnr_timer.filter(|_| is_reliable),
            ..rtr
        },
        QpAttr {
            sq_psn: Some(Psn::truncated(1)),
            timeout: is_reliable.then_some(0),
            retry_count: is_reliable.then_some(7),
            rnr_retry: is_reliable.then_some(7),
            max_rd_atomic: is_reliable.then_some(1),
            ..QpAttr::to_state(QpState::Rts)
        },
    ];
    for step in &steps {
        qp.modify(step).unwrap();
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "waited for {what} in vain");
        std::thread::yield_now();
    }
}

/// Runs code that might hang, and fails if it does.
fn within_limit<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(f()));
    receiver.recv_timeout(LIMIT).expect("hangs or panics")
}

#[test]
fn a_key_that_comes_round_revives_no_translation() {
    let fabric = Fabric::new();
    let device = fabric.open("soft");
    let (context, own) = (&device.context, &device.context.own);
    let mut known = MrKeyCheck::default();
    let before = region(&device, PD);
    let (key, addr) = (before.lkey(), before.addr(0));
    let row = key % MAX_REGION as u32;
    assert!(known.span(own, (key, PD), addr, 8, Access::NONE).is_ok());
    let generation = context.region_rows.generation(row);
    drop(before);
    // A key has the low 18 bits of the generation: the next registration repeats the key.
    context.region_rows.age(row, generation + (1 << 18) - 1);
    let after = region(&device, PD);
    assert_eq!(after.lkey(), key);
    assert!(known.cached(key, addr, 8, Access::NONE).is_none());
    let addr = after.addr(0);
    assert!(known.span(own, (key, PD), addr, 8, Access::NONE).is_ok());
    assert!(known.cached(key, addr, 8, Access::NONE).is_some());
}

#[test]
fn as_many_regions_as_there_is_room_for_stay_known_and_one_alone_takes_no_more_room() {
    let fabric = Fabric::new();
    let device = fabric.open("soft");
    let own = &device.context.own;
    let mut known = MrKeyCheck::default();
    let look_up = |known: &mut MrKeyCheck, of: &headworks_verbs::Region| {
        let key = (of.lkey(), PD);
        known.span(own, key, of.addr(0), 8, Access::NONE).is_ok()
    };
    let first = region(&device, PD);
    assert!(look_up(&mut known, &first));
    assert!(!known.has_more());
    let others: Vec<_> = (0..8).map(|_| region(&device, PD)).collect();
    for other in &others {
        assert!(look_up(&mut known, other));
    }
    assert!(known.has_more());
    for of in others.iter().chain([&first]) {
        let cached = known.cached(of.lkey(), of.addr(0), 8, Access::NONE);
        assert!(cached.is_some(), "{of:?}");
    }
    // The cache entry of a region that is gone is reused.
    let key = first.lkey();
    drop(first);
    assert!(known.cached(key, 0, 8, Access::NONE).is_none());
    let mut alone = MrKeyCheck::default();
    for _ in 0..3 {
        assert!(look_up(&mut alone, &region(&device, PD)));
    }
    assert!(!alone.has_more());
}

/// Panics when something is logged. This is the only way to make a post panic without a bug of ours.
struct Panics;

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("a subscriber that panics");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_post_that_panics_leaves_no_mark_of_executing() {
    let fabric = Fabric::new();
    let mut ends = ["soft:h1", "soft:h2"].map(|name| TestQp::new(fabric.open(name), None, 2));
    connect(&mut ends);
    let [a, b] = &mut ends;
    let target = RemoteAddr {
        addr: b.region.addr(0),
        rkey: b.region.rkey(),
    };
    // Overruns the CQ, which is logged.
    let posted = tracing::subscriber::with_default(Panics, || {
        catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..3 {
                a.post(SendOp::Write(target));
            }
        }))
    });
    assert!(posted.is_err());
    let underway = a.executing().underway();
    assert!(underway.is_over(&underway), "{underway:?}");
}

#[test]
fn channels_of_cqs_that_are_gone_are_let_go() {
    let fabric = Fabric::new();
    let (device, other) = (fabric.open("soft:h1"), fabric.open("soft:h2"));
    let host = host_of(device.info().gid);
    let peer = other.context.peers.attach(host, 2).unwrap().unwrap();
    for _ in 0..50 {
        let channel = device.create_channel().unwrap();
        let init = CqInit {
            channel: Some(channel.clone()),
            ..cq_init(4)
        };
        let cq = device.create_cq(&init).unwrap();
        let ours = device.objects.own_cq(&cq).unwrap();
        let theirs = CqPort::open(&peer, ours.row).unwrap();
        let within = CqPort::open(&device.context.own, ours.row).unwrap();
        for port in [ours.port(), &theirs, &within] {
            cq.arm(false);
            port.push(OWNER, CqSlot::default(), false).unwrap();
            assert_eq!(channel.next_event().unwrap(), Some(cq.id()));
        }
    }
    assert_eq!(peer.channels_held(), 1);
    // Our own CQs need no further descriptor.
    assert_eq!(device.context.own.channels_held(), 0);
}

#[test]
fn receives_of_an_srq_of_another_domain_open_nothing_to_writes() {
    let fabric = Fabric::new();
    let (here, there) = (fabric.open("soft:h1"), fabric.open("soft:h2"));
    let other = PD + 1;
    let init = SrqInit {
        max_wr: 4,
        max_sge: 1,
        limit: 0,
    };
    let srq = there.create_srq(other, &init).unwrap();
    let target = region(&there, other);
    let mut ends = [
        TestQp::new(here, None, 16),
        TestQp::new(there, Some(srq.clone()), 16),
    ];
    connect(&mut ends);
    let [a, b] = &mut ends;
    // The second region is private: its owner fills the receive.
    let buffer: Arc<dyn Buffer> = headworks_verbs::HeapBuffer::new(64);
    let local_mrs = b.device.register(other, &buffer, Access::ALL).unwrap();
    local_mrs::go_by(local_mrs::Route::BounceBuffer, a, b);
    for target in [&target, &local_mrs] {
        let sges = [target.sge(0, 8)];
        let wr = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        srq.post_recv(&[wr]).unwrap();
        a.post(SendOp::Send);
        assert_eq!(a.completed().status, Status::Success);
        assert_eq!(b.completed().status, Status::Success);
    }
    assert_eq!(local_mrs::calls_made(a), 1);
    assert_eq!(a.write_to(&target), Status::RemoteAccess);
}

/// Memory may be shared with another process that can write to the whole file, as a daemon shares it with
/// its applications.
#[test]
fn memory_is_reached_whatever_its_segments_header_says_by_now() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    let long: Arc<dyn Buffer> = b.device.alloc(&AllocRequest::of(4 << 20)).unwrap();
    let target = b.device.register(PD, &long, Access::ALL).unwrap();
    let file = target.buffer().file().expect("a segment of its own");
    rustix::io::pwrite(file, &[0xff; 4096], 0).expect("writes");
    assert_eq!(a.write_to(&target), Status::Success);
}

#[test]
fn memory_that_a_stopped_peer_is_writing_to_is_kept_for_it() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    assert_eq!(a.write_to(&b.region), Status::Success);
    // As if the peer's process were stopped in the middle of a request.
    a.executing().posting.store(1, Ordering::Relaxed);
    let TestQp {
        region: old,
        device,
        qp,
        cq,
    } = b;
    let start = old.addr(0);
    within_limit(move || drop(old));
    assert_eq!(device.context.quarantine.held(), 1);
    let others: Vec<_> = (0..1000).map(|_| region(&device, PD)).collect();
    assert!(others.iter().all(|other| other.addr(0) != start));
    a.executing().posting.store(0, Ordering::Release);
    until("the memory to come back", || {
        device.context.quarantine.held() == 0
    });
    until("the same place", || region(&device, PD).addr(0) == start);
    drop((others, qp, cq));
}

#[test]
fn a_queue_pair_with_a_stopped_peer_resets_later() {
    let fabric = Fabric::new();
    let [mut a, mut b] = fabric.pair();
    assert_eq!(a.write_to(&b.region), Status::Success);
    a.executing().posting.store(1, Ordering::Relaxed);
    let reset = QpAttr::to_state(QpState::Reset);
    let (refused, mut b) = within_limit(move || (b.qp.modify(&reset), b));
    assert_eq!(refused, Err(ModifyError::PeerStopped));
    assert_eq!(b.qp.state(), QpState::Error);
    a.executing().posting.store(0, Ordering::Release);
    assert_eq!(b.qp.modify(&QpAttr::to_state(QpState::Reset)), Ok(()));
    assert_eq!(b.qp.state(), QpState::Reset);
}

#[test]
fn receives_are_not_flushed_while_a_stopped_peer_has_one_in_hand_and_then_in_order() {
    let fabric = Fabric::new();
    let [mut a, mut b] = fabric.pair();
    assert_eq!(a.write_to(&b.region), Status::Success);
    (1..=2).for_each(|wr_id| b.receive_as(wr_id));
    let core = b.device.objects.queue_pairs.all().pop().unwrap();
    // As if the peer's process were stopped after it took the first receive.
    a.executing().posting.store(1, Ordering::Relaxed);
    let row = b.device.context.table.qp(core.slot());
    let own = &b.device.context.own;
    let queue = own.queue::<RecvSlot>(&row.receive_queue).unwrap();
    let taken = queue.slots.claim_pop(core.slot() as u16).unwrap();
    assert!(taken.is_some());
    core.fail();
    assert!(!core.settle_failed(), "its memory is written to");
    b.receive_as(3);
    assert_eq!(b.cq.poll(&mut [Completion::default()]), Ok(0));
    a.executing().posting.store(0, Ordering::Release);
    for wr_id in 1..=3 {
        let ended = b.completed();
        assert_eq!((ended.wr_id, ended.status), (wr_id, Status::Flushed));
    }
}

#[test]
fn a_queue_pair_destroyed_while_its_peer_is_stopped_is_kept_until_that_goes_on() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    assert_eq!(a.write_to(&b.region), Status::Success);
    a.executing().posting.store(1, Ordering::Relaxed);
    let TestQp {
        region: old,
        device,
        qp,
        cq,
    } = b;
    within_limit(move || drop(qp));
    // Deregistration still meets the stopped peer.
    within_limit(move || drop(old));
    assert_eq!(device.context.quarantine.held(), 2);
    assert_eq!(device.objects.queue_pairs.all().len(), 1);
    a.executing().posting.store(0, Ordering::Release);
    until("all to come back", || device.context.quarantine.held() == 0);
    until("the queue pair to go", || {
        device.objects.queue_pairs.all().is_empty()
    });
    drop(cq);
}

#[test]
fn a_queue_pair_connected_to_a_departed_peer_fails() {
    let fabric = Fabric::new();
    let mut end = TestQp::new(fabric.open("soft:h1"), None, 4);
    let [gone, stays] = [0, 1].map(|_| TestQp::new(fabric.open("soft:h2"), None, 4));
    let (gid, qpn) = (gone.device.info().gid, gone.qp.qpn());
    drop(gone);
    end.qp.modify(&to_init()).unwrap();
    end.qp.modify(&to_rtr(gid, qpn)).unwrap();
    until("the error state", || end.qp.state() == QpState::Error);
    drop(stays);
}

/// Claims the first context of soft host `h2` for this process, and hands out `source` for it, if there is one.
fn claim_h2(fabric: &Fabric, source: Option<&Arc<OddSource>>) -> ContextClaim {
    let member = fabric.dir.join().unwrap();
    let incarnation = 1;
    if let Some(source) = source {
        let weak: Weak<OddSource> = Arc::downgrade(source);
        member.serve(incarnation, weak).unwrap();
    }
    let record = ContextRecord {
        process: member.id(),
        layout_version: LAYOUT_VERSION,
        incarnation,
        host_name: "h2".to_owned(),
    };
    let there = info(&"soft:h2".parse().unwrap()).gid;
    let claim = fabric
        .dir
        .claim_context(HostKey(host_of(there)), &member, &record);
    claim.unwrap()
}

/// Hands out a file that is no segment, whatever it is asked for.
struct OddSource(std::fs::File);

impl DescriptorSource for OddSource {
    fn descriptors(&self, _: DescriptorRequest) -> std::io::Result<Option<Vec<OwnedFd>>> {
        Ok(Some(vec![self.0.try_clone()?.into()]))
    }
}

/// A dying process hands out nothing any more. It was never attached, so nothing wakes anybody when it is dead.
#[test]
fn a_queue_pair_fails_once_its_peer_has_left() {
    let fabric = Fabric::new();
    let there = info(&"soft:h2".parse().unwrap()).gid;
    let claim = claim_h2(&fabric, None);
    let mut end = TestQp::new(fabric.open("soft:h1"), None, 4);
    end.qp.modify(&to_init()).unwrap();
    let qpn = Qpn::new(2).unwrap();
    end.qp.modify(&to_rtr(there, qpn)).unwrap();
    // Wait for one whole pass of the progress thread.
    let progress = &end.device.context.progress;
    let looked = progress.looked();
    until("a look", || {
        progress.kick();
        progress.looked() > looked
    });
    drop(progress.service());
    assert_eq!(end.qp.state(), QpState::Rtr);
    drop(claim);
    until("the error state", || end.qp.state() == QpState::Error);
}

/// A process may exit as soon as the last drop returns, so the context must have left by then.
#[test]
fn a_context_has_left_when_the_last_object_is_dropped() {
    let fabric = Fabric::new();
    for round in 0..300 {
        let mut end = TestQp::new(fabric.open("soft:h1"), None, 16);
        end.qp.modify(&to_init()).unwrap();
        let context = Arc::downgrade(&end.device.context);
        let progress = end.device.context.progress.clone();
        // The progress thread looks at the queue pair meanwhile.
        let attention = end.device.context.table.attention();
        attention.qps.set(0);
        attention.cqs.set(0);
        progress.kick();
        let TestQp {
            qp,
            region,
            cq,
            device,
        } = end;
        // Each but the CQ is the last in some rounds.
        match round % 3 {
            0 => drop((((cq, qp), device), region)),
            1 => drop((((cq, qp), region), device)),
            _ => drop((((region, cq), device), qp)),
        }
        assert_eq!(context.strong_count(), 0, "round {round}");
    }
}

#[test]
fn a_peer_that_is_there_and_cannot_be_attached_refuses_the_connection() {
    let fabric = Fabric::new();
    let there = info(&"soft:h2".parse().unwrap()).gid;
    let odd = Arc::new(OddSource(std::fs::File::open("/dev/null").unwrap()));
    let claim = claim_h2(&fabric, Some(&odd));
    let mut end = TestQp::new(fabric.open("soft:h1"), None, 4);
    end.qp.modify(&to_init()).unwrap();
    let to_rtr = to_rtr(there, Qpn::new(2).unwrap());
    let refused = end.qp.modify(&to_rtr);
    assert!(matches!(refused, Err(ModifyError::PeerUnreachable { .. })));
    assert_eq!(end.qp.state(), QpState::Init);
    // An absent peer is not an error: packets to it are not answered.
    drop(claim);
    end.qp.modify(&to_rtr).unwrap();
}

#[test]
fn a_mark_of_executing_that_a_broken_peer_wrote_here_is_not_waited_for_endlessly() {
    let fabric = Fabric::new();
    let [a, b] = fabric.pair();
    a.executing().pending.store(1, Ordering::Relaxed);
    let TestQp {
        region: old,
        device,
        qp,
        cq,
    } = a;
    within_limit(move || drop(old));
    assert_eq!(device.context.quarantine.held(), 1);
    let slot = slot_of(qp.qpn().raw());
    let executing = &device.context.table.qp(slot).executing;
    executing.pending.store(0, Ordering::Release);
    until("the memory to come back", || {
        device.context.quarantine.held() == 0
    });
    drop((qp, cq, b));
}

#[test]
fn peers_that_no_queue_pair_is_connected_to_are_let_go() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    assert_eq!(a.write_to(&b.region), Status::Success);
    assert_eq!(a.device.context.peers.held(), 1);
    let peer = a.device.context.peers.all().pop().unwrap();
    // One of the peer's segments goes: it must be unmapped here although the peer is in use.
    let buffer: Arc<dyn Buffer> = b.device.alloc(&AllocRequest::of(4 << 20)).unwrap();
    let large = b.device.register(PD, &buffer, Access::ALL).unwrap();
    assert_eq!(a.write_to(&large), Status::Success);
    let held = peer.segments_held();
    drop((large, buffer));
    until("the segment to go", || peer.segments_held() < held);
    // The peer must be detached although its process, which is this one, lives on.
    let TestQp { device, qp, .. } = a;
    drop((b, qp));
    assert_eq!(device.context.peers.held(), 0);
    until("all to let go of it", || Arc::strong_count(&peer) == 1);
}
