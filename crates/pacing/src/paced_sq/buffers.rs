//! Memory that is kept from call to call, so that calls allocate nothing.

use headworks_verbs::{Completion, Sge};

use super::{BATCH, CHAIN};
use crate::request_queue::RequestQueue;

/// Most request queues that are kept for reuse when queue pairs are reset or go.
const KEPT: usize = 64;

/// Memory for reuse. Nothing in it has a meaning between calls.
pub(super) struct Buffers {
    /// Cleared request queues, no more than [`KEPT`].
    #[expect(clippy::vec_box, reason = "queue pairs get them as they are")]
    queues: Vec<Box<RequestQueue>>,
    /// Gather entries and inline bytes of the requests of one doorbell.
    pub(super) payloads: (Vec<Sge>, Vec<u8>),
    /// Room for [`BATCH`] completions of the device.
    pub(super) completions: Vec<Completion>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            payloads: (Vec::with_capacity(4 * CHAIN), Vec::new()),
            completions: vec![Completion::default(); BATCH],
        }
    }
}

impl Buffers {
    /// Returns an empty request queue.
    pub(super) fn queue(&mut self) -> Box<RequestQueue> {
        self.queues.pop().unwrap_or_default()
    }

    /// Keeps a request queue for reuse.
    pub(super) fn keep_queue(&mut self, mut queue: Box<RequestQueue>) {
        if self.queues.len() < KEPT {
            queue.clear();
            self.queues.push(queue);
        }
    }
}
