//! The board of a session: which connections the application touched, and the bell of its daemon.

use headworks_shm::{DirtySet, EventCount, View};

use crate::error::ContractError;
use crate::memory::{Extent, Slabs};

const MARKS: usize = 64;

/// The board: a bell, and a mark for every handle.
#[derive(Clone, Debug)]
pub struct Doorbell {
    view: View,
    handles: usize,
}

impl Doorbell {
    /// Bytes of a board for so many handles.
    pub const fn bytes(handles: usize) -> usize {
        MARKS + DirtySet::word_count(handles) * 8
    }

    /// The board at `extent`, for so many handles.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub fn at(slabs: &Slabs, extent: Extent, handles: usize) -> Result<Self, ContractError> {
        let view = slabs.view(extent)?;
        let words = view.words(MARKS, DirtySet::word_count(handles));
        words.map_err(|_| ContractError::ControlBlock)?;
        view.event_count(0)
            .map_err(|_| ContractError::ControlBlock)?;
        Ok(Self { view, handles })
    }

    fn marks(&self) -> DirtySet<'_> {
        let words = self.view.words(MARKS, DirtySet::word_count(self.handles));
        let marks = words
            .ok()
            .and_then(|words| DirtySet::from_words(words, self.handles));
        marks.expect("checked when made")
    }

    /// What the daemon is woken by.
    pub fn bell(&self) -> &EventCount {
        self.view.event_count(0).expect("checked when made")
    }

    /// For the application: something of this connection changed. Says whether the daemon sleeps and is to be
    /// woken.
    #[inline]
    #[must_use = "a daemon that sleeps must be woken"]
    pub fn touch(&self, handle: u32) -> bool {
        self.marks().insert(handle as usize);
        self.bell().notify(false)
    }

    /// For the daemon: the handles that were touched; any numbers, if the application likes.
    #[inline]
    pub fn touched(&self, mut each: impl FnMut(u32)) {
        self.marks().drain(|handle| each(handle as u32));
    }

    /// For the daemon, before it sleeps: whether nothing was touched since the bell was armed.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.marks().is_empty()
    }
}
