//! Programs of calls, played in three ways: through the daemons, on the direct path, and over kernel TCP. The bytes, the ends
//! of the streams and the failures must be the same.
//!
//! The two ways of the service must agree in everything, down to the text of an error. TCP must agree where the service promises
//! what sockets do. It differs on purpose in this:
//!
//! | call | service | TCP | reason |
//! |---|---|---|---|
//! | a call that reaches its time limit | `TimedOut` | `WouldBlock` | Linux has one error number for both |
//! | sending after the other end has closed | `ConnectionReset` each time | `ConnectionReset` or `BrokenPipe` | TCP reports a reset once, to the first call of either direction |
//! | receiving after the other end has closed with unread bytes, or after bytes have reached it when it was closed | everything that it sent, then each time `ConnectionReset` or, if the other end had ended its stream or it had received everything, the end | a part of it; then `ConnectionReset`, or the end if a call has reported the reset | a reset of TCP overtakes bytes |
//! | receiving into no memory | 0 | 0, or `WouldBlock` if nothing is there | the service does not look |
//! | ending a stream again | done | done, or `NotConnected` if both streams have ended | the kernel has forgotten the connection |
//! | any call behind these | as before | not compared | the same |
//! | one-sided operations | | not compared | TCP has none |
//!
//! One difference between the ways of the service is not played: through the daemons, an end learns that the other one has closed
//! only behind the bytes that this one sent before. Until it has received them, sending to it may wait for room. On the direct
//! path sending fails at once.
//!
//! `HEADWORKS_SEED` chooses other programs, and `HEADWORKS_LONG` plays more.

mod ends;
mod program;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use headworks::service::{Listener, Service, ServiceError, Stream};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::LIMIT;
use crate::daemon::DaemonProcess;
use ends::{End, ServiceEnd, TcpEnd};
use program::{Call, Outcome, Played, Player, Program};

/// Time after which something that is due counts as lost. Only a fault exceeds it.
const STUCK: Duration = Duration::from_secs(30);
/// Programs without and with `HEADWORKS_LONG`.
const FEW: u32 = 100;
const MANY: u32 = 5_000;

/// A daemon, and two sessions of it.
struct Way {
    daemon: DaemonProcess,
    is_direct: bool,
    services: [Service; 2],
    listener: Listener,
}

impl Way {
    fn new(is_direct: bool) -> Self {
        let daemon = DaemonProcess::start_with(is_direct);
        let services = [daemon.attach(), daemon.attach()];
        let listener = services[1].listen(0, 1).expect("listens");
        Self {
            daemon,
            is_direct,
            services,
            listener,
        }
    }

    /// Connects, and sends `early` bytes before the connection is accepted. The streams and the daemon must agree whether the
    /// connection is direct.
    fn connect(&self, is_one_session: bool, early: &[u8]) -> (Stream, Stream) {
        let from = &self.services[usize::from(is_one_session)];
        let at = self.listener.local_addr().expect("an address");
        let before = self.opened();
        let mut near = from.connect(at).expect("connects");
        near.send_all(early).expect("there is room for a little");
        let far = self.listener.accept_timeout(LIMIT).expect("accepts");
        assert_eq!(
            (near.is_direct(), far.is_direct()),
            (self.is_direct, self.is_direct),
            "the way of the connection"
        );
        let (opened, direct) = self.opened();
        let now_direct = if self.is_direct { 2 } else { 0 };
        assert_eq!((opened - before.0, direct - before.1), (2, now_direct));
        (near, far)
    }

    fn play(&self, program: &Program) -> Vec<Played> {
        let early = Player::content(1, program.early);
        let (near, far) = self.connect(program.is_one_session, &early);
        let from = &self.services[usize::from(program.is_one_session)];
        let near: Box<dyn End> = Box::new(ServiceEnd::new(from, near));
        let far = Box::new(ServiceEnd::new(&self.services[1], far));
        Player::new([near, far], &early).play(&program.steps)
    }

    /// Ends of connections that were opened, and those of them that are direct, by the metrics that `headworks top` shows.
    fn opened(&self) -> (u64, u64) {
        let total = |of| {
            let name = format!("headworks_application_opened_{of}_total");
            self.daemon.metric(&name)
        };
        (total("connections"), total("direct_connections"))
    }

    /// Number of frames that the daemon has sent, and of pieces that were announced.
    fn carried(&self) -> u64 {
        self.daemon.metric("headworks_qp_group_sent_frames_total")
            + self.daemon.metric("headworks_qp_group_announced_total")
    }
}

fn play_over_tcp(program: &Program) -> Vec<Played> {
    let early = Player::content(1, program.early);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listens");
    let at = listener.local_addr().expect("an address");
    let mut near = TcpStream::connect(at).expect("connects");
    near.write_all(&early).expect("there is room for a little");
    let (far, _) = listener.accept().expect("accepts");
    let [near, far]: [Box<dyn End>; 2] =
        [near, far].map(|end| Box::new(TcpEnd::new(end).expect("options")) as Box<dyn End>);
    Player::new([near, far], &early).play(&program.steps)
}

/// Whether two outcomes are the same in both ways of the service.
fn is_equal(one: &Played, other: &Played) -> bool {
    let is_over = |outcome: &Outcome| match outcome {
        Outcome::Ended(len) | Outcome::Failed(len, ErrorKind::ConnectionReset, _) => Some(*len),
        _ => None,
    };
    let len = is_over(&one.outcome).filter(|_| one.has_crossed);
    one == other || (len.is_some() && len == is_over(&other.outcome))
}

/// Whether an outcome over TCP is the one of the service, or one that differs on purpose.
fn is_as_over_tcp(service: &Played, tcp: &Played) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, WouldBlock};
    match (service.call, &service.outcome, &tcp.outcome) {
        (Call::Remote, ..) => true,
        (Call::SendInVain, Outcome::Failed(0, kind, _), Outcome::Failed(0, other, _)) => {
            let is_lost = |kind: &ErrorKind| matches!(kind, ConnectionReset | BrokenPipe);
            is_lost(kind) && is_lost(other)
        }
        (
            Call::ReceiveRest {
                is_unread,
                is_sent_first,
            },
            Outcome::Ended(all) | Outcome::Failed(all, ConnectionReset, _),
            Outcome::Ended(part) | Outcome::Failed(part, ConnectionReset, _),
        ) => {
            let has_ended = |outcome: &Outcome| matches!(outcome, Outcome::Ended(_));
            let is_same_end = has_ended(&service.outcome) == has_ended(&tcp.outcome);
            // The end that sent first may have learned of the reset by that.
            let may_end_otherwise = is_sent_first && (is_unread || service.has_crossed);
            let may_lose = is_unread || service.has_crossed;
            (is_same_end || may_end_otherwise) && (part == all || may_lose && part < all)
        }
        (Call::End, Outcome::Done(0), Outcome::Failed(0, ErrorKind::NotConnected, _)) => true,
        (Call::ReceiveNothing, Outcome::Done(0), Outcome::Failed(0, WouldBlock, _)) => true,
        _ if service.is_after_close => true,
        (_, Outcome::Failed(len, kind, _), Outcome::Failed(other_len, other, _)) => {
            let is_limit = (*kind, *other) == (TimedOut, WouldBlock);
            len == other_len && (kind == other || is_limit)
        }
        (_, ours, theirs) => ours == theirs,
    }
}

/// How often each call had each outcome.
type Seen = BTreeMap<String, usize>;

fn count(seen: &mut Seen, played: &[Played]) {
    for one in played {
        let outcome = match &one.outcome {
            Outcome::Done(_) => "done".to_owned(),
            Outcome::Ended(_) => "ended".to_owned(),
            Outcome::Failed(_, kind, _) => kind.to_string(),
            Outcome::Stuck(_) => "stuck".to_owned(),
            Outcome::Skipped => continue,
        };
        let call = match one.call {
            Call::ReceiveRest {
                is_unread: true, ..
            } => "ReceiveRest of unread".to_owned(),
            Call::ReceiveRest { .. } => "ReceiveRest".to_owned(),
            call => format!("{call:?}"),
        };
        *seen.entry(format!("{call}: {outcome}")).or_default() += 1;
    }
}

/// Outcomes that must have been seen, so that the programs test what they are for.
const EXPECTED: [&str; 16] = [
    "Send: done",
    "Send: broken pipe",
    "Fill: operation would block",
    "Fill: timed out",
    "Receive: done",
    "Receive: ended",
    "Receive: operation would block",
    "Peek: done",
    "Peek: ended",
    "Peek: operation would block",
    "TimeOut: timed out",
    "End: done",
    "Remote: done",
    "ReceiveRest: ended",
    "ReceiveRest of unread: connection reset",
    "SendInVain: connection reset",
];

/// Fails with the first pair of outcomes that do not `agree`.
fn compare(
    what: &str,
    one: &[Played],
    other: &[Played],
    agree: fn(&Played, &Played) -> bool,
) -> Result<(), TestCaseError> {
    let mut pairs = one.iter().zip(other);
    match pairs.find(|(one, other)| !agree(one, other)) {
        Some(pair) => Err(TestCaseError::fail(format!("{what}: {pair:#?}"))),
        None => {
            assert_eq!(one.len(), other.len(), "{what}");
            Ok(())
        }
    }
}

#[test]
fn a_program_of_calls_has_the_same_outcome_in_every_way() {
    let ways = [false, true].map(Way::new);
    let seed = std::env::var("HEADWORKS_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let cases = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => MANY,
        None => FEW,
    };
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let seen = std::cell::RefCell::new(Seen::new());
    let result = runner.run(&program::program(), |program| {
        let [daemons, direct] = ways.each_ref().map(|way| way.play(&program));
        compare(
            "through the daemons and directly",
            &daemons,
            &direct,
            is_equal,
        )?;
        let tcp = play_over_tcp(&program);
        compare("the service and TCP", &daemons, &tcp, is_as_over_tcp)?;
        count(&mut seen.borrow_mut(), &daemons);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, program)) => {
            panic!("HEADWORKS_SEED={seed}: {why}\n{program:#?}")
        }
        Err(error) => panic!("HEADWORKS_SEED={seed}: {error}"),
    }
    let seen = seen.into_inner();
    println!("{seen:#?}");
    for expected in EXPECTED {
        assert!(seen.contains_key(expected), "never: {expected}\n{seen:#?}");
    }
}

/// The daemons' counts tell that they carried the bytes of the one way and not those of the other.
#[test]
fn the_daemons_carry_bytes_of_the_one_way_only() {
    for is_direct in [false, true] {
        let way = Way::new(is_direct);
        let (mut near, mut far) = way.connect(false, &[]);
        let mut buffer = vec![0; 1 << 16];
        let before = way.carried();
        for round in 0..200 {
            near.send_all(&vec![7; 1 + round * 2]).expect("sends");
            let mut left = 1 + round * 2;
            while left > 0 {
                left -= far.recv(&mut buffer).expect("receives");
            }
        }
        let carried = way.carried() - before;
        match is_direct {
            // An answer to something of before may still be sent.
            true => assert!(carried < 20, "{carried} frames"),
            false => assert!(carried >= 200, "{carried} frames"),
        }
        drop((near, far));
        way.daemon.rests();
    }
}

/// A daemon refuses the same calls with the same errors in both ways.
#[test]
fn limits_are_the_same_in_both_ways() {
    let refusals = [false, true].map(|is_direct| {
        let daemon = DaemonProcess::start_limited(is_direct, 6);
        let service = daemon.attach();
        let mut refusals = Vec::new();
        let mut refuse = |refused: Result<Stream, ServiceError>| {
            let error = refused.expect_err("is refused");
            refusals.push((error.to_string(), std::io::Error::from(error).kind()));
        };
        let listener = service.listen(0, 1).expect("listens");
        let at = listener.local_addr().expect("an address");
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(service.connect(at).expect("connects"));
            kept.push(listener.accept_timeout(LIMIT).expect("accepts"));
        }
        assert!(kept.iter().all(|one| one.is_direct() == is_direct));
        // The quota of connections is reached.
        refuse(service.connect(at));
        kept.clear();
        // The backlog is full: the second caller waits, and nobody accepts.
        let _first = service.connect(at).expect("connects");
        refuse(service.connect_timeout(at, Duration::from_millis(50)));
        // Nobody listens there.
        drop(listener);
        refuse(service.connect(at));
        refusals
    });
    let [daemons, direct] = &refusals;
    assert_eq!(daemons, direct);
    let kinds: Vec<ErrorKind> = daemons.iter().map(|(_, kind)| *kind).collect();
    let expected = [
        ErrorKind::Other,
        ErrorKind::TimedOut,
        ErrorKind::ConnectionRefused,
    ];
    assert_eq!(kinds, expected);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listens");
    let at = listener.local_addr().expect("an address");
    drop(listener);
    let refused = TcpStream::connect(at).expect_err("nobody listens");
    assert_eq!(refused.kind(), kinds[2], "as over TCP");
}

/// A stream that was ended before its connection was closed ends, whatever the other end left unreceived.
#[test]
fn an_ended_stream_ends_although_the_rest_is_reset() {
    for is_direct in [false, true] {
        let way = Way::new(is_direct);
        for sent in [10, 34_000, 200_000] {
            for _ in 0..40 {
                let (mut near, mut far) = way.connect(false, &[]);
                near.send_all(&[1; 239]).expect("sends");
                far.set_nonblocking(true);
                let sent = far.send(&vec![2; sent]).expect("there is room");
                assert!(sent > 2);
                near.recv(&mut [0; 2]).expect("receives a part");
                near.end().expect("ends");
                drop(near);
                far.set_nonblocking(false);
                let mut received = 0;
                let mut buffer = [0; 1024];
                loop {
                    match far.recv(&mut buffer).expect("bytes, or the end") {
                        0 => break,
                        len => received += len,
                    }
                }
                assert_eq!(received, 239);
            }
        }
        way.daemon.rests();
    }
}
