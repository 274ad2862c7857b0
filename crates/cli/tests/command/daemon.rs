//! Two daemons and their applications, as real processes. They use the devices of `HEADWORKS_IBV` if it is
//! set, otherwise soft hosts.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use headworks::net::clock;
use headworks::runtime::testing;
use headworks::service::{Service, ServiceError, Stream};
use rustix::process::Signal;

use crate::test_env::{self, CommandProcess, NOTICE, TestEnv, until};

/// Addresses and ports belong to the machine, so only one test at a time runs daemons.
static ONE: Mutex<()> = Mutex::new(());

/// Time limit of a test: several times what the slowest machine needs.
const PATIENCE: Duration = Duration::from_secs(300);

const HOSTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
const PORT: &str = "17471";

/// Path of the bytes of streams between applications of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPath {
    /// Through the daemons: `direct = false` in their configuration.
    Daemons,
    /// Through memory that both applications have mapped: `direct = true`.
    Direct,
}

impl DataPath {
    pub(crate) const BOTH: [Self; 2] = [Self::Daemons, Self::Direct];

    /// Returns the line of a daemon's configuration, in its section `[limits]`, that allows this path alone.
    pub(crate) fn config_line(self) -> &'static str {
        match self {
            Self::Daemons => "direct = false\n",
            Self::Direct => "direct = true\n",
        }
    }

    /// Checks that the bytes of `stream` take this path.
    #[track_caller]
    pub(crate) fn check(self, stream: &Stream) {
        assert_eq!(stream.is_direct(), self == Self::Direct, "{self:?}");
    }
}

/// Makes two tests of each named function: `NAME::through_daemons` and `NAME::direct`. The function takes the
/// [`DataPath`].
macro_rules! test_on_both_paths {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[test]
            fn through_daemons() {
                super::$name($crate::daemon::DataPath::Daemons);
            }

            #[test]
            fn direct() {
                super::$name($crate::daemon::DataPath::Direct);
            }
        })+
    };
}
pub(crate) use test_on_both_paths;

/// Two daemons on a fabric of their own.
pub(crate) struct Daemons {
    /// Dropped before the fabric, so that no daemon makes files while these are removed.
    pub(crate) sides: Vec<CommandProcess>,
    pub(crate) fabric: TestEnv,
    /// Path that their configuration files choose.
    pub(crate) path: DataPath,
}

impl Daemons {
    /// Starts daemons that carry all bytes.
    pub(crate) fn start() -> Self {
        Self::start_on(DataPath::Daemons)
    }

    /// Starts daemons whose configuration files choose `path`.
    pub(crate) fn start_on(path: DataPath) -> Self {
        let mut daemons = Self::none(path);
        daemons.sides = (0..2).map(|host| daemons.daemon(host)).collect();
        daemons
    }

    /// Returns a fabric without a daemon: the caller starts them.
    pub(crate) fn none(path: DataPath) -> Self {
        Self {
            sides: Vec::new(),
            fabric: TestEnv::new(),
            path,
        }
    }

    pub(crate) fn args(&self, host: usize) -> Vec<String> {
        let socket = self.socket(host).display().to_string();
        let words = [
            "daemon",
            "--device",
            &device(host),
            "--address",
            HOSTS[host],
            "--port",
            PORT,
            "--socket",
            &socket,
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Returns [`args`](Self::args) with a configuration file, which chooses the path. The second daemon has several
    /// workers.
    pub(crate) fn configured_args(&self, host: usize) -> Vec<String> {
        let workers = ["", "workers = 4\n"][host];
        let mut args = self.args(host);
        args.extend(self.config(host, workers));
        args
    }

    /// Writes a configuration file of a host, with the lines `limits` and the path. Returns the options that name it.
    pub(crate) fn config(&self, host: usize, limits: &str) -> [String; 2] {
        let file = self.fabric.file(&format!("{host}.toml"));
        let text = format!("[limits]\n{}{limits}", self.path.config_line());
        std::fs::write(&file, text).expect("a file");
        ["--config".to_owned(), file.display().to_string()]
    }

    pub(crate) fn daemon(&self, host: usize) -> CommandProcess {
        self.daemon_with(host, &[])
    }

    pub(crate) fn daemon_with(&self, host: usize, others: &[&str]) -> CommandProcess {
        let args = match others.contains(&"--config") {
            true => self.args(host),
            false => self.configured_args(host),
        };
        let own = args.iter().map(String::as_str);
        let words: Vec<&str> = own.chain(others.iter().copied()).collect();
        self.started(host, &words)
    }

    /// Starts the daemon of a host by these words of a command line, and waits until it serves.
    pub(crate) fn started(&self, host: usize, words: &[&str]) -> CommandProcess {
        let mut side = CommandProcess::start(&mut self.fabric.headworks(words));
        let socket = self.socket(host);
        until("the daemon", || {
            assert!(!side.has_ended(), "{}", side.stderr_line());
            Service::attach(&socket, "looks").is_ok()
        });
        side
    }

    pub(crate) fn socket(&self, host: usize) -> PathBuf {
        self.fabric.file(&format!("{host}.sock"))
    }

    pub(crate) fn attach(&self, host: usize) -> Service {
        Service::attach(self.socket(host), "test").expect("a daemon")
    }

    /// Starts an application of the first host in a process of its own: this program again, running the test
    /// `name`, with the daemon's socket in the environment variable `variable`.
    pub(crate) fn another_process(&self, name: &str, variable: &str) -> CommandProcess {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command
            .args(["--exact", name])
            .env(variable, self.socket(0))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        CommandProcess::start(&mut command)
    }

    /// Terminates both daemons, and checks that they leave nothing.
    pub(crate) fn end(self) {
        self.end_saying();
    }

    /// Does what [`Daemons::end`] does, and returns each daemon's log.
    pub(crate) fn end_saying(mut self) -> Vec<String> {
        let ends = |(host, side): (usize, &mut CommandProcess)| {
            side.signal(Signal::TERM);
            let (ended, said) = (side.wait(), side.stderr_line());
            assert_eq!(ended.code(), Some(0), "{said}");
            let socket = self.fabric.file(&format!("{host}.sock"));
            assert!(!socket.exists(), "the socket still exists");
            said
        };
        let said = self.sides.iter_mut().enumerate().map(ends).collect();
        self.fabric.is_clean();
        said
    }
}

/// Returns the device of a host.
pub(crate) fn device(host: usize) -> String {
    let named = testing::devices().map(|names| names[host].clone());
    named.unwrap_or_else(|| format!("soft:h{host}"))
}

pub(crate) fn to(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(HOSTS[host].parse().expect("an address"), port)
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 7 ^ at >> 15) as u8
}

/// Returns the number of bytes that both daemons carry in a few seconds: `bytes`, or an eighth of it on slow
/// devices.
fn most(bytes: usize) -> usize {
    match testing::is_slow_device() {
        true => bytes / 8,
        false => bytes,
    }
}

/// Sends back what it receives until the stream ends. Returns the number of bytes.
pub(crate) fn echo(mut stream: Stream) -> Result<usize, ServiceError> {
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

/// Echoes for every caller, on a thread each, as long as the daemon runs.
pub(crate) fn serve(service: &Service, port: u16) {
    let listener = service.listen(port, 1 << 16).expect("the port is free");
    thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            thread::spawn(move || echo(stream));
        }
    });
}

/// Sends `total` bytes while it reads them back, and checks them.
pub(crate) fn exchange(mut stream: Stream, total: usize) -> Result<(), ServiceError> {
    let (mut sent, mut got) = (0, 0);
    let mut buffer = vec![0; 64 << 10];
    while got < total {
        // Limits the bytes on their way: an echo that is not read accepts no more.
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

/// Proof that this test is the only one of this process with daemons.
pub(crate) struct Locked {
    _ended: mpsc::Sender<()>,
    _one: MutexGuard<'static, ()>,
}

/// Waits until no other test of this process has daemons. A test that never ends is named, and ends the
/// process.
pub(crate) fn locked() -> Locked {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (ended, watched) = mpsc::channel();
    let name = thread::current().name().unwrap_or("a test").to_owned();
    thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} has not ended after {PATIENCE:?}");
            test_env::kill_children();
            std::process::exit(1);
        }
    });
    Locked {
        _ended: ended,
        _one: one,
    }
}

test_on_both_paths!(
    streams_of_any_length_arrive_whole,
    one_thread_receives_while_another_sends,
    both_ends_may_send_64_000_bytes_before_they_receive,
    sent_bytes_arrive_after_the_sender_closed_and_exited,
    closing_without_reading_echoes_blocks_no_peer,
    an_application_that_is_killed_harms_its_own_connections_alone,
    an_unaccepted_connection_is_reset_when_its_listener_drops,
    a_daemon_that_is_killed_is_missed_and_may_come_back,
    hosts_of_either_family_meet,
);

fn streams_of_any_length_arrive_whole(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let server = daemons.attach(1);
    serve(&server, 7000);
    let client = daemons.attach(0);
    for total in [0, 1, 64, 5000, 1 << 20, most(64 << 20)] {
        let stream = client.connect(to(1, 7000)).unwrap();
        path.check(&stream);
        exchange(stream, total).unwrap();
    }
    // Many connections at once, from several threads, also to the own host.
    serve(&client, 7000);
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || {
                let to = to(number % 2, 7000);
                let streams: Vec<_> = (0..25).map(|_| client.connect(to).unwrap()).collect();
                for (at, stream) in streams.into_iter().enumerate() {
                    path.check(&stream);
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
    let nowhere = client.connect("127.0.0.9:7000");
    assert!(nowhere.is_err(), "no daemon is there");
    drop((client, server));
    daemons.end();
}

/// Socket of the victim, which is this test's program started again.
const VICTIM: &str = "HEADWORKS_TEST_SOCKET";

/// Holds a connection until it is killed.
fn hold(socket: &std::ffi::OsStr) -> ! {
    let service = Service::attach(socket, "victim").unwrap();
    let mut stream = service.connect(to(1, 7000)).unwrap();
    stream.send_all(b"held").unwrap();
    let mut buffer = [0; 4096];
    loop {
        let len = stream.recv(&mut buffer).unwrap();
        stream.send_all(&buffer[..len]).unwrap();
    }
}

/// Sends `total` bytes while another thread receives as many.
fn both_ways(stream: Stream, total: usize) {
    let (mut reader, mut writer) = stream.split();
    let receives = thread::spawn(move || {
        let mut buffer = vec![0; 50_000];
        let mut got = 0;
        loop {
            let len = reader.recv(&mut buffer).unwrap();
            for (at, found) in (got..).zip(&buffer[..len]) {
                assert_eq!(*found, byte(at), "at {at}");
            }
            got += len;
            if len == 0 {
                return got;
            }
        }
    });
    let mut sent = 0;
    while sent < total {
        let piece: Vec<u8> = (sent..total.min(sent + 40_000)).map(byte).collect();
        writer.send_all(&piece).unwrap();
        sent += piece.len();
    }
    writer.end().unwrap();
    assert_eq!(receives.join().unwrap(), total);
}

fn one_thread_receives_while_another_sends(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 8).unwrap();
    let total = most(24 << 20);
    // A descriptor would put the connection on the path through the daemons.
    let polled: &[bool] = match path {
        DataPath::Daemons => &[false, true],
        DataPath::Direct => &[false],
    };
    for polled in polled {
        let mut near = client.connect(to(1, 7000)).unwrap();
        let mut far = listener.accept().unwrap();
        path.check(&near);
        if *polled {
            near.fd().unwrap();
            far.fd().unwrap();
        }
        // Each way carries more than all buffers hold; on slow devices, more than rings hold at first.
        let there = thread::spawn(move || both_ways(far, total));
        both_ways(near, total);
        there.join().unwrap();
    }
    // A waiting reader learns that its writer is gone. The connection ends with the last of the two halves.
    let near = client.connect(to(1, 7000)).unwrap();
    let mut far = listener.accept().unwrap();
    let (mut reader, mut writer) = near.split();
    let waits = thread::spawn(move || reader.recv(&mut [0; 8]).map_err(|error| error.to_string()));
    writer.send_all(b"last").unwrap();
    drop(writer);
    let mut buffer = [0; 8];
    assert_eq!(far.recv(&mut buffer).unwrap(), 4);
    far.send_all(b"word").unwrap();
    assert_eq!(waits.join().unwrap(), Ok(4));
    assert_eq!(far.recv(&mut buffer).unwrap(), 0);
    drop((far, listener, client, server));
    daemons.end();
}

fn both_ends_may_send_64_000_bytes_before_they_receive(path: DataPath) {
    const TOTAL: usize = 64_000;
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 8).unwrap();
    for piece in [100, 7000] {
        let near = client.connect(to(1, 7000)).unwrap();
        let far = listener.accept().unwrap();
        path.check(&near);
        // Neither end receives before both have sent everything.
        let have_sent = Arc::new(Barrier::new(2));
        let ends = [near, far].map(|mut end| {
            let have_sent = have_sent.clone();
            thread::spawn(move || {
                let all: Vec<u8> = (0..TOTAL).map(byte).collect();
                for bytes in all.chunks(piece) {
                    end.send_all(bytes).unwrap();
                }
                have_sent.wait();
                let mut got = vec![0; TOTAL];
                let mut at = 0;
                while at < TOTAL {
                    at += end.recv(&mut got[at..]).unwrap();
                }
                assert!(got == all, "other bytes");
            })
        });
        for end in ends {
            end.join().unwrap();
        }
    }
    drop((listener, client, server));
    daemons.end();
}

const LEAVER: &str = "HEADWORKS_TEST_LEAVER";

/// Sends and closes, then ends its process at once.
fn say_and_go(socket: &std::ffi::OsStr) -> ! {
    let service = Service::attach(socket, "leaver").unwrap();
    for len in [0, 1, 70_000, 2_000_000] {
        let mut stream = service.connect(to(1, 7000)).unwrap();
        let said: Vec<u8> = (0..len).map(byte).collect();
        stream.send_all(&said).unwrap();
    }
    std::process::exit(0);
}

fn sent_bytes_arrive_after_the_sender_closed_and_exited(path: DataPath) {
    if let Some(socket) = std::env::var_os(LEAVER) {
        say_and_go(&socket);
    }
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let server = daemons.attach(1);
    let listener = server.listen(7000, 16).unwrap();
    for _ in 0..5 {
        let own = "daemon::sent_bytes_arrive_after_the_sender_closed_and_exited::direct";
        let mut leaver = daemons.another_process(own, LEAVER);
        for len in [0, 1, 70_000, 2_000_000] {
            let mut stream = listener.accept().unwrap();
            path.check(&stream);
            let mut buffer = vec![0; 100_000];
            let mut got = 0;
            loop {
                let more = stream.recv(&mut buffer).unwrap();
                for (at, found) in (got..).zip(&buffer[..more]) {
                    assert_eq!(*found, byte(at), "at {at} of {len}");
                }
                got += more;
                if more == 0 {
                    break;
                }
            }
            assert_eq!(got, len);
        }
        assert!(leaver.wait().success());
    }
    drop((listener, server));
    daemons.end();
}

fn closing_without_reading_echoes_blocks_no_peer(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 8).unwrap();
    for is_told_late in [false, true] {
        let mut near = client.connect(to(1, 7000)).unwrap();
        let far = listener.accept().unwrap();
        path.check(&far);
        let echoes = thread::spawn(move || echo(far));
        // Fills all the room on the way there and back.
        let deadline = || Some(clock::now() + headworks_verbs::Duration::from_millis(200));
        near.set_deadline(deadline());
        while near.send(&[7; 60_000]).is_ok() {
            near.set_deadline(deadline());
        }
        if is_told_late {
            // Reads some of it, so that more arrives after the end.
            near.recv(&mut [0; 100_000]).unwrap();
        }
        let began = Instant::now();
        drop(near);
        let error = echoes.join().unwrap().unwrap_err();
        assert!(matches!(error, ServiceError::Reset(_)), "{error}");
        assert!(began.elapsed() < NOTICE, "after {:?}", began.elapsed());
    }
    drop((listener, client, server));
    daemons.end();
}

fn an_application_that_is_killed_harms_its_own_connections_alone(path: DataPath) {
    if let Some(socket) = std::env::var_os(VICTIM) {
        hold(&socket);
    }
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let server = daemons.attach(1);
    let listener = server.listen(7000, 16).unwrap();
    let witness = daemons.attach(0);
    let rounds = if testing::is_slow_device() { 4 } else { 10 };
    for round in 0..rounds {
        let own = "daemon::an_application_that_is_killed_harms_its_own_connections_alone::direct";
        let mut victim = daemons.another_process(own, VICTIM);
        let mut held = listener.accept().unwrap();
        path.check(&held);
        let mut beside = witness.connect(to(1, 7000)).unwrap();
        let mut beside_there = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..round * 20 {
            let len = held.recv(&mut buffer).unwrap();
            held.send_all(&buffer[..len]).unwrap();
        }
        victim.signal(Signal::KILL);
        let began = Instant::now();
        let error = loop {
            match held.recv(&mut buffer) {
                Ok(0) => panic!("a death is no end"),
                // Bytes sent before the death.
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ServiceError::Reset(_)), "{error}");
        assert!(began.elapsed() < NOTICE, "after {:?}", began.elapsed());
        victim.wait();
        beside.send_all(b"unharmed").unwrap();
        let len = beside_there.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"unharmed");
    }
    drop((listener, server, witness));
    daemons.end();
}

fn an_unaccepted_connection_is_reset_when_its_listener_drops(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 8).unwrap();
    let mut stream = client.connect(to(1, 7000)).unwrap();
    path.check(&stream);
    stream.set_nonblocking(true);
    // The server has not looked since, so the connection is in its socket or on its way there.
    drop(listener);
    until("the reset", || {
        server.alloc(1).unwrap();
        matches!(stream.recv(&mut [0; 8]), Err(ServiceError::Reset(_)))
    });
    drop((stream, client, server));
    daemons.end();
}

fn a_daemon_that_is_killed_is_missed_and_may_come_back(path: DataPath) {
    let _one = locked();
    let mut daemons = Daemons::start_on(path);
    let client = daemons.attach(0);
    serve(&client, 7000);
    for _ in 0..3 {
        let server = daemons.attach(1);
        serve(&server, 7000);
        let mut far = client.connect(to(1, 7000)).unwrap();
        let mut near = client.connect(to(0, 7000)).unwrap();
        let mut buffer = [0; 64];
        for stream in [&mut far, &mut near] {
            path.check(stream);
            stream.send_all(b"there").unwrap();
            assert_eq!(stream.recv(&mut buffer).unwrap(), 5);
        }
        daemons.sides[1].signal(Signal::KILL);
        let began = Instant::now();
        // A connection through the daemons is reset. A direct connection needs none of them and goes on.
        match path {
            DataPath::Daemons => {
                let error = far.recv(&mut buffer).unwrap_err();
                assert!(matches!(error, ServiceError::Reset(_)), "{error}");
            }
            DataPath::Direct => {
                daemons.sides[1].wait();
                far.send_all(b"alone").unwrap();
                assert_eq!(far.recv(&mut buffer).unwrap(), 5);
            }
        }
        assert!(began.elapsed() < NOTICE, "after {:?}", began.elapsed());
        // The daemon's own application knows, and the other daemon goes on.
        let gone = server.connect(to(0, 7000)).unwrap_err();
        // Its socket to the application may close a little later than that to the other daemon.
        let is_gone = matches!(
            gone,
            ServiceError::NoDaemon { .. } | ServiceError::DaemonGone
        );
        assert!(is_gone, "{gone}");
        near.send_all(b"still").unwrap();
        assert_eq!(near.recv(&mut buffer).unwrap(), 5);
        let refused = client.connect(to(1, 7000)).unwrap_err();
        assert!(matches!(refused, ServiceError::Refused(_)), "{refused}");
        if path == DataPath::Direct {
            far.end().unwrap();
            assert_eq!(far.recv(&mut buffer).unwrap(), 0);
        }
        daemons.sides[1].wait();
        daemons.sides[1] = daemons.daemon(1);
    }
    drop(client);
    daemons.end();
}

#[test]
fn a_daemon_that_cannot_serve_reports_one_line() {
    let _one = locked();
    let daemons = Daemons::start();
    let run = |words: &[&str]| {
        let mut side = CommandProcess::start(&mut daemons.fabric.headworks(words));
        let code = side.wait().code();
        (code, side.stderr_line())
    };
    let args = daemons.configured_args(0);
    let again: Vec<&str> = args.iter().map(String::as_str).collect();
    let (code, line) = run(&again);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("another daemon serves there"), "{line}");
    let free = daemons.fabric.file("free.sock").display().to_string();
    let port_taken = [&again[..7], &["--socket", &free]].concat();
    let (code, line) = run(&port_taken);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("127.0.0.1:17471"), "{line}");
    let kept = daemons.fabric.file("kept").display().to_string();
    std::fs::write(&kept, "important").unwrap();
    for (words, says) in [
        (&["--socket", &kept][..], "not a socket"),
        (&["--address", "10.1.2.3"], "loopback"),
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
    assert_eq!(std::fs::read(&kept).unwrap(), b"important");
    assert!(!std::path::Path::new(&format!("{kept}.lock")).exists());
    std::io::stdout().flush().unwrap();
    daemons.end();
}

fn hosts_of_either_family_meet(path: DataPath) {
    let _one = locked();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        assert!(
            !headworks_runtime::testing::is_required("ipv6"),
            "there is no IPv6 here"
        );
        println!("skipped: there is no IPv6 here");
        return;
    }
    let daemons = Daemons::none(path);
    let fabric = &daemons.fabric;
    let six: std::net::IpAddr = "::1".parse().unwrap();
    let addresses = [six, HOSTS[1].parse().unwrap()];
    let mut sides = Vec::new();
    let services: Vec<Service> = addresses
        .iter()
        .enumerate()
        .map(|(host, address)| {
            let socket = fabric.file(&format!("{host}.sock"));
            let words = [
                "daemon",
                "--device",
                &device(host),
                "--address",
                &address.to_string(),
                "--port",
                PORT,
                "--socket",
                &socket.display().to_string(),
            ];
            // Without a configuration file, connections are direct.
            let config = match path {
                DataPath::Daemons => daemons.config(host, "").to_vec(),
                DataPath::Direct => Vec::new(),
            };
            let words: Vec<&str> = words
                .into_iter()
                .chain(config.iter().map(String::as_str))
                .collect();
            sides.push(CommandProcess::start(&mut fabric.headworks(&words)));
            until("the daemon", || Service::attach(&socket, "looks").is_ok());
            Service::attach(&socket, "test").unwrap()
        })
        .collect();
    for (from, at) in [(0, 1), (1, 0), (0, 0)] {
        let port = 7000 + from as u16 * 2 + at as u16;
        let listener = services[at].listen(port, 1).unwrap();
        let target = SocketAddr::new(addresses[at], port);
        let stream = services[from].connect(target).unwrap();
        assert_eq!(
            (stream.peer_addr(), stream.local_addr().ip()),
            (target, addresses[from])
        );
        path.check(&stream);
        let far = listener.accept().unwrap();
        assert_eq!(
            (far.peer_addr(), far.local_addr()),
            (stream.local_addr(), target)
        );
        let echoes = thread::spawn(move || echo(far));
        exchange(stream, 300_000).unwrap();
        assert_eq!(echoes.join().unwrap().unwrap(), 300_000);
    }
    drop(services);
    for side in &mut sides {
        side.signal(Signal::TERM);
        assert_eq!(side.wait().code(), Some(0), "{}", side.stderr_line());
    }
    fabric.is_clean();
}
