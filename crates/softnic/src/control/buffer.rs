//! Buffers and regions. Deregistration waits until no initiator uses the memory. If an initiator is stopped,
//! deregistration puts the memory into quarantine instead.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::{HugePages, PageKind, asymmetric_fence};
use headworks_verbs::{Access, AllocRequest, Buffer, Pages, Region, ResourceError};

use crate::datapath::context::{Context, ContextRelease};
use crate::datapath::mr_key_check::valid;
use crate::datapath::qp::QueuePairs;
use crate::datapath::quarantine::Quarantined;
use crate::table::arena::{ArenaAllocation, SegmentKind};
use crate::table::local_mrs::{KeyWord, LocalMr};
use crate::table::row_allocator::Rows;
use crate::table::rows::{MAX_REGION, NO_ROW, SegmentOffset};

/// Memory allocated from the device. It lies in a shared segment.
pub(crate) struct SoftBuffer {
    // Dropped before `_notice`, which peers act on.
    piece: ArenaAllocation,
    len: usize,
    _notice: FreedNotice,
}

/// Wakes the peers when a segment has been freed, so that they unmap it: it stays allocated while one of them has it
/// mapped.
struct FreedNotice {
    /// `None` if the memory is part of a segment that stays.
    context: Option<Weak<Context>>,
}

impl Drop for FreedNotice {
    fn drop(&mut self) {
        let context = self.context.as_ref().and_then(Weak::upgrade);
        if let Some(context) = context.filter(|context| !context.arena.is_foreign()) {
            context.peers.kick();
        }
    }
}

// SAFETY: the allocation has at least `len` bytes of a mapped segment, and keeps the segment until dropped.
#[allow(unsafe_code)]
unsafe impl Buffer for SoftBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.piece.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn pages(&self) -> Pages {
        match self.piece.segment().pages() {
            PageKind::Ordinary => Pages::Ordinary,
            PageKind::Advised | PageKind::Huge => Pages::PreferHuge,
        }
    }

    fn has_reserved_huge_pages(&self) -> bool {
        self.piece.segment().pages() == PageKind::Huge
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.piece.is_alone().then(|| self.piece.segment().fd())
    }

    fn file_offset(&self) -> u64 {
        self.piece.segment().payload_offset()
    }
}

impl SoftBuffer {
    pub(crate) fn alloc(
        context: &Arc<Context>,
        buffers: &Buffers,
        request: &AllocRequest,
    ) -> Result<Arc<Self>, ResourceError> {
        request.check()?;
        let huge = match request.pages {
            Pages::Ordinary => HugePages::No,
            Pages::PreferHuge => HugePages::Prefer,
            Pages::OnDemand => HugePages::OnDemand,
        };
        let kind = SegmentKind {
            huge,
            numa_node: request.numa_node,
            is_sealed: request.is_sealed,
            has_own_file: request.has_own_file,
        };
        let piece = context.arena.take(request.len, request.align, kind)?;
        let notice = FreedNotice {
            context: piece.is_alone().then(|| Arc::downgrade(context)),
        };
        let buffer = Arc::new(Self {
            piece,
            len: request.len,
            _notice: notice,
        });
        if request.pages == Pages::PreferHuge && buffer.pages() == Pages::Ordinary {
            tracing::warn!(
                "no huge pages: reserve some with `sysctl vm.nr_hugepages=N`; ordinary ones are used"
            );
        }
        buffers.enter(&buffer);
        Ok(buffer)
    }

    pub(crate) fn start(&self) -> usize {
        self.piece.as_ptr() as usize
    }
}

/// The buffers of a context.
#[derive(Default)]
pub(crate) struct Buffers {
    /// By their first address.
    known: Mutex<BTreeMap<usize, Weak<SoftBuffer>>>,
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Weak<SoftBuffer>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, buffer: &Arc<SoftBuffer>) {
        let mut buffers = self.lock();
        buffers.retain(|_, known| known.strong_count() > 0);
        buffers.insert(buffer.start(), Arc::downgrade(buffer));
    }

    /// Returns the buffer that holds the `len` bytes at `start`.
    fn find(&self, start: usize, len: usize) -> Option<Arc<SoftBuffer>> {
        let buffers = self.lock();
        let (at, buffer) = buffers.range(..=start).next_back()?;
        let buffer = buffer.upgrade()?;
        (len <= buffer.len() && start - at <= buffer.len() - len).then_some(buffer)
    }
}

/// A deregistered region in quarantine: its row, unless it is in use again, and its memory.
struct QuarantinedRegion {
    row: Option<u32>,
    rows: Arc<Rows>,
    _buffer: Arc<dyn Buffer>,
}

impl Quarantined for QuarantinedRegion {
    fn release(self: Box<Self>) {
        if let Some(row) = self.row {
            self.rows.give_back(row);
        }
    }
}

/// Registers memory in a protection domain of a context.
pub(crate) struct Registrar<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) buffers: &'a Buffers,
    pub(crate) queue_pairs: &'a Arc<QueuePairs>,
    /// Protection domain.
    pub(crate) pd: u32,
}

/// A registration anew moves a row's generation by this much, so that its low bits, and so the key, stay the same.
const SAME_KEY: u32 = ((1u64 << 32) / MAX_REGION as u64) as u32;

impl Registrar<'_> {
    /// Registers all of `buffer`. Memory that is not from this context's arena stays private to the process. Peers reach it by
    /// its address.
    pub(crate) fn register(
        &self,
        buffer: &Arc<dyn Buffer>,
        access: Access,
    ) -> Result<Region, ResourceError> {
        if !access.is_consistent() {
            return Err(ResourceError::Access);
        }
        let row = self.context.region_rows.take("memory regions")?;
        Ok(self.enter(row, buffer, access))
    }

    /// Registers all of `buffer` in place of `region`, under the same keys if its row has generations left.
    pub(crate) fn register_again(
        &self,
        region: Region,
        buffer: &Arc<dyn Buffer>,
        access: Access,
    ) -> Result<Region, (ResourceError, Region)> {
        if !access.is_consistent() {
            return Err((ResourceError::Access, region));
        }
        let row = region.lkey() % MAX_REGION as u32;
        let rows = &self.context.region_rows;
        let is_ours = region
            .registration()
            .downcast_ref::<Registration>()
            .is_some_and(|old| Arc::ptr_eq(&old.context, self.context));
        if !is_ours || rows.advance(row, SAME_KEY).is_none() {
            return match self.register(buffer, access) {
                Ok(new) => Ok(new),
                Err(error) => Err((error, region)),
            };
        }
        let (registration, _memory) = region.into_parts();
        if let Ok(mut old) = registration.downcast::<Registration>() {
            old.end(RowAfter::Kept);
        }
        Ok(self.enter(row, buffer, access))
    }

    /// Enters a region in a row that is taken.
    fn enter(&self, row: u32, buffer: &Arc<dyn Buffer>, access: Access) -> Region {
        let (context, pd) = (self.context, self.pd);
        let (start, len) = (buffer.as_ptr() as usize, buffer.len());
        let in_device = buffer.device_ptr() as usize;
        let ours = self.buffers.find(in_device, len);
        // The low bits are the row's number, the bits above its generation. So a late request under an old key
        // meets a different generation.
        let generation = context.region_rows.generation(row);
        let key = row | generation.wrapping_mul(MAX_REGION as u32);
        let entry = context.table.region(key);
        let word = valid(generation, key);
        let at = match &ours {
            Some(ours) => {
                let at = ours.piece.place();
                let offset = at.offset + (in_device - ours.start());
                SegmentOffset { offset, ..at }
            }
            // How far the memory is from the addresses that requests use.
            None => SegmentOffset {
                segment: NO_ROW,
                generation: 0,
                offset: in_device.wrapping_sub(start),
            },
        };
        entry.segment.store(at.segment, Ordering::Relaxed);
        entry
            .segment_generation
            .store(at.generation, Ordering::Relaxed);
        entry.offset.store(at.offset as u64, Ordering::Relaxed);
        entry.addr.store(start as u64, Ordering::Relaxed);
        entry.len.store(len as u64, Ordering::Relaxed);
        entry.access.store(access.bits(), Ordering::Relaxed);
        entry.pd.store(pd, Ordering::Relaxed);
        let area = LocalMr {
            word: KeyWord::new(word),
            start,
            mapped: in_device,
            len,
            access,
            pd,
        };
        context.local_mrs.enter(key, area);
        entry.key.store(word, Ordering::Release);
        let is_shared = ours.is_some();
        let registration = Box::new(Registration {
            _release: ContextRelease::of(context),
            context: context.clone(),
            queue_pairs: self.queue_pairs.clone(),
            key,
            is_over: false,
            // Holds the shared allocation itself, whatever type wraps it in `buffer`.
            buffer: ours.map_or_else(|| buffer.clone(), |ours| ours as Arc<dyn Buffer>),
        });
        let region = Region::new(key, key, access, buffer.clone(), registration);
        match is_shared {
            true => region,
            // The kernel's copy need not store aligned words whole.
            false => region.without_atomic_aligned_8(),
        }
    }
}

/// A registration, ended when dropped.
struct Registration {
    context: Arc<Context>,
    queue_pairs: Arc<QueuePairs>,
    key: u32,
    buffer: Arc<dyn Buffer>,
    is_over: bool,
    _release: ContextRelease,
}

/// State of a registration's row after the registration has ended.
#[derive(Clone, Copy)]
enum RowAfter {
    Free,
    /// The same region is registered anew in it.
    Kept,
}

impl Registration {
    /// Ends the registration. Its row is given back when no initiator can use the memory any more.
    fn end(&mut self, after: RowAfter) {
        if std::mem::replace(&mut self.is_over, true) || self.context.is_foreign() {
            return;
        }
        self.context
            .table
            .region(self.key)
            .key
            .store(0, Ordering::Relaxed);
        self.context.local_mrs.leave(self.key);
        // An initiator that executes now either saw that the key was cleared, or is seen executing below.
        asymmetric_fence::heavy();
        let stopped = self.queue_pairs.wait_for_initiators(&self.context);
        let row = match after {
            RowAfter::Free => Some(self.key % MAX_REGION as u32),
            RowAfter::Kept => None,
        };
        if !stopped.is_empty() {
            let kept = QuarantinedRegion {
                row,
                rows: self.context.region_rows.clone(),
                _buffer: self.buffer.clone(),
            };
            self.context.quarantine.keep(stopped, Box::new(kept));
        } else if let Some(row) = row {
            self.context.region_rows.give_back(row);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end(RowAfter::Free);
    }
}
