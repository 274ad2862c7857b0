//! A line over a connected queue pair, on the software RNIC.

#![allow(unsafe_code, reason = "forks")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use headworks_net::{ControlStream, NetError, WaitLimit, clock};
use headworks_net::{ControlTransport, QpConnection, QpStream, QpStreamSetup};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    Access, AllocRequest, BringUp, CqInit, Device, Duration, Instant, Payload, Provider, QpCaps,
    QpInit, QpType, QueuePair, Region, SendFlags, SendOp, SendWr,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A generous time limit: only a test that hangs fails.
fn limit() -> Instant {
    clock::now() + Duration::from_secs(60)
}

/// A fabric of two hosts.
struct Hosts {
    devices: [Arc<dyn Device>; 2],
    _folder: tempfile::TempDir,
}

fn hosts() -> Hosts {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = Registry::open_at(folder.path().join("fabric")).expect("a fabric");
    let provider = SoftProvider::on(fabric);
    let open = |name: &str| {
        provider
            .open(&name.parse().expect("a name"))
            .expect("opens")
    };
    Hosts {
        devices: [open("soft:h1"), open("soft:h2")],
        _folder: folder,
    }
}

/// The connection of a stream is one end of a socket pair: when the other end closes, the stream is cut.
struct SocketConnection(UnixStream);

impl QpConnection for SocketConnection {
    fn is_disconnected(&mut self) -> bool {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.0, &mut byte, flags), Ok((0, _)))
    }

    fn disconnect(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for SocketConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Brings both queue pairs to INIT. The returned closure brings them to RTS.
fn connect(
    devices: &[Arc<dyn Device>; 2],
    one: &mut dyn QueuePair,
    other: &mut dyn QueuePair,
) -> impl FnOnce(&mut dyn QueuePair, &mut dyn QueuePair) + use<> {
    let tuning = ConnectionParams::default();
    let start = |device: &Arc<dyn Device>, qp: &mut dyn QueuePair| {
        BringUp::start(device.info(), qp, tuning, 7, Vec::new()).expect("INIT")
    };
    let mut first = start(&devices[0], one);
    let mut second = start(&devices[1], other);
    move |one, other| first.connect_both(one, &mut second, other).expect("RTS")
}

/// Creates two connected ends of a stream.
fn streams(hosts: &Hosts) -> [QpStream; 2] {
    streams_on(hosts, |end| Box::new(SocketConnection(end)))
}

fn streams_on(
    hosts: &Hosts,
    mut hang: impl FnMut(UnixStream) -> Box<dyn QpConnection>,
) -> [QpStream; 2] {
    setups(hosts).map(|(setup, end)| setup.finish(hang(end)).expect("a stream"))
}

/// Creates the parts of two such ends: connected queue pairs, and the sockets of their connections.
fn setups(hosts: &Hosts) -> [(QpStreamSetup, UnixStream); 2] {
    let [one, other] = &hosts.devices;
    let mut one = QpStreamSetup::new(one).expect("a setup");
    let mut other = QpStreamSetup::new(other).expect("a setup");
    let meet = connect(&hosts.devices, one.queue_pair(), other.queue_pair());
    one.post_receives().expect("receives");
    other.post_receives().expect("receives");
    meet(one.queue_pair(), other.queue_pair());
    let (here, there) = UnixStream::pair().expect("a pair");
    [(one, here), (other, there)]
}

fn lines(hosts: &Hosts) -> [ControlStream; 2] {
    streams(hosts).map(|stream| ControlStream::from_transport(Box::new(stream)))
}

/// Waits until the descriptor is readable, which the stream's timer makes it now and then.
fn wait(on: &impl AsFd, end: Instant) {
    let until = WaitLimit::deadline(end);
    let woken = until.wait_readable("the stream", on);
    woken.expect("the wait ends");
    assert!(clock::now() < end, "no event in time");
}

#[test]
fn bytes_arrive_in_order_for_descriptor_only_waiters() {
    const BYTES: usize = 1 << 20;
    let hosts = hosts();
    let [one, other] = streams(&hosts);
    let all: Vec<u8> = (0..BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    // Both directions at once, in pieces of many sizes.
    let side = |stream: &QpStream| {
        let (mut sent, mut got) = (0, 0);
        let end = limit();
        let mut buffer = [0; 9000];
        while sent < BYTES || got < BYTES {
            let most = (sent % 7001 + 1).min(BYTES - sent);
            let before = (sent, got);
            match stream.send(&all[sent..sent + most]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            let room = got % 8009 + 1;
            match stream.recv(&mut buffer[..room]) {
                Ok(count) => {
                    assert!(count > 0, "the end at {got}");
                    assert!(buffer[..count] == all[got..got + count], "at {got}");
                    got += count;
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            if before == (sent, got) {
                wait(stream, end);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| side(&one));
        side(&other);
    });
}

#[test]
fn unreceived_bytes_keep_the_descriptor_readable() {
    let hosts = hosts();
    let [one, other] = streams(&hosts);
    assert_eq!(one.send(b"two words").expect("sends"), 9);
    let mut word = [0; 3];
    wait(&other, limit());
    for expected in [&b"two"[..], b" wo", b"rds"] {
        // This step takes what there is off the completion queue.
        assert!(!other.is_gone());
        assert!(is_readable(&other), "before {expected:?}");
        assert_eq!(other.recv(&mut word).expect("a word"), expected.len());
        assert_eq!(word, expected);
    }
    wait_until_unreadable(&other);
}

/// Waits until the descriptor is not readable, while nothing is to be received. A late event or the timer may
/// make it readable for a while.
fn wait_until_unreadable(stream: &QpStream) {
    let end = limit();
    loop {
        let nothing = stream.recv(&mut [0; 3]).expect_err("nothing");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        if !is_readable(stream) {
            break;
        }
        assert!(clock::now() < end, "it stays readable");
    }
}

fn is_readable(stream: &QpStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).expect("polls") > 0
}

#[test]
fn a_line_carries_long_messages_to_a_reader_that_is_slow() {
    let hosts = hosts();
    let [mut one, mut other] = lines(&hosts);
    let full = (0..).find_map(|_| one.send_control(&[7; 60_000]).err());
    assert!(matches!(full, Some(NetError::Full)));
    // More is sent than fits: the rest goes when the other side reads, without a further call of `flush`.
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                let message = other.recv_control_wait(limit()).expect("a message");
                assert_eq!(message, [7; 60_000]);
            }
            other.send_control(b"enough").expect("sends");
        });
        let end = limit();
        loop {
            wait(&one, end);
            if let Some(message) = one.recv_control().expect("open") {
                break assert_eq!(message, b"enough");
            }
        }
    });
}

#[test]
fn messages_sent_before_the_end_arrive_before_it() {
    let hosts = hosts();
    let [mut one, mut other] = lines(&hosts);
    for at in 0..10u8 {
        one.send_control(&[at; 1000]).expect("sends");
    }
    drop(one);
    assert!(other.peer_gone());
    for at in 0..10u8 {
        assert_eq!(
            other.recv_control_wait(limit()).expect("a message"),
            [at; 1000]
        );
    }
    let end = other.recv_control_wait(limit()).expect_err("the end");
    assert!(matches!(end, NetError::PeerGone), "{end}");
    let end = other.send_control(b"x").expect_err("the end");
    assert!(matches!(end, NetError::PeerGone), "{end}");
}

/// Creates a queue pair that belongs to no stream, and memory for it.
fn raw_queue_pair(device: &Arc<dyn Device>) -> (Box<dyn QueuePair>, Region) {
    let pd = device.alloc_pd().expect("a domain");
    let cq = device.create_cq(&CqInit {
        depth: 64,
        ..CqInit::default()
    });
    let cq = cq.expect("a queue");
    let buffer = device.alloc(&AllocRequest::of(8192)).expect("memory");
    let region = pd.register(&buffer, Access::LOCAL_WRITE).expect("a region");
    let qp = pd.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        caps: QpCaps::default(),
        signal_all: false,
    });
    (qp.expect("a queue pair"), region)
}

/// Creates a stream, and a raw queue pair connected with it that breaks the protocol.
fn stream_to_raw_peer(hosts: &Hosts) -> (QpStream, UnixStream, Box<dyn QueuePair>, Region) {
    let mut setup = QpStreamSetup::new(&hosts.devices[0]).expect("a setup");
    let (mut qp, region) = raw_queue_pair(&hosts.devices[1]);
    let meet = connect(&hosts.devices, setup.queue_pair(), &mut *qp);
    setup.post_receives().expect("receives");
    meet(setup.queue_pair(), &mut *qp);
    let (end, other) = UnixStream::pair().expect("a pair");
    let stream = setup
        .finish(Box::new(SocketConnection(end)))
        .expect("a stream");
    (stream, other, qp, region)
}

fn ends(stream: &QpStream) {
    let end = limit();
    while !stream.is_gone() {
        wait(stream, end);
    }
    assert_eq!(stream.recv(&mut [0; 8]).expect("the end"), 0);
    // A program that only waits must be woken, too.
    assert!(is_readable(stream));
}

#[test]
fn a_peer_that_keeps_to_nothing_ends_the_stream() {
    // No bytes; less than a number; a number of receives that were never posted (the memory may hold anything
    // but zeros); more than a receive has room for.
    for (len, number) in [(0, 0), (7, 0), (8, 1), (20, u64::MAX), (4097, 0)] {
        let hosts = hosts();
        let (stream, _other, mut qp, region) = stream_to_raw_peer(&hosts);
        let number = u64::to_le_bytes(number);
        let mut bytes = vec![0; len];
        let head = len.min(8);
        bytes[..head].copy_from_slice(&number[..head]);
        let sge = [region.sge(0, len as u32)];
        let payload = match len {
            0..=20 => Payload::Inline(&bytes),
            _ => Payload::Gather(&sge),
        };
        let sent = qp.post_send(&[SendWr {
            wr_id: 0,
            op: SendOp::Send,
            payload,
            flags: SendFlags::SIGNALED,
        }]);
        sent.unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        ends(&stream);
    }
}

#[test]
fn a_peer_that_vanishes_without_a_word_is_missed() {
    let hosts = hosts();
    let (stream, _other, qp, _region) = stream_to_raw_peer(&hosts);
    assert!(!stream.is_gone());
    // No request is in flight that could fail, and the connection is not cut.
    drop(qp);
    ends(&stream);
}

/// Runs `f` in a forked child and returns what it returned. A child that hangs is killed.
fn run_in_forked_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `f`, which uses and drops a stream, and then exits at once.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            // SAFETY: the timer belongs to the child.
            unsafe { libc::alarm(60) };
            let code = i32::from(f());
            // SAFETY: this ends the child without running any code of the parent.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the process is our own child, and the place for its status is valid.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child hung: {status:#x}");
            libc::WEXITSTATUS(status) == 1
        }
    }
}

/// Whether every call is refused, as it must be in a child.
fn is_refused(stream: &QpStream) -> bool {
    let broken = |outcome: io::Result<usize>| {
        outcome.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    broken(stream.send(b"child")) && broken(stream.recv(&mut [0; 8])) && stream.is_gone()
}

/// Checks that the stream still works in both directions.
fn passes_words(streams: &[&QpStream; 2]) {
    for [from, to] in [*streams, [streams[1], streams[0]]] {
        assert_eq!(from.send(b"word").expect("sends"), 4);
        let end = limit();
        let mut word = [0; 8];
        loop {
            match to.recv(&mut word) {
                Ok(count) => break assert_eq!(word[..count], *b"word"),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            wait(to, end);
        }
    }
    streams
        .iter()
        .for_each(|stream| wait_until_unreadable(stream));
}

#[test]
fn stream_use_in_a_forked_child_spares_its_parent() {
    let hosts = hosts();
    let [one, other] = streams(&hosts);
    passes_words(&[&one, &other]);
    let mut held = Some(one);
    for _ in 0..2 {
        // Each call gets a child of its own: what the first call does must not hide the effect of the next.
        let one = held.as_ref().expect("the child's copy is gone, not ours");
        assert!(run_in_forked_child(|| one.is_gone()));
        wait_until_unreadable(one);
        assert!(run_in_forked_child(|| one.recv(&mut [0; 8]).is_err()));
        wait_until_unreadable(one);
        assert!(run_in_forked_child(|| one.send(b"child").is_err()));
        wait_until_unreadable(one);
        assert!(run_in_forked_child(|| is_refused(one)));
        wait_until_unreadable(one);
        // The child takes and drops its copy; the parent keeps its own.
        assert!(run_in_forked_child(|| {
            drop(held.take());
            true
        }));
        let one = held.as_ref().expect("the child's copy is gone, not ours");
        wait_until_unreadable(one);
        assert!(!other.is_gone(), "it was cut by a child");
        passes_words(&[one, &other]);
    }
}

#[test]
fn setups_made_before_a_fork_belong_to_the_parent() {
    let hosts = hosts();
    let [(one, here), (other, there)] = setups(&hosts);
    let other = other
        .finish(Box::new(SocketConnection(there)))
        .expect("a stream");
    let mut one = Some((one, Box::new(SocketConnection(here))));
    // The child takes its copy; the parent keeps its own.
    assert!(run_in_forked_child(|| {
        let (setup, thread) = one.take().expect("not taken");
        let stream = setup.finish(thread).expect("a stream");
        is_refused(&stream)
    }));
    assert!(!other.is_gone(), "it was cut by a child");
    let (setup, thread) = one.take().expect("the child's copy is gone, not ours");
    let one = setup.finish(thread).expect("a stream");
    passes_words(&[&one, &other]);
}

/// Pauses a step in the middle, on request, until it is released.
struct PausingConnection {
    thread: SocketConnection,
    gate: UnixStream,
    stops: Arc<AtomicBool>,
}

impl QpConnection for PausingConnection {
    fn is_disconnected(&mut self) -> bool {
        if self.stops.swap(false, Ordering::SeqCst) {
            self.gate.write_all(b"!").expect("says so");
            self.gate.read_exact(&mut [0]).expect("goes on");
        }
        self.thread.is_disconnected()
    }

    fn disconnect(&mut self) {
        self.thread.disconnect();
    }
}

impl AsFd for PausingConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }
}

#[test]
fn a_child_forked_in_the_middle_of_a_step_does_not_wait_for_its_end() {
    let hosts = hosts();
    let (gate, key) = UnixStream::pair().expect("a pair");
    let stops = Arc::new(AtomicBool::new(false));
    let [one, other] = streams_on(&hosts, |end| {
        Box::new(PausingConnection {
            thread: SocketConnection(end),
            gate: gate.try_clone().expect("a descriptor"),
            stops: stops.clone(),
        })
    });
    stops.store(true, Ordering::SeqCst);
    let one = Arc::new(one);
    let steps = one.clone();
    thread::scope(|scope| {
        // Moved here, so that a failure below closes it and the paused step does not wait for ever.
        let mut key = key;
        let stepping = scope.spawn(move || steps.is_gone());
        key.read_exact(&mut [0]).expect("it has stopped");
        assert!(run_in_forked_child(|| is_refused(&one)));
        // The child drops the stream as its last owner, since it does not have the thread that is the other
        // owner.
        assert!(run_in_forked_child(|| {
            // SAFETY: the child does not use the value again before it exits.
            drop(unsafe { std::ptr::read(&raw const *one) });
            true
        }));
        key.write_all(b"!").expect("goes on");
        assert!(!stepping.join().expect("steps"));
    });
    passes_words(&[&one, &other]);
}
