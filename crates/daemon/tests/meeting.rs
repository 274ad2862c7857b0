//! Handshakes between two daemons, message by message: with the same secret, different secrets or none, and
//! with the same or different versions. Each daemon has its own device.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use headworks_client::connection::{Connection, Received};
use headworks_client::control_block::Transfer;
use headworks_client::session::Event;
use headworks_client::socket_message::Refusal;
use headworks_client::{Extent, Reset, Rights, Session};
use headworks_daemon::auth::Secret;
use headworks_daemon::control::{Message, VERSION, VERSION_OLDEST};
use headworks_daemon::daemon::Tenant;
use headworks_daemon::limits::DaemonLimits;
use headworks_daemon::{Daemon, DomainId, Identity, Output, PeerId, SessionId};
use headworks_ring::view_of;
use headworks_runtime::{ActorContext, StandaloneContext};
use headworks_shm::{Registry, View};
use headworks_softnic::SoftProvider;
use headworks_verbs::{Access, Buffer, Device, Instant, Provider};

/// Context of a world in which no time passes.
const ALONE: StandaloneContext = StandaloneContext {
    role: "daemon",
    clock: || Instant::ZERO,
};
/// A daemon and one attached application.
struct Host {
    daemon: Daemon,
    device: Arc<dyn Device>,
    session: SessionId,
    application: Session,
    /// Stream to the other daemon.
    peer: Option<PeerId>,
    coming: VecDeque<Vec<u8>>,
    events: Vec<Event>,
}

/// Two hosts. The directory of their fabric lives as long as this.
struct HostPair {
    hosts: [Host; 2],
    /// Last connection that was made.
    connection: Option<Box<Connection>>,
    /// Messages sent, each with the number of its sender.
    said: Vec<(usize, Message)>,
    _directories: [tempfile::TempDir; 2],
}

const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn address(host: usize) -> IpAddr {
    ADDRESSES[host].parse().expect("an address")
}

impl HostPair {
    fn new(identities: [Identity; 2]) -> Self {
        Self::on_fabrics(identities, [0, 0])
    }

    /// Two hosts whose devices are on these fabrics. Devices on different fabrics cannot reach each other.
    fn on_fabrics(identities: [Identity; 2], fabric_of: [usize; 2]) -> Self {
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
            let device = provider.open(&name).expect("a device");
            let mut daemon = Daemon::new(identity, device.clone(), DaemonLimits::default());
            let session = daemon.session_up(1000);
            Host {
                daemon,
                device,
                session,
                application: Session::new("test"),
                peer: None,
                coming: VecDeque::new(),
                events: Vec::new(),
            }
        });
        Self {
            hosts,
            connection: None,
            said: Vec::new(),
            _directories: directories,
        }
    }

    /// Returns the two ends of the connection that was made.
    fn ends(&mut self) -> (Box<Connection>, Box<Connection>) {
        let near = self.connection.take().expect("it was made");
        let events = std::mem::take(&mut self.hosts[1].events);
        let far = events.into_iter().find_map(|event| match event {
            Event::Incoming { connection, .. } => Some(connection),
            _ => None,
        });
        (near, far.expect("it came"))
    }

    /// Allocates memory of an application.
    fn alloc(&mut self, host: usize, len: u32) -> Extent {
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
    fn step(&mut self) -> bool {
        let mut did = false;
        for own in 0..2 {
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
                host.daemon.peer_message(peer, &message);
            }
            while let Some(output) = self.hosts[own].daemon.output() {
                did = true;
                self.obey(own, output);
            }
        }
        did
    }

    fn obey(&mut self, own: usize, output: Output) {
        let other = 1 - own;
        match output {
            Output::Dial(to) => {
                assert_eq!(to, address(other));
                self.hosts[own].peer = Some(self.hosts[own].daemon.peer_up(Some(to)));
                self.hosts[other].peer = Some(self.hosts[other].daemon.peer_up(None));
            }
            Output::ToPeer { message, .. } => {
                self.said
                    .push((own, Message::decode(&message).expect("its own")));
                self.hosts[other].coming.push_back(message);
            }
            // The stream belongs to a caller that is not the other host.
            Output::HangUp(peer) if self.hosts[own].peer != Some(peer) => {}
            Output::HangUp(_) => {
                self.hosts[own].peer = None;
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
            Output::EndSession(_) | Output::Signal { .. } => {}
        }
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the hosts never become idle");
    }

    /// Connects an application of the first host to one of the second. Returns the reason if it is refused.
    fn connect(&mut self) -> Result<(), Refusal> {
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

fn view(device: &Arc<dyn Device>, slab: &Arc<dyn Buffer>) -> View {
    let pd = device.alloc_pd().expect("a domain");
    let region = pd.register(slab, Access::NONE).expect("a region");
    view_of(&region, 0)
}

fn identity(host: usize, secret: Option<&str>) -> Identity {
    Identity {
        secret: secret.map(|secret| Secret::new(secret.as_bytes()).expect("long enough")),
        entropy: [host as u8; 32],
        ..Identity::open(address(host), 1)
    }
}

const ONE: &str = "the secret of all hosts";
const OTHER: &str = "the secret of no other host";

#[test]
fn daemons_of_one_secret_meet_and_never_say_it() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    assert_eq!(pair.connect(), Ok(()));
    let kinds: Vec<_> = pair.said.iter().take(4).collect();
    assert!(
        matches!(
            kinds[..],
            [
                (0, Message::Hello { .. }),
                (1, Message::Challenge { .. }),
                (0, Message::Prove { .. }),
                (1, Message::Hello { .. }),
            ]
        ),
        "{kinds:?}"
    );
    for (_, message) in &pair.said {
        let bytes = message.encode();
        let is_said = bytes.windows(ONE.len()).any(|part| part == ONE.as_bytes());
        assert!(!is_said, "{message:?}");
    }
}

#[test]
fn unauthenticated_peers_are_refused_and_create_nothing() {
    for (caller, called) in [
        (Some(ONE), Some(OTHER)),
        (Some(ONE), None),
        (None, Some(ONE)),
        // Without a secret, a daemon accepts loopback addresses only.
        (None, None),
    ] {
        let mut pair = HostPair::new([identity(0, caller), identity(1, called)]);
        assert_eq!(
            pair.connect(),
            Err(Refusal::Denied),
            "{caller:?} {called:?}"
        );
        for host in &pair.hosts {
            let connections: usize = host
                .daemon
                .object_counts()
                .map(|(_, one)| one.connections)
                .sum();
            assert_eq!(connections, 0);
            assert!(host.peer.is_none(), "the stream is closed");
        }
    }
}

/// A host that is dialed and has no secret cannot use what it is told to authenticate itself to another host.
#[test]
fn a_proof_cannot_be_passed_on() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    let between: IpAddr = "10.0.0.9".parse().expect("an address");
    let [caller, called] = &mut pair.hosts;
    let (to_caller, to_called) = (
        caller.daemon.peer_up(Some(between)),
        called.daemon.peer_up(None),
    );
    // The host in the middle passes every message on to the other side.
    let mut said = Vec::new();
    loop {
        let mut passed = false;
        let ways = [(&mut *caller, to_caller, 0), (&mut *called, to_called, 1)];
        let mut messages = Vec::new();
        for (host, stream, own) in ways {
            while let Some(output) = host.daemon.output() {
                if let Output::ToPeer { peer, message } = output
                    && peer == stream
                {
                    messages.push((own, message));
                }
            }
        }
        for (own, message) in messages {
            passed = true;
            said.push((own, Message::decode(&message).expect("its own")));
            match own {
                0 => called.daemon.peer_message(to_called, &message),
                _ => caller.daemon.peer_message(to_caller, &message),
            }
        }
        if !passed {
            break;
        }
    }
    let denied = Message::Goodbye {
        why: Refusal::Denied,
    };
    assert!(said.contains(&(1, denied)), "{said:?}");
    assert!(called.daemon.snapshot().peers.is_empty());
    assert!(caller.daemon.snapshot().peers.is_empty());
}

/// Somebody who overhears one handshake cannot use it for the next.
#[test]
fn a_proof_is_of_use_once() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    assert_eq!(pair.connect(), Ok(()));
    let of_caller = pair.said.iter().filter(|(own, _)| *own == 0);
    let overheard: Vec<Message> = of_caller
        .map(|(_, message)| message.clone())
        .take(2)
        .collect();
    let host = &mut pair.hosts[1];
    let stranger = host.daemon.peer_up(None);
    for message in overheard {
        host.daemon.peer_message(stranger, &message.encode());
    }
    let mut answers = Vec::new();
    while let Some(output) = host.daemon.output() {
        match output {
            Output::ToPeer { peer, message } if peer == stranger => {
                answers.push(Message::decode(&message).expect("its own"));
            }
            Output::HangUp(peer) => assert_eq!(peer, stranger, "only the stranger is hung up"),
            _ => {}
        }
    }
    let denied = Message::Goodbye {
        why: Refusal::Denied,
    };
    assert!(
        matches!(answers[0], Message::Challenge { .. }),
        "{answers:?}"
    );
    assert_eq!(answers[1..], [denied]);
}

#[test]
fn unidentified_callers_are_dropped_oldest_first() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    let called = &mut pair.hosts[1].daemon;
    let callers: Vec<PeerId> = (0..1000).map(|_| called.peer_up(None)).collect();
    let mut ended = Vec::new();
    while let Some(output) = called.output() {
        if let Output::HangUp(peer) = output {
            ended.push(peer);
        }
    }
    // The oldest streams were closed, and few are left.
    assert_eq!(ended, callers[..ended.len()]);
    assert!(ended.len() > 700, "{}", ended.len());
    assert_eq!(pair.connect(), Ok(()), "a daemon that introduces itself");
}

#[test]
fn daemons_of_adjacent_versions_use_their_common_features() {
    for older in [0, 1] {
        let mut identities = [identity(0, Some(ONE)), identity(1, Some(ONE))];
        identities[older].version = VERSION - 1;
        let mut pair = HostPair::new(identities);
        assert_eq!(pair.connect(), Ok(()));
        let (mut connection, mut far) = pair.ends();
        connection.sending.send(b"across").unwrap();
        pair.settle();
        let mut buffer = [0; 16];
        let (received, _) = far.receiving.recv(&mut buffer).unwrap();
        assert_eq!(
            (received, &buffer[..6]),
            (Received::Bytes(6), &b"across"[..])
        );
        // An operation that the older version lacks is refused at once.
        let newer = 1 - older;
        let handle = [connection.handle(), far.handle()][newer];
        let extent = pair.alloc(newer, 4096);
        pair.hosts[newer]
            .application
            .export(handle, extent, Rights::ALL);
        pair.settle();
        let last = pair.hosts[newer].events.last();
        let is_refused = |event: &Event| {
            matches!(
                event,
                Event::Refused {
                    why: Refusal::Version,
                    ..
                }
            )
        };
        assert!(last.is_some_and(is_refused), "{last:?}");
    }
}

#[test]
fn daemons_that_speak_no_common_version_say_so() {
    let mut identities = [identity(0, Some(ONE)), identity(1, Some(ONE))];
    identities[0].version = VERSION_OLDEST - 1;
    let mut pair = HostPair::new(identities);
    assert_eq!(pair.connect(), Err(Refusal::Version));
}

/// Reads, a little at a time, until the stream ends or is reset.
fn all_of(pair: &mut HostPair, far: &mut Connection) -> Result<Vec<u8>, Reset> {
    let (mut all, mut buffer) = (Vec::new(), [0; 700]);
    loop {
        far.refresh(pair.hosts[1].application.slabs());
        let reset = far.status().reset;
        match (far.receiving.recv(&mut buffer).unwrap().0, reset) {
            (Received::Bytes(len), _) => all.extend_from_slice(&buffer[..len]),
            (Received::Ended, _) => return Ok(all),
            (Received::Nothing, Some(why)) => return Err(why),
            (Received::Nothing, None) => assert!(pair.step(), "nothing comes any more"),
        }
    }
}

#[test]
fn bytes_sent_before_close_or_exit_all_arrive() {
    for (len, closes) in [(0, true), (1, true), (100_000, true), (3000, false)] {
        let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
        assert_eq!(pair.connect(), Ok(()));
        let (mut near, mut far) = pair.ends();
        let said: Vec<u8> = (0..len).map(|at: usize| (at ^ at >> 8) as u8).collect();
        // The peer reads nothing meanwhile, so most of the data is still on this side when the application
        // exits.
        let mut sent = 0;
        while sent < len {
            near.refresh(pair.hosts[0].application.slabs());
            let (more, _) = near.sending.send(&said[sent..]).unwrap();
            sent += more;
            if more == 0 && !pair.step() {
                break;
            }
        }
        let host = &mut pair.hosts[0];
        if closes {
            host.application.close(near.handle());
            while let Some(packet) = host.application.output() {
                host.daemon
                    .session_packet(host.session, &packet.bytes, None);
            }
        }
        host.daemon.session_gone(host.session);
        let heard = all_of(&mut pair, &mut far);
        match closes {
            true => assert!(heard.as_deref() == Ok(&said[..sent]), "{len}"),
            false => assert_eq!(heard, Err(Reset::ByPeer)),
        }
        // Nothing of the application that exited is left, although the other end still exists.
        pair.settle();
        let object_counts = pair.hosts[0].daemon.object_counts();
        let left: Vec<_> = object_counts
            .map(|(_, one)| (one.sessions, one.in_use))
            .collect();
        assert!(left.iter().all(|left| *left == (0, 0)), "{left:?}");
    }
}

/// An echo server reads nothing while it cannot send. Data for an end that has closed must therefore not wait
/// for room that no application will make: both ends would wait forever.
#[test]
fn closing_without_reading_echoes_blocks_no_peer() {
    for transfer in [
        Transfer::Any,
        Transfer::Send,
        Transfer::Write,
        Transfer::Read,
    ] {
        for is_gone in [false, true] {
            let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
            assert_eq!(pair.connect(), Ok(()));
            let (mut near, mut far) = pair.ends();
            far.sending.set_transfer(transfer);
            let bytes = vec![7; 40_000];
            let mut echo = Vec::new();
            let mut heard = 0;
            let mut echoes = |pair: &mut HostPair| -> Result<usize, Reset> {
                let mut did = 0;
                far.refresh(pair.hosts[1].application.slabs());
                while !echo.is_empty() {
                    let (sent, _) = far.sending.send(&echo).unwrap();
                    echo.drain(..sent);
                    did += sent;
                    if sent == 0 {
                        return far.status().reset.map_or(Ok(did), Err);
                    }
                }
                let mut buffer = vec![0; 50_000];
                if let (Received::Bytes(len), _) = far.receiving.recv(&mut buffer).unwrap() {
                    echo.extend_from_slice(&buffer[..len]);
                    heard += len;
                    did += len;
                }
                far.status().reset.map_or(Ok(did), Err)
            };
            let mut sent = 0;
            loop {
                near.refresh(pair.hosts[0].application.slabs());
                let more = near.sending.send(&bytes).unwrap().0;
                sent += more;
                let did = pair.step() | (echoes(&mut pair) != Ok(0));
                if more == 0 && !did {
                    break;
                }
            }
            let host = &mut pair.hosts[0];
            host.application.close(near.handle());
            while let Some(packet) = host.application.output() {
                host.daemon
                    .session_packet(host.session, &packet.bytes, None);
            }
            if is_gone {
                host.daemon.session_gone(host.session);
            }
            let over = loop {
                match echoes(&mut pair) {
                    Err(why) => break why,
                    Ok(did) => assert!(pair.step() || did > 0, "{transfer:?}: both wait"),
                }
            };
            // The bytes sent before have arrived nevertheless.
            let mut buffer = vec![0; 50_000];
            while let (Received::Bytes(len), _) = far.receiving.recv(&mut buffer).unwrap() {
                heard += len;
            }
            assert_eq!((over, heard), (Reset::ByPeer, sent), "{transfer:?}");
            pair.hosts[1].application.close(far.handle());
            pair.settle();
            if is_gone {
                let object_counts = pair.hosts[0].daemon.object_counts();
                let left: Vec<_> = object_counts
                    .map(|(_, one)| (one.sessions, one.in_use))
                    .collect();
                assert!(left.iter().all(|left| *left == (0, 0)), "{left:?}");
            }
        }
    }
}

/// Holds for every transfer mode, whether or not the sender knew that the other end had closed.
#[test]
fn memory_lent_to_a_closed_peer_is_returned() {
    for transfer in [
        Transfer::Any,
        Transfer::Send,
        Transfer::Write,
        Transfer::Read,
    ] {
        for is_heard in [true, false] {
            let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
            assert_eq!(pair.connect(), Ok(()));
            let (mut near, far) = pair.ends();
            let extent = pair.alloc(0, 30_000);
            near.refresh(pair.hosts[0].application.slabs());
            near.sending.set_transfer(transfer);
            if is_heard {
                pair.hosts[1].application.close(far.handle());
                pair.settle();
            }
            let (lent, _) = near.sending.lend(extent).unwrap();
            let lent = lent.expect("there is room");
            pair.hosts[1].application.close(far.handle());
            pair.settle();
            let reset = near.status().reset;
            assert_eq!(reset, Some(Reset::ByPeer), "{transfer:?}");
            let is_returned = near.sending.is_returned(lent);
            assert_eq!(is_returned, Ok(true), "{transfer:?}, {is_heard}");
        }
    }
}

/// Holds although the ring drains each time.
#[test]
fn a_ring_that_is_filled_becomes_a_longer_one() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    assert_eq!(pair.connect(), Ok(()));
    let (mut near, mut far) = pair.ends();
    let (bytes, mut into) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    let mut most = 0;
    for _ in 0..50 {
        near.refresh(pair.hosts[0].application.slabs());
        let (sent, _) = near.sending.send(&bytes).unwrap();
        most = most.max(sent);
        let mut got = 0;
        while got < sent {
            pair.settle();
            far.refresh(pair.hosts[1].application.slabs());
            if let (Received::Bytes(len), _) = far.receiving.recv(&mut into).unwrap() {
                got += len;
            }
        }
    }
    assert!(most > 512 << 10, "{most}");
}

/// Holds whatever was sent before, and however often the daemons step.
#[test]
fn sending_without_a_receiver_takes_at_most_a_ring() {
    const LEN: usize = 1 << 20;
    let (bytes, mut into) = (vec![7; LEN], vec![0; LEN]);
    for before in [0, 1, 14, 3000, 4070, 4096, 5018, 9000, 40_000, 70_000] {
        for steps in [1, 2, 3, 5, 20] {
            let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
            assert_eq!(pair.connect(), Ok(()));
            let (mut near, mut far) = pair.ends();
            let (mut sent, mut got) = (0, 0);
            while got < before {
                near.refresh(pair.hosts[0].application.slabs());
                sent += near.sending.send(&bytes[sent..before]).unwrap().0;
                pair.step();
                far.refresh(pair.hosts[1].application.slabs());
                if let (Received::Bytes(len), _) = far.receiving.recv(&mut into).unwrap() {
                    got += len;
                }
            }
            let mut sent = 0;
            let mut is_quiet = false;
            while sent < LEN {
                near.refresh(pair.hosts[0].application.slabs());
                let (more, _) = near.sending.send(&bytes[sent..]).unwrap();
                sent += more;
                assert!(
                    more > 0 || !is_quiet,
                    "{sent} after {before}, {steps} steps at a time"
                );
                is_quiet = (0..steps).all(|_| !pair.step()) && more == 0;
            }
        }
    }
}

#[test]
fn connections_over_a_link_that_cannot_come_up_are_refused() {
    let identities = || [identity(0, Some(ONE)), identity(1, Some(ONE))];
    let mut pair = HostPair::on_fabrics(identities(), [0, 1]);
    assert_eq!(pair.connect(), Err(Refusal::Unreachable));
    pair.settle();
    for host in &pair.hosts {
        let counts = host.daemon.object_counts();
        let ends: usize = counts.map(|(_, one)| one.connections).sum();
        assert_eq!(ends, 0, "an end is left");
    }
}

/// Returns the numbers of the requests that were answered: true for a connection, false for a refusal.
fn answers(host: &mut Host) -> Vec<(u32, bool)> {
    let answer = |event: Event| match event {
        Event::Connected { request, .. } => Some((request, true)),
        Event::Refused { request, .. } => Some((request, false)),
        _ => None,
    };
    std::mem::take(&mut host.events)
        .into_iter()
        .filter_map(answer)
        .collect()
}

#[test]
fn requests_beyond_the_backlog_wait_until_a_connection_is_taken() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    pair.hosts[1].application.listen(7, 1);
    pair.settle();
    let to = SocketAddr::new(address(1), 7);
    let requests = [(); 4].map(|()| pair.hosts[0].application.connect(to));
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), [(requests[0], true)]);
    let listener = pair.hosts[1].events.iter().find_map(|event| match event {
        Event::Listening { listener, .. } => Some(*listener),
        _ => None,
    });
    let listener = listener.expect("it listens");
    for request in &requests[1..3] {
        pair.hosts[1].application.took(listener);
        pair.settle();
        assert_eq!(answers(&mut pair.hosts[0]), [(*request, true)]);
    }
    // Those that still wait are refused when the listener closes.
    pair.hosts[1].application.unlisten(listener);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), [(requests[3], false)]);
}

/// An application that ends while its request waits takes no place in the backlog.
#[test]
fn a_waiting_request_of_a_gone_application_makes_room_for_the_next() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    pair.hosts[1].application.listen(7, 1);
    pair.settle();
    let to = SocketAddr::new(address(1), 7);
    pair.hosts[0].application.connect(to);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]).len(), 1);
    pair.hosts[0].application.connect(to);
    pair.settle();
    let host = &mut pair.hosts[0];
    host.daemon.session_gone(host.session);
    host.session = host.daemon.session_up(1000);
    host.application = Session::new("next");
    pair.settle();
    let request = pair.hosts[0].application.connect(to);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), []);
    for _ in 0..2 {
        pair.hosts[1].application.took(1);
        pair.settle();
    }
    assert_eq!(answers(&mut pair.hosts[0]), [(request, true)]);
}

#[test]
fn one_user_at_two_sockets_is_two_tenants() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    pair.settle();
    let host = &mut pair.hosts[0];
    let mut attach = |tenant: Tenant| {
        let session = host.daemon.session_up(tenant);
        let packet = Session::new("other").output().expect("it attaches");
        host.daemon.session_packet(session, &packet.bytes, None);
        let counts = host.daemon.object_counts();
        let mut domains: Vec<_> = counts.map(|(id, one)| (id, one.sessions)).collect();
        domains.sort();
        domains
    };
    let (first, second) = (DomainId(1000), DomainId(u32::MAX));
    let at_second = Tenant {
        user: 1000,
        socket: 1,
    };
    assert_eq!(attach(at_second), [(first, 1), (second, 1)]);
    assert_eq!(attach(at_second), [(first, 1), (second, 2)]);
    // A user whose number is in use as that of another domain gets another one.
    let third = DomainId(u32::MAX - 1);
    let expected = [(first, 1), (third, 1), (second, 2)];
    assert_eq!(attach(u32::MAX.into()), expected);
}
