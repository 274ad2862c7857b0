//! Rate of a queue-pair group whose receiver asks for less: pure.
//!
//! A daemon whose receive pool is in danger signals its peers. Each then sends more slowly on that group alone: what it
//! sends to other hosts is not affected, and no peer can throttle a whole RNIC. Frames of data and one-sided operations
//! count. Announcements wait with them. The READs of transfers are the receiver's own, and are not limited. The rate rises
//! again in equal steps, as in Algorithm 1 of Weir, until it is as high as before the signals.

use headworks_verbs::{Duration, Instant};

/// Lowest rate, in bytes a second.
const RATE_MIN: u64 = 1 << 20;
/// Bytes that may be sent at once after a pause.
const BURST: u64 = 64 << 10;
/// Time between two steps up.
const RISES_EVERY: Duration = Duration::from_millis(10);
/// Number of steps up from one half of a rate to all of it.
const STEPS: u64 = 8;
/// Longest time over which the rate is measured before a signal.
const MEASURED: Duration = Duration::from_millis(200);

/// Rate of a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkRate {
    /// Bytes sent in total.
    sent: u64,
    /// The signal before: when it came, and the bytes sent until then.
    before: Option<(Instant, u64)>,
    limit: Option<Limit>,
}

/// A limit on the rate.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Bytes a second, now, and before the first signal.
    rate: u64,
    free: u64,
    /// Bytes that may be sent, at time `at`. Negative: more were sent.
    tokens: i64,
    at: Instant,
    rises_at: Instant,
}

impl LinkRate {
    /// Counts bytes that were sent.
    pub fn sent(&mut self, bytes: u32) {
        self.sent += u64::from(bytes);
        if let Some(limit) = &mut self.limit {
            limit.tokens -= i64::from(bytes);
        }
    }

    /// Whether the rate is limited.
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Handles a signal. The first only begins a measurement: how much is sent until the second is the rate of which a
    /// half is left.
    pub fn slow_down(&mut self, now: Instant) {
        let before = self.before.replace((now, self.sent));
        let rate = match (&self.limit, before) {
            (Some(limit), _) => limit.rate,
            (None, Some((at, sent))) if now > at && now.since(at) <= MEASURED => {
                let bytes = u128::from(self.sent - sent);
                let rate = bytes * 1_000_000_000 / u128::from(now.since(at).nanos());
                u64::try_from(rate).unwrap_or(u64::MAX)
            }
            (None, _) => return,
        };
        if rate < RATE_MIN {
            // Nothing that could be slowed down.
            return;
        }
        let limit = self.limit.get_or_insert_with(|| Limit {
            rate,
            free: rate.max(RATE_MIN),
            tokens: 0,
            at: now,
            rises_at: now,
        });
        limit.rate = (rate / 2).max(RATE_MIN);
        limit.rises_at = now + RISES_EVERY;
    }

    /// Whether something may be sent now.
    pub fn may_send(&mut self, now: Instant) -> bool {
        let Some(limit) = &mut self.limit else {
            return true;
        };
        while limit.rises_at <= now {
            limit.rises_at += RISES_EVERY;
            limit.rate += limit.free / (2 * STEPS);
            if limit.rate >= limit.free {
                self.limit = None;
                return true;
            }
        }
        let passed = now.since(limit.at).nanos();
        let bytes = u128::from(limit.rate) * u128::from(passed) / 1_000_000_000;
        if bytes > 0 {
            let tokens = i128::from(limit.tokens) + bytes as i128;
            limit.tokens = tokens.min(BURST.into()) as i64;
            // The time of a part of a byte counts the next time.
            let nanos = bytes * 1_000_000_000 / u128::from(limit.rate);
            limit.at += Duration::from_nanos(nanos as u64);
        }
        limit.tokens >= 0
    }

    /// When something may be sent again, if that is not now.
    pub fn due(&self) -> Option<Instant> {
        let limit = self.limit.filter(|limit| limit.tokens < 0)?;
        let nanos = u128::from(limit.tokens.unsigned_abs()) * 1_000_000_000;
        let due = limit.at + Duration::from_nanos((nanos / u128::from(limit.rate)) as u64 + 1);
        // Rounded up, so that it stays the same while nothing is sent.
        let due = due.since(Instant::ZERO).nanos().next_multiple_of(1 << 14);
        let due = Instant::ZERO + Duration::from_nanos(due);
        Some(limit.rises_at.min(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// Sends 4 KiB whenever it may, from one time to another, every 20 µs. Returns the bytes a second.
    fn load(rate: &mut LinkRate, from: u64, until: u64) -> u64 {
        let mut bytes = 0;
        for micros in (from..until).step_by(20) {
            if rate.may_send(at(micros)) {
                rate.sent(4096);
                bytes += 4096;
            }
        }
        bytes * 1_000_000 / (until - from)
    }

    #[test]
    fn signals_halve_the_rate_and_it_rises_again() {
        let mut rate = LinkRate::default();
        let free = load(&mut rate, 1000, 11_000);
        rate.slow_down(at(11_000));
        assert!(!rate.is_limited(), "the first signal only measures");
        assert_eq!(load(&mut rate, 11_000, 21_000), free);
        rate.slow_down(at(21_000));
        let half = load(&mut rate, 21_000, 31_000);
        assert!(
            (free * 4 / 10..free * 6 / 10).contains(&half),
            "{half} of {free}"
        );
        rate.slow_down(at(31_000));
        let quarter = load(&mut rate, 31_000, 41_000);
        assert!(
            (free * 2 / 10..free * 4 / 10).contains(&quarter),
            "{quarter} of {free}"
        );
        load(&mut rate, 41_000, 200_000);
        assert!(!rate.is_limited() && rate.due().is_none());
        assert_eq!(load(&mut rate, 200_000, 210_000), free);
    }

    #[test]
    fn any_number_of_signals_leaves_a_rate() {
        let mut rate = LinkRate::default();
        let mut last = load(&mut rate, 0, 9000);
        for micros in (9000..2_000_000).step_by(9000) {
            rate.slow_down(at(micros));
            last = load(&mut rate, micros, micros + 9000);
        }
        assert!(last <= RATE_MIN * 2, "{last}");
        // A limited rate says when it may send again.
        let due = rate.due().expect("more than the burst was sent");
        assert!(rate.may_send(due));
        assert!(load(&mut rate, 2_000_000, 2_005_000) >= RATE_MIN / 2);
    }
}
