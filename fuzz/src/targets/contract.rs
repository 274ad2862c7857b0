//! The memory that an application shares with its daemon, or with another application, word by word. The other end stores anything
//! into it.

use std::sync::atomic::Ordering;

use headworks_client::testing::slabs;
use headworks_client::{BLOCK_BYTES, ControlBlock, Extent, Slabs};
use headworks_shm::View;

use crate::input::Input;

pub(super) mod daemon_memory;
pub(super) mod direct_memory;
pub(super) mod doorbell_marks;
pub(super) mod egress_records;
pub(super) mod ingress_heads;

/// Bytes of the slab of blocks and rings.
const SLAB: usize = 16 << 10;
/// Bytes of the slab that stands for the receive pool, and for memory that an application lends.
const POOL: usize = 64 << 10;
/// Offset of the tail of the egress ring in a control block.
const EGRESS_TAIL: usize = 0;
/// Offset of the word that says how bytes are carried.
const TRANSFER: usize = 8;
/// Offset of the head of the egress ring.
const EGRESS_HEAD: usize = 64;
/// Offset of the tail of the ingress ring.
const INGRESS_TAIL: usize = 128;
/// Offset of the head of the ingress ring.
const INGRESS_HEAD: usize = 192;
/// Offset of the first descriptor, whose first word is its state.
const DESCRIPTOR_TABLE: usize = 512;
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 32;
/// Most bytes that one step of an honest end handles.
const BYTES_MAX: usize = 4096;

/// The memory of one connection.
struct Memory {
    slabs: Slabs,
    block: ControlBlock,
    /// The slab that begins with the control block.
    view: View,
}

impl Memory {
    fn new() -> Self {
        let slabs = slabs(&[SLAB, POOL]);
        let block = ControlBlock::at(&slabs, extent(0, 0, BLOCK_BYTES)).expect("a block");
        let view = slabs.slab(0).expect("the first slab").clone();
        Self { slabs, block, view }
    }

    /// Stores a word, which is mostly a small change of what is there.
    fn scribble(&self, input: &mut Input<'_>, at: usize) {
        let word = self.view.atomic_u64(at).expect("in the slab");
        word.store(input.word(word.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Whether a range lies in the memory of the session.
    fn has(&self, extent: Extent) -> bool {
        self.slabs.view(extent).is_ok()
    }
}

const fn extent(slab: u32, offset: u64, len: u32) -> Extent {
    Extent { slab, len, offset }
}

/// Memory of the connection's second ring, or of a later one.
fn longer_ring(input: &mut Input<'_>) -> Extent {
    let len = 512 << (input.byte() % 3);
    extent(0, 4096 + 4096 * u64::from(input.byte() % 3), len)
}

/// Whether `inner` lies in `outer`.
fn is_within(inner: Extent, outer: Extent) -> bool {
    let end = |of: Extent| of.offset + u64::from(of.len);
    inner.slab == outer.slab && inner.offset >= outer.offset && end(inner) <= end(outer)
}
