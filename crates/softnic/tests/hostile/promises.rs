//! Properties of every seed: the specification's guarantees hold, and the seed can be replayed.

use headworks_softnic::hostile::rules::by;
use headworks_softnic::hostile::{FaultPoint, Rules, Verdict};
use headworks_verbs::{Duration, QpState, SendOp, Status};

use crate::pair::{LEN, RecordingRule, TestPair, all_well, each_seed, until};

/// Options in the names of hostile devices, which declare fewer and fewer promises.
const NAMES: [&str; 4] = [
    "",
    ",ordered_between_writes=no",
    ",atomic_aligned_8=no",
    ",ordered_between_writes=no,atomic_aligned_8=no",
];

fn named(seed: u64) -> TestPair {
    let less = NAMES[seed as usize % NAMES.len()];
    TestPair::named(&format!(",hostile,seed={seed}{less}"))
}

#[test]
fn a_receive_completion_says_that_all_writes_before_are_placed() {
    each_seed(60, |seed| {
        let mut pair = named(seed);
        let TestPair { a, b, .. } = &mut pair;
        for round in 1..=10u8 {
            a.put(0, &[round; 512]);
            b.try_receive(u64::from(round), 1024, 64).unwrap();
            let mut number = 0;
            let mut next = || {
                number += 1;
                number - 1
            };
            for at in [0, 200, 100, 300] {
                let to = SendOp::Write(b.region.remote(at));
                a.post(next(), to, at, 100);
            }
            match round % 2 {
                0 => a.post(next(), SendOp::SendImm(9), 400, 64),
                _ => a.post(next(), SendOp::WriteImm(b.region.remote(400), 9), 400, 64),
            }
            // The sender is not polled meanwhile: only the progress thread executes its requests.
            let received = b.completed(1)[0];
            assert_eq!((received.wr_id, received.imm), (round.into(), Some(9)));
            assert_eq!(b.get(0, 400), [round; 400], "round {round}");
            let last = if round % 2 == 0 { 1024 } else { 400 };
            assert_eq!(b.get(last, 64), [round; 64], "round {round}");
            all_well(&a.completed(5));
        }
    });
}

#[test]
fn reads_and_atomics_see_earlier_writes() {
    each_seed(60, |seed| {
        let mut pair = named(seed);
        let TestPair { a, b, .. } = &mut pair;
        for round in 1..=10u8 {
            a.put(0, &[round; 72]);
            a.post(0, SendOp::Write(b.region.remote(0)), 0, 64);
            a.post(1, SendOp::Write(b.region.remote(64)), 64, 8);
            a.post(2, SendOp::Read(b.region.remote(0)), 128, 72);
            let (remote, add) = (b.region.remote(64), 1);
            a.post(3, SendOp::FetchAdd { remote, add }, 256, 8);
            all_well(&a.completed(4));
            assert_eq!(a.get(128, 72), [round; 72], "READ, round {round}");
            assert_eq!(a.get(256, 8), [round; 8], "atomic, round {round}");
        }
    });
}

#[test]
fn long_messages_arrive_over_several_spans() {
    each_seed(16, |seed| {
        let mut pair = named(seed);
        let TestPair { a, b, .. } = &mut pair;
        let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 256) as u8).collect();
        a.put(0, &bytes);
        // Odd addresses and lengths.
        for (from, to, len) in [(0, 0, LEN), (1, 3, 2001), (5, 0, 777), (8, 9, 15)] {
            b.put(0, &[0; LEN]);
            a.post(0, SendOp::Write(b.region.remote(to)), from, len);
            all_well(&a.completed(1));
            assert_eq!(b.get(to, len), bytes[from..from + len]);
            assert!(b.get(0, to).iter().all(|byte| *byte == 0));
            assert!(
                b.get(to + len, LEN - to - len)
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
    });
}

#[test]
fn a_request_that_fails_ends_as_on_any_device() {
    each_seed(40, |seed| {
        let mut pair = named(seed);
        let TestPair { a, b, .. } = &mut pair;
        a.put(0, &[1; 64]);
        let good = SendOp::Write(b.region.remote(0));
        let mut bad = b.region.remote(0);
        bad.rkey ^= 1;
        for (number, op) in [good, good, SendOp::Write(bad), good]
            .into_iter()
            .enumerate()
        {
            a.post(number as u64, op, 0, 64);
        }
        let done: Vec<_> = a
            .completed(4)
            .iter()
            .map(|one| (one.wr_id, one.status))
            .collect();
        let expected = [
            (0, Status::Success),
            (1, Status::Success),
            (2, Status::RemoteAccess),
            (3, Status::Flushed),
        ];
        assert_eq!(done, expected);
        until("the peer's error", || b.qp.state() == QpState::Error);
    });
}

#[test]
fn no_rule_stops_a_device_for_good() {
    let verdicts = [
        Verdict::Refuse,
        Verdict::Wait(u32::MAX),
        Verdict::WaitFor(Duration::from_secs(1 << 30)),
        Verdict::Scatter(u32::MAX),
        Verdict::Scatter(0),
        Verdict::AtMost(0),
    ];
    for verdict in verdicts {
        let mut pair = TestPair::by(Rules::new(1).with(by(move |_, _| Some(verdict))), "");
        let TestPair { a, b, .. } = &mut pair;
        b.try_receive(0, 1024, 64).unwrap();
        a.put(0, &[5; 64]);
        a.post(0, SendOp::Write(b.region.remote(0)), 0, 64);
        a.post(1, SendOp::Send, 0, 64);
        all_well(&a.completed(2));
        all_well(&b.completed(1));
        assert_eq!(b.get(0, 64), [5; 64]);
    }
}

/// Returns what the rules decided in a run, without what differs between equal runs.
fn story(seed: u64) -> Vec<(u8, u64, u32, Verdict)> {
    let all = Rules::all(seed);
    let noting = RecordingRule::new(by(move |event, _| Some(all.judge(event))));
    let mut pair = TestPair::by(Rules::new(seed).with(noting.clone()), "");
    let TestPair { a, b, .. } = &mut pair;
    for number in 0..30 {
        a.post(number, SendOp::Write(b.region.remote(0)), 0, 64);
    }
    all_well(&a.completed(30));
    let seen = noting.seen.lock().unwrap();
    // How often the CQ is polled, and a rule asked, depends on timing.
    let of_requests = seen
        .iter()
        .filter(|(event, _)| event.point != FaultPoint::Poll);
    let mut story: Vec<_> = of_requests
        .map(|(event, verdict)| (event.point as u8, event.number, event.turn, *verdict))
        .collect();
    story.sort_by_key(|(point, number, turn, _)| (*number, *point, *turn));
    story.dedup();
    story
}

#[test]
fn a_seed_tells_the_same_story_again() {
    let (one, again, other) = (story(7), story(7), story(8));
    let begun = |story: &[(u8, u64, u32, Verdict)]| {
        let begin = FaultPoint::Begin as u8;
        let place = FaultPoint::Place as u8;
        let of = story
            .iter()
            .filter(|(point, _, turn, _)| *point == begin || (*point == place && *turn == 0));
        of.copied().collect::<Vec<_>>()
    };
    assert_eq!(begun(&one), begun(&again));
    assert_ne!(begun(&one), begun(&other));
}

#[test]
fn undeclared_promises_are_visible_in_the_device_info() {
    for (at, options) in NAMES.into_iter().enumerate() {
        let hostile = TestPair::named(&format!(",hostile{options}"));
        let plain = TestPair::named(options);
        for (pair, is_hostile) in [(&hostile, true), (&plain, false)] {
            let info = pair.a.device.info();
            assert_eq!(info.promises.ordered_between_writes, at % 2 == 0);
            assert_eq!(info.promises.atomic_aligned_8, at < 2);
            assert_eq!(info.description.contains("on purpose"), is_hostile);
            let in_order = info.promises.in_order_within_write > 0;
            assert_eq!(
                in_order,
                !is_hostile && headworks_shm::ordered_copy::IN_ORDER
            );
        }
    }
}
