//! Calls of libc for `errno` and fork handlers, and conversion of C socket addresses.
#![allow(unsafe_code, reason = "errno, fork handlers and addresses are C's own")]

use std::ffi::c_int;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::error::Error;
use crate::handle::{Handle, Kind};

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the pointer is to the thread's own `errno`, which no other thread uses.
    unsafe { *libc::__errno_location() = errno };
}

/// Registers `handler` to be called in every child that this process forks from now on. The child has only
/// one thread, and the fork may have interrupted the others anywhere. So `handler` may only store to an
/// atomic.
pub(crate) fn at_fork_in_child(handler: extern "C" fn()) {
    // SAFETY: the handler takes and returns nothing, as required. If memory is short, no handler is
    // registered.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(handler)) };
}

impl Handle {
    /// Returns the file descriptor of a stream, listener or socket, if there is one.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        // A poller closes its descriptor before the handle is dropped.
        let has_fd = self.has_fd() && !matches!(self.kind(), Kind::Poller(_));
        has_fd.then(|| {
            // SAFETY: the descriptor belongs to the stream, listener or socket inside, which stays open for as
            // long as the handle is borrowed.
            unsafe { BorrowedFd::borrow_raw(self.number()) }
        })
    }
}

/// Reads the address of `len` bytes at `at`.
///
/// # Safety
///
/// `at` is null or points to `len` readable bytes.
pub(crate) unsafe fn address(at: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Error> {
    const SHORT: Error = Error::Invalid("the length of the address is too short for its family");
    let len = len as usize;
    if at.is_null() {
        return Err(Error::Null);
    }
    if len < size_of::<libc::sa_family_t>() {
        return Err(SHORT);
    }
    // SAFETY: the caller guarantees `len` bytes, which suffice. Every address begins with its family.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: there are enough bytes, and any bytes form a valid `sockaddr_in`.
            let ip4 = unsafe { at.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(ip4.sin_addr.s_addr));
            let port = u16::from_be(ip4.sin_port);
            Ok(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: there are enough bytes, and any bytes form a valid `sockaddr_in6`.
            let ip6 = unsafe { at.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(ip6.sin6_addr.s6_addr);
            let port = u16::from_be(ip6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, ip6.sin6_flowinfo, ip6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(SHORT),
        _ => Err(Error::Family),
    }
}

/// Writes as much of an address as there is room for, and sets `*len` to its full length, as getsockname(2)
/// does.
///
/// # Safety
///
/// `len` is valid for reads and writes, and `at` for a write of `*len` bytes.
pub(crate) unsafe fn put_address(address: SocketAddr, at: *mut sockaddr, len: *mut socklen_t) {
    let mut ip4 = sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    };
    let mut ip6 = sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    };
    let (from, has) = match address.ip() {
        IpAddr::V4(ip) => {
            ip4.sin_addr.s_addr = u32::from(ip).to_be();
            ((&raw const ip4).cast::<u8>(), size_of::<sockaddr_in>())
        }
        IpAddr::V6(ip) => {
            ip6.sin6_addr.s6_addr = ip.octets();
            ((&raw const ip6).cast::<u8>(), size_of::<sockaddr_in6>())
        }
    };
    // SAFETY: `from` points to `has` bytes of a local variable. The caller guarantees `*len` bytes at `at`,
    // and that `len` is valid for reads and writes.
    unsafe {
        let room = len.read_unaligned() as usize;
        std::ptr::copy_nonoverlapping(from, at.cast::<u8>(), has.min(room));
        len.write_unaligned(has as socklen_t);
    }
}
