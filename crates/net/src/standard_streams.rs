//! Whether a standard stream was closed when the process started.
//!
//! Rust's runtime opens `/dev/null` in the place of a closed one before the program runs, and so does daemon(3). So
//! this looks before the runtime does.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Number of the standard streams.
const COUNT: RawFd = 3;

extern "C" fn look() {
    for number in 0..COUNT {
        // SAFETY: the call only asks for the flags of a descriptor.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
}

/// The loader calls what this section lists before the program's entry point.
#[used]
// SAFETY: the section holds pointers to functions that take no argument that they need and return nothing.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Returns whether a standard stream was closed when the process started. It is false for other descriptors.
pub fn was_closed_at_start(stream: &impl AsRawFd) -> bool {
    let number = stream.as_raw_fd();
    (0..COUNT).contains(&number) && CLOSED.load(Ordering::Relaxed) >> number & 1 == 1
}
