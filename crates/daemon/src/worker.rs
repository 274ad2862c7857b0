//! A worker: carries the queue-pair groups to some hosts, with completion queues, receives and doorbells of its own.
//! Workers share no word on the path of a message, except where they signal a descriptor that an application polls, and
//! where a ring grows: the table of descriptors and the memory of a session have a lock each.
//!
//! The control of a daemon ([`Daemon`](crate::Daemon)) serves applications and other daemons, assigns each host to a
//! worker, and makes and ends connections there. It takes a worker's lock for that. A daemon with one worker steps it
//! itself. With several, each is stepped by a thread of its own, which holds the lock for one step at a time and lets
//! control go first.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_runtime::ActorContext;
use headworks_verbs::{CompletionChannel, Instant, Qpn};

use crate::domain::{Domain, DomainError, Output, WakeUp};
use crate::ecn::PoolLevel;
use crate::ids::DomainId;

/// A worker: its parts of all domains.
#[derive(Default)]
pub struct Worker {
    domains: BTreeMap<DomainId, Domain>,
    /// Parts whose device objects failed, which control has not been told of.
    lost: Vec<(DomainId, DomainError)>,
    /// Outputs of such parts: control tells the peers that their queue-pair groups are down.
    last_words: Vec<(DomainId, Output)>,
    domains_made: u64,
    is_armed: bool,
    /// Whether control was asked to take the outputs.
    is_control_asked: bool,
}

impl Worker {
    /// Does a bounded amount of work and returns whether there was any.
    pub fn step(&mut self, cx: &mut ActorContext<'_>) -> bool {
        let mut was_busy = false;
        let mut next = self.domains.keys().next().copied();
        while let Some(id) = next {
            match self.domains.get_mut(&id).map(|domain| domain.step(cx)) {
                Some(Ok(stepped)) => was_busy |= stepped,
                Some(Err(error)) => {
                    let lost = self.domains.remove(&id);
                    let downs = lost.iter().flat_map(Domain::groups_down);
                    self.last_words.extend(downs.map(|down| (id, down)));
                    self.lost.push((id, error));
                }
                None => {}
            }
            let behind = (Bound::Excluded(id), Bound::Unbounded);
            next = self.domains.range(behind).next().map(|(id, _)| *id);
        }
        was_busy
    }

    /// Returns whether there is no work until an application or the device makes some.
    pub fn is_idle(&self) -> bool {
        self.domains.values().all(Domain::is_idle)
    }

    /// Returns when the worker must be stepped at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.domains.values().filter_map(Domain::deadline).min()
    }

    /// Arms all wake-ups before sleeping: see [`Daemon::arm`](crate::Daemon::arm).
    pub fn arm(&mut self) {
        self.is_armed = true;
        self.domains.values_mut().for_each(Domain::arm);
    }

    /// Disarms all wake-ups, after sleeping or if the caller does not sleep after all.
    pub fn disarm(&mut self) {
        self.is_armed = false;
        self.domains.values_mut().for_each(Domain::disarm);
    }

    /// Returns whether the worker is armed: it sleeps, or is about to.
    pub fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Returns whether another host's daemon has to react to something that was sent.
    pub fn awaits_peers(&self) -> bool {
        self.domains.values().any(Domain::awaits_peers)
    }

    /// Returns the number of sessions that have a part here. A step reads the doorbell of each.
    pub fn sessions(&self) -> usize {
        self.domains.values().map(Domain::sessions).sum()
    }

    /// Returns the completion channels of all domains. Each has a descriptor that wakes the worker.
    pub fn channels(&self) -> Vec<Arc<dyn CompletionChannel>> {
        let channels = self.domains.values().map(|one| one.channel().clone());
        channels.collect()
    }

    /// Returns the level of each domain's receive pool.
    pub fn pool_levels(&self) -> impl Iterator<Item = PoolLevel> {
        self.domains.values().map(Domain::pool_level)
    }

    /// Returns how many domains were ever added. Each adds one of [`Worker::channels`].
    pub fn domains_made(&self) -> u64 {
        self.domains_made
    }

    /// Returns the next wake-up that may be carried out without control. A wake-up behind another output waits for
    /// control, because the application may have to receive a slab first.
    pub fn wake_up(&mut self) -> Option<WakeUp> {
        self.domains.values_mut().find_map(Domain::wake_up)
    }

    /// Returns whether there are outputs for control.
    pub fn has_outputs(&self) -> bool {
        !self.lost.is_empty() || self.domains.values().any(Domain::has_outputs)
    }

    /// Returns whether control must be asked to take outputs: there are some, and it was not asked yet.
    pub fn asks_control(&mut self) -> bool {
        self.has_outputs() && !std::mem::replace(&mut self.is_control_asked, true)
    }

    /// Moves all outputs of all domains behind `to`.
    pub(crate) fn take_outputs(&mut self, to: &mut VecDeque<(DomainId, Output)>) {
        self.is_control_asked = false;
        to.extend(self.last_words.drain(..));
        for (id, domain) in &mut self.domains {
            to.extend(domain.take_outputs().map(|output| (*id, output)));
        }
    }

    /// Returns the next part that was lost, and why.
    pub(crate) fn lost(&mut self) -> Option<(DomainId, DomainError)> {
        self.lost.pop()
    }

    pub(crate) fn domain(&mut self, id: DomainId) -> Option<&mut Domain> {
        self.domains.get_mut(&id)
    }

    pub(crate) fn add(&mut self, id: DomainId, domain: Domain) {
        self.domains.insert(id, domain);
        self.domains_made += 1;
    }

    /// Fails the group of a queue pair that the device reported as failed.
    pub(crate) fn lose_qp(&mut self, qpn: Qpn) {
        self.domains.values_mut().for_each(|one| one.lost(qpn));
    }
}

/// A worker that control and the worker's thread take turns with.
#[derive(Default)]
pub struct SharedWorker {
    worker: Mutex<Worker>,
    /// How often control waits for the lock at this moment: 0 or 1.
    is_wanted: AtomicU32,
    /// Set by the worker's thread when the worker has outputs, and cleared by control before it takes them.
    has_outputs: AtomicBool,
}

impl SharedWorker {
    /// Takes the lock for control. The worker's thread gives way.
    pub fn lock_for_control(&self) -> MutexGuard<'_, Worker> {
        self.is_wanted.fetch_add(1, Ordering::SeqCst);
        let worker = self.lock();
        self.is_wanted.fetch_sub(1, Ordering::SeqCst);
        worker
    }

    /// Takes the lock for the worker's thread, or returns `None` if control waits for it. Then yield, and try again.
    pub fn lock_for_step(&self) -> Option<MutexGuard<'_, Worker>> {
        match self.is_wanted.load(Ordering::SeqCst) {
            0 => Some(self.lock()),
            _ => None,
        }
    }

    /// Notes that the worker has outputs for control.
    pub fn ask_control(&self) {
        self.has_outputs.store(true, Ordering::Release);
    }

    /// Returns whether the worker's thread asked control to take outputs since the last call.
    pub(crate) fn was_control_asked(&self) -> bool {
        self.has_outputs.swap(false, Ordering::AcqRel)
    }

    fn lock(&self) -> MutexGuard<'_, Worker> {
        // A panic in a worker ends the daemon.
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
