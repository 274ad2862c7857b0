//! A connected end on its device: the ring's endpoint, two completion queues, this end's memory and the
//! address of the peer's.

use headworks_ring::RingError;
use headworks_ring::endpoint::{ChainPosted, Endpoint, RECEIVE_CHAIN};
use headworks_verbs::{Promises, RemoteAddr, SendWr};

use crate::{End, WordMemory};

/// Length of the chains in which used receives are posted again. Fewer than this many may be waiting for
/// that, so a receiving end has this many receives beyond those its sender may use.
pub(super) const RECEIVES: u64 = RECEIVE_CHAIN;

/// A connected end: endpoint, device objects, memory and the peer's address.
pub struct ConnectedEnd {
    // Dropped before the memory: the peer must find the queue pair gone, not a key that is refused.
    endpoint: Endpoint,
    end: End,
    pub(super) memory: WordMemory,
    /// Start of the peer's memory.
    pub(super) peer: RemoteAddr,
}

impl ConnectedEnd {
    pub(super) fn new(endpoint: Endpoint, end: End, memory: WordMemory, peer: RemoteAddr) -> Self {
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

    /// Polls send completions and passes the `wr_id` of each to `each`.
    #[inline]
    pub(super) fn poll_sends(&mut self, each: impl FnMut(u64)) -> Result<(), RingError> {
        self.endpoint.poll_sends(&*self.end.send_cq, each)
    }

    /// Polls receive completions, passes the immediate of each to `each`, and posts used receives again in
    /// chains of [`RECEIVES`].
    #[inline]
    pub(super) fn poll_receives(&mut self, each: impl FnMut(u32)) -> Result<(), RingError> {
        self.endpoint.poll_receives(&*self.end.recv_cq, each)
    }

    /// Returns an error if the queue pair no longer works.
    pub(super) fn check(&self) -> Result<(), RingError> {
        self.endpoint.check()
    }

    /// Returns the device's promises.
    pub(super) fn promises(&self) -> &Promises {
        &self.end.device.info().promises
    }

    /// Returns the number of requests that may be outstanding.
    pub(super) fn depth(&self) -> u64 {
        self.endpoint.depth()
    }
}
