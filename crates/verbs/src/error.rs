//! Errors, one type per kind of operation. Each carries what the caller needs to act.

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
    /// There is no provider of that kind.
    #[error("no device kind {kind:?} (known: {known})")]
    UnknownKind {
        /// The kind asked for.
        kind: String,
        /// The kinds that are known, separated by commas.
        known: String,
    },
    /// The program was built without the code that the name asks for.
    #[error(
        "{what}: this program was built without it; enable the feature {feature:?} of its dependency headworks"
    )]
    MissingFeature {
        /// What the name asks for, as in "devices of the kind ibv".
        what: String,
        /// The cargo feature of the crate `headworks` that the code needs.
        feature: &'static str,
    },
    /// The kind is known, but there is no such device.
    #[error("no device {name:?}: {hint}")]
    NotFound {
        /// The device asked for.
        name: String,
        /// Remedy for the user.
        hint: String,
    },
    /// The provider has no such option, or not with this value.
    #[error("device option {option:?} is not legal for {kind}: {legal}")]
    BadOption {
        /// The option as given.
        option: String,
        /// The kind of device.
        kind: &'static str,
        /// The legal values or keys.
        legal: &'static str,
    },
    /// The value of an option is legal but exceeds what this device has.
    #[error("device option {option}={asked} is more than {what}: at most {highest}")]
    OptionLimit {
        /// The option's key.
        option: &'static str,
        /// The value of the option.
        asked: u64,
        /// The limited quantity, as in "port 1 of mlx5_0 has active".
        what: String,
        /// The largest value possible on this device.
        highest: u64,
    },
    /// The provider failed. The text is one line.
    #[error("cannot open {what}: {source}")]
    Provider {
        /// Device or library that was being opened.
        what: String,
        /// The cause.
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
        /// The size asked for.
        asked: u64,
        /// The smallest legal value.
        lowest: u64,
        /// The largest legal value.
        highest: u64,
    },
    /// The device has no more objects of this kind.
    #[error("no {what} left: this device has {limit}")]
    Exhausted {
        /// Exhausted resource.
        what: &'static str,
        /// The largest number of such objects that the device has.
        limit: u64,
    },
    /// There is not enough memory; the text says how much would be enough.
    #[error("{0}")]
    NoSpace(String),
    /// Remote write or atomic access was asked for without local write.
    #[error("remote write and atomic access need local write access as well")]
    Access,
    /// The device does not support this feature of verbs.
    #[error("this device has no {what}")]
    Unsupported {
        /// The feature asked for.
        what: &'static str,
    },
    /// The device is on an InfiniBand network, and the destination has no LID.
    #[error("this device is on an InfiniBand network, where a destination needs its LID as well")]
    NoLid,
    /// An object of another device, domain or provider was handed in.
    #[error("{0} belongs to another device")]
    Foreign(&'static str),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The device was opened before a fork; this process may not use it.
    #[error("this device was opened by the parent process: open it again after fork")]
    Forked,
}

impl ResourceError {
    /// Refuses a size outside the range that the device allows.
    ///
    /// # Errors
    ///
    /// [`Limit`](Self::Limit), with the size's name, its value and both bounds.
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

/// A queue pair could not be modified. Nothing was changed, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such transition.
    #[error("no transition from {from} to {to}")]
    Transition {
        /// The queue pair's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The transition exists, but needs other attributes.
    #[error("from {from} to {to}: missing {missing}; not allowed {illegal}")]
    Attributes {
        /// The queue pair's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Attributes that are required and not given.
        missing: AttrMask,
        /// Attributes that are given and not allowed.
        illegal: AttrMask,
    },
    /// An attribute's value is out of range.
    #[error("{attribute} is {value}: at most {highest}")]
    Value {
        /// Name of the attribute.
        attribute: &'static str,
        /// The value given.
        value: u64,
        /// The largest legal value.
        highest: u64,
    },
    /// The peer's process is stopped in the middle of a request on the queue pair. The queue pair is now in
    /// the error state: reset it when the peer has resumed or is dead.
    #[error(
        "the peer's process is stopped in the middle of a request: the queue pair is in ERR now"
    )]
    PeerStopped,
    /// The peer exists but cannot be reached from here, for example because no file descriptor or memory is
    /// left. Try again when that has changed.
    #[error("cannot reach the peer: {what}: {reason}")]
    PeerUnreachable {
        /// Operation that failed.
        what: &'static str,
        /// The operating system's message.
        reason: String,
    },
    /// The device refused. The only known reason is the system's message.
    #[error("the device refuses to go from {from} to {to}: {reason}")]
    Refused {
        /// The queue pair's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// The operating system's message.
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
    /// Index of the refused request in the slice.
    pub index: usize,
    /// Reason of the refusal.
    pub kind: PostErrorKind,
}

/// Reason for which a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue is full.
    #[error("the queue is full: poll completions first")]
    QueueFull,
    /// The queue pair's state does not allow it.
    #[error("the queue pair is in {0}")]
    State(QpState),
    /// The request has more scatter/gather entries than the queue pair was made for.
    #[error("too many scatter/gather entries, at most {0}")]
    TooManySges(u32),
    /// The inline payload is longer than the queue pair was made for.
    #[error("inline payload too long, at most {0} bytes")]
    InlineTooLong(u32),
    /// The message is longer than the device allows.
    #[error("message too long, at most {0} bytes")]
    MessageTooLong(u32),
    /// The operation is not legal: this transport does not have it, a READ or an atomic has an inline payload
    /// or `max_rd_atomic` is 0, an atomic's result is not 8 bytes, or a datagram names an address handle that
    /// is gone (on devices that check the handle when a request is posted).
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
    /// More completions arrived than the queue holds; its queue pairs are in error.
    #[error("the completion queue overran")]
    Overrun,
    /// Shared memory holds a value that no correct process writes.
    #[error("the completion queue is corrupt")]
    Corrupt,
    /// The device was opened before a fork; this process may not use it.
    #[error("this device was opened by the parent process")]
    Forked,
}

impl From<core::convert::Infallible> for OpenError {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}
