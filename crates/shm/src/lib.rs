//! Shared memory between processes, and most of the project's unsafe code.
//!
//! The module list is a map of the crate:
//!
//! - memory: [`segment`] makes and attaches sealed memory files; [`view`] is bounds-checked access to a
//!   range of one; [`ordered_copy`] copies bytes in the order and granularity that an RDMA WRITE promises, or
//!   faster and in no order;
//! - structures in that memory: [`cursor`] (the ring cursor, and single-producer single-consumer index
//!   logic over a pair of them), [`slot_queue`] (multi-producer multi-consumer queue that survives
//!   the death of its users), [`mod@lane`] (single-producer queue beside it, without atomic
//!   read-modify-writes), [`event_count`] (wake-up of a waiter that is about to sleep), [`dirty_set`]
//!   (two-level atomic bitmap), [`descriptor_word`] (who may use the memory of a descriptor), [`sender_row`] (a remote process that writes into a queue, and recovery
//!   after its death);
//! - processes: [`liveness`] (identity of a process, and whether it is alive), [`file_lock`] (lock that the
//!   kernel releases at its holder's death), [`descriptor_passing`] (descriptors over Unix sockets), [`fork`]
//!   (detects a forked child, and closes there what it must not keep), [`process_limits`] (`ulimit`),
//!   [`control_group`] (memory that control groups leave), [`wake_pipe`] (pipe that wakes a sleeping process), [`asymmetric_fence`] (memory barriers whose cost
//!   is on one side), [`biased_lock`] (biased lock: plain stores for its first owner);
//! - [`registry`]: directory in which the processes of a user find each other and their common segments;
//! - [`primitive`]: atomics, fences and cells, real or model-checked. It is the only loom switch.
//!
//! Three rules hold in the whole crate. Data that another process wrote is read once and checked; bad data
//! causes a typed error, never a panic or an endless loop. A process may be killed at any instruction
//! without blocking the others. After a fork the child's copies of these objects are inert.
//!
#![doc = include_str!("how_it_works.md")]

#[cfg(not(target_os = "linux"))]
compile_error!("headworks-shm needs Linux (memfd, SCM_RIGHTS, file description locks)");

pub mod asymmetric_fence;
pub mod biased_lock;
pub mod control_group;
pub mod cursor;
pub mod descriptor_passing;
pub mod descriptor_word;
pub mod dirty_set;
pub mod event_count;
pub mod file_lock;
pub mod fork;
pub mod lane;
pub mod liveness;
pub mod ordered_copy;
pub mod primitive;
pub mod process_limits;
pub mod registry;
pub mod segment;
pub mod sender_row;
pub mod slot_queue;
pub mod view;
pub mod wake_pipe;

pub use biased_lock::{BiasedGuard, BiasedLock};
pub use cursor::{Consumer, Cursor, CursorError, Producer};
pub use descriptor_word::{DescriptorState, DescriptorWord};
pub use dirty_set::DirtySet;
pub use event_count::{EventCount, WakeBy, fence_after_arms};
pub use lane::Lane;
pub use liveness::{ProcessId, ProcessWatch};
pub use ordered_copy::copy_in_order;
pub use registry::{
    CommonSegmentClaim, CommonSegmentRecord, ContextClaim, ContextRecord, DescriptorClient,
    DescriptorRequest, DescriptorSource, HostKey, Listing, Member, NameClaim, ProcessRecord,
    Registry, RegistryError, fnv1a,
};
pub use segment::{
    HugePages, PageKind, SegmentError, SegmentRequest, SharedSegment, release, reserve,
};
pub use sender_row::{SenderLife, SenderRow};
pub use slot_queue::{ShmSafe, SingleConsumer, SingleProducer, SlotError, SlotQueue, SlotQueueRef};
pub use view::{CursorRef, EventCountRef, MappedRef, OutOfBounds, View, WordRef, WordsRef};
pub use wake_pipe::{WakePipe, WakeSender};
