//! Key and address to mapped memory, checked as a NIC checks them and cached per queue pair.

use std::sync::atomic::Ordering;

use headworks_verbs::{Access, Sge};

use crate::copy::{Mapped, Span};
use crate::peer::Peer;
use crate::table::{Held, PlaceOf, RegionRow};

/// The `key` word of a region's row while `key` is valid: which use of the row this is, which the
/// key itself has only the low bits of, and the key. No two registrations have the same.
pub(crate) const fn valid(generation: u32, key: u32) -> u64 {
    (generation as u64) << 32 | key as u64
}

/// Whether a `key` word says that `key` is valid. Generations begin at 1.
const fn is_valid(word: u64, key: u32) -> bool {
    word >> 32 != 0 && word as u32 == key
}

/// Why an address was refused. Which status that becomes depends on whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The last few regions that a queue pair used on one side.
#[derive(Default)]
pub(crate) struct Translations {
    entries: [Option<Entry>; WAYS],
}

const WAYS: usize = 8;

struct Entry {
    row: Held<RegionRow>,
    /// The region's `key` word: as long as the row has it, it is the same registration.
    word: u64,
    access: Access,
    addr: u64,
    mapped: Mapped,
}

impl Translations {
    /// `len` bytes at `addr` under `key`, if the translation is known, still valid, and allows it.
    /// Regions of other protection domains are never known here.
    #[inline(always)]
    pub(crate) fn cached(&self, key: u32, addr: u64, len: usize, need: Access) -> Option<Span> {
        let entry = self.entries[key as usize % WAYS].as_ref()?;
        let live = entry.row.key.load(Ordering::Acquire) == entry.word;
        if entry.word as u32 != key || !live || !entry.access.contains(need) {
            return None;
        }
        entry.mapped.span(addr.wrapping_sub(entry.addr), len)
    }

    /// `len` bytes at `addr` under `key`, of the context that `peer` is. A region of another
    /// protection domain than `pd` is refused.
    pub(crate) fn span(
        &mut self,
        peer: &Peer,
        (key, pd): (u32, u32),
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Span, Refused> {
        if let Some(span) = self.cached(key, addr, len, need) {
            return Ok(span);
        }
        self.miss(peer, (key, pd), addr, len, need)
    }

    #[cold]
    fn miss(
        &mut self,
        peer: &Peer,
        (key, pd): (u32, u32),
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Span, Refused> {
        let entry = Entry::load(peer, key, pd).ok_or(Refused)?;
        let allowed = entry.access.contains(need);
        let span = entry.mapped.span(addr.wrapping_sub(entry.addr), len);
        self.entries[key as usize % WAYS] = Some(entry);
        if allowed {
            span.ok_or(Refused)
        } else {
            Err(Refused)
        }
    }

    /// The spans of a scatter/gather list, in `out`. Empty entries are legal under any key.
    pub(crate) fn list(
        &mut self,
        peer: &Peer,
        pd: u32,
        sges: &[Sge],
        need: Access,
        out: &mut [Span],
    ) -> Result<u64, Refused> {
        let mut total = 0;
        for (sge, out) in sges.iter().zip(out) {
            *out = match sge.len {
                0 => Span::EMPTY,
                len => self.span(peer, (sge.lkey, pd), sge.addr, len as usize, need)?,
            };
            total += u64::from(sge.len);
        }
        Ok(total)
    }
}

impl Entry {
    /// Reads a region's row, whose fields belong together only if the key is the same before and
    /// after.
    fn load(peer: &Peer, key: u32, pd: u32) -> Option<Self> {
        let row = peer.table.held_region(key);
        let word = row.key.load(Ordering::Acquire);
        if !is_valid(word, key) {
            return None;
        }
        let at = PlaceOf {
            segment: row.segment.load(Ordering::Relaxed),
            generation: row.segment_generation.load(Ordering::Relaxed),
            offset: row.offset.load(Ordering::Relaxed) as usize,
        };
        let len = row.len.load(Ordering::Relaxed) as usize;
        let addr = row.addr.load(Ordering::Relaxed);
        let access = Access::from_bits_truncate(row.access.load(Ordering::Relaxed));
        let same_pd = row.pd.load(Ordering::Relaxed) == pd;
        std::sync::atomic::fence(Ordering::Acquire);
        if row.key.load(Ordering::Relaxed) != word || !same_pd {
            return None;
        }
        let (start, keep) = peer.memory(at, len)?;
        // Our own memory stays mapped while the row has this word, which is checked before each use
        // and never comes again, and until uses in flight are over: keeping it would only delay its
        // release.
        let keep = (!peer.is_own()).then_some(keep);
        // SAFETY: `memory` checked the range against the mapping that `keep`, or the key, holds.
        let mapped = unsafe { Mapped::new(start, len, keep) };
        Some(Self {
            row,
            word,
            access,
            addr,
            mapped,
        })
    }
}
