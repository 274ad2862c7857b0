//! Atomics, fences and cells: the real ones, or loom's model-checked ones under `--cfg loom`.
//!
//! This is the only place that knows about loom. Code that is to be model-checked takes its primitives from
//! here; under loom they have other sizes, so such code must not be laid over real shared memory then
//! ([`MODELLED`] says so, and [`View`](crate::View) refuses).
//!
//! What is modelled, each with the real code:
//!
//! | models of | say |
//! |---|---|
//! | [`cursor`](crate::cursor) | a pair of cursors orders every access to what they count |
//! | [`slot_queue`](crate::slot_queue) | producers and consumers lose and double nothing; a slot is used again only when it was read; a death between claim and commit wedges nobody |
//! | its `SingleProducer` | so beside consumers of both kinds, and beside a recovery; what `claim_pop_if` takes fitted, what it leaves did not, whole, also where the slot is used again meanwhile |
//! | [`lane`](crate::lane) | lane and queue do not overtake each other |
//! | [`sender_row`](crate::sender_row) | who takes memory away has it to himself; a row is asked for the process that has it; wherever a sender dies, each receive is completed or there again, once; a row that has changed hands is not buried |
//! | [`event_count`](crate::event_count) | work is seen, or rung for |
//! | [`dirty_set`](crate::dirty_set) | no mark is lost or taken twice, and who takes one sees what was stored before it |
//! | [`biased_lock`](crate::biased_lock) | an owner and its revoker exclude each other, in either phase and between |
//! | `headworks-pacing`'s `clock` | nobody gets more than the clock was moved by; what is forgiven is the dead one's last move, once |

pub use imp::{
    AtomicBool, AtomicU32, AtomicU64, MODELLED, Ordering, RacyCell, UnsafeCell, fence, spin_loop,
};

#[cfg(not(loom))]
mod imp {
    pub use core::hint::spin_loop;
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// Whether the primitives are loom's models, whose memory layout is not the real one.
    pub const MODELLED: bool = false;

    /// A cell whose accesses loom can check: `core`'s, reached through closures.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer to read through; dereferencing it needs the absence of writers.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer to write through; dereferencing it needs exclusive access.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// A cell that may also be looked at while somebody writes it, by who then asks elsewhere whether
    /// that counts.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct RacyCell<T>(UnsafeCell<T>);

    impl<T> RacyCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// As [`UnsafeCell::with`].
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.0.with(f)
        }

        /// As [`UnsafeCell::with_mut`].
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(f)
        }

        /// Calls `f` with a pointer to read through, whoever writes meanwhile: what is read may be a
        /// part of this and a part of that.
        #[inline(always)]
        pub fn with_racing<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.0.with(f)
        }
    }
}

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// Whether the primitives are loom's models, whose memory layout is not the real one.
    pub const MODELLED: bool = true;

    /// A cell that may also be looked at while somebody writes it: only one of two words, which are
    /// atomics beside the cell then. (Others are not, as each atomic is one more thing that models
    /// interleave.)
    #[derive(Debug)]
    pub struct RacyCell<T> {
        cell: UnsafeCell<T>,
        words: [AtomicU64; 2],
    }

    impl<T> RacyCell<T> {
        const IS_RACY: bool = size_of::<T>() == 16 && align_of::<T>() == 8;

        /// A cell that holds `value`; who looks while it is written for the first time sees zeros.
        pub fn new(value: T) -> Self {
            let words = [AtomicU64::new(0), AtomicU64::new(0)];
            let cell = UnsafeCell::new(value);
            Self { cell, words }
        }

        /// As `UnsafeCell::with`.
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.cell.with(f)
        }

        /// As `UnsafeCell::with_mut`.
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            let (done, words) = self.cell.with_mut(|cell| {
                let done = f(cell);
                // SAFETY: two words, aligned, that only this thread touches now.
                let words = Self::IS_RACY.then(|| unsafe { cell.cast::<[u64; 2]>().read() });
                (done, words)
            });
            for (to, word) in self.words.iter().zip(words.into_iter().flatten()) {
                to.store(word, Ordering::Relaxed);
            }
            done
        }

        /// Reads it word by word, whoever writes meanwhile.
        pub fn with_racing<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            assert!(Self::IS_RACY, "only cells of two words are modelled so");
            let words = [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
            f(words.as_ptr().cast())
        }
    }
}
