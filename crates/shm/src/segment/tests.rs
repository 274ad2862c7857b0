use std::process::Command;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pwrite};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::View;

fn request(len: usize) -> SegmentRequest<'static> {
    SegmentRequest {
        name: "test",
        len,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    }
}

fn attach_again(segment: &SharedSegment) -> Result<SharedSegment, SegmentError> {
    SharedSegment::attach(segment.fd().try_clone_to_owned().expect("dup"))
}

#[test]
fn two_mappings_are_one_memory() {
    let made = SharedSegment::create(&request(10_000)).expect("create");
    let opened = made.fd().try_clone_to_owned().expect("open");
    let attached = SharedSegment::attach(opened).expect("attach");
    assert_eq!(
        (attached.len(), attached.pages()),
        (10_000, PageKind::Ordinary)
    );
    assert_ne!(made.as_ptr(), attached.as_ptr());
    assert!(made.as_ptr().addr().is_multiple_of(4096));
    // SAFETY: the accesses are within both mappings of one memory, made by this thread alone.
    unsafe {
        assert_eq!(made.as_ptr().add(9_999).read_volatile(), 0);
        made.as_ptr().add(9_999).write_volatile(7);
        assert_eq!(attached.as_ptr().add(9_999).read_volatile(), 7);
    }
    assert!(ftruncate(made.fd(), 0).is_err() && ftruncate(made.fd(), 1 << 20).is_err());
}

#[test]
fn huge_pages_and_nodes_are_wishes() {
    let huge = SegmentRequest {
        huge_pages: HugePages::Prefer,
        numa_node: Some(0),
        ..request(5 << 20)
    };
    let made = SharedSegment::create(&huge).expect("create");
    assert_ne!(made.pages(), PageKind::Ordinary);
    let attached = attach_again(&made).expect("attach");
    assert_eq!((attached.len(), attached.pages()), (5 << 20, made.pages()));
    // SAFETY: the access is within the mapping, made by this thread alone.
    unsafe { attached.as_ptr().add((5 << 20) - 1).write_volatile(1) };
}

#[test]
fn other_files_are_refused() {
    let file = tempfile::tempfile().expect("file");
    assert!(matches!(
        SharedSegment::attach(file.into()),
        Err(SegmentError::Foreign(_))
    ));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    let header = Header::new(5_000, PageKind::Ordinary);
    let forged = |bytes: u64, seals, header: &[u8]| {
        let fd = memfd_create("forged", flags).expect("memfd");
        ftruncate(&fd, bytes).expect("size");
        pwrite(&fd, header, 0).expect("header");
        fcntl_add_seals(&fd, seals).expect("seal");
        SharedSegment::attach(fd)
    };
    let good = header.to_bytes();
    assert_eq!(
        forged(12_288, seals, &good).expect("as we make them").len(),
        5_000
    );
    let foreign = |result| {
        assert!(
            matches!(result, Err(SegmentError::Foreign(_))),
            "{result:?}"
        )
    };
    foreign(forged(12_288, SealFlags::SHRINK, &good));
    foreign(forged(12_288, SealFlags::GROW, &good));
    foreign(forged(100, seals, &good));
    foreign(forged(8_192, seals, &good));
    foreign(forged(64 << 20, seals, &good));
    for at in [0, 12, 17, 23] {
        let mut bad = good;
        bad[at] ^= 0x80;
        foreign(forged(12_288, seals, &bad));
    }
    // `attach_without_header_check` ignores the header, but still checks the seals.
    let fd = memfd_create("known", flags).expect("memfd");
    ftruncate(&fd, 12_288).expect("size");
    let again = || fd.try_clone().expect("a descriptor");
    foreign(SharedSegment::attach_without_header_check(again()));
    fcntl_add_seals(&fd, seals).expect("seal");
    let known = SharedSegment::attach_without_header_check(again());
    assert_eq!(known.expect("sealed").len(), 8_192);
    let mut newer = good;
    newer[8] += 1;
    let error = forged(12_288, seals, &newer).expect_err("version");
    let expected = LAYOUT_VERSION;
    assert!(
        matches!(error, SegmentError::Layout { found, expected: e } if found == expected + 1 && e == expected)
    );
}

#[test]
fn too_much_is_an_error_that_says_how_much() {
    for len in [1 << 46, usize::MAX, usize::MAX - 4096, isize::MAX as usize] {
        for huge_pages in [HugePages::No, HugePages::Prefer] {
            let error = SharedSegment::create(&SegmentRequest {
                huge_pages,
                ..request(len)
            })
            .expect_err("nobody has that");
            assert!(matches!(error, SegmentError::NoSpace { .. }), "{error}");
            assert!(error.to_string().contains("would be enough"), "{error}");
        }
    }
}

/// Returns the bytes of memory that a segment's file has.
fn held(segment: &SharedSegment) -> u64 {
    fstat(segment.fd()).expect("open").st_blocks as u64 * 512
}

#[test]
fn pages_get_memory_at_once_or_on_demand() {
    const LEN: usize = 4 << 20;
    let at_once = SharedSegment::create(&request(LEN)).expect("memory");
    assert!(held(&at_once) >= LEN as u64);
    let on_demand = SharedSegment::create(&SegmentRequest {
        huge_pages: HugePages::OnDemand,
        ..request(LEN)
    });
    let segment = Arc::new(on_demand.expect("memory"));
    assert_eq!(segment.pages(), PageKind::Ordinary);
    let before = held(&segment);
    assert!(before <= 16 << 10, "{before}");
    let view = View::from(segment.clone());
    view.write(LEN - 8, &[7; 8]).expect("in range");
    let page = rustix::param::page_size() as u64;
    assert_eq!(held(&segment), before + page);
}

/// Runs the named test of this file in a process of its own, because it lowers the process's limits.
fn in_own_process(test: &str) {
    let output = Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "--ignored", "--nocapture", test])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?}: {text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn an_attacher_cannot_make_the_owners_access_fail() {
    let ours = SharedSegment::create(&request(3 * 4096)).expect("memory");
    let fd = ours.fd().try_clone_to_owned().expect("our own");
    let (ours, len) = (
        View::from(Arc::new(ours)),
        fstat(&fd).expect("open").st_size,
    );
    ours.write(0, &[7; 3 * 4096]).expect("in range");
    for size in [0, 4096, len as u64 * 2] {
        assert_eq!(ftruncate(&fd, size), Err(Errno::PERM), "to {size} bytes");
    }
    let more = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    assert_eq!(fcntl_add_seals(&fd, more), Err(Errno::PERM));
    // Holes remain possible: the seal that forbids them forbids all writing.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&fd, punch, 0, len as u64).expect("a hole");
    let mut bytes = [1; 3 * 4096];
    ours.read(0, &mut bytes).expect("in range");
    assert!(bytes == [0; 3 * 4096]);
    ours.write(5, &[9]).expect("in range");
    ours.read(0, &mut bytes[..6]).expect("in range");
    assert_eq!(bytes[..6], [0, 0, 0, 0, 0, 9]);
}

#[test]
fn limits_of_the_process_are_errors_and_not_signals() {
    in_own_process("segment::tests::limited_file_size");
    in_own_process("segment::tests::limited_address_space");
}

#[test]
#[ignore = "lowers the limits of its process; run by another test"]
fn limited_file_size() {
    let limit = Rlimit {
        current: Some(1 << 20),
        maximum: None,
    };
    setrlimit(Resource::Fsize, limit).expect("setrlimit");
    let error = SharedSegment::create(&request(1 << 20)).expect_err("with the header it is more");
    assert!(
        matches!(
            error,
            SegmentError::NoSpace {
                available: Some(0x10_0000),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("ulimit -f"), "{error}");
    SharedSegment::create(&request((1 << 20) - 4096)).expect("just fits");
}

#[test]
#[ignore = "lowers the limits of its process; run by another test"]
fn limited_address_space() {
    let limit = Rlimit {
        current: Some(1 << 30),
        maximum: None,
    };
    setrlimit(Resource::As, limit).expect("setrlimit");
    let error = SharedSegment::create(&request(1 << 30)).expect_err("more than is left");
    assert!(error.to_string().contains("ulimit -v"), "{error}");
}

#[test]
fn nobody_else_maps_a_sealed_segment_writable_whatever_its_pages() {
    let made = SharedSegment::create(&SegmentRequest {
        is_sealed: true,
        huge_pages: HugePages::Prefer,
        ..request(5 << 20)
    });
    let made = made.expect("segment");
    eprintln!("the segment has pages of kind {:?}", made.pages());
    let error = attach_again(&made).expect_err("a writable mapping");
    assert!(error.to_string().contains("mmap"), "{error}");
    let fd = made.fd().try_clone_to_owned().expect("dup");
    let read = SharedSegment::attach_read_only(fd).expect("a mapping for reading");
    assert_eq!(read.pages(), made.pages());
    let (own, other) = (
        View::from(std::sync::Arc::new(made)),
        View::from(std::sync::Arc::new(read)),
    );
    own.write(5_000_000, b"its maker writes").expect("fits");
    let mut bytes = [0; 16];
    other.read(5_000_000, &mut bytes).expect("fits");
    assert_eq!(&bytes, b"its maker writes");
}

#[test]
fn nobody_else_writes_to_a_sealed_segment() {
    let sealed = SharedSegment::create(&SegmentRequest {
        is_sealed: true,
        ..request(10_000)
    });
    let segment = sealed.expect("segment");
    let view = View::from(std::sync::Arc::new(segment));
    view.write(0, b"its maker writes").expect("fits");
    let made = SharedSegment::create(&SegmentRequest {
        is_sealed: true,
        ..request(10_000)
    });
    let made = made.expect("segment");
    let error = attach_again(&made).expect_err("a writable mapping");
    assert!(error.to_string().contains("mmap"), "{error}");
    // Neither does a descriptor help that was opened anew.
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&made.fd())
    );
    let opened = std::fs::File::options().read(true).write(true).open(path);
    if let Ok(opened) = opened {
        let error = SharedSegment::attach(opened.into()).expect_err("a writable mapping");
        assert!(error.to_string().contains("mmap"), "{error}");
    }
    assert!(rustix::io::pwrite(made.fd(), b"x", 5000).is_err());
    let fd = made.fd().try_clone_to_owned().expect("dup");
    assert_eq!(
        SharedSegment::attach_read_only(fd)
            .expect("read-only")
            .len(),
        10_000
    );
}

#[test]
fn a_range_of_a_segment_on_demand_is_reserved() {
    let request = SegmentRequest {
        huge_pages: HugePages::OnDemand,
        ..request(1 << 20)
    };
    let segment = SharedSegment::create(&request).expect("create");
    let allocated = || fstat(segment.fd()).expect("a file").st_blocks * 512;
    let before = allocated();
    reserve(segment.fd(), 8192, 3 * 4096).expect("there is memory");
    assert!(allocated() >= before + 3 * 4096);
    reserve(segment.fd(), (1 << 20) - 4096, 4096).expect("the last page of the payload");
    assert!(
        reserve(segment.fd(), 1 << 20, 4096).is_err(),
        "behind the payload"
    );
    assert!(reserve(segment.fd(), u64::MAX, 1).is_err());
    let before = allocated();
    release(segment.fd(), 8192, 3 * 4096).expect("a part of the segment");
    assert_eq!(allocated(), before - 3 * 4096);
}
