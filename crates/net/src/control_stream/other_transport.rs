//! The transport of a control stream that runs over no socket.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

/// A byte stream to another process, for a [`ControlStream`](super::ControlStream) to run over. Nothing blocks.
///
/// The descriptor is readable while there is something to receive, the other end is gone, or a
/// [`ControlTransport::send`] that was refused may be tried again.
pub trait ControlTransport: AsFd + Send + Sync + fmt::Debug {
    /// Takes bytes from the front of `bytes` and returns how many, at least one. Fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) while it takes none, and with
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) if the other end is gone.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Copies received bytes and returns how many; 0 at the end of the stream. Fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) while there are none.
    fn recv(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Whether the other end has closed or died, even if not all that it sent has been received.
    fn is_gone(&self) -> bool;
}
