//! Errors, and the `errno` that C sees for each.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use headworks::service::{Outcome, Refusal, ServiceError};
use libc as c;

/// Error of a call.
#[derive(Debug)]
pub(crate) enum Error {
    /// The service failed.
    Service(ServiceError),
    /// No descriptor of the library has that number, or it was closed.
    BadDescriptor,
    /// This process was forked from one that had used the library.
    Forked,
    /// A pointer is null that must not be.
    Null,
    /// An invalid argument, and what is wrong with it.
    Invalid(&'static str),
    /// An address that is neither IPv4 nor IPv6.
    Family,
    /// The connection is still being made.
    InProgress,
    /// There is no connection.
    NotConnected,
    /// A message has no address to go to.
    NoDestination,
    /// A listener accepts nothing any more, and why: the daemon is gone or stopping, or broke its contract. It has
    /// an `errno` of its own, because accept(2) has servers go on after `ECONNABORTED` and `EPROTO`.
    ListenerOver(ServiceError),
    /// The descriptor is of a kind that the call does not support.
    NotOfThisKind,
    /// A poller takes only what has no file descriptor.
    HasFd,
    /// A handle without a file descriptor cannot be made blocking.
    NeverWaits,
    /// The memory is lent, exported, or in use by another call.
    Busy,
    /// The library panicked.
    Bug,
}

impl From<ServiceError> for Error {
    fn from(error: ServiceError) -> Self {
        Self::Service(error)
    }
}

impl Error {
    /// Whether the call may succeed later.
    pub(crate) fn would_block(&self) -> bool {
        matches!(
            self,
            Self::InProgress | Self::Service(ServiceError::WouldBlock)
        )
    }

    /// The `errno` that C sees; no other place decides it.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::BadDescriptor | Self::Forked => c::EBADF,
            Self::Null => c::EFAULT,
            Self::Invalid(_) => c::EINVAL,
            Self::Family => c::EAFNOSUPPORT,
            Self::InProgress => c::EINPROGRESS,
            Self::NotConnected => c::ENOTCONN,
            Self::NoDestination => c::EDESTADDRREQ,
            Self::ListenerOver(_) => c::ESHUTDOWN,
            Self::NotOfThisKind | Self::HasFd | Self::NeverWaits => c::EOPNOTSUPP,
            Self::Busy => c::EBUSY,
            Self::Bug => c::EIO,
            Self::Service(error) => match error {
                ServiceError::NoDaemon { source, .. } => match source.raw_os_error() {
                    Some(errno @ (c::EACCES | c::EMFILE | c::ENFILE)) => errno,
                    _ => c::ENETDOWN,
                },
                ServiceError::Refused(why) => match why {
                    Refusal::Refused => c::ECONNREFUSED,
                    Refusal::Unreachable => c::EHOSTUNREACH,
                    Refusal::TimedOut => c::ETIMEDOUT,
                    Refusal::PortTaken => c::EADDRINUSE,
                    Refusal::Limit | Refusal::Descriptors => c::EMFILE,
                    Refusal::Memory => c::ENOMEM,
                    Refusal::Denied => c::EACCES,
                    Refusal::Version => c::EPROTONOSUPPORT,
                    Refusal::Misuse => c::EINVAL,
                    Refusal::Stopping => c::ECONNABORTED,
                    _ => c::EIO,
                },
                ServiceError::Reset(_) => c::ECONNRESET,
                ServiceError::Ended => c::EPIPE,
                ServiceError::Forked => c::EBADF,
                ServiceError::DaemonGone => c::ECONNABORTED,
                ServiceError::Deadline | ServiceError::DaemonSilent { .. } => c::ETIMEDOUT,
                ServiceError::WouldBlock => c::EAGAIN,
                ServiceError::Busy => c::EBUSY,
                ServiceError::NotOwnAddress { .. } => c::EADDRNOTAVAIL,
                ServiceError::TooLong(_) => c::EMSGSIZE,
                ServiceError::Loan { .. }
                | ServiceError::ForeignMemory
                | ServiceError::OtherSession => c::EINVAL,
                ServiceError::InPoller => c::EEXIST,
                ServiceError::NotInPoller => c::ENOENT,
                ServiceError::Operation(outcome) => match outcome {
                    Outcome::NoExport => c::ENXIO,
                    Outcome::OutOfBounds => c::ERANGE,
                    Outcome::Denied => c::EACCES,
                    Outcome::Lost => c::ECONNRESET,
                    _ => c::EIO,
                },
                ServiceError::Contract(_) => c::EPROTO,
                ServiceError::Memory(_) => c::ENOMEM,
                ServiceError::System { source, .. } => match source.raw_os_error() {
                    // The library repeats interrupted calls itself, so C never sees EINTR.
                    None | Some(c::EINTR) => c::EIO,
                    Some(errno) => errno,
                },
                _ => c::EIO,
            },
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Service(error) => return error.fmt(f),
            Self::Invalid(what) => return f.write_str(what),
            Self::BadDescriptor => "not an open descriptor of headworks",
            Self::Forked => {
                "this process was forked after headworks was used; it must call exec first"
            }
            Self::Null => "a pointer is null",
            Self::Family => "neither an IPv4 nor an IPv6 address",
            Self::InProgress => "the connection is still being made",
            Self::NotConnected => "there is no connection",
            Self::NoDestination => "the message has no address to go to",
            Self::ListenerOver(error) => {
                return write!(f, "the listener accepts nothing any more: {error}");
            }
            Self::NotOfThisKind => "the descriptor is of another kind",
            Self::HasFd => "it has a file descriptor to poll: make it with HW_NO_FD",
            Self::NeverWaits => "calls never wait for what was made with HW_NO_FD",
            Self::Busy => "the memory is lent, exported, or in use by another call",
            Self::Bug => "headworks has a bug: it panicked",
        }
        .fmt(f)
    }
}

/// Wraps an error of the operating system; `what` names the operation.
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Service(ServiceError::System { what, source })
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Sets the text that `hw_strerror` returns to this thread.
pub(crate) fn remember(error: &Error) {
    let mut line = error.to_string();
    line.retain(|letter| letter != '\0');
    line = line.replace('\n', " ");
    let line = CString::new(line).unwrap_or_default();
    // If the thread is ending, its storage may be gone: the text is dropped.
    let _ = LAST.try_with(|last| last.replace(line));
}

/// The text of this thread's last error. It is valid until the thread's next error.
pub(crate) fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(NONE.as_ptr())
}

#[cfg(test)]
mod tests {
    use headworks::service::{ContractError, Reset};
    use headworks::verbs::Duration;

    use super::*;

    #[test]
    fn every_error_has_its_errno() {
        use ServiceError as Of;
        let source = |errno| io::Error::from_raw_os_error(errno);
        let no_daemon = |errno| Of::NoDaemon {
            path: "x".to_owned(),
            source: source(errno),
        };
        let system = |errno| Of::System {
            what: "x",
            source: source(errno),
        };
        let silent = Of::DaemonSilent {
            path: "x".to_owned(),
            patience: Duration::from_secs(10),
        };
        let of_service = [
            (no_daemon(c::ENOENT), c::ENETDOWN),
            (no_daemon(c::ECONNREFUSED), c::ENETDOWN),
            (no_daemon(c::EACCES), c::EACCES),
            (no_daemon(c::EMFILE), c::EMFILE),
            (Of::Refused(Refusal::Refused), c::ECONNREFUSED),
            (Of::Refused(Refusal::Unreachable), c::EHOSTUNREACH),
            (Of::Refused(Refusal::TimedOut), c::ETIMEDOUT),
            (Of::Refused(Refusal::PortTaken), c::EADDRINUSE),
            (Of::Refused(Refusal::Limit), c::EMFILE),
            (Of::Refused(Refusal::Descriptors), c::EMFILE),
            (Of::Refused(Refusal::Memory), c::ENOMEM),
            (Of::Refused(Refusal::Denied), c::EACCES),
            (Of::Refused(Refusal::Version), c::EPROTONOSUPPORT),
            (Of::Refused(Refusal::Misuse), c::EINVAL),
            (Of::Refused(Refusal::Stopping), c::ECONNABORTED),
            (Of::Reset(Reset::ByPeer), c::ECONNRESET),
            (Of::Reset(Reset::Unreachable), c::ECONNRESET),
            (Of::Reset(Reset::Misuse), c::ECONNRESET),
            (Of::Reset(Reset::Stopping), c::ECONNRESET),
            (Of::Reset(Reset::Protocol), c::ECONNRESET),
            (Of::Reset(Reset::Kept), c::ECONNRESET),
            (Of::Ended, c::EPIPE),
            (Of::DaemonGone, c::ECONNABORTED),
            (Of::Busy, c::EBUSY),
            (Of::NotOwnAddress { own: None }, c::EADDRNOTAVAIL),
            (Of::Deadline, c::ETIMEDOUT),
            (silent, c::ETIMEDOUT),
            (Of::WouldBlock, c::EAGAIN),
            (Of::TooLong(2_000_000), c::EMSGSIZE),
            (Of::OtherSession, c::EINVAL),
            (Of::InPoller, c::EEXIST),
            (Of::NotInPoller, c::ENOENT),
            (Of::Operation(Outcome::NoExport), c::ENXIO),
            (Of::Operation(Outcome::OutOfBounds), c::ERANGE),
            (Of::Operation(Outcome::Denied), c::EACCES),
            (Of::Operation(Outcome::Lost), c::ECONNRESET),
            (Of::Contract(ContractError::AfterEnd), c::EPROTO),
            (system(c::EMFILE), c::EMFILE),
            (system(c::EINTR), c::EIO),
        ];
        let own = [
            (Error::BadDescriptor, c::EBADF),
            (Error::Forked, c::EBADF),
            (Error::Null, c::EFAULT),
            (Error::Invalid("x"), c::EINVAL),
            (Error::Family, c::EAFNOSUPPORT),
            (Error::InProgress, c::EINPROGRESS),
            (Error::NotConnected, c::ENOTCONN),
            (Error::NoDestination, c::EDESTADDRREQ),
            (Error::ListenerOver(Of::DaemonGone), c::ESHUTDOWN),
            (Error::NotOfThisKind, c::EOPNOTSUPP),
            (Error::HasFd, c::EOPNOTSUPP),
            (Error::NeverWaits, c::EOPNOTSUPP),
            (Error::Busy, c::EBUSY),
            (Error::Bug, c::EIO),
        ];
        let of_service = of_service.map(|(error, errno)| (Error::from(error), errno));
        for (error, errno) in own.into_iter().chain(of_service) {
            assert_eq!(error.errno(), errno, "{error:?}");
            let waits = [c::EAGAIN, c::EINPROGRESS].contains(&errno);
            assert_eq!(error.would_block(), waits, "{error:?}");
        }
    }

    #[test]
    fn the_last_error_is_each_threads_own() {
        remember(&Error::Null);
        let here = last();
        let elsewhere = std::thread::spawn(|| last() as usize).join();
        assert_ne!(here as usize, elsewhere.expect("no panic"));
    }
}
