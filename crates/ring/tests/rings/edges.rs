//! The boundary cases of every limit, one by one.

use headworks_ring::{
    AfterStep, Framing, Group, LengthError, Mode, Receiver, RingConfig, SendError, Sender,
};

use crate::minimal_device::over;
use crate::pair::{
    Hosts, config, connect, fill, flush, is_slow_device, longest, poll_expr, poll_until,
    poll_until_within,
};

const MODES: [Mode; 3] = [Mode::Poll, Mode::Latency, Mode::Notify];

/// A ring whose assertions name its configuration.
struct Ring {
    case: String,
    tx: Sender,
    rx: Receiver,
}

/// Asserts equality, with the ring's configuration in the message.
macro_rules! same {
    ($ring:expr, $found:expr, $expected:expr) => {
        assert_eq!($found, $expected, "{}", $ring.case)
    };
}

/// Sends a message. If an error is given, asserts that the message is refused with it.
macro_rules! send {
    ($ring:expr, $message:expr) => {
        same!($ring, $ring.tx.try_send(&$message), Ok(()))
    };
    ($ring:expr, $message:expr, $error:expr) => {
        same!($ring, $ring.tx.try_send(&$message), Err($error))
    };
}

/// Waits for a message and compares it. If none is given, asserts that none is available.
macro_rules! recv {
    ($ring:expr) => {
        same!($ring, $ring.rx.try_recv().unwrap().as_deref(), None)
    };
    ($ring:expr, $message:expr) => {
        same!($ring, *poll_expr!($ring.rx.try_recv().unwrap()), $message)
    };
}

impl Ring {
    fn new(hosts: &Hosts, config: &RingConfig) -> Self {
        let case = format!("{config:?}");
        let (tx, rx) = hosts.connect(config, config).expect(&case);
        Self { case, tx, rx }
    }

    /// Sends a message of each length and receives it before the next, with `try_*` calls only.
    fn pass(&mut self, lengths: impl IntoIterator<Item = usize>) {
        for len in lengths {
            let mut message = vec![0; len];
            fill(self.tx.sent(), &mut message);
            poll_until_within(100, || match self.tx.try_send(&message) {
                Err(SendError::Full) => {
                    recv!(self);
                    None
                }
                sent => {
                    same!(self, sent, Ok(()));
                    Some(())
                }
            });
            flush(&mut self.tx);
            recv!(self, message);
        }
    }
}

#[test]
fn every_edge_of_n_alpha_beta_gamma_and_length() {
    let hosts = Hosts::new();
    for mode in MODES {
        for slots in [2, 3, 4, 7, 8, 16] {
            let (top, longest) = (slots - 1, longest(slots, mode));
            for (alpha, beta, gamma) in [(1, 1, 1), (top, top, top), (top, 1, 1), (1, 1, top)] {
                let beta = if mode == Mode::Latency { 1 } else { beta };
                let config = RingConfig {
                    publish_every: Some(alpha),
                    transmit_every: Some(beta),
                    push_every: Some(gamma),
                    ..config(slots, Framing::Variable(longest), mode)
                };
                let mut ring = Ring::new(&hosts, &config);
                same!(ring, ring.tx.max_message(), longest);
                let half = (slots as usize / 2 * 64).saturating_sub(8).min(longest);
                let lengths = [0, 1, half, longest, 0, longest, longest, half, half, 8];
                ring.pass(lengths.map(|len| len.min(longest)).repeat(20));
                same!(ring, ring.tx.published(), ring.rx.consumed());
            }
        }
    }
}

#[test]
fn every_length_from_every_slot() {
    let hosts = Hosts::new();
    for mode in MODES {
        for slots in [5u32, 8] {
            let config = config(slots, Framing::Variable(longest(slots, mode)), mode);
            for start in 0..slots as usize {
                for count in 1..slots as usize {
                    let mut ring = Ring::new(&hosts, &config);
                    ring.pass(vec![0; start]);
                    ring.pass([(count * 64 - 8).min(ring.tx.max_message()); 3]);
                }
            }
        }
    }
}

#[test]
fn a_message_too_long_names_the_limits() {
    let hosts = Hosts::new();
    let refused = |len, (lowest, highest)| LengthError {
        len,
        lowest,
        highest,
    };
    let huge = usize::MAX >> 1;
    let said = "a message of 301 bytes: this ring takes 0 to 300";
    assert_eq!(refused(301, (0, 300)).to_string(), said);
    for mode in MODES {
        for (framing, limits, illegal) in [
            (Framing::Variable(300), (0, 300), [301, 302, huge]),
            (Framing::Fixed(24), (24, 24), [23, 25, huge]),
        ] {
            let mut ring = Ring::new(&hosts, &config(8, framing, mode));
            for len in illegal {
                let error = SendError::Length(refused(len, limits));
                same!(ring, ring.tx.try_reserve(len).map(drop), Err(error));
                if len != huge {
                    send!(ring, vec![0; len], error);
                }
            }
            ring.pass([24]);
        }
    }
}

#[test]
fn a_receiver_that_stops_makes_the_ring_full_and_no_more() {
    let hosts = Hosts::new();
    for mode in MODES {
        for framing in [Framing::Fixed(16), Framing::Variable(16)] {
            let mut ring = Ring::new(&hosts, &config(9, framing, mode));
            for _ in 0..8 {
                send!(ring, [5; 16]);
            }
            for _ in 0..100 {
                send!(ring, [6; 16], SendError::Full);
                ring.tx.step().unwrap();
            }
            same!(ring, ring.tx.is_full(), true);
            same!(ring, (ring.tx.published(), ring.tx.consumed()), (8, 0));
            for _ in 0..8 {
                recv!(ring, [5; 16]);
            }
            recv!(ring);
        }
    }
}

#[test]
fn full_means_the_message_refused_only_until_another_is_sent() {
    let hosts = Hosts::new();
    for mode in MODES {
        let longest = longest(16, mode);
        let mut ring = Ring::new(&hosts, &config(16, Framing::Variable(longest), mode));
        for _ in 0..4 {
            send!(ring, [5; 16]);
        }
        same!(ring, ring.tx.is_full(), false);
        // The long message has no room; a shorter one takes a slot that is still free.
        send!(ring, vec![6; longest], SendError::Full);
        same!(ring, ring.tx.is_full(), true);
        send!(ring, [7; 16]);
        same!(ring, ring.tx.is_full(), false);
    }
}

#[test]
#[should_panic(expected = "taken from another receiver")]
fn a_message_is_lent_by_its_own_receiver_only() {
    let hosts = Hosts::new();
    let [mut one, other] = [(); 2].map(|()| Ring::new(&hosts, &RingConfig::fixed(8, 16)));
    send!(one, [1; 16]);
    flush(&mut one.tx);
    let held = poll_expr!(one.rx.try_take().unwrap());
    assert_eq!(one.rx.bytes(&held), [1; 16]);
    other.rx.bytes(&held);
}

#[test]
#[should_panic(expected = "taken from another receiver")]
fn a_message_is_released_by_its_own_receiver_only() {
    let hosts = Hosts::new();
    let [mut one, mut other] = [(); 2].map(|()| Ring::new(&hosts, &RingConfig::fixed(8, 16)));
    for ring in [&mut one, &mut other] {
        send!(ring, [1; 16]);
        flush(&mut ring.tx);
    }
    let held = poll_expr!(one.rx.try_take().unwrap());
    let _theirs = poll_expr!(other.rx.try_take().unwrap());
    let _ = other.rx.release(held);
}

#[test]
fn latency_mode_passes_the_longest_after_the_shortest() {
    // A short message leaves a completion outstanding. The long one after it needs all the room.
    let hosts = Hosts::new();
    let mode = Mode::Latency;
    for slots in [4u32, 8, 16, 33] {
        let longest = longest(slots, mode);
        let mut ring = Ring::new(&hosts, &config(slots, Framing::Variable(longest), mode));
        ring.pass([0, longest].repeat(100));
    }
}

/// Returns a slot count of four times the send queue's depth, which is limited on slow devices.
fn larger(hosts: &mut Hosts) -> u32 {
    let depth = match is_slow_device() {
        true => 256,
        false => hosts.left.info().limits.max_qp_wr,
    };
    hosts.left = over(&hosts.left, depth).0;
    depth * 4
}

#[test]
fn rings_larger_than_the_send_queue() {
    let mut hosts = Hosts::new();
    let slots = larger(&mut hosts);
    let unbatched = RingConfig {
        transmit_every: Some(1),
        ..config(slots, Framing::Fixed(8), Mode::Poll)
    };
    let error = hosts.connect(&unbatched, &unbatched).map(drop).unwrap_err();
    let sends = slots / 4;
    let said =
        format!("transmit_every is 1: at least 5 with {slots} slots and {sends} send requests");
    assert_eq!(error.to_string(), said);
    for (mode, transmit_every) in [(Mode::Poll, Some(5)), (Mode::Latency, None)] {
        let config = RingConfig {
            transmit_every,
            publish_every: Some(slots - 1),
            ..config(slots, Framing::Fixed(8), mode)
        };
        let mut ring = Ring::new(&hosts, &config);
        for _ in 0..2 {
            while ring.tx.try_send(&[3; 8]).is_ok() {}
            // All messages except those whose release the receiver has yet to announce.
            for _ in 0..slots / 4 * 3 - 1 {
                recv!(ring, [3; 8]);
            }
            while ring.rx.try_recv().unwrap().is_some() {}
        }
    }
}

/// Publishes one by one, then transmits groups up to the end: some of these requests must be signalled.
#[test]
fn a_send_queue_smaller_than_the_ring_is_never_stuck() {
    let mut hosts = Hosts::new();
    let slots = larger(&mut hosts);
    let config = RingConfig {
        transmit_every: Some(5),
        publish_every: Some(slots - 1),
        elastic: Some(false),
        ..config(slots, Framing::Fixed(8), Mode::Poll)
    };
    let mut ring = Ring::new(&hosts, &config);
    for _ in 0..2 {
        for _ in 0..slots / 16 - 1 {
            send!(ring, [1; 8]);
            flush(&mut ring.tx);
        }
        while ring.tx.try_send(&[1; 8]).is_ok() {}
        let Ring { tx, rx, .. } = &mut ring;
        // A stuck sender would never publish the rest.
        poll_until(|| {
            tx.step().unwrap();
            (tx.published() == tx.sent()).then_some(())
        });
        poll_until(|| {
            while rx.try_recv().unwrap().is_some() {}
            (rx.consumed() == tx.sent()).then_some(())
        });
    }
}

#[test]
fn rings_that_cross_do_not_stop_each_other() {
    // Both sides fill their ring, read most of the other's, and then wait for room without receiving.
    for mode in MODES {
        let hosts = Hosts::new();
        let config = RingConfig {
            push_every: Some(15),
            ..config(16, Framing::Variable(600), mode)
        };
        let link = |from, to| {
            let (tx, rx) = connect(from, &config, to, &config).unwrap();
            (tx.unwrap(), rx.unwrap())
        };
        let (there_tx, there_rx) = link(&hosts.left, &hosts.right);
        let (back_tx, back_rx) = link(&hosts.right, &hosts.left);
        let group = |tx, rx| {
            let mut group = Group::default();
            let (tx, rx) = (group.add_sender(tx), group.add_receiver(rx));
            (group, tx, rx)
        };
        let mut sides = [group(there_tx, back_rx), group(back_tx, there_rx)];
        for (group, tx, _) in &mut sides {
            while group.sender(*tx).unwrap().try_send(&[1; 40]).is_ok() {}
        }
        for (group, _, rx) in &mut sides {
            for _ in 0..12 {
                let (ring, _) = poll_expr!(group.try_recv().unwrap());
                assert_eq!(ring, *rx, "{mode:?}");
            }
        }
        let mut waiting = [true; 2];
        println!("{mode:?}");
        poll_until_within(10, || {
            for ((group, tx, _), waiting) in sides.iter_mut().zip(&mut waiting) {
                // A side that waits for room receives nothing meanwhile.
                let sender = group.sender(*tx).unwrap();
                *waiting = *waiting && sender.try_send(&[2; 600]).is_err();
                while !*waiting && group.try_recv().unwrap().is_some() {}
                let next = match *waiting {
                    true => AfterStep::Poll,
                    false => AfterStep::Wait,
                };
                group.step(next).unwrap();
            }
            (waiting == [false; 2]).then_some(())
        });
    }
}
