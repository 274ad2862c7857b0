//! Registered memory, to be polled and filled word by word as programs on verbs do.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use headworks_shm::View;
use headworks_verbs::{Buffer, Region};

/// A region whose words can be read and written while peers write to it.
pub struct Memory {
    region: Region,
    view: View,
}

struct Keep(#[expect(dead_code, reason = "keeps the memory mapped")] Arc<dyn Buffer>);

impl Memory {
    /// Over all of `region`.
    pub fn over(region: Region) -> Self {
        let start = NonNull::new(region.buffer().as_ptr()).unwrap_or(NonNull::dangling());
        let keep = Arc::new(Keep(region.buffer().clone()));
        // SAFETY: a `Buffer` is mapped for its length until it is dropped, and the view keeps it.
        let view = unsafe { View::from_raw(start, region.len(), keep) };
        Self { region, view }
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The word at `offset`.
    ///
    /// # Panics
    ///
    /// If that is outside, or no multiple of 8.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.view
            .atomic_u64(offset)
            .expect("a word of the memory that its user asked for")
    }

    /// A copy of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If some are outside.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view
            .read(offset, &mut bytes)
            .expect("bytes of the memory that its user asked for");
        bytes
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Panics
    ///
    /// If some do not fit.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.view
            .write(offset, bytes)
            .expect("bytes of the memory that its user asked for");
    }
}
