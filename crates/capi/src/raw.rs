//! What of the system's own C interface is needed, and the addresses that C hands over.
#![allow(unsafe_code, reason = "errno, fork handlers and addresses are C's own")]

use std::ffi::c_int;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::error::Error;
use crate::handle::Handle;

/// The calling thread's `errno` is this from now on.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: it is the address of the thread's own `errno`, which nobody else uses.
    unsafe { *libc::__errno_location() = errno };
}

/// Calls `handler` in every child that this process forks from now on. There it is the only thread, and another may
/// have been anywhere: `handler` may do no more than store to an atomic.
pub(crate) fn at_fork_in_child(handler: extern "C" fn()) {
    // SAFETY: the function takes nothing and gives nothing, as it is to be. Without memory for it nothing is called.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(handler)) };
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is that of the stream or listener inside, which stays there for as long as the handle
        // is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }
}

/// The address at `at`, of `len` bytes.
///
/// # Safety
///
/// There are as many bytes, or it is null.
pub(crate) unsafe fn address(at: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Error> {
    const SHORT: Error = Error::Invalid("the length of the address is not that of its kind");
    let len = len as usize;
    if at.is_null() {
        return Err(Error::Null);
    }
    if len < size_of::<libc::sa_family_t>() {
        return Err(SHORT);
    }
    // SAFETY: the caller says that there are as many bytes. Both kinds begin with the family, as any address does.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: there are as many bytes, and any bytes are one.
            let ip4 = unsafe { at.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(ip4.sin_addr.s_addr));
            let port = u16::from_be(ip4.sin_port);
            Ok(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: there are as many bytes, and any bytes are one.
            let ip6 = unsafe { at.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(ip6.sin6_addr.s6_addr);
            let port = u16::from_be(ip6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, ip6.sin6_flowinfo, ip6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(SHORT),
        _ => Err(Error::Family),
    }
}

/// Writes as much of an address as there is room for, and how much there is of it, as getsockname(2) does.
///
/// # Safety
///
/// `len` can be read and written, and there is room for as many bytes at `at`.
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
    // SAFETY: `from` has `has` bytes and is nobody else's; of the rest the caller says what is needed.
    unsafe {
        let room = len.read_unaligned() as usize;
        std::ptr::copy_nonoverlapping(from, at.cast::<u8>(), has.min(room));
        len.write_unaligned(has as socklen_t);
    }
}
