//! Shared memory between processes, and everything unsafe about it.
//!
//! The module list is a map of the crate:
//!
//! - memory: [`segment`] makes and attaches sealed memory files; [`view`] is bounds-checked access to
//!   (a part of) one; [`mod@place`] copies bytes in the order and granularity that an RDMA WRITE promises;
//! - structures in that memory: [`cursor`] (*the* ring cursor, and single-producer single-consumer index
//!   logic over a pair of them), [`slots`] (a queue of many producers and consumers that survives
//!   their deaths), [`mod@lane`] (a way beside such a queue without atomic instructions), [`bell`]
//!   (waking only who is about to sleep), [`marks`] (which of many were touched), [`sender`] (who puts something into another's queues);
//! - processes: [`liveness`] (who is alive), [`fork`] (are we a forked child), [`wake`] (waking a sleeping
//!   process), [`asymmetric`] (fences whose cost is all on one side),
//!   [`biased`] (a lock that is free for its usual owner);
//! - [`fabric`]: the registry, the only place where anything has a name, and through it segments that all
//!   processes of a user have in common;
//! - [`primitive`]: atomics, fences and cells, real or model-checked: the only loom switch.
//!
//! Three rules hold everywhere here. What another process wrote is read once, checked, and answered with
//! a typed error, never with a panic or an endless loop. A process may be killed at any instruction
//! without wedging the others. After a fork the child's copies of these objects are inert.

#[cfg(not(target_os = "linux"))]
compile_error!("headworks-shm needs Linux (memfd, pidfd, /proc)");

pub mod asymmetric;
pub mod bell;
pub mod biased;
pub mod cursor;
pub mod fabric;
pub mod fork;
pub mod lane;
pub mod liveness;
pub mod marks;
pub mod place;
pub mod primitive;
pub mod segment;
pub mod sender;
pub mod slots;
pub mod view;
pub mod wake;

pub use bell::Bell;
pub use biased::{BiasedGuard, BiasedLock};
pub use cursor::{Consumer, Cursor, CursorError, Producer};
pub use fabric::{
    CommonClaim, CommonRecord, ContextClaim, ContextRecord, FabricDir, FabricError, HostKey,
    NameClaim, fnv1a,
};
pub use lane::Lane;
pub use liveness::{ProcessId, pidfd_is_dead};
pub use marks::Marks;
pub use place::place;
pub use segment::{HugePages, PageKind, SegmentError, SegmentRequest, SharedSegment, open_of};
pub use sender::{SenderLife, SenderRow};
pub use slots::{OnlyConsumer, OnlyProducer, ShmSafe, SlotError, SlotQueue, SlotQueueRef};
pub use view::{CursorRef, OutOfBounds, View, WordRef};
pub use wake::{WakePipe, WakeSender};
