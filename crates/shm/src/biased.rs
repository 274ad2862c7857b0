//! A lock that costs its usual owner no atomic read-modify-write.
//!
//! Those instructions wait until earlier stores are visible everywhere; on a path that has just
//! stored into lines of another core's cache that is most of the time. So the first thread that
//! takes the lock becomes its owner and takes it with plain stores and [`asymmetric::light`]. The
//! first other thread revokes that, once and for ever, with [`asymmetric::heavy`]; from then on it
//! is an ordinary spin lock that yields. For short critical sections within one process.

use crate::asymmetric;
use crate::primitive::{AtomicBool, AtomicU64, Ordering};

/// The lock. Guards nothing by itself: hold the [`BiasedGuard`] while using what it protects.
#[derive(Debug)]
pub struct BiasedLock {
    /// The thread that may take the short way, 0 before the first.
    owner: AtomicU64,
    revoked: AtomicBool,
    /// The owner is inside.
    inside: AtomicBool,
    /// The ordinary lock, once revoked.
    taken: AtomicBool,
}

/// The lock is held while this lives.
#[derive(Debug)]
#[must_use = "dropping the guard gives the lock back"]
pub struct BiasedGuard<'a> {
    held: &'a AtomicBool,
}

impl Default for BiasedLock {
    fn default() -> Self {
        Self::new()
    }
}

impl BiasedLock {
    /// A lock that nobody has taken yet.
    pub fn new() -> Self {
        asymmetric::init();
        Self {
            owner: AtomicU64::new(0),
            revoked: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    /// Takes the lock. Not re-entrant.
    #[inline(always)]
    pub fn lock(&self) -> BiasedGuard<'_> {
        self.lock_as(current_thread())
    }

    #[inline(always)]
    fn lock_as(&self, thread: u64) -> BiasedGuard<'_> {
        if self.owner.load(Ordering::Relaxed) == thread
            && let Some(guard) = self.enter_as_owner()
        {
            return guard;
        }
        self.lock_slowly(thread)
    }

    /// The owner's way in; `None` if it is revoked.
    #[inline(always)]
    fn enter_as_owner(&self) -> Option<BiasedGuard<'_>> {
        // Dekker with `revoke`: either this thread sees `revoked` or the revoker sees `inside`.
        self.inside.store(true, Ordering::Relaxed);
        asymmetric::light();
        if !self.revoked.load(Ordering::Acquire) {
            return Some(BiasedGuard { held: &self.inside });
        }
        self.inside.store(false, Ordering::Release);
        None
    }

    #[cold]
    fn lock_slowly(&self, thread: u64) -> BiasedGuard<'_> {
        let first = self
            .owner
            .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok()
            && let Some(guard) = self.enter_as_owner()
        {
            return guard;
        }
        self.revoked.store(true, Ordering::Release);
        asymmetric::heavy();
        while self.inside.load(Ordering::Acquire) {
            wait();
        }
        while self.taken.swap(true, Ordering::Acquire) {
            wait();
        }
        BiasedGuard { held: &self.taken }
    }
}

impl Drop for BiasedGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.held.store(false, Ordering::Release);
    }
}

#[cfg(not(loom))]
fn wait() {
    std::thread::yield_now();
}

#[cfg(loom)]
fn wait() {
    loom::thread::yield_now();
}

/// Something that differs between threads that live at the same time: the address of a
/// thread-local. A later thread may inherit it, when the earlier one is gone.
#[inline(always)]
fn current_thread() -> u64 {
    std::thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr() as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn excludes_also_across_the_revocation() {
        for _ in 0..200 {
            let lock = BiasedLock::new();
            let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let _guard = lock.lock();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            total.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(total.load(Ordering::SeqCst), 600);
        }
    }
}
