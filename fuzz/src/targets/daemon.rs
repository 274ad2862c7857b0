//! A daemon with hostile applications and a hostile peer daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use headworks_client::Session;
use headworks_client::connection::Connection;
use headworks_client::session::Event;
use headworks_client::socket_message::Refusal;
use headworks_daemon::ids::{Signal, WatchId};
use headworks_daemon::limits::DaemonLimits;
use headworks_daemon::{Daemon, Identity, Output, PeerId, SessionId};
use headworks_ring::view_of;
use headworks_runtime::{ActorContext, StandaloneContext};
use headworks_shm::View;
use headworks_verbs::{Access, Buffer, Device, Instant};

use crate::input::Input;

pub(super) mod application;
pub(super) mod peer;

/// Address of the daemon under test.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
/// Port at which an application listens.
const PORT: u16 = 7;
/// Maximum number of steps until the daemon must be idle.
const STEPS: usize = 20_000;

/// Context of a daemon for which no time passes.
const ALONE: StandaloneContext = StandaloneContext {
    role: "daemon",
    clock: || Instant::ZERO,
};
fn config(input: &mut Input<'_>) -> DaemonLimits {
    DaemonLimits {
        frame_bytes: 256,
        receives: 32,
        receives_max: 256,
        qp_group_floor: 4,
        qp_group_share: 8,
        frame_depth: 8,
        bulk_depth: 8,
        qp_groups_max: 8,
        bulk_min: 300,
        bulk_max: 4096,
        pool_bytes: 256 << 10,
        pool_quota: input.pick(&[1, 100]),
        ring_bytes: 512,
        ring_max: 4096,
        slab_bytes: 64 << 10,
        connections_each: 64,
        memory_each: 256 << 10,
        listeners_each: 4,
        ..DaemonLimits::default()
    }
}

/// An application: its session with the library, and its view of the shared memory, which it may corrupt.
struct Application {
    session: Session,
    slabs: Vec<View>,
    connections: BTreeMap<u32, Box<Connection>>,
    is_over: bool,
    /// Whether its session received an invalid packet. The session is then not used any more.
    is_broken: bool,
}

/// A daemon, and everything that it talks to.
struct DaemonHarness {
    daemon: Daemon,
    device: Arc<dyn Device>,
    applications: BTreeMap<SessionId, Application>,
    /// Control streams of the daemon to itself. Maps each end to the other.
    loops: BTreeMap<PeerId, PeerId>,
    /// Messages of the daemon to other daemons.
    said: Vec<(PeerId, Vec<u8>)>,
    hung_up: Vec<PeerId>,
    /// Descriptors that the daemon got and has not closed.
    watches: BTreeSet<WatchId>,
    last_watch: u64,
    /// Whether a peer has written into a slab beyond its own ring. The application that has the slab may then
    /// find invalid data there.
    is_scribbled: bool,
}

impl DaemonHarness {
    fn new(device: Arc<dyn Device>, config: DaemonLimits) -> Self {
        config.check().expect("a legal one");
        Self {
            daemon: Daemon::new(Identity::open(HERE, 1), device.clone(), config),
            device,
            applications: BTreeMap::new(),
            loops: BTreeMap::new(),
            said: Vec::new(),
            hung_up: Vec::new(),
            watches: BTreeSet::new(),
            last_watch: 0,
            is_scribbled: false,
        }
    }

    /// Makes a descriptor for an application to hand over.
    fn descriptor(&mut self) -> WatchId {
        self.last_watch += 1;
        let watch = WatchId(self.last_watch);
        self.watches.insert(watch);
        watch
    }

    fn attach(&mut self, user: u32) -> SessionId {
        let session = self.daemon.session_up(user);
        let application = Application {
            session: Session::new("fuzzed"),
            slabs: Vec::new(),
            connections: BTreeMap::new(),
            is_over: false,
            is_broken: false,
        };
        self.applications.insert(session, application);
        session
    }

    fn step(&mut self) -> bool {
        let was_busy = self.daemon.step(&mut ActorContext::new(&mut { ALONE }));
        self.run_actions() || was_busy || !self.daemon.is_idle()
    }

    /// Steps until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..STEPS {
            if !self.step() {
                return;
            }
        }
        panic!("the daemon is still not idle after {STEPS} steps");
    }

    fn run_actions(&mut self) -> bool {
        let mut did = false;
        for (session, application) in &mut self.applications {
            while let Some(packet) = application.session.output() {
                did = true;
                self.daemon.session_packet(*session, &packet.bytes, None);
            }
        }
        while let Some(output) = self.daemon.output() {
            did = true;
            match output {
                Output::Dial(HERE) => {
                    let one = self.daemon.peer_up(Some(HERE));
                    let other = self.daemon.peer_up(None);
                    self.loops.extend([(one, other), (other, one)]);
                }
                Output::Dial(to) => self.daemon.dial_failed(to, Refusal::Unreachable),
                Output::ToPeer { peer, message } => match self.loops.get(&peer) {
                    Some(other) => self.daemon.peer_message(*other, &message),
                    None => self.said.push((peer, message)),
                },
                // The word may hold anything, so that the daemon may take it for a sleeper's.
                Output::WakeThread(event_count) => event_count.wake(),
                Output::WakeWorker(_) | Output::PoolLevel(_) => {}
                Output::Signal { watch, signal } => {
                    assert!(self.watches.contains(&watch), "{watch:?} is closed");
                    if signal == Signal::HungUp {
                        self.watches.remove(&watch);
                    }
                }
                Output::FileToPeer { .. } | Output::FileToSession { .. } => {
                    unreachable!("there are no direct connections without sockets")
                }
                Output::HangUp(peer) => {
                    self.hung_up.push(peer);
                    if let Some(other) = self.loops.remove(&peer) {
                        self.loops.remove(&other);
                        self.daemon.peer_gone(other);
                    }
                }
                Output::ToSession {
                    session,
                    packet,
                    slab,
                } => {
                    let view = slab.map(|slab| self.view(&slab));
                    let Some(application) = self.applications.get_mut(&session) else {
                        continue;
                    };
                    if application.is_broken {
                        continue;
                    }
                    application.slabs.extend(view.clone());
                    let taken = application.session.input(&packet, view);
                    application.is_broken = taken.is_err();
                    assert!(taken.is_ok() || self.is_scribbled, "{taken:?}");
                }
                Output::EndSession(session) => {
                    if let Some(application) = self.applications.get_mut(&session) {
                        application.is_over = true;
                    }
                }
            }
        }
        self.update_slabs();
        did
    }

    fn update_slabs(&mut self) {
        for application in self.applications.values_mut() {
            while let Some(event) = application.session.event() {
                let connection = match event {
                    Event::Connected { connection, .. } => connection,
                    Event::Incoming {
                        listener,
                        connection,
                    } => {
                        application.session.took(listener);
                        connection
                    }
                    _ => continue,
                };
                application
                    .connections
                    .insert(connection.handle(), connection);
            }
        }
    }

    fn view(&self, slab: &Arc<dyn Buffer>) -> View {
        let pd = self.device.alloc_pd().expect("a domain");
        let region = pd.register(slab, Access::NONE).expect("a region");
        view_of(&region, 0)
    }

    /// Ends all sessions. The daemon must keep nothing of them.
    fn end(mut self) {
        for session in self.applications.keys() {
            self.daemon.session_gone(*session);
        }
        self.applications.clear();
        self.settle();
        for (domain, object_counts) in self.daemon.object_counts() {
            assert_eq!(
                (object_counts.sessions, object_counts.connections),
                (0, 0),
                "{domain:?}: {object_counts:?}"
            );
            assert!(
                object_counts.promised <= object_counts.receives,
                "{object_counts:?}"
            );
        }
    }
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::new(HERE, port)
}
