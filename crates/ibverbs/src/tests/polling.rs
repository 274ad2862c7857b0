//! Completions, events and states as the device reports them.

use headworks_verbs::{
    AsyncEvent, Completion, CompletionQueue, CqInit, Instant, Lid, Opcode, PollError,
    PostErrorKind, QpAttr, QpState, QpType, QueuePair, SrqInit, Status,
};

use super::stub::{move_to, tell};
use super::{Bench, ready, steps, until};
use crate::abi::{self, event};
use crate::device::coarse_ms;

/// Makes the device complete these requests on the CQ.
pub(super) fn complete(
    bench: &Bench,
    cq: &dyn CompletionQueue,
    wcs: impl IntoIterator<Item = abi::Wc>,
) {
    let mut stub = bench.stub.lock().unwrap();
    let at = stub.cqs[&cq.id().0];
    stub.completions.entry(at).or_default().extend(wcs);
}

pub(super) fn wc(wr_id: u64) -> abi::Wc {
    abi::Wc {
        wr_id,
        opcode: 1,
        qp_num: 5,
        ..abi::Wc::default()
    }
}

#[test]
fn completions_come_in_order_however_many_there_is_room_for() {
    let bench = Bench::new();
    assert_eq!(bench.cq.depth(), 128);
    for room in [1, 3, 16, 17, 100] {
        complete(&bench, &*bench.cq, (0..50).map(wc));
        let mut out = vec![Completion::default(); room];
        let mut got = Vec::new();
        loop {
            let count = bench.cq.poll(&mut out).unwrap();
            assert!(count == room.min(50 - got.len()), "{count} of {room}");
            got.extend(out[..count].iter().map(|completion| completion.wr_id));
            if count == 0 {
                break;
            }
        }
        assert!(got.into_iter().eq(0..50), "room for {room}");
    }
    assert_eq!(bench.cq.poll(&mut []), Ok(0));
}

#[test]
fn a_datagram_says_the_port_that_it_came_from_where_ports_have_lids() {
    for (link_layer, clock, expected) in [
        (1, 0, Lid::new(9)),
        (1, 1000, Lid::new(9)),
        // On Ethernet this field has no meaning.
        (2, 0, None),
        (2, 1000, None),
    ] {
        let bench = Bench::with("", |stub| {
            (stub.link_layer, stub.lid, stub.clock.0) = (link_layer, 5, clock);
        });
        let cq = bench.device.create_cq(&CqInit {
            depth: 40,
            timestamps: true,
            ..CqInit::default()
        });
        let cq = cq.unwrap();
        let received = abi::Wc {
            opcode: 128,
            src_qp: 3,
            slid: 9,
            ..wc(1)
        };
        let sent = abi::Wc { slid: 9, ..wc(2) };
        for room in [4, 20] {
            complete(&bench, &*cq, [received, sent]);
            let mut out = vec![Completion::default(); room];
            assert_eq!(cq.poll(&mut out), Ok(2));
            let lids = (out[0].src_lid, out[1].src_lid);
            assert_eq!(lids, (expected, None), "{link_layer} {clock} {room}");
        }
    }
}

#[test]
fn a_failed_request_of_a_connection_is_the_end_of_it() {
    let bench = Bench::new();
    let qp = bench.ready(QpType::Rc);
    let failed = abi::Wc {
        status: 10,
        vendor_err: 0x8a,
        opcode: 128,
        wc_flags: 3,
        qp_num: qp.qpn().raw(),
        ..wc(1)
    };
    complete(&bench, &*bench.cq, [wc(0), failed]);
    let mut out = [Completion::default(); 4];
    assert_eq!(bench.cq.poll(&mut out[..1]), Ok(1));
    assert_eq!((qp.state(), out[0].opcode), (QpState::Rts, Opcode::Write));
    assert_eq!(bench.cq.poll(&mut out), Ok(1));
    assert_eq!(out[0].status, Status::RemoteAccess);
    assert_eq!(qp.state(), QpState::Error);
    // A failed completion does not say what the request was.
    let expected = Completion {
        wr_id: 1,
        status: Status::RemoteAccess,
        vendor_err: 0x8a,
        qpn: qp.qpn(),
        ..Completion::default()
    };
    assert_eq!(out[0], expected);
}

#[test]
fn failures_before_a_reset_are_ignored_after_it() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Rc);
    let mut out = [Completion::default(); 4];
    let mut poll_old = |qp: &dyn QueuePair| {
        let old = [4, 5].map(|status| abi::Wc {
            status,
            qp_num: qp.qpn().raw(),
            ..wc(1)
        });
        complete(&bench, &*bench.cq, old);
        assert_eq!(bench.cq.poll(&mut out), Ok(2));
    };
    qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    poll_old(&*qp);
    assert_eq!(qp.state(), QpState::Reset);
    let early = Err(PostErrorKind::State(QpState::Reset).at(0));
    assert_eq!((qp.post_send(&[]), qp.post_recv(&[])), (early, early));
    for step in steps() {
        qp.modify(&step).unwrap();
        poll_old(&*qp);
        assert_eq!(Some(qp.state()), step.state);
    }
    // A current failure looks the same, but the device reports it.
    bench.stub.lock().unwrap().queries = 0;
    move_to(&bench.stub, &*qp, QpState::Error);
    poll_old(&*qp);
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(bench.stub.lock().unwrap().queries, 1);
}

#[test]
fn asking_for_the_state_all_the_time_asks_the_device_now_and_then() {
    let bench = Bench::new();
    let qp = bench.ready(QpType::Rc);
    let mut out = [Completion::default(); 2];
    {
        let mut stub = bench.stub.lock().unwrap();
        (stub.queries, stub.looks) = (0, 0);
    }
    let before = coarse_ms();
    for _ in 0..50_000 {
        assert_eq!(qp.state(), QpState::Rts);
        assert_eq!(bench.cq.poll(&mut out), Ok(0));
    }
    let passed = (coarse_ms() - before) as usize;
    let stub = bench.stub.lock().unwrap();
    // The limits follow from the time that passed.
    let (queries, looks) = (stub.queries, stub.looks);
    assert!(queries <= passed / 100 + 1, "{queries} in {passed} ms");
    assert!(looks <= passed + 1, "{looks} in {passed} ms");
}

#[test]
fn an_unreported_failure_is_found_and_reported_once() {
    let bench = Bench::new();
    let qp = bench.ready(QpType::Rc);
    move_to(&bench.stub, &*qp, QpState::Error);
    until("the failure", || qp.state() == QpState::Error);
    assert!(is_readable(bench.device.async_fd()));
    let fatal = AsyncEvent::QpFatal(qp.qpn());
    assert_eq!(bench.device.next_async_event(), Some(fatal));
    assert_eq!(bench.device.next_async_event(), None);
    assert!(!is_readable(bench.device.async_fd()));
    // The device reports the failure late.
    let at = bench.stub.lock().unwrap().qps[&qp.qpn().raw()];
    tell(&bench.stub, at, event::QP_FATAL);
    assert_eq!(bench.device.next_async_event(), None);
    // The device is not asked any more.
    bench.stub.lock().unwrap().queries = 0;
    (0..1000).for_each(|_| assert_eq!(qp.state(), QpState::Error));
    assert_eq!(bench.stub.lock().unwrap().queries, 0);
}

#[test]
fn of_datagrams_a_failed_request_has_the_device_asked() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Ud);
    let failed = abi::Wc {
        status: 4,
        qp_num: qp.qpn().raw(),
        ..wc(1)
    };
    let mut out = [Completion::default(); 2];
    let mut fail = || {
        complete(&bench, &*bench.cq, [failed]);
        assert_eq!(bench.cq.poll(&mut out), Ok(1));
    };
    fail();
    assert_eq!(qp.state(), QpState::Rts);
    move_to(&bench.stub, &*qp, QpState::Sqe);
    fail();
    assert_eq!(qp.state(), QpState::Sqe);
    // The current state is named; otherwise the device would refuse.
    qp.modify(&QpAttr::to_state(QpState::Rts)).unwrap();
    assert_eq!(qp.state(), QpState::Rts);
    move_to(&bench.stub, &*qp, QpState::Error);
    fail();
    assert_eq!(qp.state(), QpState::Error);
}

#[test]
fn a_queue_that_overran_is_found_by_polls_that_bring_nothing() {
    let bench = Bench::new();
    let (qp, mut other) = (bench.ready(QpType::Rc), bench.init(QpType::Rc));
    let cq = bench.device.create_cq(&CqInit {
        depth: 4,
        ..CqInit::default()
    });
    other.send_cq = cq.unwrap();
    other.recv_cq = other.send_cq.clone();
    let mut elsewhere = bench.pd.create_qp(&other).unwrap();
    ready(&mut *elsewhere, QpType::Rc);
    let at = bench.stub.lock().unwrap().cqs[&bench.cq.id().0];
    tell(&bench.stub, at, event::CQ_ERR);
    let mut out = [Completion::default(); 2];
    until("the overrun", || match bench.cq.poll(&mut out) {
        Ok(count) => {
            assert_eq!(count, 0);
            false
        }
        Err(error) => error == PollError::Overrun,
    });
    // Queue pairs that complete there are in error, and no others.
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(elsewhere.state(), QpState::Rts);
    assert_eq!(other.send_cq.poll(&mut out), Ok(0));
    let event = AsyncEvent::CqError(bench.cq.id());
    assert_eq!(bench.device.next_async_event(), Some(event));
}

#[test]
fn async_events_name_the_failed_object_and_are_kept() {
    let bench = Bench::new();
    let (one, other) = (bench.ready(QpType::Rc), bench.ready(QpType::Rc));
    let srq = bench.pd.create_srq(&SrqInit {
        max_wr: 10,
        max_sge: 1,
        limit: 3,
    });
    let srq = srq.unwrap();
    let (at_one, at_cq, at_srq) = {
        let stub = bench.stub.lock().unwrap();
        assert_eq!(stub.limits, [3]);
        let at_one = stub.qps[&one.qpn().raw()];
        (at_one, stub.cqs[&bench.cq.id().0], stub.srqs[0])
    };
    assert!(!is_readable(bench.device.async_fd()));
    assert_eq!(bench.device.next_async_event(), None);
    tell(&bench.stub, at_one, event::QP_ACCESS_ERR);
    tell(&bench.stub, 1, event::PORT_ERR);
    tell(&bench.stub, 1, 11);
    assert!(is_readable(bench.device.async_fd()));
    // A call that asks for a state sees the event, and the program still gets it.
    until("the failure", || one.state() == QpState::Error);
    assert_eq!(other.state(), QpState::Rts);
    assert!(is_readable(bench.device.async_fd()));
    for (element, code) in [
        (1, event::PORT_ACTIVE),
        (at_srq, event::SRQ_LIMIT_REACHED),
        (at_srq, event::SRQ_ERR),
        (at_one, event::QP_LAST_WQE_REACHED),
        (at_cq, event::CQ_ERR),
        (0, event::DEVICE_FATAL),
    ] {
        tell(&bench.stub, element, code);
    }
    let expected = [
        AsyncEvent::QpFatal(one.qpn()),
        AsyncEvent::PortDown(1),
        AsyncEvent::LidChanged(1),
        AsyncEvent::PortActive(1),
        AsyncEvent::SrqLimit(srq.id()),
        AsyncEvent::SrqError(srq.id()),
        AsyncEvent::QpLastWqe(one.qpn()),
        AsyncEvent::CqError(bench.cq.id()),
        AsyncEvent::DeviceFatal,
    ];
    let heard: Vec<_> = std::iter::from_fn(|| bench.device.next_async_event()).collect();
    assert_eq!(heard, expected);
    assert!(!is_readable(bench.device.async_fd()));
    assert_eq!(other.state(), QpState::Error);
}

fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_broken_queue_says_whether_it_overran() {
    let bench = Bench::new();
    let mut out = [Completion::default(); 2];
    bench.stub.lock().unwrap().polls_broken = true;
    assert_eq!(bench.cq.poll(&mut out), Err(PollError::Corrupt));
    let at = bench.stub.lock().unwrap().cqs[&bench.cq.id().0];
    tell(&bench.stub, at, event::CQ_ERR);
    assert_eq!(bench.cq.poll(&mut out), Err(PollError::Overrun));
    // Completions that are there still come first, if the device lets them be polled.
    bench.stub.lock().unwrap().polls_broken = false;
    complete(&bench, &*bench.cq, [wc(1)]);
    assert_eq!(bench.cq.poll(&mut out), Ok(1));
    assert_eq!(bench.cq.poll(&mut out), Err(PollError::Overrun));
}

#[test]
fn a_channel_hands_out_the_queues_that_had_events() {
    let bench = Bench::new();
    let channel = bench.device.create_channel().unwrap();
    let cq = bench.device.create_cq(&CqInit {
        depth: 4,
        channel: Some(channel.clone()),
        timestamps: false,
    });
    let cq = cq.unwrap();
    assert_eq!(channel.next_event().unwrap(), None);
    cq.arm(false);
    cq.arm(true);
    {
        let mut stub = bench.stub.lock().unwrap();
        assert_eq!(stub.armed, [0, 1]);
        let at = stub.cqs[&cq.id().0];
        stub.cq_events.extend([at, at]);
    }
    for expected in [Some(cq.id()), Some(cq.id()), None] {
        assert_eq!(channel.next_event().unwrap(), expected);
    }
    assert_eq!(bench.stub.lock().unwrap().acked, 2);
}

#[test]
fn stamps_are_the_devices_where_it_has_a_clock() {
    let stamped = CqInit {
        depth: 40,
        channel: None,
        timestamps: true,
    };
    // At one megahertz, a tick is a microsecond.
    let bench = Bench::with("", |stub| stub.clock = (1000, 70));
    let cq = bench.device.create_cq(&stamped).unwrap();
    let mut out = [Completion::default(); 3];
    assert_eq!(cq.poll(&mut out), Ok(0));
    let failed = abi::Wc {
        status: 5,
        vendor_err: 0xf9,
        opcode: 0,
        ..wc(9)
    };
    let received = abi::Wc {
        opcode: 128,
        byte_len: 33,
        imm_data: 7u32.to_be(),
        src_qp: 4,
        wc_flags: 3,
        ..wc(8)
    };
    complete(&bench, &*cq, [wc(6), wc(7), received, failed]);
    assert_eq!(cq.poll(&mut out), Ok(3));
    let at: Vec<_> = out.iter().map(|c| c.timestamp.nanos()).collect();
    assert_eq!(at, [71_000, 72_000, 73_000]);
    assert_eq!((out[2].byte_len, out[2].imm), (33, Some(7)));
    assert_eq!((out[2].src_qpn.raw(), out[2].flags.grh), (4, true));
    assert_eq!(cq.poll(&mut out), Ok(1));
    assert_eq!((out[0].wr_id, out[0].status), (9, Status::Flushed));
    assert_eq!(out[0].vendor_err, 0xf9);
    assert_eq!(bench.device.now(), Instant::from_nanos(74_000));
    bench.stub.lock().unwrap().polls_broken = true;
    assert_eq!(cq.poll(&mut out), Err(PollError::Corrupt));
    // Completions of other CQs have no timestamp.
    bench.stub.lock().unwrap().polls_broken = false;
    complete(&bench, &*bench.cq, [wc(1)]);
    assert_eq!(bench.cq.poll(&mut out), Ok(1));
    assert_eq!(out[0].timestamp, Instant::ZERO);
    drop((cq, bench));

    let bench = {
        let bench = std::thread::spawn(|| {
            let bench = Bench::new();
            let before = bench.device.now();
            let stamped = CqInit {
                depth: 40,
                channel: None,
                timestamps: true,
            };
            let cq = bench.device.create_cq(&stamped).unwrap();
            complete(&bench, &*cq, [wc(1)]);
            let mut out = [Completion::default(); 3];
            assert_eq!(cq.poll(&mut out), Ok(1));
            assert!((before..=bench.device.now()).contains(&out[0].timestamp));
        });
        bench.join()
    };
    bench.unwrap();
}
