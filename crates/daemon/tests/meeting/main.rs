//! Handshakes between two daemons, message by message: with the same secret, different secrets or none, and
//! with the same or different versions. Each daemon has its own device. Connect requests: `connecting`.

#[path = "connecting.rs"]
mod connecting;
#[path = "direct.rs"]
mod direct;
#[path = "host_pair.rs"]
mod host_pair;
#[path = "receive_pool.rs"]
mod receive_pool;
#[path = "without_srqs.rs"]
mod without_srqs;

use std::net::IpAddr;

use headworks_client::Reset;
use headworks_client::connection::{Connection, Received};
use headworks_client::control_block::Transfer;
use headworks_client::socket_message::Refusal;
use headworks_daemon::control::{Message, VERSION, VERSION_OLDEST};
use headworks_daemon::limits::DaemonLimits;
use headworks_daemon::{Output, PeerId};

use headworks_verbs::Duration;
use host_pair::{HostPair, ONE, OTHER, identity, pass};

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
fn daemons_without_shared_receive_queues_carry_streams() {
    for has_srqs in [[false, false], [false, true], [true, false]] {
        let identities = [identity(0, Some(ONE)), identity(1, Some(ONE))];
        let limits = DaemonLimits {
            receives: 16,
            receives_max: 64,
            ..DaemonLimits::default()
        };
        let mut pair = HostPair::with_srqs(identities, &limits, has_srqs);
        assert_eq!(pair.connect(), Ok(()));
        let (mut near, mut far) = pair.ends();
        for round in 0..100u8 {
            let bytes = vec![round; 900];
            for sender in [0, 1] {
                let (from, to) = match sender {
                    0 => (&mut near, &mut far),
                    _ => (&mut far, &mut near),
                };
                from.refresh(pair.hosts[sender].application.slabs());
                assert_eq!(from.sending.send(&bytes).map(|(sent, _)| sent), Ok(900));
                let _ = from.nudge();
                pair.settle();
                to.refresh(pair.hosts[1 - sender].application.slabs());
                let mut came = [0; 1000];
                let (received, _) = to.receiving.recv(&mut came).unwrap();
                assert_eq!(received, Received::Bytes(900));
                assert_eq!(came[..900], bytes);
            }
        }
        for host in &pair.hosts {
            let counts = host.daemon.object_counts().next().expect("a domain").1;
            assert!((1..=counts.receives).contains(&counts.promised));
        }
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
fn a_daemon_that_also_speaks_a_newer_version_is_understood() {
    for newer in [0, 1] {
        let mut identities = [identity(0, Some(ONE)), identity(1, Some(ONE))];
        identities[newer].version = VERSION + 1;
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
    for transfer in [Transfer::Any, Transfer::Send, Transfer::Read] {
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
    for transfer in [Transfer::Any, Transfer::Send, Transfer::Read] {
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

/// Sends some bytes from the first host's application, and lets both daemons go to sleep.
fn send_and_sleep(pair: &mut HostPair, near: &mut Connection) {
    near.refresh(pair.hosts[0].application.slabs());
    let (sent, _) = near.sending.send(b"please answer").unwrap();
    assert_eq!(sent, 13);
    pair.settle();
    pair.sleep();
}

fn pings(pair: &HostPair) -> usize {
    let said = pair.said.iter();
    said.filter(|(_, message)| *message == Message::Ping)
        .count()
}

#[test]
fn a_daemon_that_is_stopped_is_given_up_while_something_is_outstanding() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    assert_eq!(pair.connect(), Ok(()));
    let (mut near, _far) = pair.ends();
    // The time limit of the connect request passes.
    pass(Duration::from_secs(20));
    pair.sleep();
    pair.stopped = Some(1);
    // Nothing is outstanding yet, so nobody looks.
    pair.sleep();
    assert_eq!(pair.hosts[0].daemon.next_timeout(), None);
    send_and_sleep(&mut pair, &mut near);
    for pings_so_far in [0, 1, 2] {
        assert_eq!(pings(&pair), pings_so_far);
        assert!(pair.hosts[0].daemon.next_timeout().is_some());
        assert_eq!(near.status().reset, None);
        pass(Duration::from_secs(5));
        pair.sleep();
    }
    assert_eq!(near.status().reset, Some(Reset::Unreachable));
    assert_eq!(pair.hosts[0].daemon.next_timeout(), None);
}

#[test]
fn a_daemon_that_runs_is_asked_once_and_not_given_up_however_long_its_application_is_silent() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    assert_eq!(pair.connect(), Ok(()));
    let (mut near, _far) = pair.ends();
    send_and_sleep(&mut pair, &mut near);
    for _ in 0..10 {
        pass(Duration::from_secs(5));
        pair.sleep();
    }
    assert_eq!(pings(&pair), 1);
    assert_eq!(near.status().reset, None);
    let idle = pair.hosts.iter().map(|host| host.daemon.next_timeout());
    assert_eq!(idle.collect::<Vec<_>>(), [None, None]);
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

/// A way for long pieces beside the pool and its accounting would show here.
#[test]
fn long_pieces_arrive_only_in_the_receive_pool() {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
    assert_eq!(pair.connect(), Ok(()));
    let (mut near, mut far) = pair.ends();
    let extent = pair.alloc(0, 300_000);
    near.refresh(pair.hosts[0].application.slabs());
    let mut sent = 0;
    for len in [300_000, 16_384, 100_000] {
        let lent = near.sending.lend(extent.part(0, len)).unwrap().0;
        assert!(lent.is_some());
        sent += u64::from(len);
        let mut came = 0;
        while came < len as usize {
            pair.settle();
            far.refresh(pair.hosts[1].application.slabs());
            match far.receiving.recv(&mut [0; 70_000]).unwrap().0 {
                Received::Bytes(more) => came += more,
                other => panic!("{other:?} after {came} of {len} bytes"),
            }
            let _ = far.nudge();
        }
    }
    pair.settle();
    let of_receiver = &pair.hosts[1].daemon.snapshot().domains[0];
    let traffic = of_receiver.applications[0].traffic;
    assert_eq!((traffic.received, traffic.pooled), (sent, sent));
    assert_eq!((traffic.beside_pool, traffic.copied_out), (0, 0));
    // All of it is free again.
    assert_eq!(of_receiver.pool.free, of_receiver.pool.bytes);
    assert_eq!(of_receiver.applications[0].pool_held, (0, 0));
    let of_group = of_receiver
        .groups
        .iter()
        .map(|group| group.reads)
        .sum::<u64>();
    assert_eq!(of_group, 5 + 1 + 2);
}
