//! After a fork the ends belong to the parent. A child's calls are refused and change nothing.

#![allow(unsafe_code, reason = "forks")]

use headworks_ring::{
    AfterStep, Framing, Group, Mode, RingConfig, RingError, SendError, Sender, SetupError,
};

use crate::group::{group, join};
use crate::pair::{Hosts, config, fill, flush, holds, poll_expr, stepped};

/// Runs `f` in a forked child and returns its result, from 0 to 255.
fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `f`, which calls the ring, and then exits at once.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        // SAFETY: `_exit` ends the child without running any of the parent's exit handlers.
        0 => unsafe { libc::_exit(f()) },
        pid => {
            let mut status = 0;
            // SAFETY: `pid` is our own child and `status` is a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child was killed");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_childs_messages_are_refused_and_the_parents_are_unharmed() {
    for mode in [Mode::Poll, Mode::Latency, Mode::Notify] {
        for framing in [Framing::Fixed(56), Framing::Variable(200)] {
            let hosts = Hosts::new();
            let (mut tx, mut rx) = hosts.ring(&config(16, framing, mode));
            let mut message = [0; 56];
            // The first message of a batch takes the long path, later ones the short one. Both are tested.
            for number in 0..6 {
                let refused = in_child(|| {
                    let sent =
                        tx.try_send(&[0xee; 56]) == Err(SendError::Broken(RingError::Forked));
                    let placed = tx.try_reserve(56).is_err();
                    let flushed = tx.flush().is_err() && tx.step().is_err();
                    let received = rx.try_recv().is_err() && rx.try_take().is_err();
                    let stepped = rx.step() == Err(RingError::Forked);
                    let pushed = rx.push_head() == Err(RingError::Forked);
                    i32::from(sent && placed && flushed && received && stepped && pushed)
                });
                assert_eq!(refused, 1, "{mode:?} {framing:?} message {number}");
                fill(number, &mut message);
                tx.try_send(&message).unwrap();
            }
            flush(&mut tx);
            for number in 0..6 {
                let got = poll_expr!(rx.try_recv().unwrap());
                assert!(holds(number, &got), "{mode:?} {framing:?} message {number}");
                drop(got);
                // The next message has arrived. A child may not take it either.
                assert_eq!(in_child(|| i32::from(rx.try_recv().is_err())), 1);
            }
        }
    }
}

#[test]
fn a_childs_group_says_that_it_is_the_parents() {
    for mode in [Mode::Poll, Mode::Notify] {
        let hosts = Hosts::new();
        let config = config(16, Framing::Fixed(56), mode);
        let mut group = group(&hosts, &config, 3);
        let (mut tx, ring) = join(&hosts, &config, &mut group);
        let (mut idle, _) = join(&hosts, &config, &mut group);
        let mut message = [0; 56];
        for number in 0..3 {
            fill(number, &mut message);
            tx.try_send(&message).unwrap();
        }
        flush(&mut tx);
        // Before the group has polled, in the middle of a turn, and when everything is read.
        for number in 0..4 {
            let refused = in_child(|| {
                // Refused at every call, not once per ring.
                let received = (0..5).all(|_| {
                    group.try_recv().map(drop).map_err(|broken| broken.error)
                        == Err(RingError::Forked)
                });
                let stepped = (0..5).all(|_| {
                    group.step(AfterStep::Wait).map_err(|broken| broken.error)
                        == Err(RingError::Forked)
                });
                let seated = matches!(group.seat(), Err(SetupError::Ring(RingError::Forked)));
                i32::from(received && stepped && seated)
            });
            assert_eq!(refused, 1, "{mode:?} message {number}");
            if number < 3 {
                let (from, got) = poll_expr!(group.try_recv().unwrap());
                assert!(from == ring && holds(number, &got));
            } else {
                assert!(group.try_recv().unwrap().is_none());
            }
        }
        idle.try_send(&message).unwrap();
        flush(&mut idle);
        poll_expr!(group.try_recv().unwrap());
        // A group that only sends refuses too.
        let mut group = Group::default();
        group.add_sender(tx);
        let stepped = in_child(|| {
            i32::from(
                group.step(AfterStep::Poll).map_err(|broken| broken.error)
                    == Err(RingError::Forked),
            )
        });
        assert_eq!(stepped, 1);
        group.step(AfterStep::Poll).unwrap();
    }
}

#[test]
fn a_childs_group_without_rings_is_the_parents_too() {
    for mode in [Mode::Poll, Mode::Notify] {
        let hosts = Hosts::new();
        let config = config(16, Framing::Fixed(56), mode);
        for mut group in [Group::default(), group(&hosts, &config, 3)] {
            let refused = in_child(|| {
                let received = group.try_recv().map(drop).unwrap_err();
                let stepped = group.step(AfterStep::Wait).unwrap_err();
                group.arm();
                group.drain_events();
                let no_ring = group.receiver(received.ring).is_none();
                let named = received.to_string() == format!("no ring: {}", RingError::Forked);
                let errors = [received.error, stepped.error];
                i32::from(no_ring && named && errors == [RingError::Forked; 2])
            });
            assert_eq!(refused, 1, "{mode:?}");
            assert!(group.try_recv().unwrap().is_none(), "the parent goes on");
        }
    }
}

/// Returns a ring that sends every message at once and pushes every head at once.
fn prompt(framing: Framing, mode: Mode) -> RingConfig {
    RingConfig {
        publish_every: Some(1),
        transmit_every: Some(1),
        push_every: Some(1),
        ..config(16, framing, mode)
    }
}

#[test]
fn a_childs_release_leaves_the_message_to_the_parent() {
    for (framing, mode) in [
        (Framing::Fixed(56), Mode::Poll),
        (Framing::Variable(200), Mode::Poll),
        (Framing::Variable(200), Mode::Latency),
    ] {
        let hosts = Hosts::new();
        let (mut tx, mut rx) = hosts.ring(&prompt(framing, mode));
        let len = match framing {
            Framing::Fixed(len) | Framing::Variable(len) => len,
        };
        let mut message = vec![0; len];
        for number in 0..2 {
            fill(number, &mut message);
            tx.try_send(&message).unwrap();
        }
        // A lent message that the child drops still belongs to the parent.
        let mut lent = Some(poll_expr!(rx.try_recv().unwrap()));
        in_child(|| {
            drop(lent.take());
            0
        });
        tx.step().unwrap();
        assert_eq!(tx.consumed(), 0, "{framing:?} {mode:?}: freed by a child");
        assert!(lent.as_deref().is_some_and(|bytes| holds(0, bytes)));
        drop(lent);
        println!("{framing:?} {mode:?}");
        let freed = |tx: &Sender| Some(tx.consumed()).filter(|&consumed| consumed > 0);
        let first = stepped(&mut tx, freed);
        // A child's release of a taken message is refused.
        let mut held = Some(poll_expr!(rx.try_take().unwrap()));
        let refused = in_child(|| {
            let held = held.take().expect("taken by the parent");
            i32::from(rx.release(held) == Err(RingError::Forked))
        });
        assert_eq!(refused, 1, "{framing:?} {mode:?}");
        tx.step().unwrap();
        assert_eq!(
            tx.consumed(),
            first,
            "{framing:?} {mode:?}: freed by a child"
        );
        let held = held.expect("the child's copy is gone, not ours");
        assert!(holds(1, rx.bytes(&held)), "{framing:?} {mode:?}");
        rx.release(held).unwrap();
        stepped(&mut tx, |tx| (tx.consumed() > first).then_some(()));
    }
}

#[test]
fn a_parents_reservation_committed_by_a_child_is_unsent() {
    for (framing, mode) in [
        (Framing::Fixed(56), Mode::Poll),
        (Framing::Variable(200), Mode::Poll),
        (Framing::Variable(200), Mode::Latency),
        (Framing::Fixed(56), Mode::Notify),
    ] {
        let hosts = Hosts::new();
        let (mut tx, mut rx) = hosts.ring(&prompt(framing, mode));
        let mut place = Some(tx.try_reserve(56).unwrap());
        let refused = in_child(|| {
            let place = place.take().expect("reserved by the parent");
            i32::from(place.commit().is_err())
        });
        assert_eq!(refused, 1, "{framing:?} {mode:?}");
        assert!(rx.try_recv().unwrap().is_none(), "sent by a child");
        let mut place = place.expect("the child's copy is gone, not ours");
        fill(0, &mut place);
        place.commit().unwrap();
        let got = poll_expr!(rx.try_recv().unwrap());
        assert!(holds(0, &got), "{framing:?} {mode:?}");
    }
}
