//! The applications that message channels are measured with: the three case studies of RB² (section V-C). Each is
//! two objects with a bounded `step`, one for each process.
//!
//! | module | case | one side | the other |
//! |---|---|---|---|
//! | [`flows`] | a network function that measures traffic | [`flows::Tap`] | [`flows::Monitor`] |
//! | [`kv`] | a key-value store under YCSB's workload C | [`kv::Client`] | [`kv::Server`] |
//! | [`http`] | a server of small files | [`http::Client`] | [`http::Server`] |
//! | [`request_response`] | the loops of clients and servers | | |
//!
//! They run over anything that has [`MessageSender`](headworks::ring::MessageSender) and
//! [`MessageReceiver`](headworks::ring::MessageReceiver) ends. The ends are handed to each step, so a message costs
//! no dynamic dispatch. Except for [`flows::Capture::read`] none of them waits, reads a clock or does I/O. Each
//! checks what it receives; a wrong message is an error.

pub mod flows;
pub mod http;
pub mod kv;
pub mod request_response;

use headworks::ring::{RingError, SendError};

use crate::error::{Result, WorkloadError};

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepProgress {
    /// Something was sent or received; call the next step at once.
    Worked,
    /// Nothing could be done before the other side does something.
    Idle,
    /// Everything is done, and everything sent is on its way. Further steps do no harm, and are needed where the
    /// other side still needs this one's channels served.
    Done,
}

impl StepProgress {
    /// Of a step that sent and received so many messages.
    #[inline]
    fn of(messages: usize) -> Self {
        match messages {
            0 => Self::Idle,
            _ => Self::Worked,
        }
    }
}

/// The peer sent something that is no `what`.
#[cold]
fn malformed(what: &str, message: &[u8]) -> WorkloadError {
    let len = message.len();
    WorkloadError(format!("a message of {len} bytes is no {what}"))
}

/// The response to request `number`, counted from 0, is wrong.
#[cold]
fn wrong(number: u64, what: &str) -> WorkloadError {
    WorkloadError(format!("the response to request {number} is wrong: {what}"))
}

/// Checks that the number of a message is the one that is due: nothing was lost, doubled, or overtaken.
#[inline]
fn in_order(what: &str, found: u64, expected: u64) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => {
            let text = format!("{what} {found} came where {expected} was due");
            Err(WorkloadError(text))
        }
    }
}

/// Writes little-endian words, one behind the other.
#[inline(always)]
fn put(words: &[u64], to: &mut [u8]) {
    for (to, word) in to.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// The `N` little-endian words that a message consists of; `None` if its length is another.
#[inline(always)]
fn words<const N: usize>(message: &[u8]) -> Option<[u64; N]> {
    let (words, []) = message.as_chunks() else {
        return None;
    };
    let words: &[[u8; 8]; N] = words.try_into().ok()?;
    Some(words.map(u64::from_le_bytes))
}

/// Whether there was room for a message.
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
