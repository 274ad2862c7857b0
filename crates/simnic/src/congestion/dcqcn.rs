//! DCQCN's reaction point: the rate of one queue pair (Zhu et al., Congestion Control for Large-Scale RDMA
//! Deployments, SIGCOMM 2015, section 3). Pure.
//!
//! A notification (CNP) cuts the rate by half of `alpha`, the estimate of congestion. Without notifications
//! `alpha` decays, and a timer and a byte counter raise the rate again: five steps halfway to the rate before
//! the cut, then beyond it by a fixed step. Timers are worked out when the rate is needed.

use crate::hardware_units::{NEVER, Ps};

/// Constants of the algorithm. Rates are bytes a picosecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DcqcnConstants {
    /// Largest and smallest rate.
    pub(crate) line_rate: f64,
    pub(crate) lowest_rate: f64,
    /// Weight of a notification in `alpha`.
    pub(crate) gain: f64,
    /// Time without notification after which `alpha` decays.
    pub(crate) alpha_time: Ps,
    /// Time and bytes after which the rate rises a step.
    pub(crate) rise_time: Ps,
    pub(crate) rise_bytes: u64,
    /// Step beyond the rate before the cut.
    pub(crate) step: f64,
}

/// Number of steps towards the rate before the cut.
const RECOVERY_STEPS: u32 = 5;

/// Rate of a queue pair that was notified at least once.
#[derive(Clone, Debug)]
pub(crate) struct Dcqcn {
    rate: f64,
    target: f64,
    alpha: f64,
    alpha_due: Ps,
    rise_due: Ps,
    bytes_left: u64,
    /// Steps that the timer and the byte counter made since the last notification.
    steps: (u32, u32),
    /// Earliest time of the next bytes.
    next_at: Ps,
}

impl Dcqcn {
    /// Creates the state of a queue pair that sends at the line rate.
    pub(crate) fn new(constants: &DcqcnConstants) -> Self {
        Self {
            rate: constants.line_rate,
            target: constants.line_rate,
            alpha: 1.0,
            alpha_due: NEVER,
            rise_due: NEVER,
            bytes_left: constants.rise_bytes,
            steps: (0, 0),
            next_at: 0,
        }
    }

    /// Handles a notification.
    pub(crate) fn notify(&mut self, now: Ps, constants: &DcqcnConstants) {
        self.advance(now, constants);
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(constants.lowest_rate);
        self.alpha = (1.0 - constants.gain) * self.alpha + constants.gain;
        self.alpha_due = now + constants.alpha_time;
        self.rise_due = now + constants.rise_time;
        self.bytes_left = constants.rise_bytes;
        self.steps = (0, 0);
    }

    /// Returns the earliest time at which the queue pair may send more, after it sent `bytes` at `now`.
    pub(crate) fn sent(&mut self, now: Ps, bytes: u64, constants: &DcqcnConstants) -> Ps {
        self.advance(now, constants);
        let mut left = bytes;
        while self.is_limited(constants) && left >= self.bytes_left {
            left -= self.bytes_left;
            self.bytes_left = constants.rise_bytes;
            self.steps.1 += 1;
            self.rise(constants);
        }
        self.bytes_left = self.bytes_left.saturating_sub(left).max(1);
        if self.is_limited(constants) {
            let time = (bytes as f64 / self.rate) as Ps;
            self.next_at = self.next_at.max(now).saturating_add(time).min(NEVER);
        }
        self.next_at
    }

    /// Returns the earliest time at which the queue pair may send more.
    pub(crate) fn next_at(&self) -> Ps {
        self.next_at
    }

    /// Returns the rate at `now`, in bytes a picosecond.
    #[cfg(test)]
    pub(crate) fn rate(&mut self, now: Ps, constants: &DcqcnConstants) -> f64 {
        self.advance(now, constants);
        self.rate
    }

    fn is_limited(&self, constants: &DcqcnConstants) -> bool {
        self.rate < constants.line_rate
    }

    /// Runs the timers up to `now`.
    fn advance(&mut self, now: Ps, constants: &DcqcnConstants) {
        while self.alpha_due <= now {
            self.alpha *= 1.0 - constants.gain;
            self.alpha_due += constants.alpha_time;
        }
        while self.rise_due <= now {
            self.rise_due = match self.is_limited(constants) {
                true => self.rise_due + constants.rise_time,
                false => NEVER,
            };
            self.steps.0 += 1;
            self.rise(constants);
        }
    }

    fn rise(&mut self, constants: &DcqcnConstants) {
        if self.steps.0.max(self.steps.1) > RECOVERY_STEPS {
            self.target = (self.target + constants.step).min(constants.line_rate);
        }
        self.rate = (self.rate + self.target) / 2.0;
        if self.target >= constants.line_rate && self.rate > 0.999 * constants.line_rate {
            self.rate = constants.line_rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware_units::NS;
    use proptest::prelude::*;

    const US: Ps = 1000 * NS;

    /// 100 Gbit/s, with the constants of the paper.
    const CONSTANTS: DcqcnConstants = DcqcnConstants {
        line_rate: 0.0125,
        lowest_rate: 0.0125 / 1000.0,
        gain: 1.0 / 256.0,
        alpha_time: 55 * US,
        rise_time: 55 * US,
        rise_bytes: 10_000_000,
        step: 0.000_005,
    };

    #[test]
    fn the_first_notification_halves_the_rate_and_five_steps_bring_it_back() {
        let mut rate = Dcqcn::new(&CONSTANTS);
        assert_eq!(rate.sent(0, 1_000_000, &CONSTANTS), 0, "no limit before");
        rate.notify(US, &CONSTANTS);
        assert_eq!(rate.rate(US, &CONSTANTS), 0.00625);
        let after = rate.rate(US + 5 * 55 * US, &CONSTANTS);
        assert!((after / 0.0125 - 0.984).abs() < 0.001, "{after}");
        let then = rate.rate(1_000_000 * US, &CONSTANTS);
        assert_eq!(then, 0.0125);
    }

    #[test]
    fn bytes_wait_for_the_rate() {
        let mut rate = Dcqcn::new(&CONSTANTS);
        rate.notify(0, &CONSTANTS);
        assert_eq!(rate.sent(0, 6_250, &CONSTANTS), 1_000_000);
        assert_eq!(rate.sent(0, 6_250, &CONSTANTS), 2_000_000);
    }

    #[test]
    fn the_byte_counter_raises_the_rate_as_the_timer_does() {
        let mut rate = Dcqcn::new(&CONSTANTS);
        rate.notify(0, &CONSTANTS);
        rate.sent(0, 10_000_000, &CONSTANTS);
        assert_eq!(rate.rate(0, &CONSTANTS), 0.75 * 0.0125);
    }

    #[test]
    fn alpha_decays_without_notifications_so_that_a_rare_one_cuts_less() {
        let mut rate = Dcqcn::new(&CONSTANTS);
        rate.notify(0, &CONSTANTS);
        let at = 55 * US * 1000;
        rate.notify(at, &CONSTANTS);
        let cut = 1.0 - rate.rate(at, &CONSTANTS) / 0.0125;
        assert!(cut < 0.02, "{cut}");
    }

    proptest! {
        /// Whatever comes when, the rate stays in its bounds, and no bytes are held for ever.
        #[test]
        fn the_rate_stays_in_its_bounds(
            calls in proptest::collection::vec((any::<bool>(), 0u64..200_000_000, 0u64..1_000_000), 1..300),
        ) {
            let (mut rate, mut now) = (Dcqcn::new(&CONSTANTS), 0);
            for (is_notified, later, bytes) in calls {
                now += later;
                match is_notified {
                    true => rate.notify(now, &CONSTANTS),
                    false => {
                        let next = rate.sent(now, bytes, &CONSTANTS);
                        let slowest = bytes as f64 / CONSTANTS.lowest_rate;
                        prop_assert!(next as f64 <= now as f64 + slowest + 300.0 * 1e6 / CONSTANTS.lowest_rate);
                    }
                }
                let found = rate.rate(now, &CONSTANTS);
                prop_assert!((CONSTANTS.lowest_rate..=CONSTANTS.line_rate).contains(&found));
            }
        }
    }
}
