//! What Headworks is compared with.
//!
//! # Map
//!
//! - [`bare`]: the same two arrays, copies, α, β, γ and N as the ring, over plain shared memory and
//!   without verbs: the bound for the ring on the software RNIC.
//! - [`paper_baselines`]: FaRM-, SocksDirect- and L5-style rings and the combinations of RB²'s Figure 3, on the
//!   same verbs as the ring.
//! - [`counting`]: what is posted to a device and polled from it, counted.
//! - [`end`]: a device's objects at one end of what is compared.
//! - [`memory`]: registered memory, to be polled and filled word by word as programs on verbs do.
//! - [`writes`]: plain WRITEs at a depth, from one thread that has both ends.
//! - [`kernel`]: the system calls that the software RNIC stands on, bare; what the heap holds.
//!
#![doc = include_str!("how_it_works.md")]

pub mod bare;
pub mod counting;
pub mod end;
pub mod kernel;
pub mod memory;
pub mod paper_baselines;
pub mod writes;

pub use bare::{BareReceiver, BareSegment, BareSender};
pub use end::{End, EndError, EndSizes};
pub use memory::Memory;
pub use writes::{CompletedWrite, WriteWindow, Writes, WritesError};
