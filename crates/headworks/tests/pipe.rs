//! A pipe within one process: cases that only its sources and sinks can arrange. Runs on the two devices of
//! `HEADWORKS_IBV`, if they are named.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use headworks::net::{ControlStream, NetError, clock, dial_tcp_wait};
use headworks::pipe::{Direction, Pipe, PipeError, VERSION, WaitOptions};
use headworks::runtime::testing;
use headworks::verbs::{DeviceName, Duration, Instant};

/// Time limit of a test: only a hang exceeds it.
const LIMIT: Duration = Duration::from_secs(90);
/// Pieces of a stream: many more than may pass before an interrupt is noticed.
const PIECES: u64 = 50_000;
/// Number of the piece at which the interrupt is raised.
const INTERRUPTED_AT: u64 = 1000;
/// Pieces between the two sides: more than the sender holds back to send them together, and fewer than the
/// ring has room for. So neither side ever has to wait for the ring.
const AHEAD: u64 = 32;

/// Counts the pieces that a side has passed on, and raises the interrupt at its piece.
struct Count<'a> {
    ours: &'a AtomicU64,
    theirs: &'a AtomicU64,
    raise: Option<UnixStream>,
}

impl Count<'_> {
    fn next(&mut self) -> io::Result<()> {
        let before = self.ours.fetch_add(1, Ordering::AcqRel);
        match &mut self.raise {
            Some(raise) if before == INTERRUPTED_AT => raise.write_all(b"!"),
            _ => Ok(()),
        }
    }

    fn so_far(&self) -> u64 {
        self.ours.load(Ordering::Acquire)
    }

    fn wait_for_theirs(&self, least: u64) {
        let began = clock::now();
        while self.theirs.load(Ordering::Acquire) < least {
            assert!(clock::now().since(began) < LIMIT, "no progress there");
            thread::yield_now();
        }
    }
}

/// A source of single bytes. A slow one yields the next only when the other side has almost all so far.
struct Source<'a>(Count<'a>, bool);

impl Read for Source<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let so_far = self.0.so_far();
        if so_far == PIECES {
            return Ok(0);
        }
        if self.1 {
            self.0.wait_for_theirs(so_far.saturating_sub(AHEAD));
        }
        bytes[0] = 7;
        self.0.next().map(|()| 1)
    }
}

/// A sink of single bytes. A slow one takes the next only when the other side is ahead.
struct Sink<'a>(Count<'a>, bool);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1 {
            let ahead = self.0.so_far() + AHEAD;
            self.0.wait_for_theirs(ahead.min(PIECES));
        }
        self.0.next().map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the devices of both sides.
fn devices() -> [DeviceName; 2] {
    let names =
        testing::devices().unwrap_or_else(|| [headworks::DEFAULT_DEVICE; 2].map(str::to_owned));
    names.map(|name| name.parse().expect("a name"))
}

/// Interrupts the slow side: the sender, or else the receiver. Returns what both sides end with.
fn interrupted(sends: bool) -> [Result<u64, PipeError>; 2] {
    let [one, other] = devices();
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let (interrupt, raise) = UnixStream::pair().expect("a pair");
    let raise = Some(raise);
    let patience = |slow: bool| WaitOptions {
        interrupt: slow.then(|| interrupt.as_fd()),
        deadline: Some(clock::now() + LIMIT),
    };
    let (sends_raise, receives_raise) = if sends { (raise, None) } else { (None, raise) };
    let direction = Direction::ToListener;
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let pipe = Pipe::listen(&one, "a", patience(!sends))?;
            let Pipe::Receiver(receiver) = pipe else {
                panic!("the wrong way");
            };
            let count = Count {
                ours: &received,
                theirs: &sent,
                raise: receives_raise,
            };
            receiver.receive_into(&mut Sink(count, !sends), |_| {})
        });
        let sending = scope.spawn(|| {
            let pipe = Pipe::connect(&other, "a", direction, patience(sends))?;
            let Pipe::Sender(sender) = pipe else {
                panic!("the wrong way");
            };
            let count = Count {
                ours: &sent,
                theirs: &received,
                raise: sends_raise,
            };
            sender.send_from(&mut Source(count, sends), |_| {})
        });
        [sending, receiving].map(|side| side.join().expect("ends"))
    })
}

/// Runs the test `part` in a process with a fabric of its own: pipes connect in the fabric that the process's
/// environment names.
fn run_child(part: &str) {
    let fabric = tempfile::tempdir().expect("a directory");
    let registry = fabric.path().join("fabric");
    let status = Command::new("/proc/self/exe")
        .args(["--exact", part, "--nocapture"])
        .env("HEADWORKS_FABRIC", &registry)
        .env(PLAYS, "1")
        .status();
    assert!(status.expect("starts").success());
    assert!(!registry.exists(), "something is left");
}

#[test]
fn a_side_that_never_has_to_wait_is_interrupted_all_the_same() {
    run_child("plays_both_sides");
}

#[test]
fn a_listener_at_an_address_turns_strangers_away_and_waits_on() {
    run_child("plays_strangers");
}

#[test]
fn many_callers_that_stall_do_not_keep_out_the_next() {
    run_child("plays_crowds");
}

#[test]
fn a_listener_at_a_name_of_two_addresses_is_reached_at_both() {
    run_child("plays_two_addresses");
}

/// Environment variable that a test above sets in its child process.
const PLAYS: &str = "HEADWORKS_TEST_PLAYS";

#[test]
fn plays_both_sides() {
    if std::env::var_os(PLAYS).is_none() {
        return;
    }
    for sends in [true, false] {
        let [sending, receiving] = interrupted(sends);
        let (slow, quick) = if sends {
            (sending, receiving)
        } else {
            (receiving, sending)
        };
        assert!(matches!(slow, Err(PipeError::Interrupted)), "{slow:?}");
        let Err(PipeError::PeerFailed(why)) = quick else {
            panic!("{quick:?}");
        };
        assert_eq!(why, "interrupted");
    }
}

fn until() -> Instant {
    clock::now() + LIMIT
}

fn call(address: &str) -> ControlStream {
    dial_tcp_wait(address, until()).expect("it listens")
}

fn is_turned_away(control: &mut ControlStream) {
    let end = control.recv_control_wait(until()).expect_err("turned away");
    assert!(matches!(end, NetError::PeerGone), "{end}");
}

/// Frames a control message.
fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Calls, greets and reads the welcome.
fn greet(address: &str) -> TcpStream {
    let hello = [b"H", &VERSION.to_le_bytes()[..], &[0]].concat();
    let mut greets = TcpStream::connect(address).expect("it listens");
    greets.write_all(&frame(&hello)).expect("sends");
    let mut welcome = [0; 7];
    greets.read_exact(&mut welcome).expect("a welcome");
    let expected = frame(&[b"W", &VERSION.to_le_bytes()[..]].concat());
    assert_eq!(welcome[..], expected);
    greets
}

/// Makes calls that are no pipes of this version; each is turned away.
fn strange_calls(address: &str) {
    let nowhere = [b"H", &VERSION.to_le_bytes()[..], &[9]].concat();
    // Another protocol, an unknown greeting, an unknown direction.
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame(b"?"),
        frame(&nowhere),
    ] {
        drop(call(address));
        let mut stranger = TcpStream::connect(address).expect("it listens");
        stranger.write_all(&bytes).expect("sends");
        // The end may be a reset, if not everything was read.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let mut other = call(address);
    let theirs = VERSION + 8;
    let hello = [b"H", &theirs.to_le_bytes()[..], &[0]].concat();
    other.send_control(&hello).expect("sends");
    let welcome = other.recv_control_wait(until()).expect("a version");
    assert_eq!(welcome, [b"W", &VERSION.to_le_bytes()[..]].concat());
    is_turned_away(&mut other);
    // A caller that sends nothing is turned away in time, as is one that greets and does not go on.
    is_turned_away(&mut call(address));
    for noise in [Some(&b"GET / HTTP/1.1"[..]), Some(b"HWbu"), None] {
        let mut greets = greet(address);
        if let Some(noise) = noise {
            greets.write_all(noise).expect("sends");
            let _ = greets.read_to_end(&mut Vec::new());
        }
    }
}

/// Returns an address that was free a moment ago.
fn free_address() -> String {
    let found = TcpListener::bind("127.0.0.1:0").expect("a port");
    found.local_addr().expect("its address").to_string()
}

fn patience() -> WaitOptions<'static> {
    WaitOptions {
        interrupt: None,
        deadline: Some(until()),
    }
}

/// Listens at `address`, and returns what the other side sends.
fn receive(device: &DeviceName, address: &str) -> Result<Vec<u8>, PipeError> {
    let Pipe::Receiver(receiver) = Pipe::listen(device, address, patience())? else {
        panic!("the wrong way");
    };
    let mut sink = Vec::new();
    receiver.receive_into(&mut sink, |_| {}).map(|_| sink)
}

fn send_hello(device: &DeviceName, address: &str) {
    let pipe = Pipe::connect(device, address, Direction::ToListener, patience());
    let Pipe::Sender(sender) = pipe.expect("it is accepted") else {
        panic!("the wrong way");
    };
    sender.send_from(&mut &b"hello"[..], |_| {}).expect("sends");
}

#[test]
fn plays_strangers() {
    if std::env::var_os(PLAYS).is_none() {
        return;
    }
    let address = free_address();
    let [one, other] = devices();
    let received = thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&one, &address));
        strange_calls(&address);
        // One after another, they would take longer than the next caller waits for an answer.
        let mut silent: Vec<_> = (0..7).map(|_| call(&address)).collect();
        send_hello(&other, &address);
        silent.iter_mut().for_each(is_turned_away);
        receiving.join().expect("ends")
    });
    assert_eq!(received.expect("receives"), b"hello");
}

#[test]
fn plays_crowds() {
    if std::env::var_os(PLAYS).is_none() {
        return;
    }
    let [one, other] = devices();
    for (silent, stalling) in [(40, 0), (200, 0), (0, 20), (200, 20)] {
        let address = free_address();
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&one, &address));
            let silent: Vec<_> = (0..silent).map(|_| call(&address)).collect();
            // The listener may not be there yet.
            drop(call(&address));
            let stalling: Vec<_> = (0..stalling).map(|_| greet(&address)).collect();
            send_hello(&other, &address);
            drop((silent, stalling));
            let received = receiving.join().expect("ends");
            assert_eq!(received.expect("receives"), b"hello");
        });
    }
}

#[test]
fn plays_two_addresses() {
    if std::env::var_os(PLAYS).is_none() {
        return;
    }
    let found = ("localhost", 0).to_socket_addrs().expect("it resolves");
    let found: Vec<_> = found.map(|at| at.ip()).collect();
    let both = [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ];
    if !both.iter().all(|ip| found.contains(ip)) {
        return println!("skipped: localhost has only the addresses {found:?}");
    }
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        return println!("skipped: no IPv6 loopback address: {error}");
    }
    let [one, other] = devices();
    for ip in both {
        let free: SocketAddr = free_address().parse().expect("an address");
        let (name, to) = (
            format!("localhost:{}", free.port()),
            SocketAddr::new(ip, free.port()),
        );
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&one, &name));
            send_hello(&other, &to.to_string());
            let received = receiving.join().expect("ends");
            assert_eq!(received.expect("receives"), b"hello");
        });
    }
}
