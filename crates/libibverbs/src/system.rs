//! Calls of libc.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Once;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Stores the error number of a failed call.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the pointer is the calling thread's own.
    unsafe { *libc::__errno_location() = number }
}

/// Returns whether all of the `len` bytes at `addr` are mapped.
pub(crate) fn is_mapped(addr: *mut c_void, len: usize) -> bool {
    const PAGE: usize = 4096;
    let first = addr as usize & !(PAGE - 1);
    let Some(end) = (addr as usize).checked_add(len) else {
        return false;
    };
    // SAFETY: an asynchronous msync only looks at the mappings: it changes no memory.
    unsafe { libc::msync(first as *mut c_void, end - first, libc::MS_ASYNC) == 0 }
}

/// Runs `body` while this thread takes no signals, and so threads that it starts never take any: a program's signals are for its own threads, whose
/// calls they interrupt.
pub(crate) fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    /// Restores the signals, also after a panic.
    struct Restored(libc::sigset_t);

    impl Drop for Restored {
        fn drop(&mut self) {
            // SAFETY: the set was filled in by the call below.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }

    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both calls only write the sets, for which there is room. All zeroes is an empty set.
    let _restored = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Restored(before.assume_init())
    };
    body()
}

/// Has glibc's malloc map each block of 128 KiB and more by itself, as it does until the first of them is freed: such a block can be
/// shared. Does so once, and not if the environment sets malloc's threshold. What the program has set by `mallopt` is replaced.
pub(crate) fn keep_large_blocks_apart() {
    const BYTES: c_int = 128 << 10;
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
        let is_tuned = tunables.to_string_lossy().contains("malloc.mmap_threshold");
        if !is_tuned && std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_none() {
            #[cfg(target_env = "gnu")]
            // SAFETY: the call only sets a number.
            unsafe {
                libc::mallopt(libc::M_MMAP_THRESHOLD, BYTES)
            };
        }
    });
}

/// Has the process call `function` when it exits by itself, or unloads this library.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function is part of this library, and the handler is registered for it. A failure means that there is no memory for it.
    let _ = unsafe { libc::atexit(function) };
}

/// Lets other processes of this user copy into and out of this process's memory, as an RNIC does, where the security module Yama restricts
/// that to ancestors (`kernel.yama.ptrace_scope` 1). Without Yama the call fails, and nothing has to be allowed.
pub(crate) fn allow_copies_by_peers() {
    // SAFETY: the call has no pointer.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// A descriptor that a program waits on, and may make non-blocking.
pub(crate) struct ProgramFd {
    pub(crate) fd: OwnedFd,
    /// Whether its flags are its own, not those of the device's descriptor.
    has_own_flags: bool,
}

impl ProgramFd {
    /// Opens the pipe behind the device's descriptor `of` once more, with flags of its own.
    pub(crate) fn of(of: BorrowedFd<'_>) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", of.as_raw_fd());
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Self {
                fd,
                has_own_flags: true,
            }),
            // Without /proc the program cannot make the descriptor non-blocking.
            Err(_) => Ok(Self {
                fd: fcntl_dupfd_cloexec(of, 0)?,
                has_own_flags: false,
            }),
        }
    }

    /// The descriptor `both`, which stands for several.
    pub(crate) fn of_both(both: OwnedFd) -> Self {
        Self {
            fd: both,
            has_own_flags: true,
        }
    }

    /// Waits until the descriptor is readable. Fails with `EAGAIN` if the program made it non-blocking, and with `EINTR` after a
    /// signal whose handler is to interrupt calls.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        if self.has_own_flags && fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
            return Err(Errno::AGAIN);
        }
        loop {
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) if !some_handler_interrupts() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether a signal handler of the program lets calls fail with `EINTR`: it was set without `SA_RESTART`. (`poll` itself fails after
/// any handler, but a program expects of these calls what `read` does.)
fn some_handler_interrupts() -> bool {
    (1..=64).any(|signal| {
        let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call only writes the present action, for which there is room; all zeroes is a valid action, should it fail.
        let now = unsafe {
            libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr());
            now.assume_init()
        };
        let is_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&now.sa_sigaction);
        is_handler && now.sa_flags & libc::SA_RESTART == 0
    })
}
