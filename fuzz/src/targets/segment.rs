//! Memory files that are not segments, or are segments with a few wrong bytes.

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
    // The first and the last byte of the payload must be accessible.
    let mut ends = [0; 16];
    let len = ends.len().min(view.len());
    view.read(0, &mut ends[..len]).expect("the beginning");
    view.write(view.len() - len, &ends[..len]).expect("the end");
    assert!(view.read(view.len(), &mut [0]).is_err());
}

/// Offset of the payload's length in a segment's header.
const LENGTH: usize = 16;

/// Returns the header of a valid segment.
fn header() -> [u8; 32] {
    static HEADER: OnceLock<[u8; 32]> = OnceLock::new();
    *HEADER.get_or_init(|| {
        let request = SegmentRequest {
            name: "fuzz",
            len: 1,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        let segment = SharedSegment::create(&request).expect("a page of memory");
        let mut header = [0; 32];
        pread(segment.fd(), &mut header, 0).expect("it begins with a header");
        header
    })
}

/// Makes the file that the input describes: mostly a segment with a few wrong bytes, sometimes another kind
/// of file.
fn file(input: &mut Input<'_>) -> Option<OwnedFd> {
    let kind = input.byte();
    if kind == 255 {
        return pipe().ok().map(|(reader, _)| reader);
    }
    if kind == 254 {
        return tempfile::tempfile().ok().map(Into::into);
    }
    let fd = memfd_create("fuzz", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).ok()?;
    // The size is a number of pages plus a few bytes. The file is sparse, so no memory is allocated yet.
    let pages = u64::from(input.u16()) << (input.byte() % 24);
    let size = (pages * 4096).wrapping_add(u64::from(input.byte()));
    ftruncate(&fd, size).ok()?;
    let mut header = header();
    let room = size.saturating_sub(4096);
    header[LENGTH..LENGTH + 8].copy_from_slice(&input.word(room).to_le_bytes());
    for _ in 0..input.byte() % 4 {
        header[input.below(32)] = input.byte();
    }
    // Write no more than fits, because a longer write would extend the file.
    pwrite(&fd, &header[..size.min(32) as usize], 0).ok()?;
    for (bit, seal) in SEALS.into_iter().enumerate() {
        if kind >> bit & 1 != 0 {
            fcntl_add_seals(&fd, seal).ok()?;
        }
    }
    Some(fd)
}
