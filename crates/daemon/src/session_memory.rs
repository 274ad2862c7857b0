//! The memory that the daemon shares with one application: slabs that the device allocates, registered in the
//! application's domain, and an allocator for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_client::socket_message::Refusal;
use headworks_client::{Extent, Slabs};
use headworks_ring::view_of;
use headworks_shm::View;
use headworks_verbs::{Access, AllocRequest, Buffer, Device, Pages, ProtectionDomain, Region, Sge};

use crate::allocator::{ExtentAllocator, log_of};
use crate::frame::Remote;
use crate::limits::DaemonLimits;
use crate::memory_quota::MemoryQuota;

/// Memory of a session, as one of its users sees it: the daemon's control, or a worker. All users share the allocator,
/// which is behind a lock. Each has its own list of the slabs, so that the transfer of bytes takes no lock:
/// [`slabs`](Self::slabs), [`slab`](Self::slab), [`sge`](Self::sge) and [`remote`](Self::remote) take none, all other
/// calls do.
pub struct SessionMemory {
    // The views are dropped before the regions that keep the memory.
    slabs: Slabs,
    regions: Vec<Arc<Region>>,
    /// Number of the slab of the first region.
    first: u32,
    quota: Arc<MemoryQuota>,
    shared: Arc<SharedMemory>,
}

/// The part of a session's memory that its users share.
struct SharedMemory {
    state: Mutex<MemoryState>,
    /// Whether there are slabs that the application has not been told of.
    has_new_slabs: AtomicBool,
}

/// All slabs of a session, and the allocator for them.
struct MemoryState {
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    slabs: Slabs,
    regions: Vec<Arc<Region>>,
    pool: ExtentAllocator,
    slab_log: u32,
    quota: Arc<MemoryQuota>,
    /// Extents that the application allocated for itself: slab, offset, length.
    asked: BTreeSet<(u32, u64, u32)>,
    /// Bytes of those extents.
    asked_bytes: u64,
    /// Bytes of rings up to which one may be longer than [`SHORT_RING`].
    ring_budget: u64,
    /// Those of the asked extents that others may use, with the number of uses.
    pinned: BTreeMap<(u32, u64, u32), PinCount>,
    /// Slabs that the application has not been told of.
    new: Vec<NewSlab>,
    /// Number of the first slab. Lower ones are the receive pools of the workers.
    first: u32,
    /// Whether free memory is filled with a pattern, and how often the pattern was found overwritten.
    poison: bool,
    overwritten: u64,
}

/// A slab that the application is to be told of.
pub struct NewSlab {
    /// Its number.
    pub number: u32,
    /// Its memory.
    pub buffer: Arc<dyn Buffer>,
    /// Whether the application may only read it.
    pub is_read_only: bool,
}

/// Whether an extent lies within memory that the application allocated.
fn is_in(extent: Extent, (slab, offset, len): (u32, u64, u32)) -> bool {
    let end = extent.offset.checked_add(extent.len.into());
    extent.slab == slab
        && extent.offset >= offset
        && end.is_some_and(|end| end <= offset + u64::from(len))
}

/// Uses of an extent by others.
#[derive(Clone, Copy, Debug, Default)]
struct PinCount {
    times: u32,
    /// The application has freed the extent.
    is_returned: bool,
}

/// Bytes of a ring that every connection may have, as far as its application's memory goes.
const SHORT_RING: u32 = 128 << 10;

/// Returns the length of the longest ring while the budget of all has `left` bytes left: a part of them, so that
/// connections that come later get some, too.
fn longest_ring(left: u64) -> u32 {
    let part = (left / 4).min(1 << 30) as u32;
    let log = part.checked_ilog2().unwrap_or(0);
    (1 << log).max(SHORT_RING)
}

/// Pattern that free memory is filled with.
const POISON: [u8; 8] = *b"it rests";

impl SessionMemory {
    /// Creates a memory without slabs. A slab has [`DaemonLimits::slab_bytes`], or more if a requested extent is
    /// longer; all slabs together have at most [`DaemonLimits::memory_each`].
    pub fn new(
        device: &Arc<dyn Device>,
        pd: &Arc<dyn ProtectionDomain>,
        limits: &DaemonLimits,
    ) -> Self {
        let quota = Arc::new(MemoryQuota::new(limits.memory_each));
        let state = MemoryState {
            device: device.clone(),
            pd: pd.clone(),
            slabs: Slabs::default(),
            regions: Vec::new(),
            pool: ExtentAllocator::default(),
            slab_log: limits.slab_bytes.trailing_zeros(),
            quota: quota.clone(),
            asked: BTreeSet::new(),
            asked_bytes: 0,
            ring_budget: limits.ring_budget,
            pinned: BTreeMap::new(),
            new: Vec::new(),
            first: limits.workers.into(),
            poison: limits.poison,
            overwritten: 0,
        };
        Self {
            slabs: Slabs::default(),
            regions: Vec::new(),
            first: limits.workers.into(),
            quota,
            shared: Arc::new(SharedMemory {
                state: Mutex::new(state),
                has_new_slabs: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the same memory for another user.
    #[must_use]
    pub fn share(&self) -> Self {
        let mut shared = Self {
            slabs: Slabs::default(),
            regions: Vec::new(),
            first: self.first,
            quota: self.quota.clone(),
            shared: self.shared.clone(),
        };
        shared.refresh();
        shared
    }

    /// Returns a handle that does not keep the memory: for counting it.
    pub fn observer(&self) -> MemoryObserver {
        MemoryObserver {
            slabs: Arc::downgrade(&self.shared),
            quota: Arc::downgrade(&self.quota),
        }
    }

    /// Returns the limit on the application's memory, and what is charged to it.
    pub(crate) fn quota(&self) -> &Arc<MemoryQuota> {
        &self.quota
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.shared.state()
    }

    /// Adds slabs that other users have allocated to this user's list.
    pub fn refresh(&mut self) {
        let shared = self.shared.clone();
        let state = shared.state();
        if state.regions.len() > self.regions.len() {
            self.slabs = state.slabs.clone();
            self.regions.clone_from(&state.regions);
        }
    }

    /// Allocates `bytes`, rounded up to a power of two.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`] beyond the session's maximum, [`Refusal::Memory`] if the machine has no more.
    pub fn take(&mut self, bytes: u32) -> Result<Extent, Refusal> {
        let mut state = self.state();
        let taken = state.take(bytes);
        if !state.new.is_empty() {
            self.shared.has_new_slabs.store(true, Ordering::Release);
        }
        drop(state);
        if let Ok(extent) = &taken
            && self.slabs.slab(extent.slab).is_none()
        {
            self.refresh();
        }
        taken
    }

    /// Allocates a ring in place of one of `len` bytes: of `bytes`, or of fewer the closer the rings are to
    /// [`DaemonLimits::ring_budget`].
    ///
    /// # Errors
    ///
    /// As [`SessionMemory::take`]; [`Refusal::Limit`] also if the ring may not be longer than it is.
    pub fn take_longer_ring(&mut self, len: u32, bytes: u32) -> Result<Extent, Refusal> {
        let left = self.state().ring_budget_left();
        let bytes = bytes.min(longest_ring(left));
        if bytes <= len {
            return Err(Refusal::Limit);
        }
        self.take(bytes)
    }

    /// Frees an extent that was allocated by [`SessionMemory::take`].
    pub fn give(&mut self, extent: Extent) {
        self.state().give(extent);
    }

    /// How often free memory was found overwritten.
    pub fn overwritten(&self) -> u64 {
        self.state().overwritten
    }

    /// Logs that an allocation of this application was refused because of the limit.
    pub fn report_refusal(&self, name: &str, why: Refusal) {
        if why == Refusal::Limit {
            let (bytes, key) = {
                let state = self.state();
                (state.quota.charged(), state.limiting_key())
            };
            tracing::warn!(
                "application {name:?} with {bytes} bytes of shared memory reached its limit: raise {key} for more"
            );
        }
    }

    /// Like [`SessionMemory::take`], on behalf of the application itself.
    ///
    /// # Errors
    ///
    /// As [`SessionMemory::take`].
    pub fn ask(&mut self, bytes: u32) -> Result<Extent, Refusal> {
        let extent = self.take(bytes)?;
        let key = (extent.slab, extent.offset, extent.len);
        let mut state = self.state();
        state.asked.insert(key);
        state.asked_bytes += u64::from(extent.len);
        drop(state);
        Ok(extent)
    }

    /// Frees an extent that the application allocated for itself. Returns whether it had. If others still use
    /// the extent, it is freed when they no longer do.
    pub fn returned(&mut self, extent: Extent) -> bool {
        let key = (extent.slab, extent.offset, extent.len);
        let mut state = self.state();
        let had = state.asked.remove(&key);
        match state.pinned.get_mut(&key) {
            Some(pinned) if had => pinned.is_returned = true,
            None if had => state.give_asked(extent),
            _ => {}
        }
        had
    }

    /// Counts a use by others of memory that the application allocated. Returns `false` if it did not
    /// allocate it.
    pub fn pin(&mut self, extent: Extent) -> bool {
        let mut state = self.state();
        let before = state.asked.range(..=(extent.slab, extent.offset, u32::MAX));
        let key = before.copied().next_back();
        let key = key.filter(|key| extent.len > 0 && is_in(extent, *key));
        if let Some(key) = key {
            state.pinned.entry(key).or_default().times += 1;
        }
        drop(state);
        if key.is_some() && self.slabs.slab(extent.slab).is_none() {
            self.refresh();
        }
        key.is_some()
    }

    /// Ends a use: call it once for each [`SessionMemory::pin`].
    pub fn unpin(&mut self, extent: Extent) {
        let mut state = self.state();
        let mut before = state
            .pinned
            .range_mut(..=(extent.slab, extent.offset, u32::MAX));
        let Some((key, pinned)) = before.next_back().filter(|(key, _)| is_in(extent, **key)) else {
            return;
        };
        let key = *key;
        pinned.times -= 1;
        if pinned.times == 0 {
            let is_returned = pinned.is_returned;
            state.pinned.remove(&key);
            if is_returned {
                let (slab, offset, len) = key;
                state.give_asked(Extent { slab, len, offset });
            }
        }
    }

    /// Whether there are slabs that the application has not been told of.
    pub fn has_new_slabs(&self) -> bool {
        self.shared.has_new_slabs.load(Ordering::Acquire)
    }

    /// Returns the slabs that were added since the last call.
    pub fn new_slabs(&mut self) -> Vec<NewSlab> {
        let mut state = self.state();
        let new = std::mem::take(&mut state.new);
        self.shared.has_new_slabs.store(false, Ordering::Release);
        new
    }

    /// Has the application told of a receive pool, which it may only read.
    pub fn add_pool(&mut self, number: u32, buffer: &Arc<dyn Buffer>) {
        self.state().new.push(NewSlab {
            number,
            buffer: buffer.clone(),
            is_read_only: true,
        });
        self.shared.has_new_slabs.store(true, Ordering::Release);
    }

    /// All slabs that this user knows of.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// Returns a slab. The caller has checked that its extent lies in one.
    pub fn slab(&self, number: u32) -> Option<&View> {
        self.slabs.slab(number)
    }

    /// Returns the scatter-gather entry of a checked extent, for a request of this host.
    pub fn sge(&self, extent: Extent) -> Sge {
        self.regions[(extent.slab - self.first) as usize].sge(extent.offset as usize, extent.len)
    }

    /// Returns the remote address of a checked extent, for a request of the other host.
    pub fn remote(&self, extent: Extent) -> Remote {
        let remote =
            self.regions[(extent.slab - self.first) as usize].remote(extent.offset as usize);
        Remote {
            addr: remote.addr,
            rkey: remote.rkey,
            len: extent.len,
        }
    }

    /// Bytes in use, and bytes of all slabs.
    pub fn bytes(&self) -> (u64, u64) {
        self.state().bytes()
    }
}

impl SharedMemory {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        // A panic between two changes of the state ends the daemon.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the memory of a session as long as there is any.
#[derive(Clone)]
pub struct MemoryObserver {
    slabs: Weak<SharedMemory>,
    quota: Weak<MemoryQuota>,
}

impl MemoryObserver {
    /// Whether anything still uses the memory.
    pub fn is_alive(&self) -> bool {
        // Memory of direct connections outlives the slabs.
        self.quota.strong_count() > 0
    }

    /// Bytes in use, bytes of all slabs, and how often free memory was found overwritten. The first two include what direct
    /// connections use.
    pub fn counts(&self) -> (u64, u64, u64) {
        let direct = self.quota.upgrade().map_or(0, |quota| quota.direct());
        let (in_use, allocated, overwritten) = self.slabs.upgrade().map_or((0, 0, 0), |shared| {
            let state = shared.state();
            let (in_use, allocated) = state.bytes();
            (in_use, allocated, state.overwritten)
        });
        (in_use + direct, allocated + direct, overwritten)
    }
}

impl MemoryState {
    fn bytes(&self) -> (u64, u64) {
        (self.pool.in_use(), self.pool.bytes())
    }

    fn take(&mut self, bytes: u32) -> Result<Extent, Refusal> {
        if bytes > 1 << 31 {
            return Err(Refusal::Limit);
        }
        let log = log_of(bytes);
        if let Some(extent) = self.pool.take(log) {
            self.look_for_poison(extent);
            return Ok(extent);
        }
        let slab_log = self.slab_log.max(log);
        if !self.has_room_for_slab() || !self.quota.take_slab(1 << slab_log) {
            return Err(Refusal::Limit);
        }
        let request = AllocRequest {
            len: 1 << slab_log,
            align: 4096,
            pages: Pages::Ordinary,
            numa_node: None,
            is_sealed: false,
            // The application maps the slab's file.
            has_own_file: true,
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = self.device.alloc(&request);
        let region = buffer.and_then(|buffer| self.pd.register(&buffer, access));
        let region = region.map_err(|error| {
            self.quota.give_slab(request.len as u64);
            tracing::warn!(
                "cannot allocate a slab of {} bytes for an application: {error}",
                request.len
            );
            Refusal::Memory
        })?;
        let number = self.first + self.regions.len() as u32;
        let added = self.slabs.add(number, view_of(&region, 0));
        debug_assert_eq!(added, Ok(()));
        self.new.push(NewSlab {
            number,
            buffer: region.buffer().clone(),
            is_read_only: false,
        });
        self.regions.push(Arc::new(region));
        self.pool.add(number, slab_log);
        self.pool.take(log).ok_or(Refusal::Memory)
    }

    /// Whether an application may have another slab, however short.
    fn has_room_for_slab(&self) -> bool {
        (self.first as usize + self.regions.len()) < Slabs::MAX
    }

    /// Returns the key of the configuration that limits the memory.
    fn limiting_key(&self) -> &'static str {
        match self.has_room_for_slab() {
            true => "memory_each",
            false => "slab_bytes",
        }
    }

    fn ring_budget_left(&self) -> u64 {
        let rings = self.pool.in_use() - self.asked_bytes;
        self.ring_budget.saturating_sub(rings)
    }

    fn give_asked(&mut self, extent: Extent) {
        self.asked_bytes -= u64::from(extent.len);
        self.give(extent);
    }

    fn give(&mut self, extent: Extent) {
        if self.poison
            && let Ok(view) = self.slabs.view(extent)
        {
            // Many words at a time.
            let pattern = POISON.repeat(512);
            for at in (0..view.len()).step_by(pattern.len()) {
                let len = pattern.len().min(view.len() - at);
                let filled = view.write(at, &pattern[..len]);
                debug_assert_eq!(filled, Ok(()));
            }
        }
        self.pool.give(extent);
    }

    /// Counts the extent if its pattern was overwritten. Memory that was never used is all zeros.
    fn look_for_poison(&mut self, extent: Extent) {
        if !self.poison {
            return;
        }
        let mut bytes = vec![0; extent.len as usize];
        let read = self.slabs.read(extent, &mut bytes);
        debug_assert_eq!(read, Ok(()));
        let (words, _) = bytes.as_chunks::<8>();
        let poison = u64::from_ne_bytes(POISON);
        let is_touched = |word: &[u8; 8]| {
            let word = u64::from_ne_bytes(*word);
            word != poison && word != 0
        };
        if words.iter().any(is_touched) {
            self.overwritten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_become_shorter_as_their_budget_is_used_up() {
        let longest = [64 << 20, 32 << 20, (16 << 20) - 1, 1 << 20, 1, 0].map(longest_ring);
        let expected = [
            16 << 20,
            8 << 20,
            2 << 20,
            256 << 10,
            SHORT_RING,
            SHORT_RING,
        ];
        assert_eq!(longest, expected);
        assert_eq!(longest_ring(u64::MAX), 1 << 30);
    }
}
