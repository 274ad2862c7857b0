//! Buffer for an application's outgoing or incoming messages.

/// Bytes that are filled in at the back and used up at the front.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Buffer {
    /// Makes a buffer with room for `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0; len];
        Self {
            bytes,
            from: 0,
            to: 0,
        }
    }

    #[inline]
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Returns the first `bytes` pending bytes. At least that many must be pending.
    #[inline]
    pub(super) fn oldest(&self, bytes: usize) -> &[u8] {
        &self.bytes[self.from..self.from + bytes]
    }

    #[inline]
    pub(super) fn used(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Returns whether bytes were used up since the last [`Buffer::rewind`].
    pub(super) fn is_begun(&self) -> bool {
        self.from > 0
    }

    /// Returns the room behind the pending bytes.
    #[inline]
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.to..]
    }

    #[inline]
    pub(super) fn filled(&mut self, bytes: usize) {
        self.to += bytes;
    }

    /// Moves the pending bytes to the front, so that all room lies behind them.
    #[inline]
    pub(super) fn rewind(&mut self) {
        if self.from > 0 {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
    }
}
