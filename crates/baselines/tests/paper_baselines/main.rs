//! The paper designs against the ring's own oracle, on the software RNIC and on a hostile one, which breaks
//! whatever it does not declare.
#![cfg(not(loom))]

mod forked;
mod killed;
mod narrow;

use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_baselines::counting::{Counts, counted as counting};
use headworks_baselines::paper_baselines::farm::{Farm, FarmAsPublished};
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::raw::Raw;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;
use headworks_baselines::paper_baselines::{BaselineSetup, Design, Head, Plan, SyncVariant, Tail};
use headworks_ibverbs::IbvProvider;
use headworks_ring::oracle::{self, Checked, Op, Plain, fill, holds, op};
use headworks_ring::{
    EndSetup, Framing, MessageReceiver, MessageSender, RingConfig, RingError, SendError, SetupError,
};
use headworks_runtime::poll_expr;
use headworks_runtime::testing::{
    self, case_count, is_slow_device, message_count, poll_until_within,
};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, Provider};
use proptest::prelude::*;

/// Time limit: whatever takes longer has hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Two hosts.
struct Hosts {
    left: Arc<dyn Device>,
    right: Arc<dyn Device>,
    /// The registry of soft hosts.
    _dir: Option<tempfile::TempDir>,
}

impl Hosts {
    /// Opens two soft hosts, or the two devices of `HEADWORKS_IBV`. Returns `None` and reports a skip if
    /// those cannot run the designs.
    fn new() -> Option<Self> {
        let Some(names) = testing::devices() else {
            return Some(Self::soft(""));
        };
        let provider = IbvProvider::new();
        let [left, right] = names.map(|name| provider.open(&name.parse().unwrap()).unwrap());
        let promises = &left.info().promises;
        if promises.ordered_between_writes
            && promises.atomic_aligned_8
            && promises.in_order_within_write == u32::MAX
        {
            let _dir = None;
            return Some(Self { left, right, _dir });
        }
        testing::report_skip(format_args!(
            "{} does not declare what the designs rely on: ordered_between_writes, atomic_aligned_8 and \
             in_order_within_write=all (in its name, if it keeps that)",
            left.info().name
        ));
        None
    }

    /// Opens two soft hosts on a private fabric, with these options in the devices' names.
    fn soft(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let provider = SoftProvider::on(Registry::open_at(dir.path().join("fabric")).unwrap());
        let open = |host: &str| {
            let name = format!("soft:{host}{options}");
            provider.open(&name.parse().unwrap()).unwrap()
        };
        Self {
            left: open("h1"),
            right: open("h2"),
            _dir: Some(dir),
        }
    }

    fn connect<D: Design>(&self, design: &D) -> Result<Pair<D>, SetupError> {
        let tx = BaselineSetup::sender(&self.left, design.clone())?;
        let rx = BaselineSetup::receiver(&self.right, design.clone())?;
        let (tx, rx) = oracle::connect(&*self.left, tx, &*self.right, rx);
        Ok((tx?, rx?))
    }
}

type Pair<D> = (<D as Design>::Sender, <D as Design>::Receiver);

/// A test step that is generic over the design.
trait DesignTest {
    fn act<D: Design>(&mut self, design: &D);
}

/// Runs `act` on every design for messages of up to `plan.longest` bytes. The combinations have batches of
/// about `alpha` slots, heads that lag by about `gamma` (both modulo N−1), and slots of a cache line.
fn every_design(
    plan: Plan,
    framing: Framing,
    (alpha, gamma): (u32, u32),
    act: &mut impl DesignTest,
) {
    act.act(&Farm(plan));
    act.act(&FarmAsPublished(plan));
    act.act(&L5(plan));
    act.act(&SocksDirect(plan));
    every_combination(plan.messages, framing, (alpha, gamma), act);
}

fn every_combination(
    slots: u32,
    framing: Framing,
    (alpha, gamma): (u32, u32),
    act: &mut impl DesignTest,
) {
    let ring = RingConfig {
        slots,
        framing,
        publish_every: Some(1 + alpha % (slots - 1)),
        transmit_every: Some(1),
        push_every: Some(1 + gamma % (slots - 1)),
        ..RingConfig::default()
    };
    for head in [Head::Push, Head::Pull] {
        for tail in [Tail::WriteTwice, Tail::PollCq] {
            let ring = ring.clone();
            act.act(&SyncVariant { head, tail, ring });
        }
    }
}

/// Wraps a channel in the oracle's check, with the patience that the devices need.
fn checked<S: MessageSender, R: MessageReceiver>(
    tx: S,
    rx: R,
    framing: Framing,
) -> Checked<Plain<S, R>> {
    match is_slow_device() {
        true => slow(tx, rx, framing),
        false => Checked::new(tx, rx, framing),
    }
}

/// Wraps a channel in the oracle's check, with patience.
fn slow<S: MessageSender, R: MessageReceiver>(
    tx: S,
    rx: R,
    framing: Framing,
) -> Checked<Plain<S, R>> {
    let since = Instant::now();
    Checked::slow(tx, rx, framing, move || {
        std::thread::yield_now();
        since.elapsed() < LIMIT
    })
}

/// Runs operations on a channel, then waits until everything has arrived.
struct ReplayOps<'a> {
    hosts: &'a Hosts,
    ops: &'a [Op],
    slow: bool,
}

impl DesignTest for ReplayOps<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let (tx, rx) = self.hosts.connect(design).unwrap();
        let framing = design.settle().unwrap().framing;
        let mut checked = match self.slow {
            true => slow(tx, rx, framing),
            false => checked(tx, rx, framing),
        };
        for &op in self.ops {
            checked.run(op);
        }
        checked.finish();
    }
}

fn framing(slots: u32, fixed: bool, len: u32) -> Framing {
    let most = (slots as usize - 1) * 64 - 8;
    match fixed {
        true => Framing::Fixed(1 + len as usize % 150),
        false => Framing::Variable(len as usize % (most + 1)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count(60)))]

    #[test]
    fn every_message_arrives_once_in_order(
        slots in 2u32..40,
        (alpha, gamma, len, fixed) in any::<(u32, u32, u32, bool)>(),
        ops in proptest::collection::vec(op(), 0..400),
    ) {
        let Some(hosts) = Hosts::new() else { return Ok(()) };
        let plan = Plan { messages: slots, longest: len as usize % 700 };
        let mut scenario = ReplayOps { hosts: &hosts, ops: &ops, slow: false };
        every_design(plan, framing(slots, fixed, len), (alpha, gamma), &mut scenario);
    }

    #[test]
    fn every_message_arrives_once_in_order_whatever_the_device_does(
        seed in any::<u64>(),
        slots in 2u32..20,
        (alpha, gamma, len, fixed) in any::<(u32, u32, u32, bool)>(),
        ops in proptest::collection::vec(op(), 0..100),
    ) {
        let hosts = Hosts::soft(&format!(",hostile,seed={seed}"));
        let plan = Plan { messages: slots, longest: len as usize % 700 };
        let mut scenario = ReplayOps { hosts: &hosts, ops: &ops, slow: true };
        every_design(plan, framing(slots, fixed, len), (alpha, gamma), &mut scenario);
    }
}

/// Checks that the error names the missing promise.
struct Refused<'a>(&'a Hosts);

impl DesignTest for Refused<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let refused = BaselineSetup::sender(&self.0.left, design.clone()).err();
        let told = refused.expect("a device that orders nothing").to_string();
        assert!(told.contains("ordered_between_writes"), "{told}");
    }
}

#[test]
fn a_device_that_orders_nothing_is_refused() {
    for less in [",ordered_between_writes=no", ",atomic_aligned_8=no"] {
        let hosts = Hosts::soft(&format!(",hostile,seed=1{less}"));
        let plan = Plan {
            messages: 8,
            longest: 64,
        };
        every_design(plan, Framing::Fixed(64), (0, 0), &mut Refused(&hosts));
    }
}

/// Runs a design at full speed between two threads. The reader is sometimes slower than the writer.
struct Race<'a>(&'a Hosts, u32);

impl DesignTest for Race<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let (tx, rx) = self.0.connect(design).unwrap();
        race(
            tx,
            rx,
            design.settle().unwrap().framing,
            message_count(20_000, self.1.into()),
        );
    }
}

fn race<S, R>(mut tx: S, mut rx: R, framing: Framing, count: u64)
where
    S: MessageSender + Send,
    R: MessageReceiver,
{
    let len = |number: u64| match framing {
        Framing::Fixed(len) => len,
        Framing::Variable(longest) => number as usize * 7 % (longest + 1),
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let since = Instant::now();
            for number in 0..count {
                while let Err(error) = tx.try_send_with(len(number), |place| fill(number, place)) {
                    assert!(matches!(error, SendError::Full), "{error}");
                    assert!(since.elapsed() < LIMIT, "no room for message {number}");
                    std::thread::yield_now();
                }
            }
            while tx.consumed() != tx.sent() {
                assert!(since.elapsed() < LIMIT, "the end was never read");
                tx.step().unwrap();
                std::thread::yield_now();
            }
            tx
        });
        let since = Instant::now();
        for number in 0..count {
            let good = loop {
                let read = |bytes: &[u8]| bytes.len() == len(number) && holds(number, bytes);
                match rx.try_recv_with(read).unwrap() {
                    Some(good) => break good,
                    None => std::thread::yield_now(),
                }
                assert!(since.elapsed() < LIMIT, "message {number} never came");
            };
            assert!(good, "message {number}");
            if number % 1000 == 0 {
                std::thread::yield_now();
            }
        }
        while !sender.is_finished() {
            rx.step().unwrap();
            rx.push_head().unwrap();
            std::thread::yield_now();
        }
        drop(sender.join().unwrap());
    });
}

#[test]
fn at_full_speed_every_message_arrives() {
    let Some(hosts) = Hosts::new() else { return };
    for (slots, framing) in [
        (2, Framing::Fixed(64)),
        (8, Framing::Variable(200)),
        (128, Framing::Fixed(64)),
        (128, Framing::Variable(3000)),
    ] {
        let longest = match framing {
            Framing::Fixed(len) | Framing::Variable(len) => len,
        };
        let plan = Plan {
            messages: slots,
            longest,
        };
        every_design(plan, framing, (15, 15), &mut Race(&hosts, slots));
    }
}

/// Sends many short messages through an array for long ones. Only the ends' own calls drive them.
struct Short<'a>(&'a Hosts);

impl DesignTest for Short<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let (mut tx, mut rx) = self.0.connect(design).unwrap();
        let len = match design.settle().unwrap().framing {
            Framing::Fixed(len) => len,
            Framing::Variable(_) => 8,
        };
        for number in 0..message_count(500, 8) {
            poll_until_within(11, || {
                match tx.try_send_with(len, |place| fill(number, place)) {
                    Ok(()) => return Some(()),
                    Err(error) => assert_eq!(error, SendError::Full, "message {number}"),
                }
                tx.step().unwrap();
                rx.step().unwrap();
                None
            });
            tx.step().unwrap();
            let got = poll_expr!(rx.try_recv_with(|bytes| holds(number, bytes)).unwrap());
            assert!(got, "message {number}");
        }
    }
}

#[test]
fn many_short_messages_never_wait_for_long_ones() {
    let Some(hosts) = Hosts::new() else { return };
    let plan = Plan {
        messages: 8,
        longest: 700,
    };
    every_design(plan, Framing::Variable(200), (2, 2), &mut Short(&hosts));
}

/// The sender fills the ring and is dropped. Every message is received, and then an error, even if the
/// receiver's head pushes fail in between.
struct Last;

impl DesignTest for Last {
    fn act<D: Design>(&mut self, design: &D) {
        let hosts = Hosts::soft("");
        let (mut tx, mut rx) = hosts.connect(design).unwrap();
        let mut sent = 0;
        while tx.try_send_with(64, |place| fill(sent, place)).is_ok() {
            sent += 1;
        }
        while !tx.flush().unwrap() {}
        drop(tx);
        assert!(sent > 80, "{sent} messages");
        for number in 0..sent {
            let got = rx.try_recv_with(|bytes| holds(number, bytes));
            assert_eq!(got, Ok(Some(true)), "message {number} of {sent}");
            if number == 40 {
                // A head was pushed to the dropped peer by now. From here on every push fails.
                let since = Instant::now();
                while hosts.right.next_async_event().is_none() {
                    assert!(since.elapsed() < LIMIT, "the end does not notice");
                    std::thread::yield_now();
                }
            }
        }
        assert!(rx.step().is_err() && rx.try_recv_with(|_| ()).is_err());
    }
}

#[test]
fn messages_are_received_after_their_sender_has_gone() {
    let plan = Plan {
        messages: 128,
        longest: 64,
    };
    Last.act(&Farm(plan));
    Last.act(&FarmAsPublished(plan));
    Last.act(&L5(plan));
    Last.act(&SocksDirect(plan));
    for tail in [Tail::WriteTwice, Tail::PollCq] {
        // With a push per message, pushes fail while messages are being read.
        let ring = RingConfig {
            push_every: Some(1),
            ..RingConfig::fixed(128, 64)
        };
        let head = Head::Push;
        Last.act(&SyncVariant { head, tail, ring });
    }
}

/// Drops one end and checks that the other notices. With `.1`, the receiver pushes heads and must notice too.
struct Leave<'a>(&'a Hosts, bool);

impl DesignTest for Leave<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let (mut tx, rx) = self.0.connect(design).unwrap();
        drop(rx);
        let since = Instant::now();
        let error = loop {
            // Either a request fails or the queue pair is found in the error state.
            let _ = tx.try_send_with(64, |place| place.fill(1));
            match tx.step() {
                Ok(_) => assert!(since.elapsed() < LIMIT, "the end does not notice"),
                Err(error) => break error,
            }
        };
        assert!(error.is_peer_gone(), "{error}");
        assert_eq!(tx.try_send(&[1; 64]), Err(SendError::Broken(error)));

        let (mut tx, mut rx) = self.0.connect(design).unwrap();
        tx.try_send(&[7; 64]).unwrap();
        tx.flush().unwrap();
        drop(tx);
        if !self.1 {
            // A receiver that posts nothing cannot learn that the peer's queue pair is gone.
            return;
        }
        let since = Instant::now();
        let mut got = None;
        let error: RingError = loop {
            match rx.try_recv_with(<[u8]>::to_vec) {
                Ok(None) => {}
                Ok(message) => got = message,
                Err(error) => break error,
            }
            if let Err(error) = rx.push_head().and_then(|_| rx.step()) {
                break error;
            }
            assert!(since.elapsed() < LIMIT, "the end does not notice");
        };
        assert!(error.is_peer_gone(), "{error}");
        assert_eq!(got.as_deref(), Some(&[7; 64][..]));
    }
}

#[test]
fn a_peer_departure_is_reported_after_all_sent_messages() {
    let hosts = Hosts::soft("");
    let plan = Plan {
        messages: 8,
        longest: 64,
    };
    let (mut pushing, mut pulling) = (Leave(&hosts, true), Leave(&hosts, false));
    pushing.act(&Farm(plan));
    pushing.act(&L5(plan));
    pushing.act(&SocksDirect(plan));
    for tail in [Tail::WriteTwice, Tail::PollCq] {
        let ring = RingConfig::fixed(8, 64);
        let points = |head| SyncVariant {
            head,
            tail,
            ring: ring.clone(),
        };
        pushing.act(&points(Head::Push));
        pulling.act(&points(Head::Pull));
    }
}

#[test]
fn ends_made_differently_do_not_connect() {
    let hosts = Hosts::soft("");
    let plan = |messages| Plan {
        messages,
        longest: 64,
    };
    let tx = BaselineSetup::sender(&hosts.left, L5(plan(8))).unwrap();
    let rx = BaselineSetup::receiver(&hosts.right, L5(plan(9))).unwrap();
    let (tx, rx) = oracle::connect(&*hosts.left, tx, &*hosts.right, rx);
    assert!(matches!(
        tx.err(),
        Some(SetupError::Mismatch { key: "slots", .. })
    ));
    assert!(matches!(
        rx.err(),
        Some(SetupError::Mismatch { key: "slots", .. })
    ));
    // First the same slots with another length, then the same length with another design.
    let shorter = Plan {
        messages: 9,
        longest: 56,
    };
    assert_eq!(
        shorter.packed().unwrap().slots,
        plan(8).packed().unwrap().slots
    );
    let tx = BaselineSetup::sender(&hosts.left, L5(plan(8))).unwrap();
    let rx = BaselineSetup::receiver(&hosts.right, L5(shorter)).unwrap();
    let (tx, _) = oracle::connect(&*hosts.left, tx, &*hosts.right, rx);
    let differs = |error: Option<SetupError>, what| matches!(error, Some(SetupError::Mismatch { key, .. }) if key == what);
    assert!(differs(tx.err(), "longest message"));
    let tx = BaselineSetup::sender(&hosts.left, L5(plan(8))).unwrap();
    let rx = BaselineSetup::receiver(&hosts.right, Farm(plan(8))).unwrap();
    let (tx, rx) = oracle::connect(&*hosts.left, tx, &*hosts.right, rx);
    assert!(differs(tx.err(), "design") && differs(rx.err(), "design"));
    for messages in [0, 1] {
        let refused = BaselineSetup::sender(&hosts.left, SocksDirect(plan(messages))).err();
        let told = refused.expect("no such ring").to_string();
        assert_eq!(told, format!("messages is {messages}: 2 to 1048576"));
    }
    for bytes in [&[][..], &[1], &[2; 12], &[1; 40]] {
        let tx = BaselineSetup::sender(&hosts.left, L5(plan(8))).unwrap();
        assert!(tx.finish(bytes).is_err());
    }
}

/// Counts what each end posts and polls when every message is read as soon as it is sent.
fn counted<D: Design>(design: &D, messages: u64) -> [Counts; 2] {
    let hosts = Hosts::soft("");
    let [(left, sent), (right, got)] = [&hosts.left, &hosts.right].map(|d| counting(d.clone()));
    let tallies = [sent, got];
    let tx = BaselineSetup::sender(&left, design.clone()).unwrap();
    let rx = BaselineSetup::receiver(&right, design.clone()).unwrap();
    let (tx, rx) = oracle::connect(&*left, tx, &*right, rx);
    let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
    let before = tallies.each_ref().map(|tally| tally.counts());
    for number in 0..messages {
        tx.try_send_with(64, |place| fill(number, place)).unwrap();
        while let Some(read) = rx.try_recv_with(|bytes| bytes.len()).unwrap() {
            assert_eq!(read, 64);
        }
    }
    [0, 1].map(|end: usize| tallies[end].counts().since(before[end]))
}

#[test]
fn designs_post_the_operation_counts_of_table_1() {
    let plan = Plan {
        messages: 128,
        longest: 64,
    };
    const N: u64 = 128 * 32;
    // For every message, one WRITE of the bytes and one of the length or the tail, in one chain.
    for [sent, got] in [counted(&Farm(plan), N), counted(&L5(plan), N)] {
        assert_eq!((sent.writes, sent.doorbells), (2 * N, N));
        assert_eq!((sent.immediates, got.receives), (0, 0));
        // γ is a quarter of the ring.
        assert_eq!(got.writes, N / 32);
    }
    // FaRM WRITEs the message and its length apart. L5 WRITEs both together, and then the tail.
    assert_eq!(counted(&Farm(plan), N)[0].bytes, N * (64 + 8));
    assert_eq!(counted(&L5(plan), N)[0].bytes, N * (72 + 8));
    // FaRM as published waits for each message to complete.
    let [sent, _] = counted(&FarmAsPublished(plan), N);
    assert_eq!((sent.writes, sent.bytes), (2 * N, N * (64 + 8)));
    assert!(sent.completions >= N - 1);
    // A WRITE with immediate completes at both ends. A device that completes at once gets one per message.
    let [sent, got] = counted(&SocksDirect(plan), N);
    assert_eq!((sent.writes, sent.immediates), (N, N));
    assert!(sent.completions > N - 16);
    assert_eq!((got.receives, got.writes), (N, N / 32));
    // A batch of 16 slots takes one WRITE and one WRITE of the tail, or one WRITE with immediate.
    let ring = RingConfig {
        publish_every: Some(16),
        push_every: Some(16),
        ..RingConfig::fixed(128, 64)
    };
    let of = |head, tail| {
        let ring = ring.clone();
        counted(&SyncVariant { head, tail, ring }, N)
    };
    let batches = N / 16;
    let [sent, got] = of(Head::Push, Tail::WriteTwice);
    assert_eq!(
        (sent.writes, sent.reads, got.writes),
        (2 * batches, 0, batches)
    );
    let [sent, got] = of(Head::Push, Tail::PollCq);
    assert_eq!((sent.writes, sent.immediates), (batches, batches));
    assert_eq!((got.receives, got.writes), (batches, batches));
    for tail in [Tail::WriteTwice, Tail::PollCq] {
        let [sent, got] = of(Head::Pull, tail);
        assert_eq!((sent.reads, got.writes), (batches, 0));
    }
}

/// Raw WRITEs are not a channel, but carry a ping-pong.
#[test]
fn raw_writes_carry_a_ping_pong() {
    let Some(hosts) = Hosts::new() else { return };
    let plan = Plan {
        messages: 4,
        longest: 100,
    };
    let raw = Raw { plan };
    let (mut out, mut back) = (hosts.connect(&raw).unwrap(), hosts.connect(&raw).unwrap());
    for number in 0..50_u8 {
        for (tx, rx) in [&mut out, &mut back] {
            assert!(rx.try_recv_with(|_| ()).unwrap().is_none());
            tx.try_send_with(100, |place| place.fill(number)).unwrap();
            let got = poll_expr!(rx.try_recv_with(<[u8]>::to_vec).unwrap());
            // All bytes arrive except the word that holds the message's number.
            assert_eq!(got[..88], [number; 88]);
            assert_eq!(got[96..], [number; 4]);
        }
    }
    assert!(out.0.try_send(&[0; 99]).is_err());
}
