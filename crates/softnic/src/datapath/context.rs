//! A context: the state that all objects of one opened device share.
//!
//! Queue pairs, CQs and the other objects hold a reference to their context. The context knows none of them; it
//! holds what they use together: the shared table and memory, the peers, the free rows, the events.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use headworks_shm::fork::ForkGeneration;
use headworks_shm::segment::LAYOUT_VERSION;
use headworks_shm::{
    ContextClaim, ContextRecord, HostKey, HugePages, ProcessId, Registry, SegmentRequest,
    SharedSegment, asymmetric_fence,
};
use headworks_verbs::{DeviceInfo, OpenError, ResourceError};

use crate::datapath::address_handles::AddressHandles;
use crate::datapath::datagram_senders::Senders;
use crate::datapath::events::Events;
use crate::datapath::quarantine::Quarantine;
use crate::hostile::{HostileMode, Rules};
use crate::table::addresses::{DEFAULT_HOST, host_of, qpn};
use crate::table::arena::{Arena, ArenaAllocation, SegmentKind};
use crate::table::clock;
use crate::table::descriptors::ContextDescriptors;
use crate::table::local_mrs::LocalMrs;
use crate::table::peer::{OwnContext, Peer};
use crate::table::peers::Peers;
use crate::table::progress::Progress;
use crate::table::row_allocator::Rows;
use crate::table::rows::{MAX_CQ, MAX_QP, MAX_REGION, MAX_SRQ, Table};

/// Returns a number that no other context of the fabric has or had: contexts of one process differ in the time,
/// contexts of several processes at one time in the slot.
fn new_incarnation(process: ProcessId) -> u64 {
    let number = clock::now().nanos() ^ u64::from(process.slot) << 44;
    (number & !(1 << 63)).max(1)
}

/// Mode in which a context executes requests.
pub(crate) struct ContextMode {
    /// The fault rules, if the device is hostile.
    pub(crate) rules: Option<Rules>,
    /// Whether long WRITEs may use non-temporal stores.
    pub(crate) non_temporal: bool,
    /// Whether a peer's death fails only requests.
    pub(crate) silent_deaths: bool,
}

impl Default for ContextMode {
    fn default() -> Self {
        Self {
            rules: None,
            non_temporal: true,
            silent_deaths: false,
        }
    }
}

/// The shared state of one opened `soft` device of this process.
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
    pub(crate) region_rows: Arc<Rows>,
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
    /// Whether a peer's death fails only requests, not idle queue pairs.
    pub(crate) silent_deaths: bool,
    made_by: ForkGeneration,
    /// The contexts that this one has attached.
    pub(crate) peers: Peers,
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
        // A process that finds the record asks for the descriptors.
        let source: Weak<ContextDescriptors> = Arc::downgrade(&descriptors);
        member
            .serve(incarnation, source)
            .map_err(|error| provider(error.into()))?;
        let record = ContextRecord {
            process,
            layout_version: LAYOUT_VERSION,
            incarnation,
            host_name: info.name.name().unwrap_or(DEFAULT_HOST).to_owned(),
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
        let peers = Peers::new(fabric, (host.0, claim.index), own.clone(), progress.clone());
        Ok(Arc::new(Self {
            hostility: mode
                .rules
                .map(|rules| HostileMode::new(rules, &info, host.0)),
            non_temporal: mode.non_temporal,
            silent_deaths: mode.silent_deaths,
            descriptors,
            info,
            host,
            arena,
            local_mrs,
            own,
            peers,
            cq_rows: Rows::new(0, MAX_CQ),
            srq_rows: Rows::new(0, MAX_SRQ),
            region_rows: Arc::new(Rows::new(0, MAX_REGION)),
            qp_rows: Rows::new(0, MAX_QP),
            quarantine: Quarantine::new(progress.clone()),
            progress,
            events,
            handles: AddressHandles::default(),
            senders: Senders::default(),
            made_by: ForkGeneration::current(),
            claim,
            table,
        }))
    }

    /// Returns whether this process is a forked child of the one that opened the device.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Returns what the context hands to other processes.
    pub(crate) fn descriptors(&self) -> &Arc<ContextDescriptors> {
        &self.descriptors
    }

    /// Allocates shared memory for a queue.
    pub(crate) fn queue_memory(&self, len: usize) -> Result<ArenaAllocation, ResourceError> {
        self.arena.take(len, 64, SegmentKind::SHARED)
    }

    /// Returns the QPN of the queue pair in `slot`.
    pub(crate) fn qpn(&self, slot: usize, generation: u64) -> u32 {
        qpn(self.claim.index, slot, generation)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_foreign() {
            self.progress.stop();
        }
    }
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

    /// Returns whether the calling process is a forked child of the one that made the object.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }
}

impl Drop for ContextRelease {
    fn drop(&mut self) {
        let others = self.progress.objects.fetch_sub(1, Ordering::AcqRel) - 1;
        // A forked child has no progress thread that could release the context.
        if !self.is_foreign() && self.progress.is_last(others) {
            self.progress.await_release();
        }
    }
}
