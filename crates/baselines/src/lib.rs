//! What Headworks is compared with.
//!
//! # Map
//!
//! - [`bare`]: the same two arrays, copies, α, β, γ and N as the ring, over plain shared memory and
//!   without verbs: the bound for the ring on the software RNIC.
//! - [`memory`]: registered memory, to be polled and filled word by word as programs on verbs do.
//! - [`kernel`]: the system calls that the software RNIC stands on, bare; what the heap holds.

pub mod bare;
pub mod kernel;
pub mod memory;

pub use bare::{BareReceiver, BareSegment, BareSender};
pub use memory::Memory;
