//! Direct connections: what each daemon keeps of them when files are lost or confirmations are late.

use std::net::SocketAddr;

use headworks_client::Session;
use headworks_client::connection::{Connection, Received};
use headworks_client::session::Event;
use headworks_client::socket_message::Refusal;
use headworks_daemon::control::{DirectOffer, Message, PlaceId};
use headworks_daemon::limits::DaemonLimits;
use headworks_verbs::Duration;

use crate::host_pair::{HostPair, address, pass};

/// Returns the offers of direct ends that a daemon has sent.
fn offers(pair: &HostPair, host: usize) -> Vec<DirectOffer> {
    let said = pair.said.iter().filter(|(own, _)| *own == host);
    let offer = |(_, message): &(usize, Message)| match message {
        Message::Accept { direct, .. } | Message::Confirm { direct, .. } => *direct,
        _ => None,
    };
    said.filter_map(offer).collect()
}

/// Returns the places whose use a daemon has said to be over.
fn overs(pair: &HostPair, host: usize) -> Vec<PlaceId> {
    let said = pair.said.iter().filter(|(own, _)| *own == host);
    let over = |(_, message): &(usize, Message)| match message {
        Message::DirectOver { place, .. } => Some(*place),
        _ => None,
    };
    said.filter_map(over).collect()
}

/// Bytes that the applications of a host have in use.
fn in_use(pair: &HostPair, host: usize) -> u64 {
    let counts = pair.hosts[host].daemon.object_counts();
    counts.map(|(_, one)| one.in_use).sum()
}

/// Whether both ends are direct; checks that they agree.
fn are_direct((near, far): &(Box<Connection>, Box<Connection>)) -> bool {
    let is_direct = |one: &Connection| one.direct().is_some();
    assert_eq!(is_direct(near), is_direct(far), "the ends disagree");
    is_direct(near)
}

/// Connects, and takes the connection from the backlog.
fn connected(pair: &mut HostPair) -> (Box<Connection>, Box<Connection>) {
    assert_eq!(pair.connect(), Ok(()));
    pair.hosts[1].application.took(1);
    pair.settle();
    pair.ends()
}

fn closed(pair: &mut HostPair, (near, far): (Box<Connection>, Box<Connection>)) {
    pair.hosts[0].application.close(near.handle());
    pair.hosts[1].application.close(far.handle());
    pair.settle();
}

fn passes_bytes(pair: &mut HostPair, (near, far): &mut (Box<Connection>, Box<Connection>)) {
    near.sending.send(b"across").expect("it sends");
    pair.settle();
    let mut buffer = [0; 16];
    let (received, _) = far.receiving.recv(&mut buffer).expect("it receives");
    assert_eq!(received, Received::Bytes(6));
}

/// Connects, passes bytes and closes several times. Checks the path of the bytes, and that no memory is left over.
fn leaves_nothing(pair: &mut HostPair, is_direct: bool) {
    let mut before = [0; 2];
    for round in 0..3 {
        let mut ends = connected(pair);
        assert_eq!(are_direct(&ends), is_direct);
        passes_bytes(pair, &mut ends);
        closed(pair, ends);
        let after = [0, 1].map(|host| in_use(pair, host));
        if round > 0 {
            assert_eq!(after, before, "memory is left over");
        }
        before = after;
    }
}

#[test]
fn applications_of_one_machine_are_connected_directly_and_leave_nothing() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    leaves_nothing(&mut pair, true);
}

#[test]
fn a_lost_file_of_the_connecting_side_leaves_no_end_direct() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    pair.loses_file =
        |sender, message| sender == 0 && matches!(message, Message::PairMemory { .. });
    // The connecting application gets no connection, or one that is reset.
    let first = pair.connect();
    if let Some(near) = pair.connection.take() {
        assert!(near.status().reset.is_some(), "it would wait for ever");
        pair.hosts[0].application.close(near.handle());
        pair.settle();
    } else {
        assert_eq!(first, Err(Refusal::Unreachable));
    }
    let is_incoming = |event: &Event| matches!(event, Event::Incoming { .. });
    assert!(!pair.hosts[1].events.iter().any(is_incoming));
    // From now on connections of the pair go through the daemons.
    leaves_nothing(&mut pair, false);
    let accepts = offers(&pair, 1).len();
    assert_eq!(accepts, 1, "the pair is not used any more");
}

#[test]
fn a_lost_file_of_the_listening_side_keeps_no_place() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    pair.loses_file =
        |sender, message| sender == 1 && matches!(message, Message::PairMemory { .. });
    leaves_nothing(&mut pair, false);
    // A connection that never was direct ends no use of a place.
    assert_eq!((overs(&pair, 0), overs(&pair, 1)), (vec![], vec![]));
}

#[test]
fn a_place_is_not_used_again_while_a_late_confirmation_may_be_on_its_way() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    let ends = connected(&mut pair);
    closed(&mut pair, ends);
    let before = [0, 1].map(|host| in_use(&pair, host));
    pair.delayed = |message| matches!(message, Message::Confirm { .. });
    let to = SocketAddr::new(address(1), 7);
    pair.hosts[0].application.connect(to);
    pair.settle();
    pass(Duration::from_secs(11));
    pair.settle();
    // The listening daemon has given up the end. The other application may have the place nevertheless.
    pair.hosts[0].application.connect(to);
    pair.settle();
    let places: Vec<u32> = offers(&pair, 1)
        .iter()
        .map(|one| one.taken.id().number)
        .collect();
    assert_eq!(places.len(), 3);
    assert_ne!(
        places[1], places[2],
        "both applications would use the place"
    );
    pair.delayed = |_| false;
    pair.deliver_delayed();
    pair.settle();
    let events = std::mem::take(&mut pair.hosts[0].events);
    for event in events {
        if let Event::Connected { connection, .. } = event {
            pair.hosts[0].application.close(connection.handle());
        }
    }
    for event in std::mem::take(&mut pair.hosts[1].events) {
        if let Event::Incoming { connection, .. } = event {
            pair.hosts[1].application.close(connection.handle());
        }
    }
    pair.settle();
    assert_eq!(
        [0, 1].map(|host| in_use(&pair, host)),
        before,
        "memory is left over"
    );
}

/// Bytes that the applications of a host have sent and received.
fn carried(pair: &HostPair, host: usize) -> (u64, u64) {
    let snapshot = pair.hosts[host].daemon.snapshot();
    let of_domains = snapshot.domains.iter();
    let traffic = of_domains.flat_map(|one| one.applications.iter().map(|one| one.traffic));
    traffic.fold((0, 0), |all, one| (all.0 + one.sent, all.1 + one.received))
}

#[test]
fn the_bytes_of_a_pair_count_after_the_other_application_has_ended() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    let mut ends = connected(&mut pair);
    assert!(are_direct(&ends));
    passes_bytes(&mut pair, &mut ends);
    assert_eq!(carried(&pair, 0), (6, 0));
    pair.hosts[1].application.close(ends.1.handle());
    pair.settle();
    let other = &mut pair.hosts[1];
    other.daemon.session_gone(other.session);
    pair.settle();
    pair.hosts[0].application.close(ends.0.handle());
    pair.settle();
    assert_eq!(carried(&pair, 0), (6, 0));
}

#[test]
fn connections_with_more_applications_than_the_limit_go_through_the_daemons() {
    let limits = DaemonLimits {
        pairs_each: 1,
        ..DaemonLimits::default()
    };
    let mut pair = HostPair::with_direct_path(&limits);
    let next = |pair: &mut HostPair| {
        let host = &mut pair.hosts[1];
        host.daemon.session_gone(host.session);
        host.session = host.daemon.session_up(1000);
        host.application = Session::new("next").with_direct_path();
        pair.settle();
    };
    let first = connected(&mut pair);
    assert!(are_direct(&first));
    // The first host's application still has the pair, because it keeps its end open.
    next(&mut pair);
    let mut second = connected(&mut pair);
    assert!(!are_direct(&second));
    passes_bytes(&mut pair, &mut second);
    closed(&mut pair, second);
    pair.hosts[0].application.close(first.0.handle());
    pair.settle();
    next(&mut pair);
    let third = connected(&mut pair);
    assert!(are_direct(&third));
}

#[test]
fn a_daemon_hears_that_the_other_application_of_a_new_pair_has_ended() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    pair.hosts[1].application.listen(7, 4);
    pair.settle();
    let to = SocketAddr::new(address(1), 7);
    pair.hosts[0].application.connect(to);
    let is_file = |message: &Vec<u8>| Message::carries_file(message);
    while !pair.hosts[0].coming.iter().any(is_file) {
        assert!(pair.step(), "the files of the pair come");
    }
    let host = &mut pair.hosts[0];
    host.daemon.session_gone(host.session);
    pair.settle();
    let over = |(own, message): &(usize, Message)| {
        *own == 0 && matches!(message, Message::PairOver { .. })
    };
    assert!(pair.said.iter().any(over));
}

/// Applications connect to each other at the same moment. Each daemon is on the listening side of one connection.
#[test]
fn crossing_connections_share_one_pair_of_sockets() {
    let mut pair = HostPair::with_direct_path(&DaemonLimits::default());
    // The daemons meet, and no pair is made: nobody listens at that port.
    pair.hosts[0]
        .application
        .connect(SocketAddr::new(address(1), 9));
    pair.settle();
    for host in &mut pair.hosts {
        host.events.clear();
        host.application.listen(7, 4);
    }
    pair.settle();
    pair.said.clear();
    for (host, other) in [(0, 1), (1, 0)] {
        let to = SocketAddr::new(address(other), 7);
        pair.hosts[host].application.connect(to);
    }
    pair.settle();
    for host in &pair.hosts {
        let is_direct = |event: &Event| match event {
            Event::Incoming { connection, .. } | Event::Connected { connection, .. } => {
                connection.direct().is_some()
            }
            _ => false,
        };
        let direct = host.events.iter().filter(|event| is_direct(event)).count();
        assert_eq!(direct, 2);
    }
    let is_socket = |message: &Message| matches!(message, Message::PairSocket { .. });
    let sockets = pair.said.iter().filter(|(_, message)| is_socket(message));
    assert_eq!(sockets.count(), 1);
}
