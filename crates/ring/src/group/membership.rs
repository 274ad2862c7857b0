//! A receiving end of a group that is not connected yet.

use headworks_verbs::QueuePair;
use headworks_verbs::bringup::ConnectionParams;

use super::tail_array::TailWordClaim;
use crate::setup::GroupReceiverSetup;

/// A receiving end of a group that is not connected yet. Its word of the board is free again when it is
/// dropped.
pub struct Membership {
    // The queue pair goes before the word may be another's.
    pub(super) end: GroupReceiverSetup,
    pub(super) claim: TailWordClaim,
}

impl Membership {
    /// What the other end must be handed as the payload of the bring-up.
    pub fn greeting(&self) -> Vec<u8> {
        self.end.greeting()
    }

    /// The queue pair to bring up.
    pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
        self.end.queue_pair()
    }

    /// How it is to be brought up.
    pub fn connection_params(&self) -> ConnectionParams {
        ConnectionParams::default()
    }
}
