//! The functions that programs call. `symbols` exports those that programs find by name; the others are reached through the tables of function pointers in
//! contexts, completion queues and queue pairs.

pub(crate) mod address;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod memory;
pub(crate) mod pd;
pub(crate) mod port;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod srq;
pub(crate) mod stubs;
