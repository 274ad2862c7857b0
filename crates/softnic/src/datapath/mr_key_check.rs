//! Translation of key and address to mapped memory: checked as a NIC checks them, and cached per queue pair.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::SharedSegment;
use headworks_verbs::{Access, Sge};

use crate::datapath::copy::{MappedAddress, Span};
use crate::datapath::cross_process_copy::RemoteRange;
use crate::datapath::remote_memory::RemoteSpan;
use crate::table::local_mrs::{KeyWord, LocalMrs};
use crate::table::peer::Peer;
use crate::table::rows::{NO_ROW, RegionRow, RowRef, SegmentOffset};

/// Returns the `key` word of a region's row while `key` is valid: the row's generation and the key. The key
/// has only the low bits of the generation; no two registrations have the same word.
pub(crate) const fn valid(generation: u32, key: u32) -> u64 {
    (generation as u64) << 32 | key as u64
}

/// Returns whether a `key` word says that `key` is valid. Generations begin at 1.
const fn is_valid(word: u64, key: u32) -> bool {
    word >> 32 != 0 && word as u32 == key
}

/// An address was refused. The resulting status depends on whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// Cache of the last few regions that a queue pair used on one side.
///
/// Most queue pairs use one region, and there may be thousands of queue pairs. So memory for more entries is
/// allocated only when a second region is used.
#[derive(Default)]
pub(crate) struct MrKeyCheck {
    /// The first region used, as long as it is valid. Until then, a translation that is never valid.
    first: CachedMr,
    more: Option<Box<[Option<CachedMr>; WAYS]>>,
}

const WAYS: usize = 8;

/// The translation of one key.
pub(crate) struct CachedMr {
    life: MrLiveness,
    access: Access,
    /// Whether the memory is mapped only in its own process.
    across: bool,
    addr: u64,
    mapped: MappedAddress,
    _holder: Holder,
}

// Each engine has two, and there may be thousands of queue pairs.
const _: () = assert!(size_of::<CachedMr>() <= 64);

/// Shows whether the registration is still the one that was read: as long as it is, a word has the value `expect`.
struct MrLiveness {
    word: NonNull<AtomicU64>,
    expect: u64,
}

/// Keeps in memory what a translation points to: the word of its liveness and, for a peer's region, the region's segment.
enum Holder {
    /// A peer's table; and the segment, if the region is mapped here.
    Theirs(
        #[expect(dead_code, reason = "held")] Arc<SharedSegment>,
        #[expect(dead_code, reason = "held")] Option<Arc<SharedSegment>>,
    ),
    /// This process's registration. `None` for the translation that is never valid, whose word is static.
    Ours(#[expect(dead_code, reason = "held")] Option<Arc<AtomicU64>>),
}

// SAFETY: the word is an atomic, and the translation's `_holder` keeps it in memory.
unsafe impl Send for MrLiveness {}
// SAFETY: as above.
unsafe impl Sync for MrLiveness {}

/// Word of a translation that is never valid.
static NEVER: AtomicU64 = AtomicU64::new(1);

impl MrLiveness {
    /// For the registration of a peer, as long as its row has this `key` word.
    fn theirs(row: &RowRef<RegionRow>, expect: u64) -> Self {
        let word = NonNull::from(&row.key);
        Self { word, expect }
    }

    /// For a registration of this process. Its row is not used: peers can write it.
    fn ours(word: &KeyWord) -> Self {
        Self {
            word: NonNull::from(&**word.now()),
            expect: word.registered(),
        }
    }

    fn never() -> Self {
        Self {
            word: NonNull::from(&NEVER),
            expect: 0,
        }
    }

    #[inline(always)]
    fn is_live(&self) -> bool {
        // SAFETY: the word is static, or the translation's `_holder` keeps it in memory.
        let word = unsafe { self.word.as_ref() };
        word.load(Ordering::Acquire) == self.expect
    }
}

impl MrKeyCheck {
    /// Returns `len` bytes at `addr` under `key`, if the translation is cached, still valid, and allows
    /// `need`. Regions of other protection domains are never cached.
    #[inline(always)]
    pub(crate) fn cached(&self, key: u32, addr: u64, len: usize, need: Access) -> Option<Span> {
        let entry = self.known(key)?;
        if !entry.is_live() || !entry.access.contains(need) {
            return None;
        }
        entry.mapped.span(addr.wrapping_sub(entry.addr), len)
    }

    /// Whether the region of `key` has these flags, if its translation is cached.
    pub(crate) fn allows(&self, key: u32, flags: Access) -> bool {
        self.known(key)
            .is_some_and(|entry| entry.access.contains(flags))
    }

    /// Prefetches the memory of `sge` for writing, if its translation is cached.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self, sge: &Sge) {
        if let Some(span) = self.cached(sge.lkey, sge.addr, 1, Access::LOCAL_WRITE) {
            span.prefetch_write();
        }
    }

    /// Returns how many bytes the region read under `key` has, if it is mapped here; else 0.
    pub(crate) fn region_len(&self, key: u32) -> usize {
        self.known(key).map_or(0, |entry| entry.mapped.len())
    }

    /// Returns the first translation, if it is that of `key` and allows `need`.
    pub(crate) fn first(&self, key: u32, need: Access) -> Option<&CachedMr> {
        let is_it = self.first.key() == key && self.first.access.contains(need);
        is_it.then_some(&self.first)
    }

    /// Returns `len` bytes at `addr` under `key`, if the first translation is that of the key and still valid. The caller has
    /// checked the access rights.
    #[inline(always)]
    pub(crate) fn first_span(&self, key: u32, addr: u64, len: usize) -> Option<Span> {
        if self.first.key() != key || !self.first.is_live() {
            return None;
        }
        self.first
            .mapped
            .span(addr.wrapping_sub(self.first.addr), len)
    }

    /// Returns the entry read under `key`, valid or not.
    #[inline(always)]
    fn known(&self, key: u32) -> Option<&CachedMr> {
        match self.first.key() == key {
            true => Some(&self.first),
            false => self.further(key),
        }
    }

    /// Returns whether memory for more than one entry is allocated.
    #[cfg(test)]
    pub(crate) fn has_more(&self) -> bool {
        self.more.is_some()
    }

    #[inline(always)]
    fn further(&self, key: u32) -> Option<&CachedMr> {
        let entry = self.more.as_ref()?[key as usize % WAYS].as_ref()?;
        (entry.key() == key).then_some(entry)
    }

    fn keep(&mut self, key: u32, entry: CachedMr) {
        if self.first.key() == key || !self.first.is_live() {
            self.first = entry;
        } else {
            self.more.get_or_insert_default()[key as usize % WAYS] = Some(entry);
        }
    }

    /// Returns `len` bytes at `addr` under `key`, in the memory of the context `peer`. Refuses a region of a
    /// protection domain other than `pd`.
    pub(crate) fn far(
        &mut self,
        peer: &Peer,
        (key, pd): (u32, u32),
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<RemoteSpan, Refused> {
        if let Some(span) = self.cached(key, addr, len, need) {
            return Ok(RemoteSpan::Mapped(span));
        }
        if let Some(entry) = self.known(key)
            && entry.across
            && entry.is_live()
            && entry.access.contains(need)
        {
            return entry.far(peer, key, addr, len).ok_or(Refused);
        }
        self.miss(peer, (key, pd), addr, len, need)
    }

    /// Returns `len` bytes at `addr` under `key` in this context's own memory, which is always mapped here.
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
            RemoteSpan::Mapped(span) => Ok(span),
            RemoteSpan::Across { .. } => Err(Refused),
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
    ) -> Result<RemoteSpan, Refused> {
        let entry = CachedMr::load(peer, key, pd).ok_or(Refused)?;
        let allowed = entry.access.contains(need);
        let far = entry.far(peer, key, addr, len);
        self.keep(key, entry);
        if allowed {
            far.ok_or(Refused)
        } else {
            Err(Refused)
        }
    }

    /// Writes to `out` the memory of `peer` that a receive names. Empty entries are legal under any key.
    pub(crate) fn far_list(
        &mut self,
        peer: &Peer,
        pd: u32,
        sges: &[Sge],
        need: Access,
        out: &mut [RemoteSpan],
    ) -> Result<(), Refused> {
        for (sge, out) in sges.iter().zip(out) {
            *out = match sge.len {
                0 => RemoteSpan::EMPTY,
                len => self.far(peer, (sge.lkey, pd), sge.addr, len as usize, need)?,
            };
        }
        Ok(())
    }

    /// Writes to `out` the spans of this process's own scatter/gather list, and returns their total length.
    /// Empty entries are legal under any key.
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

impl Default for CachedMr {
    /// A translation that is never valid.
    fn default() -> Self {
        Self {
            life: MrLiveness::never(),
            access: Access::NONE,
            across: false,
            addr: 0,
            mapped: MappedAddress::elsewhere(0),
            _holder: Holder::Ours(None),
        }
    }
}

impl CachedMr {
    /// Returns whether the registration is still the one that was read.
    #[inline(always)]
    fn is_live(&self) -> bool {
        self.life.is_live()
    }

    /// Returns the key, which is in the word of its liveness.
    #[inline(always)]
    fn key(&self) -> u32 {
        self.life.expect as u32
    }

    /// Returns `len` bytes at `addr`, if the region has them. `peer` is the context that it was read from.
    fn far(&self, peer: &Peer, key: u32, addr: u64, len: usize) -> Option<RemoteSpan> {
        let offset = addr.wrapping_sub(self.addr);
        if !self.across {
            return self.mapped.span(offset, len).map(RemoteSpan::Mapped);
        }
        let distance = peer.table.region(key).offset.load(Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Acquire);
        // The distance is of this registration only if the registration still lasts.
        (self.is_live() && self.mapped.reaches(offset, len)).then_some(RemoteSpan::Across {
            key,
            stretch: RemoteRange { addr, len },
            distance,
        })
    }

    /// Reads a region's row. Its fields belong together only if the key is the same before and after.
    fn load(peer: &Peer, key: u32, pd: u32) -> Option<Self> {
        if let Some(local_mrs) = peer.local_mrs() {
            return Self::own(local_mrs, (key, pd));
        }
        let row = peer.table.held_region(key);
        let word = row.key.load(Ordering::Acquire);
        if !is_valid(word, key) {
            return None;
        }
        let at = SegmentOffset {
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
        let (mapped, segment) = if across {
            (MappedAddress::elsewhere(len), None)
        } else {
            let (start, segment) = peer.memory(at, len)?;
            // SAFETY: `memory` checked the range against the mapping that `segment` holds, which the entry keeps.
            let mapped = unsafe { MappedAddress::new(start, len) };
            (mapped, Some(segment))
        };
        Some(Self {
            life: MrLiveness::theirs(&row, word),
            access,
            across,
            addr,
            mapped,
            _holder: Holder::Theirs(row.into_table(), segment),
        })
    }

    /// Looks up a registration of this process. Its row is not trusted: peers can write it, and this process
    /// uses the memory at its plain address.
    fn own(local_mrs: &LocalMrs, (key, pd): (u32, u32)) -> Option<Self> {
        let area = local_mrs.find(key).filter(|area| area.pd == pd)?;
        // SAFETY: a buffer is mapped at its address at least until it is deregistered and uses in flight are
        // over. By then its word has another value, so the entry is not used. Keeping the buffer here would only delay
        // its release.
        let mapped = unsafe { MappedAddress::new(area.mapped as *mut u8, area.len) };
        Some(Self {
            life: MrLiveness::ours(&area.word),
            access: area.access,
            across: false,
            addr: area.start as u64,
            mapped,
            _holder: Holder::Ours(Some(area.word.now().clone())),
        })
    }
}
