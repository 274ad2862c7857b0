//! Applications in virtual time: callers, servers, and the client side of the service that each of them has.

use std::sync::atomic::Ordering;

use headworks::client::connection::{Connection, Received};
use headworks::client::one_sided::RESULT_BYTES;
use headworks::client::session::Event;
use headworks::client::{Extent, Op, Operation, Outcome, Outcomes, Rights};
use headworks::runtime::{Actor, ActorContext, ActorError, Step};
use headworks::verbs::{Duration, Instant};

use super::daemon_host::{PendingOperation, SharedSession, listens_at};
use super::{CallerRun, OneSidedOp, SOON, ScenarioBuilder, SharedRun, locked, nanos};
use crate::service::Result;
use crate::service::one_sided::Request;

/// Port at which the servers listen.
pub(super) const PORT: u16 = 7000;
/// Bytes of the message in which an application tells its peer the export id of its memory.
const EXPORT_ID_BYTES: usize = 4;

/// Processor time of one look at shared memory.
pub(super) const LOOK: Duration = Duration::from_nanos(20);
/// How often a caller polls that waits for answers longer than [`SHORT`].
const PAUSE: Duration = Duration::from_nanos(500);
const SHORT: usize = 4096;
/// How often an application polls that has nothing to do.
const LATER: Duration = Duration::from_micros(50);

/// Adds the applications of the callers' sessions and of the servers' sessions.
pub(super) fn add(
    scenario: &mut ScenarioBuilder,
    callers: Vec<SharedSession>,
    servers: Vec<SharedSession>,
) -> Result<()> {
    let (load, preset) = (
        scenario.shared_run.load,
        &scenario.shared_run.machine.preset,
    );
    let think = nanos(preset.bench_ns + preset.message_ns);
    let line = nanos(preset.line_ns);
    for (who, app_session) in callers.into_iter().enumerate() {
        let shared_run = scenario.shared_run.clone();
        let own = 0..load.connections / load.callers;
        let to = own.map(|number| (who + number) % load.hosts + 1);
        let opening = Opening::Connects(to.collect());
        let alloc = (load.what.bytes() + RESULT_BYTES as usize) * load.outstanding;
        scenario.add(0, format!("c{who}"), move |_| {
            Ok(Caller {
                share: shared_run.share(who),
                client: Client::new(&app_session, &opening, alloc),
                is_connected: false,
                think,
                line,
                about: None,
            })
        })?;
    }
    for (host, app_session) in (1..).zip(servers) {
        let shared_run = scenario.shared_run.clone();
        scenario.add(host, format!("s{host}"), move |_| {
            Ok(Server {
                shared_run: shared_run.clone(),
                client: Client::new(
                    &app_session,
                    &Opening::Listens(load.what),
                    load.what.region(),
                ),
            })
        })?;
    }
    Ok(())
}

/// An application that makes requests.
struct Caller {
    share: CallerRun,
    client: Client,
    is_connected: bool,
    /// Processor time of a request: what perftest does for each, and a record.
    think: Duration,
    /// Time to read a cache line that the daemon wrote last.
    line: Duration,
    /// When the caller began to prepare the next request; `None` if it prepares none.
    about: Option<Instant>,
}

impl Caller {
    /// Returns where a slot's answer goes, and where the daemon writes its outcome.
    fn places(&self, slot: usize) -> Result<(Extent, Extent), ActorError> {
        let memory = self.client.memory;
        let memory = memory.ok_or_else(|| ActorError::new("no memory"))?;
        let load = self.share.shared_run.load;
        let (bytes, slot) = (load.what.bytes() as u32, slot as u32);
        let results = bytes * load.outstanding as u32;
        let result = memory.part(results + slot * RESULT_BYTES, RESULT_BYTES);
        Ok((memory.part(slot * bytes, bytes), result))
    }

    /// Takes the operations that are over; returns their number.
    fn look(&mut self, now: Instant) -> Result<u64, ActorError> {
        let shared = self.client.app_session.clone();
        let app_session = &mut *locked(&shared);
        let is_over = |one: &mut PendingOperation| one.seen_at.is_some_and(|at| at <= now);
        let mut over = 0;
        for one in app_session.operations.extract_if(.., is_over) {
            over += 1;
            let outcome = one.outcomes.get().map(|(outcome, _)| outcome);
            if outcome != Some(Outcome::Done) {
                let why = format!("an operation failed: {outcome:?}");
                return Err(ActorError::new(why));
            }
            let (local, _) = self.places(one.slot)?;
            let mut answer = vec![0; local.len as usize];
            app_session.session.slabs().read(local, &mut answer)?;
            let work = &mut self.share.work;
            let at = work.complete(one.slot, now);
            work.load.what.check(at, &answer)?;
        }
        Ok(over)
    }

    fn ask(&mut self, request: Request) -> Result<(), ActorError> {
        let (local, result) = self.places(request.slot)?;
        let end = &mut self.client.ends[request.connection];
        let app_session = &mut *locked(&self.client.app_session);
        let outcomes = Outcomes::at(app_session.session.slabs(), result)?;
        outcomes.clear();
        let operation = Operation {
            op: match self.share.work.load.what {
                OneSidedOp::Adds { .. } => Op::FetchAdd,
                OneSidedOp::Reads { .. } | OneSidedOp::Messages { .. } => Op::Read,
            },
            export_id: end.export_id.unwrap_or_default(),
            at: request.at,
            local,
            operand: 1,
            compare: 0,
            result,
        };
        end.connection.refresh(app_session.session.slabs());
        let (lent, _) = end.connection.sending.operate(&operation)?;
        if lent.is_none() {
            return Err(ActorError::new(
                "no room for a record: too many operations are outstanding",
            ));
        }
        app_session.wrote(end.connection.handle(), 1);
        app_session.operations.push(PendingOperation {
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
            self.client.process_events()?;
            let load = self.share.shared_run.load;
            self.is_connected = self
                .client
                .receive_exports(load.connections / load.callers)?;
            return Ok(Step::At(now + SOON));
        }
        if let Some(step) = self.share.wait_for_start(now) {
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
            // The time between two polls does not matter compared with the time of a long answer.
            return Ok(Step::At(now + PAUSE));
        }
        Ok(Step::Again)
    }
}

/// An application that serves requests.
struct Server {
    shared_run: SharedRun,
    client: Client,
}

impl Actor for Server {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.shared_run.is_over() {
            let sum = (locked(&self.client.app_session).counters)();
            *self.shared_run.state().sum.get_or_insert(0) += sum;
            return Ok(Step::Done);
        }
        self.client.process_events()?;
        // A server has work only until all callers are connected.
        let load = self.shared_run.load;
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
    /// Identifier of the request to export memory over the connection.
    exports: Option<u32>,
    /// Export id of the peer's memory, once the peer has sent it.
    export_id: Option<u32>,
}

/// First action of a client.
#[derive(Clone)]
pub(super) enum Opening {
    /// The client connects to the applications of these hosts.
    Connects(Vec<usize>),
    /// The client listens. If it has memory, it fills it for these requests, and exports it to each
    /// application that connects.
    Listens(OneSidedOp),
}

/// An application's side of the service.
pub(super) struct Client {
    pub(super) app_session: SharedSession,
    opening: Opening,
    /// Bytes of memory that the client allocates; 0: none.
    alloc: usize,
    memory: Option<Extent>,
    pub(super) ends: Vec<End>,
}

impl Client {
    pub(super) fn new(app_session: &SharedSession, opening: &Opening, alloc: usize) -> Self {
        Self {
            app_session: app_session.clone(),
            opening: opening.clone(),
            alloc,
            memory: None,
            ends: Vec::new(),
        }
    }

    /// Handles the events of the daemon's packets.
    pub(super) fn process_events(&mut self) -> Result<(), ActorError> {
        let end = |connection, exports| End {
            connection,
            exports,
            export_id: None,
        };
        let app_session = &mut *locked(&self.app_session);
        let session = &mut app_session.session;
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
                        app_session.counters = Box::new(move || {
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
                (Event::Exported { request, export_id }, _) => {
                    let mut ends = self.ends.iter_mut();
                    let end = ends.find(|end| end.exports == Some(request));
                    let end = end.ok_or_else(|| ActorError::new("no such connection"))?;
                    end.connection.refresh(session.slabs());
                    let (sent, _) = end.connection.sending.send(&export_id.to_le_bytes())?;
                    if sent != EXPORT_ID_BYTES {
                        return Err(ActorError::new("no room to send the export id"));
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

    /// Receives the export ids of the peers' memory. Returns whether `count` connections have one and the
    /// client's own memory is allocated.
    fn receive_exports(&mut self, count: usize) -> Result<bool, ActorError> {
        let app_session = locked(&self.app_session);
        for end in self.ends.iter_mut().filter(|end| end.export_id.is_none()) {
            end.connection.refresh(app_session.session.slabs());
            let mut bytes = [0; EXPORT_ID_BYTES];
            let (received, _) = end.connection.receiving.recv(&mut bytes)?;
            if received == Received::Bytes(EXPORT_ID_BYTES) {
                end.export_id = Some(u32::from_le_bytes(bytes));
            }
        }
        let have = self.ends.iter().filter(|end| end.export_id.is_some());
        Ok(self.memory.is_some() && have.count() == count)
    }
}
