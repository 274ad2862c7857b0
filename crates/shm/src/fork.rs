//! Detection of forked children: a relaxed load of one page that the kernel empties on fork.
//!
//! A forked child inherits copies of its parent's objects: the same segments, the same registry entries.
//! They are inert in the child: every operation on them is refused and their `Drop` touches nothing
//! shared. A child may still make objects of its own, so an object remembers the [`ForkGeneration`] that
//! made it rather than asking whether a fork ever happened.
//!
//! A child also inherits its parent's descriptors. A lock or a connection that others take as a sign of the
//! parent's life must not survive the parent there: [`CloseOnFork`] closes it in the child.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

mod close_on_fork;

pub use close_on_fork::CloseOnFork;

/// Generation of the first process that starts the detection. A child that starts it gets the next one.
const FIRST: u64 = 1;

/// Target of [`WORD`] until [`start_detection`] has run. Its value means "not a child".
static UNARMED: AtomicU64 = AtomicU64::new(FIRST);

/// Pointer to the word that the kernel wipes in a child; zero there until the child starts the detection.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const UNARMED).cast_mut());

/// Last generation handed out in this process or its ancestors.
static LAST: AtomicU64 = AtomicU64::new(FIRST);

/// Identifies the process, among forked ones, that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u64);

impl ForkGeneration {
    /// Returns the generation of the calling process, and starts the detection.
    pub fn current() -> Self {
        start_detection();
        Self(word().load(Relaxed))
    }

    /// Returns whether the calling process is a forked child of the one that made the object.
    #[inline]
    pub fn is_foreign(self) -> bool {
        word().load(Relaxed) != self.0
    }
}

/// Returns whether this process was forked from one that had started the detection.
///
/// It stays true after the child has started the detection itself. Objects that a child may own compare
/// their [`ForkGeneration`] instead. Before [`start_detection`] it is false.
#[inline]
pub fn in_forked_child() -> bool {
    word().load(Relaxed) != FIRST
}

/// Starts the detection, once per process. In a forked child it begins a new generation. Every
/// constructor in this crate whose object is inert after a fork calls it.
pub fn start_detection() {
    if ptr::eq(word(), &UNARMED) {
        install_page();
    }
    if word().load(Relaxed) == 0 {
        let next = LAST.fetch_add(1, Relaxed) + 1;
        // If two threads of the child race, one wins; a skipped number does no harm.
        let _ = word().compare_exchange(0, next, Relaxed, Relaxed);
    }
}

#[inline(always)]
fn word() -> &'static AtomicU64 {
    // SAFETY: the pointer is to UNARMED or to a page that is never unmapped. The relaxed load is enough:
    // the page's only content, FIRST, was written before a Release exchange published it, and every
    // reader's load of the word depends on the pointer.
    unsafe { &*WORD.load(Relaxed) }
}

/// Maps the page and installs it as the word. If two threads race, one wins.
fn install_page() {
    let Some(page) = map_wipe_on_fork_page() else {
        install_fork_handler();
        return;
    };
    // SAFETY: the page is fresh, our own, and aligned for any type.
    unsafe { page.cast::<AtomicU64>().write(AtomicU64::new(FIRST)) };
    let unarmed = (&raw const UNARMED).cast_mut();
    if WORD
        .compare_exchange(unarmed, page.cast(), Release, Relaxed)
        .is_err()
    {
        // SAFETY: no other thread has seen this page.
        unsafe { libc::munmap(page, page_len()) };
    }
}

fn page_len() -> usize {
    rustix::param::page_size()
}

/// Maps a private page that is empty in a forked child. Returns `None` if the kernel does not support that.
fn map_wipe_on_fork_page() -> Option<*mut libc::c_void> {
    // SAFETY: the call makes a new anonymous mapping at an address of the kernel's choice.
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
    // SAFETY: the range is the mapping made above.
    if unsafe { libc::madvise(page, page_len(), libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; no one else knows of the mapping.
        unsafe { libc::munmap(page, page_len()) };
        return None;
    }
    Some(page)
}

/// Installs a libc fork handler that does the wiping where the kernel does not (Linux before 4.14, some
/// sandboxes). It misses only forks made by raw system calls.
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

    /// Forks, runs `f` in the child and returns its result, which is the child's exit status.
    pub(super) fn in_child(f: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only runs `f`, which touches only atomics here, and exits at once.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            // SAFETY: the call ends the child without running any of the parent's code.
            0 => unsafe { libc::_exit(f()) },
            pid => {
                let mut status = 0;
                // SAFETY: the process is our own child, and `status` is a valid place for its status.
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
