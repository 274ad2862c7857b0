//! Filling and reading memory that a device or a peer may write at the same time.

use std::sync::Arc;

use headworks_verbs::{Buffer, Region};

/// Copies `bytes` into `region` from `offset`.
///
/// # Panics
///
/// If they do not fit.
pub fn put(region: &Region, offset: usize, bytes: &[u8]) {
    write(region.buffer(), offset, bytes.len(), |index| bytes[index]);
}

/// The `len` bytes of `region` from `offset`.
///
/// # Panics
///
/// If they are not inside.
pub fn get(region: &Region, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    read(region.buffer(), offset, len, |byte| bytes.push(byte));
    bytes
}

/// Whether `len` bytes from `offset` are inside `buffer`.
pub fn is_inside(buffer: &Arc<dyn Buffer>, offset: usize, len: usize) -> bool {
    offset
        .checked_add(len)
        .is_some_and(|end| end <= buffer.len())
}

/// Writes `len` bytes from `offset`, each as `next` says.
///
/// # Panics
///
/// If they do not fit.
pub fn write(
    buffer: &Arc<dyn Buffer>,
    offset: usize,
    len: usize,
    mut next: impl FnMut(usize) -> u8,
) {
    assert!(is_inside(buffer, offset, len), "inside the buffer");
    let start = buffer.as_ptr().wrapping_add(offset);
    for index in 0..len {
        // SAFETY: inside the buffer, which stays mapped as long as it is held; volatile because a
        // peer may look at the same time.
        unsafe { start.wrapping_add(index).write_volatile(next(index)) };
    }
}

/// Shows `see` the `len` bytes from `offset`, one by one.
///
/// # Panics
///
/// If they are not inside.
pub fn read(buffer: &Arc<dyn Buffer>, offset: usize, len: usize, mut see: impl FnMut(u8)) {
    assert!(is_inside(buffer, offset, len), "inside the buffer");
    let start = buffer.as_ptr().wrapping_add(offset);
    for index in 0..len {
        // SAFETY: inside the buffer, which stays mapped as long as it is held; volatile because a
        // peer may write at the same time.
        see(unsafe { start.wrapping_add(index).read_volatile() });
    }
}

/// Bytes without end that no other `seed` gives.
pub fn random_bytes(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    }
}

/// `len` bytes that no other `seed` gives.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut next = random_bytes(seed);
    (0..len).map(|_| next()).collect()
}
