//! A byte stream between two processes, over a ring.
//!
//! One process listens ([`Pipe::listen`]) under a name, or at a network address over TCP or RDMA. The other
//! connects ([`Pipe::connect`]) and says which way the bytes go. Then one side sends ([`PipeSender`]) and the
//! other receives ([`PipeReceiver`]).
//!
//! The sender reads bytes from the source straight into its slots; the receiver writes them to the sink
//! straight from its own. An empty message ends the stream. Once the sink has everything, the receiver
//! answers over the control stream with the number of bytes, so both sides succeed only if everything was
//! delivered.
//!
//! ```text
//! connector                      listener
//! hello: version, direction  ->
//!                            <-  welcome: version
//!         the ring is brought up
//! messages over the ring; the empty one is the end
//!                            <-> delivered: bytes, from the receiving side
//! ```

mod accept_queue;
mod endpoints;
mod error;
mod handshake;
mod ring_bring_up;

pub use endpoints::{PipeReceiver, PipeSender};
pub use error::PipeError;
pub use handshake::{Direction, Pipe, WaitOptions, default_device_for};

use headworks_ring::{Framing, Mode, RingConfig};

/// Version of the pipe's protocol.
pub const VERSION: u16 = 1;

/// Size of a slot, in bytes: the space that a short message takes.
const SLOT: usize = 4096;
/// Slots of the longest message. The software RNIC executes such a message within the call, while the
/// bytes just read are in the nearest cache. Messages four times as long take twice the time.
const CHUNK_SLOTS: u32 = 16;
/// Slots of each array. Both arrays fit in that cache together, and the sender has room to read ahead
/// while the receiver wakes up.
const SLOTS: u32 = 128;
/// Bytes of the longest message: whole pages, which are read fastest. One slot is left for the header.
const CHUNK: usize = (CHUNK_SLOTS as usize - 1) * SLOT;

/// Returns the configuration of a pipe's ring. Long messages are announced one by one. Short ones are
/// announced together, or when the source has no more.
fn ring() -> RingConfig {
    RingConfig {
        slots: SLOTS,
        slot_size: Some(SLOT),
        transmit_every: Some(CHUNK_SLOTS),
        publish_every: Some(CHUNK_SLOTS),
        push_every: Some(SLOTS / 4),
        framing: Framing::Variable(CHUNK),
        mode: Mode::Notify,
        elastic: Some(false),
        ..RingConfig::default()
    }
}
