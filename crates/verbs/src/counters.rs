//! What queue pairs and completion queues have done so far, where a device counts it.
//!
//! Counters only grow, and begin at zero when their object is made; a queue pair's RESET does not
//! clear them. Two of them, read one after the other while the object is in use, need not fit each
//! other to the last request.

/// What a queue pair has done, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpCounters {
    /// Send requests posted.
    pub sends_posted: u64,
    /// Send requests that need no room in the send queue any more: a completion that covers them
    /// was polled.
    pub sends_retired: u64,
    /// Payload bytes that its SENDs and WRITEs took to the peer.
    pub sent_bytes: u64,
    /// Payload bytes that its READs and atomics brought back.
    pub read_bytes: u64,
    /// Receives posted to its own queue; with an SRQ there are none.
    pub receives_posted: u64,
    /// Those of them that need no room any more.
    pub receives_retired: u64,
    /// Messages received: polled, successful completions of receives, an SRQ's included.
    pub received: u64,
    /// Their payload bytes.
    pub received_bytes: u64,
    /// Tries of its requests that found no receive at the peer (RNR).
    pub rnr: u64,
    /// Polled completions, of sends and receives, with an error other than flushed.
    pub errors: u64,
    /// Polled completions that were flushed.
    pub flushed: u64,
    /// Asynchronous events raised.
    pub events: u64,
}

impl QpCounters {
    /// Send requests that take room in the send queue.
    pub fn sends_outstanding(&self) -> u64 {
        self.sends_posted.saturating_sub(self.sends_retired)
    }

    /// Receives that take room in its own receive queue.
    pub fn receives_outstanding(&self) -> u64 {
        self.receives_posted.saturating_sub(self.receives_retired)
    }
}

/// What a completion queue has seen, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CqCounters {
    /// Completions polled.
    pub polled: u64,
    /// Completions that wait to be polled: no sum, but now.
    pub unpolled: u64,
    /// Events put into its completion channel.
    pub events: u64,
    /// A completion found no room, and the queue is broken for good.
    pub overrun: bool,
}

impl CqCounters {
    /// Completions that came.
    pub fn pushed(&self) -> u64 {
        self.polled.saturating_add(self.unpolled)
    }
}
