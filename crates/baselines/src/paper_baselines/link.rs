//! One end on its device: the ring's endpoint, two completion queues, this end's memory and where the
//! peer's is.

use headworks_ring::RingError;
use headworks_ring::endpoint::{ChainPosted, Endpoint, RECEIVE_CHAIN};
use headworks_verbs::{Promises, RemoteAddr, SendWr};

use crate::{End, Memory};

/// Receives that were used are posted again in chains of this length: a sender has to leave that many
/// and one unused.
pub(super) const RECEIVES: u64 = RECEIVE_CHAIN;

/// What an end works with once it is connected.
pub struct ConnectedEnd {
    // The queue pair goes before the memory: a peer then finds nobody, not a key that is refused.
    endpoint: Endpoint,
    end: End,
    pub(super) memory: Memory,
    /// The peer's memory.
    pub(super) peer: RemoteAddr,
}

impl ConnectedEnd {
    pub(super) fn new(endpoint: Endpoint, end: End, memory: Memory, peer: RemoteAddr) -> Self {
        Self {
            endpoint,
            end,
            memory,
            peer,
        }
    }

    /// Posts a chain.
    #[inline(always)]
    pub(super) fn post(&mut self, chain: &[SendWr<'_>]) -> Result<ChainPosted, RingError> {
        self.endpoint.post(chain)
    }

    /// Shows the `wr_id` of every send request that completed to `each`.
    #[inline]
    pub(super) fn poll_sends(&mut self, each: impl FnMut(u64)) -> Result<(), RingError> {
        self.endpoint.poll_sends(&*self.end.send_cq, each)
    }

    /// Shows the immediate of every receive that completed to `each`, and posts those that were used
    /// again, [`RECEIVES`] at a time.
    #[inline]
    pub(super) fn poll_receives(&mut self, each: impl FnMut(u32)) -> Result<(), RingError> {
        self.endpoint.poll_receives(&*self.end.recv_cq, each)
    }

    /// An error unless the queue pair still works.
    pub(super) fn check(&self) -> Result<(), RingError> {
        self.endpoint.check()
    }

    /// What the device promises.
    pub(super) fn promises(&self) -> &Promises {
        &self.end.device.info().promises
    }

    /// Requests that may be outstanding.
    pub(super) fn depth(&self) -> u64 {
        self.endpoint.depth()
    }
}
