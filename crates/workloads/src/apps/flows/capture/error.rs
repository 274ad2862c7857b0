//! Why a file cannot be replayed.

use std::io;
use std::path::PathBuf;

/// A capture could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be read.
    #[error("{0}")]
    Io(io::Error),
    /// It is something else.
    #[error("begins with {magic:#010x}: neither pcap nor pcapng")]
    NotCapture {
        /// Its first four bytes, the first one highest.
        magic: u32,
    },
    /// Its link type is not known here.
    #[error(
        "link type {0}: 1 (Ethernet), 12, 101, 228 or 229 (IP), 113 and 276 (Linux cooked) are known"
    )]
    Link(u32),
    /// It contradicts itself.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// It ends in the middle of something.
    #[error("ends too early")]
    Ends,
    /// No packet can be replayed.
    #[error("no packet of IP in it ({skipped} others)")]
    Nothing {
        /// How many packets there were.
        skipped: u64,
    },
}
