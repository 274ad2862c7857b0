//! The one vocabulary of Headworks: verbs, with the InfiniBand specification's and rdma-core's
//! meanings and names.
//!
//! Everything above this crate speaks to a device only through the traits here, and every device
//! (a software RNIC, an RDMA NIC behind libibverbs, a simulated one) implements them. The crate
//! does no I/O, reads no clock and starts no thread.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`time`] | [`Instant`] and [`Duration`] in integer nanoseconds; always an argument |
//! | [`name`] | [`DeviceName`]: `KIND[:NAME][,key=value…]` |
//! | [`address`] | [`Gid`], [`Qpn`], [`Psn`], [`Mtu`] |
//! | [`device`] | [`Provider`], [`Device`], [`ProtectionDomain`]; [`Limits`] and [`Promises`] |
//! | [`memory`] | [`Buffer`], [`Region`], [`Access`], keys, scatter/gather entries |
//! | [`work`] | work requests: [`SendWr`], [`RecvWr`] |
//! | [`datagram`] | [`AddressHandle`], [`Destination`], the [`Grh`] that a datagram comes with |
//! | [`completion`] | [`Completion`], [`Status`], [`CompletionQueue`], [`CompletionChannel`] |
//! | [`counters`] | [`QpCounters`], [`CqCounters`]: what was done so far |
//! | [`queue_pair`] | [`QueuePair`], [`SharedReceiveQueue`], attributes and capabilities |
//! | [`state`] | QP states and the table of legal transitions with their attributes |
//! | [`bringup`] | connecting two RC queue pairs over any byte stream: a byte state machine |
//! | [`around`] | a device around another, which somebody watches |
//! | [`error`] | errors, one type per kind of operation |
#![deny(unsafe_code)]

pub mod address;
pub mod around;
pub mod bringup;
pub mod completion;
pub mod counters;
pub mod datagram;
pub mod device;
pub mod error;
pub mod memory;
pub mod name;
pub mod queue_pair;
pub mod state;
pub mod time;
pub mod work;

pub use address::{Gid, Lid, Mtu, Psn, Qpn};
pub use bringup::{BringUp, BringUpError};
pub use completion::{
    Completion, CompletionChannel, CompletionFlags, CompletionQueue, CqId, CqInit, Opcode, Status,
};
pub use counters::{CqCounters, QpCounters};
pub use datagram::{AddressHandle, AhInit, AhKey, Destination, GRH_BYTES, Grh};
pub use device::{AsyncEvent, Device, DeviceInfo, Limits, Promises, ProtectionDomain, Provider};
pub use error::{ModifyError, OpenError, PollError, PostError, PostErrorKind, ResourceError};
pub use memory::{Access, AllocRequest, Buffer, HeapBuffer, Pages, Region, RemoteAddr, Sge};
pub use name::{DeviceName, NameError};
pub use queue_pair::{
    QpAttr, QpCaps, QpInit, QpType, QueuePair, RnrTimer, SharedReceiveQueue, SrqId, SrqInit,
};
pub use state::QpState;
pub use time::{Duration, Instant};
pub use work::{Payload, RecvWr, SendFlags, SendOp, SendWr};
