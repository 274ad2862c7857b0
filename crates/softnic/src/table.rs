//! The lowest layer: a context's table and memory as other processes see them, and the other processes' contexts.
//!
//! Nothing here depends on the types of queue pairs and CQs, or executes a request.

pub(crate) mod addresses;
pub(crate) mod arena;
pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod initiator;
pub(crate) mod limits;
pub(crate) mod local_mrs;
pub(crate) mod peer;
pub(crate) mod peer_process;
pub(crate) mod peers;
pub(crate) mod progress;
pub(crate) mod row_allocator;
pub(crate) mod rows;
