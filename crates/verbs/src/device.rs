//! Devices: the provider traits, the limits and promises of a device, and the objects made from it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::address::{Gid, Lid, Mtu, PKey, Qpn, RoceVersion};
use crate::completion::{CompletionChannel, CompletionQueue, CqId, CqInit};
use crate::datagram::{AddressHandle, AhInit};
use crate::device_name::DeviceName;
use crate::error::{OpenError, ResourceError};
use crate::memory_region::{Access, AllocRequest, Buffer, Region};
use crate::port_failure::PortFailure;
use crate::queue_pair::{QpInit, QueuePair, SharedReceiveQueue, SrqId, SrqInit};
use crate::time::Instant;

/// Guarantees of a device beyond the specification. Code above relies on nothing else.
///
/// The specification guarantees a WRITE's contents only after a receive completion, a later
/// SEND's completion or an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Promises {
    /// A later WRITE of a queue pair is placed after an earlier one (write twice depends on it).
    pub ordered_between_writes: bool,
    /// An aligned 8-byte word is placed whole (pointers polled in memory depend on it).
    pub atomic_aligned_8: bool,
    /// The bytes of a WRITE are placed in address order, for WRITEs of at most this many bytes
    /// (polling a message's last word depends on it). 0 means no guarantee.
    pub in_order_within_write: u32,
}

/// Largest counts and sizes that a device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
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
    /// Completions that one completion queue holds.
    pub max_cqe: u32,
    /// Registered regions.
    pub max_mr: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives that one shared receive queue holds.
    pub max_srq_wr: u32,
    /// READs and atomics outstanding on a queue pair.
    pub max_rd_atomic: u8,
    /// Bytes of one message.
    pub max_message: u32,
}

impl DeviceLimits {
    /// Returns whether the device has shared receive queues.
    pub const fn has_srqs(&self) -> bool {
        self.max_srq > 0 && self.max_srq_wr > 0
    }
}

/// Description of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its full name, as given to [`Provider::open`].
    pub name: DeviceName,
    /// One line that describes the device.
    pub description: String,
    /// Its driver: the name of the kernel module, such as `mlx5_core`, or `rxe` for soft-RoCE. `None` if it
    /// has no driver or the driver is unknown.
    pub driver: Option<String>,
    /// Identifies its network among the networks of its kind: equal for all devices on one network. 0 if
    /// there is only one network or it is unknown. Devices of two networks do not reach each other.
    pub network: u64,
    /// GID of its port.
    pub gid: Gid,
    /// LID of its port, if it is on an InfiniBand network; a sender to that port needs both GID and LID.
    /// `None` elsewhere.
    pub lid: Option<Lid>,
    /// The version of RoCE that its GID is for; `None` if its network is another, or the version is unknown.
    pub roce: Option<RoceVersion>,
    /// The partition key of its port that connections use; `None` if it has none, or the key is unknown.
    pub pkey: Option<PKey>,
    /// MTU of its port.
    pub mtu: Mtu,
    /// The NUMA node it is attached to, if known.
    pub numa_node: Option<u32>,
    /// The device's limits.
    pub limits: DeviceLimits,
    /// The device's guarantees beyond the specification.
    pub promises: Promises,
    /// Optional parts of verbs that the device has.
    pub abilities: Abilities,
    /// Performance options from its name.
    pub tuning: Tuning,
}

impl DeviceInfo {
    /// A device of this name with nothing else: no limits above 0, and no promises.
    pub fn named(name: DeviceName) -> Self {
        Self {
            name,
            description: String::new(),
            driver: None,
            network: 0,
            gid: Gid::default(),
            lid: None,
            roce: None,
            pkey: None,
            mtu: Mtu::B1024,
            numa_node: None,
            limits: DeviceLimits::default(),
            promises: Promises::default(),
            abilities: Abilities::ALL,
            tuning: Tuning::default(),
        }
    }
}

/// Ways to use a device that are faster on some hardware and slower on other, so that its name must ask for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tuning {
    /// Whether a ring's slots are registered with [`Access::RELAXED_ORDERING`](crate::Access::RELAXED_ORDERING), apart from the
    /// word that announces them.
    pub relaxed_ordering: bool,
    /// Length of the longest WRITE of a ring's slots that is posted inline, in bytes. 0: none is.
    pub inline_up_to: u32,
}

/// Parts of verbs that not every device has. All devices have reliable connections (RC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Whether it has unreliable connections (UC).
    pub uc: bool,
    /// Whether it has datagrams (UD).
    pub ud: bool,
    /// With what its atomics are atomic.
    pub atomics: Atomics,
}

impl Abilities {
    /// Everything there is.
    pub const ALL: Self = Self {
        uc: true,
        ud: true,
        atomics: Atomics::Global,
    };
}

/// With what atomics of a device are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atomics {
    /// The device has none.
    None,
    /// With each other, if the same device executes them. A processor's atomics on the same word may break them, and they may break
    /// the processor's.
    Device,
    /// With all others, those of processors included.
    Global,
}

/// An event that no completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The device moved a queue pair to the error state, for example because its peer died.
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
    /// A port of the device, by its number, went down. Requests in flight are retried until the retry
    /// count is used up.
    PortDown(u8),
    /// The GIDs of a port, by its number, changed. Connections that used one that is gone end
    /// ([`Device::port_failure`]); later ones use the entry that has the same GID now.
    GidChanged(u8),
    /// The partition keys of a port, by its number, changed, as for [`AsyncEvent::GidChanged`].
    PKeyChanged(u8),
    /// The LID of a port, by its number, changed, as for [`AsyncEvent::GidChanged`].
    LidChanged(u8),
    /// The manager of the subnet of a port, by its number, is another one, or asks for all to register again. It may have changed
    /// the port's partition keys and LID.
    SubnetManagerChanged(u8),
    /// The device failed, and with it everything made from it.
    DeviceFatal,
}

/// A family of devices: `soft`, `ibv`, `sim`.
pub trait Provider: Send + Sync {
    /// The KIND part of its devices' names.
    fn kind(&self) -> &'static str;

    /// The devices that exist now.
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

/// Opens a device by its name. Code that knows no provider is given one.
pub type DeviceOpener =
    Arc<dyn Fn(&DeviceName) -> Result<Arc<dyn Device>, OpenError> + Send + Sync>;

/// An opened device.
///
/// Drop it after everything that was made from it. If it is dropped earlier, it lives until the last of those
/// objects is gone, and may then release what it holds outside of the process, such as a name in a registry,
/// with a delay. A process that ends at once may leave that for others to clean up.
pub trait Device: Send + Sync {
    /// Name, limits and promises of the device.
    fn info(&self) -> &DeviceInfo;

    /// Allocates a protection domain: queue pairs of one domain cannot use regions of another.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError>;

    /// Allocates zeroed memory that suits the device. Register it before use.
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError>;

    /// Makes a completion channel.
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError>;

    /// Makes a completion queue.
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError>;

    /// A descriptor that is readable when an asynchronous event may be waiting.
    fn async_fd(&self) -> BorrowedFd<'_>;

    /// The next asynchronous event. Never blocks.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// The latest event of the device's port that ends connections. Reads the device's events first. `None` if there was none since
    /// the device was opened, or if the device does not say.
    fn port_failure(&self) -> Option<PortFailure> {
        None
    }

    /// The current time on the clock of completion timestamps.
    fn now(&self) -> Instant;
}

/// A protection domain.
pub trait ProtectionDomain: Send + Sync {
    /// Registers memory, from [`Device::alloc`] of the same device or from elsewhere
    /// ([`HeapBuffer`](crate::HeapBuffer), another device's memory, a file mapping). Memory from elsewhere
    /// may be slower to access and guarantee less ([`Region::atomic_aligned_8`]).
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError>;

    /// Registers memory in place of `region`, a region of the same device. Where the device can, the new region has the old one's
    /// keys. Requests that use the keys meanwhile may fail. An error returns the old region, which stays registered.
    fn register_again(
        &self,
        region: Region,
        buffer: &Arc<dyn Buffer>,
        access: Access,
    ) -> Result<Region, (ResourceError, Region)> {
        match self.register(buffer, access) {
            Ok(new) => Ok(new),
            Err(error) => Err((error, region)),
        }
    }

    /// Makes a shared receive queue.
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError>;

    /// Makes an address handle: a destination for datagrams of this domain's queue pairs.
    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError>;

    /// Makes a queue pair in state RESET.
    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError>;
}
