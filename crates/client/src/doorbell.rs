//! Doorbell of a session at one of the daemon's workers: which connections the application touched, and the event
//! counts that wake the worker. In the other direction: which connections have news for the application's poller.

use headworks_shm::EventCount;

use crate::error::ContractError;
use crate::slabs::{Extent, Slabs};
use crate::wake_set::WakeSet;

const MEMORY_OFFSET: usize = 4;

/// A doorbell: two event counts, a bit for every handle, and a set of handles for the application's poller.
///
/// A daemon with several workers has a doorbell for each of them in every session whose connections it carries, so that
/// no two workers share a word that applications write often.
#[derive(Clone, Debug)]
pub struct Doorbell {
    touched: WakeSet,
    memory: headworks_shm::EventCountRef,
    /// `None` if the daemon does not speak [version 6](crate::socket_message::VERSION).
    ready: Option<WakeSet>,
}

impl Doorbell {
    /// Bytes of a doorbell for handles below `handles`.
    pub const fn bytes(handles: usize) -> usize {
        2 * WakeSet::bytes(handles)
    }

    /// The doorbell at `extent`, for handles below `handles`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub fn at(slabs: &Slabs, extent: Extent, handles: usize) -> Result<Self, ContractError> {
        let view = slabs.view(extent)?;
        let memory = view.event_count_ref(MEMORY_OFFSET);
        Ok(Self {
            touched: WakeSet::at(&view, 0, handles)?,
            memory: memory.map_err(|_| ContractError::ControlBlock)?,
            ready: WakeSet::at(&view, WakeSet::bytes(handles), handles).ok(),
        })
    }

    /// Event count that wakes the daemon.
    pub fn event_count(&self) -> &EventCount {
        self.touched.event_count()
    }

    /// Event count that wakes a daemon that waits for memory of the receive pool.
    pub fn memory_event_count(&self) -> &EventCount {
        &self.memory
    }

    /// The connections, by handle, that have news for the application's poller: see
    /// [`ControlBlock::event_count`](crate::ControlBlock::event_count).
    pub fn ready(&self) -> Option<&WakeSet> {
        self.ready.as_ref()
    }

    /// For the application: marks a connection as touched because it released memory. Returns whether the daemon sleeps,
    /// waits for memory, and must be woken by the caller.
    #[inline]
    #[must_use = "a daemon that sleeps must be woken"]
    pub fn touch_for_memory(&self, handle: u32) -> bool {
        self.touched.insert(handle);
        self.memory_event_count().notify(false)
    }

    /// For the application: marks a connection as touched. Returns whether the daemon sleeps and the caller
    /// must wake it.
    #[inline]
    #[must_use = "a daemon that sleeps must be woken"]
    pub fn touch(&self, handle: u32) -> bool {
        self.touched.touch(handle)
    }

    /// For the daemon: takes the handles that were touched. The application may have written any numbers.
    #[inline]
    pub fn touched(&self, each: impl FnMut(u32)) {
        self.touched.drain(each);
    }

    /// For the daemon, after it armed the event count and before it sleeps: whether nothing is touched.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.touched.is_empty()
    }
}
