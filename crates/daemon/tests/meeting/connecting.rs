//! Connect requests: links that do not come up, full backlogs, tenants, and time limits.

use std::net::SocketAddr;

use headworks_client::Session;
use headworks_client::session::Event;
use headworks_client::socket_message::Refusal;
use headworks_daemon::DomainId;
use headworks_daemon::control::Message;
use headworks_daemon::ids::Tenant;
use headworks_verbs::Duration;

use crate::host_pair::{Host, HostPair, ONE, address, identity, pass};

#[test]
fn connections_over_a_link_that_cannot_come_up_are_refused() {
    let identities = || [identity(0, Some(ONE)), identity(1, Some(ONE))];
    let mut pair = HostPair::on_fabrics(identities(), [0, 1]);
    assert_eq!(pair.connect(), Err(Refusal::Unreachable));
    pair.settle();
    has_no_ends(&pair);
}

/// Checks that neither host has an end of a connection.
fn has_no_ends(pair: &HostPair) {
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
    let (mut pair, to) = listening_pair();
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
    let (mut pair, to) = listening_pair();
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

/// Returns the refusals among a host's events.
fn refusals(host: &mut Host) -> Vec<Refusal> {
    let events = std::mem::take(&mut host.events);
    let refusal = |event: Event| match event {
        Event::Refused { why, .. } => Some(why),
        _ => None,
    };
    events.into_iter().filter_map(refusal).collect()
}

/// Two hosts, and the address of a listener at the second one whose backlog is 1.
fn listening_pair() -> (HostPair, SocketAddr) {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    pair.hosts[1].application.listen(7, 1);
    pair.settle();
    (pair, SocketAddr::new(address(1), 7))
}

#[test]
fn thousands_of_requests_that_wait_in_vain_are_refused_and_disturb_nothing() {
    const REQUESTS: usize = 1500;
    let (mut pair, to) = listening_pair();
    for _ in 0..REQUESTS {
        pair.hosts[0].application.connect(to);
    }
    pair.settle();
    // More than a share of the places is refused at once.
    let refused = pair.hosts[0].events.iter();
    let is_refused = |event: &&Event| {
        matches!(
            event,
            Event::Refused {
                why: Refusal::Refused,
                ..
            }
        )
    };
    assert_eq!(refused.filter(is_refused).count(), REQUESTS - 1 - 1024);
    pair.hosts[0].events.clear();
    pass(Duration::from_secs(9));
    pair.settle();
    let timed_out = refusals(&mut pair.hosts[0]);
    assert_eq!(timed_out, [Refusal::TimedOut; 1024]);
    // The stream between the daemons and the first connection are still there.
    assert!(pair.hosts.iter().all(|host| host.peer.is_some()));
    pair.hosts[1].application.took(1);
    let request = pair.hosts[0].application.connect(to);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), [(request, true)]);
}

#[test]
fn waiting_requests_are_refused_when_the_daemon_drains() {
    let (mut pair, to) = listening_pair();
    let _both = [(); 2].map(|()| pair.hosts[0].application.connect(to));
    pair.settle();
    pair.hosts[0].events.clear();
    pair.hosts[1].daemon.drain();
    pair.settle();
    assert_eq!(refusals(&mut pair.hosts[0]), [Refusal::Stopping]);
}

#[test]
fn a_link_that_stays_silent_is_given_up_and_leaves_no_ends() {
    let (mut pair, to) = listening_pair();
    // The messages that bring the queue pairs up are lost.
    pair.lost = |message| matches!(message, Message::BringUp { .. });
    for _ in 0..3 {
        pair.hosts[0].application.connect(to);
        pair.settle();
        assert_eq!(refusals(&mut pair.hosts[0]), [], "it is too early");
        pass(Duration::from_secs(11));
        pair.settle();
        assert_eq!(refusals(&mut pair.hosts[0]), [Refusal::TimedOut]);
        pair.hosts[1].application.took(1);
        pair.settle();
    }
    assert!(
        pair.hosts[0]
            .daemon
            .object_counts()
            .all(|(_, one)| one.connections == 0)
    );
    // Once they arrive, connections are made.
    pair.lost = |_| false;
    pair.hosts[1].application.took(1);
    let request = pair.hosts[0].application.connect(to);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), [(request, true)]);
}

#[test]
fn ends_that_are_confirmed_too_late_give_their_places_back() {
    let (mut pair, to) = listening_pair();
    pair.delayed = |message| matches!(message, Message::Confirm { .. });
    pair.hosts[0].application.connect(to);
    pair.settle();
    pass(Duration::from_secs(11));
    pair.settle();
    // The place is free. The late confirmation resets the connecting end, and the stream goes on.
    pair.delayed = |_| false;
    pair.deliver_delayed();
    pair.settle();
    pair.hosts[0].events.clear();
    let request = pair.hosts[0].application.connect(to);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), [(request, true)]);
    assert!(pair.hosts.iter().all(|host| host.peer.is_some()));
}

#[test]
fn a_group_that_fails_before_the_confirmation_takes_no_place_in_the_backlog() {
    let (mut pair, to) = listening_pair();
    for _ in 0..3 {
        pair.delayed = |message| matches!(message, Message::Confirm { .. });
        pair.hosts[0].application.connect(to);
        pair.settle();
        // The connecting daemon, which has the lower address and so opens groups, says that the group is gone.
        let instance = pair.last_instance();
        let between = headworks_daemon::control::DomainPair {
            from: DomainId(1000),
            to: DomainId(1000),
        };
        let down = Message::QpGroupDown { between, instance };
        pair.hosts[1].coming.push_back(down.encode());
        pair.settle();
        pair.delayed = |_| false;
        pair.deliver_delayed();
        pair.settle();
        pair.hosts[0].events.clear();
    }
    let request = pair.hosts[0].application.connect(to);
    pair.settle();
    assert_eq!(answers(&mut pair.hosts[0]), [(request, true)]);
}
