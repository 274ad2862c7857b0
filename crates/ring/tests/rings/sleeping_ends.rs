//! Both ends sleep in poll(2) whenever they have nothing to do. None must miss its wake-up.

use std::os::fd::BorrowedFd;

use headworks_ring::{Framing, Mode, Receiver, RingConfig, RingError, SendError, Sender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pair::{
    Hosts, config, fill, flush, holds, limit, longest, message_count, poll_expr, poll_until_within,
};

/// Returns the number of messages for a ring.
fn rounds(config: &RingConfig) -> u64 {
    message_count(10_000, config.slots.into())
}

fn ready(fd: BorrowedFd<'_>, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut polled, Some(&timeout)).unwrap() > 0
}

pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    ready(fd, 0)
}

/// Waits until the descriptor is readable. Returns whether it had to sleep for that.
pub(crate) fn sleep(fd: BorrowedFd<'_>) -> bool {
    if is_readable(fd) {
        return false;
    }
    // A longer sleep means a lost wake-up.
    let seconds = limit().nanos() / 1_000_000_000;
    assert!(ready(fd, seconds as i64), "asleep for ever");
    true
}

/// Sends a message and sleeps while there is no room. Returns how often it slept.
fn send(tx: &mut Sender, message: &[u8]) -> u64 {
    let mut slept = 0;
    while let Err(error) = tx.try_send(message) {
        assert_eq!(error, SendError::Full);
        tx.arm();
        tx.step().unwrap();
        if tx.is_full() {
            slept += u64::from(sleep(tx.fd().unwrap()));
            tx.drain_events();
        }
    }
    slept
}

/// Sleeps until a message may be there. Returns whether it had to sleep.
pub(crate) fn await_message(rx: &mut Receiver) -> Result<bool, RingError> {
    rx.arm();
    let slept = !rx.step()? && sleep(rx.fd().unwrap());
    rx.drain_events();
    Ok(slept)
}

/// Receives message `number` and sleeps until it arrives. Returns how often it slept.
fn receive(rx: &mut Receiver, number: u64, len: usize) -> u64 {
    let mut slept = 0;
    loop {
        if let Some(message) = rx.try_recv().unwrap() {
            assert_eq!(message.len(), len);
            assert!(holds(number, &message), "contents of message {number}");
            return slept;
        }
        slept += u64::from(await_message(rx).unwrap());
    }
}

/// One thread sends and another receives, both at full speed. `pace` slows the receiver down.
fn stream(config: &RingConfig, len_of: impl Fn(u64) -> usize + Sync, pace: u64) {
    let hosts = Hosts::new();
    let rounds = rounds(config);
    let (mut tx, mut rx) = hosts.ring(config);
    let (sent, received) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut slept = 0;
            for number in 0..rounds {
                let mut message = vec![0; len_of(number)];
                fill(number, &mut message);
                slept += send(&mut tx, &message);
            }
            while !tx.flush().unwrap() {
                tx.step().unwrap();
            }
            slept
        });
        let mut slept = 0;
        for number in 0..rounds {
            slept += receive(&mut rx, number, len_of(number));
            for _ in 0..pace {
                std::thread::yield_now();
            }
        }
        (sending.join().unwrap(), slept)
    });
    println!("{config:?}: sender slept {sent} times, receiver {received}");
    assert!(sent + received > 0, "no end ever slept");
}

#[test]
fn streams_of_any_ring_leave_no_end_asleep() {
    let mode = Mode::Notify;
    for slots in [2, 3, 8, 128] {
        for gamma in [1, slots - 1] {
            let longest = longest(slots, mode).min(500);
            let config = RingConfig {
                push_every: Some(gamma),
                ..config(slots, Framing::Variable(longest), mode)
            };
            stream(&config, |number| number as usize * 37 % (longest + 1), 0);
        }
    }
}

#[test]
fn a_slow_receiver_leaves_no_sender_asleep() {
    stream(&config(16, Framing::Fixed(32), Mode::Notify), |_| 32, 5);
}

/// Each message waits for the answer to the one before, so both ends sleep for every message.
#[test]
fn ping_pong_asleep() {
    let hosts = Hosts::new();
    for slots in [2, 16] {
        let config = config(slots, Framing::Fixed(32), Mode::Notify);
        let rounds = rounds(&config);
        let (mut there, mut there_rx) = hosts.ring(&config);
        let (mut back, mut back_rx) = hosts.ring(&config);
        let mut message = [0; 32];
        let slept = std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let mut slept = 0;
                let mut answer = [0; 32];
                for number in 0..rounds {
                    slept += receive(&mut there_rx, number, 32);
                    fill(number, &mut answer);
                    slept += send(&mut back, &answer);
                    back.flush().unwrap();
                }
                slept
            });
            let mut slept = 0;
            for number in 0..rounds {
                fill(number, &mut message);
                slept += send(&mut there, &message);
                there.flush().unwrap();
                slept += receive(&mut back_rx, number, 32);
            }
            slept + echo.join().unwrap()
        });
        println!("{slots} slots: slept {slept} times");
        assert!(slept > rounds / 10, "they hardly slept: {slept}");
    }
}

/// The receiver drains the ring and sleeps for good. The sender must know its head and have room for the
/// longest message.
#[test]
fn heads_are_pushed_before_the_receiver_sleeps() {
    let hosts = Hosts::new();
    let mode = Mode::Notify;
    for slots in [2, 3, 8, 16] {
        for fill_slots in 1..slots {
            let longest = longest(slots, mode);
            let config = RingConfig {
                push_every: Some(slots - 1),
                ..config(slots, Framing::Variable(longest), mode)
            };
            let (mut tx, mut rx) = hosts.ring(&config);
            for _ in 0..fill_slots {
                tx.try_send(&[]).unwrap();
            }
            flush(&mut tx);
            for _ in 0..fill_slots {
                poll_expr!(rx.try_recv().unwrap());
            }
            rx.arm();
            assert!(!rx.step().unwrap());
            // From here on the receiver only wakes for skips.
            println!("{slots} slots, {fill_slots} filled");
            poll_until_within(4, || {
                if tx.try_send(&vec![1; longest]).is_ok() {
                    return Some(());
                }
                tx.arm();
                tx.step().unwrap();
                if rx.step().unwrap() {
                    assert!(rx.try_recv().unwrap().is_none(), "a skip is no message");
                }
                None
            });
        }
    }
}
