//! Messages of the application on their way out or in.

/// Bytes that are filled in at one end and used up at the other.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Buffer {
    /// With room for so many bytes.
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

    /// The first pending bytes, which must be so many.
    #[inline]
    pub(super) fn oldest(&self, bytes: usize) -> &[u8] {
        &self.bytes[self.from..self.from + bytes]
    }

    #[inline]
    pub(super) fn used(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Whether some bytes were used up since the last [`Buffer::rewind`].
    pub(super) fn is_begun(&self) -> bool {
        self.from > 0
    }

    /// The room behind the pending bytes.
    #[inline]
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.to..]
    }

    #[inline]
    pub(super) fn filled(&mut self, bytes: usize) {
        self.to += bytes;
    }

    /// Makes all room that is not taken by pending bytes lie behind them.
    #[inline]
    pub(super) fn rewind(&mut self) {
        if self.from > 0 {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
    }
}
