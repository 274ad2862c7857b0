//! One receiving thread and many rings: the pair of actors of the experiment `ring-fanin`.
//!
//! The receiver starts the phases one by one. In each phase the sender does one thing until it is told to
//! stop. It then mails how many messages it sent, so that all of them are received before the next phase.

mod receiver;
mod sender;

use headworks::ring::RingConfig;
use headworks_runtime::Actor;
use serde::{Deserialize, Serialize};

use crate::actor_pair::PairContext;
use crate::actor_pair::Role;
use crate::error::{Result, WorkloadError};
pub use crate::report::PhaseResult;

/// Length of a message, in bytes.
pub const SIZE: usize = 64;
/// Number of slots of a ring.
pub const SLOTS: u32 = 128;
/// Maximum number of messages that a saturating sender puts into a ring before it goes on to the next ring.
/// The receiver takes at most the same number from a ring in a row.
pub const BURST: u32 = 32;

/// How the receiving ends check for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RingLayout {
    /// One group: the tails are packed in its tail array.
    Group,
    /// Separate receivers, each with a cache line of its own for its tail, checked one after the other.
    Separate,
}

/// Load that the sender offers while the receiver counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaninLoad {
    /// Sends nothing: the receiver counts the checks that find no message.
    Idle,
    /// Sends to every ring in turn as many messages as there is room for, at most [`BURST`].
    All,
    /// Sends such bursts to one ring only.
    One,
    /// Sends bursts to one ring, and after each burst one message to one of the other rings, published at
    /// once.
    Flood,
}

impl FaninLoad {
    /// All loads, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::Idle, Self::All, Self::One, Self::Flood];
}

/// One point to measure; both actors receive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaninTask {
    /// Number of rings.
    pub rings: usize,
    /// How messages are received.
    pub ends: RingLayout,
    /// Measured time of each phase, in nanoseconds.
    pub run_ns: u64,
    /// Warm-up time before that, in nanoseconds.
    pub warm_ns: u64,
}

/// Returns the configuration of every ring: that of the papers.
fn config() -> RingConfig {
    RingConfig::fixed(SLOTS, SIZE)
}

/// Makes the actor of `task` for the pair's role.
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
                // At least the checks that found nothing are counted, however busy the machine is.
                assert!(phases[0].count > 0);
                assert!(rings > 1 || phases[3].shares.is_none());
            }
        }
    }
}
