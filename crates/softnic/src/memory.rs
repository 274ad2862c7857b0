//! Buffers and regions. Deregistration returns when no initiator is using the memory, or keeps it
//! from other use for one that is stopped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks_shm::{HugePages, PageKind, asymmetric};
use headworks_verbs::{Access, AllocRequest, Buffer, Pages, Region, ResourceError};

use crate::arena::Piece;
use crate::device::Context;
use crate::quarantine::Kept;
use crate::table::MAX_REGION;
use crate::translate::valid;

/// Memory from the device: shared from birth.
pub(crate) struct SoftBuffer {
    piece: Piece,
    len: usize,
}

// SAFETY: the piece is `len` bytes or more of a mapped segment that it keeps until it is dropped.
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
}

impl SoftBuffer {
    pub(crate) fn alloc(
        context: &Arc<Context>,
        request: &AllocRequest,
    ) -> Result<Arc<Self>, ResourceError> {
        if request.len == 0 || !request.align.is_power_of_two() || request.align > 4096 {
            let (what, asked) = match request.len {
                0 => ("buffer length", 0),
                _ => ("buffer alignment", request.align as u64),
            };
            let highest = if request.len == 0 { u64::MAX } else { 4096 };
            return Err(ResourceError::Limit {
                what,
                asked,
                lowest: 1,
                highest,
            });
        }
        let huge = match request.pages {
            Pages::Ordinary => HugePages::No,
            Pages::PreferHuge => HugePages::Prefer,
        };
        let piece = context
            .arena
            .take(request.len, request.align, huge, request.numa_node)?;
        let buffer = Arc::new(Self {
            piece,
            len: request.len,
        });
        if request.pages == Pages::PreferHuge && buffer.pages() == Pages::Ordinary {
            tracing::warn!(
                "no huge pages: reserve some with `sysctl vm.nr_hugepages=N`; ordinary ones are used"
            );
        }
        context.note_buffer(&buffer);
        Ok(buffer)
    }

    pub(crate) fn start(&self) -> usize {
        self.piece.as_ptr() as usize
    }
}

/// Registers all of `buffer` in protection domain `pd`.
pub(crate) fn register(
    context: &Arc<Context>,
    pd: u32,
    buffer: &Arc<dyn Buffer>,
    access: Access,
) -> Result<Region, ResourceError> {
    if !access.is_consistent() {
        return Err(ResourceError::Access);
    }
    let ours = context
        .find_buffer(buffer.as_ptr() as usize)
        .ok_or(ResourceError::Foreign("the buffer"))?;
    let row = context.region_rows.take("memory regions")?;
    // The row's number in the low bits, its generation above: a late request under an old key
    // meets another.
    let generation = context.region_rows.generation(row);
    let key = row | generation.wrapping_mul(MAX_REGION as u32);
    let entry = context.table.region(key);
    let at = ours.piece.place();
    entry.segment.store(at.segment, Ordering::Relaxed);
    entry
        .segment_generation
        .store(at.generation, Ordering::Relaxed);
    entry.offset.store(at.offset as u64, Ordering::Relaxed);
    entry.addr.store(ours.start() as u64, Ordering::Relaxed);
    entry.len.store(ours.len as u64, Ordering::Relaxed);
    entry.access.store(access.bits(), Ordering::Relaxed);
    entry.pd.store(pd, Ordering::Relaxed);
    entry.key.store(valid(generation, key), Ordering::Release);
    let registration = Box::new(Registration {
        context: context.clone(),
        key,
        buffer: ours,
    });
    Ok(Region::new(key, key, access, buffer.clone(), registration))
}

/// Deregisters when dropped.
struct Registration {
    context: Arc<Context>,
    key: u32,
    buffer: Arc<SoftBuffer>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.context.is_foreign() {
            return;
        }
        self.context
            .table
            .region(self.key)
            .key
            .store(0, Ordering::Relaxed);
        // Whoever executes now either saw the key go or is seen executing here.
        asymmetric::heavy();
        let stopped = self.context.wait_for_initiators();
        let row = self.key % MAX_REGION as u32;
        if stopped.is_empty() {
            self.context.region_rows.give_back(row);
        } else {
            let _buffer = self.buffer.clone();
            let kept = Kept::Region { row, _buffer };
            self.context.quarantine.keep(&self.context, stopped, kept);
        }
    }
}
