//! Counts of the objects of a network.

use std::sync::Arc;

use super::Model;

/// Numbers of objects that exist in a network. An actor's
/// objects go when it ends, so any that remain then are leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Completion channels.
    pub completion_channels: usize,
    /// Shared receive queues.
    pub shared_receive_queues: usize,
    /// Registered regions.
    pub regions: usize,
    /// Address handles.
    pub address_handles: usize,
    /// Packets under way; those that travel together count once.
    pub packets: usize,
}

impl ObjectCounts {
    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Model {
    /// Counts the objects that exist now.
    pub(crate) fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            queue_pairs: self.qps.iter().filter(|(_, qp)| qp.is_some()).count(),
            completion_queues: self.cqs.iter().flatten().count(),
            completion_channels: Arc::strong_count(&self.channels) - 1,
            shared_receive_queues: self.srqs.iter().flatten().count(),
            regions: self.regions.len(),
            address_handles: self.handles.len(),
            packets: self.pieces.len(),
        }
    }
}
