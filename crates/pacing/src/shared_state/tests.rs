//! Tests of rows, blocks and rates, and of how garbage is handled. `headworks`' `tests/pacing.rs` tests
//! several processes.

use std::mem;
use std::sync::Arc;

use headworks_shm::{HugePages, SegmentRequest, SharedSegment};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

fn share() -> SharedPacing {
    let request = SegmentRequest {
        name: "pacing-test",
        len: BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let segment = SharedSegment::create(&request).expect("memory");
    SharedPacing::over(View::from(Arc::new(segment))).expect("long enough")
}

/// This process.
fn us() -> ProcessId {
    SharingProcesses::One.us()
}

/// A process that does not exist.
fn dead(generation: u64) -> ProcessId {
    let slot = 1 << 30;
    ProcessId { slot, generation }
}

/// A member's process dies: its row and blocks stay as they were.
fn dies(member: ShareMember) -> usize {
    let row = member.row;
    mem::forget(member);
    row
}

fn owned_blocks(share: &SharedPacing) -> usize {
    let words = (0..BLOCKS).map(|block| share.word(OWNERS + 8 * block).load(Ordering::Relaxed));
    words.filter(|word| *word != 0).count()
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

#[test]
fn a_too_short_segment_is_refused() {
    let view = share().view;
    let short = view.part(0, BYTES - 8).expect("within it");
    let error = SharedPacing::over(short)
        .expect_err("too short")
        .to_string();
    assert!(error.contains("too short"), "{error}");
}

#[test]
fn a_leaving_member_returns_its_rows_and_blocks() {
    let share = share();
    let mut first = share.join(NOW).expect("room");
    let mut second = share.join(NOW).expect("room");
    assert_eq!((first.row, second.row), (0, 1));
    first.reserve(2 * BLOCK, NOW).expect("room");
    second.reserve(0, NOW).expect("room");
    assert_eq!(owned_blocks(&share), 4);
    for slot in [0, BLOCK + 63, 2 * BLOCK] {
        first.set_active(slot, true);
    }
    second.set_active(5, true);
    assert_eq!((share.bits(), first.active()), (4, 3));
    first.seen(NOW, Duration::ZERO, 0.0);
    drop(first);
    assert_eq!((share.bits(), owned_blocks(&share)), (1, 1));
    assert_eq!(share.active(NOW), (0, 1));
    // The second member's bits are unchanged.
    assert_eq!(second.next_active(0), Some(5));
    let third = share.join(NOW).expect("room");
    assert_eq!(third.row, 0);
}

#[test]
fn active_queue_pairs_are_found_in_turn() {
    let share = share();
    let mut member = share.join(NOW).expect("room");
    member.reserve(BLOCK, NOW).expect("room");
    let slots = [0, 1, 63, 64, 200, BLOCK - 1, BLOCK];
    for slot in slots {
        member.set_active(slot, true);
    }
    let mut from = 0;
    let found = std::iter::from_fn(|| {
        let slot = member.next_active(from)?;
        from = slot + 1;
        Some(slot)
    });
    assert!(found.eq(slots));
    for slot in slots {
        member.set_active(slot, false);
    }
    assert_eq!((member.next_active(0), share.bits()), (None, 0));
    assert_eq!(member.active(), 0);
}

#[test]
fn a_dead_members_row_and_blocks_are_taken_over_and_its_debt_forgiven() {
    let share = share();
    let mut gone = share.join_as(dead(7), NOW).expect("room");
    gone.reserve(BLOCK, NOW).expect("room");
    gone.set_active(3, true);
    // 64 MiB at 125 MB/s.
    gone.take(64 << 20, 125_000_000, 0, NOW).expect("due");
    let old = gone.claim;
    let row = dies(gone);
    assert!(
        share
            .status(&PacingConfig::default(), NOW)
            .ahead
            .nanos()
            .abs_diff(536_870_912)
            < 2
    );
    let new = share.join(NOW).expect("room");
    assert_eq!(new.row, row);
    assert_ne!(
        new.claim >> 32 & 0xffff,
        old >> 32 & 0xffff,
        "another number"
    );
    assert_eq!((share.bits(), owned_blocks(&share)), (0, 0));
    assert_eq!(
        share.status(&PacingConfig::default(), NOW).ahead,
        Duration::ZERO,
        "what it owed is forgiven"
    );
    assert_eq!(new.take(1, 125_000_000, 0, NOW), Ok(()));
}

#[test]
fn the_debt_of_a_dead_member_is_forgiven_also_where_its_row_stays() {
    let share = share();
    let living = share.join(NOW).expect("room");
    let gone = share.join_as(dead(7), NOW).expect("room");
    gone.take(64 << 20, 125_000_000, 0, NOW).expect("due");
    dies(gone);
    assert!(living.take(1, 125_000_000, 0, NOW).is_err());
    assert!(share.forgive_dead(NOW));
    assert!(!share.forgive_dead(NOW), "once");
    assert_eq!(living.take(1, 125_000_000, 0, NOW), Ok(()));
}

#[test]
fn debt_of_live_or_orderly_members_is_not_forgiven() {
    let share = share();
    let living = share.join(NOW).expect("room");
    living.take(1 << 20, 125_000_000, 0, NOW).expect("due");
    assert!(!share.forgive_dead(NOW));
    drop(living);
    // It has posted what it reserved.
    assert!(!share.forgive_dead(NOW));
    let next = share.join(NOW).expect("room");
    assert!(next.take(1, 125_000_000, 0, NOW).is_err());
}

/// A process that was taken for dead lost its row. When its member is dropped after all, the new owner keeps
/// everything.
#[test]
fn a_late_farewell_takes_nothing_from_the_next_owner() {
    let share = share();
    let mut late = share.join_as(dead(7), NOW).expect("room");
    late.reserve(0, NOW).expect("room");
    let mut new = share.join(NOW).expect("room");
    assert_eq!(new.row, late.row);
    new.reserve(0, NOW).expect("room");
    new.set_active(9, true);
    drop(late);
    assert_eq!(
        (share.bits(), owned_blocks(&share), share.active(NOW).1),
        (1, 1, 1)
    );
}

#[test]
fn numbers_of_a_row_go_round() {
    let share = share();
    let row = |word| share.row(0, word).load(Ordering::Relaxed);
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let member = share.join(NOW).expect("room");
        assert!(numbers.insert(member.claim), "a number was used again");
        assert_eq!(share.owner(0, row(CLAIM)), Some(us()));
        drop(member);
    }
    // The highest number is in use; the next is zero.
    share
        .row(0, GENERATION)
        .store(0xffff << 48, Ordering::Relaxed);
    let member = share.join(NOW).expect("room");
    assert_eq!((member.row, member.claim >> 32 & 0xffff), (0, 0));
    assert_eq!(share.owner(0, row(CLAIM)), Some(us()));
}

/// The owner was killed between writing its two words: the row has its claim, but not its start time.
#[test]
fn half_claimed_rows_are_taken_only_from_the_dead() {
    let share = share();
    let claim = |slot: u32| u64::from(slot) | 1 << 32 | 1 << 63;
    share
        .row(0, CLAIM)
        .store(claim(us().slot), Ordering::Relaxed);
    assert_eq!(share.join(NOW).expect("room").row, 1);
    share.row(0, CLAIM).store(claim(1 << 30), Ordering::Relaxed);
    assert_eq!(share.join(NOW).expect("room").row, 0);
}

#[test]
fn no_row_and_no_block_is_an_error_that_says_how_many_there_are() {
    let share = share();
    let mut first = share.join(NOW).expect("room");
    // These are the words that `join` leaves in a row.
    for row in 1..ROWS {
        let words = [
            (CLAIM, first.claim),
            (GENERATION, us().generation | 1 << 48),
        ];
        for (word, value) in words {
            share.row(row, word).store(value, Ordering::Relaxed);
        }
    }
    assert_eq!(share.active(NOW).1 as usize, ROWS);
    let error = share.join(NOW).expect_err("no row");
    assert_eq!(error, ShareError::Rows);
    assert!(error.to_string().contains("1024 completion queues"));
    share.row(900, CLAIM).store(0, Ordering::Relaxed);
    let mut last = share.join(NOW).expect("one row");
    assert_eq!(last.row, 900);
    // The first member takes all blocks but one.
    first.reserve((BLOCKS - 1) * BLOCK - 1, NOW).expect("room");
    last.reserve(0, NOW).expect("room");
    let error = last.reserve(BLOCK, NOW).expect_err("no block");
    assert_eq!(error, ShareError::Blocks);
    assert!(error.to_string().contains("1048576 queue pairs"));
    drop(first);
    last.reserve(BLOCK, NOW).expect("room again");
}

#[test]
fn blocks_of_dead_members_are_reused() {
    let share = share();
    let mut living = share.join(NOW).expect("room");
    let mut gone = share.join_as(dead(7), NOW).expect("room");
    gone.reserve(BLOCKS * BLOCK - 1, NOW).expect("room");
    gone.set_active(17, true);
    dies(gone);
    living.reserve(0, NOW).expect("what the dead one had");
    assert_eq!(share.bits(), 0);
}

#[test]
fn only_recently_seen_members_have_active_queue_pairs() {
    let share = share();
    let mut members: Vec<_> = (0..3).map(|_| share.join(NOW).expect("room")).collect();
    for (index, member) in members.iter_mut().enumerate() {
        member.reserve(10, NOW).expect("room");
        (0..=index).for_each(|slot| member.set_active(slot, true));
        let age = [0, STALE.nanos() - 1, STALE.nanos()][index];
        member.seen(at(NOW.nanos() - age), Duration::ZERO, 0.0);
    }
    assert_eq!(share.active(NOW), (3, 3));
    assert_eq!(share.active(at(NOW.nanos() + 1)), (1, 3));
    // The clock went back, or the row has a time in the future.
    assert_eq!(share.active(at(0)), (6, 3));
}

#[test]
fn more_active_queue_pairs_than_there_can_be_are_as_many_as_there_can_be() {
    let share = share();
    let members = [0, 1].map(|_| share.join(NOW).expect("room"));
    for member in &members {
        member.seen(NOW, Duration::ZERO, 0.0);
        share
            .row(member.row, ACTIVE)
            .store(u64::MAX, Ordering::Relaxed);
    }
    assert_eq!(share.active(NOW), ((BLOCKS * BLOCK) as u32, 2));
}

#[test]
fn a_congestion_signal_halves_the_rate_once_and_holds_it_down() {
    let (share, config) = (share(), PacingConfig::default());
    let line = config.line_rate();
    let hold = hold(&config);
    assert_eq!(share.rate(&config), line);
    assert!(share.cut(&config, NOW));
    assert_eq!(share.rate(&config), line / 2);
    let (before, after) = (at(NOW.nanos() + hold.nanos() - 1), NOW + hold);
    assert!(!share.cut(&config, before), "one signal");
    share.change_rate(&config, 1_000, before);
    assert_eq!(share.rate(&config), line / 2, "it is held");
    share.change_rate(&config, -1_000, before);
    assert_eq!(share.rate(&config), line / 2 - 1_000, "and may fall");
    share.change_rate(&config, 1_000, after);
    assert_eq!(share.rate(&config), line / 2);
    for round in 0..100_u64 {
        assert!(share.cut(&config, at(after.nanos() + round * hold.nanos())));
    }
    assert_eq!(share.rate(&config), config.min_rate());
    let member = share.join(NOW).expect("room");
    member.start_again(&config, at(after.nanos() + 100 * hold.nanos() - 1));
    assert_eq!(share.rate(&config), config.min_rate(), "it is held");
    member.start_again(&config, at(after.nanos() + 100 * hold.nanos()));
    assert_eq!(share.rate(&config), line);
}

#[test]
fn a_clock_of_the_far_future_is_nonsense() {
    let (share, config) = (share(), PacingConfig::default());
    let set = |ahead: Duration| {
        let at = (NOW + ahead).nanos();
        share.clock.store(at, Ordering::Relaxed);
    };
    // 4 GiB at 5 Gbit/s take 6.9 s, which a member may legally have reserved.
    set(Duration::from_millis(6_800));
    assert!(!share.forgive(&config, NOW));
    set(Duration::from_nanos(u64::MAX / 2));
    assert!(share.forgive(&config, NOW));
    assert_eq!(share.clock.load(Ordering::Relaxed), NOW.nanos());
    assert!(!share.forgive(&config, NOW), "once");
    // Everything is garbage: rows without an owner record the same as the clock.
    for at in (0..BYTES).step_by(8) {
        share.word(at).store(u64::MAX, Ordering::Relaxed);
    }
    assert!(share.forgive(&config, NOW));
    assert_eq!(share.clock.load(Ordering::Relaxed), NOW.nanos());
}

#[test]
fn a_hold_of_the_far_future_is_nonsense() {
    let (share, config) = (share(), PacingConfig::default());
    share.held.store(u64::MAX, Ordering::Relaxed);
    assert!(share.cut(&config, NOW));
    share.change_rate(&config, 1, NOW + Duration::from_millis(1));
    assert_eq!(share.rate(&config), config.line_rate() / 2 + 1);
}

#[test]
fn the_shortest_delay_is_everybodys() {
    let share = share();
    let kind = Kind::at(3);
    let nanos = Duration::from_nanos;
    for (sample, shortest) in [(500, 500), (700, 500), (400, 400), (0, 1), (9, 1)] {
        assert_eq!(share.shortest(kind, nanos(sample)), nanos(shortest));
    }
    assert_eq!(share.shortest(Kind::at(4), nanos(9)), nanos(9));
}

/// Even the smallest request moves the clock, however the time is rounded to nanoseconds.
#[test]
fn nothing_is_free() {
    for rate in [1_u64, 999, 125_000_000, 12_500_000_000, 1_250_000_000_000] {
        for bytes in [1_u64, 63, 64, 4096, 1 << 34, u64::MAX] {
            let share = share();
            let member = share.join(NOW).expect("room");
            member.take(bytes, rate, 0, NOW).expect("due");
            let ahead = share.status(&PacingConfig::default(), NOW).ahead.nanos();
            let paid = u128::from(ahead) * u128::from(rate);
            let owed = u128::from(bytes) * 1_000_000_000;
            let is_last = ahead == u64::MAX - NOW.nanos();
            assert!(
                is_last || paid >= owed,
                "{bytes} bytes at {rate} for {ahead} ns"
            );
            assert!(is_last || paid - owed < rate.into());
        }
    }
}

/// Words that a malicious process would write.
fn word() -> impl Strategy<Value = u64> {
    let us = us();
    let words = [
        0,
        1,
        u64::MAX,
        NOW.nanos(),
        NOW.nanos() - 1,
        f64::NAN.to_bits(),
        u64::from(us.slot) | 1 << 32 | 1 << 63,
        us.generation | 1 << 48,
        block_word(0, 1),
        block_word(0x7fff, GENERATION_MASK),
        u64::from(u32::MAX) | 1 << 63,
    ];
    prop_oneof![3 => select(words.to_vec()), 1 => any::<u64>()]
}

fn place() -> impl Strategy<Value = usize> {
    let words = |from: usize, to: usize| (from / 8..to / 8).prop_map(|word| 8 * word);
    prop_oneof![
        2 => words(0, FIRST_ROW),
        4 => words(FIRST_ROW, FIRST_ROW + 4 * ROW),
        1 => words(FIRST_ROW, OWNERS),
        2 => words(OWNERS, OWNERS + 64),
        1 => words(BITS, BYTES),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the memory holds or is written meanwhile, nothing panics, leaves the rate's bounds, or loops
    /// for ever.
    #[test]
    fn garbage_is_survived(
        written in vec(vec((place(), word()), 0..12), 1..6),
        bytes in vec(prop_oneof![0..100_000_u64, any::<u64>()], 6),
        by in vec(prop_oneof![-20_000_000..20_000_000_i64, any::<i64>()], 6),
        now in prop_oneof![Just(NOW.nanos()), any::<u64>()],
        slot in 0..3 * BLOCK,
    ) {
        let (share, config) = (share(), PacingConfig::default());
        let bounds = config.min_rate()..=config.line_rate();
        let mut members = Vec::new();
        for (round, words) in written.into_iter().enumerate() {
            for (place, value) in words {
                share.word(place).store(value, Ordering::Relaxed);
            }
            let now = at(now).max(at(round as u64));
            prop_assert!(bounds.contains(&share.rate(&config)));
            if let Ok(mut member) = share.join(now) {
                if member.reserve(slot, now).is_ok() {
                    member.set_active(slot, true);
                }
                members.push(member);
            }
            share.change_rate(&config, by[round], now);
            prop_assert!(bounds.contains(&share.rate(&config)));
            share.cut(&config, now);
            prop_assert!(bounds.contains(&share.rate(&config)));
            for member in &mut members {
                let rate = share.rate(&config);
                let _ = member.take(bytes[round], rate, bytes[0], now);
                let _ = (member.idle_for(now), member.next_active(0), share.bits());
                member.set_active(slot, round % 2 == 0);
                member.seen(now, Duration::ZERO, f64::NAN);
            }
            let status = share.status(&config, now);
            prop_assert!(bounds.contains(&status.rate_bytes_per_s));
            prop_assert!(status.ratio.is_finite() && status.raise_below <= status.lower_above);
            prop_assert!(status.active as usize <= BLOCKS * BLOCK && status.members as usize <= ROWS);
            let sample = Duration::from_nanos(bytes[round]);
            prop_assert!(share.shortest(Kind::at(round), sample) <= sample.max(Duration::from_nanos(1)));
            let _ = share.forgive(&config, now);
        }
    }

    /// Several members take what they can. What they got before the last take never exceeds a burst plus the
    /// rate times the time since the start.
    #[test]
    fn members_of_one_clock_share_one_rate(
        takes in vec((0..4_usize, 1..20_000_u64, 0..3_000_u64), 1..300),
        rate in 1_000_000..20_000_000_000_u64,
        burst in 0..100_000_u64,
    ) {
        let share = share();
        let members: Vec<_> = (0..4).map(|_| share.join(NOW).expect("room")).collect();
        let (mut now, mut taken) = (NOW, 0);
        for (who, bytes, passes) in takes {
            now += Duration::from_nanos(passes);
            match members[who].take(bytes, rate, burst, now) {
                Ok(()) => {
                    let due = u128::from(now.since(NOW).nanos()) * u128::from(rate) / 1_000_000_000;
                    prop_assert!(taken <= due + u128::from(burst), "{taken} were taken before");
                    taken += u128::from(bytes);
                }
                Err(due) => prop_assert!(due > now),
            }
        }
    }
}
