//! Fences between processes whose whole cost is on one side.
//!
//! They serve Dekker's pattern, where each side writes one word and then reads the other's:
//!
//! ```text
//! often, must be cheap             seldom, may be dear
//! word_a.store(1, Relaxed)         word_b.store(1, Relaxed)
//! asymmetric::light()              asymmetric::heavy()
//! word_b.load(Relaxed)             word_a.load(Relaxed)
//! ```
//!
//! At least one side sees the other's store: for example a poster that marks an operation as in flight and a
//! de-registration that closes the gate and then looks for operations in flight. [`light`] only stops the
//! compiler; [`heavy`] makes the kernel run a full barrier on every processor that runs a *registered*
//! process. So every process on the light side must have called [`init`], and one whose heavy side the
//! kernel refuses ([`supported`] is false) must tell the others, who then use [`full`] towards it.

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use crate::primitive::{self, MODELLED};

const UNKNOWN: u8 = 0;
const SUPPORTED: u8 = 1;
const REFUSED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Registers this process, once; later calls only repeat the answer. Returns whether the kernel does its part.
pub fn init() -> bool {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let register = libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        let works =
            !MODELLED && membarrier(register) && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        STATE.store(if works { SUPPORTED } else { REFUSED }, Ordering::Relaxed);
    }
    supported()
}

/// Whether [`init`] found that the kernel does its part. Published to peers, since theirs depends on ours.
#[inline]
pub fn supported() -> bool {
    STATE.load(Ordering::Relaxed) == SUPPORTED
}

/// The side that runs often: free where [`supported`], a full fence elsewhere.
///
/// Enough only towards processes that are [`supported`] themselves.
#[inline(always)]
pub fn light() {
    if supported() {
        compiler_fence(Ordering::SeqCst);
    } else {
        full();
    }
}

/// The side that runs seldom: a full barrier here and on every processor that runs a registered process.
pub fn heavy() {
    // The fence also stands in where the kernel refuses: then every light side uses a full one.
    full();
    if supported() {
        let done = membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        debug_assert!(done, "worked when this process registered");
        full();
    }
}

/// A full fence on this side, for use towards processes that are not [`supported`].
#[inline(always)]
pub fn full() {
    primitive::fence(Ordering::SeqCst);
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointers and changes only the calling process's registration.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    /// Runs Dekker's pattern many times; never do both sides miss each other.
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
}
