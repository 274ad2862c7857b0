//! Atomics, fences and cells: the real ones, or loom's model-checked ones under `--cfg loom`.
//!
//! This is the only place that knows about loom. Code that is to be model-checked takes its primitives from
//! here; under loom they have other sizes, so such code must not be laid over real shared memory then
//! ([`MODELLED`] says so, and [`View`](crate::View) refuses).

pub use imp::{AtomicBool, AtomicU32, AtomicU64, MODELLED, Ordering, UnsafeCell, fence, spin_loop};

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
}

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// Whether the primitives are loom's models, whose memory layout is not the real one.
    pub const MODELLED: bool = true;
}
