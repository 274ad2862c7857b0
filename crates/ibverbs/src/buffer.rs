//! Memory for the device: shared mappings, so that a fork takes no page away from the device; on huge pages
//! if requested; on the device's NUMA node.
//!
//! Small buffers are cut from larger segments, so that many of them take few descriptors and mappings. A
//! segment is freed when all buffers in it are. No part of it is used twice, so new buffers are zeroed.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_shm::{HugePages, PageKind, SegmentError, SegmentRequest, SharedSegment};
use headworks_verbs::{AllocRequest, Buffer, Pages, ResourceError};

/// Longest buffer that may share a segment, in bytes.
const SMALL_MAX: usize = 256 << 10;
/// Bytes of a segment's header, at its beginning.
const HEADER: usize = 4096;
/// Bytes of the segments that small buffers are cut from: with the header, exactly one huge page.
const SEGMENT: usize = (2 << 20) - HEADER;

/// A buffer in memory for the device.
pub(crate) struct IbvBuffer {
    segment: Arc<SharedSegment>,
    offset: usize,
    len: usize,
    /// Whether the segment holds no other buffer.
    is_alone: bool,
}

// SAFETY: the `len` bytes from `offset` are within the segment, which stays mapped at one address, and
// writable, as long as it is held.
unsafe impl Buffer for IbvBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.segment.as_ptr().wrapping_add(self.offset)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn pages(&self) -> Pages {
        match self.segment.pages() {
            PageKind::Ordinary => Pages::Ordinary,
            PageKind::Advised | PageKind::Huge => Pages::PreferHuge,
        }
    }

    fn has_reserved_huge_pages(&self) -> bool {
        self.segment.pages() == PageKind::Huge
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        // Small buffers share a segment, whose file holds other buffers too.
        self.is_alone.then(|| self.segment.fd())
    }
}

/// A segment from which small buffers are cut, for requests of the same kind.
struct OpenSegment {
    pages: Pages,
    /// The node that the request named; `None` for the device's own, which never changes.
    numa_node: Option<u32>,
    segment: Arc<SharedSegment>,
    used: usize,
}

/// Allocator of a device's memory.
#[derive(Default)]
pub(crate) struct Arena {
    open: Mutex<Vec<OpenSegment>>,
}

impl Arena {
    /// Allocates a buffer, near `node` if the request names no node.
    pub(crate) fn alloc(
        &self,
        request: &AllocRequest,
        node: Option<u32>,
    ) -> Result<Arc<IbvBuffer>, ResourceError> {
        request.check()?;
        let (len, pages) = (request.len, request.pages);
        let numa_node = request.numa_node.or(node);
        let is_sealed = request.is_sealed;
        let segment = |len| match segment_of(len, (pages, is_sealed), numa_node) {
            // Nobody asked for the device's node, and not every process may allocate on it.
            Err(ResourceError::System { what, source })
                if request.numa_node.is_none() && node.is_some() =>
            {
                tracing::warn!(%source, "{what}: no memory on the device's NUMA node; memory of another node is used");
                segment_of(len, (pages, is_sealed), None)
            }
            made => made,
        };
        let is_alone = len > SMALL_MAX || is_sealed || request.has_own_file;
        let buffer = |segment, offset| {
            Arc::new(IbvBuffer {
                segment,
                offset,
                len,
                is_alone,
            })
        };
        if is_alone {
            return Ok(buffer(segment(len)?, 0));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_like =
            |open: &OpenSegment| open.pages == pages && open.numa_node == request.numa_node;
        if let Some(open) = open.iter_mut().find(|open| is_like(open)) {
            let offset = open.used.next_multiple_of(request.align);
            if offset + len <= open.segment.len() {
                open.used = offset + len;
                return Ok(buffer(open.segment.clone(), offset));
            }
        }
        let segment = segment(SEGMENT)?;
        open.retain(|open| !is_like(open));
        open.push(OpenSegment {
            pages,
            numa_node: request.numa_node,
            segment: segment.clone(),
            used: len,
        });
        Ok(buffer(segment, 0))
    }
}

fn segment_of(
    len: usize,
    (pages, is_sealed): (Pages, bool),
    numa_node: Option<u32>,
) -> Result<Arc<SharedSegment>, ResourceError> {
    let made = SharedSegment::create(&SegmentRequest {
        name: "headworks-ibv",
        len,
        huge_pages: match pages {
            Pages::Ordinary => HugePages::No,
            Pages::PreferHuge => HugePages::Prefer,
            Pages::OnDemand => HugePages::OnDemand,
        },
        numa_node,
        is_sealed,
    });
    let segment = made.map_err(|error| match error {
        SegmentError::Os { step, source } => ResourceError::System { what: step, source },
        other => ResourceError::NoSpace(other.to_string()),
    })?;
    if pages == Pages::PreferHuge && segment.pages() == PageKind::Ordinary {
        tracing::warn!(
            "no huge pages: reserve some with `sysctl vm.nr_hugepages=N`; ordinary ones are used"
        );
    }
    Ok(Arc::new(segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ones_share_a_segment_and_do_not_overlap() {
        let arena = Arena::default();
        let sizes = [1, 64, 100, 4096, SMALL_MAX, SMALL_MAX, 7];
        let all: Vec<_> = sizes
            .iter()
            .map(|&len| arena.alloc(&AllocRequest::of(len), None).unwrap())
            .collect();
        let mut spans: Vec<_> = all
            .iter()
            .map(|buffer| (buffer.as_ptr() as usize, buffer.len()))
            .collect();
        assert!(spans.iter().all(|(start, _)| start % 64 == 0), "{spans:x?}");
        spans.sort_unstable();
        assert!(
            spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0),
            "{spans:x?}"
        );
        assert!(Arc::ptr_eq(&all[0].segment, &all[6].segment));
        // When the segment is used up, the arena opens another.
        let others: Vec<_> = (0..8)
            .map(|_| arena.alloc(&AllocRequest::of(SMALL_MAX), None).unwrap())
            .collect();
        assert!(!Arc::ptr_eq(&all[0].segment, &others[7].segment));
        // The segment with its header fills one huge page.
        let size = rustix::fs::fstat(all[0].segment.fd()).unwrap().st_size;
        assert_eq!(size, 2 << 20);
        let large = arena.alloc(&AllocRequest::of(SMALL_MAX + 1), None).unwrap();
        assert_eq!(Arc::strong_count(&large.segment), 1);
    }

    #[test]
    fn memory_with_a_file_of_its_own_shares_no_segment_whatever_its_length() {
        let arena = Arena::default();
        for len in [1, 64 << 10, SMALL_MAX, SMALL_MAX + 1] {
            let request = AllocRequest {
                has_own_file: true,
                ..AllocRequest::of(len)
            };
            let alone = arena.alloc(&request, None).unwrap();
            let other = arena.alloc(&AllocRequest::of(64), None).unwrap();
            assert!(
                alone.file().is_some() && other.file().is_none(),
                "{len} bytes"
            );
            assert!(!Arc::ptr_eq(&alone.segment, &other.segment), "{len} bytes");
        }
    }

    /// The kernel's line about the mapping of `buffer`; `None` if the kernel has no NUMA support.
    fn policy_of(buffer: &IbvBuffer) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let start = buffer.segment.as_ptr() as usize;
        let starts_before = |line: &&str| {
            let (at, _) = line.split_once(' ')?;
            usize::from_str_radix(at, 16).ok().filter(|&at| at <= start)
        };
        let line = maps.lines().max_by_key(starts_before)?;
        Some(line.to_owned())
    }

    #[test]
    fn memory_is_near_the_device_unless_the_request_names_a_node() {
        let request = AllocRequest::of(100);
        let of_node = |node| AllocRequest {
            numa_node: Some(node),
            ..AllocRequest::of(100)
        };
        // Every machine has memory on node 0.
        let near = Arena::default().alloc(&request, Some(0)).unwrap();
        let anywhere = Arena::default().alloc(&request, None).unwrap();
        // No machine has this many nodes. An absent node that no request named must not fail the allocation.
        let (arena, absent) = (Arena::default(), 2000);
        let elsewhere = arena.alloc(&request, Some(absent)).unwrap();
        assert!(arena.alloc(&of_node(absent), Some(0)).is_err());
        let named = arena.alloc(&of_node(0), Some(absent)).unwrap();
        assert!(!Arc::ptr_eq(&elsewhere.segment, &named.segment));
        let again = arena.alloc(&request, Some(absent)).unwrap();
        assert!(Arc::ptr_eq(&elsewhere.segment, &again.segment));
        if policy_of(&near).is_none() {
            println!("skipped: the kernel knows no nodes");
            return;
        }
        for (buffer, is_placed) in [
            (near, true),
            (named, true),
            (anywhere, false),
            (elsewhere, false),
        ] {
            let policy = policy_of(&buffer).unwrap_or_default();
            assert_eq!(policy.contains(" prefer"), is_placed, "{policy}");
        }
    }

    #[test]
    fn huge_pages_are_used_and_reported_when_available() {
        let arena = Arena::default();
        let wanted = AllocRequest {
            pages: Pages::PreferHuge,
            ..AllocRequest::of(100)
        };
        let small = arena.alloc(&wanted, None).unwrap();
        let ordinary = arena.alloc(&AllocRequest::of(100), None).unwrap();
        assert!(!Arc::ptr_eq(&small.segment, &ordinary.segment));
        assert_eq!(ordinary.pages(), Pages::Ordinary);
        let len = 3 << 20;
        let large = arena.alloc(&AllocRequest { len, ..wanted }, None).unwrap();
        assert_eq!(large.len(), len);
        for buffer in [small, large] {
            let got = buffer.segment.pages();
            let is_huge = got != PageKind::Ordinary;
            assert_eq!(buffer.pages() == Pages::PreferHuge, is_huge);
            if got == PageKind::Huge {
                let at = buffer.segment.as_ptr() as usize - HEADER;
                assert!(at.is_multiple_of(2 << 20), "{at:x}");
            }
        }
    }

    #[test]
    fn an_invalid_allocation_request_is_refused_by_name() {
        let arena = Arena::default();
        let refused = |len, align| {
            let request = AllocRequest {
                align,
                ..AllocRequest::of(len)
            };
            arena
                .alloc(&request, None)
                .map(drop)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(0, 64).contains("buffer length is 0"));
        assert!(refused(1, 3).contains("buffer alignment is 3"));
        assert!(refused(1, 8192).contains("1 to 4096"));
        let huge = refused(1 << 60, 64);
        assert!(!huge.contains('\n'), "{huge}");
    }
}
