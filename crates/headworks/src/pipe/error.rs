//! Errors of a pipe, and the side at fault.

use std::io;

use headworks_net::NetError;
use headworks_ring::{RingError, SetupError};
use headworks_verbs::{BringUpError, ModifyError, OpenError, PortFailure, QpState, ResourceError};

use super::VERSION;
use crate::blocking::BlockingError;
use crate::devices::{is_bad_input, is_wrong_registry};
use crate::rdma::RdmaError;

/// A pipe could not be made, or broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The two sides could not connect.
    #[error(transparent)]
    Meeting(NetError),
    /// The two sides could not connect over RDMA.
    #[error(transparent)]
    Rdma(RdmaError),
    /// The ring could not be made or connected.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The other side speaks another version.
    #[error(
        "the other side's pipe has version {found}, this is version {VERSION}: use the same program on both sides"
    )]
    Version {
        /// The other side's version.
        found: u16,
    },
    /// The other side does not speak this protocol.
    #[error("the other side does not speak the pipe's protocol: {0}")]
    Protocol(&'static str),
    /// The port of the address is 0.
    #[error("{0}: port 0 cannot be used: give a port from 1 to 65535")]
    NoPort(
        /// The address.
        String,
    ),
    /// The process that answered is another program.
    #[error("{name}: the process that answers is no headworks pipe")]
    NoPipe {
        /// The name or address that was called.
        name: String,
    },
    /// The process that answered sent nothing.
    #[error(
        "{name}: the process that answers said nothing for {seconds} s: it is busy with others, or is no headworks pipe"
    )]
    Silent {
        /// The name or address that was called.
        name: String,
        /// How long this side waited, in seconds.
        seconds: u64,
    },
    /// A caller left before it greeted.
    #[error("the caller left before it sent a greeting")]
    Ungreeted,
    /// The process that answered closed the connection and sent nothing.
    #[error(
        "{name}: the process that answered closed without a reply: it accepted another caller, died, or is no headworks pipe"
    )]
    Wordless {
        /// The name or address that was called.
        name: String,
    },
    /// The process that answered closed the connection before the ring was connected.
    #[error(
        "{name}: the other side closed before the ring was connected: it accepted another caller, or ended"
    )]
    NotConnected {
        /// The name or address that was called.
        name: String,
    },
    /// The other side closed or died before everything was delivered.
    #[error(
        "the other side is gone before everything was delivered ({delivered} bytes were passed on here)"
    )]
    PeerGone {
        /// Bytes passed on by this side: read from its source, or written to its sink.
        delivered: u64,
    },
    /// The connection of the two queue pairs broke, and neither side knows why.
    #[error(
        "the connection broke before everything was delivered, and the other side does not say why ({delivered} \
         bytes were passed on here)"
    )]
    Cut {
        /// Bytes passed on by this side: read from its source, or written to its sink.
        delivered: u64,
    },
    /// The port of this side's device lost what the connection uses, or went down.
    #[error(
        "the connection broke before everything was delivered ({delivered} bytes were passed on here): {device}: {why}"
    )]
    Port {
        /// The device, without options.
        device: String,
        /// The failure of the port.
        why: PortFailure,
        /// Bytes passed on by this side: read from its source, or written to its sink.
        delivered: u64,
    },
    /// The other side says why it stopped.
    #[error("the other side stopped: {0}")]
    PeerFailed(String),
    /// The ring broke.
    #[error(transparent)]
    Broken(RingError),
    /// An interrupt, such as a signal, ended the wait.
    #[error("interrupted")]
    Interrupted,
    /// The time limit was reached.
    #[error("{what} under the name {name}: the time limit ({seconds} s) has passed")]
    Deadline {
        /// Event that the caller waited for.
        what: &'static str,
        /// The name under which the two sides meet.
        name: String,
        /// Time that was allowed, in seconds.
        seconds: u64,
    },
    /// Reading the source or writing the sink failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// Cause of the failure.
        source: io::Error,
    },
}

impl PipeError {
    /// Whether the error is in the request and not a failure of the system: the name, the device's name,
    /// another version, another user.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Version { .. } | Self::NoPort(_) | Self::NoPipe { .. } => true,
            Self::Device(error) => is_bad_input(error),
            Self::Rdma(error) => error.is_bad_input(),
            Self::Setup(error) => matches!(
                error,
                SetupError::Config(_) | SetupError::Version { .. } | SetupError::Mismatch { .. }
            ),
            Self::Meeting(error) => match error {
                NetError::OtherUser { .. }
                | NetError::BadAddress(_)
                | NetError::BringUp(
                    BringUpError::NotHeadworks
                    | BringUpError::VersionMismatch { .. }
                    | BringUpError::KindMismatch { .. }
                    | BringUpError::FabricMismatch { .. }
                    | BringUpError::NetworkMismatch { .. }
                    | BringUpError::SubnetMismatch { .. },
                ) => true,
                NetError::Registry(error) => is_wrong_registry(error),
                error => error.is_address_unavailable(),
            },
            _ => false,
        }
    }

    /// Whether the caller is at fault, before its ring was connected, and the next caller may succeed.
    /// `any_device`: callers choose among several devices.
    pub(super) fn is_callers_fault(&self, any_device: bool) -> bool {
        match self {
            Self::PeerGone { .. } => true,
            Self::Meeting(NetError::BringUp(error)) => {
                !matches!(error, BringUpError::Modify(ModifyError::Forked))
            }
            Self::Setup(error) => match error {
                SetupError::Version { .. }
                | SetupError::Mismatch { .. }
                | SetupError::SameRole { .. }
                | SetupError::Greeting(_) => true,
                SetupError::Resource(ResourceError::Forked)
                | SetupError::Modify(ModifyError::Forked) => false,
                // The caller chose the device, and thereby the resources available on it.
                SetupError::Resource(_)
                | SetupError::Modify(_)
                | SetupError::Config(_)
                | SetupError::Ring(_) => any_device,
                _ => false,
            },
            _ => false,
        }
    }

    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// For `map_err`: a wait failed after `delivered` bytes had been passed on.
    pub(super) fn waiting(delivered: u64) -> impl FnOnce(BlockingError) -> Self {
        move |error| match error {
            BlockingError::PeerGone => Self::PeerGone { delivered },
            BlockingError::Broken(error) => Self::Broken(error),
            BlockingError::Port(why) => Self::Port {
                device: "the device".to_owned(),
                why,
                delivered,
            },
            BlockingError::Interrupted => Self::Interrupted,
            // A connected pipe has only one deadline: for the other side's last message.
            BlockingError::Deadline => Self::PeerGone { delivered },
            // A pipe connects its ring before it wraps it.
            BlockingError::Connect(_) => Self::Protocol("its ring is not connected"),
            BlockingError::NotNotify => Self::Protocol("its ring cannot be slept on"),
            BlockingError::Length(_) => Self::Protocol("a message is too long"),
            BlockingError::ControlStream(error) => error.into(),
            BlockingError::TooManyMessages { .. } => Self::Protocol("it sends too many messages"),
            BlockingError::System { what, source } => Self::Io { what, source },
        }
    }
}

impl From<NetError> for PipeError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Interrupted => Self::Interrupted,
            NetError::PeerGone => Self::PeerGone { delivered: 0 },
            // Only this side changes the queue pair's state, so the device failed it: the other side died between two steps.
            NetError::BringUp(BringUpError::Modify(ModifyError::Transition {
                from: QpState::Error,
                ..
            })) => Self::PeerGone { delivered: 0 },
            error => Self::Meeting(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_that_fails_while_it_is_connected_lost_its_peer() {
        let failed = |from| {
            let to = QpState::Rts;
            let error = BringUpError::Modify(ModifyError::Transition { from, to });
            PipeError::from(NetError::BringUp(error))
        };
        assert!(matches!(
            failed(QpState::Error),
            PipeError::PeerGone { delivered: 0 }
        ));
        assert!(matches!(failed(QpState::Init), PipeError::Meeting(_)));
    }

    #[test]
    fn one_callers_failure_is_not_the_listeners() {
        let no_memory = ResourceError::NoSpace("locked memory".to_owned());
        for (error, is_callers_fault) in [
            (PipeError::PeerGone { delivered: 0 }, [true, true]),
            (
                PipeError::Meeting(BringUpError::NotHeadworks.into()),
                [true, true],
            ),
            (SetupError::Greeting("slots").into(), [true, true]),
            // The device has no room for a ring; another device may have.
            (SetupError::Resource(no_memory).into(), [false, true]),
            (
                SetupError::Resource(ResourceError::Forked).into(),
                [false, false],
            ),
            (
                PipeError::Meeting(BringUpError::Modify(ModifyError::Forked).into()),
                [false, false],
            ),
            (PipeError::Interrupted, [false, false]),
            (PipeError::Meeting(NetError::Full), [false, false]),
        ] {
            let found = [false, true].map(|any_device| error.is_callers_fault(any_device));
            assert_eq!(found, is_callers_fault, "{error}");
        }
    }
}
