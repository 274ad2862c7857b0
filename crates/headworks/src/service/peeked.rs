//! Received bytes that are lent to the caller.

use headworks_client::connection::ReceiveHalf;
use headworks_shm::View;

use super::stream_half::{HalfGuard, StreamHalf};
use super::{ServiceError, shared_memory};

/// Received bytes, lent in place.
pub struct Peeked<'s> {
    pub(super) side: HalfGuard<'s, StreamHalf<ReceiveHalf>>,
    pub(super) lent: Lent,
}

/// Where lent bytes are.
pub(super) enum Lent {
    /// In memory that only the daemon writes.
    InPlace(View),
    /// In a copy.
    Copied(Vec<u8>),
}

impl Peeked<'_> {
    /// Consumes the first `bytes` of them; all of them, if there are fewer.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn consume(mut self, bytes: usize) -> Result<(), ServiceError> {
        self.side.connection.shared.check()?;
        let bytes = bytes.min(self.len()) as u64;
        let wake = self.side.half.consume(bytes);
        self.side.connection.wake(wake)
    }
}

impl std::ops::Deref for Peeked<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.lent {
            Lent::InPlace(view) => shared_memory::bytes(view),
            Lent::Copied(bytes) => bytes,
        }
    }
}
