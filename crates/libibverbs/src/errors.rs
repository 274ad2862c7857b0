//! The error number for each error, the ways in which calls report it, and lines on standard error.

use std::ffi::c_int;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use headworks_verbs::{ModifyError, OpenError, PostErrorKind, ResourceError};

use crate::system::set_errno;

/// An error number of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const IO: Self = Self(libc::EIO);
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<ResourceError> for Errno {
    fn from(error: ResourceError) -> Self {
        match error {
            ResourceError::Exhausted { .. } | ResourceError::NoSpace(_) => Self::NO_MEMORY,
            ResourceError::Unsupported { .. } => Self::UNSUPPORTED,
            ResourceError::System { source, .. } => {
                Self(source.raw_os_error().unwrap_or(libc::EIO))
            }
            ResourceError::Forked => Self::IO,
            _ => Self::INVALID,
        }
    }
}

impl From<ModifyError> for Errno {
    fn from(error: ModifyError) -> Self {
        match error {
            ModifyError::PeerStopped => Self::BUSY,
            ModifyError::PeerUnreachable { .. } => Self(libc::ENETUNREACH),
            ModifyError::Forked => Self::IO,
            _ => Self::INVALID,
        }
    }
}

impl From<PostErrorKind> for Errno {
    fn from(error: PostErrorKind) -> Self {
        match error {
            PostErrorKind::QueueFull => Self::NO_MEMORY,
            PostErrorKind::Forked | PostErrorKind::Device => Self::IO,
            _ => Self::INVALID,
        }
    }
}

impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Provider { .. } => Self::IO,
            _ => Self(libc::ENODEV),
        }
    }
}

/// Writes a line to standard error. The functions of the interface have no other way to say what is wrong.
pub(crate) fn complain(line: &str) {
    let _ = std::io::stderr().write_all(format!("headworks libibverbs: {line}\n").as_bytes());
}

/// Runs the body of a call; a panic is `EIO`.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO))
}

/// A call that returns an object, or null and `errno`.
pub(crate) fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(body).unwrap_or_else(|Errno(number)| {
        set_errno(number);
        null_mut()
    })
}

/// A call that returns 0, or an error number; sets `errno` as well.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(Errno(number)) => {
            set_errno(number);
            number
        }
    }
}

/// A call that returns a number of at least 0, or -1 and `errno`.
pub(crate) fn number(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(body).unwrap_or_else(|Errno(number)| {
        set_errno(number);
        -1
    })
}
