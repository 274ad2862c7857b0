//! The stream's messages in registered memory: bytes go in and out by copies.

use headworks_verbs::Region;

/// Copies `bytes` to `at`.
pub(super) fn put(region: &Region, at: usize, bytes: &[u8]) {
    let end = at.checked_add(bytes.len());
    assert!(end.is_some_and(|end| end <= region.len()), "out of bounds");
    let to = region.buffer().as_ptr().wrapping_add(at);
    // SAFETY: within the buffer, as just seen, which is writable: it was registered for local WRITEs. No
    // reference to it exists, and the device reads it only after it is posted.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Copies what is at `at` into `bytes`.
pub(super) fn get(region: &Region, at: usize, bytes: &mut [u8]) {
    let end = at.checked_add(bytes.len());
    assert!(end.is_some_and(|end| end <= region.len()), "out of bounds");
    let from = region.buffer().as_ptr().wrapping_add(at);
    // SAFETY: within the buffer, as just seen. The device writes to it only between the post of a
    // receive and its completion, and what is read here was completed; whatever bytes there are will do.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
}
