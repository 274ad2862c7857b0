//! The direct path: connections whose bytes do not go through the daemon.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use headworks::service::{Refusal, Reset, Rights, Service, ServiceError, Stream};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::daemon::{DaemonProcess, SENT, until, until_asleep};
use crate::{LIMIT, connected, this_thread};

fn exchange(near: &mut Stream, far: &mut Stream, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| near.send_all(&bytes).expect("sends"));
        let mut got = Vec::new();
        let mut buffer = vec![0; 100_000];
        while got.len() < len {
            let some = far.recv(&mut buffer).expect("receives");
            assert!(some > 0, "ended after {} of {len} bytes", got.len());
            got.extend_from_slice(&buffer[..some]);
        }
        assert!(got == bytes, "other bytes arrived");
    });
}

#[test]
fn bytes_go_directly_in_both_directions() {
    let daemon = DaemonProcess::start_with(true);
    let (mut near, mut far) = connected(&daemon.attach());
    assert!(near.is_direct() && far.is_direct());
    for len in [1, 64, 2048, 5000, 1 << 20, 20 << 20] {
        exchange(&mut near, &mut far, len);
        exchange(&mut far, &mut near, len);
    }
    near.end().expect("ends");
    assert_eq!(far.recv(&mut [0; 8]).expect("the end"), 0);
}

/// A reader that sleeps is woken, as the leader of the session's threads and as another thread.
#[test]
fn sleeping_threads_are_woken() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let mut ends: Vec<(Stream, Stream)> = (0..3).map(|_| connected(&service)).collect();
    std::thread::scope(|scope| {
        let mut near_ends = Vec::new();
        let (tell, told) = mpsc::channel();
        for (near, far) in &mut ends {
            let tell = tell.clone();
            near_ends.push(near);
            scope.spawn(move || {
                tell.send(this_thread()).expect("is heard");
                let mut bytes = [0; 64];
                for _ in 0..200 {
                    let len = far.recv(&mut bytes).expect("receives");
                    far.send_all(&bytes[..len]).expect("sends");
                }
            });
        }
        let threads: Vec<i32> = told.iter().take(near_ends.len()).collect();
        let mut bytes = [0; 64];
        for round in 0..200u8 {
            if round % 20 == 0 {
                threads.iter().for_each(|thread| until_asleep(*thread));
            }
            for near in &mut near_ends {
                near.send_all(&[round; 7]).expect("sends");
                assert_eq!(near.recv(&mut bytes).expect("receives"), 7);
                assert_eq!(bytes[..7], [round; 7]);
            }
        }
    });
}

/// Bytes that are lent and one-sided operations go through the daemon, and nothing overtakes them.
#[test]
fn bytes_stay_in_order_where_some_go_through_the_daemon() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let (mut near, mut far) = connected(&service);
    let mut expected = Vec::new();
    let mut memory = Some(service.alloc(40_000).expect("memory"));
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut got = Vec::new();
            let mut buffer = [0; 3000];
            loop {
                match far.recv(&mut buffer).expect("receives") {
                    0 => return got,
                    len => got.extend_from_slice(&buffer[..len]),
                }
            }
        });
        for round in 0..300u32 {
            let len = (round * 37 % 900) as usize;
            let bytes = vec![round as u8; len];
            near.send_all(&bytes).expect("sends");
            expected.extend_from_slice(&bytes);
            if round % 3 == 0 {
                let mut lent = memory.take().expect("returned");
                let len = 1 + (round as usize * 131) % 40_000;
                lent[..len].fill(!(round as u8));
                expected.resize(expected.len() + len, !(round as u8));
                let loan = near.lend(lent, len).expect("lends");
                near.send_all(&[round as u8; 3]).expect("sends behind it");
                expected.extend_from_slice(&[round as u8; 3]);
                memory = Some(near.reclaim(loan).expect("returned"));
            }
        }
        near.end().expect("ends");
        let got = reader.join().expect("no panic");
        assert!(got == expected, "other bytes arrived, or in another order");
    });
}

#[test]
fn one_end_writes_memory_of_the_other_before_it_says_so() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let (mut near, mut far) = connected(&service);
    let memory = service.alloc(4096).expect("memory");
    let exported = far.export(memory, Rights::all()).expect("exports");
    far.send_all(&exported.id().to_le_bytes()).expect("tells");
    let mut id = [0; 4];
    assert_eq!(near.recv(&mut id).expect("receives"), 4);
    let id = u32::from_le_bytes(id);
    for round in 0..100u64 {
        let before = near.fetch_add(id, 8, 1).expect("adds");
        assert_eq!(before, round);
    }
    let memory = service.alloc(8).expect("memory");
    let memory = near.read_from(id, 8, memory).expect("reads");
    assert_eq!(memory[..8], 100u64.to_le_bytes());
    exchange(&mut near, &mut far, 10_000);
    exchange(&mut far, &mut near, 10_000);
}

#[test]
fn an_end_that_leaves_bytes_unread_resets_the_other_and_one_that_does_not_ends_it() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let (mut near, mut far) = connected(&service);
    near.send_all(b"unread").expect("sends");
    far.send_all(b"last words").expect("sends");
    drop(far);
    let mut bytes = [0; 64];
    assert_eq!(near.recv(&mut bytes).expect("receives"), 10);
    let reset = near.recv(&mut bytes);
    assert!(
        matches!(reset, Err(ServiceError::Reset(Reset::ByPeer))),
        "{reset:?}"
    );
    let reset = near.send(b"x");
    assert!(
        matches!(reset, Err(ServiceError::Reset(Reset::ByPeer))),
        "{reset:?}"
    );

    let (mut near, mut far) = connected(&service);
    far.send_all(b"last words").expect("sends");
    drop(far);
    assert_eq!(near.recv(&mut bytes).expect("receives"), 10);
    assert_eq!(near.recv(&mut bytes).expect("the end"), 0);
    let reset = near.send(b"x");
    assert!(
        matches!(reset, Err(ServiceError::Reset(Reset::ByPeer))),
        "{reset:?}"
    );
}

/// The connections of two sessions go on when their daemon is killed. Only what needs a daemon fails.
#[test]
fn connections_outlive_their_daemon() {
    let mut daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let (mut near, mut far) = connected(&service);
    exchange(&mut near, &mut far, 1000);
    let memory = service.alloc(4096).expect("memory");
    daemon.end(Signal::KILL);
    for len in [1, 1000, 100_000] {
        exchange(&mut near, &mut far, len);
        exchange(&mut far, &mut near, len);
    }
    let lent = near.lend(memory, 100);
    match lent.map(|loan| near.reclaim(loan)) {
        Err(ServiceError::DaemonGone) => {}
        Ok(Err(reclaim)) if matches!(reclaim.error, ServiceError::DaemonGone) => {}
        other => panic!("{other:?}"),
    }
}

/// A process that is killed resets its connections, also if the daemon was killed before.
#[test]
fn the_death_of_a_process_is_noticed_with_and_without_its_daemon() {
    for without_daemon in [false, true] {
        let mut daemon = DaemonProcess::start_with(true);
        let service = daemon.attach();
        let listener = service.listen(0, 1).expect("listens");
        let at = listener.local_addr().expect("an address");
        let mut child = daemon.start_sender(at, false, true);
        let mut stream = listener.accept_timeout(LIMIT).expect("accepts");
        assert!(stream.is_direct());
        let mut bytes = vec![0; 1 << 16];
        let mut left = SENT;
        while left > 0 {
            left -= stream.recv(&mut bytes).expect("receives");
        }
        if without_daemon {
            daemon.end(Signal::KILL);
        }
        child.kill().expect("kills");
        child.wait().expect("ends");
        stream.set_read_timeout(Some(LIMIT));
        let reset = stream.recv(&mut bytes);
        assert!(
            matches!(reset, Err(ServiceError::Reset(Reset::ByPeer))),
            "{reset:?}"
        );
    }
}

/// Who asks for a descriptor before the connection is made gets it from the daemon.
#[test]
fn a_connection_requested_with_a_descriptor_goes_through_the_daemon() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let listener = service.listen(0, 1).expect("listens");
    let at = listener.local_addr().expect("an address");
    let mut pending = service.connect_start(at).expect("starts");
    let mut far = listener.accept_timeout(LIMIT).expect("accepts");
    let near = std::iter::from_fn(|| Some(pending.finish().expect("connects")));
    let mut near = near.flatten().next().expect("a stream");
    assert!(!near.is_direct() && !far.is_direct());
    near.readiness().expect("a descriptor");
    far.readiness().expect("a descriptor");
    let mut listener = service.listen(0, 1).expect("listens");
    listener.readiness().expect("a descriptor");
    let at = listener.local_addr().expect("an address");
    let near = service.connect(at).expect("connects");
    let mut far = listener.accept_timeout(LIMIT).expect("accepts");
    assert!(!near.is_direct());
    far.readiness().expect("a descriptor");
}

/// The daemon's metrics count the memory of direct connections, until both ends have left them.
#[test]
fn memory_of_direct_connections_is_counted() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let used = || daemon.metric("headworks_memory_used_bytes");
    drop(connected(&service));
    daemon.rests();
    // The memory of the first connection may become free a moment after the connection is gone.
    let mut before = used();
    for _ in 0..3 {
        let (mut near, mut far) = connected(&service);
        assert!(near.is_direct());
        let few = used();
        assert!(few > before, "{few} and {before} bytes");
        // Its ring grows, once the daemon gets to run.
        until("a longer ring", || {
            exchange(&mut near, &mut far, 8 << 20);
            used() >= few + (256 << 10)
        });
        drop((near, far));
        until("the memory is free", || used() <= before);
        before = used();
    }
}

/// The daemon is killed before the listening application has accepted the connection, whether or not it has received it. The
/// connecting end does not wait for ever, whether it waited before or calls afterwards.
#[test]
fn a_connection_that_its_peer_never_accepted_ends_with_the_daemon() {
    for (waits_before, is_received) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let mut daemon = DaemonProcess::start_with(true);
        let (client, server) = (daemon.attach(), daemon.attach());
        let listener = server.listen(0, 1).expect("listens");
        let at = listener.local_addr().expect("an address");
        let mut near = client.connect(at).expect("connects");
        assert!(near.is_direct());
        if is_received {
            until("it is announced", || {
                daemon.metric("headworks_connections") == 2
            });
            // The answer comes behind the connection.
            server.alloc(64).expect("memory");
        }
        near.set_read_timeout(Some(LIMIT));
        let (tell, told) = mpsc::channel();
        let ended = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                if waits_before {
                    tell.send(this_thread()).expect("is heard");
                }
                near.recv(&mut [0; 8])
            });
            if waits_before {
                until_asleep(told.recv().expect("a thread"));
            }
            daemon.end(Signal::KILL);
            waiter.join().expect("no panic")
        });
        let is_over = matches!(
            ended,
            Err(ServiceError::DaemonGone | ServiceError::Reset(_))
        );
        assert!(is_over, "{ended:?}");
        // It goes on to say so, and does not take bytes for ever.
        assert!(near.recv(&mut [0; 8]).is_err());
        near.set_write_timeout(Some(LIMIT));
        let sent = near.send_all(&vec![7; 4 << 20]);
        let is_over = matches!(sent, Err(ServiceError::DaemonGone | ServiceError::Reset(_)));
        assert!(is_over, "{sent:?}");
    }
}

/// A client sends many requests before it receives an answer, as it can over TCP.
#[test]
fn many_short_pieces_fit_before_any_is_received() {
    const PIECE: usize = 100;
    const PIECES: usize = 500;
    let daemon = DaemonProcess::start_with(true);
    let (mut near, mut far) = connected(&daemon.attach());
    assert!(near.is_direct());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 1000];
            loop {
                match far.recv(&mut bytes).expect("receives") {
                    0 => return,
                    len => far.send_all(&bytes[..len]).expect("sends"),
                }
            }
        });
        for _ in 0..PIECES {
            near.send_all(&[7; PIECE]).expect("sends");
        }
        near.end().expect("ends");
        let mut left = PIECE * PIECES;
        while left > 0 {
            left -= near.recv(&mut [0; 4096]).expect("receives");
        }
    });
}

/// Two applications end a connection through the daemon at both ends. One of them exits soon after that, and leaves nothing,
/// although the other keeps its end.
#[test]
fn a_connection_that_both_have_ended_is_not_reset_by_an_exit() {
    let daemon = DaemonProcess::start_with(false);
    let service = daemon.attach();
    let listener = service.listen(0, 8).expect("listens");
    let at = listener.local_addr().expect("an address");
    let mut kept = Vec::new();
    let allocated = || daemon.metric("headworks_memory_allocated_bytes");
    let mut first = 0;
    for round in 0..20 {
        let other = daemon.attach();
        let mut near = other.connect(at).expect("connects");
        let mut far = listener.accept().expect("accepts");
        assert!(!near.is_direct() && !far.is_direct());
        exchange(&mut near, &mut far, 100);
        near.end().expect("ends");
        assert_eq!(far.recv(&mut [0; 8]).expect("the end"), 0);
        far.end().expect("ends");
        assert_eq!(near.recv(&mut [0; 8]).expect("the end"), 0);
        drop((near, other));
        until("one application is left", || {
            daemon.metrics("headworks_application_connections").len() == 1
        });
        kept.push(far);
        match round {
            0 => first = allocated(),
            _ => until("memory of those that exited is free", || {
                allocated() <= first
            }),
        }
    }
    drop(kept);
    daemon.rests();
    let resets = daemon.metric("headworks_application_reset_connections_total");
    assert_eq!(resets, 0);
}

/// In the process that has few descriptors: the daemon's socket, and the address to connect to.
const FEW: [&str; 2] = ["HEADWORKS_TEST_FEW", "HEADWORKS_TEST_FEW_TO"];

/// Without descriptors for the daemon's memory or the peer's, the error says so. It blames neither of them.
#[test]
fn too_few_descriptors_are_named() {
    if let [Some(socket), Some(to)] = FEW.map(std::env::var_os) {
        let to = to.to_str().expect("text").parse().expect("an address");
        return attach_with_few(Path::new(&socket), to);
    }
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let listener = service.listen(0, 8).expect("listens");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let program = std::env::current_exe().expect("this program");
    let name = "direct::too_few_descriptors_are_named";
    let said = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(FEW[0], daemon.socket())
        .env(FEW[1], at.to_string())
        .output()
        .expect("runs");
    assert!(said.status.success(), "{said:?}");
}

fn attach_with_few(socket: &Path, to: SocketAddr) {
    let limit = getrlimit(Resource::Nofile);
    let own = std::fs::read_dir("/proc/self/fd").expect("its own").count() as u64;
    let (mut at_attach, mut at_connect, mut connected) = (0, 0, 0);
    for more in 0..24 {
        let few = Rlimit {
            current: Some(own + more),
            ..limit
        };
        setrlimit(Resource::Nofile, few).expect("a lower limit");
        let attached = Service::attach(socket, "few");
        let ended = attached.as_ref().map(|service| service.connect(to));
        setrlimit(Resource::Nofile, limit).expect("the limit before");
        match ended {
            Err(ServiceError::System { .. } | ServiceError::NoDaemon { .. }) => at_attach += 1,
            Ok(Err(ServiceError::Refused(Refusal::Descriptors))) => at_connect += 1,
            Ok(Ok(_)) => connected += 1,
            Ok(Err(error)) => panic!("{more} more: {error:?}"),
            Err(error) => panic!("{more} more, attaching: {error:?}"),
        }
    }
    assert!(at_attach > 0 && at_connect > 0 && connected > 0);
}
