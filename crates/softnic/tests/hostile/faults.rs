//! Tests that every fault of a hostile device occurs and stays within its bounds.

use headworks_softnic::hostile::rules::{
    by, full, kill_after, kills, late, not_ready, rest, scatter, slow,
};
use headworks_softnic::hostile::{FaultEvent, FaultPoint, Rules, Verdict};
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    AsyncEvent, Opcode, Payload, PostErrorKind, QpAttr, QpState, SendFlags, SendOp, SendWr, Status,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pair::{RecordingRule, TestPair, all_well, each_seed, raise, until, until_seen};

const OLD: u8 = 0x11;
const NEW: u8 = 0xee;

/// Posts a WRITE of 64 bytes. Returns what a reader of the target sees after each step, until the completion.
fn seen_of_a_write(pair: &mut TestPair) -> Vec<Vec<u8>> {
    let TestPair { a, b, .. } = pair;
    a.put(0, &[NEW; 67]);
    b.put(0, &[OLD; 64]);
    // The target is aligned and the source is not. The device must still place each word of the target whole.
    a.post(0, SendOp::Write(b.region.remote(0)), 3, 64);
    let mut seen = vec![b.get(0, 64)];
    until("the WRITE", || {
        let done = a.poll();
        seen.push(b.get(0, 64));
        !done.is_empty()
    });
    assert_eq!(b.get(0, 64), [NEW; 64], "completed but not placed");
    seen
}

fn is_torn(bytes: &[u8]) -> bool {
    bytes.contains(&OLD) && bytes.contains(&NEW)
}

/// Returns whether a new byte follows an old one.
fn is_out_of_order(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|two| two == [OLD, NEW])
}

fn has_torn_word(bytes: &[u8]) -> bool {
    bytes.chunks(8).any(is_torn)
}

#[test]
fn a_reader_sees_a_write_torn_in_any_order_and_its_words_whole() {
    until_seen("a torn WRITE out of order", |seed| {
        let rules = Rules::new(seed).with(scatter(6));
        let seen = seen_of_a_write(&mut TestPair::by(rules, ""));
        assert!(!seen.iter().any(|bytes| has_torn_word(bytes)));
        seen.iter().any(|bytes| is_out_of_order(bytes))
    });
}

#[test]
fn without_the_declaration_words_are_torn() {
    until_seen("a torn word", |seed| {
        let rules = Rules::new(seed).with(scatter(6));
        let mut pair = TestPair::by(rules, ",atomic_aligned_8=no");
        assert!(!pair.a.device.info().promises.atomic_aligned_8);
        let seen = seen_of_a_write(&mut pair);
        seen.iter().any(|bytes| has_torn_word(bytes))
    });
}

/// Makes a pair whose device places bytes in any order. The bytes of `a` are new, those of `b` are old.
fn scattering(seed: u64) -> TestPair {
    let pair = TestPair::by(Rules::new(seed).with(scatter(6)), "");
    pair.a.put(0, &[NEW; 64]);
    pair.b.put(0, &[OLD; 64]);
    pair
}

#[test]
fn the_bytes_of_a_send_come_in_any_order() {
    until_seen("a torn SEND", |seed| {
        let mut pair = scattering(seed);
        let TestPair { a, b, .. } = &mut pair;
        b.try_receive(9, 0, 64).unwrap();
        a.post(0, SendOp::Send, 0, 64);
        let mut torn = false;
        until("the SEND", || {
            torn |= is_out_of_order(&b.get(0, 64));
            !a.poll().is_empty()
        });
        assert_eq!(b.completed(1)[0].byte_len, 64);
        assert_eq!(b.get(0, 64), [NEW; 64]);
        torn
    });
}

#[test]
fn the_bytes_of_a_read_come_in_any_order() {
    until_seen("a torn READ", |seed| {
        let mut pair = scattering(seed);
        let TestPair { a, b, .. } = &mut pair;
        b.put(0, &[NEW; 67]);
        a.put(64, &[OLD; 64]);
        // The target is aligned and the source is not. The device must still place each word of the target whole.
        a.post(1, SendOp::Read(b.region.remote(3)), 64, 64);
        let mut torn = false;
        until("the READ", || {
            let bytes = a.get(64, 64);
            assert!(!has_torn_word(&bytes));
            torn |= is_out_of_order(&bytes);
            !a.poll().is_empty()
        });
        assert_eq!(a.get(64, 64), [NEW; 64]);
        torn
    });
}

/// Posts four WRITEs of 64 bytes to four places. Returns whether a reader saw bytes of a later WRITE before
/// an earlier one was complete.
fn writes_mix(pair: &mut TestPair) -> bool {
    let TestPair { a, b, .. } = pair;
    a.put(0, &[NEW; 256]);
    b.put(0, &[OLD; 256]);
    let mut mixed = false;
    let mut look = |bytes: &[u8]| {
        let begun = bytes.chunks(64).rposition(|write| write.contains(&NEW));
        let whole = bytes.chunks(64).position(|write| write.contains(&OLD));
        mixed |= matches!((begun, whole), (Some(begun), Some(whole)) if begun > whole);
    };
    for number in 0..4 {
        let at = number * 64;
        a.post(number as u64, SendOp::Write(b.region.remote(at)), at, 64);
        look(&b.get(0, 256));
    }
    let mut done = Vec::new();
    until("the WRITEs", || {
        done.extend(a.poll());
        let bytes = b.get(0, 256);
        look(&bytes);
        // A completed WRITE and all WRITEs before it are placed.
        assert!(!bytes[..done.len() * 64].contains(&OLD));
        done.len() == 4
    });
    all_well(&done);
    mixed
}

#[test]
fn writes_mix_only_where_their_order_is_not_declared() {
    until_seen("WRITEs that mix", |seed| {
        let rules = || Rules::new(seed).with(slow(4, 3)).with(scatter(6));
        assert!(!writes_mix(&mut TestPair::by(rules(), "")), "ordered");
        let mut pair = TestPair::by(rules(), ",ordered_between_writes=no");
        assert!(!pair.a.device.info().promises.ordered_between_writes);
        writes_mix(&mut pair)
    });
}

#[test]
fn completions_are_held_back_and_come_several_at_once() {
    let rules = Rules::new(1).with(by(|event, _| {
        (event.point == FaultPoint::Poll).then_some(Verdict::Wait(5))
    }));
    let mut pair = TestPair::by(rules, "");
    let TestPair { a, b, .. } = &mut pair;
    for number in 0..3 {
        a.post(number, SendOp::Write(b.region.remote(0)), 0, 8);
    }
    // The progress thread releases held completions in case a program sleeps, so a poll may find them early.
    let mut counts = Vec::new();
    until("completions", || {
        counts.push(a.poll().len());
        counts.iter().sum::<usize>() == 3
    });
    assert_eq!(
        counts.iter().filter(|count| **count > 0).count(),
        1,
        "{counts:?}"
    );
    assert_eq!(counts[0], 0, "not held back");
}

#[test]
fn a_sleeper_is_woken_for_delayed_completions() {
    each_seed(50, |seed| {
        let rules = Rules::new(seed).with(late(1, 64)).with(slow(2, 60));
        let mut pair = TestPair::by(rules, "");
        let TestPair { a, b, .. } = &mut pair;
        for number in 0..5 {
            a.post(number, SendOp::Write(b.region.remote(0)), 0, 8);
        }
        let mut done = Vec::new();
        while done.len() < 5 {
            a.cq.arm(false);
            let found = a.poll();
            if found.is_empty() {
                let fd = PollFd::from_borrowed_fd(a.channel.fd(), PollFlags::IN);
                let limit = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                assert_eq!(poll(&mut [fd], Some(&limit)).unwrap(), 1, "never woken");
                while let Ok(Some(_)) = a.channel.next_event() {}
            }
            done.extend(found);
        }
        all_well(&done);
    });
}

#[test]
fn a_receive_that_is_posted_is_denied_only_where_a_try_is_left() {
    for (retries, denied) in [(7, 3), (2, 2), (1, 1), (0, 0)] {
        let noting = RecordingRule::new(not_ready(1));
        let mut pair = TestPair::by(Rules::new(1).with(noting.clone()), "");
        let TestPair { a, b, .. } = &mut pair;
        for end in [&mut *a, &mut *b] {
            end.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        }
        let tuning = ConnectionParams {
            rnr_retry: retries,
            ..ConnectionParams::default()
        };
        raise(a, b, tuning);
        for number in 0..3 {
            b.try_receive(number, 0, 64).unwrap();
        }
        // The first SEND finds the peer; before that no receive can be denied.
        for number in 0..3 {
            a.post(number, SendOp::Send, 0, 8);
            assert_eq!(
                a.completed(1)[0].status,
                Status::Success,
                "{retries} retries"
            );
        }
        all_well(&b.completed(3));
        let seen = noting.seen.lock().unwrap();
        let of = |number| {
            seen.iter()
                .filter(|(event, _)| event.number == number)
                .count()
        };
        let requests: Vec<_> = seen.iter().map(|(event, _)| event.number).collect();
        let (second, last) = (
            requests.iter().max().map_or(0, |last| last - 1),
            requests.iter().max(),
        );
        assert_eq!(of(second), denied, "{retries} retries: {requests:?}");
        assert_eq!(last.map_or(0, |last| of(*last)), denied);
    }
}

#[test]
fn chains_are_accepted_in_part_and_never_refused_for_ever() {
    let mut partial = 0;
    each_seed(40, |seed| {
        let rules = Rules::new(seed).with(full(3));
        let mut pair = TestPair::by(rules, "");
        let TestPair { a, b, .. } = &mut pair;
        let sges = [a.region.sge(0, 8)];
        let wrs: Vec<_> = (0..10)
            .map(|wr_id| SendWr {
                wr_id,
                op: SendOp::Write(b.region.remote(0)),
                payload: Payload::Gather(&sges),
                flags: SendFlags::SIGNALED,
            })
            .collect();
        let (mut posted, mut refused) = (0, 0);
        while let Err(error) = a.qp.post_send(&wrs[posted..]) {
            assert_eq!(error.kind, PostErrorKind::QueueFull);
            assert!(posted + error.index > 0, "no room in an empty queue");
            partial += usize::from(error.index > 0);
            refused = if error.index > 0 { 1 } else { refused + 1 };
            assert!(refused <= 3, "refused for ever");
            posted += error.index;
        }
        all_well(&a.completed(10));
    });
    assert!(partial > 10, "{partial}");
}

#[test]
fn where_nothing_signalled_is_outstanding_there_is_room() {
    let mut pair = TestPair::by(Rules::new(1).with(full(1)), "");
    let TestPair { a, b, .. } = &mut pair;
    let sges = [a.region.sge(0, 8)];
    let wr = |flags| SendWr {
        wr_id: 0,
        op: SendOp::Write(b.region.remote(0)),
        payload: Payload::Gather(&sges),
        flags,
    };
    for _ in 0..5 {
        a.qp.post_send(&[wr(SendFlags::NONE)]).unwrap();
    }
    a.qp.post_send(&[wr(SendFlags::SIGNALED)]).unwrap();
    assert!(a.qp.post_send(&[wr(SendFlags::NONE)]).is_err());
    a.completed(1);
    a.qp.post_send(&[wr(SendFlags::NONE)]).unwrap();
}

#[test]
fn receives_are_refused_for_a_while_and_never_in_an_empty_queue() {
    let mut pair = TestPair::by(Rules::new(1).with(full(1)), "");
    let TestPair { a, b, .. } = &mut pair;
    a.try_receive(0, 0, 64).unwrap();
    for _ in 0..3 {
        let error = a.try_receive(1, 0, 64).unwrap_err();
        assert_eq!(error.kind, PostErrorKind::QueueFull);
    }
    a.try_receive(1, 0, 64).unwrap();
    for number in 0..2 {
        b.post(number, SendOp::Send, 0, 8);
    }
    all_well(&b.completed(2));
    all_well(&a.completed(2));
}

#[test]
fn a_kill_flushes_later_requests_and_notifies_both_ends() {
    let mut pair = TestPair::by(Rules::new(1).with(kill_after(5)), "");
    let TestPair { a, b, .. } = &mut pair;
    b.try_receive(77, 0, 64).unwrap();
    for number in 0..8 {
        a.post(number, SendOp::Write(b.region.remote(0)), 0, 8);
    }
    let done = a.completed(8);
    let statuses: Vec<_> = done.iter().map(|completion| completion.status).collect();
    assert!(
        done.iter()
            .enumerate()
            .all(|(at, one)| one.wr_id == at as u64)
    );
    assert_eq!(statuses[..4], [Status::Success; 4]);
    assert_eq!(statuses[4], Status::RetryExceeded);
    assert_eq!(statuses[5..], [Status::Flushed; 3]);
    for end in [a, b] {
        let mut event = None;
        until("the event", || {
            event = end.device.next_async_event();
            event.is_some()
        });
        assert_eq!(event, Some(AsyncEvent::QpFatal(end.qp.qpn())));
        assert_eq!(end.qp.state(), QpState::Error);
    }
    let flushed = pair.b.completed(1)[0];
    assert_eq!((flushed.wr_id, flushed.status), (77, Status::Flushed));
}

#[test]
fn a_kill_never_ends_a_request_well() {
    let kill = |event: &FaultEvent| event.point == FaultPoint::Begin;
    let rule = by(move |event, _| kill(event).then_some(Verdict::Kill(Status::Success)));
    let mut pair = TestPair::by(Rules::new(1).with(rule), "");
    let TestPair { a, b, .. } = &mut pair;
    a.post(0, SendOp::Write(b.region.remote(0)), 0, 8);
    assert_eq!(a.completed(1)[0].status, Status::Fatal);
}

#[test]
fn requests_before_a_kill_succeed_with_unordered_writes() {
    each_seed(40, |seed| {
        let rules = Rules::new(seed).with(kill_after(3)).with(slow(1, 30));
        let mut pair = TestPair::by(rules, ",ordered_between_writes=no");
        let TestPair { a, b, .. } = &mut pair;
        for number in 0..4 {
            a.post(number, SendOp::Write(b.region.remote(0)), 0, 8);
        }
        let done = a.completed(4);
        let statuses: Vec<_> = done.iter().map(|completion| completion.status).collect();
        let [good, killed] = [Status::Success, Status::RetryExceeded];
        assert_eq!(statuses, [good, good, killed, Status::Flushed]);
    });
}

#[test]
fn kills_are_about_as_frequent_as_asked_for() {
    let mut died_at = Vec::new();
    each_seed(30, |seed| {
        let rules = Rules::new(seed).with(kills(20)).with(scatter(3));
        let mut pair = TestPair::by(rules, "");
        let TestPair { a, b, .. } = &mut pair;
        let (mut number, mut done) = (0, Vec::new());
        while number < 400 && done.last().is_none_or(|last| *last == Status::Success) {
            a.post(number, SendOp::Write(b.region.remote(0)), 0, 64);
            done.extend(a.completed(1).iter().map(|completion| completion.status));
            number += 1;
        }
        died_at.push(number);
    });
    let mean = died_at.iter().sum::<u64>() / died_at.len() as u64;
    assert!((8..60).contains(&mean), "{died_at:?}");
}

#[test]
fn a_read_is_overtaken_by_a_write_unless_that_is_fenced() {
    let overtaken = |seed, flags| {
        let mut pair = TestPair::by(Rules::new(seed).with(rest(Opcode::Read, 60)), "");
        let TestPair { a, b, .. } = &mut pair;
        a.put(0, &[NEW; 8]);
        b.put(0, &[OLD; 8]);
        let (to, from) = ([a.region.sge(8, 8)], [a.region.sge(0, 8)]);
        let remote = b.region.remote(0);
        let wrs = [
            (SendOp::Read(remote), &to, SendFlags::SIGNALED),
            (SendOp::Write(remote), &from, flags),
        ];
        let mut wr_id = 0..;
        let wrs = wrs.map(|(op, sges, flags)| SendWr {
            wr_id: wr_id.next().unwrap_or_default(),
            op,
            payload: Payload::Gather(sges),
            flags,
        });
        a.qp.post_send(&wrs).unwrap();
        all_well(&a.completed(2));
        assert!([[OLD; 8], [NEW; 8]].contains(&a.get(8, 8).try_into().unwrap()));
        a.get(8, 8) == [NEW; 8]
    };
    until_seen("a READ that was overtaken", |seed| {
        assert!(!overtaken(seed, SendFlags::SIGNALED | SendFlags::FENCE));
        overtaken(seed, SendFlags::SIGNALED)
    });
}
