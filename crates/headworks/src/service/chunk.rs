//! Received bytes that an application keeps, without a copy.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use headworks_client::connection::{KeptMemory, Wake};
use headworks_shm::View;

use super::shared_memory;
use super::stream_half::ServiceConnection;

/// Received bytes. They stay where they are until the chunk is dropped, whatever is received meanwhile. Another thread may
/// use and drop them.
///
/// Long pieces of a stream lie in the daemon's receive pool, and a chunk of them is not a copy. Short pieces come in
/// frames, and a chunk of these is a copy of at most [`COPIED_MAX`] bytes. A chunk keeps its connection open.
///
/// A pool is small. If an application keeps chunks for long, and the pool runs short, other memory takes their place and
/// counts as the application's; the daemon does not touch them. A stream lends no more than the last
/// [`CHUNKS_MAX`](super::CHUNKS_MAX) chunks of the pool.
pub struct Chunk {
    bytes: ChunkBytes,
    connection: Arc<ServiceConnection>,
}

/// Bytes that a chunk has copied at most.
pub const COPIED_MAX: usize = 32 << 10;

enum ChunkBytes {
    Copied(Vec<u8>),
    /// In the receive pool. `None` once it was released.
    Kept(View, Option<Box<KeptMemory>>),
}

impl Chunk {
    pub(super) fn copied(bytes: Vec<u8>, connection: &Arc<ServiceConnection>) -> Self {
        Self {
            bytes: ChunkBytes::Copied(bytes),
            connection: connection.clone(),
        }
    }

    pub(super) fn kept(
        view: View,
        memory: KeptMemory,
        connection: &Arc<ServiceConnection>,
    ) -> Self {
        Self {
            bytes: ChunkBytes::Kept(view, Some(Box::new(memory))),
            connection: connection.clone(),
        }
    }

    /// Returns whether the bytes lie in the receive pool, and are not a copy.
    pub fn is_in_pool(&self) -> bool {
        matches!(self.bytes, ChunkBytes::Kept(..))
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            ChunkBytes::Copied(bytes) => bytes,
            ChunkBytes::Kept(view, _) => shared_memory::bytes(view),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let ChunkBytes::Kept(_, memory) = &mut self.bytes else {
            return;
        };
        // In a forked child the chunk belongs to the parent.
        if let Some(memory) = memory.take()
            && self.connection.shared.check().is_ok()
            && memory.release() == Wake::Needed
        {
            // Without a daemon there is nobody to wake.
            let _ = self.connection.shared.wake();
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}
