//! The middle layer: posting, executing and completing requests. It has the state that the objects of a context
//! share, and the queues.
//!
//! Objects are created, found and released by the layer above.

pub(crate) mod address_handles;
pub(crate) mod bounce;
pub(crate) mod completion_channel;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod cq;
pub(crate) mod cross_process_copy;
pub(crate) mod datagram_senders;
pub(crate) mod events;
pub(crate) mod mr_key_check;
pub(crate) mod non_temporal;
pub(crate) mod qp;
pub(crate) mod quarantine;
pub(crate) mod remote_memory;
pub(crate) mod srq;
