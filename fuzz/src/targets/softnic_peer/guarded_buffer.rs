//! Memory that no device gave, and the kernel's refusal to reach it from outside.
#![allow(
    unsafe_code,
    reason = "a buffer that vouches for itself; a system call that no crate wraps"
)]

use std::mem::offset_of;
use std::sync::{Arc, Once};

use headworks_verbs::{Buffer, HeapBuffer};

/// Bytes around it that nobody may touch.
const GUARD: usize = 64 << 10;
const UNTOUCHED: u8 = 0xa5;

/// Memory of this process, with more around it that is to stay as it is.
pub(crate) struct GuardedBuffer {
    heap: Arc<HeapBuffer>,
    len: usize,
}

impl GuardedBuffer {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        let heap = HeapBuffer::new(len + 2 * GUARD);
        for at in [0, GUARD + len] {
            // SAFETY: in range of memory that nobody else has yet.
            unsafe { heap.as_ptr().add(at).write_bytes(UNTOUCHED, GUARD) };
        }
        Arc::new(Self { heap, len })
    }

    /// Writes `byte` everywhere.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: as long as `self`; who registers it calls this before.
        unsafe { self.as_ptr().write_bytes(byte, self.len) };
    }

    /// Whether all of it is `byte`.
    pub(crate) fn is_all(&self, byte: u8) -> bool {
        all_are(self.as_ptr(), self.len, byte)
    }

    /// # Panics
    ///
    /// If something around it was written.
    pub(crate) fn check(&self) {
        for at in [0, GUARD + self.len] {
            let start = self.heap.as_ptr().wrapping_add(at);
            let kept = all_are(start, GUARD, UNTOUCHED);
            assert!(kept, "something outside of registered memory was written");
        }
    }
}

/// Whether so many bytes at `start`, which are part of a [`HeapBuffer`], are all `byte`.
fn all_are(start: *const u8, len: usize, byte: u8) -> bool {
    let words = start.cast::<u64>();
    let expected = u64::from_ne_bytes([byte; 8]);
    // SAFETY: in range and aligned by the callers; others may write, so each word is read once.
    (0..len / 8).all(|at| unsafe { words.add(at).read_volatile() } == expected)
}

/// The aligned word at `at` of a buffer.
pub(crate) fn word(buffer: &dyn Buffer, at: usize) -> u64 {
    assert!(at.is_multiple_of(8) && at + 8 <= buffer.len());
    // SAFETY: in range and aligned; buffers begin at cache lines here.
    unsafe { buffer.as_ptr().add(at).cast::<u64>().read_volatile() }
}

// SAFETY: what a part of the heap's buffer is, as long as that is kept.
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

/// From here on the kernel refuses this process to copy between address spaces, also its own: what
/// is private is reached through windows. Otherwise a peer that is in this very process reaches
/// whatever its own row says, and that is no error.
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
        // SAFETY: the program outlives the calls, which change nothing else of this process.
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
