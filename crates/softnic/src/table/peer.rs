//! An attached context of another process: its table, its memory, its wake pipes.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use headworks_shm::{
    ContextRecord, DescriptorClient, ProcessId, ProcessWatch, Registry, RegistryError,
    SharedSegment, ShmSafe, SlotQueue, SlotQueueRef, WakeSender,
};

use crate::table::arena::Arena;
use crate::table::descriptors::{ContextDescriptors, DescriptorKind, DescriptorOrigin};
use crate::table::local_mrs::LocalMrs;
use crate::table::peer_process::{LifeEvidence, PeerProcess};
use crate::table::rows::{MAX_SEGMENT, QueueLocation, SegmentOffset, Table};

/// Largest queue capacity that is accepted from a peer.
const CAPACITY_MAX: usize = 1 << 22;

/// The reason why a live context could not be attached.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub(crate) struct AttachError {
    /// The step that failed.
    pub(crate) what: &'static str,
    /// The error of that step.
    pub(crate) source: io::Error,
}

impl AttachError {
    pub(crate) fn new(what: &'static str, source: io::Error) -> Self {
        Self { what, source }
    }
}

/// How long a process has to hand out a descriptor that a request needs. It takes microseconds as a rule; a process
/// that does not answer is stopped.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Limit for a process that did not answer the last question.
const NEXT_ANSWER_LIMIT: Duration = Duration::from_millis(20);

/// A context that this process has attached. This process's own context is one too, for loopback queue pairs.
pub(crate) struct Peer {
    peer_process: PeerProcess,
    pub(crate) incarnation: u64,
    pub(crate) table: Table,
    /// Set once the queue pairs that were connected to it have been ended after its death.
    cleaned_up: AtomicBool,
    /// Where its descriptors come from; `None` for this process's own context.
    origin: Option<DescriptorOrigin>,
    /// Process id in this process's PID namespace; 0 if that namespace does not have it.
    pid: u32,
    /// Set while its process does not have a segment that its table shows: it is dying.
    going: AtomicBool,
    /// Set while its process does not answer, or cannot hand out descriptors: a request waits.
    unanswering: AtomicBool,
    /// Set once the kernel has refused access to its private memory for good.
    no_crossing: AtomicBool,
    /// Wakes its progress thread.
    wake: Option<WakeSender>,
    /// Set for this process's own context, whose memory is mapped already.
    own: Option<OwnContext>,
    /// Number of guards held: those of this process's queue pairs that send datagrams there.
    users: AtomicUsize,
    attached: Mutex<AttachedSegments>,
}

/// Guard that keeps a peer attached and watched.
pub(crate) struct PeerGuard(Arc<Peer>);

impl PeerGuard {
    pub(crate) fn of(peer: &Arc<Peer>) -> Self {
        peer.users.fetch_add(1, Ordering::AcqRel);
        Self(peer.clone())
    }
}

impl std::ops::Deref for PeerGuard {
    type Target = Arc<Peer>;

    fn deref(&self) -> &Arc<Peer> {
        &self.0
    }
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Parts of this process's own context. Another context hands out descriptors of its parts on request.
pub(crate) struct OwnContext {
    pub(crate) descriptors: Arc<ContextDescriptors>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) local_mrs: Arc<LocalMrs>,
}

/// A port of a CQ, of the type that knows how to use it.
type WeakPort = Weak<dyn Any + Send + Sync>;

#[derive(Default)]
struct AttachedSegments {
    segments: HashMap<u32, (u32, Arc<SharedSegment>)>,
    channels: HashMap<u32, Channel>,
    /// Ports of CQs by row, with the `life` in which they were opened. Their type is declared above this module.
    ports: HashMap<u32, (u32, WeakPort)>,
}

/// The pipe of a channel, and the row and `life` of the CQ that it was opened for.
struct Channel {
    sender: Arc<WakeSender>,
    cq: (u32, u32),
}

impl Peer {
    /// Attaches the context that `record` describes. Returns `None` if its process is dead, or the context is gone.
    pub(crate) fn attach(
        registry: &Arc<Registry>,
        record: &ContextRecord,
    ) -> Result<Option<Self>, AttachError> {
        let process = record.process;
        let failed =
            |what| move |error: RegistryError| AttachError::new(what, io::Error::other(error));
        let client = DescriptorClient::connect(registry, process);
        let Some(mut client) = client.map_err(failed("connecting to its process"))? else {
            return Ok(None);
        };
        let pid = client.pid();
        let evidence = match client.pidfd().map_err(failed("watching its process"))? {
            Some(pidfd) => LifeEvidence::Watch(ProcessWatch::of_pidfd(pidfd)),
            // This process, as a peer of its own.
            None if client.is_own() => LifeEvidence::Own,
            // Without a pidfd its entry is looked at now and then.
            None => match registry.watch(process, false) {
                Ok(Some(watch)) => LifeEvidence::Watch(watch),
                Ok(None) => return Ok(None),
                Err(error) => return Err(failed("watching its process")(error)),
            },
        };
        let found = client.descriptors(record.incarnation, DescriptorKind::Table.into());
        let Some(mut descriptors) = found.map_err(failed("opening its table"))? else {
            return Ok(None);
        };
        let pipe = descriptors.split_off(1.min(descriptors.len()));
        let none = || io::Error::other("it handed out no descriptor");
        let table = descriptors
            .pop()
            .ok_or_else(|| AttachError::new("opening its table", none()))?;
        let segment = SharedSegment::attach(table)
            .map_err(|error| AttachError::new("attaching its table", io::Error::other(error)))?;
        let table = Table::new(Arc::new(segment)).ok_or_else(|| {
            let source = io::Error::other("it is smaller than a table");
            AttachError::new("attaching its table", source)
        })?;
        let wake = WakeSender::from_descriptors(pipe)
            .map_err(|source| AttachError::new("opening its wake pipe", source))?;
        let peer_process = PeerProcess::new(process, evidence);
        let mut peer = Self::unattached(peer_process, record.incarnation, table);
        peer.wake = Some(wake);
        peer.pid = pid.unwrap_or(0);
        peer.no_crossing = AtomicBool::new(pid.is_none());
        peer.origin = Some(DescriptorOrigin {
            registry: registry.clone(),
            process,
            object: record.incarnation,
        });
        Ok(Some(peer))
    }

    fn unattached(peer_process: PeerProcess, incarnation: u64, table: Table) -> Self {
        Self {
            peer_process,
            incarnation,
            table,
            cleaned_up: AtomicBool::new(false),
            origin: None,
            pid: std::process::id(),
            going: AtomicBool::new(false),
            unanswering: AtomicBool::new(false),
            no_crossing: AtomicBool::new(false),
            wake: None,
            own: None,
            users: AtomicUsize::new(0),
            attached: Mutex::default(),
        }
    }

    /// Makes this process's own context, as a peer of itself.
    pub(crate) fn own(
        process: ProcessId,
        incarnation: u64,
        table: Table,
        own: OwnContext,
        wake: Option<WakeSender>,
    ) -> Self {
        let peer_process = PeerProcess::new(process, LifeEvidence::Own);
        let mut peer = Self::unattached(peer_process, incarnation, table);
        (peer.wake, peer.own) = (wake, Some(own));
        peer
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.peer_process.process()
    }

    /// Returns the descriptor that becomes readable when its process ends, if there is one.
    pub(crate) fn death_fd(&self) -> Option<BorrowedFd<'_>> {
        self.peer_process.death_fd()
    }

    /// Returns whether its process must be asked now and then whether it is dead.
    pub(crate) fn must_be_asked(&self) -> bool {
        self.peer_process.must_be_asked()
    }

    /// Returns whether queue pairs of this process send datagrams there.
    pub(crate) fn is_in_use(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// Returns whether it is this process's own context.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, AttachedSegments> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether its process is known to be dead. Makes no system call.
    pub(crate) fn is_dead(&self) -> bool {
        self.peer_process.is_dead()
    }

    pub(crate) fn mark_dead(&self) {
        if self.peer_process.mark_dead() {
            tracing::debug!(incarnation = self.incarnation, "a peer died");
        }
    }

    /// Returns whether its process died and its queue pairs are still to be ended.
    pub(crate) fn needs_cleanup(&self) -> bool {
        self.is_dead() && !self.cleaned_up.load(Ordering::Relaxed)
    }

    /// Notes that its queue pairs are being ended. Called by the progress thread.
    pub(crate) fn set_cleaned_up(&self) {
        self.cleaned_up.store(true, Ordering::Relaxed);
    }

    /// Returns whether it was seen dying or stopped, which may be why an access failed.
    pub(crate) fn is_going(&self) -> bool {
        self.going.load(Ordering::Relaxed) || self.unanswering.load(Ordering::Relaxed)
    }

    /// Returns whether its process seems to be stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.peer_process.is_stopped()
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.peer_process.set_stopped(stopped);
    }

    /// Returns whether its process is dead. Asks the kernel if that is not known yet.
    pub(crate) fn check_dead(&self) -> bool {
        if !self.is_own() && !self.is_dead() && self.peer_process.asks_dead() {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Returns the id of its process, dead or alive, in this process's PID namespace; 0 if that does not have it.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks its process for descriptors. Returns `None` if there is no such thing (any more), or the process cannot
    /// hand it out now.
    fn ask(&self, kind: DescriptorKind) -> Option<Vec<OwnedFd>> {
        let origin = self.origin.as_ref()?;
        let limit = match self.unanswering.load(Ordering::Relaxed) {
            true => NEXT_ANSWER_LIMIT,
            false => ANSWER_LIMIT,
        };
        let asked = origin.ask(kind, limit);
        self.unanswering.store(asked.is_err(), Ordering::Relaxed);
        if matches!(asked, Ok(Some(_))) {
            self.going.store(false, Ordering::Relaxed);
        }
        if let Err(error) = &asked {
            tracing::debug!(%error, ?kind, "a peer handed out no descriptor");
        }
        if matches!(asked, Ok(None)) {
            // A live process clears the row of a segment before it ceases to hand it out.
            self.note_absent(kind);
        }
        asked.ok()?
    }

    fn note_absent(&self, kind: DescriptorKind) {
        if let DescriptorKind::Segment { row, generation } = kind
            && self.table.segment(row).life.load(Ordering::Acquire) >> 32 == u64::from(generation)
        {
            self.going.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the record of this process's own registrations; `None` for another process's context.
    pub(crate) fn local_mrs(&self) -> Option<&LocalMrs> {
        self.own.as_ref().map(|own| &*own.local_mrs)
    }

    /// Returns whether the kernel has refused access to its private memory for good.
    pub(crate) fn refuses_crossing(&self) -> bool {
        self.no_crossing.load(Ordering::Relaxed)
    }

    /// Notes that the kernel has refused access to its private memory for good.
    #[cold]
    pub(crate) fn refuse_crossing(&self, why: &dyn std::fmt::Debug) {
        if !self.no_crossing.swap(true, Ordering::Relaxed) {
            tracing::info!(?why, "a peer's private memory cannot be reached from here");
        }
    }

    /// Wakes its progress thread.
    pub(crate) fn kick(&self) {
        if let Some(wake) = &self.wake {
            wake.send(&[1]);
        }
    }

    /// Returns the port of its CQ `row`, if that was opened in that `life` and is still in use.
    pub(crate) fn known_port<T: Send + Sync + 'static>(
        &self,
        row: u32,
        life: u32,
    ) -> Option<Arc<T>> {
        let attached = self.lock();
        let (known, port) = attached.ports.get(&row)?;
        let port = (*known == life).then(|| port.upgrade())??;
        port.downcast().ok()
    }

    /// Remembers the port of its CQ `row`, opened in that `life`, for as long as the port is in use.
    pub(crate) fn know_port<T: Send + Sync + 'static>(&self, row: u32, life: u32, port: &Arc<T>) {
        let mut attached = self.lock();
        attached
            .ports
            .retain(|_, (_, port)| port.strong_count() > 0);
        let port: WeakPort = Arc::downgrade(&(port.clone() as Arc<dyn Any + Send + Sync>));
        attached.ports.insert(row, (life, port));
    }

    /// Returns its segment `row`, if that still has this generation. Attaches a segment once.
    pub(crate) fn segment(&self, row: u32, generation: u32) -> Option<Arc<SharedSegment>> {
        if let Some(own) = &self.own {
            return own.arena.find(row, generation);
        }
        if row as usize >= MAX_SEGMENT {
            // The table wraps the index, so each such number would map the same segment once more.
            return None;
        }
        let life = |row: u32| self.table.segment(row).life.load(Ordering::Acquire);
        let mut attached = self.lock();
        if let Some((known, segment)) = attached.segments.get(&row)
            && *known == generation
        {
            return Some(segment.clone());
        }
        if life(row) >> 32 != u64::from(generation) {
            return None;
        }
        let fd = self
            .ask(DescriptorKind::Segment { row, generation })?
            .into_iter()
            .next()?;
        // The table describes the segment. The header is not checked: any process that shares the memory may
        // have overwritten it.
        let segment = Arc::new(SharedSegment::attach_without_header_check(fd).ok()?);
        attached.segments.insert(row, (generation, segment.clone()));
        self.prune(&mut attached);
        Some(segment)
    }

    /// Unmaps segments that their owner has freed: they stay allocated while they are mapped here.
    pub(crate) fn let_go(&self) {
        self.prune(&mut self.lock());
    }

    fn prune(&self, attached: &mut AttachedSegments) {
        let life = |row: u32| self.table.segment(row).life.load(Ordering::Acquire);
        attached
            .segments
            .retain(|row, (generation, _)| life(*row) >> 32 == u64::from(*generation));
    }

    /// Returns how many segments are mapped.
    #[cfg(test)]
    pub(crate) fn segments_held(&self) -> usize {
        self.lock().segments.len()
    }

    /// Returns `len` bytes at `at` in its memory, and the segment that keeps them mapped.
    pub(crate) fn memory(
        &self,
        at: SegmentOffset,
        len: usize,
    ) -> Option<(*mut u8, Arc<SharedSegment>)> {
        let segment = self.segment(at.segment, at.generation)?;
        let end = at.offset.checked_add(len)?;
        (end <= segment.len()).then(|| (segment.as_ptr().wrapping_add(at.offset), segment))
    }

    /// Returns the queue of `T` that `place` describes, checked against what is mapped.
    pub(crate) fn queue<T: ShmSafe>(&self, place: &QueueLocation) -> Option<Queue<T>> {
        let (at, capacity) = place.get();
        if !capacity.is_power_of_two() || capacity > CAPACITY_MAX || at.offset % 64 != 0 {
            return None;
        }
        let (start, keep) = self.memory(at, SlotQueue::<T>::bytes(capacity))?;
        // SAFETY: the range is in the segment, is aligned, and stays mapped as long as `keep` lives beside
        // it. The owner initialised the queue before it published the place.
        let slots = unsafe { SlotQueueRef::from_raw(start, capacity) };
        Some(Queue { slots, _keep: keep })
    }

    /// Returns a sender to the pipe of its channel `number`, if it is this process's own context.
    pub(crate) fn own_channel(&self, number: u32) -> Option<WakeSender> {
        self.own.as_ref()?.descriptors.channel_sender(number)
    }

    /// Returns the pipe of its channel `number`, for an event of the CQ `cq` (row and `life`).
    pub(crate) fn channel(&self, number: u32, cq: (u32, u32)) -> Option<Arc<WakeSender>> {
        let mut attached = self.lock();
        if let Some(known) = attached.channels.get(&number) {
            return Some(known.sender.clone());
        }
        let pipe = self.ask(DescriptorKind::Channel(number))?;
        let sender = Arc::new(WakeSender::from_descriptors(pipe).ok()?);
        // A pipe held here takes a descriptor, so pipes whose CQ is gone are released. If other CQs share
        // such a channel, the pipe is opened again for one of them.
        let lives =
            |(row, life): (u32, u32)| self.table.cq(row).life.load(Ordering::Acquire) == life;
        // A CQ has only one channel. This bounds the pipes if a broken row names another channel each time.
        attached
            .channels
            .retain(|_, channel| lives(channel.cq) && channel.cq != cq);
        let channel = Channel {
            sender: sender.clone(),
            cq,
        };
        attached.channels.insert(number, channel);
        Some(sender)
    }

    /// Makes a peer that is watched by `pidfd`, has the process id `pid`, and whose table is this process's own.
    #[cfg(test)]
    pub(crate) fn stand_in(pid: u32, pidfd: OwnedFd, table: Table) -> Self {
        let process = ProcessId {
            slot: 0,
            generation: 1,
        };
        let evidence = LifeEvidence::Watch(ProcessWatch::of_pidfd(pidfd));
        let mut peer = Self::unattached(PeerProcess::new(process, evidence), 1, table);
        peer.pid = pid;
        peer
    }

    /// Returns how many channels' pipes are held.
    #[cfg(test)]
    pub(crate) fn channels_held(&self) -> usize {
        self.lock().channels.len()
    }
}

/// A slot queue in a peer's memory or this process's own, kept mapped.
#[derive(Clone)]
pub(crate) struct Queue<T> {
    pub(crate) slots: SlotQueueRef<T>,
    _keep: Arc<SharedSegment>,
}

impl<T> Queue<T> {
    pub(crate) fn new(slots: SlotQueueRef<T>, keep: Arc<SharedSegment>) -> Self {
        Self { slots, _keep: keep }
    }
}
