//! Applications in virtual time: those that ask, those that are asked, and the end of the service that each has.

use std::sync::atomic::Ordering;

use headworks::client::connection::{Connection, Received};
use headworks::client::operation::RESULT_BYTES;
use headworks::client::session::Event;
use headworks::client::{Extent, Op, Operation, Outcome, Outcomes, Rights};
use headworks::runtime::{Actor, ActorContext, ActorError, Step};
use headworks::verbs::{Duration, Instant};

use super::host::{Operating, Shared, listens_at};
use super::{SOON, Scene, Share, Stage, What, locked, nanos};
use crate::service::Result;
use crate::service::requests::Request;

/// The port of the application that is asked.
pub(super) const PORT: u16 = 7000;
/// Bytes by which an application tells the other what it calls its memory.
const WINDOW: usize = 4;

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
    fn places(&self, slot: usize) -> Result<(Extent, Extent), ActorError> {
        let memory = self.client.memory;
        let memory = memory.ok_or_else(|| ActorError::new("no memory"))?;
        let load = self.share.scene.load;
        let (bytes, slot) = (load.what.bytes() as u32, slot as u32);
        let results = bytes * load.outstanding as u32;
        let result = memory.part(results + slot * RESULT_BYTES, RESULT_BYTES);
        Ok((memory.part(slot * bytes, bytes), result))
    }

    /// Looks for what is over; answers how much was.
    fn look(&mut self, now: Instant) -> Result<u64, ActorError> {
        let shared = self.client.desk.clone();
        let desk = &mut *locked(&shared);
        let is_over = |one: &mut Operating| one.seen_at.is_some_and(|at| at <= now);
        let mut over = 0;
        for one in desk.operations.extract_if(.., is_over) {
            over += 1;
            let outcome = one.outcomes.get().map(|(outcome, _)| outcome);
            if outcome != Some(Outcome::Done) {
                let why = format!("an operation ended: {outcome:?}");
                return Err(ActorError::new(why));
            }
            let (local, _) = self.places(one.slot)?;
            let mut answer = vec![0; local.len as usize];
            desk.session.slabs().read(local, &mut answer)?;
            let work = &mut self.share.work;
            let at = work.came(one.slot, now);
            work.load.what.check(at, &answer)?;
        }
        Ok(over)
    }

    fn ask(&mut self, request: Request) -> Result<(), ActorError> {
        let (local, result) = self.places(request.slot)?;
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
            return Err(ActorError::new(
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
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
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
        let began = self.about.take();
        if let Some(request) = began.and_then(|began| self.share.work.next(began)) {
            self.ask(request)?;
        }
        cx.charge(LOOK);
        let ended = self.look(now)?;
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
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
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

/// A connection.
pub(super) struct End {
    pub(super) connection: Box<Connection>,
    /// The request to export memory over it.
    exports: Option<u32>,
    /// What the other end calls its memory, once it has said so.
    window: Option<u32>,
}

/// What a client does first.
#[derive(Clone)]
pub(super) enum Opening {
    /// It connects to the applications of those hosts.
    Connects(Vec<usize>),
    /// It listens. Its memory, if it has some, is filled for such requests, and exported to whoever connects.
    Listens(What),
}

/// An application's end of the service.
pub(super) struct Client {
    pub(super) desk: Shared,
    opening: Opening,
    /// Bytes of memory that it allocates; 0: none.
    alloc: usize,
    memory: Option<Extent>,
    pub(super) ends: Vec<End>,
}

impl Client {
    pub(super) fn new(desk: &Shared, opening: &Opening, alloc: usize) -> Self {
        Self {
            desk: desk.clone(),
            opening: opening.clone(),
            alloc,
            memory: None,
            ends: Vec::new(),
        }
    }

    /// Does what the daemon's packets ask for.
    pub(super) fn hear(&mut self) -> Result<(), ActorError> {
        let end = |connection, exports| End {
            connection,
            exports,
            window: None,
        };
        let desk = &mut *locked(&self.desk);
        let session = &mut desk.session;
        while let Some(event) = session.event() {
            match (event, &self.opening) {
                (Event::Attached, opening) => {
                    if self.alloc > 0 {
                        session.alloc(self.alloc as u32);
                    }
                    if let Opening::Connects(hosts) = opening {
                        for host in hosts {
                            session.connect(listens_at(*host));
                        }
                    } else if self.alloc == 0 {
                        session.listen(PORT, 1);
                    }
                }
                (Event::Allocated { extent, .. }, opening) => {
                    self.memory = Some(extent);
                    if let Opening::Listens(what) = opening {
                        let view = session.slabs().view(extent)?;
                        what.fill(|at, bytes| {
                            view.write(at, bytes).expect("all of it was allocated");
                        });
                        let word = |at| view.word_ref(at).expect("all of it was allocated");
                        let words: Vec<_> = what.words().map(word).collect();
                        desk.counters = Box::new(move || {
                            words.iter().map(|word| word.load(Ordering::Relaxed)).sum()
                        });
                        session.listen(PORT, 1 << 16);
                    }
                }
                (Event::Connected { connection, .. }, _) => self.ends.push(end(connection, None)),
                (
                    Event::Incoming {
                        connection,
                        listener,
                    },
                    _,
                ) => {
                    let exports = self.memory.map(|memory| {
                        session.took(listener);
                        session.export(connection.handle(), memory, Rights::ALL)
                    });
                    self.ends.push(end(connection, exports));
                }
                (Event::Exported { request, window }, _) => {
                    let mut ends = self.ends.iter_mut();
                    let end = ends.find(|end| end.exports == Some(request));
                    let end = end.ok_or_else(|| ActorError::new("no such connection"))?;
                    end.connection.refresh(session.slabs());
                    let (sent, _) = end.connection.sending.send(&window.to_le_bytes())?;
                    if sent != WINDOW {
                        return Err(ActorError::new("no room for a few bytes"));
                    }
                }
                (Event::Refused { why, .. } | Event::Over(why), _) => {
                    return Err(ActorError::new(format!("refused: {why}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Hears what the other ends call their memory; answers whether so many have said it.
    fn hear_windows(&mut self, count: usize) -> Result<bool, ActorError> {
        let desk = locked(&self.desk);
        for end in self.ends.iter_mut().filter(|end| end.window.is_none()) {
            end.connection.refresh(desk.session.slabs());
            let mut bytes = [0; WINDOW];
            let (received, _) = end.connection.receiving.recv(&mut bytes)?;
            if received == Received::Bytes(WINDOW) {
                end.window = Some(u32::from_le_bytes(bytes));
            }
        }
        let have = self.ends.iter().filter(|end| end.window.is_some());
        Ok(self.memory.is_some() && have.count() == count)
    }
}
