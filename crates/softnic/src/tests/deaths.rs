//! Processes that are killed or stopped at each point of a request.

use super::child::PeerTestProcess;
use headworks_verbs::CompletionChannel;

use super::*;

/// A receiving end, with or without an SRQ, and the process that is connected to it.
struct SrqDeathFixture {
    ours: TestQp,
    srq: Option<Arc<SoftSrq>>,
    other: PeerTestProcess,
    /// Receives that were posted and have not completed yet.
    posted: std::collections::BTreeSet<u64>,
    next: u64,
}

const DEPTH: u32 = 8;

impl SrqDeathFixture {
    fn new(fabric: &Fabric, device: &SoftDevice, shared: bool, host: &str) -> Self {
        Self::of_type(QpType::Rc, fabric, device, shared, host)
    }

    fn of_type(
        qp_type: QpType,
        fabric: &Fabric,
        device: &SoftDevice,
        shared: bool,
        host: &str,
    ) -> Self {
        let srq = shared.then(|| {
            let init = SrqInit {
                max_wr: DEPTH,
                max_sge: 1,
                limit: DEPTH,
            };
            device.create_srq(PD, &init).unwrap()
        });
        let as_dyn = srq.clone().map(|srq| srq as Arc<dyn SharedReceiveQueue>);
        let mut ours = TestQp::of_type(qp_type, device.again(), as_dyn, 32);
        let mut other = PeerTestProcess::start(fabric, host);
        let kind = match qp_type {
            QpType::Uc => "unreliable",
            _ => "end",
        };
        other.join_as(kind, &mut ours.qp, device);
        let posted = std::collections::BTreeSet::new();
        Self {
            ours,
            srq,
            other,
            posted,
            next: 0,
        }
    }

    /// Posts receives until there is no room. The other side may take receives of an SRQ as fast as they
    /// are posted, so no more are posted and not polled than the CQ holds.
    fn fill(&mut self) {
        while self.posted.len() < 2 * DEPTH as usize {
            let sges = [self.ours.region.sge(0, 64)];
            let wr = RecvWr {
                wr_id: self.next,
                sges: &sges,
            };
            let done = match &self.srq {
                Some(srq) => srq.post_recv(&[wr]),
                None if self.posted.len() == DEPTH as usize => return,
                None => self.ours.qp.post_recv(&[wr]),
            };
            if done.is_err() {
                return;
            }
            self.posted.insert(self.next);
            self.next += 1;
        }
    }

    /// Polls once and records what completed. Returns how many completions there were.
    fn poll(&mut self) -> usize {
        let mut out = [Completion::default(); 4];
        let got = self.ours.cq.poll(&mut out).unwrap();
        for completion in &out[..got] {
            assert!(completion.opcode.is_recv());
            let was_posted = self.posted.remove(&completion.wr_id);
            assert!(was_posted, "{completion:?} completed twice");
        }
        got
    }

    /// Checks, after the death of the other process at the end of an unreliable connection, that the survivor is in RTS
    /// and that every receive has completed or is posted.
    fn check_unreliable(mut self, device: &SoftDevice) {
        until("the end of the peer", || {
            self.poll();
            self.ours.qp.has_outlived_its_peer()
        });
        while self.poll() > 0 {}
        assert_eq!(self.ours.qp.state(), QpState::Rts);
        let events = std::iter::from_fn(|| device.next_async_event());
        let fatal = AsyncEvent::QpFatal(self.ours.qp.qpn());
        assert!(!events.into_iter().any(|event| event == fatal));
        let Some(srq) = self.srq.take() else {
            // All that are posted are flushed, once each.
            let error = QpAttr::to_state(QpState::Error);
            self.ours.qp.modify(&error).unwrap();
            return until("all receives", || {
                self.poll();
                self.posted.is_empty()
            });
        };
        // Messages of another connection take every receive.
        let mut reader = TestQp::new(device.again(), Some(srq), 32);
        let mut writer = TestQp::new(device.again(), None, 32);
        let gid = device.info().gid;
        let (there, here) = (writer.qp.qpn(), reader.qp.qpn());
        join(&mut reader.qp, gid, there);
        join(&mut writer.qp, gid, here);
        for _ in 0..self.posted.len() {
            writer.post(SendOp::Send);
            assert_eq!(writer.completed().status, Status::Success);
            let done = reader.completed();
            assert!(self.posted.remove(&done.wr_id), "{done:?} completed twice");
        }
        assert!(self.posted.is_empty());
    }

    /// Checks, after the other process's death, that every receive completes or is flushed once, and that
    /// nothing hangs.
    fn check(mut self, device: &SoftDevice) {
        until("the error state", || {
            self.poll();
            self.ours.qp.state() == QpState::Error
        });
        match self.srq.take() {
            None => until("all receives", || {
                self.poll();
                self.posted.is_empty()
            }),
            Some(srq) => {
                let mut told = Vec::new();
                let last = AsyncEvent::QpLastWqe(self.ours.qp.qpn());
                until("the last receive", || {
                    self.poll();
                    told.extend(std::iter::from_fn(|| device.next_async_event()));
                    told.contains(&last)
                });
                while self.poll() > 0 {}
                let taken = srq.receives.slots.popped();
                assert_eq!(
                    self.next - taken,
                    self.posted.len() as u64,
                    "a receive was lost"
                );
                // The first receive taken crosses the limit, even if its taker died just then.
                let limit = AsyncEvent::SrqLimit(srq.id());
                until("the limit event", || {
                    told.extend(std::iter::from_fn(|| device.next_async_event()));
                    taken == 0 || told.contains(&limit)
                });
                // The event must not come again.
                device.objects.service_limits(&device.context, true);
                told.extend(std::iter::from_fn(|| device.next_async_event()));
                let times = |event| told.iter().filter(|told| **told == event).count();
                assert_eq!(times(limit), usize::from(taken > 0), "{told:?}");
                assert_eq!(times(last), 1, "{told:?}");
                // Every slot is free again.
                self.srq = Some(srq);
                self.fill();
                assert_eq!(self.posted.len(), DEPTH as usize);
            }
        }
        // The CQ's slots are used more than once around, by another queue pair.
        let init = qp_init(&self.ours.cq, None);
        let mut ends = [(); 2].map(|()| device.create_qp(PD, &init).unwrap());
        let names = [0, 1].map(|at: usize| ends[at].qpn());
        for (qp, name) in ends.iter_mut().zip([names[1], names[0]]) {
            join(qp, device.info().gid, name);
        }
        for wr_id in 0..70 {
            let receive = RecvWr { wr_id, sges: &[] };
            ends[1].post_recv(&[receive]).unwrap();
            let wr = SendWr {
                wr_id,
                op: SendOp::Send,
                payload: Payload::Inline(&[]),
                flags: SendFlags::default(),
            };
            ends[0].post_send(&[wr]).unwrap();
            for _ in 0..2 {
                let completion = self.ours.completed();
                assert_eq!(completion.status, Status::Success);
                assert_eq!(completion.wr_id, wr_id);
            }
        }
    }
}

#[test]
fn kills_at_any_send_point_cost_and_block_nothing() {
    let fabric = Fabric::new();
    for shared in [false, true] {
        let mut points = 0;
        for point in 0.. {
            let device = fabric.open("soft:h1");
            let mut struck = SrqDeathFixture::new(&fabric, &device, shared, "h2");
            struck.fill();
            struck.other.tell(&format!("kill {point}"));
            struck.other.tell("send 2");
            if struck.other.hears_or_died("sent").is_some() {
                break;
            }
            points += 1;
            struck.check(&device);
        }
        assert!(points >= 12, "only {points} points were passed");
    }
}

#[test]
fn kills_at_any_send_point_of_an_unreliable_connection_lose_a_message_and_no_receive() {
    let fabric = Fabric::new();
    for shared in [false, true] {
        let mut points = 0;
        for point in 0.. {
            let device = fabric.open("soft:h1");
            let mut struck = SrqDeathFixture::of_type(QpType::Uc, &fabric, &device, shared, "h2");
            struck.fill();
            struck.other.tell(&format!("kill {point}"));
            struck.other.tell("send 2");
            if struck.other.hears_or_died("sent").is_some() {
                break;
            }
            points += 1;
            struck.check_unreliable(&device);
        }
        assert!(points >= 10, "only {points} points were passed");
    }
}

/// Makes a CQ with a channel of its own.
fn cq_with_channel(
    device: &SoftDevice,
    depth: u32,
) -> (Arc<dyn CompletionQueue>, Arc<dyn CompletionChannel>) {
    let channel = device.create_channel().unwrap();
    let init = CqInit {
        channel: Some(channel.clone()),
        ..cq_init(depth)
    };
    (device.create_cq(&init).unwrap(), channel)
}

/// A process that disarms a CQ and is killed before it raises the event must not leave the others without
/// wake-ups, even if its queue pair is destroyed before the progress thread knows of the death.
#[test]
fn kills_at_any_send_point_lose_no_wake_up_of_others() {
    let fabric = Fabric::new();
    let mut points = 0;
    for point in 0.. {
        let device = fabric.open("soft:h1");
        let (cq, channel) = cq_with_channel(&device, 32);
        let qp = || device.create_qp(PD, &qp_init(&cq, None)).unwrap();
        let [mut struck, mut from, mut to] = [(); 3].map(|()| qp());
        let names = [from.qpn(), to.qpn()];
        join(&mut from, device.info().gid, names[1]);
        join(&mut to, device.info().gid, names[0]);
        let mut other = PeerTestProcess::start(&fabric, "h2");
        other.join(&mut struck, &device);
        let receive = RecvWr {
            wr_id: 1,
            sges: &[],
        };
        struck.post_recv(&[receive]).unwrap();
        to.post_recv(&[receive]).unwrap();
        cq.arm(false);
        let progress = device.context.progress.service();
        other.tell(&format!("kill {point}"));
        other.tell("send 1");
        if other.hears_or_died("sent").is_some() {
            break;
        }
        points += 1;
        drop(struck);
        drop(progress);
        let wr = SendWr {
            wr_id: 2,
            op: SendOp::Send,
            payload: Payload::Inline(&[]),
            flags: SendFlags::default(),
        };
        from.post_send(&[wr]).unwrap();
        let mut polled = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        let limit = Timespec::try_from(LIMIT).unwrap();
        let woken = poll(&mut polled, Some(&limit)).unwrap();
        assert_eq!(woken, 1, "no event after a kill at point {point}");
    }
    assert!(points >= 9, "only {points} points were passed");
}

#[test]
fn the_end_of_a_queue_pair_without_a_peer_is_no_event() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let (cq, channel) = cq_with_channel(&device, 4);
    let datagrams = QpInit {
        qp_type: QpType::Ud,
        ..qp_init(&cq, None)
    };
    for init in [qp_init(&cq, None), datagrams] {
        cq.arm(false);
        drop(device.create_qp(PD, &init).unwrap());
        assert_eq!(channel.next_event().unwrap(), None, "{:?}", init.qp_type);
    }
}

#[test]
fn an_event_that_an_initiator_left_to_the_owner_is_raised_beside_a_death() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let (cq, channel) = cq_with_channel(&device, 4);
    let _progress = device.context.progress.service();
    device.context.table.attention().cqs.set(cq.id().0 as usize);
    device.objects.service_limits(&device.context, true);
    assert_eq!(channel.next_event().unwrap(), Some(cq.id()));
}

#[test]
fn kills_at_random_moments_cost_and_block_nothing() {
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 2000,
        None => 30,
    };
    let fabric = Fabric::new();
    for round in 0..rounds {
        let device = fabric.open("soft:h1");
        let mut struck = SrqDeathFixture::new(&fabric, &device, round % 2 == 0, "h2");
        struck.fill();
        let target = &struck.ours.region;
        let line = format!("stream {} {}", target.addr(8), target.rkey());
        struck.other.tell(&line);
        let mut got = 0;
        until("some completions", || {
            while let more @ 1.. = struck.poll() {
                got += more;
            }
            struck.fill();
            got > 37 * round % 101
        });
        struck.other.kill();
        struck.check(&device);
    }
}

#[test]
fn memory_is_taken_from_an_initiator_that_was_stopped_in_the_middle_of_a_write() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let mut ours = TestQp::new(device.again(), None, 16);
    let mut other = PeerTestProcess::start(&fabric, "h2");
    other.join(&mut ours.qp, &device);
    let TestQp {
        region: old,
        qp,
        cq,
        ..
    } = ours;
    other.tell("stop write");
    other.tell(&format!("write {} {}", old.addr(0), old.rkey()));
    other.await_stop();
    let start = old.addr(0);
    within_limit(move || drop(old));
    assert_eq!(device.context.quarantine.held(), 1);
    let others: Vec<_> = (0..1000).map(|_| region(&device, PD)).collect();
    for other in &others {
        assert_ne!(other.addr(0), start);
        fill(other.buffer(), CANARY);
    }
    other.go_on();
    // Its WRITE was admitted before, so it succeeds, into memory that nothing uses.
    assert_eq!(other.hears("wrote"), ["Success"]);
    for other in &others {
        assert!(holds(other.buffer(), CANARY), "written after it was taken");
    }
    until("the memory to come back", || {
        device.context.quarantine.held() == 0
    });
    until("the same place", || region(&device, PD).addr(0) == start);
    drop((others, qp, cq));
}

#[test]
fn the_death_of_a_stopped_initiator_gives_its_memory_back() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let mut ours = TestQp::new(device.again(), None, 16);
    let mut other = PeerTestProcess::start(&fabric, "h2");
    other.join(&mut ours.qp, &device);
    other.tell("stop write");
    let old = &ours.region;
    other.tell(&format!("write {} {}", old.addr(0), old.rkey()));
    other.await_stop();
    within_limit(move || drop((ours.region, ours.qp)));
    assert_eq!(device.context.quarantine.held(), 2);
    other.kill();
    until("all to come back", || device.context.quarantine.held() == 0);
}

#[test]
fn nothing_is_written_to_memory_after_it_was_deregistered() {
    const LEN: u32 = 120 << 10;
    const INITIATORS: usize = 3;
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 500,
        None => 20,
    };
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let mut others: Vec<_> = (0..INITIATORS)
        .map(|at| PeerTestProcess::start(&fabric, &format!("h{}", at + 2)))
        .collect();
    let mut reused = 0;
    for _ in 0..rounds {
        let buffer: Arc<dyn Buffer> = device.alloc(&AllocRequest::of(LEN as usize)).unwrap();
        let region = device.register(PD, &buffer, Access::ALL).unwrap();
        let mut ends: Vec<_> = others
            .iter_mut()
            .map(|other| {
                let mut end = TestQp::new(device.again(), None, 64);
                other.join(&mut end.qp, &device);
                for wr_id in 0..16 {
                    let sges = [region.sge(0, LEN)];
                    let receive = RecvWr { wr_id, sges: &sges };
                    end.qp.post_recv(&[receive]).unwrap();
                }
                end
            })
            .collect();
        for other in &mut others {
            let (addr, rkey) = (region.addr(0), region.rkey());
            other.tell(&format!("hammer {addr} {rkey} {LEN}"));
        }
        for end in &mut ends {
            // Its SENDs arrive, so its WRITEs do too.
            assert_eq!(end.completed().status, Status::Success);
        }
        let start = buffer.as_ptr().addr();
        drop(region);
        drop(buffer);
        let buffer: Arc<dyn Buffer> = device.alloc(&AllocRequest::of(LEN as usize)).unwrap();
        reused += usize::from(buffer.as_ptr().addr() == start);
        fill(&buffer, CANARY);
        for other in &mut others {
            other.hears("hammered");
        }
        assert!(holds(&buffer, CANARY), "written after it was deregistered");
    }
    assert!(reused > 0, "the memory was never used again");
}
