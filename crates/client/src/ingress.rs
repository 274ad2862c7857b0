//! Ingress: the bytes that arrived for an application, as a stream. It combines RaaS's ingress queue (section IV.C) and
//! the memory that the queue's descriptors refer to.
//!
//! Short pieces of the stream come in frames: the daemon copies them into the connection's *ingress ring*, in line. Long
//! ones are READ into the daemon's receive pool, and a [descriptor](crate::descriptors) says where they lie. The tail says
//! how many bytes of the stream the application may read, and the head how many it has consumed.
//!
//! Bytes in line have a position of their own, which counts only them: their place in the ring. The peer may send as many
//! as the daemon promises ([`IngressWriter::limit`]). A part of the ring is never promised: the
//! [reserve](IngressWriter::reserve). A piece of a long transfer goes there if nothing else has room for it.

mod reader;
mod writer;

use headworks_shm::DescriptorState;

use crate::control_block::ControlBlock;

pub use reader::{ConsumeNotice, IngressReader};
pub use writer::{Freed, IngressWriter};

/// State of a descriptor; `None` if its place holds another one, or the block has no descriptors.
fn state(block: &ControlBlock, number: u64) -> Option<DescriptorState> {
    block.descriptors()?.state(number)
}

#[cfg(test)]
mod tests;
