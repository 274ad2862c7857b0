//! A host's daemon in virtual time: the daemon's own core, on a core of a simulated host.
//!
//! The model charges the daemon's copies and verbs calls. The processor time of the daemon's own code is
//! charged here.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};

use headworks::client::socket_message::Refusal;
use headworks::client::{Outcomes, Session};
use headworks::daemon::auth::Secret;
use headworks::daemon::worker::SharedWorker;
use headworks::daemon::{Daemon, DaemonLimits, Identity, Output, PeerId, SessionId, WorkerId};
use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step};
use headworks::verbs::{Access, Device, Duration, Instant};

use super::one_sided_apps::PORT;
use super::{
    OneSidedOp, SOON, ScenarioBuilder, SharedRun, locked, message_apps, nanos, one_sided_apps,
};
use crate::service::Result;

/// Processor time of an idle step of the daemon. This and the next three constants were measured with this
/// code on soft devices, all on one core of a present-day server (AMD EPYC); the time of the devices is
/// subtracted.
const STEP: Duration = Duration::from_nanos(60);
/// Added to that for each session, whose doorbell the daemon reads.
const SESSION: Duration = Duration::from_nanos(6);
/// Added to that when the step finds work.
const BUSY: Duration = Duration::from_nanos(350);
/// Processor time of half of an application's request: from its record to where it is posted, and from there
/// to its completion. The daemon that executes an atomic needs as much for it.
const HALF_REQUEST: Duration = Duration::from_nanos(82);

/// Added to a step of a worker that has a thread of its own: taking and giving back the worker's lock, which control
/// takes only while connections are made.
const WORKER_LOCK: Duration = Duration::from_nanos(12);

/// An application's session with its daemon, and what both know of each other in virtual time.
pub(super) struct AppSession {
    pub(super) session: Session,
    /// When the daemon's latest step ends. The application sees nothing that the step did before that.
    pub(super) seen_at: Instant,
    /// Connections that the application has touched since the daemon last looked, by handle, with the number of records
    /// that it has written to each.
    touched: BTreeMap<u32, u64>,
    /// Worker that carries each connection, by handle, where the daemon has several.
    carried_by: BTreeMap<u32, WorkerId>,
    /// One-sided operations whose end the application has not processed yet.
    pub(super) operations: Vec<PendingOperation>,
    /// Returns the sum of the counters in a server's memory.
    pub(super) counters: Box<dyn Fn() -> u64 + Send>,
    /// That sum at the daemon's last look.
    counted: u64,
}

/// A one-sided operation that is under way.
pub(super) struct PendingOperation {
    /// Index among the application's outstanding operations.
    pub(super) slot: usize,
    pub(super) outcomes: Outcomes,
    /// End of the daemon's step that wrote the outcome, once it did. The application does not see the outcome
    /// earlier.
    pub(super) seen_at: Option<Instant>,
}

pub(super) type SharedSession = Arc<Mutex<AppSession>>;

impl AppSession {
    fn shared(name: &str) -> SharedSession {
        Arc::new(Mutex::new(Self {
            session: Session::new(name),
            seen_at: Instant::ZERO,
            touched: BTreeMap::new(),
            carried_by: BTreeMap::new(),
            operations: Vec::new(),
            counters: Box::new(|| 0),
            counted: 0,
        }))
    }

    /// Records that the application has touched a connection, and written this many records to it.
    pub(super) fn wrote(&mut self, handle: u32, records: u64) {
        *self.touched.entry(handle).or_default() += records;
    }

    /// Picks up the records of the connections that `worker` carries; of all, if the daemon has one worker. Returns
    /// their number, and that of the cache lines that the daemon reads for them.
    fn pick_up(&mut self, worker: Option<WorkerId>) -> (u64, u64) {
        let carried_by = &self.carried_by;
        let (mut records, mut touched) = (0, 0);
        self.touched.retain(|handle, written| {
            let is_its = worker.is_none_or(|worker| carried_by.get(handle) == Some(&worker));
            if is_its {
                records += *written;
                touched += 1;
            }
            !is_its
        });
        // Each touched connection has a cursor to read; each session with any has a mark in its doorbell.
        (records, records + touched + u64::from(touched > 0))
    }

    /// Notes that the daemon's step has ended: the application sees its effects from now on.
    fn see(&mut self, now: Instant) {
        self.ended().for_each(|one| one.seen_at = Some(now));
        self.seen_at = now;
    }

    /// Operations whose outcome the daemon has written and that have no `seen_at` yet.
    fn ended(&mut self) -> impl Iterator<Item = &mut PendingOperation> {
        let is_new =
            |one: &&mut PendingOperation| one.seen_at.is_none() && one.outcomes.get().is_some();
        self.operations.iter_mut().filter(is_new)
    }
}

fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
}

/// Returns the address at which the application of another host listens.
pub(super) fn listens_at(host: usize) -> SocketAddr {
    SocketAddr::new(address(host), PORT)
}

fn role(host: usize) -> String {
    format!("d{host}")
}

/// Adds the daemons and their applications. The daemon of the callers' host has `workers` workers. If these are
/// several, each is an actor of its own.
pub(super) fn add(scenario: &mut ScenarioBuilder, workers: u16) -> Result<()> {
    let load = scenario.shared_run.load;
    let sessions = |kind, count| -> Vec<SharedSession> {
        let names = (0..count).map(|number| format!("{kind}{number}"));
        names.map(|name| AppSession::shared(&name)).collect()
    };
    let (callers, servers) = (sessions('c', load.callers), sessions('s', load.hosts));
    let handles = WorkerHandles::default();
    for host in 0..=load.hosts {
        let sessions = match host {
            0 => callers.clone(),
            _ => vec![servers[host - 1].clone()],
        };
        let shared_run = scenario.shared_run.clone();
        let handles = (host == 0 && workers > 1).then(|| handles.clone());
        let workers = if host == 0 { workers } else { 1 };
        let make = move |part: &ActorInit| {
            let limits = DaemonLimits {
                workers,
                ..DaemonLimits::default()
            };
            let mut made = Host::new(part, host, limits, &sessions, shared_run.clone())?;
            if let Some(handles) = &handles {
                made.has_worker_actors = true;
                made.daemon.drive_workers_elsewhere();
                // This is the only place that sets it.
                let _ = handles.set(made.daemon.workers().to_vec());
            }
            Ok(made)
        };
        scenario.add(host, role(host), make)?;
    }
    for id in (0..workers).filter(|_| workers > 1).map(WorkerId) {
        let (handles, sessions) = (handles.clone(), callers.clone());
        let shared_run = scenario.shared_run.clone();
        scenario.add(0, format!("w{}", id.0), move |_| {
            Ok(WorkerHost {
                id,
                workers: handles.clone(),
                sessions: sessions.clone(),
                line: nanos(shared_run.machine.preset.line_ns),
                shared_run: shared_run.clone(),
            })
        })?;
    }
    match load.what {
        OneSidedOp::Messages { bytes, .. } => {
            let sessions = [&callers[0], &servers[0]].map(SharedSession::clone);
            message_apps::add(scenario, bytes, sessions)
        }
        _ => one_sided_apps::add(scenario, callers, servers),
    }
}

const CALL: u8 = 0;
const SAY: u8 = 1;
const HANG_UP: u8 = 2;

/// A stream to another daemon: the other host, and whether this daemon dialled.
type DaemonLink = (usize, bool);

/// A host's daemon.
struct Host {
    number: usize,
    daemon: Daemon,
    device: Arc<dyn Device>,
    sessions: Vec<(Option<SessionId>, SharedSession)>,
    peers: BTreeMap<DaemonLink, PeerId>,
    /// Whether actors of their own step the workers.
    has_worker_actors: bool,
    shared_run: SharedRun,
    /// Time to read a cache line that an application wrote last.
    line: Duration,
}

impl Host {
    fn new(
        part: &ActorInit,
        number: usize,
        limits: DaemonLimits,
        sessions: &[SharedSession],
        shared_run: SharedRun,
    ) -> Result<Self, ActorError> {
        let device = part.open_device()?;
        let identity = Identity {
            // Without a secret, daemons serve loopback addresses alone.
            secret: Some(Secret::new(b"of a play in virtual time")?),
            entropy: [number as u8 + 1; 32],
            ..Identity::open(address(number), 1)
        };
        Ok(Self {
            number,
            daemon: Daemon::new(identity, device.clone(), limits),
            device,
            sessions: sessions
                .iter()
                .map(|app_session| (None, app_session.clone()))
                .collect(),
            peers: BTreeMap::new(),
            has_worker_actors: false,
            line: nanos(shared_run.machine.preset.line_ns),
            shared_run,
        })
    }

    /// Hands the daemon the messages of other daemons.
    fn receive_mail(&mut self, cx: &mut ActorContext<'_>) {
        while let Some(mail) = cx.receive() {
            let from = mail.from.strip_prefix('d');
            let from = from.and_then(|host| host.parse().ok());
            let (Some(from), [kind, by_me, message @ ..]) = (from, &mail.bytes[..]) else {
                continue;
            };
            let line = (from, *by_me == 1);
            match *kind {
                CALL => {
                    let peer = self.daemon.peer_up(None);
                    self.peers.insert(line, peer);
                }
                HANG_UP => {
                    if let Some(peer) = self.peers.remove(&line) {
                        self.daemon.peer_gone(peer);
                    }
                }
                _ => {
                    if let Some(peer) = self.peers.get(&line) {
                        self.daemon.peer_message(*peer, message);
                    }
                }
            }
        }
    }

    /// Hands the daemon the packets of its applications.
    fn serve(&mut self) {
        for (session, app_session) in &mut self.sessions {
            let session = *session.get_or_insert_with(|| self.daemon.session_up(1));
            let mut app_session = locked(app_session);
            while let Some(packet) = app_session.session.output() {
                self.daemon.session_packet(session, &packet.bytes, None);
            }
        }
    }

    /// Executes the daemon's outputs.
    fn execute_commands(&mut self, cx: &mut ActorContext<'_>) -> Result<(), ActorError> {
        while let Some(output) = self.daemon.output() {
            match output {
                Output::Dial(to) => {
                    match (0..=self.shared_run.load.hosts).find(|host| address(*host) == to) {
                        Some(host) => {
                            let peer = self.daemon.peer_up(Some(to));
                            self.peers.insert((host, true), peer);
                            send_to_daemon(cx, (host, true), CALL, &[])?;
                        }
                        None => self.daemon.dial_failed(to, Refusal::Unreachable),
                    }
                }
                Output::ToPeer { peer, message } => {
                    if let Some(line) = self.line_of(peer) {
                        send_to_daemon(cx, line, SAY, &message)?;
                    }
                }
                Output::FileToPeer { .. } | Output::FileToSession { .. } => {
                    unreachable!("there are no direct connections without sockets")
                }
                Output::HangUp(peer) => {
                    if let Some(line) = self.line_of(peer) {
                        self.peers.remove(&line);
                        send_to_daemon(cx, line, HANG_UP, &[])?;
                    }
                }
                Output::ToSession {
                    session,
                    packet,
                    slab,
                } => {
                    let app_session = self.sessions.iter().find(|(of, _)| *of == Some(session));
                    let Some((_, app_session)) = app_session else {
                        continue;
                    };
                    let view = match slab {
                        // All actors are in one process, so the daemon's mapping serves as the application's.
                        Some(slab) => {
                            let region = self.device.alloc_pd()?.register(&slab, Access::NONE)?;
                            Some(headworks::ring::view_of(&region, 0))
                        }
                        None => None,
                    };
                    locked(app_session).session.input(&packet, view)?;
                }
                Output::Signal { .. }
                | Output::WakeThread(_)
                | Output::WakeWorker(_)
                | Output::PoolLevel(_) => {}
                Output::EndSession(_) => {
                    return Err(ActorError::new("the daemon ended an application's session"));
                }
            }
        }
        Ok(())
    }

    fn line_of(&self, peer: PeerId) -> Option<DaemonLink> {
        let mut lines = self.peers.iter();
        lines.find(|(_, one)| **one == peer).map(|(line, _)| *line)
    }

    /// Picks up the records that applications have written. Returns their number, and that of the cache lines
    /// that the daemon reads for them.
    fn picked(&mut self) -> (u64, u64) {
        let sessions = self.sessions.iter();
        let picked = sessions.map(|(_, app_session)| locked(app_session).pick_up(None));
        picked.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Tells the applications' sessions which workers carry their connections.
    fn assign_workers(&mut self) {
        for (session, app_session) in &self.sessions {
            let app_session = &mut *locked(app_session);
            for handle in app_session.touched.keys() {
                let Entry::Vacant(entry) = app_session.carried_by.entry(*handle) else {
                    continue;
                };
                let worker = session.and_then(|session| self.daemon.worker_of(session, *handle));
                worker.map(|worker| entry.insert(worker));
            }
        }
    }

    /// Number of operations that have ended and of atomics that this host has executed, since the last call.
    fn done(&mut self) -> u64 {
        let mut done = 0;
        for (_, app_session) in &self.sessions {
            let app_session = &mut *locked(app_session);
            done += app_session.ended().count() as u64;
            let counted = (app_session.counters)();
            done += counted - std::mem::replace(&mut app_session.counted, counted);
        }
        done
    }
}

/// Sends a message to another daemon. The flag says who dialled from the receiver's point of view.
fn send_to_daemon(
    cx: &mut ActorContext<'_>,
    (to, by_me): DaemonLink,
    kind: u8,
    message: &[u8],
) -> Result<(), ActorError> {
    let mut bytes = vec![kind, u8::from(!by_me)];
    bytes.extend(message);
    Ok(cx.send(&role(to), &bytes)?)
}

impl Actor for Host {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.shared_run.is_over() {
            let queue_pairs = self
                .daemon
                .object_counts()
                .map(|(_, one)| one.queue_pairs)
                .sum();
            if self.number == 0 {
                self.shared_run.state().queue_pairs = queue_pairs;
            }
            return Ok(Step::Done);
        }
        self.receive_mail(cx);
        self.serve();
        if self.has_worker_actors {
            // The workers carry the requests. Control has work only while connections are made.
            cx.charge(STEP);
            self.assign_workers();
            self.daemon.step(cx);
            self.execute_commands(cx)?;
            return Ok(Step::At(cx.now() + SOON));
        }
        let (records, lines) = self.picked();
        cx.charge(STEP + SESSION.times(self.sessions.len() as u64));
        if records > 0 {
            cx.charge(BUSY + HALF_REQUEST.times(records) + self.line.times(lines));
        }
        let was_busy = self.daemon.step(cx);
        if was_busy && records == 0 {
            cx.charge(BUSY);
        }
        cx.charge(HALF_REQUEST.times(self.done()));
        self.execute_commands(cx)?;
        let now = cx.now();
        for (_, app_session) in &self.sessions {
            locked(app_session).see(now);
        }
        Ok(Step::Again)
    }
}

/// The daemon's workers, once the daemon exists.
type WorkerHandles = Arc<OnceLock<Vec<Arc<SharedWorker>>>>;

/// A worker of the callers' daemon, on a core of its own.
struct WorkerHost {
    id: WorkerId,
    workers: WorkerHandles,
    sessions: Vec<SharedSession>,
    shared_run: SharedRun,
    /// Time to read a cache line that an application wrote last.
    line: Duration,
}

impl Actor for WorkerHost {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.shared_run.is_over() {
            return Ok(Step::Done);
        }
        let shared = self.workers.get().and_then(|all| all.get(self.id.index()));
        let Some(shared) = shared else {
            return Ok(Step::At(cx.now() + SOON));
        };
        let Some(mut worker) = shared.lock_for_step() else {
            return Ok(Step::At(cx.now() + SOON));
        };
        let sessions = self.sessions.iter();
        let picked = sessions.map(|app_session| locked(app_session).pick_up(Some(self.id)));
        let (records, lines) = picked.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        cx.charge(STEP + WORKER_LOCK + SESSION.times(worker.sessions() as u64));
        if records > 0 {
            cx.charge(BUSY + HALF_REQUEST.times(records) + self.line.times(lines));
        }
        let was_busy = worker.step(cx);
        let asks_control = worker.asks_control();
        drop(worker);
        if asks_control {
            shared.ask_control();
        }
        if was_busy && records == 0 {
            cx.charge(BUSY);
        }
        let ended = |app_session: &SharedSession| locked(app_session).ended().count() as u64;
        cx.charge(HALF_REQUEST.times(self.sessions.iter().map(ended).sum()));
        let now = cx.now();
        let sessions = self.sessions.iter();
        sessions.for_each(|app_session| locked(app_session).see(now));
        Ok(Step::Again)
    }
}
