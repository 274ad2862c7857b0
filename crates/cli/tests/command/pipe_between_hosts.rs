//! Pipes between two hosts: the sides meet at an address, on two devices. They use the devices of
//! `HEADWORKS_IBV` if it is set, otherwise soft hosts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Instant;

use headworks::runtime::testing;
use rustix::process::Signal;

use crate::test_env::{CommandProcess, LONG_TIMEOUT_S, TestEnv, bytes, create, open, until};

/// Returns the devices of the two sides.
fn devices() -> [String; 2] {
    testing::devices().unwrap_or_else(|| ["soft:h1", "soft:h2"].map(str::to_owned))
}

/// Returns an address that was free a moment ago.
fn address() -> String {
    let found = TcpListener::bind("127.0.0.1:0").expect("a port");
    found.local_addr().expect("its address").to_string()
}

/// Number of bytes that a pipe carries in time even on the slowest machine.
fn most() -> usize {
    match testing::is_slow_device() {
        true => 300_001,
        false => 5_000_011,
    }
}

struct Hosts {
    fabric: TestEnv,
    address: String,
    devices: [String; 2],
}

impl Hosts {
    fn new() -> Self {
        Self {
            fabric: TestEnv::new(),
            address: address(),
            devices: devices(),
        }
    }

    fn side(&self, args: &[&str], device: &str, stdin: Stdio, stdout: Stdio) -> CommandProcess {
        let [does, more @ ..] = args else {
            panic!("listen or connect")
        };
        let mut command = self.fabric.headworks(&["pipe", does, &self.address]);
        command.args(["--device", device, "--timeout", LONG_TIMEOUT_S]);
        command.args(more);
        CommandProcess::start(command.stdin(stdin).stdout(stdout))
    }

    fn listen(&self, stdin: Stdio, stdout: Stdio) -> CommandProcess {
        self.side(&["listen"], &self.devices[1], stdin, stdout)
    }

    fn connect(&self, more: &[&str], stdin: Stdio, stdout: Stdio) -> CommandProcess {
        let args = [&["connect"], more].concat();
        self.side(&args, &self.devices[0], stdin, stdout)
    }
}

#[test]
fn bytes_arrive_at_an_address() {
    let hosts = Hosts::new();
    let (from, to) = (hosts.fabric.file("from"), hosts.fabric.file("to"));
    for len in [0, 1, 4089, most()] {
        let sent = bytes(len);
        std::fs::write(&from, &sent).expect("writes");
        // Either side may be first; it waits for the other.
        let mut connector = hosts.connect(&[], open(&from), Stdio::null());
        let mut listener = hosts.listen(Stdio::null(), create(&to));
        connector.expect_exit(0);
        listener.expect_exit(0);
        assert!(std::fs::read(&to).expect("reads") == sent, "{len} bytes");
    }
    hosts.fabric.is_clean();
}

#[test]
fn and_the_other_way() {
    let hosts = Hosts::new();
    let (from, to) = (hosts.fabric.file("from"), hosts.fabric.file("to"));
    let sent = bytes(most() / 2);
    std::fs::write(&from, &sent).expect("writes");
    let mut listener = hosts.listen(open(&from), Stdio::null());
    let mut connector = hosts.connect(&["--reverse"], Stdio::null(), create(&to));
    connector.expect_exit(0);
    listener.expect_exit(0);
    assert!(std::fs::read(&to).expect("reads") == sent);
}

#[test]
fn either_side_that_is_killed_is_missed_by_the_other() {
    let hosts = Hosts::new();
    for kills_listener in [true, false] {
        let to = hosts.fabric.file("to");
        let listener = hosts.listen(Stdio::null(), create(&to));
        let mut connector = hosts.connect(&[], Stdio::piped(), Stdio::null());
        let mut stdin = connector.0.stdin.take().expect("piped");
        stdin.write_all(b"word").expect("writes");
        until("the word", || {
            std::fs::read(&to).is_ok_and(|found| found == b"word")
        });
        let (killed, mut left) = match kills_listener {
            true => (listener, connector),
            false => (connector, listener),
        };
        killed.signal(Signal::KILL);
        let said = left.expect_exit(1);
        assert!(said.contains("gone"), "{said}");
        drop((stdin, killed));
        std::fs::remove_file(&to).expect("removes");
    }
}

#[test]
fn an_unreachable_caller_is_named_and_the_next_accepted() {
    let hosts = Hosts::new();
    let elsewhere = TestEnv::new();
    let (from, to) = (hosts.fabric.file("from"), hosts.fabric.file("to"));
    std::fs::write(&from, b"word").expect("writes");
    let mut listener = hosts.listen(Stdio::null(), create(&to));
    // Soft hosts of another registry cannot be reached, like devices of another machine or another kind.
    let args = [
        "pipe",
        "connect",
        &hosts.address,
        "--timeout",
        LONG_TIMEOUT_S,
    ];
    let mut stranger = CommandProcess::start(&mut elsewhere.headworks(&args));
    let why = "which do not reach each other";
    let said = stranger.expect_exit(2);
    assert!(said.contains(why) && said.contains("soft"), "{said}");
    hosts
        .connect(&[], open(&from), Stdio::null())
        .expect_exit(0);
    assert_eq!(listener.wait().code(), Some(0));
    let said = listener.stderr_line();
    let turned = "turned a caller away error=connecting: the two ends are on";
    assert!(said.contains(turned) && said.contains(why), "{said}");
    assert!(said.contains("caller=\"127.0.0.1\""), "{said}");
    assert!(std::fs::read(&to).is_ok_and(|found| found == b"word"));
    hosts.fabric.is_clean();
    elsewhere.is_clean();
}

#[test]
fn silent_callers_are_reported_in_few_lines() {
    let hosts = Hosts::new();
    let (from, to) = (hosts.fabric.file("from"), hosts.fabric.file("to"));
    std::fs::write(&from, b"word").expect("writes");
    let began = Instant::now();
    let mut listener = hosts.listen(Stdio::null(), create(&to));
    let mut silent = Vec::new();
    until("the listener", || {
        silent.extend(TcpStream::connect(&hosts.address));
        !silent.is_empty()
    });
    for _ in 0..200 {
        silent.push(TcpStream::connect(&hosts.address).expect("it listens"));
    }
    // These callers lost their places to others.
    for caller in &mut silent[..100] {
        assert!(matches!(caller.read(&mut [0]), Ok(0)));
    }
    let mut connector = hosts.connect(&[], open(&from), Stdio::null());
    connector.expect_exit(0);
    assert_eq!(listener.wait().code(), Some(0));
    let said = listener.stderr_line();
    // One line every ten seconds, and one at the end.
    let most = 2 + began.elapsed().as_secs() as usize / 10;
    assert!((1..=most).contains(&said.lines().count()), "{said}");
    assert!(
        said.contains("turned a caller away error=it did not greet"),
        "{said}"
    );
    assert!(said.contains("others="), "{said}");
    assert!(std::fs::read(&to).is_ok_and(|found| found == b"word"));
    hosts.fabric.is_clean();
}

/// Returns the error of a connector when a program at its address sends `answer` and closes.
fn answered(fabric: &TestEnv, answer: &[u8], code: i32) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let args = ["pipe", "connect", &address, "--timeout", LONG_TIMEOUT_S];
    let mut side = CommandProcess::start(&mut fabric.headworks(&args));
    let (mut there, _) = listener.accept().expect("it calls");
    // Reads the whole greeting, because closing with unread bytes would be a reset.
    let mut greeting = [0; 8];
    there.read_exact(&mut greeting).expect("it greets");
    there.write_all(answer).expect("sends");
    drop(there);
    let said = side.expect_exit(code);
    assert!(said.contains(&address), "{said}");
    said
}

#[test]
fn a_program_that_is_no_pipe_is_recognised() {
    let fabric = TestEnv::new();
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
    for answer in [b"HTTP/1.1 400 Bad Request\r\n".to_vec(), frame(b"220")] {
        let said = answered(&fabric, &answer, 2);
        assert!(said.contains("is no headworks pipe"), "{said}");
    }
    let said = answered(&fabric, b"", 1);
    assert!(said.contains("closed without a reply"), "{said}");
    fabric.is_clean();
}

#[test]
fn a_program_that_says_nothing_is_not_waited_for_longer_than_was_asked_for() {
    let fabric = TestEnv::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let args = ["pipe", "connect", &address, "--timeout", "1"];
    let mut side = CommandProcess::start(&mut fabric.headworks(&args));
    let held = listener.accept().expect("it calls");
    let said = side.expect_exit(1);
    assert!(said.contains("said nothing for 1 s"), "{said}");
    drop(held);
    fabric.is_clean();
}

#[test]
fn an_unusable_listen_address_is_bad_input() {
    let fabric = TestEnv::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|at| (taken, at.to_string()));
    let (_taken, address) = taken.expect("its address");
    // 192.0.2.0/24 is reserved for documentation, so no host has these addresses.
    for (address, says) in [
        (&*address, "in use"),
        ("192.0.2.77:7471", "Cannot assign"),
        ("127.0.0.1:0", "a port from 1 to 65535"),
    ] {
        let mut side = CommandProcess::start(&mut fabric.headworks(&["pipe", "listen", address]));
        let said = side.expect_exit(2);
        assert!(said.contains(address) && said.contains(says), "{said}");
    }
    fabric.is_clean();
}

#[test]
fn an_invalid_or_unanswering_address_is_named() {
    let fabric = TestEnv::new();
    let device = &devices()[0];
    for bad in ["host:", ":7471", "host:70000", "1:2:3"] {
        let mut side = CommandProcess::start(
            &mut fabric.headworks(&["pipe", "listen", bad, "--device", device]),
        );
        let said = side.expect_exit(2);
        assert!(said.contains(bad) && said.contains("HOST:PORT"), "{said}");
    }
    let nobody = address();
    let mut side = CommandProcess::start(
        &mut fabric.headworks(&["pipe", "connect", &nobody, "--device", device]),
    );
    let said = side.expect_exit(1);
    assert!(said.contains(&nobody) && said.contains("refused"), "{said}");
    fabric.is_clean();
}
