//! Configuration of a group that receives.

use crate::config::RingConfig;

/// Default of [`GroupConfig::quantum`].
pub(super) const QUANTUM: u32 = 32;

/// Configuration of a group that receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Configuration of every ring of the group. [`Mode::Poll`](crate::Mode::Poll) or
    /// [`Mode::Notify`](crate::Mode::Notify): a ring in latency mode has no tail.
    pub ring: RingConfig,
    /// Most rings of the group. Each takes its array, a queue pair and 8 bytes of the tail array. The
    /// shared completion queue has room for the completions of all of them.
    pub capacity: usize,
    /// Most messages of one ring's turn, at least 1. A larger quantum spreads the cost of a look at the
    /// tail array over more messages, and lets the other rings wait longer. Default 32.
    pub quantum: u32,
}

impl GroupConfig {
    /// A group of up to `capacity` rings that are configured like `ring`.
    pub fn new(ring: RingConfig, capacity: usize) -> Self {
        Self {
            ring,
            capacity,
            quantum: QUANTUM,
        }
    }
}
