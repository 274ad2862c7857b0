//! Bounds-checked access to a range of shared memory.

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

use crate::cursor::Cursor;
use crate::event_count::EventCount;
use crate::ordered_copy::{copy_in_any_order, copy_in_order, prefetch_read};
use crate::primitive::{AtomicU64, MODELLED};
use crate::segment::SharedSegment;

/// A range of shared memory, with the owner that keeps it mapped. Cloning is cheap.
///
/// Other processes may change the bytes at any time: reads return a copy, to be checked after reading.
#[derive(Clone)]
pub struct View {
    ptr: NonNull<u8>,
    len: usize,
    keeper: Arc<dyn Send + Sync>,
}

// SAFETY: the keeper lets the memory outlive the view. It is accessed only through atomics and copies of raw
// bytes, which are sound from any thread or process.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

/// Error of an access outside a view, or of one that is not aligned as required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} (aligned to {align}) do not fit {available} bytes")]
pub struct OutOfBounds {
    /// Offset at which the access begins.
    pub offset: usize,
    /// Length of the access in bytes.
    pub len: usize,
    /// Alignment that the access needs.
    pub align: usize,
    /// Length of the view in bytes; 0 if the access is refused under loom, and the distance between source
    /// and target if a copy's ranges overlap.
    pub available: usize,
}

impl View {
    /// Makes a view of any memory.
    ///
    /// # Safety
    /// `len` bytes from `ptr` are readable and writable for as long as `keeper` lives. While views of it
    /// exist, nobody holds a Rust reference to them, except to atomics.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize, keeper: Arc<dyn Send + Sync>) -> Self {
        Self { ptr, len, keeper }
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view of `len` bytes from `offset` on.
    pub fn part(&self, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        let ptr = self.at(offset, len, 1)?;
        Ok(Self {
            ptr,
            len,
            keeper: self.keeper.clone(),
        })
    }

    /// Copies bytes from `offset` into `into`.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, into.len(), 1)?;
        // SAFETY: the range was checked to be within the view; `into` is ours, so they do not overlap.
        unsafe { copy_in_order(into.as_mut_ptr(), from.as_ptr(), into.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`, in ascending order and in whole words; see [`copy_in_order`].
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.at(offset, bytes.len(), 1)?;
        // SAFETY: the range was checked to be within the view; `bytes` is a reference, so they do not
        // overlap.
        unsafe { copy_in_order(to.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Does what [`read`](Self::read) does, with [`copy_in_any_order`].
    #[inline]
    pub fn read_in_any_order(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, into.len(), 1)?;
        // SAFETY: as in `read`.
        unsafe { copy_in_any_order(into.as_mut_ptr(), from.as_ptr(), into.len()) };
        Ok(())
    }

    /// Does what [`write`](Self::write) does, with [`copy_in_any_order`]: for bytes that a cursor publishes.
    #[inline]
    pub fn write_in_any_order(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.at(offset, bytes.len(), 1)?;
        // SAFETY: as in `write`.
        unsafe { copy_in_any_order(to.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies `len` bytes from offset `from` to offset `at` of `to`, which may be this view if the ranges do
    /// not overlap. The copy is in ascending order and in whole words; see [`copy_in_order`].
    #[inline]
    pub fn copy(&self, from: usize, to: &Self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        let source = self.at(from, len, 1)?;
        let target = to.at(at, len, 1)?;
        let apart = source.as_ptr().addr().abs_diff(target.as_ptr().addr());
        if apart < len {
            let available = apart;
            return Err(OutOfBounds {
                offset: from,
                len,
                align: 1,
                available,
            });
        }
        // SAFETY: both ranges were checked to be within their views, and not to overlap.
        unsafe { copy_in_order(target.as_ptr(), source.as_ptr(), len) };
        Ok(())
    }

    /// Hints that the line at `offset` will be used soon. Never faults, even outside the view.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        prefetch_read(self.ptr.as_ptr().wrapping_add(offset));
    }

    /// Returns the cursor at `offset`, a multiple of 8.
    #[inline]
    pub fn cursor(&self, offset: usize) -> Result<&Cursor, OutOfBounds> {
        self.value(offset)
    }

    /// Returns the cursor at `offset`, a multiple of 8, as a pointer that keeps the memory mapped.
    pub fn cursor_ref(&self, offset: usize) -> Result<CursorRef, OutOfBounds> {
        self.value_ref(offset)
    }

    /// Returns the event count at `offset`, a multiple of 4.
    #[inline]
    pub fn event_count(&self, offset: usize) -> Result<&EventCount, OutOfBounds> {
        self.value(offset)
    }

    /// Returns the event count at `offset`, a multiple of 4, as a pointer that keeps the memory mapped.
    pub fn event_count_ref(&self, offset: usize) -> Result<EventCountRef, OutOfBounds> {
        self.value_ref(offset)
    }

    /// Returns the word at `offset`, a multiple of 8.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        self.value(offset)
    }

    /// Returns the word at `offset`, a multiple of 8, as a pointer that keeps the memory mapped.
    pub fn word_ref(&self, offset: usize) -> Result<WordRef, OutOfBounds> {
        self.value_ref(offset)
    }

    /// Returns all words of the view, which begins at a multiple of 8, as a pointer that keeps the memory mapped.
    pub fn words_ref(&self) -> Result<WordsRef, OutOfBounds> {
        let words = self.words(0, self.len / 8)?;
        Ok(WordsRef {
            first: NonNull::from(words).cast(),
            count: words.len(),
            view: self.clone(),
        })
    }

    /// Returns the eight words of the cache line at `offset`, a multiple of 64.
    #[inline(always)]
    pub fn cache_line(&self, offset: usize) -> Result<&[AtomicU64; 8], OutOfBounds> {
        if MODELLED || !offset.is_multiple_of(64) {
            let available = self.len;
            let (len, align) = (64, 64);
            return Err(OutOfBounds {
                offset,
                len,
                align,
                available,
            });
        }
        let at = self.at(offset, 64, 8)?.cast::<[AtomicU64; 8]>();
        // SAFETY: it is in bounds, aligned for words and alive as long as `self`, and any 64 bytes are eight
        // words.
        Ok(unsafe { at.as_ref() })
    }

    /// Returns `count` words from `offset` on, a multiple of 8.
    #[inline]
    pub fn words(&self, offset: usize, count: usize) -> Result<&[AtomicU64], OutOfBounds> {
        let len = count.saturating_mul(8);
        if MODELLED {
            return Err(OutOfBounds {
                offset,
                len,
                align: 8,
                available: 0,
            });
        }
        let at = self.at(offset, len, 8)?.cast::<AtomicU64>();
        // SAFETY: they are in bounds, aligned and alive as long as `self`, and any bytes are words.
        Ok(unsafe { core::slice::from_raw_parts(at.as_ptr(), count) })
    }

    /// Returns a pointer to `len` bytes at `offset` if they are within the view; valid while the view lives.
    #[inline]
    pub fn ptr_at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        self.at(offset, len, 1).ok().map(NonNull::as_ptr)
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize, align: usize) -> Result<NonNull<u8>, OutOfBounds> {
        let fits = offset <= self.len && len <= self.len - offset;
        let aligned = (self.ptr.as_ptr().addr().wrapping_add(offset)).is_multiple_of(align);
        if fits && aligned {
            // SAFETY: `offset` is within the view.
            Ok(unsafe { self.ptr.add(offset) })
        } else {
            Err(OutOfBounds {
                offset,
                len,
                align,
                available: self.len,
            })
        }
    }

    #[inline(always)]
    fn value<T: SharedValue>(&self, offset: usize) -> Result<&T, OutOfBounds> {
        let (len, align) = (size_of::<T>(), align_of::<T>());
        if MODELLED {
            // Loom's types do not have the layout that other processes see.
            return Err(OutOfBounds {
                offset,
                len,
                align,
                available: 0,
            });
        }
        let at = self.at(offset, len, align)?.cast::<T>();
        // SAFETY: it is in bounds, aligned and alive as long as `self`, and any bytes are a `SharedValue`.
        Ok(unsafe { at.as_ref() })
    }

    fn value_ref<T: SharedValue>(&self, offset: usize) -> Result<MappedRef<T>, OutOfBounds> {
        Ok(MappedRef {
            at: NonNull::from(self.value::<T>(offset)?),
            view: self.clone(),
        })
    }
}

/// A type whose values lie in shared memory.
///
/// # Safety
///
/// It consists of atomics only, so that other processes may change it at any time, and any bytes are a value of it.
unsafe trait SharedValue {}

// SAFETY: it is an atomic integer.
unsafe impl SharedValue for AtomicU64 {}
// SAFETY: it is transparent over an atomic integer.
unsafe impl SharedValue for Cursor {}
// SAFETY: it is transparent over an atomic integer.
unsafe impl SharedValue for EventCount {}

impl From<Arc<SharedSegment>> for View {
    /// Makes a view of the whole payload of a segment.
    fn from(segment: Arc<SharedSegment>) -> Self {
        let ptr = NonNull::new(segment.as_ptr()).expect("a mapping is not at address zero");
        let len = segment.len();
        // SAFETY: the payload is mapped as long as the segment lives, and only accessible as raw bytes.
        unsafe { Self::from_raw(ptr, len, segment) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A reference to a value in shared memory. It keeps the memory mapped.
pub struct MappedRef<T> {
    /// Within `view`, and aligned.
    at: NonNull<T>,
    view: View,
}

/// A cursor in shared memory that keeps the memory mapped.
pub type CursorRef = MappedRef<Cursor>;

/// A word in shared memory that keeps the memory mapped.
pub type WordRef = MappedRef<AtomicU64>;

/// An event count in shared memory that keeps the memory mapped.
pub type EventCountRef = MappedRef<EventCount>;

// SAFETY: it is a shared reference, which may be sent if `T` is `Sync`, and a view, which may be sent.
unsafe impl<T: Sync> Send for MappedRef<T> {}
// SAFETY: it gives out shared references only, which threads may share if `T` is `Sync`.
unsafe impl<T: Sync> Sync for MappedRef<T> {}

impl<T> Deref for MappedRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the pointer was checked when made, and the view keeps it mapped.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Clone for MappedRef<T> {
    fn clone(&self) -> Self {
        Self {
            at: self.at,
            view: self.view.clone(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for MappedRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Words in shared memory that keep the memory mapped. A look-up checks bounds and alignment by one comparison.
#[derive(Clone, Debug)]
pub struct WordsRef {
    first: NonNull<AtomicU64>,
    count: usize,
    #[expect(dead_code, reason = "keeps the memory mapped")]
    view: View,
}

// SAFETY: it is a reference to atomics that its own view keeps alive.
unsafe impl Send for WordsRef {}
// SAFETY: as above.
unsafe impl Sync for WordsRef {}

impl WordsRef {
    /// Returns the word at byte `offset`. `None` if it is out of bounds or not a multiple of 8.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> Option<&AtomicU64> {
        // The three low bits become the highest, so an offset that is no multiple of 8 gives a huge index.
        let index = offset.rotate_right(3);
        // SAFETY: `first` was checked when made to be aligned, `count` words from it on are in bounds, and the view
        // keeps them mapped.
        (index < self.count).then(|| unsafe { self.first.add(index).as_ref() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{HugePages, SegmentRequest};

    fn view(len: usize) -> View {
        let request = SegmentRequest {
            name: "view",
            len,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        Arc::new(SharedSegment::create(&request).expect("segment")).into()
    }

    #[test]
    fn accesses_are_checked() {
        let view = view(256);
        view.write(250, b"abcdef").expect("fits");
        let mut read = [0; 3];
        view.read(252, &mut read).expect("fits");
        assert_eq!(&read, b"cde");
        assert!(view.write(251, b"abcdef").is_err());
        assert!(view.read(usize::MAX, &mut read).is_err());
        assert!(view.read(257, &mut []).is_err());
        assert!(view.read(256, &mut []).is_ok());
        assert!(view.ptr_at(1, usize::MAX).is_none());
        assert!(view.atomic_u64(248).is_ok());
        assert!(view.atomic_u64(249).is_err() && view.atomic_u64(244).is_err());
        assert!(view.word_ref(248).is_ok());
        assert!(view.word_ref(252).is_err() && view.word_ref(256).is_err());
        assert_eq!(view.words(128, 16).map(<[_]>::len), Ok(16));
        assert!(view.words(128, 17).is_err() && view.words(4, 1).is_err());
        assert!(view.words(0, usize::MAX).is_err());
        let (words, odd) = (
            view.words_ref().expect("aligned"),
            view.part(8, 23).expect("fits"),
        );
        assert!(words.at(0).is_some() && words.at(248).is_some());
        for outside in [4, 249, 255, 256, 264, usize::MAX, usize::MAX - 7, 1 << 63] {
            assert!(words.at(outside).is_none(), "{outside}");
        }
        let words = odd.words_ref().expect("aligned");
        assert!(words.at(8).is_some() && words.at(16).is_none());
        assert!(view.part(4, 64).expect("fits").words_ref().is_err());
        let none = view.part(8, 7).expect("fits").words_ref();
        assert!(none.expect("aligned").at(0).is_none());
        assert!(view.cache_line(192).is_ok());
        assert!(
            view.cache_line(8).is_err()
                && view.cache_line(256).is_err()
                && view.cache_line(200).is_err()
        );
        assert!(view.event_count(252).is_ok());
        assert!(view.event_count(254).is_err() && view.event_count(256).is_err());
        assert!(view.cursor(248).is_ok());
        assert!(view.cursor(252).is_err() && view.cursor(256).is_err());
    }

    #[test]
    fn bytes_are_copied_from_view_to_view() {
        let (one, other) = (view(256), view(256));
        one.write(3, b"abcdef").expect("fits");
        one.copy(3, &other, 250, 6).expect("fits");
        one.copy(3, &one, 9, 6).expect("do not overlap");
        for (view, at) in [(&one, 9), (&other, 250)] {
            let mut read = [0; 6];
            view.read(at, &mut read).expect("fits");
            assert_eq!(&read, b"abcdef");
        }
        assert!(one.copy(3, &one, 8, 6).is_err() && one.copy(8, &one, 3, 6).is_err());
        assert!(one.copy(251, &other, 0, 6).is_err() && one.copy(0, &other, 251, 6).is_err());
    }

    #[test]
    fn parts_and_cursors_keep_the_memory() {
        let whole = view(256);
        let part = whole.part(64, 64).expect("fits");
        assert!(whole.part(64, 193).is_err());
        let cursor = part.cursor_ref(0).expect("fits");
        whole.cursor(64).expect("fits").publish(9);
        let word = part.word_ref(8).expect("fits");
        whole.cache_line(64).expect("fits")[1].store(5, crate::primitive::Ordering::Relaxed);
        drop((whole, part));
        assert_eq!(cursor.observe(), 9);
        assert_eq!(word.load(crate::primitive::Ordering::Relaxed), 5);
    }
}
