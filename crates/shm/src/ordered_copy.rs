//! Copies bytes into memory that other processes read at the same time, with the guarantees of an RDMA WRITE.
//!
//! [`copy_in_order`] stores in ascending address order. It stores each aligned 8-byte word that the
//! destination covers completely with one store. `memcpy` guarantees neither. Two guarantees follow:
//!
//! - A reader that polls the last byte of a message and sees it then sees the whole message. This holds on
//!   x86-64, which keeps stores in order. Where [`IN_ORDER`] is false, no reader may rely on it.
//! - A reader of an aligned word sees the old word or the new one, never a mixture.
//!
//! If source and destination have the same offset from a word boundary, each word is also loaded with one
//! load. The copy can then also serve an RDMA READ.
//!
//! [`copy_in_any_order`] guarantees none of that, and is faster between the caches of two cores.

use core::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_arch = "x86_64")]
#[path = "ordered_copy/x86_64.rs"]
mod arch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "ordered_copy/portable.rs"]
mod arch;

/// Longest copy, in bytes, that is a few instructions in its caller if it is aligned.
const SHORT_MAX: usize = 256;

/// Whether bytes become visible in ascending address order.
pub const IN_ORDER: bool = cfg!(target_arch = "x86_64");

/// Copies `len` bytes to `dst` in ascending order. Stores every aligned 8-byte word with one store.
///
/// A single aligned word (`len` is 8) is a Release store. After a longer copy the caller publishes the bytes
/// by its own means.
///
/// # Safety
/// `src` is readable and `dst` is writable for `len` bytes, and they do not overlap. Other processes may
/// access both at the same time; threads of this program that do so use only atomics or raw pointers.
#[inline(always)]
pub unsafe fn copy_in_order(dst: *mut u8, src: *const u8, len: usize) {
    if len == 8 && dst.addr().is_multiple_of(8) {
        // SAFETY: readable by the caller's contract; it need not be aligned.
        let word = unsafe { src.cast::<u64>().read_unaligned() };
        // SAFETY: aligned as checked above, and writable by the caller's contract.
        unsafe { AtomicU64::from_ptr(dst.cast()) }.store(word, Ordering::Release);
    } else {
        // SAFETY: the caller's contract is the same.
        unsafe { arch::copy_in_order(dst, src, len) }
    }
}

/// Returns whether [`copy_in_order`] of these bytes is a few instructions in its caller: short, and aligned. Then
/// [`copy_short_in_order`] copies them.
#[inline(always)]
pub fn is_short(dst: *const u8, src: *const u8, len: usize) -> bool {
    // `src` is a multiple of 8 exactly if its double is one of 16.
    len <= SHORT_MAX && (dst.addr() | len | src.addr().wrapping_mul(2)).is_multiple_of(16)
}

/// Does what [`copy_in_order`] does, for bytes that are [short](is_short). Calls no function.
///
/// # Safety
/// As [`copy_in_order`], and [`is_short`] holds.
#[inline(always)]
pub unsafe fn copy_short_in_order(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(is_short(dst, src, len));
    // SAFETY: the caller's contract is the same.
    unsafe { arch::copy_short_in_order(dst, src, len) }
}

/// Returns whether the bytes are whole, aligned words, and few.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
fn are_few_words(dst: *const u8, src: *const u8, len: usize) -> bool {
    len <= SHORT_MAX && (dst.addr() | len | src.addr()).is_multiple_of(8)
}

/// Copies `len` bytes to `dst` with non-temporal stores, which bypass the caches. Stores every aligned 8-byte
/// word with one store, in any order. All bytes are visible before anything stored after the call.
///
/// An ordinary store to a cache line that no cache holds first reads the line from memory (read for
/// ownership). For a long copy whose target leaves the caches before it is used again, these reads are a
/// third of all memory traffic. If a cache holds the target, ordinary stores are faster.
///
/// # Safety
/// As [`copy_in_order`].
pub unsafe fn copy_non_temporal(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { arch::copy_non_temporal(dst, src, len) }
}

/// Copies `len` bytes to `dst`, in any order and in pieces of any size. All bytes are read, and visible at the target, before
/// anything that is stored with Release after the call.
///
/// For bytes that a cursor publishes, between caches of two cores. Processors with a fast string instruction take ownership of a
/// target's lines without a read of their old content. From a few kilobytes on, such a copy was three to four times as fast as
/// [`copy_in_order`] between two cores of an AMD EPYC without a common cache, and 1.2 to 1.8 times between two threads of one core
/// (`examples/ordered_copy_speed.rs`).
///
/// # Safety
/// As [`copy_in_order`], except that no process may rely on whole words or on ascending order.
#[inline]
pub unsafe fn copy_in_any_order(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { arch::copy_in_any_order(dst, src, len) }
}

/// Hints that the line at `at` will be written soon, and asks for ownership of it. Never faults.
///
/// Targets of WRITEs are mostly written in ascending order, and another core was the last to read them. If
/// the next line is fetched while this request finishes, the next request need not wait for the transfer.
#[inline(always)]
pub fn prefetch_write(at: *const u8) {
    arch::prefetch_write(at);
}

/// Hints that the line at `at` will be read soon. Never faults.
#[inline(always)]
pub fn prefetch_read(at: *const u8) {
    arch::prefetch_read(at);
}

/// Hints that all of an object will be read soon. Its cache lines are then fetched at the same time instead
/// of one after the other.
#[inline]
pub fn prefetch_object<T>(what: &T) {
    let from = core::ptr::from_ref(what).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(64) {
        arch::prefetch_read(from.wrapping_add(offset));
    }
}

/// Reads the aligned word at `src` with Acquire.
///
/// # Safety
/// `src` is aligned to 8 and readable.
#[inline(always)]
pub unsafe fn load_word(src: *const u8) -> u64 {
    // SAFETY: by the caller's contract; nothing is written through the pointer.
    unsafe { AtomicU64::from_ptr(src.cast_mut().cast()) }.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    fn check(dst_at: usize, src_at: usize, len: usize) {
        check_copy(copy_in_order, (dst_at, src_at, len));
    }

    fn check_copy(copy: Copy, (dst_at, src_at, len): (usize, usize, usize)) {
        let source: Vec<u8> = (0..src_at + len).map(|at| (at * 7 + 1) as u8).collect();
        let mut expected = vec![0xee; dst_at + len + 64];
        expected[dst_at..dst_at + len].copy_from_slice(&source[src_at..]);
        // `base + skip` is a multiple of 64, so `dst_at` alone determines the destination's alignment.
        let mut storage = vec![[0xeeee_eeee_eeee_eeee_u64; 8]; expected.len().div_ceil(64) + 1];
        let base = storage.as_mut_ptr().cast::<u8>();
        let skip = base.align_offset(64);
        // SAFETY: within `source` and `storage`, which are separate allocations.
        unsafe { copy(base.add(skip + dst_at), source.as_ptr().add(src_at), len) };
        // SAFETY: `storage` has this many bytes after its first multiple of 64.
        let got = unsafe { core::slice::from_raw_parts(base.add(skip), expected.len()) };
        assert_eq!(got, expected, "dst {dst_at}, src {src_at}, len {len}");
    }

    unsafe fn copy_if_short(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's contract is the same.
        unsafe {
            match is_short(dst, src, len) {
                true => copy_short_in_order(dst, src, len),
                false => copy_in_order(dst, src, len),
            }
        }
    }

    #[test]
    fn what_is_short() {
        let at = |address: usize| std::ptr::without_provenance::<u8>(address);
        for (dst, src, len) in [(64, 8, 64), (64, 16, 256), (16, 24, 16)] {
            assert!(is_short(at(dst), at(src), len));
        }
        for (dst, src, len) in [(65, 8, 64), (64, 9, 64), (64, 16, 512), (64, 64, 8)] {
            assert!(!is_short(at(dst), at(src), len));
        }
        for (dst, src, len) in [(56, 8, 72), (64, 16, 256), (8, 8, 8), (8, 8, 0)] {
            assert!(are_few_words(at(dst), at(src), len));
        }
        for (dst, src, len) in [(57, 8, 72), (56, 9, 72), (56, 8, 71), (8, 8, 264)] {
            assert!(!are_few_words(at(dst), at(src), len));
        }
    }

    #[test]
    fn all_small_lengths_and_alignments() {
        for len in 0..=140 {
            for dst_at in 0..34 {
                check(dst_at, (dst_at * 5 + len) % 17, len);
                for copy in [copy_non_temporal, copy_in_any_order, copy_if_short] {
                    check_copy(copy, (dst_at, (dst_at * 5 + len) % 17, len));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn equals_copy_from_slice(dst_at in 0..64_usize, src_at in 0..64_usize, len in 0..600_usize) {
            check(dst_at, src_at, len);
        }

        #[test]
        fn equals_copy_from_slice_when_long(
            dst_at in 0..64_usize, src_at in 0..64_usize, len in 600..20_000_usize,
        ) {
            for copy in [copy_in_order, copy_non_temporal, copy_in_any_order] {
                check_copy(copy, (dst_at, src_at, len));
            }
        }
    }

    /// Checks that a reader that sees the last word of a round sees the whole round, and that no word is torn.
    #[test]
    fn a_reader_sees_a_prefix_of_whole_words() {
        use std::sync::atomic::AtomicBool;
        const WORDS: usize = 24;
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut seen: Vec<u64> = words
                        .iter()
                        .rev()
                        .map(|word| word.load(Ordering::Acquire))
                        .collect();
                    for word in &seen {
                        assert_eq!(word % 0x0001_0001_0001_0001, 0, "torn word {word:#x}");
                    }
                    if IN_ORDER {
                        // The words were read from last to first, so an earlier word has the same round or a later one.
                        seen.dedup();
                        assert!(
                            seen.is_sorted(),
                            "a later word was placed before an earlier one"
                        );
                    }
                }
            });
            for round in 1..60_000_u64 {
                let source = [(round & 0xffff) * 0x0001_0001_0001_0001; WORDS];
                let dst = words.as_ptr().cast::<u8>().cast_mut();
                // SAFETY: the words are atomics and so writable through a shared reference; the reader uses
                // atomics.
                unsafe { copy_in_order(dst, source.as_ptr().cast(), size_of_val(&source)) };
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
