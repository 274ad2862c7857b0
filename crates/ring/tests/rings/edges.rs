//! The edges of every limit, one by one.

use headworks_ring::{Framing, Group, LengthError, Mode, RingConfig, SendError};

use crate::narrow::over;
use crate::pair::{
    Hosts, awaited, config, connect, fill, flush, found, found_within, holds, longest, takes_time,
};

const MODES: [Mode; 3] = [Mode::Poll, Mode::Latency, Mode::Notify];

/// Sends one message of `len` bytes and receives it, by `try_*` alone.
fn pass(tx: &mut headworks_ring::Sender, rx: &mut headworks_ring::Receiver, len: usize, n: u64) {
    let mut message = vec![0; len];
    fill(n, &mut message);
    found_within(100, || {
        match tx.try_send(&message) {
            Ok(()) => return Some(()),
            Err(SendError::Full) => assert!(rx.try_recv().unwrap().is_none()),
            Err(error) => panic!("{error}"),
        }
        None
    });
    flush(tx);
    let got = awaited!(rx.try_recv().unwrap());
    assert_eq!(got.len(), len);
    assert!(holds(n, &got));
}

#[test]
fn every_edge_of_n_alpha_beta_gamma_and_length() {
    let hosts = Hosts::new();
    for mode in MODES {
        for slots in [2, 3, 4, 7, 8, 16] {
            let top = slots - 1;
            let longest = longest(slots, mode);
            for (alpha, beta, gamma) in [(1, 1, 1), (top, top, top), (top, 1, 1), (1, 1, top)] {
                let beta = if mode == Mode::Latency { 1 } else { beta };
                let config = RingConfig {
                    publish_every: Some(alpha),
                    transmit_every: Some(beta),
                    push_every: Some(gamma),
                    ..config(slots, Framing::Variable(longest), mode)
                };
                let (mut tx, mut rx) = hosts.ring(&config);
                assert_eq!(tx.max_message(), longest);
                let half = (slots as usize / 2 * 64).saturating_sub(8).min(longest);
                let lengths = [0, 1, half, longest, 0, longest, longest, half, half, 8];
                for (n, len) in lengths.iter().cycle().take(200).enumerate() {
                    pass(&mut tx, &mut rx, (*len).min(longest), n as u64);
                }
                assert_eq!(tx.published(), rx.consumed());
            }
        }
    }
}

#[test]
fn every_length_from_every_slot() {
    let hosts = Hosts::new();
    for mode in MODES {
        for slots in [5u32, 8] {
            for start in 0..slots {
                for count in 1..slots {
                    let config = config(slots, Framing::Variable(longest(slots, mode)), mode);
                    let (mut tx, mut rx) = hosts.ring(&config);
                    for n in 0..start {
                        pass(&mut tx, &mut rx, 0, n.into());
                    }
                    let len = (count as usize * 64 - 8).min(tx.max_message());
                    for n in 0..3 {
                        pass(&mut tx, &mut rx, len, n);
                    }
                }
            }
        }
    }
}

#[test]
fn a_message_too_long_names_the_limits() {
    let hosts = Hosts::new();
    for mode in MODES {
        let (mut tx, _rx) = hosts.ring(&config(8, Framing::Variable(300), mode));
        let error = tx.try_send(&[0; 301]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a message of 301 bytes: this ring takes 0 to 300"
        );
        assert!(tx.try_reserve(301).is_err());
        let (mut tx, mut rx) = hosts.ring(&config(8, Framing::Fixed(24), mode));
        for len in [0, 23, 25, usize::MAX >> 1] {
            let error = tx.try_reserve(len).map(drop).unwrap_err();
            let (lowest, highest) = (24, 24);
            assert_eq!(
                error,
                SendError::Length(LengthError {
                    len,
                    lowest,
                    highest
                })
            );
        }
        pass(&mut tx, &mut rx, 24, 0);
    }
}

#[test]
fn a_receiver_that_stops_makes_the_ring_full_and_no_more() {
    let hosts = Hosts::new();
    for mode in MODES {
        for framing in [Framing::Fixed(16), Framing::Variable(16)] {
            let (mut tx, mut rx) = hosts.ring(&config(9, framing, mode));
            for _ in 0..8 {
                tx.try_send(&[5; 16]).unwrap();
            }
            for _ in 0..100 {
                assert_eq!(tx.try_send(&[6; 16]), Err(SendError::Full));
                tx.step().unwrap();
            }
            assert!(tx.is_full());
            assert_eq!((tx.published(), tx.consumed()), (8, 0));
            for _ in 0..8 {
                assert_eq!(&*awaited!(rx.try_recv().unwrap()), &[5; 16]);
            }
            assert!(rx.try_recv().unwrap().is_none());
        }
    }
}

#[test]
fn full_means_the_message_refused_only_until_another_is_sent() {
    let hosts = Hosts::new();
    for mode in MODES {
        let longest = longest(16, mode);
        let (mut tx, _rx) = hosts.ring(&config(16, Framing::Variable(longest), mode));
        for _ in 0..4 {
            tx.try_send(&[5; 16]).unwrap();
        }
        assert!(!tx.is_full());
        assert_eq!(tx.try_send(&vec![6; longest]), Err(SendError::Full));
        assert!(tx.is_full(), "what was refused has no room");
        tx.try_send(&[7; 16]).unwrap();
        assert!(!tx.is_full(), "there are slots");
    }
}

#[test]
#[should_panic(expected = "taken from another receiver")]
fn a_message_is_lent_by_its_own_receiver_only() {
    let hosts = Hosts::new();
    let (mut one, mut one_rx) = hosts.ring(&RingConfig::fixed(8, 16));
    let (_other, other_rx) = hosts.ring(&RingConfig::fixed(8, 16));
    one.try_send(&[1; 16]).unwrap();
    flush(&mut one);
    let held = awaited!(one_rx.try_take().unwrap());
    assert_eq!(one_rx.bytes(&held), [1; 16]);
    other_rx.bytes(&held);
}

#[test]
#[should_panic(expected = "taken from another receiver")]
fn a_message_is_released_by_its_own_receiver_only() {
    let hosts = Hosts::new();
    let (mut one, mut one_rx) = hosts.ring(&RingConfig::fixed(8, 16));
    let (mut other, mut other_rx) = hosts.ring(&RingConfig::fixed(8, 16));
    for tx in [&mut one, &mut other] {
        tx.try_send(&[1; 16]).unwrap();
        flush(tx);
    }
    let held = awaited!(one_rx.try_take().unwrap());
    let _theirs = awaited!(other_rx.try_take().unwrap());
    let _ = other_rx.release(held);
}

#[test]
fn latency_mode_passes_the_longest_after_the_shortest() {
    // One short message leaves a completion open; the long one after it needs all the room.
    let hosts = Hosts::new();
    let mode = Mode::Latency;
    for slots in [4u32, 8, 16, 33] {
        let longest = longest(slots, mode);
        let (mut tx, mut rx) = hosts.ring(&config(slots, Framing::Variable(longest), mode));
        for n in 0..100 {
            pass(&mut tx, &mut rx, 0, n);
            pass(&mut tx, &mut rx, longest, n);
        }
    }
}

/// Slots of a ring that is four times as large as the send queue.
fn larger(hosts: &mut Hosts) -> u32 {
    let depth = match takes_time() {
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
    assert_eq!(
        error.to_string(),
        format!(
            "transmit_every is 1: at least 5 with {slots} slots and {} send requests",
            slots / 4
        )
    );
    for (mode, transmit_every) in [(Mode::Poll, Some(5)), (Mode::Latency, None)] {
        let config = RingConfig {
            transmit_every,
            publish_every: Some(slots - 1),
            ..config(slots, Framing::Fixed(8), mode)
        };
        let (mut tx, mut rx) = hosts.ring(&config);
        for _ in 0..2 {
            while tx.try_send(&[3; 8]).is_ok() {}
            // All but what the receiver has not told of yet.
            for _ in 0..slots / 4 * 3 - 1 {
                awaited!(rx.try_recv().unwrap());
            }
            while rx.try_recv().unwrap().is_some() {}
        }
    }
}

/// Publications one by one, then groups up to the end: of all these requests some must be signalled.
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
    let (mut tx, mut rx) = hosts.ring(&config);
    for _ in 0..2 {
        for _ in 0..slots / 16 - 1 {
            tx.try_send(&[1; 8]).unwrap();
            flush(&mut tx);
        }
        while tx.try_send(&[1; 8]).is_ok() {}
        // Held back for ever, or not.
        found(|| {
            tx.step().unwrap();
            (tx.published() == tx.sent()).then_some(())
        });
        found(|| {
            while rx.try_recv().unwrap().is_some() {}
            (rx.consumed() == tx.sent()).then_some(())
        });
    }
}

#[test]
fn rings_that_cross_do_not_stop_each_other() {
    // Both sides fill their ring, read half, and wait for room while releasing nothing more.
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
                let (ring, _) = awaited!(group.try_recv().unwrap());
                assert_eq!(ring, *rx);
            }
        }
        let mut waiting = [true; 2];
        println!("{mode:?}");
        found_within(10, || {
            for ((group, tx, _), waiting) in sides.iter_mut().zip(&mut waiting) {
                // Whoever waits for room receives nothing meanwhile.
                let sender = group.sender(*tx).unwrap();
                *waiting = *waiting && sender.try_send(&[2; 600]).is_err();
                while !*waiting && group.try_recv().unwrap().is_some() {}
                group.step(!*waiting).unwrap();
            }
            (waiting == [false; 2]).then_some(())
        });
    }
}
