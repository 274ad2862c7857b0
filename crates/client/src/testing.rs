//! For tests: shared memory without another process.

use std::sync::Arc;

use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};

use crate::memory::Slabs;

/// A session's slabs of these lengths.
///
/// # Panics
///
/// Where there is no memory for them.
pub fn slabs(lens: &[usize]) -> Slabs {
    let mut slabs = Slabs::default();
    for (number, len) in lens.iter().enumerate() {
        let request = SegmentRequest {
            name: "slab",
            len: *len,
            huge_pages: HugePages::No,
            numa_node: None,
        };
        let segment = SharedSegment::create(&request).expect("memory for a test");
        let added = slabs.add(number as u32, View::from(Arc::new(segment)));
        added.expect("its first of that number");
    }
    slabs
}
