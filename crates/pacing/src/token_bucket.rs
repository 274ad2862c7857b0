//! Token bucket of one completion queue: what its queue pairs may post now. Credit comes from the shared
//! clock, several kilobytes at a time.

use headworks_verbs::{Duration, Instant};

use crate::config::PacingConfig;
use crate::shared_state::ShareMember;

/// If the next credit is due later than this, a dead process may owe it, and the token bucket checks for
/// that.
const SUSPECT: Duration = Duration::from_millis(2);
/// Credit that is due within this time is booked in advance. A thread that has booked gets its turn without
/// having to look at the right moment. A process that dies takes no more than this with it.
const AHEAD: Duration = Duration::from_millis(1);
/// Shortest time between two checks for a dead debtor.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// Credit of one completion queue, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket {
    bytes: u64,
    /// Credit that is booked and usable from `due` on.
    booked: u64,
    due: Instant,
    /// Credit that was spent before it was due. The next booking pays it back first.
    owed: u64,
    looked: Instant,
    rate: u64,
}

impl TokenBucket {
    /// Pays for a request from the credit that is left. Returns whether it sufficed.
    #[inline]
    pub(crate) fn pay(&mut self, cost: u64) -> bool {
        let has = cost <= self.bytes;
        if has {
            self.bytes -= cost;
        }
        has
    }

    /// Pays for a request with new credit if that is due. Returns whether it did.
    pub(crate) fn pay_anew(
        &mut self,
        cost: u64,
        member: &ShareMember,
        config: &PacingConfig,
        now: Instant,
    ) -> bool {
        if now < self.due {
            return false;
        }
        self.bytes += std::mem::take(&mut self.booked);
        if self.pay(cost) {
            return true;
        }
        if member.idle_for(now).nanos() >= config.idle_ms * 1_000_000 {
            member.start_again(config, now);
        }
        self.rate = member.share().rate(config);
        let asked = (cost - cost.min(self.bytes)).max(config.quantum_bytes) + self.owed;
        let burst = config.burst_bytes;
        match member.book(asked, self.rate, burst, now, AHEAD) {
            Ok(due) => {
                self.booked = asked - self.owed;
                self.owed = 0;
                self.due = due;
                if due > now {
                    return false;
                }
                self.bytes += std::mem::take(&mut self.booked);
                self.pay(cost)
            }
            Err(due) => {
                self.due = due.min(now + SUSPECT);
                if due.since(now) > SUSPECT && now.since(self.looked) > LOOKS_EVERY {
                    self.looked = now;
                    member.share().forgive(config, now);
                }
                false
            }
        }
    }

    /// Returns the credit of a request that was not posted after all.
    pub(crate) fn give_back(&mut self, cost: u64) {
        self.bytes += cost;
    }

    /// Grants `cost` bytes of credit now, to be paid back later.
    pub(crate) fn borrow(&mut self, cost: u64) {
        self.bytes += cost;
        self.owed += cost;
    }

    /// Whether the rate, as of the last booking, is below the line rate.
    pub(crate) fn is_limited(&self, line_rate: u64) -> bool {
        self.rate < line_rate
    }

    /// Earliest time at which new credit may be available.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }
}
