//! Private memory with guards around it, and a system call filter that forbids access between processes.
#![allow(
    unsafe_code,
    reason = "a buffer that vouches for itself; a system call that no crate wraps"
)]

use std::mem::offset_of;
use std::sync::{Arc, Once};

use headworks_verbs::{Buffer, HeapBuffer};

/// Size in bytes of the guard on each side of the memory. No access may touch a guard.
const GUARD: usize = 64 << 10;
const UNTOUCHED: u8 = 0xa5;

/// Private memory of this process with a guard on each side. Dropping it checks the guards.
pub(crate) struct GuardedBuffer {
    heap: Arc<HeapBuffer>,
    len: usize,
}

impl GuardedBuffer {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        let heap = HeapBuffer::new(len + 2 * GUARD);
        for at in [0, GUARD + len] {
            // SAFETY: within the allocation, which no other thread has yet.
            unsafe { heap.as_ptr().add(at).write_bytes(UNTOUCHED, GUARD) };
        }
        Arc::new(Self { heap, len })
    }

    /// Fills the memory with `byte`.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: the memory has `len` bytes. The caller fills it before it registers it, so no device uses it.
        unsafe { self.as_ptr().write_bytes(byte, self.len) };
    }

    /// Returns whether every byte is `byte`.
    pub(crate) fn is_all(&self, byte: u8) -> bool {
        all_are(self.as_ptr(), self.len, byte)
    }

    /// # Panics
    ///
    /// If a guard was written.
    pub(crate) fn check(&self) {
        for at in [0, GUARD + self.len] {
            let start = self.heap.as_ptr().wrapping_add(at);
            let kept = all_are(start, GUARD, UNTOUCHED);
            assert!(kept, "something outside of registered memory was written");
        }
    }
}

/// Returns whether all `len` bytes at `start`, a part of a [`HeapBuffer`], are `byte`.
fn all_are(start: *const u8, len: usize, byte: u8) -> bool {
    let words = start.cast::<u64>();
    let expected = u64::from_ne_bytes([byte; 8]);
    // SAFETY: the callers pass an aligned part of an allocation. Others may write it, so each word is read once.
    (0..len / 8).all(|at| unsafe { words.add(at).read_volatile() } == expected)
}

/// Returns the aligned word at offset `at` of a buffer.
pub(crate) fn word(buffer: &dyn Buffer, at: usize) -> u64 {
    assert!(at.is_multiple_of(8) && at + 8 <= buffer.len());
    // SAFETY: within the buffer and aligned, because the buffers of this target begin at cache lines.
    unsafe { buffer.as_ptr().add(at).cast::<u64>().read_volatile() }
}

// SAFETY: it is a part of the heap buffer, which lives as long as `self`.
unsafe impl Buffer for GuardedBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.heap.as_ptr().wrapping_add(GUARD)
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for GuardedBuffer {
    fn drop(&mut self) {
        self.check();
    }
}

/// Makes the kernel refuse copies between address spaces to this process, even within the process. Private
/// memory is then reached through bounce buffers only. Without the filter, a peer in this same process could
/// reach any address that its own row names, which is legal and would hide faults.
pub(crate) fn forbid_cross_process_access() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        let end = libc::BPF_RET as u16;
        let step = |code, jt, jf, k: u32| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step(load, 0, 0, offset_of!(libc::seccomp_data, nr) as u32),
            step(equal, 2, 0, libc::SYS_process_vm_readv as u32),
            step(equal, 1, 0, libc::SYS_process_vm_writev as u32),
            step(end, 0, 0, libc::SECCOMP_RET_ALLOW),
            step(end, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        ];
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_mut_ptr(),
        };
        // SAFETY: the filter outlives the calls. The calls change nothing else of this process.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let (mode, all_threads) = (
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
            );
            let set = libc::syscall(libc::SYS_seccomp, mode, all_threads, &raw const program);
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        }
    });
}
