//! Memory of one direction of a [pair](headworks_client::direct): control blocks and rings of the direct connections that
//! one session has with another session of this machine. Both applications map it. The daemon of the sender allocates it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_client::direct::{self, DirectPlace, HEADER_BYTES, PAIR_CONNECTIONS, RING_MAX};
use headworks_client::socket_message::Refusal;
use headworks_client::{ControlBlock, DIRECT_BLOCK_BYTES, Extent, Slabs};
use headworks_ring::view_of_buffer;
use headworks_verbs::{AllocRequest, Buffer, Device, Pages};
use slab::Slab;

use crate::allocator::{ExtentAllocator, log_of};
use crate::control::{PlaceId, TakenPlace};
use crate::memory_quota::MemoryQuota;
use crate::snapshot::Traffic;

/// Length of a direct connection's first ring, in bytes.
const FIRST_RING: u32 = 512;

/// Pages are allocated in steps of this many bytes.
const RESERVED_STEP: u32 = 64 << 10;

/// Bytes by which a connection's statistics grow at most between two looks. The other application can write any number there.
const GROWTH_MAX: u64 = 1 << 40;

/// Memory of one direction of a pair.
pub struct PairMemory {
    buffer: Arc<dyn Buffer>,
    slabs: Slabs,
    quota: Arc<MemoryQuota>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pool: ExtentAllocator,
    /// Whether the pages of each [`RESERVED_STEP`] bytes are allocated.
    reserved: Vec<bool>,
    connections: Slab<Allotment>,
    /// Generation of the place that was taken last.
    generation: u32,
    /// Bytes of connections that have ended.
    ended: Traffic,
    /// Whether it was logged that another connection found no room.
    is_lack_logged: bool,
}

/// Memory of one connection.
struct Allotment {
    /// Generation of its place.
    generation: u32,
    block: ControlBlock,
    block_extent: Extent,
    /// The latest ring and its number, and the one before, which the application may still use.
    ring: (u64, Extent),
    before: Option<(u64, Extent)>,
    /// Bytes sent and received at the last look at the words that the applications write.
    seen: (u64, u64),
    /// Whether this session's application has left the connection, and whether the other one has.
    has_left: bool,
    has_peer_left: bool,
}

impl PairMemory {
    /// Allocates memory of `bytes`, a power of two. Only what is used takes memory of the machine.
    pub(crate) fn new(
        device: &dyn Device,
        bytes: u32,
        quota: Arc<MemoryQuota>,
    ) -> Result<Arc<Self>, Refusal> {
        let request = AllocRequest {
            len: bytes as usize,
            align: 4096,
            pages: Pages::OnDemand,
            numa_node: None,
            is_sealed: false,
            // Two applications map its file.
            has_own_file: true,
        };
        let buffer = device.alloc(&request).map_err(|error| {
            tracing::warn!("cannot allocate {bytes} bytes for direct connections: {error}");
            Refusal::Memory
        })?;
        let mut slabs = Slabs::default();
        let added = slabs.add(0, view_of_buffer(&buffer));
        added.map_err(|_| Refusal::Memory)?;
        let mut state = State::default();
        state.pool.add(0, bytes.trailing_zeros());
        state.reserved = vec![false; bytes.div_ceil(RESERVED_STEP) as usize];
        // The header lies at the beginning: the first extent of an empty allocator.
        let header = state.pool.take(log_of(HEADER_BYTES));
        debug_assert_eq!(header.map(|header| header.offset), Some(0));
        let reserved = header.map(|header| state.reserve(&buffer, &header));
        reserved.transpose().map_err(|_| Refusal::Memory)?;
        Ok(Arc::new(Self {
            buffer,
            slabs,
            quota,
            state: Mutex::new(state),
        }))
    }

    /// Returns what has the file of the memory.
    pub(crate) fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, state: &mut State, bytes: u32) -> Option<Extent> {
        if !self.quota.take_direct(bytes.into()) {
            return None;
        }
        let Some(extent) = state.pool.take(log_of(bytes)) else {
            self.quota.give_direct(bytes.into());
            return None;
        };
        if let Err(error) = state.reserve(&self.buffer, &extent) {
            tracing::warn!(
                "no memory for a direct connection, which goes through the daemons: {error}"
            );
            self.give(state, extent);
            return None;
        }
        Some(extent)
    }

    fn give(&self, state: &mut State, extent: Extent) {
        state.pool.give(extent);
        self.quota.give_direct(extent.len.into());
    }

    /// Makes room for another connection. `None`: there is none, and the connection goes through the daemons. The first time,
    /// that is logged with the name of the application, `name`.
    pub(crate) fn open(&self, name: &str) -> Option<TakenPlace> {
        let state = &mut *self.state();
        let opened = self.open_in(state);
        if opened.is_none() && !std::mem::replace(&mut state.is_lack_logged, true) {
            let (count, bytes) = (state.connections.len(), self.quota.direct());
            tracing::warn!(
                "more connections of application {name:?} to the same other one go through the daemons: it has {count} direct \
                 ones of at most {PAIR_CONNECTIONS}, and its direct connections take {bytes} bytes, at most half of memory_each"
            );
        }
        opened
    }

    fn open_in(&self, state: &mut State) -> Option<TakenPlace> {
        if state.connections.len() >= PAIR_CONNECTIONS as usize {
            return None;
        }
        let block = self.take(state, DIRECT_BLOCK_BYTES)?;
        let Some(ring) = self.take(state, FIRST_RING) else {
            self.give(state, block);
            return None;
        };
        let number = state.connections.vacant_key() as u32;
        let place = DirectPlace {
            number,
            block,
            ring,
        };
        // The places are of this allocator.
        let prepared = direct::prepare(&self.slabs, &place).ok()?;
        state.generation = state.generation.wrapping_add(1);
        let generation = state.generation;
        state.connections.insert(Allotment {
            generation,
            block: prepared,
            block_extent: block,
            ring: (1, ring),
            before: None,
            seen: (0, 0),
            has_left: false,
            has_peer_left: false,
        });
        Some(TakenPlace { place, generation })
    }

    /// Records that this session's application uses a connection no more.
    pub(crate) fn leave(&self, place: PlaceId) {
        self.leave_as(place, |one| one.has_left = true);
    }

    /// Records that the other application uses a connection no more.
    pub(crate) fn peer_left(&self, place: PlaceId) {
        self.leave_as(place, |one| one.has_peer_left = true);
    }

    /// Frees a connection that neither application uses. The one that has it may still be reading.
    fn leave_as(&self, place: PlaceId, note: impl FnOnce(&mut Allotment)) {
        let state = &mut *self.state();
        let Some(one) = state.allotment(place) else {
            return;
        };
        note(one);
        if !(one.has_left && one.has_peer_left) {
            return;
        }
        let mut over = state.connections.remove(place.number as usize);
        state.ended += over.traffic();
        let rings = over.before.into_iter().chain([over.ring]);
        // Its view of the memory is dropped before the memory is given back.
        drop(over.block);
        for (_, ring) in rings {
            self.give(state, ring);
        }
        self.give(state, over.block_extent);
    }

    /// Serves what the application asked for in the control block `block` of a connection: takes back rings that it has
    /// left, and hands out a longer one. Returns whether it handed one out.
    pub(crate) fn serve(&self, place: PlaceId, block: &ControlBlock) -> bool {
        let ((wanted, len), left) = (block.wanted_ring(), block.left_rings());
        let state = &mut *self.state();
        let Some(one) = state.allotment(place) else {
            return false;
        };
        let freed = one.before.take_if(|(number, _)| *number < left);
        let next = one.ring.0 + 1;
        let is_due = wanted == next as u32 && one.before.is_none();
        if let Some((_, ring)) = freed {
            self.give(state, ring);
        }
        let len = len.clamp(FIRST_RING, RING_MAX).next_power_of_two();
        let Some(ring) = Some(len)
            .filter(|_| is_due)
            .and_then(|len| self.take(state, len))
        else {
            return false;
        };
        if let Some(one) = state.allotment(place) {
            one.before = Some(std::mem::replace(&mut one.ring, (next, ring)));
        }
        block.offer_ring(next, ring);
        true
    }

    /// Bytes that the session's direct connections have sent and received, so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let state = &mut *self.state();
        let mut all = state.ended;
        for (_, one) in &mut state.connections {
            all += one.traffic();
        }
        all
    }
}

impl State {
    /// Allocates the pages of an extent, so that touching them cannot fail if no memory is left.
    fn reserve(&mut self, buffer: &Arc<dyn Buffer>, extent: &Extent) -> io::Result<()> {
        // Memory without a file is never handed to an application.
        let Some(file) = buffer.file() else {
            return Ok(());
        };
        let step = u64::from(RESERVED_STEP);
        let first = extent.offset / step;
        let end = (extent.offset + u64::from(extent.len)).div_ceil(step);
        let steps = &mut self.reserved[first as usize..end as usize];
        if steps.iter().any(|is_reserved| !is_reserved) {
            let end = (end * step).min(buffer.len() as u64);
            headworks_shm::reserve(file, first * step, end - first * step)?;
            steps.fill(true);
        }
        Ok(())
    }

    /// The connection that has this use of a place, if it still exists.
    fn allotment(&mut self, place: PlaceId) -> Option<&mut Allotment> {
        let one = self.connections.get_mut(place.number as usize);
        one.filter(|one| one.generation == place.generation)
    }
}

impl Drop for PairMemory {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let header = u64::from(HEADER_BYTES);
        self.quota.give_direct(state.pool.in_use() - header);
    }
}

impl Allotment {
    /// Bytes that the connection has carried. The applications may have written any numbers, so a number never falls, and grows
    /// by `GROWTH_MAX` at most. More than that is counted at later looks.
    fn traffic(&mut self) -> Traffic {
        let grown = |seen: u64, now: u64| now.clamp(seen, seen.saturating_add(GROWTH_MAX));
        let (sent, received) = self.block.direct_traffic();
        self.seen = (grown(self.seen.0, sent), grown(self.seen.1, received));
        let (sent, received) = self.seen;
        Traffic {
            sent,
            received,
            ..Traffic::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_shm::Registry;
    use headworks_softnic::SoftProvider;
    use headworks_verbs::Provider;

    use super::*;

    fn memory() -> Arc<PairMemory> {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(directory.path().join("fabric")).unwrap();
        let name = "soft:h1".parse().unwrap();
        let device = SoftProvider::on(fabric).open(&name).unwrap();
        PairMemory::new(&*device, 16 << 20, Arc::new(MemoryQuota::new(64 << 20))).unwrap()
    }

    #[test]
    fn an_earlier_use_of_a_place_does_not_free_the_next_one() {
        let memory = memory();
        let first = memory.open("test").unwrap();
        memory.leave(first.id());
        assert_ne!(
            memory.open("test").unwrap().place,
            first.place,
            "it is in use"
        );
        memory.peer_left(first.id());
        let next = memory.open("test").unwrap();
        assert_eq!(next.place, first.place);
        assert_ne!(next.id(), first.id());
        memory.leave(first.id());
        memory.peer_left(first.id());
        assert_ne!(memory.open("test").unwrap().place, next.place);
    }

    #[test]
    fn falsified_statistics_never_fall_and_grow_within_bounds() {
        use std::sync::atomic::Ordering::Relaxed;

        let memory = memory();
        let block = memory.open("test").unwrap().place.block.offset as usize;
        let view = memory.slabs.slab(0).unwrap();
        let (tail, received) = (block + 128, block + 32);
        for word in [tail, received] {
            let word = view.atomic_u64(word).unwrap();
            let most = 1000 + GROWTH_MAX;
            for (written, counted) in [(1000, 1000), (10, 1000), (u64::MAX, most), (0, most)] {
                word.store(written, Relaxed);
                let traffic = memory.traffic();
                assert_eq!(traffic.sent.max(traffic.received), counted);
            }
            memory.state().connections[0].seen = (0, 0);
        }
    }

    #[test]
    fn memory_of_connections_is_allocated_before_anybody_touches_it() {
        let memory = memory();
        let file = memory.buffer().file().unwrap();
        let allocated = || rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512;
        let before = allocated();
        let ring = memory.take(&mut memory.state(), RING_MAX).unwrap();
        assert!(allocated() >= before + u64::from(ring.len));
    }
}
