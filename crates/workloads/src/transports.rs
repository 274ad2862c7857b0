//! Transports of messages: one file per kind of transport, and the workloads that drive them.
//!
//! An arm is one end of a channel of messages of one size, two-way where the workload sends
//! something back. It never waits unless its [`Waiting`](job::Waiting) says that it blocks.
//! Workloads are generic over it, so that a message costs no dynamic dispatch: one step of an actor
//! moves a batch.

pub mod bare_ring;
mod buffer;
pub mod byte_stream;
pub mod channel_designs;
pub mod channel_names;
pub mod channel_pair;
pub mod cpu_cost;
pub mod job;
pub mod machine_limits;
pub mod message_contents;
#[cfg(test)]
mod mock_channel;
pub mod one_way;
pub mod ping_pong;
pub mod transport_actor;
pub mod verbs_connect;

pub use crate::error::{Result, WorkloadError};

/// How an arm works, so that a reader can judge the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmNote {
    /// Its name in the points.
    pub name: String,
    /// Text of the note.
    pub what: String,
    /// Whether both sides poll or block.
    pub waiting: &'static str,
    /// How often a message's bytes are copied on the way.
    pub copies: String,
}

/// Writes the contents of messages.
pub trait MessageSource {
    /// Writes one message.
    fn fill(&mut self, message: &mut [u8]);
    /// The message that was written last could not be sent: the next is to be the same.
    fn again(&mut self);
}

/// Reads the contents of messages.
pub trait MessageSink {
    /// Reads one message.
    fn take(&mut self, message: &[u8]);
}

/// What [`MessageTransport::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// So many messages; 0 for none at the moment.
    Messages(usize),
    /// The other end has finished and everything was taken.
    Ended,
}

/// One end of a channel.
pub trait MessageTransport {
    /// The processor time that its messages cost; `None` where time is not virtual.
    fn price(&self) -> Option<cpu_cost::MessageCost> {
        None
    }

    /// Hands over at most `n` messages, each filled by `fill`; answers how many it accepted.
    fn offer<F: MessageSource>(&mut self, n: usize, fill: &mut F) -> Result<usize>;

    /// Takes at most `max` messages.
    fn take<S: MessageSink>(&mut self, max: usize, sink: &mut S) -> Result<TakeResult>;

    /// Puts what was accepted on its way; answers whether all of it is. Called when the sender
    /// has nothing more to send at the moment, so it must be cheap when there is nothing to do.
    fn flush(&mut self) -> Result<bool>;

    /// Nothing more will be offered; everything was flushed.
    fn finish(&mut self) -> Result<()>;
}
