//! Doorbell of a session at one of the daemon's workers: which connections the application touched, and the event
//! counts that wake the worker.

use headworks_shm::{DirtySet, EventCount, View};

use crate::error::ContractError;
use crate::slabs::{Extent, Slabs};

const BITS_OFFSET: usize = 64;
const MEMORY_OFFSET: usize = 4;

/// A doorbell: two event counts, and a bit for every handle.
///
/// A daemon with several workers has a doorbell for each of them in every session whose connections it carries, so that
/// no two workers share a word that applications write often.
#[derive(Clone, Debug)]
pub struct Doorbell {
    view: View,
    handles: usize,
}

impl Doorbell {
    /// Bytes of a doorbell for handles below `handles`.
    pub const fn bytes(handles: usize) -> usize {
        BITS_OFFSET + DirtySet::word_count(handles) * 8
    }

    /// The doorbell at `extent`, for handles below `handles`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub fn at(slabs: &Slabs, extent: Extent, handles: usize) -> Result<Self, ContractError> {
        let view = slabs.view(extent)?;
        let words = view.words(BITS_OFFSET, DirtySet::word_count(handles));
        words.map_err(|_| ContractError::ControlBlock)?;
        for at in [0, MEMORY_OFFSET] {
            view.event_count(at)
                .map_err(|_| ContractError::ControlBlock)?;
        }
        Ok(Self { view, handles })
    }

    fn marks(&self) -> DirtySet<'_> {
        let words = self
            .view
            .words(BITS_OFFSET, DirtySet::word_count(self.handles));
        let marks = words
            .ok()
            .and_then(|words| DirtySet::from_words(words, self.handles));
        marks.expect("checked by `at`")
    }

    /// Event count that wakes the daemon.
    pub fn event_count(&self) -> &EventCount {
        self.view.event_count(0).expect("checked by `at`")
    }

    /// Event count that wakes a daemon that waits for memory of the receive pool.
    pub fn memory_event_count(&self) -> &EventCount {
        let event_count = self.view.event_count(MEMORY_OFFSET);
        event_count.expect("checked by `at`")
    }

    /// For the application: marks a connection as touched because it released memory. Returns whether the daemon sleeps,
    /// waits for memory, and must be woken by the caller.
    #[inline]
    #[must_use = "a daemon that sleeps must be woken"]
    pub fn touch_for_memory(&self, handle: u32) -> bool {
        self.marks().insert(handle as usize);
        self.memory_event_count().notify(false)
    }

    /// For the application: marks a connection as touched. Returns whether the daemon sleeps and the caller
    /// must wake it.
    #[inline]
    #[must_use = "a daemon that sleeps must be woken"]
    pub fn touch(&self, handle: u32) -> bool {
        self.marks().insert(handle as usize);
        self.event_count().notify(false)
    }

    /// For the daemon: takes the handles that were touched. The application may have written any numbers.
    #[inline]
    pub fn touched(&self, mut each: impl FnMut(u32)) {
        self.marks().drain(|handle| each(handle as u32));
    }

    /// For the daemon, after it armed the event count and before it sleeps: whether nothing is touched.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.marks().is_empty()
    }
}
