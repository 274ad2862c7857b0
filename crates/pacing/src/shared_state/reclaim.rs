//! What is owed to the shared clock and will not be paid.

use super::*;

/// What is booked ahead of time beside a message, with a good deal to spare.
const SLACK: Duration = Duration::from_millis(1_000);

impl SharedPacing {
    /// Takes back what processes that are dead by now moved the clock ahead, or what nobody can have moved it: further
    /// than the longest message takes at the lowest rate. Slow: it asks the system.
    pub fn forgive(&self, config: &PacingConfig, now: Instant) -> bool {
        // First: a row of garbage may say the same as the clock.
        self.forgive_nonsense(config, now) || self.forgive_dead(now)
    }

    fn forgive_nonsense(&self, config: &PacingConfig, now: Instant) -> bool {
        let longest = u128::from(u32::MAX) * 1_000_000_000 / u128::from(config.min_rate());
        let longest = Duration::from_nanos(u64::try_from(longest).unwrap_or(u64::MAX));
        let seen = self.clock.load(Ordering::Relaxed);
        if Instant::from_nanos(seen).since(now) <= longest + SLACK {
            return false;
        }
        let (to, relaxed) = (now.nanos(), Ordering::Relaxed);
        let back = self.clock.compare_exchange(seen, to, relaxed, relaxed);
        back.is_ok()
    }

    pub(super) fn forgive_dead(&self, now: Instant) -> bool {
        for row in 0..ROWS {
            let claim = self.row(row, CLAIM).load(Ordering::Acquire);
            let to = self.row(row, MOVED_TO).load(Ordering::Relaxed);
            if to == 0 || to != self.clock.load(Ordering::Relaxed) {
                continue;
            }
            // One that left keeps what it owed: it has posted it.
            if claim != 0
                && self
                    .owner(row, claim)
                    .is_some_and(|owner| !owner.is_alive())
            {
                return virtual_clock::forgive(&self.clock, self.moves(row), now.nanos());
            }
        }
        false
    }
}
