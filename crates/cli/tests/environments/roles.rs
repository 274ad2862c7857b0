//! The programs of the processes.

use std::fs::Permissions;
use std::io::{BufRead, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use headworks::blocking::{BlockingReceiver, BlockingSender};
use headworks::connect;
use headworks::daemon::daemon::Identity;
use headworks::daemon::limits::DaemonLimits;
use headworks::daemon::server::{DaemonServer, ServerConfig};
use headworks::net::{Interrupt, Listener, WaitLimit, clock, dial_wait};
use headworks::pipe::{Direction, Pipe, WaitOptions};
use headworks::ring::{Mode, RingConfig};
use headworks::service::Service;
use headworks::verbs::Duration;
use headworks_runtime::testing::copy_program;

/// Environment variables that tell a process what it is.
pub(crate) const ROLE: &str = "HEADWORKS_TEST_ROLE";
pub(crate) const PREPARE: &str = "HEADWORKS_TEST_PREPARE";
pub(crate) const PORT: &str = "HEADWORKS_TEST_PORT";
/// Path of the command.
pub(crate) const COMMAND: &str = "HEADWORKS_TEST_COMMAND";
/// Beginning of each line that the test reads.
pub(crate) const MARK: &str = "@ ";

/// Port at which applications listen.
const APP_PORT: u16 = 7;
/// Bytes that a trial moves.
const BYTES: usize = 1 << 20;
const LEN: usize = 64;
const MESSAGES: u64 = 5000;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The program of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    PipeListen,
    PipeConnect,
    RingReceive,
    RingSend,
    /// The daemon of a host: its number.
    Daemon(u8),
    /// An application of a host that accepts a connection.
    AppListen(u8),
    /// An application of the first host that connects to one of the second.
    AppConnect(u8, u8),
    /// The command `headworks doctor`.
    Doctor,
}

impl Role {
    const ALL: [(&str, Self); 10] = [
        ("pipe-listen", Self::PipeListen),
        ("pipe-connect", Self::PipeConnect),
        ("ring-receive", Self::RingReceive),
        ("ring-send", Self::RingSend),
        ("daemon-1", Self::Daemon(1)),
        ("daemon-2", Self::Daemon(2)),
        ("listen-1", Self::AppListen(1)),
        ("connect-1-1", Self::AppConnect(1, 1)),
        ("connect-2-1", Self::AppConnect(2, 1)),
        ("doctor", Self::Doctor),
    ];

    pub(crate) fn encode(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, role)| *role == self);
        found.expect("listed").0
    }
}

/// Restrictions that a process puts on itself before anything else.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prepare {
    Nothing,
    NotDumpable,
    /// The program is a copy of this one with this mode and, if they are given, these file capabilities. Nothing else
    /// is restricted.
    CopyProgram(u32, Option<&'static str>),
    /// The kernel refuses the system calls in these lists.
    Forbid(&'static [&'static [libc::c_long]]),
}

/// System calls that Docker's default profile forbids to a container without capabilities.
pub(crate) const DOCKER: &[libc::c_long] = &[
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_pidfd_getfd,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_get_mempolicy,
];

/// System calls that a stricter profile forbids too. A small server does without them.
pub(crate) const STRICT: &[libc::c_long] = &[
    libc::SYS_pidfd_open,
    libc::SYS_membarrier,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
    libc::SYS_prlimit64,
];

impl Prepare {
    pub(crate) fn encode(self) -> String {
        match self {
            Self::Nothing | Self::CopyProgram(..) => String::new(),
            Self::NotDumpable => "not-dumpable".to_owned(),
            Self::Forbid(lists) => {
                let calls = lists.iter().copied().flatten();
                let calls: Vec<_> = calls.map(ToString::to_string).collect();
                calls.join(",")
            }
        }
    }
}

impl Prepare {
    /// Returns the program to run in a process of this kind. A copy is made in `place`, once.
    pub(crate) fn program(self, place: &Path) -> std::result::Result<PathBuf, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let Self::CopyProgram(mode, capabilities) = self else {
            return Ok(own);
        };
        let copy = place.join(format!("program.{mode:o}"));
        if copy.exists() {
            return Ok(copy);
        }
        copy_program(&own, &copy);
        std::fs::set_permissions(&copy, Permissions::from_mode(mode))
            .map_err(|error| error.to_string())?;
        if let Some(capabilities) = capabilities {
            let set = Command::new("setcap").arg(capabilities).arg(&copy).output();
            let set = set.map_err(|error| format!("setcap: {error}"))?;
            if !set.status.success() {
                return Err(String::from_utf8_lossy(&set.stderr).trim().to_owned());
            }
        }
        Ok(copy)
    }
}

fn prepare(what: &str) {
    match what {
        "" => {}
        "not-dumpable" => {
            // SAFETY: the call changes only whether others may look into this process.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
        }
        calls => forbid(calls.split(',').map(|call| call.parse().expect("a number"))),
    }
}

/// Has the kernel refuse system calls to this process from now on.
fn forbid(calls: impl Iterator<Item = u32>) {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let unlike = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = vec![step(load, 0, 0, number)];
    for call in calls {
        // Skips the refusal if it is another call.
        steps.push(step(unlike, 0, 1, call));
        steps.push(step(libc::BPF_RET, 0, 0, refuse));
    }
    steps.push(step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program outlives the calls, which change nothing else in this process.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all) = (
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
        );
        let set = libc::syscall(libc::SYS_seccomp, mode, all, &raw const program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}

fn say(line: impl std::fmt::Display) {
    println!("{MARK}{}", line.to_string().replace('\n', " "));
}

/// The pipe that the forked child of a role reads.
pub(crate) fn leash(place: &Path, role: Role) -> PathBuf {
    place.join(format!("leash.{}", role.encode()))
}

/// Forks a child that lives until the test closes its end of the leash.
fn fork_a_child(leash: &Path) {
    let leash = std::fs::File::open(leash).expect("the test's pipe");
    // SAFETY: the child only reads, and ends without running any of this process's code.
    if unsafe { libc::fork() } == 0 {
        let ended = (&leash).read(&mut [0]);
        // SAFETY: the call ends the child.
        unsafe { libc::_exit(ended.is_err().into()) };
    }
}

/// Waits for the order to die, and dies as if killed.
fn await_death() {
    for line in std::io::stdin()
        .lock()
        .lines()
        .map_while(std::result::Result::ok)
    {
        if line == "die" {
            // SAFETY: the call ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

/// Runs the role that the environment names.
pub(crate) fn run() {
    let variable = |name| std::env::var(name).expect("set by the test");
    let name = variable(ROLE);
    let (_, role) = Role::ALL
        .into_iter()
        .find(|(known, _)| *known == name)
        .expect("a role");
    prepare(&variable(PREPARE));
    let place = PathBuf::from(variable("HEADWORKS_PLACE"));
    let port = variable(PORT).parse().expect("a port");
    if let Err(error) = play(role, &place, port) {
        let mut line = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            if !line.contains(&cause.to_string()) {
                line = format!("{line}: {cause}");
            }
            source = cause.source();
        }
        say(line);
    }
}

fn play(role: Role, place: &Path, port: u16) -> Result {
    let leash = leash(place, role);
    match role {
        Role::PipeListen => {
            let waiting = WaitOptions {
                deadline: Some(until()),
                ..WaitOptions::default()
            };
            // The listener makes the registry.
            let _member = headworks::registry()?.join()?;
            say("ready");
            let pipe = Pipe::listen(&"soft:h1".parse()?, "pipe", waiting)?;
            fork_a_child(&leash);
            pass(pipe)
        }
        Role::PipeConnect => {
            let waiting = WaitOptions {
                deadline: Some(until()),
                ..WaitOptions::default()
            };
            let direction = Direction::ToListener;
            let pipe = Pipe::connect(&"soft:h2".parse()?, "pipe", direction, waiting)?;
            fork_a_child(&leash);
            pass(pipe)
        }
        Role::RingReceive => receive(&leash),
        Role::RingSend => send(&leash),
        Role::Daemon(host) => serve(host, place, port, &leash),
        Role::AppListen(host) => accept(host, place, &leash),
        Role::AppConnect(host, to) => connect_to(host, to, place, &leash),
        Role::Doctor => examine(),
    }
}

fn until() -> headworks::verbs::Instant {
    clock::now() + Duration::from_secs(20)
}

fn soon() -> WaitLimit<'static> {
    WaitLimit::deadline(until())
}

fn pass(pipe: Pipe) -> Result {
    let bytes: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
    match pipe {
        Pipe::Sender(sender) => {
            sender.send_from(&mut &bytes[..], |_| {})?;
        }
        Pipe::Receiver(receiver) => {
            let mut came = Vec::new();
            receiver.receive_into(&mut came, |_| {})?;
            assert!(came == bytes, "other bytes came");
        }
    }
    say("ok");
    Ok(())
}

fn config() -> RingConfig {
    RingConfig {
        mode: Mode::Notify,
        ..RingConfig::fixed(128, LEN)
    }
}

fn message(number: u64) -> [u8; LEN] {
    let mut bytes = [0x5a; LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn receive(leash: &Path) -> Result {
    let device = headworks::open("soft:h1")?;
    let listener = Listener::bind(&headworks::registry()?, "ring")?;
    say("ready");
    let mut control = listener.accept(soon())?;
    let ring = connect::receiver(&device, &config(), &mut control, soon())?;
    let mut receiver = BlockingReceiver::new(ring, control)?;
    receiver.set_deadline(Some(until()));
    fork_a_child(leash);
    for number in 0..MESSAGES {
        assert_eq!(*receiver.recv()?, message(number)[..]);
    }
    say("ok");
    await_death();
    Ok(())
}

fn send(leash: &Path) -> Result {
    let device = headworks::open("soft:h2")?;
    let mut control = dial_wait(&headworks::registry()?, "ring", soon())?;
    let ring = connect::sender(&device, &config(), &mut control, soon())?;
    let mut sender = BlockingSender::new(ring, control)?;
    sender.set_deadline(Some(until()));
    fork_a_child(leash);
    for number in 0..MESSAGES {
        sender.send(&message(number))?;
    }
    sender.flush()?;
    say("ok");
    // Blocks once the ring is full, until the receiver dies.
    while sender.send(&message(0)).is_ok() {}
    say("gone");
    Ok(())
}

/// Runs `headworks doctor`, and says what it finds broken.
fn examine() -> Result {
    let found = Command::new(std::env::var(COMMAND)?)
        .arg("doctor")
        .output()?;
    let text = String::from_utf8(found.stdout)?;
    let broken = text.lines().filter_map(|line| line.strip_prefix("BROKEN"));
    let broken: Vec<_> = broken.map(str::trim).collect();
    match (found.status.code(), &broken[..]) {
        (Some(0), []) => say("ok"),
        (Some(1), [_, ..]) => say(broken.join("; ")),
        (code, _) => {
            let errors = String::from_utf8_lossy(&found.stderr);
            say(format_args!("doctor ended with {code:?}: {text} {errors}"));
        }
    }
    Ok(())
}

fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, host).into()
}

fn socket(host: u8, place: &Path) -> PathBuf {
    place.join(format!("{host}.sock"))
}

fn serve(host: u8, place: &Path, port: u16, leash: &Path) -> Result {
    let device = headworks::open(&format!("soft:h{host}"))?;
    let config = ServerConfig {
        identity: Identity::open(address(host), u64::from(std::process::id())),
        port,
        sockets: vec![socket(host, place)],
        is_for_all: false,
        metrics: None,
        registry: Some(headworks::registry()?),
        ecn: None,
        resctrl: None,
        numa: Default::default(),
        drain: Duration::ZERO,
        // As users have them by default: connections between the applications are direct where that is possible.
        daemon: DaemonLimits::default(),
    };
    let mut server = DaemonServer::open(device, &config)?;
    fork_a_child(leash);
    let interrupt = Interrupt::install()?;
    say("ready");
    std::thread::spawn(|| {
        await_death();
        // The test is over.
        // SAFETY: the call ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    });
    server.run(&interrupt, |_| {})?;
    Ok(())
}

fn accept(host: u8, place: &Path, leash: &Path) -> Result {
    let service = Service::attach(socket(host, place), "listens")?;
    let listener = service.listen(APP_PORT, 4)?;
    fork_a_child(leash);
    say("ready");
    let mut stream = listener.accept_by(Some(until()))?;
    stream.set_deadline(Some(until()));
    let mut came = vec![0; BYTES];
    let mut len = 0;
    while len < BYTES {
        len += stream.recv(&mut came[len..])?;
    }
    assert!(came.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    stream.send_all(b"thanks")?;
    say("ok");
    await_death();
    Ok(())
}

fn connect_to(host: u8, to: u8, place: &Path, leash: &Path) -> Result {
    let service = Service::attach(socket(host, place), "connects")?;
    let to = SocketAddr::new(address(to), APP_PORT);
    let mut stream = service.connect_by(to, Some(until()))?;
    stream.set_deadline(Some(until()));
    fork_a_child(leash);
    let bytes: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
    stream.send_all(&bytes)?;
    let mut answer = [0; 6];
    let mut len = 0;
    while len < answer.len() {
        len += stream.recv(&mut answer[len..])?;
    }
    assert_eq!(&answer, b"thanks");
    say("ok");
    if stream.recv(&mut answer).is_ok_and(|len| len > 0) {
        return Err("more came".into());
    }
    say("gone");
    Ok(())
}
