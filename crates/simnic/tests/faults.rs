//! Injected faults between simulated hosts, and how reliable connections recover from them.

#[path = "faults/connected_hosts.rs"]
mod connected_hosts;

use connected_hosts::{ConnectedHosts, TIMEOUT};
use headworks_simnic::faults::{Rules, Verdict, rules};
use headworks_verbs::{
    AsyncEvent, Completion, Duration, Instant, PollError, QpAttr, QpState, Status,
};

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn at(count: u64) -> Instant {
    Instant::ZERO + micros(count)
}

/// Returns rules for many kinds of faults at once.
fn rough(seed: u64) -> Rules {
    Rules::new(seed)
        .with(rules::loss(30))
        .with(rules::reorder(30, micros(30)))
        .with(rules::jitter(30, micros(30)))
        .with(rules::not_ready(10))
}

#[test]
fn whatever_is_lost_overtaken_or_doubled_every_write_is_placed_once_and_in_order() {
    for seed in 1..=20 {
        let mut pair = ConnectedHosts::new(rough(seed), 7, 7);
        // Each WRITE overwrites a part of the one before; they are from several bursts to one byte long.
        let lens = [40_000, 5_000, 64, 1];
        for number in 0..40u64 {
            pair.write(number, lens[number as usize % 4], number as u8 + 1);
        }
        let done = pair.sends(40);
        assert!(
            done.iter().all(|one| one.status == Status::Success),
            "{seed}"
        );
        let ids: Vec<u64> = done.iter().map(|one| one.wr_id).collect();
        assert_eq!(ids, (0..40).collect::<Vec<_>>(), "{seed}");
        for (offset, byte) in pair.there.bytes(0, 40_000).iter().enumerate() {
            let expected = match offset {
                0 => 40,
                1..64 => 39,
                64..5_000 => 38,
                _ => 37,
            };
            assert_eq!(*byte, expected, "{seed}: byte {offset}");
        }
    }
}

#[test]
fn atomics_are_carried_out_once_though_their_answers_are_lost() {
    for seed in 1..=20 {
        let mut pair = ConnectedHosts::new(rough(seed).with(rules::lose_acknowledges(4)), 7, 7);
        for number in 0..30 {
            pair.add(number, 1);
        }
        let done = pair.sends(30);
        assert!(
            done.iter().all(|one| one.status == Status::Success),
            "{seed}"
        );
        assert_eq!(pair.there.word(0), 30, "{seed}");
        // Each atomic found the result of those before it.
        for number in 0..30 {
            assert_eq!(pair.here.word(8 * number), number as u64, "{seed}");
        }
    }
}

#[test]
fn reads_complete_despite_loss_while_later_writes_are_acknowledged() {
    for seed in 1..=20 {
        let mut pair = ConnectedHosts::new(rough(seed), 7, 7);
        pair.there.fill(0, 60_000, 9);
        for number in 0..10u64 {
            pair.read(2 * number, 50_000);
            pair.write(2 * number + 1, 100, 5);
        }
        let done = pair.sends(20);
        assert!(
            done.iter().all(|one| one.status == Status::Success),
            "{seed}"
        );
        let came = pair.here.bytes(0, 50_000);
        assert!(came[100..].iter().all(|byte| *byte == 9), "{seed}");
    }
}

#[test]
fn a_message_takes_one_receive_however_often_it_is_sent() {
    for seed in 1..=20 {
        let mut pair = ConnectedHosts::new(rough(seed).with(rules::lose_acknowledges(3)), 7, 7);
        for number in 0..40 {
            pair.receive(number, 10_000);
        }
        for number in 0..30u64 {
            let len = [0, 8, 9_000][number as usize % 3];
            pair.send(number, len, number as u8);
        }
        let done = pair.sends(30);
        assert!(
            done.iter().all(|one| one.status == Status::Success),
            "{seed}"
        );
        let received = pair.receives(30);
        for (number, one) in received.iter().enumerate() {
            assert_eq!(one.wr_id, number as u64, "{seed}");
            assert_eq!(one.byte_len, [0, 8, 9_000][number % 3], "{seed}");
        }
        pair.rest(micros(500));
        assert!(pair.receives(0).is_empty(), "{seed}: none was taken twice");
    }
}

#[test]
fn an_unreliable_message_arrives_whole_or_not_at_all_and_in_order() {
    let mut lost = 0;
    for seed in 1..=20 {
        let mut pair = ConnectedHosts::unreliable(Rules::new(seed).with(rules::loss(10)));
        for number in 0..30 {
            pair.receive(number, 30_000);
        }
        // The length tells which message a receive holds. Each takes several packets.
        let len_of = |number: u64| 20_000 + number as u32;
        for number in 0..30u64 {
            pair.send(number, len_of(number), number as u8 + 1);
            let done = pair.sends(1);
            assert_eq!(done[0].status, Status::Success, "{seed}");
            // The source may be overwritten once the request is complete.
            pair.here
                .fill((1 << 20) + number as usize * 50_000, 30_000, 0xff);
        }
        pair.rest(micros(500));
        let received = pair.receives(0);
        lost += 30 - received.len();
        let mut before = None;
        for (taken, one) in received.iter().enumerate() {
            // A message that is lost leaves its receive to the next.
            assert_eq!(
                (one.wr_id, one.status),
                (taken as u64, Status::Success),
                "{seed}"
            );
            assert!(before < Some(one.byte_len), "{seed}: in order");
            before = Some(one.byte_len);
        }
        if let Some(last) = received.last() {
            let number = last.byte_len - 20_000;
            let bytes = pair.there.bytes(2 << 20, last.byte_len as usize);
            // The packets of a later message that was lost may have been placed from its start.
            let whole = bytes.iter().all(|byte| u32::from(*byte) > number);
            assert!(whole && bytes.last() == Some(&(number as u8 + 1)), "{seed}");
        }
    }
    assert!((1..600).contains(&lost), "{lost} of 600 are lost");
}

#[test]
fn a_link_that_comes_back_in_time_is_survived_and_one_that_does_not_is_not() {
    let down = |span| Rules::new(1).with(rules::link_down("b", at(0), span));
    let mut pair = ConnectedHosts::new(down(TIMEOUT), 7, 7);
    pair.write(1, 64, 3);
    assert_eq!(pair.sends(1)[0].status, Status::Success);
    assert!(pair.now() > at(0) + TIMEOUT);

    // There is one try and the configured number of retries, each for one timeout.
    let mut pair = ConnectedHosts::new(down(Duration::from_secs(9)), 3, 7);
    pair.write(1, 64, 3);
    pair.write(2, 64, 3);
    let done = pair.sends(2);
    let statuses: Vec<Status> = done.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Status::RetryExceeded, Status::Flushed]);
    let tries = pair.now().since(Instant::ZERO).nanos() / TIMEOUT.nanos();
    assert_eq!(tries, 4);
    assert_eq!(pair.here.qp.state(), QpState::Error);
}

#[test]
fn rnr_retries_outlast_a_storm_up_to_their_limit() {
    let storm = || Rules::new(1).with(rules::no_receives("b", at(0), Duration::from_millis(20)));
    let mut pair = ConnectedHosts::new(storm(), 7, 7);
    pair.receive(1, 64);
    pair.send(1, 64, 3);
    assert_eq!(pair.sends(1)[0].status, Status::Success);
    assert!(pair.now() > at(20_000));

    let mut pair = ConnectedHosts::new(storm(), 7, 2);
    pair.receive(1, 64);
    pair.send(1, 64, 3);
    assert_eq!(pair.sends(1)[0].status, Status::RnrRetryExceeded);
    assert!(pair.now() < at(20_000));
}

#[test]
fn a_queue_pair_that_is_killed_fails_by_itself_and_says_so() {
    let rules = Rules::new(1).with(rules::kill_queue_pair_at("a", 3));
    let mut pair = ConnectedHosts::new(rules, 7, 7);
    for number in 0..5 {
        pair.write(number, 64, 3);
    }
    let done = pair.sends(5);
    let failed = done.iter().filter(|one| one.status == Status::Flushed);
    assert!(failed.count() >= 3, "{done:?}");
    assert_eq!(pair.here.qp.state(), QpState::Error);
    assert!(pair.here.has_fatal_event());
}

#[test]
fn a_completion_queue_that_overruns_fails_its_queue_pairs_and_says_so() {
    let rules = Rules::new(1).with(rules::overrun_completion_queue_at("a", 3));
    let mut pair = ConnectedHosts::new(rules, 7, 7);
    for number in 0..5 {
        pair.write(number, 64, 3);
    }
    let mut out = [Completion::default(); 8];
    let error = loop {
        match pair.here.cq.poll(&mut out) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, PollError::Overrun);
    assert_eq!(pair.here.qp.state(), QpState::Error);
    let cq = pair.here.cq.id();
    let event = pair.here.device.next_async_event();
    assert_eq!(event, Some(AsyncEvent::CqError(cq)));
}

#[test]
fn a_queue_pair_that_fails_in_the_middle_of_an_answer_gives_no_more_of_it() {
    // 3 MB take the link 240 µs, so this is in the middle of the response.
    let dies = |pair: &mut ConnectedHosts| {
        let error = QpAttr::to_state(QpState::Error);
        pair.there.qp.modify(&error).expect("fails");
    };
    let kills = Rules::new(1).with(rules::kill_queue_pair_at("b", 100));
    for (rules, dies) in [(Rules::new(1), Some(dies)), (kills, None)] {
        let mut pair = ConnectedHosts::new(rules, 3, 7);
        pair.there.fill(0, 3 << 20, 9);
        pair.read(1, 3 << 20);
        pair.rest(micros(100));

        dies.iter().for_each(|dies| dies(&mut pair));
        assert_eq!(pair.sends(1)[0].status, Status::RetryExceeded);
        let came = pair.here.bytes(0, 3 << 20);
        let count = came.iter().filter(|byte| **byte == 9).count();
        assert!((1..3 << 20).contains(&count), "{count}");
    }
}

#[test]
fn a_refusal_is_of_the_request_that_was_refused_though_a_read_before_it_is_not_answered_yet() {
    let mut pair = ConnectedHosts::new(Rules::new(1), 7, 7);
    pair.there.fill(0, 60_000, 9);
    pair.read(1, 60_000);
    pair.add(2, 1);
    pair.write_outside(3, 64);
    pair.write(4, 64, 1);
    let done = pair.sends(4);
    let statuses: Vec<Status> = done.iter().map(|one| one.status).collect();
    let (well, flushed) = (Status::Success, Status::Flushed);
    assert_eq!(statuses, [well, well, Status::RemoteAccess, flushed]);
    assert!(pair.here.bytes(100, 50_000).iter().all(|byte| *byte == 9));
}

#[test]
fn clocks_that_drift_are_read_and_stamped_so() {
    let rules = Rules::new(1)
        .with(rules::clock_drift("a", 1_000))
        .with(rules::clock_drift("b", -1_000));
    let mut pair = ConnectedHosts::new(rules, 7, 7);
    pair.rest(Duration::from_secs(1));
    let (here, there) = (pair.here.device.now(), pair.there.device.now());
    let apart = here.since(there).nanos();
    assert!((1_900_000..2_100_000).contains(&apart), "{apart}");
    pair.write(1, 64, 3);
    let stamped = pair.sends(1)[0].timestamp;
    assert!(stamped > here && stamped.since(here) < micros(100));
}

#[test]
fn one_that_is_overtaken_is_asked_for_and_nothing_waits_for_a_timeout() {
    // The third packet of a host arrives late.
    let rules = Rules::new(1).with(rules::from_fn(|event, _| {
        let third = event.host == "a" && event.packets == 1 && event.number == 3;
        third.then_some(Verdict::Overtaken(Duration::from_micros(3)))
    }));
    let mut pair = ConnectedHosts::new(rules, 7, 7);
    for number in 0..6 {
        pair.write(number, 64, number as u8);
    }
    let done: Vec<Completion> = pair.sends(6);
    assert!(done.iter().all(|one| one.status == Status::Success));
    assert!(pair.now() < at(0) + TIMEOUT);
    assert!(pair.sent_again() > 0);
}

/// Counts how often a WRITE's last byte is there before its first. Also returns the final bytes.
fn torn(rules: Rules, len: u32) -> (u64, Vec<u8>) {
    let mut pair = ConnectedHosts::new(rules, 7, 7);
    pair.write(0, len, 1);
    let mut torn = 0;
    for _ in 0..20_000 {
        pair.rest(Duration::from_nanos(100));
        let (first, last) = (
            pair.there.bytes(0, 1),
            pair.there.bytes(len as usize - 1, 1),
        );
        torn += u64::from((first[0], last[0]) == (0, 1));
    }
    pair.sends(1);
    (torn, pair.there.bytes(0, len as usize))
}

#[test]
fn a_write_of_several_parts_may_be_placed_from_its_end_and_is_whole_then() {
    let all = |len| vec![1; len as usize];
    for len in [40_000, 30_000] {
        let (torn_so, bytes) = torn(Rules::new(1).with(rules::place_backwards(1)), len);
        assert!(torn_so > 0 && bytes == all(len), "{len}: {torn_so}");
        assert_eq!(torn(Rules::new(1), len), (0, all(len)));
    }
    // This also holds if parts are retransmitted.
    for seed in 1..=50 {
        let (_, bytes) = torn(rough(seed).with(rules::place_backwards(2)), 50_000);
        assert!(bytes == all(50_000), "{seed}");
    }
}

#[test]
fn run_digests_differ_where_bytes_or_completions_do() {
    let of = |number, byte| {
        let mut pair = ConnectedHosts::new(Rules::new(1), 7, 7);
        pair.write(number, 64, byte);
        pair.sends(1);
        pair.run_digests()
    };
    assert_eq!(of(0, 1), of(0, 1));
    assert_ne!(of(0, 1), of(0, 2), "bytes");
    assert_ne!(of(0, 1), of(1, 1), "completions");
    // A rule that changes nothing still has its verdict in the digest.
    let of = |rules| {
        let mut pair = ConnectedHosts::new(rules, 7, 7);
        pair.send(0, 64, 1);
        pair.rest(micros(3));
        pair.run_digests()
    };
    let says = |what| rules::from_fn(move |_, _| Some(what));
    let (nothing, later) = (Verdict::Pass, Verdict::Overtaken(Duration::ZERO));
    assert_ne!(
        of(Rules::new(1).with(says(nothing))),
        of(Rules::new(1).with(says(later)))
    );
}

#[test]
fn packets_that_come_never_are_packets_that_are_lost() {
    let ever = Duration::from_nanos(u64::MAX);
    for late in [Verdict::WaitFor, Verdict::Overtaken] {
        let mut pair = ConnectedHosts::new(
            Rules::new(1)
                .with(rules::from_fn(move |_, _| Some(late(ever))))
                .with(rules::from_fn(move |_, _| Some(late(ever)))),
            3,
            7,
        );
        pair.write(1, 64, 3);
        assert_eq!(pair.sends(1)[0].status, Status::RetryExceeded);
        for _ in 0..2 {
            pair.rest(ever);
            assert_eq!(pair.there.bytes(0, 1), [0]);
        }
    }
}

#[test]
fn an_antagonist_uses_memory_from_its_beginning_to_its_end() {
    let rule = rules::antagonist("b", at(100), micros(50), 30);
    let pair = ConnectedHosts::with_memory(Rules::new(1).with(rule), &[]);
    let moved = || {
        let before = pair.memory().memory_antagonist;
        pair.rest(micros(50));
        pair.memory().memory_antagonist - before
    };
    let count = at(100).since(pair.now()).nanos() / 50_000;
    let early: u64 = (0..count).map(|_| moved()).sum();
    assert_eq!(early, 0);
    // 30 GB/s for 50 µs.
    let (one, other, late) = (moved(), moved(), moved());
    assert!(
        (1_450_000..1_550_000).contains(&(one + other)),
        "{one} {other}"
    );
    assert_eq!(late, 0);
}

#[test]
fn antagonists_add_up_besides_that_of_the_preset_and_leave_other_hosts_alone() {
    let (from, span) = (at(0), micros(100_000));
    let all = Rules::new(1)
        .with(rules::antagonist("b", from, span, 10))
        .with(rules::antagonist("b", from, span, 20))
        .with(rules::antagonist("a", from, span, 40));
    let pair = ConnectedHosts::with_memory(all, &[("host.antagonist", "5")]);
    let before = pair.memory().memory_antagonist;
    pair.rest(micros(100));
    let moved = pair.memory().memory_antagonist - before;
    assert!((3_400_000..3_600_000).contains(&moved), "{moved}");
}

#[test]
fn writes_are_slower_while_an_antagonist_runs_and_each_run_is_the_same() {
    // No line of a WRITE stays in such a cache.
    let small = [
        ("host.cache", "64"),
        ("host.dma_cache", "16"),
        ("host.memory", "60"),
    ];
    let span = Duration::from_millis(100);
    let took = |rules| {
        let mut pair = ConnectedHosts::with_memory(rules, &small);
        let begin = pair.now();
        for number in 0..20 {
            pair.write(number, 50_000, 3);
        }
        let done = pair.sends(20);
        assert!(done.iter().all(|one| one.status == Status::Success));
        (pair.now().since(begin), pair.run_digests())
    };
    let with = |host| Rules::new(1).with(rules::antagonist(host, at(0), span, 250));
    let (quiet, slow) = (took(with("nobody")), took(with("b")));
    // 1 MB takes 80 µs at the rate of the link, and 300 µs at the RNIC's share of memory.
    assert!(slow.0.nanos() > 2 * quiet.0.nanos(), "{quiet:?} {slow:?}");
    assert_eq!(took(with("b")), slow);
    assert_ne!(quiet.1, slow.1);
}

#[test]
fn an_antagonist_has_no_effect_where_memory_is_not_modelled() {
    let of = |rules| {
        let mut pair = ConnectedHosts::new(rules, 7, 7);
        pair.write(1, 50_000, 3);
        pair.sends(1);
        (pair.now(), pair.run_digests())
    };
    let rule = rules::antagonist("b", at(0), micros(1_000), 250);
    assert_eq!(of(Rules::new(1)), of(Rules::new(1).with(rule)));
}

#[test]
fn a_lost_notification_does_not_slow_its_sender_down() {
    // The bus takes bytes more slowly than the link carries them.
    let slow = [
        ("host.posted_lines", "40"),
        ("nic.rx_notify", "1"),
        ("dcqcn.notify_time", "20"),
    ];
    let took = |times| {
        let rule = rules::lose_notifications(times);
        let mut pair = ConnectedHosts::with_memory(Rules::new(1).with(rule), &slow);
        let begin = pair.now();
        for number in 0..20 {
            pair.write(number, 50_000, 3);
        }
        let done = pair.sends(20);
        assert!(done.iter().all(|one| one.status == Status::Success));
        assert!(pair.memory().notifications_sent > 0);
        pair.now().since(begin)
    };
    let (none, half, all) = (took(0), took(2), took(1));
    assert!(all < half && half < none, "{all} {half} {none}");
}

#[test]
fn a_paused_link_delivers_everything_in_order_after_the_pause() {
    let rule = || rules::pause_link("b", at(0), micros(500));
    let mut pair = ConnectedHosts::new(Rules::new(1).with(rule()), 7, 7);
    for number in 0..10 {
        pair.write(number, 64, number as u8 + 1);
    }
    pair.rest(micros(400));
    assert_eq!(pair.there.bytes(0, 1), [0]);
    let done = pair.sends(10);
    assert!(done.iter().all(|one| one.status == Status::Success));
    assert_eq!(pair.there.bytes(0, 1), [10]);
    assert!(pair.now() > at(500) && pair.now() < at(0) + TIMEOUT);
    assert_eq!(pair.sent_again(), 0);
    // Packets in the other direction are not paused.
    let mut pair = ConnectedHosts::new(
        Rules::new(1).with(rules::pause_link("a", at(0), micros(500))),
        7,
        7,
    );
    pair.write(1, 64, 3);
    pair.rest(micros(100));
    assert_eq!(pair.there.bytes(0, 1), [3]);
}

#[test]
fn a_read_asks_again_only_for_the_parts_that_are_missing() {
    // The RNIC drops most of what it cannot write to memory at once.
    let small = [
        ("host.posted_lines", "4"),
        ("host.posted_time", "1000"),
        ("nic.rx_buffer", "2"),
        ("nic.burst", "1"),
    ];
    let mut pair = ConnectedHosts::with_memory(Rules::new(1), &small);
    pair.there.fill(0, 1 << 20, 9);
    pair.read(1, 1 << 20);
    assert_eq!(pair.sends(1)[0].status, Status::Success);
    assert!(pair.here.bytes(0, 1 << 20).iter().all(|byte| *byte == 9));
    assert!(pair.sent_again() > 10);
    assert!(pair.now() < at(1_000_000), "{:?}", pair.now());
}
