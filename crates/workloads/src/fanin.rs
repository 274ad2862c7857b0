//! One receiving thread and many rings: the pair of parts of the experiment `ring-fanin`.
//!
//! The receiver calls the phases one by one; in each the sender does one thing until it is told to
//! stop, and then says how much it sent, so that everything is received before the next.

mod receiver;
mod sender;

use headworks::ring::RingConfig;
use headworks_runtime::Actor;
use serde::{Deserialize, Serialize};

use crate::actor_pair::PairContext;
use crate::actor_pair::Role;
use crate::error::{Result, WorkloadError};
pub use crate::report::PhaseResult;

/// Bytes of a message.
pub const SIZE: usize = 64;
/// Slots of a ring.
pub const SLOTS: u32 = 128;
/// Messages that a saturating sender puts into a ring, and that the receiver takes from one, at most, before
/// it goes on to the next.
pub const BURST: u32 = 32;

/// How the receiving ends look for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RingLayout {
    /// One group: tails packed on its board.
    Group,
    /// Receivers by themselves, each with a tail's line of its own, asked one after the other.
    Separate,
}

/// What the senders do while the receiver counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaninLoad {
    /// Nothing: what is counted are looks in vain.
    Idle,
    /// Every ring in turn gets as many messages as there is room for, at most [`BURST`].
    All,
    /// One ring does, again and again.
    One,
    /// One ring does, and after each of its bursts another of the rest gets one message, published at once.
    Flood,
}

impl FaninLoad {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::Idle, Self::All, Self::One, Self::Flood];
}

/// One point to measure, as told to both parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaninTask {
    /// How many rings.
    pub rings: usize,
    /// How they are received from.
    pub ends: RingLayout,
    /// Measured time of each phase.
    pub run_ns: u64,
    /// Time before that, not measured.
    pub warm_ns: u64,
}

/// The configuration of every ring: the papers'.
fn config() -> RingConfig {
    RingConfig::fixed(SLOTS, SIZE)
}

/// The actor of `task` that has the pair's role.
pub fn actor(task: &FaninTask, pair: &PairContext) -> Result<Box<dyn Actor>> {
    match pair.role {
        Role::Sender => sender::actor(task, pair),
        Role::Receiver => receiver::actor(task, pair),
    }
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("ring", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor_pair::testing::run_both;
    use crate::report::Report;

    #[test]
    fn every_load_is_received_from_any_number_of_rings() {
        for ends in [RingLayout::Group, RingLayout::Separate] {
            for rings in [1, 3, 40] {
                let task = FaninTask {
                    rings,
                    ends,
                    run_ns: 2_000_000,
                    warm_ns: 200_000,
                };
                let [_, got] = run_both(move |pair| actor(&task, pair), "");
                let Report::Phases(phases) = got else {
                    panic!("{got:?}");
                };
                assert_eq!(phases.len(), FaninLoad::ALL.len());
                assert!(phases.iter().all(|phase| phase.nanos > 0), "{phases:?}");
                // Looks at least are counted, however busy the machine is.
                assert!(phases[0].count > 0);
                assert!(rings > 1 || phases[3].shares.is_none());
            }
        }
    }
}
