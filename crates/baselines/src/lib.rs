//! Baselines that Headworks is compared with.
//!
//! # Map
//!
//! - [`bare`]: a ring over plain shared memory, without verbs. It has the ring's two arrays, copies, α, β, γ
//!   and N, and is the upper bound for the ring on the software RNIC.
//! - [`paper_baselines`]: FaRM-, SocksDirect- and L5-style rings and the combinations of RB²'s Figure 3, on
//!   the same verbs as the ring.
//! - [`counting`]: a device wrapper that counts posted requests and polled completions.
//! - [`end`]: one end's device objects: queue pairs, completion queues, memory.
//! - [`word_memory`]: registered memory that is polled and filled word by word, as verbs programs do.
//! - [`writes`]: plain WRITEs at a fixed queue depth, from one thread that owns both ends.
//! - [`kernel`]: the system call under the software RNIC, called directly; and the heap's size.
//!
#![doc = include_str!("how_it_works.md")]

pub mod bare;
pub mod counting;
pub mod end;
pub mod kernel;
pub mod paper_baselines;
pub mod word_memory;
pub mod writes;

pub use bare::{BareOffer, BareReceiver, BareSegment, BareSender};
pub use end::{End, EndError, EndSizes};
pub use word_memory::WordMemory;
pub use writes::{CompletedWrite, WriteWindow, Writes, WritesError};
