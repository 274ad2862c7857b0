//! The applications that message channels are measured with: the three case studies of RB² (section V-C). Each is
//! two objects with a bounded `step`, one for each process.
//!
//! | module | case | one side | the other |
//! |---|---|---|---|
//! | [`flows`] | a network function that measures traffic | [`flows::Tap`] | [`flows::Monitor`] |
//! | [`kv`] | a key-value store under YCSB's workload C | [`kv::Client`] | [`kv::Server`] |
//! | [`http`] | a server of small files | [`http::Client`] | [`http::Server`] |
//! | [`exchange`] | the loops of clients and servers | | |
//!
//! They run over anything that has [`MessageSender`](headworks::ring::MessageSender) and
//! [`MessageReceiver`](headworks::ring::MessageReceiver) ends. The ends are handed to each step, so a message costs
//! no dynamic dispatch. Except for [`flows::Capture::read`] none of them waits, reads a clock or does I/O. Each
//! checks what it receives; a wrong message is an error.

pub mod exchange;
pub mod flows;
pub mod http;
pub mod kv;

use headworks::ring::{LengthError, RingError, SendError};

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something was sent or received; call the next step at once.
    Worked,
    /// Nothing could be done before the other side does something.
    Idle,
    /// Everything is done, and everything sent is on its way. Further steps do no harm, and are needed where the
    /// other side still needs this one's channels served.
    Done,
}

impl Progress {
    /// Of a step that sent and received so many messages.
    #[inline]
    fn of(messages: usize) -> Self {
        match messages {
            0 => Self::Idle,
            _ => Self::Worked,
        }
    }
}

/// An application cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// A channel broke.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A channel does not take messages of this length.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The peer sent something that is no message of this application.
    #[error("a message of {len} bytes is no {what}")]
    Malformed {
        /// What was expected.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// Something was lost, doubled, or overtook something else.
    #[error("{what} {found} came where {expected} was due")]
    Order {
        /// What is numbered.
        what: &'static str,
        /// The number that came.
        found: u64,
        /// The number that was due.
        expected: u64,
    },
    /// A response does not answer its request.
    #[error("the response to request {number} is wrong: {what}")]
    Answer {
        /// Which request, from 0.
        number: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There are more flows than are counted.
    #[error("more than {limit} flows")]
    Flows {
        /// How many are.
        limit: usize,
    },
}

impl AppError {
    fn malformed(what: &'static str, message: &[u8]) -> Self {
        let len = message.len();
        Self::Malformed { what, len }
    }
}

/// Checks that the number of a message is the one that is due.
#[inline]
fn in_order(what: &'static str, found: u64, expected: u64) -> Result<(), AppError> {
    match found == expected {
        true => Ok(()),
        false => Err(AppError::Order {
            what,
            found,
            expected,
        }),
    }
}

/// The little-endian word at `at` of a message, which must be long enough.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Whether there was room for a message.
#[inline]
fn room(sent: Result<(), SendError>) -> Result<bool, AppError> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(error) => Err(unsent(error)),
    }
}

#[cold]
fn unsent(error: SendError) -> AppError {
    match error {
        SendError::Length(error) => error.into(),
        SendError::Broken(error) => error.into(),
        // Room is waited for, and there are no other kinds yet.
        _ => AppError::malformed("message that can be sent", &[]),
    }
}

#[cfg(test)]
mod tests;
