//! Rings over hostile devices, which break from a seed whatever they do not declare. A ring must survive
//! anything that such a device may legally do. If its queue pair dies, both ends must report correctly what
//! was delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks_ring::oracle::{Checked, Ring, op};
use headworks_ring::{Framing, Mode, Receiver, RingConfig, RingError, SendError, Sender};
use headworks_softnic::hostile::{FaultPoint, Rules, Verdict, rules};
use headworks_verbs::{QpState, Status};
use proptest::prelude::*;

use crate::oracle::rings;
use crate::pair::{Hosts, config, fill, holds, longest};

/// Time limit: whatever takes longer has hung.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Options of a device's name that withdraw promises.
pub(crate) const DECLARED: [&str; 4] = [
    "",
    ",ordered_between_writes=no",
    ",atomic_aligned_8=no",
    ",ordered_between_writes=no,atomic_aligned_8=no",
];

/// Options of a device's name that change how a ring uses the device.
const TUNED: [&str; 3] = [
    "",
    ",relaxed_ordering=yes",
    ",relaxed_ordering=yes,inline_up_to=96",
];

/// Opens two hostile hosts without the promises that `less` withdraws.
fn hostile(seed: u64, less: &str) -> Hosts {
    Hosts::named(
        &format!("soft:h1,hostile,seed={seed}{less}"),
        &format!("soft:h2,hostile,seed={seed}{less}"),
    )
}

/// Returns whether the end of a queue pair causes this error.
pub(crate) fn is_of_a_death(error: &RingError) -> bool {
    matches!(
        error,
        RingError::QueuePair(_)
            | RingError::Post(_)
            | RingError::Completion(Status::RetryExceeded | Status::Fatal | Status::Flushed)
    )
}

/// Returns the mode that both ends must agree on if both ask for `asked`.
pub(crate) fn agreed(asked: Mode, less: &str) -> Mode {
    match asked {
        _ if !less.is_empty() => Mode::Notify,
        // No hostile device places bytes in order, which latency mode needs.
        Mode::Latency => Mode::Poll,
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_message_arrives_once_in_order_whatever_the_device_does(
        seed in any::<u64>(),
        less in 0..DECLARED.len(),
        tuned in 0..TUNED.len(),
        rings in proptest::collection::vec((rings(), proptest::collection::vec(op(), 0..200)), 1..4),
    ) {
        let hosts = hostile(seed, &[DECLARED[less], TUNED[tuned]].concat());
        for (config, ops) in rings {
            let (tx, rx) = hosts.ring(&config);
            let mode = agreed(config.mode, DECLARED[less]);
            prop_assert_eq!((tx.ring().mode, rx.ring().mode), (mode, mode));
            let since = Instant::now();
            let mut checked = Checked::<Ring>::slow(tx, rx, config.framing, move || {
                std::thread::yield_now();
                since.elapsed() < LIMIT
            });
            for op in ops {
                checked.run(op);
            }
            checked.finish();
        }
    }
}

#[test]
fn rings_fall_back_where_a_declaration_is_missing_at_either_end() {
    for asked in [Mode::Poll, Mode::Latency, Mode::Notify] {
        for less in DECLARED {
            let plain = ",hostile,seed=1";
            for (left, right) in [(less, ""), ("", less), (less, less)] {
                let hosts = Hosts::named(
                    &format!("soft:h1{plain}{left}"),
                    &format!("soft:h2{plain}{right}"),
                );
                let framing = Framing::Variable(longest(8, asked));
                let (tx, rx) = hosts.ring(&config(8, framing, asked));
                let mode = agreed(asked, less);
                assert_eq!(
                    (tx.ring().mode, rx.ring().mode),
                    (mode, mode),
                    "{left} {right}"
                );
                // The path changes with the mode: cursors arrive by completion, on which an end can sleep.
                assert_eq!(
                    tx.fd().is_some() && rx.fd().is_some(),
                    less == left && less == right && mode == Mode::Notify
                        || (mode == Mode::Notify && asked == Mode::Notify)
                );
            }
        }
    }
}

/// Sends numbered messages up to `count` as long as there is room. Returns whether all were sent and read.
pub(crate) fn send_some(tx: &mut Sender, sent: &mut u64, count: u64) -> Result<bool, RingError> {
    let longest = tx.max_message();
    while *sent < count {
        let len = len_of(*sent, tx, longest);
        let place = tx.try_reserve(len).and_then(|mut place| {
            fill(*sent, &mut place);
            place.commit()
        });
        match place {
            Ok(()) => *sent += 1,
            Err(SendError::Full) => return Ok(false),
            Err(SendError::Broken(error)) => return Err(error),
            Err(error) => panic!("{error}"),
        }
    }
    if !tx.is_drained() {
        tx.step()?;
    }
    Ok(tx.is_drained())
}

/// Calls [`send_some`] until all is sent and read, or an error occurs. Returns the number sent.
pub(crate) fn send(tx: &mut Sender, count: u64) -> Result<u64, RingError> {
    let (mut sent, start) = (0, Instant::now());
    while !send_some(tx, &mut sent, count)? {
        assert!(start.elapsed() < LIMIT, "stuck behind message {sent}");
        std::thread::yield_now();
    }
    Ok(sent)
}

pub(crate) fn len_of(number: u64, tx: &Sender, longest: usize) -> usize {
    match tx.ring().framing {
        Framing::Fixed(len) => len,
        Framing::Variable(_) => number as usize * 31 % (longest + 1),
    }
}

/// Receives available messages up to number `count`. Returns whether all arrived and the head is pushed.
pub(crate) fn receive_some(
    rx: &mut Receiver,
    received: &mut u64,
    count: u64,
) -> Result<bool, RingError> {
    while *received < count {
        let Some(message) = rx.try_recv()? else {
            rx.step()?;
            return Ok(false);
        };
        let number = *received;
        assert!(holds(number, &message), "contents of message {number}");
        *received += 1;
    }
    rx.push_head()
}

/// Calls [`receive_some`] until `count` messages arrived, or an error occurs. Returns how many arrived.
pub(crate) fn receive(rx: &mut Receiver, count: u64) -> (u64, Option<RingError>) {
    let (mut received, start) = (0, Instant::now());
    loop {
        match receive_some(rx, &mut received, count) {
            Ok(true) => return (received, None),
            Ok(false) => {}
            Err(error) => return (received, Some(error)),
        }
        assert!(start.elapsed() < LIMIT, "nothing behind message {received}");
        std::thread::yield_now();
    }
}

/// Number of messages: every ring of these tests wraps many times.
const COUNT: u64 = 3000;

pub(crate) fn shapes() -> Vec<RingConfig> {
    let mut all = Vec::new();
    for mode in [Mode::Poll, Mode::Latency, Mode::Notify] {
        all.push(config(16, Framing::Fixed(48), mode));
        all.push(config(32, Framing::Variable(longest(32, mode)), mode));
        all.push(RingConfig {
            publish_every: Some(1),
            push_every: Some(1),
            ..config(8, Framing::Variable(200), mode)
        });
    }
    all
}

#[test]
fn two_threads_over_a_hostile_device() {
    for (number, config) in shapes().into_iter().enumerate() {
        for (less, tuned) in DECLARED
            .into_iter()
            .zip(TUNED.into_iter().cycle())
            .chain([("", TUNED[1])])
        {
            let seed = 100 + number as u64;
            let hosts = hostile(seed, &[less, tuned].concat());
            println!("seed {seed}{less}{tuned}: {config:?}");
            let (mut tx, mut rx) = hosts.ring(&config);
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| send(&mut tx, COUNT));
                assert_eq!(receive(&mut rx, COUNT), (COUNT, None));
                assert_eq!(sending.join().unwrap(), Ok(COUNT));
            });
            assert_eq!(
                (tx.consumed(), tx.published()),
                (rx.consumed(), rx.consumed())
            );
        }
    }
}

/// Runs a ring whose queue pairs are killed. Checks the error and the delivered prefix; returns whether an
/// end broke.
fn dies(seed: u64, less: &str, config: &RingConfig, mean: u64) -> bool {
    let all = Rules::all(seed).first(rules::kills(mean));
    let hosts = Hosts::by(all, &format!("soft:h1{less}"), &format!("soft:h2{less}"));
    let (mut tx, mut rx) = hosts.ring(config);
    let (sent, (received, broken)) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&mut tx, COUNT));
        let received = receive(&mut rx, COUNT);
        (sending.join().unwrap(), received)
    });
    for error in [sent.err(), broken].into_iter().flatten() {
        assert!(is_of_a_death(&error), "{error}");
    }
    // Slots that the sender knows to be consumed were consumed, and consumed slots had been published.
    assert!(
        tx.consumed() <= rx.consumed(),
        "{} {}",
        tx.consumed(),
        rx.consumed()
    );
    assert!(
        rx.consumed() <= tx.published(),
        "{} {}",
        rx.consumed(),
        tx.published()
    );
    assert!(tx.published() <= tx.sent());
    if let Framing::Fixed(_) = config.framing {
        // One slot per message, so the prefix counts messages.
        assert_eq!(rx.consumed(), received);
    }
    if let Err(error) = sent {
        assert_eq!(
            tx.try_send(&vec![0; len_of(0, &tx, 0)]),
            Err(SendError::Broken(error))
        );
        assert_eq!(tx.step(), Err(error));
    }
    sent.is_err() || broken.is_some()
}

#[test]
fn rings_know_deliveries_after_their_queue_pair_is_killed() {
    let mut died = 0;
    for seed in 1..=60 {
        let shapes = shapes();
        let config = &shapes[seed as usize % shapes.len()];
        let less = DECLARED[seed as usize / 2 % DECLARED.len()];
        println!("seed {seed}{less}: {config:?}");
        died += u32::from(dies(seed, less, config, 150));
    }
    assert!(died > 30, "only {died} rings died");
}

#[test]
fn a_receive_that_the_device_has_no_room_for_is_posted_later() {
    // Receives are first posted before the ends connect, or once they have agreed to need them.
    for (asked, less) in [(Mode::Notify, ""), (Mode::Poll, DECLARED[1])] {
        // The device refuses each receive but the first once, and takes it at the second try.
        let full = rules::by(|event, _| {
            let first = event.point == FaultPoint::PostReceive && event.turn == 0;
            first.then_some(Verdict::Refuse)
        });
        let rules = Rules::new(1).with(full);
        let hosts = Hosts::by(rules, &format!("soft:h1{less}"), &format!("soft:h2{less}"));
        let (mut tx, mut rx) = hosts.ring(&config(8, Framing::Fixed(48), asked));
        assert_eq!(tx.ring().mode, Mode::Notify);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(&mut tx, COUNT));
            assert_eq!(receive(&mut rx, COUNT), (COUNT, None));
            assert_eq!(sending.join().unwrap(), Ok(COUNT));
        });
    }
}

#[test]
fn a_full_sender_that_only_tries_to_send_finds_out_that_its_queue_pair_has_failed() {
    let kills = Arc::new(AtomicBool::new(false));
    let armed = kills.clone();
    let kill = rules::by(move |event, _| {
        let now = event.point == FaultPoint::Begin && armed.load(Ordering::Relaxed);
        now.then_some(Verdict::Kill(Status::RetryExceeded))
    });
    let hosts = Hosts::by(Rules::new(1).with(kill), "soft:h1", "soft:h2");
    let (mut tx, mut rx) = hosts.ring(&config(8, Framing::Fixed(48), Mode::Poll));
    assert_eq!(tx.ring().mode, Mode::Poll);
    let start = Instant::now();
    let mut sent = 0;
    while tx.try_send(&[0; 48]).is_ok() {
        sent += 1;
    }
    // All requests of the sender end, so no completion will tell it anything later.
    let mut held = Vec::new();
    while held.len() < sent {
        assert!(start.elapsed() < LIMIT, "message {}", held.len());
        assert_eq!(tx.try_send(&[0; 48]), Err(SendError::Full));
        held.extend(rx.try_take().unwrap());
    }
    // The receiver's first request fails, and so do both queue pairs.
    kills.store(true, Ordering::Relaxed);
    for message in held {
        let _ = rx.release(message);
    }
    let error = loop {
        match tx.try_send(&[0; 48]) {
            Err(SendError::Full) => assert!(start.elapsed() < LIMIT, "full for ever"),
            Err(SendError::Broken(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error, RingError::QueuePair(QpState::Error));
    assert_eq!(tx.consumed(), 0);
}
