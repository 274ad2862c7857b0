//! The virtual clock that all processes of an RNIC share: `due = max(next, now − burst); next = due + size / rate`.
//!
//! A request is posted when it is due. So processes share one rate without knowing each other, and an RNIC that was
//! idle gives a burst at once. Who moves the clock ahead and dies leaves a debt that nobody pays: a process
//! writes down what it moves the clock from and to *before* it does, so that others can take exactly that back.
//!
//! Atomics only, no time, no memory layout: model-checked as it is.

use headworks_shm::primitive::{AtomicU64, Ordering};

/// What one thread writes down of the clock, in places that only it writes: what it moved it to last, or was about
/// to, and from.
pub type ClockMoves<'a> = (&'a AtomicU64, &'a AtomicU64);

/// Takes time on the clock, if some is due: from then on until `cost` later, in nanoseconds.
///
/// # Errors
///
/// When something is due next, and nothing is taken.
pub fn take(
    next: &AtomicU64,
    moves: ClockMoves<'_>,
    now: u64,
    burst: u64,
    cost: u64,
) -> Result<(), u64> {
    book(next, moves, now, burst, cost, 0).map(drop)
}

/// The same also of time that is due so much later: whoever comes has a turn, in the order of coming, however
/// rarely it looks. Answers when that time is due: before that nothing of it may be used.
///
/// # Errors
///
/// As of [`take`], where that is later still.
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
        // Whoever sees the clock moved sees these: see `forgive`.
        moved_from.store(due, Ordering::Relaxed);
        moved_to.store(to, Ordering::Relaxed);
        match next.compare_exchange_weak(seen, to, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return Ok(due),
            Err(other) => seen = other,
        }
    }
}

/// Takes back what a dead thread moved the clock ahead, if it was the last to move it: only what is still in the
/// future was not used. Says whether it was.
pub fn forgive(next: &AtomicU64, moves: ClockMoves<'_>, now: u64) -> bool {
    // Pairs with the Release in `take`: the dead one's places are at least as new as the clock.
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
        // Ten units each, a burst of 25: three at once, then one every ten.
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
    fn who_books_has_a_turn_however_often_others_look() {
        let next = AtomicU64::new(0);
        let of = |who: &[AtomicU64; 2], now| book(&next, (&who[0], &who[1]), now, 0, 10, 100);
        let [eager, rare] = [(); 2].map(|()| [0, 0].map(AtomicU64::new));
        assert_eq!(of(&eager, 1000), Ok(1000));
        assert_eq!(of(&rare, 1001), Ok(1010));
        // From then on the one asks whenever it may again, and the other a while after.
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
        // As far ahead as is allowed, and no further.
        let now = next.load(Ordering::Relaxed) - 101;
        assert_eq!(of(&rare, now), Err(now + 101));
    }

    #[test]
    fn only_the_last_movers_debt_is_forgiven_and_only_what_is_left_of_it() {
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

    /// Two threads never get more together than the clock was moved by.
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
            // An idle clock is pulled up to now first, so it may have moved further than that.
            assert!(next >= 100 + 10 * all, "{next} after {all}");
            assert!(all >= 1);
        });
    }

    /// One dies at any point of moving the clock (here: after it, before it looks again); whoever forgives takes back
    /// no more than that, also while a third moves on.
    #[test]
    fn loom_what_is_forgiven_was_the_deads() {
        loom::model(|| {
            let shared = shared();
            // Owes until 200.
            let [to, from] = &shared.moves[1];
            take(&shared.next, (to, from), 100, 0, 100).unwrap();
            let forgiver = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let [to, from] = &shared.moves[1];
                    forgive(&shared.next, (to, from), 150)
                })
            };
            // At 200 the clock is due again without forgiveness.
            let first = taken(&shared, 0, 200);
            let second = taken(&shared, 0, 200);
            let forgiven = forgiver.join().unwrap();
            let next = shared.next.load(Ordering::Relaxed);
            assert_eq!(first, 1);
            match forgiven {
                // From 150 on, two fit before 200 passed.
                true => assert!(next >= 200 && next <= 220, "{next}"),
                false => assert!(next >= 210, "{next}"),
            }
            let _ = second;
        });
    }

    /// Who sees the clock moved by the dead one sees what it wrote down of that move, and not of the one before: what
    /// was due before the last was used.
    #[test]
    fn loom_what_is_forgiven_is_the_last_move() {
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
            // Forgiven after the last move, or before.
            assert!(next == 110 || next == 120, "{next}");
        });
    }

    /// Two forgive at once: once only.
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
