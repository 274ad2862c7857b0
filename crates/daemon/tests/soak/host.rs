//! A host in virtual time: its daemon and the attached applications.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use headworks_client::socket_message::Refusal;
use headworks_daemon::ObjectCounts;
use headworks_daemon::auth::Secret;
use headworks_daemon::control::VERSION;
use headworks_daemon::ids::{PeerId, SessionId, Signal, WatchId};
use headworks_daemon::limits::DaemonLimits;
use headworks_daemon::{Daemon, Identity, Output};
use headworks_runtime::{Actor, ActorContext, ActorError, ActorInit, Step, WakeCondition};
use headworks_shm::View;
use headworks_verbs::{Access, Buffer, Device, Duration, Instant};

use super::application::{Application, Outcome, Script};
use super::without_srqs::without_srqs;

/// Configuration of a host in a plan.
#[derive(Clone, Debug)]
pub(crate) struct HostPlan {
    pub(crate) config: DaemonLimits,
    pub(crate) scripts: Vec<Script>,
    /// Whether the host's device has no shared receive queues.
    pub(crate) lacks_srqs: bool,
}

/// Idle steps in a row between two records of what the applications wait for. A run that does not end shows the last.
const STATES_EVERY: u32 = 10;

/// Results that all hosts record.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) hosts: usize,
    /// Number of hosts whose applications all listen, so that others can connect.
    pub(crate) ready: usize,
    /// Number of hosts whose applications have finished their scripts.
    pub(crate) done: usize,
    /// Number of hosts whose daemons have no session left.
    pub(crate) quiet: usize,
    /// Number of streams on which everything was sent and received.
    pub(crate) whole: usize,
    /// Number of streams that were reset, aborted or still open when their application was removed.
    pub(crate) broken: usize,
    pub(crate) refused: usize,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) resets: BTreeMap<String, usize>,
    pub(crate) errors: Vec<String>,
    pub(crate) all_counts: Vec<ObjectCounts>,
    pub(crate) states: BTreeMap<usize, String>,
    pub(crate) most_queue_pairs: usize,
    /// Bytes that applications with a name received, and the time of the last ones.
    pub(crate) named: BTreeMap<&'static str, (u64, Instant)>,
    /// Signals of receive pools in danger, by the host and the host that sent them, or to which it sent them: sent and
    /// received.
    pub(crate) signals: BTreeMap<(usize, IpAddr), (u64, u64)>,
}

pub(crate) fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
}

/// Returns the identity of a host's daemon. All of them share a secret.
fn identity(host: usize) -> Identity {
    Identity {
        secret: Some(Secret::new(b"known to all of them").expect("long enough")),
        entropy: [host as u8 + 1; 32],
        // The fourth host has not been upgraded.
        version: if host == 3 { VERSION + 1 } else { VERSION },
        ..Identity::open(address(host), 1)
    }
}

pub(crate) fn role(host: usize) -> String {
    format!("h{host}")
}

const CALL: u8 = 0;
const SAY: u8 = 1;
const HANG_UP: u8 = 2;

/// A daemon with its applications, as an actor.
pub(crate) struct Host {
    number: usize,
    hosts: usize,
    daemon: Daemon,
    device: Arc<dyn Device>,
    applications: BTreeMap<SessionId, Application>,
    /// Descriptors that applications passed: the session, and the number of the request that carried the
    /// descriptor.
    watches: BTreeMap<WatchId, (SessionId, u32)>,
    last_watch: u64,
    scripts: Vec<Script>,
    /// Streams to other daemons. The key is the other host, whether this host dialed, and the dial's number.
    peers: BTreeMap<(usize, bool, u8), PeerId>,
    calls: u8,
    outbox: Vec<(usize, Vec<u8>)>,
    ledger: Arc<Mutex<Ledger>>,
    views: Vec<Arc<dyn Buffer>>,
    /// Time of the first step. All times in a plan are relative to it.
    began: Option<Instant>,
    is_ready: bool,
    is_done: bool,
    is_quiet: bool,
    /// Number of steps in a row that found nothing to do.
    idle_steps: u32,
    has_parted: bool,
}

impl Host {
    pub(crate) fn new(
        part: &ActorInit,
        number: usize,
        hosts: usize,
        plan: HostPlan,
        ledger: Arc<Mutex<Ledger>>,
    ) -> Result<Self, ActorError> {
        let mut device = part.open_device()?;
        if plan.lacks_srqs {
            device = without_srqs(device);
        }
        plan.config.check()?;
        Ok(Self {
            number,
            hosts,
            daemon: Daemon::new(identity(number), device.clone(), plan.config),
            device,
            applications: BTreeMap::new(),
            watches: BTreeMap::new(),
            last_watch: 0,
            scripts: plan.scripts,
            peers: BTreeMap::new(),
            calls: 0,
            outbox: Vec::new(),
            ledger,
            views: Vec::new(),
            began: None,
            is_ready: false,
            is_done: false,
            is_quiet: false,
            idle_steps: 0,
            has_parted: false,
        })
    }

    fn hear(&mut self, cx: &mut ActorContext<'_>) -> bool {
        let mut did = false;
        while let Some(mail) = cx.receive() {
            did = true;
            let Some(from) = mail.from.strip_prefix('h').and_then(|n| n.parse().ok()) else {
                continue;
            };
            let [kind, by_me, call, message @ ..] = &mail.bytes[..] else {
                continue;
            };
            let key = (from, *by_me == 1, *call);
            match *kind {
                CALL => {
                    let peer = self.daemon.peer_up(None);
                    self.peers.insert(key, peer);
                }
                HANG_UP => {
                    if let Some(peer) = self.peers.remove(&key) {
                        self.daemon.peer_gone(peer);
                    }
                }
                _ => {
                    if let Some(peer) = self.peers.get(&key) {
                        self.daemon.peer_message(*peer, message);
                    }
                }
            }
        }
        did
    }

    fn mail(&mut self, (to, by_me, call): (usize, bool, u8), kind: u8, message: &[u8]) {
        // For the receiver, the other host dialed.
        let mut bytes = vec![kind, u8::from(!by_me), call];
        bytes.extend(message);
        self.outbox.push((to, bytes));
    }

    fn post(&mut self, cx: &mut ActorContext<'_>) {
        let mut waiting = Vec::new();
        for (to, bytes) in std::mem::take(&mut self.outbox) {
            if !waiting.is_empty() || cx.send(&role(to), &bytes).is_err() {
                waiting.push((to, bytes));
            }
        }
        self.outbox = waiting;
    }

    /// Carries out the daemon's outputs.
    fn obey(&mut self) -> bool {
        let mut did = false;
        while let Some(output) = self.daemon.output() {
            did = true;
            match output {
                Output::Dial(to) => {
                    self.calls = self.calls.wrapping_add(1);
                    let call = self.calls;
                    let host = (0..self.hosts).find(|host| address(*host) == to);
                    match host {
                        Some(host) if host == self.number => {
                            let (one, other) =
                                (self.daemon.peer_up(Some(to)), self.daemon.peer_up(None));
                            self.peers.insert((host, true, call), one);
                            self.peers.insert((host, false, call), other);
                        }
                        Some(host) => {
                            let peer = self.daemon.peer_up(Some(to));
                            self.peers.insert((host, true, call), peer);
                            self.mail((host, true, call), CALL, &[]);
                        }
                        None => self.daemon.dial_failed(to, Refusal::Unreachable),
                    }
                }
                Output::ToPeer { peer, message } => {
                    let found = self.peers.iter().find(|(_, one)| **one == peer);
                    if let Some((&(host, by_me, call), _)) = found {
                        match host == self.number {
                            true => {
                                let other = self.peers[&(host, !by_me, call)];
                                self.daemon.peer_message(other, &message);
                            }
                            false => self.mail((host, by_me, call), SAY, &message),
                        }
                    }
                }
                Output::FileToPeer { .. } | Output::FileToSession { .. } => {
                    unreachable!("there are no direct connections without sockets")
                }
                Output::HangUp(peer) => {
                    let found = self.peers.iter().find(|(_, one)| **one == peer);
                    if let Some((&key, _)) = found {
                        self.peers.remove(&key);
                        self.mail(key, HANG_UP, &[]);
                    }
                }
                Output::ToSession {
                    session,
                    packet,
                    slab,
                } => {
                    let view = slab.map(|slab| self.view(&slab));
                    if let Some(application) = self.applications.get_mut(&session) {
                        let heard = application.session.input(&packet, view);
                        if let Err(error) = heard {
                            application.wrong(error.to_string());
                        }
                    }
                }
                // No application here sleeps on an event count.
                Output::WakeThread(_) | Output::WakeWorker(_) | Output::PoolLevel(_) => {}
                Output::Signal { watch, signal } => {
                    let Some((session, request)) = self.watches.get(&watch).copied() else {
                        continue;
                    };
                    if let Some(application) = self.applications.get_mut(&session) {
                        application.signal(request);
                    }
                    if signal == Signal::HungUp {
                        self.watches.remove(&watch);
                    }
                }
                Output::EndSession(session) => {
                    // Some scripts break the contract, and the daemon ends their session. Then the application
                    // dies too.
                    if let Some(application) = self.applications.get_mut(&session) {
                        application.script.dies = Some(Instant::ZERO);
                    }
                }
            }
        }
        did
    }

    fn view(&mut self, slab: &Arc<dyn Buffer>) -> View {
        // Both run in one process, so the application uses the daemon's mapping of the slab.
        let pd = self.device.alloc_pd().expect("a protection domain");
        let region = pd.register(slab, Access::NONE).expect("a region");
        self.views.push(slab.clone());
        headworks_ring::view_of(&region, 0)
    }

    fn serve(&mut self, now: Instant, others_are_ready: bool) -> bool {
        for script in std::mem::take(&mut self.scripts) {
            let session = self.daemon.session_up(script.user);
            let name = format!("h{}u{}", self.number, script.user);
            self.applications
                .insert(session, Application::new(name, script));
        }
        let mut did = false;
        let mut dead = Vec::new();
        for (session, application) in &mut self.applications {
            if application.script.dies.is_some_and(|at| now >= at) {
                dead.push(*session);
                continue;
            }
            did |= application.step(now, others_are_ready);
            while let Some(packet) = application.session.output() {
                did = true;
                let watch = packet.file_of.map(|request| {
                    self.last_watch += 1;
                    let watch = WatchId(self.last_watch);
                    self.watches.insert(watch, (*session, request));
                    watch
                });
                self.daemon.session_packet(*session, &packet.bytes, watch);
            }
        }
        for session in dead {
            self.part(session);
        }
        did
    }

    /// Records free memory that was found overwritten, before its session is removed.
    fn look_for_overwritten(&self) {
        let overwritten: u64 = self
            .daemon
            .object_counts()
            .map(|(_, one)| one.overwritten)
            .sum();
        if overwritten > 0 {
            let mut ledger = self.ledger.lock().expect("nobody panicked");
            let line = format!(
                "h{}: {overwritten} pieces of free memory were written to",
                self.number
            );
            if !ledger.errors.contains(&line) {
                ledger.errors.push(line);
            }
        }
    }

    fn record_signals(&self, ledger: &mut Ledger) {
        for domain in self.daemon.snapshot().domains {
            for group in domain.groups {
                let Some(host) = group.host else { continue };
                let signals = ledger.signals.entry((self.number, host)).or_default();
                signals.0 += group.signals.0;
                signals.1 += group.signals.1;
            }
        }
    }

    /// Removes an application and records its results.
    fn part(&mut self, session: SessionId) {
        let Some(gone) = self.applications.remove(&session) else {
            return;
        };
        self.daemon.session_gone(session);
        self.watches.retain(|_, (of, _)| *of != session);
        let mut ledger = self.ledger.lock().expect("nobody panicked");
        let whole = gone.outcomes.iter().filter(|one| **one == Outcome::Whole);
        let whole = whole.count();
        ledger.whole += whole;
        ledger.broken += gone.outcomes.len() - whole + gone.open();
        ledger.refused += gone.refused;
        ledger.bytes += gone.got;
        if let Some(name) = gone.script.name {
            ledger.named.insert(name, (gone.got, gone.got_at));
        }
        ledger.operations += gone.operations;
        for (why, times) in gone.resets {
            *ledger.resets.entry(why).or_default() += times;
        }
        ledger.errors.extend(gone.errors);
    }
}

impl Actor for Host {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        cx.charge(Duration::from_nanos(200));
        let clock = cx.now();
        let began = *self.began.get_or_insert(clock);
        let now = Instant::ZERO + clock.since(began);
        let mut did = self.hear(cx);
        self.look_for_overwritten();
        did |= self.daemon.step(cx);
        let (all_ready, all_done, hosts_quiet) = {
            let mut ledger = self.ledger.lock().expect("nobody panicked");
            let all_ready = ledger.ready == ledger.hosts;
            let queue_pairs = self
                .daemon
                .object_counts()
                .map(|(_, one)| one.queue_pairs)
                .sum();
            ledger.most_queue_pairs = ledger.most_queue_pairs.max(queue_pairs);
            (all_ready, ledger.done == ledger.hosts, ledger.quiet)
        };
        did |= self.serve(now, all_ready);
        did |= self.obey();
        self.post(cx);
        let mut ledger = self.ledger.lock().expect("nobody panicked");
        let applications = || self.applications.values();
        if !self.is_ready && applications().all(Application::is_ready) {
            self.is_ready = true;
            ledger.ready += 1;
        }
        if !self.is_done && all_ready && applications().all(Application::is_done) {
            self.is_done = true;
            ledger.done += 1;
        }
        let wrong: usize = applications().map(|one| one.errors.len()).sum();
        if wrong > 0 && ledger.errors.is_empty() {
            let errors = applications().flat_map(|one| one.errors.clone());
            ledger.errors.extend(errors);
        }
        self.idle_steps = if did { 0 } else { self.idle_steps + 1 };
        if self.idle_steps.is_multiple_of(STATES_EVERY) && !did {
            let states: Vec<String> = applications().map(Application::state).collect();
            let object_counts: Vec<_> = self.daemon.object_counts().collect();
            ledger
                .states
                .insert(self.number, format!("{states:?} {object_counts:?}"));
        }
        drop(ledger);
        if all_done && applications().all(Application::is_done) && !self.has_parted {
            let connections: usize = self
                .daemon
                .object_counts()
                .map(|(_, one)| one.connections)
                .sum();
            if connections == 0 {
                let object_counts: Vec<ObjectCounts> =
                    self.daemon.object_counts().map(|(_, one)| one).collect();
                self.has_parted = true;
                let mut ledger = self.ledger.lock().expect("nobody panicked");
                ledger.all_counts.extend(object_counts);
                self.record_signals(&mut ledger);
                if !self.watches.is_empty() {
                    let line = format!("h{}: descriptors left: {:?}", self.number, self.watches);
                    ledger.errors.push(line);
                }
                drop(ledger);
                let all: Vec<SessionId> = self.applications.keys().copied().collect();
                all.into_iter().for_each(|session| self.part(session));
                did = true;
            }
        }
        if self.has_parted && !self.is_quiet {
            let left: usize = self
                .daemon
                .object_counts()
                .map(|(_, one)| one.sessions)
                .sum();
            if left == 0 {
                self.is_quiet = true;
                self.ledger.lock().expect("nobody panicked").quiet += 1;
            }
        }
        if hosts_quiet == self.hosts && self.outbox.is_empty() {
            return Ok(Step::Done);
        }
        if did || !self.daemon.is_idle() {
            return Ok(Step::Again);
        }
        let mut change = WakeCondition::mail().or_memory();
        let soon = Duration::from_nanos(100);
        let at = |at: Instant| began + at.max(now + soon).since(Instant::ZERO);
        if !all_ready || self.is_done {
            // Other hosts change the ledger without sending mail, so look at it again soon.
            change = change.until(at(now + Duration::from_millis(1)));
        }
        for one in self.applications.values() {
            let times = [one.script.dies, one.wakes()];
            for time in times.into_iter().flatten() {
                change = change.until(at(time));
            }
        }
        Ok(Step::Wait(change))
    }
}
