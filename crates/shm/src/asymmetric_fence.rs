//! Asymmetric memory barriers between processes: one side bears the whole cost.
//!
//! They serve Dekker's pattern, in which each side writes one word and then reads the other's:
//!
//! ```text
//! often, must be cheap             seldom, may be expensive
//! word_a.store(1, Relaxed)         word_b.store(1, Relaxed)
//! asymmetric_fence::light()        asymmetric_fence::heavy()
//! word_b.load(Relaxed)             word_a.load(Relaxed)
//! ```
//!
//! At least one side sees the other's store. Example: a poster marks an operation as in flight, while a
//! de-registration closes the gate and then looks for operations in flight. [`light`] only stops the
//! compiler; [`heavy`] makes the kernel run a full barrier on every processor that runs a *registered*
//! process. So every process on the light side must have called [`init`]. A process for which the kernel
//! refuses the heavy side ([`supported`] is false) must tell the others, which then use [`full`] towards it.

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use crate::primitive::{self, MODELLED};

const UNKNOWN: u8 = 0;
const SUPPORTED: u8 = 1;
const REFUSED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Registers this process with `membarrier` on the first call; later calls repeat the result. Returns
/// whether the kernel supports it.
pub fn init() -> bool {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let register = libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        let works =
            !MODELLED && membarrier(register) && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        STATE.store(if works { SUPPORTED } else { REFUSED }, Ordering::Relaxed);
    }
    supported()
}

/// Returns whether [`init`] found kernel support. A process publishes this to its peers, because their
/// choice of fence depends on it.
#[inline]
pub fn supported() -> bool {
    STATE.load(Ordering::Relaxed) == SUPPORTED
}

/// The fence of the frequent side: a compiler fence if [`supported`], a full fence otherwise.
///
/// It is sufficient only towards processes that are [`supported`] themselves.
#[inline(always)]
pub fn light() {
    if supported() {
        compiler_fence(Ordering::SeqCst);
    } else {
        full();
    }
}

/// The fence of the frequent side for a caller that has found this process [`supported`]. It is not sufficient if the process is
/// not.
#[inline(always)]
pub fn light_assuming_supported() {
    debug_assert!(supported());
    compiler_fence(Ordering::SeqCst);
}

/// The fence of the rare side: a full barrier here and on every processor that runs a registered process.
///
/// Aborts the process if the kernel supported the barrier before and refuses it now. Without the barrier,
/// code built on it would write to memory that belongs to others.
pub fn heavy() {
    #[cfg(all(test, not(loom)))]
    HEAVY_FENCES.with(|count| count.set(count.get() + 1));
    // This fence alone suffices where the kernel refuses: every light side then uses a full fence.
    full();
    if supported() {
        if !membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) {
            abort_without_barrier();
        }
        full();
    }
}

/// Aborts. A panic could be caught, or unwind through code that gives the memory away.
#[cold]
#[allow(clippy::disallowed_methods)]
fn abort_without_barrier() -> ! {
    let error = std::io::Error::last_os_error();
    eprintln!(
        "headworks: membarrier worked when this process started to use it and fails now ({error}); \
         shared memory is not safe without it"
    );
    std::process::abort();
}

#[cfg(all(test, not(loom)))]
std::thread_local! {
    static HEAVY_FENCES: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Number of heavy fences that this thread has executed.
#[cfg(all(test, not(loom)))]
pub(crate) fn heavy_fences() -> u64 {
    HEAVY_FENCES.with(core::cell::Cell::get)
}

/// A full fence on this side, for use towards processes that are not [`supported`].
#[inline(always)]
pub fn full() {
    primitive::fence(Ordering::SeqCst);
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointers and changes only the calling process's registration.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    /// Runs Dekker's pattern many times and checks that the two sides never both miss the other's store.
    #[test]
    fn one_side_always_sees_the_other() {
        init();
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let start = Barrier::new(2);
        let side = |mine: usize, fence: fn()| {
            let mut missed = Vec::new();
            for round in 1..2_000u64 {
                start.wait();
                words[mine].store(round, Ordering::Relaxed);
                fence();
                missed.push(words[1 - mine].load(Ordering::Relaxed) < round);
                start.wait();
            }
            missed
        };
        let (often, seldom) = thread::scope(|scope| {
            let often = scope.spawn(|| side(0, light));
            let seldom = side(1, heavy);
            (often.join().expect("no panic"), seldom)
        });
        let both = often.iter().zip(&seldom).filter(|&(&a, &b)| a && b).count();
        assert_eq!(both, 0);
    }

    /// Makes every later `membarrier` call of the calling process fail, as a sandbox does.
    fn forbid_membarrier() {
        // SAFETY: a filter program is plain data.
        let step = |code: u32, jt, jf, k| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let mut program = [
            // Load the system call's number.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_membarrier as u32,
            ),
            step(
                libc::BPF_RET | libc::BPF_K,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: the call takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the filter lives across the call, which copies it.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
    }

    #[test]
    fn a_barrier_that_fails_ends_the_process() {
        if !init() {
            eprintln!("skipped: this kernel has no such barrier");
            return;
        }
        // SAFETY: the child only makes system calls, prints one line and ends. Printing takes a lock, which
        // another thread may have held at the fork, but only for the length of a line.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the call takes no pointers. It prevents a core file.
                unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
                // SAFETY: no pointers. The alarm ends the child if the lock was held at the fork after all.
                unsafe { libc::alarm(120) };
                forbid_membarrier();
                if !membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) {
                    heavy();
                }
                // SAFETY: the call ends the child at once.
                unsafe { libc::_exit(0) }
            }
            pid => {
                let mut status = 0;
                // SAFETY: the process is our own child, and `status` is a valid place for its status.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert!(libc::WIFSIGNALED(status), "{status:#x}");
                assert_eq!(libc::WTERMSIG(status), libc::SIGABRT);
            }
        }
    }
}
