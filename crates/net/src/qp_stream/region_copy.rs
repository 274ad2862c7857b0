//! Copies between the stream's messages in registered memory and ordinary slices.

use headworks_verbs::Region;

/// Copies `bytes` into the region at offset `at`.
pub(super) fn put(region: &Region, at: usize, bytes: &[u8]) {
    let end = at.checked_add(bytes.len());
    assert!(end.is_some_and(|end| end <= region.len()), "out of bounds");
    let to = region.buffer().as_ptr().wrapping_add(at);
    // SAFETY: the destination is within the buffer, as just checked. The buffer is writable, because it was
    // registered for local WRITEs. No reference to it exists, and the device reads it only after it is
    // posted.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Copies from the region at offset `at` into `bytes`.
pub(super) fn get(region: &Region, at: usize, bytes: &mut [u8]) {
    let end = at.checked_add(bytes.len());
    assert!(end.is_some_and(|end| end <= region.len()), "out of bounds");
    let from = region.buffer().as_ptr().wrapping_add(at);
    // SAFETY: the source is within the buffer, as just checked. The device writes there only between the post
    // of a receive and its completion, and the receive read here has completed. Any byte values are valid.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
}
