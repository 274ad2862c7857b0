//! Totals of what queue pairs and completion queues have done, for devices that count.
//!
//! Counters only grow. They start at zero when their object is made, and a queue pair's RESET does not clear
//! them. Two counters that are read one after the other, while the object is in use, may disagree by a few
//! requests.

/// Totals of a queue pair since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpCounters {
    /// Send requests posted.
    pub sends_posted: u64,
    /// Send requests that no longer occupy the send queue: a completion that covers them was polled.
    pub sends_retired: u64,
    /// Payload bytes that its SENDs and WRITEs carried to the peer.
    pub sent_bytes: u64,
    /// Payload bytes that its READs and atomics returned.
    pub read_bytes: u64,
    /// Receives posted to its own queue; always 0 with an SRQ.
    pub receives_posted: u64,
    /// Receives that no longer occupy its own queue.
    pub receives_retired: u64,
    /// Messages received: successful completions of receives that were polled, including those of an SRQ.
    pub received: u64,
    /// Payload bytes of the messages received.
    pub received_bytes: u64,
    /// Tries of its requests for which the peer had no receive posted (RNR).
    pub rnr: u64,
    /// Polled completions, of sends and receives, with an error other than flushed.
    pub errors: u64,
    /// Polled completions that were flushed.
    pub flushed: u64,
    /// Asynchronous events raised.
    pub events: u64,
}

impl QpCounters {
    /// Send requests that occupy the send queue now.
    pub fn sends_outstanding(&self) -> u64 {
        self.sends_posted.saturating_sub(self.sends_retired)
    }

    /// Receives that occupy its own receive queue now.
    pub fn receives_outstanding(&self) -> u64 {
        self.receives_posted.saturating_sub(self.receives_retired)
    }
}

/// Totals of a completion queue since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CqCounters {
    /// Completions polled.
    pub polled: u64,
    /// Completions waiting to be polled now. This is a level, not a total.
    pub unpolled: u64,
    /// Events put into its completion channel.
    pub events: u64,
    /// Whether a completion found the queue full. The queue is then unusable.
    pub overrun: bool,
}

impl CqCounters {
    /// Completions that arrived, polled or not.
    pub fn pushed(&self) -> u64 {
        self.polled.saturating_add(self.unpolled)
    }
}
