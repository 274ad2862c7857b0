//! Transports of messages, one file per kind, and the workloads that drive them.
//!
//! An arm is one end of a channel of messages of one size, two-way where the workload sends something back.
//! It never waits unless its [`Waiting`](job::Waiting) says that it blocks. Workloads are generic over it, so
//! a message costs no dynamic dispatch: one step of an actor moves a batch.

pub mod bare_ring;
mod buffer;
pub mod channel_designs;
pub mod channel_names;
pub mod channel_pair;
pub mod cpu_cost;
pub mod job;
pub mod kernel_byte_stream;
pub mod machine_limits;
pub mod message_contents;
#[cfg(test)]
mod mock_channel;
pub mod one_way;
pub mod ping_pong;
pub mod transport_actor;
pub mod verbs_connect;

pub use crate::error::{Result, WorkloadError};

/// Description of an arm, so that a reader can judge the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmNote {
    /// The arm's name in the points.
    pub name: String,
    /// Text of the note.
    pub what: String,
    /// How both sides wait: they poll, or they block.
    pub waiting: &'static str,
    /// How often a message's bytes are copied on the way.
    pub copies: String,
}

/// Writes the contents of messages.
pub trait MessageSource {
    /// Writes one message.
    fn fill(&mut self, message: &mut [u8]);
    /// Notes that the last message written could not be sent: the next one must be the same.
    fn again(&mut self);
}

/// Reads the contents of messages.
pub trait MessageSink {
    /// Reads one message.
    fn take(&mut self, message: &[u8]);
}

/// Result of [`MessageTransport::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// Number of messages taken; 0 if there is none at the moment.
    Messages(usize),
    /// The other end has finished and everything was taken.
    Ended,
}

/// One end of a channel.
pub trait MessageTransport {
    /// Returns the processor time that its messages cost; `None` where time is real.
    fn price(&self) -> Option<cpu_cost::MessageCost> {
        None
    }

    /// Offers at most `n` messages, each written by `fill`. Returns how many it accepted.
    fn offer<F: MessageSource>(&mut self, n: usize, fill: &mut F) -> Result<usize>;

    /// Takes at most `max` messages.
    fn take<S: MessageSink>(&mut self, max: usize, sink: &mut S) -> Result<TakeResult>;

    /// Sends what was accepted. Returns whether all of it is on its way. Called when the sender has nothing
    /// more to send at the moment, so it must be cheap when there is nothing to do.
    fn flush(&mut self) -> Result<bool>;

    /// Ends the sending: nothing more will be offered, and everything was flushed.
    fn finish(&mut self) -> Result<()>;
}
