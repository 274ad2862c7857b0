//! Datagrams, with the device's internals: sender rows, what dead and stopped senders leave, caches.

use headworks_shm::{ProcessId, SenderRow};
use headworks_verbs::bringup::bring_up_ud;
use headworks_verbs::{AhInit, AhKey, Destination, GRH_BYTES, Grh, PostErrorKind};

use super::*;
use crate::control::address_handle::SoftAh;
use crate::datapath::qp::datagram::LINKS_MAX;
use crate::table::rows::MAX_QP;

const QKEY: u32 = 0x1111;

/// A queue pair of datagrams with a CQ and a region of 4 KiB.
pub(super) struct DatagramQp {
    // Dropped in this order.
    pub(super) qp: SoftQp,
    pub(super) region: Region,
    pub(super) cq: Arc<dyn CompletionQueue>,
    pub(super) device: SoftDevice,
    ahs: Vec<SoftAh>,
}

fn ud_init(cq: &Arc<dyn CompletionQueue>, srq: Option<Arc<dyn SharedReceiveQueue>>) -> QpInit {
    QpInit {
        qp_type: QpType::Ud,
        ..qp_init(cq, srq)
    }
}

fn bring_up(qp: &mut SoftQp) {
    bring_up_ud(qp, QKEY, 1).unwrap();
}

impl DatagramQp {
    pub(super) fn new(device: SoftDevice, srq: Option<Arc<dyn SharedReceiveQueue>>) -> Self {
        let cq = device.create_cq(&cq_init(64)).unwrap();
        let mut qp = device.create_qp(PD, &ud_init(&cq, srq)).unwrap();
        bring_up(&mut qp);
        Self {
            qp,
            region: region(&device, PD),
            cq,
            device,
            ahs: Vec::new(),
        }
    }

    fn to(&mut self, gid: Gid, qpn: Qpn) -> Destination {
        let ah = SoftAh::create(&self.device.context, PD, &AhInit::to(gid)).unwrap();
        let key = headworks_verbs::AddressHandle::key(&ah);
        self.ahs.push(ah);
        Destination {
            ah: key,
            qpn,
            qkey: QKEY,
        }
    }

    pub(super) fn aim_at(&mut self, other: &Self) -> Destination {
        self.to(other.device.info().gid, other.qp.qpn())
    }

    pub(super) fn receive(&mut self, wr_id: u64, len: u32) {
        let sges = [self.region.sge(0, len)];
        let sges = &sges[..];
        self.qp.post_recv(&[RecvWr { wr_id, sges }]).unwrap();
    }

    pub(super) fn send(&mut self, to: Destination, bytes: &[u8]) -> Completion {
        let wr = SendWr {
            wr_id: 7,
            op: SendOp::SendTo(to),
            payload: Payload::Inline(bytes),
            flags: SendFlags::default(),
        };
        self.qp.post_send(&[wr]).unwrap();
        self.completed()
    }

    pub(super) fn completed(&self) -> Completion {
        let mut out = [Completion::default()];
        until("a completion", || self.cq.poll(&mut out) == Ok(1));
        out[0]
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.cq.poll(&mut [Completion::default()]) == Ok(0)
    }

    /// Returns the first bytes of the port's region.
    fn bytes(&self) -> Vec<u8> {
        let mut known = MrKeyCheck::default();
        let mut word = |at: u64| {
            let (key, addr) = ((self.region.lkey(), PD), self.region.addr(0) + at * 8);
            let own = &self.device.context.own;
            known
                .span(own, key, addr, 8, Access::NONE)
                .unwrap()
                .fetch_add(0)
        };
        (0..8).flat_map(|at| word(at).to_ne_bytes()).collect()
    }

    /// Returns the row of the first sender to this port's context.
    pub(super) fn sender(&self) -> &SenderRow {
        &self.device.context.table.senders()[0]
    }

    pub(super) fn clean_up(&self) {
        let queue_pairs = &self.device.objects.queue_pairs;
        queue_pairs.clean_up_senders(&self.device.context);
    }

    fn ours(&self) -> Arc<crate::datapath::qp::QpCore> {
        self.device.objects.queue_pairs.all().pop().unwrap()
    }
}

pub(super) fn pair(fabric: &Fabric) -> (DatagramQp, DatagramQp, Destination) {
    let mut a = DatagramQp::new(fabric.open("soft:h1"), None);
    let b = DatagramQp::new(fabric.open("soft:h2"), None);
    let to = a.aim_at(&b);
    (a, b, to)
}

/// Returns a process that has left the registry.
pub(super) fn dead_process(fabric: &Fabric) -> ProcessId {
    let registry = Registry::open_at(fabric.dir.path()).unwrap();
    registry.join().unwrap().id()
}

/// Makes the sender in `row` look as if it belonged to `process`.
pub(super) fn hand_over(row: &SenderRow, process: ProcessId) {
    row.process_generation
        .store(process.generation, Ordering::Relaxed);
    let life = row.life.load(Ordering::Relaxed) & 0xffff_ffff;
    row.life
        .store(u64::from(process.slot) << 32 | life, Ordering::Release);
}

#[test]
fn a_datagram_comes_with_its_header_and_its_sender() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    b.receive(1, 100);
    assert_eq!(a.send(to, b"hello").status, Status::Success);
    let got = b.completed();
    assert_eq!((got.wr_id, got.status), (1, Status::Success));
    assert_eq!(got.byte_len, GRH_BYTES as u32 + 5);
    assert!(got.flags.grh);
    assert_eq!((got.src_qpn, got.qpn), (a.qp.qpn(), b.qp.qpn()));
    let bytes = b.bytes();
    assert_eq!(&bytes[GRH_BYTES..GRH_BYTES + 5], b"hello");
    let header = Grh::parse(&bytes).unwrap();
    assert_eq!(header.sgid, a.device.info().gid);
    assert_eq!(header.dgid, b.device.info().gid);
    assert_eq!((header.next_header, header.hop_limit), (0x1b, 64));
    // Transport headers, 5 bytes padded to 8, checksum.
    assert_eq!(header.payload_len, 12 + 8 + 8 + 4);
}

#[test]
fn address_handle_fields_appear_in_the_grh() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    let init = AhInit {
        traffic_class: 0xa5,
        flow_label: 0x9_1234,
        hop_limit: 3,
        ..AhInit::to(b.device.info().gid)
    };
    let handle = SoftAh::create(&a.device.context, PD, &init).unwrap();
    let ah = headworks_verbs::AddressHandle::key(&handle);
    b.receive(1, 100);
    let to = Destination { ah, ..to };
    assert_eq!(a.send(to, b"x").status, Status::Success);
    b.completed();
    let header = Grh::parse(&b.bytes()).unwrap();
    let said = (header.traffic_class, header.flow_label, header.hop_limit);
    assert_eq!(said, (0xa5, 0x9_1234, 3));
}

#[test]
fn a_datagram_to_oneself_and_one_of_no_bytes() {
    let fabric = Fabric::new();
    let mut a = DatagramQp::new(fabric.open("soft"), None);
    let to = a.to(a.device.info().gid, a.qp.qpn());
    a.receive(1, GRH_BYTES as u32);
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::SendToImm(to, 99),
        payload: Payload::Gather(&[]),
        flags: SendFlags::default(),
    };
    a.qp.post_send(&[wr]).unwrap();
    let mut both = [a.completed(), a.completed()];
    both.sort_by_key(|completion| completion.wr_id);
    assert_eq!((both[0].byte_len, both[0].imm), (40, Some(99)));
    // Transport headers, immediate data, checksum.
    let header = Grh::parse(&a.bytes()).unwrap();
    assert_eq!(header.payload_len, 12 + 8 + 4 + 4);
    assert_eq!((both[1].wr_id, both[1].status), (2, Status::Success));
}

#[test]
fn undeliverable_datagrams_are_lost_silently() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    let done = |a: &mut DatagramQp, to| assert_eq!(a.send(to, b"x").status, Status::Success);
    // No receive is posted.
    done(&mut a, to);
    b.receive(1, 41);
    // Another Q_Key; an unused QPN; a host without devices; an address that is no host's.
    done(&mut a, Destination { qkey: 2, ..to });
    let beside = Qpn::new(to.qpn.raw() + 1).unwrap();
    done(&mut a, Destination { qpn: beside, ..to });
    let nowhere = a.to(crate::table::addresses::gid_of(HostKey(5)), to.qpn);
    done(&mut a, nowhere);
    let group = a.to(Gid([0xff; 16]), to.qpn);
    done(&mut a, group);
    // Too long for the receive, which stays posted for the next.
    assert_eq!(a.send(to, b"xy").status, Status::Success);
    assert!(b.is_quiet());
    // The sender's own Q_Key is used.
    done(
        &mut a,
        Destination {
            qkey: 0x8000_0000,
            ..to
        },
    );
    assert_eq!(b.completed().byte_len, 41);
    assert_eq!(a.qp.state(), QpState::Rts);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_connected_queue_pair_takes_no_datagrams_and_sends_none() {
    let fabric = Fabric::new();
    let [mut a, mut b] = fabric.pair();
    let mut ud = DatagramQp::new(fabric.open("soft:h3"), None);
    let to = ud.to(b.device.info().gid, b.qp.qpn());
    let sges = [b.region.sge(0, 100)];
    b.qp.post_recv(&[RecvWr {
        wr_id: 1,
        sges: &sges,
    }])
    .unwrap();
    assert_eq!(ud.send(to, b"x").status, Status::Success);
    assert_eq!(b.cq.poll(&mut [Completion::default()]), Ok(0));
    let post = |qp: &mut SoftQp, op| {
        let wr = SendWr {
            wr_id: 1,
            op,
            payload: Payload::Inline(b"12345678"),
            flags: SendFlags::default(),
        };
        qp.post_send(&[wr]).unwrap_err().kind
    };
    assert_eq!(
        post(&mut a.qp, SendOp::SendTo(to)),
        PostErrorKind::Operation
    );
    let remote = RemoteAddr { addr: 0, rkey: 0 };
    for op in [SendOp::Send, SendOp::Write(remote), SendOp::Read(remote)] {
        assert_eq!(post(&mut ud.qp, op), PostErrorKind::Operation);
    }
}

#[test]
fn a_local_send_failure_stops_only_the_send_queue() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    let back = b.aim_at(&a);
    b.receive(1, 100);
    a.receive(10, 100);
    let bad = [headworks_verbs::Sge {
        lkey: 0xdead,
        ..a.region.sge(0, 8)
    }];
    let wr = |wr_id, payload| SendWr {
        wr_id,
        op: SendOp::SendTo(to),
        payload,
        flags: SendFlags::default(),
    };
    let good = Payload::Inline(b"good");
    let chain = [wr(1, good), wr(2, Payload::Gather(&bad)), wr(3, good)];
    a.qp.post_send(&chain).unwrap();
    let ended = [(); 3].map(|()| a.completed());
    assert_eq!(ended.map(|one| one.wr_id), [1, 2, 3]);
    let expected = [Status::Success, Status::LocalProtection, Status::Flushed];
    assert_eq!(ended.map(|one| one.status), expected);
    assert_eq!(a.qp.state(), QpState::Sqe);
    // Sends are flushed, and receiving goes on.
    assert_eq!(a.send(to, b"x").status, Status::Flushed);
    assert_eq!(b.send(back, b"x").status, Status::Success);
    assert_eq!(a.completed().wr_id, 10);
    assert_eq!(b.completed().byte_len, 44);
    a.qp.modify(&QpAttr::to_state(QpState::Rts)).unwrap();
    b.receive(2, 100);
    assert_eq!(a.send(to, b"again").status, Status::Success);
    assert_eq!(b.completed().wr_id, 2);
}

#[test]
fn a_handle_that_is_gone_or_of_another_domain_fails_the_request() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    b.receive(1, 100);
    let gid = b.device.info().gid;
    let other = SoftAh::create(&a.device.context, PD + 1, &AhInit::to(gid)).unwrap();
    let other = headworks_verbs::AddressHandle::key(&other);
    let rts = QpAttr::to_state(QpState::Rts);
    for key in [other, AhKey(0), AhKey(77)] {
        let refused = a.send(Destination { ah: key, ..to }, b"x");
        assert_eq!(refused.status, Status::LocalQpOperation);
        a.qp.modify(&rts).unwrap();
    }
    a.ahs.clear();
    assert_eq!(a.send(to, b"x").status, Status::LocalQpOperation);
    assert!(b.is_quiet());
    drop(fabric);
}

#[test]
fn handles_of_impossible_values_are_refused() {
    let fabric = Fabric::new();
    let device = fabric.open("soft");
    let pd = device.alloc_pd().unwrap();
    let init = AhInit::to(device.info().gid);
    assert!(pd.create_ah(&init).is_ok());
    let wrong = [
        AhInit {
            flow_label: 1 << 20,
            ..init
        },
        AhInit {
            service_level: 16,
            ..init
        },
    ];
    for init in wrong {
        assert!(matches!(
            pd.create_ah(&init).err(),
            Some(ResourceError::Limit { .. })
        ));
    }
}

#[test]
fn a_message_of_the_mtu_is_sent_and_a_longer_one_is_not() {
    let fabric = Fabric::new();
    let (mut a, b, to) = pair(&fabric);
    let device = &b.device;
    let buffer: Arc<dyn Buffer> = device.alloc(&AllocRequest::of(8192)).unwrap();
    let large = device.register(PD, &buffer, Access::ALL).unwrap();
    let mut b = DatagramQp { region: large, ..b };
    b.receive(1, 8192);
    let sges = [a.region.sge(0, 4096), a.region.sge(0, 1)];
    let cq = a.cq.clone();
    let init = QpInit {
        caps: QpCaps {
            max_send_sge: 2,
            ..QpCaps::default()
        },
        ..ud_init(&cq, None)
    };
    a.qp = a.device.create_qp(PD, &init).unwrap();
    bring_up(&mut a.qp);
    for count in [2, 1] {
        let wr = SendWr {
            wr_id: count as u64,
            op: SendOp::SendTo(to),
            payload: Payload::Gather(&sges[..count]),
            flags: SendFlags::default(),
        };
        a.qp.post_send(&[wr]).unwrap();
        assert_eq!(a.completed().status, Status::Success);
    }
    assert_eq!(b.completed().byte_len, 4096 + 40);
    assert!(b.is_quiet());
}

pub(super) fn srq_of(device: &SoftDevice) -> Arc<SoftSrq> {
    let init = SrqInit {
        max_wr: 4,
        max_sge: 1,
        limit: 0,
    };
    device.create_srq(PD, &init).unwrap()
}

#[test]
fn a_receive_of_an_srq_that_is_too_short_is_used_up_and_its_queue_pair_lives_on() {
    let fabric = Fabric::new();
    let mut a = DatagramQp::new(fabric.open("soft:h1"), None);
    let there = fabric.open("soft:h2");
    let srq = srq_of(&there);
    let b = DatagramQp::new(there, Some(srq.clone()));
    let to = a.aim_at(&b);
    for (wr_id, len) in [(1, 40), (2, 41)] {
        let sges = [b.region.sge(0, len)];
        srq.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }
    for expected in [(1, Status::LocalLength), (2, Status::Success)] {
        assert_eq!(a.send(to, b"x").status, Status::Success);
        let got = b.completed();
        assert_eq!((got.wr_id, got.status), expected);
    }
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_receive_that_names_no_memory_fails_its_queue_pair_and_no_other() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    let sges = [headworks_verbs::Sge {
        lkey: 0xdead,
        ..b.region.sge(0, 100)
    }];
    let sges = &sges[..];
    b.qp.post_recv(&[RecvWr { wr_id: 1, sges }]).unwrap();
    b.receive(2, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let ended = [b.completed(), b.completed()].map(|c| (c.wr_id, c.status));
    assert_eq!(ended, [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Error));
}

#[test]
fn of_two_senders_that_each_hold_a_receive_without_memory_one_fails_the_queue_pair() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    let mut c = DatagramQp::new(fabric.open("soft:h3"), None);
    let to_too = c.aim_at(&b);
    for wr_id in [1, 2] {
        let sges = [headworks_verbs::Sge {
            lkey: 0xdead,
            ..b.region.sge(0, 100)
        }];
        let sges = &sges[..];
        b.qp.post_recv(&[RecvWr { wr_id, sges }]).unwrap();
    }
    super::child::meanwhile("claimed", move || {
        assert_eq!(c.send(to_too, b"y").status, Status::Success);
    });
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let ended = [b.completed(), b.completed()].map(|c| (c.wr_id, c.status));
    assert_eq!(ended, [(2, Status::LocalProtection), (1, Status::Flushed)]);
    assert_eq!(b.qp.state(), QpState::Error);
}

#[test]
fn datagrams_wait_while_the_queue_pair_is_drained_and_go_in_order() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    (1..=3).for_each(|wr_id| b.receive(wr_id, 100));
    a.qp.modify(&QpAttr::to_state(QpState::Sqd)).unwrap();
    for imm in 1..=3 {
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::SendToImm(to, imm),
            payload: Payload::Inline(b"x"),
            flags: SendFlags::FENCE | SendFlags::SOLICITED,
        };
        a.qp.post_send(&[wr]).unwrap();
    }
    assert!(b.is_quiet());
    a.qp.modify(&QpAttr::to_state(QpState::Rts)).unwrap();
    (1..=3).for_each(|imm| assert_eq!(b.completed().imm, Some(imm)));
    (1..=3).for_each(|_| assert_eq!(a.completed().status, Status::Success));
}

#[test]
fn memory_that_a_stopped_sender_is_writing_to_is_kept_for_it() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    b.receive(1, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    b.completed();
    // As if the sender's process were stopped in the middle of a datagram.
    b.sender().executing.fetch_add(1, Ordering::Relaxed);
    let DatagramQp {
        region: old,
        device,
        qp,
        cq,
        ..
    } = b;
    within_limit(move || drop(old));
    assert_eq!(device.context.quarantine.held(), 1);
    within_limit(move || drop(qp));
    assert_eq!(device.context.quarantine.held(), 2);
    let row = &device.context.table.senders()[0];
    row.executing.fetch_add(1, Ordering::Release);
    until("all to come back", || device.context.quarantine.held() == 0);
    drop(cq);
}

#[test]
fn a_constantly_busy_sender_delays_no_deregistration() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    b.receive(1, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    // Each look at the row finds the sender at another datagram.
    let row = b.device.context.table.held_sender(0);
    let (stop, stopped) = mpsc::channel::<()>();
    row.executing.fetch_add(1, Ordering::Relaxed);
    let busy = std::thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            row.executing.fetch_add(2, Ordering::Release);
        }
        row.executing.fetch_add(1, Ordering::Release);
    });
    let DatagramQp { region, device, .. } = b;
    within_limit(move || drop(region));
    assert_eq!(device.context.quarantine.held(), 0);
    stop.send(()).unwrap();
    busy.join().unwrap();
}

/// The step of a delivery after which a sender was killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KillPoint {
    Claimed,
    Reserved,
    Noted,
    Committed,
    Freed,
}

/// Kills a sender in the middle of a datagram. Returns how its receive, and the one posted after it, ended;
/// the queue pair is flushed at the end.
fn kill(at: KillPoint) -> Vec<(u64, Status)> {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    b.receive(0, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    b.completed();
    b.receive(1, 100);
    b.receive(2, 100);
    let core = b.ours();
    let remote_qp =
        crate::datapath::qp::RemoteQp::to_datagrams(&b.device.context.own, b.qp.qpn().raw())
            .unwrap();
    let (who, row) = (0x4000, b.sender());
    row.executing.fetch_add(1, Ordering::Relaxed);
    row.completing.store(0, Ordering::Relaxed);
    let queue = &remote_qp.receives.slots;
    let pop = queue.claim_pop(who).unwrap().unwrap();
    if at != KillPoint::Claimed {
        let slot = CqSlot {
            wr_id: 1,
            qpn: b.qp.qpn().raw(),
            position: pop.position(),
            opcode: headworks_verbs::Opcode::Recv as u8,
            ..CqSlot::default()
        };
        let place = core.recv_cq.port().reserve(who).unwrap();
        if at != KillPoint::Reserved {
            row.completing.store(1, Ordering::Release);
        }
        if matches!(at, KillPoint::Committed | KillPoint::Freed) {
            core.recv_cq.port().commit(place, slot, false);
        }
        if at == KillPoint::Freed {
            queue.finish(pop);
        }
    }
    hand_over(row, dead_process(&fabric));
    b.clean_up();
    assert_eq!(row.life.load(Ordering::Relaxed) & 0xff, 0);
    // Other senders go on.
    let mut c = DatagramQp::new(fabric.open("soft:h3"), None);
    let to = c.aim_at(&b);
    assert_eq!(c.send(to, b"y").status, Status::Success);
    b.qp.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    let mut ended = Vec::new();
    until("the receives to end", || {
        let mut out = [Completion::default()];
        while b.cq.poll(&mut out) == Ok(1) {
            ended.push((out[0].wr_id, out[0].status));
        }
        ended.len() >= 2
    });
    assert!(b.is_quiet());
    drop(a);
    ended
}

#[test]
fn a_receive_that_a_killed_sender_had_in_hand_is_neither_lost_nor_doubled() {
    for at in [KillPoint::Claimed, KillPoint::Reserved, KillPoint::Noted] {
        // The datagram is lost, so its receive waits for another.
        let expected = [(2, Status::Success), (1, Status::Flushed)];
        assert_eq!(kill(at), expected, "{at:?}");
    }
    for at in [KillPoint::Committed, KillPoint::Freed] {
        let expected = [(1, Status::Success), (2, Status::Success)];
        assert_eq!(kill(at), expected, "{at:?}");
    }
}

#[test]
fn an_ending_queue_pair_reclaims_a_killed_senders_receives() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    b.receive(0, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    b.completed();
    b.receive(1, 100);
    b.sender().executing.fetch_add(1, Ordering::Relaxed);
    b.sender().completing.store(0, Ordering::Relaxed);
    let remote_qp =
        crate::datapath::qp::RemoteQp::to_datagrams(&b.device.context.own, b.qp.qpn().raw())
            .unwrap();
    let _ = remote_qp.receives.slots.claim_pop(0x4000).unwrap().unwrap();
    hand_over(b.sender(), dead_process(&fabric));
    b.qp.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    let ended = b.completed();
    assert_eq!((ended.wr_id, ended.status), (1, Status::Flushed));
    assert!(b.is_quiet());
    drop(a);
}

#[test]
fn a_row_that_a_killed_process_was_about_to_take_is_free_again() {
    let fabric = Fabric::new();
    let (mut a, b, to) = pair(&fabric);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let slot = u64::from(dead_process(&fabric).slot);
    b.sender().life.store(slot << 32 | 0x301, Ordering::Release);
    b.clean_up();
    assert_eq!(b.sender().life.load(Ordering::Relaxed), 0x300);
}

#[test]
fn a_row_being_claimed_is_left_to_its_claimant() {
    let fabric = Fabric::new();
    let (mut a, b, to) = pair(&fabric);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let us = fabric.dir.join().unwrap().id();
    let claiming = u64::from(us.slot) << 32 | 0x301;
    b.sender().life.store(claiming, Ordering::Release);
    b.clean_up();
    assert_eq!(b.sender().life.load(Ordering::Relaxed), claiming);
}

#[test]
fn a_reclaimed_sender_row_never_repeats_a_number() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    let generation = |b: &DatagramQp| b.sender().life.load(Ordering::Relaxed) >> 8 & 0xff_ffff;
    let mut sent = 0;
    for turn in 1..=3 {
        for _ in 0..2 {
            b.receive(1, 100);
            assert_eq!(a.send(to, b"x").status, Status::Success);
            b.completed();
            sent += 2;
            assert_eq!(b.sender().executing.load(Ordering::Relaxed), sent);
            assert_eq!(generation(&b), turn);
        }
        // The row is freed, and claimed again.
        let init = ud_init(&a.cq, None);
        a.qp = a.device.create_qp(PD, &init).unwrap();
        bring_up(&mut a.qp);
    }
}

#[test]
fn a_sender_that_lost_its_row_claims_another() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let life = b.sender().life.load(Ordering::Relaxed);
    b.sender().life.store(life & 0xffff_ff00, Ordering::Release);
    b.receive(1, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    assert_eq!(b.completed().wr_id, 1);
    assert_eq!(b.sender().life.load(Ordering::Relaxed), life + 0x100);
}

#[test]
fn a_queue_pair_that_is_not_ready_to_receive_gets_no_datagrams() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    b.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    let init = QpAttr {
        qkey: Some(QKEY),
        ..QpAttr::to_state(QpState::Init)
    };
    b.qp.modify(&init).unwrap();
    b.receive(1, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    assert!(b.is_quiet());
    b.qp.modify(&QpAttr::to_state(QpState::Rtr)).unwrap();
    // A destination that was not found is looked for again after a while.
    let mut got = [Completion::default()];
    until("a datagram", || {
        assert_eq!(a.send(to, b"x").status, Status::Success);
        b.cq.poll(&mut got) == Ok(1)
    });
    assert_eq!(got[0].wr_id, 1);
}

#[test]
fn a_queue_pair_remembers_few_of_many_destinations_and_reaches_all() {
    let fabric = Fabric::new();
    let mut a = DatagramQp::new(fabric.open("soft:h1"), None);
    let there = fabric.open("soft:h2");
    let cq = there.create_cq(&cq_init(4096)).unwrap();
    let srq = srq_of(&there);
    let many = LINKS_MAX + 50;
    assert!(many < MAX_QP);
    let ports: Vec<_> = (0..many)
        .map(|_| {
            let init = ud_init(&cq, Some(srq.clone()));
            let mut qp = there.create_qp(PD, &init).unwrap();
            bring_up(&mut qp);
            qp
        })
        .collect();
    let target = region(&there, PD);
    let sges = [target.sge(0, 100)];
    let to = a.to(there.info().gid, ports[0].qpn());
    // The oldest destination of all, and the only one on its host.
    let first = DatagramQp::new(fabric.open("soft:h3"), None);
    let to_first = a.aim_at(&first);
    assert_eq!(a.send(to_first, b"x").status, Status::Success);
    assert_eq!(a.qp.remembered(), Some((1, 1)));
    for round in 0..2 {
        for qp in &ports {
            let wr_id = round;
            srq.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
            let to = Destination {
                qpn: qp.qpn(),
                ..to
            };
            assert_eq!(a.send(to, b"x").status, Status::Success);
            let mut out = [Completion::default()];
            until("a datagram", || cq.poll(&mut out) == Ok(1));
            assert_eq!(out[0].qpn, qp.qpn());
        }
    }
    assert_eq!(a.qp.remembered(), Some((LINKS_MAX, 1)));
    assert_eq!(first.sender().life.load(Ordering::Relaxed) & 0xff, 0);
    let held = || {
        there.context.table.senders()[0]
            .life
            .load(Ordering::Relaxed)
            & 0xff
    };
    assert_eq!((there.context.table.senders().len(), held()), (1, 2));
    // A peer that sends no more is detached.
    let peer = a.device.context.peers.all().pop().unwrap();
    let DatagramQp { qp, device, .. } = a;
    drop(qp);
    assert_eq!(held(), 0);
    until("the peer to go", || device.context.peers.held() == 0);
    drop(peer);
}

#[test]
fn a_queue_pair_made_anew_in_the_same_place_gets_nothing_of_before() {
    let fabric = Fabric::new();
    let (mut a, b, to) = pair(&fabric);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let DatagramQp { qp, device, .. } = b;
    drop(qp);
    // A QPN has few bits of the generation. This queue pair has another QPN in the same row.
    let mut b = DatagramQp::new(device, None);
    b.receive(1, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    assert!(b.is_quiet());
    let to = a.aim_at(&b);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    assert_eq!(b.completed().wr_id, 1);
    // RESET, and up again.
    b.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    bring_up(&mut b.qp);
    b.receive(2, 100);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    assert_eq!(b.completed().wr_id, 2);
}
