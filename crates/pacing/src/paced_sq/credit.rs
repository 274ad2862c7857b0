//! Credit: how much may be posted now. It limits either the rate or the bytes in flight.

use std::sync::Arc;

use headworks_verbs::Instant;

use crate::config::PacingConfig;
use crate::rate_feedback::{LazyClock, RateFeedback};
use crate::shared_state::ShareMember;
use crate::token_bucket::TokenBucket;

/// The credit of one completion queue, and the feedback that it depends on.
///
/// A request is paid for before it is posted. What is paid for and not posted after all is given back
/// ([`unpay`](Self::unpay)).
pub(super) struct Credit {
    config: Arc<PacingConfig>,
    /// The line rate of `config`, in bytes per second.
    line_rate: u64,
    /// Bytes that a request costs beyond its own.
    overhead: u64,
    /// Whether pacing limits the bytes in flight instead of the rate. Never changes.
    limits_flight: bool,
    /// What may be posted at this rate. Unused if the bytes in flight are limited.
    bucket: TokenBucket,
    /// Delays of completions, from which the shared rate and the limit of bytes in flight follow. It counts the
    /// bytes in flight; unless they are limited, only those of broken queue pairs.
    pub(super) feedback: RateFeedback,
    /// This completion queue's row in the shared state.
    pub(super) member: ShareMember,
}

impl Credit {
    pub(super) fn new(
        config: Arc<PacingConfig>,
        feedback: RateFeedback,
        member: ShareMember,
    ) -> Self {
        Self {
            line_rate: config.line_rate(),
            overhead: config.overhead_bytes,
            limits_flight: config.window,
            bucket: TokenBucket::default(),
            feedback,
            member,
            config,
        }
    }

    /// Reads the clock.
    pub(super) fn now(&self) -> Instant {
        self.feedback.now()
    }

    /// Whether the bytes in flight are limited instead of the rate.
    #[inline]
    pub(super) fn limits_flight(&self) -> bool {
        self.limits_flight
    }

    /// Whether the rate, as of the last booking, is below the line rate.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.bucket.is_limited(self.line_rate)
    }

    /// Returns when credit may be available again, if that takes time and not completions.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.limits_flight).then(|| self.bucket.due())
    }

    /// Whether credit may be available.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.limits_flight || now >= self.bucket.due()
    }

    /// Bytes that a request of `len` bytes costs.
    #[inline]
    pub(super) fn cost(&self, len: u64) -> u64 {
        len + self.overhead
    }

    /// Bytes that a request costs beyond its own.
    pub(super) fn overhead(&self) -> u64 {
        self.overhead
    }

    /// Pays for a request of `len` bytes if it may be posted now. Returns whether it may.
    #[inline]
    pub(super) fn pay(&mut self, len: u64, now: &mut LazyClock) -> bool {
        let cost = self.cost(len);
        if self.limits_flight {
            return self.feedback.admits(cost, &self.member);
        }
        self.pay_from_bucket(cost) || self.pay_anew(cost, now)
    }

    /// Pays `cost` bytes from the credit that is left, if the rate is limited. Returns whether it sufficed.
    #[inline]
    pub(super) fn pay_from_bucket(&mut self, cost: u64) -> bool {
        self.bucket.pay(cost)
    }

    /// Pays `cost` bytes with new credit if that is due. Returns whether it did.
    #[inline]
    pub(super) fn pay_anew(&mut self, cost: u64, now: &mut LazyClock) -> bool {
        let now = now.get(&self.feedback);
        self.bucket.pay_anew(cost, &self.member, &self.config, now)
    }

    /// Returns what was paid for a request of `len` bytes that was not posted.
    pub(super) fn unpay(&mut self, len: u64) {
        let cost = self.cost(len);
        match self.limits_flight {
            true => self.feedback.gone(cost),
            false => self.bucket.give_back(cost),
        }
    }

    /// Grants credit for a request of `len` bytes before it is due, to be paid back later.
    pub(super) fn borrow(&mut self, len: u64) {
        let cost = self.cost(len);
        self.bucket.borrow(cost);
    }
}
