//! Two daemons and their applications, as real processes.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use headworks::service::{Service, ServiceError, Stream};
use rustix::process::Signal;

use crate::common::{Fabric, NOTICE, Side, until};

/// Addresses and ports are this machine's: one pair of daemons at a time.
static ONE: Mutex<()> = Mutex::new(());

const HOSTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
const PORT: &str = "17471";

/// Two daemons on a fabric of their own.
struct Daemons {
    fabric: Fabric,
    sides: Vec<Side>,
}

impl Daemons {
    fn start() -> Self {
        let mut daemons = Self {
            fabric: Fabric::new(),
            sides: Vec::new(),
        };
        daemons.sides = (0..2).map(|host| daemons.daemon(host)).collect();
        daemons
    }

    fn args(&self, host: usize) -> Vec<String> {
        let socket = self.socket(host).display().to_string();
        let words = [
            "daemon",
            "--device",
            &format!("soft:h{host}"),
            "--address",
            HOSTS[host],
            "--port",
            PORT,
            "--socket",
            &socket,
        ];
        words.map(str::to_owned).to_vec()
    }

    fn daemon(&self, host: usize) -> Side {
        let args = self.args(host);
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let side = Side::start(&mut self.fabric.headworks(&words));
        let socket = self.socket(host);
        until("the daemon", || Service::attach(&socket, "looks").is_ok());
        side
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.fabric.file(&format!("{host}.sock"))
    }

    fn attach(&self, host: usize) -> Service {
        Service::attach(&self.socket(host), "test").expect("a daemon")
    }

    /// Both end when they are told to, and leave nothing.
    fn end(mut self) {
        for (host, side) in self.sides.iter_mut().enumerate() {
            side.signal(Signal::TERM);
            let ended = side.wait();
            assert_eq!(ended.code(), Some(0), "{}", side.complaint());
            let socket = self.fabric.file(&format!("{host}.sock"));
            assert!(!socket.exists(), "its socket is left");
        }
        self.fabric.is_clean();
    }
}

fn to(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(HOSTS[host].parse().expect("an address"), port)
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 7 ^ at >> 15) as u8
}

/// Sends back what comes, until it ends; says how much that was.
fn echo(mut stream: Stream) -> Result<usize, ServiceError> {
    let mut buffer = vec![0; 100_000];
    let mut total = 0;
    loop {
        let len = stream.recv(&mut buffer)?;
        if len == 0 {
            stream.end()?;
            return Ok(total);
        }
        stream.send_all(&buffer[..len])?;
        total += len;
    }
}

/// Serves every caller with a thread of its own, for as long as the daemon is there.
fn serve(service: &Service, port: u16) {
    let listener = service.listen(port, 1 << 16).expect("the port is free");
    thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            thread::spawn(move || echo(stream));
        }
    });
}

/// Sends so many bytes while it reads them back, and checks them.
fn exchange(mut stream: Stream, total: usize) -> Result<(), ServiceError> {
    let (mut sent, mut got) = (0, 0);
    let mut buffer = vec![0; 64 << 10];
    while got < total {
        // As much as is not on its way already: an echo that is not read takes no more.
        if sent < total && sent - got < 60_000 {
            let len = (total - sent).min(30_000);
            let piece: Vec<u8> = (sent..sent + len).map(byte).collect();
            stream.send_all(&piece)?;
            sent += len;
            continue;
        }
        let len = stream.recv(&mut buffer)?;
        assert!(len > 0, "ended after {got} of {total}");
        for (at, found) in (got..).zip(&buffer[..len]) {
            assert_eq!(*found, byte(at), "at {at} of {total}");
        }
        got += len;
    }
    stream.end()?;
    assert_eq!(stream.recv(&mut buffer)?, 0, "more than was sent");
    Ok(())
}

fn locked() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn streams_of_any_length_arrive_whole() {
    let _one = locked();
    let daemons = Daemons::start();
    let server = daemons.attach(1);
    serve(&server, 7000);
    let client = daemons.attach(0);
    for total in [0, 1, 64, 5000, 1 << 20, 64 << 20] {
        exchange(client.connect(to(1, 7000)).unwrap(), total).unwrap();
    }
    // Many at once, of several threads, and to the own host.
    serve(&client, 7000);
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || {
                let to = to(number % 2, 7000);
                let streams: Vec<_> = (0..25).map(|_| client.connect(to).unwrap()).collect();
                for (at, stream) in streams.into_iter().enumerate() {
                    exchange(stream, at * 1000).unwrap();
                }
            })
        })
        .collect();
    for each in threads {
        each.join().unwrap();
    }
    let refused = client.connect(to(1, 7001)).unwrap_err();
    assert_eq!(refused.to_string(), "connection refused");
    let nowhere = client.connect("127.0.0.9:7000".parse().unwrap());
    assert!(nowhere.is_err(), "no daemon is there");
    drop((client, server));
    daemons.end();
}

/// Where the application that is to be killed attaches: the test starts itself again as that one.
const VICTIM: &str = "HEADWORKS_TEST_SOCKET";

/// Holds a connection until it is killed.
fn hold(socket: &std::ffi::OsStr) -> ! {
    let service = Service::attach(socket.as_ref(), "victim").unwrap();
    let mut stream = service.connect(to(1, 7000)).unwrap();
    stream.send_all(b"held").unwrap();
    let mut buffer = [0; 4096];
    loop {
        let len = stream.recv(&mut buffer).unwrap();
        stream.send_all(&buffer[..len]).unwrap();
    }
}

#[test]
fn an_application_that_is_killed_harms_its_own_connections_alone() {
    if let Some(socket) = std::env::var_os(VICTIM) {
        hold(&socket);
    }
    let _one = locked();
    let daemons = Daemons::start();
    let server = daemons.attach(1);
    let listener = server.listen(7000, 16).unwrap();
    let witness = daemons.attach(0);
    for round in 0..10 {
        let own = "daemon::an_application_that_is_killed_harms_its_own_connections_alone";
        let victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own])
            .env(VICTIM, daemons.socket(0))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut victim = victim.unwrap();
        let mut held = listener.accept().unwrap();
        let mut beside = witness.connect(to(1, 7000)).unwrap();
        let mut beside_there = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..round * 20 {
            let len = held.recv(&mut buffer).unwrap();
            held.send_all(&buffer[..len]).unwrap();
        }
        victim.kill().unwrap();
        let began = Instant::now();
        let error = loop {
            match held.recv(&mut buffer) {
                Ok(0) => panic!("a death is no end"),
                // What it had sent before.
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ServiceError::Reset(_)), "{error}");
        assert!(began.elapsed() < NOTICE, "after {:?}", began.elapsed());
        victim.wait().unwrap();
        beside.send_all(b"unharmed").unwrap();
        let len = beside_there.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"unharmed");
    }
    drop((listener, server, witness));
    daemons.end();
}

#[test]
fn a_daemon_that_is_killed_is_missed_and_may_come_back() {
    let _one = locked();
    let mut daemons = Daemons::start();
    let client = daemons.attach(0);
    serve(&client, 7000);
    for _ in 0..3 {
        let server = daemons.attach(1);
        serve(&server, 7000);
        let mut far = client.connect(to(1, 7000)).unwrap();
        let mut near = client.connect(to(0, 7000)).unwrap();
        let mut buffer = [0; 64];
        for stream in [&mut far, &mut near] {
            stream.send_all(b"there").unwrap();
            assert_eq!(stream.recv(&mut buffer).unwrap(), 5);
        }
        daemons.sides[1].signal(Signal::KILL);
        let began = Instant::now();
        let error = far.recv(&mut buffer).unwrap_err();
        assert!(matches!(error, ServiceError::Reset(_)), "{error}");
        assert!(began.elapsed() < NOTICE, "after {:?}", began.elapsed());
        // Its own application knows, and the other daemon goes on.
        let gone = server.connect(to(0, 7000)).unwrap_err();
        assert!(matches!(gone, ServiceError::DaemonGone), "{gone}");
        near.send_all(b"still").unwrap();
        assert_eq!(near.recv(&mut buffer).unwrap(), 5);
        let refused = client.connect(to(1, 7000)).unwrap_err();
        assert!(matches!(refused, ServiceError::Refused(_)), "{refused}");
        daemons.sides[1].wait();
        daemons.sides[1] = daemons.daemon(1);
    }
    drop(client);
    daemons.end();
}

#[test]
fn what_cannot_be_served_is_told_in_one_line() {
    let _one = locked();
    let daemons = Daemons::start();
    let run = |words: &[&str]| {
        let mut side = Side::start(&mut daemons.fabric.headworks(words));
        let code = side.wait().code();
        (code, side.complaint())
    };
    let args = daemons.args(0);
    let again: Vec<&str> = args.iter().map(String::as_str).collect();
    let (code, line) = run(&again);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("another daemon serves there"), "{line}");
    let free = daemons.fabric.file("free.sock").display().to_string();
    let port_taken = [&again[..7], &["--socket", &free]].concat();
    let (code, line) = run(&port_taken);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("127.0.0.1:17471"), "{line}");
    for (words, says) in [
        (&["--address", "10.1.2.3"][..], "loopback"),
        (&["--address", "here"], "invalid"),
        (&["--device", "sim:cx5-100g"], "simulated"),
        (&["--device", "ibv:none"], "ibv:none"),
        (&["--socket", "/no/such/place"], "/no/such/place"),
    ] {
        let words = [&["daemon", "--port", "17472"], words].concat();
        let (code, line) = run(&words);
        assert_eq!(code, Some(2), "{words:?}: {line}");
        assert!(line.contains(says), "{words:?}: {line}");
    }
    std::io::stdout().flush().unwrap();
    daemons.end();
}
