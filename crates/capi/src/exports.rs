//! The functions that C programs call. `include/headworks.h` declares and documents them; change both
//! together.
//!
//! For every function and every pointer that is not null, the C program must guarantee two things. The pointer
//! points to as much memory as the arguments say. During the call no other thread writes to that memory, and
//! no other thread reads it if the call writes to it.
#![allow(
    unsafe_code,
    reason = "functions for C, which hands pointers over, and their names"
)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use headworks::net::clock;
use headworks::service::{RemoteOperation, Rights, ServiceError, Stream, Transfer};
use headworks::verbs::Duration;
use libc::{size_t, sockaddr, socklen_t, ssize_t};

use crate::error::{self, Error};
use crate::handle::{Handle, Kind, WaitMode};
use crate::lease::{self, Lease, LeasePurpose};
use crate::library::{self, call};
use crate::remote::{self, Copy, CopyDirection};
use crate::{connection, poller, raw, sockets};

// These flags have the values of sockets. So a caller's socket flag means the same here, or the call refuses it.
const NONBLOCK: c_int = libc::SOCK_NONBLOCK;
const DONTWAIT: c_int = libc::MSG_DONTWAIT;
const START: c_int = 0x100_0000;
const BY_SEND: c_int = 0x200_0000;
const BY_READ: c_int = 0x400_0000;
const NO_FD: c_int = 0x800_0000;
// These two ask for what the library does anyway: it raises no signal, and its descriptors are close-on-exec.
const NOSIGNAL: c_int = libc::MSG_NOSIGNAL;
const CLOEXEC: c_int = libc::SOCK_CLOEXEC;

/// The version, with a terminating zero.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Most connections that may wait to be accepted, where the caller asks for no number.
const BACKLOG_MAX: u32 = 4096;

/// Checks that no flags are set except those in `known`.
fn only(flags: c_int, known: c_int) -> Result<(), Error> {
    match flags & !known {
        0 => Ok(()),
        _ => Err(Error::Invalid("a flag that this function does not take")),
    }
}

/// Whether the call waits, by its flags.
fn waits(flags: c_int) -> WaitMode {
    match flags & DONTWAIT {
        0 => WaitMode::AsSet,
        _ => WaitMode::Never,
    }
}

/// How the call's bytes are to be carried, by its flags.
fn transfer(flags: c_int) -> Result<Transfer, Error> {
    match flags & (BY_SEND | BY_READ) {
        0 => Ok(Transfer::Any),
        BY_SEND => Ok(Transfer::Send),
        BY_READ => Ok(Transfer::Read),
        _ => Err(Error::Invalid("both HW_BY_SEND and HW_BY_READ")),
    }
}

/// The caller's `len` bytes at `at`, to read.
///
/// # Safety
///
/// See the module.
unsafe fn bytes<'c>(at: *const c_void, len: usize) -> Result<&'c [u8], Error> {
    match at.is_null() {
        true if len > 0 => Err(Error::Null),
        true => Ok(&[]),
        // SAFETY: the caller guarantees `len` bytes, and `sized` checks that a slice can have them.
        false => Ok(unsafe { std::slice::from_raw_parts(at.cast(), sized(len)?) }),
    }
}

/// The caller's `len` bytes at `at`, to write to.
///
/// # Safety
///
/// See the module.
unsafe fn bytes_mut<'c>(at: *mut c_void, len: usize) -> Result<&'c mut [u8], Error> {
    match at.is_null() {
        true if len > 0 => Err(Error::Null),
        true => Ok(&mut []),
        // SAFETY: the caller guarantees `len` bytes, and `sized` checks that a slice can have them.
        false => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), sized(len)?) }),
    }
}

/// Checks that a length fits in `isize`, the limit of a slice and of a result.
fn sized(len: usize) -> Result<usize, Error> {
    match isize::try_from(len) {
        Ok(_) => Ok(len),
        Err(_) => Err(Error::Invalid("the length exceeds SSIZE_MAX")),
    }
}

/// The caller's string at `at`.
///
/// # Safety
///
/// See the module. The string ends with a zero.
unsafe fn text<'c>(at: *const c_char) -> Result<&'c OsStr, Error> {
    if at.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller guarantees that it is a string that ends with a zero.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(at) }.to_bytes()))
}

/// Checks that a pointer is not null.
fn there<T>(at: *mut T) -> Result<*mut T, Error> {
    match at.is_null() {
        true => Err(Error::Null),
        false => Ok(at),
    }
}

#[unsafe(no_mangle)]
extern "C" fn hw_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn hw_strerror() -> *const c_char {
    error::last()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_attach(socket_path: *const c_char, name: *const c_char) -> c_int {
    call(-1, || {
        // SAFETY: see the module.
        let path = Path::new(unsafe { text(socket_path) }?);
        let name = match name.is_null() {
            true => library::name(),
            // SAFETY: see the module.
            false => unsafe { text(name) }?.to_string_lossy().into_owned(),
        };
        library::attach(path, &name).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_connect(to: *const sockaddr, len: socklen_t, flags: c_int) -> c_int {
    call(-1, || {
        only(flags, NONBLOCK | CLOEXEC | NO_FD)?;
        // SAFETY: see the module.
        let to = unsafe { raw::address(to, len) }?;
        connection::connect(to, flags & NONBLOCK != 0, flags & NO_FD == 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_finish(fd: c_int, flags: c_int) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT)?;
        handle.finish(waits(flags)).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_listen(
    at: *const sockaddr,
    len: socklen_t,
    backlog: c_int,
    flags: c_int,
) -> c_int {
    call(-1, || {
        only(flags, NONBLOCK | CLOEXEC | NO_FD)?;
        // SAFETY: see the module.
        let at = unsafe { raw::address(at, len) }?;
        // As on Linux: less than 0 is the most, and 0 is one.
        let backlog = u32::try_from(backlog).unwrap_or(BACKLOG_MAX).max(1);
        connection::listen(at, backlog, flags & NONBLOCK != 0, flags & NO_FD == 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_accept(
    fd: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, NONBLOCK | CLOEXEC | DONTWAIT | NO_FD)?;
        if !peer.is_null() {
            there(len)?;
        }
        let (accepted, address) =
            handle.accept(waits(flags), flags & NONBLOCK != 0, flags & NO_FD == 0)?;
        if !peer.is_null() {
            // SAFETY: see the module.
            unsafe { raw::put_address(address, peer, len) };
        }
        Ok(accepted)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_getsockname(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let (at, len) = (there(at)?, there(len)?);
        let address = match handle.kind() {
            Kind::Port(port) => port.address(),
            Kind::Socket(socket) => socket.address(),
            Kind::Connection(_) => handle.addresses()?[0],
            Kind::Poller(_) => return Err(Error::NotOfThisKind),
        };
        // SAFETY: see the module.
        unsafe { raw::put_address(address, at, len) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_getpeername(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let (at, len) = (there(at)?, there(len)?);
        let address = match handle.kind() {
            Kind::Port(_) | Kind::Socket(_) => return Err(Error::NotConnected),
            Kind::Connection(_) => handle.addresses()?[1],
            Kind::Poller(_) => return Err(Error::NotOfThisKind),
        };
        // SAFETY: see the module.
        unsafe { raw::put_address(address, at, len) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL | BY_SEND | BY_READ)?;
        let transfer = transfer(flags)?;
        // SAFETY: see the module.
        let from = unsafe { bytes(from, len) }?;
        Ok(handle.send(from, waits(flags), transfer)? as ssize_t)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL)?;
        // SAFETY: see the module.
        let into = unsafe { bytes_mut(into, len) }?;
        Ok(handle.recv(into, waits(flags))? as ssize_t)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_recv_zero_copy(
    fd: c_int,
    at: *mut *const c_void,
    max: size_t,
    flags: c_int,
) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL)?;
        let at = there(at)?;
        if max == 0 {
            return Err(Error::Invalid("max is 0; it must be at least 1"));
        }
        let (shown, len) = handle.show(max, waits(flags))?;
        // SAFETY: `at` is not null; see the module.
        unsafe { at.write(shown.cast()) };
        Ok(len as ssize_t)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_release(fd: c_int, len: size_t) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        match handle.kind() {
            // A message is always released as a whole.
            Kind::Socket(_) => handle.release_message(),
            _ => handle.release(len),
        }
        .map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_bind(at: *const sockaddr, len: socklen_t, flags: c_int) -> c_int {
    call(-1, || {
        only(flags, NONBLOCK | CLOEXEC)?;
        // SAFETY: see the module.
        let at = unsafe { raw::address(at, len) }?;
        sockets::bind(at, flags & NONBLOCK != 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL)?;
        // Checked first, so that a stream gives `EOPNOTSUPP` whatever `to` is.
        handle.socket()?;
        if to.is_null() {
            return Err(Error::NoDestination);
        }
        // SAFETY: see the module.
        let (from, to) = unsafe { (bytes(from, len)?, raw::address(to, to_len)?) };
        handle.send_to(from, to, waits(flags))?;
        Ok(len as ssize_t)
    })
}

/// Writes the address that a message came from, unless the caller passed null.
///
/// # Safety
///
/// See the module.
unsafe fn came_from(from: SocketAddr, at: *mut sockaddr, len: *mut socklen_t) {
    if !at.is_null() {
        // SAFETY: `at` is not null, and the caller has checked that `len` is not; see the module.
        unsafe { raw::put_address(from, at, len) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL)?;
        if !from.is_null() {
            there(from_len)?;
        }
        // SAFETY: see the module.
        let into = unsafe { bytes_mut(into, len) }?;
        let (got, whence) = handle.recv_from(into, waits(flags))?;
        // SAFETY: if `from` is not null, neither is `from_len`; see the module.
        unsafe { came_from(whence, from, from_len) };
        Ok(got as ssize_t)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_recvfrom_zero_copy(
    fd: c_int,
    at: *mut *const c_void,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL)?;
        let at = there(at)?;
        if !from.is_null() {
            there(from_len)?;
        }
        let (shown, len, whence) = handle.show_from(waits(flags))?;
        // SAFETY: `at` is not null, and if `from` is not, neither is `from_len`; see the module.
        unsafe {
            at.write(shown.cast());
            came_from(whence, from, from_len);
        }
        Ok(len as ssize_t)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_set_transfer(fd: c_int, transfer: c_int) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let transfer = match transfer {
            0 => Transfer::Any,
            1 => Transfer::Send,
            2 => Transfer::Read,
            _ => return Err(Error::Invalid("unknown transfer; use HW_TRANSFER_...")),
        };
        handle.set_transfer(transfer).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_shutdown(fd: c_int, how: c_int) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let (receiving, sending) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Error::Invalid("use SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        handle.shut(receiving, sending).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_close(fd: c_int) -> c_int {
    call(-1, || {
        let handle = Handle::close(fd)?;
        poller::leave(&handle);
        lease::abandon(&handle);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_set_deadline(fd: c_int, milliseconds: i64) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let span = match milliseconds {
            -1 => None,
            span => match u64::try_from(span) {
                Ok(span) => Some(Duration::from_millis(span)),
                Err(_) => return Err(Error::Invalid("negative time; use -1 for no deadline")),
            },
        };
        handle.set_deadline(span.map(|span| clock::now() + span));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_set_nonblocking(fd: c_int, nonblocking: c_int) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        handle.set_nonblocking(nonblocking != 0).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_is_direct(fd: c_int) -> c_int {
    call(-1, || Ok(c_int::from(Handle::of(fd)?.is_direct()?)))
}

#[unsafe(no_mangle)]
extern "C" fn hw_poller_create() -> c_int {
    call(-1, poller::create)
}

#[unsafe(no_mangle)]
extern "C" fn hw_poller_add(poller: c_int, fd: c_int, key: u64, events: u32) -> c_int {
    call(-1, || {
        let (poller, handle) = (Handle::of(poller)?, Handle::of(fd)?);
        poller::add(&poller, &handle, key, events).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_poller_modify(poller: c_int, fd: c_int, key: u64, events: u32) -> c_int {
    call(-1, || {
        let (poller, handle) = (Handle::of(poller)?, Handle::of(fd)?);
        poller::modify(&poller, &handle, key, events).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_poller_remove(poller: c_int, fd: c_int) -> c_int {
    call(-1, || {
        let (poller, handle) = (Handle::of(poller)?, Handle::of(fd)?);
        poller::remove(&poller, &handle).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_poller_wait(
    poller: c_int,
    events: *mut poller::Event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    call(-1, || {
        let handle = Handle::of(poller)?;
        let poller = handle.poller()?;
        let events = there(events)?;
        let max = usize::try_from(max).ok().filter(|max| *max > 0);
        let max = max.ok_or(Error::Invalid("max must be at least 1"))?;
        // SAFETY: `events` is not null, so the caller guarantees room for `max` events; a `c_int` of them is less than
        // a slice may have. See the module.
        let into = unsafe { std::slice::from_raw_parts_mut(events.cast(), max) };
        let timeout = u64::try_from(timeout_ms).ok();
        let timeout = timeout.map(std::time::Duration::from_millis);
        Ok(poller.wait(&handle, into, timeout)? as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_poller_wake(poller: c_int) -> c_int {
    call(-1, || {
        Handle::of(poller)?.poller()?.wake();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_alloc(len: size_t) -> *mut c_void {
    let none = std::ptr::null_mut();
    call(none, || lease::alloc(len).map(|at| at as *mut c_void))
}

#[unsafe(no_mangle)]
extern "C" fn hw_free(memory: *mut c_void) -> c_int {
    call(-1, || lease::free(there(memory)? as usize).map(|()| 0))
}

#[unsafe(no_mangle)]
extern "C" fn hw_send_zero_copy(
    fd: c_int,
    memory: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | NOSIGNAL)?;
        lease::lend(&handle, there(memory)? as usize, len, waits(flags))?;
        Ok(len as ssize_t)
    })
}

/// Waits until the daemon returns memory that it holds for a purpose that `is_it` accepts.
fn back(
    fd: c_int,
    memory: *mut c_void,
    flags: c_int,
    is_it: impl FnOnce(&LeasePurpose) -> bool,
) -> Result<c_int, Error> {
    let handle = Handle::of(fd)?;
    only(flags, DONTWAIT)?;
    let mut lease = Lease::held(there(memory)? as usize, &handle, is_it)?;
    lease.back(waits(flags)).map(|()| 0)
}

#[unsafe(no_mangle)]
extern "C" fn hw_reclaim(fd: c_int, memory: *mut c_void, flags: c_int) -> c_int {
    call(-1, || {
        back(fd, memory, flags, |held| {
            !matches!(held, LeasePurpose::Export(_))
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_export(
    fd: c_int,
    memory: *mut c_void,
    rights: c_int,
    export_id: *mut u32,
) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let (memory, export_id) = (there(memory)?, there(export_id)?);
        let known = u8::try_from(rights).ok().filter(|bits| *bits > 0);
        let known = known.filter(|bits| Rights::from_bits_truncate(*bits).bits() == *bits);
        let rights = known.ok_or(Error::Invalid("no or unknown rights; use HW_RIGHT_..."))?;
        let rights = Rights::from_bits_truncate(rights);
        let exported = remote::export(&handle, memory as usize, rights)?;
        // SAFETY: `export_id` is not null; see the module.
        unsafe { export_id.write(exported) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_revoke(fd: c_int, memory: *mut c_void, flags: c_int) -> c_int {
    call(-1, || {
        back(fd, memory, flags, |held| {
            matches!(held, LeasePurpose::Export(_))
        })
    })
}

fn copy(fd: c_int, flags: c_int, copy: Copy) -> ssize_t {
    call(-1, || {
        let handle = Handle::of(fd)?;
        only(flags, DONTWAIT | START)?;
        if copy.memory == 0 {
            return Err(Error::Null);
        }
        let len = remote::copy(&handle, copy, waits(flags), flags & START != 0)?;
        Ok(len as ssize_t)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hw_read(
    fd: c_int,
    export_id: u32,
    at: u64,
    memory: *mut c_void,
    flags: c_int,
) -> ssize_t {
    let of = Copy {
        copied: CopyDirection::Here,
        export_id,
        at,
        memory: memory as usize,
    };
    copy(fd, flags, of)
}

#[unsafe(no_mangle)]
extern "C" fn hw_write(
    fd: c_int,
    export_id: u32,
    at: u64,
    memory: *mut c_void,
    flags: c_int,
) -> ssize_t {
    let of = Copy {
        copied: CopyDirection::There,
        export_id,
        at,
        memory: memory as usize,
    };
    copy(fd, flags, of)
}

/// Changes a word with an atomic operation, and writes the previous value to `before` unless that is null.
///
/// # Safety
///
/// `before` is null or valid for a write of a word.
unsafe fn change(
    fd: c_int,
    before: *mut u64,
    start: impl FnMut(&mut Stream) -> Result<RemoteOperation, ServiceError>,
) -> c_int {
    call(-1, || {
        let handle = Handle::of(fd)?;
        let word = remote::change(&handle, WaitMode::Always, start)?;
        if !before.is_null() {
            // SAFETY: `before` is not null, so the caller guarantees that it is valid for a write.
            unsafe { before.write(word) };
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_fetch_add(
    fd: c_int,
    export_id: u32,
    at: u64,
    operand: u64,
    before: *mut u64,
) -> c_int {
    let start = |stream: &mut Stream| stream.fetch_add_start(export_id, at, operand);
    // SAFETY: see the module.
    unsafe { change(fd, before, start) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hw_compare_swap(
    fd: c_int,
    export_id: u32,
    at: u64,
    expected: u64,
    desired: u64,
    before: *mut u64,
) -> c_int {
    let start = |stream: &mut Stream| stream.compare_swap_start(export_id, at, expected, desired);
    // SAFETY: see the module.
    unsafe { change(fd, before, start) }
}
