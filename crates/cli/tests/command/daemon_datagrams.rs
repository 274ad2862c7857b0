//! Messages between sockets of applications on two hosts, over real daemons.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::thread;

use headworks::service::{Datagrams, MESSAGE_MAX, Refusal, Service, ServiceError};
use headworks_verbs::Duration;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use crate::daemon::{Daemons, locked, to};
use crate::test_env::until;

/// Returns message `number` of `sender`: both numbers, then `len` bytes derived from them.
fn message(sender: u64, number: u64, len: usize) -> Vec<u8> {
    let seed = sender << 32 | number;
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|at| (seed as usize ^ at ^ at >> 8) as u8));
    bytes
}

fn checked(bytes: &[u8]) -> (u64, u64) {
    let seed = u64::from_le_bytes(*bytes.first_chunk().expect("a number"));
    let (sender, number) = (seed >> 32, seed & 0xffff_ffff);
    assert_eq!(bytes, message(sender, number, bytes.len() - 8));
    (sender, number)
}

/// Receives `times` messages, and sends each back to its sender.
fn echo(mut socket: Datagrams, times: usize) -> Datagrams {
    let mut buffer = vec![0; MESSAGE_MAX];
    for _ in 0..times {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(&buffer[..len], from).unwrap();
    }
    socket
}

#[test]
fn messages_of_any_length_come_whole() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let far = server.bind(7000).unwrap();
    let sizes = [0, 1, 9, 4095, 4096, 4097, 65_536, 300_000, MESSAGE_MAX];
    let there = thread::spawn(move || echo(far, 2 * sizes.len()));
    let mut near = client.bind(0).unwrap();
    assert_ne!(near.port(), 0);
    let mut buffer = vec![0; MESSAGE_MAX];
    for len in sizes.into_iter().chain(sizes.into_iter().rev()) {
        let bytes: Vec<u8> = (0..len).map(|at| (at ^ len ^ at >> 7) as u8).collect();
        near.send_to(&bytes, to(1, 7000)).unwrap();
        let (got, from) = near.recv_from(&mut buffer).unwrap();
        assert_eq!((got, from), (len, to(1, 7000)));
        assert_eq!(buffer[..len], bytes);
    }
    let far = there.join().unwrap();
    // A short buffer gets as much as fits, and the call returns the full length.
    let mut far = far;
    far.send_to(b"longer than that", to(0, near.port()))
        .unwrap();
    let mut short = [0; 6];
    let (len, _) = near.recv_from(&mut short).unwrap();
    assert_eq!((len, &short), (16, b"longer"));
    let long = near
        .send_to(&vec![0; MESSAGE_MAX + 1], to(1, 7000))
        .unwrap_err();
    assert!(matches!(long, ServiceError::TooLong(_)), "{long}");
    drop((near, far, client, server));
    daemons.end();
}

#[test]
fn many_send_to_one_and_each_is_answered_in_order() {
    let _one = locked();
    let daemons = Daemons::start();
    let services = [daemons.attach(0), daemons.attach(1)];
    let mut one = services[1].bind(7000).unwrap();
    const SENDERS: u64 = 40;
    const EACH: u64 = 60;
    let senders: Vec<_> = (0..4)
        .map(|thread| {
            let services = services.clone();
            thread::spawn(move || {
                let own = (thread..SENDERS).step_by(4);
                let mut sockets: HashMap<u64, Datagrams> = own
                    .map(|sender| (sender, services[sender as usize % 2].bind(0).unwrap()))
                    .collect();
                // Sends everything first. Then each socket receives the answer: how many of its messages arrived.
                for number in 0..EACH {
                    for (sender, socket) in &mut sockets {
                        let len = (number as usize * 997) % 5000;
                        let bytes = message(*sender, number, len);
                        socket.send_to(&bytes, to(1, 7000)).unwrap();
                    }
                }
                for socket in sockets.values_mut() {
                    let mut count = [0; 8];
                    let (_, from) = socket.recv_from(&mut count).unwrap();
                    assert_eq!(from, to(1, 7000));
                    assert_eq!(u64::from_le_bytes(count), EACH);
                }
            })
        })
        .collect();
    let mut came: HashMap<SocketAddr, u64> = HashMap::new();
    for _ in 0..SENDERS * EACH {
        let (number, from) = one
            .recv_from_with(|bytes, from| (checked(bytes).1, from))
            .unwrap();
        let next = came.entry(from).or_default();
        assert_eq!(number, *next, "from {from}");
        *next += 1;
    }
    assert_eq!(came.len() as u64, SENDERS);
    for (from, count) in came {
        one.send_to(&count.to_le_bytes(), from).unwrap();
    }
    senders
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    drop((one, services));
    daemons.end();
}

fn is_ready(socket: &Datagrams) -> bool {
    is_readable(socket.fd())
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

#[test]
fn the_descriptor_reports_readiness_to_nonblocking_callers() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = (client.bind(0).unwrap(), server.bind(7000).unwrap());
    near.set_nonblocking(true);
    far.set_nonblocking(true);
    let nothing = far.recv_from(&mut []).unwrap_err();
    assert!(matches!(nothing, ServiceError::WouldBlock), "{nothing}");
    until("quiet", || {
        far.recv_from(&mut []).is_err() && !is_ready(&far)
    });
    // While nobody receives, only a limited number of messages is accepted.
    let mut sent = 0;
    let mut refused = 0;
    until("the end of the room", || {
        match near.send_to(&message(7, sent, 30_000), to(1, 7000)) {
            Ok(()) => (sent, refused) = (sent + 1, 0),
            Err(ServiceError::WouldBlock) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 10_000, "sending goes on although nobody receives");
        sent > 0 && refused > 10_000
    });
    let mut came = 0;
    let mut buffer = vec![0; MESSAGE_MAX];
    until("all of them", || {
        let room = near.recv_from(&mut []);
        assert!(matches!(room, Err(ServiceError::WouldBlock)));
        if is_ready(&far) {
            match far.recv_from(&mut buffer) {
                Ok((len, _)) => {
                    assert_eq!(checked(&buffer[..len]), (7, came));
                    came += 1;
                }
                Err(ServiceError::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
        }
        came == sent
    });
    near.set_nonblocking(false);
    near.set_deadline(Some(
        headworks_net::clock::now() + Duration::from_millis(20),
    ));
    let late = near.recv_from(&mut buffer).unwrap_err();
    assert!(matches!(late, ServiceError::Deadline), "{late}");
    drop((near, far, client, server));
    daemons.end();
}

#[test]
fn an_absent_receiver_does_not_disturb_other_sockets() {
    let _one = locked();
    let mut daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let mut near = client.bind(0).unwrap();
    let nobody = near.send_to(b"who", to(1, 7000)).unwrap_err();
    assert!(
        matches!(nobody, ServiceError::Refused(Refusal::Refused)),
        "{nobody}"
    );
    // Both sockets send at the same time. Beside them there is a plain stream to the same port, which does
    // not speak the datagram protocol.
    let mut far = server.bind(7000).unwrap();
    let mut stream = client.connect(to(1, 7000)).unwrap();
    stream
        .send_all(b"not at all what it should begin with")
        .unwrap();
    near.send_to(b"one way", to(1, 7000)).unwrap();
    far.send_to(b"and another", to(0, near.port())).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(far.recv_from(&mut buffer).unwrap().0, 7);
    assert_eq!(near.recv_from(&mut buffer).unwrap().0, 11);
    until("the end of the stream", || {
        far.set_nonblocking(true);
        drop(far.recv_from(&mut buffer));
        stream.send(b"more").is_err()
    });
    far.set_nonblocking(false);
    // A socket that went away and came back is found again.
    drop(far);
    let mut far = server.bind(7000).unwrap();
    until("it is found again", || {
        near.send_to(b"again", to(1, 7000)).unwrap();
        far.set_nonblocking(true);
        far.recv_from(&mut buffer).is_ok()
    });
    // A host dies.
    let beside = Service::attach(daemons.socket(0), "beside").unwrap();
    let mut beside = beside.bind(7001).unwrap();
    daemons.sides[1].signal(Signal::KILL);
    daemons.sides[1].wait();
    until("it is missed", || {
        near.send_to(b"lost", to(1, 7000)).is_err()
    });
    near.send_to(b"own host", to(0, 7001)).unwrap();
    assert_eq!(beside.recv_from(&mut buffer).unwrap().0, 8);
    // The dead daemon's own application notices, too, once it has received what had arrived.
    far.set_nonblocking(false);
    let gone = loop {
        if let Err(error) = far.recv_from(&mut buffer) {
            break error;
        }
    };
    assert!(matches!(gone, ServiceError::DaemonGone), "{gone}");
    daemons.sides[1] = daemons.daemon(1);
    drop((near, far, beside, client, server, stream));
    daemons.end();
}

#[test]
fn a_socket_with_unread_messages_can_sleep_for_room() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = (client.bind(7000).unwrap(), server.bind(7000).unwrap());
    far.send_to(b"unread", to(0, 7000)).unwrap();
    until("the message", || is_ready(&near));
    near.set_nonblocking(true);
    let mut sent = 0;
    until("the end of the room", || {
        match near.send_to(&message(7, sent, 30_000), to(1, 7000)) {
            Ok(()) => sent += 1,
            Err(ServiceError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        sent > 0 && !is_readable(near.room_fd())
    });
    assert!(is_ready(&near), "the message is still there");
    // A sender that waits for room sends all the rest while somebody receives.
    let rest = 100;
    let all = sent + rest;
    let there = thread::spawn(move || {
        let mut buffer = vec![0; MESSAGE_MAX];
        for number in 0..all {
            let (len, _) = far.recv_from(&mut buffer).unwrap();
            assert_eq!(checked(&buffer[..len]), (7, number));
        }
        far
    });
    near.set_nonblocking(false);
    for number in sent..all {
        near.send_to(&message(7, number, 30_000), to(1, 7000))
            .unwrap();
    }
    let far = there.join().unwrap();
    let mut buffer = [0; 64];
    assert_eq!(near.recv_from(&mut buffer).unwrap(), (6, to(1, 7000)));
    drop((near, far, client, server));
    daemons.end();
}

#[test]
fn nonblocking_send_failures_are_reported_by_the_next_call() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let mut near = client.bind(0).unwrap();
    near.set_nonblocking(true);
    let mut other = server.bind(7001).unwrap();
    for _ in 0..3 {
        let begun = near.send_to(b"who", to(1, 7000)).unwrap_err();
        if matches!(begun, ServiceError::Refused(Refusal::Refused)) {
            // This thread did not run for so long that the call itself found the refusal.
            continue;
        }
        assert!(matches!(begun, ServiceError::WouldBlock), "{begun}");
        // A receive call finds the refusal and keeps it for the next send call.
        until("the refusal", || is_readable(near.room_fd()));
        until("it is found", || {
            let nothing = near.recv_from(&mut []).unwrap_err();
            assert!(matches!(nothing, ServiceError::WouldBlock), "{nothing}");
            !is_readable(near.room_fd())
        });
        let refused = near.send_to(b"who", to(1, 7000)).unwrap_err();
        let is_refused = matches!(refused, ServiceError::Refused(Refusal::Refused));
        assert!(is_refused, "{refused}");
        // Sending elsewhere is not affected.
        until("room", || near.send_to(b"you", to(1, 7001)).is_ok());
        assert_eq!(other.recv_from(&mut [0; 8]).unwrap().0, 3);
    }
    drop((near, other, client, server));
    daemons.end();
}

#[test]
fn messages_reach_the_port_owner_and_not_an_impostor() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let mut far = server.bind(7000).unwrap();
    let mut real = client.bind(7001).unwrap();
    // This stream imitates a stream of datagrams, and claims a source port that belongs to another socket.
    let mut liar = client.connect(to(1, 7000)).unwrap();
    let [low, high] = 7001u16.to_le_bytes();
    liar.send_all(b"hwdgram1").unwrap();
    liar.send_all(&[low, high, 3, 0, 0, 0]).unwrap();
    liar.send_all(b"lie").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(far.recv_from(&mut buffer).unwrap(), (3, to(0, 7001)));
    far.send_to(b"answer", to(0, 7001)).unwrap();
    assert_eq!(real.recv_from(&mut buffer).unwrap(), (6, to(1, 7000)));
    liar.set_nonblocking(true);
    let nothing = liar.recv(&mut buffer).unwrap_err();
    assert!(matches!(nothing, ServiceError::WouldBlock), "{nothing}");
    drop((far, real, liar, client, server));
    daemons.end();
}

#[test]
fn bytes_returned_by_a_plain_listener_are_no_message() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let mut near = client.bind(7000).unwrap();
    // A plain stream listener, which does not speak the datagram protocol.
    let listener = server.listen(7001, 8).unwrap();
    for _ in 0..2 {
        near.set_nonblocking(false);
        near.send_to(b"hello", to(1, 7001)).unwrap();
        let mut liar = listener.accept().unwrap();
        liar.send_all(&[3, 0, 0, 0]).unwrap();
        liar.send_all(b"lie").unwrap();
        liar.set_nonblocking(true);
        near.set_nonblocking(true);
        let mut buffer = [0; 64];
        until("the end of the connection", || {
            let nothing = near.recv_from(&mut buffer).unwrap_err();
            assert!(matches!(nothing, ServiceError::WouldBlock), "{nothing}");
            matches!(liar.recv(&mut buffer), Ok(0) | Err(ServiceError::Reset(_)))
        });
    }
    drop((near, listener, client, server));
    daemons.end();
}
