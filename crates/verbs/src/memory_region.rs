//! Memory that a device can reach: buffers, registered regions, keys, scatter/gather entries.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use headworks_wire::{Decoder, Encoder, Field, Malformed, Output};

use crate::error::ResourceError;

bitflags::bitflags! {
    /// Access rights of a registered region, and the order of WRITEs to it, in libibverbs' encoding. Combine with `|`. Local
    /// reads are always allowed.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may only read the region, for this process's own requests.
        const NONE = 0;
        /// The device may write the region for this process's own requests (receives, READ results).
        const LOCAL_WRITE = 1;
        /// A peer may WRITE to it. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 2;
        /// A peer may READ it.
        const REMOTE_READ = 4;
        /// A peer may do atomics on it. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 8;
        /// All access rights.
        const ALL = 15;
        /// No right: WRITEs to the region may become visible before earlier WRITEs (PCIe relaxed ordering). A later
        /// WRITE to a region without this flag becomes visible after them, as a completion does. A device that knows no such
        /// order ignores it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Whether the specification allows this combination: remote writes and atomics need
    /// local write.
    pub const fn is_consistent(self) -> bool {
        !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
            || self.contains(Self::LOCAL_WRITE)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::LOCAL_WRITE, "local write"),
            (Self::REMOTE_WRITE, "remote write"),
            (Self::REMOTE_READ, "remote read"),
            (Self::REMOTE_ATOMIC, "remote atomic"),
            (Self::RELAXED_ORDERING, "relaxed ordering"),
        ];
        let allowed: Vec<_> = names
            .iter()
            .filter(|(bit, _)| self.contains(*bit))
            .map(|(_, name)| *name)
            .collect();
        write!(f, "Access({})", allowed.join(", "))
    }
}

/// The page size to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pages {
    /// The machine's ordinary pages.
    #[default]
    Ordinary,
    /// 2 MiB pages if the machine has some; otherwise ordinary pages, and a warning is logged.
    PreferHuge,
    /// Ordinary pages, each of which gets memory when it is first used. Pages of the other kinds get memory at once, so that
    /// the request fails if there is too little.
    OnDemand,
}

/// A request for memory from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocRequest {
    /// Bytes wanted, at least 1.
    pub len: usize,
    /// Alignment in bytes: a power of two, at most 4096.
    pub align: usize,
    /// The page size to ask for.
    pub pages: Pages,
    /// The NUMA node to allocate on; `None` leaves the choice to the device (its own node).
    pub numa_node: Option<u32>,
    /// Whether other processes may only read the memory, also if they get its [file](Buffer::file). Give peers no rights
    /// to it.
    pub is_sealed: bool,
    /// Whether the memory must not share its file with other memory, so that [`Buffer::file`] returns that file. A device
    /// without shared memory ignores this. Sealed memory never shares its file.
    pub has_own_file: bool,
}

impl AllocRequest {
    /// A request for `len` bytes, cache-line aligned, on ordinary pages.
    pub const fn of(len: usize) -> Self {
        Self {
            len,
            align: 64,
            pages: Pages::Ordinary,
            numa_node: None,
            is_sealed: false,
            has_own_file: false,
        }
    }

    /// Refuses requests that no device can meet: a length of 0 or an illegal alignment.
    ///
    /// # Errors
    ///
    /// [`ResourceError::Limit`].
    pub fn check(&self) -> Result<(), ResourceError> {
        let (what, asked, highest) = match self.len {
            0 => ("buffer length", 0, u64::MAX),
            _ if self.align.is_power_of_two() && self.align <= 4096 => return Ok(()),
            _ => ("buffer alignment", self.align as u64, 4096),
        };
        Err(ResourceError::Limit {
            what,
            asked,
            lowest: 1,
            highest,
        })
    }
}

/// Memory that stays mapped at one address for as long as the value lives.
///
/// Devices and peers write to it at any time, so no code may hold a plain Rust reference to a
/// part that a peer can write. The accessors of the shared-memory crate copy instead.
///
/// # Safety
///
/// `as_ptr()` must point to `len()` bytes that are readable by this process, never move, and stay
/// mapped until the value is dropped. They must be writable too, unless the value is only ever
/// registered with [`Access::NONE`] or [`Access::REMOTE_READ`].
#[allow(
    unsafe_code,
    reason = "the contract that lets everything above use plain addresses"
)]
pub unsafe trait Buffer: Send + Sync {
    /// Address of the first byte.
    fn as_ptr(&self) -> *mut u8;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Address at which the device finds the first byte, if requests name it by another, [`as_ptr`](Self::as_ptr): memory that a
    /// device allocated and a program has mapped twice, or memory that is registered under addresses of its own (iova).
    fn device_ptr(&self) -> *mut u8 {
        self.as_ptr()
    }
    /// The page size that it was allocated with.
    fn pages(&self) -> Pages {
        Pages::Ordinary
    }
    /// Whether the memory lies in reserved huge pages. Ordinary pages that the system may merge do not count.
    fn has_reserved_huge_pages(&self) -> bool {
        self.pages() == Pages::PreferHuge
    }
    /// The file descriptor of the shared segment, if the segment holds this memory from its first byte on and
    /// nothing else. It can be passed to another process, which can then access all of this memory. `None` if
    /// the memory shares its file with other memory or has no file.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Where this memory begins in its [file](Self::file), in bytes: a multiple of the page size.
    fn file_offset(&self) -> u64 {
        0
    }
}

/// Ordinary memory of this process, zeroed and aligned to a cache line: a [`Buffer`] that no device
/// allocated.
pub struct HeapBuffer {
    lines: Box<[Line]>,
    len: usize,
}

/// A cache line of bytes that devices and peers may write.
#[derive(Default)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "reached by address")] [AtomicU64; 8]);

impl HeapBuffer {
    /// Allocates `len` bytes, at least 1.
    pub fn new(len: usize) -> Arc<Self> {
        let lines = len.max(1).div_ceil(size_of::<Line>());
        Arc::new(Self {
            lines: std::iter::repeat_with(Line::default).take(lines).collect(),
            len: len.max(1),
        })
    }
}

// SAFETY: the box holds at least `len` bytes. They are atomic cells, so they may be written through a shared
// reference. The box does not move its contents or free them before the value is dropped.
#[allow(unsafe_code, reason = "see `Buffer`")]
unsafe impl Buffer for HeapBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.lines.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// A registered memory region: a buffer that a device accesses under two keys. Dropping it
/// deregisters it. When drop returns, the device and the peers no longer access the memory. There is one
/// exception: on `soft`, if a peer's process is stopped in the middle of a request, the rest of that request
/// may still arrive in this memory, and in no other, when the process resumes.
pub struct Region {
    lkey: u32,
    rkey: u32,
    access: Access,
    atomic_aligned_8: bool,
    /// Address of the buffer.
    start: u64,
    // Deregistration must come before the memory is freed, so this field must stay ahead of `buffer`.
    registration: Box<dyn Any + Send + Sync>,
    buffer: Arc<dyn Buffer>,
}

impl Region {
    /// For providers: makes a region over all of `buffer`. Dropping `registration` deregisters it.
    pub fn new(
        lkey: u32,
        rkey: u32,
        access: Access,
        buffer: Arc<dyn Buffer>,
        registration: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            lkey,
            rkey,
            access,
            atomic_aligned_8: true,
            start: buffer.as_ptr() as u64,
            registration,
            buffer,
        }
    }

    /// For providers: returns what deregisters the region when it is dropped.
    pub fn registration(&self) -> &(dyn Any + Send + Sync) {
        &*self.registration
    }

    /// For providers: takes what deregisters the region when it is dropped, and the memory, which must be dropped later.
    pub fn into_parts(self) -> (Box<dyn Any + Send + Sync>, Arc<dyn Buffer>) {
        (self.registration, self.buffer)
    }

    /// For providers: marks that aligned words of this region are not placed whole, whatever the device
    /// promises.
    #[must_use]
    pub fn without_atomic_aligned_8(self) -> Self {
        Self {
            atomic_aligned_8: false,
            ..self
        }
    }

    /// Whether [`Promises::atomic_aligned_8`](crate::Promises::atomic_aligned_8), if the device makes it,
    /// holds for this memory. It does not hold for memory that the device did not allocate and accesses
    /// by copying.
    pub fn atomic_aligned_8(&self) -> bool {
        self.atomic_aligned_8
    }

    /// The key for this process's own requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for a peer's requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The access rights it was registered with.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The registered memory.
    pub fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The address of byte `offset`, for this process's requests and for peers alike.
    pub fn addr(&self, offset: usize) -> u64 {
        self.start + offset as u64
    }

    /// A scatter/gather entry for `len` bytes from `offset`. The device checks the bounds.
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge {
            addr: self.addr(offset),
            len,
            lkey: self.lkey,
        }
    }

    /// The address and key with which a peer accesses byte `offset`.
    pub fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr(offset),
            rkey: self.rkey,
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Region({} bytes, rkey {:#x}, {:?})",
            self.len(),
            self.rkey,
            self.access
        )
    }
}

/// A scatter/gather entry: `len` bytes of this process's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region that holds them.
    pub lkey: u32,
}

/// Registered memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RemoteAddr {
    /// Address of the first byte, in the peer's address space.
    pub addr: u64,
    /// Remote key of the region that holds it.
    pub rkey: u32,
}

impl Field for RemoteAddr {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u64(self.addr).u32(self.rkey)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            addr: of.u64()?,
            rkey: of.u32()?,
        })
    }
}

impl RemoteAddr {
    /// The address that is `bytes` higher, under the same key.
    pub const fn plus(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            rkey: self.rkey,
        }
    }
}
