//! Memory that an application shares with its daemon and uses where it lies. The only unsafe code of this module's:
//! plain slices of it.
//!
//! Who writes there: the application, to what it has asked for, and the daemon, to the rings of what comes. Both keep
//! to that by contract, as the two ends of a ring do: a daemon that did not could make a slice change under its
//! reader.
#![allow(unsafe_code, reason = "slices of memory that a daemon shares")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use headworks_client::{Extent, Lent};
use headworks_shm::View;

use super::ServiceError;
use super::shared_session::SharedSession;
use super::stream_half::WeakConnection;

/// Memory from [`Service::alloc`](super::Service::alloc), which can be lent. Dropped, it is given back. What it holds at
/// first is anything that the application had in such memory before.
pub struct SharedMemory {
    shared: Arc<SharedSession>,
    /// As much as was asked for, of what the daemon gave.
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

    /// The first `len` bytes of it, where it has as many.
    pub(super) fn first(&self, len: usize) -> Option<Extent> {
        let len = u32::try_from(len).ok()?;
        (len <= self.extent.len).then_some(Extent { len, ..self.extent })
    }

    /// Place of the memory in the daemon's slabs.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// It, to copy from and to.
    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// Gives it back to the daemon: once.
    pub(super) fn give_back(&self) {
        let Ok(mut state) = self.shared.lock() else {
            return;
        };
        let len = self.given_bytes;
        state.session.free(Extent { len, ..self.extent });
        // A daemon that is gone has it back anyhow.
        let _ = self.shared.exchange(&mut state);
    }

    /// Whether it is of this session.
    pub(super) fn is_of(&self, shared: &Arc<SharedSession>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

/// What lies there, as bytes.
pub(super) fn bytes(view: &View) -> &[u8] {
    match view.ptr_at(0, view.len()) {
        // SAFETY: `ptr_at` gives bytes of the view, which keeps them mapped for as long as it is borrowed. Nobody writes
        // to them meanwhile: what was asked for is the application's, to whose `&mut` this module alone is_leader, and what
        // has come is not written to before it is consumed (see the module's contract).
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
            // SAFETY: as in `bytes`; the daemon gave this memory to nobody else, and while it is lent, and read by
            // others, there is no `SharedMemory` of it but inside a `Loan`.
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

/// Memory that is being sent: see [`Stream::lend`](super::Stream::lend). Dropped, it is lost to the application for as
/// long as that is attached, since nobody may write to it.
#[derive(Debug)]
pub struct Loan {
    memory: ManuallyDrop<SharedMemory>,
    lent: Lent,
    of: WeakConnection,
}

impl Loan {
    pub(super) fn new(memory: SharedMemory, lent: Lent, of: WeakConnection) -> Self {
        Self {
            memory: ManuallyDrop::new(memory),
            lent,
            of,
        }
    }

    pub(super) fn lent(&self) -> Lent {
        self.lent
    }

    /// The connection that sends it.
    pub(super) fn of(&self) -> &WeakConnection {
        &self.of
    }

    /// It was returned.
    pub(super) fn into_memory(self) -> SharedMemory {
        ManuallyDrop::into_inner(self.memory)
    }
}
