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
const FIRST_RING: u32 = 1024;

/// Pages are allocated in steps of this many bytes, because a system call for each connection would take longer than the rest
/// of making one.
const RESERVED_STEP: u32 = 64 << 10;

/// Bytes by which a connection's statistics grow at most between two looks. The other application can write any number there.
const GROWTH_MAX: u64 = 1 << 40;

/// Memory of one direction of a pair.
pub struct PairMemory {
    buffer: Arc<dyn Buffer>,
    slabs: Slabs,
    quota: Arc<MemoryQuota>,
    /// Name of the application whose memory it is.
    name: String,
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
    /// Kinds of lacks that were logged.
    logged: Vec<std::mem::Discriminant<Lack>>,
}

/// Reason for which a connection or a longer ring gets no memory.
#[derive(Debug)]
enum Lack {
    /// The pair has as many connections as it can have.
    Places,
    /// The application's direct connections take half of `memory_each`.
    Quota,
    /// The memory of this direction is used up: `direct_bytes`.
    Space,
    /// The operating system has no memory.
    System(io::Error),
}

/// Memory of one connection.
struct Allotment {
    /// Generation of its place.
    generation: u32,
    block: ControlBlock,
    block_extent: Extent,
    /// The latest ring, and its number.
    ring: (u64, Extent),
    /// The rings before that the application may still use, and their numbers: at most [one](Self::may_extend), or the first two.
    before: Vec<(u64, Extent)>,
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
        name: &str,
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
        let header = header.filter(|header| header.offset == 0);
        let header = header.ok_or(Refusal::Memory)?;
        state.reserve(&buffer, &header).map_err(|error| {
            tracing::warn!("cannot allocate memory for direct connections: {error}");
            Refusal::Memory
        })?;
        Ok(Arc::new(Self {
            buffer,
            slabs,
            quota,
            name: name.to_owned(),
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

    fn take(&self, state: &mut State, bytes: u32) -> Result<Extent, Lack> {
        if !self.quota.take_direct(bytes.into()) {
            return Err(Lack::Quota);
        }
        let Some(extent) = state.pool.take(log_of(bytes)) else {
            self.quota.give_direct(bytes.into());
            return Err(Lack::Space);
        };
        match state.reserve(&self.buffer, &extent) {
            Ok(()) => Ok(extent),
            Err(error) => {
                self.give(state, extent);
                Err(Lack::System(error))
            }
        }
    }

    fn give(&self, state: &mut State, extent: Extent) {
        // Long rings give their pages back. Those of other extents stay allocated until the pair has no connections.
        if extent.len >= RESERVED_STEP {
            state.release(&self.buffer, extent.offset, extent.len.into());
        }
        state.pool.give(extent);
        self.quota.give_direct(extent.len.into());
    }

    /// Logs the first lack of each kind, and what follows from it.
    fn log(&self, state: &mut State, lack: &Lack, then: &str) {
        let kind = std::mem::discriminant(lack);
        if state.logged.contains(&kind) {
            return;
        }
        state.logged.push(kind);
        let name = &self.name;
        match lack {
            Lack::Places => tracing::warn!(
                "application {name:?} has {PAIR_CONNECTIONS} direct connections with another one, which is the most: {then}"
            ),
            Lack::Quota => tracing::warn!(
                "direct connections of application {name:?} take half of memory_each: {then}; raise memory_each for more"
            ),
            Lack::Space => tracing::warn!(
                "direct connections of application {name:?} with another one take all of direct_bytes: {then}; raise \
                 direct_bytes for more"
            ),
            Lack::System(error) => tracing::warn!(
                "the machine has no memory for direct connections of application {name:?} ({error}): {then}"
            ),
        }
    }

    /// Makes room for another connection. `None`: there is none, and the connection goes through the daemons.
    pub(crate) fn open(&self) -> Option<TakenPlace> {
        let state = &mut *self.state();
        let opened = self.open_in(state);
        opened
            .inspect_err(|lack| self.log(state, lack, "further ones go through the daemons"))
            .ok()
    }

    fn open_in(&self, state: &mut State) -> Result<TakenPlace, Lack> {
        if state.connections.len() >= PAIR_CONNECTIONS as usize {
            return Err(Lack::Places);
        }
        let block = self.take(state, DIRECT_BLOCK_BYTES)?;
        let ring = self
            .take(state, FIRST_RING)
            .inspect_err(|_| self.give(state, block))?;
        let number = state.connections.vacant_key() as u32;
        let place = DirectPlace {
            number,
            block,
            ring,
        };
        // The places are of this allocator.
        let prepared = direct::prepare(&self.slabs, &place).map_err(|_| Lack::Space)?;
        state.generation = state.generation.wrapping_add(1);
        let generation = state.generation;
        state.connections.insert(Allotment {
            generation,
            block: prepared,
            block_extent: block,
            ring: (1, ring),
            before: Vec::new(),
            seen: (0, 0),
            has_left: false,
            has_peer_left: false,
        });
        Ok(TakenPlace { place, generation })
    }

    /// Records that this session's application uses a connection no more.
    pub(crate) fn leave(&self, place: PlaceId) {
        self.leave_as(place, |one| one.has_left = true);
    }

    /// Records that the other application uses a connection no more.
    pub(crate) fn peer_left(&self, place: PlaceId) {
        self.leave_as(place, |one| one.has_peer_left = true);
    }

    /// Frees a connection that neither application uses.
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
        if state.connections.is_empty() {
            let step = u64::from(RESERVED_STEP);
            state.release(&self.buffer, step, self.buffer.len() as u64 - step);
        }
    }

    /// Serves what the application asked for in the control block `block` of a connection: takes back rings that it has
    /// left, and hands out a longer one. Returns whether it handed one out.
    pub(crate) fn serve(&self, place: PlaceId, block: &ControlBlock) -> bool {
        let ((wanted, len), left) = (block.wanted_ring(), block.left_rings());
        let state = &mut *self.state();
        let Some(one) = state.allotment(place) else {
            return false;
        };
        let freed: Vec<_> = one
            .before
            .extract_if(.., |(number, _)| *number < left)
            .collect();
        let next = one.ring.0 + 1;
        let present = one.ring.1.len;
        let is_due = wanted == next as u32 && one.may_extend();
        for (_, ring) in freed {
            self.give(state, ring);
        }
        if !is_due {
            return false;
        }
        let mut len = len.clamp(FIRST_RING, RING_MAX).next_power_of_two();
        let ring = loop {
            match self.take(state, len) {
                Ok(ring) => break ring,
                Err(_) if len / 2 > present => len /= 2,
                Err(lack) => {
                    self.log(state, &lack, "some keep short rings");
                    return false;
                }
            }
        };
        if let Some(one) = state.allotment(place) {
            let before = std::mem::replace(&mut one.ring, (next, ring));
            one.before.push(before);
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

    /// Gives the pages of whole steps back to the operating system. They become zeros.
    fn release(&mut self, buffer: &Arc<dyn Buffer>, offset: u64, len: u64) {
        let Some(file) = buffer.file() else { return };
        let step = u64::from(RESERVED_STEP);
        let (first, end) = (offset.div_ceil(step), (offset + len) / step);
        let Some(steps) = self.reserved.get_mut(first as usize..end as usize) else {
            return;
        };
        if !steps.contains(&true) {
            return;
        }
        if headworks_shm::release(file, first * step, (end - first) * step).is_ok() {
            steps.fill(false);
        }
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
    /// Whether the sender can use another ring: see [`can_extend`](headworks_client::ingress::IngressWriter::can_extend).
    fn may_extend(&self) -> bool {
        match &self.before[..] {
            [] => true,
            [(number, _)] => *number == 1,
            _ => false,
        }
    }

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
        let quota = Arc::new(MemoryQuota::new(64 << 20));
        PairMemory::new(&*device, 16 << 20, quota, "test").unwrap()
    }

    #[test]
    fn an_earlier_use_of_a_place_does_not_free_the_next_one() {
        let memory = memory();
        let first = memory.open().unwrap();
        memory.leave(first.id());
        assert_ne!(memory.open().unwrap().place, first.place, "it is in use");
        memory.peer_left(first.id());
        let next = memory.open().unwrap();
        assert_eq!(next.place, first.place);
        assert_ne!(next.id(), first.id());
        memory.leave(first.id());
        memory.peer_left(first.id());
        assert_ne!(memory.open().unwrap().place, next.place);
    }

    #[test]
    fn falsified_statistics_never_fall_and_grow_within_bounds() {
        use std::sync::atomic::Ordering::Relaxed;

        let memory = memory();
        let block = memory.open().unwrap().place.block.offset as usize;
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

    /// Bytes that the machine has allocated for the memory.
    fn allocated(memory: &PairMemory) -> u64 {
        let file = memory.buffer().file().unwrap();
        rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn memory_of_connections_is_allocated_before_anybody_touches_it() {
        let memory = memory();
        let before = allocated(&memory);
        let ring = memory.take(&mut memory.state(), RING_MAX).unwrap();
        assert!(allocated(&memory) >= before + u64::from(ring.len));
    }

    /// The block of a connection through the daemons, in which the application asks for ring `number` of `len` bytes.
    fn asking(number: u64, len: u32) -> ControlBlock {
        leaving(1, (number, len))
    }

    /// As [`asking`], with the rings before `left` given back.
    fn leaving(left: u64, (number, len): (u64, u32)) -> ControlBlock {
        let memory = memory();
        let extent = Extent {
            slab: 0,
            len: headworks_client::BLOCK_BYTES,
            offset: 4096,
        };
        let word = number << 32 | u64::from(len);
        let view = memory.slabs.view(extent).unwrap();
        view.write(16, &word.to_le_bytes()).unwrap();
        view.write(24, &left.to_le_bytes()).unwrap();
        ControlBlock::at(&memory.slabs, extent).unwrap()
    }

    #[test]
    fn rings_grow_as_far_as_there_is_memory() {
        let memory = memory();
        let place = memory.open().unwrap().id();
        let ring = |memory: &PairMemory| {
            let state = &mut *memory.state();
            let one = state.allotment(place).unwrap();
            (one.ring.0, one.ring.1.len)
        };
        assert_eq!(ring(&memory), (1, FIRST_RING));
        assert!(!memory.serve(place, &asking(3, 8192)), "not the next one");
        assert!(memory.serve(place, &asking(2, 8192)));
        assert_eq!(ring(&memory), (2, 8192));
        assert!(memory.serve(place, &asking(3, 1 << 16)), "nobody reads");
        assert_eq!(ring(&memory), (3, 1 << 16));
        assert!(!memory.serve(place, &asking(4, 1 << 17)), "three are used");
        let used = memory.quota.direct();
        let more = (4, 1 << 17);
        assert!(!memory.serve(place, &leaving(2, more)), "two are used");
        let used = used - u64::from(FIRST_RING);
        assert_eq!(memory.quota.direct(), used, "the first was given back");
        // The memory has no more than 128 KiB in one piece.
        let mut taken = Vec::new();
        for len in [8 << 20, 4 << 20, 2 << 20, 1 << 20, 1 << 19, 1 << 18] {
            taken.extend(memory.take(&mut memory.state(), len));
        }
        assert!(memory.serve(place, &leaving(3, (4, RING_MAX))));
        let (number, len) = ring(&memory);
        assert!(number == 4 && (1 << 16..RING_MAX).contains(&len), "{len}");
        for extent in taken {
            memory.give(&mut memory.state(), extent);
        }
        let used = used - 8192 + u64::from(len);
        assert_eq!(memory.quota.direct(), used);
        assert!(
            memory.serve(place, &leaving(4, (5, RING_MAX))),
            "there is memory again"
        );
        assert_eq!(ring(&memory), (5, RING_MAX));
    }

    #[test]
    fn two_rings_are_given_back_at_once() {
        let memory = memory();
        let place = memory.open().unwrap().id();
        assert!(memory.serve(place, &asking(2, 8192)));
        assert!(memory.serve(place, &asking(3, 1 << 16)));
        let used = memory.quota.direct();
        // An application may write any number.
        assert!(memory.serve(place, &leaving(u64::MAX, (4, 1 << 17))));
        let given = u64::from(FIRST_RING) + 8192;
        assert_eq!(memory.quota.direct(), used - given + (1 << 17));
    }

    #[test]
    fn a_connection_without_memory_is_refused_and_leaves_nothing() {
        let memory = memory();
        let used = |memory: &PairMemory| (memory.quota.direct(), memory.state().pool.in_use());
        let before = used(&memory);
        // All but the block of another connection.
        let mut taken = Vec::new();
        for log in (8..24).rev() {
            while let Ok(extent) = memory.take(&mut memory.state(), 1 << log) {
                taken.push(extent);
            }
        }
        let block = taken.iter().position(|one| one.len == DIRECT_BLOCK_BYTES);
        if let Some(at) = block {
            memory.give(&mut memory.state(), taken.swap_remove(at));
        }
        let full = used(&memory);
        assert!(memory.open().is_none());
        assert_eq!(used(&memory), full);
        for extent in taken {
            memory.give(&mut memory.state(), extent);
        }
        assert_eq!(used(&memory), before);
        assert!(memory.open().is_some());
    }

    #[test]
    fn pages_are_given_back() {
        let memory = memory();
        let empty = allocated(&memory);
        let places: Vec<_> = (0..100).map(|_| memory.open().unwrap().id()).collect();
        let ring = memory.take(&mut memory.state(), RING_MAX).unwrap();
        let used = allocated(&memory);
        assert!(used >= empty + u64::from(RING_MAX));
        memory.give(&mut memory.state(), ring);
        assert_eq!(
            allocated(&memory),
            used - u64::from(RING_MAX),
            "a long ring"
        );
        for place in places {
            memory.leave(place);
            memory.peer_left(place);
        }
        assert_eq!(allocated(&memory), empty, "the pair has no connections");
    }
}
