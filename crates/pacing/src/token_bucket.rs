//! What a completion queue's queue pairs may post now: credit from the shared clock, in small change.

use headworks_verbs::{Duration, Instant};

use crate::config::PacingConfig;
use crate::shared_state::ShareMember;

/// What is due later than this is looked into: a dead process may owe it.
const SUSPECT: Duration = Duration::from_millis(2);
/// What is due no later than this is booked: who books has a turn, and need not look at the right moment. It is what the
/// dead may take along.
const AHEAD: Duration = Duration::from_millis(1);
/// And so rarely.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// Credit in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket {
    bytes: u64,
    /// Booked, and there from `due` on.
    booked: u64,
    due: Instant,
    /// Spent without being due: paid back first.
    owed: u64,
    looked: Instant,
    rate: u64,
}

impl TokenBucket {
    /// Pays for a request from what is left of the last credit.
    #[inline]
    pub(crate) fn pay(&mut self, cost: u64) -> bool {
        let has = cost <= self.bytes;
        if has {
            self.bytes -= cost;
        }
        has
    }

    /// Pays for a request with new credit, if it is due.
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
        if member.idle_for(now).nanos() as f64 >= config.idle_ms * 1e6 {
            member.start_again(config, now);
        }
        self.rate = member.share().rate(config);
        let asked = (cost - cost.min(self.bytes)).max(config.quantum_bytes as u64) + self.owed;
        let burst = config.burst_bytes as u64;
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

    /// A request was not posted after all.
    pub(crate) fn give_back(&mut self, cost: u64) {
        self.bytes += cost;
    }

    /// So much may be spent now, and is owed.
    pub(crate) fn borrow(&mut self, cost: u64) {
        self.bytes += cost;
        self.owed += cost;
    }

    /// Whether the RNIC is slower than its line.
    pub(crate) fn is_limited(&self, line_rate: u64) -> bool {
        self.rate < line_rate
    }

    /// When to try again.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }
}
