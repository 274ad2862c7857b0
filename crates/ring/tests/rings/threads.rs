//! Two threads at full speed.

use std::time::{Duration, Instant};

use headworks_ring::{Framing, Mode, Receiver, RingConfig, SendError, Sender};

use crate::pair::{Hosts, config, fill, holds, longest, message_count};

/// Time limit: whatever takes longer has hung because the other thread failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of messages for a ring: fewer on small rings, where every message waits for the other thread.
fn count(slots: u64) -> u64 {
    message_count(if slots < 8 { 10_000 } else { 200_000 }, slots)
}

/// Returns the length of message `number`: mostly short, sometimes the longest.
fn len_of(number: u64, framing: Framing) -> usize {
    match framing {
        Framing::Fixed(len) => len,
        Framing::Variable(longest) => {
            let random = (number + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32;
            match random % 16 {
                0 => longest,
                1..4 => random as usize / 16 % (longest + 1),
                _ => random as usize / 16 % (longest.min(100) + 1),
            }
        }
    }
}

fn send_all(mut tx: Sender) -> Sender {
    let framing = tx.ring().framing;
    for number in 0..count(tx.ring().slots) {
        let len = len_of(number, framing);
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT, "no room for message {number}");
            match tx.try_reserve(len) {
                Ok(mut place) => {
                    fill(number, &mut place);
                    place.commit().unwrap();
                    break;
                }
                Err(SendError::Full) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
    let start = Instant::now();
    while !tx.is_drained() {
        assert!(start.elapsed() < LIMIT, "the end was never read");
        tx.step().unwrap();
        std::thread::yield_now();
    }
    tx
}

fn receive_all(mut rx: Receiver) -> Receiver {
    let framing = rx.ring().framing;
    for number in 0..count(rx.ring().slots) {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT, "message {number} never comes");
            if let Some(message) = rx.try_recv().unwrap() {
                assert_eq!(message.len(), len_of(number, framing));
                assert!(holds(number, &message), "contents of message {number}");
                break;
            }
            std::thread::yield_now();
        }
    }
    while !rx.push_head().unwrap() {}
    rx
}

fn run(config: &RingConfig) {
    let hosts = Hosts::new();
    let (tx, rx) = hosts.ring(config);
    let (tx, rx) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(tx));
        let rx = receive_all(rx);
        (sending.join().unwrap(), rx)
    });
    assert_eq!(tx.consumed(), rx.consumed());
    assert_eq!(tx.published(), rx.consumed());
}

#[test]
fn fixed_polling() {
    run(&config(128, Framing::Fixed(64), Mode::Poll));
}

#[test]
fn fixed_in_latency_mode() {
    run(&config(128, Framing::Fixed(64), Mode::Latency));
}

#[test]
fn fixed_notifying() {
    run(&config(128, Framing::Fixed(64), Mode::Notify));
}

#[test]
fn fixed_on_two_slots() {
    for mode in [Mode::Poll, Mode::Latency, Mode::Notify] {
        run(&config(2, Framing::Fixed(24), mode));
    }
}

#[test]
fn variable_polling() {
    let mode = Mode::Poll;
    run(&config(32, Framing::Variable(longest(32, mode)), mode));
}

#[test]
fn variable_in_latency_mode() {
    let mode = Mode::Latency;
    run(&config(32, Framing::Variable(longest(32, mode)), mode));
}

#[test]
fn variable_notifying() {
    let mode = Mode::Notify;
    run(&config(32, Framing::Variable(longest(32, mode)), mode));
}

#[test]
fn unbatched_and_without_the_elastic_gate() {
    let mode = Mode::Poll;
    run(&RingConfig {
        publish_every: Some(1),
        push_every: Some(1),
        elastic: Some(false),
        ..config(16, Framing::Variable(longest(16, mode)), mode)
    });
}
