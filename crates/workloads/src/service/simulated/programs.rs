//! Applications in virtual time: those that ask, and those that are asked.

use std::sync::atomic::Ordering;

use headworks::client::connection::{Connection, Received};
use headworks::client::operation::RESULT_BYTES;
use headworks::client::session::Event;
use headworks::client::{Extent, Op, Operation, Outcome, Outcomes, Rights};
use headworks::stage::{Actor, ActorError, Cast, Cx, Part, PartSpec, Step};
use headworks::verbs::{Duration, Instant};

use super::host::{Operating, Shared, listens_at};
use super::work::{Request, Scene, Work, fill, locked, words};
use super::{Load, Machine, What};
use crate::transports::ArmError;

/// The port of whoever is asked.
pub(super) const PORT: u16 = 7000;
/// A look at what one waits for, in shared memory.
const LOOK: Duration = Duration::from_nanos(20);
/// How soon somebody looks again who waits for more bytes than that.
const PAUSE: Duration = Duration::from_nanos(500);
const SHORT: u32 = 4096;
/// How soon somebody looks again who is being connected, or has nothing to do.
const SOON: Duration = Duration::from_micros(1);
const LATER: Duration = Duration::from_micros(50);
/// Bytes by which an application tells the other what it calls its memory.
const WINDOW: usize = 4;

/// Parts of the applications: at those desks, of callers and of those who are asked.
pub(super) fn parts(
    cast: &mut Cast,
    scene: &Scene,
    machine: &Machine,
    load: Load,
    [callers, servers]: [Vec<Shared>; 2],
) -> Result<Vec<PartSpec>, ArmError> {
    let nanos = |nanos: f64| Duration::from_nanos(nanos as u64);
    let preset = &machine.preset;
    let costs = Costs {
        think: nanos(preset.bench_ns + preset.message_ns),
        line: nanos(preset.line_ns),
    };
    let mut parts = Vec::new();
    for (who, desk) in callers.into_iter().enumerate() {
        let name = format!("c{who}");
        let scene = scene.clone();
        cast.register(&name, move |_: &Part| {
            let work = Work::new(&scene, who);
            Ok(Box::new(Caller::new(who, work, load, desk.clone(), costs)))
        });
        parts.push(PartSpec::new(name.clone(), name).on(machine.device(0)?));
    }
    for (host, desk) in (1..).zip(servers) {
        let name = format!("s{host}");
        let scene = scene.clone();
        cast.register(&name, move |_: &Part| {
            Ok(Box::new(Server::new(scene.clone(), load, desk.clone())))
        });
        parts.push(PartSpec::new(name.clone(), name).on(machine.device(host)?));
    }
    Ok(parts)
}

/// What an application's processor pays beside copies.
#[derive(Clone, Copy)]
struct Costs {
    /// For a request: what perftest does, and what its record takes.
    think: Duration,
    /// A line that the daemon wrote last.
    line: Duration,
}

fn wrong(what: &str) -> ActorError {
    ActorError::new(what.to_owned())
}

/// A connection and what the other end calls its memory, once it has said so.
struct Asked {
    connection: Box<Connection>,
    heard: Vec<u8>,
    window: Option<u32>,
}

/// An application that asks.
struct Caller {
    who: usize,
    load: Load,
    work: Work,
    desk: Shared,
    costs: Costs,
    memory: Option<Extent>,
    asked: Vec<Asked>,
    /// What it is about to ask for, since when.
    about: Option<Instant>,
}

impl Caller {
    fn new(who: usize, work: Work, load: Load, desk: Shared, costs: Costs) -> Self {
        Self {
            who,
            load,
            work,
            desk,
            costs,
            memory: None,
            asked: Vec::new(),
            about: None,
        }
    }

    /// Bytes of an answer.
    fn bytes(&self) -> u32 {
        match self.load.what {
            What::Reads { bytes, .. } => bytes as u32,
            What::Adds { .. } | What::Messages { .. } => 8,
        }
    }

    /// What the daemon says on the socket.
    fn hear(&mut self) -> Result<(), ActorError> {
        let mut desk = locked(&self.desk);
        while let Some(event) = desk.session.event() {
            match event {
                Event::Attached => {
                    let each = self.bytes() + RESULT_BYTES;
                    desk.session.alloc(each * self.load.outstanding as u32);
                    let own = self.load.connections / self.load.callers;
                    for number in 0..own {
                        let host = (self.who + number) % self.load.hosts;
                        desk.session.connect(listens_at(host + 1));
                    }
                }
                Event::Allocated { extent, .. } => self.memory = Some(extent),
                Event::Connected { connection, .. } => self.asked.push(Asked {
                    connection,
                    heard: Vec::new(),
                    window: None,
                }),
                Event::Refused { why, .. } | Event::Over(why) => {
                    return Err(ActorError::new(format!("refused: {why}")));
                }
                _ => {}
            }
        }
        for asked in self.asked.iter_mut().filter(|one| one.window.is_none()) {
            asked.connection.refresh(desk.session.slabs());
            let mut bytes = [0; WINDOW];
            let missing = WINDOW - asked.heard.len();
            let (received, _) = asked.connection.receiving.recv(&mut bytes[..missing])?;
            if let Received::Bytes(count) = received {
                asked.heard.extend(&bytes[..count]);
            }
            asked.window = asked
                .heard
                .first_chunk()
                .map(|bytes| u32::from_le_bytes(*bytes));
        }
        Ok(())
    }

    fn is_connected(&self) -> bool {
        self.memory.is_some()
            && self.asked.len() == self.load.connections / self.load.callers
            && self.asked.iter().all(|one| one.window.is_some())
    }

    /// Where a slot's answer goes, and where it is said what became of it.
    fn places(&self, memory: Extent, slot: usize) -> (Extent, Extent) {
        let (bytes, slot) = (self.bytes(), slot as u32);
        let results = bytes * self.load.outstanding as u32;
        let result = memory.part(results + slot * RESULT_BYTES, RESULT_BYTES);
        (memory.part(slot * bytes, bytes), result)
    }

    /// Looks for what is over; says how much was.
    fn look(&mut self, memory: Extent, now: Instant) -> Result<u64, ActorError> {
        let mut desk = locked(&self.desk);
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
            let view = slabs.view(local)?;
            let mut is_read = true;
            let read = |into: &mut [u8]| is_read = view.read(0, into).is_ok();
            self.work.came(one.slot, now, read)?;
            if !is_read {
                return Err(wrong("memory that is not there"));
            }
        }
        Ok(over.len() as u64)
    }

    /// Asks for what it was about to.
    fn ask(&mut self, memory: Extent, began: Instant) -> Result<(), ActorError> {
        let Some(Request { slot, at }) = self.work.next(began) else {
            return Ok(());
        };
        let (local, result) = self.places(memory, slot);
        let count = self.asked.len();
        let asked = &mut self.asked[slot % count];
        let mut desk = locked(&self.desk);
        let outcomes = Outcomes::at(desk.session.slabs(), result)?;
        outcomes.clear();
        let operation = Operation {
            op: match self.load.what {
                What::Adds { .. } => Op::FetchAdd,
                What::Reads { .. } | What::Messages { .. } => Op::Read,
            },
            window: asked.window.unwrap_or_default(),
            at,
            local,
            operand: 1,
            compare: 0,
            result,
        };
        asked.connection.refresh(desk.session.slabs());
        let (lent, _) = asked.connection.sending.operate(&operation)?;
        if lent.is_none() {
            return Err(wrong(
                "no room for a record: fewer are outstanding than it has room for",
            ));
        }
        desk.written += 1;
        desk.touched.insert(asked.connection.handle());
        desk.operations.push(Operating {
            slot,
            outcomes,
            seen_at: None,
        });
        Ok(())
    }
}

impl Actor for Caller {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if !self.is_connected() {
            self.hear()?;
            return Ok(Step::At(now + SOON));
        }
        match self.work.begins(now) {
            None => return Ok(Step::At(now + SOON)),
            Some(begin) if begin > now => return Ok(Step::At(begin)),
            Some(_) => {}
        }
        let memory = self.memory.ok_or_else(|| wrong("no memory"))?;
        if let Some(began) = self.about.take() {
            self.ask(memory, began)?;
        }
        cx.charge(LOOK);
        let ended = self.look(memory, now)?;
        cx.charge(self.costs.line.times(ended));
        if self.work.is_over(now) {
            self.work.finish();
            return Ok(Step::Done);
        }
        Ok(match self.work.wants(now) {
            true => self.think(cx),
            // A look more or less is nothing beside what so much takes.
            false if self.bytes() > SHORT && ended == 0 => Step::At(now + PAUSE),
            false => Step::Again,
        })
    }
}

impl Caller {
    /// Sets about the next request, which is asked for once that is over.
    fn think(&mut self, cx: &mut Cx<'_>) -> Step {
        self.about = Some(cx.now());
        cx.charge(self.costs.think);
        Step::Again
    }
}

/// An application that is asked.
struct Server {
    scene: Scene,
    load: Load,
    desk: Shared,
    memory: Option<Extent>,
    connections: Vec<Connection>,
    /// Which connection each request to export was for.
    exporting: Vec<(u32, u32)>,
}

impl Server {
    fn new(scene: Scene, load: Load, desk: Shared) -> Self {
        Self {
            scene,
            load,
            desk,
            memory: None,
            connections: Vec::new(),
            exporting: Vec::new(),
        }
    }

    fn hear(&mut self) -> Result<(), ActorError> {
        let mut desk = locked(&self.desk);
        while let Some(event) = desk.session.event() {
            match event {
                Event::Attached => {
                    desk.session.alloc(self.load.region() as u32);
                }
                Event::Allocated { extent, .. } => {
                    let view = desk.session.slabs().view(extent)?;
                    fill(self.load.what, |at, bytes| {
                        let filled = view.write(at, bytes);
                        debug_assert!(filled.is_ok());
                    });
                    let words: Vec<_> = words(self.load.what)
                        .map(|at| view.word_ref(at).map_err(|_| wrong("a word outside")))
                        .collect::<Result<_, _>>()?;
                    let sum = move || words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
                    desk.counters = Some(Box::new(sum));
                    self.memory = Some(extent);
                    desk.session.listen(PORT, 1 << 16);
                }
                Event::Incoming {
                    listener,
                    connection,
                } => {
                    desk.session.took(listener);
                    let memory = self.memory.ok_or_else(|| wrong("no memory"))?;
                    let handle = connection.handle();
                    let request = desk.session.export(handle, memory, Rights::ALL);
                    self.exporting.push((request, handle));
                    self.connections.push(*connection);
                }
                Event::Exported { request, window } => {
                    let of = self.exporting.iter().find(|(asked, _)| *asked == request);
                    let of = of.map(|(_, handle)| *handle);
                    let mut all = self.connections.iter_mut();
                    let connection = all.find(|one| Some(one.handle()) == of);
                    let connection = connection.ok_or_else(|| wrong("no such connection"))?;
                    connection.refresh(desk.session.slabs());
                    let (sent, _) = connection.sending.send(&window.to_le_bytes())?;
                    if sent != WINDOW {
                        return Err(wrong("no room for a few bytes"));
                    }
                }
                Event::Refused { why, .. } | Event::Over(why) => {
                    return Err(ActorError::new(format!("refused: {why}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds what its counters have come to.
    fn count(&self) {
        let desk = locked(&self.desk);
        let sum = desk.counters.as_ref().map_or(0, |counters| counters());
        *self.scene.look().sum.get_or_insert(0) += sum;
    }
}

impl Actor for Server {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if self.scene.is_over() {
            self.count();
            return Ok(Step::Done);
        }
        self.hear()?;
        // Only while they are connected has it anything to do.
        let own = self.load.connections / self.load.hosts;
        let pause = if self.connections.len() < own {
            SOON
        } else {
            LATER
        };
        Ok(Step::At(cx.now() + pause))
    }
}
