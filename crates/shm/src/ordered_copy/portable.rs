//! Copies for any processor: bytes up to a word boundary, then atomic words, then bytes.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Does nothing: there is no portable prefetch.
pub(super) fn prefetch_write(_: *const u8) {}

/// Does nothing: there is no portable prefetch.
pub(super) fn prefetch_read(_: *const u8) {}

/// # Safety
/// As [`copy_in_order`](super::copy_in_order).
#[inline]
pub(super) unsafe fn copy_in_order(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(8).min(len);
    let words_end = head + (len - head) / 8 * 8;
    let mut at = 0;
    while at < len {
        if at >= head && at < words_end {
            // SAFETY: `at + 8 <= len`. The destination is aligned here; the source need not be.
            unsafe {
                let word = src.add(at).cast::<u64>().read_unaligned();
                AtomicU64::from_ptr(dst.add(at).cast()).store(word, Ordering::Relaxed);
            }
            at += 8;
        } else {
            // SAFETY: `at < len`.
            unsafe { AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), Ordering::Relaxed) };
            at += 1;
        }
    }
}

/// Does what [`copy_in_order`] does.
///
/// # Safety
/// As [`copy_short_in_order`](super::copy_short_in_order).
#[inline]
pub(super) unsafe fn copy_short_in_order(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_in_order(dst, src, len) };
}

/// Does what [`copy_in_order`] does.
///
/// # Safety
/// As [`copy_in_any_order`](super::copy_in_any_order).
pub(super) unsafe fn copy_in_any_order(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_in_order(dst, src, len) };
}

/// Copies with ordinary stores, followed by a Release fence: there are no portable non-temporal stores.
///
/// # Safety
/// As [`copy_non_temporal`](super::copy_non_temporal).
pub(super) unsafe fn copy_non_temporal(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_in_order(dst, src, len) };
    core::sync::atomic::fence(Ordering::Release);
}
