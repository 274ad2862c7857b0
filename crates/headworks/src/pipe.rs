//! A byte stream between two processes of this machine, over a ring.
//!
//! One process listens under a name ([`Pipe::listen`]), the other connects ([`Pipe::connect`]) and
//! says which way the bytes go. Then one side sends ([`PipeSender`]) and the other receives
//! ([`PipeReceiver`]).
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

mod ends;
mod error;
mod meet;

pub use ends::{PipeReceiver, PipeSender};
pub use error::PipeError;
pub use meet::{Direction, Patience, Pipe};

use headworks_ring::{Framing, Mode, RingConfig};

/// Version of what the two sides say to each other.
pub const VERSION: u16 = 1;

/// Bytes of a slot: what a short message takes.
const SLOT: usize = 4096;
/// Slots of the longest message. Measured: a WRITE that both sides carry out together (the software
/// RNIC does so beyond 64 KiB) is twice as fast as one that the sender carries out alone.
const CHUNK_SLOTS: u32 = 64;
/// Slots of each array: more would not fit a cache.
const SLOTS: u32 = 1024;
/// Bytes of the longest message, with its header in front.
const CHUNK: usize = CHUNK_SLOTS as usize * SLOT - 8;

/// The ring that a pipe runs over. Long messages are announced one by one, short ones together or
/// when the source has nothing more.
fn ring() -> RingConfig {
    RingConfig {
        slots: SLOTS,
        slot_size: Some(SLOT),
        transmit_every: Some(CHUNK_SLOTS),
        publish_every: Some(CHUNK_SLOTS),
        push_every: Some(SLOTS / 8),
        framing: Framing::Variable(CHUNK),
        mode: Mode::Notify,
        elastic: false,
        ..RingConfig::default()
    }
}
