//! Writes and reads memory that a device or a peer may access concurrently.

use std::sync::Arc;

use headworks_verbs::{Buffer, Region};

/// Copies `bytes` into `region` at `offset`.
///
/// # Panics
///
/// If the bytes do not fit.
pub fn put(region: &Region, offset: usize, bytes: &[u8]) {
    write(region.buffer(), offset, bytes.len(), |index| bytes[index]);
}

/// Returns `len` bytes of `region` from `offset`.
///
/// # Panics
///
/// If the range is not inside the region.
pub fn get(region: &Region, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    read(region.buffer(), offset, len, |byte| bytes.push(byte));
    bytes
}

/// Returns whether `len` bytes from `offset` are inside `buffer`.
pub fn is_inside(buffer: &Arc<dyn Buffer>, offset: usize, len: usize) -> bool {
    offset
        .checked_add(len)
        .is_some_and(|end| end <= buffer.len())
}

/// Writes `len` bytes from `offset`; `next` returns the byte for each index.
///
/// # Panics
///
/// If the range is not inside the buffer.
pub fn write(
    buffer: &Arc<dyn Buffer>,
    offset: usize,
    len: usize,
    mut next: impl FnMut(usize) -> u8,
) {
    assert!(is_inside(buffer, offset, len), "inside the buffer");
    let start = buffer.as_ptr().wrapping_add(offset);
    for index in 0..len {
        // SAFETY: the byte is inside the buffer, which stays mapped while it is held. The write is
        // volatile because a peer may read at the same time.
        unsafe { start.wrapping_add(index).write_volatile(next(index)) };
    }
}

/// Reads `len` bytes from `offset` and passes each to `see`.
///
/// # Panics
///
/// If the range is not inside the buffer.
pub fn read(buffer: &Arc<dyn Buffer>, offset: usize, len: usize, mut see: impl FnMut(u8)) {
    assert!(is_inside(buffer, offset, len), "inside the buffer");
    let start = buffer.as_ptr().wrapping_add(offset);
    for index in 0..len {
        // SAFETY: the byte is inside the buffer, which stays mapped while it is held. The read is
        // volatile because a peer may write at the same time.
        see(unsafe { start.wrapping_add(index).read_volatile() });
    }
}

/// Returns an endless pseudorandom byte stream that depends on `seed`.
pub fn random_bytes(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    }
}

/// Returns the first `len` bytes of the pseudorandom stream of `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut next = random_bytes(seed);
    (0..len).map(|_| next()).collect()
}
