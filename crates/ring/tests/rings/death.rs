//! One end is dropped. The other reports that soon, and loses nothing that was published.

use std::time::{Duration, Instant};

use std::sync::Arc;

use headworks_ring::{Framing, Mode, Receiver, RingError, SendError, Sender};

use crate::pair::{
    Counting, Hosts, config, connect, fill, flush, holds, is_slow_device, limit, poll_expr,
    poll_until, quiet, stepped,
};

/// The modes in which [`quiet`] can tell when all messages have arrived.
fn modes() -> &'static [Mode] {
    match is_slow_device() {
        true => &[Mode::Poll, Mode::Notify],
        false => &[Mode::Poll, Mode::Notify, Mode::Latency],
    }
}

/// Connects a ring between two devices, either of which can be dropped. Also counts the sender's completions.
fn ring(hosts: &mut Hosts, mode: Mode, framing: Framing) -> (Sender, Receiver, Arc<Counting>) {
    let config = config(16, framing, mode);
    let (left, counting) = Counting::around(&hosts.left);
    hosts.left = left;
    let (tx, rx) = connect(&hosts.left, &config, &hosts.right, &config).unwrap();
    (tx.unwrap(), rx.unwrap(), counting)
}

fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let (start, bound) = (Instant::now(), Duration::from_nanos(limit().nanos()));
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < bound, "nothing after {bound:?}");
        std::thread::yield_now();
    }
}

#[test]
fn the_sender_learns_that_the_receiver_went() {
    for &mode in modes() {
        let mut hosts = Hosts::new();
        let (mut tx, mut rx, _) = ring(&mut hosts, mode, Framing::Fixed(32));
        for _ in 0..5 {
            tx.try_send(&[1; 32]).unwrap();
        }
        flush(&mut tx);
        for _ in 0..3 {
            poll_expr!(rx.try_recv().unwrap());
        }
        poll_until(|| rx.push_head().unwrap().then_some(()));
        stepped(&mut tx, |tx| (tx.consumed() == 3).then_some(()));
        drop(rx);
        let error = until(|| match tx.try_send(&[1; 32]) {
            Ok(()) | Err(SendError::Full) => tx.step().err(),
            Err(SendError::Broken(error)) => Some(error),
            Err(error) => panic!("{error}"),
        });
        assert!(error.is_peer_gone(), "{mode:?}: {error}");
        assert_eq!(tx.step(), Err(error));
        assert_eq!(tx.try_send(&[1; 32]), Err(SendError::Broken(error)));
        assert_eq!(tx.consumed(), 3, "{mode:?}: what was consumed is known");
        assert!(tx.published() >= 5);
    }
}

/// The receiver reads everything that was published, and then learns that the sender is gone.
fn drained_to_the_end(mode: Mode, framing: Framing, before: u64, after: u64) {
    let mut hosts = Hosts::new();
    let (mut tx, mut rx, counting) = ring(&mut hosts, mode, framing);
    let mut message = [0; 32];
    let mut next = 0;
    let mut send = |tx: &mut Sender| {
        fill(next, &mut message);
        poll_until(|| tx.try_send(&message).ok());
        next += 1;
    };
    let mut read = 0;
    for _ in 0..before {
        send(&mut tx);
        tx.step().unwrap();
        assert!(holds(read, &poll_expr!(rx.try_recv().unwrap())));
        read += 1;
        rx.push_head().unwrap();
    }
    for _ in 0..after {
        send(&mut tx);
    }
    flush(&mut tx);
    quiet(&mut tx, rx.stats().head_writes, &counting);
    let published = before + after;
    drop(tx);
    hosts.left = hosts.right.clone();
    // The head pushed meanwhile fails; the remaining messages must arrive all the same.
    let pushed = rx.stats().head_writes;
    for _ in 0..after.min(6) {
        assert!(holds(read, &poll_expr!(rx.try_recv().unwrap())));
        read += 1;
    }
    if rx.stats().head_writes == pushed {
        assert!(after < 6, "γ is 4");
    } else if !is_slow_device() {
        // On slow devices only the completion may report a failed request.
        until(|| hosts.right.next_async_event());
    }
    // The head pushed after γ slots fails, as the peer is gone. Published messages stay readable. An idle
    // queue pair learns nothing of a destroyed peer on any device; only the end of the exchange stream
    // reports that.
    let error = until(|| {
        if let Err(error) = rx.step() {
            return Some(error);
        }
        match rx.try_recv() {
            Ok(Some(message)) => {
                assert!(holds(read, &message));
                read += 1;
            }
            Ok(None) => {}
            Err(error) => return Some(error),
        }
        None
    });
    assert!(error.is_peer_gone(), "{mode:?}: {error}");
    assert_eq!(read, published, "{mode:?} {framing:?}: {before}, {after}");
    assert_eq!(rx.try_recv().map(drop), Err(error));
    assert_eq!(rx.consumed(), published);
}

#[test]
fn the_receiver_drains_published_messages_before_learning_of_death() {
    for &mode in modes() {
        for framing in [Framing::Fixed(32), Framing::Variable(32)] {
            for (before, after) in [(0, 15), (3, 4), (9, 7), (20, 15)] {
                drained_to_the_end(mode, framing, before, after);
            }
        }
    }
}

#[test]
fn taken_messages_outlive_the_sender() {
    for &mode in modes() {
        let mut hosts = Hosts::new();
        let (mut tx, mut rx, counting) = ring(&mut hosts, mode, Framing::Variable(32));
        for n in 0..15 {
            let mut message = [0; 32];
            fill(n, &mut message);
            tx.try_send(&message).unwrap();
        }
        flush(&mut tx);
        quiet(&mut tx, 0, &counting);
        let mut held: Vec<_> = (0..6).map(|_| poll_expr!(rx.try_take().unwrap())).collect();
        drop(tx);
        hosts.left = hosts.right.clone();
        while let Some(one) = held.pop() {
            assert!(holds(held.len() as u64, rx.bytes(&one)));
            let _ = rx.release(one);
        }
        let mut read = 6;
        let error: RingError = until(|| {
            let message = match rx.try_recv() {
                Ok(message) => message,
                Err(error) => return Some(error),
            };
            if let Some(message) = message {
                assert!(holds(read, &message));
                read += 1;
                return None;
            }
            drop(message);
            rx.step().err()
        });
        assert!(error.is_peer_gone());
        assert_eq!(read, 15, "{mode:?}");
    }
}
