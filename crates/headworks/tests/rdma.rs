//! Connects over RDMA on the machine's own devices, with its librdmacm. Skipped, with the reason, if there
//! are none; with `HEADWORKS_REQUIRE=ibv` that is a failure.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use headworks::net::{ControlStream, NetError, clock};
use headworks::pipe::{Direction, Pipe, PipeError, WaitOptions};
use headworks::rdma::{self, RdmaError, RdmaListener};
use headworks::runtime::testing;
use headworks::verbs::{DeviceName, Duration, Instant};
use headworks_ibverbs::cm::{CmError, CmListener, Connection, Greeting};
use headworks_net::QpStreamSetup;

/// Returns the time limit of a test: only a hang exceeds it. The devices may be emulated.
fn limit() -> Instant {
    clock::now() + Duration::from_secs(120)
}

/// Bytes that a test sends through a pipe: many laps of its ring.
const BYTES: u64 = 8 << 20;

/// Returns the devices to connect, with their addresses: those that are named, or the first two.
fn devices() -> Vec<(DeviceName, IpAddr)> {
    let all = headworks::devices().expect("devices can be listed");
    let ibv = all.into_iter().filter(|info| info.name.kind() == "ibv");
    let found = ibv.filter_map(|info| {
        let ip = Ipv6Addr::from(info.gid.0).to_ipv4_mapped()?;
        Some((info.name, IpAddr::from(ip)))
    });
    let mut found: Vec<_> = found.collect();
    let named = testing::devices_or(|| match found.is_empty() {
        true => Err("libibverbs knows of no device here with an IPv4 address".to_owned()),
        false => Ok(found.iter().map(|(name, _)| name.to_string()).collect()),
    });
    let names: Vec<_> = named.into_iter().flatten().collect();
    found = named_among(found, &names).unwrap_or_else(|why| panic!("{why}"));
    if let Some((_, ip)) = found.first()
        && let Err(why) = CmListener::at(&SocketAddr::new(*ip, 0))
    {
        testing::report_skip(why);
        return Vec::new();
    }
    found
}

/// Returns the entries of `found` that `names` lists. All must be there; a name may be listed twice.
fn named_among(
    mut found: Vec<(DeviceName, IpAddr)>,
    names: &[String],
) -> Result<Vec<(DeviceName, IpAddr)>, String> {
    // The connection manager does not take the options of a name.
    let wanted = names.iter().filter_map(|name| name.split(',').next());
    let wanted: BTreeSet<_> = wanted.collect();
    found.retain(|(name, _)| wanted.contains(&*name.to_string()));
    match found.len() == wanted.len() {
        true => Ok(found),
        false => Err(format!(
            "of {names:?} only these have an IPv4 address: {found:?}"
        )),
    }
}

#[test]
fn all_devices_that_are_named_are_there_or_the_tests_fail() {
    let found = ["ibv:a", "ibv:b"].map(|name| {
        let name = name.parse().expect("a name");
        (name, IpAddr::from([192, 0, 2, 1]))
    });
    let count = |names: [&str; 2]| {
        let named = named_among(found.to_vec(), &names.map(str::to_owned));
        named.map(|found| found.len())
    };
    assert_eq!(count(["ibv:a", "ibv:b,mtu=256"]), Ok(2));
    assert_eq!(count(["ibv:b", "ibv:b,mtu=256"]), Ok(1));
    let said = count(["ibv:b", "ibv:c"]).expect_err("one is not there");
    assert!(said.contains("ibv:c"), "{said}");
}

/// Returns an address of `ip` that no other test uses.
fn address(ip: IpAddr) -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() % 1_000) as u16 * 20;
    let port = 10_000 + own + NEXT.fetch_add(1, Ordering::Relaxed);
    SocketAddr::new(ip, port).to_string()
}

fn patience() -> WaitOptions<'static> {
    WaitOptions {
        interrupt: None,
        deadline: Some(limit()),
    }
}

/// Returns byte `at` of what a test sends.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A source of [`BYTES`] bytes; a stalling one never ends.
struct Source {
    at: u64,
    stalls: bool,
}

impl Read for Source {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = (bytes.len() as u64).min(BYTES - self.at) as usize;
        if count == 0 && self.stalls {
            loop {
                thread::park();
            }
        }
        for (place, at) in bytes[..count].iter_mut().zip(self.at..) {
            *place = byte(at);
        }
        self.at += count as u64;
        Ok(count)
    }
}

/// A sink that checks every byte.
#[derive(Default)]
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (found, at) in bytes.iter().zip(self.0..) {
            assert_eq!(*found, byte(at), "byte {at}");
        }
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Environment variable of a child process: what it does, at which address, on which device.
const PLAYS: &str = "HEADWORKS_TEST_PLAYS";

/// A child process that is killed and reaped, however the test ends.
struct ChildProcess(Child);

impl ChildProcess {
    fn plays(what: &str, at: &str, device: &str) -> Self {
        let child = Command::new("/proc/self/exe")
            .args(["--exact", "plays", "--nocapture"])
            .env(PLAYS, format!("{what} {at} {device}"))
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("starts"))
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().expect("ends").success());
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(pipe: Pipe, stalls: bool) -> Result<u64, PipeError> {
    match pipe {
        Pipe::Sender(sender) => sender.send_from(&mut Source { at: 0, stalls }, |_| {}),
        Pipe::Receiver(receiver) => receiver.receive_into(&mut Sink::default(), |_| {}),
    }
}

#[test]
fn plays() {
    let Ok(part) = std::env::var(PLAYS) else {
        return;
    };
    let [what, at, device] = part.split(' ').collect::<Vec<_>>()[..] else {
        panic!("what is {part}?");
    };
    let device: DeviceName = device.parse().expect("a name");
    let at = format!("rdma:{at}");
    let direction = match what {
        "sends" | "stalls" => Direction::ToListener,
        _ => Direction::ToConnector,
    };
    let pipe = Pipe::connect(&device, &at, direction, patience()).expect("connects");
    assert_eq!(run(pipe, what == "stalls").expect("all"), BYTES);
}

fn listen(at: &str, device: &str) -> Result<Pipe, PipeError> {
    let device = device.parse().expect("a name");
    Pipe::listen(&device, &format!("rdma:{at}"), patience())
}

#[test]
fn a_pipe_carries_everything_both_ways() {
    let devices = devices();
    for (there, ip) in &devices {
        for what in ["sends", "receives"] {
            let at = address(*ip);
            // The child may call early: it waits for the listener.
            let other = ChildProcess::plays(what, &at, "ibv");
            let pipe = listen(&at, "ibv").expect("somebody calls");
            assert_eq!(run(pipe, false).expect("all"), BYTES, "{what} {there}");
            other.ends_well();
        }
    }
}

#[test]
fn devices_that_are_named_are_those_that_meet() {
    let devices = devices();
    let [(here, ip), (there, _), ..] = &devices[..] else {
        return println!("skipped: there are no two devices");
    };
    let at = address(*ip);
    let other = ChildProcess::plays("sends", &at, &there.to_string());
    let pipe = listen(&at, &here.to_string()).expect("somebody calls");
    assert_eq!(run(pipe, false).expect("all"), BYTES);
    other.ends_well();
}

#[test]
fn a_peer_that_is_killed_is_noticed() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let at = address(ip);
    let mut other = ChildProcess::plays("stalls", &at, "ibv");
    let pipe = listen(&at, "ibv").expect("somebody calls");
    let Pipe::Receiver(receiver) = pipe else {
        panic!("the wrong way");
    };
    // The sender may hold back the last bytes, to send them with more.
    let kill = |bytes| {
        if bytes >= BYTES / 2 {
            other.0.kill().expect("is not reaped yet");
        }
    };
    let error = receiver.receive_into(&mut Sink::default(), kill);
    let error = error.expect_err("the stream has no end");
    let PipeError::PeerGone { delivered } = error else {
        panic!("{error}");
    };
    assert!(delivered >= BYTES / 2, "{delivered}");
}

#[test]
fn connecting_without_a_listener_fails_at_once() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let at = format!("rdma:{}", address(ip));
    let device = "ibv".parse().expect("a name");
    let patience = WaitOptions::default();
    let error = Pipe::connect(&device, &at, Direction::ToListener, patience).map(drop);
    let said = error.expect_err("nobody is there").to_string();
    assert!(
        said.contains("nobody listens") && said.contains(&at),
        "{said}"
    );
}

#[test]
fn callers_of_another_kind_are_turned_away_with_a_word_and_the_next_is_met() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let ours = Greeting::OURS.bytes();
    let later = Greeting { version: 999 }.bytes();
    let any: DeviceName = "ibv".parse().expect("a name");
    let listening = RdmaListener::at(&address(ip), &any).expect("listens");
    let to = listening.address();
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            for said in [&b""[..], b"GET / HTTP/1.1\r\n", &later] {
                let refused = strange_call(&to, said).map(drop);
                let Err(CmError::Refused { greeting, .. }) = refused else {
                    panic!("{refused:?}");
                };
                // The refusal tells the caller which program it called.
                assert_eq!(greeting[..ours.len()], ours);
            }
            rdma::dial(&to.to_string(), &any, limit()).expect("a listener")
        });
        let mut met = listening.accept(limit()).expect("one of ours");
        let mut calling = calls.join().expect("calls").control;
        met.control.send_control(b"hello").expect("sends");
        assert_eq!(
            calling.recv_control_wait(limit()).expect("a word"),
            b"hello"
        );
    });
}

#[test]
fn a_caller_by_a_device_of_no_use_does_not_end_a_listener_that_listens_anywhere() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let at = address(ip);
    let to = format!("rdma:{at}");
    let anywhere = at.replace(&ip.to_string(), "0.0.0.0");
    let (interrupt, mut raise) = UnixStream::pair().expect("a pair");
    let patience_of_listener = WaitOptions {
        interrupt: Some(interrupt.as_fd()),
        deadline: Some(limit()),
    };
    thread::scope(|scope| {
        let listens = scope.spawn(|| {
            // With these options the caller's device cannot be opened: no port has so many keys.
            let device = "ibv,pkey_index=65535".parse().expect("a name");
            let at = format!("rdma:{anywhere}");
            Pipe::listen(&device, &at, patience_of_listener).map(drop)
        });
        let any = "ibv".parse().expect("a name");
        for _ in 0..2 {
            let called = Pipe::connect(&any, &to, Direction::ToListener, patience());
            let error = called.map(drop).expect_err("turned away");
            assert!(matches!(error, PipeError::Wordless { .. }), "{error}");
        }
        raise.write_all(b"!").expect("raises");
        let end = listens.join().expect("ends").expect_err("nobody was met");
        assert!(matches!(end, PipeError::Interrupted), "{end}");
    });
}

#[test]
fn callers_that_say_nothing_do_not_keep_one_waiting_that_greets() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let at = address(ip);
    let any: DeviceName = "ibv".parse().expect("a name");
    let other = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            // One after another, they would take longer than the caller after them waits for an answer.
            let silent: Vec<_> = (0..3)
                .map(|_| rdma::dial_wait(&at, &any, limit()).expect("a listener"))
                .collect();
            (ChildProcess::plays("sends", &at, "ibv"), silent)
        });
        let pipe = listen(&at, "ibv").expect("the one that greets");
        let (other, silent) = calls.join().expect("calls");
        for mut met in silent {
            let end = met
                .control
                .recv_control_wait(limit())
                .expect_err("turned away");
            assert!(matches!(end, NetError::PeerGone), "{end}");
        }
        assert_eq!(run(pipe, false).expect("all"), BYTES);
        other
    });
    other.ends_well();
}

/// Calls as another program would, with the greeting `said`.
fn strange_call(to: &SocketAddr, said: &[u8]) -> Result<(Connection, QpStreamSetup), CmError> {
    let mut call = Connection::call(to, None)?;
    let route = loop {
        if let Some(route) = call.resolve()? {
            break route;
        }
        wait(&call);
    };
    let device = headworks::open(&route.own_device()?).expect("opens");
    let mut setup = QpStreamSetup::new(&device).expect("a queue pair");
    call.prepare(setup.queue_pair())?;
    setup.post_receives().expect("receives");
    let qpn = setup.queue_pair().qpn();
    call.ask(qpn, said)?;
    while !call.step(setup.queue_pair())? {
        wait(&call);
    }
    Ok((call, setup))
}

fn wait(on: &impl AsFd) {
    let until = headworks::net::WaitLimit::deadline(limit());
    until
        .wait_readable("the connection manager", on)
        .expect("it says something");
}

#[test]
fn a_foreign_listener_is_recognised() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let at = address(ip);
    let listener = CmListener::at(&at.parse().expect("an address")).expect("listens");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut caller = loop {
                if let Some(caller) = listener.try_accept().expect("listens") {
                    break caller;
                }
                wait(&listener);
            };
            let device = caller.route().expect("a way").own_device().expect("a name");
            let device = headworks::open(&device).expect("opens");
            let mut setup = QpStreamSetup::new(&device).expect("a queue pair");
            caller.prepare(setup.queue_pair()).expect("INIT");
            setup.post_receives().expect("receives");
            // Answers as a program that sends no greeting.
            caller.answer(setup.queue_pair(), b"").expect("answers");
            while !caller.is_ended() {
                wait(&caller);
            }
        });
        let device = "ibv".parse().expect("a name");
        let error = rdma::dial_wait(&at, &device, limit()).expect_err("a stranger");
        assert!(matches!(error, RdmaError::Greeting { .. }), "{error}");
        assert!(error.to_string().contains("another program"), "{error}");
    });
}

#[test]
fn an_address_of_another_device_than_was_named_is_refused_with_both_names() {
    let devices = devices();
    let [(here, _), (there, ip), ..] = &devices[..] else {
        return println!("skipped: there are no two devices");
    };
    let error = RdmaListener::at(&address(*ip), here).expect_err("the other's address");
    assert!(error.is_bad_input());
    let said = error.to_string();
    for name in [here, there] {
        assert!(said.contains(&name.to_string()), "{said}");
    }
}

#[test]
fn a_call_by_way_of_another_device_than_was_named_is_refused_and_the_next_is_met() {
    let devices = devices();
    let [(here, ours), (_, theirs), ..] = &devices[..] else {
        return println!("skipped: there are no two devices");
    };
    let anywhere = address(*ours).replace(&ours.to_string(), "0.0.0.0");
    let listening = RdmaListener::at(&anywhere, here).expect("listens");
    let any: DeviceName = "ibv".parse().expect("a name");
    let call = |ip: &IpAddr| {
        let at = format!("{ip}:{}", listening.address().port());
        rdma::dial(&at, &any, limit())
    };
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let refused = call(theirs).expect_err("it comes by the other device");
            let met = call(ours).expect("it comes by the one that was named");
            (refused.to_string(), met)
        });
        let met = listening.accept(limit()).expect("the second one");
        assert_eq!(met.device.name(), here.name());
        // The caller is a headworks program; only its device is wrong.
        let (said, _met) = calls.join().expect("ends");
        assert!(said.contains("refuses"), "{said}");
    });
}

/// Connects both ends of a control stream in this process.
fn lines(ip: IpAddr) -> (ControlStream, ControlStream) {
    let any: DeviceName = "ibv".parse().expect("a name");
    let listening = RdmaListener::at(&address(ip), &any).expect("listens");
    let at = listening.address().to_string();
    thread::scope(|scope| {
        let called = scope.spawn(|| listening.accept(limit()).expect("a caller"));
        let calling = rdma::dial(&at, &any, limit()).expect("a listener");
        (calling.control, called.join().expect("ends").control)
    })
}

#[test]
fn a_line_carries_messages_and_its_end_comes_behind_them() {
    let Some((_, ip)) = devices().first().cloned() else {
        return;
    };
    let (mut one, mut other) = lines(ip);
    assert_eq!((one.peer_pid(), other.peer_gone()), (None, false));
    let message = |at: usize| vec![at as u8; at * 977 % 60_000];
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..200 {
                let sent = other.recv_control_wait(limit()).expect("a message");
                assert!(sent == message(at), "message {at}");
                other
                    .send_control(&(at as u32).to_le_bytes())
                    .expect("an answer");
            }
            // Closes while a message is in flight.
            other.send_control(b"last").expect("the last");
            other.flush_wait(limit()).expect("all is sent");
            drop(other);
        });
        let mut answers = 0u32;
        for at in 0..200 {
            // Sends as many messages ahead as the control stream takes.
            while let Err(NetError::Full) = one.send_control(&message(at)) {
                let answer = one.recv_control_wait(limit()).expect("an answer");
                assert_eq!(answer, answers.to_le_bytes());
                answers += 1;
            }
        }
        for answers in answers..200 {
            let answer = one.recv_control_wait(limit()).expect("an answer");
            assert_eq!(answer, answers.to_le_bytes());
        }
        assert_eq!(one.recv_control_wait(limit()).expect("the last"), b"last");
        let end = one.recv_control_wait(limit()).expect_err("the end");
        assert!(matches!(end, NetError::PeerGone), "{end}");
        assert!(one.peer_gone());
    });
}
