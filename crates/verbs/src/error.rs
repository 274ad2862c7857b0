//! Errors, one type per kind of operation, carrying what the caller needs to act.

use core::ops::RangeInclusive;

use crate::device_name::NameError;
use crate::qp_state::{AttrMask, QpState};

/// A device could not be opened or listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not a device name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No provider of that kind.
    #[error("no device kind {kind:?} (known: {known})")]
    UnknownKind {
        /// What was asked for.
        kind: String,
        /// The kinds that are known, separated by commas.
        known: String,
    },
    /// The kind is known, the device is not there.
    #[error("no device {name:?}: {hint}")]
    NotFound {
        /// What was asked for.
        name: String,
        /// What to do about it.
        hint: String,
    },
    /// An option of the name is not one of the provider's.
    #[error("device option {option:?} is not legal for {kind}: {legal}")]
    BadOption {
        /// The option as given.
        option: String,
        /// The provider.
        kind: &'static str,
        /// The legal values or keys.
        legal: &'static str,
    },
    /// The value of an option is legal, and more than this device has.
    #[error("device option {option}={asked} is more than {what}: at most {highest}")]
    OptionLimit {
        /// The option's key.
        option: &'static str,
        /// Its value.
        asked: u64,
        /// What has a limit, as in "port 1 of mlx5_0 has active".
        what: String,
        /// The largest value that can be had there.
        highest: u64,
    },
    /// The provider failed; the text is one clear line.
    #[error("cannot open {what}: {source}")]
    Provider {
        /// What was being opened.
        what: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Memory or an object could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// A size is outside what the device allows.
    #[error("{what} is {asked}: this device allows {lowest} to {highest}")]
    Limit {
        /// The size's name.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The smallest legal value.
        lowest: u64,
        /// The largest legal value.
        highest: u64,
    },
    /// The device has as many of these as it can have.
    #[error("no {what} left: this device has {limit}")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// Number of such objects that the device has at most.
        limit: u64,
    },
    /// There is not enough memory; the text says how much would be enough.
    #[error("{0}")]
    NoSpace(String),
    /// Remote write or atomic access was asked for without local write.
    #[error("remote write and atomic access need local write access as well")]
    Access,
    /// The device has no such thing, though verbs do.
    #[error("this device has no {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The device is on an InfiniBand network, and the destination's LID was not said.
    #[error("this device is on an InfiniBand network, where a destination needs its LID as well")]
    NoLid,
    /// An object of another device, domain or provider was handed in.
    #[error("{0} belongs to another device")]
    Foreign(&'static str),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The device was opened before a fork; this process may not use it.
    #[error("this device was opened by the parent process: open it again after fork")]
    Forked,
}

impl ResourceError {
    /// Refuses a size that is outside what the device allows.
    ///
    /// # Errors
    ///
    /// [`Limit`](Self::Limit), with the size's name, what was asked for and both ends.
    pub fn check(what: &'static str, asked: u32, legal: RangeInclusive<u32>) -> Result<(), Self> {
        if legal.contains(&asked) {
            return Ok(());
        }
        Err(Self::Limit {
            what,
            asked: asked.into(),
            lowest: (*legal.start()).into(),
            highest: (*legal.end()).into(),
        })
    }
}

/// A queue pair could not be modified; nothing was changed, where not said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such transition.
    #[error("no transition from {from} to {to}")]
    Transition {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The transition exists, with other attributes.
    #[error("from {from} to {to}: missing {missing}; not allowed {illegal}")]
    Attributes {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Required and not given.
        missing: AttrMask,
        /// Given and not allowed.
        illegal: AttrMask,
    },
    /// An attribute's value is out of range.
    #[error("{attribute} is {value}: at most {highest}")]
    Value {
        /// Name of the attribute.
        attribute: &'static str,
        /// Its value.
        value: u64,
        /// The largest legal value.
        highest: u64,
    },
    /// The peer's process is stopped in the middle of a request on the queue pair, which is in the
    /// error state now: reset it when the peer has gone on or is dead.
    #[error("the peer's process is stopped in the middle of a request: it is in ERROR now")]
    PeerStopped,
    /// The peer is there and cannot be reached from here (no descriptor or memory left, for one):
    /// try again when that has changed.
    #[error("cannot reach the peer: {what}: {reason}")]
    PeerUnreachable {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The device refused, for a reason that only the system's word for it is known of.
    #[error("the device refuses to go from {from} to {to}: {reason}")]
    Refused {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// What the system said.
        reason: String,
    },
    /// The device was opened before a fork; this process may not use it.
    #[error("this device was opened by the parent process: open it again after fork")]
    Forked,
}

/// A request was refused at posting. Requests before `index` are posted, the rest are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index}: {kind}")]
pub struct PostError {
    /// Which of the slice was refused.
    pub index: usize,
    /// Reason of the refusal.
    pub kind: PostErrorKind,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue holds as many requests as it can.
    #[error("the queue is full: poll completions first")]
    QueueFull,
    /// The queue pair's state does not allow it.
    #[error("the queue pair is in {0}")]
    State(QpState),
    /// More scatter/gather entries than the queue pair was made for.
    #[error("too many scatter/gather entries, at most {0}")]
    TooManySges(u32),
    /// An inline payload longer than the queue pair was made for.
    #[error("inline payload too long, at most {0} bytes")]
    InlineTooLong(u32),
    /// Longer than any message may be.
    #[error("message too long, at most {0} bytes")]
    MessageTooLong(u32),
    /// Not an operation of this transport, or READ or atomics with an inline payload or
    /// where `max_rd_atomic` is 0, or an atomic whose result is not 8 bytes, or a datagram by an
    /// address handle that is gone, where the device looks when it is posted.
    #[error("not a legal operation here")]
    Operation,
    /// The queue pair takes its receives from an SRQ.
    #[error("the queue pair receives from an SRQ")]
    HasSrq,
    /// The device was opened before a fork; this process may not use it.
    #[error("this device was opened by the parent process")]
    Forked,
    /// The device failed.
    #[error("the device failed")]
    Device,
}

impl PostErrorKind {
    /// The error for the request at `index`.
    pub const fn at(self, index: usize) -> PostError {
        PostError { index, kind: self }
    }
}

/// A completion queue can no longer be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// More completions came than it holds; its queue pairs are in error.
    #[error("the completion queue overran")]
    Overrun,
    /// Shared memory holds what no correct process writes.
    #[error("the completion queue is corrupt")]
    Corrupt,
    /// The device was opened before a fork; this process may not use it.
    #[error("this device was opened by the parent process")]
    Forked,
}
