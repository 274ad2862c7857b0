//! RDMA verbs for Headworks, with the InfiniBand specification's and rdma-core's meanings and names.
//!
//! The crates above this one reach a device only through the traits defined here. Every device implements
//! them: the software RNIC, an RDMA NIC behind libibverbs, and the simulated RNIC. The crate does no I/O,
//! reads no clock and starts no thread.
//!
//! # Map
//!
//! | module | contents |
//! |---|---|
//! | [`time`] | [`Instant`] and [`Duration`] in integer nanoseconds; always an argument |
//! | [`device_name`] | [`DeviceName`]: `KIND[:NAME][,key=value…]` |
//! | [`address`] | [`Gid`], [`Qpn`], [`Psn`], [`Mtu`] |
//! | [`device`] | [`Provider`], [`Device`], [`ProtectionDomain`]; [`DeviceLimits`] and [`Promises`] |
//! | [`memory_region`] | [`Buffer`], [`Region`], [`Access`], keys, scatter/gather entries |
//! | [`work_request`] | work requests: [`SendWr`], [`RecvWr`] |
//! | [`datagram`] | [`AddressHandle`], [`Destination`], and the [`Grh`] in a datagram's receive buffer |
//! | [`completion`] | [`Completion`], [`Status`], [`CompletionQueue`], [`CompletionChannel`] |
//! | [`counters`] | [`QpCounters`] and [`CqCounters`]: totals of queue pairs and completion queues |
//! | [`queue_pair`] | [`QueuePair`], [`SharedReceiveQueue`], attributes and capabilities |
//! | [`port_failure`] | [`PortFailure`]: what happened to a port that ends its connections |
//! | [`qp_state`] | QP states and the table of legal transitions with their attributes |
//! | [`bringup`] | connects two RC queue pairs over any byte stream: a byte state machine |
//! | [`interpose`] | a device wrapper that observes and filters posts and polls |
//! | [`versions`] | values that are replaced while references to earlier ones are in use |
//! | [`error`] | errors, one type per kind of operation |
#![deny(unsafe_code)]

pub mod address;
pub mod bringup;
pub mod completion;
pub mod counters;
pub mod datagram;
pub mod device;
pub mod device_name;
pub mod error;
pub mod interpose;
pub mod memory_region;
pub mod port_failure;
pub mod qp_state;
pub mod queue_pair;
pub mod time;
pub mod versions;
pub mod work_request;

pub use address::{Gid, Lid, Mtu, PKey, Psn, Qpn, RoceVersion};
pub use bringup::{BringUp, BringUpError};
pub use completion::{
    Completion, CompletionChannel, CompletionFlags, CompletionQueue, CqId, CqInit, Opcode, Status,
};
pub use counters::{CqCounters, QpCounters};
pub use datagram::{AddressHandle, AhInit, AhKey, Destination, GRH_BYTES, Grh};
pub use device::{
    Abilities, AsyncEvent, Atomics, Device, DeviceInfo, DeviceLimits, DeviceOpener, Promises,
    ProtectionDomain, Provider, Tuning,
};
pub use device_name::{DeviceName, NameError};
pub use error::{ModifyError, OpenError, PollError, PostError, PostErrorKind, ResourceError};
pub use memory_region::{Access, AllocRequest, Buffer, HeapBuffer, Pages, Region, RemoteAddr, Sge};
pub use port_failure::{PortChange, PortFailure};
pub use qp_state::QpState;
pub use queue_pair::{
    QpAttr, QpCaps, QpInit, QpType, QueuePair, RnrTimer, SharedReceiveQueue, SrqId, SrqInit,
};
pub use time::{Duration, Instant};
pub use work_request::{Payload, RecvWr, SendFlags, SendOp, SendWr};
