//! What the ring is compared with.
//!
//! # Map
//!
//! - [`bare`]: the same two arrays, copies, α, β, γ and N as the ring, over plain shared memory and
//!   without verbs: the bound for the ring on the software RNIC.

pub mod bare;

pub use bare::{BareReceiver, BareSegment, BareSender};
