//! What a group that receives is made from.

use crate::config::RingConfig;

/// Default of [`GroupConfig::quantum`].
pub(super) const QUANTUM: u32 = 32;

/// What a group that receives is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// The configuration of its rings, which is the same for all of them. [`Mode::Poll`](crate::Mode::Poll)
    /// or [`Mode::Notify`](crate::Mode::Notify): a ring in latency mode has no tail.
    pub ring: RingConfig,
    /// Rings it has at most. Each takes its array, a queue pair and 8 bytes of the board; what
    /// they share is made for as many at once: completions for all of them.
    pub capacity: usize,
    /// Messages that one ring's turn gives at most, at least 1. More make a look at the board
    /// cheaper for each, and let the other rings wait longer. Default 32.
    pub quantum: u32,
}

impl GroupConfig {
    /// For up to `capacity` such rings.
    pub fn new(ring: RingConfig, capacity: usize) -> Self {
        Self {
            ring,
            capacity,
            quantum: QUANTUM,
        }
    }
}
