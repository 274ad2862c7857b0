//! Memory files that are no segments, or nearly.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::pipe::pipe;

use crate::input::Input;

const SEALS: [SealFlags; 5] = [
    SealFlags::SHRINK,
    SealFlags::GROW,
    SealFlags::SEAL,
    SealFlags::WRITE,
    SealFlags::FUTURE_WRITE,
];

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(fd) = file(&mut input) else { return };
    let size = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size) as usize;
    let Ok(segment) = SharedSegment::attach(fd) else {
        return;
    };
    assert!(segment.len() <= size, "more payload than file");
    let view = View::from(Arc::new(segment));
    // Its ends are there.
    let mut ends = [0; 16];
    let len = ends.len().min(view.len());
    view.read(0, &mut ends[..len]).expect("the beginning");
    view.write(view.len() - len, &ends[..len]).expect("the end");
    assert!(view.read(view.len(), &mut [0]).is_err());
}

/// Where a header says how long the payload is.
const LENGTH: usize = 16;

/// The header of a real one.
fn header() -> [u8; 32] {
    static HEADER: OnceLock<[u8; 32]> = OnceLock::new();
    *HEADER.get_or_init(|| {
        let request = SegmentRequest {
            name: "fuzz",
            len: 1,
            huge_pages: HugePages::No,
            numa_node: None,
        };
        let segment = SharedSegment::create(&request).expect("a page of memory");
        let mut header = [0; 32];
        pread(segment.fd(), &mut header, 0).expect("it begins with a header");
        header
    })
}

/// A file as the input says: a segment but for a few bytes, or less than that.
fn file(input: &mut Input<'_>) -> Option<OwnedFd> {
    let kind = input.byte();
    if kind == 255 {
        return pipe().ok().map(|(reader, _)| reader);
    }
    if kind == 254 {
        return tempfile::tempfile().ok().map(Into::into);
    }
    let fd = memfd_create("fuzz", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).ok()?;
    // Pages, and a few bytes more or less; nothing is allocated yet.
    let pages = u64::from(input.u16()) << (input.byte() % 24);
    let size = (pages * 4096).wrapping_add(u64::from(input.byte()));
    ftruncate(&fd, size).ok()?;
    let mut header = header();
    let room = size.saturating_sub(4096);
    header[LENGTH..LENGTH + 8].copy_from_slice(&input.word(room).to_le_bytes());
    for _ in 0..input.byte() % 4 {
        header[input.below(32)] = input.byte();
    }
    // As far as it fits, or writing would make the file longer.
    pwrite(&fd, &header[..size.min(32) as usize], 0).ok()?;
    for (bit, seal) in SEALS.into_iter().enumerate() {
        if kind >> bit & 1 != 0 {
            fcntl_add_seals(&fd, seal).ok()?;
        }
    }
    Some(fd)
}
