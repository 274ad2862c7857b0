//! What messages travel through: one file per arm, and the workloads that drive them.
//!
//! An arm is one end of a channel of messages of one size, two-way where the workload sends
//! something back. It never waits unless its [`Waiting`](job::Waiting) says that it blocks.
//! Workloads are generic over it, so that a message costs no dynamic dispatch: one step of a part
//! moves a batch.

pub mod bare;
pub mod connect;
pub mod cpu_cost;
pub mod designs;
#[cfg(test)]
pub(crate) mod desk;
pub mod job;
pub mod load;
pub mod local;
pub mod message;
pub mod names;
pub mod part;
pub mod ping;
pub mod rate;
pub mod rings;
pub mod stream;
pub mod verbs;

use headworks::verbs::{Duration, Instant};

/// An arm cannot go on; the text is one clear line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ArmError(pub String);

impl ArmError {
    /// With what was being done in front of the cause.
    pub fn at(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl From<headworks_baselines::EndError> for ArmError {
    fn from(why: headworks_baselines::EndError) -> Self {
        Self(why.to_string())
    }
}

/// How an arm works, so that a reader can judge the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmNote {
    /// Its name in the points.
    pub name: String,
    /// What it is.
    pub what: String,
    /// Whether both sides poll or block.
    pub waiting: &'static str,
    /// How often a message's bytes are copied on the way.
    pub copies: String,
}

/// Writes the contents of messages.
pub trait Fill {
    /// Writes one message.
    fn fill(&mut self, message: &mut [u8]);
    /// The message that was written last could not be sent: the next is to be the same.
    fn again(&mut self);
}

/// Reads the contents of messages.
pub trait Sink {
    /// Reads one message.
    fn take(&mut self, message: &[u8]);
}

/// What [`Arm::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many messages; 0 for none at the moment.
    Messages(usize),
    /// The other end has finished and everything was taken.
    Ended,
}

/// One end of a channel.
pub trait Arm {
    /// Hands over at most `n` messages, each filled by `fill`; answers how many it accepted.
    fn offer<F: Fill>(&mut self, n: usize, fill: &mut F) -> Result<usize, ArmError>;

    /// Takes at most `max` messages.
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<Taken, ArmError>;

    /// Puts what was accepted on its way; answers whether all of it is. Called when the sender
    /// has nothing more to send at the moment, so it must be cheap when there is nothing to do.
    fn flush(&mut self) -> Result<bool, ArmError>;

    /// Nothing more will be offered; everything was flushed.
    fn finish(&mut self) -> Result<(), ArmError>;
}

/// What a part sees of the world it runs in.
pub trait Env {
    /// The time, on a clock that the parts of one world share.
    fn now(&mut self) -> Instant;
    /// Sends a few bytes to the other part.
    fn mail(&mut self, bytes: &[u8]) -> Result<(), ArmError>;
    /// Bytes from the other part, if there are any.
    fn mailed(&mut self) -> Option<Vec<u8>>;
    /// Computing that takes so long where time is virtual, and what it takes elsewhere.
    fn charge(&mut self, _cost: Duration) {}
    /// Bytes that were copied, which takes time where that is virtual.
    fn copied(&mut self, _bytes: u64) {}
    /// What a processor pays for what it does, where time is virtual; `None` elsewhere.
    fn prices(&self) -> Option<cpu_cost::Prices> {
        None
    }
}

/// What a part wants after a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// Another step at once.
    Again,
    /// It waits for the other part; another step soon.
    Wait,
    /// It has nothing to do before the other part's mail comes, and takes no time of the processor's until then, nor of one
    /// that shares a core with it.
    Idle,
    /// It reports this and goes on.
    Report(job::Report),
    /// It is finished and reports this.
    Done(job::Report),
}

/// One workload's end: what runs over a connected arm.
pub trait Drive<A: Arm> {
    /// A bounded piece of work.
    fn step(&mut self, arm: &mut A, env: &mut dyn Env) -> Result<Turn, ArmError>;

    /// Messages that it sent or took, ever.
    fn moved(&self) -> u64;
}
