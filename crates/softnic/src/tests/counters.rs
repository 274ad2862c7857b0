//! Counters after a known sequence of requests, read from inside and through `inspect`.

use headworks_verbs::{CqCounters, QpCounters};

use super::*;
use crate::inspect::{self, ContextSnapshot};

impl TestQp {
    fn counted(&self) -> QpCounters {
        self.qp.counters().unwrap()
    }

    fn cq_counted(&self) -> CqCounters {
        self.cq.counters().unwrap()
    }

    /// Posts a receive of 8 bytes.
    fn receive(&mut self) {
        let sges = [self.region.sge(0, 8)];
        let wr = RecvWr {
            wr_id: 9,
            sges: &sges,
        };
        self.qp.post_recv(&[wr]).unwrap();
    }
}

/// Returns the context of `end` as `inspect` shows it.
fn seen(fabric: &Fabric, end: &TestQp) -> ContextSnapshot {
    let host = end.device.info().name.name().map(str::to_owned);
    let snapshot = inspect::look(&fabric.dir, host.as_deref()).unwrap();
    assert!(snapshot.unreadable.is_empty(), "{:?}", snapshot.unreadable);
    snapshot.contexts.into_iter().next().expect("a context")
}

fn target(end: &TestQp) -> RemoteAddr {
    RemoteAddr {
        addr: end.region.addr(0),
        rkey: end.region.rkey(),
    }
}

#[test]
fn posted_executed_and_polled_requests_are_counted() {
    let fabric = Fabric::new();
    let [mut a, mut b] = fabric.pair();
    assert_eq!(a.counted(), QpCounters::default());
    for _ in 0..3 {
        assert_eq!(a.write_to(&b.region), Status::Success);
    }
    a.post(SendOp::Read(target(&b)));
    let mut expected = QpCounters {
        sends_posted: 4,
        sends_retired: 3,
        sent_bytes: 24,
        read_bytes: 8,
        ..QpCounters::default()
    };
    assert_eq!(a.counted(), expected);
    let cq = CqCounters {
        polled: 3,
        unpolled: 1,
        ..CqCounters::default()
    };
    assert_eq!(a.cq_counted(), cq);
    let outside = seen(&fabric, &a);
    assert_eq!(outside.queue_pairs[0].counters, expected);
    assert_eq!(outside.completion_queues[0].counters, cq);
    a.completed();
    a.post(SendOp::FetchAdd {
        remote: target(&b),
        add: 1,
    });
    a.completed();
    expected.sends_posted = 5;
    expected.sends_retired = 5;
    expected.read_bytes = 16;
    assert_eq!(a.counted(), expected);
    // The responder takes no part in any of that.
    assert_eq!(b.counted(), QpCounters::default());

    // A SEND that finds no receive waits, and is executed later, not by the posting call.
    a.post(SendOp::Send);
    let mut polled = [Completion::default()];
    until("a try without a receive", || {
        assert_eq!(a.cq.poll(&mut polled), Ok(0));
        a.counted().rnr > 0
    });
    assert_eq!(a.counted().sends_outstanding(), 1);
    assert_eq!(a.counted().sent_bytes, 24);
    b.receive();
    assert_eq!(b.counted().receives_outstanding(), 1);
    a.completed();
    assert_eq!(a.counted().sent_bytes, 32);
    assert_eq!(b.cq_counted().unpolled, 1);
    assert_eq!(b.counted().received, 0, "not polled yet");
    b.completed();
    let received = QpCounters {
        receives_posted: 1,
        receives_retired: 1,
        received: 1,
        received_bytes: 8,
        ..QpCounters::default()
    };
    assert_eq!(b.counted(), received);
    assert_eq!(seen(&fabric, &b).queue_pairs[0].counters, received);
}

#[test]
fn a_piecewise_request_is_counted_when_it_completes() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    let len = 3 * crate::INLINE_MAX;
    let large = |device: &SoftDevice| {
        let buffer: Arc<dyn Buffer> = device.alloc(&AllocRequest::of(len)).unwrap();
        device.register(PD, &buffer, Access::ALL).unwrap()
    };
    let (from, to) = (large(&a.device), large(&b.device));
    let sges = [from.sge(0, len as u32)];
    let wr = SendWr {
        wr_id: 7,
        op: SendOp::Write(to.remote(0)),
        payload: Payload::Gather(&sges),
        flags: SendFlags::default(),
    };
    a.qp.post_send(&[wr]).unwrap();
    assert_eq!(a.completed().status, Status::Success);
    assert_eq!(a.write_to(&b.region), Status::Success);
    let counted = a.counted();
    assert_eq!(counted.sent_bytes, len as u64 + 8);
    assert_eq!((counted.sends_posted, counted.sends_retired), (2, 2));
}

#[test]
fn errors_flushes_and_events_are_counted() {
    let fabric = Fabric::new();
    let [mut a, mut b] = fabric.pair();
    a.receive();
    b.receive();
    let nowhere = RemoteAddr {
        rkey: !b.region.rkey(),
        ..target(&b)
    };
    a.post(SendOp::Write(nowhere));
    a.post(SendOp::Write(target(&b)));
    let statuses = [(); 3].map(|()| a.completed().status);
    let errors = statuses.iter().filter(|s| **s == Status::RemoteAccess);
    assert_eq!(errors.count(), 1, "{statuses:?}");
    let counted = a.counted();
    assert_eq!((counted.errors, counted.flushed), (1, 2));
    assert_eq!((counted.events, counted.sent_bytes), (1, 0));
    assert_eq!((counted.received, counted.receives_retired), (0, 1));
    // The peer's queue pair failed too, and raises its event.
    assert_eq!(b.completed().status, Status::Flushed);
    let counted = b.counted();
    assert_eq!((counted.errors, counted.flushed), (0, 1));
    until("the peer's event", || b.counted().events == 1);
}

#[test]
fn a_row_that_is_used_again_begins_at_zero() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    assert_eq!(a.write_to(&b.region), Status::Success);
    let slot = slot_of(a.qp.qpn().raw()) as u32;
    let rows = &a.device.context.qp_rows;
    let generation = rows.generation(slot);
    let TestQp {
        qp,
        region,
        cq,
        device,
    } = a;
    drop(qp);
    device.context.qp_rows.age(slot, generation);
    let qp = device.create_qp(PD, &qp_init(&cq, None)).unwrap();
    assert_eq!(slot_of(qp.qpn().raw()) as u32, slot);
    assert_eq!(qp.counters(), Some(QpCounters::default()));
    // The CQ still knows what the queue pair before put into its lane.
    let end = TestQp {
        qp,
        region,
        cq,
        device,
    };
    let before = CqCounters {
        polled: 1,
        ..CqCounters::default()
    };
    assert_eq!(seen(&fabric, &end).completion_queues[0].counters, before);
    // A RESET clears no counter.
    let mut ends = [end, b];
    let [a, b] = &mut ends;
    for end in [&mut *a, &mut *b] {
        end.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    }
    connect(&mut ends);
    let [a, b] = &mut ends;
    assert_eq!(a.write_to(&b.region), Status::Success);
    a.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    assert_eq!(a.counted().sends_posted, 1);
    assert_eq!(a.counted().sends_outstanding(), 0);
}

#[test]
fn an_overrun_and_an_srq_are_seen_from_outside() {
    let fabric = Fabric::new();
    let (here, there) = (fabric.open("soft:h1"), fabric.open("soft:h2"));
    let init = SrqInit {
        max_wr: 8,
        max_sge: 1,
        limit: 1,
    };
    let srq = there.create_srq(PD, &init).unwrap();
    let mut ends = [
        TestQp::new(here, None, 16),
        TestQp::new(there, Some(srq.clone()), 2),
    ];
    connect(&mut ends);
    let [a, b] = &mut ends;
    let sges = [b.region.sge(0, 8)];
    let wr = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    srq.post_recv(&[wr; 4]).unwrap();
    a.post(SendOp::Send);
    assert_eq!(a.completed().status, Status::Success);
    let outside = seen(&fabric, b);
    let queue = &outside.shared_receive_queues[0];
    assert_eq!((queue.posted, queue.waiting), (4, 3));
    assert_eq!(outside.queue_pairs[0].srq, Some(queue.id));
    assert_eq!(outside.completion_queues[0].counters.unpolled, 1);
    assert!(!outside.completion_queues[0].counters.overrun);
    assert_eq!(outside.regions.bytes, 4096);
    b.completed();
    assert_eq!((b.counted().received, b.counted().received_bytes), (1, 8));
    assert_eq!(b.counted().receives_outstanding(), 0, "they are the SRQ's");
    // Three more completions for a CQ that holds two.
    for _ in 0..3 {
        a.post(SendOp::Send);
        a.completed();
    }
    assert!(b.cq_counted().overrun);
    assert!(seen(&fabric, b).completion_queues[0].counters.overrun);
}

#[test]
fn unpolled_completions_of_a_destroyed_queue_pair_remain_visible() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    a.post(SendOp::Write(target(&b)));
    let unpolled = |a: &TestQp| seen(&fabric, a).completion_queues[0].counters.unpolled;
    assert_eq!(unpolled(&a), 1);
    let init = qp_init(&a.cq, None);
    a.qp = a.device.create_qp(PD, &init).unwrap();
    assert_eq!(unpolled(&a), 1);
    a.completed();
    assert_eq!(unpolled(&a), 0);
}

#[test]
fn the_events_of_a_channel_are_counted() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let channel = device.create_channel().unwrap();
    let init = CqInit {
        channel: Some(channel),
        ..cq_init(16)
    };
    let cq = device.create_cq(&init).unwrap();
    for events in 1..4 {
        cq.arm(false);
        let ours = device.objects.own_cq(&cq).unwrap();
        ours.port().push(OWNER, CqSlot::default(), false).unwrap();
        assert_eq!(cq.counters().unwrap().events, events);
    }
}

#[test]
fn ended_states_are_not_shown_as_current() {
    let fabric = Fabric::new();
    let [mut a, b] = fabric.pair();
    let peer = seen(&fabric, &a).queue_pairs[0].peer.clone();
    assert_eq!(peer.map(|peer| peer.qpn), Some(b.qp.qpn().raw()));
    a.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    assert_eq!(seen(&fabric, &a).queue_pairs[0].peer, None);
    // A limit that was crossed is not armed any more.
    let init = SrqInit {
        max_wr: 8,
        max_sge: 1,
        limit: 2,
    };
    let srq = a.device.create_srq(PD, &init).unwrap();
    let limit = || seen(&fabric, &a).shared_receive_queues[0].limit;
    assert_eq!(limit(), 2);
    assert!(a.device.context.table.srq(srq.row).crosses_limit(0));
    assert_eq!(limit(), 0);
}

#[test]
fn layer_numbered_requests_complete_with_that_number() {
    let fabric = Fabric::new();
    let [mut a, mut b] = fabric.pair();
    b.receive();
    let sges = [a.region.sge(0, 8)];
    let wr = |op| SendWr {
        wr_id: 1,
        op,
        payload: Payload::Gather(&sges),
        flags: SendFlags::NONE,
    };
    let write = SendOp::Write(target(&b));
    // Requests that are executed in the call, and others.
    let chain = [write, SendOp::Send, write, SendOp::Read(target(&b)), write].map(wr);
    a.qp.post_send_with_wr_id(7, &chain).unwrap();
    a.qp.post_send(&chain[..1]).unwrap();
    let limit = std::time::Instant::now() + LIMIT;
    let mut numbers = Vec::new();
    while numbers.len() < 6 {
        let mut done = [Completion::default(); 8];
        let count = a.cq.poll(&mut done).unwrap();
        assert!(
            done[..count]
                .iter()
                .all(|done| done.status == Status::Success)
        );
        numbers.extend(done[..count].iter().map(|done| done.wr_id));
        assert!(std::time::Instant::now() < limit);
    }
    assert_eq!(numbers, [7, 7, 7, 7, 7, 1]);
}
