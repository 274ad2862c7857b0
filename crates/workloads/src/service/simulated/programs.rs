//! Applications in virtual time: those that ask, and those that are asked.

use headworks::client::operation::RESULT_BYTES;
use headworks::client::{Extent, Op, Operation, Outcome, Outcomes};
use headworks::stage::{Actor, ActorError, Cx, Step};
use headworks::verbs::{Duration, Instant};

use super::client::{Client, Opening, wrong};
use super::host::{Operating, Shared};
use super::scene::{SOON, Scene, Share, Stage, locked};
use super::{What, nanos};
use crate::service::Result;

/// Takes a look at shared memory.
pub(super) const LOOK: Duration = Duration::from_nanos(20);
/// How often a caller looks that waits for answers longer than [`SHORT`].
const PAUSE: Duration = Duration::from_nanos(500);
const SHORT: usize = 4096;
/// How often an application looks that has nothing to do.
const LATER: Duration = Duration::from_micros(50);

/// Adds the applications at those desks, of callers and of servers.
pub(super) fn add(stage: &mut Stage, callers: Vec<Shared>, servers: Vec<Shared>) -> Result<()> {
    let (load, preset) = (stage.scene.load, &stage.scene.machine.preset);
    let think = nanos(preset.bench_ns + preset.message_ns);
    let line = nanos(preset.line_ns);
    for (who, desk) in callers.into_iter().enumerate() {
        let scene = stage.scene.clone();
        let own = 0..load.connections / load.callers;
        let to = own.map(|number| (who + number) % load.hosts + 1);
        let opening = Opening::Connects(to.collect());
        let alloc = (load.what.bytes() + RESULT_BYTES as usize) * load.outstanding;
        stage.add(0, format!("c{who}"), move |_| {
            Ok(Caller {
                share: scene.share(who),
                client: Client::new(&desk, &opening, alloc),
                is_connected: false,
                think,
                line,
                about: None,
            })
        })?;
    }
    for (host, desk) in (1..).zip(servers) {
        let scene = stage.scene.clone();
        stage.add(host, format!("s{host}"), move |_| {
            Ok(Server {
                scene: scene.clone(),
                client: Client::new(&desk, &Opening::Listens(load.what), load.what.region()),
            })
        })?;
    }
    Ok(())
}

/// An application that asks.
struct Caller {
    share: Share,
    client: Client,
    is_connected: bool,
    /// What a request takes of its processor: what perftest does, and a record.
    think: Duration,
    /// What a line takes that the daemon wrote last.
    line: Duration,
    /// Since when it is about the next request.
    about: Option<Instant>,
}

impl Caller {
    /// Where a slot's answer goes, and where it is said what became of it.
    fn places(&self, memory: Extent, slot: usize) -> (Extent, Extent) {
        let load = self.share.scene.load;
        let (bytes, slot) = (load.what.bytes() as u32, slot as u32);
        let results = bytes * load.outstanding as u32;
        let result = memory.part(results + slot * RESULT_BYTES, RESULT_BYTES);
        (memory.part(slot * bytes, bytes), result)
    }

    /// Looks for what is over; answers how much was.
    fn look(&mut self, memory: Extent, now: Instant) -> Result<u64, ActorError> {
        let mut desk = locked(&self.client.desk);
        let is_over = |one: &mut Operating| one.seen_at.is_some_and(|at| at <= now);
        let over: Vec<Operating> = desk.operations.extract_if(.., is_over).collect();
        let slabs = desk.session.slabs().clone();
        drop(desk);
        for one in &over {
            let outcome = one.outcomes.get().map(|(outcome, _)| outcome);
            if outcome != Some(Outcome::Done) {
                let why = format!("an operation ended: {outcome:?}");
                return Err(ActorError::new(why));
            }
            let (local, _) = self.places(memory, one.slot);
            let mut answer = vec![0; local.len as usize];
            let read = slabs.view(local)?.read(0, &mut answer);
            read.map_err(|_| wrong("memory that is not there"))?;
            let work = &mut self.share.work;
            let at = work.came(one.slot, now);
            work.load.what.check(at, &answer)?;
        }
        Ok(over.len() as u64)
    }

    /// Asks for what it was about to.
    fn ask(&mut self, memory: Extent, began: Instant) -> Result<(), ActorError> {
        let Some(request) = self.share.work.next(began) else {
            return Ok(());
        };
        let (local, result) = self.places(memory, request.slot);
        let end = &mut self.client.ends[request.connection];
        let desk = &mut *locked(&self.client.desk);
        let outcomes = Outcomes::at(desk.session.slabs(), result)?;
        outcomes.clear();
        let operation = Operation {
            op: match self.share.work.load.what {
                What::Adds { .. } => Op::FetchAdd,
                What::Reads { .. } | What::Messages { .. } => Op::Read,
            },
            window: end.window.unwrap_or_default(),
            at: request.at,
            local,
            operand: 1,
            compare: 0,
            result,
        };
        end.connection.refresh(desk.session.slabs());
        let (lent, _) = end.connection.sending.operate(&operation)?;
        if lent.is_none() {
            return Err(wrong(
                "no room for a record: more than it has room for are outstanding",
            ));
        }
        desk.written += 1;
        desk.touched.insert(end.connection.handle());
        desk.operations.push(Operating {
            slot: request.slot,
            outcomes,
            seen_at: None,
        });
        Ok(())
    }
}

impl Actor for Caller {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if !self.is_connected {
            self.client.hear()?;
            let load = self.share.scene.load;
            self.is_connected = self.client.hear_windows(load.connections / load.callers)?;
            return Ok(Step::At(now + SOON));
        }
        if let Some(step) = self.share.waits(now) {
            return Ok(step);
        }
        let memory = self.client.memory.ok_or_else(|| wrong("no memory"))?;
        if let Some(began) = self.about.take() {
            self.ask(memory, began)?;
        }
        cx.charge(LOOK);
        let ended = self.look(memory, now)?;
        cx.charge(self.line.times(ended));
        let work = &self.share.work;
        if work.is_over(now) {
            self.share.finish();
            return Ok(Step::Done);
        }
        if work.wants(now) {
            self.about = Some(cx.now());
            cx.charge(self.think);
        } else if work.load.what.bytes() > SHORT && ended == 0 {
            // A look more or less is nothing beside what a long answer takes.
            return Ok(Step::At(now + PAUSE));
        }
        Ok(Step::Again)
    }
}

/// An application that is asked.
struct Server {
    scene: Scene,
    client: Client,
}

impl Actor for Server {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if self.scene.is_over() {
            let sum = (locked(&self.client.desk).counters)();
            *self.scene.look().sum.get_or_insert(0) += sum;
            return Ok(Step::Done);
        }
        self.client.hear()?;
        // Only until all are connected does it have anything to do.
        let load = self.scene.load;
        let pause = match self.client.ends.len() < load.connections / load.hosts {
            true => SOON,
            false => LATER,
        };
        Ok(Step::At(cx.now() + pause))
    }
}
