//! Are we a forked child? One page that the kernel empties on fork answers with a relaxed load.
//!
//! A forked child inherits copies of its parent's objects: the same segments, the same registry entries.
//! They are inert in the child: every operation on them is refused and their `Drop` touches nothing
//! shared. A child may still make objects of its own, so an object remembers the [`ForkGeneration`] that
//! made it rather than asking whether a fork ever happened.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// The generation of the first process to arm; a child of it that arms is the next one.
const FIRST: u64 = 1;

/// What [`WORD`] points to until [`start_detection`] has run: "not a child".
static UNARMED: AtomicU64 = AtomicU64::new(FIRST);

/// The word that the kernel wipes in a child: zero there until the child arms in turn.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const UNARMED).cast_mut());

/// The last generation handed out in this process or its ancestors.
static LAST: AtomicU64 = AtomicU64::new(FIRST);

/// Which process made an object, as far as forks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u64);

impl ForkGeneration {
    /// The generation of the calling process; arms the detection.
    pub fn current() -> Self {
        start_detection();
        Self(word().load(Relaxed))
    }

    /// Whether the calling process is a forked child of the one that made the object.
    #[inline]
    pub fn is_foreign(self) -> bool {
        word().load(Relaxed) != self.0
    }
}

/// Whether this process was forked from one that had armed.
///
/// Stays true after the child has armed for itself; objects that a child may rightly own compare their
/// [`ForkGeneration`] instead. Before [`start_detection`] it is false.
#[inline]
pub fn in_forked_child() -> bool {
    word().load(Relaxed) != FIRST
}

/// Starts the detection, once per process; everything here that makes an object calls it. In a forked
/// child it begins a new generation.
pub fn start_detection() {
    if ptr::eq(word(), &UNARMED) {
        install_page();
    }
    if word().load(Relaxed) == 0 {
        let next = LAST.fetch_add(1, Relaxed) + 1;
        // Of two threads of the child one wins; a number skipped is no harm.
        let _ = word().compare_exchange(0, next, Relaxed, Relaxed);
    }
}

#[inline(always)]
fn word() -> &'static AtomicU64 {
    // SAFETY: the pointer is to UNARMED or to a page that is never unmapped; the relaxed load is enough
    // because the page's only content, FIRST, was written before a Release exchange published it and
    // every reader's load of the word depends on the pointer.
    unsafe { &*WORD.load(Relaxed) }
}

/// Maps the page and makes it the word; of two threads one wins.
fn install_page() {
    let Some(page) = map_wipe_on_fork_page() else {
        install_fork_handler();
        return;
    };
    // SAFETY: a fresh page of our own, aligned for anything.
    unsafe { page.cast::<AtomicU64>().write(AtomicU64::new(FIRST)) };
    let unarmed = (&raw const UNARMED).cast_mut();
    if WORD
        .compare_exchange(unarmed, page.cast(), Release, Relaxed)
        .is_err()
    {
        // SAFETY: nobody else has seen this page.
        unsafe { libc::munmap(page, page_len()) };
    }
}

fn page_len() -> usize {
    rustix::param::page_size()
}

/// A private page that is empty in a forked child, or `None` where the kernel has no such thing.
fn map_wipe_on_fork_page() -> Option<*mut libc::c_void> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            page_len(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping made above.
    if unsafe { libc::madvise(page, page_len(), libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; nobody else knows of it.
        unsafe { libc::munmap(page, page_len()) };
        return None;
    }
    Some(page)
}

/// Without wiped pages (Linux before 4.14, some sandboxes) libc's fork handler does the wiping; it misses
/// only forks made by raw system calls.
fn install_fork_handler() {
    extern "C" fn wipe() {
        UNARMED.store(0, Relaxed);
    }
    static WATCHING: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);
    if !WATCHING.swap(true, Relaxed) {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks, runs `f` in the child and returns what it returned (its exit status).
    fn in_child(f: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only runs `f`, which here touches atomics, and exits at once.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            // SAFETY: ends the child without running anything of the parent's.
            0 => unsafe { libc::_exit(f()) },
            pid => {
                let mut status = 0;
                // SAFETY: our own child and a valid place for its status.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert!(libc::WIFEXITED(status), "the child was killed");
                libc::WEXITSTATUS(status)
            }
        }
    }

    #[test]
    fn a_child_knows_and_its_parent_is_untouched() {
        start_detection();
        assert!(!in_forked_child());
        assert_eq!(in_child(|| i32::from(in_forked_child())), 1);
        assert!(!in_forked_child());
    }

    #[test]
    fn a_child_may_start_a_generation_of_its_own() {
        let ours = ForkGeneration::current();
        assert!(!ours.is_foreign());
        let verdict = in_child(|| {
            let before = ours.is_foreign();
            let theirs = ForkGeneration::current();
            let after = ours.is_foreign();
            let grandchild = in_child(|| i32::from(theirs.is_foreign() && ours.is_foreign())) == 1;
            i32::from(before && after && !theirs.is_foreign() && grandchild && in_forked_child())
        });
        assert_eq!(verdict, 1);
        assert!(!ours.is_foreign());
    }
}
