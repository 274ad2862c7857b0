//! Takes back time on the shared clock that dead processes reserved.

use super::*;

/// Covers what is booked ahead of time in addition to a message, with a wide margin.
const SLACK: Duration = Duration::from_millis(1_000);

impl SharedPacing {
    /// Takes back the last move of the clock if a process that is dead by now made it, or if no process can
    /// have made it: the clock is further ahead than the longest message takes at the lowest rate. Returns
    /// whether the clock was moved back. Slow, because it makes system calls.
    pub fn forgive(&self, config: &PacingConfig, now: Instant) -> bool {
        // This check goes first, because a row of garbage may match a garbage clock.
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
            // A member that left without dying keeps what it reserved: it has posted its requests.
            if claim != 0
                && self
                    .owner(row, claim)
                    .is_some_and(|owner| !self.processes.is_alive(owner))
            {
                return virtual_clock::forgive(&self.clock, self.moves(row), now.nanos());
            }
        }
        false
    }
}
