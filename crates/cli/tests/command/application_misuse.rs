//! Applications that misuse the service, each in a process of its own, beside one that does nothing wrong.
//! The latter's bytes arrive whole all the while.
#![allow(
    unsafe_code,
    reason = "forks, and closes descriptors that other objects own"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use headworks::service::{
    Interest, MESSAGE_MAX, Poller, Refusal, Reset, Rights, Service, ServiceError, Stream,
};
use headworks_net::clock;
use headworks_verbs::Duration;

use crate::daemon::{Daemons, DataPath, echo, exchange, locked, test_on_both_paths, to};
use crate::kills::{Leftovers, leftovers_at_rest};
use crate::test_env::{CommandProcess, until};

/// Misuse that the started process commits, and the socket that it attaches to.
const DOES: &str = "HEADWORKS_TEST_MISUSE";
const SOCKET: &str = "HEADWORKS_TEST_MISUSE_SOCKET";
/// Port that echoes everything, port at which nobody reads, port at which nobody listens.
const ECHO: u16 = 7000;
const HELD: u16 = 7001;
const DEAD: u16 = 7002;
/// Most memory, in bytes, that two connections take at one end if one of them is never read: their rings.
const HELD_MAX: f64 = 24e6;

/// Application that does nothing wrong: a connection whose bytes are echoed.
struct Bystander {
    rounds: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ServiceError>>,
}

impl Bystander {
    fn of(mut stream: Stream) -> Self {
        let (rounds, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, over) = (rounds.clone(), is_over.clone());
        let mut goes_on = move || {
            for round in 0u64.. {
                let len = 1 + (round as usize * 7919) % 50_000;
                let sent: Vec<u8> = (0..len).map(|at| (at as u64 * 31 + round) as u8).collect();
                stream.send_all(&sent)?;
                let (mut came, mut got) = (vec![0; len], 0);
                while got < len {
                    let more = stream.recv(&mut came[got..])?;
                    assert!(more > 0, "ended in round {round}");
                    got += more;
                }
                assert!(came == sent, "round {round}");
                count.store(round + 1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            Ok(())
        };
        let thread = thread::spawn(move || {
            let ended: Result<(), ServiceError> = goes_on();
            ended.inspect_err(|error| eprintln!("the bystander: {error}"))
        });
        Self {
            rounds,
            is_over,
            thread,
        }
    }

    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        until("the bystander", || {
            assert!(
                !self.thread.is_finished(),
                "the bystander's connection failed"
            );
            self.rounds.load(Ordering::Relaxed) > before + 3
        });
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic").expect("unharmed");
    }
}

/// Echoes everything. Returns the number of connections that failed because of the other application.
fn serve(service: &Service) -> Arc<AtomicU64> {
    let resets = Arc::<AtomicU64>::default();
    let listener = service.listen(ECHO, 1 << 10).expect("the port is free");
    let count = resets.clone();
    thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            let count = count.clone();
            thread::spawn(move || {
                let is_direct = stream.is_direct();
                match echo(stream) {
                    Err(ServiceError::Reset(_)) => {}
                    // This end itself finds what the other application wrote into the memory of both, or takes it for the
                    // end of the stream. Otherwise the other application's daemon finds it, and resets the connection.
                    Err(ServiceError::Contract(_)) | Ok(_) if is_direct => {}
                    _ => return,
                }
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    resets
}

/// Starts a process that misuses the service as `does` says.
fn start(daemons: &Daemons, does: &str) -> CommandProcess {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let own = "application_misuse::misuse_by_one_application_harms_no_other::direct";
    command
        .args(["--exact", own, "--nocapture"])
        .env(DOES, does)
        .env(SOCKET, daemons.socket(0))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    CommandProcess::start(&mut command)
}

fn ends_well(mut side: CommandProcess, does: &str) {
    let ended = side.wait();
    assert!(ended.success(), "{does}: {ended}: {}", side.stderr_line());
}

test_on_both_paths!(misuse_by_one_application_harms_no_other);

fn misuse_by_one_application_harms_no_other(path: DataPath) {
    if let Some(does) = std::env::var_os(DOES) {
        let socket = std::env::var_os(SOCKET).expect("a socket");
        return misuse(does.to_str().expect("a name"), &socket);
    }
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let resets = serve(&server);
    // Links stay once they exist, so they are created before the first count.
    serve(&client);
    for host in [0, 1] {
        exchange(client.connect(to(host, ECHO)).unwrap(), 1000).unwrap();
    }
    let before = [0, 1].map(|host| leftovers_at_rest(&daemons, host, None));
    let stream = client.connect(to(1, ECHO)).unwrap();
    path.check(&stream);
    let beside = Bystander::of(stream);
    beside.goes_on();

    let mut scribbler = start(&daemons, "scribbles");
    let many = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 300,
        None => 30,
    };
    let enough = resets.load(Ordering::Relaxed) + many;
    until("its own resets", || {
        beside.thread.is_finished()
            || resets.load(Ordering::Relaxed) >= enough
            || scribbler.has_ended()
    });
    assert!(!scribbler.has_ended(), "{}", scribbler.stderr_line());
    beside.goes_on();
    scribbler.0.kill().unwrap();
    scribbler.wait();
    let said = scribbler.stderr_line();
    assert!(!said.contains("panicked"), "{said}");

    let listener = server.listen(HELD, 1).unwrap();
    let mut idler = start(&daemons, "never reads");
    let mut held = listener.accept().unwrap();
    let sent = fill(&mut held);
    held.set_nonblocking(true);
    for _ in 0..1000 {
        let full = held.send(&[7; 1 << 16]).unwrap_err();
        assert!(matches!(full, ServiceError::WouldBlock), "{full}");
    }
    held.set_nonblocking(false);
    for (host, before) in before.iter().enumerate() {
        let grown = Leftovers::of(&daemons, host).memory - before.memory;
        assert!(grown < HELD_MAX, "host {host}: {grown} bytes for {sent}");
    }
    beside.goes_on();
    idler.0.kill().unwrap();
    idler.wait();
    held.set_deadline(None);
    let reset = held.recv(&mut [0]).unwrap_err();
    assert!(
        matches!(reset, ServiceError::Reset(Reset::ByPeer)),
        "{reset}"
    );
    drop((held, listener));

    // Its objects have descriptors, which only connections through the daemons have.
    let forks: &[&str] = match path {
        DataPath::Daemons => &["forks"],
        DataPath::Direct => &[],
    };
    for does in forks.iter().copied().chain(["closes", "calls nobody"]) {
        ends_well(start(&daemons, does), does);
        beside.goes_on();
    }
    beside.end();
    for (host, before) in before.iter().enumerate() {
        let after = leftovers_at_rest(&daemons, host, Some(*before));
        assert!(
            after.is_no_more_than(before),
            "host {host}: {before:?}, then {after:?}"
        );
    }
    drop((client, server));
    let said = daemons.end_saying();
    // The log names the connection and gives advice.
    assert!(
        said[0].contains("wrote what it must not into the memory of connection")
            && said[0].contains("look for stray writes in it"),
        "{}",
        said[0]
    );
    // The rate limiter kept the log short, although there were many such events.
    for (host, said) in said.iter().enumerate() {
        assert!(said.lines().count() < 60, "host {host}: {said}");
        assert!(!said.contains("panicked"), "host {host}: {said}");
    }
}

/// Sends until there is no more room. Returns the number of bytes sent.
fn fill(stream: &mut Stream) -> usize {
    let bytes = vec![7; 1 << 16];
    let mut sent = 0;
    // Rings grow while they are filled, so room may appear again soon, but not forever.
    let mut in_vain = 0;
    until("no room", || {
        stream.set_deadline(Some(clock::now() + Duration::from_millis(50)));
        match stream.send(&bytes) {
            Ok(more) => (sent, in_vain) = (sent + more, 0),
            Err(ServiceError::Deadline) => in_vain += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 1 << 30, "sending goes on although nobody reads");
        in_vain == 10
    });
    sent
}

fn misuse(does: &str, socket: &OsStr) {
    let attach = || Service::attach(socket, does).expect("a daemon");
    match does {
        "scribbles" => scribble(attach),
        "never reads" => {
            let stream = attach().connect(to(1, HELD)).expect("connects");
            loop {
                // It waits here until it is killed.
                std::hint::black_box(&stream);
                thread::park();
            }
        }
        "forks" => fork(&attach()),
        "closes" => close(&attach()),
        "calls nobody" => call_nobody(&attach()),
        other => panic!("no such misuse: {other}"),
    }
}

/// Overwrites the memory that it shares with its daemon while it sends, until it is killed.
fn scribble(attach: impl Fn() -> Service) {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let own = File::options().write(true).open("/proc/self/mem");
    let own = own.expect("its own memory");
    // Its objects become unusable sooner or later. Then it attaches anew.
    loop {
        let service = attach();
        let mut streams: Vec<Stream> = Vec::new();
        for turn in 0..2000u32 {
            if streams.len() < 4 {
                match service.connect_by(to(1, ECHO), soon()) {
                    Ok(mut stream) => {
                        stream.set_nonblocking(true);
                        streams.push(stream);
                    }
                    Err(_) => break,
                }
            }
            let mut buffer = [0; 4096];
            let len = 1 + next() as usize % 20_000;
            let is_there = |error: ServiceError| matches!(error, ServiceError::WouldBlock);
            for mut stream in std::mem::take(&mut streams) {
                let is_sent = stream.send(&vec![3; len]).err().is_none_or(is_there);
                match is_sent && stream.recv(&mut buffer).err().is_none_or(is_there) {
                    true => streams.push(stream),
                    // Kept until it is killed: closing may block. If both ends wait for room, a closed
                    // connection stays until the other end goes.
                    false => std::mem::forget(stream),
                }
            }
            // Most turns are left undisturbed, so that the connections get some way.
            if turn % 8 != 0 {
                continue;
            }
            for (from, to) in shared() {
                // The words in use are mostly at the beginning, so every second write goes there.
                let span = [to - from, (to - from).min(1 << 16)][next() as usize % 2];
                let at = from + (next() % (span / 8)) * 8;
                let word = match next() % 4 {
                    0 => 0,
                    1 => u64::MAX,
                    2 => next() % 100_000,
                    _ => next(),
                };
                let many = word.to_ne_bytes().repeat(1 + next() as usize % 600);
                let most = (to - at) as usize;
                let _ = own.write_at(&many[..many.len().min(most)], at);
            }
        }
        streams.into_iter().for_each(std::mem::forget);
    }
}

fn soon() -> Option<headworks_verbs::Instant> {
    Some(clock::now() + Duration::from_millis(500))
}

/// Returns the address ranges of the memory that this process shares with another and may write to.
fn shared() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its mappings");
    let lines = maps.lines().filter(|line| line.contains(" rw-s "));
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(from)?, number(to)?))
    };
    lines.filter_map(range).collect()
}

/// Runs `f` in a forked child. Returns whether it succeeded there.
fn run_in_forked_child(f: impl FnOnce()) -> bool {
    // SAFETY: the child only runs `f` and exits. `f` takes no lock that another thread of this process may
    // hold.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: this ends the child without running any of the parent's destructors or exit handlers.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `pid` is our own child, and `status` is a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

fn is_forked<T: std::fmt::Debug>(result: Result<T, ServiceError>) {
    let error = result.expect_err("it is the parent's");
    assert!(matches!(error, ServiceError::Forked), "{error}");
}

/// Forks while it has one object of each kind. The child can use none of them and takes nothing away; the
/// parent goes on.
fn fork(service: &Service) {
    let listener = service.listen(0, 8).unwrap();
    let own = to(0, listener.port());
    let near = service.connect(to(1, ECHO)).unwrap();
    let mut polled = service.connect(own).unwrap();
    let mut far = listener.accept().unwrap();
    polled.fd().unwrap();
    let mut socket = service.bind(0).unwrap();
    let here = to(0, socket.port());
    socket.send_to(b"to itself", here).unwrap();
    let export = far.export(service.alloc(64).unwrap(), Rights::ALL).unwrap();
    let export_id = export.id();
    far.send_all(b"told of it").unwrap();
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut got = 0;
    while got < 10 {
        got += polled.recv(&mut buffer).unwrap();
    }
    assert_eq!(polled.fetch_add(export_id, 0, 1).unwrap(), 0);
    let mut memory = Some(service.alloc(64).unwrap());
    // The parent's poller sleeps on words in shared memory and on a descriptor, which the child must leave as they are.
    let mut in_poller = service.connect(own).unwrap();
    let mut its_peer = listener.accept().unwrap();
    let mut poller = Poller::new(service).unwrap();
    poller.add(&mut in_poller, 1, Interest::RECEIVE).unwrap();
    let mut events = Vec::new();
    let now = Some(std::time::Duration::ZERO);
    poller.wait(&mut events, now).unwrap();
    assert_eq!(events, []);
    let waker = poller.waker();
    let mut in_poller = Some((poller, in_poller));
    let mut everything = Some((listener, near, polled, far, socket, export));
    let child = || {
        let (listener, mut near, mut polled, mut far, mut socket, export) =
            everything.take().expect("once");
        is_forked(service.connect(to(1, ECHO)));
        is_forked(service.connect_start(to(1, ECHO)));
        is_forked(service.alloc(1));
        is_forked(service.listen(0, 1));
        is_forked(service.bind(0));
        is_forked(listener.accept());
        is_forked(listener.try_accept());
        for stream in [&mut near, &mut polled, &mut far] {
            is_forked(stream.send(b"from the child"));
            is_forked(stream.recv(&mut [0]));
            is_forked(stream.peek().map(drop));
            is_forked(stream.end());
            is_forked(stream.fetch_add(export_id, 0, 1));
            is_forked(stream.lend_from(&mut memory, 8));
            is_forked(stream.export_from(&mut memory, Rights::ALL));
        }
        is_forked(near.fd());
        is_forked(far.revoke(export).map_err(|left| left.error));
        is_forked(socket.send_to(b"from the child", here));
        is_forked(socket.recv_from(&mut []));
        let (mut poller, in_poller) = in_poller.take().expect("once");
        is_forked(poller.wait(&mut Vec::new(), now));
        waker.wake();
        drop((poller, in_poller));
        // Dropping them in the child leaves the parent's objects alone.
        drop((listener, near, polled, far, socket, memory.take()));
        // The child may attach on its own.
        let path = std::env::var_os(SOCKET).expect("a socket");
        let mut stream = Service::attach(path, "child")
            .and_then(|own| own.connect(to(1, ECHO)))
            .expect("a daemon");
        stream.send_all(b"own").unwrap();
        assert!(stream.recv(&mut [0; 8]).unwrap() > 0);
    };
    assert!(
        run_in_forked_child(child),
        "the child failed, and printed why"
    );
    let (listener, mut near, mut polled, mut far, mut socket, export) =
        everything.expect("the child took a copy");
    // The descriptor of the parent's poller becomes readable by the next byte, and only by that.
    let (mut poller, mut in_poller) = in_poller.take().expect("the child took a copy");
    let limit = rustix::event::Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let is_readable = |poller: &Poller, limit: &rustix::event::Timespec| {
        let mut fds = [rustix::event::PollFd::new(
            poller,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, Some(limit)).unwrap() == 1
    };
    // A packet of the daemon may be there, but only once.
    until("the poller's descriptor is not readable", || {
        poller.wait(&mut events, now).unwrap();
        assert_eq!(events, []);
        !is_readable(&poller, &rustix::event::Timespec::default())
    });
    its_peer.send_all(b"news").unwrap();
    while events.is_empty() {
        assert!(is_readable(&poller, &limit), "nothing was reported in time");
        poller.wait(&mut events, now).unwrap();
    }
    assert_eq!(in_poller.recv(&mut buffer).unwrap(), 4);
    drop((poller, in_poller, its_peer));
    assert_eq!(polled.fetch_add(export_id, 0, 1).unwrap(), 1);
    near.send_all(b"still").unwrap();
    assert_eq!(near.recv(&mut buffer).unwrap(), 5);
    far.send_all(b"here").unwrap();
    assert_eq!(polled.recv(&mut buffer).unwrap(), 4);
    assert_eq!(socket.recv_from(&mut buffer).unwrap(), (9, here));
    assert_eq!(far.revoke(export).unwrap().len(), 64);
    memory.as_mut().expect("its own").fill(7);
    let again = service.connect(own).unwrap();
    drop((again, listener.accept().unwrap()));
}

fn close_number(number: RawFd) {
    // SAFETY: closing a descriptor that another object owns is the misuse under test. No other file gets the
    // number meanwhile: only one thread of this process opens files, and what it opens is not used.
    assert_eq!(unsafe { libc::close(number) }, 0);
}

/// Uses objects after closing them.
fn close(service: &Service) {
    let mut buffer = [0; 64];
    let mut stream = service.connect(to(1, ECHO)).unwrap();
    stream.end().unwrap();
    let ended = stream.send(b"more").unwrap_err();
    assert!(matches!(ended, ServiceError::Ended), "{ended}");
    assert_eq!(stream.recv(&mut buffer).unwrap(), 0);
    let stream = service.connect(to(1, ECHO)).unwrap();
    let (mut reader, writer) = stream.split();
    drop(writer);
    // The reading half still exists.
    reader.set_deadline(soon());
    assert!(reader.recv(&mut buffer).is_err());
    // A polled connection without its descriptor is of no use. Its calls fail, or work without the
    // descriptor.
    let mut stream = service.connect(to(1, ECHO)).unwrap();
    if stream.is_direct() {
        return;
    }
    close_number(stream.fd().unwrap().as_raw_fd());
    stream.set_deadline(soon());
    for _ in 0..3 {
        if let Err(error) = stream.send(b"into nowhere") {
            assert!(!matches!(error, ServiceError::Contract(_)), "{error}");
        }
        if let Err(error) = stream.recv(&mut buffer) {
            assert!(!matches!(error, ServiceError::Contract(_)), "{error}");
        }
    }
    // Dropping it would close the number again, which another file may have by now.
    std::mem::forget(stream);
}

/// Sends to a port at which nobody listens.
fn call_nobody(service: &Service) {
    let is_refused = |error: ServiceError| {
        let kind = std::io::Error::from(error).kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    };
    let mut socket = service.bind(0).unwrap();
    for host in [0, 1] {
        let refused = service.connect(to(host, DEAD)).unwrap_err();
        assert!(matches!(refused, ServiceError::Refused(Refusal::Refused)));
        is_refused(refused);
        is_refused(socket.send_to(b"anybody?", to(host, DEAD)).unwrap_err());
    }
}
