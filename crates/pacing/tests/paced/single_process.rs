//! Tests of the visible behaviour of one queue pair, or a few, of one process.

use std::sync::Arc;

use headworks_pacing::{PacedDevice, PacingConfig};
use headworks_verbs::{
    AhKey, Completion, CompletionQueue, Destination, Device, DeviceInfo, Gid, PKey, PostError,
    Promises, ProtectionDomain, QpAttr, QpState, Qpn, RemoteAddr, SendFlags, SendOp, Sge, Status,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::scripted_device::{MAX_MESSAGE, Script};
use crate::world::{
    CAPS, Request, START, World, completion_queue, device, device_that_is, queue_pair, share,
};

fn gather(len: u32) -> Result<Vec<Sge>, Vec<u8>> {
    let (addr, lkey) = (1 << 32, 7);
    Ok(vec![Sge { addr, len, lkey }])
}

pub(crate) fn request(op: SendOp, len: u32) -> Request {
    Request {
        op,
        payload: gather(len),
        flags: SendFlags::SIGNALED,
    }
}

pub(crate) fn write(len: u32) -> Request {
    request(SendOp::Write(RemoteAddr::default()), len)
}

pub(crate) fn slow() -> PacingConfig {
    PacingConfig {
        line_rate_gbps: 5.0,
        burst_bytes: 0,
        quantum_bytes: 0,
        ..PacingConfig::default()
    }
}

#[test]
fn an_idle_rnic_is_given_a_burst_in_the_call() {
    let config = PacingConfig {
        burst_bytes: 16 * 1000,
        overhead_bytes: 64,
        ..slow()
    };
    let mut world = World::new(config, 1);
    for round in 0..3 {
        // Sixteen requests fit the burst, and one is due now.
        world.post(0, vec![write(936); 17]);
        assert_eq!(world.flying(0), 17, "round {round}");
        world.post(0, vec![write(936)]);
        assert_eq!(world.flying(0), 17, "and no more");
        world.settle();
        world.pass(1_000_000);
    }
    // A long request is begun within the call.
    world.post(2, vec![write(1 << 20)]);
    assert!(world.flying(2) > 0);
    world.settle();
}

/// Slices with nothing after them fill the send queue of a program that has posted one request.
#[test]
fn slices_of_one_request_do_not_refuse_another() {
    let config = PacingConfig {
        line_rate_gbps: 100.0,
        slice_bytes: 256,
        burst_bytes: 1_000_000,
        ..PacingConfig::default()
    };
    let mut world = World::new(config, 0);
    world.post(0, vec![write(24 * 256)]);
    for _ in 0..4 {
        world.pass(1_000);
        world.poll(0, 0);
    }
    assert_eq!(world.flying(0), CAPS.max_send_wr as usize);
    world.post(0, vec![write(8)]);
    assert_eq!(world.outstanding(0), 2);
    world.settle();
}

/// A unit of the RNIC that falls behind completes nothing for its queue pairs, while other requests still
/// complete at once.
#[test]
fn queue_pairs_that_are_left_behind_do_not_take_all_that_may_be_in_flight() {
    let config = PacingConfig {
        max_in_flight: 16,
        ..slow()
    };
    let mut world = World::new(config, 0);
    for pair in [0, 2] {
        world.post(pair, vec![write(8); CAPS.max_send_wr as usize]);
    }
    for _ in 0..64 {
        world.pass(1_000);
        world.poll(0, 4);
        world.complete(2, usize::MAX, Status::Success);
    }
    world.poll(0, 4);
    assert_eq!(world.outstanding(2), 0);
    assert!(world.flying(0) > 0, "it has its turn, too");
    world.settle();
}

#[test]
fn a_write_that_is_several_is_in_order_only_where_those_are() {
    let (script, share, config) = (
        Script::new(START),
        share(),
        Arc::new(PacingConfig::default()),
    );
    for (ordered_between_writes, whole) in [(false, 16_384), (true, 1 << 20)] {
        let mut info = script.info().clone();
        info.promises = Promises {
            ordered_between_writes,
            in_order_within_write: 1 << 20,
            ..info.promises
        };
        let paced = device_that_is(info, &script, &share, &config);
        assert_eq!(paced.info().promises.in_order_within_write, whole);
    }
}

/// A deferred request is not lost if the device has no room for it at the moment.
#[test]
fn a_device_that_is_full_for_a_while_is_asked_again() {
    let mut world = World::new(slow(), 0);
    world.post(0, vec![write(8); 8]);
    assert!(world.flying(0) < 8);
    world.script.state().full = 5;
    for _ in 0..20 {
        world.pass(10_000);
        world.poll(0, 4);
    }
    assert_eq!(world.script.state().full, 0);
    assert!(!world.script.state().is_in_error(world.qpn(0)));
    assert_eq!(world.flying(0), 8);
    world.settle();
}

/// The limit of bytes in flight holds for all queue pairs together, whichever come and go.
#[test]
fn destroyed_queue_pairs_free_exactly_their_bytes_in_flight() {
    // 625 bytes a microsecond with a delay of three microseconds allow three requests of 500 bytes.
    let config = PacingConfig {
        window: true,
        base_delay_ns: 1_000,
        overhead_bytes: 64,
        burst_bytes: 500,
        ..slow()
    };
    let mut world = World::new(config, 0);
    world.post(0, vec![write(436)]);
    world.complete(0, 1, Status::Success);
    world.poll(0, 4);
    world.post(0, vec![write(436); 2]);
    world.post(2, vec![write(436); 20]);
    world.poll(0, 4);
    assert_eq!((world.flying(0), world.flying(2)), (2, 1));
    world.destroy(0);
    assert_eq!(world.flying(2), 3, "at once, and no more");
    for _ in 0..3 {
        world.post(0, vec![write(436)]);
        world.destroy(0);
        world.poll(0, 4);
        assert_eq!(world.flying(2), 3);
    }
    world.settle();
}

/// Completions are found while another queue pair is destroyed and nothing waits.
#[test]
fn completions_of_others_survive_a_queue_pair() {
    let mut world = World::new(PacingConfig::default(), 0);
    for pair in [0, 2] {
        world.post(pair, vec![write(8)]);
        world.poll(0, 4);
        world.post(pair, vec![write(8)]);
    }
    world.complete(2, 2, Status::Success);
    world.destroy(0);
    assert_eq!(world.poll(0, 4), 2);
}

/// A SEND is posted whole, however long it is, also if it must wake a sleeper without a timer.
#[test]
fn a_sleeper_is_woken_by_a_request_longer_than_a_slice() {
    let mut world = World::new(slow(), 0);
    for len in [100_000, 1 << 20, 8] {
        world.post(0, vec![request(SendOp::Send, len)]);
    }
    for _ in 0..3 {
        world.complete(0, 1, Status::Success);
        assert_eq!(world.poll(0, 4), 1);
        world.arm(0);
    }
    world.settle();
}

#[test]
fn deferred_requests_are_posted_without_polling() {
    for op in [SendOp::Send, SendOp::Write(RemoteAddr::default())] {
        let mut world = World::new(slow(), 0);
        let limit = CAPS.max_send_wr as usize;
        while world.outstanding(0) < limit {
            world.post(0, vec![request(op, 40_000)]);
            world.pass(1_000);
        }
        // The post is refused, as the world checks, but every call posts what is due.
        let mut posts = 0;
        loop {
            world.post(0, vec![request(op, 8)]);
            world.pass(20_000);
            world.complete(0, usize::MAX, Status::Success);
            if world.given >= limit as u64 * 40_000 && world.flying(0) == 0 {
                break;
            }
            posts += 1;
            assert!(posts < 10_000, "it does not go on");
        }
        assert_eq!(world.outstanding(0), limit);
        let mut told = 0;
        while told < limit {
            let count = world.poll(0, 7);
            assert!(count > 0, "{told} of {limit}");
            told += count;
        }
        assert_eq!(world.poll(0, 7), 0);
    }
}

/// Runs a device whose delay grows with the rate, and a program with one request at a time. Returns the
/// bounds between which the rate stays in the end.
fn settles(config: PacingConfig, slope: f64) -> (u64, u64) {
    let script = Script::new(START);
    let config = Arc::new(config);
    let paced = device(&script, &share(), &config);
    let cq = completion_queue(&paced);
    let mut qp = queue_pair(&paced.alloc_pd().expect("a domain"), &cq, true);
    let (mut low, mut high) = (u64::MAX, 0);
    let mut out = [Completion::default(); 4];
    for round in 0..14_000 {
        qp.post_send(&[write(64).wr(1)]).expect("posts");
        let rate = paced.status().rate_bytes_per_s;
        let delay = config.base_delay_ns as f64 * (1.0 + slope * rate as f64);
        script.state().now += delay as u64;
        script.state().complete(qp.qpn().raw(), 1, Status::Success);
        let polled = cq.poll(&mut out).expect("polls");
        assert_eq!(polled, 1);
        if round >= 13_000 {
            (low, high) = (low.min(rate), high.max(rate));
        }
    }
    // The queue pair counts as active, also while the rate stays.
    qp.post_send(&[write(64).wr(1)]).expect("posts");
    assert_eq!(paced.status().active, 1);
    (low, high)
}

/// The port of the device gets another address while the device is open.
#[test]
fn the_description_follows_the_port_of_the_device_below() {
    let script = Script::new(START);
    let config = Arc::new(PacingConfig::default());
    let paced = device(&script, &share(), &config);
    let before = paced.info();
    let info = script.info().clone();
    let gid = Gid([7; 16]);
    script.info.replace(DeviceInfo {
        gid,
        pkey: PKey::new(0x8001),
        ..info.clone()
    });
    let after = paced.info();
    assert_eq!((after.gid, after.pkey), (gid, PKey::new(0x8001)));
    assert_eq!((before.gid, before.pkey), (info.gid, None));
    // What pacing takes for itself stays taken.
    assert_eq!(after.limits, before.limits);
    assert_ne!(after.limits.max_cq, info.limits.max_cq);
}

#[test]
fn every_request_is_a_sample_if_asked_for_also_within_a_chain() {
    for (sample_every, chain, samples) in [(1, 1, 32), (1, 8, 32), (8, 1, 4), (8, 8, 4)] {
        let config = Arc::new(PacingConfig {
            sample_every,
            ..PacingConfig::default()
        });
        let script = Script::new(START);
        let paced = device(&script, &share(), &config);
        let cq = completion_queue(&paced);
        let mut qp = queue_pair(&paced.alloc_pd().expect("a domain"), &cq, true);
        let mut out = [Completion::default(); 8];
        for _ in 0..32 / chain {
            let request = write(64);
            let wrs: Vec<_> = (0..chain as u64).map(|id| request.wr(id)).collect();
            qp.post_send(&wrs).expect("posts");
            script.state().now += 1_000;
            let qpn = qp.qpn().raw();
            script.state().complete(qpn, chain, Status::Success);
            assert_eq!(cq.poll(&mut out).expect("polls"), chain);
        }
        let found = paced.counts().samples;
        assert_eq!(found, samples, "one in {sample_every}, chains of {chain}");
    }
}

/// Long requests over memory that is faster than the line would be, and short requests.
#[test]
fn requests_that_beat_the_line_do_not_slow_the_others_down() {
    let config = Arc::new(PacingConfig {
        line_rate_gbps: 100.0,
        sample_every: 1,
        ..PacingConfig::default()
    });
    let script = Script::new(START);
    let paced = device(&script, &share(), &config);
    let cq = completion_queue(&paced);
    let mut qp = queue_pair(&paced.alloc_pd().expect("a domain"), &cq, true);
    let mut out = [Completion::default(); 4];
    for round in 0..2_000 {
        // 16 KiB would take 1.3 µs on the line.
        let (len, nanos) = [(16_384, 800), (8, 400)][round / 50 % 2];
        qp.post_send(&[write(len).wr(1)]).expect("posts");
        script.state().now += nanos;
        script.state().complete(qp.qpn().raw(), 1, Status::Success);
        assert_eq!(cq.poll(&mut out).expect("polls"), 1);
        script.state().now += 10_000;
    }
    assert_eq!(paced.status().rate_bytes_per_s, config.line_rate());
}

#[test]
fn the_rate_settles_where_delay_rises_with_it() {
    let config = PacingConfig {
        base_delay_ns: 10_000,
        min_rate_gbps: 1.0,
        sample_every: 1,
        overhead_bytes: 0,
        ..PacingConfig::default()
    };
    let step = config.inc().max(config.dec());
    // The delay reaches the upper threshold at half of the line rate, at a third, or above the line rate.
    for (part, settled) in [(0.5, 0.5), (0.33, 0.33), (1.5, 1.0)] {
        let slope = config.init_beta / (config.line_rate() as f64 * part);
        let (low, high) = settles(config.clone(), slope);
        assert!(high - low <= step, "{low} to {high}");
        let most = (config.line_rate() as f64 * settled) as u64 + step;
        // Between the thresholds the rate does not change.
        let least = most as f64 * config.init_alpha / config.init_beta * 0.9;
        assert!((least as u64..=most).contains(&high), "{high} of {most}");
    }
}

/// Legal and illegal requests.
fn any_request() -> impl Strategy<Value = Request> {
    let to = Destination {
        ah: AhKey(1),
        qpn: Qpn::new(2).expect("24 bits"),
        qkey: 3,
    };
    let remote = RemoteAddr::default();
    let (expect, swap) = (1, 2);
    let ops = vec![
        SendOp::Send,
        SendOp::SendImm(1),
        SendOp::SendTo(to),
        SendOp::SendToImm(to, 4),
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 5),
        SendOp::Read(remote),
        SendOp::CompareSwap {
            remote,
            expect,
            swap,
        },
        SendOp::FetchAdd { remote, add: 6 },
    ];
    let len = select(vec![0, 8, 100, 40_000, MAX_MESSAGE, u32::MAX]);
    let sge = (len, Just(1_u64 << 32)).prop_map(|(len, addr)| Sge { addr, len, lkey: 7 });
    let payload = prop_oneof![
        2 => gather_of_one(),
        1 => vec(sge, 0..7).prop_map(Ok),
        1 => select(vec![0, 8, 64, 65, 200]).prop_map(|len| Err(vec![9; len])),
    ];
    (select(ops), payload).prop_map(|(op, payload)| Request {
        op,
        payload,
        flags: SendFlags::SIGNALED,
    })
}

fn gather_of_one() -> impl Strategy<Value = Result<Vec<Sge>, Vec<u8>>> {
    select(vec![8, 100, 40_000]).prop_map(gather)
}

/// A device, its domain, and a completion queue.
struct Bench {
    script: Script,
    domain: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
    _paced: Option<PacedDevice>,
}

impl Bench {
    fn paced(config: PacingConfig) -> Self {
        let script = Script::new(START);
        let paced = device(&script, &share(), &Arc::new(config));
        Self {
            script,
            domain: paced.alloc_pd().expect("a domain"),
            cq: completion_queue(&paced),
            _paced: Some(paced),
        }
    }

    fn posts(
        &self,
        state: QpState,
        reads: u8,
        chains: &[Vec<Request>],
    ) -> Vec<Result<(), PostError>> {
        let mut qp = queue_pair(&self.domain, &self.cq, true);
        let attr = QpAttr {
            state: Some(state),
            max_rd_atomic: Some(reads),
            ..QpAttr::default()
        };
        qp.modify(&attr).expect("any state");
        let post = |chain: &Vec<Request>| {
            let wrs: Vec<_> = chain.iter().map(|request| request.wr(1)).collect();
            qp.post_send(&wrs)
        };
        chains.iter().map(post).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// A request is refused alike and at the same place whether it is deferred, posted at once, or posted to
    /// the device alone.
    #[test]
    fn a_refused_post_fails_at_post_time(
        state in select(vec![QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe]),
        ready in any::<bool>(),
        reads in select(vec![0_u8, 4]),
        chains in vec(vec(any_request(), 1..14), 1..4),
    ) {
        let state = if ready { QpState::Rts } else { state };
        let script = Script::new(START);
        let plain = Bench {
            cq: script.create_cq(&headworks_verbs::CqInit { depth: 100, ..Default::default() }).expect("room"),
            domain: script.alloc_pd().expect("a domain"),
            script,
            _paced: None,
        };
        let expected = plain.posts(state, reads, &chains);
        drop(plain.script);
        let at_once = Bench::paced(PacingConfig { burst_bytes: 1_000_000_000, ..PacingConfig::default() });
        prop_assert_eq!(&at_once.posts(state, reads, &chains), &expected);
        let late = Bench::paced(slow());
        // After this post nothing is due for a long time.
        let mut other = queue_pair(&late.domain, &late.cq, true);
        other.post_send(&[request(SendOp::Send, 1 << 29).wr(1)]).expect("due");
        prop_assert_eq!(&late.posts(state, reads, &chains), &expected);
    }
}
