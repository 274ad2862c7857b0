//! Paced devices over a scripted device. Whatever a program does, and however its requests end, nothing is
//! reordered, lost, doubled, cut wrongly, or posted without credit.

#[path = "paced/lifetimes.rs"]
mod lifetimes;
#[path = "paced/scripted_device.rs"]
mod scripted_device;
#[path = "paced/single_process.rs"]
mod single_process;
#[path = "paced/waiting.rs"]
mod waiting;
#[path = "paced/world.rs"]
mod world;

use headworks_pacing::PacingConfig;
use headworks_verbs::{RemoteAddr, SendFlags, SendOp, Sge, Status};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use world::{CAPS, Request, World};

/// A step of a test.
#[derive(Clone, Debug)]
enum Op {
    Post(usize, Vec<Request>),
    Poll(usize, usize),
    Arm(usize),
    Complete(usize, usize, Status),
    Pass(u64),
    Kill(usize),
    Error(usize),
    Reset(usize),
    Destroy(usize),
    /// The device refuses the next post.
    Refuse,
}

fn remote() -> impl Strategy<Value = RemoteAddr> {
    (0..u64::MAX / 2, any::<u32>()).prop_map(|(addr, rkey)| RemoteAddr { addr, rkey })
}

/// A gather list of about `most` bytes in all.
fn list(most: u32) -> impl Strategy<Value = Vec<Sge>> {
    let sge = (0..u64::MAX / 2, 0..most / 2 + 1, any::<u32>());
    let sge = sge.prop_map(|(addr, len, lkey)| Sge { addr, len, lkey });
    vec(sge, 0..=CAPS.max_send_sge as usize)
}

fn flags() -> impl Strategy<Value = SendFlags> {
    let one = |flag: SendFlags| prop_oneof![3 => Just(SendFlags::NONE), 1 => Just(flag)];
    let signaled = prop_oneof![Just(SendFlags::NONE), Just(SendFlags::SIGNALED)];
    let all = (one(SendFlags::FENCE), signaled, one(SendFlags::SOLICITED));
    all.prop_map(|(a, b, c)| a | b | c)
}

fn payload() -> impl Strategy<Value = Result<Vec<Sge>, Vec<u8>>> {
    prop_oneof![
        3 => list(300).prop_map(Ok),
        2 => list(9_000).prop_map(Ok),
        1 => list(60_000).prop_map(Ok),
        2 => vec(any::<u8>(), 0..=CAPS.max_inline as usize).prop_map(Err),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let word = |addr| {
        let (len, lkey) = (8, 3);
        Ok(vec![Sge { addr, len, lkey }])
    };
    let with_bytes = prop_oneof![
        Just(SendOp::Send),
        any::<u32>().prop_map(SendOp::SendImm),
        remote().prop_map(SendOp::Write),
        remote().prop_map(SendOp::Write),
        (remote(), any::<u32>()).prop_map(|(to, imm)| SendOp::WriteImm(to, imm)),
    ];
    let atomic = prop_oneof![
        (remote(), any::<u64>()).prop_map(|(remote, add)| SendOp::FetchAdd { remote, add }),
        (remote(), any::<u64>()).prop_map(|(remote, swap)| {
            let expect = 1;
            SendOp::CompareSwap {
                remote,
                expect,
                swap,
            }
        }),
    ];
    let parts = prop_oneof![
        6 => (with_bytes, payload()),
        2 => (remote().prop_map(SendOp::Read), list(20_000).prop_map(Ok)),
        1 => (atomic, (0..u64::MAX / 2).prop_map(word)),
    ];
    (parts, flags()).prop_map(|((op, payload), flags)| Request { op, payload, flags })
}

fn op() -> impl Strategy<Value = Op> {
    let many = prop_oneof![3 => 1..4_usize, 1 => 1..30_usize];
    let chain = many.prop_flat_map(|count| vec(request(), count));
    let who = 0..8_usize;
    let failure = select(vec![
        Status::RemoteAccess,
        Status::RetryExceeded,
        Status::Fatal,
    ]);
    let room = prop_oneof![0..4_usize, 4..50_usize];
    let time = prop_oneof![
        0..100_u64,
        100..5_000_u64,
        5_000..100_000_u64,
        Just(20_000_000)
    ];
    prop_oneof![
        8 => (who.clone(), chain).prop_map(|(who, chain)| Op::Post(who, chain)),
        6 => (who.clone(), room).prop_map(|(who, room)| Op::Poll(who, room)),
        1 => who.clone().prop_map(Op::Arm),
        8 => (who.clone(), 1..12_usize).prop_map(|(who, count)| Op::Complete(who, count, Status::Success)),
        1 => (who.clone(), 1..4_usize, failure).prop_map(|(who, count, status)| Op::Complete(who, count, status)),
        5 => time.prop_map(Op::Pass),
        1 => who.clone().prop_map(Op::Kill),
        1 => who.clone().prop_map(Op::Error),
        2 => who.clone().prop_map(Op::Reset),
        1 => who.prop_map(Op::Destroy),
        1 => Just(Op::Refuse),
    ]
}

fn config() -> impl Strategy<Value = PacingConfig> {
    let sizes = (
        256..6_000_u32,
        prop_oneof![Just(0_u32), 0..70_000_u32],
        prop_oneof![Just(0_u32), 0..6_000_u32],
        0..100_u32,
        select(vec![16_u32, 64, 4096]),
    );
    let bools = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let rates = (select(vec![5_u32, 25, 100]), 0..4_000_u32);
    (sizes, bools, rates).prop_map(|(sizes, bools, rates)| {
        let (slice, burst, quantum, overhead, flying) = sizes;
        PacingConfig {
            line_rate_gbps: rates.0.into(),
            base_delay_ns: rates.1.into(),
            slice_bytes: slice.into(),
            burst_bytes: burst.into(),
            quantum_bytes: quantum.into(),
            overhead_bytes: overhead.into(),
            max_in_flight: flying.into(),
            slice_imm: bools.0,
            timestamps: bools.1,
            sample_every: if bools.2 { 1 } else { 8 },
            // The steps are large enough to change the rate noticeably.
            dec_mbps: 2_000.0,
            inc_mbps: 1_000.0,
            ..PacingConfig::default()
        }
    })
}

fn happens(world: &mut World, op: Op) {
    let (pairs, cqs) = (world.pairs(), world.cqs());
    match op {
        Op::Post(who, chain) => world.post(who % pairs, chain),
        Op::Poll(who, room) => _ = world.poll(who % cqs, room),
        Op::Arm(who) => world.arm(who % cqs),
        Op::Complete(who, count, last) => world.complete(who % pairs, count, last),
        Op::Pass(nanos) => world.pass(nanos),
        Op::Kill(who) => world.kill(who % pairs),
        Op::Error(who) => world.modify_to_error(who % pairs),
        Op::Reset(who) => world.reset(who % pairs),
        Op::Destroy(who) => world.destroy(who % pairs),
        Op::Refuse => world.script.state().refuses = true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// Limits the rate. As long as nobody sleeps, no credit comes from nothing either.
    #[test]
    fn requests_complete_once_whole_and_in_order(
        config in config(),
        others in 0..3_usize,
        sleeps in any::<bool>(),
        ops in vec(op(), 1..60),
    ) {
        let mut world = World::new(config, others);
        for op in ops {
            if sleeps || !matches!(op, Op::Arm(_)) {
                happens(&mut world, op);
            }
        }
        world.settle();
    }

    /// Limits the bytes in flight instead of the rate.
    #[test]
    fn a_window_reorders_and_loses_nothing_either(
        config in config(),
        others in 0..2_usize,
        ops in vec(op(), 1..60),
    ) {
        let mut world = World::new(PacingConfig { window: true, ..config }, others);
        for op in ops {
            happens(&mut world, op);
        }
        world.settle();
    }
}
