//! For tests: shared memory in a single process.

use std::sync::Arc;

use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};

use crate::slabs::Slabs;

/// A session's slabs, numbered from 0, of the lengths `lens` in bytes.
///
/// # Panics
///
/// If there is not enough memory for them.
pub fn slabs(lens: &[usize]) -> Slabs {
    let mut slabs = Slabs::default();
    for (number, len) in lens.iter().enumerate() {
        let request = SegmentRequest {
            name: "slab",
            len: *len,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        let segment = SharedSegment::create(&request).expect("memory for a test");
        let added = slabs.add(number as u32, View::from(Arc::new(segment)));
        added.expect("each number is added once");
    }
    slabs
}
