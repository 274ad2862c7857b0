//! Atomics, fences and cells: the real ones, or loom's model-checked ones under `--cfg loom`.
//!
//! Only this module knows about loom. Code that is to be model-checked takes its primitives from here.
//! Under loom they have other sizes, so such code must then not be laid over real shared memory
//! ([`MODELLED`] is true, and [`View`](crate::View) refuses).
//!
//! The models run the real code. They check:
//!
//! - [`cursor`](crate::cursor): a pair of cursors orders every access to the places that they count.
//! - [`slot_queue`](crate::slot_queue): producers and consumers lose and duplicate no value. A slot is
//!   reused only after it was read. A death between claim and commit blocks nobody.
//! - its `SingleProducer`: the same holds beside consumers of both kinds and beside a recovery.
//!   `claim_pop_if` takes only a value that fitted, and rejects only a whole value that did not, also
//!   when the slot is reused meanwhile.
//! - [`lane`](crate::lane): lane and queue do not overtake each other.
//! - [`sender_row`](crate::sender_row): an owner that takes memory away has it to itself. A start time
//!   belongs to the process that holds the row. Wherever a sender dies, each receive is completed or
//!   posted again, once. A row that has changed hands is not reclaimed.
//! - [`event_count`](crate::event_count): the waiter sees the work, or a producer is told to wake it.
//! - [`dirty_set`](crate::dirty_set): no number is lost or taken twice, and a drain that takes one sees
//!   what was stored before it.
//! - [`descriptor_word`](crate::descriptor_word): memory is moved, or used again, only when its reader has not claimed
//!   it or has left it.
//! - [`biased_lock`](crate::biased_lock): an owner and its revoker exclude each other before, during and
//!   after the revocation.
//! - `headworks-pacing`'s `clock`: no process gets more than the clock was moved by. Only a dead
//!   process's last move is forgiven, once.

pub use imp::{
    AtomicBool, AtomicU32, AtomicU64, MODELLED, Ordering, RacyCell, UnsafeCell, fence, spin_loop,
};

#[cfg(not(loom))]
mod imp {
    pub use core::hint::spin_loop;
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// Whether the primitives are loom's models, whose memory layout is not the real one.
    pub const MODELLED: bool = false;

    /// A cell whose accesses loom can check: `core`'s cell, accessed through closures.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Makes a cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer to read through. Dereferencing it requires that there is no writer.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer to write through. Dereferencing it requires exclusive access.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// A cell that may also be read while another thread or process writes it. The reader then checks
    /// elsewhere whether the value counts.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct RacyCell<T>(UnsafeCell<T>);

    impl<T> RacyCell<T> {
        /// Makes a cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Like [`UnsafeCell::with`].
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.0.with(f)
        }

        /// Like [`UnsafeCell::with_mut`].
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(f)
        }

        /// Calls `f` with a pointer to read through, even while another writes. The bytes read may mix an
        /// old and a new value.
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

    /// A cell that may also be read while another thread writes it. Only a cell of two words supports
    /// that: its value is also kept in two atomics. (Other cells do not use them, because models
    /// interleave every access to an atomic.)
    #[derive(Debug)]
    pub struct RacyCell<T> {
        cell: UnsafeCell<T>,
        words: [AtomicU64; 2],
    }

    impl<T> RacyCell<T> {
        const IS_RACY: bool = size_of::<T>() == 16 && align_of::<T>() == 8;

        /// Makes a cell that holds `value`. A racing reader sees zeros until the first write.
        pub fn new(value: T) -> Self {
            let words = [AtomicU64::new(0), AtomicU64::new(0)];
            let cell = UnsafeCell::new(value);
            Self { cell, words }
        }

        /// Like `UnsafeCell::with`.
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.cell.with(f)
        }

        /// Like `UnsafeCell::with_mut`.
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            let (done, words) = self.cell.with_mut(|cell| {
                let done = f(cell);
                // SAFETY: the cell is two aligned words that only this thread accesses now.
                let words = Self::IS_RACY.then(|| unsafe { cell.cast::<[u64; 2]>().read() });
                (done, words)
            });
            for (to, word) in self.words.iter().zip(words.into_iter().flatten()) {
                to.store(word, Ordering::Relaxed);
            }
            done
        }

        /// Reads the cell word by word, even while another thread writes.
        pub fn with_racing<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            assert!(Self::IS_RACY, "only cells of two words are modelled");
            let words = [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
            f(words.as_ptr().cast())
        }
    }
}
