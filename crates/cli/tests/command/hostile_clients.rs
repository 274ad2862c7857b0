//! Malicious applications and callers, and real daemons that keep serving.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use headworks::client::socket_message::Reply;
use headworks::service::{Refusal, Service, ServiceError};
use headworks_net::packets::{PacketSocket, RecvOutcome};
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::{Resource, Rlimit, Signal, prlimit};

use crate::daemon::{Daemons, DataPath, exchange, locked, serve, test_on_both_paths, to};
use crate::test_env::{CommandProcess, TestEnv, create, sleep_for, until};

/// Returns a socket whose last close blocks, because it lingers with unread bytes; and the socket at its
/// other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    one.set_nonblocking(true).unwrap();
    // Small buffers, because a test may have many of these sockets.
    set_socket_send_buffer_size(&one, 4096).unwrap();
    set_socket_recv_buffer_size(&other, 4096).unwrap();
    while one.write(&[0; 1 << 16]).is_ok() {}
    one.set_nonblocking(false).unwrap();
    set_socket_linger(&one, Some(Duration::from_secs(600))).unwrap();
    (one, other)
}

/// Runs `act` while a daemon is stopped. A file that is sent meanwhile and dropped here exists only in the
/// daemon's queue when the daemon goes on. Otherwise this process might close it last, and linger.
fn while_stopped<T>(daemon: &CommandProcess, act: impl FnOnce() -> T) -> T {
    daemon.signal(Signal::STOP);
    until("the stop of the daemon", || daemon.stat(3) == "T");
    let done = act();
    daemon.signal(Signal::CONT);
    done
}

#[test]
fn slow_closing_descriptors_keep_no_client_waiting() {
    let _one = locked();
    let daemons = Daemons::start();
    let socket = daemons.socket(0);
    let mut others = Vec::new();
    for way in 0..3 {
        let client = PacketSocket::dial(&socket).unwrap();
        let (slow, other) = lingering();
        others.push(other);
        let flags = SocketFlags::CLOEXEC;
        let (pair, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        while_stopped(&daemons.sides[0], || {
            let handed = match way {
                // Three ways: the file itself; a socket that holds it unread; no such file, and it stays
                // unread in the daemon's own socket.
                0 => slow.as_fd(),
                1 => {
                    let files = [slow.as_fd()];
                    let mut space =
                        [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut with = SendAncillaryBuffer::new(&mut space);
                    assert!(with.push(SendAncillaryMessage::ScmRights(&files)));
                    let bytes = [io::IoSlice::new(b"inside")];
                    sendmsg(&far, &bytes, &mut with, SendFlags::empty()).unwrap();
                    pair.as_fd()
                }
                _ => {
                    client.send(b"nonsense", None).unwrap();
                    slow.as_fd()
                }
            };
            client.send(b"nonsense", Some(handed)).unwrap();
            drop((slow, client));
        });
    }
    let (done, is_done) = mpsc::channel();
    let socket = daemons.socket(0);
    thread::spawn(move || done.send(Service::attach(&socket, "another").is_ok()));
    until("an answer to another", || is_done.try_recv() == Ok(true));
    // The slow sockets would still linger.
    drop(others);
    daemons.end();
}

/// Starts two daemons. The one of host 0 may have `most` descriptors. Returns its socket and its log file,
/// too.
fn with_descriptors(path: DataPath, most: u32) -> (Daemons, PathBuf, PathBuf) {
    let mut daemons = Daemons::start_on(path);
    daemons.sides[0].signal(Signal::TERM);
    daemons.sides[0].wait();
    let args = daemons.configured_args(0);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let whole = daemons.fabric.headworks(&args);
    let log = daemons.fabric.file("log");
    let script = format!("ulimit -n {most}; exec \"$@\"");
    let set = whole
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut limited = Command::new("sh");
    limited
        .args(["-c", &script, "sh"])
        .arg(whole.get_program())
        .args(whole.get_args())
        .envs(set)
        .stderr(create(&log));
    daemons.sides[0] = CommandProcess::start(&mut limited);
    let socket = daemons.socket(0);
    until("the daemon", || Service::attach(&socket, "looks").is_ok());
    (daemons, socket, log)
}

/// Sends a packet with files.
fn send_with(client: &PacketSocket, files: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    assert!(with.push(SendAncillaryMessage::ScmRights(files)));
    let bytes = [io::IoSlice::new(b"nonsense")];
    sendmsg(client, &bytes, &mut with, SendFlags::NOSIGNAL).unwrap();
}

/// Returns the reason that a client is told when its session ends.
fn last_word(client: &PacketSocket) -> Refusal {
    let mut last = None;
    until("a last word", || match client.recv() {
        Ok(RecvOutcome::Packet(packet)) => {
            last = Some(Reply::decode(&packet.bytes).unwrap());
            false
        }
        Ok(RecvOutcome::WouldBlock) => false,
        _ => true,
    });
    match last {
        Some(Reply::Over { why }) => why,
        other => panic!("{other:?}"),
    }
}

test_on_both_paths!(
    a_client_with_too_many_unclosed_descriptors_is_rejected,
    a_daemon_without_descriptors_says_so_and_goes_on,
    a_daemon_without_memory_says_so_and_goes_on,
);

fn a_client_with_too_many_unclosed_descriptors_is_rejected(path: DataPath) {
    let _one = locked();
    // A quarter of the descriptors may wait to be closed.
    let (mut daemons, socket, log) = with_descriptors(path, 300);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    serve(&server, 7000);
    let stream = client.connect(to(1, 7000)).unwrap();
    path.check(&stream);
    exchange(stream, 100_000).unwrap();
    // The daemon is stopped once for all clients, because a signal ends a close that blocks.
    let (clients, others): (Vec<_>, Vec<_>) = while_stopped(&daemons.sides[0], || {
        let client = |at| {
            let client = PacketSocket::dial(&socket).unwrap();
            let (slow, other) = lingering();
            // Either one socket that is no stream pair, or two files at once.
            match at % 2 {
                0 => send_with(&client, &[slow.as_fd()]),
                _ => send_with(&client, &[slow.as_fd(), slow.as_fd()]),
            }
            (client, other)
        };
        (0..40).map(client).unzip()
    });
    // All of these clients were admitted before any file was waiting to be closed.
    for client in clients {
        assert_eq!(last_word(&client), Refusal::Misuse);
    }
    // A later client is turned away, whatever it hands over.
    for _ in 0..50 {
        let client = PacketSocket::dial(&socket).unwrap();
        let (file, _far) = UnixStream::pair().unwrap();
        // The client may have been turned away already.
        let _ = client.send(b"nonsense", Some(file.as_fd()));
        assert_eq!(last_word(&client), Refusal::Limit);
    }
    let refused = Service::attach(&socket, "another").unwrap_err();
    assert!(
        matches!(refused, ServiceError::Refused(Refusal::Limit)),
        "{refused}"
    );
    // Existing connections go on.
    exchange(client.connect(to(1, 7000)).unwrap(), 100_000).unwrap();
    drop(others);
    until("the closing of the files", || {
        Service::attach(&socket, "later").is_ok()
    });
    drop((client, server));
    for host in 0..2 {
        daemons.sides[host].signal(Signal::TERM);
        assert_eq!(daemons.sides[host].wait().code(), Some(0));
    }
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("are not closed yet"), "{said}");
    assert!(said.lines().count() < 30, "{said}");
    daemons.fabric.is_clean();
}

fn a_daemon_without_descriptors_says_so_and_goes_on(path: DataPath) {
    let _one = locked();
    // When the daemon starts, the error is one line.
    for most in [12, 14, 16] {
        let limited = format!("ulimit -n {most}; exec \"$0\" \"$@\"");
        let fabric = TestEnv::new().with_launcher(&["sh", "-c", &limited]);
        let socket = fabric.file("few.sock").display().to_string();
        let words = ["daemon", "--port", "17472", "--socket", &socket];
        let line = CommandProcess::start(&mut fabric.headworks(&words)).expect_exit(2);
        // Its registry entry may stay until the next process opens a device: removing it needs a descriptor.
        assert!(line.contains("Too many open files"), "{line}");
    }
    let (mut daemons, socket, log) = with_descriptors(path, 64);
    let client = daemons.attach(0);
    let server = daemons.attach(1);
    serve(&server, 7000);
    let stream = client.connect(to(1, 7000)).unwrap();
    path.check(&stream);
    exchange(stream, 100_000).unwrap();
    let crowd: Vec<_> = (0..90)
        .map(|_| PacketSocket::dial(&socket).unwrap())
        .collect();
    let all = format!("/proc/{}/fd", daemons.sides[0].0.id());
    until("its last descriptor", || {
        std::fs::read_dir(&all).unwrap().count() >= 64
    });
    sleep_for(Duration::from_millis(100));
    // Existing connections go on.
    exchange(client.connect(to(1, 7000)).unwrap(), 100_000).unwrap();
    drop(crowd);
    until("room", || Service::attach(&socket, "comes later").is_ok());
    drop((client, server));
    for host in 0..2 {
        daemons.sides[host].signal(Signal::TERM);
        assert_eq!(daemons.sides[host].wait().code(), Some(0));
    }
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("raise the limit of open files"), "{said}");
    assert!(said.lines().count() < 12, "{said}");
    daemons.fabric.is_clean();
}

#[test]
fn a_host_that_answers_nothing_is_given_up() {
    let _one = locked();
    let daemons = Daemons::start();
    // It accepts the daemon's stream, and says nothing.
    let silent = TcpListener::bind(("127.0.0.9", 17471)).unwrap();
    let client = daemons.attach(0);
    let began = std::time::Instant::now();
    let at = (std::net::Ipv4Addr::new(127, 0, 0, 9), 7000);
    let refused = client.connect(at).map(drop).unwrap_err();
    assert!(
        matches!(refused, ServiceError::Refused(Refusal::TimedOut)),
        "{refused}"
    );
    assert!(
        began.elapsed() > Duration::from_secs(5),
        "it was waited for"
    );
    // The other daemon is stopped, and its kernel accepts for it.
    serve(&daemons.attach(1), 7000);
    let stopped = while_stopped(&daemons.sides[1], || client.connect(to(1, 7000)).map(drop));
    assert!(
        matches!(stopped, Err(ServiceError::Refused(Refusal::TimedOut))),
        "{stopped:?}"
    );
    // An answer that comes too late harms nothing.
    exchange(client.connect(to(1, 7000)).unwrap(), 100_000).unwrap();
    drop((silent, client));
    daemons.end();
}

fn a_daemon_without_memory_says_so_and_goes_on(path: DataPath) {
    let _one = locked();
    // When the daemon starts, the error is one line.
    let fabric = TestEnv::new().with_launcher(&["sh", "-c", "ulimit -f 16; exec \"$0\" \"$@\""]);
    let socket = fabric.file("small.sock").display().to_string();
    let words = ["daemon", "--port", "17472", "--socket", &socket];
    let line = CommandProcess::start(&mut fabric.headworks(&words)).expect_exit(2);
    assert!(line.contains("file size limit"), "{line}");
    fabric.is_clean();
    // While the daemon serves, an application that needs more memory is refused, and others are not.
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    serve(&server, 7000);
    let stream = client.connect(to(1, 7000)).unwrap();
    path.check(&stream);
    exchange(stream, 100_000).unwrap();
    let limit = |current| {
        let side = daemons.sides[0].pid();
        let new = Rlimit {
            current,
            maximum: None,
        };
        prlimit(Some(side), Resource::Fsize, new).unwrap()
    };
    let before = limit(Some(64 << 10));
    let refused = Service::attach(daemons.socket(0), "needs memory").unwrap_err();
    assert!(
        matches!(refused, ServiceError::Refused(Refusal::Memory)),
        "{refused}"
    );
    exchange(client.connect(to(1, 7000)).unwrap(), 100_000).unwrap();
    limit(before.current);
    drop(daemons.attach(0));
    drop((client, server));
    daemons.end();
}
