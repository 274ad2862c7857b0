//! Copies for x86-64. Its stores become visible in program order. So it is enough that the compiler keeps
//! that order and that no store is split between two cache lines: volatile stores, aligned to their size.

use core::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_set_epi64x, _mm_sfence,
    _mm_stream_si128, _mm256_loadu_si256,
};

/// From this many bytes on, it is worth checking whether the processor has wider stores.
const WIDE_BYTES_MIN: usize = 512;

/// Prefetches a cache line for writing.
#[inline(always)]
pub(super) fn prefetch_write(at: *const u8) {
    // SAFETY: a hint changes no state and does not fault on any address. Processors that do not know the
    // instruction treat it as a no-op.
    unsafe { core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags)) };
}

/// Prefetches a cache line for reading.
#[inline(always)]
pub(super) fn prefetch_read(at: *const u8) {
    // SAFETY: it is a hint, as above; every x86-64 processor has SSE.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// # Safety
/// As [`copy_in_order`](super::copy_in_order).
#[inline(always)]
pub(super) unsafe fn copy_in_order(dst: *mut u8, src: *const u8, len: usize) {
    if super::is_short(dst, src, len) {
        // SAFETY: the caller's contract is the same.
        unsafe { copy_short_in_order(dst, src, len) };
    } else if super::are_few_words(dst, src, len) {
        // SAFETY: the caller's contract is the same.
        unsafe { copy_few_words(dst, src, len) };
    } else {
        // SAFETY: the caller's contract is the same.
        unsafe { copy_in_order_any(dst, src, len) };
    }
}

/// # Safety
/// As [`copy_short_in_order`](super::copy_short_in_order).
#[inline(always)]
pub(super) unsafe fn copy_short_in_order(dst: *mut u8, src: *const u8, len: usize) {
    if len == 64 {
        // SAFETY: by the caller's contract; the addresses are aligned as those of short bytes.
        unsafe { copy_line_of_words(dst, src) };
    } else {
        // SAFETY: by the caller's contract; alignment and length are those of short bytes.
        unsafe { copy_blocks_of_16(dst, src, len, load_words) };
    }
}

/// Copies a cache line as [`copy_blocks_of_16`] does with [`load_words`], in twelve instructions. From two volatile loads the
/// compiler makes no load into the upper half of a register.
///
/// # Safety
/// 64 bytes at `src` are readable and 64 at `dst` writable. `src` is a multiple of 8, and `dst` one of 16.
#[inline(always)]
unsafe fn copy_line_of_words(dst: *mut u8, src: *const u8) {
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: the instructions only load the 64 bytes, which are readable by the caller's contract.
    unsafe {
        core::arch::asm!(
            "movq {a}, qword ptr [{src}]",
            "movhps {a}, qword ptr [{src} + 8]",
            "movq {b}, qword ptr [{src} + 16]",
            "movhps {b}, qword ptr [{src} + 24]",
            "movq {c}, qword ptr [{src} + 32]",
            "movhps {c}, qword ptr [{src} + 40]",
            "movq {d}, qword ptr [{src} + 48]",
            "movhps {d}, qword ptr [{src} + 56]",
            src = in(reg) src,
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
    }
    for (index, block) in [a, b, c, d].into_iter().enumerate() {
        // SAFETY: the block is within the line, and aligned.
        unsafe { dst.cast::<__m128i>().add(index).write_volatile(block) };
    }
}

/// Copies blocks of two words, a word before them if the destination begins in the middle of a block, and a word behind them.
///
/// # Safety
/// As [`copy_in_order`](super::copy_in_order), for [few words](super::are_few_words).
#[inline(never)]
unsafe fn copy_few_words(dst: *mut u8, src: *const u8, len: usize) {
    let word = |at: usize| {
        // SAFETY: the words are within `len`, and both addresses are multiples of 8.
        unsafe {
            let from = src.add(at).cast::<u64>();
            dst.add(at)
                .cast::<u64>()
                .write_volatile(from.read_volatile());
        }
    };
    let mut at = 0;
    if !dst.addr().is_multiple_of(16) && len > 0 {
        word(0);
        at = 8;
    }
    let blocks = (len - at) & !15;
    // SAFETY: the blocks are within `len`, and begin at a multiple of 16.
    unsafe { copy_blocks_of_16(dst.add(at), src.add(at), blocks, load_words) };
    at += blocks;
    if at < len {
        word(at);
    }
}

/// Loads a block as two words. A message is often written one word at a time just before it is sent. A load
/// wider than a store that it depends on waits until that store, and all before it, are done.
///
/// # Safety
/// 16 bytes at `src` are readable, and it is aligned to 8.
#[inline(always)]
unsafe fn load_words(src: *const u8) -> __m128i {
    let words = src.cast::<u64>();
    // SAFETY: the caller's contract covers both words.
    let (low, high) = unsafe { (words.read_volatile(), words.add(1).read_volatile()) };
    // SAFETY: every x86-64 processor has SSE2.
    unsafe { _mm_set_epi64x(high as i64, low as i64) }
}

/// # Safety
/// As [`copy_in_order`](super::copy_in_order). `dst` and `len` are multiples of 16, and `load` may load 16
/// bytes anywhere in the source.
#[inline(always)]
unsafe fn copy_blocks_of_16(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    load: unsafe fn(*const u8) -> __m128i,
) {
    /// Copies 16 bytes. A macro: the compiler does not inline a closure into a long caller.
    macro_rules! block {
        ($at:expr) => {{
            let at = $at;
            // SAFETY: each use has checked that `at + 16 <= len`, and the destination is aligned.
            unsafe {
                let block = load(src.add(at));
                dst.add(at).cast::<__m128i>().write_volatile(block);
            }
        }};
    }
    macro_rules! line {
        ($at:expr) => {
            block!($at);
            block!($at + 16);
            block!($at + 32);
            block!($at + 48);
        };
    }
    let mut at = 0;
    while len - at >= 64 {
        line!(at);
        at += 64;
    }
    while at < len {
        block!(at);
        at += 16;
    }
}

/// # Safety
/// As [`copy_in_order`](super::copy_in_order).
#[inline(never)]
unsafe fn copy_in_order_any(mut dst: *mut u8, mut src: *const u8, mut len: usize) {
    /// Stores one `$t` and advances.
    macro_rules! step {
        ($t:ty) => {{
            // SAFETY: each use has checked that this many bytes are left and that `dst` is aligned to them.
            unsafe {
                dst.cast::<$t>().write_volatile(src.cast::<$t>().read_unaligned());
                dst = dst.add(size_of::<$t>());
                src = src.add(size_of::<$t>());
            }
            len -= size_of::<$t>();
        }};
    }
    // Align to the blocks in ascending sizes. If too few bytes are left for a step, the tail below copies
    // them.
    if dst.addr() & 1 != 0 && len >= 1 {
        step!(u8);
    }
    if dst.addr() & 2 != 0 && len >= 2 {
        step!(u16);
    }
    if dst.addr() & 4 != 0 && len >= 4 {
        step!(u32);
    }
    if dst.addr() & 8 != 0 && len >= 8 {
        step!(u64);
    }
    if len >= 16 && dst.addr().is_multiple_of(16) {
        let blocks = if len >= WIDE_BYTES_MIN && is_x86_feature_detected!("avx2") {
            // SAFETY: by the caller's contract; the processor has AVX2, and `dst` is aligned to 16.
            unsafe { copy_wide(dst, src, len) }
        } else {
            let blocks = len & !15;
            // SAFETY: by the caller's contract; `dst` is aligned to 16.
            unsafe { copy_blocks_of_16(dst, src, blocks, |at| _mm_loadu_si128(at.cast())) };
            blocks
        };
        // SAFETY: `blocks <= len`.
        unsafe {
            dst = dst.add(blocks);
            src = src.add(blocks);
        }
        len -= blocks;
    }
    // Either fewer than 16 bytes are left, or the alignment above stopped because fewer bytes than its step
    // were left. In both cases `dst` is aligned to every size that still fits.
    while len >= 8 {
        step!(u64);
    }
    if len >= 4 {
        step!(u32);
    }
    if len >= 2 {
        step!(u16);
    }
    if len >= 1 {
        // SAFETY: exactly one byte is left.
        unsafe { dst.write_volatile(src.read()) };
    }
}

/// Bytes of the target that are prefetched ahead of the stores. Stores leave the core one after the other,
/// and some processors request one line at a time for them. A copy into lines that are in another core's
/// cache then takes a full transfer for each line.
const PREFETCH_DISTANCE: usize = 1024;

/// Copies a multiple of 16 bytes, at most 15 short of `len`, and returns how many bytes.
///
/// # Safety
/// As [`copy_in_order`](super::copy_in_order); `dst` is aligned to 16 and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn copy_wide(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let mut at = 0;
    let block_16 = |at: usize| {
        // SAFETY: each caller below has checked that `at + 16 <= len`.
        unsafe {
            let block = _mm_loadu_si128(src.add(at).cast());
            dst.add(at).cast::<__m128i>().write_volatile(block);
        }
    };
    if dst.addr() & 16 != 0 && len >= 16 {
        block_16(at);
        at += 16;
    }
    let ahead = |at: usize| {
        if at < len {
            prefetch_write(dst.wrapping_add(at));
        }
    };
    for line in 0..PREFETCH_DISTANCE / 64 {
        ahead(line * 64);
    }
    while len - at >= 128 {
        ahead(at + PREFETCH_DISTANCE);
        ahead(at + PREFETCH_DISTANCE + 64);
        // SAFETY: 128 bytes are left, and the destination is aligned to 32.
        unsafe {
            let from = src.add(at).cast::<__m256i>();
            let to = dst.add(at).cast::<__m256i>();
            let blocks = [
                _mm256_loadu_si256(from),
                _mm256_loadu_si256(from.add(1)),
                _mm256_loadu_si256(from.add(2)),
                _mm256_loadu_si256(from.add(3)),
            ];
            to.write_volatile(blocks[0]);
            to.add(1).write_volatile(blocks[1]);
            to.add(2).write_volatile(blocks[2]);
            to.add(3).write_volatile(blocks[3]);
        }
        at += 128;
    }
    while len - at >= 16 {
        block_16(at);
        at += 16;
    }
    at
}

/// From this many bytes on, the string instruction is faster than a loop of stores.
const STRING_BYTES_MIN: usize = 2048;

/// # Safety
/// As [`copy_in_any_order`](super::copy_in_any_order).
#[inline]
pub(super) unsafe fn copy_in_any_order(dst: *mut u8, src: *const u8, len: usize) {
    if len < STRING_BYTES_MIN || !is_x86_feature_detected!("ermsb") {
        // SAFETY: by the caller's contract.
        return unsafe { copy_in_order(dst, src, len) };
    }
    // SAFETY: by the caller's contract. The direction flag is clear, as the ABI has it. The instruction's loads are
    // done, and its stores visible, before the stores of later instructions.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As [`copy_non_temporal`](super::copy_non_temporal).
pub(super) unsafe fn copy_non_temporal(dst: *mut u8, src: *const u8, len: usize) {
    const LINE: usize = 64;
    let head = dst.align_offset(LINE).min(len);
    let lines = (len - head) / LINE * LINE;
    // SAFETY: by the caller's contract; `head <= len`.
    unsafe { copy_in_order(dst, src, head) };
    let mut at = head;
    while at < head + lines {
        // SAFETY: 64 bytes are left, and the destination is aligned to 64. Every x86-64 processor has SSE2.
        unsafe {
            let from = src.add(at).cast::<__m128i>();
            let to = dst.add(at).cast::<__m128i>();
            let blocks = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, blocks[0]);
            _mm_stream_si128(to.add(1), blocks[1]);
            _mm_stream_si128(to.add(2), blocks[2]);
            _mm_stream_si128(to.add(3), blocks[3]);
        }
        at += LINE;
    }
    // Non-temporal stores are not ordered with any others until this fence.
    // SAFETY: every x86-64 processor has SSE.
    unsafe { _mm_sfence() };
    // SAFETY: by the caller's contract; `at <= len`.
    unsafe { copy_in_order(dst.add(at), src.add(at), len - at) };
}
