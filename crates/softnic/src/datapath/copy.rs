//! Moving bytes between registered memory: gather, scatter, atomics. (`xtask/src/tidy.rs` lists the files of
//! this crate that may have unsafe code.)

use std::sync::atomic::{AtomicU64, Ordering, fence};

use headworks_shm::ordered_copy::{self, copy_in_order, copy_non_temporal, copy_short_in_order};

use crate::hostile::Extent;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A span of mapped memory that a translation has checked.
///
/// A span exists only between the check and the copy. Meanwhile the queue pair is marked as executing, so
/// that a deregistration waits, or the segment is kept mapped.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    start: *mut u8,
    len: usize,
}

impl Span {
    /// # Safety
    ///
    /// `start` must point to `len` bytes that stay mapped and writable while the span is used.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Returns the bytes of an inline payload. They may only be copied from.
    #[inline(always)]
    pub(crate) fn of_inline(bytes: &[u8]) -> Self {
        Self {
            start: bytes.as_ptr().cast_mut(),
            len: bytes.len(),
        }
    }

    pub(crate) const EMPTY: Self = Self {
        start: std::ptr::null_mut(),
        len: 0,
    };

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the span as an `iovec` for a system call.
    pub(crate) fn io_vec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.cast(),
            iov_len: self.len,
        }
    }

    /// Prefetches the start of the span for writing.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self) {
        headworks_shm::ordered_copy::prefetch_write(self.start);
    }

    /// Prefetches the memory after the span, which the next WRITE probably targets. Skips spans shorter than
    /// a cache line: they are single words such as pointers, and no WRITE follows them.
    #[inline(always)]
    pub(crate) fn expect_next(&self) {
        if self.len >= LINE {
            // Writing one line takes less time than fetching the next. The WRITE before this one prefetched
            // the next line, so this one prefetches the line after it.
            let ahead = if self.len == LINE { 2 * LINE } else { self.len };
            headworks_shm::ordered_copy::prefetch_write(self.start.wrapping_add(ahead));
        }
    }

    /// Returns whether the span can be the target of an atomic.
    pub(crate) fn is_aligned_word(&self) -> bool {
        self.len == 8 && (self.start as usize).is_multiple_of(8)
    }

    /// Returns address and length, for fault injection.
    pub(crate) fn extent(&self) -> Extent {
        let (addr, len) = (self.start as usize, self.len);
        Extent { addr, len }
    }

    fn word(&self) -> &AtomicU64 {
        assert!(self.is_aligned_word());
        // SAFETY: the word is mapped (by `new`'s contract), has 8 bytes and is aligned. Here it is only
        // accessed as an atomic. A thread that writes it otherwise races, as on any RDMA target.
        unsafe { AtomicU64::from_ptr(self.start.cast()) }
    }

    /// Compare-and-swap; returns the old value.
    pub(crate) fn compare_swap(&self, expect: u64, swap: u64) -> u64 {
        let outcome =
            self.word()
                .compare_exchange(expect, swap, Ordering::AcqRel, Ordering::Acquire);
        outcome.unwrap_or_else(|old| old)
    }

    /// Fetch-and-add; returns the old value.
    pub(crate) fn fetch_add(&self, add: u64) -> u64 {
        self.word().fetch_add(add, Ordering::AcqRel)
    }
}

/// Copies one span onto another of the same length.
#[inline(always)]
pub(crate) fn copy_span(to: Span, from: Span) {
    debug_assert_eq!(to.len, from.len);
    // Makes earlier requests' bytes visible before these: devices declare that WRITEs are ordered.
    if !ordered_copy::IN_ORDER {
        fence(Ordering::Release);
    }
    // SAFETY: both spans are mapped for their length by `Span::new`'s contract. They may overlap
    // only if a program writes a region onto itself. Then the result is bytes of that region.
    unsafe { copy_in_order(to.start, from.start, from.len) };
}

/// Does what [`copy_span`] and [`Span::expect_next`] do, without a call, for a span that is [short](ordered_copy::is_short) and
/// aligned or an aligned word. Otherwise returns false and does nothing.
#[inline(always)]
pub(crate) fn copy_short_span(to: Span, from: Span) -> bool {
    match from.len {
        // Less of the code is left where the compiler knows the length.
        LINE => copy_short_span_of(LINE, to, from),
        len => copy_short_span_of(len, to, from),
    }
}

#[inline(always)]
fn copy_short_span_of(len: usize, to: Span, from: Span) -> bool {
    debug_assert!(to.len == len && from.len == len);
    if !ordered_copy::IN_ORDER {
        fence(Ordering::Release);
    }
    if ordered_copy::is_short(to.start, from.start, len) {
        // SAFETY: as in `copy_span`.
        unsafe { copy_short_in_order(to.start, from.start, len) };
        Span { len, ..to }.expect_next();
    } else if to.is_aligned_word() {
        // SAFETY: as in `copy_span`.
        unsafe { copy_in_order(to.start, from.start, size_of::<u64>()) };
    } else {
        return false;
    }
    true
}

/// [`copy_span`] with non-temporal stores. The bytes become visible in no defined order.
fn stream_span(to: Span, from: Span) {
    debug_assert_eq!(to.len, from.len);
    if !ordered_copy::IN_ORDER {
        fence(Ordering::Release);
    }
    // SAFETY: as in `copy_span`.
    unsafe { copy_non_temporal(to.start, from.start, from.len) };
}

/// Copies `budget` bytes, in order, from the spans `from` to the spans `to`, both without their first `skip`
/// bytes. It may copy a few more, up to the end of a word. Returns how many bytes it copied: fewer than
/// `budget` if either list ran out.
///
/// Stores an aligned word of the target with one store if all of it is written, wherever the source or the
/// budget is cut: devices declare that.
pub(crate) fn copy_spans(to: &[Span], from: &[Span], skip: u64, budget: usize) -> usize {
    copy_by(copy_span, to, from, skip, budget)
}

/// [`copy_spans`] with non-temporal stores. Bytes are ordered only against those before and after the call.
pub(crate) fn stream_spans(to: &[Span], from: &[Span], skip: u64, budget: usize) -> usize {
    copy_by(stream_span, to, from, skip, budget)
}

#[inline(always)]
fn copy_by(
    copy: impl Fn(Span, Span),
    to: &[Span],
    from: &[Span],
    skip: u64,
    budget: usize,
) -> usize {
    let mut to = SpanCursor::new(to, skip);
    let mut from = SpanCursor::new(from, skip);
    let mut copied = 0;
    while copied < budget {
        let (Some(target), Some(source)) = (to.rest(), from.rest()) else {
            break;
        };
        let len = target.len.min(source.len).min(budget - copied);
        let step = match (target.start as usize + len) % WORD {
            // The copy ends at the end of a word, or at the end of the target span.
            0 => len,
            _ if len == target.len => len,
            // Stop before the word that is only partly covered. If the copy begins in that word, copy the
            // word on its own.
            tail if tail < len => len - tail,
            _ => 0,
        };
        if step > 0 {
            copy(
                Span {
                    len: step,
                    ..target
                },
                Span {
                    len: step,
                    ..source
                },
            );
            to.advance(step);
            from.advance(step);
            copied += step;
        } else {
            copied += copy_word(&target, &mut to, &mut from);
        }
    }
    copied
}

/// [`copy_spans`] of a device that may tear words. It never copies more than `budget` bytes.
pub(crate) fn copy_torn(to: &[Span], from: &[Span], skip: u64, budget: usize) -> usize {
    let mut to = SpanCursor::new(to, skip);
    let mut from = SpanCursor::new(from, skip);
    let mut copied = 0;
    while let (Some(target), Some(source)) = (to.rest(), from.rest())
        && copied < budget
    {
        let len = target.len.min(source.len).min(budget - copied);
        copy_span(Span { len, ..target }, Span { len, ..source });
        to.advance(len);
        from.advance(len);
        copied += len;
    }
    copied
}

const WORD: usize = 8;

/// Copies up to the end of the word in which `target`, the rest of `to`, begins. It gathers from as many
/// spans of `from` as that takes. Returns how many bytes it copied.
fn copy_word(target: &Span, to: &mut SpanCursor<'_>, from: &mut SpanCursor<'_>) -> usize {
    let room = (WORD - target.start as usize % WORD).min(target.len);
    let mut word = [0_u8; WORD];
    let mut len = 0;
    while len < room
        && let Some(source) = from.rest()
    {
        let part = source.len.min(room - len);
        let gathered = Span {
            start: word.as_mut_ptr().wrapping_add(len),
            len: part,
        };
        copy_span(
            gathered,
            Span {
                len: part,
                ..source
            },
        );
        from.advance(part);
        len += part;
    }
    let gathered = Span {
        start: word.as_mut_ptr(),
        len,
    };
    copy_span(Span { len, ..*target }, gathered);
    to.advance(len);
    len
}

/// Writes to `out` the spans that cover bytes `skip..skip + len` of `of`. Returns how many spans it wrote.
pub(crate) fn cut(of: &[Span], skip: u64, len: usize, out: &mut [Span]) -> usize {
    let mut walk = SpanCursor::new(of, skip);
    let (mut count, mut left) = (0, len);
    for out in out {
        let Some(rest) = walk.rest().filter(|_| left > 0) else {
            break;
        };
        let len = rest.len.min(left);
        *out = Span { len, ..rest };
        walk.advance(len);
        left -= len;
        count += 1;
    }
    count
}

/// A position in a list of spans.
struct SpanCursor<'a> {
    spans: &'a [Span],
    offset: usize,
}

impl<'a> SpanCursor<'a> {
    fn new(spans: &'a [Span], skip: u64) -> Self {
        let mut walk = Self { spans, offset: 0 };
        let mut skip = skip as usize;
        while let Some(rest) = walk.rest().filter(|_| skip > 0) {
            let step = rest.len.min(skip);
            walk.advance(step);
            skip -= step;
        }
        walk
    }

    /// Returns the rest of the current span. Skips spans that are empty or used up.
    fn rest(&mut self) -> Option<Span> {
        while let Some(span) = self.spans.first() {
            if self.offset < span.len {
                let start = span.start.wrapping_add(self.offset);
                return Some(Span {
                    start,
                    len: span.len - self.offset,
                });
            }
            self.spans = &self.spans[1..];
            self.offset = 0;
        }
        None
    }

    fn advance(&mut self, len: usize) {
        self.offset += len;
    }
}

/// Address and length of mapped memory, as cached translations hold them. May be sent between threads.
pub(crate) struct MappedAddress {
    start: usize,
    len: usize,
}

impl MappedAddress {
    /// # Safety
    ///
    /// `start` must point to `len` bytes that stay mapped while spans of the result are used.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        let start = start as usize;
        Self { start, len }
    }

    /// Describes `len` bytes that are not mapped in this process. [`span`](Self::span) returns `None` for
    /// them.
    pub(crate) fn elsewhere(len: usize) -> Self {
        Self { start: len, len: 0 }
    }

    /// Returns whether `len` bytes from `offset` are in range of memory that is
    /// [`elsewhere`](Self::elsewhere).
    pub(crate) fn reaches(&self, offset: u64, len: usize) -> bool {
        len <= self.start && offset <= (self.start - len) as u64
    }

    /// Returns how many bytes are mapped in this process.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns `len` bytes from `offset`, if in range.
    #[inline(always)]
    pub(crate) fn span(&self, offset: u64, len: usize) -> Option<Span> {
        // One addition and one comparison; a sum that overflows is not inside.
        let end = offset.checked_add(len as u64);
        let inside = end.is_some_and(|end| end <= self.len as u64);
        // SAFETY: in range of memory mapped under `MappedAddress::new`'s contract.
        inside.then(|| unsafe { Span::new((self.start + offset as usize) as *mut u8, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans(bytes: &mut [u8], cuts: &[usize]) -> Vec<Span> {
        let mut rest = bytes;
        let mut spans = Vec::new();
        for cut in cuts {
            let (head, tail) = rest.split_at_mut((*cut).min(rest.len()));
            // SAFETY: the slice outlives the spans in each test.
            spans.push(unsafe { Span::new(head.as_mut_ptr(), head.len()) });
            rest = tail;
        }
        // SAFETY: as above.
        spans.push(unsafe { Span::new(rest.as_mut_ptr(), rest.len()) });
        spans
    }

    proptest! {
        #[test]
        fn gather_scatter_in_any_chunks_is_a_plain_copy(
            source in proptest::collection::vec(any::<u8>(), 0..400),
            to_cuts in proptest::collection::vec(0usize..90, 0..5),
            from_cuts in proptest::collection::vec(0usize..90, 0..5),
            budget in 1usize..200,
        ) {
            let mut from_bytes = source.clone();
            let mut to_bytes = vec![0; source.len()];
            let from = spans(&mut from_bytes, &from_cuts);
            let to = spans(&mut to_bytes, &to_cuts);
            for copy in [copy_spans, stream_spans] {
                let mut done = 0;
                loop {
                    let step = copy(&to, &from, done, budget);
                    done += step as u64;
                    if step == 0 { break }
                    prop_assert!(step < budget + WORD);
                }
                prop_assert_eq!(done as usize, source.len());
                // Read and cleared through the pointers that the spans hold.
                for span in &to {
                    for at in 0..span.len {
                        // SAFETY: a byte of `to_bytes`, which nothing else accesses now.
                        let byte = unsafe { span.start.add(at).replace(0) };
                        let offset = span.start as usize + at - to_bytes.as_ptr() as usize;
                        prop_assert_eq!(byte, source[offset]);
                    }
                }
            }
        }
    }

    /// A reader of an aligned word sees all of the new word or nothing, however source and budget are cut.
    #[test]
    fn words_of_the_target_are_written_whole() {
        const WORDS: usize = 4;
        let target = [const { AtomicU64::new(0) }; WORDS];
        let base = target.as_ptr().cast_mut().cast::<u8>();
        let cuts_and_budgets = (1..WORD).flat_map(|cut| [3, 5, 8, 13, 64].map(|b| (cut, b)));
        for (cut, budget) in cuts_and_budgets {
            let mut source: Vec<u8> = (1..=(WORDS * WORD) as u8).collect();
            let from = spans(&mut source, &[cut, 1, WORD, 2]);
            let mut odd = [0; 5];
            // SAFETY: the words outlive the spans. They are accessed only as atomics or through the spans.
            let (all, rest, odd) = unsafe {
                let rest = Span::new(base.add(WORD), (WORDS - 1) * WORD);
                let all = Span::new(base, WORDS * WORD);
                (all, rest, Span::new(odd.as_mut_ptr(), odd.len()))
            };
            // One span; and a span behind one that ends within a word.
            for to in [&[all][..], &[odd, rest]] {
                for word in &target {
                    word.store(0, Ordering::Relaxed);
                }
                let len: usize = to.iter().map(Span::len).sum();
                let mut done = 0;
                while done < len {
                    done += copy_spans(to, &from, done as u64, budget);
                    for word in &target {
                        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                        let there = bytes.iter().filter(|byte| **byte != 0).count();
                        assert!(there % WORD == 0, "{bytes:?} with {cut} and {budget}");
                    }
                }
            }
        }
    }
}
