//! Two daemons with an application each, in one thread, and a clock that the test sets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use headworks_client::connection::Connection;
use headworks_client::session::Event;
use headworks_client::socket_message::Refusal;
use headworks_client::{Extent, Session};
use headworks_daemon::auth::Secret;
use headworks_daemon::control::Message;
use headworks_daemon::limits::DaemonLimits;
use headworks_daemon::{Daemon, Identity, Output, PeerId, SessionId};
use headworks_ring::view_of;
use headworks_runtime::{ActorContext, StandaloneContext};
use headworks_shm::{Registry, SharedSegment, View};
use headworks_softnic::SoftProvider;
use headworks_verbs::{Access, Buffer, Device, Duration, Instant, Provider};

use crate::without_srqs::without_srqs;

thread_local! {
    /// Time of this thread's hosts.
    static NOW: Cell<Instant> = const { Cell::new(Instant::ZERO) };
}

/// Lets time pass for this thread's hosts.
pub(crate) fn pass(time: Duration) {
    NOW.set(NOW.get() + time);
}

/// Context of the daemons.
const ALONE: StandaloneContext = StandaloneContext {
    role: "daemon",
    clock: || NOW.get(),
};

/// A daemon and one attached application.
pub(crate) struct Host {
    pub(crate) daemon: Daemon,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) session: SessionId,
    pub(crate) application: Session,
    /// Stream to the other daemon.
    pub(crate) peer: Option<PeerId>,
    pub(crate) coming: VecDeque<Vec<u8>>,
    /// Files that come with messages in `coming`, in their order.
    files: VecDeque<OwnedFd>,
    pub(crate) events: Vec<Event>,
}

/// Two hosts. The directory of their fabric lives as long as this.
pub(crate) struct HostPair {
    pub(crate) hosts: [Host; 2],
    /// Last connection that was made.
    pub(crate) connection: Option<Box<Connection>>,
    /// Messages sent, each with the number of its sender.
    pub(crate) said: Vec<(usize, Message)>,
    /// Whether both hosts are the same machine, and the stream between the daemons passes files.
    is_local: bool,
    /// Whether the test loses the file that comes with a message, given the number of the sender.
    pub(crate) loses_file: fn(usize, &Message) -> bool,
    /// Whether the test loses a message.
    pub(crate) lost: fn(&Message) -> bool,
    /// Whether the test keeps a message until [`HostPair::deliver_delayed`].
    pub(crate) delayed: fn(&Message) -> bool,
    /// The host whose daemon is stopped, if one is.
    pub(crate) stopped: Option<usize>,
    /// Messages that are kept, each with the number of its sender.
    kept: Vec<(usize, Vec<u8>)>,
    _directories: [tempfile::TempDir; 2],
}

pub(crate) const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

pub(crate) fn address(host: usize) -> IpAddr {
    ADDRESSES[host].parse().expect("an address")
}

impl HostPair {
    pub(crate) fn new(identities: [Identity; 2]) -> Self {
        Self::on_fabrics(identities, [0, 0])
    }

    /// Two hosts whose daemons have these limits. The numbers of workers are those of the test.
    pub(crate) fn with_limits(identities: [Identity; 2], limits: &DaemonLimits) -> Self {
        Self::made(identities, [0, 0], limits, [true; 2])
    }

    /// Two hosts whose devices have shared receive queues or not.
    pub(crate) fn with_srqs(
        identities: [Identity; 2],
        limits: &DaemonLimits,
        has_srqs: [bool; 2],
    ) -> Self {
        Self::made(identities, [0, 0], limits, has_srqs)
    }

    /// Two daemons of one machine, whose applications take direct connections.
    pub(crate) fn with_direct_path(limits: &DaemonLimits) -> Self {
        let identities = [identity(0, Some(ONE)), identity(1, Some(ONE))];
        let mut pair = Self::with_limits(identities, limits);
        pair.is_local = true;
        for host in &mut pair.hosts {
            host.daemon.enable_direct_path(Box::new(|| {
                let (one, other) = UnixStream::pair().ok()?;
                Some((one.into(), other.into()))
            }));
            host.application = Session::new("test").with_direct_path();
        }
        pair
    }

    /// Two hosts whose devices are on these fabrics. Devices on different fabrics cannot reach each other.
    pub(crate) fn on_fabrics(identities: [Identity; 2], fabric_of: [usize; 2]) -> Self {
        Self::made(identities, fabric_of, &DaemonLimits::default(), [true; 2])
    }

    fn made(
        identities: [Identity; 2],
        fabric_of: [usize; 2],
        limits: &DaemonLimits,
        has_srqs: [bool; 2],
    ) -> Self {
        let directories = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
        let providers = directories.each_ref().map(|directory| {
            let fabric = Registry::open_at(directory.path().join("fabric"));
            SoftProvider::on(fabric.expect("a fabric"))
        });
        let mut number = 0;
        let hosts = identities.map(|identity| {
            number += 1;
            let name = format!("soft:h{number}").parse().expect("a name");
            let provider = &providers[fabric_of[number - 1]];
            let mut device = provider.open(&name).expect("a device");
            if !has_srqs[number - 1] {
                device = without_srqs(device);
            }
            // One host has one worker, and the other has several.
            let limits = DaemonLimits {
                workers: [1, 4][number - 1],
                ..limits.clone()
            };
            let mut daemon = Daemon::new(identity, device.clone(), limits);
            let session = daemon.session_up(1000);
            Host {
                daemon,
                device,
                session,
                application: Session::new("test"),
                peer: None,
                coming: VecDeque::new(),
                files: VecDeque::new(),
                events: Vec::new(),
            }
        });
        Self {
            hosts,
            connection: None,
            said: Vec::new(),
            is_local: false,
            loses_file: |_, _| false,
            lost: |_| false,
            delayed: |_| false,
            stopped: None,
            kept: Vec::new(),
            _directories: directories,
        }
    }

    /// Delivers the messages that were kept.
    pub(crate) fn deliver_delayed(&mut self) {
        for (own, message) in std::mem::take(&mut self.kept) {
            self.hosts[1 - own].coming.push_back(message);
        }
    }

    /// Returns the instance of the queue-pair group that was named last.
    pub(crate) fn last_instance(&self) -> u32 {
        let mut said = self.said.iter().rev();
        let instance = said.find_map(|(_, message)| match message {
            Message::BringUp { instance, .. } => Some(*instance),
            _ => None,
        });
        instance.expect("a group was brought up")
    }

    /// Returns the two ends of the connection that was made.
    pub(crate) fn ends(&mut self) -> (Box<Connection>, Box<Connection>) {
        let near = self.connection.take().expect("it was made");
        let events = std::mem::take(&mut self.hosts[1].events);
        let far = events.into_iter().find_map(|event| match event {
            Event::Incoming { connection, .. } => Some(connection),
            _ => None,
        });
        (near, far.expect("it came"))
    }

    /// Allocates memory of an application.
    pub(crate) fn alloc(&mut self, host: usize, len: u32) -> Extent {
        self.hosts[host].application.alloc(len);
        self.settle();
        let events = &self.hosts[host].events;
        let extent = events.iter().find_map(|event| match event {
            Event::Allocated { extent, .. } => Some(*extent),
            _ => None,
        });
        extent.expect("memory")
    }

    /// Steps both hosts and carries out their outputs. Returns whether there was anything to do.
    pub(crate) fn step(&mut self) -> bool {
        let mut did = false;
        let stopped = self.stopped;
        for own in (0..2).filter(|own| stopped != Some(*own)) {
            let host = &mut self.hosts[own];
            did |=
                host.daemon.step(&mut ActorContext::new(&mut { ALONE })) || !host.daemon.is_idle();
            while let Some(packet) = host.application.output() {
                did = true;
                host.daemon
                    .session_packet(host.session, &packet.bytes, None);
            }
            if let (Some(peer), Some(message)) = (host.peer, host.coming.pop_front()) {
                did = true;
                match Message::carries_file(&message) {
                    false => host.daemon.peer_message(peer, &message),
                    true => {
                        let file = host.files.pop_front().expect("its file");
                        host.daemon.peer_file(peer, &message, file);
                    }
                }
            }
            while let Some(output) = self.hosts[own].daemon.output() {
                did = true;
                self.obey(own, output);
            }
        }
        did
    }

    pub(crate) fn obey(&mut self, own: usize, output: Output) {
        let other = 1 - own;
        match output {
            Output::Dial(to) => {
                assert_eq!(to, address(other));
                self.hosts[own].peer = Some(self.hosts[own].daemon.peer_up(Some(to)));
                self.hosts[other].peer = Some(self.hosts[other].daemon.peer_up(None));
                for host in self.hosts.iter_mut().filter(|_| self.is_local) {
                    if let Some(peer) = host.peer {
                        host.daemon.peer_is_local(peer);
                    }
                }
            }
            Output::ToPeer { message, .. } => {
                let decoded = Message::decode(&message).expect("its own");
                let (is_lost, is_delayed) = ((self.lost)(&decoded), (self.delayed)(&decoded));
                self.said.push((own, decoded));
                match (is_lost, is_delayed) {
                    (true, _) => {}
                    (false, true) => self.kept.push((own, message)),
                    (false, false) => self.hosts[other].coming.push_back(message),
                }
            }
            Output::FileToPeer { message, file, .. } => {
                let decoded = Message::decode(&message).expect("its own");
                let is_lost = (self.loses_file)(own, &decoded);
                self.said.push((own, decoded));
                let host = &mut self.hosts[other];
                match (is_lost, host.peer) {
                    (true, Some(peer)) => host.daemon.file_not_received(peer, &message),
                    (true, None) => {}
                    (false, _) => {
                        host.coming.push_back(message);
                        host.files.push_back(owned(file.as_fd()));
                    }
                }
            }
            Output::FileToSession { packet, file, .. } => {
                let segment = SharedSegment::attach(owned(file.as_fd()));
                let view = segment.ok().map(|segment| Arc::new(segment).into());
                let host = &mut self.hosts[own];
                host.application.input(&packet, view).expect("a packet");
                while let Some(event) = host.application.event() {
                    host.events.push(event);
                }
            }
            // The stream belongs to a caller that is not the other host.
            Output::HangUp(peer) if self.hosts[own].peer != Some(peer) => {}
            Output::HangUp(_) => {
                self.hosts[own].peer = None;
                if self.stopped == Some(other) {
                    return;
                }
                // The other host handles earlier messages first.
                while let Some(message) = self.hosts[other].coming.pop_front() {
                    if let Some(peer) = self.hosts[other].peer {
                        self.hosts[other].daemon.peer_message(peer, &message);
                    }
                }
                if let Some(peer) = self.hosts[other].peer.take() {
                    self.hosts[other].daemon.peer_gone(peer);
                }
            }
            Output::ToSession { packet, slab, .. } => {
                let host = &mut self.hosts[own];
                let view = slab.map(|slab| view(&host.device, &slab));
                host.application.input(&packet, view).expect("a packet");
                while let Some(event) = host.application.event() {
                    host.events.push(event);
                }
            }
            Output::EndSession(_)
            | Output::Signal { .. }
            | Output::WakeThread(_)
            | Output::WakeWorker(_)
            | Output::PoolLevel(_) => {}
        }
    }

    /// Arms both daemons as if they went to sleep, and lets them find what is left to do.
    pub(crate) fn sleep(&mut self) {
        let stopped = self.stopped;
        for own in (0..2).filter(|own| stopped != Some(*own)) {
            self.hosts[own].daemon.arm();
        }
        self.settle();
        self.hosts.iter_mut().for_each(|host| host.daemon.disarm());
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the hosts never become idle");
    }

    /// Connects an application of the first host to one of the second. Returns the reason if it is refused.
    pub(crate) fn connect(&mut self) -> Result<(), Refusal> {
        self.hosts[1].application.listen(7, 4);
        self.settle();
        self.hosts[0]
            .application
            .connect(SocketAddr::new(address(1), 7));
        self.settle();
        let events = std::mem::take(&mut self.hosts[0].events);
        let answer = events.into_iter().find_map(|event| match event {
            Event::Connected { connection, .. } => {
                self.connection = Some(connection);
                Some(Ok(()))
            }
            Event::Refused { why, .. } => Some(Err(why)),
            _ => None,
        });
        answer.expect("it was answered")
    }
}

fn owned(file: Option<BorrowedFd<'_>>) -> OwnedFd {
    let file = file.expect("a file");
    file.try_clone_to_owned().expect("a descriptor")
}

pub(crate) fn view(device: &Arc<dyn Device>, slab: &Arc<dyn Buffer>) -> View {
    let pd = device.alloc_pd().expect("a domain");
    let region = pd.register(slab, Access::NONE).expect("a region");
    view_of(&region, 0)
}

pub(crate) fn identity(host: usize, secret: Option<&str>) -> Identity {
    Identity {
        secret: secret.map(|secret| Secret::new(secret.as_bytes()).expect("long enough")),
        entropy: [host as u8; 32],
        ..Identity::open(address(host), 1)
    }
}

pub(crate) const ONE: &str = "the secret of all hosts";
pub(crate) const OTHER: &str = "the secret of no other host";
