//! The applications that message channels are measured with: the three case studies of RB² (section V-C).
//! Each is two objects with a bounded `step`, one for each process.
//!
//! | module | case | one side | the other |
//! |---|---|---|---|
//! | [`flows`] | a network function that measures traffic | [`flows::Tap`] | [`flows::Monitor`] |
//! | [`kv`] | a key-value store under YCSB's workload C | [`kv::Client`] | [`kv::Server`] |
//! | [`http`] | a server of small files | [`http::Client`] | [`http::Server`] |
//! | [`request_response`] | the loops of clients and servers | | |
//!
//! They run over anything that has [`MessageSender`](headworks::ring::MessageSender) and
//! [`MessageReceiver`](headworks::ring::MessageReceiver) ends. The ends are handed to each step, so a message
//! costs no dynamic dispatch. Except for [`flows::Capture::read`] none of them waits, reads a clock or does
//! I/O. Each checks what it receives; a wrong message is an error.

pub mod flows;
pub mod http;
pub mod kv;
pub mod request_response;

use headworks::ring::{RingError, SendError};

use crate::error::{Result, WorkloadError};

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepProgress {
    /// Something was sent or received; call the next step at once.
    Worked,
    /// Nothing could be done before the other side does something.
    Idle,
    /// Everything is done, and everything sent is on its way. Further steps do no harm. They are needed as
    /// long as the other side needs this side's channels served.
    Done,
}

impl StepProgress {
    /// Outcome of a step that sent and received `messages` messages.
    #[inline]
    fn of(messages: usize) -> Self {
        match messages {
            0 => Self::Idle,
            _ => Self::Worked,
        }
    }
}

/// Error: the peer sent a message that is not a `what`.
#[cold]
fn malformed(what: &str, message: &[u8]) -> WorkloadError {
    let len = message.len();
    WorkloadError(format!("a message of {len} bytes is not a {what}"))
}

/// Error: the response to request `number`, counted from 0, is wrong.
#[cold]
fn wrong(number: u64, what: &str) -> WorkloadError {
    WorkloadError(format!("the response to request {number} is wrong: {what}"))
}

/// Checks that `found` is the expected message number: nothing was lost, duplicated or reordered.
#[inline]
fn in_order(what: &str, found: u64, expected: u64) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => {
            let text = format!("expected {what} {expected}, received {what} {found}");
            Err(WorkloadError(text))
        }
    }
}

/// Writes consecutive little-endian words.
#[inline(always)]
fn put(words: &[u64], to: &mut [u8]) {
    for (to, word) in to.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads a message of exactly `N` little-endian words; `None` if it has another length.
#[inline(always)]
fn words<const N: usize>(message: &[u8]) -> Option<[u64; N]> {
    let (words, []) = message.as_chunks() else {
        return None;
    };
    let words: &[[u8; 8]; N] = words.try_into().ok()?;
    Some(words.map(u64::from_le_bytes))
}

/// Returns whether there was room for the message.
#[inline]
fn room(sent: Result<(), SendError>) -> Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(error) => Err(WorkloadError(error.to_string())),
    }
}

impl From<RingError> for WorkloadError {
    fn from(why: RingError) -> Self {
        Self(why.to_string())
    }
}

#[cfg(test)]
mod tests;
