//! A receiving end of a group that is not connected yet.

use headworks_verbs::QueuePair;
use headworks_verbs::bringup::ConnectionParams;

use super::tail_array::TailWordClaim;
use crate::setup::GroupReceiverSetup;

/// A receiving end of a group that is not connected yet. Dropping it frees its word of the tail array.
pub struct Membership {
    // Dropped before the claim: the queue pair must be gone before another ring may use the word.
    pub(super) end: GroupReceiverSetup,
    pub(super) claim: TailWordClaim,
}

impl Membership {
    /// Returns the payload that the bring-up must hand to the other end.
    pub fn greeting(&self) -> Vec<u8> {
        self.end.greeting()
    }

    /// The queue pair to bring up.
    pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
        self.end.queue_pair()
    }

    /// Connection parameters for the bring-up.
    pub fn connection_params(&self) -> ConnectionParams {
        ConnectionParams::default()
    }
}
