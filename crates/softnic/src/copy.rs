//! Moving bytes between registered memory: gather, scatter, atomics. (Which files of this crate may
//! have unsafe code is listed in `xtask/src/tidy.rs`.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use headworks_shm::SharedSegment;
use headworks_shm::ordered_copy::{self, copy_in_order, copy_non_temporal};

use crate::hostile::Extent;

/// A span of mapped memory that a translation has checked.
///
/// It exists only between the check and the copy, while the queue pair is marked as executing (so
/// that a deregistration waits) or the segment is kept.
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

    /// The bytes of an inline payload, to copy from only.
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

    /// As the kernel wants it.
    pub(crate) fn io_vec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.cast(),
            iov_len: self.len,
        }
    }

    /// Hints that it will be written soon.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self) {
        headworks_shm::ordered_copy::prefetch_write(self.start);
    }

    /// Hints that what follows it will be written next. Words alone are pointers: nothing follows.
    #[inline(always)]
    pub(crate) fn expect_next(&self) {
        const LINE: usize = 64;
        if self.len >= LINE {
            // Writing one line takes less time than the next one takes to come: it was asked for by
            // the WRITE before this, and this asks for the one after it.
            let ahead = if self.len == LINE { 2 * LINE } else { self.len };
            headworks_shm::ordered_copy::prefetch_write(self.start.wrapping_add(ahead));
        }
    }

    /// Whether it can be the target of an atomic.
    pub(crate) fn is_aligned_word(&self) -> bool {
        self.len == 8 && (self.start as usize).is_multiple_of(8)
    }

    /// How it lies.
    pub(crate) fn extent(&self) -> Extent {
        let (addr, len) = (self.start as usize, self.len);
        Extent { addr, len }
    }

    fn word(&self) -> &AtomicU64 {
        assert!(self.is_aligned_word());
        // SAFETY: mapped (by `new`'s contract), 8 bytes, aligned; only accessed as an atomic here,
        // and whoever writes it otherwise races as on any RDMA target.
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
    // What earlier requests placed is visible before this: devices declare that WRITEs are ordered.
    if !ordered_copy::IN_ORDER {
        fence(Ordering::Release);
    }
    // SAFETY: both spans are mapped for their length by `Span::new`'s contract. They may overlap
    // only if a program writes a region onto itself, which leaves it bytes of its own.
    unsafe { copy_in_order(to.start, from.start, from.len) };
}

/// [`copy_span`] past the caches: in no order until it is done.
fn stream_span(to: Span, from: Span) {
    debug_assert_eq!(to.len, from.len);
    if !ordered_copy::IN_ORDER {
        fence(Ordering::Release);
    }
    // SAFETY: as above.
    unsafe { copy_non_temporal(to.start, from.start, from.len) };
}

/// Copies `budget` bytes, or up to the end of a word beyond, from the spans `from` to the spans `to`,
/// both without their first `skip` bytes, in order. Returns how many it copied: fewer when either ran
/// out.
///
/// An aligned word of the target that is written whole is written at once, wherever the source or the
/// budget is cut: devices declare that.
pub(crate) fn copy_spans(to: &[Span], from: &[Span], skip: u64, budget: usize) -> usize {
    copy_by(copy_span, to, from, skip, budget)
}

/// [`copy_spans`] past the caches, and in order only with what comes before and after the call.
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
    let mut to = Walk::new(to, skip);
    let mut from = Walk::new(from, skip);
    let mut copied = 0;
    while copied < budget {
        let (Some(target), Some(source)) = (to.rest(), from.rest()) else {
            break;
        };
        let len = target.len.min(source.len).min(budget - copied);
        let step = match (target.start as usize + len) % WORD {
            // To the end of a word, or all that there is room for.
            0 => len,
            _ if len == target.len => len,
            // Up to the word that begins here; or that word.
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

/// [`copy_spans`] of a device that does not keep words whole, and exactly `budget` bytes.
pub(crate) fn copy_torn(to: &[Span], from: &[Span], skip: u64, budget: usize) -> usize {
    let mut to = Walk::new(to, skip);
    let mut from = Walk::new(from, skip);
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

/// Copies up to the end of the word in which `target` begins, where `to` stands, from as many pieces of
/// `from` as that takes. Returns how many bytes that were.
fn copy_word(target: &Span, to: &mut Walk<'_>, from: &mut Walk<'_>) -> usize {
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

/// What lies between `skip` and `skip + len` of the spans `of`, in `out`; says how many spans that is.
pub(crate) fn cut(of: &[Span], skip: u64, len: usize, out: &mut [Span]) -> usize {
    let mut walk = Walk::new(of, skip);
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
struct Walk<'a> {
    spans: &'a [Span],
    offset: usize,
}

impl<'a> Walk<'a> {
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

    /// What is left of the span it stands in; steps over empty and used-up ones.
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

/// A mapped address that may be handed between threads: what a cached translation holds.
#[derive(Clone)]
pub(crate) struct Mapped {
    start: usize,
    len: usize,
    _keep: Option<Arc<SharedSegment>>,
}

impl Mapped {
    /// # Safety
    ///
    /// `start` must point to `len` bytes mapped as long as `keep` lives, or, without it, as long
    /// as the registration lives whose `key` word the translation re-checks.
    pub(crate) unsafe fn new(start: *mut u8, len: usize, keep: Option<Arc<SharedSegment>>) -> Self {
        Self {
            start: start as usize,
            len,
            _keep: keep,
        }
    }

    /// `len` bytes that are not mapped here: of them there is no span.
    pub(crate) fn elsewhere(len: usize) -> Self {
        Self {
            start: len,
            len: 0,
            _keep: None,
        }
    }

    /// Whether `len` bytes from `offset` are in range of memory that is [`elsewhere`](Self::elsewhere).
    pub(crate) fn reaches(&self, offset: u64, len: usize) -> bool {
        len <= self.start && offset <= (self.start - len) as u64
    }

    /// How many bytes are mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `len` bytes from `offset`, if in range.
    #[inline(always)]
    pub(crate) fn span(&self, offset: u64, len: usize) -> Option<Span> {
        let inside = len <= self.len && offset <= (self.len - len) as u64;
        // SAFETY: in range of memory mapped under `Mapped::new`'s contract.
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
                // Read and wiped where they lie, through the pointers that the spans hold.
                for span in &to {
                    for at in 0..span.len {
                        // SAFETY: a byte of `to_bytes`, which nobody else touches.
                        let byte = unsafe { span.start.add(at).replace(0) };
                        let offset = span.start as usize + at - to_bytes.as_ptr() as usize;
                        prop_assert_eq!(byte, source[offset]);
                    }
                }
            }
        }
    }

    /// Whoever reads an aligned word while it is written sees all of it or nothing, however source and
    /// budget are cut.
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
            // SAFETY: the words outlive the spans, and are reached as atomics or by them.
            let (all, rest, odd) = unsafe {
                let rest = Span::new(base.add(WORD), (WORDS - 1) * WORD);
                let all = Span::new(base, WORDS * WORD);
                (all, rest, Span::new(odd.as_mut_ptr(), odd.len()))
            };
            // In one piece, and behind a piece that ends within a word.
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
