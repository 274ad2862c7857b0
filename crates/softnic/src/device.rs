//! An opened device: one context in a soft host.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::fork::ForkGeneration;
use headworks_shm::segment::LAYOUT_VERSION;
use headworks_shm::{
    ContextClaim, ContextRecord, HostKey, HugePages, ProcessId, Registry, SegmentRequest,
    SharedSegment, asymmetric_fence,
};
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, CompletionChannel,
    CompletionQueue, CqId, CqInit, Device, DeviceInfo, DeviceLimits, Gid, Instant, OpenError,
    ProtectionDomain, QpInit, QueuePair, Region, ResourceError, SharedReceiveQueue, SrqInit,
};

use crate::address_handle::{AddressHandles, SoftAh};
use crate::arena::{Arena, ArenaAllocation, SegmentKind};
use crate::buffer::{self, SoftBuffer};
use crate::completion_channel::SoftChannel;
use crate::cq::SoftCq;
use crate::datagram_senders::Senders;
use crate::descriptors::ContextDescriptors;
use crate::events::Events;
use crate::hostile::{HostileMode, Rules};
use crate::local_mrs::LocalMrs;
use crate::peer::{AttachError, OwnContext, Peer, PeerGuard};
use crate::progress::Progress;
use crate::qp::{QpCore, SoftQp};
use crate::quarantine::{self, Initiator, Quarantine};
use crate::row_allocator::Rows;
use crate::srq::SoftSrq;
use crate::table::{MAX_CQ, MAX_QP, MAX_REGION, MAX_SGE, MAX_SRQ, Table};

/// Maximum number of READs and atomics outstanding on a queue pair. They execute in order, so any limit could
/// be kept.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;
/// Maximum length of a message in bytes, from the specification.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// Bits of a QPN that number a queue pair within its context: its slot and two bits of its generation.
const QPN_BITS: u32 = 14;

/// The limits of every soft device.
pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    max_qp: MAX_QP as u32,
    max_qp_wr: 32_768,
    max_sge: MAX_SGE as u32,
    max_inline: 1024,
    max_cq: MAX_CQ as u32,
    max_cqe: 1 << 20,
    max_mr: MAX_REGION as u32,
    max_ah: 65_536,
    max_srq: MAX_SRQ as u32,
    max_srq_wr: 32_768,
    max_rd_atomic: MAX_RD_ATOMIC,
    max_message: MAX_MESSAGE,
};

/// Returns the slot of a queue pair in its context's table.
pub(crate) const fn slot_of(qpn: u32) -> usize {
    qpn as usize % MAX_QP
}

/// Returns the key of the soft host that a GID names.
pub(crate) fn host_of(gid: Gid) -> u64 {
    let mut key = [0; 8];
    key.copy_from_slice(&gid.0[8..]);
    u64::from_le_bytes(key)
}

/// Returns the GID of a soft host: a unique-local prefix and the host's key.
pub(crate) fn gid_of(host: HostKey) -> Gid {
    let mut gid = [0xfd, b'h', b'w', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    gid[8..].copy_from_slice(&host.0.to_le_bytes());
    Gid(gid)
}

/// Returns the current time on the clock of completion timestamps (CLOCK_MONOTONIC).
pub(crate) fn clock() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns a number that no other context of the fabric has or had: contexts of one process differ in the time,
/// contexts of several processes at one time in the slot.
fn new_incarnation(process: ProcessId) -> u64 {
    let number = clock().nanos() ^ u64::from(process.slot) << 44;
    (number & !(1 << 63)).max(1)
}

/// Identifies a context in the registry: key of its soft host, and index within that host.
pub(crate) type PeerKey = (u64, u16);

/// How a context executes requests.
pub(crate) struct ContextMode {
    /// The fault rules, if the device is hostile.
    pub(crate) rules: Option<Rules>,
    /// Whether long WRITEs may use non-temporal stores.
    pub(crate) non_temporal: bool,
}

impl Default for ContextMode {
    fn default() -> Self {
        Self {
            rules: None,
            non_temporal: true,
        }
    }
}

/// A context: one opened `soft` device of this process.
pub(crate) struct Context {
    // The first field, and so the first dropped: no process that looks for this context finds it any more
    // when the table and the memory behind it go away.
    claim: ContextClaim,
    /// Handed to peers for as long as the record is found.
    descriptors: Arc<ContextDescriptors>,
    pub(crate) info: DeviceInfo,
    pub(crate) host: HostKey,
    pub(crate) table: Table,
    pub(crate) arena: Arc<Arena>,
    pub(crate) local_mrs: Arc<LocalMrs>,
    /// This context as its own peer.
    pub(crate) own: Arc<Peer>,
    pub(crate) cq_rows: Rows,
    pub(crate) srq_rows: Rows,
    pub(crate) region_rows: Rows,
    pub(crate) qp_rows: Rows,
    pub(crate) progress: Arc<Progress>,
    pub(crate) events: Events,
    pub(crate) quarantine: Quarantine,
    pub(crate) handles: AddressHandles,
    pub(crate) senders: Senders,
    /// Fault injection, if the device is hostile.
    pub(crate) hostility: Option<HostileMode>,
    /// Whether long WRITEs may use non-temporal stores.
    pub(crate) non_temporal: bool,
    made_by: ForkGeneration,
    fabric: Arc<Registry>,
    peers: Mutex<HashMap<PeerKey, Arc<Peer>>>,
    /// Peers whose place in the registry another context has taken since.
    former: Mutex<Vec<Weak<Peer>>>,
    /// Number of this context's queue pairs connected to each peer.
    dests: Mutex<HashMap<PeerKey, usize>>,
    buffers: Mutex<BTreeMap<usize, Weak<SoftBuffer>>>,
    /// Queue pairs by slot.
    queue_pairs: Mutex<Vec<Weak<QpCore>>>,
    srqs: Mutex<HashMap<u32, Weak<SoftSrq>>>,
    cqs: Mutex<HashMap<u32, Weak<SoftCq>>>,
    next_channel: AtomicU32,
    next_pd: AtomicU32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Opens a context as a device without options does.
    #[cfg(test)]
    pub(crate) fn open(fabric: Arc<Registry>, info: DeviceInfo) -> Result<Arc<Self>, OpenError> {
        Self::open_as(fabric, info, ContextMode::default())
    }

    /// Opens a context that executes requests as `mode` says.
    pub(crate) fn open_as(
        fabric: Arc<Registry>,
        mut info: DeviceInfo,
        mode: ContextMode,
    ) -> Result<Arc<Self>, OpenError> {
        let what = info.name.to_string();
        let provider = |source: Box<dyn std::error::Error + Send + Sync>| OpenError::Provider {
            what: what.clone(),
            source,
        };
        asymmetric_fence::init();
        let host = HostKey(host_of(info.gid));
        let request = SegmentRequest {
            name: "headworks-table",
            len: Table::BYTES,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        let segment =
            Arc::new(SharedSegment::create(&request).map_err(|error| provider(error.into()))?);
        let Some(table) = Table::new(segment) else {
            return Err(provider("the shared table does not fit its segment".into()));
        };
        table
            .full_fences()
            .store((!asymmetric_fence::supported()).into(), Ordering::Relaxed);
        let member = fabric.join().map_err(|error| provider(error.into()))?;
        let process = member.id();
        let progress = Progress::new().map_err(|error| provider(error.into()))?;
        let arena = Arena::new(table.clone());
        let descriptors = ContextDescriptors::new(table.clone(), arena.clone(), progress.clone());
        let incarnation = new_incarnation(process);
        // Whoever finds the record may ask for the descriptors.
        let source: Weak<ContextDescriptors> = Arc::downgrade(&descriptors);
        member
            .serve(incarnation, source)
            .map_err(|error| provider(error.into()))?;
        let record = ContextRecord {
            process,
            layout_version: LAYOUT_VERSION,
            incarnation,
            host_name: info
                .name
                .name()
                .unwrap_or(crate::provider::DEFAULT_HOST)
                .to_owned(),
        };
        let claim = fabric
            .claim_context(host, &member, &record)
            .map_err(|error| provider(error.into()))?;
        // The registry keeps its identity now that it has an entry.
        info.network = fabric.identity().map_err(|error| provider(error.into()))?;
        let local_mrs = Arc::new(LocalMrs::default());
        let own = Arc::new(Peer::own(
            process,
            incarnation,
            table.clone(),
            OwnContext {
                descriptors: descriptors.clone(),
                arena: arena.clone(),
                local_mrs: local_mrs.clone(),
            },
            Some(progress.sender()),
        ));
        let events = Events::new().map_err(|error| provider(error.into()))?;
        Ok(Arc::new(Self {
            hostility: mode.rules.map(|rules| HostileMode::new(rules, &info)),
            non_temporal: mode.non_temporal,
            descriptors,
            info,
            host,
            arena,
            local_mrs,
            own,
            cq_rows: Rows::new(0, MAX_CQ),
            srq_rows: Rows::new(0, MAX_SRQ),
            region_rows: Rows::new(0, MAX_REGION),
            qp_rows: Rows::new(0, MAX_QP),
            progress,
            events,
            quarantine: Quarantine::default(),
            handles: AddressHandles::default(),
            senders: Senders::default(),
            made_by: ForkGeneration::current(),
            fabric,
            peers: Mutex::default(),
            former: Mutex::default(),
            dests: Mutex::default(),
            buffers: Mutex::default(),
            queue_pairs: Mutex::default(),
            srqs: Mutex::default(),
            cqs: Mutex::default(),
            next_channel: AtomicU32::new(1),
            next_pd: AtomicU32::new(1),
            claim,
            table,
        }))
    }

    /// Returns whether this process is a forked child of the one that opened the device.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Returns the registry that the context is in.
    pub(crate) fn fabric(&self) -> &Arc<Registry> {
        &self.fabric
    }

    /// Returns what the context hands to other processes.
    #[cfg(test)]
    pub(crate) fn descriptors(&self) -> &Arc<ContextDescriptors> {
        &self.descriptors
    }

    /// Allocates shared memory for a queue.
    pub(crate) fn queue_memory(&self, len: usize) -> Result<ArenaAllocation, ResourceError> {
        self.arena.take(len, 64, SegmentKind::SHARED)
    }

    /// Returns the QPN of the queue pair in `slot`.
    pub(crate) fn qpn(&self, slot: usize, generation: u64) -> u32 {
        // QPNs 0 and 1 are reserved, so slots 0 and 1 never use the generation bits 0.
        let turn = match slot {
            0 | 1 => 1 + generation as u32 % 3,
            _ => generation as u32 & 3,
        };
        let number = slot as u32 | turn << 12;
        u32::from(self.claim.index) << QPN_BITS | number
    }

    /// Attaches the context that owns queue pair `qpn` of `host`. Returns `None` if there is no such context.
    pub(crate) fn peer(&self, host: u64, qpn: u32) -> Result<Option<Arc<Peer>>, AttachError> {
        self.attached(host, qpn, Arc::clone)
    }

    /// Attaches the context that owns queue pair `qpn` of `host`, and keeps it attached.
    pub(crate) fn use_peer(&self, host: u64, qpn: u32) -> Result<Option<PeerGuard>, AttachError> {
        self.attached(host, qpn, PeerGuard::of)
    }

    /// Attaches the context that owns queue pair `qpn` of `host`, and returns the result of `keep` for it. A
    /// lock is held during `keep`, so that the progress thread cannot release the peer before `keep` has
    /// marked it as used. The progress thread watches the peers that it finds attached and releases unused
    /// ones.
    fn attached<T>(
        &self,
        host: u64,
        qpn: u32,
        keep: impl Fn(&Arc<Peer>) -> T,
    ) -> Result<Option<T>, AttachError> {
        let index = key_of(host, qpn).1;
        if host == self.host.0 && index == self.claim.index {
            return Ok(Some(keep(&self.own)));
        }
        let Some(record) = self.record_of(host, index)? else {
            return Ok(None);
        };
        if let Some(known) = locked(&self.peers).get(&(host, index))
            && known.incarnation == record.incarnation
        {
            return Ok(Some(keep(known)));
        }
        let peer = match Peer::attach(&self.fabric, &record) {
            Ok(Some(peer)) => Arc::new(peer),
            Ok(None) => return Ok(None),
            // The peer may have been leaving: it removes its record before it closes anything.
            Err(error) => match self.record_of(host, index)? {
                Some(still) if still.incarnation == record.incarnation => return Err(error),
                _ => return Ok(None),
            },
        };
        let mut peers = locked(&self.peers);
        let before = peers.insert((host, index), peer.clone());
        let kept = keep(&peer);
        drop(peers);
        if let Some(before) = before {
            let mut former = locked(&self.former);
            former.retain(|known| known.strong_count() > 0);
            former.push(Arc::downgrade(&before));
        }
        self.progress.kick();
        Ok(Some(kept))
    }

    fn record_of(&self, host: u64, index: u16) -> Result<Option<ContextRecord>, AttachError> {
        let found = self.fabric.lookup_context(HostKey(host), index);
        found.map_err(|error| AttachError::new("looking it up", std::io::Error::other(error)))
    }

    /// Wakes the progress threads of all peers: this context has freed a segment.
    pub(crate) fn kick_peers(&self) {
        let peers = self.peers();
        let others = peers.iter().filter(|peer| !peer.is_own());
        others.for_each(|peer| peer.kick());
    }

    /// Releases peers that no queue pair is connected or sends to, and memory that the other peers have
    /// freed. A released peer is attached again when it is needed again.
    pub(crate) fn forget_unused(&self) {
        let dests = locked(&self.dests);
        let mut peers = locked(&self.peers);
        peers.retain(|key, peer| dests.contains_key(key) || peer.is_in_use());
        for peer in peers.values() {
            peer.let_go();
        }
    }

    /// Notes that a queue pair is now connected to `after`, and no longer to `before`.
    pub(crate) fn count_dest(&self, before: Option<PeerKey>, after: Option<PeerKey>) {
        let mut dests = locked(&self.dests);
        if let Some(key) = after {
            *dests.entry(key).or_default() += 1;
        }
        let Some(key) = before else { return };
        let Some(count) = dests.get_mut(&key) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            dests.remove(&key);
            let mut peers = locked(&self.peers);
            let is_in_use = peers.get(&key).is_some_and(|peer| peer.is_in_use());
            if !is_in_use && peers.remove(&key).is_some() {
                // The progress thread holds a reference while it sleeps.
                self.progress.kick();
            }
        }
    }

    /// Returns the peers attached now.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        let mut peers: Vec<_> = locked(&self.peers).values().cloned().collect();
        peers.extend(locked(&self.former).iter().filter_map(Weak::upgrade));
        peers
    }

    #[cfg(test)]
    pub(crate) fn peers_held(&self) -> usize {
        locked(&self.peers).len()
    }

    /// Returns the attached context at the other end of a queue pair.
    pub(crate) fn known_peer_of(&self, core: &QpCore) -> Option<Arc<Peer>> {
        core.peer()
            .or_else(|| locked(&self.peers).get(&peer_key(core)).cloned())
    }

    /// Returns whether no living context is where `core` is connected to. There was one when the QPN was
    /// handed over.
    pub(crate) fn has_left(&self, core: &QpCore) -> bool {
        let (host, index) = peer_key(core);
        match self.fabric.lookup_context(HostKey(host), index) {
            Ok(Some(_)) => false,
            Ok(None) => true,
            // Unknown. Requests will find out.
            Err(_) => false,
        }
    }

    /// Returns the queue pair that `core` is connected to, as an initiator that executes on this process's
    /// memory.
    pub(crate) fn initiator_of(&self, core: &QpCore) -> Option<Initiator> {
        let dest = core.row().dest_qpn.load(Ordering::Relaxed);
        Some(Initiator::new(self.known_peer_of(core)?, dest))
    }

    /// Waits until no initiator that could reach this context's memory executes a request. Returns the
    /// initiators that are stopped in the middle of one.
    pub(crate) fn wait_for_initiators(&self) -> Vec<Initiator> {
        let mut all = Vec::new();
        for core in self.queue_pairs() {
            // This process's own threads run while this one does, and their calls do not block. But a broken
            // peer can write the word, which is in shared memory, so they too are waited for with a timeout.
            all.push(Initiator::new(self.own.clone(), core.qpn));
            all.extend(self.initiator_of(&core));
        }
        all.extend(self.senders.busy(self));
        quarantine::wait_for(all)
    }

    pub(crate) fn note_buffer(&self, buffer: &Arc<SoftBuffer>) {
        let mut buffers = locked(&self.buffers);
        buffers.retain(|_, known| known.strong_count() > 0);
        buffers.insert(buffer.start(), Arc::downgrade(buffer));
    }

    /// Returns the buffer of this context that holds the `len` bytes at `start`.
    pub(crate) fn find_buffer(&self, start: usize, len: usize) -> Option<Arc<SoftBuffer>> {
        let buffers = locked(&self.buffers);
        let (at, buffer) = buffers.range(..=start).next_back()?;
        let buffer = buffer.upgrade()?;
        (len <= buffer.len() && start - at <= buffer.len() - len).then_some(buffer)
    }

    pub(crate) fn enter_qp(&self, core: &Arc<QpCore>) {
        let mut cores = locked(&self.queue_pairs);
        let slot = core.slot();
        if cores.len() <= slot {
            cores.resize(slot + 1, Weak::new());
        }
        cores[slot] = Arc::downgrade(core);
    }

    pub(crate) fn leave_qp(&self, slot: usize) {
        if let Some(left) = locked(&self.queue_pairs).get_mut(slot) {
            *left = Weak::new();
        }
        self.qp_rows.give_back(slot as u32);
    }

    pub(crate) fn queue_pair(&self, slot: usize) -> Option<Arc<QpCore>> {
        locked(&self.queue_pairs).get(slot)?.upgrade()
    }

    pub(crate) fn queue_pairs(&self) -> Vec<Arc<QpCore>> {
        let cores = locked(&self.queue_pairs);
        cores.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn own_cq(
        &self,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Result<Arc<SoftCq>, ResourceError> {
        let known = locked(&self.cqs).get(&cq.id().0).and_then(Weak::upgrade);
        known
            .filter(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(cq)))
            .ok_or(ResourceError::Foreign("the completion queue"))
    }

    pub(crate) fn enter_srq(&self, srq: SoftSrq) -> Arc<SoftSrq> {
        let srq = Arc::new(srq);
        locked(&self.srqs).insert(srq.row, Arc::downgrade(&srq));
        srq
    }

    pub(crate) fn own_srq(
        &self,
        srq: &Arc<dyn SharedReceiveQueue>,
    ) -> Result<Arc<SoftSrq>, ResourceError> {
        let row = srq.as_any().downcast_ref::<SoftSrq>().map(|srq| srq.row);
        let known = row.and_then(|row| locked(&self.srqs).get(&row).and_then(Weak::upgrade));
        known
            .filter(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(srq)))
            .ok_or(ResourceError::Foreign("the shared receive queue"))
    }

    /// Returns all that the application holds, for the progress thread.
    fn borrow<T>(&self, all: &Mutex<HashMap<u32, Weak<T>>>) -> Vec<Arc<T>> {
        let all = locked(all);
        self.progress.borrow_objects(all.len());
        all.values().filter_map(Weak::upgrade).collect()
    }

    /// Shows delayed completions of CQs that a caller may sleep on.
    pub(crate) fn show_held(&self) {
        if self.hostility.is_none() {
            return;
        }
        for cq in self.borrow(&self.cqs) {
            cq.show_held();
        }
    }

    /// Raises the limit events of SRQs, and the errors of CQs that overran: of those that initiators marked,
    /// or of `all`. Wakes the waiters of the other CQs among them: an initiator that was killed may have disarmed a CQ
    /// without raising its event.
    pub(crate) fn service_limits(&self, all: bool) {
        let attention = self.table.attention();
        let srq = |row: u32| {
            self.progress.borrow_objects(1);
            locked(&self.srqs).get(&row).and_then(Weak::upgrade)
        };
        let cq = |row: u32| {
            self.progress.borrow_objects(1);
            locked(&self.cqs).get(&row).and_then(Weak::upgrade)
        };
        let mut srqs: Vec<_> = Vec::new();
        attention.srqs.take(|row| srqs.extend(srq(row as u32)));
        let mut cqs: Vec<_> = Vec::new();
        attention.cqs.take(|row| cqs.extend(cq(row as u32)));
        if all {
            srqs = self.borrow(&self.srqs);
            cqs = self.borrow(&self.cqs);
        }
        for srq in srqs {
            srq.raise_limit();
        }
        for cq in cqs {
            let row = self.table.cq(cq.row);
            let overran = row
                .overrun
                .compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed);
            if overran == Err(0) {
                // An initiator marked the CQ because it could not put an event into its channel, or died before it
                // did.
                cq.port().wake_waiters();
            }
            if overran.is_err() {
                continue;
            }
            self.events.raise(AsyncEvent::CqError(CqId(cq.row)));
            for core in self.queue_pairs() {
                if core.send_cq.row == cq.row || core.recv_cq.row == cq.row {
                    core.fail();
                }
            }
        }
    }
}

/// Returns which peer a queue pair is connected to.
fn peer_key(core: &QpCore) -> PeerKey {
    let row = core.row();
    let host = row.dest_gid.load(Ordering::Relaxed);
    key_of(host, row.dest_qpn.load(Ordering::Relaxed))
}

/// Returns the registry key of the context that owns queue pair `qpn` of `host`.
pub(crate) const fn key_of(host: u64, qpn: u32) -> PeerKey {
    (host, (qpn >> QPN_BITS) as u16)
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_foreign() {
            self.progress.stop();
        }
    }
}

/// The device as the application holds it.
pub(crate) struct SoftDevice {
    pub(crate) context: Arc<Context>,
    _release: ContextRelease,
}

/// Part of each object that the application holds. Declared after the object's reference to its context, and
/// so dropped after it. The last one of a context waits until the progress thread holds no reference either:
/// the process may end right after, and the context must leave the registry first.
///
/// If the last one is a CQ or an SRQ that the progress thread looks at in this moment, then the thread drops it, and
/// nobody waits.
pub(crate) struct ContextRelease {
    progress: Arc<Progress>,
    made_by: ForkGeneration,
}

impl ContextRelease {
    pub(crate) fn of(context: &Context) -> Self {
        context.progress.objects.fetch_add(1, Ordering::Relaxed);
        Self {
            progress: context.progress.clone(),
            made_by: context.made_by,
        }
    }
}

impl Drop for ContextRelease {
    fn drop(&mut self) {
        let others = self.progress.objects.fetch_sub(1, Ordering::AcqRel) - 1;
        // A forked child has no progress thread that could release the context.
        if !self.made_by.is_foreign() && self.progress.is_last(others) {
            self.progress.await_release();
        }
    }
}

impl SoftDevice {
    pub(crate) fn over(context: Arc<Context>) -> Self {
        let _release = ContextRelease::of(&context);
        Self { context, _release }
    }

    fn usable(&self) -> Result<&Arc<Context>, ResourceError> {
        if self.context.is_foreign() {
            Err(ResourceError::Forked)
        } else {
            Ok(&self.context)
        }
    }
}

impl Device for SoftDevice {
    fn info(&self) -> &DeviceInfo {
        &self.context.info
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        let context = self.usable()?.clone();
        let number = context.next_pd.fetch_add(1, Ordering::Relaxed);
        let _release = ContextRelease::of(&context);
        Ok(Arc::new(SoftPd {
            context,
            number,
            _release,
        }))
    }

    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        Ok(SoftBuffer::alloc(self.usable()?, request)?)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        let context = self.usable()?;
        let number = context.next_channel.fetch_add(1, Ordering::Relaxed);
        let of = context.own.incarnation;
        let channel = SoftChannel::new(number, of)?;
        context.descriptors.add_channel(number, channel.pipe());
        Ok(Arc::new(channel))
    }

    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        let cq = Arc::new(SoftCq::create(self.usable()?, init)?);
        locked(&self.context.cqs).insert(cq.row, Arc::downgrade(&cq));
        Ok(cq)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.context.events.fd()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        if self.context.is_foreign() {
            None
        } else {
            self.context.events.next()
        }
    }

    fn now(&self) -> Instant {
        clock()
    }
}

/// A protection domain.
struct SoftPd {
    context: Arc<Context>,
    number: u32,
    _release: ContextRelease,
}

impl SoftPd {
    fn usable(&self) -> Result<&Arc<Context>, ResourceError> {
        if self.context.is_foreign() {
            Err(ResourceError::Forked)
        } else {
            Ok(&self.context)
        }
    }
}

impl ProtectionDomain for SoftPd {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        buffer::register(self.usable()?, self.number, buffer, access)
    }

    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        Ok(Arc::new(SoftAh::create(self.usable()?, self.number, init)?))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        let context = self.usable()?;
        Ok(context.enter_srq(SoftSrq::create(context, self.number, init)?))
    }

    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        Ok(Box::new(SoftQp::create(self.usable()?, self.number, init)?))
    }
}
