//! Measures the gain of receive memory that stays in the processor's cache: two hosts in one process, of which one receives
//! messages into a ring or into a receive pool, and reads them some time later.
//!
//! | module | what |
//! |---|---|
//! | [`receive_memory`] | where messages land: a ring of any length, or the receive pool. Pure |
//! | [`hosts`] | devices, queue pairs and memory of both hosts |
//! | [`mod@transfer`] | the measurement: copy a message, read an older one |
//! | [`machine`] | the machine itself: cache scans, memory bandwidth, a thread that uses memory bandwidth |
//! | [`batch_times`] | times of batches of bytes, without allocations. Pure |
//! | [`page_faults`] | page faults of the calling thread |
//! | [`pool_time`] | time that the receive pool takes for an extent |

pub mod batch_times;
pub mod hosts;
pub mod machine;
pub mod page_faults;
pub mod pool_time;
pub mod receive_memory;
pub mod transfer;

pub use hosts::Hosts;
pub use machine::MemoryLoad;
pub use receive_memory::MemoryKind;
pub use transfer::{Copier, Cpus, ResidencyLoad, Transferred, transfer};
