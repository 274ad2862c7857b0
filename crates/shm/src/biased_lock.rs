//! A lock that costs its usual owner no atomic read-modify-write.
//!
//! Those instructions wait until earlier stores are visible everywhere; on a path that has just
//! stored into lines of another core's cache that is most of the time. So the first thread that
//! takes the lock becomes its owner and takes it with plain stores and [`asymmetric_fence::light`]. The
//! first other thread revokes that, once and for ever, with [`asymmetric_fence::heavy`]; from then on,
//! without any further one, it is an ordinary spin lock that yields. For short critical sections within one process.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::asymmetric_fence;
use crate::primitive::{AtomicU64, Ordering, UnsafeCell};

/// Set in `owner` while the owner is inside; numbers of threads are even.
const INSIDE: u64 = 1;

/// The owner may take the short way.
const NOT_REVOKED: u64 = 0;
/// It may not any more, but may not have seen that yet.
const REVOKING: u64 = 1;
/// It has been seen outside since, and does not enter again.
const REVOKED: u64 = 2;

/// The lock, and the value that it guards.
#[derive(Debug)]
pub struct BiasedLock<T> {
    /// The thread that may take the short way, 0 before the first, and whether it is [`INSIDE`].
    /// One word for both, so that the look whether a thread is the owner also tells whether it is
    /// inside already.
    owner: AtomicU64,
    /// How far the revocation is: [`NOT_REVOKED`], [`REVOKING`] or [`REVOKED`]. It only grows.
    revoked: AtomicU64,
    /// The ordinary lock, once revoked: the thread that has it, or 0.
    taken: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the holder of the lock only, one thread at a time.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// The lock is held while this lives. It stays with its thread: that is whose the short way is.
#[derive(Debug)]
#[must_use = "dropping the guard gives the lock back"]
pub struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// The word that says that the lock is held, and what it says otherwise.
    held: &'a AtomicU64,
    free: u64,
    _stays: PhantomData<*const ()>,
}

impl<T> BiasedLock<T> {
    /// A lock that nobody has taken yet.
    pub fn new(value: T) -> Self {
        asymmetric_fence::init();
        Self {
            owner: AtomicU64::new(0),
            revoked: AtomicU64::new(NOT_REVOKED),
            taken: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock.
    ///
    /// # Panics
    ///
    /// If this thread has it already.
    #[inline(always)]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        self.lock_as(current_thread())
    }

    #[inline(always)]
    fn lock_as(&self, thread: u64) -> BiasedGuard<'_, T> {
        // A yes or no comes back in a register; a guard would be kept in memory from here on.
        if self.enter_as_owner(thread) || self.lock_slow_path(thread) {
            self.guard(&self.owner, thread)
        } else {
            self.guard(&self.taken, 0)
        }
    }

    /// The owner's way in. Says whether it led there: for the owner, outside, and not revoked.
    #[inline(always)]
    fn enter_as_owner(&self, thread: u64) -> bool {
        // Only the owner writes its own number here: nobody else's store can come in between.
        if self.owner.load(Ordering::Relaxed) != thread {
            return false;
        }
        self.owner.store(thread | INSIDE, Ordering::Relaxed);
        self.is_still_owner(thread)
    }

    /// Whether the owner, who has said that it is inside, is not revoked; else it is not inside.
    #[inline(always)]
    fn is_still_owner(&self, thread: u64) -> bool {
        // Dekker with `lock_slow_path`: this thread sees `revoked` or the revoker sees `INSIDE`.
        asymmetric_fence::light();
        if self.revoked.load(Ordering::Acquire) == NOT_REVOKED {
            return true;
        }
        self.owner.store(thread, Ordering::Release);
        false
    }

    /// Takes the lock as its first owner or, for good, as an ordinary one. Says whether as owner.
    #[cold]
    fn lock_slow_path(&self, thread: u64) -> bool {
        // Pairs with the Release of whoever saw the owner outside, and so with the owner's.
        if self.revoked.load(Ordering::Acquire) != REVOKED && self.enter_or_revoke(thread) {
            return true;
        }
        while let Err(holder) =
            self.taken
                .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
        {
            assert!(holder != thread, "this thread holds the lock already");
            wait();
        }
        false
    }

    /// Takes the lock as its first owner, or sees to it that nobody has it or takes it so. Says
    /// which.
    fn enter_or_revoke(&self, thread: u64) -> bool {
        let first =
            self.owner
                .compare_exchange(0, thread | INSIDE, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() && self.is_still_owner(thread) {
            return true;
        }
        let again = self.owner.load(Ordering::Relaxed) == thread | INSIDE;
        assert!(!again, "this thread holds the lock already");
        // Fails if somebody was here before; `REVOKED` may not be taken back.
        let _ = self.revoked.compare_exchange(
            NOT_REVOKED,
            REVOKING,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        asymmetric_fence::heavy();
        // Pairs with the owner's Release when it leaves.
        while self.owner.load(Ordering::Acquire) & INSIDE != 0 {
            wait();
        }
        self.revoked.store(REVOKED, Ordering::Release);
        false
    }

    #[inline(always)]
    fn guard<'a>(&'a self, held: &'a AtomicU64, free: u64) -> BiasedGuard<'a, T> {
        BiasedGuard {
            lock: self,
            held,
            free,
            _stays: PhantomData,
        }
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, and the reference does not outlive the guard.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, by this guard alone, which is borrowed as long as the reference
        // lives.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.held.store(self.free, Ordering::Release);
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

/// Something even that differs between threads that live at the same time: the address of a
/// thread-local. A later thread may inherit it when the earlier one is gone, and with it the short
/// way: the memory that it is the address of was handed on, and so is what the earlier one wrote.
#[inline(always)]
fn current_thread() -> u64 {
    std::thread_local!(static HERE: u16 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr() as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn excludes_also_across_the_revocation() {
        for _ in 0..200 {
            let lock = BiasedLock::new(0);
            let inside = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let mut total = lock.lock();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            *total += 1;
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(*lock.lock(), 600);
        }
    }

    /// Whether taking the lock is refused, by a panic.
    fn is_refused(lock: &BiasedLock<u32>) -> bool {
        catch_unwind(AssertUnwindSafe(|| *lock.lock())).is_err()
    }

    #[test]
    fn a_thread_that_holds_it_is_refused() {
        let lock = BiasedLock::new(7);
        // The first time, as the owner, and once it is revoked.
        for revoke in [false, true, false] {
            let held = lock.lock();
            assert!(is_refused(&lock));
            drop(held);
            assert_eq!(*lock.lock(), 7);
            if revoke {
                std::thread::scope(|scope| scope.spawn(|| drop(lock.lock())).join().unwrap());
            }
        }
    }

    #[test]
    fn only_the_revocation_costs_a_heavy_fence() {
        let lock = BiasedLock::new(0);
        *lock.lock() += 1;
        std::thread::scope(|scope| {
            let revoke = || {
                *lock.lock() += 1;
                let after_the_first = asymmetric_fence::heavy_fences();
                for _ in 0..100 {
                    *lock.lock() += 1;
                }
                (after_the_first, asymmetric_fence::heavy_fences())
            };
            assert_eq!(scope.spawn(revoke).join().unwrap(), (1, 1));
        });
        let before = asymmetric_fence::heavy_fences();
        for _ in 0..100 {
            *lock.lock() += 1;
        }
        assert_eq!(asymmetric_fence::heavy_fences(), before, "the former owner");
        assert_eq!(*lock.lock(), 202);
    }

    /// Compiles only while the guard cannot be sent: else both implementations fit.
    #[test]
    fn a_guard_stays_with_its_thread() {
        trait Sendable<A> {
            fn check() {}
        }
        impl<T: ?Sized> Sendable<()> for T {}
        impl<T: ?Sized + Send> Sendable<u8> for T {}
        <BiasedGuard<'static, u32> as Sendable<_>>::check();
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn enter(lock: &BiasedLock<u64>, number: u64, turns: u64) {
        for _ in 0..turns {
            *lock.lock_as(number) += 1;
        }
    }

    /// Two threads take the lock so many times each and add one. (A third makes two wait for one,
    /// and loom does not see that their turns at waiting end.)
    fn check(turns: [u64; 2]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let lock = Arc::new(BiasedLock::new(0u64));
            let other = {
                let lock = lock.clone();
                thread::spawn(move || enter(&lock, 4, turns[1]))
            };
            enter(&lock, 2, turns[0]);
            other.join().unwrap();
            assert_eq!(*lock.lock_as(2), turns.iter().sum::<u64>());
        });
    }

    #[test]
    fn loom_an_owner_and_its_revoker_exclude_each_other() {
        check([2, 1]);
    }

    #[test]
    fn loom_a_lock_excludes_before_and_after_it_is_revoked() {
        check([2, 2]);
    }

    /// The second phase: the revocation is done before, by the owner's side or the other's.
    #[test]
    fn loom_a_lock_whose_revocation_is_done_excludes() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let lock = Arc::new(BiasedLock::new(0u64));
            enter(&lock, 2, 1);
            enter(&lock, 4, 1);
            assert_eq!(lock.revoked.load(Ordering::Relaxed), REVOKED);
            let other = {
                let lock = lock.clone();
                thread::spawn(move || enter(&lock, 4, 2))
            };
            enter(&lock, 2, 2);
            other.join().unwrap();
            assert_eq!(*lock.lock_as(2), 6);
        });
    }
}
