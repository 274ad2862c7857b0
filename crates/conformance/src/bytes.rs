//! Filling and reading registered memory, which a device or a peer may write at the same time.

use headworks_verbs::Region;

/// Copies `bytes` into `region` from `offset`.
///
/// # Panics
///
/// If they do not fit.
pub fn put(region: &Region, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= region.len(), "inside the region");
    let start = region.buffer().as_ptr().wrapping_add(offset);
    for (index, byte) in bytes.iter().enumerate() {
        // SAFETY: inside the buffer, which stays mapped as long as the region; volatile because a
        // peer may look at the same time.
        unsafe { start.wrapping_add(index).write_volatile(*byte) };
    }
}

/// The `len` bytes of `region` from `offset`.
///
/// # Panics
///
/// If they are not inside.
pub fn get(region: &Region, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= region.len(), "inside the region");
    let start = region.buffer().as_ptr().wrapping_add(offset);
    // SAFETY: inside the buffer, which stays mapped as long as the region; volatile because a peer
    // may write at the same time.
    let read = |index| unsafe { start.wrapping_add(index).read_volatile() };
    (0..len).map(read).collect()
}

/// `len` bytes that no other `seed` gives.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
