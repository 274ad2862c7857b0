//! Streams through a daemon, which is another process: handles, addresses, limits, and a daemon that restarts.

mod daemon;
mod descriptors;
mod differential;
mod direct;
mod direct_kills;
mod polling;
#[cfg(feature = "tokio")]
mod tasks;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use headworks::service::{Refusal, Reset, Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use daemon::{DaemonProcess, until, until_asleep};

/// Time limit of a wait: only a hang exceeds it.
const LIMIT: Duration = Duration::from_secs(90);

/// Connects to a listener of the same service. Both ends have a limit.
fn connected(service: &Service) -> (Stream, Stream) {
    let listener = service.listen(0, 1).expect("listens");
    let at = listener.local_addr().expect("an address");
    let near = service.connect(at).expect("connects");
    let far = listener.accept_timeout(LIMIT).expect("accepts");
    let mut ends = (near, far);
    for end in [&mut ends.0, &mut ends.1] {
        end.set_read_timeout(Some(LIMIT));
        end.set_write_timeout(Some(LIMIT));
    }
    ends
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[test]
fn two_threads_use_one_stream_by_shared_reference() {
    let daemon = DaemonProcess::start();
    let (near, mut far) = connected(&daemon.attach());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    thread::scope(|scope| {
        // More than all buffers hold: the writer waits while the reader has to receive.
        scope.spawn(|| (&near).write_all(&bytes).expect("writes"));
        scope.spawn(|| {
            let mut buffer = [0; 5000];
            let mut left = bytes.len();
            while left > 0 {
                let len = far.recv(&mut buffer).expect("receives");
                far.send_all(&buffer[..len]).expect("echoes");
                left -= len;
            }
        });
        let mut echoed = vec![0; bytes.len()];
        (&near).read_exact(&mut echoed).expect("reads");
        assert!(echoed == bytes, "other bytes came back");
    });
}

#[test]
fn a_connection_ends_with_its_last_handle() {
    let daemon = DaemonProcess::start();
    let (mut near, mut far) = connected(&daemon.attach());
    let mut clone = near.try_clone().expect("no child");
    let (mut reader, mut writer) = near.split();
    writer.send_all(b"half").expect("sends");
    drop(writer);
    clone.send_all(b" and clone").expect("sends");
    let mut got = [0; 14];
    far.read_exact(&mut got).expect("receives");
    assert_eq!(&got, b"half and clone");
    drop(clone);
    far.send_all(b"back").expect("sends");
    assert_eq!(reader.recv(&mut got).expect("receives"), 4);
    drop(reader);
    assert_eq!(far.recv(&mut got).expect("the end"), 0);
}

#[test]
fn a_handle_has_limits_of_its_own() {
    let daemon = DaemonProcess::start();
    let (mut near, mut far) = connected(&daemon.attach());
    let mut clone = near.try_clone().expect("no child");
    let short = Duration::from_millis(2);
    near.set_read_timeout(Some(short));
    for _ in 0..2 {
        let began = Instant::now();
        let error = near.recv(&mut [0]).expect_err("nothing was sent");
        assert!(matches!(error, ServiceError::Deadline), "{error}");
        assert!(began.elapsed() >= short);
    }
    // The other handle still waits for as long as it takes.
    let waits = thread::spawn(move || clone.recv(&mut [0; 8]));
    far.send_all(b"late").expect("sends");
    assert_eq!(waits.join().expect("waits").expect("receives"), 4);
    near.set_write_timeout(Some(short));
    let filled = loop {
        if let Err(error) = near.send(&[0; 4096]) {
            break error;
        }
    };
    assert!(matches!(filled, ServiceError::Deadline), "{filled}");
    // A stream without limits ends at a deadline that has passed.
    near.set_read_timeout(None);
    near.set_deadline(Some(headworks::net::clock::now()));
    let error = near.recv(&mut [0]).expect_err("nothing was sent");
    assert!(matches!(error, ServiceError::Deadline), "{error}");
}

#[test]
fn a_descriptor_is_refused_while_another_handle_waits_and_stays_after_a_split() {
    let daemon = DaemonProcess::start();
    let (mut near, mut far) = connected(&daemon.attach());
    let mut clone = near.try_clone().expect("no child");
    let (tell, told) = std::sync::mpsc::channel();
    let waits = thread::spawn(move || {
        tell.send(this_thread()).expect("tells");
        clone.recv(&mut [0; 8])
    });
    until_asleep(told.recv().expect("is told"));
    let refused = near.readiness().expect_err("the other handle waits");
    assert!(matches!(refused, ServiceError::Busy), "{refused}");
    far.send_all(b"now").expect("sends");
    assert_eq!(waits.join().expect("waits").expect("receives"), 3);
    let readiness = near.readiness().expect("nobody waits").clone();
    let (mut reader, writer) = near.split();
    assert!(reader.readiness().is_some() && writer.readiness().is_some());
    reader.set_nonblocking(true);
    let none = reader.recv(&mut [0]).expect_err("nothing was sent");
    assert!(matches!(none, ServiceError::WouldBlock), "{none}");
    far.send_all(b"more").expect("sends");
    let limit = Timespec::try_from(LIMIT).expect("a time");
    // Readiness may be spurious.
    let received = loop {
        let mut polled = [PollFd::new(&readiness, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&limit)).expect("polls");
        assert_eq!(ready, 1, "the descriptor stays unready");
        match reader.recv(&mut [0; 8]) {
            Err(ServiceError::WouldBlock) => {}
            received => break received.expect("receives"),
        }
    };
    assert_eq!(received, 4);
}

#[test]
fn addresses_are_resolved_and_tried_in_order() {
    let daemon = DaemonProcess::start();
    let service = daemon.attach();
    let listener = service.listen_at("localhost:0", 8).expect("its own name");
    let at = listener.local_addr().expect("an address");
    assert_eq!(at, SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port())));
    let named = service.connect_timeout(("localhost", at.port()), LIMIT);
    let named = named.expect("a name");
    assert_eq!(named.peer_addr(), at);
    let first = listener.accept().expect("accepts");
    assert_eq!(first.local_addr(), at);
    // Nobody listens at the first two addresses: one is of a port without a listener, one of no daemon.
    let unused = service.listen(0, 1).expect("listens").port();
    let dead = SocketAddr::from((Ipv4Addr::LOCALHOST, unused));
    let other: SocketAddr = format!("[::1]:{}", at.port()).parse().expect("an address");
    let found = service.connect(&[dead, other, at][..]);
    assert_eq!(found.expect("the third").peer_addr(), at);
    drop(listener.accept().expect("accepts"));
    let refused = service.connect(format!("[::1]:{}", at.port()));
    let refused = refused.expect_err("no daemon serves it");
    assert!(matches!(refused, ServiceError::Refused(_)), "{refused}");
    let refused = service.connect(&[other, dead][..]).expect_err("nobody");
    assert!(
        matches!(refused, ServiceError::Refused(Refusal::Refused)),
        "{refused}"
    );
    let none = service.connect(&[][..]).expect_err("no address");
    assert!(matches!(none, ServiceError::System { .. }), "{none}");
}

#[test]
fn only_the_daemons_own_address_can_be_bound() {
    let daemon = DaemonProcess::start();
    let service = daemon.attach();
    for own in ["0.0.0.0:0", "[::]:0", "127.0.0.1:0"] {
        let listener = service.listen_at(own, 1).expect("its own");
        assert_eq!(
            listener.local_addr().expect("an address").ip(),
            Ipv4Addr::LOCALHOST
        );
        let socket = service.bind_at(own).expect("its own");
        let at = socket.local_addr().expect("an address");
        assert_eq!(at, SocketAddr::from((Ipv4Addr::LOCALHOST, socket.port())));
    }
    let refused = service.listen_at("127.0.0.2:0", 1).expect_err("another's");
    assert_eq!(
        refused.to_string(),
        "the daemon listens only at its own address: pass 127.0.0.1, or an unspecified address"
    );
    let kind = std::io::Error::from(refused).kind();
    assert_eq!(kind, std::io::ErrorKind::AddrNotAvailable);
    assert!(service.bind_at("127.0.0.2:0").is_err());
}

/// Uses everything that a service hands out anew.
fn uses(service: &Service) {
    let (mut near, mut far) = connected(service);
    near.send_all(b"over the weir").expect("sends");
    let mut got = [0; 13];
    far.read_exact(&mut got).expect("receives");
    assert_eq!(&got, b"over the weir");
    assert_eq!(service.alloc(64).expect("memory").len(), 64);
    assert!(service.bind(0).is_ok() && !service.is_gone());
}

#[test]
fn a_service_attaches_again_after_its_daemon_restarted() {
    let mut daemon = DaemonProcess::start();
    let service = daemon.attach();
    uses(&service);
    // A clone is the same session, also when the daemon restarts.
    let clone = service.clone();
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let listener = service.listen(0, 1).expect("listens");
        let (mut near, mut far) = connected(&service);
        daemon.end(signal);
        until("the end is noticed", || service.is_gone());
        // The old stream and listener fail, whether or not the daemon announced that it stops.
        for error in [
            listener.accept().map(drop).expect_err("no daemon"),
            listener.try_accept().map(drop).expect_err("no daemon"),
        ] {
            assert!(
                matches!(error, ServiceError::DaemonGone),
                "{signal:?}: {error}"
            );
        }
        for end in [&mut near, &mut far] {
            let error = end.recv(&mut [0]).expect_err("no daemon");
            let is_told = matches!(
                error,
                ServiceError::DaemonGone | ServiceError::Reset(Reset::Stopping)
            );
            assert!(is_told, "{signal:?}: {error}");
        }
        // New things need a daemon.
        for error in [
            service
                .connect(near.peer_addr())
                .map(drop)
                .expect_err("no daemon"),
            service.listen(0, 1).map(drop).expect_err("no daemon"),
            service.alloc(1).map(drop).expect_err("no daemon"),
            service.bind(0).map(drop).expect_err("no daemon"),
            clone.reattach().expect_err("no daemon"),
        ] {
            assert!(
                matches!(error, ServiceError::NoDaemon { .. }),
                "{signal:?}: {error}"
            );
            assert!(service.is_gone());
        }
        daemon.restart();
        uses(&service);
        assert!(!clone.is_gone());
        // What is left of the old session is still gone.
        let error = listener.accept().map(drop).expect_err("another daemon");
        assert!(matches!(error, ServiceError::DaemonGone), "{error}");
        assert!(near.recv(&mut [0]).is_err() && far.recv(&mut [0]).is_err());
    }
}

#[test]
fn a_stream_that_is_open_at_exit_loses_bytes_and_one_that_was_dropped_does_not() {
    let daemon = DaemonProcess::start();
    let service = daemon.attach();
    let listener = service.listen(0, 1).expect("listens");
    let at = listener.local_addr().expect("an address");
    for drops in [true, false] {
        let mut child = daemon.start_sender(at, drops, false);
        let mut stream = listener.accept_timeout(LIMIT).expect("accepts");
        stream.set_read_timeout(Some(LIMIT));
        let mut got = Vec::new();
        let ended = stream.read_to_end(&mut got);
        assert!(child.wait().expect("ends").success());
        match drops {
            true => assert_eq!(
                (ended.expect("the end"), got.len()),
                (daemon::SENT, daemon::SENT)
            ),
            false => {
                let error = ended.expect_err("a reset");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
                assert!(got.len() <= daemon::SENT);
            }
        }
    }
}
