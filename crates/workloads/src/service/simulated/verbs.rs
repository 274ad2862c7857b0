//! Callers on plain verbs: queue pairs of their own, or queue pairs that several share under a lock.

use std::sync::{Arc, Mutex};

use headworks::stage::{Actor, ActorError, Cast, Cx, Part, PartSpec, Step};
use headworks::verbs::bringup::Tuning;
use headworks::verbs::{
    BringUp, Completion, Duration, Payload, QpCaps, RemoteAddr, SendFlags, SendOp, SendWr, Status,
};
use headworks_baselines::{End, Memory, Shape};

use super::lock::{Answer, Handing, Lock};
use super::work::{Scene, Work, fill, locked, words};
use super::{Load, Machine, What};
use crate::transports::ArmError;

/// Completions that are taken at a time: as many as there are about, where somebody keeps up.
const POLL: usize = 4;
/// How soon somebody looks again whether all are there.
const SOON: Duration = Duration::from_micros(1);

/// One end of the other host's, with memory that is read.
struct Remote {
    end: End,
    memory: Memory,
}

/// Queue pairs that some callers have together.
struct Group {
    lock: Option<Lock>,
    end: End,
    /// Where answers go, slot by slot of caller by caller.
    memory: Memory,
    /// What each queue pair asks.
    targets: Vec<RemoteAddr>,
    /// Slots of each caller whose answers another has taken from the queue.
    inbox: Vec<Vec<usize>>,
}

/// What is made as callers come.
#[derive(Default)]
struct Board {
    remotes: Vec<Remote>,
    groups: Vec<Option<Arc<Mutex<Group>>>>,
}

/// How callers share.
#[derive(Clone, Copy)]
struct Plan {
    load: Load,
    /// Callers that share each queue pair; 1: none do, and there is no lock.
    sharing: usize,
}

/// The parts of a play in which so many callers share each queue pair.
pub(super) fn parts(
    cast: &mut Cast,
    scene: &Scene,
    machine: &Machine,
    load: Load,
    sharing: usize,
) -> Result<Vec<PartSpec>, ArmError> {
    let plan = Plan { load, sharing };
    let board = Arc::new(Mutex::new(Board::default()));
    let (of_cast, machine_of_cast) = (scene.clone(), machine.clone());
    cast.register("caller", move |part: &Part| {
        let who: usize = part.spec.role.trim_start_matches('c').parse()?;
        let Machine { preset, .. } = &machine_of_cast;
        Ok(Box::new(Caller {
            work: Work::new(&of_cast, who),
            group: plan.group_of(who, part, &machine_of_cast, &of_cast, &board)?,
            board: board.clone(),
            scene: of_cast.clone(),
            plan,
            member: who % sharing,
            think: Duration::from_nanos(preset.bench_ns as u64),
            line: Duration::from_nanos(preset.line_ns as u64),
            has_thought: None,
            own: Vec::new(),
        }))
    });
    let device = machine.device(0)?;
    let part = |who| PartSpec::new(format!("c{who}"), "caller").on(device.clone());
    Ok((0..load.callers).map(part).collect())
}

impl Plan {
    /// Bytes of an answer.
    fn bytes(self) -> usize {
        match self.load.what {
            What::Reads { bytes, .. } => bytes,
            What::Adds { .. } | What::Messages { .. } => 8,
        }
    }

    /// The queue pairs of a caller, made if it is the first of those who share them.
    fn group_of(
        self,
        who: usize,
        part: &Part,
        machine: &Machine,
        scene: &Scene,
        board: &Mutex<Board>,
    ) -> Result<Arc<Mutex<Group>>, ActorError> {
        let mut board = locked(board);
        let Board { remotes, groups } = &mut *board;
        let Load {
            callers,
            connections,
            hosts,
            outstanding,
            ..
        } = self.load;
        while remotes.len() < hosts {
            let device = (part.opener)(&machine.device(remotes.len() + 1)?)?;
            let end = End::open(device, &shape(0, 1, 1))?;
            let memory = end.memory(self.load.region())?;
            fill(self.load.what, |at, bytes| memory.fill(at, bytes));
            remotes.push(Remote { end, memory });
        }
        let at = who / self.sharing;
        groups.resize(callers.div_ceil(self.sharing), None);
        if let Some(group) = &groups[at] {
            return Ok(group.clone());
        }
        let members = self.sharing.min(callers - at * self.sharing);
        let queue_pairs = (connections / callers).max(1);
        let shape = shape(queue_pairs, members * outstanding, 1);
        let mut end = End::open((part.opener)(&machine.device(0)?)?, &shape)?;
        end.populate(&shape)?;
        let memory = end.memory(members * outstanding * self.bytes())?;
        let mut targets = Vec::new();
        for (number, ours) in end.queue_pairs.iter_mut().enumerate() {
            // Whoever has few connections has them to others than his neighbours.
            let remote = &mut remotes[(at + number) % hosts];
            let one = Shape {
                queue_pairs: 1,
                ..shape
            };
            remote.end.populate(&one)?;
            let theirs = remote.end.queue_pairs.last_mut();
            let theirs = theirs.ok_or_else(|| ActorError::new("no queue pair"))?;
            let start = |info, qp| BringUp::start(info, qp, Tuning::default(), 1, vec![]);
            let mut here = start(end.device.info(), &mut **ours)?;
            let mut there = start(remote.end.device.info(), &mut **theirs)?;
            here.meet(&mut **ours, &mut there, &mut **theirs)?;
            targets.push(remote.memory.region().remote(0));
        }
        scene.look().queue_pairs += targets.len();
        let group = Arc::new(Mutex::new(Group {
            lock: (self.sharing > 1).then(|| Lock::new(Handing::of(&machine.preset))),
            end,
            memory,
            targets,
            inbox: vec![Vec::new(); members],
        }));
        groups[at] = Some(group.clone());
        Ok(group)
    }
}

fn shape(queue_pairs: usize, outstanding: usize, receives: u32) -> Shape {
    Shape {
        queue_pairs,
        caps: QpCaps {
            max_send_wr: outstanding as u32,
            max_recv_wr: receives,
            ..QpCaps::default()
        },
        cq_depth: outstanding as u32,
        shared_receives: 0,
        channel: false,
    }
}

/// A thread that asks.
struct Caller {
    scene: Scene,
    work: Work,
    group: Arc<Mutex<Group>>,
    board: Arc<Mutex<Board>>,
    plan: Plan,
    /// Which of those that share.
    member: usize,
    think: Duration,
    line: Duration,
    /// Since when it is about the next request.
    has_thought: Option<headworks::verbs::Instant>,
    /// Slots whose answers it has taken in this step.
    own: Vec<usize>,
}

impl Actor for Caller {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        match self.work.begins(now) {
            None => return Ok(Step::At(now + SOON)),
            Some(begin) if begin > now => return Ok(Step::At(begin)),
            Some(_) => {}
        }
        let shared = self.group.clone();
        let group = &mut *locked(&shared);
        let inbox = std::mem::take(&mut group.inbox[self.member]);
        if !inbox.is_empty() {
            cx.charge(self.line);
            self.own.extend(inbox);
            self.took(group, cx)?;
        }
        // Whoever stands in line for the lock does not go before he has had it.
        if self.has_thought.is_none() && self.work.is_over(now) {
            self.finish();
            return Ok(Step::Done);
        }
        if self.has_thought.is_none() && self.work.wants(now) {
            self.has_thought = Some(now);
            cx.charge(self.think);
            return Ok(Step::Again);
        }
        if let Some(lock) = &mut group.lock {
            let now = cx.now();
            let answer = match self.has_thought {
                Some(_) => lock.ask(self.member, now),
                None => lock.try_now(self.member, now),
            };
            match answer {
                Answer::Waits(at) => return Ok(Step::At(at)),
                Answer::Has(cost) => cx.charge(cost),
            }
        }
        self.poll(group)?;
        let posted = self.has_thought.take().map(|began| self.post(group, began));
        if let Some(lock) = &mut group.lock {
            lock.release(cx.now());
        }
        self.took(group, cx)?;
        posted.transpose()?;
        Ok(Step::Again)
    }
}

impl Caller {
    /// Takes what has ended, whosever it was.
    fn poll(&mut self, group: &mut Group) -> Result<(), ActorError> {
        let mut found = [Completion::default(); POLL];
        let count = group.end.send_cq.poll(&mut found)?;
        for done in &found[..count] {
            if done.status != Status::Success {
                return Err(ActorError::new(format!("a request ended: {}", done.status)));
            }
            let (member, slot) = ((done.wr_id >> 32) as usize, done.wr_id as u32 as usize);
            match member == self.member {
                true => self.own.push(slot),
                false => group.inbox[member].push(slot),
            }
        }
        Ok(())
    }

    fn post(
        &mut self,
        group: &mut Group,
        began: headworks::verbs::Instant,
    ) -> Result<(), ActorError> {
        let Some(request) = self.work.next(began) else {
            return Ok(());
        };
        let bytes = self.plan.bytes();
        let place = self.place(request.slot);
        let sges = [group.memory.region().sge(place, bytes as u32)];
        let at = request.slot % group.targets.len();
        let remote = group.targets[at].plus(request.at);
        let op = match self.plan.load.what {
            What::Adds { .. } => SendOp::FetchAdd { remote, add: 1 },
            What::Reads { .. } | What::Messages { .. } => SendOp::Read(remote),
        };
        group.end.queue_pairs[at].post_send(&[SendWr {
            wr_id: (self.member as u64) << 32 | request.slot as u64,
            op,
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        }])?;
        Ok(())
    }

    /// Where the answer to a slot's request goes.
    fn place(&self, slot: usize) -> usize {
        (self.member * self.plan.load.outstanding + slot) * self.plan.bytes()
    }

    /// Looks at what has come.
    fn took(&mut self, group: &Group, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let now = cx.now();
        for slot in std::mem::take(&mut self.own) {
            let place = self.place(slot);
            let read = |into: &mut [u8]| group.memory.read(place, into);
            self.work.came(slot, now, read)?;
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.work.finish();
        if self.scene.is_over() {
            let board = locked(&self.board);
            let of = |remote: &Remote| -> u64 {
                let words = words(self.plan.load.what);
                words
                    .map(|at| {
                        remote
                            .memory
                            .word(at)
                            .load(std::sync::atomic::Ordering::Relaxed)
                    })
                    .sum()
            };
            self.scene.look().sum = Some(board.remotes.iter().map(of).sum());
        }
    }
}
