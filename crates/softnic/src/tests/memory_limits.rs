//! Limits that are reached, and the events that report it.

use super::*;

fn srq_of(device: &SoftDevice, max_wr: u32, limit: u32) -> Arc<SoftSrq> {
    let init = SrqInit {
        max_wr,
        max_sge: 1,
        limit,
    };
    device.create_srq(PD, &init).unwrap()
}

fn fill_srq(srq: &SoftSrq, count: u64) {
    for wr_id in 0..count {
        srq.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }
}

/// Returns all events, once the progress thread's work on limits has been done.
fn events(device: &SoftDevice) -> Vec<AsyncEvent> {
    device.objects.service_limits(&device.context, true);
    std::iter::from_fn(|| device.next_async_event()).collect()
}

/// SENDs no bytes to an empty receive.
fn send(a: &mut TestQp, b: &TestQp) {
    let wr = SendWr {
        wr_id: 7,
        op: SendOp::Send,
        payload: Payload::Inline(&[]),
        flags: SendFlags::default(),
    };
    a.qp.post_send(&[wr]).unwrap();
    assert_eq!(a.completed().status, Status::Success);
    assert_eq!(b.completed().status, Status::Success);
}

#[test]
fn receives_before_a_refused_one_are_flushed_in_error() {
    let fabric = Fabric::new();
    let mut end = TestQp::new(fabric.open("soft"), None, 16);
    end.qp.modify(&to_init()).unwrap();
    end.qp.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    let pieces = vec![end.region.sge(0, 8); end.qp.caps().max_recv_sge as usize + 1];
    let receive = |wr_id, sges| RecvWr { wr_id, sges };
    let refused = end
        .qp
        .post_recv(&[receive(1, &pieces[..1]), receive(2, &pieces)]);
    let most = end.qp.caps().max_recv_sge;
    assert_eq!(
        refused,
        Err(headworks_verbs::PostErrorKind::TooManySges(most).at(1))
    );
    let done = end.completed();
    assert_eq!((done.wr_id, done.status), (1, Status::Flushed));
}

#[test]
fn the_limit_event_comes_once_when_crossed_and_again_when_armed_again() {
    let fabric = Fabric::new();
    let (here, there) = (fabric.open("soft:h1"), fabric.open("soft:h2"));
    let srq = srq_of(&there, 8, 2);
    let limit = [AsyncEvent::SrqLimit(srq.id())];
    let mut ends = [
        TestQp::new(here, None, 16),
        TestQp::new(there, Some(srq.clone()), 16),
    ];
    connect(&mut ends);
    let [a, b] = &mut ends;
    fill_srq(&srq, 4);
    for crossed in [false, false, true, false] {
        send(a, b);
        assert_eq!(events(&b.device), &limit[..usize::from(crossed)]);
    }
    // Armed while already below the limit: the next receive taken raises the event, not the arming.
    fill_srq(&srq, 2);
    srq.set_limit(4).unwrap();
    assert_eq!(events(&b.device), []);
    send(a, b);
    assert_eq!(events(&b.device), limit);
    send(a, b);
    assert_eq!(events(&b.device), []);
    // Armed again before the event was raised: that event is still raised, and so is the next.
    fill_srq(&srq, 4);
    srq.set_limit(4).unwrap();
    let entry = b.device.context.table.srq(srq.row);
    let taken = entry.posted.0.load(Ordering::Relaxed) - 3;
    assert!(entry.crosses_limit(taken));
    assert!(!entry.crosses_limit(taken), "once");
    srq.set_limit(3).unwrap();
    assert_eq!(events(&b.device), limit);
    for crossed in [false, true] {
        send(a, b);
        assert_eq!(events(&b.device), &limit[..usize::from(crossed)]);
    }
}

#[test]
fn the_last_wqe_event_is_reported_once() {
    let fabric = Fabric::new();
    let (here, there) = (fabric.open("soft:h1"), fabric.open("soft:h2"));
    let srq = srq_of(&there, 8, 0);
    let mut ends = [
        TestQp::new(here, None, 16),
        TestQp::new(there, Some(srq), 16),
    ];
    connect(&mut ends);
    let end = &mut ends[1];
    for _ in 0..2 {
        end.qp.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    }
    assert_eq!(events(&end.device), [AsyncEvent::QpLastWqe(end.qp.qpn())]);
}

#[test]
fn a_limit_beyond_the_queue_is_refused() {
    let fabric = Fabric::new();
    let device = fabric.open("soft");
    let srq = srq_of(&device, 8, 8);
    for limit in [9, 1 << 31, u32::MAX] {
        let refused = srq.set_limit(limit);
        assert!(matches!(refused, Err(ResourceError::Limit { .. })));
        let init = SrqInit {
            max_wr: 8,
            max_sge: 1,
            limit,
        };
        assert!(device.create_srq(PD, &init).is_err());
    }
}

/// Posts eight receives to `b`, then three requests to `a`: a CQ of depth 2 overruns.
fn overrun(a: &mut TestQp, b: &mut TestQp, op: impl Fn(&TestQp) -> SendOp) {
    for wr_id in 0..8 {
        b.qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }
    for _ in 0..3 {
        let op = op(b);
        let wr = SendWr {
            wr_id: 7,
            op,
            payload: Payload::Inline(&[]),
            flags: SendFlags::default(),
        };
        a.qp.post_send(&[wr]).unwrap();
    }
}

/// Checks that what is left in an overrun CQ can be polled, and that the error comes after it.
fn check_overrun(end: &TestQp, events_before: &[AsyncEvent]) {
    let cq_error = AsyncEvent::CqError(end.cq.id());
    let mut seen = events_before.to_vec();
    until("the event", || {
        seen.extend(std::iter::from_fn(|| end.device.next_async_event()));
        seen.contains(&cq_error)
    });
    until("the error state", || end.qp.state() == QpState::Error);
    let mut out = [Completion::default(); 4];
    assert_eq!(end.cq.poll(&mut out[..1]), Ok(1));
    assert_eq!(out[0].status, Status::Success);
    // Overruns it again: the event must not be raised a second time.
    let ours = end.device.objects.own_cq(&end.cq).unwrap();
    for _ in 0..4 {
        let _ = ours.port().push(OWNER, CqSlot::default(), false);
    }
    seen.extend(events(&end.device));
    let told = seen.iter().filter(|event| **event == cq_error).count();
    assert_eq!(told, 1, "{seen:?}");
    until("what is left", || match end.cq.poll(&mut out) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error, PollError::Overrun);
            true
        }
    });
}

#[test]
fn a_cq_overrun_by_local_qps_is_reported_once() {
    for through_the_lane in [true, false] {
        let fabric = Fabric::new();
        let there = TestQp::new(fabric.open("soft:h2"), None, 16);
        let mut here = TestQp::new(fabric.open("soft:h1"), None, 2);
        if !through_the_lane {
            // The first queue pair of a CQ has its lane, so the test uses the second.
            let init = qp_init(&here.cq, None);
            let first = here.device.create_qp(PD, &init).unwrap();
            let second = here.device.create_qp(PD, &init).unwrap();
            drop(std::mem::replace(&mut here.qp, second));
            std::mem::forget(first);
        }
        let mut ends = [here, there];
        connect(&mut ends);
        let [a, b] = &mut ends;
        overrun(a, b, |b| {
            SendOp::Write(RemoteAddr {
                addr: b.region.addr(0),
                rkey: b.region.rkey(),
            })
        });
        check_overrun(a, &[]);
    }
}

#[test]
fn a_remote_cq_overrun_fails_both_ends_once() {
    let fabric = Fabric::new();
    let mut ends = [("soft:h1", 16), ("soft:h2", 2)]
        .map(|(name, depth)| TestQp::new(fabric.open(name), None, depth));
    connect(&mut ends);
    let [a, b] = &mut ends;
    overrun(a, b, |_| SendOp::Send);
    let statuses: Vec<_> = (0..3).map(|_| a.completed().status).collect();
    let good = Status::Success;
    assert_eq!(statuses, [good, good, Status::RemoteOperation]);
    assert_eq!(a.qp.state(), QpState::Error);
    check_overrun(b, &[]);
}

fn is_readable(device: &SoftDevice) -> bool {
    let fd = device.async_fd();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn the_descriptor_is_readable_exactly_while_an_event_waits() {
    const EACH: u32 = 20_000;
    let fabric = Fabric::new();
    let device = fabric.open("soft");
    assert!(!is_readable(&device));
    let mut seen = [0; 2];
    std::thread::scope(|scope| {
        for raiser in 0..2 {
            let context = &device.context;
            scope.spawn(move || {
                for number in 0..EACH {
                    let event = AsyncEvent::SrqLimit(SrqId(raiser << 24 | number));
                    context.events.raise(event);
                }
            });
        }
        let until_all = std::time::Instant::now();
        while seen != [EACH; 2] {
            assert!(until_all.elapsed() < LIMIT, "only {seen:?}");
            if !is_readable(&device) {
                std::thread::yield_now();
                continue;
            }
            let Some(AsyncEvent::SrqLimit(SrqId(number))) = device.next_async_event() else {
                panic!("readable, but no event waits");
            };
            let next = &mut seen[(number >> 24) as usize];
            assert_eq!(number & 0xff_ffff, *next, "out of order");
            *next += 1;
        }
    });
    assert!(!is_readable(&device));
    assert_eq!(device.next_async_event(), None);
    // More events than a pipe holds. The descriptor is readable until the last is taken.
    for number in 0..70_000 {
        device
            .context
            .events
            .raise(AsyncEvent::SrqLimit(SrqId(number)));
    }
    let mut last = None;
    while is_readable(&device) {
        last = device.next_async_event();
        assert!(last.is_some());
    }
    assert_eq!(
        last,
        Some(AsyncEvent::SrqLimit(SrqId(65_535))),
        "those kept"
    );
    assert_eq!(device.next_async_event(), None);
}

#[test]
fn several_pollers_and_a_sleeper_share_every_completion() {
    const POSTED: u64 = 20_000;
    let fabric = Fabric::new();
    let there = [0, 1].map(|_| TestQp::new(fabric.open("soft:h2"), None, 16));
    let here = fabric.open("soft:h1");
    let channel = here.create_channel().unwrap();
    let cq = here
        .create_cq(&CqInit {
            channel: Some(channel.clone()),
            ..cq_init(64)
        })
        .unwrap();
    let mut init = qp_init(&cq, None);
    init.caps.max_send_wr = 24;
    let qp = || here.create_qp(PD, &init).unwrap();
    // One of them has the lane, the other has not.
    let mut qps = [qp(), qp()];
    let mut there = there;
    for (ours, theirs) in qps.iter_mut().zip(&mut there) {
        join(ours, theirs.device.info().gid, theirs.qp.qpn());
        join(&mut theirs.qp, here.info().gid, ours.qpn());
    }
    let seen = std::sync::Mutex::new(std::collections::HashMap::new());
    let count = || seen.lock().unwrap().len() as u64;
    let take = |out: &mut [Completion]| {
        let got = cq.poll(out).unwrap();
        let mut seen = seen.lock().unwrap();
        for completion in &out[..got] {
            assert_eq!(completion.status, Status::Success);
            *seen.entry((completion.qpn, completion.wr_id)).or_insert(0) += 1;
        }
        got
    };
    let all = 2 * POSTED;
    std::thread::scope(|scope| {
        for (qp, end) in qps.iter_mut().zip(&there) {
            let remote = RemoteAddr {
                addr: end.region.addr(0),
                rkey: end.region.rkey(),
            };
            scope.spawn(move || {
                for wr_id in 0..POSTED {
                    let wr = SendWr {
                        wr_id,
                        op: SendOp::Write(remote),
                        payload: Payload::Inline(&[1; 8]),
                        flags: SendFlags::SIGNALED,
                    };
                    // The CQ has room for all outstanding requests.
                    until("room", || qp.post_send(&[wr]).is_ok());
                }
            });
        }
        for most in [1, 3] {
            let (take, count) = (&take, &count);
            scope.spawn(move || {
                let mut out = vec![Completion::default(); most];
                until("all", || {
                    take(&mut out);
                    count() == all
                });
            });
        }
        // Sleeps whenever there is no completion.
        let mut out = [Completion::default(); 8];
        until("all", || {
            cq.arm(false);
            if take(&mut out) == 0 && count() < all {
                let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
                let limit = Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                };
                poll(&mut fds, Some(&limit)).unwrap();
                while channel.next_event().unwrap().is_some() {}
            }
            count() == all
        });
    });
    assert!(seen.into_inner().unwrap().values().all(|times| *times == 1));
}

#[test]
fn contexts_of_one_process_work_apart_and_together_and_go_one_by_one() {
    let fabric = Fabric::new();
    // Two contexts on one host, one on another.
    let devices = ["soft:h1", "soft:h1", "soft:h2"].map(|name| fabric.open(name));
    let end = |at: usize| TestQp::new(devices[at].again(), None, 16);
    let mut pairs = [(0, 1), (0, 2), (1, 2), (2, 2)].map(|(a, b)| {
        let mut ends = [end(a), end(b)];
        connect(&mut ends);
        Some(ends)
    });
    let write = |ends: &mut [TestQp; 2]| {
        for (from, to) in [(0, 1), (1, 0)] {
            let [a, b] = ends.get_disjoint_mut([from, to]).unwrap();
            assert_eq!(a.write_to(&b.region), Status::Success);
        }
    };
    pairs.iter_mut().flatten().for_each(write);
    let [first, second, third] = devices;
    // The second context goes, with everything made from it. Its peers get no event, and go on.
    pairs[0] = None;
    pairs[2] = None;
    drop(second);
    pairs.iter_mut().flatten().for_each(write);
    // A new context takes its place in the host.
    let mut again = [
        TestQp::new(fabric.open("soft:h1"), None, 16),
        TestQp::new(third.again(), None, 16),
    ];
    connect(&mut again);
    write(&mut again);
    drop(again);
    pairs[1] = None;
    drop(first);
    pairs.iter_mut().flatten().for_each(write);
    drop((pairs, third));
    let left = fabric.folder.path().join("fabric").exists();
    assert!(!left, "the registry is left");
}

/// Every device's error says which kind of limit was exceeded and by which number. Ours also names what was
/// requested.
#[test]
fn an_exceeded_limit_is_named_in_one_line() {
    let fabric = Fabric::new();
    let device = fabric.open("soft");
    let limits = device.info().limits;
    let cq = device.create_cq(&cq_init(4)).unwrap();
    let with = |change: &dyn Fn(&mut headworks_verbs::QpCaps)| {
        let mut init = qp_init(&cq, None);
        change(&mut init.caps);
        let refused = device.create_qp(PD, &init).err().unwrap();
        refused.to_string()
    };
    let said = [
        (
            "send queue",
            with(&|caps| caps.max_send_wr = limits.max_qp_wr + 1),
        ),
        (
            "receive queue",
            with(&|caps| caps.max_recv_wr = limits.max_qp_wr + 1),
        ),
        (
            "send scatter/gather",
            with(&|caps| caps.max_send_sge = limits.max_sge + 1),
        ),
        (
            "receive scatter/gather",
            with(&|caps| caps.max_recv_sge = limits.max_sge + 1),
        ),
        (
            "inline",
            with(&|caps| caps.max_inline = limits.max_inline + 1),
        ),
        (
            "CQ",
            device.create_cq(&cq_init(0)).err().unwrap().to_string(),
        ),
    ];
    for (what, line) in said {
        assert!(
            line.contains(what) && !line.contains('\n'),
            "{what}: {line}"
        );
    }
}
