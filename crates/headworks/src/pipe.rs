//! A byte stream between two processes, over a ring.
//!
//! One process listens under a name, or at an address of the network, over TCP or over RDMA
//! ([`Pipe::listen`]), the other connects ([`Pipe::connect`]) and says which way the bytes go. Then one side
//! sends ([`PipeSender`]) and the other receives ([`PipeReceiver`]).
//!
//! Bytes are read from the source straight into the sender's slots, and written to the sink straight from
//! the receiver's. The stream ends with an empty message; the receiver answers it over the line once
//! the sink has everything, with the number of bytes, so that both sides succeed only when all was
//! delivered.
//!
//! ```text
//! connector                      listener
//! hello: version, direction  ->
//!                            <-  welcome: version
//!         the ring is brought up
//! messages over the ring; the empty one is the end
//!                            <-> delivered: bytes, from whoever receives
//! ```

mod accept_queue;
mod endpoints;
mod error;
mod handshake;

pub use endpoints::{PipeReceiver, PipeSender};
pub use error::PipeError;
pub use handshake::{Direction, Pipe, WaitOptions, default_device_for};

use headworks_ring::{Framing, Mode, RingConfig};

/// Version of what the two sides say to each other.
pub const VERSION: u16 = 1;

/// Bytes of a slot: what a short message takes.
const SLOT: usize = 4096;
/// Slots of the longest message: no more than the software RNIC carries out in the call, while the
/// bytes just read are in the processor's nearest cache. Four times as much takes twice as long.
const CHUNK_SLOTS: u32 = 16;
/// Slots of each array. Both arrays together stay in that cache, and there is room for what a sender
/// reads while the receiver wakes up.
const SLOTS: u32 = 128;
/// Bytes of the longest message: whole pages, which are read fastest, and a slot for the header.
const CHUNK: usize = (CHUNK_SLOTS as usize - 1) * SLOT;

/// The ring that a pipe runs over. Long messages are announced one by one, short ones together or
/// when the source has nothing more.
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
