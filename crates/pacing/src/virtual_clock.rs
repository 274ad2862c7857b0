//! The virtual clock that all processes of an RNIC share: `due = max(next, now − burst); next = due + size /
//! rate`.
//!
//! A request is posted when it is due. Processes thus share one rate without knowing each other, and an RNIC
//! that was idle allows a burst at once. A process that moves the clock ahead and dies leaves a debt that
//! nobody pays. Therefore a process records what it moves the clock from and to *before* it moves it, so that
//! others can take back exactly that move.
//!
//! The module uses only atomics. It reads no time and knows no memory layout, so loom checks this very code.

use headworks_shm::primitive::{AtomicU64, Ordering};

/// One thread's record of its last move of the clock, or of the move that it is about to make: moved to,
/// moved from. Only that thread writes these words.
pub type ClockMoves<'a> = (&'a AtomicU64, &'a AtomicU64);

/// Reserves `cost` nanoseconds on the clock if the next free time is due now.
///
/// # Errors
///
/// Returns when the next free time is due; nothing is reserved.
pub fn take(
    next: &AtomicU64,
    moves: ClockMoves<'_>,
    now: u64,
    burst: u64,
    cost: u64,
) -> Result<(), u64> {
    book(next, moves, now, burst, cost, 0).map(drop)
}

/// Like [`take`], but also reserves time that is due up to `ahead` nanoseconds from now. Callers thus get
/// their turns in the order in which they call, however rarely each of them calls. Returns when the reserved
/// time is due; the caller must not use it earlier.
///
/// # Errors
///
/// Returns when the next free time is due if that is later than `ahead` from now; nothing is reserved.
pub fn book(
    next: &AtomicU64,
    moves: ClockMoves<'_>,
    now: u64,
    burst: u64,
    cost: u64,
    ahead: u64,
) -> Result<u64, u64> {
    let mut seen = next.load(Ordering::Relaxed);
    loop {
        let due = seen.max(now.saturating_sub(burst));
        if due > now.saturating_add(ahead) {
            return Err(due);
        }
        let to = due.saturating_add(cost);
        let (moved_to, moved_from) = moves;
        // A process that sees the moved clock also sees this record; `forgive` relies on it.
        moved_from.store(due, Ordering::Relaxed);
        moved_to.store(to, Ordering::Relaxed);
        match next.compare_exchange_weak(seen, to, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return Ok(due),
            Err(other) => seen = other,
        }
    }
}

/// Takes back a dead thread's move of the clock if that was the last move. Only the part that is still in the
/// future is taken back, because the rest may have been used. Returns whether the clock was moved back.
pub fn forgive(next: &AtomicU64, moves: ClockMoves<'_>, now: u64) -> bool {
    // Pairs with the Release in `book`: the dead thread's record is at least as new as the clock.
    let seen = next.load(Ordering::Acquire);
    let (to, from) = moves;
    if seen <= now || to.load(Ordering::Relaxed) != seen {
        return false;
    }
    let back = from.load(Ordering::Relaxed).max(now).min(seen);
    let done = next.compare_exchange(seen, back, Ordering::Relaxed, Ordering::Relaxed);
    done.is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words() -> [AtomicU64; 3] {
        [0, 0, 0].map(AtomicU64::new)
    }

    #[test]
    fn an_idle_clock_gives_a_burst_and_then_the_rate() {
        let [next, to, from] = words();
        // Each take costs ten units and the burst is 25: three succeed at once, then one every ten units.
        let mut given = Vec::new();
        for now in 1000..1100 {
            while take(&next, (&to, &from), now, 25, 10).is_ok() {
                given.push(now);
            }
        }
        assert_eq!(&given[..5], &[1000, 1000, 1000, 1005, 1015]);
        assert_eq!(
            take(&next, (&to, &from), 1099, 25, 10),
            Err(next.load(Ordering::Relaxed))
        );
    }

    #[test]
    fn a_booked_member_gets_its_turn_despite_frequent_callers() {
        let next = AtomicU64::new(0);
        let of = |who: &[AtomicU64; 2], now| book(&next, (&who[0], &who[1]), now, 0, 10, 100);
        let [eager, rare] = [(); 2].map(|()| [0, 0].map(AtomicU64::new));
        assert_eq!(of(&eager, 1000), Ok(1000));
        assert_eq!(of(&rare, 1001), Ok(1010));
        // From here on one asks again as soon as it may, and the other seven units later.
        let (mut due, mut turns) = ([1000, 1010], [1, 1]);
        for now in 1002..3000 {
            for (who, words) in [&eager, &rare].into_iter().enumerate() {
                let late = [0, 7][who];
                if now >= due[who] + late {
                    due[who] = of(words, now).unwrap();
                    turns[who] += 1;
                }
            }
        }
        assert!(turns[0] + turns[1] >= 190, "{turns:?}");
        assert!(turns[1] * 10 >= turns[0] * 8, "{turns:?}");
        // Booking works up to `ahead` from now, and no further.
        let now = next.load(Ordering::Relaxed) - 101;
        assert_eq!(of(&rare, now), Err(now + 101));
    }

    #[test]
    fn only_the_last_movers_remaining_debt_is_forgiven() {
        let [next, to, from] = words();
        take(&next, (&to, &from), 100, 0, 50).unwrap();
        assert!(!forgive(
            &next,
            (&AtomicU64::new(7), &AtomicU64::new(0)),
            110
        ));
        assert!(forgive(&next, (&to, &from), 110));
        assert_eq!(next.load(Ordering::Relaxed), 110);
        assert!(!forgive(&next, (&to, &from), 110));
    }

    #[test]
    fn any_words_are_survived() {
        let [next, to, from] = [u64::MAX; 3].map(AtomicU64::new);
        assert_eq!(take(&next, (&to, &from), 5, 1, 1), Err(u64::MAX));
        assert!(forgive(&next, (&to, &from), 5));
        assert_eq!(
            take(&AtomicU64::new(0), (&to, &from), 5, 9, u64::MAX),
            Ok(())
        );
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Shared {
        next: AtomicU64,
        moves: [[AtomicU64; 2]; 2],
    }

    fn shared() -> Arc<Shared> {
        let word = || AtomicU64::new(0);
        Arc::new(Shared {
            next: AtomicU64::new(100),
            moves: [[word(), word()], [word(), word()]],
        })
    }

    fn taken(shared: &Shared, who: usize, now: u64) -> u64 {
        let [to, from] = &shared.moves[who];
        u64::from(take(&shared.next, (to, from), now, 0, 10).is_ok())
    }

    /// Two threads together never get more credit than the clock was moved by.
    #[test]
    fn loom_no_credit_comes_from_nothing() {
        loom::model(|| {
            let shared = shared();
            let other = {
                let shared = shared.clone();
                thread::spawn(move || taken(&shared, 1, 105) + taken(&shared, 1, 115))
            };
            let ours = taken(&shared, 0, 110) + taken(&shared, 0, 112);
            let all = ours + other.join().unwrap();
            let next = shared.next.load(Ordering::Relaxed);
            // An idle clock is first pulled up to now, so it may have moved further than that.
            assert!(next >= 100 + 10 * all, "{next} after {all}");
            assert!(all >= 1);
        });
    }

    /// A thread dies while it moves the clock (here: after the move, before its next look). Forgiving takes
    /// back no more than that move, also while a third thread moves the clock on.
    #[test]
    fn loom_forgiveness_takes_back_only_the_dead_threads_move() {
        loom::model(|| {
            let shared = shared();
            // The dead thread's debt lasts until 200.
            let [to, from] = &shared.moves[1];
            take(&shared.next, (to, from), 100, 0, 100).unwrap();
            let forgiver = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let [to, from] = &shared.moves[1];
                    forgive(&shared.next, (to, from), 150)
                })
            };
            // At 200 the clock is due again even if nothing is forgiven.
            let first = taken(&shared, 0, 200);
            let second = taken(&shared, 0, 200);
            let forgiven = forgiver.join().unwrap();
            let next = shared.next.load(Ordering::Relaxed);
            assert_eq!(first, 1);
            match forgiven {
                // If forgiven at 150, two takes fit at 200.
                true => assert!(next >= 200 && next <= 220, "{next}"),
                false => assert!(next >= 210, "{next}"),
            }
            let _ = second;
        });
    }

    /// A thread that sees the clock as the dead thread moved it also sees the record of that move, and not of
    /// the one before. The time that was due before the last move was used.
    #[test]
    fn loom_forgiveness_sees_the_dead_threads_last_move() {
        loom::model(|| {
            let shared = shared();
            let dies = {
                let shared = shared.clone();
                thread::spawn(move || taken(&shared, 1, 100) + taken(&shared, 1, 110))
            };
            let [to, from] = &shared.moves[1];
            forgive(&shared.next, (to, from), 105);
            assert_eq!(dies.join().unwrap(), 2);
            let next = shared.next.load(Ordering::Relaxed);
            // The debt is forgiven either after the last move or before it.
            assert!(next == 110 || next == 120, "{next}");
        });
    }

    /// If two threads forgive the same debt at once, one succeeds.
    #[test]
    fn loom_a_debt_is_forgiven_once() {
        loom::model(|| {
            let shared = shared();
            let [to, from] = &shared.moves[1];
            take(&shared.next, (to, from), 100, 0, 100).unwrap();
            let both = || {
                let shared = shared.clone();
                thread::spawn(move || {
                    let [to, from] = &shared.moves[1];
                    forgive(&shared.next, (to, from), 150)
                })
            };
            let (a, b) = (both(), both());
            let (a, b) = (a.join().unwrap(), b.join().unwrap());
            assert!(a ^ b);
            assert_eq!(shared.next.load(Ordering::Relaxed), 150);
        });
    }
}
