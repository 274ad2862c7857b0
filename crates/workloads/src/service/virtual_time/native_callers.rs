//! Callers on plain verbs: queue pairs of their own, or queue pairs that several share under a lock.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step};
use headworks::verbs::{Completion, Duration, Instant};
use headworks_baselines::EndSizes;

use super::{CallerRun, ScenarioBuilder, SharedRun, locked, nanos};
use crate::service::Result;
use crate::service::native_verbs::{Native, shape};
use crate::service::one_sided::VerbsRequests;
use crate::virtual_run::connect;

/// How soon a thread that queues behind others asks again: sooner than any of them can be done.
const LOOK: Duration = Duration::from_nanos(20);

/// A ticket lock: threads get it in the order in which they asked; a waiting thread spins.
#[derive(Debug)]
pub(super) struct SimulatedLock {
    /// Cost of a handover between two cores, and the cost that each further waiting thread adds to it.
    costs: [Duration; 2],
    free_at: Instant,
    owner: Option<usize>,
    line: VecDeque<usize>,
}

impl SimulatedLock {
    pub(super) fn new(costs: [Duration; 2]) -> Self {
        Self {
            costs,
            free_at: Instant::ZERO,
            owner: None,
            line: VecDeque::new(),
        }
    }

    /// Asks for the lock for thread `who`, which joins the queue if `queues`.
    ///
    /// `Ok(cost)`: the thread has the lock after that time, uses it in the same step, and
    /// [releases](Self::release) it. `Err(at)`: the thread is to ask again at `at`.
    pub(super) fn ask(
        &mut self,
        who: usize,
        now: Instant,
        queues: bool,
    ) -> Result<Duration, Instant> {
        if !queues && (!self.line.is_empty() || self.free_at > now) {
            return Err(self.free_at.max(now + LOOK));
        }
        if !self.line.contains(&who) {
            self.line.push_back(who);
        }
        if self.free_at > now {
            return Err(self.free_at);
        }
        if self.line.front() != Some(&who) {
            return Err(now + LOOK);
        }
        self.line.pop_front();
        let is_own = self.owner.replace(who).is_none_or(|owner| owner == who);
        let [over, waiter] = self.costs;
        Ok(match is_own {
            true => Duration::ZERO,
            false => over + waiter.times(self.line.len() as u64),
        })
    }

    /// Releases the lock at `now`.
    pub(super) fn release(&mut self, now: Instant) {
        self.free_at = now;
    }
}

/// Completions polled at a time: about as many as there are if a caller keeps up.
const POLL: usize = 4;

/// Queue pairs that a group of callers shares.
struct QueuePairGroup {
    lock: Option<SimulatedLock>,
    verbs: VerbsRequests,
    /// For each caller: slots whose completions another caller has polled.
    inbox: Vec<Vec<usize>>,
}

/// The groups, made as callers start.
#[derive(Default)]
struct QueuePairGroups {
    /// Ends on the other hosts, with the memory that requests access.
    remotes: Vec<Native>,
    groups: Vec<Option<Arc<Mutex<QueuePairGroup>>>>,
}

/// Adds callers, `sharing` of which share each queue pair. With 1, none share, and there is no lock.
pub(super) fn add(scenario: &mut ScenarioBuilder, sharing: usize) -> Result<()> {
    let all_groups = Arc::new(Mutex::new(QueuePairGroups::default()));
    for who in 0..scenario.shared_run.load.callers {
        let (shared_run, all_groups) = (scenario.shared_run.clone(), all_groups.clone());
        scenario.add(0, format!("c{who}"), move |part| {
            let preset = &shared_run.machine.preset;
            Ok(Caller {
                share: shared_run.share(who),
                group: locked(&all_groups).group_of(who / sharing, sharing, part, &shared_run)?,
                all_groups: all_groups.clone(),
                member: who % sharing,
                think: nanos(preset.bench_ns),
                line: nanos(preset.line_ns),
                has_thought: None,
                own: Vec::new(),
            })
        })?;
    }
    Ok(())
}

impl QueuePairGroups {
    /// Returns the queue pairs of group `at`. The group's first caller makes them.
    fn group_of(
        &mut self,
        at: usize,
        sharing: usize,
        part: &ActorInit,
        shared_run: &SharedRun,
    ) -> Result<Arc<Mutex<QueuePairGroup>>, ActorError> {
        let (load, preset) = (shared_run.load, &shared_run.machine.preset);
        let (what, hosts) = (load.what, load.hosts);
        let open = |host, shape: &EndSizes, len| {
            let device = (part.opener)(&shared_run.machine.device(host)?)?;
            Ok::<_, ActorError>(Native::open(device, shape, len)?)
        };
        while self.remotes.len() < hosts {
            let host = self.remotes.len() + 1;
            let native = open(host, &shape(0, 1, 1), what.region())?;
            what.fill(|at, bytes| native.memory.fill(at, bytes));
            self.remotes.push(native);
        }
        self.groups.resize(load.callers.div_ceil(sharing), None);
        if let Some(group) = &self.groups[at] {
            return Ok(group.clone());
        }
        let members = sharing.min(load.callers - at * sharing);
        let depth = members * load.outstanding;
        let ours = shape(load.own(), depth, depth);
        let mut native = open(0, &ours, depth * what.bytes())?;
        let theirs = shape(1, depth, depth);
        let mut targets = Vec::new();
        for (number, ours) in native.end.queue_pairs.iter_mut().enumerate() {
            // A caller with few connections has them to other hosts than its neighbours.
            let remote = &mut self.remotes[(at + number) % hosts];
            remote.end.populate(&theirs)?;
            let theirs = remote.end.queue_pairs.last_mut().expect("made above");
            connect(
                (&*native.end.device, &mut **ours),
                (&*remote.end.device, &mut **theirs),
            )?;
            targets.push(remote.memory.region().remote(0));
        }
        shared_run.state().queue_pairs += targets.len();
        let group = Arc::new(Mutex::new(QueuePairGroup {
            lock: (sharing > 1)
                .then(|| SimulatedLock::new([preset.lock_ns, preset.lock_waiter_ns].map(nanos))),
            verbs: VerbsRequests {
                native,
                what,
                targets,
            },
            inbox: vec![Vec::new(); members],
        }));
        self.groups[at] = Some(group.clone());
        Ok(group)
    }
}

/// A thread that makes requests.
struct Caller {
    share: CallerRun,
    group: Arc<Mutex<QueuePairGroup>>,
    all_groups: Arc<Mutex<QueuePairGroups>>,
    /// Index of the thread in its group.
    member: usize,
    think: Duration,
    line: Duration,
    /// When the thread began to prepare the next request; `None` if it prepares none.
    has_thought: Option<Instant>,
    /// Slots whose answers the thread has polled in this step.
    own: Vec<usize>,
}

impl Actor for Caller {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if let Some(step) = self.share.wait_for_start(now) {
            return Ok(step);
        }
        let shared = self.group.clone();
        let group = &mut *locked(&shared);
        let inbox = std::mem::take(&mut group.inbox[self.member]);
        if !inbox.is_empty() {
            cx.charge(self.line);
            self.own.extend(inbox);
            self.took(group, cx)?;
        }
        // A thread that queues for the lock does not leave before it has had it.
        if self.has_thought.is_none() {
            if self.share.work.is_over(now) {
                self.finish();
                return Ok(Step::Done);
            }
            if self.share.work.wants(now) {
                self.has_thought = Some(now);
                cx.charge(self.think);
                return Ok(Step::Again);
            }
        }
        if let Some(lock) = &mut group.lock {
            match lock.ask(self.member, cx.now(), self.has_thought.is_some()) {
                Err(at) => return Ok(Step::At(at)),
                Ok(cost) => cx.charge(cost),
            }
        }
        self.poll(group)?;
        let began = self.has_thought.take();
        let request = began.and_then(|began| self.share.work.next(began));
        let posted = request.map(|request| group.verbs.post(request, self.number(request.slot)));
        if let Some(lock) = &mut group.lock {
            lock.release(cx.now());
        }
        self.took(group, cx)?;
        posted.transpose()?;
        Ok(Step::Again)
    }
}

impl Caller {
    /// Returns the number of a slot's request among those of the whole group.
    fn number(&self, slot: usize) -> usize {
        self.member * self.share.shared_run.load.outstanding + slot
    }

    /// Polls completions; puts those of other callers into their inboxes.
    fn poll(&mut self, group: &mut QueuePairGroup) -> Result<(), ActorError> {
        let mut found = [Completion::default(); POLL];
        let outstanding = self.share.shared_run.load.outstanding;
        for done in group.verbs.native.ended(&mut found)? {
            let number = done.wr_id as usize;
            let (member, slot) = (number / outstanding, number % outstanding);
            match member == self.member {
                true => self.own.push(slot),
                false => group.inbox[member].push(slot),
            }
        }
        Ok(())
    }

    /// Checks the answers that have come.
    fn took(
        &mut self,
        group: &QueuePairGroup,
        cx: &mut ActorContext<'_>,
    ) -> Result<(), ActorError> {
        let now = cx.now();
        let VerbsRequests { native, what, .. } = &group.verbs;
        for slot in std::mem::take(&mut self.own) {
            let place = group.verbs.place(self.number(slot));
            let at = self.share.work.complete(slot, now);
            what.check(at, &native.memory.bytes(place, what.bytes()))?;
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.share.finish();
        let CallerRun {
            shared_run, work, ..
        } = &self.share;
        if shared_run.is_over() {
            let sum = |remote: &Native| -> u64 {
                let words = work.load.what.words().map(|at| remote.memory.word(at));
                words.map(|word| word.load(Ordering::Relaxed)).sum()
            };
            let sum = locked(&self.all_groups).remotes.iter().map(sum).sum();
            shared_run.state().sum = Some(sum);
        }
    }
}
