//! Devices: what a provider offers, what a device promises, and what is made from it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::address::{Gid, Lid, Mtu, Qpn};
use crate::completion::{CompletionChannel, CompletionQueue, CqId, CqInit};
use crate::datagram::{AddressHandle, AhInit};
use crate::device_name::DeviceName;
use crate::error::{OpenError, ResourceError};
use crate::memory_region::{Access, AllocRequest, Buffer, Region};
use crate::queue_pair::{QpInit, QueuePair, SharedReceiveQueue, SrqId, SrqInit};
use crate::time::Instant;

/// What a device promises beyond the specification. Code above relies on nothing else.
///
/// The specification itself promises a WRITE's contents only after a receive completion, a later
/// SEND's completion or an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Promises {
    /// A later WRITE of a queue pair is placed after an earlier one (write twice needs it).
    pub ordered_between_writes: bool,
    /// An aligned 8-byte word is placed whole (pointers polled in memory need it).
    pub atomic_aligned_8: bool,
    /// The bytes of a WRITE are placed in address order, for WRITEs of at most this many bytes
    /// (polling a message's last word needs it). 0 promises nothing.
    pub in_order_within_write: u32,
}

/// What a device can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests outstanding on a send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Bytes of an inline payload.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions one holds.
    pub max_cqe: u32,
    /// Registered regions.
    pub max_mr: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives one holds.
    pub max_srq_wr: u32,
    /// READs and atomics outstanding on a queue pair.
    pub max_rd_atomic: u8,
    /// Bytes of one message.
    pub max_message: u32,
}

/// A device as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its full name, as given to [`Provider::open`].
    pub name: DeviceName,
    /// One line on what it is.
    pub description: String,
    /// The driver of it: `mlx5_core` and the like, as the kernel calls the module, or `rxe` for soft-RoCE.
    /// `None` where there is none, or it is not known.
    pub driver: Option<String>,
    /// Which of the networks of its kind it is on, as a number that all devices on it have; 0 where there is
    /// only one, or this cannot be known. Devices of two networks do not reach each other.
    pub network: u64,
    /// Its port's address.
    pub gid: Gid,
    /// Its port's local identifier, where it is on an InfiniBand network: whoever sends there names both.
    /// `None` elsewhere.
    pub lid: Option<Lid>,
    /// Its port's MTU.
    pub mtu: Mtu,
    /// The NUMA node it is attached to, where that is known.
    pub numa_node: Option<u32>,
    /// Limits.
    pub limits: DeviceLimits,
    /// What it promises beyond the specification.
    pub promises: Promises,
}

/// Something that happened without a completion to tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair went to the error state by itself (its peer died, for one).
    QpFatal(Qpn),
    /// The last receive of a queue pair in error over an SRQ was consumed.
    QpLastWqe(Qpn),
    /// A completion queue overran; its queue pairs are in error.
    CqError(CqId),
    /// A shared receive queue fell below its limit.
    SrqLimit(SrqId),
    /// A shared receive queue failed: nothing can be received through it any more.
    SrqError(SrqId),
    /// A port of the device, by its number, came up.
    PortActive(u8),
    /// A port of the device, by its number, went down: what is under way is retried until the retry
    /// count is used up.
    PortDown(u8),
    /// The device failed, and everything made from it with it.
    DeviceFatal,
}

/// A family of devices: `soft`, `ibv`, `sim`.
pub trait Provider: Send + Sync {
    /// The KIND part of its devices' names.
    fn kind(&self) -> &'static str;

    /// The devices that are there now.
    fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError>;

    /// Opens a device.
    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError>;
}

impl<P: Provider + ?Sized> Provider for &P {
    fn kind(&self) -> &'static str {
        (**self).kind()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        (**self).devices()
    }

    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
        (**self).open(name)
    }
}

/// An opened device.
///
/// To be dropped after everything that was made from it. Dropped earlier, it lives on until the
/// last of that is gone, and then lets go of what it has outside of the process (a name in a
/// registry, for one) at its leisure: a process that ends at once may leave that for others to
/// clean up.
pub trait Device: Send + Sync {
    /// Name, limits and promises of the device.
    fn info(&self) -> &DeviceInfo;

    /// A protection domain: regions and queue pairs of different domains do not meet.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError>;

    /// Memory of the device's liking, zeroed; register it before use.
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError>;

    /// A completion channel.
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError>;

    /// A completion queue.
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError>;

    /// Readable when an asynchronous event may be waiting.
    fn async_fd(&self) -> BorrowedFd<'_>;

    /// The next asynchronous event. Never blocks.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// The clock of completion timestamps.
    fn now(&self) -> Instant;
}

/// A protection domain.
pub trait ProtectionDomain: Send + Sync {
    /// Registers memory: what [`Device::alloc`] of the same device gave, or any other
    /// ([`HeapBuffer`](crate::HeapBuffer), another device's, a mapping of a file), which may cost
    /// more to reach and promise less ([`Region::atomic_aligned_8`]).
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError>;

    /// Makes a shared receive queue.
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError>;

    /// Makes an address handle: where datagrams of this domain's queue pairs may go.
    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError>;

    /// Makes a queue pair in state RESET.
    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError>;
}
