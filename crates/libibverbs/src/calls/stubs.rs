//! Functions of the interface that the devices do not have, and some that have nothing to do.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use headworks_verbs_abi as abi;

use crate::system::set_errno;

/// A call that returns an object.
pub(crate) extern "C" fn no_object() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    null_mut()
}

/// A call that returns an error number.
pub(crate) extern "C" fn no_call() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// A call that returns -1 and `errno`.
pub(crate) extern "C" fn minus_one() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// A call that returns 0, or nothing.
pub(crate) extern "C" fn nothing() -> c_int {
    0
}

/// Forks need no preparation: devices of the parent do nothing in the child.
pub(crate) extern "C" fn is_fork_initialized() -> c_int {
    abi::FORK_UNNEEDED
}

pub(crate) extern "C" fn sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

pub(crate) extern "C" fn alloc_mw(_: *mut abi::Pd, _: c_int) -> *mut abi::Mw {
    no_object().cast()
}

pub(crate) extern "C" fn bind_mw(_: *mut abi::Qp, _: *mut abi::Mw, _: *mut abi::MwBind) -> c_int {
    no_call()
}

pub(crate) extern "C" fn dealloc_mw(_: *mut abi::Mw) -> c_int {
    no_call()
}
