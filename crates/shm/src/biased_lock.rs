//! Biased lock: its usual owner pays no atomic read-modify-write.
//!
//! Such an instruction waits until earlier stores are visible everywhere. On a path that has just stored
//! to lines of another core's cache, that wait is most of the time. So the first thread that takes the
//! lock becomes its owner and takes it with plain stores and [`asymmetric_fence::light`]. The first other
//! thread revokes this for good, with one [`asymmetric_fence::heavy`]. From then on it is an ordinary
//! spin lock that yields, without further heavy fences. It is for short critical sections in one process.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::asymmetric_fence;
use crate::primitive::{AtomicU64, Ordering, UnsafeCell};

/// Bit set in `owner` while the owner is inside; thread numbers are even.
const INSIDE: u64 = 1;

/// The owner may use the fast path.
const NOT_REVOKED: u64 = 0;
/// The owner may no longer use the fast path, but may not have seen that yet.
const REVOKING: u64 = 1;
/// The owner has been seen outside since the revocation and does not use the fast path again.
const REVOKED: u64 = 2;

/// The lock and the value that it guards.
#[derive(Debug)]
pub struct BiasedLock<T> {
    /// The thread that may use the fast path (0 before the first) and the bit [`INSIDE`]. Both share one
    /// word, so that the check for the owner also shows whether it is inside already.
    owner: AtomicU64,
    /// Progress of the revocation: [`NOT_REVOKED`], [`REVOKING`] or [`REVOKED`]. It only grows.
    revoked: AtomicU64,
    /// The ordinary lock after the revocation: the thread that holds it, or 0.
    taken: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value, and only one thread at a time holds it.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: the lock owns its value.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// Guard that holds the lock until dropped. It is not `Send`: the fast path belongs to its thread.
#[derive(Debug)]
#[must_use = "dropping the guard gives the lock back"]
pub struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// The word that marks the lock as held; dropping the guard stores `free` there.
    held: &'a AtomicU64,
    free: u64,
    _stays: PhantomData<*const ()>,
}

impl<T> BiasedLock<T> {
    /// Makes a lock that no thread has taken yet.
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
    /// If this thread holds it already.
    #[inline(always)]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        self.lock_as(current_thread())
    }

    #[inline(always)]
    fn lock_as(&self, thread: u64) -> BiasedGuard<'_, T> {
        // Both paths return a `bool`, which stays in a register; a guard would be kept in memory.
        if self.enter_as_owner(thread) || self.lock_slow_path(thread) {
            self.guard(&self.owner, thread)
        } else {
            self.guard(&self.taken, 0)
        }
    }

    /// The owner's fast path. Returns whether it took the lock: the caller is the owner, was outside, and is
    /// not revoked.
    #[inline(always)]
    fn enter_as_owner(&self, thread: u64) -> bool {
        // Only the owner stores its own number here, so no other store can come in between.
        if self.owner.load(Ordering::Relaxed) != thread {
            return false;
        }
        self.owner.store(thread | INSIDE, Ordering::Relaxed);
        self.is_still_owner(thread)
    }

    /// Called by the owner after it has set [`INSIDE`]. Returns whether it is not revoked; if it is, clears
    /// `INSIDE` again.
    #[inline(always)]
    fn is_still_owner(&self, thread: u64) -> bool {
        // Dekker's pattern with `enter_or_revoke`: this thread sees `revoked`, or the revoker sees `INSIDE`.
        asymmetric_fence::light();
        if self.revoked.load(Ordering::Acquire) == NOT_REVOKED {
            return true;
        }
        self.owner.store(thread, Ordering::Release);
        false
    }

    /// Takes the lock as its first owner, or else as an ordinary lock after the revocation. Returns whether
    /// as owner.
    #[cold]
    fn lock_slow_path(&self, thread: u64) -> bool {
        // Pairs with the Release store of `REVOKED`, and through it with the owner's Release on leaving.
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

    /// Takes the lock as its first owner and returns true, or revokes the owner and waits until it is
    /// outside, and returns false.
    fn enter_or_revoke(&self, thread: u64) -> bool {
        let first =
            self.owner
                .compare_exchange(0, thread | INSIDE, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() && self.is_still_owner(thread) {
            return true;
        }
        let again = self.owner.load(Ordering::Relaxed) == thread | INSIDE;
        assert!(!again, "this thread holds the lock already");
        // Fails if another thread was here before: `REVOKED` must not go back to `REVOKING`.
        let _ = self.revoked.compare_exchange(
            NOT_REVOKED,
            REVOKING,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        asymmetric_fence::heavy();
        // Pairs with the owner's Release store on leaving.
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
        // SAFETY: the guard holds the lock, and the reference does not outlive the guard.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard alone holds the lock, and it is borrowed mutably as long as the reference lives.
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

/// Returns an even number that differs between threads alive at the same time: the address of a
/// thread-local. A later thread may get the number of an ended one, and with it the fast path. That is
/// sound: it got the same memory, and whatever handed the memory on also ordered the ended thread's writes.
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

    /// Returns whether `lock` panics.
    fn is_refused(lock: &BiasedLock<u32>) -> bool {
        catch_unwind(AssertUnwindSafe(|| *lock.lock())).is_err()
    }

    #[test]
    fn a_thread_that_holds_it_is_refused() {
        let lock = BiasedLock::new(7);
        // In turn: as the owner, as the owner again before the revocation, and after it.
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

    /// Compiles only while the guard is not `Send`: otherwise both implementations of the trait apply.
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

    /// Two threads take the lock `turns` times each and add one. (With a third, two wait for one, and loom
    /// does not see that their waiting ends.)
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

    /// The second phase: the revocation is complete before the threads compete.
    #[test]
    fn loom_a_fully_revoked_lock_excludes() {
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
