//! The escape controller: what to do when the pool runs short (section 4.3, Algorithm 1). Pure.
//!
//! ```text
//! available < cache_safe     replace stragglers by ordinary memory, while less than mem_esc is replaced;
//!                            else copy out the data of applications whose stragglers exceed credit
//! available < cache_danger   stop admitting, and then signal the senders to slow down
//! ```
//!
//! # Differences from the paper
//!
//! - The paper names four of its five parameters and states no value of any. The fifth is the straggler time. All
//!   values are ours.
//! - In the listing the test of `CACHE_DANGER` is inside the branch that copies. Here it stands alone: the pool may be
//!   in danger while stragglers are still being replaced.
//! - An action ends at a level that is higher than the one at which it begins (hysteresis), so that a level that
//!   hovers about a threshold does not turn the action on and off.
//! - Before the senders are signalled, nothing more is admitted. That alone often helps, and costs the senders
//!   nothing.
//! - Signals have a least distance in time.

use headworks_verbs::{Duration, Instant};

use crate::config::EscapeConfig;

/// Actions that the pool must take now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeDecision {
    /// How the pool gets memory back.
    pub relief: Relief,
    /// Whether no transfer may be admitted and no receive promised.
    pub stops_admission: bool,
    /// Whether the senders are to be signalled, once.
    pub signals: bool,
}

/// How the pool gets memory back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relief {
    /// The pool has enough.
    #[default]
    None,
    /// Replace stragglers by ordinary memory, of at most this many units.
    Replace(u32),
    /// Copy out what slow applications hold: those for which [`EscapeController::is_slow`].
    Copy,
}

/// Decides what to do, from the level of the pool and the time.
#[derive(Clone, Debug)]
pub struct EscapeController {
    config: EscapeConfig,
    is_short: bool,
    is_in_danger: bool,
    /// The earliest time of the next signal.
    signal_from: Instant,
}

impl EscapeController {
    /// Makes a controller of a pool that is empty.
    pub fn new(config: EscapeConfig) -> Self {
        Self {
            config,
            is_short: false,
            is_in_danger: false,
            signal_from: Instant::ZERO,
        }
    }

    /// Decides, where `available` units of the pool are free and `replaced` units are replaced. Call it when the level
    /// has fallen, and again while a decision asks for something.
    pub fn decide(&mut self, available: u32, replaced: u32, now: Instant) -> EscapeDecision {
        let config = &self.config;
        let margin = config.margin_units;
        self.is_short = is_below(self.is_short, available, config.cache_safe_units, margin);
        let was_in_danger = self.is_in_danger;
        self.is_in_danger = is_below(was_in_danger, available, config.cache_danger_units, margin);
        let relief = match config.mem_esc_units.saturating_sub(replaced) {
            _ if !self.is_short => Relief::None,
            0 => Relief::Copy,
            left => Relief::Replace(left),
        };
        if self.is_in_danger && !was_in_danger {
            // Admission stops first. It takes effect within the distance of two signals.
            let from = now + config.signal_interval;
            self.signal_from = self.signal_from.max(from);
        }
        let signals = self.is_in_danger && now >= self.signal_from;
        if signals {
            self.signal_from = now + config.signal_interval;
        }
        EscapeDecision {
            relief,
            stops_admission: self.is_in_danger,
            signals,
        }
    }

    /// Whether an application releases slowly: stragglers are more than the configured part of what it holds. Count no
    /// extents that were replaced: they do not make the pool short.
    pub fn is_slow(&self, stragglers: u32, held: u32) -> bool {
        u64::from(stragglers) * 100 > u64::from(held) * u64::from(self.config.credit)
    }

    /// Whether the pool is short.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether the pool is in danger.
    pub fn is_in_danger(&self) -> bool {
        self.is_in_danger
    }

    /// Returns when [`decide`](Self::decide) must be called for the next signal.
    pub fn deadline(&self) -> Option<Instant> {
        self.is_in_danger.then_some(self.signal_from)
    }

    /// Returns how many units must be free for the pool to be short no more.
    pub fn target(&self) -> u32 {
        self.config
            .cache_safe_units
            .saturating_add(self.config.margin_units)
    }

    /// Returns how long an extent may be held before it counts as a straggler.
    pub fn straggler_time(&self) -> Duration {
        self.config.straggler_time
    }
}

/// Whether a level is below a threshold, if it `was`: it is no longer when it has risen by `margin` above the
/// threshold.
fn is_below(was: bool, level: u32, threshold: u32, margin: u32) -> bool {
    match was {
        true => level < threshold.saturating_add(margin),
        false => level < threshold,
    }
}

#[cfg(test)]
#[path = "escape/tests.rs"]
mod tests;
