//! Key and address to mapped memory, checked as a NIC checks them and cached per queue pair.

use std::sync::atomic::Ordering;

use headworks_verbs::{Access, Sge};

use crate::copy::{Mapped, Span};
use crate::cross_process_copy::Stretch;
use crate::local_mrs::{Ended, Private};
use crate::peer::Peer;
use crate::remote_memory::Far;
use crate::table::{Held, NO_ROW, PlaceOf, RegionRow};

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
///
/// Most queue pairs use one, and there may be thousands of queue pairs: there is room for more once
/// a second one is used.
#[derive(Default)]
pub(crate) struct MrLookup {
    /// The first one that was used, as long as it is valid.
    first: Option<Entry>,
    more: Option<Box<[Option<Entry>; WAYS]>>,
}

const WAYS: usize = 8;

struct Entry {
    life: Life,
    key: u32,
    access: Access,
    /// Its memory is mapped in its own process only.
    across: bool,
    addr: u64,
    mapped: Mapped,
}

/// What says that the registration is the one that was read.
enum Life {
    /// A peer's: as long as the row has that `key` word.
    Theirs(Held<RegionRow>, u64),
    /// Our own: others can write its row.
    Ours(Ended),
}

impl MrLookup {
    /// `len` bytes at `addr` under `key`, if the translation is known, still valid, and allows it.
    /// Regions of other protection domains are never known here.
    #[inline(always)]
    pub(crate) fn cached(&self, key: u32, addr: u64, len: usize, need: Access) -> Option<Span> {
        let entry = self.known(key)?;
        if !entry.is_live() || !entry.access.contains(need) {
            return None;
        }
        entry.mapped.span(addr.wrapping_sub(entry.addr), len)
    }

    /// Hints that the memory of `sge`, if it is known, will be written soon.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self, sge: &Sge) {
        if let Some(span) = self.cached(sge.lkey, sge.addr, 1, Access::LOCAL_WRITE) {
            span.prefetch_write();
        }
    }

    /// Bytes of the region that was read under `key`, of which all are mapped here; 0 if there is none.
    pub(crate) fn region_len(&self, key: u32) -> usize {
        self.known(key).map_or(0, |entry| entry.mapped.len())
    }

    /// What was read under `key`, valid or not any more.
    #[inline(always)]
    fn known(&self, key: u32) -> Option<&Entry> {
        match &self.first {
            Some(first) if first.key == key => Some(first),
            _ => self.further(key),
        }
    }

    /// Whether there is room for more than one.
    #[cfg(test)]
    pub(crate) fn has_more(&self) -> bool {
        self.more.is_some()
    }

    #[inline(always)]
    fn further(&self, key: u32) -> Option<&Entry> {
        let entry = self.more.as_ref()?[key as usize % WAYS].as_ref()?;
        (entry.key == key).then_some(entry)
    }

    fn keep(&mut self, key: u32, entry: Entry) {
        let place = match &mut self.first {
            Some(first) if first.key != key && first.is_live() => {
                &mut self.more.get_or_insert_default()[key as usize % WAYS]
            }
            first => first,
        };
        *place = Some(entry);
    }

    /// `len` bytes at `addr` under `key`, of the context that `peer` is. A region of another
    /// protection domain than `pd` is refused.
    pub(crate) fn far(
        &mut self,
        peer: &Peer,
        (key, pd): (u32, u32),
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Far, Refused> {
        if let Some(span) = self.cached(key, addr, len, need) {
            return Ok(Far::Mapped(span));
        }
        if let Some(entry) = self.known(key)
            && entry.across
            && entry.is_live()
            && entry.access.contains(need)
        {
            return entry.far(key, addr, len).ok_or(Refused);
        }
        self.miss(peer, (key, pd), addr, len, need)
    }

    /// `len` bytes at `addr` under `key`, of this context's memory, `own`: all of it is mapped here.
    pub(crate) fn span(
        &mut self,
        own: &Peer,
        (key, pd): (u32, u32),
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Span, Refused> {
        if let Some(span) = self.cached(key, addr, len, need) {
            return Ok(span);
        }
        match self.miss(own, (key, pd), addr, len, need)? {
            Far::Mapped(span) => Ok(span),
            Far::Across { .. } => Err(Refused),
        }
    }

    #[cold]
    fn miss(
        &mut self,
        peer: &Peer,
        (key, pd): (u32, u32),
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Far, Refused> {
        let entry = Entry::load(peer, key, pd).ok_or(Refused)?;
        let allowed = entry.access.contains(need);
        let far = entry.far(key, addr, len);
        self.keep(key, entry);
        if allowed {
            far.ok_or(Refused)
        } else {
            Err(Refused)
        }
    }

    /// The places that a receive of `peer` names, in `out`. Empty entries are legal under any key.
    pub(crate) fn far_list(
        &mut self,
        peer: &Peer,
        pd: u32,
        sges: &[Sge],
        need: Access,
        out: &mut [Far],
    ) -> Result<(), Refused> {
        for (sge, out) in sges.iter().zip(out) {
            *out = match sge.len {
                0 => Far::EMPTY,
                len => self.far(peer, (sge.lkey, pd), sge.addr, len as usize, need)?,
            };
        }
        Ok(())
    }

    /// The spans of our own scatter/gather list, in `out`. Empty entries are legal under any key.
    pub(crate) fn list(
        &mut self,
        own: &Peer,
        pd: u32,
        sges: &[Sge],
        need: Access,
        out: &mut [Span],
    ) -> Result<u64, Refused> {
        let mut total = 0;
        for (sge, out) in sges.iter().zip(out) {
            *out = match sge.len {
                0 => Span::EMPTY,
                len => self.span(own, (sge.lkey, pd), sge.addr, len as usize, need)?,
            };
            total += u64::from(sge.len);
        }
        Ok(total)
    }
}

impl Entry {
    /// Whether the registration is the one that was read.
    #[inline(always)]
    fn is_live(&self) -> bool {
        match &self.life {
            Life::Theirs(row, word) => row.key.load(Ordering::Acquire) == *word,
            Life::Ours(ended) => !ended.get(),
        }
    }

    /// `len` bytes at `addr`, if the region has them.
    fn far(&self, key: u32, addr: u64, len: usize) -> Option<Far> {
        let offset = addr.wrapping_sub(self.addr);
        if !self.across {
            return self.mapped.span(offset, len).map(Far::Mapped);
        }
        let stretch = Stretch { addr, len };
        self.mapped
            .reaches(offset, len)
            .then_some(Far::Across { key, stretch })
    }

    /// Reads a region's row, whose fields belong together only if the key is the same before and
    /// after.
    fn load(peer: &Peer, key: u32, pd: u32) -> Option<Self> {
        if let Some(private) = peer.private() {
            return Self::own(private, (key, pd));
        }
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
        let across = at.segment == NO_ROW;
        let mapped = if across {
            Mapped::elsewhere(len)
        } else {
            let (start, keep) = peer.memory(at, len)?;
            // SAFETY: `memory` checked the range against the mapping that `keep` holds.
            unsafe { Mapped::new(start, len, Some(keep)) }
        };
        Some(Self {
            life: Life::Theirs(row, word),
            key,
            access,
            across,
            addr,
            mapped,
        })
    }

    /// A registration of our own. Its row is not believed: others can write it, and here the memory is
    /// used at its plain address.
    fn own(private: &Private, (key, pd): (u32, u32)) -> Option<Self> {
        let area = private.find(key).filter(|area| area.pd == pd)?;
        // SAFETY: a buffer is mapped where it says, at least until it is not registered any more and
        // uses in flight are over; it has ended then. Keeping it would only delay its release.
        let mapped = unsafe { Mapped::new(area.start as *mut u8, area.len, None) };
        Some(Self {
            life: Life::Ours(area.ended),
            key,
            access: area.access,
            across: false,
            addr: area.start as u64,
            mapped,
        })
    }
}
