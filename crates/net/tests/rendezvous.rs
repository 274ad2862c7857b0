//! Rendezvous and bring-up of two processes. Two threads stand for the processes, with mock queue pairs that
//! only record their states.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use headworks_net::{
    BringUpOverStream, ControlStream, Listener, NetError, WaitLimit, clock, dial, dial_tcp,
    dial_tcp_wait, dial_wait,
};
use headworks_shm::{Registry, RegistryError};
use headworks_verbs::bringup::{ConnectionParams, Hello};
use headworks_verbs::qp_state::check_transition;
use headworks_verbs::{
    DeviceInfo, Duration, Gid, Instant, ModifyError, PostError, QpAttr, QpCaps, QpState, QpType,
    Qpn, QueuePair, RecvWr, SendWr,
};

/// A mock queue pair that checks and records its modifications.
struct MockQueuePair {
    qpn: Qpn,
    caps: QpCaps,
    states: Vec<QpState>,
    peer: Option<Qpn>,
}

impl MockQueuePair {
    fn new(qpn: u32) -> Self {
        let qpn = Qpn::new(qpn).expect("24 bits");
        Self {
            qpn,
            caps: QpCaps::default(),
            states: vec![QpState::Reset],
            peer: None,
        }
    }
}

impl QueuePair for MockQueuePair {
    fn qpn(&self) -> Qpn {
        self.qpn
    }
    fn state(&self) -> QpState {
        self.states[self.states.len() - 1]
    }
    fn caps(&self) -> &QpCaps {
        &self.caps
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.states
            .push(check_transition(QpType::Rc, self.state(), attr)?);
        self.peer = attr.dest_qpn.or(self.peer);
        Ok(())
    }
    fn post_send(&mut self, _: &[SendWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is sent")
    }
    fn post_recv(&mut self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is received")
    }
}

fn device() -> DeviceInfo {
    let mut device = DeviceInfo::named("paper".parse().expect("legal"));
    device.gid = Gid([1; 16]);
    device.limits.max_rd_atomic = 4;
    device
}

fn soon() -> Instant {
    clock::now() + Duration::from_secs(60)
}

fn connect(
    line: &mut ControlStream,
    qp: &mut MockQueuePair,
    payload: &[u8],
) -> Result<Hello, NetError> {
    line.bring_up(
        &device(),
        qp,
        ConnectionParams::default(),
        payload.to_vec(),
        soon(),
    )
}

#[test]
fn two_ends_meet_under_a_name_connect_and_talk() {
    let home = tempfile::tempdir().expect("a directory");
    let there = Registry::open_at(home.path().join("fabric")).expect("a registry");
    let here = there.clone();
    let listen = move || Listener::bind(&here, "ring-1").expect("binds");
    let line = talk(|| dial_wait(&there, "ring-1", soon()), listen);
    assert_eq!(line.peer_pid(), Some(std::process::id()));
}

#[test]
fn two_ends_meet_at_an_address_connect_and_talk() {
    // The port was free a moment ago, so nobody listens there yet when the caller dials.
    let found = Listener::bind_tcp("127.0.0.1:0").expect("a port");
    let address = found.address().expect("it is one").to_string();
    drop(found);
    let listen = || Listener::bind_tcp(&address).expect("binds");
    let line = talk(|| dial_tcp_wait(&address, soon()), listen);
    assert_eq!(line.peer_pid(), None);
}

#[test]
fn an_unanswering_address_is_named() {
    let found = Listener::bind_tcp("[::1]:0").expect("a port");
    let address = found.address().expect("it is one").to_string();
    let taken = Listener::bind_tcp(&address).expect_err("taken");
    assert!(taken.to_string().contains(&address), "{taken}");
    drop(found);
    let error = dial_tcp(&address, soon()).expect_err("nobody");
    assert!(matches!(error, NetError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    let late = dial_tcp_wait(&address, clock::now()).expect_err("nobody");
    assert!(matches!(late, NetError::Deadline { .. }), "{late}");
}

#[test]
fn a_peer_at_an_address_that_dies_is_gone() {
    let listener = Listener::bind_tcp("127.0.0.1:0").expect("a port");
    let address = listener.address().expect("it is one").to_string();
    let mut caller = dial_tcp(&address, soon()).expect("calls");
    let mut line = listener.accept(soon()).expect("accepts");
    caller.send_control(b"last").expect("open");
    drop(caller);
    assert_eq!(line.recv_control_wait(soon()).expect("open"), b"last");
    let error = line.recv_control_wait(soon()).expect_err("closed");
    assert!(matches!(error, NetError::PeerGone), "{error}");
    assert!(line.peer_gone());
}

/// Runs a caller and a listener on two threads, which may start in either order. Returns the listener's
/// stream.
fn talk(
    dial: impl FnOnce() -> Result<ControlStream, NetError> + Send,
    listen: impl FnOnce() -> Listener,
) -> ControlStream {
    thread::scope(|scope| {
        let caller = scope.spawn(|| caller(dial));
        answer(caller, &listen())
    })
}

fn caller(dial: impl FnOnce() -> Result<ControlStream, NetError>) -> MockQueuePair {
    let mut line = dial().expect("calls");
    let mut qp = MockQueuePair::new(7);
    let hello = connect(&mut line, &mut qp, b"caller").expect("connects");
    assert_eq!(
        (hello.qpn.raw(), hello.payload.as_slice()),
        (9, b"listener".as_slice())
    );
    assert_eq!(line.recv_control_wait(soon()).expect("open"), b"hello");
    qp
}

fn answer(
    caller: thread::ScopedJoinHandle<'_, MockQueuePair>,
    listener: &Listener,
) -> ControlStream {
    let mut line = listener.accept(soon()).expect("accepts");
    let mut qp = MockQueuePair::new(9);
    let hello = connect(&mut line, &mut qp, b"listener").expect("connects");
    assert_eq!(
        (hello.qpn.raw(), hello.payload.as_slice()),
        (7, b"caller".as_slice())
    );
    // The other end may read this message together with the last bytes of the bring-up.
    line.send_control(b"hello").expect("open");
    let other = caller.join().expect("the caller");
    assert!(line.peer_gone(), "its line was dropped");
    let up = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    assert_eq!(
        (qp.states.as_slice(), other.states.as_slice()),
        (up.as_slice(), up.as_slice())
    );
    assert_eq!((qp.peer, other.peer), (Qpn::new(7), Qpn::new(9)));
    line
}

/// Returns the error of the bring-up if the other end sends `bytes` and closes.
fn answer_to(bytes: &[u8]) -> NetError {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    theirs.write_all(bytes).expect("writes");
    theirs.shutdown(std::net::Shutdown::Write).expect("shuts");
    let mut line = ControlStream::from_unix(ours).expect("our own");
    connect(&mut line, &mut MockQueuePair::new(1), b"").expect_err("refused")
}

#[test]
fn a_strange_greeting_is_one_clear_line() {
    let other_version = [b"HWbu".as_slice(), &9u16.to_le_bytes(), &[0; 46]].concat();
    for (bytes, text) in [
        (
            other_version.as_slice(),
            "connecting: the other end speaks version 9 of the connection",
        ),
        (
            b"GET / HTTP/1.1",
            "connecting: the other end does not speak this protocol",
        ),
        (b"HWb", "the other end is gone"),
        (b"", "the other end is gone"),
    ] {
        let error = answer_to(bytes).to_string();
        assert!(error.starts_with(text) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn greetings_cut_into_bytes_are_put_together() {
    let (one, mut between) = UnixStream::pair().expect("a pair");
    let (other, mut beyond) = UnixStream::pair().expect("a pair");
    let (mut one, mut other) = (
        ControlStream::from_unix(one).expect("ours"),
        ControlStream::from_unix(other).expect("ours"),
    );
    // A thread for each direction forwards the stream byte by byte.
    let relay = |mut from: UnixStream, mut to: UnixStream| {
        thread::spawn(move || {
            let mut byte = [0];
            while from.read_exact(&mut byte).is_ok() && to.write_all(&byte).is_ok() {}
        })
    };
    let relays = [
        relay(
            between.try_clone().expect("clones"),
            beyond.try_clone().expect("clones"),
        ),
        relay(
            beyond.try_clone().expect("clones"),
            between.try_clone().expect("clones"),
        ),
    ];
    let side = thread::spawn(move || {
        let hello = connect(&mut other, &mut MockQueuePair::new(2), &[2; 300]).expect("connects");
        (other, hello)
    });
    let hello = connect(&mut one, &mut MockQueuePair::new(1), &[1; 300]).expect("connects");
    let (other, theirs) = side.join().expect("the other side");
    assert_eq!(
        (hello.payload, theirs.payload),
        (vec![2; 300], vec![1; 300])
    );
    drop((one, other));
    let _ = (between.flush(), beyond.flush());
    for end in [&between, &beyond] {
        end.shutdown(std::net::Shutdown::Both).expect("shuts");
    }
    relays
        .into_iter()
        .for_each(|relay| relay.join().expect("a relay"));
}

#[test]
fn a_greeting_that_comes_along_with_the_message_before_it_is_found() {
    let (mut one, mut other) = ControlStream::pair().expect("a pair");
    let (mut left, mut right) = (MockQueuePair::new(7), MockQueuePair::new(8));
    one.send_control(b"begin").expect("sends");
    let mut started =
        BringUpOverStream::start(&device(), &mut left, ConnectionParams::default(), vec![])
            .expect("starts");
    assert!(started.step(&mut one, &mut left).expect("open").is_none());
    // Both messages have arrived and are read at once.
    assert_eq!(
        other.recv_control_wait(soon()).expect("a message"),
        b"begin"
    );
    thread::scope(|scope| {
        scope.spawn(|| connect(&mut other, &mut right, b"").expect("connects"));
        while started.step(&mut one, &mut left).expect("open").is_none() {
            thread::yield_now();
        }
    });
    assert_eq!((left.peer, right.peer), (Some(right.qpn), Some(left.qpn)));
    one.send_control(b"after").expect("sends");
    one.flush_wait(soon()).expect("sends");
    assert_eq!(
        other.recv_control_wait(soon()).expect("a message"),
        b"after"
    );
}

#[test]
fn a_silent_peer_is_given_up_at_the_deadline_or_when_interrupted() {
    let (mut line, _silent) = ControlStream::pair().expect("a pair");
    let (device, tuning) = (device(), ConnectionParams::default());
    let error = line.bring_up(
        &device,
        &mut MockQueuePair::new(1),
        tuning,
        vec![],
        clock::now(),
    );
    assert_eq!(
        error.expect_err("silent").to_string(),
        "connecting: the deadline passed"
    );
    let (interrupt, mut raise) = UnixStream::pair().expect("a pair");
    raise.write_all(b"!").expect("raises");
    let until = WaitLimit::deadline(Instant::FAR_FUTURE).or_readable(&interrupt);
    let error = line.bring_up(&device, &mut MockQueuePair::new(1), tuning, vec![], until);
    assert_eq!(error.expect_err("interrupted").to_string(), "interrupted");
}

#[test]
fn names_are_taken_once_and_free_again() {
    let home = tempfile::tempdir().expect("a directory");
    let fabric = Registry::open_at(home.path().join("fabric")).expect("a registry");
    assert!(matches!(
        dial(&fabric, "x"),
        Err(NetError::Registry(RegistryError::NobodyListening { .. }))
    ));
    let listener = Listener::bind(&fabric, "x").expect("binds");
    assert!(matches!(
        Listener::bind(&fabric, "x"),
        Err(NetError::Registry(RegistryError::NameInUse { .. }))
    ));
    drop(listener);
    assert!(matches!(
        dial(&fabric, "x"),
        Err(NetError::Registry(RegistryError::NobodyListening { .. }))
    ));
    let again = Listener::bind(&fabric, "x").expect("free again");
    assert!(
        again.try_accept().expect("listens").is_none(),
        "nobody has called"
    );
    assert!(dial(&fabric, "x").is_ok());
    assert!(again.try_accept().expect("listens").is_some());
    for name in ["", "a/b", "a b"] {
        assert!(
            matches!(
                dial(&fabric, name),
                Err(NetError::Registry(RegistryError::BadName { .. }))
            ),
            "{name:?}"
        );
    }
    let late = dial_wait(&fabric, "nobody", clock::now()).expect_err("nobody");
    assert_eq!(
        late.to_string(),
        "nobody listens: waiting for a listener: the deadline passed"
    );
}
