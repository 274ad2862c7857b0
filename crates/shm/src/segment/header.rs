//! The header in the first page of a segment.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, pread, pwrite};

use super::{HUGE_PAGE_BYTES, PageKind, SegmentError};

/// Version of everything that this software lays out in shared memory. Every attach compares it.
pub const LAYOUT_VERSION: u32 = 7;

/// Size in bytes of the header, and so the payload's offset, whatever the page size.
pub(super) const HEADER_BYTES: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"HEADWRKS");
const WORD_BYTES: u32 = size_of::<usize>() as u32;

/// Written once, before the segment is sealed. Magic and version keep their offsets in every version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    magic: u64,
    layout_version: u32,
    word_bytes: u32,
    payload_bytes: u64,
    advised: u64,
}

const _: () = assert!(size_of::<Header>() == 32);

impl Header {
    pub(super) fn new(payload: usize, pages: PageKind) -> Self {
        Self {
            magic: MAGIC,
            layout_version: LAYOUT_VERSION,
            word_bytes: WORD_BYTES,
            payload_bytes: payload as u64,
            advised: u64::from(pages == PageKind::Advised),
        }
    }

    pub(super) fn pages(&self) -> PageKind {
        if self.advised == 1 {
            PageKind::Advised
        } else {
            PageKind::Ordinary
        }
    }

    /// Reads the header from the file, once: a mapping could change between a check and a use.
    pub(super) fn read(fd: &OwnedFd) -> Result<Self, Errno> {
        let mut bytes = [0; size_of::<Self>()];
        let got = pread(fd, &mut bytes, 0)?;
        if got < bytes.len() {
            return Err(Errno::IO);
        }
        Ok(Self::from_bytes(bytes))
    }

    pub(super) fn write(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let bytes = self.to_bytes();
        if pwrite(fd, &bytes, 0)? < bytes.len() {
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Returns the payload's length if this is a valid header of a file of `file` bytes.
    pub(super) fn check(&self, file: usize) -> Result<usize, SegmentError> {
        if self.magic != MAGIC {
            return Err(SegmentError::Foreign("wrong magic number"));
        }
        if self.layout_version != LAYOUT_VERSION {
            return Err(SegmentError::Layout {
                found: self.layout_version,
                expected: LAYOUT_VERSION,
            });
        }
        if self.word_bytes != WORD_BYTES {
            return Err(SegmentError::Foreign(
                "made by a program of another word size",
            ));
        }
        let room = (file - HEADER_BYTES) as u64;
        // The file is the payload rounded up to pages, so less than one (huge) page may be left over.
        if self.payload_bytes > room || room - self.payload_bytes >= HUGE_PAGE_BYTES as u64 {
            return Err(SegmentError::Foreign(
                "the header's size is not the file's size",
            ));
        }
        Ok(self.payload_bytes as usize)
    }

    pub(super) fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[0..8].copy_from_slice(&self.magic.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.layout_version.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.word_bytes.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.payload_bytes.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.advised.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; size_of::<Self>()]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Self {
            magic: word(0),
            layout_version: half(8),
            word_bytes: half(12),
            payload_bytes: word(16),
            advised: word(24),
        }
    }
}
