//! Memory that an application shares with its daemon and uses in place. This module contains the only unsafe
//! code of the service: it returns plain slices of that memory.
//!
//! Two processes write to the shared memory: the application to memory it allocated, and the daemon to the
//! rings of received bytes. By contract, neither writes where the other does. A daemon that broke the
//! contract could change a slice while the application reads it.
#![allow(unsafe_code, reason = "slices of memory that a daemon shares")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use headworks_client::{Extent, LendTicket};
use headworks_shm::View;

use super::ServiceError;
use super::shared_session::SharedSession;
use super::stream_half::WeakConnection;

/// Memory from [`Service::alloc`](super::Service::alloc), which can be lent. Dropping it returns it to the
/// daemon. Its initial contents are undefined: they may be data of the same application from memory that it
/// returned before.
pub struct SharedMemory {
    shared: Arc<SharedSession>,
    /// The part that the application requested; the daemon may have allocated more.
    extent: Extent,
    given_bytes: u32,
    view: View,
}

impl SharedMemory {
    pub(super) fn new(
        shared: &Arc<SharedSession>,
        given: Extent,
        len: u32,
    ) -> Result<Self, ServiceError> {
        let given_bytes = given.len;
        let len = len.min(given_bytes);
        let extent = Extent { len, ..given };
        let view = shared.lock()?.session.slabs().view(extent)?;
        Ok(Self {
            shared: shared.clone(),
            extent,
            given_bytes,
            view,
        })
    }

    /// Returns the extent of the first `len` bytes; `None` if the memory is shorter.
    pub(super) fn first(&self, len: usize) -> Option<Extent> {
        let len = u32::try_from(len).ok()?;
        (len <= self.extent.len).then_some(Extent { len, ..self.extent })
    }

    /// Returns the memory's place in the daemon's slabs.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// Returns the memory as a view, through which others of this crate copy.
    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// Returns the memory to the daemon. Call it once.
    pub(super) fn give_back(&self) {
        let Ok(mut state) = self.shared.lock() else {
            return;
        };
        let len = self.given_bytes;
        state.session.free(Extent { len, ..self.extent });
        // A daemon that is gone has freed the memory itself.
        let _ = self.shared.exchange(&mut state);
    }

    /// Whether the memory was allocated in this session.
    pub(super) fn is_of(&self, shared: &Arc<SharedSession>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

/// Returns the bytes of a view in place.
pub(super) fn bytes(view: &View) -> &[u8] {
    match view.ptr_at(0, view.len()) {
        // SAFETY: `ptr_at` returns bytes of the view, which keeps them mapped while it is borrowed. Nobody
        // writes to them meanwhile. Allocated memory belongs to the application and is written only through
        // `&mut`, which only this module gives out. Received bytes are not overwritten before they are
        // consumed or, if they are kept, released (see the module's contract).
        Some(start) => unsafe { std::slice::from_raw_parts(start, view.len()) },
        None => &[],
    }
}

impl Deref for SharedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        bytes(&self.view)
    }
}

impl DerefMut for SharedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.view.ptr_at(0, self.view.len()) {
            // SAFETY: as in `bytes`. The daemon gave this memory to nobody else. While the memory is lent and the
            // daemon reads it, its `SharedMemory` exists only inside a `Loan`, which lends no slice.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start, self.view.len()) },
            None => &mut [],
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({:?})", self.extent)
    }
}

/// Memory that is being sent: see [`Stream::lend`](super::Stream::lend). If the application drops it without
/// reclaiming, the memory stays allocated until the session ends, because the daemon may still be reading it.
#[derive(Debug)]
pub struct Loan {
    memory: ManuallyDrop<SharedMemory>,
    lent: LendTicket,
    of: WeakConnection,
}

impl Loan {
    pub(super) fn new(memory: SharedMemory, lent: LendTicket, of: WeakConnection) -> Self {
        Self {
            memory: ManuallyDrop::new(memory),
            lent,
            of,
        }
    }

    pub(super) fn lent(&self) -> LendTicket {
        self.lent
    }

    /// Returns the connection that sends the memory.
    pub(super) fn of(&self) -> &WeakConnection {
        &self.of
    }

    /// Unwraps the memory. Call it only after the daemon has returned the memory.
    pub(super) fn into_memory(self) -> SharedMemory {
        ManuallyDrop::into_inner(self.memory)
    }
}
